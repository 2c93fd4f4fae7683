"""Values of expressions for the row loops, by the evaluator that is compared with Spark's recorded answers.

A join, an aggregation, a window or a stream is computed here row by row; only what an expression gives for a row is
taken from `gpujoin.functions`, each function of which `tests/expressions` compares with Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from gpujoin.functions.evaluate import evaluate_column
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side
from gpujoin.plan.resolve import resolve_value
from gpujoin.testing import Cell, cells
from tests.generate import from_cells

Row = Sequence[Cell]


def values(expression: Expression, table: pa.Table) -> list[Cell]:
    """Cells of an expression over the rows of a table. Raises ``ExpressionEvaluationError`` where Spark raises."""
    rows = range(table.num_rows)
    return values_of_pairs(expression, table, table, [(row, row) for row in rows])


def values_of_pairs(
    expression: Expression, left: pa.Table, right: pa.Table, pairs: Sequence[tuple[int, int]]
) -> list[Cell]:
    """Cells of an expression over pairs of rows, by their numbers; unresolved trees are resolved without ANSI mode."""
    resolved = expression if expression.type is not None else resolve_value(expression, left.schema, right.schema)
    read = {side: {column.index for column in resolved.columns() if column.side is side} for side in Side}
    lefts = _rows(left, read[Side.LEFT], [i for i, _ in pairs])
    rights = _rows(right, read[Side.RIGHT], [j for _, j in pairs])
    return cells(evaluate_column(resolved, lefts, rights, len(pairs)))


def _rows(table: pa.Table, read: set[int], numbers: Sequence[int]) -> pa.RecordBatch:
    """Some rows of the columns that are read, in their places; the others, of any type, are left out."""
    rows = pa.array(numbers, pa.int64())
    columns = [
        _whole(column).take(rows) if number in read else pa.nulls(len(rows))
        for number, column in enumerate(table.columns)
    ]
    return pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(columns))])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def table_of(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    """A table of rows of cells."""
    listed = list(rows)
    columns = [from_cells([row[i] for row in listed], field.type) for i, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)
