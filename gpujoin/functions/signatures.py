"""Signatures: number and types of a function's operands, their implicit casts, and the type of the result.

Most are lists of parameters. ``date_add`` is ``takes(DATE, INT, gives=pa.date32())``: a timestamp given as its first
operand is cast to a date, as Spark does, and a boolean as its second is refused. Operators whose operands meet in a
common type have a rule of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.widening import is_atomic
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression, Literal
from gpujoin.model.types import is_bytes, is_float, is_numeric, is_text, is_whole, logical

MANY = 1 << 20
"""Upper limit of functions that take any number of operands."""

Types: TypeAlias = Sequence[pa.DataType]
Result: TypeAlias = pa.DataType | Callable[[Types], pa.DataType]
"""The result type, or how it follows from the types of the cast operands."""
Convert: TypeAlias = Callable[[pa.DataType, EvalMode], pa.DataType | None]


def type_of(node: Expression) -> pa.DataType:
    """Type of a resolved node."""
    assert node.type is not None, node
    return node.type


def types_of(node: Call) -> list[pa.DataType]:
    """Logical types of a call's operands."""
    return [logical(type_of(a)) for a in node.arguments]


def cast_to(node: Expression, dtype: pa.DataType, mode: EvalMode) -> Expression:
    """Cast a node to a type, unless it has it already; a null literal just changes its type."""
    if type_of(node) == dtype:
        return node
    if isinstance(node, Literal) and node.value is None:
        return dataclasses.replace(node, type=dtype)
    return Cast(child=node, to=dtype, mode=mode, type=dtype)


def typed(node: Call, dtype: pa.DataType, *arguments: Expression) -> Call:
    """Set the result type of a call, and replace its arguments if new ones are passed."""
    return dataclasses.replace(node, arguments=arguments or node.arguments, type=dtype)


def over(node: Call, common: pa.DataType | None, result: pa.DataType | None = None) -> Call | None:
    """Cast all arguments to one type, which is the result's too unless another is given."""
    if common is None:
        return None
    arguments = (cast_to(a, common, node.mode) for a in node.arguments)
    return typed(node, result if result is not None else common, *arguments)


@dataclass(frozen=True)
class Parameter:
    """What a function accepts as one operand."""

    accepts: Callable[[pa.DataType], bool]
    """Whether a type is one that the function computes with."""
    convert: Convert
    """Spark's implicit cast to such a type: from the operand's type and the mode to the type it is cast to, or
    ``None`` where the operand is refused."""


@dataclass(frozen=True)
class Signature:
    """The operands that a function takes, and the type of its result."""

    resolve: Callable[[Call], Expression | None]
    """Inserts implicit casts into a call and sets its type; returns ``None`` where the operands' types do not fit."""
    accepts: Callable[[Call], bool]
    """Whether the operands of a typed call are of the types that ``resolve`` casts to."""
    arity: tuple[int, int] = (2, 2)
    """Least and greatest number of operands."""
    parameters: tuple[Parameter, ...] = ()
    """The operands, unless they are cast to a common type."""


def takes(*parameters: Parameter, gives: Result, optional: int = 0, repeated: bool = False) -> Signature:
    """Make the signature of a function with parameters.

    ``gives`` is the result type, or how it follows from the types of the cast operands. The last ``optional``
    parameters may be omitted. ``repeated``: the last one stands for any number of operands.
    """
    low, high = len(parameters) - optional, MANY if repeated else len(parameters)

    def resolve(node: Call) -> Expression | None:
        targets = [p.convert(type_of(a), node.mode) for p, a in _paired(parameters, node)]
        pairs = zip(node.arguments, targets, strict=True)
        arguments = [cast_to(a, target, node.mode) for a, target in pairs if target is not None]
        if len(arguments) < len(targets):
            return None
        result = gives([type_of(a) for a in arguments]) if callable(gives) else gives
        return typed(node, result, *arguments)

    def accepts(node: Call) -> bool:
        fitting = all(p.accepts(logical(type_of(a))) for p, a in _paired(parameters, node))
        return fitting and low <= len(node.arguments) <= high

    return Signature(resolve, accepts, (low, high), parameters)


def _paired(parameters: Sequence[Parameter], node: Call) -> list[tuple[Parameter, Expression]]:
    """The parameter of each operand; text or bytes throughout for those that may be either."""
    pairs = list(zip(chain(parameters, repeat(parameters[-1])), node.arguments, strict=False))
    either = [type_of(a) for p, a in pairs if p is TEXT_OR_BYTES]
    text_or_bytes = BYTES if either and all(map(is_bytes, either)) else TEXT
    return [(text_or_bytes if p is TEXT_OR_BYTES else p, a) for p, a in pairs]


def first(types: Types) -> pa.DataType:
    """Type of the first operand."""
    return types[0]


def to(target: pa.DataType, *kinds: Callable[[pa.DataType], bool]) -> Convert:
    """Make the implicit cast of some kinds of types, and of nulls, to one type."""
    return lambda source, _mode: target if pat.is_null(source) or any(k(source) for k in kinds) else None


def keep(kind: Callable[[pa.DataType], bool], others: Convert) -> Convert:
    """Make the implicit cast that leaves types of one kind as they are."""
    return lambda source, mode: source if kind(source) else others(source, mode)


def _to_int(source: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    fractional = is_float(source) or pat.is_decimal(source)
    is_exact = is_whole(source) or is_text(source) or pat.is_null(source)
    return pa.int32() if is_exact or (fractional and mode is not EvalMode.ANSI) else None


def _to_long(source: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    return None if _to_int(source, mode) is None else pa.int64()


def _is_micros(dtype: pa.DataType) -> bool:
    return bool(pat.is_duration(dtype) and dtype.unit == "us")


TO_DOUBLE = to(pa.float64(), is_numeric, is_text)
_TO_TEXT = to(pa.string(), is_atomic)

ANY = Parameter(lambda _: True, lambda source, _mode: source)
BOOLEAN = Parameter(pat.is_boolean, to(pa.bool_(), pat.is_boolean))
NUMBER = Parameter(lambda t: is_numeric(t) and not pat.is_decimal256(t), keep(is_numeric, TO_DOUBLE))
FLOAT = Parameter(is_float, keep(is_float, TO_DOUBLE))
DOUBLE = Parameter(pat.is_float64, TO_DOUBLE)
INT = Parameter(lambda t: is_whole(t) and t.bit_width <= 32, _to_int)
LONG = Parameter(pat.is_int64, _to_long)
TEXT = Parameter(is_text, _TO_TEXT)
BYTES = Parameter(is_bytes, lambda source, _mode: source)
TEXT_OR_BYTES = Parameter(lambda t: is_text(t) or is_bytes(t), _TO_TEXT)
"""Text, or bytes if all operands of this kind are bytes."""
DATE = Parameter(pat.is_date, to(pa.date32(), pat.is_date, pat.is_timestamp, is_text))
DURATION = Parameter(_is_micros, keep(_is_micros, to(pa.duration("us"))))
TIMESTAMP = Parameter(pat.is_timestamp, keep(pat.is_timestamp, to(pa.timestamp("us"), pat.is_date)))


def _is_instant(dtype: pa.DataType) -> bool:
    return bool(pat.is_timestamp(dtype) and dtype.unit == "us" and dtype.tz is not None)


INSTANT = Parameter(_is_instant, keep(_is_instant, lambda _source, _mode: None))


def constant_scale(node: Expression) -> int | None:
    """The constant number of digits that a call rounds to; ``None`` if it is no constant."""
    scale = node.children[1]
    return int(scale.value) if isinstance(scale, Literal) and scale.value is not None else None
