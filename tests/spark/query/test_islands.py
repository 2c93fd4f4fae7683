"""Islands: parts of a query that workers run from the Parquet files on; answers and paths."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gpujoin import accelerate, disable, enable, explain
from gpujoin.report.metrics import IslandReport, metrics
from gpujoin.spark.query import planner
from gpujoin.spark.query.accelerate import Purpose, rewrite
from gpujoin.spark.query.choice import Outlay
from gpujoin.testing import assert_same_rows
from tests.brief import brief, together
from tests.spark.query.queries import EXCHANGED, check, check_all

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "raise"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

WHOLE = {
    "global": "select count(*), sum(price), avg(price), min(day), max(s), sum(k), avg(weight), count(s) from sales",
    "groups": "select k, s, count(*) c, sum(price), avg(price), min(weight), max(weight) from sales group by k, s",
    "nothing left": "select count(*), sum(price), avg(k), max(s) from sales where k > 1000",
    "empty file": "select count(*), sum(price), avg(price) from none",
    "empty groups": "select k, sum(price) from none group by k",
    "wide decimal": "select sum(price * price * price * price) x, avg(price * price * price) y from sales where k < 9",
    "float keys": "select weight, count(*) from sales group by weight",
    "expression key": "select year(day) y, count(*) from sales group by year(day)",
    "result expression": "select k + 1, 100 * sum(price) / count(*) from sales group by k having sum(price) > 1",
    "filtered aggregate": "select count(*) filter (where k = 1), sum(price) filter (where s = 'x') from sales",
    "distinct": "select distinct k, s from sales",
    "count distinct": "select s, count(distinct k), sum(distinct k) from sales group by s",
    "distinct beside others": "select s, count(distinct k), sum(price), count(*) from sales group by s",
    "join and aggregate": "select b.s, sum(a.price), count(*) from sales a join items b on a.k = b.k group by b.s",
    "left join": "select a.id, b.item from sales a left join items b on a.k = b.k and b.cost > 1",
    "full join": "select a.id, b.item from sales a full join items b on a.k = b.k and a.s = b.s",
    "null safe": "select a.id, b.item from sales a join items b on a.s <=> b.s",
    "float join": "select a.id, b.id from sales a join sales b on a.weight = b.weight",
    "condition": "select a.id, b.item from sales a join items b on a.k = b.k and a.price > b.cost",
    "semi": "select id from sales a where exists (select 1 from items b where b.k = a.k and b.s <> a.s)",
    "anti": "select id from sales a where not exists (select 1 from items b where b.k = a.k and b.s <> a.s)",
    "not in": "select id from sales where k not in (select k from items where k is not null)",
    "not in null": "select count(*) from sales where k not in (select k from items)",
    "not in columns": "select id from sales where (k, s) not in (select k, s from items where item < 40)",
    "not in correlated": """select id from sales a where (k, s) not in
        (select k, s from items b where b.cost = a.price)""",
    "not in null safe": """select id from sales a where (id, k) not in
        (select item, k from items b where b.cost <=> a.price)""",
    "not in and condition": "select id from sales a where k not in (select k from items b where b.cost > a.price)",
    "existence": """select id, k in (select k from items where k is not null) e from sales a
        where price > 0 or s in (select s from items)""",
    "in or": "select id from sales where k in (select k from items) or price > 5",
    "aggregate below": """select id from sales a join
        (select k, avg(cast(cost as decimal(20, 3))) c, count(*) n from items group by k) b
        on a.k = b.k where a.price > b.c""",
    "short average below": """select id from sales a join
        (select k, avg(cast(cost as decimal(7, 2))) c from items group by k) b on a.k = b.k where a.price > b.c""",
    "correlated": "select id from sales a where price > (select 0.5 * sum(cost) from items b where b.k = a.k)",
    "aggregate twice": """select n, count(*) from
        (select k, count(item) n from sales left join items using (k) group by k) group by n""",
    "scalar subquery": "select count(*) from sales where price > (select avg(cost) from items)",
    "empty scalar subquery": "select count(*) from sales where price > (select cost from items where item < 0)",
    "subquery in having": """select k, sum(price) from sales group by k
        having sum(price) > (select min(cost) from items)""",
    "union": "select s, count(*) from (select s from sales union all select s from items) group by s",
    "self join": "select a.id, b.id from sales a join sales b on a.k = b.k and a.id < b.id",
    "cte": "with c as (select k, sum(cost) t from items group by k) select * from c x join c y on x.t = y.t",
    "distinct constants of nothing": "select count(distinct 1), count(*) from sales where k < 0",
    "named twice": "select a.k, a.k, a.id + b.item s, a.k from sales a join items b on a.k = b.k",
    "computed and named twice": "select w, w, v * 3 z from (select k + 1 w, id v, k from sales) join items using (k)",
    "subquery in a projection": "select k, (select max(cost) from items b where b.k = a.k) m from sales a",
    "lateral": "select a.id, t.c from sales a, lateral (select sum(b.cost) c from items b where b.k = a.k) t",
    "case": "select sum(case when s = 'x' then price else 0 end), sum(if(flag, 1, 0)) from sales",
    "text": """select count(*) from sales where s like '%x%' or s in ('ü', 'y%z') or substring(s, 1, 1) = 'y'
        or s like 'y\\\\%_' escape '\\\\'""",
    "in set": "select id, item from sales join items using (k) where item in (10,20,30,40,50,60,70,80,90,100,110,120)",
    "dates": """select count(*) from sales where day between date'2024-01-01' and date'2024-03-01'
        and month(day) < 3 and day + 1 > date'2024-01-02'""",
    "functions of dates": """select last_day(day), weekday(day), dayofweek(day), count(*) from sales
        group by last_day(day), weekday(day), dayofweek(day)""",
    "functions of text": """select s, sum(instr(s, 'z')), sum(octet_length(s)), max(reverse(s)), min(ltrim(rtrim(s)))
        from sales group by s""",
    "more functions of text": """select upper(s), sum(length(lpad(replace(s, 'x', 'yy'), 5, 'ab'))),
        min(concat_ws('-', s, translate(s, 'xy', 'ab'), k)), max(split_part(s, '%', 2)), max(initcap(lower(s))),
        max(substring_index(s, 'z', -1)), sum(locate('z', s)), max(regexp_extract(s, '(y)(.)', 2)),
        max(regexp_replace(s, '[x-z]', '<$0>')), count(btrim(repeat(s, k))), min(left(s, 1) || right(s, 1)),
        max(rpad(s, k, 'é')), max(ascii(s)), max(chr(id + 64)), max(position('z' in s)),
        max(trim(both 'x' from s)), max(s ilike 'X%'), max(bit_length(s))
        from sales group by upper(s)""",
    "functions of bits and hashes": """select pmod(hash(s, k, price), 4), max(xxhash64(day, weight, flag)), max(md5(s)),
        max(sha1(s)), max(sha2(s, 256)), max(crc32(s)), max(hex(id)), sum((k & 3) | shiftleft(id, 2)),
        sum(bit_count(k ^ ~id)), max(nanvl(weight, 7)), sum(sign(price)), max(degrees(weight)),
        max(width_bucket(weight, 0, 10, 5)), max(nvl2(s, k, id)), max(nullif(k, 1)), max(if(flag, s, 'n')),
        max(nvl(s, 'none')), max(ifnull(k, 0)), max(radians(weight))
        from sales group by pmod(hash(s, k, price), 4)""",
    "order and limit": """select a.id, sum(b.cost) c from sales a join items b using (k) group by a.id
        order by c desc, a.id limit 3""",
    "window above": """select id, rank() over (partition by k order by c, id) from
        (select a.id, a.k, count(*) c from sales a join items b using (k) group by a.id, a.k)""",
    "cube": "select k, s, count(*) from sales group by k, s union all select k, null, 1 from sales group by k",
}


SHORT = (
    "empty groups", "filtered aggregate", "distinct beside others", "full join", "not in correlated",
    "empty scalar subquery", "cte", "computed and named twice", "short average below", "window above",
)  # fmt: skip
"""Others of them run in the tests below, functions in `test_functions`."""


EMPTY = ("empty groups",)


@pytest.mark.parametrize("names", together(WHOLE, *SHORT))
def test_queries_run_whole(tables: SparkSession, names: tuple[str, ...]) -> None:
    for name, found in check_all({name: tables.sql(WHOLE[name]) for name in names}, empty=EMPTY).items():
        assert found.islands, name
        assert all(join.accelerated and join.backend == "cpu" for join in found.joins), name


REPEATED = {
    "in spark": ("select id, {} a, {} + id b from sales where id < 5", 1),
    "in an island": ("select count(*) from sales where price > {} or weight > {}", 1),
    "of other rows": ("select id, {} a, (select max(cost) from items where k > 0) b from sales where id < 5", 2),
}


@pytest.mark.parametrize(
    ("query", "islands"),
    [pytest.param(*case, id=name, marks=[] if name == "in spark" else pytest.mark.extra)
     for name, case in REPEATED.items()],
)  # fmt: skip
def test_equal_scalar_subqueries_are_computed_once(tables: SparkSession, query: str, islands: int) -> None:
    """Spark runs a subquery that is not in an island once, if the plans that take its place are the same."""
    subquery = "(select max(cost) from items where k = 1)"
    frame = tables.sql(query.format(subquery, subquery))
    check(frame)
    explanation = rewrite(frame, Purpose.EXPLAIN).explanation
    assert sum("aggregate max(cost)" in " ".join(island.tree) for island in explanation.islands) == islands
    rewritten = accelerate(frame)
    rewritten.collect()
    executed = rewritten._jdf.queryExecution().executedPlan().toString()
    if query == REPEATED["in spark"][0]:
        assert "ReusedSubquery" in executed
        assert len(set(re.findall("gpujoin_[0-9a-f]+", executed))) == 1


WITHIN = {
    "of groups": """select k, sum(price) p from sales group by k
        having sum(price) >= (select max(p) / 100 from (select k, sum(price) p from sales group by k))""",
    "of a scan": "select s, count(*) from sales where k >= (select min(k) from items) group by s",
    "of two": """select s, count(*) from sales where price < (select max(cost) from items) and day is not null
        and k > (select count(*) from none) group by s""",
    "the same twice": """select s, count(*) from sales where price > (select max(cost) from items where k = 1)
        or weight > (select max(cost) from items where k = 1) group by s""",
    "in a subquery": """select count(*) from sales where price > (select avg(cost) from items
        where k <= (select max(k) from sales where s = 'x'))""",
    "no columns are read": "select count(*) from sales where (select count(*) from items) > 3",
    "no rows": "select count(*), sum(k) from sales where k > (select max(k) from none)",
    "null or not": "select count(*) from sales where (k > (select max(k) from none)) is null",
    "text": "select k, count(*) from sales where s = (select max(s) from items) group by k",
    "wide decimal": """select k, count(*) from sales
        where price < (select sum(cast(cost as decimal(30, 6))) from items) group by k""",
    "of a join": """select a.id, b.item from sales a left join items b on a.k = b.k
        where coalesce(b.cost, a.price) > (select avg(price) / 1e8 from sales)""",
    "below a join": """select b.item, sum(a.price) from items b left join
        (select k, price from sales where price < (select avg(price) from sales)) a on a.k = b.k group by b.item""",
    "a share": "select k, count(*) from sales where weight / (select max(id) / 7D from sales) >= 0 group by k",
    "expression": "select count(*) from sales where year(day) > 1 + (select min(k) from items) and k is not null",
}


@pytest.mark.parametrize(
    "name",
    brief(
        WITHIN, "in a subquery",
    ),
)  # fmt: skip
def test_subqueries_within_an_island_of_one_task(tables: SparkSession, name: str) -> None:
    """No query of their own is run for them; where inputs are divided among tasks, one is."""
    frame = tables.sql(WITHIN[name])
    found = check(frame)
    assert len(found.islands) == 1
    assert any("(one row: n)" in line for line in found.islands[0].tree)
    assert len(rewrite(frame, Purpose.EXPLAIN).explanation.islands) == 1
    for name, value in EXCHANGED.items():
        tables.conf.set(name, value)
    divided = check(frame)
    assert not any("(one row: n)" in line for line in divided.islands[0].tree)


OUTSIDE = {
    "perhaps no row": "select count(*) from sales where k > (select k from items where item = 10)",
    "groups": "select count(*) from sales where k > (select max(cost) from items group by k having k = 3)",
    "limit": "select count(*) from sales where k > (select max(k) from items limit 0)",
    "a field of two values": """select count(*) from sales where price < (select max(cost) from items)
        and weight < (select sum(item) from items where k = 1)""",
    "in the condition of a join": """select a.id, b.item from sales a join items b on a.k = b.k
        where a.price + b.cost > (select avg(price) / 1e8 from sales)""",
    "in a projection": """select b.item, a.price > (select avg(price) from sales) e from sales a
        join items b on a.k = b.k""",
}


@pytest.mark.parametrize(
    "names", together(OUTSIDE, "perhaps no row", "a field of two values", "in the condition of a join")
)
def test_subqueries_that_stay_queries_of_their_own(tables: SparkSession, names: tuple[str, ...]) -> None:
    for name, found in check_all({name: tables.sql(OUTSIDE[name]) for name in names}).items():
        assert not any("(one row: n)" in line for island in found.islands for line in island.tree), name


def test_a_subquery_fails_as_in_spark(tables: SparkSession) -> None:
    """Also where no row is compared with its value."""
    frame = tables.sql("select count(*) from none where k > (select max(1 / (k - 1)) from items)")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        frame.collect()
    with pytest.raises(Exception, match="division by zero"):
        accelerate(frame).collect()


def test_scalar_subqueries_that_spark_makes_one_of_are_constants_of_an_island(tables: SparkSession) -> None:
    """One subquery gives a struct of the values of both, of which expressions take fields; one value is null."""
    frame = tables.sql("""select s, count(*), sum(price) from sales where price > (select avg(cost) from items)
        and weight < (select max(cost) + 1e6 from items) and not coalesce((select max(k) < 0 from none), false)
        and id < coalesce((select max(id) from none), 1e9) group by s""")
    assert "getstructfield" in frame._jdf.queryExecution().optimizedPlan().toJSON().lower()
    found = check(frame)
    assert not any("rows from Spark" in line or "scan none" in line for line in found.islands[0].tree)


def test_a_field_of_a_subquery_whose_other_fields_python_cannot_take_is_left_to_spark(tables: SparkSession) -> None:
    """The condition is; the rest is planned."""
    found = check(
        tables.sql("""select k, count(*) from sales join items using (k)
        where id < (select named_struct('x', max(item), 'm', make_interval(1)) from items).x group by k""")
    )
    assert found.islands


COMPUTED = {
    "rounding": """select round(price, 1), bround(price), ceil(price, 1), floor(price, -1), round(weight, 1),
        round(id, -1), count(*) from sales group by all""",
    "shifts of dates": """select trunc(day, 'month') m, add_months(day, 1), day + interval '2' month,
        next_day(day, 'mon'), weekofyear(day), dayname(day), monthname(day), unix_date(day), date_from_unix_date(id),
        make_date(2024, k, 29 - k), count(*) from sales group by all""",
    "timestamps": """select date_trunc('month', t), to_date(t), hour(t),
        months_between(t, timestamp'2024-02-29 12:00:00'), unix_seconds(t), timestamp_millis(id), unix_timestamp(t),
        from_unixtime(id),
        t + interval '1' day, cast(t as string), date_format(t, 'yyyy-MM'), count(*)
        from (select *, timestamp_seconds(k * 86399 + id) t from sales) group by all""",
    "shifts of timestamps": """select timestampadd(month, k, t), timestampadd(hour, k, t), timestampadd(day, -3, t),
        timestampdiff(day, t, timestamp'2024-02-29 12:00:00'), t + interval '1' month,
        make_timestamp(2024, 2, k, 3, 4, 5.5), extract(second from t), from_utc_timestamp(t, 'Asia/Tokyo'), count(*)
        from (select *, timestamp_seconds(k * 86399 + id) t from sales) group by all""",
    "times as text": """select to_timestamp(cast(t as string)), date_format(t, 'EEE d MMM yyyy h:mm a'),
        to_date(date_format(t, 'dd/MM/yyyy'), 'dd/MM/yyyy'), unix_timestamp(date_format(t, 'yyyyMMdd'), 'yyyyMMdd'),
        try_to_timestamp(s, 'yyyy-MM-dd'), count(*)
        from (select *, timestamp_seconds(k * 86399 + id) t from sales) group by all""",
}


@pytest.mark.parametrize("zone", brief(["UTC", "America/New_York"], "America/New_York"))
@pytest.mark.parametrize("names", together(COMPUTED, "timestamps", "shifts of timestamps"))
def test_functions_are_computed_in_the_island(tables: SparkSession, names: tuple[str, ...], zone: str) -> None:
    tables.conf.set("spark.sql.session.timeZone", zone)
    for found in check_all({name: tables.sql(COMPUTED[name]) for name in names}).values():
        (island,) = found.islands
        assert not any("rows from Spark" in line for line in island.tree), island.tree


@pytest.mark.parametrize(
    ("settings", "by_spark"),
    [
        ({}, False),
        ({"spark.sql.session.timeZone": "Etc/UTC"}, False),
        ({"spark.sql.session.timeZone": "Europe/Berlin"}, False),
        ({"spark.sql.legacy.timeParserPolicy": "LEGACY"}, True),
    ],
    ids=["UTC", "another name of UTC", "moving zone", "patterns of Spark 2"],
)
def test_timestamps_are_written_here_in_all_zones(
    tables: SparkSession, settings: dict[str, str], by_spark: bool
) -> None:
    for key, value in settings.items():
        tables.conf.set(key, value)
    query = "select a.id, b.item from sales a join items b on a.k = b.k and date_format(a.day, 'yyyy') <> b.s"
    (island,) = rewrite(tables.sql(query)).explanation.islands
    assert any("rows from Spark" in line for line in island.tree) is by_spark, island.tree


@pytest.mark.parametrize(
    "name",
    brief(["functions of text", "more functions of text", "functions of bits and hashes"], "more functions of text"),
)
def test_functions_are_computed_from_files(tables: SparkSession, name: str) -> None:
    (island,) = rewrite(tables.sql(WHOLE[name])).explanation.islands
    assert not any("rows from Spark" in line for line in island.tree)
    assert any("scan" in line for line in island.tree)


def test_overflow_without_ansi(tables: SparkSession) -> None:
    tables.conf.set("spark.sql.ansi.enabled", "false")
    tables.conf.set("spark.gpujoin.fallback", "silent")
    summed = ("price * 99999999 * 99999999 * 99999999 * 99999999 * 9999", "k + 2147483647",
              "9223372036854775807 - id + k")  # fmt: skip
    check_all({value: tables.sql(f"select sum({value}) from sales") for value in summed})


@pytest.mark.parametrize(
    "query",
    [
        "select sum(9223372036854775807 - id + k * 0 + id) from sales",
        """select a.k, b.m from sales a join
        (select k, avg(cast(concat(id, repeat('9', 34), '.00') as decimal(38, 2))) m from sales group by k) b
        on a.k = b.k""",
    ],
    ids=["sum", "average of decimals"],
)
def test_overflow_with_ansi_is_an_error(tables: SparkSession, query: str) -> None:
    for frame in (tables.sql(query), accelerate(tables.sql(query))):
        with pytest.raises(Exception, match=r"(?i)overflow|out_of_range|does not fit"):
            frame.collect()


MIXED = {
    "window below": """select k, count(*) from (select k, size(collect_list(id) over (order by id)) r from sales)
        where r > 2 group by k""",
    "sort below": "select k, first(s) from (select * from sales order by id) group by k",
    "function not covered": "select try_url_decode(s), count(*) from sales group by try_url_decode(s)",
}


def test_what_is_not_covered_stays_with_spark(tables: SparkSession) -> None:
    tables.conf.set("spark.gpujoin.fallback", "silent")
    for name, found in check_all({name: tables.sql(text) for name, text in MIXED.items()}).items():
        assert found.reasons, name


def test_settings_of_scans_and_aggregates(tables: SparkSession) -> None:
    tables.conf.set("spark.gpujoin.fallback", "silent")
    tables.conf.set("spark.gpujoin.disable", "aggregate")
    found = check(tables.sql(WHOLE["join and aggregate"]))
    assert [len(island.joins) for island in found.islands] == [1]
    assert "partial aggregate" not in str(found)
    tables.conf.set("spark.gpujoin.disable", "scan")
    (island,) = check(tables.sql(WHOLE["join and aggregate"])).islands
    assert not any(line.lstrip().startswith("scan ") for line in island.tree)
    assert "\n".join(island.tree).count("rows from Spark") == 2


def test_a_query_that_is_left_to_spark_counts_once_towards_the_start(
    tables: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not anew for the join below the aggregation: it would be taken in the place of the whole."""
    counted: list[float] = []
    monkeypatch.setattr(planner, "_start", Outlay())
    monkeypatch.setattr(Outlay, "missed", lambda self, application, seconds: counted.append(seconds))
    tables.conf.set("spark.gpujoin.backend", "auto")
    tables.conf.set("spark.gpujoin.fallback", "silent")
    tables.conf.set("spark.gpujoin.costs", "start=1000, query=0.001, spark_query=1")
    found = rewrite(tables.sql(WHOLE["join and aggregate"])).explanation
    assert not found.accelerated
    assert "to start workers, once" in str(found)
    (seconds,) = counted
    assert seconds > 0


@pytest.mark.parametrize("compiled", [0, 1000])
def test_a_first_query_weighs_what_spark_compiles_against_the_start_of_workers(
    tables: SparkSession, monkeypatch: pytest.MonkeyPatch, compiled: int
) -> None:
    monkeypatch.setattr(planner, "_start", Outlay())
    monkeypatch.setattr(planner, "compiled_classes", lambda spark: compiled)
    tables.conf.set("spark.gpujoin.backend", "auto")
    tables.conf.set("spark.gpujoin.fallback", "silent")
    tables.conf.set("spark.gpujoin.costs", "start=1, spark_start=0.9, query=0.01, spark_query=0.3")
    found = rewrite(tables.sql(WHOLE["join and aggregate"]), Purpose.EXPLAIN)
    assert found.changed == (compiled == 0)
    tables.conf.set("spark.gpujoin.costs", "start=3, spark_start=0.9, query=0.01, spark_query=0.3")
    slow = rewrite(tables.sql(WHOLE["join and aggregate"]), Purpose.EXPLAIN)
    assert not slow.changed
    assert ("to compile its first code, once" in str(slow.explanation)) == (compiled == 0)


def test_what_is_predicted_to_be_slower_is_left_to_spark(tables: SparkSession) -> None:
    tables.conf.set("spark.gpujoin.backend", "auto")
    tables.conf.set("spark.gpujoin.fallback", "silent")
    tables.conf.set("spark.gpujoin.costs", "start=0, query=1")
    found = rewrite(tables.sql(WHOLE["groups"]))
    assert not found.changed
    assert "s are predicted here" in str(found.explanation)
    tables.conf.set("spark.gpujoin.costs", "start=0, query=0.001")
    assert rewrite(tables.sql(WHOLE["groups"])).changed
    tables.conf.set("spark.gpujoin.costs", "start=0, query=1")
    tables.conf.set("spark.gpujoin.fallback", "raise")
    frame = tables.sql(WHOLE["groups"])
    assert accelerate(frame) is frame


def test_explain_names_scans_filters_and_joins(tables: SparkSession) -> None:
    enable(tables)
    try:
        text = str(explain(tables.sql(WHOLE["condition"])))
    finally:
        disable(tables)
    assert re.search(r"island: 1 task", text)
    assert "inner join" in text
    assert re.search(r"scan /.*/sales \(\d files, .*columns id, k, price where", text)
    (scanned,) = re.findall(r"scan .*/sales .*where (.*)", text)
    assert "left." not in scanned


def test_what_keeps_files_out_of_islands_is_told_of_their_relation(tables: SparkSession) -> None:
    tables.conf.set("spark.gpujoin.scan.schemes", "s3a")
    found = rewrite(tables.sql("select k, count(*) from sales where price > 1 group by k"), Purpose.EXPLAIN)
    assert re.search(r"left to Spark: the Parquet files /.*/sales: its files are on 'file'", str(found.explanation))


def test_a_file_that_is_gone_is_named(tables: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "gone")
    tables.table("sales").coalesce(1).write.parquet(path)
    frame = accelerate(tables.read.parquet(path).groupBy("k").count())
    (file,) = (one for one in Path(path).iterdir() if one.suffix == ".parquet")
    file.unlink()
    with pytest.raises(Exception, match=re.escape(file.name)):
        frame.collect()


DIVIDED = (
    "global",
    "groups",
    "distinct beside others",
    "left join",
    "anti",
    "correlated",
    "not in null",
    "wide decimal",
)


@pytest.mark.parametrize("names", together(DIVIDED, "global", "left join", "not in null", "wide decimal"))
def test_a_large_input_is_divided_among_tasks(tables: SparkSession, names: tuple[str, ...]) -> None:
    tables.conf.set("spark.gpujoin.scan.oneTaskBytes", "1")
    tables.conf.set("spark.gpujoin.scan.taskBytes", "1")
    for name, found in check_all({name: tables.sql(WHOLE[name]) for name in names}).items():
        (island,) = found.islands
        assert any("is divided among tasks" in note.text for note in island.notes), str(found)
        if name in ("global", "groups", "wide decimal"):
            assert (island.tasks, "sent to 1 task" in str(found)) == (1, True), "one task merges what the others give"


def test_metrics_say_where_an_island_ran(tables: SparkSession) -> None:
    frame = accelerate(tables.sql(WHOLE["global"]))
    rows = frame.collect()
    assert rows
    (report,) = metrics(frame)
    assert isinstance(report, IslandReport)
    assert report.metrics.joins.backends == {"cpu": report.tasks}
    assert report.metrics.pipeline.output_rows > 0
    assert " on cpu" in str(report)


@pytest.mark.parametrize(
    ("threshold", "broadcast"), [("100", False), pytest.param("10MB", True, marks=pytest.mark.extra)]
)
def test_sparks_join_above_does_not_broadcast_an_island_by_mistake(
    tables: SparkSession, threshold: str, broadcast: bool
) -> None:
    """Nor takes it to be as large as the product of the island's inputs."""
    tables.conf.set("spark.sql.autoBroadcastJoinThreshold", threshold)
    tables.conf.set("spark.gpujoin.fallback", "silent")
    other = tables.range(9).selectExpr("id as c", "rand(7) as r")
    inner = tables.sql("select a.id, a.price, b.item from sales a join items b on a.k = b.k")
    frame = inner.join(other, inner.id == other.c)
    found = rewrite(frame)
    assert len(found.explanation.islands) == 1
    plan = found.frame._jdf.queryExecution().executedPlan().toString()
    assert ("BroadcastHashJoin" in plan) is broadcast
    assert_same_rows(found.frame.toArrow(), frame.toArrow())


def test_a_view_that_is_used_with_and_without_its_group_of_null_is_computed_once(
    tables: SparkSession, tmp_path: Path
) -> None:
    """A join by the view's key needs no group of null; the greatest of its sums is that of null."""
    keys = [None if n % 3 == 0 else n % 7 for n in range(3000)]
    pq.write_table(pa.table({"k": pa.array(keys, pa.int64()), "v": range(3000)}), tmp_path / "t.parquet")
    tables.read.parquet(str(tmp_path)).createOrReplaceTempView("keyed")
    query = tables.sql(
        "with sums as (select k, sum(v) total from keyed group by k) "
        "select a.k, a.total from sums a join (select distinct k from keyed) b on a.k = b.k "
        "where a.total < (select max(total) from sums)"
    )
    assert check(query).islands
    frame = accelerate(query)
    frame.collect()
    (report,) = metrics(frame)
    assert report.metrics.pipeline.parts_reused == 1
