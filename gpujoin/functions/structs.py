"""Structs made of values, and fields of structs."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.errors import ConditionError, did_you_mean
from gpujoin.functions.implementation import rows_of
from gpujoin.functions.kinds import is_alike
from gpujoin.functions.signatures import MANY, Signature, type_of, typed, types_of
from gpujoin.functions.spec import FunctionSpec, Nulls
from gpujoin.functions.vector import Vector, from_arrow, to_arrow
from gpujoin.model.expressions import Call, Function, Literal
from gpujoin.model.layouts import in_type
from gpujoin.model.types import logical


def _get_field(node: Call) -> Call | None:
    struct, name = node.arguments
    dtype = type_of(struct)
    if not pat.is_struct(dtype) or not isinstance(name, Literal) or not isinstance(name.value, str):
        return None
    names = [f.name for f in dtype]
    matching = [n for n in names if n == name.value] or [n for n in names if n.lower() == name.value.lower()]
    if len(matching) != 1:
        why = "is ambiguous" if matching else "does not exist"
        raise ConditionError(
            f"{node}: field {name.value!r} of {struct} {why}.{did_you_mean(name.value, names) if not matching else ''}"
        )
    return typed(node, dtype.field(names.index(matching[0])).type, struct, Literal(value=matching[0], type=pa.string()))


def field_position(node: Call, struct: pa.DataType) -> int:
    """Position of the field that a call takes, in the type that the call's operand was planned with.

    The names in the type of the values themselves may be others: Spark brings structs together by position.
    """
    name = node.arguments[1]
    assert isinstance(name, Literal), node
    return [field.name for field in struct].index(str(name.value))


def _resolve_struct(node: Call) -> Call | None:
    names = [argument.value if isinstance(argument, Literal) else None for argument in node.arguments[::2]]
    if not all(isinstance(name, str) for name in names) or len(names) != len(node.arguments[1::2]):
        return None
    fields = zip(names, map(type_of, node.arguments[1::2]), strict=True)
    return typed(node, pa.struct(list(fields)))


def _accepts_fields(node: Call) -> bool:
    values = [logical(type_of(argument)) for argument in node.arguments[1::2]]
    fields = [logical(field.type) for field in type_of(node)]
    return len(node.arguments) == 2 * len(fields) and all(map(is_alike, values, fields))


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


def _field(node: Call, operands: list[Vector], _length: int) -> Vector:
    return from_arrow(pc.struct_field(operands[0].values, [field_position(node, type_of(node.arguments[0]))]))


def structs_of(columns: Sequence[pa.Array], dtype: pa.DataType) -> pa.Array:
    """Structs of columns, cast to the types of the fields."""
    fields = list(dtype)
    typed = [in_type(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(typed, fields=fields)


def _struct(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    rows = rows_of(operands, length)
    columns = [to_arrow(operand, field.type, rows) for operand, field in zip(operands[1::2], node.type, strict=True)]
    return Vector(node.type, structs_of(columns, node.type))


TABLE = (
    FunctionSpec(
        Function.GET_FIELD, ("GetStructField",), Signature(_get_field, lambda node: pat.is_struct(types_of(node)[0])),
        numpy=_field,
    ),
    FunctionSpec(
        Function.NAMED_STRUCT, ("CreateNamedStruct",), Signature(_resolve_struct, _accepts_fields, (2, MANY)),
        nulls=Nulls.OWN_RULE,
        numpy=_struct,
    ),
)  # fmt: skip
