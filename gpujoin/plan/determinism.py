"""Finds the columns whose values may change when a task runs again over the same rows.

The rows of an exchange come in any order. The last digits of a sum of floating-point numbers depend on that order, and
the first value of a group depends on it entirely. Spark may run a task again and mix the output of both runs. So no
value of this kind may decide to which partition a row goes: the row could end up in two partitions, or in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow.types as pat

from gpujoin.model.aggregates import ANY_ROW, MOMENTS, AggregateCall, AggregateFunction
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side
from gpujoin.model.relations import (
    ConstantTable,
    ExchangeSource,
    Expand,
    Explode,
    Filter,
    Join,
    Limit,
    Output,
    PartialAggregate,
    Project,
    PythonAggregate,
    PythonCalls,
    PythonStep,
    PythonWindow,
    Relation,
    Scan,
    SparkSource,
    TopN,
    Union,
    Window,
)
from gpujoin.model.types import is_float
from gpujoin.model.windows import AnyWindowCall, FramedAggregate, is_by_order

_BY_VALUE = frozenset({AggregateFunction.SUM, AggregateFunction.MIN, AggregateFunction.MAX})


def indeterminate_columns(relation: Relation, sources: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """Find the output columns of a relation that depend on the order of its input rows.

    ``sources`` has such columns of each source of the tree, by its index.
    """
    match relation:
        case Scan() | ConstantTable():
            return frozenset()
        case ExchangeSource():
            return sources[relation.index]
        case Filter():
            return _filter(relation, indeterminate_columns(relation.child, sources))
        case Project():
            return _outputs(relation.outputs, indeterminate_columns(relation.child, sources))
        case Expand():
            below = indeterminate_columns(relation.child, sources)
            return frozenset().union(*(_outputs(way, below) for way in relation.projections))
        case PythonCalls():
            return _called(relation, indeterminate_columns(relation.child, sources))
        case PythonAggregate():  # functions may depend on the order of a group's rows
            below = indeterminate_columns(relation.child, sources)
            results = range(len(relation.keys), len(relation.schema))
            return frozenset(n for n, key in enumerate(relation.keys) if key in below) | frozenset(results)
        case PythonWindow():
            below = indeterminate_columns(relation.child, sources)
            return below | frozenset(range(len(relation.child.schema), len(relation.schema)))
        case Explode():
            return _explode(relation, indeterminate_columns(relation.child, sources))
        case Union():
            return frozenset().union(*(indeterminate_columns(child, sources) for child in relation.inputs))
        case PartialAggregate():
            return _aggregated(relation, indeterminate_columns(relation.child, sources))
        case Window():
            return _window(relation, indeterminate_columns(relation.child, sources))
        case Join():
            return _join(relation, {side: indeterminate_columns(relation.side(side), sources) for side in Side})
        case _:
            # Which rows a limit takes depends on their order.
            return frozenset(range(len(relation.schema)))


def is_repeatable(relation: Relation) -> bool:
    """Whether a relation has the same rows each time that it is computed from its files.

    Rows that Spark computes, first rows, and all that depends on the last digits of a sum may be others. A Python
    function is not called a second time for the same rows.
    """
    return not any(
        isinstance(node, (SparkSource, Limit, TopN, PythonStep)) or indeterminate_columns(node, {})
        for node in relation.walk()
    )


def _outputs(outputs: Iterable[Output], below: frozenset[int]) -> frozenset[int]:
    return frozenset(n for n, output in enumerate(outputs) if _reads(output.expression, {Side.LEFT: below}))


def _reads(expression: Expression, below: Mapping[Side, frozenset[int]]) -> bool:
    return any(ref.index in below.get(ref.side, ()) for ref in expression.columns())


def _called(node: PythonCalls, below: frozenset[int]) -> frozenset[int]:
    """The columns of the input keep their values; functions that are deterministic depend on what they are given."""
    depends = any(_reads(value.expression, {Side.LEFT: below}) for value in node.inputs)
    return below | (frozenset(range(len(node.child.schema), len(node.schema))) if depends else frozenset())


def _explode(node: Explode, below: frozenset[int]) -> frozenset[int]:
    indeterminate = frozenset(n for n, old in enumerate(node.passthrough) if old in below)
    return indeterminate | (
        frozenset(range(len(node.passthrough), len(node.schema))) if node.column in below else frozenset()
    )


def _aggregated(node: PartialAggregate, below: frozenset[int]) -> frozenset[int]:
    keys = _outputs(node.keys, below)
    indeterminate, place = set(keys), len(node.keys)
    for call in node.aggregates:
        # A group may be returned several times, wherever memory ran short.
        depends = bool(keys) or not node.final or _by_order(call, below)
        if depends:
            indeterminate.update(range(place, place + len(call.buffer)))
        place += len(call.buffer)
    return frozenset(indeterminate)


def _by_order(call: AggregateCall, below: frozenset[int]) -> bool:
    if any(_reads(expression, {Side.LEFT: below}) for expression in call.expressions()):
        return True
    if call.function in ANY_ROW | MOMENTS:
        return True
    if call.function is AggregateFunction.AVG:
        return not pat.is_decimal(call.dtype)
    # Of 0.0 and -0.0, and of several NaNs, the least is the one that came first.
    return call.function in _BY_VALUE and is_float(call.dtype)


def _filter(node: Filter, below: frozenset[int]) -> frozenset[int]:
    """Give the columns that may change after a filter: all, if it chooses among peers of a window by their order."""
    if _reads(node.condition, {Side.LEFT: below}) and any(isinstance(part, Window) for part in node.walk()):
        return frozenset(range(len(node.schema)))
    return below


def _window(node: Window, below: frozenset[int]) -> frozenset[int]:
    """The columns of the input keep their values; what is computed of peers in their order may change."""
    keys = not below.isdisjoint(node.partition) or any(_reads(key.expression, {Side.LEFT: below}) for key in node.order)
    indeterminate, place = set(below), len(node.child.schema)
    for call in node.calls:
        if keys or is_by_order(call) or _call_depends(call, below):
            indeterminate.update(range(place, place + len(call.outputs)))
        place += len(call.outputs)
    return frozenset(indeterminate)


def _call_depends(call: AnyWindowCall, below: frozenset[int]) -> bool:
    if isinstance(call, FramedAggregate):
        return _by_order(call.call, below)
    return any(_reads(expression, {Side.LEFT: below}) for expression in call.expressions())


def _join(node: Join, below: Mapping[Side, frozenset[int]]) -> frozenset[int]:
    spec = node.spec
    indeterminate = {n for n, old in enumerate(spec.left_output) if old in below[Side.LEFT]}
    right = enumerate(spec.right_output, len(spec.left_output))
    indeterminate |= {n for n, old in right if old in below[Side.RIGHT]}
    if spec.join_type.flags_rows:
        matched = any(pair.of(side) in below[side] for pair in spec.keys for side in Side)
        if matched or (spec.condition is not None and _reads(spec.condition, below)):
            indeterminate.add(len(node.schema) - 1)
    return frozenset(indeterminate)
