"""Functions of floating-point numbers whose results are the same wherever IEEE 754 arithmetic is."""

from __future__ import annotations

import pyarrow as pa

from gpujoin.functions.signatures import DOUBLE, LONG, Parameter, takes
from gpujoin.functions.spec import ON_CPU, FunctionSpec, SparkOnly
from gpujoin.model.expressions import Function

_MAPPED = takes(DOUBLE, gives=pa.float64())
_LOW = Parameter(DOUBLE.accepts, DOUBLE.convert, example=-2.5)
_HIGH = Parameter(DOUBLE.accepts, DOUBLE.convert, example=100.0)
_COUNT = Parameter(LONG.accepts, LONG.convert, example=10)
_F = Function

TABLE = (
    FunctionSpec(_F.SIGN, ("Signum",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.DEGREES, ("ToDegrees",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.RADIANS, ("ToRadians",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.WIDTH_BUCKET, ("WidthBucket",), takes(DOUBLE, _LOW, _HIGH, _COUNT, gives=pa.int64()), lacks=ON_CPU),
)

SPARK_ONLY = (
    SparkOnly(
        (
            "Exp", "Expm1", "Pow", "Log", "Log2", "Log10", "Log1p", "Logarithm", "Cbrt", "Hypot",
            "Sin", "Cos", "Tan", "Cot", "Sec", "Csc", "Asin", "Acos", "Atan", "Atan2",
            "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh",
        ),
        "Java's library and C's differ in last bits",
    ),
)  # fmt: skip
