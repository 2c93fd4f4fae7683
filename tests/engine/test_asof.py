"""As-of joins against a row loop, Polars, and their definition at the edges."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from gpujoin import asof_join_tables
from gpujoin.config import Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.ordering import by_rank
from gpujoin.errors import JoinSpecError, KeyTypeError
from gpujoin.model.backend import AnyBackend
from gpujoin.model.spec import DirectionName
from gpujoin.testing import assert_same_rows
from tests.faults import FaultyBackend
from tests.generate import Generator, KeyShape, Mix

DIRECTIONS: tuple[DirectionName, ...] = ("backward", "forward", "nearest")
TYPES = {
    "int32": (pa.int32(), 3), "int64": (pa.int64(), 3), "double": (pa.float64(), 3.0),
    "date": (pa.date32(), dt.timedelta(days=3)), "timestamp": (pa.timestamp("us"), dt.timedelta(microseconds=3)),
    "timestamp_utc": (pa.timestamp("ms", "UTC"), dt.timedelta(milliseconds=3)),
    "decimal": (pa.decimal128(9, 2), Decimal("3.50")), "duration": (pa.duration("s"), dt.timedelta(seconds=3)),
}  # fmt: skip


def row_loop(
    left: Sequence[dict[str, Any]], right: Sequence[dict[str, Any]], by: Sequence[str], direction: str, tolerance: Any,
    allow_exact: bool,
) -> list[tuple[int, int | None]]:  # fmt: skip
    """Row number of each left row, and of the right row it meets."""

    def missing(value: Any) -> bool:
        return value is None or value != value

    matches: list[tuple[int, int | None]] = []
    for row in left:
        behind = ahead = None
        for other in right:
            if missing(row["t"]) or missing(other["t"]):
                continue
            if any(row[b] is None or row[b] != other[b] for b in by):
                continue
            equal = other["t"] == row["t"]
            if (equal and allow_exact) or other["t"] < row["t"]:
                behind = max(behind or (other["t"], other["j"]), (other["t"], other["j"]))
            if (equal and allow_exact) or other["t"] > row["t"]:
                ahead = min(ahead or (other["t"], other["j"]), (other["t"], other["j"]))
        best = behind if direction == "backward" else ahead
        if direction == "nearest":
            both = [candidate for candidate in (behind, ahead) if candidate is not None]
            best = min(both, key=lambda candidate: distance(row["t"], candidate[0]), default=None)
        if best is not None and tolerance is not None and distance(row["t"], best[0]) > tolerance:
            best = None
        matches.append((row["i"], None if best is None else best[1]))
    return matches


def distance(left: Any, right: Any) -> Any:
    if left == right:
        return left - left if left not in (float("inf"), -float("inf")) else 0.0
    return max(left, right) - min(left, right)


@functools.cache
def sides(seed: int, dtype: pa.DataType, by: int, rows: tuple[int, int] = (50, 40)) -> tuple[pa.Table, pa.Table]:
    generator = Generator(seed, Mix(nulls=0.1, special=0.05, spread=40))
    drawn = pa.int8() if pa.types.is_duration(dtype) else dtype  # Python has no long durations
    order = generator.keys(drawn, max(rows), KeyShape.UNIFORM, nulls=0.1, distinct=25)
    order = tuple(values if drawn == dtype else values.cast(pa.int64()).cast(dtype) for values in order)
    columns: tuple[dict[str, pa.Array], dict[str, pa.Array]] = ({}, {})
    types = [pa.int32(), pa.string()][:by]
    keys = [generator.keys(dtype, max(rows), KeyShape.UNIFORM, distinct=2) for dtype in types]
    for side, row in ((0, "i"), (1, "j")):
        columns[side]["t"] = order[side].slice(0, rows[side])
        columns[side].update((f"k{n}", pair[side].slice(0, rows[side])) for n, pair in enumerate(keys))
        columns[side][row] = pa.array(range(rows[side]))
    return pa.table(columns[0]), pa.table(columns[1])


@pytest.mark.few(2)
@pytest.mark.parametrize("by", [0, 1, 2])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", TYPES)
def test_against_the_row_loop(backend: AnyBackend, name: str, direction: Any, by: int, seed: int) -> None:
    dtype, most = TYPES[name]
    keys = [f"k{n}" for n in range(by)]
    left, right = sides(seed, dtype, by)
    for tolerance in (None, most):
        for allow_exact in (True, False):
            metrics = JoinMetrics()
            result = asof_join_tables(
                left, right, "t", keys or None, direction=direction, tolerance=tolerance, allow_exact=allow_exact,
                backend=backend, options=Options(batch_bytes=300), metrics=metrics,
            )  # fmt: skip
            assert result.schema.names == ["t", *keys, "i", "j"]
            expected = row_loop(left.to_pylist(), right.to_pylist(), keys, direction, tolerance, allow_exact)
            actual = sorted(zip(result["i"].to_pylist(), result["j"].to_pylist(), strict=True))
            assert actual == expected, f"seed {seed}, tolerance {tolerance}, exact {allow_exact}"
            assert metrics.algorithms == {"as_of": 1}
            assert metrics.candidate_pairs == 0


@pytest.mark.parametrize("direction", ["backward", "forward"])
def test_against_polars(backend: AnyBackend, direction: Any, rng: np.random.Generator) -> None:
    n = 5000
    left = pl.DataFrame({"t": np.sort(rng.integers(0, n, n)), "g": rng.integers(0, 40, n), "i": np.arange(n)})
    right = pl.DataFrame({"t": np.sort(rng.permutation(4 * n)[:n]), "g": rng.integers(0, 40, n), "j": np.arange(n)})
    expected = left.join_asof(right, on="t", by="g", strategy=direction, tolerance=200, check_sortedness=False).select(
        "t", "g", "i", "j"
    )
    result = asof_join_tables(left, right, "t", "g", direction=direction, tolerance=200, backend=backend)
    assert_same_rows(result, expected.to_arrow())


def test_bytes_have_an_order_but_no_distance(backend: AnyBackend) -> None:
    left, right = (
        pa.table({"t": [b"b", b"", None, b"zz"], "i": range(4)}),
        pa.table({"t": [b"a", b"b", None], "j": range(3)}),
    )
    result = asof_join_tables(left, right, "t", allow_exact=False, backend=backend)
    assert dict(zip(result["i"].to_pylist(), result["j"].to_pylist(), strict=True)) == {
        0: 0,
        1: None,
        2: None,
        3: 1,
    }
    with pytest.raises(KeyTypeError, match="no distance"):
        asof_join_tables(left, right, "t", direction="nearest", backend=backend)


def test_keys_that_are_not_numbers_match_nothing(backend: AnyBackend) -> None:
    nan, inf = float("nan"), float("inf")
    left = pa.table({"t": pa.array([nan, None, inf, -inf, -0.0]), "i": range(5)})
    right = pa.table({"t": pa.array([nan, None, inf, -inf, 0.0]), "j": range(5)})
    for direction in DIRECTIONS:
        for tolerance in (None, 0):
            result = asof_join_tables(left, right, "t", direction=direction, tolerance=tolerance, backend=backend)
            pairs = dict(zip(result["i"].to_pylist(), result["j"].to_pylist(), strict=True))
            assert pairs == {0: None, 1: None, 2: 2, 3: 3, 4: 4}


def test_extreme_distances_are_exact(backend: AnyBackend) -> None:
    low, high = -(1 << 63), (1 << 63) - 1
    left, right = pa.table({"t": [low, 0, high], "i": range(3)}), pa.table({"t": [high, low], "j": range(2)})
    for tolerance, expected in ((None, [1, 1, 0]), ((1 << 63) - 1, [1, 0, 0]), (1 << 63, [1, 0, 0])):
        result = asof_join_tables(left, right, "t", direction="nearest", tolerance=tolerance, backend=backend)
        assert result.sort_by("i")["j"].to_pylist() == (expected if tolerance is not None else [1, 0, 0])
    result = asof_join_tables(left, right, "t", allow_exact=False, backend=backend)
    assert result.sort_by("i")["j"].to_pylist() == [None, 1, 1]


def test_units_meet_in_the_finer_one(backend: AnyBackend) -> None:
    left = pa.table({"t": pa.array([2], pa.timestamp("s")), "i": [0]})
    right = pa.table({"t": pa.array([1_999_999, 2_000_001], pa.timestamp("us")), "j": [0, 1]})
    result = asof_join_tables(left, right, "t", tolerance=dt.timedelta(microseconds=1), backend=backend)
    assert result["j"].to_pylist() == [0]


def test_names(backend: AnyBackend) -> None:
    left, right = pa.table({"t": [1], "g": [1], "v": [5]}), pa.table({"u": [1], "h": [1], "v": [6]})
    result = asof_join_tables(left, right, left_on="t", right_on="u", left_by="g", right_by="h", backend=backend)
    assert result.to_pydict() == {"t": [1], "g": [1], "v": [5], "u": [1], "h": [1], "v_right": [6]}


@pytest.mark.parametrize("rows", [(0, 0), (0, 3), (3, 0)], ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_empty_sides(backend: AnyBackend, direction: Any, rows: tuple[int, int], seed: int) -> None:
    left, right = sides(seed, pa.int64(), 1, rows)
    result = asof_join_tables(left, right, "t", "k0", direction=direction, tolerance=1, backend=backend)
    assert result["j"].to_pylist() == [None] * rows[0]


def test_spilled(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    left, right = sides(seed, pa.int64(), 2, (400, 300))
    options = Options(spill_dir=str(tmp_path), memory_budget=4000)
    for by in (None, ["k0", "k1"]):
        metrics = JoinMetrics()
        result = asof_join_tables(left, right, "t", by, backend=backend, options=options, metrics=metrics)
        assert metrics.spills > 0
        assert_same_rows(result, asof_join_tables(left, right, "t", by, backend=backend))


@pytest.mark.few
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", TYPES)
def test_rows_of_one_key_beyond_the_budget_come_in_slices(
    backend: AnyBackend, name: str, direction: Any, tmp_path: Path, seed: int
) -> None:
    dtype, most = TYPES[name]
    left, right = sides(seed, dtype, 0, (150, 120))
    options = Options(spill_dir=str(tmp_path), memory_budget=2000)
    for tolerance in (None, most):
        metrics = JoinMetrics()
        result = asof_join_tables(
            left,
            right,
            "t",
            direction=direction,
            tolerance=tolerance,
            backend=backend,
            options=options,
            metrics=metrics,
        )
        expected = row_loop(left.to_pylist(), right.to_pylist(), [], direction, tolerance, True)
        actual = sorted(zip(result["i"].to_pylist(), result["j"].to_pylist(), strict=True))
        assert actual == expected, f"seed {seed}, tolerance {tolerance}"
        assert (metrics.spills > 2) is not by_rank(dtype), "long keys have ranks within a slice only"


def test_fault_at_any_call(backend: AnyBackend, seed: int) -> None:
    left, right = sides(seed, pa.int64(), 1)
    expected = asof_join_tables(left, right, "t", "k0", direction="nearest", backend=backend)
    counting = FaultyBackend(backend)
    asof_join_tables(left, right, "t", "k0", direction="nearest", backend=counting)
    for number in range(1, counting.total_calls + 1):
        for faulty in (FaultyBackend(backend, at={number}), FaultyBackend(backend, after=number - 1)):
            assert_same_rows(asof_join_tables(left, right, "t", "k0", direction="nearest", backend=faulty), expected)
            assert faulty.faults


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no order key": ({"on": None}, JoinSpecError, "order key"),
    "unknown column": ({"on": "tt"}, JoinSpecError, "no column 'tt'.*Did you mean 't'"),
    "unknown direction": ({"direction": "backwards"}, JoinSpecError, "Did you mean 'backward'"),
    "an interval that is too long": ({"tolerance": "999999999999 days"}, JoinSpecError, "too long"),
    "negative tolerance": ({"tolerance": -1}, JoinSpecError, "negative"),
    "tolerance of the wrong type": (
        {"tolerance": dt.timedelta(1)},
        JoinSpecError,
        "an integer, got datetime",
    ),
    "bool tolerance": ({"tolerance": True}, JoinSpecError, "an integer, got True"),
    "float tolerance": ({"tolerance": 1.5}, JoinSpecError, "an integer, got 1.5"),
    "unorderable": ({"on": "l"}, KeyTypeError, "no common order"),
    "booleans": ({"on": "b"}, KeyTypeError, "no common order"),
    "by and left_by": ({"by": "t", "left_by": "t"}, JoinSpecError, "not both"),
    "by without partner": ({"left_by": "t"}, JoinSpecError, "left_by has 1 keys"),
    "both kinds of on": ({"left_on": "t", "right_on": "t"}, JoinSpecError, "either on"),
    "by as a set, without an order": ({"left_by": {"t"}, "right_by": {"t"}}, JoinSpecError, "sequence of names"),
    "a suffix alone": ({"suffixes": "_r"}, JoinSpecError, "suffixes must be two texts"),
    "a tuple of one suffix": ({"suffixes": ("_r",)}, JoinSpecError, "suffixes must be two texts"),
    "no suffix of a side": ({"suffixes": ("_l", None)}, JoinSpecError, "suffixes must be two texts"),
    "texts": ({"on": "s"}, KeyTypeError, "string and string are texts, and '10:00' comes before '9:00'"),
    "texts of a dictionary": ({"on": "d"}, KeyTypeError, "are texts"),
    "no distance of bytes": (
        {"on": "y", "tolerance": 1},
        KeyTypeError,
        "types binary and binary have no distance which",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    changes, error, message = BAD[name]
    table = pa.table(
        {"t": [1], "l": [[1]], "b": [True], "s": ["x"], "y": [b"x"], "d": pa.array(["x"]).dictionary_encode()}
    )
    with pytest.raises(error, match=message):
        asof_join_tables(table, table, **({"on": "t"} | changes))


def test_zones_on_one_side_only() -> None:
    left, right = (pa.table({"t": pa.array([1], dtype)}) for dtype in (pa.timestamp("us"), pa.timestamp("us", "UTC")))
    with pytest.raises(KeyTypeError, match="time zone"):
        asof_join_tables(left, right, "t")
    numbers = pa.table({"t": [1]})
    with pytest.raises(KeyTypeError, match="no common order"):
        asof_join_tables(left, numbers, "t")


MOMENT, DAY = pa.timestamp("us"), pa.date32()
UNORDERABLE = {
    "lists": (pa.list_(pa.int64()), pa.list_(pa.int64())), "structs": (pa.struct([("a", pa.int8())]),) * 2,
    "maps": (pa.map_(pa.int8(), pa.int8()),) * 2, "nulls": (pa.null(), pa.int64()), "booleans": (pa.bool_(),) * 2,
    "a number and a text": (pa.int64(), pa.string()), "a date and a moment": (DAY, MOMENT),
    "times of two units": (pa.time32("s"), pa.time64("us")),
    "a time and a duration": (pa.time64("us"), pa.duration("us")),
}  # fmt: skip


@pytest.mark.parametrize("name", UNORDERABLE)
def test_keys_without_a_common_order(name: str) -> None:
    left, right = (pa.table({"t": pa.nulls(1, dtype)}) for dtype in UNORDERABLE[name])
    with pytest.raises(KeyTypeError, match="no common order"):
        asof_join_tables(left, right, "t")


WRONG: dict[str, tuple[pa.DataType, Any, str]] = {
    "a number for moments": (MOMENT, 2, "a datetime.timedelta, got 2"),
    "NumPy's timedelta": (MOMENT, np.timedelta64(2, "us"), "a datetime.timedelta, got"),
    "a text for moments": (MOMENT, "2s", "a datetime.timedelta, got '2s'"),
    "an interval of months": (MOMENT, "5 months", "or a datetime.timedelta, got '5 months'"),
    "a negative interval": (MOMENT, "-5 minutes", "negative or NaN"),
    "a negative duration": (MOMENT, -dt.timedelta(microseconds=1), "negative or NaN"),
    "a negative part of a day": (DAY, -dt.timedelta(hours=1), "negative or NaN"),
    "a text for numbers": (pa.float64(), "1", "a number, got '1'"),
    "NaN": (pa.float64(), float("nan"), "negative or NaN"),
    "a decimal NaN that signals": (pa.float64(), Decimal("sNaN"), "negative or NaN"),
    "less than nothing": (pa.float64(), -(10**400), "negative or NaN"),
    "a negative part of a decimal's unit": (pa.decimal128(5, 2), Decimal("-0.001"), "negative or NaN"),
    "a tiny negative decimal": (pa.decimal128(5, 2), Decimal("-1E-999999"), "negative or NaN"),
    "an infinite decimal": (pa.decimal128(5, 2), Decimal("Infinity"), "an integer or a Decimal, got"),
    "a float for decimals": (pa.decimal128(5, 2), 0.5, "an integer or a Decimal, got 0.5"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tolerances(name: str) -> None:
    dtype, tolerance, message = WRONG[name]
    table = pa.table({"t": pa.nulls(1, dtype)})
    for direction in ("backward", "nearest"):
        with pytest.raises(JoinSpecError, match=message):
            asof_join_tables(table, table, "t", direction=direction, tolerance=tolerance)


@pytest.mark.parametrize(
    ("dtype", "near", "far", "tolerance", "met"),
    [
        (pa.decimal128(5, 2), Decimal("1.50"), Decimal("1.00"), Decimal("1E+30"), True),
        (pa.decimal128(5, 2), Decimal("1.50"), Decimal("1.00"), Decimal("1E+999999"), True),
        (pa.decimal128(5, 2), Decimal("1.50"), Decimal("1.00"), Decimal("0.509"), True),
        (pa.decimal128(5, 2), Decimal("1.50"), Decimal("1.00"), Decimal("0.4999"), False),
        (pa.decimal128(5, 2), Decimal("1.50"), Decimal("1.00"), Decimal("1E-999999"), False),
        (pa.float64(), 1.5, 1.0, 10**400, True), (pa.float64(), 1.5, 1.0, Decimal("0.5"), True),
        (pa.float64(), float("inf"), 1.0, float("inf"), True), (pa.int64(), 1 << 62, -(1 << 62), 1 << 70, True),
        (DAY, dt.date(2024, 1, 3), dt.date(2024, 1, 1), dt.timedelta(hours=47), False),
        (pa.timestamp("s"), 3, 2, dt.timedelta(milliseconds=1500), True),
    ],
)  # fmt: skip
def test_tolerances_at_their_ends(dtype: pa.DataType, near: Any, far: Any, tolerance: Any, met: bool) -> None:
    left, right = pa.table({"t": pa.array([near], dtype)}), pa.table({"t": pa.array([far], dtype), "j": [7]})
    result = asof_join_tables(left, right, "t", tolerance=tolerance, backend="cpu")
    assert result["j"].to_pylist() == [7 if met else None]


def test_a_tolerance_of_nanoseconds() -> None:
    pandas = pytest.importorskip("pandas")
    moments = pa.timestamp("ns")
    near, far = (
        pa.table({"t": pa.array([5000], moments)}),
        pa.table({"t": pa.array([3500], moments), "v": [1]}),
    )
    for nanoseconds, expected in ((1500, [1]), (1499, [None])):
        result = asof_join_tables(near, far, "t", tolerance=pandas.Timedelta(nanoseconds, "ns"))
        assert result["v"].to_pylist() == expected
    with pytest.raises(JoinSpecError, match="negative or NaN"):
        asof_join_tables(near, far, "t", tolerance=pandas.Timedelta(-1, "ns"))


def test_units_and_zones(backend: AnyBackend) -> None:
    """Moments are compared, whatever their units and zones."""
    left = pa.table({"t": pa.array([5, 10], pa.timestamp("s", "UTC")), "i": [0, 1]})
    right = pa.table({"t": pa.array([4_999_999, 10_000_001], pa.timestamp("us", "Asia/Tokyo")), "j": [0, 1]})
    tolerance = dt.timedelta(microseconds=1)
    found: dict[DirectionName, list[int | None]] = {"backward": [0, None], "forward": [None, 1], "nearest": [0, 1]}
    for direction, expected in found.items():
        result = asof_join_tables(left, right, "t", direction=direction, tolerance=tolerance, backend=backend)
        assert result.sort_by("i")["j"].to_pylist() == expected
    far = left.set_column(0, "t", pa.array([10**15, 1], pa.timestamp("s", "UTC")))
    with pytest.raises(KeyTypeError, match="cannot hold"):
        asof_join_tables(far, right, "t", backend=backend)


INTERVALS = {
    "5 minutes": dt.timedelta(minutes=5),
    "interval 1 day 2 hours": dt.timedelta(days=1, hours=2),
    "INTERVAL '3' SECOND": dt.timedelta(seconds=3),
    "1 week 1 millisecond 1 microsecond": dt.timedelta(weeks=1, milliseconds=1, microseconds=1),
}


@pytest.mark.parametrize("text", INTERVALS)
def test_a_tolerance_may_be_an_interval_in_words(text: str) -> None:
    within = INTERVALS[text]
    start, microsecond = dt.datetime(2024, 2, 28, tzinfo=dt.UTC), dt.timedelta(microseconds=1)
    left = pa.table({"t": [start + within, start + within + microsecond]})
    right = pa.table({"t": [start], "v": [1]})
    result = asof_join_tables(left, right, "t", tolerance=text, backend="cpu")
    assert result.sort_by("t")["v"].to_pylist() == [1, None]
