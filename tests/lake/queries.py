"""Queries of tables of Delta and Iceberg, whose rows are compared with Spark's, and whose way is checked."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb
from pyspark.sql import DataFrame, SparkSession

from gpujoin.spark.query.accelerate import Accelerated, rewrite
from gpujoin.testing import assert_same_rows
from tests.spark.query.queries import checked, plain_stages

_OF_ROWS = "rows from Spark"


TYPES = (
    "k bigint, i int, s string, d double, f float, e decimal(10,2), w decimal(38,10), t timestamp, n timestamp_ntz, "
    "a date, b boolean, y binary"
)
"""Columns of all types."""
_ROWS = """
select id as k, cast(if(id % 7 = 0, null, id % 5) as int) as i,
  case id % 5 when 0 then null when 1 then '' when 2 then 'ü=/%' else concat('x', id) end as s,
  case id % 6 when 0 then double('NaN') when 1 then -0.0D when 2 then null when 3 then double('-infinity')
  else id / 3 end as d,
  cast(if(id % 4 = 0, null, id / 7) as float) as f, cast(if(id % 9 = 0, null, id / 8) as decimal(10,2)) as e,
  cast(if(id % 9 = 1, null, id * 1e8) as decimal(38,10)) as w,
  if(id % 8 = 0, null, timestamp'0001-01-01 00:00:00.000001' + make_interval(id * 40)) as t,
  cast(timestamp_ntz'1969-12-31 23:59:59.999999' + make_interval(0, 0, 0, id) as timestamp_ntz) as n,
  if(id % 6 = 5, null, date'1500-02-28' + cast(id * 90 as int)) as a, id % 3 = 0 as b,
  if(id % 5 = 2, null, cast(concat('b', id % 4) as binary)) as y
from range({first}, {last})
"""


def rows(first: int, last: int) -> str:
    """Select rows of all types, with special values."""
    return _ROWS.format(first=first, last=last)


def run(spark: SparkSession, table: str, *statements: str) -> None:
    """Run statements in which ``{t}`` stands for a table."""
    for statement in statements:
        spark.sql(statement.replace("{t}", table))


ALL = ("all columns", "groups", "rows", "anti join", "window", "pairs")
USUAL = ("all columns", "groups", "rows")


def queries_of(spark: SparkSession, table: str, key: str = "k", names: Iterable[str] = USUAL) -> dict[str, DataFrame]:
    """Queries of a table that read all of its columns, some, one, or none."""
    texts = _texts(spark.table(table).columns, table, key)
    return {name: spark.sql(texts[name]) for name in names}


def _texts(columns: Iterable[str], table: str, key: str) -> dict[str, str]:
    values = "".join(f", b.`{column}` as `{column}_2`" for column in columns if column != key)
    thirds = f"(select {key} from {table} where {key} % 3 = 0)"
    return {
        "all columns": f"select a.{key} as k1{values} from {table} a join {table} b on a.{key} = b.{key}",
        "groups": f"select {key}, count(*) n from {table} group by {key}",
        "rows": f"select count(*) n, count({key}) c, sum({key}) s, min({key}) a, max({key}) z from {table}",
        "anti join": f"select a.* from {table} a left anti join {thirds} b on a.{key} = b.{key}",
        "window": f"select {key}, row_number() over (partition by {key} % 4 order by {key}) r from {table}",
        "pairs": f"select count(*) n from {table} a cross join (select distinct {key} % 2 as m from {table}) b",
    }


def check_read(frames: Iterable[tuple[str, DataFrame]], *, allow_empty: bool = False) -> None:
    """Check that workers read the tables of queries, and give Spark's rows."""
    for name, frame in frames:
        told = str(_checked(frame, name, allow_empty=allow_empty).explanation)
        assert "scan " in told, f"{name}: {told}"
        assert _OF_ROWS not in told, f"{name}: {told}"


def check_of_rows(spark: SparkSession, table: str, names: Iterable[str], key: str = "k") -> None:
    """Check that workers read a table, and give what DuckDB makes of the rows that Spark reads of it.

    Spark runs one query for all of them, without a join.
    """
    with plain_stages(spark):
        rows = spark.table(table).toArrow()
    texts = _texts(rows.column_names, "held", key)
    with duckdb.connect() as database:
        database.register("held", rows)
        for name, frame in queries_of(spark, table, key, names).items():
            planned = rewrite(frame)
            told = str(planned.explanation)
            assert planned.changed, f"{name}: {told}"
            assert "scan " in told, f"{name}: {told}"
            assert _OF_ROWS not in told, f"{name}: {told}"
            here = planned.frame.toArrow()
            text = texts[name].replace("`", '"').replace("left anti join", "anti join")
            expected = database.sql(text).to_arrow_table().rename_columns(here.column_names).cast(here.schema)
            assert_same_rows(here, expected, allow_empty=True, context=name)


def check_left(frame: DataFrame, why: str, *, allow_empty: bool = False) -> None:
    """Check that a query has Spark's rows, and that workers do not read a table, for a reason."""
    frame.sparkSession.conf.set("spark.gpujoin.fallback", "silent")
    told = str(_checked(frame, why, allow_empty=allow_empty).explanation)
    assert why in told, told


def _checked(frame: DataFrame, name: str, *, allow_empty: bool) -> Accelerated:
    return checked(frame, allow_empty=allow_empty, context=name)
