"""Functions of floating-point numbers whose results are Java's: those of IEEE 754 arithmetic, or of fdlibm."""

from __future__ import annotations

import pyarrow as pa

from gpujoin.functions.signatures import DOUBLE, INT, LONG, takes
from gpujoin.functions.spec import ON_CPU, FunctionSpec, SparkOnly
from gpujoin.model.expressions import Function

_MAPPED = takes(DOUBLE, gives=pa.float64())
_PAIR = takes(DOUBLE, DOUBLE, gives=pa.float64())
_F = Function

TABLE = (
    FunctionSpec(_F.EXP, ("Exp",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.EXPM1, ("Expm1",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.LN, ("Log",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.LOG2, ("Log2",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.LOG10, ("Log10",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.LOG1P, ("Log1p",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.LOG, ("Logarithm",), _PAIR, lacks=ON_CPU),
    FunctionSpec(_F.POW, ("Pow",), _PAIR, lacks=ON_CPU),
    FunctionSpec(_F.CBRT, ("Cbrt",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.HYPOT, ("Hypot",), _PAIR, lacks=ON_CPU),
    FunctionSpec(_F.ACOS, ("Acos",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.ASIN, ("Asin",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.ATAN, ("Atan",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.ATAN2, ("Atan2",), _PAIR, lacks=ON_CPU),
    FunctionSpec(_F.SINH, ("Sinh",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.COSH, ("Cosh",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.TANH, ("Tanh",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.ATANH, ("Atanh",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.RINT, ("Rint",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.FACTORIAL, ("Factorial",), takes(INT, gives=pa.int64()), lacks=ON_CPU),
    FunctionSpec(_F.SIGN, ("Signum",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.DEGREES, ("ToDegrees",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.RADIANS, ("ToRadians",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(
        _F.WIDTH_BUCKET, ("WidthBucket",), takes(DOUBLE, DOUBLE, DOUBLE, LONG, gives=pa.int64()), lacks=ON_CPU
    ),
)

SPARK_ONLY = (
    SparkOnly(
        ("Sin", "Cos", "Tan", "Cot", "Sec", "Csc"),
        "the JVM has routines of the processor's own for them, whose last bits no definition says",
    ),
    SparkOnly(("Asinh", "Acosh"), "Spark's formula is another in each version"),
)

UNINTRINSIC = (
    _F.CBRT, _F.HYPOT, _F.ACOS, _F.ASIN, _F.ATAN, _F.ATAN2, _F.SINH, _F.COSH, _F.TANH,
)  # fmt: skip
"""Functions that Spark calls in ``Math``, not ``StrictMath``. Both are one in HotSpot of Java 17 to 23; from Java 24 on
it has routines of the processor's own for some of them, beginning with ``tanh``."""
