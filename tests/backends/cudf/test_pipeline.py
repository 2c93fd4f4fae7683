"""The device pipeline: its arithmetic, its expressions, and what it does when memory is short."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from gpujoin import join_tables
from gpujoin.config import Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.pipeline import run, supports
from gpujoin.errors import DecodeError, DeviceLostError, DeviceMemoryError, ExpressionEvaluationError, ScanError
from gpujoin.functions import FAMILIES, quotients, words
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.spec import Evaluator, FunctionSpec
from gpujoin.functions.support import can_carry, is_device_supported, is_supported
from gpujoin.functions.words import Words
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.backend import BackendName
from gpujoin.model.expressions import (
    Call,
    Case,
    Cast,
    ColumnRef,
    EvalMode,
    Expression,
    Function,
    Literal,
    call,
    coalesce,
    left,
    lit,
    right,
    when,
)
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.pipeline import PipelineMetrics, Rung
from gpujoin.model.relations import ExchangeSource, Join, Output, Project
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve, resolve_value
from gpujoin.testing import Zeros, assert_same_rows
from tests.backends.cudf.host import HostBackend
from tests.backends.cudf.pipeline import HostColumns, ShortBackend, host_pipeline
from tests.engine.pipeline.test_lowering import DATA, SMALL, bits
from tests.expressions.values import VALUES
from tests.functions.calls import calls
from tests.functions.constants import calls_over_columns, with_constants
from tests.oracle.aggregates import aggregated, assert_same_groups, merged
from tests.trees import Aggregate, Tree, average, count, file_slice, total

WIDE = Context(prec=80)
EDGES = [
    0, 1, -1, 2, 10, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 10**18, -(10**19),
    10**37, 10**38 - 1, 1 - 10**38, 2**126, 2**127 - 1, -(2**127), 1 - 2**127,
]  # fmt: skip


def pairs(values: list[int]) -> Words:
    return Words(np.array([v >> 64 for v in values], np.int64), np.array([v & (2**64 - 1) for v in values], np.uint64))


def integers(value: Words) -> list[int]:
    return [(int(h) << 64) + int(low) for h, low in zip(value.high, value.low, strict=True)]


def wrapped(value: int) -> int:
    return (value + 2**127) % 2**128 - 2**127


def test_words_are_integers_of_128_bits(rng: np.random.Generator, seed: int) -> None:
    drawn = [int.from_bytes(rng.bytes(16), "little", signed=True) >> int(rng.integers(0, 128)) for _ in range(60)]
    values = EDGES + drawn
    lefts, rights = [v for v in values for _ in values], [v for _ in values for v in values]
    a, b = pairs(lefts), pairs(rights)
    assert integers(words.add(a, b)) == [wrapped(x + y) for x, y in zip(lefts, rights, strict=True)]
    assert integers(words.subtract(a, b)) == [wrapped(x - y) for x, y in zip(lefts, rights, strict=True)]
    assert list(words.sum_overflows(a, b, words.add(a, b))) == [
        wrapped(x + y) != x + y for x, y in zip(lefts, rights, strict=True)
    ]
    assert list(words.less(a, b)) == [x < y for x, y in zip(lefts, rights, strict=True)]
    product, over = words.multiply(np, a, b)
    expected = [x * y for x, y in zip(lefts, rights, strict=True)]
    assert list(over) == [abs(x) >= 2**127 for x in expected], seed
    assert [p for p, o in zip(integers(product), over, strict=True) if not o] == [
        x for x in expected if abs(x) < 2**127
    ]
    for digits in (1, 9, 18, 19, 38):
        assert list(words.outside(np, pairs(values), digits)) == [abs(v) >= 10**digits for v in values]
    result, lost = words.of_limbs(words.carried(words.limbs(pairs(values))))
    assert integers(result) == values
    assert not lost.any()


@pytest.mark.parametrize("places", [0, 1, 6, 13, 14, 15, 29, 38, 76, -1, -9, -38])
def test_quotients_of_128_bits_are_rounded_half_up(places: int, rng: np.random.Generator, seed: int) -> None:
    """Of numbers drawn by size, of multiples of the divisor and their neighbours, and of ties."""
    most = 10**38 - 1
    drawn = [int.from_bytes(rng.bytes(16), "little") >> int(rng.integers(2, 127)) for _ in range(80)]
    numbers = [number for number in (*EDGES, *drawn) if 0 <= number <= most]
    divisors = [number for number in numbers if number][::3]
    dividends = [number for number in numbers for _ in divisors] + [
        multiple for n, d in enumerate(divisors) for multiple in (d * (n + 1), d * (n + 1) - 1, d // 2, 3 * d // 2)
        if multiple <= most
    ]  # fmt: skip
    by = [divisors[at % len(divisors)] for at in range(len(dividends))]
    quotients_, over = quotients.rounded(np, pairs(dividends), pairs(by), 38, places)
    up, down = 10 ** max(places, 0), 10 ** max(-places, 0)
    for dividend, divisor, quotient, lost in zip(dividends, by, integers(quotients_), over, strict=True):
        exact = (2 * dividend * up + divisor * down) // (2 * divisor * down)
        assert lost == (exact >= 2**127) or exact >= 10**38, (seed, dividend, divisor)
        assert lost or quotient == exact, (seed, dividend, divisor)


@pytest.mark.parametrize("places", [1, 2, 6, 14, 30, 32, 38])
def test_products_of_254_bits_are_rounded_half_up(places: int, rng: np.random.Generator, seed: int) -> None:
    """Factors are drawn by size, or give a product that is a half of the last place, or next to it."""
    most = 10**38 - 1
    drawn = [int.from_bytes(rng.bytes(16), "little") >> int(rng.integers(2, 127)) for _ in range(60)]
    numbers = [number for number in (*EDGES, *drawn) if 0 <= number <= most]
    lefts, rights = [n for n in numbers for _ in numbers], numbers * len(numbers)
    half = 10**places // 2
    for factor in (1, 2, 5, 125):
        lefts += [max(0, half // factor + step) for step in (-1, 0, 1)]
        rights += [factor] * 3
    sizes, over = quotients.product_without_places(np, pairs(lefts), pairs(rights), places)
    for left_size, right_size, size, lost in zip(lefts, rights, integers(sizes), over, strict=True):
        exact = (left_size * right_size + half) // 10**places
        assert lost == (exact >= 2**127) or exact >= 10**38, (seed, left_size, right_size)
        assert lost or size == exact, (seed, left_size, right_size)


def d(name: str) -> Expression:
    return left(f"a_{name}")


COMPUTED: list[Expression] = [
    left("a_d9_2") * (1 - left("b_d9_2")),
    left("a_d9_2") * (1 - left("b_d9_2")) * (1 + left("a_d9_2")),
    left("a_d18_6") * left("b_d18_6"),
    left("a_d18_6") + left("b_d9_2"),
    left("a_d9_2") - left("b_d18_6"),
    left("a_d9_2") + left("b_i32"),
    left("a_i64") * left("b_d9_2"),
    left("a_d9_2").cast(pa.decimal128(38, 10)),
    left("a_i64").cast(pa.decimal128(38, 4)),
    left("a_i8").cast(pa.decimal128(5, 1)),
    left("a_d9_2") / left("b_d9_2"),
    left("a_d9_2") / left("b_d18_6"),
    left("a_d18_6") / left("b_d9_2"),
    left("a_d18_6") / left("b_i64"),
    left("a_i32") / left("b_d9_2"),
    left("a_d38_18") / left("b_d9_2"),
    left("a_d9_2") / left("b_d38_18"),
    left("a_d38_18") / left("b_d38_18"),
    left("a_d38_18") / left("b_i64"),
    left("a_d9_2") / 7,
    100 * left("a_d18_6") / left("b_d18_6"),
    left("a_d18_6") * left("b_d38_18").cast(pa.decimal128(20, 10)),
    left("a_d18_6") * left("b_d18_6") * left("a_d9_2"),
    left("a_d38_18").cast(pa.decimal128(20, 4)) * left("b_d18_6"),
    left("a_d38_18") * left("b_d38_18"),
    left("a_d38_18") * left("b_d38_18").cast(pa.decimal128(38, 6)),
    left("a_d38_18").cast(pa.decimal128(38, 30)) * left("b_i64"),
    left("a_d38_18").cast(pa.decimal128(20, 4)),
    left("a_d38_18").cast(pa.decimal128(38, 2)),
    left("a_d38_18").cast(pa.decimal128(9, 0)),
    left("a_d38_18").cast(pa.decimal128(38, 30)),
    left("a_d18_6").cast(pa.decimal128(18, 2)),
    left("a_d18_6").cast(pa.decimal128(4, 1)),
    left("a_d9_2").cast(pa.decimal128(8, 0)),
    left("a_i64").cast(pa.decimal128(10, 2)),
    left("a_i32").cast(pa.decimal128(38, 34)),
    when(left("b_d9_2") != 0, left("a_d9_2") / left("b_d9_2")).else_(None),
    left("a_f64").cast(pa.decimal128(11, 6)),
    left("a_f64").cast(pa.decimal128(14, 0)),
    call(Function.ABS, left("a_d18_6") - left("b_d9_2")),
    call(Function.NEGATE, left("a_d38_18").cast(pa.decimal128(30, 4))),
    left("a_d9_2").cast(pa.float64()),
    left("a_d18_6").cast(pa.float64()),
    left("a_d38_18").cast(pa.float64()),
    left("a_d38_18") + left("b_d38_18").cast(pa.decimal128(38, 2)),
    left("a_d38_18").cast(pa.decimal128(38, 2)) - left("b_d38_18"),
    left("a_d38_18") - left("b_i64"),
    left("a_d38_18") + left("b_d18_6"),
    left("a_d38_18").cast(pa.decimal128(38, 0)) - left("b_d38_18").cast(pa.decimal128(38, 6)),
    *(
        call(f, left(name), digits)
        for f in (Function.ROUND, Function.ROUND_EVEN)
        for name, digits in (
            ("a_i8", -1),
            ("a_i8", -2),
            ("a_i32", -9),
            ("a_i64", -1),
            ("a_i64", -18),
            ("a_i64", 3),
            ("a_f64", 0),
            ("a_f64", 3),
            ("a_d9_2", 1),
            ("a_d9_2", 5),
            ("a_d9_2", -1),
            ("a_d9_2", -9),
            ("a_d38_18", 17),
            ("a_d38_18", 0),
            ("a_d38_18", -20),
        )
    ),
    *(
        call(f, left(f"a_{name}"), left("b_i32"))
        for name in ("i32", "i64")
        for f in (Function.SHIFT_LEFT, Function.SHIFT_RIGHT, Function.SHIFT_RIGHT_UNSIGNED)
    ),
    when(left("a_i32") > 0, left("a_str")).when(left("b_bool"), left("b_str")).else_("other"),
    when(left("a_bool"), "yes").else_("no"),
    when(left("a_bool"), left("a_str")).else_(None),
    coalesce(left("a_str"), left("b_str")),
    coalesce(left("a_str"), lit("none")),
    left("a_i32") + left("b_i32") * 2,
    left("a_i32").cast(pa.int64()) * left("b_i64"),
    left("a_f64") / left("b_f64"),
    when(left("a_i32") > 0, left("a_d9_2")).else_(left("b_d9_2")),
    coalesce(left("a_d38_18"), left("b_d38_18")),
    left("a_d38_18") < left("b_d38_18"),
    left("a_d9_2") * 2 > left("b_d18_6"),
    call(Function.YEAR, left("a_date")),
    left("a_str").like("%a%"),
    left("a_str"),
    left("a_ts"),
    lit(None).cast(pa.int32()),
    lit("x"),
    lit(Decimal("1.50")),
]


@pytest.mark.parametrize("scale", [0, 2, 6, 14])
def test_doubles_become_the_decimals_that_are_printed_of_them(scale: int, rng: np.random.Generator) -> None:
    """Halves of the last place, the doubles next to them, averages of cents, and numbers that do not fit."""
    top = 10 ** (14 - scale)
    halves = [(2 * int(rng.integers(0, 10**13)) + 1) / (2 * 10**scale) for _ in range(400)]
    halves += [(2 * n + 1) / (2 * 10**scale) for n in range(100)]
    near = [math.nextafter(half, to) for half in halves for to in (-math.inf, math.inf)]
    averages = [int(rng.integers(0, 10**9)) / int(rng.integers(1, 1000)) / 100.0 for _ in range(400)]
    edges = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7e308, top - 0.5, float(top), top * 1.5, 2.675, 1.005]
    drawn = [*halves, *near, *averages, *edges]
    batch = pa.record_batch({"x": pa.array([*drawn, *(-x for x in drawn), None], pa.float64())})
    for mode in (EvalMode.LEGACY, EvalMode.ANSI):
        target = pa.decimal128(14, scale)
        fits = batch if mode is EvalMode.LEGACY else batch.filter(pc.less(pc.abs(batch.column(0)), top / 2.0))
        assert_computed(resolve_value(left("x").cast(target), batch.schema, batch.schema, mode=mode), fits)


@pytest.mark.parametrize("function", [Function.ROUND, Function.ROUND_EVEN], ids=lambda f: f.value)
@pytest.mark.parametrize("scale", [0, 2, 7, 15])
def test_doubles_are_rounded_as_on_the_cpu(scale: int, function: Function, rng: np.random.Generator) -> None:
    """Halves of up to 15 digits, the doubles next to them, and special values."""
    digits = min(13, 15 - scale)
    halves = [(2 * int(rng.integers(0, 10**digits)) + 1) / (2 * 10**scale) for _ in range(300)]
    near = [math.nextafter(half, to) for half in halves for to in (-math.inf, math.inf)]
    edges = [0.0, math.nan, math.inf, 5e-324, 1.7e308, 2.0**52, 2.0**53 + 2, 2.675, 1.005, 0.5, 1.5, 2.5]
    drawn = [x for x in [*halves, *near, *edges] if x * 10.0**scale < 2.0**51 or x >= 2.0**52 or x != x]
    batch = pa.record_batch({"x": pa.array([*drawn, *(-x for x in drawn), None], pa.float64())})
    assert_computed(resolve_value(call(function, left("x"), scale), batch.schema, batch.schema), batch)


WHOLE = [pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()]
EDGES_OF_FLOATS = [
    *(sign * 2.0**bits + step for bits in (7, 15, 31, 32) for sign in (1, -1) for step in (-1.0, -0.5, 0.0, 0.5)),
    2.0**63, -(2.0**63), 1e30, -1e30, 0.4, -0.6, 5e-324, 1e-45,
]  # fmt: skip


@pytest.mark.parametrize("target", [*WHOLE, pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("kind", ["bool", "i8", "i16", "i32", "i64", "f32", "f64", "d9_2", "d18_6", "d38_18"])
def test_numbers_become_integers_and_booleans(kind: str, target: pa.DataType) -> None:
    """Wrapping, as null, or as an error; without error where all fit."""
    dtype, special = VALUES[kind]
    if kind in ("f32", "f64"):
        special = [*special, *EDGES_OF_FLOATS]
    column = pa.array(special, dtype)
    whole = resolve_value(left("x").cast(target), pa.schema([("x", dtype)]), pa.schema([]), mode=EvalMode.TRY)
    if not is_device_supported(whole):
        assert target not in WHOLE
        return
    batch = pa.record_batch({"x": column})
    for mode in EvalMode:
        assert_computed(resolve_value(left("x").cast(target), batch.schema, batch.schema, mode=mode), batch)
    fitting = batch.filter(pc.is_valid(evaluate_column(whole, batch, batch, len(column))))
    assert_computed(resolve_value(left("x").cast(target), batch.schema, batch.schema), fitting)


@pytest.mark.parametrize("places", [1, 2, 9, 17, 18])
def test_sums_of_decimals_are_rounded_once(places: int, rng: np.random.Generator) -> None:
    """Parts after the last place that are a half together, that carry, and that cancel out; sums that just fit."""
    whole = pa.decimal128(38, 18 - places)
    fine = pa.decimal128(38, 18)
    half = 10**places // 2
    rests = [0, 1, half - 1, half, half + 1, 10**places - 1]
    fronts = [0, 1, 2, 10 ** (20 - places), *map(int, rng.integers(0, 10**9, 6))]
    unscaled = [sign * (front * 10**places + rest) for front in fronts for rest in rests for sign in (1, -1)]
    pairs_of = [(a, b) for a in unscaled for b in unscaled[:: 1 + len(unscaled) // 12]]
    edges = [10**38 - 1, 10**38 - half, 10**37 * 5, 1 - 10**38]
    pairs_of += [(a, b) for a in edges for b in (*edges, 1, -1, half)]
    columns = [pa.array([Decimal(n).scaleb(-18, WIDE) for n in side], fine) for side in zip(*pairs_of, strict=True)]
    batch = pa.record_batch(columns, names=["a", "b"])
    for function in (Function.ADD, Function.SUBTRACT):
        node = resolve_value(call(function, left("a"), left("b")), batch.schema, batch.schema)
        assert_computed(replace(node, type=whole), batch)


def test_decimals_become_the_nearest_doubles(rng: np.random.Generator) -> None:
    """Halves between two doubles and their neighbours, at every scale, against Python's division of integers."""
    for places in range(39):
        sizes = [
            0,
            1,
            10**38 - 1,
            2**53,
            2**53 + 1,
            2**54 + 2,
            2**54 + 6,
            2**126,
            *(int(n) for n in rng.integers(0, 2**62, 50)),
        ]
        for mantissa in map(int, rng.integers(2**52, 2**53, 100)):
            half = Fraction(2 * mantissa + 1) * Fraction(2) ** int(rng.integers(-70, 60)) * 10**places
            sizes += [n for n in range(int(half) - 1, int(half) + 2) if 0 <= n < 10**38]
        got = quotients.nearest_double(np, pairs(sizes), places).tolist()
        assert got == [size / 10**places for size in sizes]


@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI])
@pytest.mark.parametrize("result", [pa.decimal128(16, 6), pa.decimal128(38, 22), pa.decimal128(20, 0)], ids=str)
@pytest.mark.parametrize("data", DATA)
def test_averages_of_decimals_end_as_on_the_cpu(data: str, result: pa.DataType, mode: EvalMode) -> None:
    """A total by a count of 20 digits, in the type of the average; none of no value."""
    batch = DATA[data]
    sides = batch.schema, batch.schema
    total_, count_ = (resolve_value(left(name), *sides) for name in ("a_d38_18", "b_i64"))
    none = resolve_value(left("b_i64") == 0, *sides)
    by = Cast(child=count_, to=pa.decimal128(20, 0), mode=EvalMode.LEGACY, type=pa.decimal128(20, 0))
    quotient = Call(function=Function.DIVIDE, arguments=(total_, by), mode=mode, type=result)
    nothing = Literal(value=None, type=result)
    assert_computed(Case(conditions=(none,), values=(nothing,), otherwise=quotient, type=result), batch)


@pytest.mark.parametrize("how", ["inner", "full", "left_anti"])
@pytest.mark.parametrize(
    "condition",
    [left("d") / right("d") > left("w"), left("d").cast(pa.decimal128(4, 0)) == right("d").cast(pa.decimal128(4, 0))],
    ids=str,
)
def test_conditions_over_decimals_of_rows_on_the_host(
    condition: Expression, how: str, rng: np.random.Generator, seed: int
) -> None:
    """Their decimals have two words on the device, whatever their digits."""

    class Counting(HostBackend):
        tested = 0

        def evaluate(self, condition: Expression, left: pa.Table, right: pa.Table, length: int) -> Any:
            self.tested += length
            return super().evaluate(condition, left, right, length)

    def side(rows: int) -> pa.Table:
        cents = [None if row % 7 == 0 else Decimal(int(rng.integers(-999, 999))) / 100 for row in range(rows)]
        wide = [Decimal(int(number)) for number in rng.integers(-(10**9), 10**9, rows)]
        return pa.table({
            "k": rng.integers(0, 9, rows), "d": pa.array(cents, pa.decimal128(9, 2)),
            "w": pa.array(wide, pa.decimal128(38, 4)),
        })  # fmt: skip

    a, b, backend = side(60), side(50), Counting()
    result = join_tables(a, b, on="k", how=JoinType.parse(how), condition=condition, backend=backend)
    wanted = join_tables(a, b, on="k", how=JoinType.parse(how), condition=condition, backend="cpu")
    assert_same_rows(result, wanted, allow_empty=True, context=f"seed {seed}")
    assert backend.tested > 0


OFFERED = [spec for family in FAMILIES.values() for spec in family if not spec.missing(Evaluator.CUDF)]
KINDS = {kind: dtype for kind, (dtype, _) in SMALL.items()}


def assert_computed(resolved: Expression, batch: pa.RecordBatch, *, on_device: bool | None = True) -> None:
    """The device computes an expression, with the CPU's values, or raises where the CPU does.

    Not ``on_device``: it looks at the values, and leaves them to the CPU; ``None``: it may.
    """
    assert is_device_supported(resolved)
    assert resolved.type is not None
    assert can_carry(resolved.type)
    project = Project(ExchangeSource(0, batch.schema), (Output("c", resolved),))
    assert supports(project, BackendName.GPU) == ()
    metrics = PipelineMetrics()

    def computed() -> pa.Table:
        batches = run(project, {0: [batch]}, metrics=metrics, device=host_pipeline())
        return pa.Table.from_batches(batches, project.schema)

    empty = pa.RecordBatch.from_arrays([], names=[])
    try:
        expected = evaluate_column(resolved, batch, empty, batch.num_rows)
    except ExpressionEvaluationError:
        with pytest.raises(ExpressionEvaluationError):
            computed()
        return
    assert bits(computed().column(0).combine_chunks()) == bits(expected), str(resolved)
    if on_device is not None:
        assert (metrics.device_steps, metrics.host_steps) == ((1, 0) if on_device else (0, 1))


@pytest.mark.few
@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("expression", COMPUTED, ids=str)
def test_expressions_are_those_of_the_cpu(expression: Expression, data: str, mode: EvalMode) -> None:
    batch = DATA[data]
    assert_computed(resolve_value(expression, batch.schema, batch.schema, mode=mode), batch)


@pytest.mark.few
@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI])
@pytest.mark.parametrize("spec", OFFERED, ids=lambda spec: spec.function.name)
def test_every_function_is_that_of_the_cpu(spec: FunctionSpec, mode: EvalMode) -> None:
    trees = calls(spec, KINDS, lambda kind, position: left(f"{'b' if position else 'a'}_{kind}"))
    for tree in trees:
        for batch in DATA.values():
            resolved = resolve_value(tree, batch.schema, batch.schema, mode=mode)
            if is_device_supported(resolved):
                of_ascii = spec.function in (Function.LOWER, Function.UPPER)
                texts = (text for text in batch.column("a_str").to_pylist() if text is not None)
                assert_computed(resolved, batch, on_device=not of_ascii or all(map(str.isascii, texts)))


@pytest.mark.extra
@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI])
@pytest.mark.parametrize("spec", OFFERED, ids=lambda spec: spec.function.name)
def test_constants_beside_columns_are_those_of_the_cpu(spec: FunctionSpec, mode: EvalMode) -> None:
    batch = DATA["small"].slice(0, 40)

    def resolved(tree: Expression) -> Expression:
        return resolve_value(tree, batch.schema, batch.schema, mode=mode)

    def value(column: ColumnRef) -> tuple[object, pa.DataType]:
        return batch.column(column.name)[33].as_py(), batch.schema.field(column.name).type

    trees = calls_over_columns(spec, KINDS, lambda kind, place: left(f"{'b' if place else 'a'}_{kind}"), resolved)
    for made in (made for tree in trees for made in with_constants(tree, value)):
        if is_supported(resolved(made)) and is_device_supported(resolved(made)):
            assert_computed(resolved(made), batch, on_device=None)


SPECIAL: list[Expression] = [
    *(
        call(f, left(f"a_{kind}"), left(f"b_{kind}"), *more)
        for f in (Function.GREATEST, Function.LEAST)
        for kind in ("i8", "i64", "f32", "f64", "d9_2", "d38_18", "str", "date", "bool")
        for more in ((), (left(f"a_{kind}"), left(f"b_{kind}")))
    ),
    call(Function.GREATEST, left("a_str"), lit("b")),
    call(Function.LEAST, lit(3), left("a_i32")),
    *(call(Function.PMOD, left(f"a_{kind}"), left(f"b_{kind}")) for kind in ("i8", "i32", "i64", "f64")),
    left("a_f64") % left("b_f64"),
    *(call(Function.TRUNC, left("a_date"), unit) for unit in ("year", "quarter", "MON", "week")),
    *(
        call(Function.DATE_TRUNC, unit, left("a_moment"))
        for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")
    ),
    *(call(Function.NEXT_DAY, left("a_date"), day) for day in ("mon", "SU")),
    *(call(Function.ADD_MONTHS, left("a_date"), months) for months in (-13, 1, 25)),
    call(Function.ADD_MONTHS, left("a_date"), left("b_i8").cast(pa.int32())),
]  # fmt: skip


def special_columns(rng: np.random.Generator) -> pa.RecordBatch:
    """Special values of each kind in two columns, in any order, and moments from before Christ on."""
    columns = {}
    for kind in ("i8", "i32", "i64", "f32", "f64", "d9_2", "d38_18", "str", "date", "bool"):
        dtype, pool = VALUES[kind]
        for side in "ab":
            columns[f"{side}_{kind}"] = pa.array([pool[i] for i in rng.integers(0, len(pool), 150)], dtype)
    near = [None if day is None else day % 10**6 - 5 * 10**5 for day in columns["a_date"].cast(pa.int32()).to_pylist()]
    columns["a_date"] = pa.array(near, pa.int32()).cast(pa.date32())
    micros = rng.integers(-(10**17), 10**17, 150)
    columns["a_moment"] = pa.array(micros, mask=rng.random(150) < 0.1).cast(pa.timestamp("us", "UTC"))
    return pa.record_batch(columns)


@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI])
@pytest.mark.parametrize("expression", SPECIAL, ids=str)
def test_expressions_of_special_values(expression: Expression, mode: EvalMode, rng: np.random.Generator) -> None:
    batch = special_columns(rng)
    assert_computed(resolve_value(expression, batch.schema, batch.schema, mode=mode), batch)


def test_what_a_device_does_not_compute_is_computed_on_the_host() -> None:
    table = pa.table({"s": ["b", "ab", None], "i": [1, 2, 3]})
    tree = Tree.source(table.schema)
    cut = tree.select("i", u=call(Function.REVERSE, left("s"))).where(left("i") > 1)
    reasons = supports(cut.relation, BackendName.GPU)
    assert len(reasons) == 1, reasons
    assert "reverse" in str(reasons[0])
    assert supports(cut.relation) == ()
    metrics = PipelineMetrics()
    result = pa.Table.from_batches(run(cut.relation, {0: table}, metrics=metrics, device=host_pipeline()), cut.schema)
    assert sorted(result.to_pylist(), key=str) == [{"i": 2, "u": "ba"}, {"i": 3, "u": None}]
    assert (metrics.device_steps, metrics.host_steps) == (1, 1)


# -- memory ------------------------------------------------------------------------------------------------------


def sides(rng: np.random.Generator) -> tuple[pa.Table, pa.Table]:
    left_table = {"k": rng.integers(0, 3000, 4000), "v": rng.integers(0, 9, 4000)}
    right_table = {"k": rng.integers(0, 3000, 3000), "w": [str(i) for i in range(3000)]}
    return pa.table(left_table), pa.table(right_table)


JOINS = [JoinType.INNER, JoinType.LEFT, JoinType.RIGHT, JoinType.FULL, JoinType.LEFT_ANTI, JoinType.EXISTENCE]


@pytest.mark.parametrize("floor", [100, 1100])
@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("how", JOINS, ids=lambda v: v.value)
def test_a_join_that_does_not_fit_is_halved_then_finished_on_the_host(
    how: JoinType, side: Side, floor: int, rng: np.random.Generator, seed: int
) -> None:
    left_table, right_table = sides(rng)
    condition = resolve(left("v") != 3, left_table.schema, right_table.schema) if how is JoinType.FULL else None
    rights = () if how.left_rows_only else (0, 1)
    spec = JoinSpec(how, (KeyPair(0, 0),), condition=condition, left_output=(0, 1), right_output=rights)
    node = Join(ExchangeSource(0, left_table.schema), ExchangeSource(1, right_table.schema), spec, side)
    metrics, joins = PipelineMetrics(), JoinMetrics()
    device = host_pipeline(ShortBackend((), floor))
    out = run(node, {0: left_table, 1: right_table}, metrics=metrics, join_metrics=joins, device=device)
    result = pa.Table.from_batches(out, node.schema)
    expected = pa.Table.from_batches(run(node, {0: left_table, 1: right_table}), node.schema)
    assert_same_rows(result, expected, zeros=Zeros.SAME, context=f"seed {seed}")
    assert metrics.device_joins > 0
    assert metrics.cpu_runs == 0
    if how not in (JoinType.EXISTENCE, JoinType.LEFT_ANTI):  # which gather few rows, or none
        assert joins.retries > 0
        assert joins.fallbacks > 0 or floor > 1024


@pytest.mark.parametrize("fail", range(1, 9))
def test_a_pipeline_whose_memory_fails_at_any_point_gives_the_same(
    fail: int, rng: np.random.Generator, seed: int
) -> None:
    left_table, right_table = sides(rng)
    joined = Tree.source(left_table.schema).where(left("v") > 2).join(Tree.source(right_table.schema, 1), {"k": "k"})
    tree = joined.where(left("w").like("%1%")).select("v", "w", x=left("v") * 2)
    node = tree.group("w", s=total(left("x")), n=count(), a=average(left("v")))
    inputs = {0: left_table.to_batches(max_chunksize=900), 1: right_table.to_batches(max_chunksize=900)}
    metrics = PipelineMetrics()
    device = host_pipeline(ShortBackend((fail,)))
    partial = pa.Table.from_batches(
        run(node.relation, inputs, metrics=metrics, device=device, piece_bytes=1), node.schema
    )
    plain = pa.Table.from_batches(run(tree.relation, inputs), tree.schema)
    over: Any = Tree.source(tree.schema).group("w", s=total(left("x")), n=count(), a=average(left("v")))
    assert_same_groups(merged(over.relation, partial), aggregated(over.relation, plain), f"seed {seed}")
    assert metrics.device_steps > 0


def test_a_pipeline_that_cannot_be_continued_starts_again_on_the_cpu() -> None:
    """One group cannot be aggregated in two places."""
    table = pa.table({"i": list(range(5000))})
    tree = Tree.source(table.schema).where(left("i") >= 0).group(s=total(left("i")))

    class Full(ShortBackend):
        def from_arrow(self, table: pa.Table) -> pa.Table:
            raise DeviceMemoryError("full on purpose")

    metrics = PipelineMetrics()
    device = host_pipeline(Full(()))
    (batch,) = run(tree.relation, {0: table}, metrics=metrics, device=device)
    assert batch.to_pylist() == [{"s.sum": sum(range(5000))}]
    assert metrics.cpu_runs == 1
    assert list(metrics.recovered) == [
        "on the CPU: the GPU's memory ran out, and what had been begun there was begun again"
    ]
    (batch,) = run(tree.relation, {0: iter(table.to_batches())}, device=device)
    assert batch.to_pylist() == [{"s.sum": sum(range(5000))}]
    unkept = Options(memory_budget=8)
    with pytest.raises(DeviceMemoryError):
        list(run(tree.relation, {0: iter(table.to_batches())}, options=unkept, device=device))


@pytest.mark.parametrize("after", [0, 1], ids=["before the upload", "before the download"])
def test_a_pipeline_that_loses_its_device_goes_on_on_the_cpu(after: int) -> None:
    """Piece by piece, or from the beginning where groups were held there; the metrics say why."""
    table = pa.table({"k": [i % 7 for i in range(5000)], "i": list(range(5000))})
    tree = Tree.source(table.schema).where(left("i") >= 0).group("k", s=total(left("i")))

    class Lost(ShortBackend):
        def from_arrow(self, table: pa.Table) -> pa.Table:
            self._used()
            return super().from_arrow(table)

        def to_arrow(self, frame: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
            self._used()
            return super().to_arrow(frame, schema)

        def _used(self) -> None:
            self.calls += 1
            if self.calls > after:
                raise DeviceLostError("this process has lost GPU 0")

    metrics, backend = PipelineMetrics(), Lost(())
    out = run(tree.relation, {0: table}, metrics=metrics, device=host_pipeline(backend), piece_bytes=20_000)
    result, expected = (pa.Table.from_batches(rows, tree.schema) for rows in (out, run(tree.relation, {0: table})))
    assert_same_rows(result, expected)
    assert list(metrics.recovered) == ["on the CPU: this process has lost GPU 0"]
    assert backend.calls > after


@pytest.mark.parametrize("corrupt", [False, True], ids=["not decoded by libcudf", "corrupt"])
def test_pages_that_the_device_does_not_decode_are_read_on_the_cpu(
    corrupt: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are corrupt, the last that reads them says so."""
    path = tmp_path / "items.parquet"
    pq.write_table(pa.table({"i": list(range(5000))}), path, compression="none", use_dictionary=False)
    slices = {0: [file_slice(path)]}
    tree = Tree.scan(path).group(s=total(left("i")))
    if corrupt:
        data = bytearray(path.read_bytes())
        data[6:2000] = b"\xff" * 1994  # the header of a page, but for its type
        path.write_bytes(data)
        slices = {0: [file_slice(path)]}
    else:

        def unread(*_: Any) -> Any:
            raise DecodeError("libcudf does not read row groups 0 to 0")

        monkeypatch.setattr(HostColumns, "read", unread)
    metrics = PipelineMetrics()
    out = run(tree.relation, slices=slices, metrics=metrics, device=host_pipeline())
    if corrupt:
        with pytest.raises(ScanError, match=r"items\.parquet"):
            list(out)
    else:
        (batch,) = out
        assert batch.to_pylist() == [{"s.sum": sum(range(5000))}]
    told = f"computed again {Rung.ARROW_SCANS.value}, after DecodeError {Rung.DEVICE.value}"
    assert told in metrics.recovered


def test_pieces_with_text_that_is_no_utf8_are_computed_on_the_host() -> None:
    """The library reads the characters of such text in its own way; other pieces stay on the device."""
    texts = [b"ab"] * 3000 + [b"\xe2ab", b"x"] + [b"ba"] * 3000
    table = pa.table({"s": pa.array(texts, pa.binary()).view(pa.string()), "i": list(range(len(texts)))})
    tree = Tree.source(table.schema).where(left("s").like("%ab%")).select("i")
    metrics = PipelineMetrics()
    batches = [table.slice(at, 1000).combine_chunks().to_batches()[0] for at in range(0, table.num_rows, 1000)]
    out = run(tree.relation, {0: batches}, metrics=metrics, device=host_pipeline(), piece_bytes=8_000)
    assert sorted(pa.Table.from_batches(out).column(0).to_pylist()) == list(range(3001))
    assert metrics.recovered == {}
    assert metrics.host_steps == 1, "one piece was filtered there"
    assert metrics.device_steps > 4


UNSURE = {
    "upper": (pa.array(["a", "straße", None]), call(Function.UPPER, left("x"))),
    "round": (pa.array([2.5, 0.5 + 2.0**51, None]), call(Function.ROUND, left("x"), 0)),
}
"""Values of which one is computed by the CPU, and an expression over them."""


@pytest.mark.parametrize("name", UNSURE)
@pytest.mark.parametrize("keyed", [True, False], ids=["groups", "one group"])
def test_values_that_a_device_is_not_sure_of_are_aggregated_on_the_host(name: str, keyed: bool) -> None:
    values, expression = UNSURE[name]
    table = pa.table({"k": [1, 2, 1], "x": values})
    tree = Tree.source(table.schema).group(
        *(["k"] if keyed else []), x=Aggregate(AggregateFunction.MAX, (expression,)), n=count()
    )
    metrics = PipelineMetrics()
    batches = [table.slice(at, 1).combine_chunks().to_batches()[0] for at in range(3)]
    out = list(run(tree.relation, {0: batches}, metrics=metrics, device=host_pipeline(), piece_bytes=1))
    expected = list(run(tree.relation, {0: batches}))
    assert_same_rows(pa.Table.from_batches(out), pa.Table.from_batches(expected))
    assert metrics.cpu_runs == (0 if keyed else 1), "a single group begins again on the CPU"
    assert metrics.device_retries == 0


@pytest.mark.parametrize("how", ["inner", "full", "left_semi", "left_anti"])
@pytest.mark.parametrize("name", UNSURE)
def test_pairs_that_a_device_is_not_sure_of_are_tested_on_the_host(name: str, how: str) -> None:
    values, expression = UNSURE[name]
    a, b = pa.table({"k": [1, 2, 1], "x": values}), pa.table({"k": [1, 1, 2, 2], "y": values.take([0, 1, 1, 2])})
    condition = expression == (right("y") if name == "round" else call(Function.UPPER, right("y")))
    backend, metrics = HostBackend(), JoinMetrics()
    kind = JoinType.parse(how)
    result = join_tables(a, b, on="k", how=kind, condition=condition, backend=backend, metrics=metrics)
    wanted = join_tables(a, b, on="k", how=kind, condition=condition, backend="cpu")
    assert_same_rows(result, wanted, allow_empty=True)
    assert metrics.fallbacks == 0
    assert metrics.candidate_pairs > 0


def test_asking_for_a_gpu_where_there_is_none_says_so() -> None:
    from gpujoin.backends.registry import unavailable
    from gpujoin.errors import BackendUnavailableError

    if unavailable(BackendName.GPU) is None:
        pytest.skip("there is a GPU here")
    table = pa.table({"i": [1]})
    tree = Tree.source(table.schema).where(left("i") > 0)
    with pytest.raises(BackendUnavailableError):
        list(run(tree.relation, {0: table}, options=Options(backend="gpu")))  # type: ignore[arg-type]
