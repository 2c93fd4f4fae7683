"""Elementary functions of doubles with the results of Java's ``StrictMath``, to the last bit.

Java defines ``StrictMath`` as the algorithms of fdlibm, version 5.3, by Sun Microsystems, of which each step is an
operation of IEEE 754. NumPy's ufuncs are such operations, one array at a time and never fused, so the same steps give
the same bits. Where fdlibm branches, all branches are computed and each row takes its own. fdlibm reads the *high word*
of a double, its upper 32 bits, to compare magnitudes, and so do these functions::

    x            1.0                  -2.5
    high word    0x3ff00000           0xc0040000
    exponent     0x3ff - 1023 = 0     0x400 - 1023 = 1

The algorithms and their constants come with this notice:

    Copyright (C) 1993, 2004 by Sun Microsystems, Inc. All rights reserved. Developed at SunSoft, a Sun Microsystems,
    Inc. business. Permission to use, copy, modify, and distribute this software is freely granted, provided that this
    notice is preserved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Doubles: TypeAlias = npt.NDArray[np.float64]
Words: TypeAlias = npt.NDArray[np.int64]
"""Halves of doubles; high words are signed."""

_LN2_HI, _LN2_LO = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_INV_LN2 = 1.44269504088896338700
_EXP_OVERFLOW, _EXP_UNDERFLOW = 7.09782712893383973096e02, -7.45133219101941108420e02
_HALF_LN2, _ONE_AND_HALF_LN2 = 0x3FD62E42, 0x3FF0A2B2
_INFINITE = 0x7FF00000
_ONE = 0x3FF00000
_HALF = 0x3FE00000
_22 = 0x40360000
_MANTISSA = 0xFFFFF


def _polynomial(x: Doubles, coefficients: Sequence[float]) -> Doubles:
    """``c0 + x(c1 + x(c2 + …))``, from the inside out."""
    result: Any = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = coefficient + x * result
    return np.asarray(result)


def _high(x: Doubles) -> Words:
    return x.view(np.int64) >> 32


def _low(x: Doubles) -> Words:
    return x.view(np.int64) & 0xFFFFFFFF


def _magnitude(x: Doubles) -> Words:
    """High word without the sign."""
    return _high(x) & 0x7FFFFFFF


def _without_low(x: Doubles) -> Doubles:
    """A double with the lower 32 bits cleared."""
    return (x.view(np.int64) & ~np.int64(0xFFFFFFFF)).view(np.float64)


def _of_words(high: Words, low: Words | int = 0) -> Doubles:
    return np.asarray((high << 32) | low, np.int64).view(np.float64)


def _scaled(x: Doubles, k: Words) -> Doubles:
    """``x`` times 2 to the power of ``k``, rounded once."""
    return np.ldexp(x, k.astype(np.int32))


def _reduced(x: Doubles, magnitude: Words) -> tuple[Words, Doubles, Doubles]:
    """Multiple of ln 2 next to ``x``, and the rest of ``x``, as a difference of two doubles."""
    k = np.where(magnitude < _ONE_AND_HALF_LN2, np.copysign(1.0, x), np.trunc(_INV_LN2 * x + np.copysign(0.5, x)))
    k = np.where(magnitude > _HALF_LN2, k, 0.0)
    k = np.where(np.abs(x) < 800, k, 0.0)
    return k.astype(np.int64), x - k * _LN2_HI, k * _LN2_LO


_EXP = (
    1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05, -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)  # fmt: skip


def exp(x: Doubles) -> Doubles:
    """Exponential function."""
    magnitude = _magnitude(x)
    k, high, low = _reduced(x, magnitude)
    r = high - low
    t = r * r
    c = r - t * _polynomial(t, _EXP)
    unscaled = np.where(k == 0, 1.0 - ((r * c) / (c - 2.0) - r), 1.0 - ((low - (r * c) / (2.0 - c)) - high))
    result = np.where(magnitude < 0x3E300000, 1.0 + x, _scaled(unscaled, k))
    result = np.where(x > _EXP_OVERFLOW, np.inf, np.where(x < _EXP_UNDERFLOW, 0.0, result))
    return np.where(np.isnan(x), x, result)


_EXPM1 = (
    1.0, -3.33333333333331316428e-02, 1.58730158725481460165e-03, -7.93650757867487942473e-05,
    4.00821782732936239552e-06, -2.01099218183624371326e-07,
)  # fmt: skip


def expm1(x: Doubles) -> Doubles:
    """Exponential function less 1."""
    magnitude = _magnitude(x)
    k, high, low = _reduced(x, magnitude)
    r = high - low
    c = (high - r) - low
    half = 0.5 * r
    square = r * half
    r1 = _polynomial(square, _EXPM1)
    t = 3.0 - r1 * half
    e = square * ((r1 - t) / (6.0 - r * t))
    unreduced = r - (r * e - square)
    e = (r * (e - c) - c) - square
    negative_power = _scaled(np.ones_like(x), -k)
    cases = [
        (np.isnan(x), x),
        (x > _EXP_OVERFLOW, np.inf),
        ((magnitude >= 0x4043687A) & (x < 0), -1.0),
        (magnitude < 0x3C900000, x),
        (k == 0, unreduced),
        (k == -1, 0.5 * (r - e) - 0.5),
        ((k == 1) & (r < -0.25), -2.0 * (e - (r + 0.5))),
        (k == 1, 1.0 + 2.0 * (r - e)),
        ((k <= -2) | (k > 56), _scaled(1.0 - (e - r), k) - 1.0),
        (k < 20, _scaled((1.0 - negative_power) - (e - r), k)),
    ]
    return _select(cases, _scaled((r - (e + negative_power)) + 1.0, k))


def _select(cases: Sequence[tuple[npt.NDArray[np.bool_], Any]], otherwise: Any) -> Doubles:
    """The value of the first condition that holds."""
    result = np.asarray(otherwise)
    for condition, value in reversed(cases):
        result = np.where(condition, value, result)
    return result


_LOG = (
    6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
    1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01,
)  # fmt: skip


def _normalised(x: Doubles) -> tuple[Words, Doubles]:
    """The exponent of a positive double, and the double with exponent 0; subnormal ones are scaled first."""
    subnormal = _high(x) < 0x00100000
    x = np.where(subnormal, x * 2.0**54, x)
    return (_high(x) >> 20) - 1023 - np.where(subnormal, 54, 0), x


def log(x: Doubles) -> Doubles:
    """Natural logarithm."""
    k, scaled = _normalised(x)
    high = _high(scaled) & _MANTISSA
    i = (high + 0x95F64) & 0x100000
    f = _of_words(high | (i ^ _ONE), _low(scaled)) - 1.0
    k += i >> 20
    dk = k.astype(np.float64)
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    r = z * _polynomial(w, _LOG[0::2]) + w * _polynomial(w, _LOG[1::2])
    half = 0.5 * f * f
    wide = ((high - 0x6147A) | (0x6B851 - high)) > 0
    small = f * f * (0.5 - 0.33333333333333333 * f)
    cases = [
        (np.isnan(x) | (x == np.inf), x),
        (x == 0, -np.inf),
        (x < 0, np.nan),
        ((f == 0) & (k == 0), 0.0),
        (f == 0, dk * _LN2_HI + dk * _LN2_LO),
        (((2 + high) & _MANTISSA) < 3, np.where(k == 0, f - small, dk * _LN2_HI - ((small - dk * _LN2_LO) - f))),
        (wide & (k == 0), f - (half - s * (half + r))),
        (wide, dk * _LN2_HI - ((half - (s * (half + r) + dk * _LN2_LO)) - f)),
        (k == 0, f - s * (f - r)),
    ]
    return _select(cases, dk * _LN2_HI - ((s * (f - r) - dk * _LN2_LO) - f))


_INV_LN10 = 4.34294481903251816668e-01
_LOG10_2_HI, _LOG10_2_LO = 3.01029995663611771306e-01, 3.69423907715893078616e-13


def log10(x: Doubles) -> Doubles:
    """Logarithm to the base of 10."""
    k, scaled = _normalised(x)
    below_one = (k < 0).astype(np.int64)
    y = (k + below_one).astype(np.float64)
    scaled = _of_words((_high(scaled) & _MANTISSA) | ((0x3FF - below_one) << 20), _low(scaled))
    z = y * _LOG10_2_LO + _INV_LN10 * log(scaled)
    cases = [(np.isnan(x) | (x == np.inf), x), (x == 0, -np.inf), (x < 0, np.nan)]
    return _select(cases, z + y * _LOG10_2_HI)


def log1p(x: Doubles) -> Doubles:
    """Natural logarithm of 1 + ``x``."""
    high, magnitude = _high(x), _magnitude(x)
    near = (high < 0x3FDA827A) & ((high > 0) | (high <= np.int64(0xBFD2BEC3 - (1 << 32))))
    large = high >= 0x43400000
    sum_ = np.where(large, x, 1.0 + x)
    k = (_high(sum_) >> 20) - 1023
    c = np.where(large, 0.0, np.where(k > 0, 1.0 - (sum_ - x), x - (sum_ - 1.0)) / sum_)
    mantissa = _high(sum_) & _MANTISSA
    lower = mantissa < 0x6A09E
    u = _of_words(mantissa | np.where(lower, _ONE, _HALF), _low(sum_))
    k = np.where(near, 0, np.where(lower, k, k + 1))
    mantissa = np.where(near, 1, np.where(lower, mantissa, (0x00100000 - mantissa) >> 2))
    f = np.where(near, x, u - 1.0)
    dk = k.astype(np.float64)
    half = 0.5 * f * f
    small = half * (1.0 - 0.66666666666666666 * f)
    s = f / (2.0 + f)
    z = s * s
    r = z * _polynomial(z, _LOG)
    cases = [
        (np.isnan(x) | (x == np.inf), x),
        (x == -1, -np.inf),
        (x < -1, np.nan),
        (magnitude < 0x3C900000, x),
        (magnitude < 0x3E200000, x - x * x * 0.5),
        ((mantissa == 0) & (f == 0) & (k == 0), 0.0),
        ((mantissa == 0) & (f == 0), dk * _LN2_HI + (c + dk * _LN2_LO)),
        ((mantissa == 0) & (k == 0), f - small),
        (mantissa == 0, dk * _LN2_HI - ((small - (dk * _LN2_LO + c)) - f)),
        (k == 0, f - (half - s * (half + r))),
    ]
    return _select(cases, dk * _LN2_HI - ((half - (s * (half + r) + (dk * _LN2_LO + c))) - f))


_ASIN_ABOVE = (
    1.66666666666666657415e-01, -3.25565818622400915405e-01, 2.01212532134862925881e-01, -4.00555345006794114027e-02,
    7.91534994289814532176e-04, 3.47933107596021167570e-05,
)  # fmt: skip
_ASIN_BELOW = (
    1.0,
    -2.40339491173441421878e00,
    2.02094576023350569471e00,
    -6.88283971605453293030e-01,
    7.70381505559019352791e-02,
)
_HALF_PI_HI, _HALF_PI_LO = 1.57079632679489655800, 6.12323399573676603587e-17
_QUARTER_PI = 7.85398163397448278999e-01
_PI, _PI_LO = 3.14159265358979311600, 1.2246467991473531772e-16


def _asin_ratio(z: Doubles) -> Doubles:
    return z * _polynomial(z, _ASIN_ABOVE) / _polynomial(z, _ASIN_BELOW)


def acos(x: Doubles) -> Doubles:
    """Inverse cosine."""
    high, magnitude = _high(x), _magnitude(x)
    inner = _HALF_PI_HI - (x - (_HALF_PI_LO - x * _asin_ratio(x * x)))
    z = (1.0 + x) * 0.5
    s = np.sqrt(z)
    left = _PI - 2.0 * (s + (_asin_ratio(z) * s - _HALF_PI_LO))
    z = (1.0 - x) * 0.5
    s = np.sqrt(z)
    upper = _without_low(s)
    c = (z - upper * upper) / (s + upper)
    right = 2.0 * (upper + (_asin_ratio(z) * s + c))
    cases = [
        (~(np.abs(x) <= 1), np.nan),
        (x == 1, 0.0),
        (x == -1, _PI + 2.0 * _HALF_PI_LO),
        (magnitude <= 0x3C600000, _HALF_PI_HI + _HALF_PI_LO),
        (magnitude < _HALF, inner),
        (high < 0, left),
    ]
    return _select(cases, right)


def asin(x: Doubles) -> Doubles:
    """Inverse sine."""
    magnitude = _magnitude(x)
    t = (1.0 - np.abs(x)) * 0.5
    s, ratio = np.sqrt(t), _asin_ratio(t)
    edge = _HALF_PI_HI - (2.0 * (s + s * ratio) - _HALF_PI_LO)
    w = _without_low(s)
    c = (t - w * w) / (s + w)
    p = 2.0 * s * ratio - (_HALF_PI_LO - 2.0 * c)
    outer = np.where(magnitude >= 0x3FEF3333, edge, _QUARTER_PI - (p - (_QUARTER_PI - 2.0 * w)))
    cases = [
        (~(np.abs(x) <= 1), np.nan),
        (np.abs(x) == 1, x * _HALF_PI_HI + x * _HALF_PI_LO),
        (magnitude < 0x3E400000, x),
        (magnitude < _HALF, x + x * _asin_ratio(x * x)),
    ]
    return _select(cases, np.copysign(outer, x))


_ATAN_HI = np.array([4.63647609000806093515e-01, 7.85398163397448278999e-01, 9.82793723247329054082e-01, _HALF_PI_HI])
_ATAN_LO = np.array([2.26987774529616870924e-17, 3.06161699786838301793e-17, 1.39033110312309984516e-17, _HALF_PI_LO])
_ATAN = (
    3.33333333333329318027e-01, -1.99999999998764832476e-01, 1.42857142725034663711e-01, -1.11111104054623557880e-01,
    9.09088713343650656196e-02, -7.69187620504482999495e-02, 6.66107313738753120669e-02, -5.83357013379057348645e-02,
    4.97687799461593236017e-02, -3.65315727442169155270e-02, 1.62858201153657823623e-02,
)  # fmt: skip


def atan(x: Doubles) -> Doubles:
    """Inverse tangent."""
    magnitude, size = _magnitude(x), np.abs(x)
    reduced = [(2.0 * size - 1.0) / (2.0 + size), (size - 1.0) / (size + 1.0), (size - 1.5) / (1.0 + 1.5 * size)]
    near = magnitude < 0x3FDC0000
    bounds = (0x3FE60000, 0x3FF30000, 0x40038000)
    part = np.searchsorted(bounds, magnitude, side="right")
    cases = [(near, x), *((part == i, reduced[i]) for i in range(3))]
    r = _select(cases, -1.0 / size)
    z = r * r
    w = z * z
    s1 = z * _polynomial(w, _ATAN[0::2])
    s2 = w * _polynomial(w, _ATAN[1::2])
    outer = _ATAN_HI[part] - ((r * (s1 + s2) - _ATAN_LO[part]) - r)
    cases = [
        (np.isnan(x), x),
        (magnitude >= 0x44100000, np.copysign(_HALF_PI_HI + _HALF_PI_LO, x)),
        (magnitude < 0x3E200000, x),
        (near, r - r * (s1 + s2)),
    ]
    return _select(cases, np.copysign(outer, x))


def atan2(y: Doubles, x: Doubles) -> Doubles:
    """Angle of a point."""
    y, x = np.broadcast_arrays(y, x)
    y, x = np.ascontiguousarray(y), np.ascontiguousarray(x)
    left = np.signbit(x)
    difference = (_magnitude(y) - _magnitude(x)) >> 20
    z = np.where(difference > 60, _HALF_PI_HI + 0.5 * _PI_LO, atan(np.abs(y / x)))
    z = np.where(left & (difference < -60), 0.0, z)
    result = np.where(left, _PI - (z - _PI_LO), z)
    of_axis = np.where(left, _PI, 0.0)
    of_diagonal = np.where(left, 3.0 * _QUARTER_PI, _QUARTER_PI)
    cases = [
        (y == 0, of_axis),
        (x == 0, _HALF_PI_HI),
        (np.isinf(x), np.where(np.isinf(y), of_diagonal, of_axis)),
        (np.isinf(y), _HALF_PI_HI),
    ]
    signed = np.copysign(_select(cases, result), y)
    return _select([(np.isnan(x) | np.isnan(y), np.nan), (x == 1, atan(y))], signed)


def sinh(x: Doubles) -> Doubles:
    """Hyperbolic sine."""
    magnitude, size = _magnitude(x), np.abs(x)
    half = np.copysign(0.5, x)
    t = expm1(size)
    inner = half * np.where(magnitude < _ONE, 2.0 * t - t * t / (t + 1.0), t + t / (t + 1.0))
    cases = [(magnitude >= _INFINITE, x), (magnitude < 0x3E300000, x), (magnitude < _22, inner)]
    return _select(cases, _exponential_half(x, half))


def cosh(x: Doubles) -> Doubles:
    """Hyperbolic cosine."""
    magnitude, size = _magnitude(x), np.abs(x)
    t = expm1(size)
    w = 1.0 + t
    e = exp(size)
    cases = [
        (magnitude >= _INFINITE, x * x),
        (magnitude < 0x3C800000, w),
        (magnitude < 0x3FD62E43, 1.0 + (t * t) / (w + w)),
        (magnitude < _22, 0.5 * e + 0.5 / e),
    ]
    return _select(cases, _exponential_half(x, np.full_like(x, 0.5)))


def _exponential_half(x: Doubles, half: Doubles) -> Doubles:
    """Exponential of a large magnitude times ±0.5, which may not overflow where the exponential does."""
    size = np.abs(x)
    root = exp(0.5 * size)
    most = np.array(0x408633CE8FB9F87D, np.int64).view(np.float64)
    cases = [(_magnitude(x) < 0x40862E42, half * exp(size)), (size <= most, half * root * root)]
    return _select(cases, half * np.inf)


def tanh(x: Doubles) -> Doubles:
    """Hyperbolic tangent."""
    magnitude, size = _magnitude(x), np.abs(x)
    outer = 1.0 - 2.0 / (expm1(2.0 * size) + 2.0)
    t = expm1(-2.0 * size)
    z = np.where(magnitude >= _ONE, outer, -t / (t + 2.0))
    z = np.where(magnitude >= _22, 1.0, z)
    cases = [(np.isnan(x), x), (magnitude < 0x3C800000, x * (1.0 + x))]
    return _select(cases, np.copysign(z, x))


def cbrt(x: Doubles) -> Doubles:
    """Cube root."""
    size = np.abs(x)
    subnormal = _high(size) < 0x00100000
    rough = np.where(subnormal, _high(size * 2.0**54) // 3 + 696219795, _high(size) // 3 + 715094163)
    t = np.where(subnormal, _of_words(rough, _low(size * 2.0**54)), _of_words(rough))
    r = t * t / size
    s = 5.42857142857142815906e-01 + r * t
    t = t * (
        3.57142857142857150787e-01
        + 1.60714285714285720630 / (s + 1.41428571428571436819 + -7.05306122448979611050e-01 / s)
    )
    t = _of_words(_high(t) + 1)
    r = size / (t * t)
    r = (r - t) / (t + t + r)
    return _select([(~np.isfinite(x) | (x == 0), x)], np.copysign(t + t * r, x))


def hypot(x: Doubles, y: Doubles) -> Doubles:
    """Length of a vector."""
    x, y = np.broadcast_arrays(np.abs(x), np.abs(y))
    swapped = _high(np.ascontiguousarray(y)) > _high(np.ascontiguousarray(x))
    longer, shorter = np.where(swapped, y, x), np.where(swapped, x, y)
    apart = (_high(longer) - _high(shorter)) > 0x3C00000
    large, small = _high(longer) > 0x5F300000, _high(shorter) < 0x20B00000
    subnormal = _high(shorter) <= _MANTISSA
    k = np.where(large, -600, 0) + np.where(small, np.where(subnormal, 1022, 600), 0)
    a, b = _scaled(longer, k), _scaled(shorter, k)
    w = a - b
    upper = _without_low(a)
    apart_root = np.sqrt(upper * upper - (b * (-b) - (a - upper) * (a + upper)))
    twice, y1 = a + a, _without_low(b)
    t1 = _without_low(twice)
    near_root = np.sqrt(t1 * y1 - (w * (-w) - (t1 * (b - y1) + (twice - t1) * b)))
    root = np.where(w > b, apart_root, near_root)
    cases = [
        (np.isinf(x) | np.isinf(y), np.inf),
        (np.isnan(x) | np.isnan(y), np.nan),
        (apart, longer + shorter),
        (shorter == 0, longer),
        (k == 0, root),
    ]
    return _select(cases, _scaled(np.ones_like(root), -k) * root)


_POW = (
    5.99999999999994648725e-01, 4.28571428578550184252e-01, 3.33333329818377432918e-01, 2.72728123808534006489e-01,
    2.30660745775561754067e-01, 2.06975017800338417784e-01,
)  # fmt: skip
_BASES, _LOG2_BASES_HI, _LOG2_BASES_LO = (
    np.array(pair) for pair in ((1.0, 1.5), (0.0, 5.84962487220764160156e-01), (0.0, 1.35003920212974897128e-08))
)
_CP, _CP_HI, _CP_LO = 9.61796693925975554329e-01, 9.61796700954437255859e-01, -7.02846165095275826516e-09
_POW_LN2, _POW_LN2_HI, _POW_LN2_LO = 6.93147180559945286227e-01, 6.93147182464599609375e-01, -1.90465429995776804525e-09
_INV_LN2_HI, _INV_LN2_LO = 1.44269502162933349609, 1.92596299112661746887e-08
_POW_OVERFLOW = 8.0085662595372944372e-17
_HUGE_EXPONENT = 0x41E00000


def pow(x: Doubles, y: Doubles) -> Doubles:  # noqa: A001
    """``x`` to the power of ``y``."""
    x, y = (np.ascontiguousarray(operand) for operand in np.broadcast_arrays(x, y))
    size = np.abs(x)
    huge_exponent = _magnitude(y) > _HUGE_EXPONENT
    near_one, general = _log2_near_one(size), _log2(size)
    t1, t2 = (np.where(huge_exponent, *parts) for parts in zip(near_one, general, strict=True))
    y1 = _without_low(y)
    p_l, p_h = (y - y1) * t1 + y * t2, y1 * t1
    result = _exp2(p_h, p_l)
    beyond = huge_exponent & ((_magnitude(x) < 0x3FEFFFFF) | (_magnitude(x) > _ONE))
    result = np.where(beyond, np.where((y < 0) == (size < 1), np.inf, 0.0), result)
    whole = np.trunc(y) == y
    odd = whole & (np.abs(y) < 2.0**53) & (np.fmod(y, 2.0) != 0)
    trivial = (size == 0) | np.isinf(size) | (size == 1)
    result = np.where(trivial, np.where(y < 0, 1.0 / size, size), result)
    result = np.where(np.signbit(x) & odd, -result, result)
    no_real = np.signbit(x) & ~whole & (size != 0) & ~np.isinf(size)
    cases = [
        (y == 0, 1.0),
        (np.isnan(x) | np.isnan(y), np.nan),
        (np.isinf(y), np.where(size == 1, np.nan, np.where((size > 1) == (y > 0), np.inf, 0.0))),
        (y == 1, x),
        (y == -1, 1.0 / x),
        (y == 2, x * x),
        ((y == 0.5) & (x != -np.inf), np.sqrt(x + 0.0)),
        (no_real, np.nan),
    ]
    return _select(cases, result)


def _log2_near_one(size: Doubles) -> tuple[Doubles, Doubles]:
    """Logarithm to the base of 2 as a sum of two doubles, for numbers next to 1."""
    t = size - 1.0
    w = (t * t) * (0.5 - t * (0.3333333333333333333333 - t * 0.25))
    u = _INV_LN2_HI * t
    v = t * _INV_LN2_LO - w * _INV_LN2
    t1 = _without_low(u + v)
    return t1, v - (t1 - u)


def _log2(size: Doubles) -> tuple[Doubles, Doubles]:
    """Logarithm to the base of 2 as a sum of two doubles."""
    subnormal = _high(size) < 0x00100000
    size = np.where(subnormal, size * 2.0**53, size)
    n = (_high(size) >> 20) - 0x3FF - np.where(subnormal, 53, 0)
    j = _high(size) & _MANTISSA
    k = ((j > 0x3988E) & (j < 0xBB67A)).astype(np.int64)
    upper = j >= 0xBB67A
    n += upper
    high = (j | _ONE) - np.where(upper, 0x00100000, 0)
    size = _of_words(high, _low(size))
    base = _BASES[k]
    u = size - base
    v = 1.0 / (size + base)
    ss = u * v
    s_h = _without_low(ss)
    t_h = _of_words(((high >> 1) | 0x20000000) + 0x00080000 + (k << 18))
    t_l = size - (t_h - base)
    s_l = v * ((u - s_h * t_h) - s_h * t_l)
    s2 = ss * ss
    r = s2 * s2 * _polynomial(s2, _POW) + s_l * (s_h + ss)
    s2 = s_h * s_h
    t_h = _without_low(3.0 + s2 + r)
    t_l = r - ((t_h - 3.0) - s2)
    u = s_h * t_h
    v = s_l * t_h + t_l * ss
    p_h = _without_low(u + v)
    p_l = v - (p_h - u)
    z_h = _CP_HI * p_h
    z_l = _CP_LO * p_h + p_l * _CP + _LOG2_BASES_LO[k]
    t = n.astype(np.float64)
    t1 = _without_low(((z_h + z_l) + _LOG2_BASES_HI[k]) + t)
    return t1, z_l - (((t1 - t) - _LOG2_BASES_HI[k]) - z_h)


def _exp2(p_h: Doubles, p_l: Doubles) -> Doubles:
    """2 to the power of a sum of two doubles."""
    z = p_l + p_h
    over = (z > 1024) | ((z == 1024) & (p_l + _POW_OVERFLOW > z - p_h))
    under = (z < -1075) | ((z == -1075) & (p_l <= z - p_h))
    z, p_h, p_l = (np.where(over | under | np.isnan(z), 0.0, part) for part in (z, p_h, p_l))
    j = _high(z)
    far = (j & 0x7FFFFFFF) > _HALF
    k = np.where(far, ((j & 0x7FFFFFFF) >> 20) - 0x3FF, 0)
    n = j + (0x00100000 >> (k + 1))
    k = np.where(far, ((n & 0x7FFFFFFF) >> 20) - 0x3FF, 0)
    t = np.where(far, _of_words(n & ~(_MANTISSA >> k)), 0.0)
    n = ((n & _MANTISSA) | 0x00100000) >> (20 - k)
    n = np.where(far, np.where(j < 0, -n, n), 0)
    p_h = p_h - t
    t = _without_low(p_l + p_h)
    u = t * _POW_LN2_HI
    v = (p_l - (t - p_h)) * _POW_LN2 + t * _POW_LN2_LO
    z = u + v
    w = v - (z - u)
    t = z * z
    t1 = z - t * _polynomial(t, _EXP)
    r = (z * t1) / (t1 - 2.0) - (w + z * w)
    return _select([(over, np.inf), (under, 0.0)], _scaled(1.0 - (r - z), n))
