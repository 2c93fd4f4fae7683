"""Expressions in pipelines against their evaluation by the CPU backend, which is checked against Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("hypothesis", reason="no Hypothesis: pip install hypothesis")

import hypothesis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from gpujoin.engine.pipeline import run, supports
from gpujoin.errors import ConditionError, ExpressionEvaluationError
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import EvalMode, Expression, Function, call, coalesce, left, lit, when
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import ExchangeSource, Filter, Output, Project
from gpujoin.plan.resolve import resolve_value
from tests.expressions.values import VALUES
from tests.trees import Tree, count, total

D = Decimal

SMALL: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [None, 0, 1, -1, 5]),
    "i32": (pa.int32(), [None, 0, 1, -1, 1000, -999]),
    "i64": (pa.int64(), [None, 0, 1, -1, 10**9, 77]),
    "f64": VALUES["f64"],
    "d9_2": (pa.decimal128(9, 2), [None, D("0.00"), D("1.25"), D("-1.00"), D("999.99")]),
    "d18_6": (pa.decimal128(18, 6), [None, D(0), D("0.000001"), D("-12.5"), D("100000")]),
    "d38_18": (pa.decimal128(38, 18), [None, D(0), D("0.000000000000000001"), D("-3.25"), D(12345)]),
    "bool": VALUES["bool"],
    "str": VALUES["str"],
    "date": (
        pa.date32(),
        [None, dt.date(1970, 1, 1), dt.date(2000, 2, 29), dt.date(1600, 3, 1), dt.date(2024, 12, 31)],
    ),
    "ts": VALUES["ts"],
    "ntz": VALUES["ntz"],
}  # fmt: skip
WHOLE = {**{kind: VALUES[kind] for kind in SMALL}}
NUMBERS = ("i8", "i32", "i64", "f64", "d9_2", "d18_6", "d38_18")


def batch_of(kinds: dict[str, tuple[pa.DataType, list[Any]]], rows: int = 120) -> pa.RecordBatch:
    """Columns ``a_<kind>`` and ``b_<kind>``: all pairs of values, as far as rows go."""
    columns = {}
    for kind, (dtype, values) in kinds.items():
        columns[f"a_{kind}"] = pa.array([values[i % len(values)] for i in range(rows)], dtype)
        columns[f"b_{kind}"] = pa.array([values[(i // len(values)) % len(values)] for i in range(rows)], dtype)
    return pa.RecordBatch.from_pydict(columns)


DATA = {"small": batch_of(SMALL), "special": batch_of(WHOLE, 500)}


def bits(values: pa.Array) -> list[Any]:
    """Values that tell the sign of zero, with one NaN."""
    if pa.types.is_temporal(values.type):
        return values.cast(pa.int64() if values.type.bit_width == 64 else pa.int32()).to_pylist()
    return [repr(v) if isinstance(v, float) else v for v in values.to_pylist()]


def evaluated(expression: Expression, batch: pa.RecordBatch) -> pa.Array | None:
    """What the evaluator gives, or ``None`` where it raises."""
    empty = pa.RecordBatch.from_arrays([], names=[])
    try:
        return evaluate_column(expression, batch, empty, batch.num_rows)
    except ExpressionEvaluationError:
        return None


def check(expressions: Sequence[Expression], batch: pa.RecordBatch, mode: EvalMode) -> PipelineMetrics:
    """Compare projections to expressions, and filters by those that are boolean."""
    metrics = PipelineMetrics()
    source = ExchangeSource(0, batch.schema)
    for expression in expressions:
        try:
            resolved = resolve_value(expression, batch.schema, batch.schema, mode=mode)
        except ConditionError:
            continue
        project = Project(source, (Output("c", resolved),))
        if not is_supported(resolved) or pa.types.is_null(resolved.type):
            assert supports(project)
            continue
        assert not supports(project)
        expected = evaluated(resolved, batch)
        if expected is None:
            with pytest.raises(ExpressionEvaluationError):
                list(run(project, {0: [batch]}, metrics=metrics))
            continue
        actual = pa.Table.from_batches(run(project, {0: [batch]}, metrics=metrics), project.schema)
        assert actual.schema.field(0).type == resolved.type
        assert bits(actual.column(0).combine_chunks()) == bits(expected), str(resolved)
        if pa.types.is_boolean(resolved.type):
            kept = pa.Table.from_batches(run(Filter(source, resolved), {0: [batch]}), source.schema)
            assert kept.num_rows == sum(v is True for v in expected.to_pylist()), str(resolved)
    return metrics


Trees = st.SearchStrategy[Expression]
COMPARISONS = [
    Function.EQ, Function.NE, Function.LT, Function.LE, Function.GT, Function.GE, Function.EQ_NULL_SAFE,
]  # fmt: skip
ARITHMETIC = [Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.DIVIDE, Function.REMAINDER]
DATE_PARTS = [Function.YEAR, Function.MONTH, Function.DAY, Function.QUARTER, Function.DAY_OF_YEAR]
CASTS = [
    pa.int32(),
    pa.int64(),
    pa.float64(),
    pa.decimal128(20, 4),
    pa.decimal128(30, 8),
    pa.decimal128(12, 0),
]


def columns(*kinds: str) -> Trees:
    return st.builds(lambda kind, side: left(f"{side}_{kind}"), st.sampled_from(kinds), st.sampled_from("ab"))


def numbers(depth: int) -> Trees:
    leaves = columns(*NUMBERS) | st.sampled_from([1, -3, 0, 2.5, D("0.05"), D("100")]).map(lit)
    if depth == 0:
        return leaves
    inner = numbers(depth - 1)
    return st.one_of(
        leaves,
        st.builds(call, st.sampled_from(ARITHMETIC), inner, inner),
        st.builds(call, st.sampled_from([Function.NEGATE, Function.ABS]), inner),
        st.builds(lambda e, t: e.cast(t), inner, st.sampled_from(CASTS)),
        st.builds(lambda c, a, b: when(c, a).else_(b), booleans(depth - 1), inner, inner),
        st.builds(coalesce, inner, inner),
        st.builds(call, st.just(Function.LENGTH), texts(depth - 1)),
        st.builds(
            call, st.sampled_from(DATE_PARTS), columns("date"),
        ),
        st.builds(call, st.just(Function.DATE_DIFF), columns("date"), columns("date")),
        st.builds(call, st.just(Function.UNSCALED_VALUE), columns("d9_2", "d18_6")),
    )  # fmt: skip


def texts(depth: int) -> Trees:
    leaves = columns("str") | st.sampled_from(["a", "", "é%"]).map(lit)
    if depth == 0:
        return leaves
    inner = texts(depth - 1)
    return st.one_of(
        leaves,
        st.builds(call, st.just(Function.CONCAT), inner, inner),
        st.builds(call, st.just(Function.TRIM), inner),
        st.builds(lambda e, p, n: call(Function.SUBSTRING, e, p, n), inner, st.integers(-3, 3), st.integers(-1, 3)),
        st.builds(lambda e, p: call(Function.SUBSTRING, e, p), inner, st.integers(-1, 3)),
        st.builds(coalesce, inner, inner),
        st.builds(lambda c, a, b: when(c, a).else_(b), booleans(depth - 1), inner, inner),
    )


def booleans(depth: int) -> Trees:
    if depth == 0:
        return columns("bool")
    inner, number, text = booleans(depth - 1), numbers(depth - 1), texts(depth - 1)
    patterns = [
        "a%",
        "%_",
        "%b%",
        "_",
        "",
        "%",
        "a\\_c",
        "%a%b%",
        "é%",
        "%\\%",
        "a.c",
        "%語",
        "_\n_",
        "(a|b)%_",
    ]
    return st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
        st.builds(call, st.sampled_from(COMPARISONS), number, number),
        st.builds(call, st.sampled_from(COMPARISONS), text, text),
        st.builds(
            lambda f, k: call(f, left(f"a_{k}"), left(f"b_{k}")), st.sampled_from(COMPARISONS),
            st.sampled_from(["date", "ts", "ntz", "bool"]),
        ),
        st.builds(lambda f, d: call(f, left("a_date"), d), st.sampled_from(COMPARISONS), st.dates()),
        st.builds(lambda e: e.is_null(), number | text),
        st.builds(call, st.just(Function.IS_NAN), columns("f64")),
        st.builds(lambda e, vs: e.is_in(vs), number, st.lists(number, min_size=1, max_size=3)),
        st.builds(
            lambda e, vs: e.is_in(vs), columns("str"), st.lists(st.sampled_from(["a", "b", "é", None, ""]), min_size=1)
        ),
        st.builds(lambda e, vs: e.is_in(vs), columns("i32"), st.lists(st.integers(-1, 1000), min_size=3, max_size=6)),
        st.builds(lambda e, p: e.like(p), text, st.sampled_from(patterns)),
        st.builds(call, st.sampled_from([Function.STARTS_WITH, Function.ENDS_WITH, Function.CONTAINS]), text, text),
    )  # fmt: skip


TREES = st.lists(booleans(3) | numbers(3) | texts(2), min_size=10, max_size=20)


def settings(examples: int) -> hypothesis.settings:
    return hypothesis.settings(max_examples=examples, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("data", DATA)
@settings(8)
@given(trees=TREES, mode=st.sampled_from([EvalMode.LEGACY, EvalMode.ANSI]))
def test_random_trees(data: str, trees: list[Expression], mode: EvalMode) -> None:
    check(trees, DATA[data], mode)


@pytest.mark.slow
@pytest.mark.parametrize("data", DATA)
@settings(500)
@given(trees=TREES, mode=st.sampled_from([EvalMode.LEGACY, EvalMode.ANSI]))
def test_many_random_trees(data: str, trees: list[Expression], mode: EvalMode) -> None:
    check(trees, DATA[data], mode)


LOWERED: list[Expression] = [
    left("a_d9_2") * (1 - left("b_d9_2")),
    left("a_d18_6").cast(pa.decimal128(12, 2)),
    left("a_d38_18").cast(pa.decimal128(9, 1)),
    left("a_d9_2") * (1 - left("b_d9_2")) * (1 + left("a_d18_6")),
    left("a_i32") + left("b_i32") * 2,
    left("a_i8") + left("b_i64"),
    -left("a_d18_6"),
    abs(left("a_f64")),
    -left("a_f64"),
    left("a_i64").cast(pa.decimal128(25, 5)),
    left("a_d38_18") * 3,
    left("a_d9_2") / 2,
    left("a_d18_6") / D("-0.03"),
    left("a_d9_2") / (left("b_d9_2") + 100),
    left("a_d9_2").cast(pa.float64()),
    left("a_d38_18") > left("b_d9_2"),
    left("a_f64") <= left("b_f64"),
    left("a_f64").equal_null_safe(left("b_f64")),
    left("a_str").like("%a%b%") | left("a_str").like("_\n_"),
    left("a_str").is_in(["a", "é", "", "b"]),
    call(Function.SUBSTRING, left("a_str"), 1, 2),
    call(Function.YEAR, left("a_date")),
    left("a_date") < dt.date(2000, 1, 1),
    left("a_ts") < left("b_ts"),
    when(left("a_bool"), left("a_d9_2")).else_(D("0.00")),
    coalesce(left("a_str"), "none"),
    call(Function.DATE_ADD, left("a_date"), 90),
    call(Function.IS_NAN, left("a_f64")),
]


@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI])
@pytest.mark.parametrize("expression", LOWERED, ids=str)
def test_what_is_proven_is_lowered(expression: Expression, mode: EvalMode) -> None:
    assert check([expression], DATA["small"], mode).evaluated == 0


@pytest.mark.parametrize("digits", [3, 9, 17, 27])
def test_decimals_divided_by_decimals(digits: int, rng: np.random.Generator, seed: int) -> None:
    """Halves, zeros and both signs, of sizes that take 64 and 128 bits."""

    def numbers() -> pa.Array:
        whole = [int("".join(map(str, rng.integers(0, 10, digits)))) for _ in range(5_000)]
        signed = [number * int(sign) // 8 * 4 for number, sign in zip(whole, rng.integers(-1, 2, 5_000), strict=True)]
        values = [D(number).scaleb(-2) for number in signed]
        return pa.array(values, pa.decimal128(digits + 2, 2), mask=rng.random(5_000) < 0.1)

    batch = pa.RecordBatch.from_pydict({"a": numbers(), "b": numbers()})
    for divisor in (left("b"), lit(D("8.00")), lit(D("-0.3")), lit(3)):
        metrics = check([left("a") / divisor, left("a").cast(pa.decimal128(38, 1)) / divisor], batch, EvalMode.LEGACY)
        assert metrics.evaluated == 0 or digits == 27, str(divisor)


UNPROVEN: list[Expression] = [
    left("a_f64") / 3.0,
    left("a_f64") / lit(3).cast(pa.float64()),
    left("a_i64") + left("b_i64"),
    left("a_i32") * left("b_i32"),
    left("a_d38_18") + left("b_d38_18"),
    left("a_i32") % left("b_i32"),
    -left("a_i64"),
    left("a_i64").cast(pa.int32()),
    left("a_str").cast(pa.int32()),
    call(Function.SUBSTRING, left("a_str"), -2, 1),
]


@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI])
@pytest.mark.parametrize("expression", UNPROVEN, ids=str)
def test_what_is_not_proven_is_evaluated(expression: Expression, mode: EvalMode) -> None:
    assert check([expression], DATA["special"], mode).evaluated > 0


def test_conjuncts_guard_one_another_in_order() -> None:
    """As in Spark's filters: the division is not reached where the divisor is zero or null."""
    batch = pa.RecordBatch.from_pydict({"a": [6, 6, None, 6], "b": [0, 3, 2, None]})
    source = ExchangeSource(0, batch.schema)

    def rows(condition: Expression) -> int:
        resolved = resolve_value(condition, batch.schema, batch.schema, mode=EvalMode.ANSI)
        return sum(b.num_rows for b in run(Filter(source, resolved), {0: [batch]}))

    safe, risky = left("b") != 0, left("a") / left("b") > 1
    assert rows(safe & risky) == 1
    with pytest.raises(ExpressionEvaluationError, match="division by zero"):
        rows(risky & safe)


def test_computed_columns_stay_with_their_rows() -> None:
    """A filter above a column that was computed outside the query."""
    batch = pa.RecordBatch.from_pydict({"a": list(range(100)), "b": [i % 7 + 1 for i in range(100)]})
    tree = Tree.source(batch.schema).select("a", r=left("a") % left("b"))
    outer = tree.where(left("a") > 50).select("a", "r").where(left("r") > 2)
    rows = pa.Table.from_batches(run(outer.relation, {0: [batch]}), outer.schema).to_pylist()
    assert rows == [{"a": a, "r": a % (a % 7 + 1)} for a in range(51, 100) if a % (a % 7 + 1) > 2]


def test_exact_decimal_literals() -> None:
    batch = pa.RecordBatch.from_pydict({"d": pa.array([D(10**37 + 1), D(10**37)], pa.decimal128(38, 0))})
    tree = Tree.source(batch.schema).where(left("d") > lit(D(10**37), pa.decimal128(38, 0)))
    metrics = PipelineMetrics()
    result = pa.Table.from_batches(run(tree.relation, {0: [batch]}, metrics=metrics), tree.schema)
    assert result["d"].to_pylist() == [D(10**37 + 1)]
    assert metrics.evaluated == 0


def test_constants_stand_for_every_row() -> None:
    table = pa.table({"a": pa.array([1, 2, 3], pa.int32())})
    source = Tree.source(table.schema)

    def rows(tree: Tree) -> list[Any]:
        return pa.Table.from_batches(run(tree.relation, {0: table}), tree.schema).to_pylist()

    assert [len(rows(source.where(lit(value, pa.bool_())))) for value in (True, False, None)] == [3, 0, 0]
    none = lit(None, pa.decimal128(10, 2))
    assert rows(source.select(x=lit(5), y=lit("s"), z=none)) == [{"x": 5, "y": "s", "z": None}] * 3
    assert rows(source.select(x=lit(5)).group("x", s=total(lit(1)))) == [{"x": 5, "s.sum": 3}]
    assert rows(source.group(s=total(lit(1)), n=count(lit(1)), m=count())) == [{"s.sum": 3, "n.count": 3, "m.count": 3}]
    assert rows(source.where(left("a") > 1).select().group(n=count())) == [{"n.count": 2}]
