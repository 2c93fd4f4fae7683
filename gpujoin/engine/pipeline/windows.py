"""Windows: all rows of a partition are brought together, in memory or by way of the disk.

Rows are held as those of a build side are. Beyond their share of memory all go to disk, divided by the hash of their
partition, and the windows of each part are computed by themselves. A part that is still too large is divided again.
Rows of one partition cannot be divided; they are held whatever their size.

Where a filter above wants the first rows of each partition, the others are dropped while rows come in. Of
``rank() OVER (PARTITION BY k ORDER BY v) <= 2``, taking four rows at a time::

    rows     k v    rank   held     rows   k v   rank   held
             a 3    1      a 3      held   a 3   2
             a 5    2      a 5             a 5   3
             a 6    3                      b 1   1      b 1
             b 1    1      b 1      next   a 2   1      a 2   a 3
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from gpujoin.engine.memory import HostMemory
from gpujoin.engine.pipeline.placement import MixedPipeline
from gpujoin.engine.spill import SpillPart, SpillStore, divisible, part_by_part
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.pipeline import FAN_OUT, AnyPipelineBackend, PipelineMetrics
from gpujoin.model.relations import Window, column
from gpujoin.model.windows import FramedAggregate, RankLimit, WindowCall

_Piece: TypeAlias = Any

_DROPPED_ROWS = 1 << 18
"""After so many rows, or twice the rows held if that is more, those beyond the limit of ranks are dropped."""


@dataclass(frozen=True)
class WindowRun:
    """Computes a window over pieces."""

    node: Window
    backend: AnyPipelineBackend | MixedPipeline
    memory: HostMemory
    metrics: PipelineMetrics
    batch_bytes: int
    """Size of batches on disk."""
    new_store: Callable[[], SpillStore]

    def pieces(self, source: Iterator[_Piece], divisions: int = 0, *, stuck: bool = False) -> Iterator[_Piece]:
        """Compute the window over all rows of a source, which has whole partitions.

        ``divisions`` counts the divisions of the rows so far. ``stuck``: the last one did not make the parts smaller.
        """
        backend, schema = self.backend, self.node.child.schema
        may_divide = bool(self.node.partition) and divisible(divisions, stuck=stuck)
        budget = min(backend.budget(self.memory.build_bytes), self.memory.build_bytes)
        buffered: list[_Piece] = []
        rows, size, enough = 0, 0, _DROPPED_ROWS
        source = map(backend.collect, source)
        for piece in source:
            buffered.append(piece)
            more_rows, more_bytes = backend.size(piece)
            rows, size = rows + more_rows, size + more_bytes
            if self.node.limit is not None and (rows >= enough or size > budget):
                buffered = [self._limited(buffered, self.node.limit)]
                rows, size = backend.size(buffered[0])
                enough = max(_DROPPED_ROWS, 2 * rows)
            if may_divide and size > budget:
                yield from self._divided(buffered, source, divisions)
                return
        self.metrics.oversized_parts += size > budget
        if buffered:
            # Functions that may fail must not see rows that Spark has dropped.
            limit = self.node.limit if any(isinstance(each, FramedAggregate) for each in self.node.calls) else None
            all_rows = (
                backend.concat(buffered, schema, self.metrics) if limit is None else self._limited(buffered, limit)
            )
            buffered.clear()
            self.metrics.windows += 1
            yield backend.window(all_rows, self.node)

    def _limited(self, buffered: list[_Piece], limit: RankLimit) -> _Piece:
        """Drop the rows beyond the limit."""
        backend, schema = self.backend, self.node.child.schema
        rank = WindowCall(function=limit.function, name="rank")
        ranked = dataclasses.replace(self.node, calls=(rank,), limit=None)
        rows = backend.window(backend.concat(buffered, schema, self.metrics), ranked)
        among_first = Call(
            function=Function.LE, mode=EvalMode.ANSI, type=pa.bool_(),
            arguments=(column(ranked.schema, len(schema)), Literal(value=limit.count, type=rank.dtype)),
        )  # fmt: skip
        first = backend.project(backend.filter(rows, among_first), [column(schema, n) for n in range(len(schema))])
        return backend.collect(first)

    def _divided(self, buffered: list[_Piece], source: Iterator[_Piece], divisions: int) -> Iterator[_Piece]:
        schema = self.node.child.schema
        store = self.new_store()
        try:
            parts = store.new_parts(schema, FAN_OUT)
            while buffered:
                self._write(buffered.pop(0), parts, divisions)
            for piece in source:
                self._write(piece, parts, divisions)

            def computed(parts: Sequence[SpillPart], stuck: bool) -> Iterator[_Piece]:
                (part,) = parts
                batches = part.read()
                rows = (self.backend.take_in([batch], schema, self.metrics) for batch in batches)
                return self.pieces(rows, divisions + 1, stuck=stuck)

            yield from part_by_part((parts,), computed)
        finally:
            store.close()

    def _write(self, piece: _Piece, parts: Sequence[SpillPart], divisions: int) -> None:
        divided = self.backend.divide(piece, self.node.partition, divisions)
        for part, rows in zip(parts, divided, strict=True):
            for batch in self.backend.give_out(rows, self.node.child.schema, self.batch_bytes):
                part.append(batch)
