"""Grouping keys that are structs, as keys of their fields.

Two structs are one key if their fields are, nulls among them; a null struct is a key of its own. For
``select st, count(*) … group by st``, where ``st`` has the fields ``x`` and ``y``::

    rows          groups                             result
    st            st is null  st.x  st.y  count      st            count
    {1, "a"}      false       1     "a"   2          {1, "a"}      2
    {1, "a"}      false       null  null  1          {null, null}  1
    {null, null}  true        null  null  1          null          1
    null

So aggregations see plain columns only, and zeros and NaNs in a struct are one key as they are outside of one.
"""

from __future__ import annotations

import dataclasses
from typing import TypeGuard

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.expressions import Call, Case, ColumnRef, Expression, Function, Literal
from gpujoin.model.relations import Output, PartialAggregate, Project, Relation, column
from gpujoin.plan.remap import with_plain_input
from gpujoin.plan.sqltext import show_expression


def with_plain_keys(node: PartialAggregate) -> Relation:
    """Group by the fields of keys that are structs, and make the structs of them; the columns stay the same.

    The input has no nested columns then (see :func:`gpujoin.plan.remap.with_plain_input`).
    """
    flat = tuple(part for key in node.keys for part in _parts(key, node))
    if flat == node.keys:
        return with_plain_input(node)
    grouped = with_plain_input(dataclasses.replace(node, keys=flat))
    schema = grouped.schema
    outputs = [dataclasses.replace(key, expression=_made(key.name, key.expression.type, schema)) for key in node.keys]
    buffers = [Output(f.name, column(schema, f.name), f.nullable) for call in node.aggregates for f in call.buffer]
    return Project(grouped, (*outputs, *buffers))


def _parts(key: Output, node: PartialAggregate) -> list[Output]:
    """The keys that a key is grouped by."""
    value, dtype = key.expression, key.expression.type
    if not _is_divided(dtype):
        return [key]
    shown = show_expression(value)
    parts = []
    if _may_be_null(value, node.child.schema):
        null = Call(function=Function.IS_NULL, arguments=(value,), type=pa.bool_())
        parts.append(Output(f"{key.name} is null", null, nullable=False))
    for field in dtype:
        name = Literal(value=field.name, type=pa.string())
        part = Call(
            function=Function.GET_FIELD, arguments=(value, name), type=field.type, written=f"{shown}.{field.name}"
        )
        parts += _parts(Output(f"{key.name}.{field.name}", part), node)
    return parts


def _is_divided(dtype: pa.DataType | None) -> TypeGuard[pa.StructType]:
    """Whether a key of a type is grouped by its fields: a struct whose fields are told apart by their names."""
    return dtype is not None and pat.is_struct(dtype) and 0 < dtype.num_fields == len({field.name for field in dtype})


def _may_be_null(value: Expression, schema: pa.Schema) -> bool:
    if isinstance(value, ColumnRef):
        return bool(schema.field(value.index).nullable)
    return not (isinstance(value, Call) and value.function is Function.NAMED_STRUCT)


def _made(name: str, dtype: pa.DataType | None, schema: pa.Schema) -> Expression:
    """Make a key of the keys that it was grouped by."""
    if not _is_divided(dtype):
        return column(schema, name)
    arguments: list[Expression] = []
    for field in dtype:
        arguments += [Literal(value=field.name, type=pa.string()), _made(f"{name}.{field.name}", field.type, schema)]
    struct = Call(function=Function.NAMED_STRUCT, arguments=tuple(arguments), type=dtype)
    marker = f"{name} is null"
    if marker not in schema.names:
        return struct
    nothing = Literal(value=None, type=dtype)
    return Case(conditions=(column(schema, marker),), values=(nothing,), otherwise=struct, type=dtype)
