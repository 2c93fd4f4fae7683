"""Constants beside columns: what a function gives is what it gives of columns that hold the constants in every row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gpujoin.errors import ExpressionEvaluationError, GpuJoinError
from gpujoin.functions import FAMILIES
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import Call, ColumnRef, EvalMode, Expression, Function, left
from gpujoin.plan.resolve import resolve_value
from tests.expressions.judge import Judge, comparable
from tests.expressions.test_every_function import GIVEN_BACK, IN_ZONES, WITHOUT_SQL
from tests.expressions.translated import SqlJudge
from tests.expressions.values import VALUES
from tests.functions.constants import calls_over_columns, with_constants

_SMALL: list[object] = [None, 0, 1, -1, 2, 3, 7, 12, 5, 20]
"""Of larger numbers lists and texts become as long as they say."""
KINDS: dict[str, tuple[pa.DataType, list[object]]] = {
    **{kind: (VALUES[kind][0], _SMALL) for kind in ("i8", "i32", "i64")},
    **{kind: VALUES[kind] for kind in ("bool", "f32", "f64", "d9_2", "d38_18", "str", "bin", "date", "ts", "ntz")},
    "struct": VALUES["struct"],
    "ints": (pa.list_(pa.int32()), [[1, 2, None], [], None, [3], [2, 2]]),
    "strs": (pa.list_(pa.string()), [["a", "b"], [], None, ["é", None], ["b"]]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [], None, [("b", None), ("a", 2)], [("z", 3)]]),
}
TYPES = {kind: dtype for kind, (dtype, _) in KINDS.items()}
SHORT = {kind: TYPES[kind] for kind in ("i32", "f64", "d9_2", "str", "ts", "ints", "map")}
"""Kinds of `make test`: of each way in which values are kept."""
ROWS, PLACES = 9, 6
_ROW = 4
"""Row whose values are the constants."""
BATCH = pa.RecordBatch.from_pydict({
    f"{kind}{place}": pa.array([values[(row * (2 * place + 1) + place) % len(values)] for row in range(ROWS)], dtype)
    for kind, (dtype, values) in KINDS.items() for place in range(PLACES)
})  # fmt: skip
UNTRIED = {
    Function.AGGREGATE,
    Function.ARRAY_SORT_BY,
    Function.EXISTS,
    Function.FILTER,
    Function.FORALL,
    Function.FORMAT_STRING,
    Function.GET_FIELDS,
    Function.MAP_FILTER,
    Function.MAP_FROM_ARRAYS,
    Function.MAP_FROM_ENTRIES,
    Function.MAP_ZIP_WITH,
    Function.NAMED_STRUCT,
    Function.TRANSFORM,
    Function.TRANSFORM_VALUES,
    Function.ZIP_WITH,
}
"""Functions of lambdas, of names, of fields of structs and of formats; Spark is asked about these."""


def _column(kind: str, place: int) -> Expression:
    return left(f"{kind}{place}")


def _value(column: ColumnRef, row: int = _ROW) -> tuple[object, pa.DataType]:
    return BATCH.column(column.name)[row].as_py(), BATCH.schema.field(column.name).type


def _resolver(mode: EvalMode) -> Callable[[Expression], Expression]:
    return lambda tree: resolve_value(tree, BATCH.schema, BATCH.schema, mode=mode)


def _cases(family: str, mode: EvalMode, types: dict[str, pa.DataType]) -> Iterator[tuple[Call, Call]]:
    """Calls over columns, each with the same call that has constants in place of some."""
    resolve = _resolver(mode)
    for spec in FAMILIES[family]:
        for tree in calls_over_columns(spec, types, _column, resolve):
            if is_supported(resolve(tree)):
                yield from ((tree, made) for made in with_constants(tree, _value))


def _repeated(rows: pa.RecordBatch, tree: Call, made: Call) -> pa.RecordBatch:
    """The rows, with the value of the chosen row in all rows of the columns that are constants in the other call."""
    names = {
        operand.name
        for operand, other in zip(tree.arguments, made.arguments, strict=True)
        if isinstance(operand, ColumnRef) and other is not operand
    }
    columns = [
        pa.array([column[_ROW].as_py()] * ROWS, column.type) if name in names else column
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _answers(tree: Expression, rows: pa.RecordBatch) -> list[str]:
    """Values, or errors, row by row."""
    try:
        return list(map(repr, comparable(evaluate_column(tree, rows, rows, rows.num_rows))))
    except GpuJoinError as problem:
        if rows.num_rows == 1:
            return ["error" if isinstance(problem, ExpressionEvaluationError) else type(problem).__name__]
    return [_answers(tree, rows.slice(row, 1))[0] for row in range(rows.num_rows)]


_CASES = [
    pytest.param(family, mode, types, id=f"{family}-{mode.value}-{name}", marks=marks)
    for family in FAMILIES
    for mode, name, types, marks in (
        (EvalMode.LEGACY, "few kinds", SHORT, []),
        (EvalMode.LEGACY, "all kinds", TYPES, [pytest.mark.extra]),
        (EvalMode.ANSI, "all kinds", TYPES, [pytest.mark.extra]),
    )
]


@pytest.mark.parametrize(("family", "mode", "types"), _CASES)
def test_a_constant_is_as_a_column_of_it(family: str, mode: EvalMode, types: dict[str, pa.DataType]) -> None:
    problems = []
    seen: set[Function] = set()
    for tree, made in _cases(family, mode, types):
        names = dict.fromkeys(column.name for column in tree.columns())
        rows = BATCH.select(list(names))
        resolved, of_columns = (resolve_value(each, rows.schema, rows.schema, mode=mode) for each in (made, tree))
        assert is_supported(resolved), resolved
        ours, wanted = _answers(resolved, rows), _answers(of_columns, _repeated(rows, tree, made))
        if ours != wanted:
            problems.append(f"{resolved}: {ours}, of columns {wanted}")
        seen.add(tree.function)
    assert not problems, f"{len(problems)} differences:\n" + "\n".join(problems)
    if types is TYPES:
        several = {spec.function for spec in FAMILIES[family] if spec.signature.arity[1] > 1}
        assert several - seen <= UNTRIED, "functions of several arguments are all tried"


OF_LAMBDAS = (
    "transform(array(1, null, 3), x -> x + n)", "transform(xs, x -> 5)", "transform(xs, (x, i) -> n)",
    "filter(array(1, null, 3), x -> x > n)", "filter(xs, x -> true)", "filter(xs, x -> null)",
    "exists(array(1, null, 3), x -> x = n)", "exists(xs, x -> n > 1)", "forall(array(1, 3), x -> x > n)",
    "forall(xs, x -> null)", "zip_with(array(1, 2), xs, (a, b) -> a + b)", "zip_with(xs, array(1, null), (a, b) -> b)",
    "zip_with(xs, xs, (a, b) -> n)", "aggregate(array(1, 2), n, (a, x) -> a + x)", "aggregate(xs, 0, (a, x) -> n)",
    "aggregate(xs, n, (a, x) -> a)", "aggregate(xs, 1, (a, x) -> a + coalesce(x, 0), a -> a * n)",
    "map_filter(map('a', 1, 'b', 2), (k, v) -> v > n)", "map_filter(mp, (k, v) -> true)",
    "transform_values(map('a', 1), (k, v) -> n)", "transform_values(mp, (k, v) -> 'c')",
    "map_zip_with(map('a', 1), mp, (k, a, b) -> a + b)", "map_zip_with(mp, map('z', n), (k, a, b) -> n)",
    "map_from_arrays(array('a', 'b'), array(1, n))",
    "map_from_arrays(array(coalesce(cast(n as string), ''), 'q'), array(1, 2))",
    "map_from_entries(array(named_struct('k', 'a', 'v', n)))", "named_struct('a', 1, 'b', n)",
    "named_struct('a', n, 'b', null)", "array(named_struct('a', 1), named_struct('a', n)).a",
    "array_sort(array(3, 1, coalesce(n, 0)), (a, b) -> case when a < b then -1 when a > b then 1 else 0 end)",
    "make_timestamp(2024, 1, 1, 0, 0, n)", "make_timestamp(n, 1, 1, 0, 0, 1.5)",
    "make_timestamp_ntz(2024, n, 1, 0, 0, 9)", "make_timestamp_ntz(2024, 2, 1, n, 30, 0.25)",
    "try_make_timestamp(2024, 1, n, 0, 0, 0)",
    "try_make_timestamp_ntz(2024, 13, 1, 0, n, 0)", "make_date(2024, n, 31)", "make_date(n, 2, 29)",
)  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("ansi", [pytest.param("true", marks=pytest.mark.extra), "false"])
def test_constants_beside_columns_of_lambdas_and_dates(spark: SparkSession, tmp_path: Path, ansi: str) -> None:
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    table = pa.table({
        "n": pa.array([1, 2, 3, 4, 5, None] if ansi == "false" else [1, 3, 5, 7, 8, 12], pa.int32()),
        "xs": pa.array([[1, 2, None], [], None, [3], [2, 2], [0]], pa.list_(pa.int32())),
        "mp": pa.array(
            [[("a", 1)], [], None, [("b", None), ("a", 2)], [("z", 3)], []], pa.map_(pa.string(), pa.int32())
        ),
    })  # fmt: skip
    calls = [sql for sql in OF_LAMBDAS if ansi == "false" or "make_date(n" not in sql]
    SqlJudge(spark, table, tmp_path / "table.parquet").check(calls)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI], ids=lambda m: m.value)
@pytest.mark.parametrize("family", FAMILIES)
def test_constants_beside_columns_are_sparks(
    asking_judge_of: Callable[[pa.Table], Judge], family: str, mode: EvalMode
) -> None:
    names = [f"{kind}{place}" for kind in TYPES if kind not in ("ints", "strs", "map") for place in range(PLACES)]
    columns = {f"left_{name}": BATCH.column(name) for name in names} | {f"right_{n}": BATCH.column(n) for n in names}
    judge = asking_judge_of(pa.table({"id": pa.array(range(ROWS), pa.int32()), **columns}))
    trees = [
        made
        for _, made in _cases(family, mode, TYPES)
        if made.function not in WITHOUT_SQL | GIVEN_BACK
        and len(made.arguments) <= IN_ZONES.get(made.function, len(made.arguments))
        and all(not isinstance(each, ColumnRef) or each.name in names for each in made.walk())
    ]
    for start in range(0, len(trees), 200):
        judge.check(trees[start : start + 200], mode)
