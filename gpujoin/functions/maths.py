"""Functions of floating-point numbers with Java's results: by IEEE 754 arithmetic, or by fdlibm."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from gpujoin.functions import fdlibm
from gpujoin.functions.implementation import Run, of_arrays, operands_of
from gpujoin.functions.signatures import DOUBLE, INT, LONG, takes, type_of
from gpujoin.functions.spec import FunctionSpec, SparkOnly
from gpujoin.functions.values import truncated
from gpujoin.functions.vector import INT64_MAX, Array, Vector, mask_and_not
from gpujoin.model.expressions import Call, Function

_MAPPED = takes(DOUBLE, gives=pa.float64())
_PAIR = takes(DOUBLE, DOUBLE, gives=pa.float64())

SPARK_ONLY = (
    SparkOnly(
        ("Sin", "Cos", "Tan", "Cot", "Sec", "Csc"),
        "the JVM has routines of the processor's own for them, whose last bits no definition says",
    ),
    SparkOnly(("Asinh", "Acosh"), "Spark's formula is another in each version"),
)

UNINTRINSIC = (
    Function.CBRT, Function.HYPOT, Function.ACOS, Function.ASIN, Function.ATAN, Function.ATAN2, Function.SINH,
    Function.COSH, Function.TANH,
)  # fmt: skip
"""Functions that Spark calls in ``Math``, not ``StrictMath``. Both are one in HotSpot of Java 17 to 23; from Java 24 on
it has routines of the processor's own for some of them, beginning with ``tanh``."""


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


_DEGREES_OF_RADIAN = 57.29577951308232
_RADIANS_OF_DEGREE = 0.017453292519943295
"""Java's constants: each is the double next to its quotient."""


def _sign(values: Array) -> Array:
    """−1 or 1; zeros keep their sign, and NaN stays."""
    return np.asarray(np.where((values == 0) | np.isnan(values), values, np.copysign(1.0, values)))


def _width_bucket(node: Call, operands: list[Vector], length: int) -> Vector:
    """Number of the bucket of a value among equally wide ones; null for ranges that are empty or endless."""
    operands = operands_of(operands, length)
    value, first, last, count = (o.values for o in operands)
    unknown = (
        (count <= 0)
        | (count == INT64_MAX)
        | np.isnan(value)
        | (first == last)
        | ~np.isfinite(first)
        | ~np.isfinite(last)
    )
    with np.errstate(all="ignore"):
        ascending = first < last
        passed = np.where(ascending, value - first, first - value)
        width = np.where(ascending, last - first, first - last)
        inside = truncated(np, np.asarray(count.astype(np.float64) * passed / width)) + 1
        before = np.where(ascending, value < first, value > first)
        after = np.where(ascending, value >= last, value <= last)
        buckets = np.where(before, 0, np.where(after, count + 1, inside))
    valid = mask_and_not(None, unknown)
    for operand in operands:
        mask = operand.mask()
        valid = valid if mask is None else valid & mask
    return Vector(type_of(node), buckets.astype(np.int64), valid)


def _logarithm(compute: Callable[[Array], Array], least: float = 0.0) -> Run:
    """Make an implementation that gives null for numbers up to a limit."""

    def run(node: Call, operands: list[Vector], length: int) -> Vector:
        result = of_arrays(compute)(node, operands, length)
        low = np.asarray(operands[0].values <= least)
        return result.with_valid(mask_and_not(result.valid, low)) if low.any() else result

    return run


def _log(node: Call, operands: list[Vector], length: int) -> Vector:
    """Logarithm to a base; null if either number is not positive."""
    result = of_arrays(lambda base, x: fdlibm.log(x) / fdlibm.log(base))(node, operands, length)
    low = np.asarray((operands[0].values <= 0) | (operands[1].values <= 0))
    return result.with_valid(mask_and_not(result.valid, low)) if low.any() else result


_LN2 = math.log(2.0)
"""The double next to ln 2, which fdlibm gives too."""
_FACTORIALS = np.array([math.factorial(n) for n in range(21)], np.int64)


def _factorial(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Product of the numbers from 1 to 20 at most; null for other numbers."""
    (vector,) = operands
    outside = np.asarray((vector.values < 0) | (vector.values > 20))
    values = _FACTORIALS[np.where(outside, 0, vector.values)]
    return Vector(type_of(node), values, mask_and_not(vector.valid, outside) if outside.any() else vector.valid)


TABLE = (
    FunctionSpec(Function.EXP, ("Exp",), _MAPPED, numpy=of_arrays(fdlibm.exp)),
    FunctionSpec(Function.EXPM1, ("Expm1",), _MAPPED, numpy=of_arrays(fdlibm.expm1)),
    FunctionSpec(Function.LN, ("Log",), _MAPPED, numpy=_logarithm(fdlibm.log)),
    FunctionSpec(Function.LOG2, ("Log2",), _MAPPED, numpy=_logarithm(lambda x: fdlibm.log(x) / _LN2)),
    FunctionSpec(Function.LOG10, ("Log10",), _MAPPED, numpy=_logarithm(fdlibm.log10)),
    FunctionSpec(Function.LOG1P, ("Log1p",), _MAPPED, numpy=_logarithm(fdlibm.log1p, -1.0)),
    FunctionSpec(Function.LOG, ("Logarithm",), _PAIR, numpy=_log),
    FunctionSpec(Function.POW, ("Pow",), _PAIR, numpy=of_arrays(fdlibm.pow)),
    FunctionSpec(Function.CBRT, ("Cbrt",), _MAPPED, numpy=of_arrays(fdlibm.cbrt)),
    FunctionSpec(Function.HYPOT, ("Hypot",), _PAIR, numpy=of_arrays(fdlibm.hypot)),
    FunctionSpec(Function.ACOS, ("Acos",), _MAPPED, numpy=of_arrays(fdlibm.acos)),
    FunctionSpec(Function.ASIN, ("Asin",), _MAPPED, numpy=of_arrays(fdlibm.asin)),
    FunctionSpec(Function.ATAN, ("Atan",), _MAPPED, numpy=of_arrays(fdlibm.atan)),
    FunctionSpec(Function.ATAN2, ("Atan2",), _PAIR, numpy=of_arrays(lambda y, x: fdlibm.atan2(y + 0.0, x + 0.0))),
    FunctionSpec(Function.SINH, ("Sinh",), _MAPPED, numpy=of_arrays(fdlibm.sinh)),
    FunctionSpec(Function.COSH, ("Cosh",), _MAPPED, numpy=of_arrays(fdlibm.cosh)),
    FunctionSpec(Function.TANH, ("Tanh",), _MAPPED, numpy=of_arrays(fdlibm.tanh)),
    FunctionSpec(
        Function.ATANH, ("Atanh",), _MAPPED, numpy=of_arrays(lambda x: 0.5 * (fdlibm.log1p(x) - fdlibm.log1p(-x))),
    ),
    FunctionSpec(Function.RINT, ("Rint",), _MAPPED, numpy=of_arrays(np.rint)),
    FunctionSpec(Function.FACTORIAL, ("Factorial",), takes(INT, gives=pa.int64()), numpy=_factorial),
    FunctionSpec(Function.SIGN, ("Signum",), _MAPPED, numpy=of_arrays(_sign)),
    FunctionSpec(
        Function.DEGREES, ("ToDegrees",), _MAPPED, numpy=of_arrays(lambda values: values * _DEGREES_OF_RADIAN),
    ),
    FunctionSpec(
        Function.RADIANS, ("ToRadians",), _MAPPED, numpy=of_arrays(lambda values: values * _RADIANS_OF_DEGREE),
    ),
    FunctionSpec(
        Function.WIDTH_BUCKET, ("WidthBucket",), takes(DOUBLE, DOUBLE, DOUBLE, LONG, gives=pa.int64()),
        numpy=_width_bucket,
    ),
)  # fmt: skip
