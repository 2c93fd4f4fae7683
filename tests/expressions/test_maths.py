"""Functions of floating-point numbers and of bits, against Spark."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, lit, right
from tests.expressions.judge import Judge

KINDS = ["bool", "i8", "i16", "i32", "i64", "f32", "f64"]
_F = Function
OF_ONE = (
    _F.EXP, _F.EXPM1, _F.LN, _F.LOG2, _F.LOG10, _F.LOG1P, _F.CBRT, _F.ACOS, _F.ASIN, _F.ATAN, _F.SINH, _F.COSH,
    _F.TANH, _F.ATANH,
)  # fmt: skip
OF_TWO = (_F.POW, _F.LOG, _F.HYPOT, _F.ATAN2)


@pytest.mark.parametrize(
    "mode", [pytest.param(EvalMode.LEGACY, marks=pytest.mark.extra), EvalMode.ANSI], ids=lambda m: m.value
)
def test_numbers(judge: Callable[..., Judge], mode: EvalMode) -> None:
    number = left("f64")
    trees: list[Expression] = [
        call(f, left(kind))
        for f in (Function.SIGN, Function.DEGREES, Function.RADIANS)
        for kind in ("f32", "f64", "i32")
    ]
    trees += [call(Function.NANVL, left(kind), right(kind)) for kind in ("f32", "f64")]
    trees += [call(Function.NANVL, number, 1.5), call(Function.NANVL, number, None), call(Function.NANVL, None, number)]
    trees.append(call(Function.NANVL, number, call(Function.DIVIDE, right("f64"), 3.0)))
    ranges = [(-2.5, 100.0), (100.0, -2.5), (0.0, 1.0), (0.0, -0.0), (1e308, -1e308), (math.inf, 1.0), (math.nan, 1.0)]
    trees += [
        call(Function.WIDTH_BUCKET, number, low, high, count)
        for low, high in ranges
        for count in (1, 10, 0, right("i64"))
    ]
    trees.append(call(Function.WIDTH_BUCKET, number, right("f64"), 3.0, 7))
    trees += [call(f, left(kind)) for f in OF_ONE for kind in ("f64", "f32", "i32")]
    trees += [call(f, number, right("f64")) for f in OF_TWO]
    trees += [call(_F.POW, number, n) for n in (0.0, 1, -1, 2, 0.5, -0.5, 3.0, math.inf)]
    trees += [call(_F.LOG, base, number) for base in (10.0, 2, 1.0, -1.0)]
    trees += [call(_F.RINT, number), call(_F.FACTORIAL, left("i32")), call(_F.FACTORIAL, left("i8"))]
    judge(*KINDS).check(trees, mode)


@pytest.mark.parametrize(
    "mode", [pytest.param(EvalMode.LEGACY, marks=pytest.mark.extra), EvalMode.ANSI], ids=lambda m: m.value
)
def test_bits(judge: Callable[..., Judge], mode: EvalMode) -> None:
    integers = ["i8", "i16", "i32", "i64"]
    pairs = [(a, b) for a in integers for b in integers]
    operators = (Function.BIT_AND, Function.BIT_OR, Function.BIT_XOR)
    trees: list[Expression] = [call(f, left(a), right(b)) for f in operators for a, b in pairs]
    trees += [call(Function.BIT_AND, left("i64"), lit(255)), call(Function.BIT_OR, left("i8"), None)]
    trees += [call(f, left(kind)) for f in (Function.BIT_NOT, Function.BIT_COUNT) for kind in integers]
    trees.append(call(Function.BIT_COUNT, left("bool")))
    shifts = (Function.SHIFT_LEFT, Function.SHIFT_RIGHT, Function.SHIFT_RIGHT_UNSIGNED)
    trees += [call(f, left(a), right(b)) for f in shifts for a in integers for b in integers[:3]]
    trees += [call(_F.BIT_GET, left(kind), n) for kind in integers for n in (0, 7)]
    trees += [call(_F.BIT_GET, left("i64"), 63), call(_F.BIT_GET, left("i16"), right("i8"))]
    bitmaps = (_F.BITMAP_BUCKET_NUMBER, _F.BITMAP_BIT_POSITION)
    trees += [call(f, x) for f in bitmaps for x in (*map(left, integers), 1, 32_768, 32_769, -32_768, None)]
    trees += [call(f, left("i64"), n) for f in shifts for n in (0, 1, 31, 32, 63, 64, -1)]
    judge(*KINDS).check(trees, mode)
