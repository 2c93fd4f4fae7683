"""Signatures: how many operands a function takes, of which types, by which implicit casts, and what it gives.

Most are lists of parameters. ``date_add`` is ``takes(DATE, INT, gives=pa.date32())``: a timestamp given as its first
operand is cast to a date, as Spark does, and a boolean as its second is refused. Operators whose operands meet in a
common type have a rule of their own (:class:`Rule`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.widening import is_atomic
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression, Literal
from gpujoin.model.types import is_bytes, is_float, is_numeric, is_text, is_whole, logical

MANY = 1 << 20
"""As many operands as one likes."""

Types: TypeAlias = Sequence[pa.DataType]
Result: TypeAlias = pa.DataType | Callable[[Types], pa.DataType]
"""The result type, or how it follows from the types of the cast operands."""


def type_of(node: Expression) -> pa.DataType:
    """Give the type of a typed node."""
    assert node.type is not None, node
    return node.type


def types_of(node: Call) -> list[pa.DataType]:
    """Give the types of a call's operands as expressions see them."""
    return [logical(type_of(a)) for a in node.arguments]


def cast_to(node: Expression, dtype: pa.DataType, mode: EvalMode) -> Expression:
    """Put a cast over a node, unless it has the type already; a null literal just changes its type."""
    if type_of(node) == dtype:
        return node
    if isinstance(node, Literal) and node.value is None:
        return dataclasses.replace(node, type=dtype)
    return Cast(child=node, to=dtype, mode=mode, type=dtype)


def typed(node: Call, dtype: pa.DataType, *arguments: Expression) -> Call:
    """Give a call its result type, and other arguments if there are any."""
    return dataclasses.replace(node, arguments=arguments or node.arguments, type=dtype)


def over(node: Call, common: pa.DataType | None, result: pa.DataType | None = None) -> Call | None:
    """Cast all arguments to one type, which is the result's too unless another is given."""
    if common is None:
        return None
    arguments = (cast_to(a, common, node.mode) for a in node.arguments)
    return typed(node, result if result is not None else common, *arguments)


class Signature(Protocol):
    """What a function may be called with."""

    @property
    def arity(self) -> tuple[int, int]:
        """Least and greatest number of operands."""
        ...

    @property
    def examples(self) -> tuple[object, ...]:
        """Operands of a call that stands for the function in the documentation; ``None``: a column."""
        ...

    def resolve(self, node: Call) -> Expression | None:
        """Put implicit casts into a call and fill its type; ``None`` where the operands' types do not fit."""
        ...

    def accepts(self, node: Call) -> bool:
        """Tell whether the operands of a typed call are of the types that :meth:`resolve` casts to."""
        ...


@dataclass(frozen=True)
class Rule:
    """A signature that is a function.

    Attributes
    ----------
    apply : callable
        See :meth:`Signature.resolve`.
    fits : callable
        See :meth:`Signature.accepts`; gets the call and the logical types of its operands.
    arity : (int, int)
        Least and greatest number of operands.
    examples : tuple
        See :attr:`Signature.examples`.
    """

    apply: Callable[[Call], Expression | None]
    fits: Callable[[Call, Types], bool]
    arity: tuple[int, int] = (2, 2)
    examples: tuple[object, ...] = (None, None)

    def resolve(self, node: Call) -> Expression | None:
        """Apply the rule."""
        return self.apply(node)

    def accepts(self, node: Call) -> bool:
        """Ask the rule."""
        return self.fits(node, types_of(node))


@dataclass(frozen=True)
class Parameter:
    """An operand of a function.

    Attributes
    ----------
    accepts : callable
        Whether a type is one that the function computes with.
    convert : callable
        Spark's implicit cast to such a type: from the operand's type and the mode to the type it is cast to, or
        ``None`` where the operand is refused.
    example : object
        A constant that stands for the operand in the tables of the documentation; ``None``: a column does.
    """

    accepts: Callable[[pa.DataType], bool]
    convert: Callable[[pa.DataType, EvalMode], pa.DataType | None]
    example: object = None

    def cast(self, node: Expression, mode: EvalMode) -> Expression | None:
        """Cast an operand."""
        target = self.convert(type_of(node), mode)
        return None if target is None else cast_to(node, target, mode)


@dataclass(frozen=True)
class Takes:
    """A list of parameters; see :func:`takes`."""

    parameters: tuple[Parameter, ...]
    gives: Result
    least: int
    most: int

    @property
    def arity(self) -> tuple[int, int]:
        """Least and greatest number of operands."""
        return self.least, self.most

    @property
    def examples(self) -> tuple[object, ...]:
        """One a parameter."""
        return tuple(parameter.example for parameter in self.parameters)

    def resolve(self, node: Call) -> Expression | None:
        """Cast each operand to its parameter's type."""
        pairs = zip(self._parameters(node), node.arguments, strict=True)
        cast = [parameter.cast(argument, node.mode) for parameter, argument in pairs]
        arguments = [argument for argument in cast if argument is not None]
        if len(arguments) < len(cast):
            return None
        gives = self.gives([type_of(a) for a in arguments]) if callable(self.gives) else self.gives
        return typed(node, gives, *arguments)

    def accepts(self, node: Call) -> bool:
        """Ask each parameter."""
        low, high = self.arity
        pairs = zip(self._parameters(node), types_of(node), strict=False)
        return low <= len(node.arguments) <= high and all(parameter.accepts(t) for parameter, t in pairs)

    def _parameters(self, node: Call) -> list[Parameter]:
        """The parameter of each operand; text or bytes throughout for those that may be either."""
        last = self.parameters[-1:] * max(0, len(node.arguments) - len(self.parameters))
        parameters = [*self.parameters, *last][: len(node.arguments)]
        either = [type_of(a) for p, a in zip(parameters, node.arguments, strict=False) if p is TEXT_OR_BYTES]
        chosen = BYTES if either and all(map(is_bytes, either)) else TEXT
        return [chosen if p is TEXT_OR_BYTES else p for p in parameters]


def takes(*parameters: Parameter, gives: Result, optional: int = 0, repeated: bool = False) -> Takes:
    """Make the signature of a function with parameters.

    Parameters
    ----------
    *parameters : Parameter
        One an operand.
    gives : pyarrow.DataType or callable
        The result type, or how it follows from the types of the cast operands.
    optional : int
        How many of the last parameters may be left out.
    repeated : bool
        Whether the last parameter stands for any number of operands, at least as many as are listed less the optional.
    """
    return Takes(parameters, gives, len(parameters) - optional, MANY if repeated else len(parameters))


def first(types: Types) -> pa.DataType:
    """Give the type of the first operand."""
    return types[0]


def _atomic_to(dtype: pa.DataType) -> Callable[[pa.DataType, EvalMode], pa.DataType | None]:
    return lambda source, _mode: dtype if is_atomic(source) or pat.is_null(source) else None


def _to_date(source: pa.DataType, _mode: EvalMode) -> pa.DataType | None:
    known = pat.is_date(source) or pat.is_timestamp(source) or is_text(source) or pat.is_null(source)
    return pa.date32() if known else None


def _to_timestamp(source: pa.DataType, _mode: EvalMode) -> pa.DataType | None:
    if pat.is_timestamp(source):
        return source
    return pa.timestamp("us") if pat.is_date(source) or pat.is_null(source) else None


def _to_int(source: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    fractional = is_float(source) or pat.is_decimal(source)
    known = is_whole(source) or is_text(source) or pat.is_null(source)
    return pa.int32() if known or (fractional and mode is not EvalMode.ANSI) else None


def _to_double(source: pa.DataType, _mode: EvalMode) -> pa.DataType | None:
    return pa.float64() if is_numeric(source) or is_text(source) or pat.is_null(source) else None


def _to_float(source: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    return source if is_float(source) else _to_double(source, mode)


def _to_number(source: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    return source if is_numeric(source) else _to_double(source, mode)


def _to_boolean(source: pa.DataType, _mode: EvalMode) -> pa.DataType | None:
    return pa.bool_() if pat.is_boolean(source) or pat.is_null(source) else None


def _is_number(dtype: pa.DataType) -> bool:
    return is_numeric(dtype) and not pat.is_decimal256(dtype)


def _is_int(dtype: pa.DataType) -> bool:
    return is_whole(dtype) and dtype.bit_width <= 32


BOOLEAN = Parameter(pat.is_boolean, _to_boolean)
NUMBER = Parameter(_is_number, _to_number)
FLOAT = Parameter(is_float, _to_float)
DOUBLE = Parameter(pat.is_float64, _to_double)
INT = Parameter(_is_int, _to_int, example=1)
TEXT = Parameter(is_text, _atomic_to(pa.string()))
PATTERN = Parameter(is_text, _atomic_to(pa.string()), example="a")
ESCAPE = Parameter(is_text, _atomic_to(pa.string()), example="!")
BYTES = Parameter(is_bytes, lambda source, _mode: source)
TEXT_OR_BYTES = Parameter(lambda t: is_text(t) or is_bytes(t), _atomic_to(pa.string()))
"""Text, or bytes if all operands of this kind are bytes."""
DATE = Parameter(pat.is_date, _to_date)
TIMESTAMP = Parameter(pat.is_timestamp, _to_timestamp)
ANY = Parameter(lambda _: True, lambda source, _mode: source)
