"""Evaluates expressions of pipelines: those of join conditions, and exact decimal arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.expressions import evaluator as conditions
from gpujoin.backends.cudf.expressions import values as v
from gpujoin.backends.cudf.expressions.evaluator import Text
from gpujoin.backends.cudf.expressions.offer import Active
from gpujoin.backends.cudf.expressions.values import Value, is_wide, mask_and, mask_and_not
from gpujoin.backends.cudf.pipeline import quotients, words
from gpujoin.backends.cudf.pipeline.offers import (
    is_certain,
    is_constant,
    is_decimal_arithmetic,
    is_decimal_sign,
    natural,
)
from gpujoin.backends.cudf.pipeline.words import Words
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression, Function, Literal
from gpujoin.model.types import MAX_PRECISION, logical


def words_of(value: Value) -> Words:
    """Unscaled values of a decimal, or values of an integer, as two words."""
    if value.low is not None:
        return Words(value.data, value.low)
    return words.widened(value.data.astype("int64"))


def of_words(unscaled: Words, dtype: pa.DataType, valid: Array | None) -> Value:
    """Make a decimal of two words; a narrow type has only the low one."""
    if is_wide(dtype):
        return Value(dtype, unscaled.high, valid, unscaled.low)
    return Value(dtype, unscaled.low.view("int64"), valid)


@dataclass(frozen=True)
class PipelineEvaluator(conditions.Evaluator):
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
        if isinstance(node, Call) and is_decimal_sign(node):
            value = self.fixed(node.arguments[0], active)
            unscaled = words_of(value)
            turned = words.magnitude(self.xp, unscaled) if node.function is Function.ABS else words.negate(unscaled)
            return of_words(turned, value.dtype, value.valid)
        if isinstance(node, Cast) and node.type is not None and node.child.type is not None:
            if pat.is_decimal128(node.type) and pat.is_float64(node.child.type):
                return self._of_double(node, active)
            if pat.is_decimal128(node.type):
                return self._to_decimal(node, active)
            if pat.is_decimal128(node.child.type) and pat.is_float64(node.type):
                value = self.fixed(node.child, active)
                scale = value.dtype.scale
                return Value(node.type, value.data.astype("float64") / 10.0**scale, value.valid)
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
        """Product without its last places, rounded half up, and the mask of overflows.

        It may have more than 128 bits before it is rounded. So one factor is split, and the last places of the product
        come from its last places alone: ``1234 * 56`` without two places is ``12 * 56`` and what ``34 * 56`` rounds to.
        """
        xp = self.xp
        many, few = sorted((left, right), key=lambda side: side.dtype.precision, reverse=True)
        sides = [words_of(side) for side in (many, few)]
        sizes = [words.magnitude(xp, side) for side in sides]
        front, last = quotients.split(xp, sizes[0], many.dtype.precision, dropped)
        high, overflow = words.multiply(xp, front, sizes[1])
        low, _ = words.multiply(xp, last, sizes[1])
        digits = dropped + few.dtype.precision
        total = words.add(high, quotients.without_places(xp, low, digits, dropped))
        negative = (sides[0].high < 0) ^ (sides[1].high < 0)
        return words.signed(xp, total, negative), overflow | (total.high < 0)

    def _arithmetic(self, node: Call, active: Active) -> Value:
        if node.function is Function.DIVIDE:
            return self._divided(node, active)
        left, right, valid = self.pair(node, active)
        target = logical(node.type)
        precision, scale = natural(node)
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
