"""Intervals of days to seconds in islands, over many rows of special values, against Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from gpujoin.report.explanation import Explanation
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import together
from tests.spark.query.queries import EXCHANGED, FORCED, check_all

ZONED = {"spark.sql.session.timeZone": "America/New_York"}
WAYS = {
    "ansi": FORCED | ZONED | {"spark.sql.ansi.enabled": "true"},
    "legacy": FORCED | ZONED | {"spark.sql.ansi.enabled": "false"},
}
pytestmark = [
    pytest.mark.spark,
    pytest.mark.parametrize(
        "spark",
        [pytest.param(WAYS["ansi"], id="ansi"), pytest.param(WAYS["legacy"], id="legacy", marks=pytest.mark.extra)],
        indirect=True,
    ),
]

SMALL = "make_dt_interval(y, i % 1000, h % 60, m)"
COMPUTED = {
    "differences": """t - timestamp'2024-03-10 02:30:00', timestamp'1969-12-31 23:59:59.999999' - t,
        u - timestamp_ntz'2024-05-05 00:00:00', a - date'2024-02-29', date'1500-01-01' - a, t - t""",
    "made": f"{SMALL}, make_dt_interval(y), make_dt_interval(0, 0, 0, n % 1000), interval 2 hours",
    "arithmetic": f"""{SMALL} + interval 1 day, {SMALL} - make_dt_interval(h), -{SMALL}, abs({SMALL}),
        {SMALL} * y, (a - date'2024-02-29') * 3""",
    "parts": f"""extract(day from {SMALL}), extract(hour from {SMALL}), extract(minute from {SMALL}),
        extract(second from {SMALL}), extract(day from t - timestamp'2000-01-01 00:00:00'),
        extract(second from timestamp'2000-01-01 00:00:00' - t)""",
    "shifted": """timestamp'2024-03-09 12:00:00' + make_dt_interval(y, h % 100, 3, 0.5),
        timestamp'2024-11-04 12:00:00' - make_dt_interval(y % 4, h % 100),
        timestamp_ntz'2024-03-09 12:00:00' + make_dt_interval(y), date'2024-03-09' + make_dt_interval(y, h % 9)""",
    "compared": f"""{SMALL} > interval '3 10:00:00' day to second, {SMALL} <=> make_dt_interval(y),
        t - timestamp'2024-01-01 00:00:00' between interval 0 days and interval 400 days,
        {SMALL} in (interval 0 days, interval 1 day), {SMALL} is null""",
    "chosen": f"""if(o, {SMALL}, null), coalesce({SMALL}, interval 1 minute), greatest({SMALL}, interval 1 day),
        least({SMALL}, interval -1 day), nullif({SMALL}, interval 0 days), named_struct('x', {SMALL})""",
}
AGGREGATED = {
    "totals": f"select g, sum({SMALL}), avg({SMALL}), avg(-{SMALL}), count({SMALL}) from bulk group by g",
    "all": f"select sum({SMALL}), avg({SMALL}), min({SMALL}), max(t - timestamp'2000-01-01 00:00:00') from bulk",
    "of nothing": f"select sum({SMALL}), avg({SMALL}) from bulk where id < 0",
    "extremes": "select g, min(a - date'2024-01-01'), max_by(a, a - date'2024-01-01'), max(u - u) from bulk group by g",
    "groups": "select a - date'2024-01-01' d, count(*), sum(y) from bulk group by a - date'2024-01-01'",
    "filter": "select g, count(*) from bulk where t - timestamp'2000-01-01 00:00:00' > interval 9000 days group by g",
    "distinct": f"select g, count(distinct {SMALL}), count(distinct a - date'2024-01-01') from bulk group by g",
    "below a join": f"""select b.k, q.d from (select g, sum({SMALL}) d from bulk group by g) q
        join items b on q.g = b.k""",
    "windows": f"""select id, sum({SMALL}) over (partition by g order by id),
        lag({SMALL}) over (partition by g order by id), rank() over (partition by g order by {SMALL} desc) from bulk""",
}


def read(found: Explanation) -> list[str]:
    (island,) = found.islands
    return [line for line in island.tree if "rows from Spark" in line]


@pytest.mark.parametrize("names", together(COMPUTED, "differences", "compared"))
def test_functions_of_intervals(bulk: None, spark: SparkSession, names: tuple[str, ...]) -> None:
    joined = "from bulk join (select item from items) on id % 7 = item div 10 - 1"
    for found in check_all({name: spark.sql(f"select id, {COMPUTED[name]} {joined}") for name in names}).values():
        assert not read(found)
        assert found.islands[0].tree[0].startswith("project"), found.islands[0].tree


@pytest.mark.parametrize("names", together(AGGREGATED, "totals", "of nothing", "extremes", "windows"))
def test_aggregates_of_intervals(bulk: None, spark: SparkSession, names: tuple[str, ...]) -> None:
    for found in check_all({name: spark.sql(AGGREGATED[name]) for name in names}, empty=["of nothing"]).values():
        assert not read(found)


def test_intervals_are_exchanged(bulk: None, spark: SparkSession) -> None:
    for key, value in EXCHANGED.items():
        spark.conf.set(key, value)
    for found in check_all({name: spark.sql(AGGREGATED[name]) for name in ("totals", "groups")}).values():
        assert found.islands[0].tasks > 1


LEFT = {
    "months": ("max(a + make_ym_interval(0, y))", "interval"),
    "text": ("max(cast(t - t as string))", "intervals"),
    "half an interval": (f"max({SMALL} * 0.5)", "not whole"),
    "divided": (f"max({SMALL} / 2)", "not computed"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_spark_has_a_reason(bulk: None, spark: SparkSession, name: str) -> None:
    text, reason = LEFT[name]
    spark.conf.set("spark.gpujoin.fallback", "silent")
    assert reason in str(rewrite(spark.sql(f"select g, {text} from bulk group by g")).explanation)


def test_an_overflow_is_an_error_in_every_mode(bulk: None, spark: SparkSession) -> None:
    frame = spark.sql("select g, sum(make_dt_interval(100000000)) from bulk group by g having count(*) > 1")
    rewritten = rewrite(frame)
    assert rewritten.explanation.islands
    for each in (frame, rewritten.frame):
        with pytest.raises(Exception, match=r"(?i)overflow|64 bits"):
            each.toArrow()
