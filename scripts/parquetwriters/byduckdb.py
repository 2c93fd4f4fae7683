"""Writes samples by DuckDB; runs on Python 3.7."""

import math
from typing import Any

import duckdb
from rows import COLUMNS, FOLDER  # type: ignore[import-not-found]

VERSION = duckdb.__version__
TYPES = {
    "id": "bigint", "flag": "boolean", "i8": "tinyint", "i16": "smallint", "i32": "integer", "i64": "bigint",
    "u8": "utinyint",
    "u16": "usmallint", "u32": "uinteger", "u64": "ubigint", "f32": "float", "f64": "double", "text": "varchar",
    "day": "date", "moment": "timestamp", "dec9": "decimal(9, 2)", "dec18": "decimal(18, 4)",
    "dec38": "decimal(38, 10)",
    "few": "varchar", "late": "integer",
}  # fmt: skip
NEWER = {
    "moment_s": "cast(moment as timestamp_s)", "moment_ms": "cast(moment as timestamp_ms)",
    "moment_utc": "moment at time zone 'UTC'",
    "clock": "cast(moment as time)", "huge": "cast(i64 as hugeint)", "uid": "cast(md5(text) as uuid)",
    "colour": "cast(few as colours)",
    "ints": "case id % 4 when 0 then null when 1 then [] else [i32, null] end",
    "point": "case when id % 3 > 0 then {x: i32, y: text} end",
    "pair": "cast([i32, late] as integer[2])", "props": "map {'k': i32}", "span": "to_days(id)",
}  # fmt: skip


def literal(value: Any) -> str:
    """Write a value as a constant in SQL."""
    if value is None:
        return "null"
    if isinstance(value, float) and (math.isnan(value) or math.isinf(value)):
        return "null" if VERSION.startswith("0.2") else f"'{value}'::double"
    if isinstance(value, float):
        return f"'{value!r}'::double"
    return f"'{value}'"


old = VERSION.startswith("0.2")
if old:  # it writes no unsigned numbers
    TYPES = {name: dtype for name, dtype in TYPES.items() if not name.startswith("u")}
connection = duckdb.connect()
connection.execute("create table t ({})".format(", ".join(f"{name} {dtype}" for name, dtype in TYPES.items())))
for n in COLUMNS["id"]:
    row = ", ".join(literal(COLUMNS[name][n]) for name in TYPES)
    connection.execute(f"insert into t values ({row})")  # noqa: S608 - constants written above
if not old:
    connection.execute("set timezone = 'UTC'")
    connection.execute("create type colours as enum ('red', 'green', 'blue')")
more = "" if old else "".join(f", {text} {name}" for name, text in NEWER.items())
for options in (
    ("compression snappy", "compression zstd")
    if old
    else ("compression zstd", "compression lz4_raw, parquet_version v2")
):
    name = options.split()[1].strip(",")
    file = f"{FOLDER}/duckdb-{VERSION}-{name}.parquet"
    connection.execute(f"copy (select *{more} from t) to '{file}' (format parquet, {options})")  # noqa: S608
