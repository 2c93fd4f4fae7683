"""Operators over the bits of integers."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.signatures import INT, Parameter, Signature, first, kept, over, takes, type_of, types_of
from gpujoin.functions.spec import NOT_FUSED, FunctionSpec, Raises
from gpujoin.functions.widening import tightest
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.types import is_whole


def _bitwise(node: Call) -> Call | None:
    left, right = (type_of(a) for a in node.arguments)
    if not all(is_whole(t) or pat.is_null(t) for t in (left, right)) or left == right == pa.null():
        return None
    return over(node, tightest(left, right, node.mode))


def _alike_integers(node: Call) -> bool:
    left, right = types_of(node)
    return is_whole(left) and left == right


def _same_integer(source: pa.DataType, _mode: EvalMode) -> pa.DataType | None:
    return pa.int32() if pat.is_null(source) else source if is_whole(source) else None


def _is_shifted(dtype: pa.DataType) -> bool:
    return bool(pat.is_int32(dtype) or pat.is_int64(dtype))


def _is_counted(dtype: pa.DataType) -> bool:
    return is_whole(dtype) or bool(pat.is_boolean(dtype))


_PAIR = Signature(_bitwise, _alike_integers)
_INTEGER = Parameter(is_whole, _same_integer)
_SHIFT = takes(Parameter(_is_shifted, kept(pat.is_int64, INT.convert)), INT, gives=first)
_COUNTED = Parameter(_is_counted, lambda source, mode: source if _is_counted(source) else _same_integer(source, mode))
_F = Function


def _is_low_bit(node: Call) -> bool:
    """Whether the position is a constant that all integers have a bit at."""
    position = node.arguments[1]
    return isinstance(position, Literal) and (position.value is None or 0 <= position.value < 8)


TABLE = (
    FunctionSpec(_F.BIT_AND, ("BitwiseAnd",), _PAIR, lacks=NOT_FUSED),
    FunctionSpec(_F.BIT_OR, ("BitwiseOr",), _PAIR, lacks=NOT_FUSED),
    FunctionSpec(_F.BIT_XOR, ("BitwiseXor",), _PAIR, lacks=NOT_FUSED),
    FunctionSpec(_F.BIT_NOT, ("BitwiseNot",), takes(_INTEGER, gives=first), lacks=NOT_FUSED),
    FunctionSpec(_F.SHIFT_LEFT, ("ShiftLeft",), _SHIFT, lacks=NOT_FUSED),
    FunctionSpec(_F.SHIFT_RIGHT, ("ShiftRight",), _SHIFT, lacks=NOT_FUSED),
    FunctionSpec(_F.SHIFT_RIGHT_UNSIGNED, ("ShiftRightUnsigned",), _SHIFT, lacks=NOT_FUSED),
    FunctionSpec(
        _F.BIT_GET, ("BitwiseGet",), takes(_INTEGER, INT, gives=pa.int8()),
        raises=Raises.ALWAYS, safe=_is_low_bit, lacks=NOT_FUSED,
    ),
    FunctionSpec(_F.BIT_COUNT, ("BitwiseCount",), takes(_COUNTED, gives=pa.int32()), lacks=NOT_FUSED),
)  # fmt: skip
