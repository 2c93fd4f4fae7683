"""Functions of arrays and maps over many rows of special values, against Spark."""

from __future__ import annotations

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from gpujoin.spark.query.accelerate import rewrite
from tests.brief import brief, together
from tests.spark.query.queries import FORCED, check, check_all

pytestmark = pytest.mark.spark

ANSI = {"ansi": FORCED | {"spark.sql.ansi.enabled": "true"}, "legacy": FORCED | {"spark.sql.ansi.enabled": "false"}}
COMPUTED = {
    "concat": """concat(xs, array(i, null), xs), concat(ss, array(s)), ss || array('x'), concat(ds, array(d, -0.0D)),
        concat(sts, sts), flatten(array(xs, array(i), array())), flatten(array(ss, null)), flatten(array(sts, array())),
        flatten(transform(xs, x -> array(x, i)))""",
    "order": "reverse(xs), reverse(ss), reverse(ds), reverse(sts), reverse(array(m, n))",
    "slice": """slice(xs, 1, 2), slice(ss, -1, 1), slice(ds, 2, y & 3), slice(sts, if(y > 0, 1, -2), 1),
        slice(ss, if(i is null, 1, 2), if(o, 2, 0)), try_element_at(slice(array(1, 2, 3), 2, 2), 1)""",
    "remove": """array_remove(xs, 1), array_remove(xs, i), array_remove(ds, 0.0D), array_remove(ds, d),
        array_remove(ss, 'x'), array_remove(ss, s), array_remove(array(n, 0, null), n), array_remove(array(t, t), t)""",
    "repeat": """array_repeat(s, y % 4), array_repeat(d, 3), array_repeat(st, 2), array_repeat(ss, if(o, 2, -1)),
        array_repeat(cast(null as int), 2), array_repeat(n, y & 1)""",
    "one more": """array_append(xs, i), array_prepend(xs, i), array_append(ss, s), array_prepend(ds, d),
        array_append(sts, null), array_append(array(st), st), array_prepend(array(a), a),
        array_insert(xs, 1, i), array_insert(xs, -1, 5)""",
    "sets": """array_union(xs, array(i, null, 1)), array_intersect(xs, array(1, null, i)),
        array_except(xs, array(1, i)), array_union(ss, array(s, s)), array_intersect(ss, array(s, 'x', null)),
        array_except(ss, array(null)),
        array_union(array(n, null), array(n, 0)), array_except(array(a, t), array(t)),
        array_union(array(xs), array(xs)), array_union(array(struct(s, i)), array(struct(s, i), null))""",
    "overlap": """arrays_overlap(xs, array(1)), arrays_overlap(xs, array(i, null)), arrays_overlap(ss, array(s)),
        arrays_overlap(xs, array()), arrays_overlap(array(n), array(n, null)),
        arrays_overlap(array(struct(a)), array(struct(a)))""",
    "zip": """arrays_zip(xs, ss), arrays_zip(ds, xs, sts), arrays_zip(ss), zip_with(xs, ss, (x, y) -> concat(y, x)),
        zip_with(xs, array(i, h), (x, y) -> coalesce(x, y, 0) % 10), zip_with(ds, ds, (x, y) -> x <=> y),
        zip_with(ss, ds, (x, y) -> struct(x, y, id))""",
    "maps": """map_entries(mp), map_filter(mp, (k, v) -> v > 0), map_filter(mp, (k, v) -> k = 'k'),
        map_filter(mp, (k, v) -> v is null), transform_values(mp, (k, v) -> v + 1),
        transform_values(mp, (k, v) -> concat(k, s)),
        transform_values(mp, (k, v) -> struct(k, v, i)), size(map_filter(mp, (k, v) -> isnan(v)))""",
    "made maps": """map('k', i, 'l', y), map(id, st), map(0, ss, 1, array(s)), map(struct(id, s), ds),
        map(cast('x' as binary), d, cast('y' as binary), null), map(coalesce(m, 0), n), map('a', 1)[s],
        map(date'2024-01-01', t),
        map_from_arrays(array(id, -1), array(s, null)), map_from_arrays(array_distinct(array_compact(xs)),
          array_distinct(array_compact(xs))), map_from_arrays(if(o, null, array('k')), array(d)),
        map_from_entries(transform(array(id, -1L), (k, x) -> struct(k, d))),
        map_from_entries(if(o, array(), array(struct(id, i), null))), map_from_entries(map_entries(mp)),
        map_concat(map('a', d), mp), map_concat(mp), map(1, 'x', 2, null),
        map_concat(map(-1L, s), map(id, 'y'), map(id + 5000, s)), map_keys(map('p', 1, 'q', i)),
        map_values(map('p', y)),
        transform_keys(mp, (k, v) -> concat(k, '!', coalesce(cast(v is null as string), ''))),
        transform_keys(mp, (k, v) -> struct(k, id)), element_at(map('x', i, 'y', y), s),
        map_contains_key(map('x', 1, 'ü', 2), s), coalesce(mp, map('none', d)), if(o, map('k', 0.5D), mp)""",
    "fold": """aggregate(xs, cast(0 as bigint), (a, x) -> a + x),
        aggregate(xs, cast(0 as bigint), (a, x) -> a + coalesce(x, 0)),
        aggregate(ss, '', (a, x) -> concat(a, coalesce(x, '?')), a -> concat(a, s)),
        aggregate(ds, 0.0D, (a, x) -> if(x is null or isnan(x), a, x)),
        reduce(xs, struct(0L as n, 0L as t), (a, x) -> struct(a.n + 1 as n, a.t + coalesce(x, 0) as t),
          a -> a.t / nullif(a.n, 0)),
        aggregate(array(m, m), cast(0 as decimal(12, 2)), (a, x) -> cast(a + coalesce(x, 0) as decimal(12, 2))),
        transform(sts, e -> aggregate(e.ds, 0L, (a, x) -> a + 1)),
        aggregate(xs, i, (a, x) -> greatest(a, x))""",
    "sequence": """sequence(1, y & 15), sequence(y & 7, -3), sequence(5, y & 15, if((y & 15) < 5, -2, 3)),
        sequence(cast(i % 10 as bigint), 12L), sequence(date'2024-02-25', date_add(date'2024-02-27', y)),
        sequence(date'2024-02-25', date_add(date'2024-02-27', y & 31), interval 2 days), sequence(0, 0, 0),
        sequence(h % 10, h % 10), size(sequence(a, date_add(a, 3)))""",
    "comparisons": """xs = array(i), xs <=> array(1), ds = array(d), ds < array(d, 0.0D), ss >= array(s, 'x'),
        sts = array(), nullif(xs, array(i)), xs in (array(i), array(1)), greatest(ds, array(d)), least(ss, array('b')),
        struct(xs, i) <=> struct(reverse(xs) as xs, i), array_contains(array(xs, array(i)), array(1)),
        struct(ds, i) > struct(reverse(ds) as ds, i),
        array_position(array(ss, array(s)), array(s, 'x')), array_remove(array(ds, array(d)), array(0.0D))""",
    "comparators": """array_sort(array_compact(xs), (l, r) -> case when l < r then 1 when l > r then -1 else 0 end),
        array_sort(ss, (l, r) -> case when l is null and r is null then 0 when l is null then -1 when r is null then 1
          when l < r then 1 when l > r then -1 else 0 end),
        array_sort(array_compact(ss), (l, r) -> case when octet_length(l) < octet_length(r) then -1
          when octet_length(l) = octet_length(r) then 0 else 1 end),
        array_sort(sts, (l, r) -> case when l.s is null and r.s is null then 0 when l.s is null then 1
          when r.s is null then -1 when l.s < r.s then -1 when r.s < l.s then 1 else 0 end),
        array_sort(array_compact(ds), (l, r) -> if(l > r, -1, if(l < r, 1, 0))),
        array_sort(xs, (l, r) -> case when (l <=> i) < (r <=> i) then -1 when (r <=> i) < (l <=> i) then 1
          else 0 end),
        array_sort(array_compact(array(m, n, 0)), (l, r) -> case when l <= r and r <= l then 0 when l > r then 1
          else -1 end)""",
    "two maps": """map_zip_with(mp, map('k', i, 'l', y), (k, a, b) -> coalesce(a, b)),
        map_zip_with(map(id, s, -1L, 'x'), map(-1L, d, id + 1, d), (k, a, b) -> struct(k, a, b, i)),
        map_zip_with(mp, mp, (k, a, b) -> k), map_zip_with(mp, if(o, null, mp), (k, a, b) -> a <=> b)""",
    "maps of texts": """str_to_map(concat('a<', coalesce(cast(m as string), 'none'), '>b<', id, '>c'), '>', '<'),
        str_to_map(cast(t as string), ' ', '-'), str_to_map(concat('k=', y, ';', i, '=v'), '[;|]', '=')""",
    "numbered": """elt(id % 3 + 1, s, 'x', cast(i as string)), elt(if(o, 1, 2), s, t)""",
    "constants": """array_contains(array(1, 2, null), i), array_contains(array('x', 'ü'), s),
        exists(array(1, 2), x -> x = i),
        coalesce(xs, array(1, null)), if(o, ds, array(1.5D, double('nan'))), array(date'2024-01-01', null)[y & 1],
        array(array(1), array())[0], array_position(array(1, 3), i), coalesce(ss, array(s), array('y'))""",
}
AGGREGATED = {
    "sums of elements": "select g, sum(aggregate(xs, 0L, (a, x) -> a + coalesce(x, 0))) v from bulk group by g",
    "lists of groups": """select g, array_sort(array_distinct(flatten(collect_list(xs)))) v,
        aggregate(array_sort(collect_list(i)), 0L, (a, x) -> a + x) w from bulk group by g""",
    "calendar": "select c, count(*) n from bulk lateral view explode(sequence(a, date_add(a, y & 3))) as c group by c",
    "counted": """select o, count(sequence(1, y & 3)), count(array(i)), count(slice(array(i), 1, y & 1)) from bulk
        group by o""",
    "compared in a join": """select b1.id, b2.id from bulk b1 join bulk b2 on b1.g = b2.g and b1.xs <> b2.xs and
        b1.ds <= b2.ds where b1.id < 1500""",
    "ranges of lists": "select count(*) from bulk b1 join bulk b2 on b1.ss < b2.ss where b1.id < 40 and b2.id < 200",
    "condition": "select count(*) from bulk where arrays_overlap(xs, array(1, i)) and size(slice(ss, 1, 1)) = 1",
}
SHORT = ("zip", "made maps", "comparators")
"""Values of all functions are compared in tests/expressions; these have lists and maps of every kind go in and out."""
BOTH = [
    pytest.param(ANSI["ansi"], id="ansi"), pytest.param(ANSI["legacy"], id="legacy", marks=pytest.mark.extra)
]  # fmt: skip


@pytest.mark.parametrize("spark", BOTH, indirect=True)
@pytest.mark.parametrize("names", together(COMPUTED, *SHORT))
def test_functions_of_lists(bulk: None, spark: SparkSession, names: tuple[str, ...]) -> None:
    joined = "from bulk join (select item from items) on id % 7 = item div 10 - 1"
    for found in check_all({name: spark.sql(f"select id, {COMPUTED[name]} {joined}") for name in names}).values():
        (island,) = found.islands
        assert island.tree[0].startswith("project"), island.tree
        assert not any("rows from Spark" in line for line in island.tree), island.tree


@pytest.mark.parametrize("spark", BOTH, indirect=True)
@pytest.mark.parametrize("names", together(AGGREGATED, "lists of groups", "compared in a join"))
def test_functions_of_lists_in_aggregations(bulk: None, spark: SparkSession, names: tuple[str, ...]) -> None:
    for found in check_all({name: spark.sql(AGGREGATED[name]) for name in names}).values():
        (island,) = found.islands
        assert not any("rows from Spark" in line for line in island.tree), island.tree


LAST_WINS = """map(s, i, 'x', y), map(i % 3, d, y % 3, n, 1, null),
    map_from_arrays(array(y % 2, 0, y % 2), array(i, y, null)),
    map_from_entries(transform(array(s, 'x', s), (k, x) -> struct(k, x))), map_concat(mp, map('k', d), mp),
    str_to_map(concat('a=', y, ',b,a=', i), ',', '='),
    transform_keys(map('a', i, 'b', y, 'c', h), (k, v) -> v % 2), transform_keys(mp, (k, v) -> 'one'),
    transform_keys(map_from_arrays(array_distinct(array_compact(xs)), array_distinct(array_compact(xs))),
      (k, v) -> k & 1)"""
LAST = [
    pytest.param(
        settings | {"spark.sql.mapKeyDedupPolicy": "LAST_WIN"}, id=name,
        marks=[] if name == "ansi" else pytest.mark.extra,
    )
    for name, settings in ANSI.items()
]  # fmt: skip


@pytest.mark.parametrize("spark", LAST, indirect=True)
def test_the_last_value_of_a_key_counts_where_the_session_says_so(bulk: None, spark: SparkSession) -> None:
    query = f"select id, {LAST_WINS} from bulk join (select item from items) on id % 7 = item div 10 - 1"
    where = "where s is not null and i is not null and y is not null and h is not null"
    (island,) = check(spark.sql(f"{query} {where}")).islands
    assert not any("rows from Spark" in line for line in island.tree), island.tree


FAILING = {
    "a key twice": "size(map(y % 2, 1, 0, 2))",
    "a null key": "size(map(nullif(y % 2, 0), 1))",
    "keys without values": "size(map_from_arrays(array(1, 2), slice(array(1, 2), 1, y & 1)))",
    "an entry twice": "size(map_from_entries(array(struct(y % 2, 1), struct(0, 2))))",
    "a map twice": "size(map_concat(map(y % 2, 1), map(0, 1)))",
    "new keys": "size(transform_keys(map('a', y, 'b', 0), (k, v) -> v % 2))",
    "part number 0": "size(slice(xs, i - i, 1))",
    "negative length": "size(slice(xs, 1, -1 - abs(y % 2)))",
    "sequence to nowhere": "size(sequence(1, 5, -1 - abs(y % 2)))",
    "a part twice": "size(str_to_map(concat('a=', y, ',a'), ',', '='))",
    "number of nothing": "length(elt(abs(y % 2) * 3, 'a', 'b'))",
    "overflow": "aggregate(array(i, i), 2147483647, (a, x) -> a + abs(x % 2) + 1)",
    "overflow of pairs": "array_max(zip_with(array(i), array(i), (x, y) -> x + 2147483647))",
    "overflow of values": "array_max(map_values(transform_values(mp, (k, v) -> i + 2147483647)))",
}


@pytest.mark.parametrize("spark", [ANSI["ansi"]], indirect=True, ids=["ansi"])
@pytest.mark.parametrize("name", brief(FAILING, "overflow"))
def test_what_fails_in_spark_fails(bulk: None, spark: SparkSession, name: str) -> None:
    frame = spark.sql(f"select g, sum({FAILING[name]}), max(id) from bulk where i is not null group by g")
    rewritten = rewrite(frame)
    assert rewritten.explanation.islands
    for each in (frame, rewritten.frame):
        with pytest.raises(
            Exception, match=r"(?i)overflow|element|length|duplicate|null|same|sequence|step|boundaries|parameter"
        ):
            each.toArrow()


@pytest.mark.parametrize("spark", [ANSI["ansi"]], indirect=True, ids=["ansi"])
def test_a_comparator_that_does_not_speak_of_nulls_is_not_the_one_that_spark_adds(
    bulk: None, spark: SparkSession
) -> None:
    """To it nulls equal everything, so where they stand follows from how Spark sorts; Spark's own puts them last."""
    comparator = "(l, r) -> if(l < r, -1, if(l > r, 1, 0))"
    joined = "from bulk join (select item from items) on id % 7 = item div 10 - 1"
    sorted_by_it = "select id, array_sort({}, " + comparator + ") v " + joined
    (island,) = check(spark.sql(sorted_by_it.format("array_compact(xs)"))).islands
    assert any("array_sort(" in line for line in island.tree), island.tree
    with pytest.raises(PythonException, match="UnsupportedValueError"):
        rewrite(spark.sql(sorted_by_it.format("xs"))).frame.toArrow()


LEFT = {
    "a comparator": ("array_sort(xs, (x, y) -> coalesce(y % 9, 0) - coalesce(x % 9, 0))", "comparator"),
    "a comparator of two keys": (
        """array_sort(sts, (l, r) -> case when l.s < r.s then -1 when l.s > r.s then 1
          when size(l.ds) < size(r.ds) then -1 when size(l.ds) > size(r.ds) then 1 else 0 end)""",
        "comparator",
    ),
    "a comparator without an order": ("array_sort(xs, (l, r) -> if(l < r, -1, 1))", "comparator"),
    "sets of floats": ("array_union(ds, ds)", "array_union"),
    "an element in the middle": ("array_insert(xs, 2, i)", "array_insert"),
    "keys with floats": ("nullif(size(map_from_arrays(array(coalesce(d, 1)), array(i))), id)", "map_from_arrays"),
    "months": ("sequence(a, a, interval 1 month)", "interval"),
}


SILENT = [FORCED | {"spark.gpujoin.fallback": "silent"}]


@pytest.mark.parametrize("spark", SILENT, indirect=True, ids=["silent"])
def test_maps_of_no_type_are_left_to_spark(bulk: None, spark: SparkSession) -> None:
    frame = spark.sql("select b.id, if(b.o, map(), null) m from bulk b join bulk c on b.id = c.id")
    rewritten = rewrite(frame)
    assert rewritten.explanation.islands
    assert sorted(map(str, rewritten.frame.collect())) == sorted(map(str, frame.collect()))


@pytest.mark.parametrize("spark", SILENT, indirect=True, ids=["silent"])
@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_spark_has_a_reason(bulk: None, spark: SparkSession, name: str) -> None:
    text, reason = LEFT[name]
    assert reason in str(rewrite(spark.sql(f"select g, count({text}) from bulk group by g")).explanation)
