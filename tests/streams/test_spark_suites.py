"""Inputs and results of Spark's own suites of joins of streams: inner, outer, full outer and left semi.

Names of tests follow those of Spark's cases. Rows and results are facts of Spark's behaviour; a batch without data
follows each that moves the watermark, as there.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pyarrow as pa
import pytest

from gpujoin.model.expressions import Expression, left, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.plan.resolve import resolve
from gpujoin.streams.join import StreamJoin
from gpujoin.testing import Cell
from tests.streams.query import SECOND, TIME, WINDOW, Query, window

Null = None


def each(*values: int) -> list[tuple[int, ...]]:
    """Rows of one number each."""
    return [(value,) for value in values]


def expect(actual: object, *rows: tuple[Cell, ...]) -> None:
    assert actual == sorted(rows, key=repr)


def joined(
    kind: JoinType,
    schemas: tuple[pa.Schema, pa.Schema],
    keys: tuple[KeyPair, ...],
    condition: Expression | None,
    times: tuple[tuple[int, ...], tuple[int, ...]],
) -> StreamJoin:
    lefts, rights = schemas
    resolved = None if condition is None else resolve(condition, lefts, rights)
    outputs = (tuple(range(len(lefts))), () if kind is JoinType.LEFT_SEMI else tuple(range(len(rights))))
    return StreamJoin(JoinSpec(kind, keys, resolved, *outputs), lefts, rights, *times)


# -- windows -----------------------------------------------------------------------------------------------------

WINDOWED = pa.schema([("key", pa.int32()), ("window", WINDOW), ("value", pa.int32())])


def windowed(
    kind: JoinType,
    condition: Expression | None = None,
    *,
    watermarks: tuple[bool, bool] = (True, True),
    both_keys: bool = False,
) -> Query:
    """Joins by key and window of ten seconds; rows are (n): key n, time n, left value 2 n, right value 3 n."""

    def pick(*row: Cell) -> tuple[Cell, ...]:
        own, other = row[:3], row[3:] or (None, None, None)
        ends = [None if w is None else w[1] // SECOND for w in (own[1], other[1])]
        if both_keys:
            return own[0], ends[0], own[2], other[0], ends[1], other[2]
        key, end = (own[0], ends[0]) if own[1] is not None else (other[0], ends[1])
        return (key, end, own[2]) if kind is JoinType.LEFT_SEMI else (key, end, own[2], other[2])

    keys = (KeyPair(0, 0), KeyPair(1, 1))
    times = tuple((1,) if watermark else () for watermark in watermarks)
    join = joined(kind, (WINDOWED, WINDOWED), keys, condition, times)  # type: ignore[arg-type]
    make = {
        Side.LEFT: lambda n: (n, window(n), 2 * n),
        Side.RIGHT: lambda n: (n, window(n), 3 * n),
    }
    delays = tuple(10 if watermark else None for watermark in watermarks)
    return Query(join, make, lambda n: n, pick, delays)  # type: ignore[arg-type]


def test_inner_on_windows_without_watermark() -> None:
    query = windowed(JoinType.INNER, watermarks=(False, False))
    expect(query.add(left=each(1)))
    expect(query.add(right=each(1)), (1, 10, 2, 3))
    query.restart()
    expect(query.add(left=each(25)))
    query.restart()
    expect(query.add(right=each(25)), (25, 30, 50, 75))
    expect(query.add(left=each(1)), (1, 10, 2, 3))
    query.restart()
    expect(query.add(left=each(5)))
    expect(query.add(right=each(5)), (5, 10, 10, 15))


def test_inner_on_windows_with_watermark() -> None:
    query = windowed(JoinType.INNER, watermarks=(True, False))
    expect(query.add(left=each(1)))
    assert query.state_rows == 1
    expect(query.add(right=each(1)), (1, 10, 2, 3))
    assert query.state_rows == 2
    query.restart()
    expect(query.add(left=each(25)))
    assert query.state_rows == 1
    expect(query.add(right=each(25)), (25, 30, 50, 75))
    assert query.state_rows == 2
    query.restart()
    expect(query.add(right=each(1)))
    assert query.state_rows == 2
    expect(query.add(left=each(5)))
    assert query.state_rows == 2
    assert query.running.metrics.late_rows == {Side.LEFT: 1, Side.RIGHT: 0}


def test_left_outer_early_state_exclusion_on_left() -> None:
    query = windowed(JoinType.LEFT, left("value") > 4)
    expect(query.add(each(1, 2, 3), each(3, 4, 5)), (3, 10, 6, 9), (1, 10, 2, Null), (2, 10, 4, Null))
    assert query.state_rows == 4
    expect(query.add(each(20), each(21)))
    query.restart()
    expect(query.add(right=each(20)), (20, 30, 40, 60))


def test_left_outer_early_state_exclusion_on_right() -> None:
    query = windowed(JoinType.LEFT, right("value") > 7)
    expect(query.add(each(3, 4, 5), each(1, 2, 3)), (3, 10, 6, 9))
    assert query.state_rows == 4
    expect(query.add(each(20), each(21)), (4, 10, 8, Null), (5, 10, 10, Null))
    expect(query.add(right=each(20)), (20, 30, 40, 60))


def test_right_outer_early_state_exclusion_on_left() -> None:
    query = windowed(JoinType.RIGHT, left("value") > 4)
    expect(query.add(each(1, 2, 3), each(3, 4, 5)), (3, 10, 6, 9))
    assert query.state_rows == 4
    expect(query.add(each(20), each(21)), (4, 10, Null, 12), (5, 10, Null, 15))
    expect(query.add(right=each(20)), (20, 30, 40, 60))


def test_right_outer_early_state_exclusion_on_right() -> None:
    query = windowed(JoinType.RIGHT, right("value") > 7)
    expect(query.add(each(3, 4, 5), each(1, 2, 3)), (3, 10, 6, 9), (1, 10, Null, 3), (2, 10, Null, 6))
    assert query.state_rows == 4
    expect(query.add(each(20), each(21)))
    expect(query.add(right=each(20)), (20, 30, 40, 60))


def test_windowed_left_outer_join() -> None:
    query = windowed(JoinType.LEFT)
    expect(query.add(each(1, 2, 3, 4, 5), each(3, 4, 5, 6, 7)), (3, 10, 6, 9), (4, 10, 8, 12), (5, 10, 10, 15))
    expect(query.add(each(21), each(22)), (1, 10, 2, Null), (2, 10, 4, Null))
    assert query.state_rows == 2
    expect(query.add(each(22)), (22, 30, 44, 66))
    assert query.state_rows == 3


def test_windowed_right_outer_join() -> None:
    query = windowed(JoinType.RIGHT)
    expect(query.add(each(1, 2, 3, 4, 5), each(3, 4, 5, 6, 7)), (3, 10, 6, 9), (4, 10, 8, 12), (5, 10, 10, 15))
    expect(query.add(each(21), each(22)), (6, 10, Null, 18), (7, 10, Null, 21))
    assert query.state_rows == 2
    expect(query.add(each(22)), (22, 30, 44, 66))
    assert query.state_rows == 3


def test_left_outer_join_with_non_key_condition_violated() -> None:
    condition = (left("value") > 10) & ((right("value") < 300) | (right("value") > 1000))
    query = windowed(JoinType.LEFT, condition)
    expect(query.add(each(1, 2, 3), each(1, 2, 3)), (1, 10, 2, Null), (2, 10, 4, Null), (3, 10, 6, Null))
    assert query.state_rows == 3
    expect(query.add(each(20), each(21)))
    assert query.state_rows == 2
    expect(query.add(right=each(20)), (20, 30, 40, 60))
    assert query.state_rows == 3
    expect(query.add(each(40, 41), each(40, 41)), (40, 50, 80, 120), (41, 50, 82, 123))
    assert query.state_rows == 4
    expect(query.add(each(70), each(71)))
    assert query.state_rows == 2
    expect(query.add(right=each(70)), (70, 80, 140, 210))
    assert query.state_rows == 3
    expect(query.add(each(101, 102, 103), each(101, 102, 103)))
    assert query.state_rows == 3
    expect(query.add(each(1000), each(1001)), (101, 110, 202, Null), (102, 110, 204, Null), (103, 110, 206, Null))
    assert query.state_rows == 2


def test_windowed_full_outer_join() -> None:
    query = windowed(JoinType.FULL)
    expect(query.add(each(1, 2, 3, 4, 5), each(3, 4, 5, 6, 7)), (3, 10, 6, 9), (4, 10, 8, 12), (5, 10, 10, 15))
    assert query.state_rows == 10
    query.restart()
    expect(
        query.add(each(21), each(22)),
        (1, 10, 2, Null), (2, 10, 4, Null), (6, 10, Null, 18), (7, 10, Null, 21),
    )  # fmt: skip
    assert query.state_rows == 2
    query.restart()
    expect(query.add(each(22)), (22, 30, 44, 66))
    assert query.state_rows == 3
    query.restart()
    expect(query.add(each(1)))
    expect(query.add(right=each(5)))
    assert query.state_rows == 3
    assert query.running.metrics.late_rows == {Side.LEFT: 1, Side.RIGHT: 1}


def test_full_outer_early_state_exclusion_on_left() -> None:
    query = windowed(JoinType.FULL, left("value") > 4, both_keys=True)
    expect(
        query.add(each(1, 2, 3), each(3, 4, 5)),
        (1, 10, 2, Null, Null, Null), (2, 10, 4, Null, Null, Null), (3, 10, 6, 3, 10, 9),
    )  # fmt: skip
    assert query.state_rows == 4
    expect(query.add(each(20), each(21)), (Null, Null, Null, 4, 10, 12), (Null, Null, Null, 5, 10, 15))
    assert query.state_rows == 2
    expect(query.add(right=each(20)), (20, 30, 40, 20, 30, 60))
    assert query.state_rows == 3


def test_full_outer_early_state_exclusion_on_right() -> None:
    query = windowed(JoinType.FULL, right("value") > 7, both_keys=True)
    expect(
        query.add(each(3, 4, 5), each(1, 2, 3)),
        (Null, Null, Null, 1, 10, 3), (Null, Null, Null, 2, 10, 6), (3, 10, 6, 3, 10, 9),
    )  # fmt: skip
    assert query.state_rows == 4
    expect(query.add(each(20), each(21)), (4, 10, 8, Null, Null, Null), (5, 10, 10, Null, Null, Null))
    assert query.state_rows == 2
    expect(query.add(right=each(20)), (20, 30, 40, 20, 30, 60))
    assert query.state_rows == 3


def test_windowed_left_semi_join() -> None:
    query = windowed(JoinType.LEFT_SEMI)
    expect(query.add(each(1, 2, 3, 4, 5), each(3, 4, 5, 6, 7)), (3, 10, 6), (4, 10, 8), (5, 10, 10))
    expect(query.add(each(21), each(22)))
    assert query.state_rows == 2
    query.restart()
    expect(query.add(each(22)), (22, 30, 44))
    assert query.state_rows == 2
    query.restart()
    expect(query.add(each(1)))
    expect(query.add(right=each(5)))
    assert query.state_rows == 2


def test_left_semi_early_state_exclusion_on_left() -> None:
    query = windowed(JoinType.LEFT_SEMI, left("value") > 4)
    expect(query.add(each(1, 2, 3), each(3, 4, 5)), (3, 10, 6))
    expect(query.add(each(20), each(21)))
    assert query.state_rows == 2
    expect(query.add(right=each(20)), (20, 30, 40))


def test_left_semi_early_state_exclusion_on_right() -> None:
    query = windowed(JoinType.LEFT_SEMI, right("value") > 7)
    expect(query.add(each(3, 4, 5), each(1, 2, 3)), (3, 10, 6))
    expect(query.add(each(20), each(21)))
    assert query.state_rows == 2
    expect(query.add(right=each(20)), (20, 30, 40))


# -- ranges ------------------------------------------------------------------------------------------------------

LEFT_RANGED = pa.schema([("leftKey", pa.int32()), ("leftTime", TIME), ("leftValue", pa.int32())])
RIGHT_RANGED = pa.schema([("rightKey", pa.int32()), ("rightTime", TIME), ("rightValue", pa.int32())])


def ranged(
    kind: JoinType, condition: Expression, delays: tuple[int, int], pick: Callable[..., tuple[Cell, ...]]
) -> Query:
    """Joins by key under a condition of times; rows are (key, second)."""
    join = joined(kind, (LEFT_RANGED, RIGHT_RANGED), (KeyPair(0, 0),), condition, ((1,), (1,)))
    make = {
        Side.LEFT: lambda key, second: (key, second * SECOND, 2 * key),
        Side.RIGHT: lambda key, second: (key, second * SECOND, 3 * key),
    }
    return Query(join, make, lambda _key, second: second, pick, delays)


def seconds(number: float) -> dt.timedelta:
    return dt.timedelta(seconds=number)


def second_of(cell: Cell) -> Cell:
    return None if cell is None else cell // SECOND


def key_and_times(*row: Cell) -> tuple[Cell, ...]:
    return row[0], second_of(row[1]), second_of(row[4])


def keys_and_times(*row: Cell) -> tuple[Cell, ...]:
    if len(row) == len(LEFT_RANGED):
        return row[0], second_of(row[1])
    return row[0], row[3], second_of(row[1]), second_of(row[4])


def around(kind: JoinType, bound: float = 5, delay: int = 10) -> Query:
    condition = left("leftTime").between(right("rightTime") - seconds(bound), right("rightTime") + seconds(bound))
    return ranged(kind, condition, (delay, delay), keys_and_times)


def test_inner_with_time_range_one_side_condition() -> None:
    condition = left("leftTime") < right("rightTime") - seconds(5)
    query = ranged(JoinType.INNER, condition, (10, 10), key_and_times)
    expect(query.add([(1, 5)]))
    expect(query.add(right=[(1, 11)]), (1, 5, 11))
    expect(query.add(right=[(1, 10)]))
    assert query.state_rows == 3
    expect(query.add([(1, 3), (1, 30)]), (1, 3, 10), (1, 3, 11))
    assert query.state_rows == 5
    expect(query.add(right=[(0, 30)]))
    assert query.state_rows == 4
    expect(query.add(right=[(1, 20), (1, 21), (1, 28)]), (1, 3, 21), (1, 5, 21), (1, 3, 28), (1, 5, 28))
    assert query.state_rows == 5
    expect(query.add([(1, 20), (1, 21)]), (1, 21, 28))
    assert query.state_rows == 6
    assert query.running.metrics.late_rows == {Side.LEFT: 1, Side.RIGHT: 1}


def test_inner_with_time_range_two_side_conditions() -> None:
    condition = left("leftTime").between(right("rightTime") - seconds(10), right("rightTime") + seconds(5))
    query = ranged(JoinType.INNER, condition, (20, 30), key_and_times)
    expect(query.add([(1, 20)]))
    expect(
        query.add(right=[(1, 14), (1, 15), (1, 25), (1, 26), (1, 30), (1, 31)]),
        (1, 20, 15), (1, 20, 25), (1, 20, 26), (1, 20, 30),
    )  # fmt: skip
    assert query.state_rows == 7
    expect(query.add(right=[(1, 60)]))
    expect(query.add([(1, 49), (1, 50), (1, 65), (1, 66)]), (1, 50, 60), (1, 65, 60))
    assert query.state_rows == 10
    expect(query.add([(1, 30), (1, 31)]), (1, 31, 26), (1, 31, 30), (1, 31, 31))
    assert query.state_rows == 11
    expect(query.add(right=[(1, 80)]))
    assert query.state_rows == 6
    expect(query.add(right=[(1, 46), (1, 50)]), (1, 49, 50), (1, 50, 50))
    assert query.state_rows == 7


OUTER: dict[JoinType, list[tuple[Cell, ...]]] = {
    JoinType.LEFT: [(3, Null, 5, Null)],
    JoinType.RIGHT: [(Null, 2, Null, 5)],
}


@pytest.mark.parametrize("kind", OUTER, ids=lambda kind: kind.value)
def test_outer_with_watermark_range_condition(kind: JoinType) -> None:
    query = around(kind)
    expect(query.add([(1, 5), (3, 5)]))
    expect(query.add(right=[(1, 10), (2, 5)]), (1, 1, 5, 10))
    expect(query.add(right=[(1, 11)]))
    assert query.state_rows == 5
    expect(query.add([(1, 7), (1, 30)]), (1, 1, 7, 10), (1, 1, 7, 11))
    assert query.state_rows == 7
    expect(query.add(right=[(0, 30)]), *OUTER[kind])
    assert query.state_rows == 2


@pytest.mark.parametrize("kind", OUTER, ids=lambda kind: kind.value)
def test_outer_with_watermark_range_condition_of_minutes(kind: JoinType) -> None:
    query = around(kind, bound=210, delay=600)
    expect(query.add([(1, 210), (3, 5)]))
    expect(query.add(right=[(1, 300), (2, 5)]), (1, 1, 210, 300))
    expect(query.add(right=[(1, 450)]))
    assert query.state_rows == 5
    expect(query.add([(1, 260), (1, 1800)]), (1, 1, 260, 300), (1, 1, 260, 450))
    assert query.state_rows == 7
    expect(query.add(right=[(0, 1800)]), *OUTER[kind])
    assert query.state_rows == 2


def test_full_outer_join_with_watermark_range_condition() -> None:
    query = around(JoinType.FULL)
    expect(query.add([(1, 5), (3, 5)]))
    expect(query.add(right=[(1, 10), (2, 5)]), (1, 1, 5, 10))
    expect(query.add(right=[(1, 9)]), (1, 1, 5, 9))
    assert query.state_rows == 5
    expect(query.add([(1, 7), (1, 30)]), (1, 1, 7, 9), (1, 1, 7, 10))
    assert query.state_rows == 7
    expect(query.add(right=[(0, 30)]), (3, Null, 5, Null), (Null, 2, Null, 5))
    assert query.state_rows == 2


def test_left_semi_join_with_watermark_range_condition() -> None:
    query = around(JoinType.LEFT_SEMI)
    expect(query.add([(1, 5), (3, 5)]))
    expect(query.add(right=[(1, 10), (2, 5)]), (1, 5))
    expect(query.add(right=[(1, 9)]))
    expect(query.add([(1, 7), (1, 30)]), (1, 7))
    expect(query.add(right=[(0, 30)]))
    assert query.state_rows == 2


# -- self joins --------------------------------------------------------------------------------------------------


def self_join(kind: JoinType, *, mirrored: bool = False) -> Query:
    """Rows (n) at second n; the other side has even numbers alone, up to five seconds later."""
    own, other = left("leftTime"), right("rightTime")
    if mirrored:
        own, other = other, own
    condition = (other >= own) & (other <= own + seconds(5))
    query = ranged(kind, condition, (5, 5), keys_and_times)
    query.make = {side: lambda n: (n, n * SECOND, n) for side in Side}
    query.time = lambda n: n
    return query


def add_to_self(query: Query, numbers: range, *, mirrored: bool = False) -> list[tuple[Cell, ...]]:
    every, even = each(*numbers), each(*(n for n in numbers if n % 2 == 0))
    return query.add(even, every) if mirrored else query.add(every, even)


@pytest.mark.parametrize(
    ("kind", "mirrored"),
    [(JoinType.LEFT, False), (JoinType.RIGHT, True), (JoinType.FULL, False)],
    ids=["left", "right", "full"],
)
def test_self_outer_join(kind: JoinType, mirrored: bool) -> None:
    query = self_join(kind, mirrored=mirrored)
    query.no_data_batches = True
    expect(add_to_self(query, range(1, 6), mirrored=mirrored), (2, 2, 2, 2), (4, 4, 4, 4))
    assert query.state_rows == 7
    third = (6, 6, 6, 6), (8, 8, 8, 8), (10, 10, 10, 10)
    expect(add_to_self(query, range(6, 11), mirrored=mirrored), *third)
    assert query.state_rows == 13
    unmatched: list[tuple[Cell, ...]] = [(1, Null, 1, Null), (3, Null, 3, Null)]
    if mirrored:
        unmatched = [(Null, 1, Null, 1), (Null, 3, Null, 3)]
    expect(add_to_self(query, range(11, 16), mirrored=mirrored), (12, 12, 12, 12), (14, 14, 14, 14), *unmatched)
    assert query.state_rows == 15


def test_self_left_semi_join() -> None:
    query = self_join(JoinType.LEFT_SEMI)
    expect(add_to_self(query, range(1, 6)), (2, 2), (4, 4))
    expect(add_to_self(query, range(6, 11)), (6, 6), (8, 8), (10, 10))
    expect(add_to_self(query, range(11, 16)), (12, 12), (14, 14))


# -- keys --------------------------------------------------------------------------------------------------------

KEYED = pa.schema([("key", pa.int32()), ("value", pa.int32())])


def by_key(nulls: NullEquality = NullEquality.UNEQUAL) -> Query:
    """Rows (n): key n, left value 2 n, right value 3 n; no watermark."""
    join = joined(JoinType.INNER, (KEYED, KEYED), (KeyPair(0, 0, nulls),), None, ((), ()))

    def times(factor: int) -> Callable[[int | None], tuple[object, ...]]:
        return lambda n: (n, None if n is None else factor * n)

    make = {Side.LEFT: times(2), Side.RIGHT: times(3)}
    return Query(join, make, lambda _: 0, lambda *row: (row[0], row[2], row[1], row[3]), (None, None))


def test_inner_on_non_time_column() -> None:
    query = by_key()
    expect(query.add(each(1)))
    expect(query.add(right=each(1, 10)), (1, 1, 2, 3))
    expect(query.add(each(10)), (10, 10, 20, 30))
    expect(query.add(right=each(1)), (1, 1, 2, 3))
    query.restart()
    expect(query.add(each(1)), (1, 1, 2, 3), (1, 1, 2, 3))
    query.restart()
    expect(query.add(each(100)))
    expect(query.add(right=each(100)), (100, 100, 200, 300))


def test_inner_of_a_stream_with_itself() -> None:
    join = joined(JoinType.INNER, (KEYED, KEYED), (KeyPair(0, 0),), None, ((), ()))
    make = {side: lambda n: (n % 5, n) for side in Side}
    query = Query(join, make, lambda _: 0, lambda *row: (row[0], row[1], row[3]), (None, None))
    expect(query.add(each(1, 2), each(1, 2)), (1, 1, 1), (2, 2, 2))
    query.restart()
    expect(query.add(each(3, 6), each(3, 6)), (3, 3, 3), (1, 1, 6), (1, 6, 1), (1, 6, 6))


def test_inner_null_safe_keys() -> None:
    query = by_key(NullEquality.EQUAL)
    query.add([(1,), (5,), (10,), (None,)])
    expect(query.add(right=[(1,), (5,), (None,)]), (1, 1, 2, 3), (5, 5, 10, 15), (Null, Null, Null, Null))


TWO_KEYS = pa.schema([("key1", pa.int32()), ("key2", pa.int32()), ("window", WINDOW), ("value", pa.int32())])


@pytest.mark.parametrize(
    ("lefts", "rights", "matches", "padded"),
    [
        (
            [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5)], [(1, 3), (1, 4), (1, 5), (1, 6)],
            [(1, 1, 3, 3, 10, 6, 9), (1, 1, 4, 4, 10, 8, 12), (1, 1, 5, 5, 10, 10, 15)],
            [(1, Null, 1, Null, 10, 2, Null), (1, Null, 2, Null, 10, 4, Null)],
        ),
        (
            [(1, 1), (None, 2), (1, 3), (1, 4), (1, 5)], [(1, 3), (1, 4), (1, 5), (1, 6)],
            [(1, 1, 3, 3, 10, 6, 9), (1, 1, 4, 4, 10, 8, 12), (1, 1, 5, 5, 10, 10, 15)],
            [(1, Null, 1, Null, 10, 2, Null), (Null, Null, 2, Null, 10, 4, Null)],
        ),
        (
            [(1, 1), (None, 2), (1, 3), (None, 4), (1, 5)], [(1, 3), (None, 4), (1, 5), (1, 6)],
            [(1, 1, 3, 3, 10, 6, 9), (Null, Null, 4, 4, 10, 8, 12), (1, 1, 5, 5, 10, 10, 15)],
            [(1, Null, 1, Null, 10, 2, Null), (Null, Null, 2, Null, 10, 4, Null)],
        ),
    ],
    ids=["no nulls", "nulls on the left", "nulls on both sides"],
)  # fmt: skip
def test_left_outer_nullable_keys(
    lefts: list[tuple[object, ...]], rights: list[tuple[object, ...]], matches: list[tuple[Cell, ...]],
    padded: list[tuple[Cell, ...]],
) -> None:  # fmt: skip
    keys = (KeyPair(0, 0, NullEquality.EQUAL), KeyPair(1, 1), KeyPair(2, 2))
    join = joined(JoinType.LEFT, (TWO_KEYS, TWO_KEYS), keys, None, ((2,), (2,)))
    make = {
        Side.LEFT: lambda key, n: (key, n, window(n), 2 * n),
        Side.RIGHT: lambda key, n: (key, n, window(n), 3 * n),
    }

    def pick(*row: Cell) -> tuple[Cell, ...]:
        return row[0], row[4], row[1], row[5], row[2][1] // SECOND, row[3], row[7]

    query = Query(join, make, lambda _key, n: n, pick)
    query.add(lefts)
    expect(sorted(query.add(right=rights), key=repr), *matches)
    query.add([(1, 21)])
    expect(query.add(right=[(1, 22)]), *padded)


# -- issues ------------------------------------------------------------------------------------------------------

NAMED = pa.schema([("time", TIME), ("id", pa.string()), ("text", pa.string())])
DAY = 18_263 * 86_400
"""2020-01-02, in seconds."""


def named(delays: tuple[int, int], *, no_data_batches: bool = True) -> Query:
    """Left outer join by id within 30 seconds; rows are (second, text)."""
    within = left("time").between(right("time") - seconds(30), right("time") + seconds(30))
    join = joined(JoinType.LEFT, (NAMED, NAMED), (KeyPair(1, 1),), within, ((0,), (0,)))
    make = {side: lambda second, text: (second * SECOND, "abc", text) for side in Side}
    return Query(join, make, lambda second, _text: second, lambda *row: (row[2], row[5]), delays, no_data_batches)


def test_spark_32148_regression() -> None:
    query = named((120, 240))
    expect(
        query.add(
            [(DAY - 86_400, "has no join partner"), (DAY, "joined with A"), (DAY + 3600, "joined with B")],
            [(DAY + 10, "A"), (DAY + 3599, "B"), (DAY + 7200, "C")],
        ),
        ("has no join partner", Null), ("joined with A", "A"), ("joined with B", "B"),
    )  # fmt: skip


def test_spark_38684_rows_come_and_go_in_one_batch() -> None:
    query = named((0, 0), no_data_batches=False)
    expect(query.add([(DAY, "left 1")], [(DAY + 60, "right 1")]))
    expect(query.add([(DAY + 3600, "left 2")], [(DAY + 3660, "right 2")]))
    expect(query.add([(DAY + 5400, "left 3")]), ("left 1", Null))
    expect(query.add(right=[(DAY + 5410, "match")]), ("left 2", Null), ("left 3", "match"))


def test_spark_49829_unmatched_between_the_watermarks() -> None:
    schema = pa.schema([("key", pa.string()), ("time", TIME)])
    join = joined(JoinType.LEFT, (schema, schema), (KeyPair(0, 0), KeyPair(1, 1)), None, ((1,), (1,)))
    make = {side: lambda key, second: (key, second * SECOND) for side in Side}
    query = Query(
        join, make, lambda _key, second: second, lambda *row: (row[0], second_of(row[1])), (0, 0),
        no_data_batches=False,
    )  # fmt: skip
    expect(query.add([("a", 1), ("b", 2)], [("b", 2), ("c", 1)]), ("b", 2))
    assert query.state_rows == 4
    expect(query.add([("d", 1)]), ("a", 1), ("d", 1))
    assert query.state_rows == 0
