"""Fields of structs."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.errors import ConditionError, did_you_mean
from gpujoin.functions.signatures import Signature, type_of, typed, types_of
from gpujoin.functions.spec import FunctionSpec
from gpujoin.functions.vector import Vector, from_arrow
from gpujoin.model.expressions import Call, Function, Literal


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


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


def _field(node: Call, operands: list[Vector], _length: int) -> Vector:
    return from_arrow(pc.struct_field(operands[0].values, [field_position(node, type_of(node.arguments[0]))]))


_F = Function

TABLE = (
    FunctionSpec(
        Function.GET_FIELD, ("GetStructField",), Signature(_get_field, lambda node: pat.is_struct(types_of(node)[0])),
        numpy=_field,
    ),
)  # fmt: skip
