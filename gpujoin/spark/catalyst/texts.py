"""Translates functions of texts that are made of others."""

from __future__ import annotations

import pyarrow as pa

from gpujoin.model.expressions import Call, Case, EvalMode, Expression, Function, Literal
from gpujoin.spark.catalyst.nodes import Node, Reader, Translation
from gpujoin.spark.catalyst.traits import arrow_of


def _chosen(reader: Reader, node: Node) -> Expression:
    """Translate ``elt``: the value of a number; where there is none, null or an error."""
    number, *values = map(reader, node.children)
    dtype = arrow_of(node.data_type)
    nothing: Expression = Literal(value=None, type=dtype)
    conditions = [
        Call(function=Function.EQ, arguments=(number, Literal(value=n, type=pa.int32())), type=pa.bool_())
        for n in range(1, len(values) + 1)
    ]
    if not node.fields["failOnError"]:
        return Case(conditions=tuple(conditions), values=tuple(values), otherwise=nothing, type=dtype)
    null = Call(function=Function.IS_NULL, arguments=(number,), type=pa.bool_())
    none = Call(function=Function.ARRAY, arguments=(nothing,), type=pa.list_(dtype))
    outside = Literal(value=-1, type=pa.int32())
    failing = Call(function=Function.GET_ITEM, arguments=(none, outside), mode=EvalMode.ANSI, type=dtype)
    return Case(conditions=(null, *conditions), values=(nothing, *values), otherwise=failing, type=dtype)


TRANSLATIONS: dict[str, Translation] = {"Elt": _chosen}
"""Classes that are no single function here."""
