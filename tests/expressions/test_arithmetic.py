"""Arithmetic of every pair of number types, with wrapping, nulls and errors as the mode has it, against Spark."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

from gpujoin.functions.spec import can_raise
from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, lit, right
from gpujoin.plan.resolve import resolve_value
from tests.brief import each_once
from tests.expressions.judge import Judge

MODES = [EvalMode.LEGACY, EvalMode.ANSI]
WHOLE = ["i8", "i16", "i32", "i64"]
DECIMALS = ["d9_2", "d18_6", "d38_0", "d38_18", "d38_38"]
NUMBERS = [*WHOLE, "f32", "f64", *DECIMALS]
BINARY = [
    Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.DIVIDE, Function.INTEGRAL_DIVIDE,
    Function.REMAINDER, Function.PMOD,
]  # fmt: skip
UNARY = [Function.NEGATE, Function.ABS, Function.FLOOR, Function.CEIL]


def _defined(function: Function, *kinds: str) -> bool:
    return function is not Function.INTEGRAL_DIVIDE or not any(k.startswith("f") for k in kinds)


def _binary(pairs: list[tuple[str, str]]) -> list[Expression]:
    return [call(f, left(a), right(b)) for a, b in pairs for f in BINARY if _defined(f, a, b)]


@pytest.mark.parametrize(("kind", "mode"), each_once(NUMBERS, [mode.value for mode in MODES]))
def test_same_type(judge: Callable[..., Judge], kind: str, mode: str) -> None:
    judge(*NUMBERS).check(_binary([(kind, kind)]), EvalMode(mode))


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_unary(judge: Callable[..., Judge], mode: EvalMode) -> None:
    kinds = [k for k in NUMBERS if k != "f32"]
    trees: list[Expression] = [call(f, left(k)) for k in kinds for f in UNARY]
    trees += [call(f, left("f32")) for f in UNARY[:2]]
    if not judge(*NUMBERS, pairs=False).raises(call(Function.CEIL, left("f64")), EvalMode.ANSI):
        # In ANSI mode Spark's plan then says that floor and ceil do not fail, and the front end reads it there.
        trees = [t for t in trees if str(t) not in ("floor(f64)", "ceil(f64)")]
    judge(*NUMBERS, pairs=False).check(trees, mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_mixed_types(judge: Callable[..., Judge], mode: EvalMode) -> None:
    pairs = [
        ("i8", "i64"), ("i64", "i32"), ("i32", "f32"), ("f64", "i64"), ("f32", "f64"), ("i32", "d9_2"),
        ("d18_6", "i64"), ("d9_2", "d18_6"), ("d38_0", "d9_2"), ("d38_18", "d38_0"), ("d9_2", "f64"),
        ("f32", "d38_18"), ("d38_0", "d38_38"),
    ]  # fmt: skip
    judge(*NUMBERS).check(_binary(pairs), mode)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
@pytest.mark.parametrize("kind", NUMBERS)
def test_all_pairs(asking_judge: Callable[..., Judge], kind: str, mode: EvalMode) -> None:
    judge = asking_judge(*NUMBERS)
    for other in NUMBERS:
        judge.check(_binary([(kind, other)]), mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_try_functions_give_null(judge: Callable[..., Judge], mode: EvalMode) -> None:
    functions = [Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.DIVIDE, Function.REMAINDER]
    trees = [
        call(f, left(k), right(k), mode=EvalMode.TRY)
        for k in ("i32", "i64", "f64", "d9_2", "d38_18")
        for f in functions
    ]
    judge(*NUMBERS).check(trees, mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_literals(judge: Callable[..., Judge], mode: EvalMode) -> None:
    trees: list[Expression] = []
    for kind in ("i32", "i64", "d9_2", "d38_18", "f64"):
        column = left(kind)
        trees += [column + 1, column * 2, 3 - column, column / 4, column % 5, column + None]
        trees += [column > 2, column <= Decimal("1.5"), column == Decimal("-1.00"), 7 / column]
        trees += [column > Decimal("1e30"), Decimal("0.5") < column, column < 1.5, column == 5_000_000_000]
    trees += [lit(1) + left("i8"), left("i32") + 5_000_000_000]
    judge(*NUMBERS).check(trees, mode)


@pytest.mark.parametrize("function", [Function.ADD, Function.SUBTRACT, Function.MULTIPLY], ids=lambda f: f.value)
@pytest.mark.parametrize(
    ("dtypes", "raises"),
    [
        ((pa.decimal128(9, 2), pa.decimal128(18, 6)), False),
        ((pa.decimal128(38, 18), pa.decimal128(38, 18)), True),
        ((pa.decimal128(38, 0), pa.decimal128(9, 2)), True),
        ((pa.int64(), pa.int64()), True),
    ],
    ids=["room", "wide", "cut scale", "integers"],
)
def test_decimals_with_room_for_every_result_never_raise(
    function: Function, dtypes: tuple[pa.DataType, pa.DataType], *, raises: bool
) -> None:
    schema = pa.schema([("a", dtypes[0]), ("b", dtypes[1])])
    tree = resolve_value(call(function, left("a"), left("b")), schema, schema, mode=EvalMode.ANSI)
    assert can_raise(tree) is raises
