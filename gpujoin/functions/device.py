"""Operands: what the implementation of a function on the device evaluates, and may do with the values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.ordered.reductions import any_true
from gpujoin.errors import ExpressionEvaluationError, GpuJoinError
from gpujoin.functions import values as v
from gpujoin.functions.signatures import type_of
from gpujoin.functions.values import Value, numpy_name
from gpujoin.functions.vector import Array, mask_and, mask_and_not
from gpujoin.model.expressions import Call, Cast, ColumnRef, EvalMode, Expression, Function
from gpujoin.model.types import is_wide_decimal

Active: TypeAlias = Array | None
"""Mask of the rows for which a node is evaluated; ``None``: all."""


class Text(Protocol):
    """A text for each row, or one for all rows, in the form of the library below."""

    @property
    def valid(self) -> Array | None:
        """Mask of the texts that are not null; ``None``: there are no nulls."""

    def compare(self, function: Function, other: Any) -> Array:
        """Compare by bytes; the result is arbitrary where an operand is null."""

    def search(self, function: Function, other: Any) -> Array:
        """Compute ``startswith``, ``endswith`` or ``contains``; the result is arbitrary where an operand is null."""

    def like(self, pattern: str, escape: str) -> Array:
        """Compute SQL's LIKE; the result is arbitrary where the text is null."""

    def length(self) -> Array:
        """Number of characters, as int32; arbitrary where the text is null."""

    def bytes_length(self) -> Array:
        """Number of bytes, as int32; arbitrary where the text is null."""

    def concatenated(self, others: Sequence[Any]) -> Any:
        """Append other texts to this one. The result is null where any of them is null."""

    def substring(self, start: int, stop: int) -> Any:
        """Text of the characters from ``start``, counted from 0, to before ``stop``."""

    def stripped(self, function: Function) -> Any:
        """Text without the spaces at its beginning (``TRIM_LEFT``), its end (``TRIM_RIGHT``) or both (``TRIM``)."""

    def cased(self, function: Function) -> Any:
        """Text in capitals (``UPPER``) or small letters (``LOWER``); only for text that is ASCII."""

    def where(self, mask: Array, other: Any) -> Any:
        """Text where a mask is true, another text elsewhere. The mask has one value, or one for each row."""

    def is_ascii(self) -> bool:
        """Whether all texts are ASCII; maybe ``False`` for bytes under a null."""

    def is_utf8(self) -> bool:
        """Whether all texts are UTF-8, whose characters are those of Spark; maybe ``False`` for bytes under a null."""


class Source(Protocol):
    """The leaves of an expression: columns and constants."""

    def column(self, node: ColumnRef) -> Value | Text:
        """Values of a column."""

    def text(self, value: str | None) -> Text:
        """A text constant."""

    def column_valid(self, node: ColumnRef) -> Array | None:
        """Mask of the rows at which a column of any type is not null; ``None``: all."""


@dataclass(frozen=True)
class Operands(ABC):
    """Evaluates operands for the implementation of a function."""

    xp: Any
    """``cupy`` or ``numpy``."""
    source: Source

    @abstractmethod
    def any(self, node: Expression, active: Active) -> Value | Text:
        """Evaluate a node."""

    def fixed(self, node: Expression, active: Active) -> Value:
        """Evaluate a node of a fixed-width type."""
        value = self.any(node, active)
        if not isinstance(value, Value):
            raise GpuJoinError(f"{node} of type {node.type} is text where a number is needed")
        return value

    def text(self, node: Expression, active: Active) -> Text:
        """Evaluate a text node."""
        value = self.any(node, active)
        if isinstance(value, Value):
            raise GpuJoinError(f"{node} of type {node.type} is no text")
        return value

    def choose(self, mask: Array, value: Value | Text, other: Value | Text) -> Value | Text:
        """``value`` where a mask is true, else ``other``; both are text, or neither is."""
        if not isinstance(value, Value):
            text: Text = value.where(mask, other)
            return text
        assert isinstance(other, Value)
        return v.choose(self.xp, mask, value, other)

    def true(self, value: Value) -> Array:
        """Mask of the rows for which a boolean is true, not false or null."""
        return value.data if value.valid is None else value.data & value.valid

    def pair(self, node: Call, active: Active) -> tuple[Value, Value, Array | None]:
        """Evaluate two operands, the second only where the first is not null; also return the mask of both."""
        left = self.fixed(node.arguments[0], active)
        right = self.fixed(node.arguments[1], mask_and(active, left.valid))
        return left, right, mask_and(left.valid, right.valid)

    def checked(
        self, node: Call | Cast, result: Array, valid: Array | None, failed: Array | None, active: Active
    ) -> Value:
        """Handle rows that failed: raise in ANSI mode, make them null in TRY mode, else keep their values."""
        assert node.type is not None
        if failed is None or node.mode is EvalMode.LEGACY:
            return Value(node.type, result, valid)
        if node.mode is EvalMode.TRY:
            return Value(node.type, result, mask_and_not(valid, failed))
        self.fail_if(mask_and(mask_and(failed, valid), active), f"{node}: overflow of {node.type}")
        return Value(node.type, result, valid)

    def fail_if(self, rows: Array | None, message: str) -> None:
        """Raise ``ExpressionEvaluationError`` if a mask is true for any row."""
        if rows is not None and any_true(rows):
            raise ExpressionEvaluationError(f"{message}; use try_ functions or spark.sql.ansi.enabled=false for null")


# -- kernels ----------------------------------------------------------------------------------------------------------


class KernelWriter(Protocol):
    """Writes expressions in C++ that read the columns of pairs in place, over the helpers of ``residual.cu``."""

    def node(self, node: Expression) -> str:
        """Write a node."""

    def missing(self, node: ColumnRef) -> str:
        """Write the test whether a column is null."""


Kernel: TypeAlias = Callable[[KernelWriter, Call], str | None]
"""Writes a call in C++; ``None`` where it cannot be written."""


def chain(method: str) -> Kernel:
    """Write a call as methods of its first operand."""

    def write_chain(writer: KernelWriter, node: Call) -> str:
        first, *others = map(writer.node, node.arguments)
        return first + "".join(f".{method}({other})" for other in others)

    return write_chain


def swapped(method: str) -> Kernel:
    """Write a call of two operands as a method of the second."""

    def write_swapped(writer: KernelWriter, node: Call) -> str:
        left, right = map(writer.node, node.arguments)
        return f"{right}.{method}({left})"

    return write_swapped


def suffix(text: str) -> Kernel:
    """Write a call of one operand as a method without operands."""
    return lambda writer, node: f"{writer.node(node.arguments[0])}.{text}"


# -- offers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offer:
    """The implementation of one function on the device."""

    run: Callable[[Operands, Call, Active], Value | Text]
    """Computes a call for its active rows."""
    fits: Callable[[Call], bool] | None = None
    """Whether a call that the row supports is computed; ``None``: all of them are."""
    kernel: Kernel | None = None
    """Writes a call for a kernel that computes a whole condition at once; ``None``: there is none for it."""


def strict(
    compute: Callable[..., Array], fits: Callable[[Call], bool] | None = None, kernel: Kernel | None = None
) -> Offer:
    """Offer a function of fixed-width values whose result is null where an operand is null."""

    def evaluate(operands: Operands, node: Call, active: Active) -> Value:
        values: list[Value] = []
        valid: Array | None = None
        for argument in node.arguments:
            values.append(operands.fixed(argument, mask_and(active, valid)))
            valid = mask_and(valid, values[-1].valid)
        return Value(type_of(node), compute(operands.xp, *values).astype(numpy_name(type_of(node))), valid)

    return Offer(evaluate, fits, kernel)


def of_either(compute: Callable[..., Array], fits: Callable[[Call], bool] | None = None) -> Offer:
    """Offer a function of arrays of CuPy or NumPy, as :func:`~gpujoin.functions.implementation.of_arrays` takes it."""
    return strict(lambda _, *values: compute(*(value.data for value in values)), fits)


def is_fixed(dtype: pa.DataType | None) -> bool:
    """Whether values of a type are arrays: booleans, signed integers, floats, decimals, dates, timestamps."""
    return dtype is not None and (
        pat.is_boolean(dtype) or pat.is_signed_integer(dtype) or pat.is_float32(dtype) or pat.is_float64(dtype)
        or pat.is_decimal128(dtype) or pat.is_date32(dtype) or pat.is_timestamp(dtype)
    )  # fmt: skip


def operand_types(node: Expression) -> list[pa.DataType]:
    """Types of a node's operands."""
    return [child.type for child in node.children if child.type is not None]


def same_types(node: Call) -> bool:
    """Whether all operands have the same comparable type; decimals may differ in precision, but not in scale."""
    first, *others = operand_types(node)
    if pat.is_decimal128(first):
        return all(
            pat.is_decimal128(t) and t.scale == first.scale and is_wide_decimal(t) == is_wide_decimal(first)
            for t in others
        )
    return (is_fixed(first) or pat.is_string(first)) and all(t == first for t in others)


def same_as_result(node: Call) -> bool:
    """Whether all operands have the type of the result."""
    return same_types(node) and node.type == operand_types(node)[0]
