"""Conditions by the device's evaluator, on NumPy, against the CPU's, which is compared with Spark."""

from __future__ import annotations

import datetime as dt
import functools
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.errors import ExpressionEvaluationError
from gpujoin.functions import values as v
from gpujoin.functions.evaluate_device import DeviceEvaluator
from gpujoin.functions.support import device_obstacle
from gpujoin.model.expressions import (
    Case,
    EvalMode,
    Expression,
    Function,
    call,
    coalesce,
    left,
    lit,
    right,
    when,
)
from gpujoin.model.jointype import Side
from gpujoin.plan.resolve import resolve, resolve_value
from tests.backends.cudf.host import HostSource
from tests.expressions.judge import evaluate_rows
from tests.generate import Generator, Mix

F = Function
COLUMNS = {
    "b": pa.bool_(), "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(), "f32": pa.float32(),
    "f64": pa.float64(), "dec": pa.decimal128(9, 2), "deep": pa.decimal128(30, 5), "day": pa.date32(),
    "ts": pa.timestamp("us"), "utc": pa.timestamp("us", "UTC"), "s": pa.string(),
    "arr": pa.list_(pa.int32()), "bin": pa.binary(),
}  # fmt: skip
SCHEMA = pa.schema(COLUMNS.items())


def pairs(name: str) -> tuple[Expression, Expression]:
    return left(name), right(name)


OFFERED: dict[str, Expression] = {
    **{f"{name} {f.value}": call(f, *pairs(name)) for name in COLUMNS if name not in ("arr", "bin")
       for f in (F.EQ, F.NE, F.LT, F.LE, F.GT, F.GE, F.EQ_NULL_SAFE)},
    **{f"{name} is null": call(f, left(name)) for name in COLUMNS for f in (F.IS_NULL, F.IS_NOT_NULL)},
    **{f"{name} {f.value} {name}": call(f, *pairs(name)) == right(name)
       for name in ("i8", "i16", "i32", "i64") for f in (F.ADD, F.SUBTRACT, F.MULTIPLY, F.REMAINDER)},
    **{f"{name} div": call(F.INTEGRAL_DIVIDE, *pairs(name)) == right(name) for name in ("i8", "i32", "i64")},
    **{f"f64 {f.value}": call(f, *pairs("f64")) < right("i64").cast(pa.float64())
       for f in (F.ADD, F.SUBTRACT, F.MULTIPLY, F.DIVIDE)},
    **{f"{f.value} {name}": call(f, left(name)) == right(name)
       for f in (F.NEGATE, F.ABS) for name in ("i8", "i16", "i32", "i64", "f64")},
    **{f"{f.value}(day)": call(f, left("day")) == call(f, right("day")) for f in
       (F.YEAR, F.QUARTER, F.MONTH, F.DAY, F.DAY_OF_WEEK, F.DAY_OF_YEAR)},
    **{f"{f.value}({name})": call(f, left(name)) > 17 for f in (F.HOUR, F.MINUTE, F.SECOND)
       for name in ("ts", "utc")},
    **{f"{f.value} of text": call(f, *pairs("s")) for f in (F.STARTS_WITH, F.ENDS_WITH, F.CONTAINS)},
    **{f"{f.value} constant": call(f, left("s"), "a") for f in (F.STARTS_WITH, F.ENDS_WITH, F.CONTAINS)},
    "mixed widths": (left("i8") < right("i64")) & (left("i16") != right("i32")),
    "int and double": left("i32") < right("f64"),
    "float and double": left("f32") == right("f64"),
    "float against zero": left("f32") < right("f64") * 0.0,
    "int and decimal": left("i32") < right("dec"),
    "decimal scales": left("dec") <= lit(Decimal("3.125")),
    "decimal literal": left("deep") >= lit(Decimal("3.12500"), pa.decimal128(30, 5)),
    "long decimal literal": left("deep") >= lit(Decimal("-1234567890123456789012345.00001"), pa.decimal128(30, 5)),
    "three-valued": (left("b") & right("b")) | ~left("b"),
    "null literal": (left("b") & lit(None)) | (right("b") | lit(None)),
    "nested logic": ~((left("b") | (left("i32") < right("i32"))) & ((left("f64") > 0) | right("b"))),
    "in": left("i32").is_in([1, 2, None, 7]),
    "in without null": left("i32").is_in([1, 2, 7]),
    "in columns": left("i64").is_in([right("i64"), 3, right("i64") + 1]),
    "in text": left("s").is_in(["a", "", None]),
    "in doubles": left("f64").is_in([0.0, float("nan"), 1.5]),
    "is nan": left("f64").is_nan() | right("f32").is_nan(),
    "between": left("i32").between(right("i32") - 5, right("i32") + 5),
    "case": when(left("b"), left("i32")).when(right("b"), right("i32")).else_(7) > 3,
    "case without else": when(left("i32") > right("i32"), left("f64")) < 3.0,
    "case of logic": when(left("b"), right("b")).else_(left("i32") == 1),
    "coalesce": coalesce(left("i32"), right("i32"), -1) == 2,
    "coalesce of decimals": coalesce(left("deep"), right("deep")) < lit(Decimal("1.00000"), pa.decimal128(30, 5)),
    "date arithmetic": (left("day") + 3 >= right("day")) | (call(F.DATE_SUB, left("day"), right("i8")) < right("day")),
    "datediff": call(F.DATE_DIFF, *pairs("day")) > 10,
    "date of timestamp": left("ts").cast(pa.date32()) == right("day"),
    "date literal": left("day") < lit(dt.date(1995, 3, 15)),
    "timestamp literal": left("ts") < lit(dt.datetime(1995, 3, 15, 12)),  # noqa: DTZ001
    "like": left("s").like("%a_") | left("s").like("a\\%%"),
    "like with escape": left("s").like("a!%%", "!"),
    "length": call(F.LENGTH, left("s")) > call(F.LENGTH, right("s")),
    **{f"substring {at}": call(F.SUBSTRING, left("s"), *at) == call(F.SUBSTRING, right("s"), *at)
       for at in ((1, 2), (0, 1), (2,), (3, 0), (2, -1), (5, 1 << 30))},
    "octet_length": call(F.OCTET_LENGTH, left("s")) > call(F.LENGTH, right("s")),
    "concat": call(F.CONCAT, left("s"), lit("-"), right("s")) < call(F.CONCAT, right("s"), left("s")),
    "concat of one": call(F.CONCAT, left("s")) == right("s"),
    "concat with null": call(F.CONCAT, left("s"), lit(None, pa.string())).is_null(),
    **{f"{f.value} of integers": call(f, *pairs("i32")) > 3 for f in (F.BIT_AND, F.BIT_OR, F.BIT_XOR)},
    **{f"{f.value} of {name}": call(f, left(name), right("i32")) > 3 for name in ("i32", "i64")
       for f in (F.SHIFT_LEFT, F.SHIFT_RIGHT, F.SHIFT_RIGHT_UNSIGNED)},
    **{f"{f.value} of {name}": call(f, left(name)) > 3 for name in ("i8", "i64") for f in (F.BIT_NOT, F.BIT_COUNT)},
    "bit of boolean": call(F.BIT_COUNT, left("b")) == 1,
    "bit_get": call(F.BIT_GET, left("i64"), call(F.BIT_AND, right("i32"), 63)) == 1,
    "bit_get that may fail": call(F.BIT_GET, left("i8"), right("i32")) == 1,
    **{f"{f.value} of {name}": call(f, left(name), -2) == left(name) for name in ("i8", "i32", "i64")
       for f in (F.ROUND, F.ROUND_EVEN)},
    "case of text": when(left("b"), left("s")).when(right("b"), right("s")).else_("a") == right("s"),
    "case of text constants": when(left("b"), "yes").else_(None) == "yes",
    "case of one text": when(lit(True), "yes").else_("no") == right("s"),
    "coalesce of text": coalesce(left("s"), right("s"), "a") == "a",
    "concat of constants": call(F.CONCAT, lit("a"), lit("b")) < left("s"),
    **{f"{f.value}": call(f, left("s")) == right("s") for f in (F.TRIM, F.TRIM_LEFT, F.TRIM_RIGHT)},
    "guarded division": (right("i32") != 0) & (left("i32") % right("i32") == 0),
    "constant": lit(1) == 1,
    "constant text": lit("a") < right("s"),
    "decimal product": left("dec") * right("dec") > lit(Decimal("1.00")),
    "bigint to decimal": left("i64") < right("dec"),
    "narrowing cast": left("i64").cast(pa.int32()) == 1,
}  # fmt: skip

DECLINED: dict[str, Expression] = {
    "rlike": left("s").rlike("a+"),
    "cast to text": left("i32").cast(pa.string()) == right("s"),
    "text to int": left("s").cast(pa.int32()) == right("i32"),
    "bytes": left("bin") == right("bin"),
    "single precision sum": left("f32") + right("f32") > lit(1.0, pa.float32()),
    "like a column": call(F.LIKE, left("s"), right("s")),
    "like with a dangling escape": left("s").like("a\\"),
    "like with a stray escape": left("s").like("a\\b"),
    "round of floats": call(F.ROUND, left("f32"), 1) > lit(1.0, pa.float32()),
    "round before the point": call(F.ROUND, left("f64"), -1) > 1.0,
    "round by nineteen": call(F.ROUND, left("i64"), -19) > 1,
    "substring from the end": call(F.SUBSTRING, left("s"), -2, 2) == "a",
    "substring by column": call(F.SUBSTRING, left("s"), left("i32"), 2) == "a",
    "trim of given characters": call(F.TRIM, left("s"), "ab") == "",
    "single precision remainder": left("f32") % right("f32") > lit(0.0, pa.float32()),
    "integral part of decimals": call(F.FLOOR, left("dec")) > lit(Decimal(1)),
    "hidden deep inside": (left("b") | right("b")) & ~left("s").rlike("a+"),
}


def zoned() -> Expression:
    schema = pa.schema([("t", pa.timestamp("us", "Europe/Paris"))])
    return resolve(call(F.HOUR, left("t")) == 3, schema, schema)


@functools.cache
def both_sides(seed: int, rows: int = 400) -> tuple[pa.Table, pa.Table]:
    made = Generator(seed, Mix(nulls=0.2, special=0.4, spread=5))
    return made.table(SCHEMA, rows), made.table(SCHEMA, rows)


def mask(condition: Expression, left_table: pa.Table, right_table: pa.Table) -> list[bool]:
    result = DeviceEvaluator(np, HostSource({Side.LEFT: left_table, Side.RIGHT: right_table})).mask(
        condition, left_table.num_rows
    )
    assert result.dtype == np.bool_
    assert result.shape == (left_table.num_rows,)
    return result.tolist()


@pytest.mark.few
@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI], ids=lambda m: m.value)
@pytest.mark.parametrize("name", OFFERED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy warns of values under nulls and of wrap-around
def test_as_the_cpu_says(name: str, mode: EvalMode, seed: int) -> None:
    left_table, right_table = both_sides(seed)
    condition = resolve(OFFERED[name], SCHEMA, SCHEMA, mode=mode)
    assert device_obstacle(condition) is None, condition
    expected = evaluate_rows(condition, *(t.combine_chunks().to_batches()[0] for t in (left_table, right_table)))
    failed = sorted(expected.raised)
    for first in failed[:3]:
        with pytest.raises(ExpressionEvaluationError):
            mask(condition, left_table.slice(first, 1), right_table.slice(first, 1))
    if failed:
        with pytest.raises(ExpressionEvaluationError):
            mask(condition, left_table, right_table)
    fine = pa.array([row for row in range(left_table.num_rows) if row not in expected.raised])
    left_table, right_table = left_table.take(fine), right_table.take(fine)
    assert mask(condition, left_table, right_table) == [v is True for v in expected.values.take(fine).to_pylist()]
    assert mask(condition, left_table.slice(0, 0), right_table.slice(0, 0)) == []


@pytest.mark.parametrize("name", DECLINED)
def test_left_to_the_cpu(name: str) -> None:
    assert device_obstacle(resolve(DECLINED[name], SCHEMA, SCHEMA)) is not None


def test_zones_with_rules_are_left_to_the_cpu() -> None:
    assert device_obstacle(zoned()) is not None


def test_unresolved_trees_are_not_offered() -> None:
    assert device_obstacle(left("i32") == right("i32")) is not None


def test_ansi_errors_only_where_spark_looks() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.int32())])
    table = pa.table([pa.array([1, 2**31 - 1, None], pa.int32()), pa.array([0, 1, 0], pa.int32())], schema=schema)
    sides = (table, table)

    def run(condition: Expression) -> list[bool]:
        return mask(resolve(condition, schema, schema, mode=EvalMode.ANSI), *sides)

    a, b = left("a"), left("b")
    division, overflow = call(F.REMAINDER, a, b) == 0, a + 1 > 0
    assert run((b != 0) & division) == [False, True, False]
    assert run((b == 0) | division) == [True, True, True]
    assert run((a < 100) & overflow) == [True, False, False]
    assert run(when(a < 100, a + 1).else_(5) > 1) == [True, True, True]
    assert run(coalesce(a, a + 1) > 0) == [True, True, False]
    for failing in (division & (b != 0), overflow | (a > 0), when(a > 100, a + 1).else_(5) > 1):
        with pytest.raises(ExpressionEvaluationError, match=r"ansi|overflow|zero"):
            run(failing)


def test_try_mode_gives_null() -> None:
    schema = pa.schema([("a", pa.int8()), ("b", pa.int8())])
    table = pa.table([pa.array([127, 1, 1], pa.int8()), pa.array([1, 0, 1], pa.int8())], schema=schema)
    total = resolve(call(F.ADD, left("a"), left("b"), mode=EvalMode.TRY).is_null(), schema, schema)
    assert mask(total, table, table) == [True, False, False]
    rest = resolve(call(F.REMAINDER, left("a"), left("b"), mode=EvalMode.TRY).is_null(), schema, schema)
    assert mask(rest, table, table) == [False, True, False]


def test_float_order_is_sparks() -> None:
    ascending = [-np.inf, -1.5, -5e-324, 0.0, 5e-324, 1.5, np.inf, np.nan]
    for kind, dtype in (("float64", pa.float64()), ("float32", pa.float32())):
        with np.errstate(all="ignore"):
            data = np.array([*ascending, -0.0, -np.nan], dtype=kind)
        if kind == "float32":
            data[2], data[4] = -1e-45, 1e-45
        (key,) = v.ordered(np, v.Value(dtype, data))
        assert (np.diff(key[:8]) > 0).all()
        assert key[8] == key[3]
        assert key[9] == key[7]


def test_float32_is_widened_bit_by_bit() -> None:
    bits = np.array(
        [0, 1, 2, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x80000001, 0x80000000],
        np.uint32,
    )
    wanted = [struct.unpack("<f", struct.pack("<I", int(b)))[0] for b in bits]
    result = v.widened(np, bits.view(np.float32))
    assert result.tolist() == wanted
    assert np.signbit(result).tolist() == [w < 0 or str(w) == "-0.0" for w in wanted]
    assert np.isnan(v.widened(np, np.array([np.nan], np.float32)))[0]


def test_dates_of_four_thousand_years() -> None:
    days = np.arange(-719_162, 800_000, 17, dtype=np.int32)
    table = pa.table({"day": pa.array(days).cast(pa.date32())})
    run = DeviceEvaluator(np, HostSource({Side.LEFT: table}))
    result = [
        run.fixed(resolve_value(call(part, left("day")), table.schema, table.schema), None).data.tolist()
        for part in (F.YEAR, F.MONTH, F.DAY, F.DAY_OF_WEEK, F.DAY_OF_YEAR)
    ]
    epoch = dt.date(1970, 1, 1)
    for day, year, month, of_month, of_week, of_year in zip(days.tolist(), *result, strict=True):
        date = epoch + dt.timedelta(days=day)
        assert (year, month, of_month) == (date.year, date.month, date.day)
        assert of_week == date.isoweekday() % 7 + 1
        assert of_year == date.timetuple().tm_yday


def test_int64_overflow_is_exact(rng: np.random.Generator) -> None:
    edges = [-(2**63), -(2**63) + 1, -(2**62), -3, -2, -1, 0, 1, 2, 3, 2**31, 2**32, 2**62, 2**63 - 1]
    values = np.array(edges + rng.integers(-(2**63), 2**63 - 1, 40).tolist(), dtype=np.int64)
    left_table, right_table = (side.ravel() for side in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        results: list[tuple[tuple[Any, Any], Callable[[int, int], int]]] = [
            (v.add(left_table, right_table), lambda a, b: a + b),
            (v.subtract(left_table, right_table), lambda a, b: a - b),
            (v.multiply(np, left_table, right_table), lambda a, b: a * b),
        ]
        quotient, failed = v.quotient(np, left_table, right_table)
        remainder = v.remainder(np, left_table, right_table)
    for (result, overflow), exact in results:
        assert overflow is not None
        for a, b, r, bad in zip(
            left_table.tolist(), right_table.tolist(), result.tolist(), overflow.tolist(), strict=True
        ):
            assert bad == (not -(2**63) <= exact(a, b) < 2**63)
            assert (exact(a, b) - r) % 2**64 == 0
    assert failed is not None
    for a, b, q, r, bad in zip(
        *(x.tolist() for x in (left_table, right_table, quotient, remainder, failed)), strict=True
    ):
        if b:
            exact_quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            assert bad == (exact_quotient == 2**63)
            assert (exact_quotient - q) % 2**64 == 0
            assert r == a - exact_quotient * b


def test_a_case_with_one_constant_branch_has_one_value_a_row() -> None:
    schema = pa.schema([("a", pa.int32())])
    table = pa.table({"a": pa.array([1, 2], pa.int32())})
    node = Case(conditions=(lit(True),), values=(lit(True),), otherwise=lit(False))
    assert mask(resolve(node, schema, schema), table, table) == [True, True]
