"""Windows: functions of all rows of a partition, which are brought together first (`engine.pipeline.partitions`).

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
from dataclasses import dataclass

import pyarrow as pa

from gpujoin.engine.pipeline.partitions import PartitionRun, Piece
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.relations import Window, column
from gpujoin.model.windows import FramedAggregate, RankLimit, WindowCall

_DROPPED_ROWS = 1 << 18
"""After so many rows, or twice the rows held if that is more, those beyond the limit of ranks are dropped."""


@dataclass(frozen=True)
class WindowRun(PartitionRun):
    """Computes a window over pieces."""

    node: Window

    @property
    def first_shrunk(self) -> int | None:
        """Rows are dropped where there is a limit of ranks."""
        return None if self.node.limit is None else _DROPPED_ROWS

    def shrunk(self, buffered: list[Piece]) -> Piece:
        """Drop the rows beyond the limit of ranks."""
        assert self.node.limit is not None
        return self._limited(buffered, self.node.limit)

    def computed(self, buffered: list[Piece]) -> Piece:
        """Compute the window over whole partitions, and empty the list."""
        # Functions that may fail must not see rows that Spark has dropped.
        limit = self.node.limit if any(isinstance(each, FramedAggregate) for each in self.node.calls) else None
        rows = super().computed(buffered) if limit is None else self._limited(buffered, limit)
        buffered.clear()
        self.metrics.windows += 1
        return self.backend.window(rows, self.node)

    def _limited(self, buffered: list[Piece], limit: RankLimit) -> Piece:
        """Drop the rows beyond the limit."""
        backend, schema = self.backend, self.schema
        rank = WindowCall(function=limit.function, name="rank")
        ranked = dataclasses.replace(self.node, calls=(rank,), limit=None)
        rows = backend.window(backend.concat(buffered, schema, self.metrics), ranked)
        among_first = Call(
            function=Function.LE, mode=EvalMode.ANSI, type=pa.bool_(),
            arguments=(column(ranked.schema, len(schema)), Literal(value=limit.count, type=rank.dtype)),
        )  # fmt: skip
        first = backend.project(backend.filter(rows, among_first), [column(schema, n) for n in range(len(schema))])
        return backend.collect(first)
