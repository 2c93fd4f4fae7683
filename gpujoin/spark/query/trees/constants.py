"""Rows that are part of a query, as constant tables: those of ``VALUES``, few numbers of ``range``, a select alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gpujoin.model.relations import ConstantTable
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError, python_value
from gpujoin.spark.query.plans import PlanNode
from gpujoin.spark.query.trees.builder import Fragment, TreeBuilder, check_column, columns_of

_MOST_NUMBERS = 10_000
"""As many as values of rows that are written in a query (``PlanReader.java``)."""


def written_rows(_builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Take the rows of a ``LocalRelation`` with the plan, if they are few."""
    rows = node.fields.get("@rows")
    if rows is None:
        raise NotTranslatableError("it has more values than are sent with each task")
    chosen = [n for n, column in enumerate(node.output) if column.expr_id in required]
    values = {n: [row[n] for row in rows] for n in chosen}
    return _constant_table([node.output[n] for n in chosen], list(values.values()), len(rows))


def few_numbers(_builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Take the numbers of a ``Range`` with the plan, if they are few."""
    start, end, step = (int(node.fields[name]) for name in ("start", "end", "step"))
    numbers = range(start, end, step)
    if len(numbers) > _MOST_NUMBERS:
        raise NotTranslatableError("it has more numbers than are sent with each task")
    chosen = [column for column in node.output if column.expr_id in required]
    return _constant_table(chosen, [list(numbers) for _ in chosen], len(numbers))


def one_row(_builder: TreeBuilder, _node: PlanNode, _required: frozenset[int]) -> Fragment:
    """Take the row without columns of a select without a table."""
    return _constant_table([], [], 1)


def _constant_table(columns: Sequence[Node], values: Sequence[Sequence[Any]], count: int) -> Fragment:
    for column in columns:
        check_column(column)
    schema = columns_of(columns)
    try:
        arrays = [
            pa.array([python_value(column.data_type, value) for value in each], dtype, from_pandas=False)
            for column, each, dtype in zip(columns, values, schema.types, strict=False)
        ]
    except (OverflowError, pa.ArrowException):
        raise NotTranslatableError("it has a value of a type that is not passed to Python workers") from None
    counting = [] if arrays else [pa.array([True] * count, pa.bool_())]
    batch = pa.RecordBatch.from_arrays(arrays or counting, schema=schema)
    return Fragment.from_columns(ConstantTable.of(batch), (column.expr_id for column in columns))
