"""Aggregations by nested keys, and of nested values, as aggregations of plain columns.

**Keys** that are structs become keys of their fields. Two structs are one key if their fields are, nulls among them; a
null struct is a key of its own. For ``select st, count(*) … group by st``, where ``st`` has the fields ``x`` and
``y``::

    rows          groups                             result
    st            st is null  st.x  st.y  count      st            count
    {1, "a"}      false       1     "a"   2          {1, "a"}      2
    {1, "a"}      false       null  null  1          {null, null}  1
    {null, null}  true        null  null  1          null          1
    null

So zeros and NaNs in a struct are one key as they are outside of one. Keys that are lists become bytes, as values do.

**Values** become bytes that are ordered as the values are, and of which each group's are made values again: ``max(st)``
is the value of ``max(order_bytes(st))``. By the bytes that order floats -0.0 is 0.0, so where there are floats the
value follows in bytes of its own.
"""

from __future__ import annotations

import dataclasses
from typing import TypeGuard

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.kinds import has_floats, is_written
from gpujoin.functions.signatures import type_of
from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, Case, ColumnRef, Expression, Function, Literal, Variable
from gpujoin.model.relations import Output, PartialAggregate, Project, Relation, column
from gpujoin.model.sqltext import show_expression
from gpujoin.model.types import is_bytes
from gpujoin.plan.remap import with_plain_input


def with_plain_values(node: PartialAggregate) -> Relation:
    """Aggregate plain columns instead of nested ones, and make nested ones of the result; its columns stay the same.

    The input has no nested columns then (see :func:`gpujoin.plan.remap.with_plain_input`).
    """
    flat = tuple(part for key in node.keys for part in _parts(key, node))
    calls = tuple(map(_plain_call, node.aggregates))
    if flat == node.keys and calls == node.aggregates:
        return with_plain_input(node)
    grouped = with_plain_input(dataclasses.replace(node, keys=flat, aggregates=calls))
    schema = grouped.schema
    outputs = [
        dataclasses.replace(key, expression=_rebuilt(key.name, type_of(key.expression), schema)) for key in node.keys
    ]
    buffers = [
        Output(f.name, _of_bytes(column(schema, f.name), f.type), f.nullable)
        for call in node.aggregates
        for f in call.buffer
    ]
    return Project(grouped, (*outputs, *buffers))


def _plain_call(call: AggregateCall) -> AggregateCall:
    """A call of bytes in place of nested values; its buffer has the columns of the call's own, and maybe more."""
    first, *others = call.arguments or (Literal(value=None, type=pa.null()),)
    match call.function:
        case AggregateFunction.MIN | AggregateFunction.MAX if _is_nested(first):
            ordered = Function.RANKED_BYTES if has_floats(type_of(first)) else Function.ORDER_BYTES
            return dataclasses.replace(call, arguments=(as_bytes(ordered, first),))
        case AggregateFunction.MIN_BY | AggregateFunction.MAX_BY:
            arguments = (as_bytes(Function.VALUE_BYTES, first), as_bytes(Function.ORDER_BYTES, others[0]))
            return dataclasses.replace(call, arguments=arguments)
        case AggregateFunction.FIRST | AggregateFunction.LAST | AggregateFunction.COLLECT_LIST:
            return dataclasses.replace(call, arguments=(as_bytes(Function.VALUE_BYTES, first),))
        case AggregateFunction.COLLECT_SET:
            return dataclasses.replace(call, arguments=(as_bytes(Function.ORDER_BYTES, first),))
    return call


def _is_nested(value: Expression) -> bool:
    return pat.is_nested(type_of(value))


def as_bytes(function: Function, value: Expression) -> Expression:
    """Give the bytes of a nested value, if there are such; any other value as it is."""
    if not _is_nested(value) or not is_written(type_of(value), compared=function is not Function.VALUE_BYTES):
        return value
    return Call(function=function, arguments=(value,), type=pa.binary(), written=show_expression(value))


def _of_bytes(value: Expression, dtype: pa.DataType) -> Expression:
    """A value of a type, or a list of such values, of what may be its bytes."""
    source = type_of(value)
    if source == dtype or not pat.is_nested(dtype):
        return value
    if is_bytes(source):
        return Call(function=Function.OF_BYTES, arguments=(value,), type=dtype)
    element = Variable(name=f"{value}.element", type=source.value_type)
    value_of_element = _of_bytes(element, dtype.value_type)
    return Call(function=Function.TRANSFORM, arguments=(value, value_of_element, element), type=dtype)


def _parts(key: Output, node: PartialAggregate) -> list[Output]:
    """The keys that a key is grouped by."""
    value, dtype = key.expression, key.expression.type
    if not _is_divided(dtype):
        return [dataclasses.replace(key, expression=as_bytes(Function.ORDER_BYTES, value))]
    text = show_expression(value)
    parts = []
    if _may_be_null(value, node.child.schema):
        null = Call(function=Function.IS_NULL, arguments=(value,), type=pa.bool_())
        parts.append(Output(f"{key.name} is null", null, nullable=False))
    for field in dtype:
        name = Literal(value=field.name, type=pa.string())
        part = Call(
            function=Function.GET_FIELD, arguments=(value, name), type=field.type, written=f"{text}.{field.name}"
        )
        parts += _parts(Output(f"{key.name}.{field.name}", part), node)
    return parts


def _is_divided(dtype: pa.DataType | None) -> TypeGuard[pa.StructType]:
    """Whether a key of a type is grouped by its fields: it is a struct with distinct names."""
    return dtype is not None and pat.is_struct(dtype) and 0 < dtype.num_fields == len({field.name for field in dtype})


def _may_be_null(value: Expression, schema: pa.Schema) -> bool:
    if isinstance(value, ColumnRef):
        return bool(schema.field(value.index).nullable)
    return not (isinstance(value, Call) and value.function is Function.NAMED_STRUCT)


def _rebuilt(name: str, dtype: pa.DataType, schema: pa.Schema) -> Expression:
    """Make a key of the keys that it was grouped by."""
    if not _is_divided(dtype):
        return _of_bytes(column(schema, name), dtype)
    arguments: list[Expression] = []
    for field in dtype:
        arguments += [Literal(value=field.name, type=pa.string()), _rebuilt(f"{name}.{field.name}", field.type, schema)]
    struct = Call(function=Function.NAMED_STRUCT, arguments=tuple(arguments), type=dtype)
    marker = f"{name} is null"
    if marker not in schema.names:
        return struct
    nothing = Literal(value=None, type=dtype)
    return Case(conditions=(column(schema, marker),), values=(nothing,), otherwise=struct, type=dtype)
