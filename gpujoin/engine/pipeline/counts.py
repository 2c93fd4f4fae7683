"""Counts the rows and bytes of the operations of a pipeline, where they are in memory anyway.

Filters, projections and joins that the backend runs within a query of an operation above them are not counted: their
rows are never there by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from gpujoin.engine.pipeline.clock import OperationClock
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import Relation

T = TypeVar("T")


class OperationCounts:
    """Rows and bytes of the operations of one run of a tree.

    An operation is counted when it returns its rows, or when its consumer collects them. The former wins if both occur;
    for the topmost operation, what the run returns wins over both.
    """

    def __init__(self, clock: OperationClock) -> None:
        self._clock = clock
        self._output: dict[str, list[int]] = {}
        self._collected: dict[str, list[int]] = {}
        self._returned: dict[str, list[int]] = {}
        self._scanned: dict[str, int] = {}

    def give(self, node: Relation, rows: int, nbytes: int = 0) -> None:
        """Count rows that an operation returns."""
        self._add(self._output, node, rows, nbytes)

    def take(self, node: Relation, rows: int, nbytes: int = 0) -> None:
        """Count rows of an operation that its consumer has collected."""
        self._add(self._collected, node, rows, nbytes)

    def pass_on(self, node: Relation, items: Iterator[T], size: Callable[[T], tuple[int, int]]) -> Iterator[T]:
        """Pass on the output of an operation, and count it."""
        for item in items:
            self.give(node, *size(item))
            yield item

    def returned(self, tree: Relation, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on the output of a run, and count it."""
        for batch in batches:
            self._add(self._returned, tree, batch.num_rows, batch.nbytes)
            yield batch

    def read(self, node: Relation, pieces: Iterator[Any], metrics: PipelineMetrics) -> Iterator[Any]:
        """Pass on the pieces of a scan, and count the rows of its row groups."""
        name = self._clock.name(node)
        while True:
            before = metrics.scanned_rows
            piece = next(pieces, None)
            self._scanned[name] = self._scanned.get(name, 0) + metrics.scanned_rows - before
            if piece is None:
                return
            yield piece

    @contextmanager
    def added_to(self, metrics: PipelineMetrics) -> Iterator[None]:
        """Add the counts of a ``with`` block to a task's counters, unless an error ends it: it is repeated then."""
        try:
            yield
        except GeneratorExit:
            self._add_to(metrics)
            raise
        self._add_to(metrics)

    def _add(self, counts: dict[str, list[int]], node: Relation, rows: int, nbytes: int) -> None:
        total = counts.setdefault(self._clock.name(node), [0, 0])
        total[0] += rows
        total[1] += nbytes

    def _add_to(self, metrics: PipelineMetrics) -> None:
        for name, (rows, nbytes) in {**self._collected, **self._output, **self._returned}.items():
            metrics.rows[name] = metrics.rows.get(name, 0) + rows
            metrics.bytes[name] = metrics.bytes.get(name, 0) + nbytes
        for name, rows in self._scanned.items():
            metrics.read_rows[name] = metrics.read_rows.get(name, 0) + rows
