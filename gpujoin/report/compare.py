"""Compares the rows of two runs of a query."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.report.result import Equality
from gpujoin.testing import assert_same_rows

_RELATIVE = 1e-9
"""How far sums of floats may be apart that were added up in another order."""


def compare(here: pa.Table, spark: pa.Table) -> tuple[Equality, str | None]:
    """Compare rows, each as often, in any order; a difference is described."""
    try:
        assert_same_rows(here, spark, allow_empty=True)
    except AssertionError as problem:
        if _nearly(here, spark):
            return Equality.NEARLY, None
        return Equality.DIFFERENT, str(problem)
    return Equality.EQUAL, None


def _nearly(here: pa.Table, spark: pa.Table) -> bool:
    """Whether rows differ in the last digits of floats alone."""
    floats = [n for n, field in enumerate(spark.schema) if pat.is_floating(field.type)]
    if not floats or here.num_rows != spark.num_rows or here.schema.types != spark.schema.types:
        return False
    names = [f"c{n}" for n in range(spark.num_columns)]
    others = [(names[n], "ascending") for n in range(spark.num_columns) if n not in floats]
    order = [*others, *((names[n], "ascending") for n in floats)]
    try:
        tables = [table.rename_columns(names).sort_by(order) for table in (here, spark)]
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
        return False  # columns without an order
    first, second = tables
    if first.drop_columns([names[n] for n in floats]) != second.drop_columns([names[n] for n in floats]):
        return False
    return all(_close(first.column(n), second.column(n)) for n in floats)


def _close(first: pa.ChunkedArray[pa.Scalar], second: pa.ChunkedArray[pa.Scalar]) -> bool:
    if first.is_null() != second.is_null():
        return False
    values, expected = (column.to_numpy(zero_copy_only=False).astype(float) for column in (first, second))
    return bool(np.allclose(values, expected, rtol=_RELATIVE, atol=0.0, equal_nan=True))
