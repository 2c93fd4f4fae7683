"""Bounds how many different values columns have, by the files and by the catalog.

Between the least and the greatest of integers, days and decimals there are so many values, and no column has more than
its table has rows. Where the catalog has a number, it counts::

    column       least    greatest    rows          catalog    at most
    item         1        18,000      11,700,000               18,000
    price        0.01     300.00      11,700,000    9,000      9,000
    name                              18,000                   not known

So a join by ``item`` of two tables that have it many times finds more rows than either has.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.expressions import ColumnRef, Expression, Literal
from gpujoin.model.files import Bounds
from gpujoin.model.relations import Filter, Join, Limit, PartialAggregate, Project, Relation, Scan, TopN, Union, Window

DistinctValues = tuple[float | None, ...]
"""The most different values of each column; ``None`` where that is not known."""


def of_files(
    columns: pa.Schema, bounds: Sequence[Bounds | None], rows: float, catalog: Mapping[str, float]
) -> DistinctValues:
    """Bound the values of the columns of files.

    ``bounds`` has the least and the greatest value of each column, ``catalog`` the numbers of values by column.
    """
    padded = [*bounds, *[None] * len(columns)]
    return tuple(_of_column(*each, rows, catalog) for each in zip(columns, padded, strict=False))


def _of_column(field: pa.Field, bounds: Bounds | None, rows: float, catalog: Mapping[str, float]) -> float | None:
    known = [number for number in (catalog.get(field.name), _between(field.type, bounds)) if number is not None]
    return min(*known, max(1.0, rows)) if known else None


def _between(dtype: pa.DataType, bounds: Bounds | None) -> float | None:
    if pat.is_boolean(dtype):
        return 2.0
    match bounds:
        case (int() as low, int() as high):
            return float(high - low + 1)
        case (Decimal() as low, Decimal() as high) if pat.is_decimal(dtype):
            return float((high - low).scaleb(dtype.scale)) + 1.0
        case (dt.date() as low, dt.date() as high) if pat.is_date(dtype):
            return float((high - low).days + 1)
    return None


def of_node(node: Relation, below: Sequence[DistinctValues]) -> DistinctValues:
    """Bound the values of a node's columns, given those of its inputs."""
    match node:
        case Scan() if node.distinct:
            return node.distinct
        case Filter() | TopN() | Limit():
            return below[0]
        case Project():
            values = below[0]
            return tuple(of_expression(output.expression, values) for output in node.outputs)
        case PartialAggregate():
            values = below[0]
            keys = [of_expression(key.expression, values) for key in node.keys]
            return (*keys, *[None] * (len(node.schema) - len(keys)))
        case Window():
            values = below[0]
            return (*values, *[None] * (len(node.schema) - len(values)))
        case Join():
            left, right = below
            kept = (*(left[i] for i in node.spec.left_output), *(right[i] for i in node.spec.right_output))
            return (*kept, *[None] * (len(node.schema) - len(kept)))
        case Union():
            each = zip(*below, strict=True)
            return tuple(None if None in numbers else sum(n for n in numbers if n is not None) for numbers in each)
    return (None,) * len(node.schema)


def of_expression(expression: Expression, values: DistinctValues) -> float | None:
    """Bound the values of an expression over columns."""
    match expression:
        case ColumnRef():
            return values[expression.index]
        case Literal():
            return 1.0
    return None


def of_groups(keys: Sequence[Expression], values: DistinctValues) -> float | None:
    """Bound the number of groups by keys."""
    numbers = [of_expression(key, values) for key in keys]
    known = [number for number in numbers if number is not None]
    return math.prod(known) if len(known) == len(numbers) else None


def of_keys(node: Join, left: DistinctValues, right: DistinctValues) -> float | None:
    """Bound the number of different keys of a join: a key has no more values than the side with more of them."""
    product = 1.0
    for pair in node.spec.keys:
        known = [number for number in (left[pair.left], right[pair.right]) if number is not None]
        if not known:
            return None
        product *= max(known)
    return product
