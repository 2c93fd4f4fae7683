"""The tables of functions hold together: rows, and what the backends implement."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from gpujoin import functions
from gpujoin.functions import FAMILIES, SPARK_ONLY
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.spec import Evaluator, FunctionSpec, Nulls
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import Function, left, right
from gpujoin.model.jointype import Side
from gpujoin.plan.resolve import resolve_value
from tests.expressions.values import VALUES
from tests.functions.calls import calls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = {kind: dtype for kind, (dtype, _) in VALUES.items()}
PRESENT = pa.RecordBatch.from_pydict({k: pa.array(values[1:2], t) for k, (t, values) in VALUES.items()})
NULL = pa.RecordBatch.from_pydict({kind: pa.nulls(1, dtype) for kind, dtype in KINDS.items()})
ROWS = [spec for family in FAMILIES.values() for spec in family]
CLASSES = [name for spec in ROWS for name in spec.classes] + [name for row in SPARK_ONLY for name in row.classes]


def test_the_example_of_the_documentation_is_what_the_file_has() -> None:
    match = re.search(r"in ``(functions/\w+\.py)``::\n\n(.*?)\n\n\S", str(functions.__doc__), re.DOTALL)
    assert match is not None
    assert match[2] in (Path(functions.__file__).parents[1] / match[1]).read_text()


def test_every_function_has_one_row() -> None:
    assert Counter(spec.function for spec in ROWS) == Counter(Function)


@pytest.mark.parametrize("evaluator", Evaluator, ids=lambda e: e.name)
@pytest.mark.parametrize("spec", ROWS, ids=lambda spec: spec.function.name)
def test_what_keeps_a_library_from_computing_a_function_is_told(spec: FunctionSpec, evaluator: Evaluator) -> None:
    missing = spec.missing(evaluator)
    assert missing is None or missing.why.strip()


@pytest.mark.parametrize("spec", ROWS, ids=lambda spec: spec.function.name)
def test_a_null_operand_gives_null_where_the_row_says_so(spec: FunctionSpec) -> None:
    trees = calls(spec, KINDS, lambda kind, position: (right if position else left)(kind))
    resolved = [resolve_value(tree, PRESENT.schema, PRESENT.schema) for tree in trees]
    for tree in filter(is_supported, resolved):
        for side, batches in {Side.LEFT: (NULL, PRESENT), Side.RIGHT: (PRESENT, NULL)}.items():
            if side in tree.sides() and spec.nulls is Nulls.PROPAGATE:
                assert evaluate_column(tree, *batches, 1).null_count == 1, f"{tree}, null on the {side.value}"


def test_a_class_of_spark_is_one_function() -> None:
    assert sorted(CLASSES) == sorted(set(CLASSES))


@pytest.mark.spark
def test_the_classes_are_sparks(spark_session: SparkSession) -> None:
    """Names that another version of Spark has are told apart from misspelt ones by hand."""
    jvm: Any = spark_session._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    prefix = "org/apache/spark/sql/catalyst/expressions/"
    missing = {name for name in CLASSES if loader.getResource(f"{prefix}{name}.class") is None}
    assert missing <= OF_OTHER_VERSIONS


OF_OTHER_VERSIONS = {"TimeAdd", "TimestampAddInterval"}
"""One class, by its name before 4.1 and since."""
