"""Comparisons, null-safe equality, IN, greatest and least of every pair of types, against Spark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, right
from tests.brief import each_once
from tests.expressions.judge import Judge

MODES = [EvalMode.LEGACY, EvalMode.ANSI]
COMPARISONS = [
    Function.EQ, Function.NE, Function.LT, Function.LE, Function.GT, Function.GE, Function.EQ_NULL_SAFE,
]  # fmt: skip
NUMBERS = ["i8", "i16", "i32", "i64", "f32", "f64", "d9_2", "d18_6", "d38_0", "d38_18", "d38_38"]
SAME = [*NUMBERS, "bool", "str", "bin", "date", "ts", "ntz", "struct"]
MIXED = [
    ("i8", "i64"), ("i32", "f32"), ("f32", "f64"), ("i64", "d9_2"), ("d9_2", "d18_6"), ("d38_0", "d38_18"),
    ("d38_38", "d38_0"), ("d18_6", "f64"), ("i64", "f64"), ("d38_18", "i32"),
    ("date", "ts"), ("ts", "date"), ("date", "ntz"), ("ntz", "ts"), ("ts", "ntz"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), each_once(SAME, [mode.value for mode in MODES]))
def test_same_type(judge: Callable[..., Judge], kind: str, name: str) -> None:
    mode = EvalMode(name)
    trees: list[Expression] = [call(f, left(kind), right(kind)) for f in COMPARISONS]
    trees.append(left(kind).is_in([right(kind), None]))
    trees.append(left(kind).is_in([right(kind), left(kind)]))
    if kind != "struct":
        trees += [call(f, left(kind), right(kind)) for f in (Function.GREATEST, Function.LEAST)]
    judge(*SAME).check(trees, mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
@pytest.mark.parametrize("function", [Function.EQ, Function.LT, Function.GE], ids=lambda f: f.name)
def test_mixed_types(judge: Callable[..., Judge], function: Function, mode: EvalMode) -> None:
    judge(*SAME).check([call(function, left(a), right(b)) for a, b in MIXED], mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
@pytest.mark.parametrize("kind", NUMBERS)
def test_all_number_types(judge: Callable[..., Judge], kind: str, mode: EvalMode) -> None:
    pairs = [(kind, other) for other in NUMBERS]
    judge(*SAME).check([call(f, left(a), right(b)) for f in COMPARISONS for a, b in pairs], mode)
    judge(*SAME).check([left(a).is_in([right(b)]) for a, b in pairs], mode)
    judge(*SAME).check([call(Function.COALESCE, left(a), right(b)) for a, b in pairs], mode)
    judge(*SAME).check([call(Function.LEAST, left(a), right(b)) for a, b in pairs], mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_mixed_choices(judge: Callable[..., Judge], mode: EvalMode) -> None:
    trees: list[Expression] = [left(a).is_in([right(b)]) for a, b in MIXED]
    trees += [call(Function.COALESCE, left(a), right(b)) for a, b in MIXED]
    trees += [call(Function.GREATEST, left(a), right(b)) for a, b in MIXED]
    judge(*SAME).check(trees, mode)
