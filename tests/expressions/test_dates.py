"""Dates and timestamps, against Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pyarrow as pa
import pytest

from gpujoin.errors import ConditionError, ExpressionEvaluationError
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, lit, right
from gpujoin.plan.resolve import resolve_value
from tests.expressions.judge import Judge

KINDS = ["date", "ts", "ntz", "i8", "i32", "date_str"]
DATE_PARTS = [
    Function.YEAR, Function.QUARTER, Function.MONTH, Function.DAY, Function.DAY_OF_WEEK, Function.DAY_OF_YEAR,
]  # fmt: skip
TIME_PARTS = [Function.HOUR, Function.MINUTE, Function.SECOND]
MODES = [EvalMode.LEGACY, EvalMode.ANSI]


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_parts(judge: Callable[..., Judge], mode: EvalMode) -> None:
    trees: list[Expression] = [call(f, left(k)) for f in DATE_PARTS for k in ("date", "ts", "ntz")]
    trees += [call(f, left(k)) for f in TIME_PARTS for k in ("ts", "ntz", "date")]
    trees += [call(f, lit(dt.date(2024, 2, 29))) for f in DATE_PARTS]
    judge(*KINDS, pairs=False).check(trees, mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_shifts(judge: Callable[..., Judge], mode: EvalMode) -> None:
    trees: list[Expression] = [
        call(f, left("date"), n)
        for f in (Function.DATE_ADD, Function.DATE_SUB)
        for n in (right("i8"), right("i32"), lit(3), lit(-400))
    ]  # fmt: skip
    trees += [
        call(Function.DATE_ADD, left("ts"), 1),
        left("date") + 1,
        2 + left("date"),
        left("date") - right("i8"),
    ]
    trees += [
        call(Function.DATE_DIFF, left("date"), right("date")),
        call(Function.DATE_DIFF, left("ts"), right("ntz")),
    ]
    judge(*KINDS).check(trees, mode)


DATE_UNITS = ["week", "mon", "MONTH", "mm", "Quarter", "year", "yyyy", "yy"]
TIME_UNITS = ["microsecond", "millisecond", "second", "MINUTE", "hour", "day", "dd"]


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_cutting(judge: Callable[..., Judge], mode: EvalMode) -> None:
    trees: list[Expression] = [call(Function.TRUNC, left(k), unit) for k in ("date", "ntz") for unit in DATE_UNITS]
    trees += [call(Function.DATE_TRUNC, unit, left("ts")) for unit in (*DATE_UNITS, *TIME_UNITS)]
    judge(*KINDS, pairs=False).check(trees, mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_months_and_days_of_the_week(judge: Callable[..., Judge], mode: EvalMode) -> None:
    days = ["mo", "Tue", "WEDNESDAY", "th", "fri", "Saturday", "SU"]
    trees: list[Expression] = [call(Function.NEXT_DAY, left("date"), day) for day in days]
    trees += [call(Function.ADD_MONTHS, left("date"), n) for n in (right("i8"), lit(1), lit(-13))]
    trees += [call(Function.MONTHS_BETWEEN, left("ts"), right("ts"), lit(r)) for r in (True, False)]
    judge(*KINDS).check(trees, mode)


PATTERNS = [
    "yyyy",
    "yyyy-MM",
    "yyyyMMdd",
    "dd.MM.yyyy HH:mm",
    "yyyy-MM-dd'T'HH:mm:ss.SSS",
    "HH:mm:ss,SSSSSS",
    "ss S",
    "; /",
    "d MMM yyyy",
    "EEEE, MMMM d yyyy",
    "EEE M/d h:mm a",
    "E hh:m:s a H",
    "EE",
]


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_patterns(judge: Callable[..., Judge], mode: EvalMode) -> None:
    trees = [call(Function.DATE_FORMAT, left("ts"), pattern) for pattern in PATTERNS]
    judge(*KINDS, pairs=False).check(trees, mode)


@pytest.mark.parametrize(
    "pattern",
    ["y", "yyyyy", "MMMMM", "D", "kk", "SSSSSSS", "yyyy''MM", "'T''Z'", "'", "[yyyy]", "yyyy#", "EEEEE", "é", "Q"],
)
def test_patterns_that_are_left_to_spark(pattern: str) -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    assert not is_supported(resolve_value(call(Function.DATE_FORMAT, left("t"), pattern), schema, schema))


@pytest.mark.parametrize(
    ("tree", "covered"),
    [
        (call(Function.TRUNC, left("d"), "week"), True),
        (call(Function.TRUNC, left("d"), "day"), False),
        (call(Function.TRUNC, left("d"), left("s")), False),
        (call(Function.DATE_TRUNC, "decade", left("t")), False),
        (call(Function.NEXT_DAY, left("d"), "x"), False),
        (call(Function.ADD_MONTHS, left("d"), 12), True),
        (call(Function.ADD_MONTHS, left("d"), 2_000_000_000), False),
        (call(Function.MONTHS_BETWEEN, left("t"), left("t"), left("b")), False),
    ],
    ids=str,
)
def test_constants_that_are_left_to_spark(tree: Expression, covered: bool) -> None:
    schema = pa.schema([("d", pa.date32()), ("t", pa.timestamp("us", "UTC")), ("s", pa.string()), ("b", pa.bool_())])
    assert is_supported(resolve_value(tree, schema, schema)) is covered


def test_cutting_in_a_zone_of_another_offset() -> None:
    batch = pa.record_batch({"t": pa.array([0, -1], pa.timestamp("us", "+05:30"))})
    for unit, expected in (("day", [-19_800_000_000] * 2), ("hour", [-1_800_000_000] * 2)):
        tree = resolve_value(call(Function.DATE_TRUNC, unit, left("t")), batch.schema, batch.schema)
        assert evaluate_column(tree, batch, batch, 2).cast(pa.int64()).to_pylist() == expected
    moving = pa.schema([("t", pa.timestamp("us", "Europe/Berlin"))])
    assert not is_supported(resolve_value(call(Function.DATE_TRUNC, "day", left("t")), moving, moving))


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_dates_beyond_32_bits_are_an_error_in_every_mode(mode: EvalMode) -> None:
    batch = pa.record_batch({"d": pa.array([0], pa.date32()), "n": pa.array([1 << 30], pa.int32())})
    for tree in (
        call(Function.ADD_MONTHS, left("d"), left("n")),
        call(Function.MAKE_DATE, left("n") - 500_000_000, 1, 1),
    ):
        resolved = resolve_value(tree, batch.schema, batch.schema, mode=mode)
        with pytest.raises(ExpressionEvaluationError, match="32 bits"):
            evaluate_column(resolved, batch, batch, 1)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_shifts_of_timestamps(judge: Callable[..., Judge], mode: EvalMode) -> None:
    intervals = [dt.timedelta(seconds=5), dt.timedelta(microseconds=-1), dt.timedelta(days=-400, hours=7)]
    trees: list[Expression] = [
        call(Function.TIMESTAMP_ADD, left(kind), interval) for kind in ("ts", "ntz") for interval in intervals
    ]
    trees += [left("ts") + dt.timedelta(hours=1), lit(dt.timedelta(hours=1)) + left("ntz")]
    trees += [right("ts") > left("ts") - dt.timedelta(days=1)]
    judge(*KINDS).check(trees, mode)


def test_shifts_of_timestamps_that_overflow_raise_in_any_mode() -> None:
    rows = pa.record_batch({"t": pa.array([0, (1 << 63) - 1, None], pa.int64()).cast(pa.timestamp("us"))})
    tree = resolve_value(left("t") + dt.timedelta(microseconds=1), rows.schema, rows.schema)
    assert evaluate_column(tree, rows.take([0, 2]), rows.take([0, 2]), 2).cast(pa.int64()).to_pylist() == [
        1,
        None,
    ]
    with pytest.raises(ExpressionEvaluationError, match="the timestamp overflows"):
        evaluate_column(tree, rows, rows, 3)


def test_whole_days_are_not_added_where_the_clock_changes() -> None:
    schema = pa.schema([("t", pa.timestamp("us", "Europe/Berlin")), ("n", pa.timestamp("us"))])
    below, day = dt.timedelta(hours=23), dt.timedelta(days=1)
    covered = [
        is_supported(resolve_value(tree, schema, schema))
        for tree in (left("t") + below, left("t") + day, left("n") + day, left("t") - below, left("t") - day)
    ]
    assert covered == [True, False, True, True, False]


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_only_microseconds_are_shifted(unit: str) -> None:
    schema = pa.schema([("t", pa.timestamp(unit))])
    assert not is_supported(resolve_value(left("t") + dt.timedelta(seconds=1), schema, schema))
    with pytest.raises(ConditionError, match="cannot be applied"):
        resolve_value(left("t") - left("t"), schema, schema)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_literals(judge: Callable[..., Judge], mode: EvalMode) -> None:
    noon = dt.datetime(2000, 2, 29, 12, 34, 56, 789000)  # noqa: DTZ001
    trees: list[Expression] = [left(k) < v for k in ("date", "ts", "ntz") for v in (dt.date(2000, 2, 29), noon)]
    trees += [
        left("ts") >= noon.replace(tzinfo=dt.UTC),
        left("date") == "2024-02-29",
        left("ts") > "2000-02-29 12:34",
    ]
    trees += [
        left("ntz") <= "2000-02-29T12:34:56.789",
        left("ts") == "1970-01-01",
        left("date").is_in(["1970-01-01"]),
    ]
    judge(*KINDS).check(trees, mode)


def test_units_other_than_microseconds() -> None:
    instants = [0, -1, 1, 10**9 + 1, None]
    one = pa.record_batch({"t": pa.array(instants, pa.timestamp("ns"))})
    two = pa.record_batch({"t": pa.array([0, 0, 0, 1, 0], pa.timestamp("s"))})
    for function, expected in [
        (Function.LT, [False, True, False, False, None]),
        (Function.EQ, [True, False, False, False, None]),
        (Function.GE, [True, False, True, True, None]),
    ]:
        tree = call(function, left("t"), right("t"))
        untouched = resolve_value(tree, one.schema, two.schema)
        typed = call(function, *(a.child if hasattr(a, "child") else a for a in untouched.children))
        for node in (untouched, resolve_value(typed, one.schema, two.schema)):
            assert is_supported(node)
            assert evaluate_column(node, one, two, 5).to_pylist() == expected, node


@pytest.mark.parametrize(
    ("zone", "known"), [("UTC", True), ("+05:30", True), ("-18:00", True), ("Europe/Berlin", False)]
)
def test_zones_with_changing_offsets_are_left_to_spark(zone: str, known: bool) -> None:
    schema = pa.schema([("t", pa.timestamp("us", zone)), ("d", pa.date32())])
    for tree in (call(Function.HOUR, left("t")), left("t").cast(pa.date32()), left("t") < right("d")):
        assert is_supported(resolve_value(tree, schema, schema)) is known
    assert is_supported(resolve_value(left("t") < right("t"), schema, schema))


def test_offset_zones() -> None:
    batch = pa.record_batch({"t": pa.array([0, -1, 68_400_000_000], pa.timestamp("us", "+05:30"))})
    hour = resolve_value(call(Function.HOUR, left("t")), batch.schema, batch.schema)
    assert evaluate_column(hour, batch, batch, 3).to_pylist() == [5, 5, 0]
    day = resolve_value(
        left("t").cast(pa.date32()).cast(pa.int32(), EvalMode.LEGACY).is_null(), batch.schema, batch.schema
    )
    assert not is_supported(day)
    date = resolve_value(left("t").cast(pa.date32()), batch.schema, batch.schema)
    assert evaluate_column(date, batch, batch, 3).cast(pa.int32()).to_pylist() == [0, 0, 1]
    midnight = resolve_value(lit(dt.date(1970, 1, 1)).cast(pa.timestamp("us", "+05:30")), batch.schema, batch.schema)
    assert evaluate_column(midnight, batch, batch, 1).cast(pa.int64()).to_pylist() == [-19_800_000_000]
