"""Structs of other names, other case and other nullability come together: Spark's rows and types, computed here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import pytest
from pyspark.sql import DataFrame, SparkSession

from gpujoin.model.expressions import Call
from gpujoin.report.explanation import Explanation
from gpujoin.spark.query.accelerate import rewrite
from tests.brief import brief
from tests.functions.nested import all_examples
from tests.spark.query.queries import EXCHANGED, FORCED, plain_stages, views
from tests.spark.query.structs import (
    FIELD_QUERIES,
    OPERANDS,
    PASSED_ON,
    QUERIES,
    SHAPES,
    accepted,
    calls,
    filled,
    queries,
    write_structs,
)

pytestmark = pytest.mark.spark

WAYS = [pytest.param(FORCED, id="one task"), pytest.param(EXCHANGED, id="exchanged")]


@pytest.fixture(scope="module")
def structs(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("structs")
    write_structs(spark_session, folder)
    with views(spark_session, folder, {"st": None, "few": None}):
        yield


def compare(spark: SparkSession, text: str) -> Explanation:
    """Check a query's rows and types."""
    frame = spark.sql(text)
    found = rewrite(frame)
    assert found.frame.schema == frame.schema, text
    with plain_stages(spark):
        expected = texts_of(frame)
    assert texts_of(found.frame) == expected, text
    return found.explanation


def texts_of(frame: DataFrame) -> list[str]:
    """Rows as Spark writes their values.

    PySpark's `toArrow` refuses null structs with fields that are not nullable, its `collect` maps with keys of lists.
    """
    columns = [f"cast({name} as string)" for name in (f"c{n}" for n in range(len(frame.columns)))]
    return sorted(map(repr, frame.toDF(*(f"c{n}" for n in range(len(columns)))).selectExpr(*columns).collect()))


def check(spark: SparkSession, text: str) -> None:
    """Check a query's rows and types, and that it was read and computed here."""
    explanation = compare(spark, text)
    lines = [line for island in explanation.islands for line in island.tree]
    assert lines, text
    assert not any("rows from Spark" in line for line in lines), f"{text}\n{explanation}"


def cases(short: Iterable[tuple[str, str, str]]) -> list[object]:
    """All shapes with all pairs of operands, as parameters; those that are not named are extra."""
    return [
        pytest.param(
            shape, first, second, id=f"{shape}, {first} and {second}",
            marks=() if (shape, first, second) in short else pytest.mark.extra,
        )
        for shape in SHAPES
        for first in OPERANDS
        for second in OPERANDS
    ]  # fmt: skip


@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["one task"])
@pytest.mark.parametrize(("shape", "first", "second"), cases([("deep", "never null", "plain")]))
def test_expressions_bring_values_together(
    structs: None, spark: SparkSession, shape: str, first: str, second: str
) -> None:
    taken = accepted(spark, list(calls(shape, first, second)), lambda texts: f"select {', '.join(texts)} from st")
    assert taken, "even arrays of one operand each are refused"
    columns = ", ".join(f"{text} c{n}" for n, text in enumerate(taken))
    check(spark, f"select id, item, {columns} from st join few using (g)")


@pytest.mark.parametrize("spark", WAYS, indirect=True)
@pytest.mark.parametrize(("shape", "first", "second"), cases([]))
def test_queries_bring_values_together(structs: None, spark: SparkSession, shape: str, first: str, second: str) -> None:
    texts = queries(shape, first, second).values()
    taken = [text for text in texts if accepted(spark, [text], lambda query: query[0])]
    assert taken
    for text in taken:
        check(spark, text)


BRIEF = ("union", "full join", "fields of a union")


@pytest.mark.parametrize("spark", [EXCHANGED], indirect=True, ids=["exchanged"])
@pytest.mark.parametrize("name", brief([n for n in (*QUERIES, *FIELD_QUERIES) if n != "stack"], *BRIEF))
def test_structs_of_other_case(structs: None, spark: SparkSession, name: str) -> None:
    check(spark, queries("struct", "plain", "case")[name])


@pytest.mark.extra
@pytest.mark.parametrize("spark", [FORCED | {"spark.gpujoin.fallback": "silent"}], indirect=True, ids=["silent"])
@pytest.mark.parametrize("name", PASSED_ON)
def test_structs_of_other_case_in_windows(structs: None, spark: SparkSession, name: str) -> None:
    compare(spark, filled(PASSED_ON[name], "struct", "plain", "case"))


_WRITTEN = {
    "concat_lists": "concat(", "named_struct": "struct(", "map_value": ", 1)))[", "case": "case ", "in": " in (",
    "array_sort_by": "array_sort(", "!=": " <> ",
}  # fmt: skip
"""What functions are called in SQL, where that is not their name."""


def test_every_function_of_several_nested_operands_is_compared_with_spark() -> None:
    texts = " ".join(chain(*(calls(shape, "plain", "case") for shape in SHAPES)))
    several = [example.node for example in all_examples() if len(example.operands) > 1]
    names = {node.function.value if isinstance(node, Call) else "case" for node in several}
    written = {name: _WRITTEN.get(name, f"{name}(" if name.isidentifier() else f" {name} ") for name in names}
    missing = {name for name in names if written[name] not in texts}
    assert not missing, f"bring these together in tests/spark/query/structs.py: {missing}"
