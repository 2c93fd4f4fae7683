"""Rewrites nodes and expressions for inputs whose columns have moved to other positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, Case, ColumnRef, Expression, Function, Literal
from gpujoin.model.jointype import Side
from gpujoin.model.relations import Output, PartialAggregate, Project, Relation
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.model.trees import Structure


def remapped(node: Expression, left: Mapping[int, int], right: Mapping[int, int] | None = None) -> Expression:
    """Replace column positions in an expression."""
    if isinstance(node, ColumnRef):
        positions = left if node.side is Side.LEFT or right is None else right
        assert node.index is not None
        return dataclasses.replace(node, index=positions[node.index])
    return node.with_children([remapped(child, left, right) for child in node.children]) if node.children else node


def substituted(node: Expression, values: Mapping[int, Expression] | Sequence[Expression]) -> Expression:
    """Put expressions in place of the columns that an expression reads."""
    if isinstance(node, ColumnRef):
        assert node.index is not None
        return values[node.index]
    return node.with_children([substituted(child, values) for child in node.children]) if node.children else node


def replaced(node: Relation, others: Mapping[Relation, Relation]) -> Relation:
    """Put relations in the places of others."""
    if node in others:
        return others[node]
    return node.with_children([replaced(child, others) for child in node.children]) if node.children else node


def remapped_spec(spec: JoinSpec, positions: Mapping[Side, Mapping[int, int]]) -> JoinSpec:
    """Replace column positions in a join."""
    left, right = positions[Side.LEFT], positions[Side.RIGHT]
    as_of = spec.as_of
    return dataclasses.replace(
        spec,
        keys=tuple(KeyPair(left[pair.left], right[pair.right], pair.nulls) for pair in spec.keys),
        condition=None if spec.condition is None else remapped(spec.condition, left, right),
        left_output=tuple(left[i] for i in spec.left_output),
        right_output=tuple(right[i] for i in spec.right_output),
        as_of=None if as_of is None else dataclasses.replace(as_of, left=left[as_of.left], right=right[as_of.right]),
    )


def mirrored(spec: JoinSpec) -> JoinSpec:
    """Exchange the sides of a join, whose type stays; an as-of join has no mirror image."""
    return dataclasses.replace(
        spec,
        keys=tuple(KeyPair(pair.right, pair.left, pair.nulls) for pair in spec.keys),
        condition=None if spec.condition is None else _of_other_side(spec.condition),
        left_output=spec.right_output,
        right_output=spec.left_output,
    )


def _of_other_side(node: Expression) -> Expression:
    if isinstance(node, ColumnRef):
        return dataclasses.replace(node, side=node.side.other)
    return node.with_children([_of_other_side(child) for child in node.children]) if node.children else node


def remapped_output(output: Output, positions: Mapping[int, int]) -> Output:
    """Replace column positions in a named expression."""
    return dataclasses.replace(output, expression=remapped(output.expression, positions))


def with_plain_input(node: PartialAggregate) -> PartialAggregate:
    """Project the input of an aggregation to what it reads, if a column of it or a counted value is nested.

    Nested values are counted by whether they are there.
    """
    counted = (e for call in node.aggregates if call.function is AggregateFunction.COUNT for e in call.arguments)
    if not any(pat.is_nested(dtype) for dtype in (*node.child.schema.types, *(e.type for e in counted))):
        return node
    outputs: dict[Structure, Output] = {}

    def column_of(value: Expression) -> Expression:
        if isinstance(value, Literal):
            return value
        outputs.setdefault(value.structure, Output(f"i{len(outputs)}", value))
        return ColumnRef(
            side=Side.LEFT, name=outputs[value.structure].name, index=list(outputs).index(value.structure),
            type=value.type,
        )  # fmt: skip

    def over_outputs(call: AggregateCall) -> AggregateCall:
        arguments = call.arguments
        if call.function is AggregateFunction.COUNT:
            arguments = tuple(map(_presence, arguments))
        if call.filter is None:
            return dataclasses.replace(call, arguments=tuple(map(column_of, arguments)))
        passing = tuple(column_of(_where(call.filter, argument)) for argument in arguments)
        return dataclasses.replace(call, arguments=passing, filter=column_of(call.filter))

    keys = tuple(dataclasses.replace(key, expression=column_of(key.expression)) for key in node.keys)
    calls = tuple(map(over_outputs, node.aggregates))
    computed = tuple(outputs.values()) or (Output("i0", Literal(value=True, type=pa.bool_())),)
    return dataclasses.replace(node, child=Project(node.child, computed), keys=keys, aggregates=calls)


def _where(condition: Expression, value: Expression) -> Expression:
    """Make a value null for rows that do not pass a condition."""
    if isinstance(value, (ColumnRef, Literal)):
        return value
    nothing = Literal(value=None, type=value.type)
    return Case(conditions=(condition,), values=(value,), otherwise=nothing, type=value.type)


def _presence(value: Expression) -> Expression:
    """Replace a nested value by true, and leave null as it is."""
    if value.type is None or not pat.is_nested(value.type):
        return value
    there = Call(function=Function.IS_NOT_NULL, arguments=(value,), type=pa.bool_())
    true, nothing = (Literal(value=truth, type=pa.bool_()) for truth in (True, None))
    return Case(conditions=(there,), values=(true,), otherwise=nothing, type=pa.bool_())
