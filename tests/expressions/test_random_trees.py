"""Random typed trees, many to a query, against Spark."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import EvalMode, Expression, Function, call, coalesce, left, lit, right, when
from tests.expressions.judge import Judge

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KINDS = ["bool", "i8", "i32", "i64", "f64", "d9_2", "d18_6", "d38_18", "str", "date", "ts", "struct"]
NUMBERS = ["i8", "i32", "i64", "f64", "d9_2", "d18_6", "d38_18"]
COMPARISONS = [
    Function.EQ, Function.NE, Function.LT, Function.LE, Function.GT, Function.GE, Function.EQ_NULL_SAFE,
]  # fmt: skip
ARITHMETIC = [
    Function.ADD,
    Function.SUBTRACT,
    Function.MULTIPLY,
    Function.DIVIDE,
    Function.REMAINDER,
    Function.PMOD,
]
ROUNDINGS = [Function.ROUND, Function.ROUND_EVEN, Function.ROUND_CEIL, Function.ROUND_FLOOR]
CASTS = [pa.int32(), pa.int64(), pa.float64(), pa.decimal128(20, 4), pa.decimal128(12, 0)]
Trees = st.SearchStrategy[Expression]


def _column(*kinds: str) -> Trees:
    return st.builds(lambda kind, side: side(kind), st.sampled_from(kinds), st.sampled_from([left, right]))


def _numbers(depth: int) -> Trees:
    if depth == 0:
        return _column(*NUMBERS) | st.sampled_from([1, -3, 0, 100]).map(lit)
    inner = _numbers(depth - 1)
    return st.one_of(
        _column(*NUMBERS),
        st.builds(call, st.sampled_from(ARITHMETIC), inner, inner),
        st.builds(call, st.sampled_from([Function.NEGATE, Function.ABS]), inner),
        st.builds(call, st.sampled_from(ROUNDINGS), inner, st.sampled_from([0, 1, 3, -1, -2])),
        st.builds(lambda e, t: e.cast(t), inner, st.sampled_from(CASTS)),
        st.builds(lambda c, a, b: when(c, a).else_(b), _booleans(depth - 1), inner, inner),
        st.builds(coalesce, inner, inner),
        st.builds(call, st.sampled_from([Function.GREATEST, Function.LEAST]), inner, inner),
        st.builds(call, st.just(Function.LENGTH), _texts(depth - 1)),
        st.builds(
            call, st.sampled_from([Function.YEAR, Function.DAY_OF_WEEK, Function.WEEK_OF_YEAR]), _column("date", "ts")
        ),
    )


def _texts(depth: int) -> Trees:
    if depth == 0:
        return _column("str") | st.sampled_from(["a", "", "é%"]).map(lit)
    inner = _texts(depth - 1)
    return st.one_of(
        _column("str"),
        st.builds(call, st.just(Function.CONCAT), inner, inner),
        st.builds(call, st.just(Function.TRIM), inner),
        st.builds(lambda e, p, n: call(Function.SUBSTRING, e, p, n), inner, st.integers(-3, 3), st.integers(0, 3)),
        st.builds(coalesce, inner, inner),
        st.builds(lambda c, a, b: when(c, a).else_(b), _booleans(depth - 1), inner, inner),
    )


def _booleans(depth: int) -> Trees:
    if depth == 0:
        return _column("bool")
    inner, numbers, texts = _booleans(depth - 1), _numbers(depth - 1), _texts(depth - 1)
    same = st.sampled_from(["date", "ts", "struct", "bool"])
    return st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
        st.builds(call, st.sampled_from(COMPARISONS), numbers, numbers),
        st.builds(call, st.sampled_from(COMPARISONS), texts, texts),
        st.builds(lambda f, k: call(f, left(k), right(k)), st.sampled_from(COMPARISONS), same),
        st.builds(lambda e: e.is_null(), numbers | texts | _column("struct")),
        st.builds(lambda e, vs: e.is_in(vs), numbers, st.lists(numbers, min_size=1, max_size=3)),
        st.builds(lambda e, p: e.like(p), texts, st.sampled_from(["a%", "%_", "%b%", "_"])),
        st.builds(call, st.sampled_from([Function.STARTS_WITH, Function.ENDS_WITH, Function.CONTAINS]), texts, texts),
    )


def _check(judge: Callable[..., Judge], trees: list[Expression], mode: EvalMode) -> None:
    j = judge(*KINDS)
    known = [t for t in trees if is_supported(j.resolve(t, mode))]
    hypothesis.event(f"{len(known)} of {len(trees)} evaluated here")
    if known:
        j.check(known, mode)


def _settings(examples: int) -> hypothesis.settings:
    # No shrinking: every attempt is a Spark query, and failures name the one tree and row that differ.
    return hypothesis.settings(
        max_examples=examples,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


BATCHES = st.lists(_booleans(3) | _numbers(3) | _texts(2), min_size=15, max_size=25)


@_settings(60)
@given(trees=BATCHES, mode=st.sampled_from([EvalMode.LEGACY, EvalMode.ANSI]))
def test_random_trees(asking_judge: Callable[..., Judge], trees: list[Expression], mode: EvalMode) -> None:
    _check(asking_judge, trees, mode)
