"""Quotients of 128-bit integers, rounded half up, for decimals.

Numbers are divided digit by digit, by hand as at school, but the digits are large: first 46 bits of the dividend at a
time, then as many decimal places as are asked for, 14 at a time. ``12 / 7`` with two places, one place at a time::

    dividend 12    quotient  1      rest 5
    place 1        50 // 7 = 7      rest 1       1.7
    place 2        10 // 7 = 1      rest 3       1.71     3 is less than half of 7: not rounded up

A digit is estimated with doubles. These have 53 bits, and a digit less than 47, so the estimate is off by one at most;
one is taken off, and the rest, which is exact in 128 bits, says whether one or two are missing. Runs on CuPy and on
NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpujoin.functions import words
from gpujoin.functions.vector import Array
from gpujoin.functions.words import Words

_DIGIT_BITS = 46
_HALF_DIGIT_BITS = _DIGIT_BITS // 2
_DIGIT_PLACES = 14
"""Sizes of digits. They are below 2**47, so an estimate by doubles (relative error 2**-50) is off by one at most."""
_LARGEST = 10**38
"""Largest divisor: three times as much is less than 2**128."""
_LAST_BITS = 14
"""Bits of the last digit of a quotient that becomes a double. It then has more than 54 bits (those of a double, and one
that rounds it), and fits int64."""
_BIAS, _MANTISSA = 1023, 52
"""Bias of a double's exponent, and number of bits below the exponent."""


def rounded(xp: Any, dividend: Words, divisor: Words, dividend_digits: int, places: int) -> tuple[Words, Array]:
    """Divide magnitudes, rounding half up.

    Parameters
    ----------
    xp : module
        ``cupy`` or ``numpy``.
    dividend, divisor : Words
        Not negative; the divisor from 1 to 10**38.
    dividend_digits : int
        Most decimal digits of the dividend.
    places : int
        Decimal places of the quotient; where it is negative, of so many places before the point it is a multiple, and
        these are left out.

    Returns
    -------
    Words
        Quotients, in units of the last place.
    Array
        Mask of the rows whose quotient has more than 38 digits before it is rounded, where it is arbitrary.
    """
    quotient, rest, over = _divided(xp, dividend, divisor, dividend_digits, max(places, 0))
    if places >= 0:
        up = ~words.unsigned_less(rest, words.subtract(divisor, rest))
        return words.add(quotient, words.widened(up.astype("int64"))), over
    # Half a unit more, and rounded down: what the first division has left out is less than one.
    return without_places(xp, quotient, dividend_digits, -places), over


def without_places(xp: Any, value: Words, digits: int, places: int) -> Words:
    """Drop the last decimal places of magnitudes of at most ``digits`` digits, rounding half up."""
    unit = 10**places
    more = words.add(value, words.constant(xp, unit // 2))
    return _divided(xp, more, words.constant(xp, unit), max(digits, places) + 1, 0)[0]


def without_places_to_even(xp: Any, value: Words, digits: int, places: int) -> Words:
    """Drop the last decimal places of magnitudes of at most ``digits`` digits, rounding halves to even numbers."""
    front, last = split(xp, value, digits, places)
    half = words.constant(xp, 10**places // 2)
    at_half = (last.high == half.high) & (last.low == half.low)
    odd = (front.low & front.low.dtype.type(1)) != 0
    up = words.unsigned_less(half, last) | (at_half & odd)
    return words.add(front, words.widened(up.astype("int64")))


def nearest_double(xp: Any, value: Words, places: int) -> Array:
    """Divide magnitudes of at most 38 digits by a power of ten, and round to the nearest double, halves to even ones.

    Both numbers are shifted until the quotient is from 0.8 to 4: it is ``value << left`` divided by ``unit << up``. Its
    first 60 bits or more, and a last bit that says whether anything is left, are one integer, which the conversion to a
    double rounds as the whole quotient; the shifts are undone exactly, since no result is subnormal.
    """
    unit = 10**places
    up = (_LARGEST // unit).bit_length() - 1
    divisor = words.constant(xp, unit << up)
    zero = (value.high == 0) & (value.low == 0)
    shifted, left = words.normalised(xp, value)
    bits = xp.zeros_like(value.low)
    rest = shifted
    for _ in range(3):
        rest, more = _less_once(xp, rest, divisor)
        bits = bits + more
    by = words.as_double(divisor)
    for width in (_DIGIT_BITS, _LAST_BITS):
        digit, rest = _digit(xp, rest, 1 << width, None, divisor, by)
        bits = (bits << bits.dtype.type(width)) | digit
    bits = bits | ((rest.high != 0) | (rest.low != 0)).astype("uint64")
    exponent = up - left - (_DIGIT_BITS + _LAST_BITS)
    power = ((exponent + _BIAS) << _MANTISSA).view("float64")
    return xp.where(zero, 0.0, bits.view("int64").astype("float64") * power)


def product_without_places(xp: Any, left: Words, right: Words, places: int) -> tuple[Words, Array]:
    """Multiply magnitudes of less than 127 bits, and drop decimal places, up to 38, rounding half up.

    The product may have twice the bits. Also returns the mask of the rows whose result has more than 38 digits, where
    it is arbitrary.
    """
    divisor = words.constant(xp, 10**places)
    quotient, rest, over = _long_division(xp, _product_digits(xp, left, right), divisor)
    up = ~words.unsigned_less(rest, words.subtract(divisor, rest))
    total = words.add(quotient, words.widened(up.astype("int64")))
    return total, over | (total.high < 0)


def _product_digits(xp: Any, left: Words, right: Words) -> list[Array]:
    """Digits of 46 bits of a product of magnitudes, the first one first, as uint64."""
    count = -(-127 // _HALF_DIGIT_BITS)
    sides = [[words.bits(side, n * _HALF_DIGIT_BITS, _HALF_DIGIT_BITS) for n in range(count)] for side in (left, right)]
    halves: list[Array] = []
    word = left.low.dtype.type
    carry = xp.zeros(1, dtype="uint64")
    for place in range(2 * count):
        # Up to six products of 46 bits, and what is carried, are less than 2**49.
        total = carry
        for at in range(max(0, place - count + 1), min(place + 1, count)):
            total = total + sides[0][at] * sides[1][place - at]
        halves.append(total & word((1 << _HALF_DIGIT_BITS) - 1))
        carry = total >> word(_HALF_DIGIT_BITS)
    pairs = zip(halves[::2], halves[1::2], strict=True)
    return [(high << word(_HALF_DIGIT_BITS)) | low for low, high in pairs][::-1]


def split(xp: Any, value: Words, digits: int, places: int) -> tuple[Words, Words]:
    """Split magnitudes of at most ``digits`` digits before their last decimal places."""
    front, rest, _ = _divided(xp, value, words.constant(xp, 10**places), digits, 0)
    return front, rest


def _divided(xp: Any, dividend: Words, divisor: Words, dividend_digits: int, places: int) -> tuple[Words, Words, Array]:
    """Quotient with some decimal places, rounded down, the rest, and the mask of quotients of more than 38 digits."""
    count = -(-(10**dividend_digits).bit_length() // _DIGIT_BITS)
    digits = [words.bits(dividend, shift * _DIGIT_BITS, _DIGIT_BITS) for shift in reversed(range(count))]
    quotient, rest, over = _long_division(xp, digits, divisor)
    by = words.as_double(divisor)
    while places > 0:
        base = 10 ** min(places, _DIGIT_PLACES)
        places -= _DIGIT_PLACES
        digit, rest = _digit(xp, rest, base, None, divisor, by)
        # Beyond this a product by the base has 39 digits or more; below it, less than 127 bits.
        over = over | (quotient.high >= (1 << 63) // base)
        quotient = words.add(words.times(quotient, base), Words(xp.zeros_like(digit.view("int64")), digit))
    return quotient, rest, over


def _long_division(xp: Any, digits: Sequence[Array], divisor: Words) -> tuple[Words, Words, Array]:
    """Divide numbers in digits of 46 bits, the first one first: quotient, rest, and mask of quotients of 127 bits."""
    by = words.as_double(divisor)
    quotient, rest = words.constant(xp, 0), words.constant(xp, 0)
    over = xp.zeros(1, dtype=bool)
    for following in digits:
        digit, rest = _digit(xp, rest, 1 << _DIGIT_BITS, following, divisor, by)
        over = over | (quotient.high >= 1 << (63 - _DIGIT_BITS))
        quotient = words.add(words.times(quotient, 1 << _DIGIT_BITS), Words(xp.zeros_like(digit.view("int64")), digit))
    return quotient, rest, over


def _digit(xp: Any, rest: Words, base: int, following: Array | None, divisor: Words, by: Array) -> tuple[Array, Words]:
    """The next digit of a quotient in some base, as uint64, and the rest; ``following`` is the dividend's digit."""
    estimate = words.as_double(rest) * float(base)
    value = words.times(rest, base)
    if following is not None:
        estimate = estimate + following.astype("float64")
        value = words.add(value, Words(xp.zeros_like(following.view("int64")), following))
    digit = xp.clip(xp.floor(estimate / by) - 1.0, 0.0, float(base)).astype("uint64")
    left = words.subtract(value, words.times(divisor, digit))
    for _ in range(2):
        left, missing = _less_once(xp, left, divisor)
        digit = digit + missing
    return digit, left


def _less_once(xp: Any, value: Words, divisor: Words) -> tuple[Words, Array]:
    """Subtract the divisor from the values that are not less. Also the number of subtractions, 0 or 1, as uint64."""
    fits = ~words.unsigned_less(value, divisor)
    less = words.subtract(value, divisor)
    left = Words(xp.where(fits, less.high, value.high), xp.where(fits, less.low, value.low))
    return left, fits.astype("uint64")
