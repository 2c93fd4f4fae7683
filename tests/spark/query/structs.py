"""Queries in which nested values come together whose types differ in names, in case and in nullability alone.

They are crossed, not listed: shapes of values × types of the first and of the second operand × whatever brings two
values together. Spark says which of them it takes: a query that it refuses is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_POOL = (
    "named_struct('a', 1, 'b', 5)", "named_struct('a', 1, 'b', cast(null as int))", "named_struct('a', 2, 'b', 0)",
    "null", "named_struct('a', cast(null as int), 'b', cast(null as int))",
)  # fmt: skip
SHAPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "struct": ("struct<a: int, b: int>", ("{0}", "{1}", "{2}", "null", "{4}")),
    "list": (
        "array<struct<a: int, b: int>>", ("array({0}, {2})", "array()", "null", "array(null, {1})", "array({4})"),
    ),
    "map": (
        "map<string, struct<a: int, b: int>>",
        ("map('p', {0}, 'q', {2})", "map()", "null", "map('p', null)", "map('q', {1}, 'r', {4})"),
    ),
    "deep": (
        "struct<x: struct<a: int, b: int>, y: array<struct<a: int, b: int>>>",
        ("struct({0}, array({1}, {2}))", "struct({1}, array())", "struct(null, null)", "null",
         "struct({4}, array(null))"),
    ),
    "keys": (
        "map<struct<a: int, b: int>, int>",
        ("map({0}, 1, {2}, null)", "map()", "null", "map({1}, 7)", "map({4}, 3, {0}, 0)"),
    ),
    "lists": (
        "array<array<struct<a: int, b: int>>>",
        ("array(array({0}, {2}), array())", "array()", "null", "array(null, array({1}))", "array(array({4}))"),
    ),
}  # fmt: skip
"""A type, and five values of it, where ``{0}`` to ``{4}`` are structs."""
_SWAPPED = {"a": "b", "b": "a", "x": "y", "y": "x"}
NAMES: dict[str, Callable[[str], str]] = {"plain": str, "case": str.upper, "names": lambda name: _SWAPPED[name]}
"""What fields are called in the columns of each name; ``{shape}_{name}`` is a column."""
_STEPS = {"plain": 1, "case": 2, "names": 3}
_CONSTANT = "cast(9 as int)"
_MADE = "named_struct('a', {0}, 'b', 7)"
NEVER_NULL = {
    "struct": _MADE, "list": f"array({_MADE})", "map": f"map('p', {_MADE})",
    "deep": f"named_struct('x', {_MADE}, 'y', array({_MADE}))", "keys": f"map({_MADE}, {{0}})",
    "lists": f"array(array({_MADE}))",
}  # fmt: skip
"""Values of which no part may be null."""
OPERANDS = ("plain", "case", "names", "never null", "constant")


def operand(shape: str, name: str) -> str:
    """A value of a shape whose type differs from that of the others, as SQL."""
    if name in NAMES:
        return f"{shape}_{name}"
    return NEVER_NULL[shape].format("cast(id as int)" if name == "never null" else _CONSTANT)


_FIELD = re.compile(r"\b([abxy]):")


def _called(name: Callable[[str], str], match: re.Match[str]) -> str:
    return f"{name(match[1])}:"


def write_structs(spark: SparkSession, folder: Path) -> None:
    """Write the table of all columns that are not made, of eight rows, in two files."""
    columns = ["id", "cast(id % 3 as int) as g", "if(id = 4, null, cast(id % 2 as int)) as i"]
    for shape, (dtype, values) in SHAPES.items():
        for name, called in NAMES.items():
            renamed = _FIELD.sub(partial(_called, called), dtype)
            made = (value.format(*_POOL) for value in values)
            branches = " ".join(f"when {n} then cast({value} as {renamed})" for n, value in enumerate(made))
            columns.append(f"case (id * {_STEPS[name]}) % 5 {branches} end as {shape}_{name}")
    spark.sql(f"select {', '.join(columns)} from range(8)").repartition(2, "g").write.parquet(str(folder / "st"))
    spark.sql("select cast(id as int) as g, id * 10 as item from range(3)").write.parquet(str(folder / "few"))


# -- what brings two values together ---------------------------------------------------------------------------

TOGETHER = (
    "if(i > 0, {P}, {Q})", "case when i = 0 then {P} when i = 1 then {Q} end", "coalesce({P}, {Q})",
    "nvl2(i, {P}, {Q})", "nullif({P}, {Q})", "decode(i, 1, {P}, {Q})", "array({P}, {Q})", "map('p', {P}, 'q', {Q})",
    "struct(if(id > 3, {P}, {Q}), {Q})", "array_append(array({P}), {Q})", "array_prepend(array({P}), {Q})",
    "array_insert(array({P}), 1, {Q})", "concat(array({P}), array({Q}))", "array_union(array({P}), array({Q}))",
    "array_intersect(array({P}, {P}), array({Q}))", "array_except(array({P}), array({Q}))",
    "arrays_overlap(array({P}), array({Q}))", "array_remove(array({P}, {P}), {Q})", "array_position(array({P}), {Q})",
    "array_contains(array({P}), {Q})", "arrays_zip(array({P}), array({Q}, {Q}))",
    "flatten(array(array({P}), array({Q})))", "map_concat(map(1, {P}), map(2, {Q}))",
    "map_from_arrays(array(1, 2), array({P}, {Q}))",
    "map_from_entries(array(struct(1, {P}), struct(2, {Q})))",
    "map_from_entries(transform(array_compact(array({P})), e -> struct(e, 1)))[{Q}]",
    "transform(array(0, 1), e -> if(e > 0, {P}, {Q}))", "transform(array({P}, {Q}), (e, n) -> if(n = 0, e, {Q}))",
    "filter(array({P}, {Q}), e -> e is not null)", "exists(array({P}, {Q}), e -> e <=> {Q})",
    "forall(array({P}, {Q}), e -> e <=> {P})", "zip_with(array({P}), array({Q}, {Q}), (x, y) -> coalesce(x, y))",
    "zip_with(array(1, 2), array(1), (x, y) -> if(y is null, {P}, {Q}))", "aggregate(array(1, 2), {P}, (a, x) -> {Q})",
    "aggregate(array(1, 2), {P}, (a, x) -> if(x = 1, {Q}, a))", "aggregate(array({P}, {Q}), {P}, (a, x) -> x)",
    "reduce(array({P}), {Q}, (a, x) -> coalesce(x, a))", "aggregate(array(1), {P}, (a, x) -> {Q}, a -> struct(a))",
    "transform_values(map(1, {P}), (k, v) -> coalesce(v, {Q}))",
    "map_filter(map(1, {P}, 2, {Q}), (k, v) -> v <=> {Q})",
    "map_zip_with(map(1, {P}), map(1, {Q}, 2, {Q}), (k, x, y) -> coalesce(x, y))",
    """map_zip_with(map_from_entries(transform(array_compact(array({P})), e -> struct(e, 1))),
        map_from_entries(transform(array_compact(array({Q})), e -> struct(e, 2))), (k, x, y) -> struct(k, x, y))""",
    "{P} = {Q}", "{P} <=> {Q}", "{P} < {Q}", "{P} <= {Q}", "{P} > {Q}", "{P} >= {Q}", "{P} <> {Q}", "{P} in ({Q}, {P})",
    "greatest({P}, {Q})", "least({P}, {Q})",
    "case {P} when {Q} then 1 else 2 end", "array_sort(array({P}, {Q}))", "sort_array(array({P}, {Q}))",
    "array_min(array({P}, {Q}))", "array_distinct(array({P}, {Q}))", "array_repeat(if(id > 2, {P}, {Q}), 2)",
    "slice(array({P}, {Q}), 2, 1)", "reverse(array({P}, {Q}))", "element_at(array({P}, {Q}), -1)",
    "map('p', {P}, 'q', {Q})['q']", "map_entries(map(1, {P}, 2, {Q}))", "array_compact(array({P}, {Q}))",
    "coalesce(if(id > 4, {P}, null), if(id > 2, {Q}, null), {P})",
)  # fmt: skip
OF_FIELDS = (
    "if(i > 0, {P}, {Q}).{f}", "array({P}, {Q}).{f}", "array({P}, {Q})[1].{f}",
    "filter(array({P}, {Q}), e -> e.{f} is not null)", "transform(array({P}, {Q}), e -> struct(e.{f}, e))",
    "map('p', {P}, 'q', {Q})['q'].{f}", "aggregate(array(1, 2), {P}, (a, x) -> {Q}).{f}",
    "aggregate(array(1, 2), {P}, (a, x) -> if(a.{f} is null, {Q}, a))", "concat(array({P}), array({Q})).{f}",
    "zip_with(array({P}), array({Q}), (x, y) -> struct(x.{f} u, y.{h} w))",
    "exists(array({P}, {Q}), e -> e.{f} is null)",
    "map_filter(map(1, {P}, 2, {Q}), (k, v) -> v.{f} is not null)", "greatest({P}, {Q}).{f}",
)  # fmt: skip
"""Those that read the first field, which is called ``{f}`` in the first operand and ``{h}`` in the second."""
OF_LISTS = (
    "concat({P}, {Q})", "array_union({P}, {Q})", "array_intersect({P}, {Q})", "array_except({P}, {Q})",
    "flatten(array({P}, {Q}))", "arrays_zip({P}, {Q})", "zip_with({P}, {Q}, (x, y) -> coalesce(x, y))",
    "array_append({P}, try_element_at({Q}, 1))", "array_contains({P}, try_element_at({Q}, 1))",
    "transform({P}, e -> coalesce(e, try_element_at({Q}, 1)))", "filter({P}, e -> array_contains({Q}, e))",
    "aggregate({P}, try_element_at({Q}, 1), (a, x) -> coalesce(x, a))",
)  # fmt: skip
OF_MAPS = (
    "map_concat({P}, transform_keys({Q}, (k, v) -> concat(k, '2')))",
    "map_zip_with({P}, {Q}, (k, x, y) -> coalesce(x, y))",
    "transform_values({P}, (k, v) -> coalesce(v, {Q}['p']))", "concat(map_values({P}), map_values({Q}))",
    "map_from_entries(concat(map_entries({P}), transform(map_entries({Q}), e -> struct(concat(e.key, '3'), e.value))))",
)  # fmt: skip
QUERIES = {
    "union": """select id, v, item from (select id, g, {P} v from st union all select id, g, {Q} from st)
        join few using (g)""",
    "union in groups": """select v, count(*), max(id) from (select id, {P} v from st union all select id, {Q} from st)
        group by v""",
    "distinct union": "select {P} v from st union select {Q} from st",
    "intersect": "select {P} v from st intersect select {Q} from st",
    "except": "select {P} v from st except select {Q} from st",
    "except all": "select {P} v from st except all select {Q} from st",
    "groups": "select if(i > 0, {P}, {Q}) v, count(*), min(id) from st group by 1",
    "least and greatest": """select g, min(if(i > 0, {P}, {Q})), max(coalesce({P}, {Q})),
        count(distinct nvl2(i, {P}, {Q})) from st group by g""",
    "by another": "select g, max_by(if(i > 0, {P}, {Q}), id), min_by(coalesce({Q}, {P}), id) from st group by g",
    "collected": """select g, sort_array(collect_list(coalesce({P}, {Q}))), sort_array(collect_set({Q}))
        from st group by g""",
    "join": "select a.id, b.id from (select id, {P} v from st) a join (select id, {Q} v from st) b on a.v = b.v",
    "full join": """select * from (select id, {P} v from st) a
        full join (select id j, {Q} v from st where id > 2) b using (v)""",
    "anti join": """select a.id from (select id, {P} v from st) a
        left anti join (select {Q} v from st where id > 2) b using (v)""",
    "subquery": "select id from (select id, {P} v from st) where v in (select {Q} from st where id > 3)",
    "partitions": "select id, row_number() over (partition by if(i > 0, {P}, {Q}) order by id) from st",
    "order": "select id, row_number() over (partition by g order by coalesce({P}, {Q}), id) from st",
    "first rows": """select id, item, coalesce({P}, {Q}) v from st join few using (g)
        order by if(i > 0, {P}, {Q}), id limit 5""",
    "elements": "select id, e, item from (select id, g, explode(array({P}, {Q})) e from st) join few using (g)",
    "stack": "select n, v, item from (select g, stack(2, 1, {P}, 2, {Q}) as (n, v) from st) join few using (g)",
    "pivot": "select * from (select g, i, {P} p, {Q} q from st) pivot (max(coalesce(p, q)) for i in (0, 1))",
    "rollup": "select g, v, count(*) from (select g, if(i > 0, {P}, {Q}) v from st) group by rollup(g, v)",
    "both sides": """select id, case when id > 3 then v when id > 1 then w end from (select id, {P} v from st)
        join (select id, {Q} w from st) using (id)""",
}
PASSED_ON = {
    "neighbours": """select s.id, item, lead({P}, 1, {Q}) over (partition by g order by s.id) x,
        lag({P}, 2, {Q}) over (partition by g order by s.id) y from st s join few using (g)""",
    "of frames": """select s.id, item, first_value(coalesce({P}, {Q})) over (partition by g order by s.id) x
        from st s join few using (g)""",
}
"""Queries of which Spark computes the windows."""
FIELD_QUERIES = {
    "fields of a union": "select v.{f}, count(*) from (select {P} v from st union all select {Q} from st) group by 1",
    "filter": """select id, v.{f}, item from (select id, g, {P} v from st union all select id, g, {Q} from st)
        join few using (g) where v.{f} is null or v.{f} > {Z}""",
    "fields of elements": "select e.{f}, count(*) from st lateral view explode(array({P}, {Q})) as e group by 1",
    "inline": "select * from (select id, g, inline(array({P}, {Q})) from st) join few using (g)",
    "fields of a full join": """select v.{f} from (select {P} v from st) a
        full join (select {Q} v from st where id > 2) b using (v)""",
}


def calls(shape: str, first: str, second: str) -> Iterator[str]:
    """Expressions over the table ``st`` that bring two operands together."""
    kinds = [*TOGETHER]
    if shape in ("struct", "deep"):
        kinds += OF_FIELDS
    kinds += {"list": OF_LISTS, "lists": OF_LISTS, "map": OF_MAPS}.get(shape, ())
    return (filled(kind, shape, first, second) for kind in kinds)


def queries(shape: str, first: str, second: str) -> dict[str, str]:
    """Queries over the tables ``st`` and ``few`` that bring two operands together."""
    kinds = QUERIES | (FIELD_QUERIES if shape in ("struct", "deep") else {})
    return {name: filled(kind, shape, first, second) for name, kind in kinds.items()}


def filled(kind: str, shape: str, first: str, second: str) -> str:
    """An expression or a query over two operands."""
    field = "x" if shape == "deep" else "a"
    fields = [NAMES.get(name, str)(field) for name in (first, second)]
    return kind.format(
        P=operand(shape, first), Q=operand(shape, second), f=fields[0], h=fields[1], Z="0" if field == "a" else "null"
    )


def accepted(spark: SparkSession, texts: list[str], query: Callable[[list[str]], str]) -> list[str]:
    """Those of some expressions that Spark takes; they are asked for together, and by halves where it refuses some."""
    if not texts:
        return []
    try:
        spark.sql(query(texts)).schema  # noqa: B018 - analyzes it
    except PySparkException:
        half = len(texts) // 2
        return accepted(spark, texts[:half], query) + accepted(spark, texts[half:], query) if half else []
    return texts
