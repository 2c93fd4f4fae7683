"""Pivots as fragments: of each group a column for each value of the pivot column.

Spark aggregates by the keys and the pivot column first, and then takes of each group the value beside each pivot value,
as an array of which a projection takes the elements (``PivotFirst``). Here each element is an aggregate with a filter::

    k  s  sum      pivot for s in ('x', 'y')
    1  x  5        k  x  y
    1  y  7        1  5  7
    2  y  1        2     1
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, Literal
from gpujoin.model.relations import Output, PartialAggregate, Project, Relation, column
from gpujoin.model.sqltext import show_type
from gpujoin.model.types import is_text, is_whole
from gpujoin.plan.remap import with_plain_input
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError, python_value
from gpujoin.spark.catalyst.traits import arrow_of
from gpujoin.spark.catalyst.translate import ExpressionReader
from gpujoin.spark.query.aggregates import FinalReader, ReadAggregate
from gpujoin.spark.query.trees.builder import (
    Fragment,
    TreeBuilder,
    named_outputs,
    with_outputs,
)


def is_pivot(aggregation: ReadAggregate) -> bool:
    """Tell whether an aggregation takes the values of a pivot."""
    return any(node.children[0].name == "PivotFirst" for node in aggregation.aggregates)


def pivoted(builder: TreeBuilder, aggregation: ReadAggregate, below: Fragment, required: frozenset[int]) -> Fragment:
    """Take the values of a pivot wholly."""
    reader = builder.reader(below)
    calls = {node: _calls(node, reader, f"a{number}") for number, node in enumerate(aggregation.aggregates)}
    keys = tuple(Output(f"k{number}", reader(key)) for number, key in enumerate(aggregation.keys))
    every = tuple(call for named in calls.values() for call in named)
    relation = with_plain_input(PartialAggregate(below.relation, keys, every, final=True))
    final = _PivotReader(aggregation, relation, calls)
    results = [named for named in aggregation.results if named.expr_id in required] or list(aggregation.results[:1])
    return with_outputs(relation, named_outputs(results, final))


def _calls(node: Node, reader: ExpressionReader, name: str) -> tuple[AggregateCall, ...]:
    """The value beside each pivot value."""
    function, *condition = node.children
    if function.name != "PivotFirst" or condition or node.fields["isDistinct"]:
        raise NotTranslatableError(f"{node} beside a pivot is not computed here")
    pivot, value = map(reader, function.children)
    assert pivot.type is not None
    if not (is_whole(pivot.type) or is_text(pivot.type) or pat.is_boolean(pivot.type) or pat.is_date(pivot.type)):
        raise NotTranslatableError(f"{function} is not computed here by type {show_type(pivot.type)}")
    spark_type = function.children[0].data_type

    def call(number: int, internal: object) -> AggregateCall:
        pivot_value = Literal(value=python_value(spark_type, internal), type=pivot.type)
        here = Call(function=Function.EQ_NULL_SAFE, arguments=(pivot, pivot_value), type=pa.bool_())
        return AggregateCall(
            function=AggregateFunction.FIRST, arguments=(value,), name=f"{name}_{number}", filter=here,
            ignore_nulls=True,
        )  # fmt: skip

    return tuple(call(number, internal) for number, internal in enumerate(function.fields["@values"]))


def without_arrays(relation: Project) -> Project:
    """Replace elements of arrays that the projection below makes by the values they are made of."""
    below = relation.child
    if not isinstance(below, Project) or not all(_is_moved(output.expression) for output in below.outputs):
        return relation
    values = [output.expression for output in below.outputs]
    outputs = tuple(
        dataclasses.replace(output, expression=_replace(output.expression, values)) for output in relation.outputs
    )
    return Project(below.child, outputs)


def _is_moved(value: Expression) -> bool:
    """Whether an expression is a column, or an array of columns."""
    if isinstance(value, Call) and value.function is Function.ARRAY:
        return all(isinstance(argument, ColumnRef) for argument in value.arguments)
    return isinstance(value, ColumnRef)


def _replace(node: Expression, values: Sequence[Expression]) -> Expression:
    """An expression over values in place of columns; an element of an array of columns is one of them."""
    if isinstance(node, ColumnRef):
        return values[node.index]
    if not node.children:
        return node
    return _element(node.with_children([_replace(child, values) for child in node.children]))


def _element(node: Expression) -> Expression:
    if isinstance(node, Call) and node.function is Function.GET_ITEM:
        array, number = node.arguments
        if isinstance(array, Call) and array.function is Function.ARRAY and isinstance(number, Literal):
            at = number.value
            if isinstance(at, int) and 0 <= at < len(array.arguments):
                return array.arguments[at]
    return node


class _PivotReader(FinalReader):
    """Translates a pivot's results."""

    def __init__(
        self, aggregation: ReadAggregate, relation: Relation, calls: dict[Node, tuple[AggregateCall, ...]]
    ) -> None:
        super().__init__(aggregation, relation, {})
        self._arrays = calls

    def call_of(self, _node: Node) -> AggregateCall | None:
        """No call gives the value of an expression by itself."""
        return None

    def __call__(self, node: Node) -> Expression:
        """Translate an expression over keys and pivoted values."""
        calls = self._arrays.get(node)
        if calls is not None:
            values = tuple(column(self._schema, call.buffer[0].name) for call in calls)
            return Call(function=Function.ARRAY, arguments=values, type=arrow_of(node.data_type))
        return _element(super().__call__(node))
