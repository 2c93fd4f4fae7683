"""Finds stages of an island that give the same rows to several stages, so that they run once.

A query that uses a view twice, as TPC-DS 59 compares the weeks of two years, has two stages alike::

    stage 3: join of this year's sums with those of the next year
      exchange 0: sums by week and store            from stage 0
      exchange 1: the next year's sums              from stage 2
        exchange 2: sums by week and store          from stage 1: the rows of exchange 0, which are shuffled once

Stages are alike if they compute the same columns, whatever these are called, of the same files and of the rows of
stages alike. Spark keeps the output of a shuffle until all who read it have run, and computes again what is lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from gpujoin.model.relations import ExchangeSource, Relation, Scan
from gpujoin.plan.repeated import Kinds

if TYPE_CHECKING:
    from gpujoin.model.files import FileSlice
    from gpujoin.model.stages import Exchange
    from gpujoin.spark.query.runs import StageRun

    _Read = tuple[tuple[tuple[FileSlice, ...], ...], ...]


def shared_exchanges(last: StageRun) -> Mapping[int, int]:
    """Number the exchanges of an island that have the same rows as another one, those alike by the same number.

    Parameters
    ----------
    last : StageRun
        The last stage, with those before it.

    Returns
    -------
    mapping from int to int
        By the index of the exchange. Two exchanges of one stage have different numbers.
    """
    finder = _Finder()
    finder.visit(last)
    return {index: number for number, alike in finder.alike.items() if len(alike) > 1 for index in alike}


class _Finder:
    """Numbers the exchanges before a stage, those alike by the same number."""

    def __init__(self) -> None:
        self.alike: defaultdict[int, list[int]] = defaultdict(list)
        """Indexes of the exchanges, by number."""
        self._known: defaultdict[Hashable, list[tuple[_Read, int]]] = defaultdict(list)
        self._kinds = Kinds()

    def visit(self, run: StageRun) -> Mapping[int, int]:
        """Number the exchanges that a stage reads, and give the numbers by their indexes."""
        numbers: dict[int, int] = {}
        for exchange, before in zip(run.stage.inputs, run.inputs, strict=True):
            read = _read(before)
            likeness = self._likeness(exchange, before, read, run.tasks)
            candidates = self._known[likeness]
            number = next((n for other, n in candidates if n not in numbers.values() and other == read), None)
            if number is None:
                number = len(self.alike)
                candidates.append((read, number))
            numbers[exchange.index] = number
            self.alike[number].append(exchange.index)
        return numbers

    def _likeness(self, exchange: Exchange, before: StageRun, read: _Read, partitions: int) -> Hashable:
        """A value that exchanges alike have in common; of rows from Spark nothing is."""
        numbers = self.visit(before)
        if before.stage.spark is not None:
            return exchange.index
        # The first slices tell most files apart, and only then all are compared.
        first = tuple(tuple((len(slices), slices[:1]) for slices in task) for task in read[:1])
        return (
            self._kinds.of(_numbered(before.stage.tree, numbers)), first, before.tasks, partitions,
            exchange.columns, exchange.types, exchange.null_safe, exchange.nulls, exchange.indeterminate,
            exchange.replicated, exchange.last_complete,
        )  # fmt: skip


def _read(run: StageRun) -> _Read:
    """For each task of a stage what it reads of each scan, in the order of the scans in its tree."""
    scans = [node.index for node in run.stage.tree.walk() if isinstance(node, Scan)]
    return tuple(tuple(tuple(reads.get(index, ())) for index in scans) for reads in run.reads)


def _numbered(node: Relation, numbers: Mapping[int, int]) -> Relation:
    """The same tree, in which sources have the numbers of their exchanges, and columns without names."""
    if isinstance(node, ExchangeSource):
        fields = [field.with_name(f"c{n}") for n, field in enumerate(node.columns)]
        return ExchangeSource(numbers[node.index], pa.schema(fields))
    return node.with_children([_numbered(child, numbers) for child in node.children]) if node.children else node
