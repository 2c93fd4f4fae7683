"""Spark's join of two streams by its definition, one row at a time. Slow, short, and what the engine must equal.

It follows the operator, not the engine: rows of a side are a list, each new row looks at every row of the other side,
left rows first, and eviction looks at every row. Thresholds are given, not derived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from gpujoin.model.expressions import conjuncts
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, NullEquality
from gpujoin.testing import Cell, cells
from tests.cells import sort_key
from tests.oracle.ordering import aligner, common_type
from tests.oracle.values import table_of, values_of_pairs

Row = tuple[Cell, ...]
Time = Callable[[Row], int | None]
"""Event time of a row in microseconds."""


@dataclass(frozen=True)
class Evicts:
    """When rows of a side go.

    Attributes
    ----------
    time : callable
        Time that is compared.
    threshold : callable
        From a watermark in milliseconds to the time in microseconds at or before which rows go.
    """

    time: Time
    threshold: Callable[[int], int]


@dataclass
class Kept:
    """A row in the state."""

    row: Row
    matched: bool


@dataclass
class StreamOracle:
    """Spark's operator.

    Attributes
    ----------
    left, right : Schema
        Columns of the sides.
    spec : JoinSpec
        The join, its condition resolved.
    late : dict of Side to callable
        Event time by which rows of a side are late; sides that are missing have no watermark.
    evicts : dict of Side to Evicts
        When rows of a side go; rows of sides that are missing never do.
    right_first : bool
        Whether a left semi join looks at new right rows first, and does not keep those that go at once.
    """

    left: pa.Schema
    right: pa.Schema
    spec: JoinSpec
    late: dict[Side, Time] = field(default_factory=dict)
    evicts: dict[Side, Evicts] = field(default_factory=dict)
    right_first: bool = True
    state: dict[Side, list[Kept]] = field(default_factory=lambda: {side: [] for side in Side})

    def __post_init__(self) -> None:
        parts = [] if self.spec.condition is None else conjuncts(self.spec.condition)
        self._own = {side: [part for part in parts if part.sides() <= {side}] for side in Side}
        self._both = [part for part in parts if len(part.sides()) == 2]
        self._keys = [self._aligned(key.left, key.right) for key in self.spec.keys]

    def _aligned(self, left: int, right: int) -> Callable[[Row, Side], object]:
        types = {Side.LEFT: self.left.field(left).type, Side.RIGHT: self.right.field(right).type}
        common = common_type(*types.values())
        align = {side: aligner(dtype, common) for side, dtype in types.items()}
        position = {Side.LEFT: left, Side.RIGHT: right}

        def key(row: Row, side: Side) -> object:
            value = align[side](row[position[side]])
            return None if value is None else sort_key(value)

        return key

    def push(self, left: pa.Table, right: pa.Table, late_ms: int, watermark_ms: int) -> list[Row]:
        """Output of a micro-batch."""
        out: list[Row] = []
        if self.spec.join_type is JoinType.LEFT_SEMI and self.right_first:
            before = len(self.state[Side.RIGHT])
            self._push_right(right, late_ms, out)
            staying = self._staying(Side.RIGHT, watermark_ms)
            self.state[Side.RIGHT][before:] = [
                new for new in self.state[Side.RIGHT][before:] if any(new is kept for kept in staying)
            ]
            self._push_left(left, late_ms, out)
        else:
            self._push_left(left, late_ms, out)
            self._push_right(right, late_ms, out)
        for side in Side:
            self._evict(side, watermark_ms, out)
        return out

    def _push_left(self, left: pa.Table, late_ms: int, out: list[Row]) -> None:
        kind = self.spec.join_type
        accepted = self._accepted(Side.LEFT, left, late_ms, out)
        matches = self._matches(accepted, [kept.row for kept in self.state[Side.RIGHT]])
        for number, row in enumerate(accepted):
            matched = False
            for other, kept in enumerate(self.state[Side.RIGHT]):
                if (number, other) in matches:
                    matched = kept.matched = True
                    if kind is not JoinType.LEFT_SEMI:
                        out.append(self._pair(row, kept.row))
            if kind is JoinType.LEFT_SEMI and matched:
                out.append(self._pair(row, None))
            else:
                self.state[Side.LEFT].append(Kept(row, matched))

    def _push_right(self, right: pa.Table, late_ms: int, out: list[Row]) -> None:
        kind = self.spec.join_type
        accepted = self._accepted(Side.RIGHT, right, late_ms, out)
        matches = self._matches([kept.row for kept in self.state[Side.LEFT]], accepted)
        for number, row in enumerate(accepted):
            matched = False
            for other, kept in enumerate(self.state[Side.LEFT]):
                if (kind is JoinType.LEFT_SEMI and kept.matched) or (other, number) not in matches:
                    continue
                matched = kept.matched = True
                out.append(self._pair(kept.row, None if kind is JoinType.LEFT_SEMI else row))
            self.state[Side.RIGHT].append(Kept(row, matched))

    def live(self, side: Side) -> list[Row]:
        """Rows in the state that may still match or be returned."""
        semi = self.spec.join_type is JoinType.LEFT_SEMI and side is Side.LEFT
        return [kept.row for kept in self.state[side] if not (semi and kept.matched)]

    def _accepted(self, side: Side, table: pa.Table, late_ms: int, out: list[Row]) -> list[Row]:
        columns = [cells(column) for column in table.columns]
        listed = list(zip(*columns, strict=True))
        dropped = self._dropped(side, listed)
        accepted = []
        for number, row in enumerate(listed):
            time = self.late[side](row) if side in self.late else None
            if time is not None and time <= late_ms * 1000:
                continue
            if not self._may_have_key(side, row):
                continue
            if number not in dropped:
                accepted.append(row)
            elif self.spec.join_type.preserves(side):
                out.append(self._pair(*((row, None) if side is Side.LEFT else (None, row))))
        return accepted

    def _may_have_key(self, side: Side, row: Row) -> bool:
        """Spark's optimizer filters null keys out below the join, where no row without a match is returned."""
        if self.spec.join_type is JoinType.FULL or self.spec.join_type.preserves(side):
            return True
        return all(row[key.of(side)] is not None or key.nulls is NullEquality.EQUAL for key in self.spec.keys)

    def _dropped(self, side: Side, rows: list[Row]) -> set[int]:
        """Rows that a part of the condition about their side alone drops."""
        left, right = (table_of(rows if own is side else [], self._schema(own)) for own in (Side.LEFT, Side.RIGHT))
        staying = list(range(len(rows)))
        for part in self._own[side]:
            holds = values_of_pairs(part, left, right, [(number, number) for number in staying])
            staying = [number for number, value in zip(staying, holds, strict=True) if value is True]
        return set(range(len(rows))) - {*staying}

    def _schema(self, side: Side) -> pa.Schema:
        return self.left if side is Side.LEFT else self.right

    def _matches(self, left: list[Row], right: list[Row]) -> set[tuple[int, int]]:
        """Pairs of rows, by their numbers, whose keys are equal and of which the condition is true."""
        # The operator compares keys as bytes, so that null equals null.
        keys = [[key(row, Side.LEFT) for key in self._keys] for row in left]
        others = [[key(row, Side.RIGHT) for key in self._keys] for row in right]
        pairs = [(i, j) for i, own in enumerate(keys) for j, other in enumerate(others) if own == other]
        lefts, rights = table_of(left, self.left), table_of(right, self.right)
        for part in self._both:
            holds = values_of_pairs(part, lefts, rights, pairs)
            pairs = [pair for pair, value in zip(pairs, holds, strict=True) if value is True]
        return set(pairs)

    def _evict(self, side: Side, watermark_ms: int, out: list[Row]) -> None:
        staying = self._staying(side, watermark_ms)
        for entry in self.state[side]:
            gone = not any(entry is kept for kept in staying)
            if gone and not entry.matched and self.spec.join_type.preserves(side):
                out.append(self._pair(*((entry.row, None) if side is Side.LEFT else (None, entry.row))))
        self.state[side] = staying

    def _staying(self, side: Side, watermark_ms: int) -> list[Kept]:
        """Rows of a side that do not go at a watermark."""
        evicts = self.evicts.get(side)
        if evicts is None:
            return self.state[side]
        threshold = evicts.threshold(watermark_ms)
        times = [(entry, evicts.time(entry.row)) for entry in self.state[side]]
        return [entry for entry, time in times if time is None or time > threshold]

    def _pair(self, left: Row | None, right: Row | None) -> Row:
        return (
            *(None if left is None else left[i] for i in self.spec.left_output),
            *(None if right is None else right[i] for i in self.spec.right_output),
        )


def time_of(column: int, field_name: str | None = None, schema: pa.Schema | None = None) -> Time:
    """Event time in a column, or in a field of a struct."""
    if field_name is None:
        return lambda row: row[column]
    assert schema is not None
    position = [f.name for f in schema.field(column).type].index(field_name)
    return lambda row: None if row[column] is None else row[column][position]


def rows_of(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[Row]:
    """Rows of batches, as cells."""
    table = pa.Table.from_batches(batches, schema)
    return list(zip(*(cells(column) for column in table.columns), strict=True))
