"""How an island runs: its stages, the files of each task, and decisions put off until sizes are known.

Stages that give the same rows to several stages run once. A query that uses a view twice, as TPC-DS 59 compares the
weeks of two years, has two stages alike::

    stage 3: join of this year's sums with those of the next year
      exchange 0: sums by week and store            from stage 0
      exchange 1: the next year's sums              from stage 2
        exchange 2: sums by week and store          from stage 1: the rows of exchange 0, which are shuffled once

Stages are alike if they compute the same columns, whatever these are called, of the same files and of the rows of
stages alike. Spark keeps the output of a shuffle until all who read it have run, and computes again what is lost.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from gpujoin.model.relations import ExchangeSource, Relation, Scan
from gpujoin.model.stages import Stage
from gpujoin.plan.late_broadcast import LateBroadcast, late_broadcast
from gpujoin.plan.partition_sizes import Coalescing, SplitPartitions, Splitting, may_coalesce, split_partitions
from gpujoin.plan.repeated import Kinds
from gpujoin.spark.worker.taskreads import Reads

if TYPE_CHECKING:
    from gpujoin.model.files import FileSlice
    from gpujoin.model.stages import Exchange


@dataclass(frozen=True)
class StageRun:
    """How a stage runs."""

    stage: Stage
    """The stage that its tasks compute."""
    reads: tuple[Reads, ...]
    """For each task what it reads; one entry for all tasks of a stage whose rows come by key, or from Spark."""
    inputs: tuple[StageRun, ...] = ()
    """The producers of its exchanges, in order."""

    @property
    def tasks(self) -> int:
        """How many tasks there are; of a stage that takes rows from Spark it is not known, and 1 is given."""
        return len(self.reads) if self.stage.branches else self.stage.partitions

    def walk(self) -> Iterator[StageRun]:
        """Give this stage and all before it."""
        yield self
        for before in self.inputs:
            yield from before.walk()


@dataclass(frozen=True)
class IslandRun:
    """How an island runs."""

    last: StageRun
    """The last stage, with those before it."""
    scans: tuple[int, ...]
    """The scan of the island that each scan of the stages is."""
    threads: int
    """Threads of each task."""
    notes: tuple[str, ...]
    """Facts that decided how it runs."""
    keeps_tables: bool = False
    """Whether workers keep the tables that they build, for the next micro-batch of a stream."""
    stores: frozenset[str] = frozenset()
    """Names of the stores that its files are in."""
    coalescing: Coalescing | None = None
    """How small partitions are coalesced once their sizes are known; ``None``: none are."""
    late_threshold: int | None = None
    """Most bytes of a side that may be sent to every task where it proves small; ``None``: none is."""
    splitting: Splitting | None = None
    """Sizes at which heavy partitions are split; ``None``: none is."""
    shared: Mapping[int, int] = field(default_factory=dict)
    """Numbers of exchanges whose rows are computed once for several stages, by their indexes: those alike have the
    same number."""

    @property
    def repeated(self) -> frozenset[int]:
        """Indexes of the exchanges alike another one before them, in the order in which stages are put into a plan."""
        first: dict[int, int] = {}

        def visit(run: StageRun) -> None:
            for exchange, before in zip(run.stage.inputs, run.inputs, strict=True):
                if exchange.index in self.shared:
                    first.setdefault(self.shared[exchange.index], exchange.index)
                visit(before)

        visit(self.last)
        return frozenset(self.shared).difference(first.values())

    @property
    def exchanges(self) -> int:
        """How many exchanges are computed."""
        return self.last.stage.exchanges - len(self.repeated)

    @property
    def tasks(self) -> int:
        """How many tasks of the last stage there are."""
        return self.last.tasks

    @property
    def in_one_task(self) -> bool:
        """Whether one task reads everything."""
        return bool(self.last.stage.branches) and self.tasks == 1

    def coalesces(self, stage: Stage) -> bool:
        """Whether small partitions of a stage are coalesced."""
        return self.coalescing is not None and may_coalesce(stage)

    def splits(self, run: StageRun) -> SplitRun | None:
        """Give how heavy partitions of a stage are split, if they are."""
        if self.splitting is None or not self.coalesces(run.stage):
            return None
        split = split_partitions(run.stage, self.shared)
        if split is None:
            return None
        before = {exchange.index: n for n, exchange in enumerate(run.stage.inputs)}
        divisions = {}
        for side in split.sides:
            index = split.source(side)
            exchange, producer = run.stage.inputs[before[index]], run.inputs[before[index]]
            divisions[index] = self.splitting.divisions(exchange, run.tasks, producer.tasks)
        return SplitRun(split, self.splitting, divisions) if max(divisions.values()) > 1 else None

    @property
    def adapts(self) -> bool:
        """Whether tasks of any stage are made once sizes are known."""
        return self.coalescing is not None or self.late_threshold is not None

    def late(self, run: StageRun) -> LateRun | None:
        """Give what may run in the place of a stage."""
        if self.late_threshold is None:
            return None
        planned = late_broadcast(run.stage, self.shared)
        if planned is None:
            return None
        before = dict(zip((exchange.index for exchange in run.stage.inputs), run.inputs, strict=True))
        producer = before[planned.large.index]
        before |= zip((exchange.index for exchange in producer.stage.inputs), producer.inputs, strict=True)
        reads = tuple({**own, **run.reads[0]} for own in producer.reads)
        inputs = tuple(before[exchange.index] for exchange in planned.stage.inputs)
        fused = StageRun(planned.stage, reads, inputs)
        limit = planned.limit(fused.tasks, self.late_threshold)
        return LateRun(fused, planned, limit) if planned.may_have(limit) else None

    def adapting(self, tasks: int, threshold: int, splitting: Splitting | None = None) -> IslandRun:
        """Give the same run with decisions put off until sizes are known, where any may be.

        Small partitions are coalesced to about ``tasks``; a side of up to ``threshold`` bytes is sent to every task.
        """
        run = self
        if any(may_coalesce(stage) for stage in self.last.stage.walk()):
            notes = (*run.notes, "small partitions are coalesced once their sizes are known")
            run = dataclasses.replace(run, coalescing=Coalescing(tasks), notes=notes)
        split = dataclasses.replace(run, splitting=splitting)
        if any(split.splits(stage) for stage in self.last.walk()):
            note = "a heavy partition of a join is computed by several tasks once sizes are known"
            run = dataclasses.replace(split, notes=(*run.notes, note))
        late = dataclasses.replace(run, late_threshold=threshold)
        if threshold > 0 and any(late.late(stage) for stage in self.last.walk()):
            note = "an input of a join that proves small is sent to every task, and the other not exchanged"
            run = dataclasses.replace(late, notes=(*run.notes, note))
        return run


@dataclass(frozen=True)
class LateRun:
    """How a stage runs where one of its inputs proves small."""

    run: StageRun
    planned: LateBroadcast
    limit: int
    """Most bytes of that input, as Spark compresses them."""


@dataclass(frozen=True)
class SplitRun:
    """How heavy partitions of a stage are split."""

    planned: SplitPartitions
    splitting: Splitting
    divisions: Mapping[int, int]
    """Into how many divisions each partition of an exchange is divided, by the index of the exchange."""


_Reads = tuple[tuple[tuple["FileSlice", ...], ...], ...]
"""For each task the slices of files that it reads, by scan."""


def shared_exchanges(last: StageRun) -> Mapping[int, int]:
    """Number the exchanges of an island that have the same rows as another one; those alike have one number.

    Parameters
    ----------
    last : StageRun
        The last stage, with those before it.

    Returns
    -------
    mapping from int to int
        By the index of the exchange. Two exchanges of one stage have different numbers.
    """
    finder = _AlikeExchanges()
    finder.visit(last)
    return {index: number for number, alike in finder.alike.items() if len(alike) > 1 for index in alike}


class _AlikeExchanges:
    """Numbers the exchanges before a stage, those alike by the same number."""

    def __init__(self) -> None:
        self.alike: defaultdict[int, list[int]] = defaultdict(list)
        """Indexes of the exchanges, by number."""
        self._candidates: defaultdict[Hashable, list[tuple[_Reads, int]]] = defaultdict(list)
        self._kinds = Kinds()

    def visit(self, run: StageRun) -> Mapping[int, int]:
        """Number the exchanges that a stage reads, and give the numbers by their indexes."""
        numbers: dict[int, int] = {}
        for exchange, before in zip(run.stage.inputs, run.inputs, strict=True):
            reads = _reads(before)
            likeness = self._likeness(exchange, before, reads, run.tasks)
            candidates = self._candidates[likeness]
            number = next((n for other, n in candidates if n not in numbers.values() and other == reads), None)
            if number is None:
                number = len(self.alike)
                candidates.append((reads, number))
            numbers[exchange.index] = number
            self.alike[number].append(exchange.index)
        return numbers

    def _likeness(self, exchange: Exchange, before: StageRun, reads: _Reads, partitions: int) -> Hashable:
        """Give a value that exchanges alike have in common, and those of rows from Spark with no other."""
        numbers = self.visit(before)
        if before.stage.spark is not None:
            return exchange.index
        # The first slices tell most files apart, and only then all are compared.
        first = tuple(tuple((len(slices), slices[:1]) for slices in task) for task in reads[:1])
        return (
            self._kinds.of(_numbered(before.stage.tree, numbers)), first, before.tasks, partitions,
            exchange.columns, exchange.types, exchange.null_safe, exchange.nulls, exchange.indeterminate,
            exchange.replicated, exchange.last_complete,
        )  # fmt: skip


def _reads(run: StageRun) -> _Reads:
    """Give the slices that each task of a stage reads, by the scans in the order of its tree."""
    scans = [node.index for node in run.stage.tree.walk() if isinstance(node, Scan)]
    return tuple(tuple(tuple(reads.get(index, ())) for index in scans) for reads in run.reads)


def _numbered(node: Relation, numbers: Mapping[int, int]) -> Relation:
    """Give sources the numbers of their exchanges, and columns plain names."""
    if isinstance(node, ExchangeSource):
        fields = [field.with_name(f"c{n}") for n, field in enumerate(node.columns)]
        return ExchangeSource(numbers[node.index], pa.schema(fields))
    return node.with_children([_numbered(child, numbers) for child in node.children]) if node.children else node
