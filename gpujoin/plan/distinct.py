"""Bounds how many different values columns have, by the files and by the catalog.

Between the least and the greatest of integers, days and decimals there are so many values, and no column has more than
its table has rows. Of texts the sizes of Parquet's dictionaries tell. Where the catalog has a number, it counts::

    column       least    greatest    rows          catalog    at most
    item         1        18,000      11,700,000               18,000
    price        0.01     300.00      11,700,000    9,000      9,000
    name                              18,000                   not known

So a join by ``item`` of two tables that have it many times finds more rows than either has.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, Literal, conjuncts
from gpujoin.model.files import Bounds
from gpujoin.model.relations import (
    Filter,
    Join,
    Limit,
    PartialAggregate,
    Project,
    PythonAggregate,
    PythonCalls,
    PythonWindow,
    Relation,
    Scan,
    TopN,
    Union,
    Window,
)

_INEXACT = 3.0
"""Dictionaries are compressed: a column may have so many times the values that their sizes tell of."""
_EQUALS = frozenset({Function.EQ, Function.EQ_NULL_SAFE, Function.IN})

DistinctValues = tuple[float | None, ...]
"""The most different values of each column; ``None`` where that is not known."""


def distinct_in_files(
    columns: pa.Schema,
    bounds: Sequence[Bounds | None],
    rows: float,
    catalog: Mapping[str, float],
    different: DistinctValues = (),
) -> DistinctValues:
    """Bound the values of the columns of files.

    ``bounds`` has the least and the greatest value of each column, ``catalog`` the numbers of values by column, and
    ``different`` those that the files tell of.
    """
    missing = [None] * len(columns)
    each = zip(columns, [*bounds, *missing], [*different, *missing], strict=False)
    return tuple(
        _of_column(catalog.get(field.name), _between(field.type, pair), by_file, rows) for field, pair, by_file in each
    )


def _of_column(catalog: float | None, between: float | None, by_file: float | None, rows: float) -> float | None:
    """Bound the values of a column by the catalog, the range of values and, least exact, its file."""
    if catalog is not None or (between is not None and by_file is not None and between < _INEXACT * by_file):
        by_file = None
    limits = [number for number in (catalog, between, by_file) if number is not None]
    return min(*limits, max(1.0, rows)) if limits else None


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


def distinct_in_node(node: Relation, below: Sequence[DistinctValues]) -> DistinctValues:
    """Bound the values of a node's columns, given those of its inputs."""
    match node:
        case Scan() if node.distinct:
            return _limited(node.distinct, node.filters)
        case Filter():
            return _limited(below[0], (node.condition,))
        case TopN() | Limit():
            return below[0]
        case Project():
            values = below[0]
            return tuple(distinct_in_expression(output.expression, values) for output in node.outputs)
        case PartialAggregate():
            values = below[0]
            keys = [distinct_in_expression(key.expression, values) for key in node.keys]
            return (*keys, *[None] * (len(node.schema) - len(keys)))
        case PythonAggregate():
            return (*(below[0][key] for key in node.keys), *[None] * len(node.calls))
        case Window() | PythonCalls() | PythonWindow():
            values = below[0]
            return (*values, *[None] * (len(node.schema) - len(values)))
        case Join():
            left, right = below
            joined = (*(left[i] for i in node.spec.left_output), *(right[i] for i in node.spec.right_output))
            return (*joined, *[None] * (len(node.schema) - len(joined)))
        case Union():
            each = zip(*below, strict=True)
            return tuple(None if None in numbers else sum(n for n in numbers if n is not None) for numbers in each)
    return (None,) * len(node.schema)


def _limited(values: DistinctValues, conditions: Iterable[Expression]) -> DistinctValues:
    """Bound the values of columns that some conditions leave."""
    limited = list(values)
    for condition in conditions:
        for part in conjuncts(condition):
            count_by_column = values_asked(part)
            if count_by_column is not None:
                index, count = count_by_column
                before = limited[index]
                limited[index] = count if before is None else min(before, count)
    return tuple(limited)


def values_asked(condition: Expression) -> tuple[int, float] | None:
    """Give the column that a condition compares with constants, and their number; ``None`` of other conditions."""
    if not isinstance(condition, Call) or condition.function not in _EQUALS:
        return None
    columns = [part for part in condition.arguments if isinstance(part, ColumnRef)]
    literals = [part for part in condition.arguments if isinstance(part, Literal)]
    if len(columns) != 1 or len(literals) + 1 < len(condition.arguments):
        return None
    return columns[0].index, float(len(literals))


def distinct_in_expression(expression: Expression, values: DistinctValues) -> float | None:
    """Bound the values of an expression over columns."""
    match expression:
        case ColumnRef():
            return values[expression.index]
        case Literal():
            return 1.0
    return None


def distinct_groups(keys: Sequence[Expression], values: DistinctValues) -> float | None:
    """Bound the number of groups by keys."""
    numbers = [distinct_in_expression(key, values) for key in keys]
    counts = [number for number in numbers if number is not None]
    return math.prod(counts) if len(counts) == len(numbers) else None


def distinct_keys(node: Join, left: DistinctValues, right: DistinctValues) -> float | None:
    """Bound the number of different keys of a join: a key has no more values than the side with more of them."""
    product = 1.0
    for pair in node.spec.keys:
        counts = [number for number in (left[pair.left], right[pair.right]) if number is not None]
        if not counts:
            return None
        product *= max(counts)
    return product
