"""Operations that everyday queries have between joins and aggregations: limits, pivots, repeated rows, and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from gpujoin.spark.query.accelerate import rewrite
from tests.brief import together
from tests.spark.query.queries import EXCHANGED, FORCED, check, check_all, views

pytestmark = pytest.mark.spark
forced = pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])

LIMITS = {
    "below a join": "select a.id, b.item from (select * from sales order by id limit 5) a join items b using (k)",
    "below an aggregation": "select count(*), sum(id) from (select * from sales limit 100)",
    "of groups": """select c, count(*) from
        (select k, count(*) c from sales group by k order by c desc, k limit 3) group by c""",
    "offset": """select t.k, i.item from
        (select k, count(*) c from sales group by k order by c desc, k limit 3 offset 1) t join items i using (k)""",
    "offset alone": """select t.k, i.item from
        (select k, count(*) c from sales group by k order by c desc, k offset 1) t join items i using (k)""",
    "offset past the end": "select count(*) from (select k from sales order by k, id limit 3 offset 100)",
    "limits in limits": """select count(*), max(id) from (select * from (select * from sales order by id limit 5)
        order by id desc limit 3) t join items using (k)""",
    "union": """select k, count(*) from ((select k from sales order by id limit 3) union all
        (select k from items order by item desc limit 2)) group by k""",
    "both sides": """select * from (select k, id from sales order by id desc limit 4) a
        join (select k, item from items order by item limit 3) b using (k)""",
    "in": "select id from sales a where k in (select k from items order by item limit 3)",
    "expressions": "select x, item from (select id + 1 x, k from sales order by -id limit 3) join items using (k)",
    "outer join": """select t.id, i.item from (select id, k
        from sales order by id limit 3) t left join items i using (k)""",
}
PIVOTS = {
    "text": "select * from (select k, s, id from sales) pivot (sum(id) for s in ('x', 'ü'))",
    "two": "select * from (select k, s, id from sales) pivot (sum(id) a, count(*) c for s in ('x' x, 'ü' u))",
    "dates": """select * from (select k, day, id from sales)
        pivot (max(id) for day in (date'2024-01-31', date'2024-05-05'))""",
    "booleans": "select * from (select k, flag, weight from sales) pivot (avg(weight) for flag in (true, false))",
    "integers and null": "select * from (select k, s, price from sales) pivot (sum(price) for k in (1, 2, 3, null))",
    "values of text": "select * from (select k, s, day from sales) pivot (max(day) for k in (1, 2))",
    "joined": """select p.*, i.item from
        (select * from (select k, s, id from sales) pivot (sum(id) for s in ('x', 'ü'))) p join items i using (k)""",
}
SETS = {
    "intersect all": "select count(*) from (select k, s from sales intersect all select k, s from items)",
    "except all": """select t.k, i.item from (select k from items except all select k from sales) t
        join items i on t.k <=> i.k""",
    "spellings": "select a.ID, A.Id, b.item from sales a join items b using (K)",
    "spellings of a key": "select a.k, A.K, b.K from sales a join items b on a.K = b.k",
}


def whole(*frames: DataFrame) -> None:
    """Check the rows of queries, and that all of each is in one island that takes no rows from Spark."""
    for found in check_all({str(number): frame for number, frame in enumerate(frames)}).values():
        (island,) = found.islands
        assert not any("rows from Spark" in line for line in island.tree), island.tree


@forced
@pytest.mark.parametrize("names", together(LIMITS, "of groups", "offset", "limits in limits"))
def test_limits_below_other_operations(tables: SparkSession, names: tuple[str, ...]) -> None:
    whole(*(tables.sql(LIMITS[name]) for name in names))


@pytest.mark.parametrize("spark", [EXCHANGED], indirect=True, ids=["exchanged"])
@pytest.mark.parametrize("names", together(LIMITS, "union", "both sides"))
def test_limits_of_the_rows_of_several_tasks(tables: SparkSession, names: tuple[str, ...]) -> None:
    whole(*(tables.sql(LIMITS[name]) for name in names))


@forced
@pytest.mark.parametrize("names", together(PIVOTS, "integers and null", "joined"))
def test_pivots(tables: SparkSession, names: tuple[str, ...]) -> None:
    whole(*(tables.sql(PIVOTS[name]) for name in names))


@forced
def test_sets_and_spellings(tables: SparkSession) -> None:
    whole(*map(tables.sql, SETS.values()))


PROGRAMS: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "dropna": lambda sales, _: sales.dropna(subset=["weight", "s"]).groupBy("k").count(),
    "dropna with a threshold": lambda sales, _: sales.dropna(thresh=6).groupBy("k").count(),
    "repartition": lambda sales, items: sales.repartition(3, "k").join(items.select("k", "item"), "k"),
    "coalesce": lambda sales, _: sales.coalesce(1).groupBy("k").count(),
    "range": lambda sales, _: sales.repartitionByRange(2, "id").groupBy("k").count(),
    "drop duplicates": lambda sales, items: sales.dropDuplicates(["k"]).select("k").join(items, "k"),
    "crosstab": lambda sales, _: sales.crosstab("k", "s"),
}


@forced
@pytest.mark.parametrize("names", together(PROGRAMS, "dropna with a threshold", "repartition"))
def test_operations_of_data_frames(tables: SparkSession, names: tuple[str, ...]) -> None:
    whole(*(PROGRAMS[name](tables.table("sales"), tables.table("items")) for name in names))


@forced
def test_spark_arranges_the_rows_of_a_result(tables: SparkSession) -> None:
    frame = tables.table("sales").groupBy("k").count().repartition(3).select("k", (sf.col("count") + 1).alias("n"))
    result = rewrite(frame)
    assert result.explanation.islands
    assert result.frame.rdd.getNumPartitions() == 3


@pytest.fixture
def typed(tables: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """Files with values of types that Spark has not, and a table with columns of ``CHAR``."""
    numbers: dict[str, pa.Array] = {
        f"u{bits}": pa.array([0, (1 << bits) - 1, None], getattr(pa, f"uint{bits}")()) for bits in (8, 16, 32, 64)
    }
    fixed = pa.array([b"abc", b"ab\xff", None], pa.binary(3))
    floats = pa.array([0.1, float("nan"), None], pa.float32())
    (tmp_path / "odd").mkdir()
    pq.write_table(pa.table({**numbers, "fixed": fixed, "f": floats}), tmp_path / "odd" / "part.parquet")
    schema = "u8 smallint, u16 int, u32 bigint, u64 decimal(20), fixed binary, f double"
    tables.sql(f"create table padded (c char(5), v varchar(5)) using parquet location '{tmp_path / 'padded'}'")
    tables.sql("insert into padded values ('ab', 'ab'), ('ab   ', 'ab '), (null, null), ('', ''), ('ü', 'ü')")
    with views(tables, tmp_path, {"odd": schema}):
        yield tables
    tables.sql("drop table padded")


@forced
def test_types_that_are_spelled_otherwise_in_files(typed: SparkSession) -> None:
    whole(
        typed.sql("select u8, u16, u32, u64, fixed, f, count(*) from odd group by all"),
        typed.sql("select a.u64, b.f from odd a join odd b on a.fixed = b.fixed and a.u32 > b.u8 - 1"),
    )


@forced
def test_columns_of_char_are_filled_with_spaces(typed: SparkSession) -> None:
    whole(
        typed.sql("select c, length(c), max(length(v)), count(*) from padded where c <> 'ü' group by c"),
        typed.sql("select a.c, b.v from padded a join padded b on a.c = b.c and a.v = b.v"),
    )


VIEW = "view as (select k, sum(price) total, count(*) c from sales group by k having count(*) > 1)"


@forced
def test_a_view_that_both_inputs_of_a_union_use_is_computed_once(tables: SparkSession) -> None:
    """The union is the topmost operation then; elsewhere each of its inputs is a part of its own."""
    shared = f"""with {VIEW} select k, total, c, 1 x from view where total > 0
        union all select k, total, c, 2 from view where k > 0 or c > 2"""
    (island,) = check(tables.sql(shared)).islands
    assert "union" in str(island)
    apart = """select a.id, b.item from sales a join items b using (k)
        union all select a.k, count(*) from sales a join items b using (k) group by a.k"""
    assert len(check(tables.sql(apart)).islands) == 2
