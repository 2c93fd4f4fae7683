"""Functions of arrays and maps, over values of each type, against Spark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gpujoin.errors import ExpressionEvaluationError, UnsupportedValueError
from gpujoin.functions.elements import Lists
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.maps import maps_of
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import EvalMode, Expression, Function, Variable, call, coalesce, left, lit, when
from gpujoin.plan.resolve import resolve_value
from gpujoin.testing import assert_same_rows, cells
from tests.expressions.judge import Judge

ROWS = 250
ITEMS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [None, 0, 1, -1, 2**31 - 1, -(2**31)]),
    "f": (pa.float64(), [None, 0.0, -0.0, 1.5, math.nan, math.inf, -math.inf]),
    "s": (pa.string(), [None, "", "a", "A", "ü", "😀", "a,b"]),
    "d": (pa.date32(), [None, 0, -1, 2**31 - 1, -(2**31)]),
    "n": (pa.decimal128(20, 2), [None, 0, 1, -1, 10**17]),
}


def table() -> pa.Table:
    """A list, a map and a value of each type, and numbers of elements: the same values in each run."""
    rng = np.random.default_rng(44)
    columns: dict[str, pa.Array] = {"number": pa.array([None, *rng.integers(-4, 5, ROWS)][:ROWS], pa.int32())}
    letters = ["".join(row) for row in rng.choice(list("ab,|ü"), (ROWS, 5))]
    columns["csv"] = pa.array([None, *(row[: n % 6] for n, row in enumerate(letters))][:ROWS])
    for name, (dtype, values) in ITEMS.items():
        made = pa.array(values, pa.int32() if pa.types.is_date(dtype) else dtype).cast(dtype)
        lengths = rng.choice([0, 0, 1, 2, 3, 5], ROWS)
        offsets = pa.array([0, *np.cumsum(lengths)], pa.int32())
        mask = pa.array(rng.random(ROWS) < 0.15)
        total = int(lengths.sum())
        columns[f"{name}s"] = pa.ListArray.from_arrays(
            offsets, made.take(pa.array(rng.integers(0, len(made), total))), mask=mask
        )
        keys = made.take(pa.array(1 + rng.integers(0, len(made) - 1, total)))
        columns[f"{name}m"] = pa.MapArray.from_arrays(offsets, keys, pa.array(np.arange(total)), mask=mask)
        columns[name] = made.take(pa.array(rng.integers(0, len(made), ROWS)))
    structs = pa.StructArray.from_arrays(
        [columns["i"], columns["s"]], ["a", "b"], mask=pa.array(rng.random(ROWS) < 0.2)
    )
    lengths = rng.choice([0, 1, 2], ROWS)
    offsets = pa.array([0, *np.cumsum(lengths)], pa.int32())
    taken = structs.take(pa.array(rng.integers(0, ROWS, int(lengths.sum()))))
    columns["structs"] = pa.ListArray.from_arrays(offsets, taken, mask=pa.array(rng.random(ROWS) < 0.2))
    absent = pa.array(rng.random(ROWS) < 0.2)
    floats = pa.StructArray.from_arrays([columns["f"], columns["ss"]], ["f", "l"], mask=absent)
    offsets = pa.array([0, *np.cumsum(rng.choice([0, 1, 3, 6], ROWS))], pa.int32())
    picked = floats.take(pa.array(rng.integers(0, 40, offsets[-1].as_py())))
    columns["deeps"] = pa.ListArray.from_arrays(offsets, picked, mask=pa.array(rng.random(ROWS) < 0.2))
    for name in (*ITEMS, "struct", "deep"):
        others = columns[f"{name}s"].take(pa.array(rng.permutation(ROWS)))
        columns[f"{name}t"] = pc.if_else(pa.array(rng.random(ROWS) < 0.3), columns[f"{name}s"], others)
        columns.setdefault(name, columns[f"{name}s"].flatten().take(pa.array(rng.integers(0, 9, ROWS))))
    columns["place"] = pa.array(rng.choice([-7, -3, -2, -1, 1, 2, 3, 7], ROWS), pa.int32(), mask=rng.random(ROWS) < 0.1)
    columns["count"] = pa.array(rng.choice([0, 1, 2, 9], ROWS), pa.int32(), mask=rng.random(ROWS) < 0.1)
    return _table(columns)


def _table(columns: dict[str, pa.Array]) -> pa.Table:
    """A table for a judge; arrays begin in the midst of others, so that offsets do not begin at 0."""
    rows = min(map(len, columns.values())) - 7
    numbered = {f"left_{name}": values.slice(7, rows) for name, values in columns.items()}
    return pa.table({"id": pa.array(range(rows), pa.int32()), **numbered})


CALLS: dict[str, Callable[[str], Expression]] = {
    "get_item": lambda name: call(Function.GET_ITEM, left(f"{name}s"), left("number"), mode=EvalMode.LEGACY),
    "get_item constant": lambda name: call(Function.GET_ITEM, left(f"{name}s"), 1, mode=EvalMode.LEGACY),
    "element_at": lambda name: call(Function.ELEMENT_AT, left(f"{name}s"), -2, mode=EvalMode.LEGACY),
    "map_value": lambda name: call(Function.MAP_VALUE, left(f"{name}m"), left(name)),
    "size": lambda name: call(Function.SIZE, left(f"{name}s")),
    "size of a map": lambda name: call(Function.SIZE, left(f"{name}m")),
    "array": lambda name: call(Function.ARRAY, left(name), left(name)),
    "array_contains": lambda name: call(Function.ARRAY_CONTAINS, left(f"{name}s"), left(name)),
    "array_position": lambda name: call(Function.ARRAY_POSITION, left(f"{name}s"), left(name)),
    "map_keys": lambda name: call(Function.MAP_KEYS, left(f"{name}m")),
    "map_values": lambda name: call(Function.MAP_VALUES, left(f"{name}m")),
}
ORDERED: dict[str, Callable[[str], Expression]] = {
    "sort_array": lambda name: call(Function.SORT_ARRAY, left(f"{name}s")),
    "sort_array descending": lambda name: call(Function.SORT_ARRAY, left(f"{name}s"), False),
    "array_min": lambda name: call(Function.ARRAY_MIN, left(f"{name}s")),
    "array_max": lambda name: call(Function.ARRAY_MAX, left(f"{name}s")),
    "array_distinct": lambda name: call(Function.ARRAY_DISTINCT, left(f"{name}s")),
}


def present(item: str, which: str = "s") -> Expression:
    """A list without its nulls."""
    element = Variable(name="x", type=ITEMS[item][0])
    return call(Function.FILTER, left(f"{item}{which}"), call(Function.IS_NOT_NULL, element), element)


MADE: dict[str, Callable[[str], Expression]] = {
    "concat": lambda name: call(Function.CONCAT_LISTS, left(f"{name}s"), left(f"{name}t"), left(f"{name}s")),
    "flatten": lambda name: call(Function.FLATTEN, call(Function.ARRAY, left(f"{name}s"), left(f"{name}t"))),
    "reverse": lambda name: call(Function.REVERSE_LIST, left(f"{name}s")),
    "slice": lambda name: call(Function.SLICE, left(f"{name}s"), left("place"), left("count")),
    "slice constant": lambda name: call(Function.SLICE, left(f"{name}s"), -3, 2),
    "array_repeat": lambda name: call(Function.ARRAY_REPEAT, left(name), left("number")),
    "array_repeat of lists": lambda name: call(Function.ARRAY_REPEAT, left(f"{name}s"), left("number")),
    "array_append": lambda name: call(Function.ARRAY_APPEND, left(f"{name}s"), left(name)),
    "array_prepend": lambda name: call(Function.ARRAY_PREPEND, left(f"{name}s"), left(name)),
    "arrays_zip": lambda name: call(Function.ARRAYS_ZIP, left(f"{name}s"), left("ss"), left(f"{name}t")),
    "coalesce": lambda name: coalesce(left(f"{name}s"), left(f"{name}t")),
}
OF_VALUES: dict[str, Callable[[str], Expression]] = {
    "array_remove": lambda name: call(Function.ARRAY_REMOVE, left(f"{name}s"), left(name)),
    "map_entries": lambda name: call(Function.MAP_ENTRIES, left(f"{name}m")),
}


def _of_both(function: Function) -> Callable[[str], Expression]:
    return lambda name: call(function, left(f"{name}s"), left(f"{name}t"))


COMPARED: dict[str, Callable[[str], Expression]] = {
    function.value: _of_both(function)
    for function in (
        Function.EQ, Function.NE, Function.LT, Function.GE, Function.EQ_NULL_SAFE, Function.GREATEST, Function.LEAST,
        Function.IN,
    )
} | {
    "contains": lambda name: call(
        Function.ARRAY_CONTAINS, call(Function.ARRAY, left(f"{name}t"), left(f"{name}t")), left(f"{name}s")
    ),
    "struct": lambda name: call(Function.NAMED_STRUCT, "a", left(f"{name}s"), "b", left("i"))
    <= call(Function.NAMED_STRUCT, "a", left(f"{name}t"), "b", left("number")),
}  # fmt: skip
SETS: dict[str, Callable[[str], Expression]] = {
    function.value: _of_both(function)
    for function in (
        Function.ARRAY_UNION, Function.ARRAY_INTERSECT, Function.ARRAY_EXCEPT, Function.ARRAYS_OVERLAP
    )
}  # fmt: skip
MAPS: dict[str, Callable[[str], Expression]] = {
    "map_from_arrays": lambda name: call(Function.MAP_FROM_ARRAYS, present(name), present(name), True),
    "map_from_entries": lambda name: call(
        Function.MAP_FROM_ENTRIES, call(Function.MAP_ENTRIES, left(f"{name}m")), True
    ),
    "map_from_entries of several maps": lambda name: call(
        Function.MAP_FROM_ENTRIES,
        call(
            Function.CONCAT_LISTS,
            *(
                call(Function.MAP_ENTRIES, call(Function.MAP_FROM_ARRAYS, keys, keys, True))
                for keys in (present(name), present(name, "t"))
            ),
        ),
        True,
    ),
}
SORTED: dict[str, Callable[[str], Expression]] = {
    "array_sort": lambda name: call(Function.ARRAY_SORT, left(f"{name}s")),
    "array_min": ORDERED.pop("array_min"),
    "array_max": ORDERED.pop("array_max"),
}
OTHERS = {
    "array_join": call(Function.ARRAY_JOIN, left("ss"), left("s")),
    "array_join with nulls": call(Function.ARRAY_JOIN, left("ss"), ", ", left("csv")),
    "named_struct": call(Function.NAMED_STRUCT, "a", left("i"), "b", left("ss")),
    "get_fields": call(Function.GET_FIELDS, left("structs"), "b"),
    "split": call(Function.SPLIT, left("csv"), ","),
    "split by a class": call(Function.SPLIT, left("csv"), "[,|]+", -1),
    "split in two": call(Function.SPLIT, left("csv"), r"\|", 2),
    "split by a text": call(Function.SPLIT, left("csv"), r"b\,"),
    "split by a letter": call(Function.SPLIT, left("csv"), "ü", -1),
    "item of a split": call(Function.GET_ITEM, call(Function.SPLIT, left("csv"), ","), 0, mode=EvalMode.LEGACY),
    "case of lists": when(left("number") > 0, left("ss"))
    .when(left("i") == 0, call(Function.ARRAY, left("s")))
    .else_(None),
    "case of structs with lists": when(
        left("number") > 0, call(Function.NAMED_STRUCT, "a", left("ds"), "b", left("s"))
    ).else_(None),
    "array of constants": call(Function.ARRAY, 1, 2),
}


LAMBDAS: dict[str, Callable[[str, Variable, Variable], Expression]] = {
    "transform": lambda name, x, n: call(Function.TRANSFORM, left(f"{name}s"), x.equal_null_safe(left(name)), x, n),
    "transform to the element": lambda name, x, _: call(Function.TRANSFORM, left(f"{name}s"), x, x),
    "transform to the number": lambda name, x, n: call(Function.TRANSFORM, left(f"{name}s"), n - left("i"), x, n),
    "transform to a constant": lambda name, x, _: call(Function.TRANSFORM, left(f"{name}s"), "ü", x),
    "filter": lambda name, x, _: call(Function.FILTER, left(f"{name}s"), x >= left(name), x),
    "filter by the number": lambda name, x, n: call(Function.FILTER, left(f"{name}s"), n < left("number"), x, n),
    "filter by a constant": lambda name, x, _: call(Function.FILTER, left(f"{name}s"), True, x),
    "exists": lambda name, x, _: call(Function.EXISTS, left(f"{name}s"), x == left(name), x),
    "forall": lambda name, x, _: call(Function.FORALL, left(f"{name}s"), x <= left(name), x),
    "case": lambda name, x, _: call(
        Function.TRANSFORM, left(f"{name}s"), when(x == left(name), x).when(x.is_null(), left(name)).else_(None), x
    ),
    "nested": lambda name, x, n: call(
        Function.TRANSFORM,
        left(f"{name}s"),
        call(
            Function.FILTER, left(f"{name}s"), Variable(name="y", type=x.type).equal_null_safe(x) & (n > 0),
            Variable(name="y", type=x.type),
        ),
        x,
        n,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def lists(judge_of: Callable[[pa.Table], Judge]) -> Judge:
    return judge_of(table())


def _of(makers: dict[str, Callable[[str], Expression]], items: Iterable[str]) -> dict[str, list[Expression]]:
    return {name: [make(item) for item in items] for name, make in makers.items()}


def _of_variables(item: str) -> tuple[Variable, Variable]:
    return Variable(name="x", type=ITEMS[item][0]), Variable(name="n", type=pa.int32())


def _sorted_by_keys(item: str) -> list[Expression]:
    x, _ = _of_variables(item)
    keys = (x, x == left(item), when(x.is_null(), left("i")).else_(None))
    return [
        call(Function.ARRAY_SORT_BY, left(f"{item}s"), key, x, descending, nulls)
        for key in keys
        for descending in (False, True)
        for nulls in ("first", "last")
    ]


NESTED = (*ITEMS, "struct", "deep")
WITHOUT_FLOATS = [item for item in ITEMS if item != "f"]
FUNCTIONS: dict[str, list[Expression]] = {
    **_of(CALLS, ITEMS),
    **_of(ORDERED, [*WITHOUT_FLOATS, "struct"]),
    "sort_array of structs": [ORDERED["sort_array"]("deep"), ORDERED["sort_array descending"]("deep")],
    **_of(SORTED, NESTED),
    **_of(MADE, NESTED),
    **{f"compared by {name}": trees for name, trees in _of(COMPARED, NESTED).items()},
    **_of(OF_VALUES, ITEMS),
    **_of(SETS, [*WITHOUT_FLOATS, "struct"]),
    **_of(MAPS, WITHOUT_FLOATS),
    **{name: [make(item, *_of_variables(item)) for item in ITEMS] for name, make in LAMBDAS.items()},
    **{f"array_sort by keys of {item}": _sorted_by_keys(item) for item in ITEMS},
    **{name: [tree] for name, tree in OTHERS.items()},
}
LEFT_TO_SPARK = {
    **{f"{name} {item}": make(item) for name, make in SETS.items() for item in ("f", "deep")},
    **{f"{name} f": make("f") for name, make in (MAPS | ORDERED).items()},
    "array_distinct deep": ORDERED["array_distinct"]("deep"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_sparks(lists: Judge, name: str) -> None:
    lists.check(FUNCTIONS[name])


@pytest.mark.parametrize("name", LEFT_TO_SPARK)
def test_zeros_and_nans_that_are_told_apart_are_left_to_spark(lists: Judge, name: str) -> None:
    assert not is_supported(lists.resolve(LEFT_TO_SPARK[name], EvalMode.LEGACY))


EXTREMES: dict[str, tuple[pa.DataType, list[Any], tuple[Any, ...]]] = {
    "l": (pa.int64(), [None, -(1 << 63), (1 << 63) - 1, 0, 1, -1, 7], (-(1 << 63), 7)),
    "b": (pa.bool_(), [None, True, False], (True,)),
    "f": (pa.float64(), [None, math.nan, -math.inf, -0.0, 0.0, 1.5, math.inf, 5e-324], (-0.0, math.nan)),
    "s": (pa.string(), [None, "", "a", "ab", "a\0", "aa", "ü", "😀", "\uffff"], ("ab", "")),
    "w": (pa.decimal128(38, 2), [None, 0, 1, -1, 10**35, -(10**35)], ()),
    "t": (pa.timestamp("us", "UTC"), [None, 0, 1, -1, 250_000_000_000_000_000], ()),
}
"""Values with the least and the greatest of a type, and constants."""
SEARCHES = (Function.ARRAY_CONTAINS, Function.ARRAY_POSITION, Function.ARRAY_REMOVE)


def _of_extremes(name: str, constants: Iterable[Any]) -> list[Expression]:
    dtype, first, second = EXTREMES[name][0], left(f"{name}s"), left(f"{name}t")
    sought: list[Expression] = [left(name), lit(None, dtype), *(lit(value, dtype) for value in constants)]
    trees: list[Expression] = [call(function, first, value) for function in SEARCHES for value in sought]
    trees += [call(function, first) for function in (Function.ARRAY_MIN, Function.ARRAY_MAX, Function.ARRAY_SORT)]
    trees += [call(Function.REVERSE_LIST, first), call(Function.CONCAT_LISTS, first, second)]
    if name != "f":
        trees += [call(Function.SORT_ARRAY, first, True), call(Function.SORT_ARRAY, first, False)]
        trees += [call(Function.ARRAY_DISTINCT, first), *(make(name) for make in SETS.values())]
    return trees


def test_lists_of_any_length(judge_of: Callable[[pa.Table], Judge]) -> None:
    """Lists are sorted, and their values told apart, in matrices of 2, 4, 8 and more columns."""
    rng = np.random.default_rng(47)
    columns: dict[str, pa.Array] = {}
    for name, (dtype, values, _) in EXTREMES.items():
        made = pa.array(values, dtype)
        for which in "st":
            lengths = rng.choice([0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 40], ROWS)
            elements = made.take(pa.array(rng.integers(0, len(made), int(lengths.sum()))))
            offsets = pa.array([0, *np.cumsum(lengths)], pa.int32())
            columns[f"{name}{which}"] = pa.ListArray.from_arrays(
                offsets, elements, mask=pa.array(rng.random(ROWS) < 0.1)
            )
        columns[name] = made.take(pa.array(rng.integers(0, len(made), ROWS)))
    judge = judge_of(_table(columns))
    judge.check([tree for name, (_, _, constants) in EXTREMES.items() for tree in _of_extremes(name, constants)])


@pytest.mark.parametrize("keys", [[1, 1], [None, 1], [1, 2, 3]], ids=["twice", "null", "without a value"])
def test_maps_that_there_are_not_fail(keys: list[int | None]) -> None:
    schema = pa.schema([("k", pa.list_(pa.int32())), ("v", pa.list_(pa.string()))])
    batch = pa.RecordBatch.from_pylist([{"k": [1, 2], "v": ["a", "a"]}, {"k": keys, "v": ["a", None]}], schema)
    node = resolve_value(call(Function.MAP_FROM_ARRAYS, left("k"), left("v"), False), schema, schema)
    assert evaluate_column(node, batch.slice(0, 1), batch, 1).to_pylist() == [[(1, "a"), (2, "a")]]
    with pytest.raises(ExpressionEvaluationError, match=r"a key is|as many values"):
        evaluate_column(node, batch, batch, 2)


@pytest.mark.parametrize("dtype", [pa.int8(), pa.int32(), pa.int64(), pa.date32()], ids=str)
def test_sequences(judge_of: Callable[[pa.Table], Judge], dtype: pa.DataType) -> None:
    rng = np.random.default_rng(45)
    step = pa.int32() if dtype == pa.date32() else dtype
    firsts = pa.array([None, *rng.integers(-50, 50, ROWS - 1)], pa.int64()).cast(pa.int32()).cast(dtype)
    steps = [0 if n % 7 == 0 else int(n) for n in rng.integers(-40, 40, ROWS)]
    ends = [None if a is None else a + 2 * b + (b > 1) - (b < -1) for a, b in zip(cells(firsts), steps, strict=True)]
    judge = judge_of(
        _table({
            "a": firsts, "b": pa.array(ends, pa.int64() if dtype == pa.int64() else pa.int32()).cast(dtype, safe=False),
            "c": pa.array(steps).cast(step), "d": firsts.take(pa.array(rng.permutation(ROWS))),
        })
    )  # fmt: skip
    if dtype != pa.int8():
        # Between equal dates Spark takes no step of 0 days, and no step is taken.
        days = "sequence(left_a, left_b, make_dt_interval(if(left_c = 0, 1, left_c)))"
        sql = days if dtype == pa.date32() else None
        judge.check([call(Function.SEQUENCE, left("a"), left("b"), left("c"))], sqls=sql and [sql])
    judge.check([call(Function.SEQUENCE, left("a"), left("d"))])


def test_sequences_of_the_greatest_distances(judge_of: Callable[[pa.Table], Judge]) -> None:
    edge = 1 << 63
    ends = {"left_a": [-edge, edge - 1, -edge], "left_b": [edge - 1, -edge, -edge], "left_c": [edge - 1, -edge, 0]}
    judge = judge_of(pa.table({"id": pa.array([0, 1, 2], pa.int32()), **ends}))
    judge.check([call(Function.SEQUENCE, left("a"), left("b"), left("c"))])


@pytest.mark.parametrize(("first", "last", "step"), [(1, 5, -1), (5, 1, 1), (1, 5, 0)])
def test_sequences_that_lead_nowhere_fail(first: int, last: int, step: int) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [first], "b": [last], "c": [step]})
    node = resolve_value(call(Function.SEQUENCE, left("a"), left("b"), left("c")), batch.schema, batch.schema)
    with pytest.raises(ExpressionEvaluationError, match="step"):
        evaluate_column(node, batch, batch, 1)


@pytest.mark.parametrize(("start", "count"), [(0, 1), (1, -1)])
def test_parts_that_there_are_not_fail(start: int, count: int) -> None:
    batch = pa.RecordBatch.from_pydict({"a": [[1]], "n": pa.array([start], pa.int32())})
    node = resolve_value(call(Function.SLICE, left("a"), left("n"), count), batch.schema, batch.schema)
    with pytest.raises(ExpressionEvaluationError, match=r"number 0|negative"):
        evaluate_column(node, batch, batch, 1)


X, Y, Z = (Variable(name=name, type=pa.int64()) for name in "xyz")
FOLDS: dict[str, Expression] = {
    "sum": call(Function.AGGREGATE, left("longs"), lit(0, pa.int64()), X + Y, X, Y, Z, Z),
    "sum of what is there": call(
        Function.AGGREGATE, left("longs"), left("long"), X + coalesce(Y, lit(1, pa.int64())), X, Y, Z - left("long"), Z
    ),
    "zip_with": call(Function.ZIP_WITH, left("longs"), left("others"), X - Y, X, Y),
    "zip_with columns": call(Function.ZIP_WITH, left("longs"), left("others"), left("long") == X, X, Y),
    "nested": call(
        Function.TRANSFORM, left("longs"),
        call(
            Function.AGGREGATE, left("others"), Y, when(Z > Y, Z).else_(X), X, Z, X,
            Variable(name="x", type=pa.int64()),
        ), Y,
    ),
    "map_zip_with": call(
        Function.MAP_ZIP_WITH, left("m"), left("n"), coalesce(Y, left("long")) - coalesce(Z, X), X, Y, Z
    ),
    "map_zip_with to the key": call(Function.MAP_ZIP_WITH, left("n"), left("m"), X, X, Y, Z),
    "map_filter": call(Function.MAP_FILTER, left("m"), X > Y, Y, X),
    "transform_values": call(Function.TRANSFORM_VALUES, left("m"), X + left("long"), Y, X),
    "transform_values to keys": call(Function.TRANSFORM_VALUES, left("m"), Y, Y, X),
}  # fmt: skip


def test_expressions_of_several_variables(judge_of: Callable[[pa.Table], Judge]) -> None:
    rng = np.random.default_rng(46)
    made = pa.array([None, 0, 1, -5, 7, 1 << 40], pa.int64())
    offsets = pa.array([0, *np.cumsum(rng.choice([0, 0, 1, 2, 5, 30], ROWS))], pa.int32())
    total = offsets[-1].as_py()

    def absent() -> pa.Array:
        return pa.array(rng.random(ROWS) < 0.1)

    def drawn(count: int) -> pa.Array:
        return made.take(pa.array(rng.integers(0, 6, count)))

    longs = pa.ListArray.from_arrays(offsets, drawn(total), mask=absent())
    keys = pa.array(np.arange(total))
    judge = judge_of(
        _table({
            "longs": longs, "others": longs.take(pa.array(rng.permutation(ROWS))), "long": drawn(ROWS),
            "m": pa.MapArray.from_arrays(offsets, keys, drawn(total), mask=absent()),
            "n": pa.MapArray.from_arrays(offsets, pc.add(keys, 1), drawn(total), mask=absent()),
        })
    )  # fmt: skip
    judge.check([*FOLDS.values()])


def test_elements_of_null_rows_raise_no_errors() -> None:
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), pa.array([0, 5], pa.int32()), mask=pa.array([True, False]))
    batch = pa.RecordBatch.from_pydict({"s": lists})
    x = Variable(name="x", type=pa.int32())
    quotient = call(Function.TRANSFORM, left("s"), call(Function.INTEGRAL_DIVIDE, 10, x, mode=EvalMode.ANSI), x)
    resolved = resolve_value(quotient, batch.schema, batch.schema)
    assert evaluate_column(resolved, batch, batch, 2).to_pylist() == [None, [2]]
    failing = pa.RecordBatch.from_pydict({"s": pa.array([None, [0]], pa.list_(pa.int32()))})
    with pytest.raises(ExpressionEvaluationError):
        evaluate_column(resolved, failing, failing, 2)


@pytest.mark.parametrize("function", [Function.EXISTS, Function.FORALL])
def test_conditions_that_may_raise_are_left_to_spark_where_it_stops_early(function: Function) -> None:
    schema = pa.schema([("s", pa.list_(pa.int32()))])
    x = Variable(name="x", type=pa.int32())
    for mode, evaluated in {EvalMode.ANSI: False, EvalMode.LEGACY: True}.items():
        condition = call(Function.INTEGRAL_DIVIDE, 10, x, mode=mode) == 2
        assert is_supported(resolve_value(call(function, left("s"), condition, x), schema, schema)) == evaluated


def test_places_of_elements_without_a_key_are_left_to_spark_where_the_comparator_does_not_say() -> None:
    x = Variable(name="x", type=pa.int32())
    rows = {"sorted": [[3, 1, 2], [None], [], None], "left": [[3, None]]}
    for name, values in rows.items():
        batch = pa.RecordBatch.from_pydict({"s": pa.array(values, pa.list_(pa.int32()))})
        tree = call(Function.ARRAY_SORT_BY, left("s"), x, x, True, lit(None, pa.string()))
        resolved = resolve_value(tree, batch.schema, batch.schema)
        if name == "sorted":
            assert evaluate_column(resolved, batch, batch, 4).to_pylist() == [[3, 2, 1], [None], [], None]
        else:
            with pytest.raises(UnsupportedValueError, match="left to Spark"):
                evaluate_column(resolved, batch, batch, 1)


@pytest.mark.parametrize("function", [Function.GET_ITEM, Function.ELEMENT_AT])
def test_an_element_that_is_not_there_is_an_error_in_ansi_mode(function: Function) -> None:
    batch = pa.RecordBatch.from_pydict({"s": pa.array([[1, 2], None, [3]], pa.list_(pa.int32()))})
    expression = resolve_value(call(function, left("s"), 2, mode=EvalMode.ANSI), batch.schema, batch.schema)
    with pytest.raises(ExpressionEvaluationError, match="no such element"):
        evaluate_column(expression, batch, batch, 3)


def test_there_is_no_element_0() -> None:
    batch = pa.RecordBatch.from_pydict({"s": pa.array([[1]], pa.list_(pa.int32()))})
    expression = resolve_value(
        call(Function.ELEMENT_AT, left("s"), 0, mode=EvalMode.LEGACY), batch.schema, batch.schema
    )
    with pytest.raises(ExpressionEvaluationError, match="number 0"):
        evaluate_column(expression, batch, batch, 1)


def test_separators_that_mean_something_else_here_are_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"s": pa.array(["a"])})
    for pattern in ("", "a*", "x|", "$", "(?=a)", "[a&&b]"):
        assert not is_supported(resolve_value(call(Function.SPLIT, left("s"), pattern), batch.schema, batch.schema))


def test_lists_of_the_rows_alone_are_read() -> None:
    """Values outside the rows of a slice, and under nulls, are no elements."""
    lists = pa.ListArray.from_arrays(
        pa.array([0, 2, 4, 5]), pa.array([1, 2, 3, 4, 5]), mask=pa.array([False, True, False])
    )
    batch = pa.RecordBatch.from_pydict({"s": lists}).slice(1)
    expression = resolve_value(call(Function.ARRAY_CONTAINS, left("s"), 3), batch.schema, batch.schema)
    actual = evaluate_column(expression, batch, batch, 2)
    assert_same_rows(pa.table({"c": actual}), pa.table({"c": pa.array([None, False])}))


def test_maps_of_more_entries_than_offsets_count_are_an_error() -> None:
    keys = Lists(np.array([0, 1 << 31]), None, pa.nulls(1 << 31))
    with pytest.raises(MemoryError, match="2147483648 values"):
        maps_of(pa.map_(pa.int32(), pa.int32()), keys, pa.nulls(1 << 31))
