"""The oracle's expressions against Spark's own, value by value."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from gpujoin.errors import ConditionError, ExpressionEvaluationError
from gpujoin.model.expressions import (
    Call,
    Cast,
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
from gpujoin.testing import assert_same_rows, cells
from tests.generate import Generator, from_cells
from tests.oracle.casting import java_double
from tests.oracle.interpreter import compile_expression

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    [
        ("b", pa.bool_()),
        ("c", pa.bool_()),
        ("i8", pa.int8()),
        ("i32", pa.int32()),
        ("n", pa.int32()),
        ("i64", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("e", pa.float64()),
        ("dec", pa.decimal128(7, 2)),
        ("wide", pa.decimal128(38, 10)),
        ("s", pa.string()),
        ("t", pa.string()),
        ("date", pa.date32()),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("ntz", pa.timestamp("us")),
        ("st", pa.struct([("x", pa.float64()), ("y", pa.string())])),
        ("su", pa.struct([("x", pa.float64()), ("y", pa.string())])),
    ]
)
C = {name: left(name) for name in SCHEMA.names}
F = Function


def f(function: Function, *arguments: object) -> Expression:
    return call(function, *arguments)


def cast(expression: Expression, to: pa.DataType) -> Expression:
    return Cast(child=expression, to=to)


COMPARABLE = [("i8", "i64"), ("i32", "n"), ("d", "e"), ("f", "d"), ("dec", "wide"), ("dec", "i32"), ("wide", "d"),
              ("s", "t"), ("date", "day"), ("b", "c"), ("st", "su")]  # fmt: skip

CASES: dict[str, Expression] = {
    **{
        f"{a} {op} {b}": f(F(op), C[a], C[b])
        for a, b in COMPARABLE
        for op in ("=", "!=", "<", "<=", ">", ">=", "<=>")
    },
    "b and c": C["b"] & C["c"],
    "b or c": C["b"] | C["c"],
    "not b": ~C["b"],
    "s is null": C["s"].is_null(),
    "s is not null": C["s"].is_not_null(),
    "isnan(d)": C["d"].is_nan(),
    "i32 in (1, 2, n)": C["i32"].is_in([1, 2, C["n"]]),
    "i32 in (0, null)": C["i32"].is_in([0, lit(None)]),
    "d in (double('nan'), 0.0D)": C["d"].is_in([math.nan, 0.0]),
    "i32 between -5 and 5": C["i32"].between(-5, 5),
    "i32 + n": C["i32"] + C["n"],
    "i32 - n": C["i32"] - C["n"],
    "i32 * n": C["i32"] * C["n"],
    "i64 * 3L": C["i64"] * lit(3, pa.int64()),
    "-i32": -C["i32"],
    "-i8": -C["i8"],
    "abs(i64)": abs(C["i64"]),
    "i32 / n": C["i32"] / C["n"],
    "d / e": C["d"] / C["e"],
    "d * e": C["d"] * C["e"],
    "f + f": C["f"] + C["f"],
    "f * f": C["f"] * C["f"],
    "d % e": C["d"] % C["e"],
    "i32 % n": C["i32"] % C["n"],
    "i64 div n": f(F.INTEGRAL_DIVIDE, C["i64"], C["n"]),
    "pmod(i32, n)": f(F.PMOD, C["i32"], C["n"]),
    "pmod(d, e)": f(F.PMOD, C["d"], C["e"]),
    "dec + dec": C["dec"] + C["dec"],
    "dec - wide": C["dec"] - C["wide"],
    "dec * dec": C["dec"] * C["dec"],
    "wide * wide": C["wide"] * C["wide"],
    "wide + wide": C["wide"] + C["wide"],
    "dec / cast(3 as decimal(3, 0))": C["dec"] / lit(Decimal(3), pa.decimal128(3, 0)),
    "wide / dec": C["wide"] / C["dec"],
    "dec % cast(0.7 as decimal(2, 1))": C["dec"] % lit(Decimal("0.7"), pa.decimal128(2, 1)),
    "dec div cast(0.7 as decimal(2, 1))": f(F.INTEGRAL_DIVIDE, C["dec"], lit(Decimal("0.7"), pa.decimal128(2, 1))),
    "pmod(dec, cast(0.7 as decimal(2, 1)))": f(F.PMOD, C["dec"], lit(Decimal("0.7"), pa.decimal128(2, 1))),
    "dec * i32": C["dec"] * C["i32"],
    "dec + d": C["dec"] + C["d"],
    "-dec": -C["dec"],
    "-cast(wide as decimal(38, 3))": -cast(C["wide"], pa.decimal128(38, 3)),
    "abs(cast(wide as decimal(38, 3)))": abs(cast(C["wide"], pa.decimal128(38, 3))),
    "abs(dec)": abs(C["dec"]),
    "floor(d)": f(F.FLOOR, C["d"]),
    "ceil(d)": f(F.CEIL, C["d"]),
    "floor(dec)": f(F.FLOOR, C["dec"]),
    "ceil(dec)": f(F.CEIL, C["dec"]),
    "coalesce(i32, n, 7)": coalesce(C["i32"], C["n"], 7),
    "greatest(d, e, 0.0D)": f(F.GREATEST, C["d"], C["e"], 0.0),
    "least(d, e)": f(F.LEAST, C["d"], C["e"]),
    "greatest(s, t)": f(F.GREATEST, C["s"], C["t"]),
    "case when b then i32 when c then n end": when(C["b"], C["i32"]).when(C["c"], C["n"]),
    "case when i32 > n then s else t end": when(C["i32"] > C["n"], C["s"]).else_(C["t"]),
    r"s like 'a%'": C["s"].like("a%"),
    r"s like '_'": C["s"].like("_"),
    r"s like '%\\_%'": C["s"].like(r"%\_%"),
    "s like '%|%%' escape '|'": C["s"].like("%|%%", "|"),
    "s rlike '^[a-c]+$'": C["s"].rlike("^[a-c]+$"),
    "startswith(s, t)": C["s"].startswith(C["t"]),
    "endswith(s, 'c')": C["s"].endswith("c"),
    "contains(s, 'b')": C["s"].contains("b"),
    **{
        f"{name}(b, i8, i32, i64, f, d, dec, wide, s, date, ts)": f(
            function, *(C[c] for c in ("b", "i8", "i32", "i64", "f", "d", "dec", "wide", "s", "date", "ts"))
        )
        for name, function in {"hash": F.HASH, "xxhash64": F.XXHASH64}.items()
    },
    "lpad(s, 4, t)": f(F.LPAD, C["s"], 4, C["t"]),
    "rpad(s, 4, t)": f(F.RPAD, C["s"], 4, C["t"]),
    "repeat(s, 3)": f(F.REPEAT, C["s"], 3),
    "replace(s, t, 'x')": f(F.REPLACE, C["s"], C["t"], "x"),
    "translate(s, t, 'xy')": f(F.TRANSLATE, C["s"], C["t"], "xy"),
    "concat_ws('-', s, t)": f(F.CONCAT_WS, "-", C["s"], C["t"]),
    "substring_index(s, 'a', -1)": f(F.SUBSTRING_INDEX, C["s"], "a", -1),
    "split_part(s, 'b', 2)": f(F.SPLIT_PART, C["s"], "b", 2),
    "locate(t, s, 2)": f(F.LOCATE, C["t"], C["s"], 2),
    "ascii(s)": f(F.ASCII, C["s"]),
    "chr(i64)": f(F.CHR, C["i64"]),
    "trim(both t from s)": f(F.TRIM, C["s"], C["t"]),
    "hex(i64)": f(F.HEX, C["i64"]),
    "bin(i64)": f(F.BIN, C["i64"]),
    "hex(s)": f(F.HEX, C["s"]),
    "md5(s)": f(F.MD5, C["s"].cast(pa.binary())),
    "sha2(s, 512)": f(F.SHA2, C["s"].cast(pa.binary()), 512),
    "crc32(s)": f(F.CRC32, C["s"].cast(pa.binary())),
    "nanvl(d, e)": f(F.NANVL, C["d"], C["e"]),
    "sign(d)": f(F.SIGN, C["d"]),
    "degrees(d)": f(F.DEGREES, C["d"]),
    "radians(d)": f(F.RADIANS, C["d"]),
    "width_bucket(d, -1.0D, 10.0D, 7L)": f(F.WIDTH_BUCKET, C["d"], -1.0, 10.0, lit(7, pa.int64())),
    "i32 & n": f(F.BIT_AND, C["i32"], C["n"]),
    "i32 | n": f(F.BIT_OR, C["i32"], C["n"]),
    "i64 ^ n": f(F.BIT_XOR, C["i64"], C["n"]),
    "~i8": f(F.BIT_NOT, C["i8"]),
    "shiftleft(i32, n)": f(F.SHIFT_LEFT, C["i32"], C["n"]),
    "shiftright(i64, n)": f(F.SHIFT_RIGHT, C["i64"], C["n"]),
    "shiftrightunsigned(i32, n)": f(F.SHIFT_RIGHT_UNSIGNED, C["i32"], C["n"]),
    "bit_count(i32)": f(F.BIT_COUNT, C["i32"]),
    "lower(s)": f(F.LOWER, C["s"]),
    "upper(s)": f(F.UPPER, C["s"]),
    "trim(s)": f(F.TRIM, C["s"]),
    "length(s)": f(F.LENGTH, C["s"]),
    "concat(s, t)": f(F.CONCAT, C["s"], C["t"]),
    **{
        f"substring(s, {p}, {n})": f(F.SUBSTRING, C["s"], p, n)
        for p in (0, 1, 2, -1, -3, 50)
        for n in (0, 1, 2, 9, -1)
    },
    **{
        f"{name}({column})": f(function, C[column])
        for column in ("date", "ts", "ntz")
        for name, function in {
            "year": F.YEAR, "quarter": F.QUARTER, "month": F.MONTH, "day": F.DAY, "dayofweek": F.DAY_OF_WEEK,
            "dayofyear": F.DAY_OF_YEAR,
        }.items()
    },
    **{
        f"{name}({column})": f(function, C[column])
        for column in ("ts", "ntz")
        for name, function in {"hour": F.HOUR, "minute": F.MINUTE, "second": F.SECOND}.items()
    },
    "date_add(date, n)": f(F.DATE_ADD, C["date"], C["n"]),
    "date_sub(date, n)": f(F.DATE_SUB, C["date"], C["n"]),
    "datediff(date, day)": f(F.DATE_DIFF, C["date"], C["day"]),
    "weekofyear(date)": f(F.WEEK_OF_YEAR, C["date"]),
    "dayname(date)": f(F.DAY_NAME, C["date"]),
    "monthname(date)": f(F.MONTH_NAME, C["date"]),
    "next_day(date, 'tue')": f(F.NEXT_DAY, C["date"], "tue"),
    **{
        f"trunc(date, '{unit}')": f(F.TRUNC, C["date"], unit) for unit in ("week", "month", "quarter", "yyyy")
    },
    **{
        f"date_trunc('{unit}', ts)": f(F.DATE_TRUNC, unit, C["ts"])
        for unit in ("millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year")
    },
    "date_format(ts, 'yyyy/MM/dd HH:mm:ss.SSS')": f(F.DATE_FORMAT, C["ts"], "yyyy/MM/dd HH:mm:ss.SSS"),
    "add_months(date, n)": f(F.ADD_MONTHS, C["date"], C["n"]),
    "months_between(ts, timestamp'2024-02-29 12:00:00')": f(
        F.MONTHS_BETWEEN, C["ts"], dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), lit(True)
    ),
    "make_date(2000 + n, n, i8)": f(F.MAKE_DATE, C["n"] + 2000, C["n"], C["i8"]),
    "unix_date(date)": f(F.UNIX_DATE, C["date"]),
    "date_from_unix_date(n)": f(F.DATE_FROM_UNIX_DATE, C["n"]),
    "unix_timestamp(ts)": f(F.UNIX_TIMESTAMP, C["ts"]),
    "from_unixtime(n, 'yyyy-MM-dd HH:mm:ss')": f(F.FROM_UNIXTIME, C["n"], "yyyy-MM-dd HH:mm:ss"),
    "unix_seconds(ts)": f(F.UNIX_SECONDS, C["ts"]),
    "unix_millis(ts)": f(F.UNIX_MILLIS, C["ts"]),
    "unix_micros(ts)": f(F.UNIX_MICROS, C["ts"]),
    "timestamp_seconds(n)": f(F.TIMESTAMP_SECONDS, C["n"]),
    "timestamp_millis(n)": f(F.TIMESTAMP_MILLIS, C["n"]),
    "timestamp_micros(n)": f(F.TIMESTAMP_MICROS, C["n"]),
    **{
        f"{name}({column}, {digits})": f(function, C[column], digits)
        for column, digits in (("i32", -2), ("i8", -1), ("d", 2), ("d", 0))
        for name, function in {"round": F.ROUND, "bround": F.ROUND_EVEN}.items()
    },
    "st.x": C["st"].field("x"),
    "st.y": C["st"].field("y"),
    **{
        f"cast({c} as {sql})": cast(C[c], to)
        for c, sql, to in [
            ("i64", "int", pa.int32()), ("i64", "tinyint", pa.int8()), ("i64", "double", pa.float64()),
            ("i64", "float", pa.float32()), ("i64", "decimal(10, 2)", pa.decimal128(10, 2)),
            ("i64", "string", pa.string()),
            ("i64", "boolean", pa.bool_()), ("d", "int", pa.int32()), ("d", "bigint", pa.int64()),
            ("d", "tinyint", pa.int8()), ("d", "float", pa.float32()), ("d", "decimal(10, 1)", pa.decimal128(10, 1)),
            ("d", "string", pa.string()), ("d", "boolean", pa.bool_()), ("f", "double", pa.float64()),
            ("wide", "int", pa.int32()), ("wide", "bigint", pa.int64()), ("wide", "double", pa.float64()),
            ("wide", "decimal(20, 3)", pa.decimal128(20, 3)), ("dec", "decimal(4, 1)", pa.decimal128(4, 1)),
            ("dec", "string", pa.string()), ("dec", "boolean", pa.bool_()),
            ("b", "int", pa.int32()), ("b", "string", pa.string()), ("b", "decimal(3, 1)", pa.decimal128(3, 1)),
            ("date", "timestamp_ntz", pa.timestamp("us")), ("date", "timestamp", pa.timestamp("us", "UTC")),
            ("date", "string", pa.string()), ("ts", "date", pa.date32()), ("ts", "bigint", pa.int64()),
            ("ts", "string", pa.string()), ("ntz", "date", pa.date32()),
            ("ntz", "timestamp", pa.timestamp("us", "UTC")),
            ("ts", "timestamp_ntz", pa.timestamp("us")), ("ntz", "string", pa.string()),
        ]
    },
}  # fmt: skip

TEXTS = [
    "1", " 1 ", "-7", "+3", "1.9", "-1.9", ".5", "5.", ".", "", " ", "1e3", "1e400", "-1E-3", "abc", "NaN", "nan",
    "inf",
    "-Infinity", "+infinity", "true", "T", "yes", "no", "0", "300", "99999999999", "9223372036854775808", "1d", "2f",
    "2020-02-29", "2019-02-29", "2020-2-9", "2020", "2020-03", "2020-01-01T", "2020-01-01 12:34:56", "1582-10-10",
    "2020-01-01 1:2:3.4", "2020-01-01 23:59:59.999999", "2020-01-01 24:00:00", " 2020-01-01 ", "99999-12-31", None,
    "x1",
    "12345.678", "0.005", "\t5\n",
]  # fmt: skip
TEXT_CASES = {
    "int": pa.int32(),
    "tinyint": pa.int8(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "decimal(7, 2)": pa.decimal128(7, 2),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
}


def evaluated(expression: Expression, table: pa.Table) -> pa.Array:
    """The expression over each row of a table, as the left side."""
    compiled = compile_expression(expression, table.schema, pa.schema([]))
    rows = zip(*(cells(c) for c in table.columns), strict=True)
    return from_cells([compiled.run((row, ())) for row in rows], compiled.type)


def in_spark(spark: SparkSession, table: pa.Table, expressions: list[str]) -> pa.Table:
    spark.createDataFrame(table).createOrReplaceTempView("t0")
    columns = ", ".join(f"{e} as c{i}" for i, e in enumerate(expressions))
    return spark.sql(f"select row, {columns} from t0").toArrow()


@pytest.fixture(scope="module")
def data(seed: int) -> pa.Table:
    generator = Generator(seed)
    rows = 150
    columns = {f.name: generator.array(f.type, rows) for f in SCHEMA}
    for name in ("day", "date"):
        days = [generator.random.choice([None, *range(-800, 40000, 777)]) for _ in range(rows)]
        columns[name] = pa.array(days, pa.int32()).view(pa.date32())
    columns["n"] = pa.array([generator.random.choice([None, 0, 1, -1, 3, -7, 1000]) for _ in range(rows)], pa.int32())
    return pa.table({**columns, "row": range(rows)})


def compare(actual: pa.Array, expected: pa.ChunkedArray[Any], sql: str, seed: int) -> None:
    actual_table = pa.table({"row": range(len(actual)), "v": actual})
    expected_table = pa.table({"row": range(len(expected)), "v": expected})
    assert_same_rows(actual_table, expected_table, context=f"seed {seed}: {sql}")


@pytest.mark.spark
@pytest.mark.parametrize("spark", [{"spark.sql.ansi.enabled": "false"}], indirect=True, ids=["legacy"])
def test_against_spark(spark: SparkSession, data: pa.Table, seed: int) -> None:
    names = list(CASES)
    problems = []
    for start in range(0, len(names), 60):
        part = names[start : start + 60]
        expected = in_spark(spark, data, part).sort_by("row")
        for i, sql in enumerate(part):
            try:
                compare(evaluated(CASES[sql], data), expected[f"c{i}"], sql, seed)
            except (AssertionError, NotImplementedError) as problem:
                problems.append(str(problem))
    assert not problems, "\n\n".join(problems)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("spark", "mode"),
    [
        ({"spark.sql.ansi.enabled": "false"}, EvalMode.LEGACY),
        ({"spark.sql.ansi.enabled": "true"}, EvalMode.TRY),
    ],
    indirect=["spark"],
    ids=["legacy", "ansi"],
)
def test_casts_of_texts_against_spark(spark: SparkSession, mode: EvalMode, seed: int) -> None:
    table = pa.table({"s": TEXTS, "row": range(len(TEXTS))})
    function = "cast" if mode is EvalMode.LEGACY else "try_cast"
    expected = in_spark(spark, table, [f"{function}(s as {t})" for t in TEXT_CASES]).sort_by("row")
    problems = []
    for i, (sql, dtype) in enumerate(TEXT_CASES.items()):
        actual = evaluated(Cast(child=left("s"), to=dtype, mode=mode), table)
        wrong = [
            (text, own, spark_value)
            for text, own, spark_value in zip(TEXTS, cells(actual), cells(expected[f"c{i}"]), strict=True)
            if repr(own) != repr(spark_value)
        ]
        problems += [
            f"{function}({t!r} as {sql}) is {own!r}, in Spark {spark_value!r}" for t, own, spark_value in wrong
        ]
    assert not problems, "\n".join(problems)


@pytest.mark.extra
@pytest.mark.spark
@pytest.mark.parametrize("spark", [{"spark.sql.ansi.enabled": "true"}], indirect=True, ids=["ansi"])
def test_ansi_errors_where_spark_fails(spark: SparkSession, data: pa.Table) -> None:
    from pyspark.errors import PySparkException

    wanted = ["i32 + n", "i32 * n", "-i8", "i32 / n", "d / e", "i32 % n", "i64 div n", "dec * dec", "wide * wide",
              "wide / dec", "cast(i64 as int)", "cast(d as int)", "cast(wide as bigint)"]  # fmt: skip
    failed = []
    for sql in wanted:
        expression = _in_mode(CASES[sql], EvalMode.ANSI)
        compiled = compile_expression(expression, data.schema, pa.schema([]))
        for number, row in enumerate(zip(*(cells(c) for c in data.columns), strict=True)):
            try:
                compiled.run((row, ()))
            except ExpressionEvaluationError:
                failed.append((sql, number))
    assert len({sql for sql, _ in failed}) > 8
    spark.createDataFrame(data).createOrReplaceTempView("t0")
    guarded = []
    for number, sql in enumerate(sorted({sql for sql, _ in failed})):
        bad = [row for other, row in failed if other == sql]
        guarded.append(f"case when row not in ({', '.join(map(str, bad))}) then {sql} end as v{number}")
        with pytest.raises(PySparkException):
            spark.sql(f"select {sql} as v from t0 where row = {bad[0]}").toArrow()
    assert spark.sql(f"select {', '.join(guarded)} from t0").toArrow().num_rows == data.num_rows


def _in_mode(expression: Expression, mode: EvalMode) -> Expression:
    assert isinstance(expression, (Call, Cast))
    return dataclasses.replace(expression, mode=mode)


@pytest.mark.parametrize("function", [Function.NEGATE, Function.ABS])
@pytest.mark.parametrize("mode", EvalMode)
def test_negated_decimals_with_a_digit_too_many_fail_in_every_mode(function: Function, mode: EvalMode) -> None:
    """Spark rounds to 34 digits there, and up."""
    schema = pa.schema([("n", pa.decimal128(38, 0))])
    node = Call(function=function, arguments=(left("n"),), mode=mode)
    with pytest.raises(ExpressionEvaluationError):
        compile_expression(node, schema, pa.schema([])).run(((Decimal("-" + "9" * 38),), ()))


def test_both_sides_are_read() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.int64())])
    compiled = compile_expression(left("a") * lit(10) + right("b"), schema, schema)
    assert compiled.type == pa.int64()
    assert compiled.run(((1, 2), (3, 4))) == 14


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (left("zz") == lit(1), "column zz does not exist"),
        (left("a") == lit("x"), "cannot be compared"),
        (left("t").field("no") == lit(1), "no field 'no'"),
    ],
)
def test_bad_expressions_are_refused(expression: Expression, message: str) -> None:
    schema = pa.schema([("a", pa.int32()), ("t", pa.struct([("x", pa.int8())]))])
    with pytest.raises(ConditionError, match=message):
        compile_expression(expression, schema, schema)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e7, "1.0E7"), (9999999.0, "9999999.0"), (0.001, "0.001"), (0.00099, "9.9E-4"), (123456.5, "123456.5"),
     (1.0, "1.0"), (-2.5e-300, "-2.5E-300"), (100.0, "100.0"), (-0.0, "-0.0")],
)  # fmt: skip
def test_doubles_as_java_writes_them(value: float, text: str) -> None:
    assert java_double(value) == text


def test_dates_outside_of_pythons_range() -> None:
    table = pa.table({"d": pa.array([-1_000_000, 4_000_000], pa.int32()).view(pa.date32())})
    assert evaluated(f(F.YEAR, left("d")), table).to_pylist() == [-768, 12921]
    assert cells(evaluated(cast(left("d"), pa.string()), table)) == ["-0768-02-04", "+12921-08-18"]


def test_local_times_in_zones() -> None:
    zone = pa.timestamp("us", "Europe/Berlin")
    spring = [dt.datetime(2024, 3, 31, 0, 59, 59, tzinfo=dt.UTC), dt.datetime(2024, 3, 31, 1, tzinfo=dt.UTC)]
    table = pa.table({"t": pa.array(spring, zone)})
    assert evaluated(f(F.HOUR, left("t")), table).to_pylist() == [1, 3]
    local = cast(cast(left("t"), pa.timestamp("us")), zone)
    assert evaluated(local, table).equals(table["t"].combine_chunks())
