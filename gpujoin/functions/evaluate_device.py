"""Evaluates resolved expressions on the device, for the rows for which Spark would; knows which it can, without one."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import GpuJoinError
from gpujoin.functions import quotients, words
from gpujoin.functions import values as v
from gpujoin.functions.casts import double_of, is_number_cast, number_cast
from gpujoin.functions.device import Active, Offer, Operands, Text, is_fixed
from gpujoin.functions.kinds import is_lossless
from gpujoin.functions.rounding import constant_scale
from gpujoin.functions.spec import SPECS
from gpujoin.functions.values import NARROW_DIGITS, Value
from gpujoin.functions.vector import Array, mask_and, mask_and_not
from gpujoin.functions.words import Words, of_words, words_of
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal
from gpujoin.model.types import MAX_PRECISION, is_float, is_text, is_whole, logical


@dataclass(frozen=True)
class Evaluator(Operands):
    """Evaluates the expressions that :func:`can_evaluate` accepts."""

    def mask(self, condition: Expression, length: int) -> Array:
        """Mask of the rows for which a condition is true."""
        true = self.true(self.fixed(condition, None))
        return self.xp.ascontiguousarray(self.xp.broadcast_to(true, (length,)))

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
            offer = SPECS[node.function].device
            assert isinstance(offer, Offer), node
            return offer.run(self, node, active)
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


# -- what is offered -------------------------------------------------------------------------------------------


def can_evaluate(condition: Expression) -> bool:
    """Whether a resolved boolean expression is evaluated exactly as in Spark."""
    return condition.type is not None and pat.is_boolean(condition.type) and _is_offered(condition)


def _is_offered(node: Expression) -> bool:
    if node.type is None:
        return False
    if isinstance(node, Literal | ColumnRef):
        unsigned = isinstance(node, ColumnRef) and pat.is_unsigned_integer(node.type)
        return is_fixed(node.type) or pat.is_string(node.type) or unsigned
    if isinstance(node, Call):
        if node.function in (Function.IS_NULL, Function.IS_NOT_NULL) and isinstance(node.arguments[0], ColumnRef):
            return True
        return fits_function(node) and all(map(_is_offered, node.arguments))
    if isinstance(node, Cast):
        return cast_fits(node) and _is_offered(node.child)
    if isinstance(node, Case):
        return (
            (is_fixed(node.type) or pat.is_string(node.type))
            and all(c.type == node.type for c in (*node.values, node.otherwise))
            and all(map(_is_offered, node.children))
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
    return SPECS[node.function].runs_on_device(node)


# -- pipelines --------------------------------------------------------------------------------------------------------


_CERTAINLY_TOO_LARGE = 1.3e38
"""Between the least sum of 39 digits and the greatest one of 127 bits."""


@dataclass(frozen=True)
class PipelineEvaluator(Evaluator):
    """Evaluates the expressions that :func:`gpujoin.backends.cudf.pipeline.offers.can_compute` accepts."""

    def any(self, node: Expression, active: Active) -> Value | Text:
        """Evaluate a node."""
        if isinstance(node, Call) and is_decimal_arithmetic(node):
            return self._arithmetic(node, active)
        if isinstance(node, Call) and node.function is Function.UNSCALED_VALUE:
            value = self.fixed(node.arguments[0], active)
            return Value(pa.int64(), value.data, value.valid)
        if isinstance(node, Cast) and is_constant(node) and isinstance(node.child, Literal):
            assert node.type is not None
            value = node.child.value
            return v.constant(self.xp, None if value is None else Decimal(value), logical(node.type))
        if isinstance(node, Call) and is_decimal_rounding(node):
            return self._rounded(node, active)
        if isinstance(node, Call) and is_decimal_sign(node):
            value = self.fixed(node.arguments[0], active)
            unscaled = words_of(value)
            turned = words.magnitude(self.xp, unscaled) if node.function is Function.ABS else words.negate(unscaled)
            return of_words(turned, value.dtype, value.valid)
        if isinstance(node, Cast) and node.type is not None and node.child.type is not None:
            if is_number_cast(node):
                return number_cast(self, node, self.fixed(node.child, active), active)
            if pat.is_decimal128(node.type) and pat.is_float64(node.child.type):
                return self._of_double(node, active)
            if pat.is_decimal128(node.type):
                return self._to_decimal(node, active)
            if pat.is_decimal128(node.child.type) and pat.is_float64(node.type):
                return double_of(self.xp, self.fixed(node.child, active))
        return super().any(node, active)

    def _to_decimal(self, node: Cast, active: Active) -> Value:
        assert node.type is not None
        value, target = self.fixed(node.child, active), logical(node.type)
        if value.dtype == target:
            return value
        digits, scale = (value.dtype.precision, value.dtype.scale) if pat.is_decimal(value.dtype) else (19, 0)
        unscaled, dropped = words_of(value), scale - target.scale
        if is_certain(value.dtype, target):
            if dropped <= 0:
                return of_words(self._scaled(unscaled, -dropped), target, value.valid)
            return of_words(self._dropped(unscaled, digits, dropped), target, value.valid)
        if dropped <= 0:
            result, overflow = words.multiply(self.xp, unscaled, words.constant(self.xp, 10**-dropped))
        else:
            result, overflow = self._dropped(unscaled, digits, dropped), self.xp.zeros(1, dtype=bool)
        return self._fitted(node, result, overflow, value.valid, active)

    def _of_double(self, node: Cast, active: Active) -> Value:
        """Round doubles half up, as the decimals that are printed of them. NaN and the infinities are null.

        The decimal half way between two results has at most 15 digits, so no other one as short is near enough to be
        printed of the same double. So a double is rounded up if it is not less than the double of that decimal, which
        is a quotient of two exact doubles::

            2.675 to two places   267.5 is half way, and 535 / 200 is the same double: rounded up to 2.68,
                                  although the double is 2.67499999999999982 exactly
        """
        xp, target, value = self.xp, logical(node.type), self.fixed(node.child, active)
        unit, bound = 10.0**target.scale, 10.0 ** (target.precision - target.scale)
        size = xp.abs(value.data)
        finite = size < float("inf")
        size = xp.where(finite, xp.minimum(size, bound + 1.0), 0.0)
        below = xp.floor(size * unit) - 1.0  # the product is off by less than one
        rounded = below
        for step in range(3):
            rounded = rounded + (size >= (2.0 * (below + float(step)) + 1.0) / (2.0 * unit))
        unscaled = xp.where(value.data < 0, -rounded, rounded).astype("int64")
        none = xp.zeros(1, dtype=bool)
        return self._fitted(node, words.widened(unscaled), none, mask_and(value.valid, finite), active)

    def _rounded(self, node: Call, active: Active) -> Value:
        """Round a decimal half up or to even. A result that does not fit is an error in every mode, as in Spark."""
        xp, value, target = self.xp, self.fixed(node.arguments[0], active), logical(node.type)
        scale = constant_scale(node)
        assert scale is not None
        unscaled, places = words_of(value), value.dtype.scale - min(scale, value.dtype.scale)
        if not places:
            return of_words(unscaled, target, value.valid)
        drop = quotients.without_places if node.function is Function.ROUND else quotients.without_places_to_even
        size = drop(xp, words.magnitude(xp, unscaled), value.dtype.precision, places)
        if scale < 0:
            size, overflow = words.multiply(xp, size, words.constant(xp, 10**-scale))
            bad = overflow | words.outside(xp, size, target.precision)
            self.fail_if(mask_and(mask_and(bad, value.valid), active), f"{node}: the result does not fit {node.type}")
        return of_words(words.signed(xp, size, unscaled.high < 0), target, value.valid)

    def _dropped(self, value: Words, digits: int, places: int) -> Words:
        """Drop decimal places, rounding half up."""
        size = words.magnitude(self.xp, value)
        return words.signed(self.xp, quotients.without_places(self.xp, size, digits, places), value.high < 0)

    def _scaled(self, value: Words, digits: int) -> Words:
        """Multiply by a power of ten that is known to fit."""
        if digits == 0:
            return value
        return words.multiply(self.xp, value, words.constant(self.xp, 10**digits))[0]

    def _divided(self, node: Call, active: Active) -> Value:
        """Evaluate the divisor first, as Spark does: the dividend is not evaluated where it is null or zero."""
        xp, target = self.xp, logical(node.type)
        right = self.fixed(node.arguments[1], active)
        zero = right.data == 0 if right.low is None else (right.data == 0) & (right.low == 0)
        left = self.fixed(node.arguments[0], mask_and_not(mask_and(active, right.valid), zero))
        valid = mask_and(left.valid, right.valid)
        if node.mode is EvalMode.ANSI:
            self.fail_if(mask_and(mask_and(zero, valid), active), f"{node}: division by zero")
        sides = [words_of(side) for side in (left, right)]
        dividend, divisor = (words.magnitude(xp, side) for side in sides)
        safe = Words(divisor.high, xp.where(zero, divisor.low.dtype.type(1), divisor.low))
        places = target.scale + right.dtype.scale - left.dtype.scale
        size, overflow = quotients.rounded(xp, dividend, safe, left.dtype.precision, places)
        result = words.signed(xp, size, (sides[0].high < 0) ^ (sides[1].high < 0))
        return self._fitted(node, result, overflow, mask_and_not(valid, zero), active)

    def _rounded_product(self, left: Value, right: Value, dropped: int) -> tuple[Words, Array]:
        """Product without its last places, rounded half up, and the mask of overflows."""
        sides = [words_of(side) for side in (left, right)]
        first, second = (words.magnitude(self.xp, side) for side in sides)
        total, overflow = quotients.product_without_places(self.xp, first, second, dropped)
        return words.signed(self.xp, total, (sides[0].high < 0) ^ (sides[1].high < 0)), overflow

    def _rounded_sum(self, node: Call, left: Value, right: Value, scale: int) -> tuple[Words, Array]:
        """Sum or difference, rounded half up to a scale, and the mask of overflows.

        An operand in units of the last place may exceed 128 bits. So what stands after the last place is split off,
        rounded downwards, and added apart; the rest is added modulo 2**128, which is exact where the sum is known to
        be small, by doubles. ``12.34 - 5.9`` to one place, in tenths::

            123 and 4 hundredths, -59 and none     64 and 4 hundredths, which are less than half     6.4
        """
        xp = self.xp
        most = max(side.dtype.scale for side in (left, right)) - scale
        total, rest, estimate = words.constant(xp, 0), words.constant(xp, 0), 0.0
        for side, turned in ((left, False), (right, node.function is Function.SUBTRACT)):
            unscaled, places = words_of(side), side.dtype.scale - scale
            size, negative = words.magnitude(xp, unscaled), (unscaled.high < 0) ^ turned
            about = words.as_double(size) / 10.0**places
            estimate = estimate + xp.where(negative, -about, about)
            if places <= 0:
                front = words.multiply(xp, size, words.constant(xp, 10**-places))[0]
                total = words.add(total, words.signed(xp, front, negative))
                continue
            front, last = quotients.split(xp, size, side.dtype.precision, places)
            front, last = words.signed(xp, front, negative), words.signed(xp, last, negative)
            below = last.high < 0
            total = words.add(total, words.subtract(front, words.widened(below.astype("int64"))))
            unit = words.constant(xp, 10**places)
            whole = words.add(last, unit)
            last = Words(xp.where(below, whole.high, last.high), xp.where(below, whole.low, last.low))
            rest = words.add(rest, self._scaled(last, most - places))
        unit, half = (words.constant(xp, 10**most // parts) for parts in (1, 2))
        carry = ~words.unsigned_less(rest, unit)
        less = words.subtract(rest, unit)
        rest = Words(xp.where(carry, less.high, rest.high), xp.where(carry, less.low, rest.low))
        total = words.add(total, words.widened(carry.astype("int64")))
        # Halves are rounded away from zero, which is up only where the part before them is not negative.
        at_half = (rest.high == half.high) & (rest.low == half.low)
        up = words.unsigned_less(half, rest) | (at_half & (total.high >= 0))
        if most:
            total = words.add(total, words.widened(up.astype("int64")))
        return total, xp.abs(estimate) > _CERTAINLY_TOO_LARGE

    def _arithmetic(self, node: Call, active: Active) -> Value:
        if node.function is Function.DIVIDE:
            return self._divided(node, active)
        left, right, valid = self.pair(node, active)
        target = logical(node.type)
        precision, scale = natural(node)
        if node.function is not Function.MULTIPLY and (
            scale > target.scale or (precision > MAX_PRECISION and left.dtype.scale != right.dtype.scale)
        ):
            result, overflow = self._rounded_sum(node, left, right, target.scale)
            return self._fitted(node, result, overflow, valid, active)
        if scale > target.scale:
            result, overflow = self._rounded_product(left, right, scale - target.scale)
            return self._fitted(node, result, overflow, valid, active)
        if target.precision <= v.NARROW_DIGITS and precision <= target.precision:
            return Value(target, self._narrow(node, left, right, scale), valid)
        if node.function is Function.MULTIPLY:
            result, overflow = words.multiply(self.xp, words_of(left), words_of(right))
        else:
            left_words, right_words = (self._scaled(words_of(side), scale - side.dtype.scale) for side in (left, right))
            if node.function is Function.ADD:
                result = words.add(left_words, right_words)
                overflow = words.sum_overflows(left_words, right_words, result)
            else:
                result = words.subtract(left_words, right_words)
                overflow = words.sum_overflows(result, right_words, left_words)
        if precision <= target.precision:
            return of_words(result, target, valid)
        return self._fitted(node, result, overflow, valid, active)

    def _narrow(self, node: Call, left: Value, right: Value, scale: int) -> Array:
        """Compute a result that is known to fit 64 bits, as do its operands."""
        if node.function is Function.MULTIPLY:
            return left.data * right.data
        left_unscaled, right_unscaled = (
            side.data * 10 ** (scale - side.dtype.scale) if side.dtype.scale != scale else side.data
            for side in (left, right)
        )
        return left_unscaled + right_unscaled if node.function is Function.ADD else left_unscaled - right_unscaled

    def _fitted(
        self, node: Call | Cast, unscaled: Words, overflow: Array, valid: Array | None, active: Active
    ) -> Value:
        """Convert a result that may not fit its type: raise in ANSI mode, else make it null."""
        target = logical(node.type)
        bad = overflow | words.outside(self.xp, unscaled, min(target.precision, MAX_PRECISION))
        if node.mode is EvalMode.ANSI:
            self.fail_if(mask_and(mask_and(bad, valid), active), f"{node}: the result does not fit {node.type}")
            return of_words(unscaled, target, valid)
        return of_words(unscaled, target, mask_and_not(valid, bad))


_ARITHMETIC = frozenset({Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.DIVIDE})
_NEGATED_DIGITS = 34
"""Most digits of decimals whose sign Spark turns without rounding them."""
_PRINTED_DIGITS = 14
"""Most digits of decimals that are made of doubles: halves of the last place have one more, and are exact up to 15."""


def can_carry(dtype: pa.DataType) -> bool:
    """Whether values of a type can be columns of a piece."""
    dtype = logical(dtype)
    if pat.is_timestamp(dtype):
        return bool(dtype.unit == "us")
    return _fixed(dtype) or pat.is_string(dtype) or pat.is_binary(dtype)


def can_compute(node: Expression) -> bool:
    """Whether an expression is evaluated exactly as in Spark. A mere column may have any type."""
    if isinstance(node, ColumnRef):
        return node.type is not None and can_carry(node.type)
    return _computable(node)


def can_test(condition: Expression) -> bool:
    """Whether a resolved boolean expression is evaluated exactly as in Spark, over pairs of rows or rows."""
    boolean = condition.type is not None and pat.is_boolean(condition.type)
    return boolean and (can_evaluate(condition) or can_compute(condition))


def _computable(node: Expression) -> bool:
    if node.type is None:
        return False
    if isinstance(node, Literal | ColumnRef):
        return _fixed(logical(node.type)) or is_text(node.type)
    if isinstance(node, Call):
        return _call(node)
    if isinstance(node, Cast):
        return is_constant(node) or (_cast(node) and _computable(node.child))
    if isinstance(node, Case):
        same = all(c.type == node.type for c in (*node.values, node.otherwise))
        carried_type = _fixed(node.type) or pat.is_string(node.type)
        return carried_type and same and all(map(_computable, node.children))
    return False


def _call(node: Call) -> bool:
    if is_decimal_arithmetic(node):
        return _exact_scale(node) and all(map(_computable, node.arguments))
    if is_decimal_sign(node) or is_decimal_rounding(node):
        return all(map(_computable, node.arguments))
    if node.function is Function.UNSCALED_VALUE:
        child = node.arguments[0]
        return child.type is not None and child.type.precision <= NARROW_DIGITS and _computable(child)
    if node.function in (Function.IS_NULL, Function.IS_NOT_NULL) and isinstance(node.arguments[0], ColumnRef):
        return can_carry(node.arguments[0].type or pa.null())
    return fits_function(node) and all(map(_computable, node.arguments))


def is_constant(node: Cast) -> bool:
    """Whether a cast is that of a null constant, or of a constant integer that fits a decimal."""
    if not isinstance(node.child, Literal) or node.type is None:
        return False
    value, target = node.child.value, node.type
    if value is None:
        return _fixed(target)
    return bool(
        pat.is_decimal128(target) and isinstance(value, int) and not isinstance(value, bool)
        and target.scale >= 0 and abs(value) < 10 ** (target.precision - target.scale)
    )  # fmt: skip


def _cast(node: Cast) -> bool:
    source, target = node.child.type, node.type
    if source is None or target is None:
        return False
    if is_number_cast(node):
        return True
    if pat.is_decimal128(target) and (is_whole(source) or pat.is_decimal128(source)):
        return target.scale >= 0 and (is_whole(source) or source.scale >= 0)
    if pat.is_decimal128(target) and pat.is_float64(source):
        return bool(target.precision <= _PRINTED_DIGITS and target.scale >= 0)
    if pat.is_decimal128(source):
        return bool(pat.is_float64(target) and source.scale >= 0)
    return cast_fits(node)


def is_certain(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast of integers or decimals to a decimal succeeds for every value. Rounding may need a digit more."""
    if is_lossless(source, target):
        return True
    return bool(
        pat.is_decimal(source) and source.scale > target.scale
        and target.precision - target.scale > source.precision - source.scale
    )  # fmt: skip


def is_decimal_arithmetic(node: Call) -> bool:
    """Whether a call adds, subtracts, multiplies or divides decimals."""
    kinds = [argument.type for argument in node.arguments]
    return (
        node.function in _ARITHMETIC and node.type is not None and pat.is_decimal128(node.type)
        and all(kind is not None and pat.is_decimal128(kind) for kind in kinds)
    )  # fmt: skip


def is_decimal_sign(node: Call) -> bool:
    """Whether a call turns or drops the sign of a decimal that is not rounded."""
    kind = node.type
    return node.function in (Function.ABS, Function.NEGATE) and kind is not None and (
        pat.is_decimal128(kind) and kind.precision <= _NEGATED_DIGITS and kind == node.arguments[0].type
    )  # fmt: skip


def is_decimal_rounding(node: Call) -> bool:
    """Whether a call rounds a decimal to a constant number of digits, dropping no more than 38."""
    kind, scale = node.arguments[0].type, None
    if node.function in (Function.ROUND, Function.ROUND_EVEN):
        scale = constant_scale(node)
    if scale is None or kind is None or not pat.is_decimal128(kind) or kind.scale < 0:
        return False
    return bool(kind.scale - scale <= MAX_PRECISION and scale >= -MAX_PRECISION)


def natural(node: Call) -> tuple[int, int]:
    """Precision and scale in which a sum, difference or product of decimals is exact."""
    left, right = (logical(argument.type) for argument in node.arguments)
    if node.function is Function.MULTIPLY:
        return left.precision + right.precision + 1, left.scale + right.scale
    scale = max(left.scale, right.scale)
    return max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale


def _exact_scale(node: Call) -> bool:
    """Whether the result is exact, and rounded where Spark rounds it."""
    left, right = (logical(argument.type) for argument in node.arguments)
    result = logical(node.type)
    if min(left.scale, right.scale, result.scale) < 0:
        return False
    if node.function is Function.DIVIDE:
        return True
    precision, scale = natural(node)
    if node.function is not Function.MULTIPLY:
        return bool(result.scale <= scale)
    if result.scale < scale:
        return scale - result.scale <= MAX_PRECISION
    # A product beyond 127 bits has more than 38 digits.
    return bool(result.scale == scale and result.precision >= min(precision, MAX_PRECISION))


def _fixed(dtype: pa.DataType) -> bool:
    return (
        pat.is_boolean(dtype) or is_whole(dtype) or is_float(dtype) or pat.is_decimal128(dtype)
        or pat.is_date32(dtype) or pat.is_timestamp(dtype)
    )  # fmt: skip
