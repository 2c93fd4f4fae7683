"""Arrays, maps and structs in islands: read from files, computed with, and made rows of; answers and paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
from pyspark.sql import SparkSession

from gpujoin.spark.query.accelerate import rewrite
from tests.brief import together
from tests.spark.query.queries import EXCHANGED, FORCED, check_all, views

ANSI = {"ansi": FORCED | {"spark.sql.ansi.enabled": "true"}, "legacy": FORCED | {"spark.sql.ansi.enabled": "false"}}
pytestmark = pytest.mark.spark

NESTED = """
select * from values
  (1, 1, array(1, 2, 3), map('a', 1, 'b', 2), named_struct('x', 1, 'y', 'p'), array('p', 'q'), 'a,b,,c',
    array(named_struct('u', 1, 'v', 'a'), named_struct('u', 2, 'v', null)),
    array(1.5D, double('NaN'), -0.0D, 0.0D, null)),
  (2, 1, array(), map(), named_struct('x', null, 'y', 'q'), array(), '', array(), array()),
  (3, 2, null, null, null, null, null, null, null),
  (4, 2, array(null, 5, 5), map('a', null, 'ü', 7), named_struct('x', 3, 'y', null), array(null, 'ü'), ',x,',
    array(null, named_struct('u', null, 'v', 'ü')), array(double('-infinity'))),
  (5, null, array(-2147483648, 2147483647), map('z', 0), named_struct('x', 1, 'y', 'p'), array('p', 'p', 'Q'), 'q',
    array(named_struct('u', 1, 'v', 'a')), array(0.0D, -0.0D)),
  (6, 3, array(3, 2, 1), map('b', 9), named_struct('x', 0, 'y', ''), array(''), 'ü|é,', null, array(2.5D))
  as t(id, k, numbers, m, st, tags, csv, structs, doubles)
"""

COMPUTED = {
    "payload": "select n.*, i.item from nested n left join items i on n.k = i.k",
    "field": "select st.x, count(*), max(st.y), count(st) from nested where st.y is not null or id > 2 group by st.x",
    "field as a key": "select n.id, i.item from nested n join items i on n.st.x = i.k",
    "item": """select item, numbers[0], get(tags, 1), try_element_at(tags, -2)
        from nested join items using (k) where size(numbers) > 1""",
    "element_at": """select item, element_at(tags, 1), element_at(tags, -1)
        from nested join items using (k) where size(tags) > 0""",
    "map": "select item, m['a'], element_at(m, 'b'), map_keys(m), map_values(m) from nested join items using (k)",
    "map in a group": "select m['a'], map_contains_key(m, 'b'), count(m) from nested group by all",
    "size": """select size(numbers), cardinality(m), array_size(tags), sum(size(split(csv, '[,|]')))
        from nested group by all""",
    "search": """select id, array_contains(doubles, 0.0D), array_contains(doubles, double('NaN')),
        array_position(doubles, -0.0D), array_position(doubles, double('NaN')), array_contains(numbers, 5), item
        from nested join items using (k)""",
    "search in a filter": "select count(*) from nested where array_contains(tags, 'p') or m is null",
    "array": """select id, array(id, k, 7), array(csv, 'x', null), structs.u, structs.v, item
        from nested join items using (k)""",
    "split": """select id, split(csv, ','), split(csv, ',', 2), split(csv, '\\\\|', 0), split(csv, ',')[0], item
        from nested join items using (k)""",
    "filtered aggregate": """select k, count(numbers[0]) filter (where size(numbers) > 0), count(tags)
        from nested group by k""",
    "join on an element": "select a.id, b.item from nested a join items b on array_contains(a.numbers, b.k)",
    "window": "select id, tags, sum(st.x) over (partition by st.y) from nested",
    "union": """select u.id, u.tags, i.item from (select id, k, tags from nested union all
        select id, k, tags from nested where id > 3) u join items i using (k)""",
    "order": """select id, sort_array(numbers), sort_array(tags, false), array_distinct(numbers), array_min(tags),
        array_max(numbers), array_distinct(tags), named_struct('a', id, 'b', csv), item
        from nested join items using (k)""",
    "joined texts": """select array_join(tags, '-'), array_join(tags, '-', '?'), concat_ws('+', tags), item
        from nested join items using (k)""",
    "collected lists": """select k, sort_array(collect_list(id)), size(collect_set(s)),
        array_join(sort_array(collect_set(s)), ','), concat_ws('-', sort_array(collect_list(s), false)),
        array_contains(collect_list(id), 3) from sales group by k""",
    "transform": """select id, transform(numbers, x -> x % 7 + id), transform(tags, (x, n) -> concat(x, n, csv)),
        transform(structs, x -> x.u), transform(numbers, x -> named_struct('a', x, 'b', item)),
        transform(array(numbers, array(k)), a -> filter(a, x -> x <= id)), transform(doubles, x -> x = 0),
        case when id > 2 then transform(numbers, x -> 10 div x) end, item from nested join items using (k)
        where id <> 2""",
    "filter": """select id, filter(numbers, x -> x > k), filter(tags, (x, n) -> n > 0 or x is null),
        filter(structs, x -> x.v is null), filter(doubles, x -> x <=> 0.0D), array_compact(numbers),
        filter(tags, x -> x in (csv, 'p', 'ü')), size(filter(doubles, x -> not isnan(x))), item
        from nested join items using (k)""",
    "quantifiers": """select k, count_if(exists(numbers, x -> x = 5)), count_if(forall(numbers, x -> x > k)),
        count(exists(tags, x -> x like 'p%')), count(forall(doubles, x -> x < 2)), sum(size(filter(tags, x ->
        exists(tags, y -> y > x)))), max(array_join(transform(tags, x -> upper(x)), '-')) from nested group by k""",
    "join on a quantifier": "select a.id, b.item from nested a join items b on exists(a.numbers, x -> x = b.k)",
    "condition": """select id, case when id > 2 then numbers end, case when id > 3 then tags when id > 1 then array(csv)
        else array(csv, null) end, if(k = 1, st, named_struct('x', id, 'y', csv)), item
        from nested join items using (k)""",
}
GROUPED = {
    "a struct": "select st, count(*), max(id), st.y from nested group by st",
    "a struct and a column": "select k, st, count(*) from nested group by k, st having count(*) < 9",
    "a computed struct": "select named_struct('a', k % 2, 'b', csv) g, count(*), min(id) from nested group by 1",
    "structs in a struct": """select g, g.b.x, count(*) from (select named_struct('b', st, 'c', k % 2) g from nested)
        group by g""",
    "floats in a struct": """select named_struct('d', d) g, count(*), max(id) from
        (select id, explode(doubles) d from nested) group by 1""",
    "distinct structs": "select distinct st, k from nested",
    "counted structs": "select k % 2, count(distinct st), count(st), sum(id) from nested group by 1",
    "all counted structs": "select count(distinct st), count(distinct st, k) from nested",
    "below a join": """select g.st, g.n, i.item from (select st, k, count(*) n from nested group by st, k) g
        join items i using (k)""",
    "windows of time": """select window(timestamp_seconds(id * 437), '10 minutes') w, count(*), sum(k) from nested
        group by 1""",
    "sliding windows": """select window.start, window.end, k, count(*) n from nested
        group by window(timestamp_seconds(id * 437), '10 minutes', '4 minutes', '1 minute'), k""",
    "the time of a window": """select window_time(w), n from (select window(timestamp_seconds(id * 437), '1 hour') w,
        count(*) n from nested group by 1)""",
}
ROWS = {
    "explode": "select t, count(*) from nested lateral view explode(tags) as t group by t",
    "outer": "select t, count(*), sum(id) from nested lateral view outer explode(tags) as t group by t",
    "beside columns": """select n.*, i.item from (select id, a, t from nested lateral view explode(numbers) as a
        lateral view outer explode(tags) as t) n join items i on i.k = n.a""",
    "positions": "select p, t, count(*), sum(id) from nested lateral view posexplode(numbers) as p, t group by all",
    "outer positions": "select p, t, count(*) from nested lateral view outer posexplode(tags) as p, t group by all",
    "map": "select key, sum(value), count(*) from nested lateral view explode(m) x group by key",
    "outer map": "select key, value, count(*) from nested lateral view outer explode(m) x group by all",
    "map positions": "select pos, key, max(value) from (select posexplode(m) from nested) group by all",
    "inline": "select u, v, count(*) from nested lateral view inline(structs) x group by all",
    "outer inline": """select n.*, i.item from (select u, v, id, k from nested lateral view outer inline(structs) x) n
        join items i using (k)""",
    "structs": "select s.u, max(s.v), count(*) from (select explode(structs) s from nested) group by s.u",
    "split": "select w, count(*) from (select explode(split(csv, ',')) w from nested) group by w",
    "split of flat rows": "select w, count(*) from (select explode(split(s, 'x')) w from sales) group by w",
    "array": "select v, count(*) from (select explode(array(id, k)) v from sales) group by v",
    "lateral": "select n.id, t.col from nested n, lateral explode(n.numbers) t join items i on i.k = n.k",
    "stack": "select n, sum(v) from (select stack(2, 'a', id, 'b', k) as (n, v) from sales) group by n",
    "stack with a gap": """select n, v, item from (select stack(2, id, 'a', k) as (n, v) from sales)
        join items on item = n * 10""",
}


@pytest.fixture(scope="module")
def nested(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory, written: None) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("nested")
    spark_session.sql(NESTED).repartition(2, "k").write.parquet(str(folder / "nested"))
    with views(spark_session, folder, {"nested": None}):
        yield


def check_whole(spark: SparkSession, texts: Mapping[str, str], names: Sequence[str]) -> None:
    """Check the rows of queries, and that all of each is in one island that takes no rows from Spark."""
    for found in check_all({name: spark.sql(texts[name]) for name in names}).values():
        (island,) = found.islands
        assert not any("rows from Spark" in line for line in island.tree), island.tree


SHORT = (
    "payload", "map", "filtered aggregate", "collected lists", "transform", "join on a quantifier",
)  # fmt: skip


@pytest.mark.parametrize(
    "spark",
    [pytest.param(ANSI["ansi"], id="ansi"), pytest.param(ANSI["legacy"], id="legacy", marks=pytest.mark.extra)],
    indirect=True,
)
@pytest.mark.parametrize("names", together(COMPUTED, *SHORT))
def test_nested_values_are_computed_with(nested: None, spark: SparkSession, names: tuple[str, ...]) -> None:
    check_whole(spark, COMPUTED, names)


@pytest.mark.parametrize(
    "spark",
    [pytest.param(ANSI["ansi"], id="one task", marks=pytest.mark.extra), pytest.param(EXCHANGED, id="divided")],
    indirect=True,
)
@pytest.mark.parametrize(
    "names",
    together(
        GROUPED, "structs in a struct", "floats in a struct", "all counted structs", "sliding windows",
    ),
)  # fmt: skip
def test_groups_of_structs(nested: None, spark: SparkSession, names: tuple[str, ...]) -> None:
    check_whole(spark, GROUPED, names)


SHORT_ROWS = ("beside columns", "outer positions", "outer map", "outer inline", "stack")


@pytest.mark.parametrize("spark", [ANSI["ansi"]], indirect=True, ids=["ansi"])
@pytest.mark.parametrize("names", together(ROWS, *SHORT_ROWS))
def test_rows_are_made_of_elements(nested: None, spark: SparkSession, names: tuple[str, ...]) -> None:
    check_whole(spark, ROWS, names)


LEFT = {
    "a map as a group": ("select m, count(*) from nested group by m", "map<string,int> is not aggregated"),
    "a lambda that may fail before it decides": (
        "select count(*) from nested where exists(numbers, x -> cast(x as bigint) + 1 = 2)",
        "exists",
    ),
    "JSON": ("select to_json(st), count(*) from nested group by 1", "to_json(st) is not computed"),
    "a pattern that may be empty": ("select sum(size(split(csv, 'x*'))) from nested", "split"),
}


@pytest.mark.parametrize("spark", [FORCED | {"spark.gpujoin.fallback": "silent"}], indirect=True, ids=["silent"])
def test_what_is_left_to_spark_has_a_reason(nested: None, spark: SparkSession) -> None:
    for name, (text, reason) in LEFT.items():
        assert reason in str(rewrite(spark.sql(text)).explanation), name
