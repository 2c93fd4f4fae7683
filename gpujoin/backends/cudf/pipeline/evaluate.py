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
from gpujoin.backends.cudf.pipeline import words
from gpujoin.backends.cudf.pipeline.offers import is_constant, is_decimal_arithmetic, natural
from gpujoin.backends.cudf.pipeline.words import Words
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression, Function, Literal
from gpujoin.model.types import MAX_PRECISION, is_whole, logical


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
        if isinstance(node, Cast) and node.type is not None and node.child.type is not None:
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
        scale = 0 if is_whole(value.dtype) else value.dtype.scale
        unscaled = self._scaled(words_of(value), target.scale - scale)
        return of_words(unscaled, target, value.valid)

    def _scaled(self, value: Words, digits: int) -> Words:
        """Multiply by a power of ten that is known to fit."""
        if digits == 0:
            return value
        return words.multiply(self.xp, value, words.constant(self.xp, 10**digits))[0]

    def _arithmetic(self, node: Call, active: Active) -> Value:
        left, right, valid = self.pair(node, active)
        target = logical(node.type)
        precision, scale = natural(node)
        if target.precision <= v.NARROW_DIGITS and precision <= target.precision:
            return Value(target, self._narrow(node, left, right, scale), valid)
        overflow: Array | None = None
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

    def _fitted(self, node: Call, unscaled: Words, overflow: Array, valid: Array | None, active: Active) -> Value:
        """Convert a result that may not fit its type: raise in ANSI mode, else make it null."""
        target = logical(node.type)
        bad = overflow | words.outside(self.xp, unscaled, min(target.precision, MAX_PRECISION))
        if node.mode is EvalMode.ANSI:
            self.fail_if(mask_and(mask_and(bad, valid), active), f"{node}: the result does not fit {node.type}")
            return of_words(unscaled, target, valid)
        return of_words(unscaled, target, mask_and_not(valid, bad))
