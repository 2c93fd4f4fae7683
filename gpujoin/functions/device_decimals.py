"""Arithmetic, rounding and signs of decimals on the device, over words of 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow.types as pat

from gpujoin.functions import quotients, words
from gpujoin.functions.device import Active, Offer, Operands
from gpujoin.functions.signatures import constant_scale, type_of
from gpujoin.functions.values import Value
from gpujoin.functions.vector import Array, mask_and, mask_and_not
from gpujoin.functions.words import Words, of_words, words_of
from gpujoin.model.expressions import Call, Cast, EvalMode, Function
from gpujoin.model.types import LONG_DIGITS, MAX_PRECISION, logical

_NEGATED_DIGITS = 34
"""Most digits of decimals whose sign Spark turns without rounding them."""
_CERTAINLY_TOO_LARGE = 1.3e38
"""Between the least sum of 39 digits and the greatest one of 127 bits."""


def _has_exact_scale(node: Call) -> bool:
    """Whether arithmetic on decimals is exact, and rounded where Spark rounds it."""
    left, right = (logical(argument.type) for argument in node.arguments)
    result = logical(node.type)
    if min(left.scale, right.scale, result.scale) < 0:
        return False
    if node.function is Function.DIVIDE:
        return True
    precision, scale = _natural(node)
    if node.function is not Function.MULTIPLY:
        return bool(result.scale <= scale)
    if result.scale < scale:
        return scale - result.scale <= MAX_PRECISION
    # A product beyond 127 bits has more than 38 digits.
    return bool(result.scale == scale and result.precision >= min(precision, MAX_PRECISION))


def keeps_digits(node: Call) -> bool:
    """Whether the sign of a decimal is turned or dropped without rounding it."""
    kind = node.type
    return kind is not None and kind.precision <= _NEGATED_DIGITS and kind == node.arguments[0].type


def drops_few_digits(node: Call) -> bool:
    """Whether a decimal is rounded to a constant number of digits, dropping no more than 38."""
    kind, scale = logical(node.arguments[0].type), constant_scale(node)
    return scale is not None and kind.scale >= 0 and kind.scale - scale <= MAX_PRECISION and scale >= -MAX_PRECISION


def _natural(node: Call) -> tuple[int, int]:
    """Precision and scale in which a sum, difference or product of decimals is exact."""
    left, right = (logical(argument.type) for argument in node.arguments)
    if node.function is Function.MULTIPLY:
        return left.precision + right.precision + 1, left.scale + right.scale
    scale = max(left.scale, right.scale)
    return max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale


def arithmetic(operands: Operands, node: Call, active: Active) -> Value:
    """Add, subtract, multiply or divide decimals."""
    if node.function is Function.DIVIDE:
        return _divided(operands, node, active)
    left, right, valid = operands.pair(node, active)
    target = logical(node.type)
    precision, scale = _natural(node)
    if node.function is not Function.MULTIPLY and (
        scale > target.scale or (precision > MAX_PRECISION and left.dtype.scale != right.dtype.scale)
    ):
        result, overflow = _rounded_sum(operands, node, left, right, target.scale)
        return fitted(operands, node, result, overflow, valid, active)
    if scale > target.scale:
        result, overflow = _rounded_product(operands, left, right, scale - target.scale)
        return fitted(operands, node, result, overflow, valid, active)
    if target.precision <= LONG_DIGITS and precision <= target.precision:
        return Value(target, _narrow(node, left, right, scale), valid)
    if node.function is Function.MULTIPLY:
        result, overflow = words.multiply(operands.xp, words_of(left), words_of(right))
    else:
        left_words, right_words = (
            scaled(operands.xp, words_of(side), scale - side.dtype.scale) for side in (left, right)
        )
        if node.function is Function.ADD:
            result = words.add(left_words, right_words)
            overflow = words.sum_overflows(left_words, right_words, result)
        else:
            result = words.subtract(left_words, right_words)
            overflow = words.sum_overflows(result, right_words, left_words)
    if precision <= target.precision:
        return of_words(result, target, valid)
    return fitted(operands, node, result, overflow, valid, active)


def signed(operands: Operands, node: Call, active: Active) -> Value:
    """Turn the sign of a decimal, or drop it."""
    value = operands.fixed(node.arguments[0], active)
    unscaled = words_of(value)
    turned = words.magnitude(operands.xp, unscaled) if node.function is Function.ABS else words.negate(unscaled)
    return of_words(turned, value.dtype, value.valid)


def rounded(operands: Operands, node: Call, active: Active) -> Value:
    """Round a decimal half up or to even. A result that does not fit is an error in every mode, as in Spark."""
    xp, value, target = operands.xp, operands.fixed(node.arguments[0], active), logical(node.type)
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
        operands.fail_if(mask_and(mask_and(bad, value.valid), active), f"{node}: the result does not fit {node.type}")
    return of_words(words.signed(xp, size, unscaled.high < 0), target, value.valid)


def _divided(operands: Operands, node: Call, active: Active) -> Value:
    """Divide. As in Spark, the divisor is evaluated first, and the dividend only where the divisor is not null or 0."""
    xp, target = operands.xp, logical(node.type)
    right = operands.fixed(node.arguments[1], active)
    zero = right.data == 0 if right.low is None else (right.data == 0) & (right.low == 0)
    left = operands.fixed(node.arguments[0], mask_and_not(mask_and(active, right.valid), zero))
    valid = mask_and(left.valid, right.valid)
    if node.mode is EvalMode.ANSI:
        operands.fail_if(mask_and(mask_and(zero, valid), active), f"{node}: division by zero")
    sides = [words_of(side) for side in (left, right)]
    dividend, divisor = (words.magnitude(xp, side) for side in sides)
    safe = Words(divisor.high, xp.where(zero, divisor.low.dtype.type(1), divisor.low))
    places = target.scale + right.dtype.scale - left.dtype.scale
    size, overflow = quotients.rounded(xp, dividend, safe, left.dtype.precision, places)
    result = words.signed(xp, size, (sides[0].high < 0) ^ (sides[1].high < 0))
    return fitted(operands, node, result, overflow, mask_and_not(valid, zero), active)


def _rounded_product(operands: Operands, left: Value, right: Value, dropped: int) -> tuple[Words, Array]:
    """Product without its last places, rounded half up, and the mask of overflows."""
    sides = [words_of(side) for side in (left, right)]
    first, second = (words.magnitude(operands.xp, side) for side in sides)
    total, overflow = quotients.product_without_places(operands.xp, first, second, dropped)
    return words.signed(operands.xp, total, (sides[0].high < 0) ^ (sides[1].high < 0)), overflow


def _rounded_sum(operands: Operands, node: Call, left: Value, right: Value, scale: int) -> tuple[Words, Array]:
    """Sum or difference, rounded half up to a scale, and the mask of overflows.

    An operand in units of the last place may exceed 128 bits. So what stands after the last place is split off,
    rounded downwards, and added apart; the rest is added modulo 2**128, which is exact where the sum is known to
    be small, by doubles. ``12.34 - 5.9`` to one place, in tenths::

        123 and 4 hundredths, -59 and none     64 and 4 hundredths, which are less than half     6.4
    """
    xp = operands.xp
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
        rest = words.add(rest, scaled(operands.xp, last, most - places))
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


def _narrow(node: Call, left: Value, right: Value, scale: int) -> Array:
    """Compute a result that is known to fit 64 bits, as do its operands."""
    if node.function is Function.MULTIPLY:
        return left.data * right.data
    left_unscaled, right_unscaled = (
        side.data * 10 ** (scale - side.dtype.scale) if side.dtype.scale != scale else side.data
        for side in (left, right)
    )
    return left_unscaled + right_unscaled if node.function is Function.ADD else left_unscaled - right_unscaled


def with_decimals(
    offer: Offer,
    run: Callable[[Operands, Call, Active], Value] = arithmetic,
    fits: Callable[[Call], bool] = _has_exact_scale,
) -> Offer:
    """Extend a function's offer to decimals."""

    def offer_for(node: Call) -> Offer:
        decimals = all(pat.is_decimal128(logical(type_of(part))) for part in (node, node.arguments[0]))
        return Offer(run, fits) if decimals else offer

    def fits_or_is_decimal(node: Call) -> bool:
        test = offer_for(node).fits
        return test is None or test(node)

    return replace(
        offer, run=lambda operands, node, active: offer_for(node).run(operands, node, active), fits=fits_or_is_decimal
    )


def scaled(xp: Any, value: Words, digits: int) -> Words:
    """Multiply by a power of ten that is known to fit."""
    return words.multiply(xp, value, words.constant(xp, 10**digits))[0] if digits else value


def dropped(xp: Any, value: Words, digits: int, places: int) -> Words:
    """Drop decimal places, rounding half up."""
    size = quotients.without_places(xp, words.magnitude(xp, value), digits, places)
    return words.signed(xp, size, value.high < 0)


def fitted(
    operands: Operands, node: Call | Cast, unscaled: Words, overflow: Array, valid: Array | None, active: Active
) -> Value:
    """Convert a result that may not fit its type: raise in ANSI mode, else make it null."""
    target = logical(node.type)
    bad = overflow | words.outside(operands.xp, unscaled, min(target.precision, MAX_PRECISION))
    if node.mode is EvalMode.ANSI:
        operands.fail_if(mask_and(mask_and(bad, valid), active), f"{node}: the result does not fit {node.type}")
        return of_words(unscaled, target, valid)
    return of_words(unscaled, target, mask_and_not(valid, bad))
