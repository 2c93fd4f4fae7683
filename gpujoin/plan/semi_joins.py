"""Inner joins of which only the existence of a match counts become semi joins.

How often a row occurs among the right rows of a semi join makes no difference. TPC-DS 95 asks for orders that were sent
from two warehouses, and each sale of an order meets ten others::

    orders SEMI JOIN (a JOIN b ON a.order = b.order AND a.house <> b.house) ON orders.order = a.order

    a   order house     b   order house     inner join   order     semi join   order
        7     x             7     x                      7                     7
        7     y             7     y                      7                     7
        8     x             8     x

The inner join returns each pair, of which columns of ``a`` are read; the semi join returns each row of ``a`` once.
"""

from __future__ import annotations

import dataclasses
from enum import Enum

from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, Literal
from gpujoin.model.jointype import JoinType
from gpujoin.model.relations import Expand, Explode, Filter, Join, PartialAggregate, Project, Relation, Union
from gpujoin.model.spec import JoinSpec
from gpujoin.model.stages import Distribution
from gpujoin.plan.estimates import Sizes, build_side
from gpujoin.plan.remap import mirrored

_OF_VALUES = frozenset({AggregateFunction.MIN, AggregateFunction.MAX})
"""Aggregate functions that do not depend on how often a value occurs."""
_NEVER_FAIL = frozenset(
    {
        Function.EQ, Function.NE, Function.LT, Function.LE, Function.GT, Function.GE, Function.AND, Function.OR,
        Function.NOT, Function.IS_NULL, Function.IS_NOT_NULL,
    }
)  # fmt: skip
"""Functions of conditions that may be evaluated for fewer pairs: no error is lost."""


class _Repeats(Enum):
    """Whether it makes a difference how often a row occurs."""

    COUNT = "count"
    DO_NOT_COUNT = "do not count"


def with_semi_joins(relation: Relation, sizes: Sizes) -> Relation:
    """Replace inner joins by semi joins where repeated rows make no difference and one side's columns are not read.

    ``sizes`` decide which side is built.
    """
    return _rewrite(relation, _Repeats.COUNT, sizes)


def _rewrite(node: Relation, repeats: _Repeats, sizes: Sizes) -> Relation:
    if isinstance(node, Join) and repeats is _Repeats.DO_NOT_COUNT:
        node = _as_semi_join(node)
    of_children = [_of_child(node, place, repeats) for place in range(len(node.children))]
    children = [_rewrite(child, of, sizes) for child, of in zip(node.children, of_children, strict=True)]
    if all(new is old for new, old in zip(children, node.children, strict=True)):
        return node
    node = node.with_children(children)
    if isinstance(node, Join) and node.spec.keys and node.distribution is Distribution.ANY:
        side = build_side(node.spec.join_type, node.left, node.right, sizes)
        return dataclasses.replace(node, build_side=side)
    return node


def _of_child(node: Relation, place: int, repeats: _Repeats) -> _Repeats:
    match node:
        case Filter() | Project() | Union() | Expand() | Explode():
            return repeats
        case Join() if node.spec.as_of is None:
            looked_up = place == 1 and node.spec.join_type.left_rows_only
            return _Repeats.DO_NOT_COUNT if looked_up else repeats
        case PartialAggregate() if all(call.function in _OF_VALUES for call in node.aggregates):
            return _Repeats.DO_NOT_COUNT
    return _Repeats.COUNT


def _as_semi_join(node: Join) -> Join:
    spec = node.spec
    is_plain = spec.join_type is JoinType.INNER and bool(spec.keys) and node.distribution is Distribution.ANY
    if not is_plain or (spec.left_output and spec.right_output) or not _never_fails(spec.condition):
        return node
    if spec.right_output:
        return Join(node.right, node.left, _semi(mirrored(spec)), node.build_side.other)
    return dataclasses.replace(node, spec=_semi(spec))


def _semi(spec: JoinSpec) -> JoinSpec:
    return dataclasses.replace(spec, join_type=JoinType.LEFT_SEMI)


def _never_fails(condition: Expression | None) -> bool:
    return condition is None or all(
        isinstance(node, (ColumnRef, Literal)) or (isinstance(node, Call) and node.function in _NEVER_FAIL)
        for node in condition.walk()
    )
