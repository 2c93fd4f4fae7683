"""Tells whether an expression is computed exactly as Spark does, for all data, and if not, because of which part.

The row of a function answers for a call; an expression is supported if all of its operands are.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.casts import can_cast, fits_device, is_constant_cast
from gpujoin.functions.device import is_fixed
from gpujoin.functions.kinds import comparable, is_written
from gpujoin.functions.spec import SPECS
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, Expression, Function, Literal, Variable
from gpujoin.model.types import is_text, logical

_NULL_TESTS = (Function.IS_NULL, Function.IS_NOT_NULL)


def is_supported(tree: Expression) -> bool:
    """Whether a typed expression is computed exactly as Spark does."""
    return obstacle(tree) is None


def obstacle(tree: Expression) -> Expression | None:
    """The innermost part of an expression that is not computed exactly as Spark does; ``None`` if all of it is."""
    for child in tree.children:
        part = obstacle(child)
        if part is not None:
            return part
    return None if _is_computed(tree) else tree


def _is_computed(node: Expression) -> bool:
    """Whether a node is computed, given its operands."""
    if node.type is None:
        return False
    match node:
        case ColumnRef():
            return node.index >= 0
        case Variable():
            return True
        case Literal():
            return _is_value(node.type) or node.value is None or is_written(node.type)
        case Cast():
            return (_is_value(node.to) or is_written(node.to)) and can_cast(node)
        case Case():
            return _is_value(node.type) or is_written(node.type)
        case Call():
            return SPECS[node.function].supports(node)
    return False


def _is_value(dtype: pa.DataType) -> bool:
    return comparable(logical(dtype)) or pat.is_null(dtype)


# -- device -----------------------------------------------------------------------------------------------------------


def is_device_supported(tree: Expression) -> bool:
    """Whether an expression over columns that the device holds is computed there. A mere column may be of bytes."""
    if isinstance(tree, ColumnRef):
        return _is_held(tree)
    tested = (node.children[0] for node in tree.walk() if _is_null_test(node))
    return device_obstacle(tree) is None and all(map(_is_held, tested))


def device_obstacle(tree: Expression) -> Expression | None:
    """The innermost part of an expression that is not computed on the device; ``None`` if all of it is."""
    if _is_null_test(tree) or (isinstance(tree, Cast) and is_constant_cast(tree)):
        return None
    for child in tree.children:
        part = device_obstacle(child)
        if part is not None:  # a column that is held there keeps the call from it that reads it
            return tree if _is_held(part) else part
    return None if _is_computed_on_device(tree) else tree


def _is_null_test(node: Expression) -> bool:
    """Whether a column, of any type, is tested for nulls."""
    return isinstance(node, Call) and node.function in _NULL_TESTS and isinstance(node.arguments[0], ColumnRef)


def _is_held(node: Expression) -> bool:
    return isinstance(node, ColumnRef) and node.type is not None and can_carry(node.type)


def _is_computed_on_device(node: Expression) -> bool:
    if node.type is None:
        return False
    match node:
        case ColumnRef() | Literal():
            unsigned = isinstance(node, ColumnRef) and pat.is_unsigned_integer(node.type)
            return is_fixed(logical(node.type)) or is_text(node.type) or unsigned
        case Call():
            return SPECS[node.function].runs_on_device(node)
        case Cast():
            return fits_device(node)
        case Case():
            return (is_fixed(node.type) or pat.is_string(node.type)) and all(
                value.type == node.type for value in (*node.values, node.otherwise)
            )
    return False


def can_carry(dtype: pa.DataType) -> bool:
    """Whether values of a type can be columns on the device."""
    dtype = logical(dtype)
    if pat.is_timestamp(dtype):
        return bool(dtype.unit == "us")
    return is_fixed(dtype) or pat.is_string(dtype) or pat.is_binary(dtype)
