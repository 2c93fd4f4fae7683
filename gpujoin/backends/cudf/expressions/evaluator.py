"""Evaluates resolved expressions on the device, for the rows for which Spark would; knows which it can, without one.

Not offered are regular expressions (libcudf's dialect differs), decimal arithmetic, time zones with rules, nested
values, byte strings, and casts that may fail or whose result depends on settings. Where the result depends on values
that the device may not compute as Spark does, a function looks at them first, and raises ``DeviceValueError``:
characters of text that is no UTF-8, cases of characters other than ASCII, and halves of doubles with many digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.expressions import arithmetic, bits, dates, logic, rounding, text
from gpujoin.backends.cudf.expressions import values as v
from gpujoin.backends.cudf.expressions.offer import Active, Offer, is_fixed
from gpujoin.backends.cudf.expressions.values import NARROW_DIGITS, Value, mask_and, mask_and_not
from gpujoin.backends.ordered.reductions import any_true
from gpujoin.errors import ExpressionEvaluationError, GpuJoinError
from gpujoin.functions.casts import is_lossless
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal

FUNCTIONS: dict[Function, Offer] = {
    **logic.FUNCTIONS,
    **arithmetic.FUNCTIONS,
    **bits.FUNCTIONS,
    **rounding.FUNCTIONS,
    **text.FUNCTIONS,
    **dates.FUNCTIONS,
}
"""The functions that are offered, and how they are computed."""


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
        """Put texts together, others after this one; null where one is null."""

    def substring(self, start: int, stop: int) -> Any:
        """Text of the characters from ``start``, counted from 0, to before ``stop``."""

    def stripped(self, function: Function) -> Any:
        """Text without the spaces at its beginning (``TRIM_LEFT``), its end (``TRIM_RIGHT``) or both (``TRIM``)."""

    def cased(self, function: Function) -> Any:
        """Text in capitals (``UPPER``) or small letters (``LOWER``); only for text that is ASCII."""

    def where(self, mask: Array, other: Any) -> Any:
        """Text where a mask is true, and another text elsewhere; the mask has one value, or one for each row."""

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
class Evaluator:
    """Evaluates the expressions that :func:`can_evaluate` accepts."""

    xp: Any
    """``cupy`` or ``numpy``."""
    source: Source

    def mask(self, condition: Expression, length: int) -> Array:
        """Mask of the rows for which a condition is true."""
        result = self.fixed(condition, None)
        true = result.data if result.valid is None else result.data & result.valid
        return self.xp.ascontiguousarray(self.xp.broadcast_to(true, (length,)))

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

    def any(self, node: Expression, active: Active) -> Value | Text:
        """Evaluate a node."""
        if isinstance(node, ColumnRef):
            return self.source.column(node)
        if isinstance(node, Literal):
            assert node.type is not None
            return (
                self.source.text(node.value) if pat.is_string(node.type) else v.constant(self.xp, node.value, node.type)
            )
        if isinstance(node, Call):
            return FUNCTIONS[node.function].run(self, node, active)
        if isinstance(node, Cast):
            return self._cast(node, active)
        if isinstance(node, Case):
            return self._case(node, active)
        raise GpuJoinError(f"{node!r} cannot be evaluated on a GPU")

    def _case(self, node: Case, active: Active) -> Value | Text:
        left = active
        branches: list[tuple[Array, Value | Text]] = []
        for condition, branch in zip(node.conditions, node.values, strict=True):
            met = self.true(self.fixed(condition, left))
            branches.append((met, self.any(branch, mask_and(left, met))))
            left = mask_and_not(left, met)
        result = self.any(node.otherwise, left)
        for met, branch_value in reversed(branches):
            result = self.chosen(met, branch_value, result)
        return result

    def chosen(self, mask: Array, value: Value | Text, other: Value | Text) -> Value | Text:
        """``value`` where a mask is true, else ``other``; both are text, or neither is."""
        if not isinstance(value, Value):
            made: Text = value.where(mask, other)
            return made
        assert isinstance(other, Value)
        return v.choose(self.xp, mask, value, other)

    def _cast(self, node: Cast, active: Active) -> Value:
        value, target = self.fixed(node.child, active), node.type
        assert target is not None
        if value.dtype == target:
            return value
        if pat.is_decimal(target):
            return v.scaled(value, target)
        if pat.is_timestamp(value.dtype):
            return Value(target, v.day_of_timestamp(value).astype("int32"), value.valid)
        if pat.is_float32(value.dtype):
            return Value(target, v.widened(self.xp, value.data), value.valid)
        return Value(target, value.data.astype(v.numpy_name(target)), value.valid)

    def true(self, value: Value) -> Array:
        """Mask of the rows for which a boolean is true, not false or null."""
        return value.data if value.valid is None else value.data & value.valid

    def pair(self, node: Call, active: Active) -> tuple[Value, Value, Array | None]:
        """Evaluate two operands, the second only where the first is not null; also return where neither is null."""
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


# -- what is offered -------------------------------------------------------------------------------------------


def can_evaluate(condition: Expression) -> bool:
    """Whether a resolved boolean expression is evaluated exactly as in Spark."""
    return condition.type is not None and pat.is_boolean(condition.type) and _offered(condition)


def _offered(node: Expression) -> bool:
    if node.type is None:
        return False
    if isinstance(node, Literal | ColumnRef):
        unsigned = isinstance(node, ColumnRef) and pat.is_unsigned_integer(node.type)
        return is_fixed(node.type) or pat.is_string(node.type) or unsigned
    if isinstance(node, Call):
        if node.function in (Function.IS_NULL, Function.IS_NOT_NULL) and isinstance(node.arguments[0], ColumnRef):
            return True
        return fits_function(node) and all(map(_offered, node.arguments))
    if isinstance(node, Cast):
        return cast_fits(node) and _offered(node.child)
    if isinstance(node, Case):
        return (
            (is_fixed(node.type) or pat.is_string(node.type))
            and all(c.type == node.type for c in (*node.values, node.otherwise))
            and all(map(_offered, node.children))
        )
    return False


def cast_fits(node: Cast) -> bool:
    """Whether a cast cannot fail, and has a result that does not depend on settings."""
    source, target = node.child.type, node.type
    if source is None or target is None:
        return False
    if source == target:
        return is_fixed(source)
    if pat.is_integer(source):
        unsigned = pat.is_unsigned_integer(source)
        if pat.is_signed_integer(target):
            return bool(source.bit_width + unsigned <= target.bit_width)
        if pat.is_decimal128(target):
            narrow = target.precision <= NARROW_DIGITS and target.scale >= 0
            return narrow and is_lossless(source, target)
        return (pat.is_float64(target) or pat.is_float32(target)) and not unsigned
    if pat.is_float32(source):
        return pat.is_float64(target)
    if pat.is_decimal128(source) and pat.is_decimal128(target):
        return is_lossless(source, target) and target.precision <= NARROW_DIGITS
    return pat.is_timestamp(source) and source.tz is None and pat.is_date32(target)


def fits_function(node: Call) -> bool:
    """Whether a call's function is offered for the types of its operands."""
    offer = FUNCTIONS.get(node.function)
    return offer is not None and offer.fits(node)
