"""Windows of islands: Spark's rows, and what stays with Spark."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pyspark.sql import DataFrame, SparkSession

from gpujoin import FallbackError, accelerate
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import together
from tests.spark.query.queries import EXCHANGED, FORCED, check, check_all

pytestmark = pytest.mark.spark
cpu = pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])

COVERED = {
    "ranks": """select id, row_number() over (partition by k order by id) a, rank() over (partition by k order by s) b,
        dense_rank() over (order by s desc) c, percent_rank() over (partition by k order by price) d,
        cume_dist() over (partition by s order by weight) e, ntile(2) over (partition by k order by id desc) f
        from sales""",
    "nulls in orders": """select id, row_number() over (order by s nulls last, id) a,
        row_number() over (order by weight desc nulls first, id) b, rank() over (order by flag desc nulls last) c,
        rank() over (order by day desc) d, dense_rank() over (order by price nulls last) e from sales""",
    "other rows": """select id, lag(s) over (partition by k order by id) a, lead(price, 2) over (order by id) b,
        lag(weight, 1, -5.5D) over (partition by flag order by id) c, lead(day, -1) over (order by id) d,
        lag(s, 1) ignore nulls over (order by id) e, lead(k, 2, id) over (order by id) f,
        lag(price, 3) ignore nulls over (order by id) g from sales""",
    "whole partitions": """select id, sum(price) over (partition by k) a, avg(id) over (partition by s) b,
        count(*) over (partition by flag) c, max(s) over (partition by k) d, min(weight) over () e,
        round(stddev(id) over (partition by k), 9) f, count(s) over (partition by k) g,
        bit_or(id) over (partition by k) h, avg(cast(price as decimal(20,2))) over (partition by k) i,
        sum(id) over (partition by k) j,
        max_by(s, id) over (partition by flag) l, bool_or(flag) over (partition by s) m from sales""",
    "running": """select id, sum(price) over (partition by k order by id) a, sum(id) over (order by s) b,
        count(*) over (partition by k order by day) c, max(weight) over (order by id) d,
        min(s) over (partition by k order by id) e, avg(id) over (order by id) f,
        sum(cast(price as decimal(38,2))) over (order by id) g from sales""",
    "rows": """select id, sum(price) over (order by id rows between 2 preceding and 1 following) a,
        count(*) over (partition by k order by id rows between current row and unbounded following) b,
        max(s) over (order by id rows between 3 preceding and 1 preceding) c,
        first(s) over (order by id rows between 1 following and 2 following) d,
        avg(weight) over (partition by k order by id rows 2 preceding) e,
        min(day) over (order by id rows between unbounded preceding and 1 following) f from sales""",
    "rows of other functions": """select id, bit_or(id) over (order by id rows 2 preceding) a,
        max_by(s, price) over (partition by k order by id rows between 1 preceding and 1 following) b,
        round(stddev(id) over (order by id desc rows between 3 preceding and 1 preceding), 9) c,
        round(var_pop(k) over (order by id rows between 1 following and 3 following), 9) d,
        bool_and(flag) filter (where id > 2) over (order by id rows between 1 preceding and 2 following) e,
        bit_xor(k) over (partition by s order by id rows between 9 following and 12 following) f,
        mode(s, true) over (order by id rows between 4 preceding and current row) g from sales""",
    "equal orderings": """select id, max_by(id, s) over (order by id rows between 1 preceding and current row) a,
        min_by(id, s) over (order by id rows between 1 preceding and current row) b,
        max_by(id, flag) over (order by id desc rows between 2 preceding and 2 following) c,
        min_by(id, flag) over (partition by s order by id rows between current row and 5 following) d,
        max_by(id, weight) filter (where id <> 8) over (order by id rows between 7 preceding and 1 preceding) e,
        min_by(id, weight + 0.0D) over (order by id rows between unbounded preceding and unbounded following) f,
        max_by(id, k) over (partition by flag order by id rows between unbounded preceding and unbounded following) g,
        min_by(s, price = price) over (order by id rows between 9 preceding and 9 following) h,
        max_by(s, 1) over (order by id rows between 3 preceding and 1 preceding) i from sales""",
    "first and last": """select id, first_value(s) over (partition by k order by id) a,
        last_value(s) over (partition by k order by id) b, first_value(s) ignore nulls over (order by id) c,
        last_value(price, true) over (order by id rows between 2 preceding and current row) d,
        nth_value(s, 2) over (order by id) e, nth_value(s, 2) ignore nulls over (order by id) f,
        any_value(k) over (partition by k) g from sales""",
    "distances": """select id, sum(id) over (partition by k order by id range between 2 preceding and current row) a,
        count(*) over (order by weight range between 0.5D preceding and 1 following) b,
        max(s) over (order by price desc nulls first range between 2.25 preceding and unbounded following) c,
        min(id) over (order by day range between interval 30 days preceding and current row) d,
        first(id) over (order by cast(day as timestamp_ntz), id rows between 1 preceding and current row) e,
        sum(id) over (order by cast(day as timestamp) range between interval 90 days preceding and current row) f,
        count(s) over (order by cast(k as tinyint) desc nulls last
        range between 1 following and 3 following) g from sales""",
    "filters": """select id, count(*) filter (where flag) over (partition by k) a,
        sum(price) filter (where id > 2) over (partition by k order by id) b from sales""",
    "computed keys": """select id, row_number() over (partition by id % 2, upper(s) order by abs(price), id) a,
        sum(id + 1) over (partition by weight) b, rank() over (partition by weight order by -id) c from sales""",
    "first rows": """select * from (select id, k, s, row_number() over (partition by k order by id desc) n from sales)
        where n <= 2""",
    "ranked": "select * from (select id, s, rank() over (order by s) n from sales) where n < 4",
    "above a join": """select a.id, b.item, sum(b.cost) over (partition by a.k order by b.item, a.id) x
        from sales a join items b on a.k = b.k""",
    "below a join": """select a.id, a.n, b.item from (select id, k, row_number() over (partition by k order by id) n
        from sales) a join items b on a.k = b.k where a.n = 1""",
    "below an aggregation": """select k, sum(n), max(x), count(*) from (select k, rank() over (partition by k
        order by s) n, lag(id) over (partition by k order by id) x from sales) group by k""",
    "of aggregates": """select k, sum(price), rank() over (order by sum(price) desc) a,
        sum(sum(price)) over (partition by k) b, sum(price) * 100 / sum(sum(price)) over () c,
        avg(sum(price)) over (partition by k % 2) d from sales group by k""",
    "of grouping sets": """select k, s, sum(id), grouping(k) + grouping(s) level, rank() over (partition by
        grouping(k) + grouping(s), case when grouping(s) = 0 then k end order by sum(id) desc) n
        from sales group by rollup(k, s)""",
    "running totals": """select s, day, sum(sum(price)) over (partition by s order by day
        rows between unbounded preceding and current row) x from sales group by s, day""",
    "sessions": """select k, session, count(*), min(id), max(id) from (select *,
        sum(new) over (partition by k order by id) session from (select *, case when id - lag(id)
        over (partition by k order by id) > 2 then 1 else 0 end new from sales)) group by k, session""",
    "no rows": "select id, row_number() over (partition by k order by id) a, sum(id) over () b from none",
    "qualified": "select id, k from sales qualify row_number() over (partition by k order by id) = 1",
}
FULL_JOIN = """select * from (select k, day, sum(price) over (partition by k order by day) x from sales) a
    full join (select k, count(*) over (partition by k) y, item from items) b on a.k = b.k"""


def frames(spark: SparkSession, names: Iterable[str]) -> dict[str, DataFrame]:
    """Give the queries that this Spark does not refuse: before 4.3 window functions have no filters."""
    known = (name for name in names if "filter (where" not in COVERED[name] or spark.version >= "4.3")
    return {name: spark.sql(COVERED[name]) for name in known}


@cpu
@pytest.mark.parametrize(
    "names",
    together(
        COVERED, "nulls in orders", "other rows", "rows", "first and last", "distances", "computed keys",
        "of grouping sets",
    ),
)  # fmt: skip
def test_windows_run_whole(tables: SparkSession, names: tuple[str, ...]) -> None:
    for explanation in check_all(frames(tables, names), empty=["no rows"]).values():
        (island,) = explanation.islands
        assert "window" in str(island)
        assert not explanation.reasons


@pytest.mark.parametrize("spark", [FORCED | {"spark.sql.ansi.enabled": "false"}], indirect=True, ids=["cpu"])
@pytest.mark.parametrize("names", together(COVERED, "running", "of aggregates"))
def test_windows_that_are_not_ansi(tables: SparkSession, names: tuple[str, ...]) -> None:
    assert all(found.islands for found in check_all(frames(tables, names), empty=["no rows"]).values())


@pytest.mark.parametrize("spark", [EXCHANGED], indirect=True, ids=["cpu"])
def test_partitions_are_exchanged(tables: SparkSession) -> None:
    names = ("first rows", "sessions", "below a join")
    for explanation in check_all(frames(tables, names)).values():
        assert "exchange" in str(explanation)
        assert "window" in str(explanation)


@pytest.mark.parametrize("spark", [EXCHANGED], indirect=True, ids=["cpu"])
def test_a_join_by_the_partition_needs_no_other_exchange(tables: SparkSession) -> None:
    explanation = check(tables.sql(FULL_JOIN))
    assert "2 inputs are exchanged by key" in str(explanation)


LEFT = {
    "months": (
        "select sum(id) over (order by day range between interval 1 month preceding and current row) from sales",
        "a range of interval month around date",
    ),
    "long decimals": (
        "select sum(id) over (order by cast(k as decimal(20,2)) range between 1 preceding and 1 following) from sales",
        r"ranges around decimal\(20,2\)",
    ),
    "lists": ("select collect_list(id) over (partition by k) from sales", "lists"),
    "moments over frames": ("select stddev(id) over (order by id) from sales", "whole partitions"),
    "correlations": ("select corr(id, k) over () from sales", "equal values"),
    "computed defaults": ("select lag(id, 1, k + id) over (order by id) from sales", ""),
}


@cpu
@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_spark_is_said(tables: SparkSession, name: str) -> None:
    text, why = LEFT[name]
    if name == "computed defaults":
        assert check(tables.sql(text)).islands  # Spark computes the default in a column of its own
        return
    with pytest.raises(FallbackError, match=why):
        rewrite(tables.sql(text))


@cpu
def test_errors_are_those_of_spark(tables: SparkSession) -> None:
    text = f"select sum(id + {2**63 - 9}) over (order by id) from sales"
    tables.conf.set("spark.gpujoin.fallback", "warn")
    with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
        tables.sql(text).collect()
    with pytest.raises(Exception, match="overflow"):
        accelerate(tables.sql(text)).collect()
    tables.conf.set("spark.sql.ansi.enabled", "false")
    assert check(tables.sql(text)).islands


@cpu
def test_explain_names_windows(tables: SparkSession) -> None:
    explanation = check(tables.sql("select id, rank() over (partition by k order by s desc, id) from sales"))
    assert "window rank() by k ordered by s desc, id" in str(explanation)


LIMITED = {
    "row_number": ("row_number() over (partition by k order by id desc)", "n <= 2", 2),
    "rank": ("rank() over (partition by k order by s)", "n < 4", 3),
    "dense_rank": ("dense_rank() over (order by s desc, price)", "n = 1", 1),
    "one beside a sum": (
        """sum(id) over (partition by k order by id rows unbounded preceding) x,
        row_number() over (partition by k order by id)""", "n <= 3", 3,
    ),
}  # fmt: skip


@cpu
def test_filters_by_rank_limit_the_rows_that_are_held(tables: SparkSession) -> None:
    text = "select * from (select id, k, s, {} n from sales) where {}"
    for name, found in check_all({name: tables.sql(text.format(*case)) for name, case in LIMITED.items()}).items():
        function = name.split(maxsplit=1)[0].replace("one", "row_number")
        assert f", of each partition those up to {function} {LIMITED[name][2]}" in str(found)


@cpu
def test_functions_of_whole_partitions_need_all_rows(tables: SparkSession) -> None:
    rows = "rows between unbounded preceding and unbounded following"
    calls = f"count(*) over (partition by k order by id {rows}) c, row_number() over (partition by k order by id) n"
    explanation = check(tables.sql(f"select * from (select id, k, {calls} from sales) where n <= 2"))
    assert "of each partition" not in str(explanation)
