"""Three-valued logic, laziness, and choices between branches, against Spark."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from gpujoin.errors import ExpressionEvaluationError, UnsupportedValueError
from gpujoin.functions.evaluate import evaluate, evaluate_column
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import EvalMode, Expression, Function, call, coalesce, left, lit, right, when
from gpujoin.plan.resolve import resolve, resolve_value
from tests.expressions.judge import Judge, comparable

KINDS = ["bool", "i32", "str", "f64", "d9_2", "struct"]
MODES = [EvalMode.LEGACY, EvalMode.ANSI]
THREE = [None, False, True]


def test_truth_table() -> None:
    pairs = list(product(THREE, THREE))
    one = pa.record_batch({"b": pa.array([p for p, _ in pairs], pa.bool_())})
    two = pa.record_batch({"b": pa.array([q for _, q in pairs], pa.bool_())})
    a, b = left("b"), right("b")

    def both(p: bool | None, q: bool | None) -> bool | None:
        return False if p is False or q is False else None if p is None or q is None else True

    def either(p: bool | None, q: bool | None) -> bool | None:
        return True if p or q else None if p is None or q is None else False

    def no(p: bool | None) -> bool | None:
        return None if p is None else not p

    expected = [
        (a & b, both), (a | b, either), (~(a & b), lambda p, q: no(both(p, q))),
        (~a | b, lambda p, q: either(no(p), q)),
        (a.equal_null_safe(b), lambda p, q: p is q), (a == b, lambda p, q: None if None in (p, q) else p is q),
        (a.is_null() & b, lambda p, q: both(p is None, q)), (a & lit(None), lambda p, q: both(p, None)),
        (lit(None) | b, lambda p, q: either(None, q)), (lit(True) & b, lambda p, q: q),
        (a | lit(False), lambda p, q: p),
        (call(Function.AND, a, b, a), lambda p, q: both(both(p, q), p)),
    ]  # fmt: skip
    for tree, rule in expected:
        resolved = resolve(tree, one.schema, two.schema)
        wanted = [rule(p, q) for p, q in pairs]
        assert evaluate_column(resolved, one, two, 9).to_pylist() == wanted, tree
        assert evaluate(resolved, one, two, 9).tolist() == [w is True for w in wanted], tree


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_choices(judge: Callable[..., Judge], mode: EvalMode) -> None:
    trees: list[Expression] = [
        left("bool") & right("bool"), left("bool") | right("bool"), ~left("bool"), left("bool") & None,
        coalesce(left("i32"), right("i32")), coalesce(left("str"), right("str"), "z"), coalesce(left("f64"), 0),
        coalesce(left("struct"), right("struct")), coalesce(None, left("d9_2")), coalesce(left("i32"), right("d9_2")),
        when(left("bool"), left("i32")).when(right("bool"), 7).else_(right("d9_2")),
        when(left("i32") > right("i32"), left("str")).else_(right("str")),
        when(left("bool"), 1), when(left("i32") > 1, left("struct")),
        left("i32").is_in([1, 2, 3, 5, 7, 99]), left("i32").is_in([1, 2, 3, 5, None, 99]), left("i32").is_in([]),
        left("str").is_in(["a", "b", "é", "日本", "x", "y"]), left("str").is_in(["a", "b", "c", "d", None]),
        left("f64").is_in([1.0, float("nan"), 0.0, 3.0, 4.0, 5.0]), left("d9_2").is_in([1, 100, -1, 2, 3, 4]),
        ~left("i32").is_in([right("i32"), 1]), left("i32").between(0, right("i32")), left("i32").is_null(),
        left("struct").is_not_null(), left("f64").is_nan(), left("i32").is_nan(), left("struct").field("y"),
        left("struct").field("x") == right("i32"), call(Function.LEAST, left("i32"), right("i32"), 0),
        call(Function.GREATEST, left("f64"), right("f64"), None), call(Function.LEAST, left("str"), right("str")),
    ]  # fmt: skip
    trees = [t for t in trees if "i32 in ()" not in str(t)]
    judge(*KINDS).check(trees, mode)


def test_operands_that_would_raise_are_seen_only_where_spark_sees_them(judge: Callable[..., Judge]) -> None:
    a, b, text = left("i32"), right("i32"), left("str")
    trees: list[Expression] = [
        (b != 0) & (a / b > 1),
        (b == 0) | (a % b == 0),
        (b > 0) & (a / (b - 1) > 0),
        when(b != 0, a / b).else_(0),
        coalesce(b, a / 0),
        coalesce(a, b, a / 0),
        a.is_in([a, a / b]),
        when(left("bool"), text.cast(pa.int32())).else_(1),
        (a - b) * (b + a),
        left("bool") & (a + b > 0),
        b / a,
        (a / b) / (b / a),
        a.is_null() | (a / b).is_null(),
    ]
    judge(*KINDS).check(trees, EvalMode.ANSI)


def test_no_rows_and_no_needed_rows_raise_nothing() -> None:
    batch = pa.record_batch({"i": pa.array([1, 2], pa.int32())})
    boom = call(Function.DIVIDE, 1, 0, mode=EvalMode.ANSI) > 0

    def run(tree: Expression, length: int) -> list[bool]:
        resolved = resolve(tree, batch.schema, batch.schema, mode=EvalMode.ANSI)
        return evaluate(resolved, batch.slice(0, length), batch.slice(0, length), length).tolist()

    assert run(boom, 0) == []
    assert run((left("i") > 9) & boom, 2) == [False, False]
    assert run(when(left("i") > 9, boom).else_(lit(True)), 2) == [True, True]
    with pytest.raises(ExpressionEvaluationError, match="division by zero"):
        run((left("i") > 1) & boom, 2)


def test_constants_are_spread_over_the_rows() -> None:
    batch = pa.record_batch({"i": pa.array([1, 2], pa.int32())})
    for value in (1, None, "a", 1.5, True):
        resolved = resolve_value(coalesce(value, value), batch.schema, batch.schema)
        assert evaluate_column(resolved, batch, batch, 2).to_pylist() == [value, value]


def test_null_tests_take_any_type() -> None:
    arrays = [
        pa.array([[1], None, []], pa.list_(pa.int8())),
        pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int8())),
        pa.array([(1, 2, 3), None, (0, 0, 0)], pa.month_day_nano_interval()),
        pa.array([1, None, 2], pa.duration("us")),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None])),
        pa.array([{"x": None}, None, {"x": 1}]),
        pa.array([b"abcd", None, b"efgh"], pa.binary(4)),
        pa.array([[1.0], None, [2.0]], pa.list_(pa.float32(), 1)),
        pa.RunEndEncodedArray.from_arrays([1, 2, 3], pa.array([1, None, 2])),
    ]
    for array in arrays:
        batch = pa.record_batch({"x": array})
        for tree, expected in [
            (left("x").is_null(), [False, True, False]),
            (left("x").is_not_null(), [True, False, True]),
        ]:
            resolved = resolve(tree, batch.schema, batch.schema)
            assert is_supported(resolved)
            assert evaluate(resolved, batch, batch, 3).tolist() == expected, array.type


def test_a_column_of_nulls() -> None:
    batch = pa.record_batch({"n": pa.nulls(2), "i": pa.array([1, None], pa.int32())})
    for tree, expected in [
        (left("n") == right("i"), [None, None]),
        (left("n").equal_null_safe(right("i")), [False, True]),
        (left("n") == right("n"), [None, None]),
        (coalesce(left("n"), right("i")), [1, None]),
        (left("n") + 1, [None, None]),
        (left("n") & (right("i") == 2), [False, None]),
        (left("i").is_in([left("n"), 1]), [True, None]),
    ]:
        resolved = resolve_value(tree, batch.schema, batch.schema)
        assert is_supported(resolved), tree
        assert evaluate_column(resolved, batch, batch, 2).to_pylist() == expected, tree


RAISING = -when(right("bool"), right("i32")).else_(lit(1))
"""Raises for the least integer in ANSI mode, so that it is computed only where the operand before it is not null."""
BESIDE_RAISING = [
    left("i32") + RAISING, left("i32") % RAISING, left("i32") < RAISING, left("i32").equal_null_safe(RAISING),
    call(Function.GREATEST, left("i32"), RAISING), left("i32").is_in([RAISING, lit(1)]),
    call(Function.SUBSTRING, left("str"), RAISING, 2), call(Function.REPEAT, left("str"), RAISING),
    left("bool") & (RAISING > 0), call(Function.DATE_ADD, left("date"), RAISING),
    call(Function.POW, left("f64"), RAISING), call(Function.ROUND, left("d9_2"), 1) + RAISING,
    call(Function.SHIFT_LEFT, left("i32"), RAISING),
]  # fmt: skip


@pytest.mark.parametrize("expression", BESIDE_RAISING, ids=str)
def test_an_operand_that_is_constant_in_these_rows(judge: Callable[..., Judge], expression: Expression) -> None:
    """A choice of one branch in all rows is a constant; an operand that no row needs is null."""
    j = judge("bool", "i32", "str", "f64", "d9_2", "date")
    resolved = j.resolve(expression, EvalMode.ANSI)
    (column,) = (c for c in expression.columns() if c.side.value == "left")

    def compute(rows: npt.NDArray[np.int64]) -> pa.Array:
        return evaluate_column(resolved, j.left.take(pa.array(rows)), j.right.take(pa.array(rows)), len(rows))

    alone = {}
    for row in range(j.left.num_rows):
        try:
            alone[row] = compute(np.array([row]))
        except (ExpressionEvaluationError, UnsupportedValueError):
            continue
    null = j.left[column.name].is_null().to_numpy(zero_copy_only=False)
    chosen = j.right["bool"].fill_null(False).to_numpy(zero_copy_only=False)
    for mask in (null & chosen, null & ~chosen, ~null & chosen, ~null & ~chosen):
        rows = np.intersect1d(np.flatnonzero(mask), list(alone))
        assert len(rows) > 1
        assert comparable(compute(rows)) == comparable(pa.concat_arrays([alone[r] for r in rows]))
