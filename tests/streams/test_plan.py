"""Plans of joins of streams: thresholds, filters, late rows, and the distances in time at which rows match."""

from __future__ import annotations

import datetime as dt
import math

import pyarrow as pa
import pytest

from gpujoin.errors import JoinSpecError
from gpujoin.model.expressions import Expression, left, lit, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import AsOf, JoinSpec, KeyPair, NullEquality
from gpujoin.plan.resolve import resolve
from gpujoin.streams.join import StreamJoin, TimeColumn
from gpujoin.streams.plan import EvictedBy, StreamPlan, TimeBand, WatermarkBound, plan_stream_join

TIME = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", TIME), ("end", TIME)])
COLUMNS = pa.schema([("k", pa.int64()), ("t", TIME), ("w", WINDOW), ("v", pa.int32()), ("day", pa.date32())])
K, T, W, V, DAY = range(5)
WATERMARK = 1_700_000_000_000
SECOND = dt.timedelta(seconds=1)

t, u = left("t"), right("t")


def planned(
    condition: Expression | None = None,
    *keys: int,
    kind: JoinType = JoinType.INNER,
    times: tuple[tuple[int, ...], tuple[int, ...]] = ((T,), (T,)),
) -> StreamPlan:
    resolved = None if condition is None else resolve(condition, COLUMNS, COLUMNS)
    pairs = tuple(KeyPair(key, key) for key in (K, *keys))
    return plan_stream_join(StreamJoin(JoinSpec(kind, pairs, resolved), COLUMNS, COLUMNS, *times))


def after(plan: StreamPlan, side: Side) -> int | None:
    """Threshold of a side, in milliseconds after the watermark."""
    threshold = plan.threshold(side, WATERMARK)
    return None if threshold is None else threshold // 1000 - WATERMARK


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ((u >= t) & (u <= t + 5 * SECOND), (-5001, -1)),
        ((u > t) & (u < t + 5 * SECOND), (-5000, 0)),
        (t < u - 5 * SECOND, (None, 5000)),
        ((t >= u - 6 * SECOND) & (t > u - 2 * SECOND), (-6001, None)),
        (u == t, (None, None)),
        (left("v") < right("v"), (None, None)),
        (None, (None, None)),
    ],
    ids=["closed", "strict", "one side", "two bounds: the lower counts", "equality", "no times", "no condition"],
)  # fmt: skip
def test_ranges_evict_by_value(condition: Expression | None, expected: tuple[int | None, int | None]) -> None:
    plan = planned(condition)
    assert tuple(after(plan, side) for side in Side) == expected
    for side in Side:
        eviction = plan.evictions[side]
        assert eviction is None or (eviction.by, eviction.time) == (EvictedBy.VALUE, TimeColumn(T))


@pytest.mark.parametrize("times", [((T,), (T,)), ((T,), ()), ((), (T,))], ids=["both", "left", "right"])
def test_a_key_in_time_evicts_both_sides_whatever_the_range(
    times: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    plan = planned((u >= t - 5 * SECOND) & (left("v") < right("v")), T, times=times)
    for side in Side:
        eviction = plan.evictions[side]
        assert eviction is not None
        assert (eviction.by, eviction.time, after(plan, side)) == (EvictedBy.KEY, TimeColumn(T), 0)
    assert [plan.late[side] is not None for side in Side] == [bool(columns) for columns in times]
    assert plan.band == TimeBand(0, 0)


def test_windows_count_by_their_ends() -> None:
    plan = planned(None, W, times=((W,), ()))
    assert {side: plan.times[side] for side in Side} == dict.fromkeys(Side, TimeColumn(W, 1))
    assert plan.late == {Side.LEFT: TimeColumn(W, 1), Side.RIGHT: None}
    assert plan.band == TimeBand(0, 0)


def test_a_range_evicts_nothing_without_watermarks_on_both_sides() -> None:
    plan = planned((u >= t) & (u <= t + SECOND), times=((T,), ()))
    assert plan.evictions == dict.fromkeys(Side)
    assert plan.band is None


def test_conjuncts_of_one_side_are_filters() -> None:
    condition = (left("v") > 2) & (u >= t) & right("v").is_not_null() & lit(True)
    plan = planned(condition, kind=JoinType.LEFT)
    assert plan.spec.condition is not None
    assert plan.spec.condition.same_as(resolve(u >= t, COLUMNS, COLUMNS))
    wanted = {Side.LEFT: (left("v") > 2) & lit(True), Side.RIGHT: right("v").is_not_null() & lit(True)}
    for side, filtered in wanted.items():
        own = plan.filters[side]
        assert own is not None
        assert own.same_as(resolve(filtered, COLUMNS, COLUMNS))


def test_a_number_compared_with_a_constant_bounds_times_as_in_spark() -> None:
    # Spark's derivation takes any column of the side for its time, and numbers for seconds.
    plan = planned((t >= u) & (left("v") > 2))
    assert plan.threshold(Side.LEFT, WATERMARK) == 2_000_000


def test_a_constant_time_says_nothing() -> None:
    assert planned(t > dt.datetime(2020, 1, 1, tzinfo=dt.UTC)).evictions[Side.LEFT] is None


@pytest.mark.parametrize(
    ("offset", "inclusive", "expected"),
    [
        (math.inf, False, (1 << 63) - 1),
        (math.inf, True, (1 << 63) - 2),
        (-math.inf, False, -(1 << 63)),
        (-math.inf, True, (1 << 63) - 1),
        (math.nan, False, 0),
    ],
)
def test_thresholds_beyond_64_bits_are_those_of_java(offset: float, inclusive: bool, expected: int) -> None:
    assert WatermarkBound(False, offset, inclusive).threshold_ms(WATERMARK) == expected


def test_thresholds_are_cut_towards_zero() -> None:
    plan = planned((u <= t + dt.timedelta(microseconds=500)) & (u > t - dt.timedelta(microseconds=500)))
    assert [after(plan, side) for side in Side] == [-2, -1]
    assert [plan.threshold(side, 0) for side in Side] == [-1000, 0]


@pytest.mark.parametrize(
    ("condition", "band"),
    [
        ((u >= t) & (u <= t + 5 * SECOND), TimeBand(0, 5_000_000)),
        ((u > t - SECOND) & (t + 2 * SECOND > u), TimeBand(-999_999, 1_999_999)),
        ((u >= t) & (u >= t + SECOND), TimeBand(1_000_000, None)),
        (u + SECOND == t, TimeBand(-1_000_000, -1_000_000)),
        (t == u + SECOND, TimeBand(-1_000_000, -1_000_000)),
        ((u >= t) | (u <= t), None),
        (u.cast(pa.int64()) >= t.cast(pa.int64()), None),
        (u != t, None),
    ],
    ids=["closed", "strict, mirrored", "narrowest", "equal", "equal, mirrored", "or", "cast", "unequal"],
)  # fmt: skip
def test_bands(condition: Expression, band: TimeBand | None) -> None:
    assert planned(condition).band == band


def test_a_band_excludes_what_cannot_match() -> None:
    band = TimeBand(0, 5)
    assert band.excludes(Side.LEFT, (10, 20), (26, 30))
    assert not band.excludes(Side.LEFT, (10, 20), (25, 30))
    assert band.excludes(Side.LEFT, (10, 20), (0, 9))
    assert not band.excludes(Side.LEFT, (10, 20), (0, 10))
    assert band.excludes(Side.RIGHT, (26, 30), (10, 20))
    assert band.excludes(Side.LEFT, None, (10, 20))
    assert band.excludes(Side.LEFT, (10, 20), None)
    assert not TimeBand(0, 0, null_matches_null=True).excludes(Side.LEFT, None, (10, 20))


def test_null_keys_meet_in_a_full_outer_join_alone() -> None:
    for kind in (JoinType.FULL, JoinType.LEFT):
        (key,) = planned((u >= t) & (u <= t), kind=kind).spec.keys
        assert (key.nulls is NullEquality.EQUAL) is (kind is JoinType.FULL)


@pytest.mark.parametrize(
    ("spec", "times", "message"),
    [
        (JoinSpec(JoinType.LEFT_ANTI, (KeyPair(K, K),)), (), "not joined by left_anti"),
        (JoinSpec(JoinType.LEFT, (KeyPair(K, K),), as_of=AsOf(T, T)), (), "not joined by left"),
        (JoinSpec(JoinType.INNER), (), "needs an equality"),
        (JoinSpec(JoinType.INNER, (KeyPair(K, K),)), (V,), "'v' is of type int32"),
        (JoinSpec(JoinType.INNER, (KeyPair(K, K),)), (9,), "column 9 of 5"),
    ],
    ids=["anti", "as-of", "no key", "no time", "no column"],
)
def test_what_streams_are_not_joined_by(spec: JoinSpec, times: tuple[int, ...], message: str) -> None:
    with pytest.raises(JoinSpecError, match=message):
        StreamJoin(spec, COLUMNS, COLUMNS, times)
