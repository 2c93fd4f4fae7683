"""Functions that evaluate an expression for each element of a list.

The expression is evaluated once, over the elements of all rows, which are rows of their own then::

    k  a           transform(a, x -> x + k)
    1  [5, 7]      elements     k  x  x + k       [6, 8]
    2  null                     1  5    6         null
    3  []                       1  7    8         []
    4  [null]                   4  null null      [null]

Elements that a null row has in memory are none, so they raise no errors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from gpujoin.backends.cpu.expressions.arrays import Lists, listed, spans
from gpujoin.backends.cpu.expressions.logic import Evaluator, is_true
from gpujoin.backends.cpu.expressions.rows import Rows
from gpujoin.backends.cpu.expressions.vector import Mask, Vector, from_arrow, mask_and, nulls, to_arrow
from gpujoin.functions import can_raise
from gpujoin.model.expressions import Call, Function, Variable


def _evaluated(node: Call, rows: Rows, evaluate: Evaluator) -> tuple[Lists, Vector]:
    """The lists of all rows, their elements one after the other, and the value of the body for each element."""
    array, body, *variables = node.arguments
    assert body.type is not None
    source = Lists.of(evaluate(array, rows).expand(rows.length))
    owners, places = source.rows, source.places
    starts = np.cumsum(source.counts) - source.counts
    lists = Lists(starts, source.counts, source.valid, source.elements.take(pa.array(places)))
    if not len(places):
        return lists, nulls(body.type).expand(0)
    positions = np.arange(len(places)) - starts[owners]
    values = (from_arrow(lists.elements), Vector(pa.int32(), positions.astype(np.int32)))
    names = [variable.name for variable in variables if isinstance(variable, Variable)]
    elements = rows.repeated(owners, dict(zip(names, values, strict=False)))
    return lists, evaluate(body, elements).expand(len(places))


def _transform(node: Call, rows: Rows, evaluate: Evaluator) -> Vector:
    assert node.type is not None
    lists, results = _evaluated(node, rows, evaluate)
    elements = to_arrow(results, node.type.value_type, len(lists.elements))
    return Vector(node.type, listed(node.type, lists, elements))


def _filter(node: Call, rows: Rows, evaluate: Evaluator) -> Vector:
    assert node.type is not None
    lists, results = _evaluated(node, rows, evaluate)
    kept = np.flatnonzero(is_true(results))
    starts, counts = spans(lists.rows[kept], len(lists.counts))
    filtered = Lists(starts, counts, lists.valid, lists.elements.take(pa.array(kept)))
    return Vector(node.type, listed(node.type, filtered, filtered.elements))


def _quantified(*, deciding: bool) -> Callable[[Call, Rows, Evaluator], Vector]:
    """Whether the body is ``deciding`` for any element; else null if it is null for any, else not ``deciding``."""

    def run(node: Call, rows: Rows, evaluate: Evaluator) -> Vector:
        lists, results = _evaluated(node, rows, evaluate)
        known: Mask = np.ones(len(lists.elements), np.bool_) if results.valid is None else results.valid
        decided = _rows_with(known & (results.values == deciding), lists)
        valid = mask_and(lists.valid, decided | ~_rows_with(~known, lists))
        return Vector(pa.bool_(), decided if deciding else ~decided, valid)

    return run


def _rows_with(elements: Mask, lists: Lists) -> Mask:
    """Rows of which any element is in a mask."""
    present = np.zeros(len(lists.counts), np.bool_)
    present[lists.rows[elements]] = True
    return present


def never_raises(node: Call) -> bool:
    """Whether the body cannot raise: Spark does not evaluate it for the elements after the one that decides."""
    return not can_raise(node.arguments[1])


LAZY: dict[Function, Callable[[Call, Rows, Evaluator], Vector]] = {
    Function.TRANSFORM: _transform,
    Function.FILTER: _filter,
    Function.EXISTS: _quantified(deciding=True),
    Function.FORALL: _quantified(deciding=False),
}
"""Functions that evaluate their operands themselves."""
