"""Aggregates of structs, arrays and maps over many rows of special values, against Spark."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.sql import SparkSession

from tests.brief import shared_out
from tests.spark.query.queries import EXCHANGED, FORCED, check_all

pytestmark = pytest.mark.spark

NESTED_VALUES = {
    "greatest struct": "select g, max(struct(i, s, n, t)) v, min(struct(i, s, n, t)) w from bulk group by g",
    "latest row": "select g, max(struct(t, s, i, id)).s s, max(struct(t, s, i, id)).id i from bulk group by g",
    "structs with floats": """select g, v.d + 0.0 d, v.s, v.n, v.o, w.d + 0.0, w.s from (
        select g, max(st) v, min(st) w from bulk group by g)""",
    "deep structs": """select g, v.y, v.in.d + 0.0, v.in.s, v.f + 0, w.in.t, w.y from (
        select g, max(deep) v, min(deep) w from bulk group by g)""",
    "arrays": """select g, transform(v, x -> x + 0.0), transform(w, x -> x + 0.0), s, x from (
        select g, max(ds) v, min(ds) w, max(ss) s, min(xs) x from bulk group by g)""",
    "arrays of structs": """select g, transform(v, x -> x.s), transform(w, x -> x.s), size(w) from (
        select g, max(sts) v, min(sts) w from bulk group by g)""",
    "every value": "select id, max(st), min(deep), max(ds), max(sts), min(ss) from bulk group by id",
    "filtered": """select g, max(struct(i, s)) filter (where o) v, min(xs) filter (where i > 0) w,
        max(struct(1 / nullif(i, 0), s)) filter (where i <> 0) is null u from bulk group by g""",
    "all rows": "select max(struct(i, s, id)) v, min(ss) w, max(xs) x from bulk",
    "no rows": "select max(struct(i, s, id)) v, min(st) w, first(xs) x from bulk where id < 0",
    "having": "select g, max(struct(t, id)) v from bulk group by g having max(struct(t, id)).id % 2 = 0",
    "by a struct": "select g, max_by(id, struct(i, s, id)) v, min_by(id, struct(d, ss, id)) w from bulk group by g",
    "struct by": """select g, max_by(st, id) v, min_by(deep, id) filter (where o) w, max_by(ds, id) x,
        max_by(struct(mp, i), id) y from bulk group by g""",
    "struct by a struct": "select g, max_by(struct(s, ds), struct(i, id)) v from bulk group by g",
    "the only row": """select id, first(st) a, last(deep) b, any_value(ds) c, first(mp) d, first(sts, true) e,
        last(ss, true) filter (where o) f, max_by(mp, id) h from bulk group by id""",
    "the only value": """select g, first(if(id % 100 = g % 100, st, null), true) is null v, count(*), count(st),
        count(distinct i) from (select * from bulk where id < 100) group by g""",
    "lists of the only row": """select id, collect_list(st) a, collect_list(deep) b, collect_list(ds) c,
        collect_list(mp) filter (where o) d, collect_set(struct(i, n, s)) e, collect_set(xs) f, array_agg(sts) h
        from bulk group by id""",
    "lengths of lists": """select g, size(collect_list(st)) a, size(collect_set(struct(i, o, s))) b,
        size(collect_set(ss)) c, size(collect_set(xs) filter (where o)) d from bulk group by g""",
    "lists in order": """select g, sort_array(collect_list(struct(i, s, id))) a,
        sort_array(collect_list(struct(d, t, id)), false) b, array_sort(collect_list(ss)) c,
        array_sort(collect_list(if(id % 3 = 0, null, struct(o, n, id)))) e, sort_array(collect_set(struct(a, y))) f,
        transform(sort_array(collect_list(struct(t, s, id))), x -> x.id) h,
        sort_array(collect_list(st.s)) j, sort_array(collect_list(xs)) l
        from bulk group by g""",
    "elements": """select id, item, array_min(sts), array_max(sts), array_min(ds), array_max(ds), array_sort(ds),
        array_sort(ss), array_sort(sts), sort_array(sts, false),
        array_distinct(array(xs, xs, null, array(i))), array_max(array(d, -0.0D, 0.0D)),
        array_sort(array(d, 0.0D, -0.0D, null, double('nan'))),
        array_distinct(array(struct(s, n), null, struct(s, n), null))
        from bulk join (select item from items) on id % 7 = item div 10 - 1""",
    "below a join": """select b.id, r.v.s, r.v.id from bulk b join (
        select g, max(struct(t, s, id)) v from bulk group by g) r on b.id = r.v.id""",
    "beside distinct values": "select g, count(distinct i), max(struct(t, id)) v, min(xs) w from bulk group by g",
    "by structs": "select st.o, st.a, max(struct(i, id)) v from bulk group by struct(st.o, st.a), st.o, st.a",
}
KEYS = {
    "groups of arrays": "select ds, count(*) n, min(id) from bulk group by ds",
    "groups of integers": "select xs, count(*) n, max(id) from bulk group by xs",
    "groups of texts": "select ss, g % 3, count(*) n, max(struct(i, id)) v from bulk group by ss, g % 3 having n > 1",
    "groups of arrays of structs": "select sts, count(*), count(st) from bulk group by sts",
    "groups of arrays in a struct": """select v, count(*), v.xs from (
        select named_struct('xs', xs, 'o', o, 'ds', ds) v from bulk) group by v""",
    "grouping sets": "select xs, o, count(*), grouping(xs) from bulk group by cube(xs, o)",
    "distinct arrays": "select distinct ss, xs from bulk",
    "counted arrays": "select o, count(distinct xs), count(distinct xs, ss), count(xs) from bulk group by o",
    "joined groups": """select n, item from (select xs, count(*) n from bulk group by xs) join (select item from items)
        on n % 8 = item div 10""",
    "equal arrays": "select a.id, b.id from bulk a join bulk b on a.xs = b.xs and a.id < b.id where a.g < 40",
    "equal arrays of floats": "select a.id, b.id, a.ds from bulk a join bulk b on a.ds = b.ds and a.g = b.g",
    "equal arrays of structs": """select a.id, b.id from bulk a left join bulk b on a.sts = b.sts and a.g = b.g
        where a.id < 900""",
    "structs with arrays": """select a.id, b.s from bulk a join bulk b
        on struct(a.xs, a.o) = struct(b.xs, b.o) and a.g = b.g""",
    "semi join": "select count(*), max(id) from bulk where xs in (select array(i) from bulk where i > 100)",
    "anti join": """select id from bulk b1 where not exists (
        select 1 from bulk b2 where b1.ss = b2.ss and b2.id % 3 = 0)""",
    "full join": """select a.n, b.n, coalesce(a.ss, b.ss) from (select ss, count(*) n from bulk where o group by ss) a
        full join (select ss, count(*) n from bulk where not o group by ss) b on a.ss = b.ss""",
    "window by an array": """select id, row_number() over (partition by xs order by id) r,
        count(*) over (partition by st) c, sum(i) over (partition by g, ss) from bulk""",
    "window in order of a struct": """select id, rank() over (partition by o order by struct(i, s)) a,
        dense_rank() over (partition by o order by st desc) b, row_number() over (order by ds nulls last, id) c,
        lag(id) over (partition by g order by sts desc nulls last, id) e, st from bulk""",
    "first rows": """select v.id, v.st.s, items.item from (select id, st from bulk order by st desc, id limit 40) v
        join (select item from items) items on id % 7 = item div 10 - 1""",
    "first rows by an array": """select v.id, items.item from (select id from bulk order by ds desc nulls first, id
        limit 500) v join (select item from items) items on id % 7 = item div 10 - 1""",
}
SHORT_KEYS = ("groups of arrays in a struct", "equal arrays of floats", "window in order of a struct", "anti join")
SHORT = (
    "structs with floats", "every value", "struct by", "filtered", "lists of the only row", "lists in order",
)  # fmt: skip
PLACES = {
    "ansi": FORCED | {"spark.sql.ansi.enabled": "true"},
    "legacy": FORCED | {"spark.sql.ansi.enabled": "false"},
    "divided": EXCHANGED,
    "spilled": FORCED | {"spark.gpujoin.memoryBudget": "300000"},
}
RARE = ("legacy", "spilled")


def check_whole(spark: SparkSession, place: str, texts: Mapping[str, str]) -> None:
    """Check the rows of queries, and that all of each is in one island that takes no rows from Spark."""
    for key, value in PLACES[place].items():
        spark.conf.set(key, value)
    for name, found in check_all({name: spark.sql(text) for name, text in texts.items()}).items():
        (island,) = found.islands
        assert "array_min" not in texts[name] or island.tree[0].startswith("project"), island.tree
        assert not any("rows from Spark" in line for line in island.tree), island.tree


@pytest.mark.parametrize(("place", "names"), shared_out(NESTED_VALUES, SHORT, PLACES, RARE))
def test_aggregates_of_nested_values(bulk: None, spark: SparkSession, place: str, names: tuple[str, ...]) -> None:
    check_whole(spark, place, {name: NESTED_VALUES[name] for name in names})


@pytest.mark.parametrize(("place", "names"), shared_out(KEYS, SHORT_KEYS, PLACES, RARE))
def test_nested_keys_and_orders(bulk: None, spark: SparkSession, place: str, names: tuple[str, ...]) -> None:
    check_whole(spark, place, {name: KEYS[name] for name in names})
