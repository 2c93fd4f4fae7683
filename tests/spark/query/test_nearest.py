"""As-of joins as SQL spells them: recognised where nothing else is read, and left alone where more is."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gpujoin.plan.ranges import Shape
from gpujoin.spark.query.accelerate import Purpose, rewrite
from gpujoin.testing import assert_same_rows
from tests.brief import brief, shared_out
from tests.spark.query.queries import check, check_all

pytestmark = pytest.mark.spark

LEFT = """
select cast(id as int) i, if(id % 9 = 0, null, cast(id % 3 as int)) k, cast(id % 5 as int) c, double(id % 4) f,
  if(id % 11 = 5, null, timestamp_seconds(id * 37 % 50)) t, cast(id * 37 % 50 as short) n,
  date_add(date'2024-01-01', int(id * 37 % 50)) d
from range(40) union all select * from values (100, 1, 7, 1.0D, timestamp_seconds(20), 20S, date'2024-01-21'),
  (100, 1, 7, 1.0D, timestamp_seconds(20), 20S, date'2024-01-21') as same(i, k, c, f, t, n, d)
"""
"""Null keys and null times; several rows of one time; two rows that are alike."""
RIGHT = """
select cast(id as int) j, if(id % 13 = 0, null, cast(id % 3 as int)) k, if(id % 4 = 0, null, id * 10) x,
  if(id % 12 = 7, null, timestamp_seconds(id)) t, id n, double(id) f,
  date_add(date'2024-01-01', int(id)) d
from range(50)
"""
TIES = """
select cast(id as int) j, cast(id % 3 as int) k, timestamp_seconds(id div 12) t,
  if(id % 4 = 0, null, cast(id * 7 % 5 as int)) x, repeat('a', cast(id % 3 as int)) s,
  element_at(array(0.0D, -0.0D, 1.0D, double('NaN')), cast(id % 4 as int) + 1) f
from range(150)
"""


@pytest.fixture(scope="module")
def files(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("nearest")
    for name, text in {"l": LEFT, "r": RIGHT, "e": TIES}.items():
        spark_session.sql(text).coalesce(1).write.parquet(str(folder / name))
        spark_session.read.parquet(str(folder / name)).createOrReplaceTempView(name)
    yield
    for name in "lre":
        spark_session.catalog.dropTempView(name)


@pytest.fixture
def tables(files: None, spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.gpujoin.backend", "cpu")
    return spark


_KEYED = "r.k = l.k and r.t <= l.t"
QUERIES = {
    "max of a group": f"select l.i, max(r.t) m from l left join r on {_KEYED} group by l.i",
    "min of a group, strictly after": """
        select l.i, min(r.t), max(l.c) from r join l on r.k = l.k and r.t > l.t group by l.i""",
    "max by": """
        select l.i, l.k, max(r.t), max_by(r.x, r.t) x from l join r on r.k = l.k and r.t < l.t group by l.i, l.k""",
    "max of structs, ties": """
        select l.i, max(struct(e.t, e.x, e.j)).j from l left join e on e.k = l.k and e.t <= l.t group by l.i""",
    "within an interval": """
        select l.i, max(r.t), max_by(r.j, r.t) from l left join r
        on r.k = l.k and r.t between l.t - interval 3 seconds and l.t group by l.i""",
    "within, outer": """
        select l.i, min(r.d), min_by(r.j, r.d) from l left join r
        on r.k = l.k and r.d >= l.d and r.d < date_add(l.d, 3) and l.c > 0 group by l.i""",
    "within, inner": """
        select l.i, max(r.d), max_by(r.x, r.d) from l join r on r.k = l.k and r.d <= l.d and r.d > date_sub(l.d, 2)
        group by l.i""",
    "within a number": """
        select l.i, max(r.n), max_by(r.j, r.n) from l left join r on r.k = l.k and r.n >= l.n - 5 and r.n <= l.n
        group by l.i""",
    "within a number that may overflow": """
        select l.i, min(r.n), min_by(r.x, r.n) from (select i, k, cast(n as bigint) n from l) l join r
        on r.k = l.k and r.n > l.n and r.n < l.n + 4 group by l.i""",
    "within a number that may overflow, outer, tested first": """
        select l.c, max(r.j), max_by(r.x, r.j) from l left join r on r.k = l.k and r.j between l.c - 2 and l.c
        group by l.c""",
    "without keys": "select l.i, max(r.t) from l left join r on r.t <= l.t group by l.i",
    "null-safe key, numbers of two widths": """
        select l.i, max(r.n), max_by(r.j, r.n) from l join r on r.k <=> l.k and r.n <= l.n group by l.i""",
    "first of a window": f"""
        select i, c, j, x from (select l.i, l.c, r.j, r.x, row_number() over (partition by l.i order by r.t desc) n
        from l join r on {_KEYED}) where n = 1""",
    "first of a window, outer, other names": f"""
        select i, j as z from (select i, j, row_number() over (partition by i, k order by c, s desc) n
        from (select l.i, l.k, l.c, r.j, r.t s from l left join r on {_KEYED})) where n < 2""",
    "first of a window, ties": """
        select i, j from (select l.i, e.j, row_number() over (partition by l.i order by e.t desc, e.x nulls last, e.j) n
        from e join l on e.k = l.k and e.t <= l.t) where n <= 1""",
    "first of a window, ties, keys of which some are -0.0": """
        select i, j from (select l.i, e.j, row_number() over (partition by l.i order by e.t desc, e.x nulls last, e.j) n
        from l left join e on e.f = l.f and e.t <= l.t) where n = 1""",
    "first of a window, ties, a key that Spark computes": """
        select i, j from (select l.i, e.j, row_number() over (partition by l.i order by e.t desc, e.x nulls last, e.j) n
        from l left join e on regexp_count(e.s, '.') = l.k and e.t <= l.t) where n = 1""",
    "correlated subquery": f"select i, (select max(r.t) from r where {_KEYED}) m from l",
    "correlated subquery of filtered rows": """
        select i, (select min(r.t) from r where r.k = l.k and r.t > l.t and r.j > 4) m from l where c > 1""",
    "lateral": f"""
        select l.i, s.j, s.x from l, lateral (select * from r where {_KEYED} order by r.t desc limit 1) s""",
    "outer lateral": f"""
        select l.i, s.j from l left join lateral (select * from r where {_KEYED} order by r.t desc limit 1) s""",
}  # fmt: skip


LONGER = (
    "max by", "within, outer", "within, inner", "within a number",
    "within a number that may overflow, outer, tested first", "null-safe key, numbers of two widths",
    "first of a window, ties", "correlated subquery", "lateral", "max of a group", "within an interval",
    "first of a window", "outer lateral",
)  # fmt: skip
"""Queries of the form of others, with more around it."""
SHORT = [name for name in QUERIES if name not in LONGER]


@pytest.mark.parametrize(("disabled", "names"), shared_out(QUERIES, SHORT, ("", "scan")))
def test_recognised(tables: SparkSession, disabled: str, names: tuple[str, ...]) -> None:
    """From files, and from rows of Spark's, with scans ``disabled``."""
    tables.conf.set("spark.gpujoin.disable", disabled)
    for found in check_all({name: tables.sql(QUERIES[name]) for name in names}).values():
        shapes = [join.shape for join in found.joins]
        assert shapes.count(Shape.AS_OF.value) == 1, str(found)
        assert not {Shape.RANGE.value, Shape.PRODUCT.value} & set(shapes)
        islands = [island for island in found.islands if "as-of (" in str(island.tree)]
        assert len(islands) == 1


UNORDERED = {
    "lateral of another column": (
        f"select l.*, s.x from l, lateral (select r.x from r where {_KEYED} order by r.t desc limit 1) s",
        f"select l.i, l.k, l.c, l.f, l.t, l.n, l.d, max_by(r.x, r.t) from l join r on {_KEYED} group by all",
    ),
    "lateral of another column, outer, forward, without keys": (
        "select l.i, s.j, s.x from l left join lateral (select j, x from r where r.n > l.n order by r.n limit 1) s",
        "select l.i, min_by(r.j, r.n), min_by(r.x, r.n) from l left join r on r.n > l.n group by l.i, l.n",
    ),
    "lateral of another column, ties": (
        """select l.i, s.j from l, lateral (select e.j from e where e.k = l.k and e.t <= l.t
        order by e.t desc, e.x nulls last, e.j limit 1) s""",
        """select i, j from (
        select l.i, e.j, row_number() over (partition by l.i order by e.t desc, e.x nulls last, e.j) n
        from e join l on e.k = l.k and e.t <= l.t) where n = 1""",
    ),
    "correlated subquery of another column": (
        f"select i, (select r.j from r where {_KEYED} order by r.t desc limit 1) j from l",
        f"select l.i, max_by(r.j, r.t) from l left join r on {_KEYED} group by l.i",
    ),
    "lateral of another column, within": (
        """select l.i, s.j from l, lateral (select r.j from r where r.k = l.k and r.d <= l.d and r.d > date_sub(l.d, 2)
        order by r.d desc limit 1) s""",
        """select l.i, max_by(r.j, r.d) from l join r on r.k = l.k and r.d <= l.d and r.d > date_sub(l.d, 2)
        group by l.i""",
    ),
}  # fmt: skip
"""Spark sorts below a window without an order: its own answer is right by luck at best. Another spelling's is."""


AT_THE_END = {
    "a match": ("array(int(-2147483648), 7)", "r.n <= l.n and r.n >= l.n - 5", True),
    "no match": ("array(int(-2147483640), 7)", "r.n <= l.n and r.n >= l.n - 5", False),
    "tested first": ("array(int(-2147483640), 7)", "r.n between l.n - 5 and l.n", True),
    "tested first, strictly": ("array(2147483647, 7)", "r.n > l.n - 5 and r.n < l.n", True),
    "tested first, no match by key": ("array(int(null))", "r.n between l.n - 5 and l.n", False),
    "forward, tested first": ("array(5, 7)", "r.n <= l.m + 5 and r.n >= l.m", True),
    "forward, no match": ("array(5, 7)", "r.n >= l.m and r.n <= l.m + 5", False),
}
"""Values of r, the condition, and whether Spark fails on a row of l near the end of its type."""


_BRIEF = ("no match", "forward, tested first")


@pytest.mark.parametrize("name", brief(AT_THE_END, *_BRIEF))
def test_tolerances_fail_where_spark_fails(spark: SparkSession, name: str) -> None:
    values, condition, fails = AT_THE_END[name]
    extreme = "min" if "m" in condition.replace("l.n", "").replace("r.n", "") else "max"
    text = f"""select l.i, {extreme}(r.n) from (select * from values (1, int(-2147483647), int(2147483646)), (2, 9, 9)
      as t(i, n, m)) l join (select explode({values}) n) r on {condition} group by l.i"""
    for name, value in (("spark.gpujoin.backend", "cpu"), ("spark.sql.ansi.enabled", "true")):
        spark.conf.set(name, value)
    native = spark.sql(text)
    found = rewrite(native)
    assert [join.shape for join in found.explanation.joins] == [Shape.AS_OF.value], str(found.explanation)
    for frame in (native, found.frame):
        if fails:
            with pytest.raises(Exception, match=r"(?i)overflow"):
                frame.toArrow()
    if not fails:
        assert_same_rows(found.frame.toArrow(), native.toArrow(), allow_empty=True)


def distinct(rows: pa.Table) -> pa.Table:
    return rows.group_by(rows.column_names).aggregate([])


@pytest.mark.parametrize(
    ("name", "disabled"),
    [
        pytest.param(name, disabled, marks=[] if brief else pytest.mark.slow)
        for number, name in enumerate(UNORDERED)
        for disabled, brief in (("", number == 0), ("scan", number == 1))
    ],
)
def test_recognised_of_unordered_windows(tables: SparkSession, name: str, disabled: str) -> None:
    text, same = UNORDERED[name]
    expected = distinct(tables.sql(same).toArrow())
    count = tables.sql(text).count()
    tables.conf.set("spark.gpujoin.disable", disabled)
    native = tables.sql(text)
    found = rewrite(native)
    assert found.frame.schema == native.schema
    got = found.frame.toArrow()
    assert got.num_rows == count
    assert_same_rows(distinct(got), expected.rename_columns(got.column_names), check_nullability=False)
    shapes = [join.shape for join in found.explanation.joins]
    assert shapes.count(Shape.AS_OF.value) == 1, str(found.explanation)
    assert not {Shape.RANGE.value, Shape.PRODUCT.value} & set(shapes)
    plan = str(found.frame._jdf.queryExecution().optimizedPlan().toString())
    assert not re.search(r"Sort \[(?!p#)", plan), "the order within a window's rows is not asked for any more"


def test_any_row(tables: SparkSession) -> None:
    """Where any match will do, the nearest does."""
    native = tables.sql(f"select l.i, any_value(r.j) j, first(r.t) t from l join r on {_KEYED} group by l.i")
    found = rewrite(native)
    assert [join.shape for join in found.explanation.joins] == [Shape.AS_OF.value]
    pairs = tables.sql(f"select l.i, struct(r.j, r.t) s from l join r on {_KEYED}").toArrow().to_pylist()
    got = found.frame.toArrow().to_pylist()
    assert {row["i"] for row in got} == {row["i"] for row in pairs}
    for row in got:
        assert {"i": row["i"], "s": {"j": row["j"], "t": row["t"]}} in pairs


def test_accelerated_above_a_window_without_order(tables: SparkSession) -> None:
    """Spark refuses to analyze such a window again as it is."""
    text = f"select l.i, s.x from l, lateral (select r.x from r where {_KEYED} order by r.t desc limit 2) s"
    tables.conf.set("spark.gpujoin.disable", "scan")
    found = rewrite(tables.sql(text))
    assert Shape.RANGE.value in [join.shape for join in found.explanation.joins if join.accelerated]
    assert found.frame.count() == tables.sql(text).count()


def test_switched_off(tables: SparkSession) -> None:
    """The join is as it was written then, and so is the aggregation."""
    tables.conf.set("spark.gpujoin.disable", "as-of join")
    found = check(tables.sql(QUERIES["max of a group"]))
    assert [join.shape for join in found.joins if join.accelerated] == [Shape.EQUALITY.value]


def test_distances_of_a_column_in_an_island(tables: SparkSession) -> None:
    """The side that is searched is the one that does not give the distance, though it is the larger one."""
    text = "select l.i, r.j from l join r on abs(l.c - r.j) <= l.n - 10"
    found = check(tables.sql(text))
    (island,) = found.islands
    assert [join.shape for join in found.joins] == [Shape.RANGE.value], str(island.tree)


LEFT_ALONE = {
    "rank keeps ties": f"""
        select i, j from (select l.i, r.j, rank() over (partition by l.i order by r.t desc) n from l join r on {_KEYED})
        where n = 1""",
    "the first two": f"""
        select i, j from (select l.i, r.j, row_number() over (partition by l.i order by r.t desc) n
        from l join r on {_KEYED}) where n <= 2""",
    "the farthest": f"""
        select i, j from (select l.i, r.j, row_number() over (partition by l.i order by r.t) n
        from l join r on {_KEYED}) where n = 1""",
    "something else of the window": f"""
        select i, j, m from (select l.i, r.j, row_number() over (partition by l.i order by r.t desc) n,
        count(*) over (partition by l.i order by r.t desc) m from l join r on {_KEYED}) where n = 1""",
    "partitions of the other side": f"""
        select i, j from (select l.i, r.j, row_number() over (partition by l.i, r.x order by r.t desc) n
        from l join r on {_KEYED}) where n = 1""",
    "counted": f"select l.i, max(r.t), count(*) from l join r on {_KEYED} group by l.i",
    "another column's": f"select l.i, max(r.t), max(r.x) from l join r on {_KEYED} group by l.i",
    "the least of those before": f"select l.i, min(r.t) from l join r on {_KEYED} group by l.i",
    "the first that is not null": f"select l.i, first(r.x, true) from l join r on {_KEYED} group by l.i",
    "lateral, the farthest": f"""
        select l.i, s.x from l, lateral (select r.x from r where {_KEYED} order by r.t limit 1) s""",
    "lateral, the first two": f"""
        select l.i, s.x from l, lateral (select r.x from r where {_KEYED} order by r.t desc limit 2) s""",
    "lateral, may fail on a row that is not taken": f"""
        select l.i, s.x from l, lateral (select 10 div r.x x from r where {_KEYED} order by r.t desc limit 1) s""",
    "filtered": f"select l.i, max(r.t) filter (where r.x > 3) from l join r on {_KEYED} group by l.i",
    "groups of the other side": f"select l.i, r.x, max(r.t) from l join r on {_KEYED} group by l.i, r.x",
    "a rest of both sides": f"select l.i, max(r.t) from l join r on {_KEYED} and r.j <> l.c group by l.i",
    "floats: NaN": "select l.i, max(r.f) from l join r on r.k = l.k and r.f <= l.f group by l.i",
    "the other side preserved": f"select l.i, max(r.t) from l right join r on {_KEYED} group by l.i",
    "not the same every time": f"""
        select i, u from (select l.i, rand() u, row_number() over (partition by l.i order by r.t desc) n
        from l join r on {_KEYED}) where n = 1""",
    "may fail on a row that is not taken": f"""
        select l.i, max_by(10 div r.x, r.t) from l join r on {_KEYED} group by l.i""",
    "values of other rows": """
        select l.i, s.m from l join (select d.t, r.k, max(r.t) m from (select distinct t from l where c > 1) d
        join r on r.t <= d.t group by d.t, r.k) s on s.t <=> l.t and s.k = l.k""",
    "groups by less than the join's keys": """
        select l.i, s.m from l join (select d.t, max(r.t) m, max_by(r.k, r.t) k from (select distinct t from l) d
        join r on r.t <= d.t group by d.t) s on s.t <=> l.t and s.k = l.k""",
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(tables: SparkSession, name: str) -> None:
    """Planned only: the range joins that these are have tests of their own."""
    tables.conf.set("spark.sql.ansi.enabled", "true")
    tables.conf.set("spark.gpujoin.disable", "scan")
    found = rewrite(tables.sql(LEFT_ALONE[name]), Purpose.EXPLAIN).explanation
    assert found.joins or found.reasons
    as_of = [join for join in found.joins if join.shape == Shape.AS_OF.value]
    # The latest of each time, whatever its key, is what this one asks for.
    wanted = [()] if name == "groups by less than the join's keys" else []
    assert [join.keys for join in as_of] == wanted, str(found)
