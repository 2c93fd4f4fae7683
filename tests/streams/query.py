"""A streaming query of one join, run in memory: micro-batches, watermarks and no-data batches as Spark has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from gpujoin.model.jointype import Side
from gpujoin.streams.format import MemoryStore
from gpujoin.streams.join import StreamJoin
from gpujoin.streams.state import StateOptions
from gpujoin.streams.symmetric import SymmetricJoin
from gpujoin.testing import Cell
from tests.oracle.streams import rows_of

TIME = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", TIME), ("end", TIME)])
SECOND = 1_000_000
Rows = Sequence[tuple[object, ...]]
Output = list[tuple[Cell, ...]]


def window(second: int) -> dict[str, int]:
    """The window of ten seconds that a time is in."""
    start = second // 10 * 10 * SECOND
    return {"start": start, "end": start + 10 * SECOND}


@dataclass
class Query:
    """A query with a delay of the watermark for each side, in seconds; ``None``: the side has no watermark.

    Attributes
    ----------
    join : StreamJoin
        The join.
    make : dict of Side to callable
        From what a test adds to the columns of a row.
    time : callable
        Event time of an added row, in seconds.
    pick : callable
        What a test looks at of an output row.
    delays : tuple of (int or None, int or None)
        Delay of each side's watermark.
    no_data_batches : bool
        Whether a batch without rows follows when the watermark has moved.
    """

    join: StreamJoin
    make: Mapping[Side, Callable[..., tuple[object, ...]]]
    time: Callable[..., int]
    pick: Callable[..., tuple[Cell, ...]]
    delays: tuple[int | None, int | None] = (10, 10)
    no_data_batches: bool = True
    watermark_ms: int = 0
    latest: dict[Side, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Chunks of a row or two, so that most tests merge some.
        self._sizes = StateOptions(chunk_bytes=5000, fan_in=2)
        self.store = MemoryStore()
        self.running = SymmetricJoin(self.join, self.store, state_options=self._sizes)

    def add(self, left: Rows = (), right: Rows = ()) -> Output:
        """Add rows, run the batches that Spark would run, and return what they return, sorted."""
        before = self.watermark_ms
        output = self._batch(left, right)
        if self.no_data_batches and self.watermark_ms > before:
            output += self._batch((), ())
        return sorted(output, key=repr)

    def restart(self) -> None:
        """Stop, and go on from what is saved."""
        saved = self.running.manifest.to_bytes()
        self.running = SymmetricJoin(self.join, self.store, saved, state_options=self._sizes)

    @property
    def state_rows(self) -> int:
        """Rows in the state, as Spark counts them but for left rows of semi joins that have matched."""
        return sum(rows.num_rows for side in Side for rows in self.running.rows(side))

    def _batch(self, left: Rows, right: Rows) -> Output:
        given = {Side.LEFT: left, Side.RIGHT: right}
        batches = {side: self._rows(side, rows) for side, rows in given.items()}
        pushed = list(self.running.push(batches[Side.LEFT], batches[Side.RIGHT], self.watermark_ms))
        for side, rows in given.items():
            for row in rows:
                self.latest[side] = max(self.latest.get(side, 0), self.time(*row))
        watermarks = [
            1000 * (self.latest[side] - delay) if side in self.latest else 0
            for side, delay in zip(Side, self.delays, strict=True)
            if delay is not None
        ]
        self.watermark_ms = max(self.watermark_ms, min(watermarks, default=0))
        return [self.pick(*row) for row in rows_of(pushed, self.running.output_schema)]

    def _rows(self, side: Side, rows: Rows) -> list[pa.RecordBatch]:
        if not rows:
            return []
        schema = self.join.schema(side)
        made = [dict(zip(schema.names, self.make[side](*row), strict=True)) for row in rows]
        return pa.Table.from_pylist(made, schema).to_batches()
