"""Aggregations of islands: every covered function, distinct over several columns, grouping sets."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from gpujoin import FallbackError, accelerate, explain
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import brief, together
from tests.spark.query.queries import EXCHANGED, check, check_all

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "raise"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

COVERED = {
    "moments": """select k, stddev(id), stddev_pop(price), variance(weight), var_pop(id), stddev(distinct k),
        stddev_samp(id) filter (where s = 'x') from sales group by k""",
    "moments of nothing": "select stddev(price), var_samp(k), stddev_pop(weight), variance(id) from none",
    "moments below": """select max(v), max(w), max(x), max(y), count(*) from (select k, stddev(id) v, var_pop(id) w,
        variance(weight) x, stddev_pop(price) y from sales group by k)""",
    "edges of keys": "select k, first(k), last(k), any_value(k), first(k) ignore nulls from sales group by k",
    "edges filtered": """select first(id) filter (where id = 3), last(s, true) filter (where id = 5),
        first(id) filter (where id = 30), last(id) filter (where id = 4) from sales""",
    "logic": "select k, bool_or(flag), bool_and(flag), every(flag), any(flag), some(flag) from sales group by k",
    "distinct of several": """select count(distinct k), count(distinct s), sum(distinct price), avg(distinct id),
        count(*), sum(price), min(day), max(s), count_if(flag), stddev(id) from sales""",
    "distinct of nothing": "select count(distinct id), sum(price), sum(distinct price), avg(price) from none",
    "distinct constants of nothing": "select count(distinct 1), sum(distinct 5), sum(k) from sales where id > 99",
    "rows of a union": "select count(*) from (select k from sales union all select item from items)",
    "rows of a product": "select count(*) from sales a cross join items b",
    "distinct with filters": """select k, count(distinct s), count(distinct day, weight),
        sum(price) filter (where flag), sum(distinct price) filter (where id > 2) from sales group by k""",
    "distinct of expressions": "select k, sum(distinct id % 3), count(*) from sales group by k",
    "distinct above a join": """select a.k, count(distinct b.s), count(distinct b.item) from sales a
        left join items b on a.k = b.k group by a.k""",
    "distinct beside others": """select k, count(distinct s), sum(id), sum(price), avg(price), avg(weight), min(day),
        max_by(day, id), bit_or(id), count(flag), count(*) filter (where flag), first(k) from sales group by k""",
    "distinct decimals": "select k, sum(distinct price), sum(id), count(*) from sales group by k",
    "averages of distinct decimals": "select k, avg(distinct price) from sales group by k",
    "distinct beside others of nothing": "select count(distinct s), sum(price), avg(id), count(*), max(day) from none",
    "distinct below others": """select max(n), sum(m), min(a) from (select k, count(distinct s) n, sum(price) m,
        avg(id) a from sales group by k)""",
    "distinct joined": """select a.k, a.n, b.item from (select k, count(distinct s, day) n from sales group by k) a
        join items b on a.k = b.k""",
    "distinct below": "select k, count(*) from (select distinct k, s from sales) group by k",
    "rollup": "select k, s, sum(price), count(*) from sales group by rollup(k, s)",
    "cube": "select k, s, sum(price), grouping(k), grouping_id() from sales group by cube(k, s)",
    "rollup of keys alone": "select k, s from sales group by rollup(k, s)",
    "a key of a rollup": "select distinct k from (select k, s, count(*) from sales group by rollup(k, s))",
    "groups of grouping sets": """
        select k, max(id) from (select k, id from sales group by grouping sets ((k, id), (id))) group by k
    """,
    "grouping sets": "select k, s, sum(price) from sales group by grouping sets ((k), (s), ())",
    "bits": """select k, bit_and(id), bit_or(id), bit_xor(cast(id as smallint)), bit_xor(id) filter (where flag)
        from sales group by k""",
    "bits of nothing": "select bit_and(id), bit_or(id), bit_xor(k) from none",
    "rows of extremes": """select k, max_by(s, id), min_by(price, id), max_by(id, id) filter (where s = 'x'),
        min_by(day, cast(id as double)) from sales group by k""",
    "rows of extremes of nothing": "select max_by(s, id), min_by(price, s) from none",
    "rows of extremes below": """select max(v), min(w), max(b) from
        (select k, max_by(s, id) v, min_by(price, id) w, bit_or(id) b from sales group by k)""",
    "regressions": "select regr_count(id, k), regr_avgx(id, k), regr_avgy(id, k) from sales",
    "percentiles": """select k, median(id), percentile(price, 0.3), percentile(id % 3, 0.9) filter (where flag),
        percentile_cont(0.25) within group (order by price), count(*) from sales group by k""",
    "several percentages": """select k, percentile(price, array(0.1, 0.5)), percentile(id, array(1.0)),
        percentile_disc(0.5) within group (order by price desc),
        percentile_cont(array(0.25, 0.5)) within group (order by id desc) from sales group by k""",
    "modes": """select k, mode(s, true), mode(price, true) filter (where flag), mode() within group (order by day desc),
        mode(flag, true), count(*) from sales group by k""",
    "modes below": "select max(v), count(*) from (select k, mode(s, true) v from sales group by k)",
    "joined texts": """select k, listagg(s, ',') within group (order by id), listagg(s) within group (order by s desc),
        string_agg(id, ' | ') within group (order by price nulls last, day desc, id), listagg(s, ',') filter
        (where flag), listagg(cast(s as binary), X'00') within group (order by id desc) from sales where
        id < 9 and flag is not null group by k""",
    "sums that try": """select k, try_sum(id), try_sum(id + 9223372036854775790), try_sum(price), try_avg(price),
        try_avg(id), try_sum(weight), try_sum(cast(price as decimal(38,2)) * 10000000000000000000000000000)
        from sales group by k""",
    "sums that try, of nothing": "select try_sum(id), try_sum(price), try_avg(price) from none",
    "sums that try, below": """select max(v), min(w), max(x) from (select k, try_sum(id + 9223372036854775790) v,
        try_sum(price) w, try_avg(cast(price as decimal(20,2))) x from sales group by k)""",
    "estimates": """select k, approx_count_distinct(s), count(*), sum(price), max(day), avg(id), first(k)
        from sales group by k""",
    "estimates of types": "select approx_count_distinct(weight, 0.1), max(k) from sales",
    "estimates filtered": """select approx_count_distinct(price) filter (where flag), count(*) filter (where not flag)
        from sales""",
    "estimates of nothing": "select approx_count_distinct(id), count(*), sum(price) from none",
    "percentiles below": """select max(v), min(w), count(*) from
        (select s, median(id) v, percentile(weight, 1) w from sales group by s)""",
    "root": "select max(sqrt(abs(id))), count(*) from sales where sqrt(price) > 1",
}


@pytest.mark.parametrize(
    "names",
    together(
        COVERED, "distinct with filters", "distinct beside others", "groups of grouping sets", "joined texts",
        "sums that try, below",
    ),
)  # fmt: skip
def test_aggregations_run_whole(tables: SparkSession, names: tuple[str, ...]) -> None:
    # Before 4.3 Spark interpolates percentiles in other steps.
    taken = [name for name in names if "percent" not in name or tables.version >= "4.3"]
    assert all(found.islands for found in check_all({name: tables.sql(COVERED[name]) for name in taken}).values())


@pytest.mark.parametrize(
    "name",
    brief(
        (
            "moments", "moments of nothing", "edges filtered", "distinct with filters", "bits", "rows of extremes",
            "sums that try", "sums that try, of nothing", "estimates", "estimates of types", "estimates filtered",
        ),
        "rows of extremes",
    ),
)  # fmt: skip
def test_partial_results_of_several_tasks_merge(tables: SparkSession, name: str) -> None:
    tables.conf.set("spark.gpujoin.scan.oneTaskBytes", "1")
    tables.conf.set("spark.gpujoin.scan.taskBytes", "1")
    found = check(tables.sql(COVERED[name]))
    assert found.islands


HIGHER_MOMENTS = {
    "by key": """select k, skewness(id), kurtosis(price), skewness(weight) filter (where flag), covar_pop(id, k),
        covar_samp(price, id), corr(id, price), skewness(1.1D), kurtosis(0.1D) from sales group by k""",
    "of nothing": "select skewness(id), kurtosis(id), corr(id, k), covar_samp(id, k), regr_r2(id, k) from none",
    "regressions": """select s, regr_sxx(price, id), regr_syy(price, id), regr_sxy(price, id), regr_slope(price, id),
        regr_intercept(price, id), regr_r2(price, id), regr_slope(id, price) filter (where flag), regr_r2(id, 7)
        from sales group by s""",
    "regressions below": """select max(v), min(w), max(x), max(y) from (select s, regr_sxx(price, id) v,
        regr_slope(id, price) w, regr_intercept(id, price) x, regr_sxy(id, price) y from sales group by s)""",
    "below": """select max(v), min(w), max(x), max(y) from (select k, skewness(id) v, kurtosis(price) w,
        covar_pop(id, price) x, covar_samp(weight, id) y from sales group by k)""",
}


@pytest.mark.parametrize("task_bytes", brief(("1", "1000000"), "1"))
@pytest.mark.parametrize("name", brief(HIGHER_MOMENTS, "regressions below"))
def test_higher_moments(tables: SparkSession, name: str, task_bytes: str) -> None:
    """Their last digits depend on the order of rows, in Spark too."""
    if "regressions" in name and tables.version < "4.3":
        pytest.skip("Spark takes another variance")
    for setting in ("oneTaskBytes", "taskBytes"):
        tables.conf.set(f"spark.gpujoin.scan.{setting}", task_bytes)
    frame = tables.sql(HIGHER_MOMENTS[name])
    accelerated = accelerate(frame)
    assert explain(accelerated).islands
    rows, expected = (sorted(map(tuple, each.collect()), key=repr) for each in (accelerated, frame))
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        for value, other in zip(row, wanted, strict=True):
            assert value == other or value == pytest.approx(other, rel=1e-9, nan_ok=True)


LISTS = {
    "types": """select k, collect_list(id), collect_set(s), collect_list(price), collect_set(day), collect_list(flag),
        array_agg(weight), collect_list(id) filter (where flag), count(*) from sales group by k""",
    "no keys": "select collect_list(id), collect_set(k) from sales",
    "of a join": """select a.k, collect_list(b.item), collect_set(a.s) from sales a join items b on a.k = b.k
        group by a.k""",
    "distinct": "select k, collect_list(distinct s), count(distinct s) from sales group by k",
    "below": """select b.item, a.ids from (select k, collect_list(id) ids from sales group by k) a
        join items b on a.k = b.k""",
    "nothing": "select k, collect_list(id) from none group by k",
}


@pytest.mark.parametrize(
    "exchanged", [pytest.param(False, marks=pytest.mark.extra), True], ids=["one task", "exchanged"]
)
@pytest.mark.parametrize("name", brief(LISTS, "types", "below"))
def test_lists(tables: SparkSession, name: str, exchanged: bool) -> None:
    """Their order is as little said as in Spark."""
    if exchanged:
        if name == "no keys":
            pytest.skip("several tasks leave the only group to Spark")
        for key, value in EXCHANGED.items():
            tables.conf.set(key, value)
    frame = tables.sql(LISTS[name])
    accelerated = rewrite(frame).frame
    assert explain(accelerated).islands
    assert "Aggregate" not in accelerated._jdf.queryExecution().optimizedPlan().toString()
    assert accelerated.schema == frame.schema
    assert in_order(accelerated) == in_order(frame)


def in_order(frame: DataFrame) -> list[str]:
    """The rows as text, with the values of lists in order."""
    rows = [[sorted(map(str, v)) if isinstance(v, list) else v for v in row] for row in frame.collect()]
    return sorted(map(str, rows))


def test_rows_of_first_stay_together(tables: SparkSession) -> None:
    found = accelerate(tables.table("sales").dropDuplicates(["k"]))
    rows = set(map(tuple, tables.table("sales").collect()))
    kept = [tuple(row) for row in found.collect()]
    assert {str(row) for row in kept} <= {str(row) for row in rows}
    assert len(kept) == tables.table("sales").select("k").distinct().count()


@pytest.mark.parametrize(
    "query",
    [
        "select percentile(id, 0.5, k) from sales",
        "select approx_count_distinct(s), approx_count_distinct(k) from sales",
        "select approx_percentile(id, 0.5) from sales",
        "select mode(weight) from sales",
        "select max(try_url_decode(s)), count(*) from sales",
        "select collect_set(weight) from sales",
        "select s, count(distinct k), collect_list(id) from sales group by s",
    ],
)
def test_functions_that_are_not_covered_are_named(tables: SparkSession, query: str) -> None:
    named = (
        r"with frequencies|several columns|approx_percentile|mode|url_decode|collect_set"
        r"|collect_list\(id\)|before 4\.3"
    )
    with pytest.raises(FallbackError, match=named):
        accelerate(tables.sql(query))


def test_discrete_percentiles_of_earlier_versions_are_left_to_spark(tables: SparkSession) -> None:
    tables.conf.set("spark.sql.legacy.percentileDiscCalculation", "true")
    with pytest.raises(FallbackError, match=r"percentileDiscCalculation|before 4\.3"):
        accelerate(tables.sql("select k, percentile_disc(0.4) within group (order by id) from sales group by k"))
