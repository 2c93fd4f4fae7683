"""How an island runs: its stages, what each task of them reads, and what is decided once sizes are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpujoin.model.stages import Stage
from gpujoin.plan.late_broadcast import LateBroadcast, late_broadcast
from gpujoin.plan.partition_sizes import Coalescing, SplitPartitions, Splitting, may_coalesce, split_partitions
from gpujoin.spark.worker.taskreads import Reads


@dataclass(frozen=True)
class StageRun:
    """How a stage runs."""

    stage: Stage
    """What its tasks compute."""
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
    """What decided."""
    keeps_tables: bool = False
    """Whether workers keep the tables that they build, for the next micro-batch of a stream."""
    stores: frozenset[str] = frozenset()
    """Names of the stores that its files are in."""
    coalescing: Coalescing | None = None
    """How small partitions are coalesced once their sizes are known; ``None``: none are."""
    late_threshold: int | None = None
    """Most bytes of a side that may be sent to every task where it proves small; ``None``: none is."""
    splitting: Splitting | None = None
    """By which sizes heavy partitions are split; ``None``: none is."""
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
        """Give the same run, in which tasks are made once sizes are known, where any may be.

        Small partitions are coalesced to about ``tasks``; a side of up to ``threshold`` bytes is sent to every task.
        """
        run = self
        if any(may_coalesce(stage) for stage in self.last.stage.walk()):
            notes = (*run.notes, "small partitions are coalesced once their sizes are known")
            run = dataclasses.replace(run, coalescing=Coalescing(tasks), notes=notes)
        split = dataclasses.replace(run, splitting=splitting)
        if any(split.splits(stage) for stage in self.last.walk()):
            told = "a heavy partition of a join is computed by several tasks once sizes are known"
            run = dataclasses.replace(split, notes=(*run.notes, told))
        late = dataclasses.replace(run, late_threshold=threshold)
        if threshold > 0 and any(late.late(stage) for stage in self.last.walk()):
            told = "an input of a join that proves small is sent to every task, and the other not exchanged"
            run = dataclasses.replace(late, notes=(*run.notes, told))
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
