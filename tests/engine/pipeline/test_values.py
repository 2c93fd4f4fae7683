"""Values that are easily got wrong, in columns of many rows: zeros of both signs, NaN, numbers that overflow."""

from __future__ import annotations

import itertools
import math
import struct
from decimal import Context, Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.engine.pipeline import run
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import EvalMode, Expression, Function, call, coalesce, left, lit, when
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import ExchangeSource, Output, PartialAggregate, Project, Relation, Scan
from gpujoin.plan.resolve import resolve_value
from gpujoin.testing import Cell, cells, float_bits
from tests.engine.pipeline.places import everywhere
from tests.engine.pipeline.places import run as run_here
from tests.oracle.aggregates import aggregated, assert_same_groups, merged
from tests.oracle.values import values
from tests.trees import Aggregate, Tree, count, file_slice, total

SPECIAL = {
    pa.float64(): [
        0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -5e-324, 1e-310, 2.2250738585072014e-308, 1.0, -1.0, 3.0,
        0.1, -7.25, 1e308, -1.7976931348623157e308, None,
    ],
    pa.float32(): [
        0.0, -0.0, math.nan, math.inf, -math.inf, 1.401298464324817e-45, -1.401298464324817e-45, 1.0, -1.0, 3.0, -7.25,
        3.4028234663852886e38, -3.4028234663852886e38, None,
    ],
}  # fmt: skip
ROWS = 2_000
_TOP = 0x7122334455667788


def float_table(dtype: pa.DataType, seed: int) -> pa.Table:
    """All pairs of special values, in an order of the seed, over and over."""
    values = SPECIAL[dtype]
    pairs = list(itertools.product(values, values))
    order = np.random.default_rng(seed).permutation(len(pairs))
    rows = [pairs[order[i % len(pairs)]] for i in range(ROWS)]
    return pa.table({
        "x": pa.array([a for a, _ in rows], dtype, from_pandas=False),
        "y": pa.array([b for _, b in rows], dtype, from_pandas=False),
        "g": pa.array([i % 7 for i in range(ROWS)], pa.int32()),
    })  # fmt: skip


def exact(cell: Cell) -> object:
    """A cell that tells the sign of zero, with one NaN."""
    if isinstance(cell, float):
        return "NaN" if math.isnan(cell) else float_bits(cell)
    return cell


def column_of(relation: Relation, table: pa.Table, metrics: PipelineMetrics | None = None) -> list[object]:
    batches = run(relation, {0: table}, metrics=metrics)
    return list(map(exact, cells(pa.Table.from_batches(batches, relation.schema).column("r"))))


def assert_as_interpreted(tree: Tree, table: pa.Table, expression: Expression) -> PipelineMetrics:
    resolved = tree.value(expression)
    source = pa.Table.from_batches(run(tree.relation, {0: table}), tree.schema)
    rows = list(zip(*map(cells, source.columns), strict=True))
    expected = list(map(exact, values(resolved, source)))
    metrics = PipelineMetrics()
    actual = column_of(tree.select(r=expression).relation, table, metrics)
    different = [(r, got, want) for r, got, want in zip(rows, actual, expected, strict=True) if got != want]
    assert not different, f"{resolved}: {different[:3]} of {len(different)}"
    return metrics


X, Y = left("x"), left("y")
BINARY = (
    Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.DIVIDE, Function.EQ, Function.NE, Function.LT,
    Function.LE, Function.GT, Function.GE, Function.EQ_NULL_SAFE,
)  # fmt: skip
UNARY = (
    Function.NEGATE,
    Function.ABS,
    Function.IS_NAN,
    Function.IS_NULL,
    Function.IS_NOT_NULL,
    Function.SQRT,
)


@pytest.mark.few
@pytest.mark.parametrize("dtype", SPECIAL, ids=str)
@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.value)
def test_float_operators(function: Function, dtype: pa.DataType, seed: int) -> None:
    """Expressions of two columns, of a column and each special constant, and of a column and such a constant column."""
    table = float_table(dtype, seed)
    tree = Tree.source(table.schema, mode=EvalMode.LEGACY)
    assert_as_interpreted(tree, table, call(function, X, Y))
    assert_as_interpreted(tree, table, call(function, X, X))
    few = table.slice(0, 400)
    for value in SPECIAL[dtype]:
        constant = lit(value, dtype)
        beside = tree.select("x", z=constant)
        for left_operand, right_operand in ((X, constant), (constant, X)):
            assert_as_interpreted(tree, few, call(function, left_operand, right_operand))
        for left_operand, right_operand in ((X, left("z")), (left("z"), X)):
            assert_as_interpreted(beside, few, call(function, left_operand, right_operand))


@pytest.mark.parametrize("dtype", SPECIAL, ids=str)
def test_float_functions_and_cases(dtype: pa.DataType, seed: int) -> None:
    table = float_table(dtype, seed)
    tree = Tree.source(table.schema, mode=EvalMode.LEGACY)
    zero, minus, unit = lit(0.0, dtype), lit(-0.0, dtype), lit(1.0, dtype)
    yes, no = lit(True), lit(False)
    expressions: list[Expression] = [call(f, X) for f in UNARY if f is not Function.SQRT or dtype == pa.float64()]
    expressions += [
        call(Function.NEGATE, -X), 0 - X, X + 0, X - 0, X * 1, X * -1, X / 1, X + zero * unit, X + lit(0).cast(dtype),
        X - -zero,
        (X + zero) - zero, zero + (zero + X), X + abs(minus), X - minus, X - (zero - zero), -(X * 1) + zero,
        X.is_in([zero, Y]), X.is_in([lit(math.nan, dtype), minus, unit]), X.cast(pa.float64()), X.cast(pa.float32()),
        coalesce(X, zero), coalesce(zero, X) + Y, coalesce(X, minus) + zero, X + coalesce(minus, Y),
        when(X == 0, minus).else_(zero), when(X == 0, zero).else_(X), X + when(yes, zero).else_(Y),
        X + when(no & (Y > 0), Y).else_(zero), X + when(yes | (Y > 0), zero).else_(Y),
        X + when(Y > 0, zero).else_(zero),
        X + when(Y.is_nan(), minus).else_(zero),
    ]  # fmt: skip
    for expression in expressions:
        assert_as_interpreted(tree, table, expression)


@pytest.mark.parametrize("dtype", SPECIAL, ids=str)
def test_only_constants_that_may_be_zero_are_left_to_the_evaluator(dtype: pa.DataType, seed: int) -> None:
    table = float_table(dtype, seed)
    tree = Tree.source(table.schema, mode=EvalMode.LEGACY)
    for lowered in (
        X + Y,
        X - Y,
        X * lit(1.0, dtype),
        X + lit(1.5, dtype),
        X * lit(0.0, dtype),
        when(X > Y, X).else_(Y) + X,
    ):
        assert assert_as_interpreted(tree, table, lowered).evaluated == 0, str(lowered)
    for evaluated in (X + lit(0.0, dtype), lit(0.0, dtype) - X, X / lit(3.0, dtype)):
        assert assert_as_interpreted(tree, table, evaluated).evaluated == 1, str(evaluated)


def test_a_float_partition_column_is_no_constant_to_polars(tmp_path: Path, seed: int) -> None:
    """Polars adds a constant zero by doing nothing, and divides by a constant through its reciprocal."""
    table = float_table(pa.float64(), seed).select(["x"])
    pq.write_table(table, tmp_path / "t.parquet")
    schema = pa.schema([*table.schema, ("p", pa.float64())])
    for value in (0.0, -0.0, 3.0, 1e308):
        slices = (file_slice(tmp_path / "t.parquet", constants=(value,)),)
        scan = Tree(Scan(schema, partition_columns=1, slices=slices), EvalMode.LEGACY)
        for expression in (X + left("p"), left("p") - X, X - left("p"), X / left("p")):
            assert_as_interpreted(scan, table, expression)


# -- groups ------------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("dtype", SPECIAL, ids=str)
@pytest.mark.parametrize("keys", [("x",), ("x", "g"), ("x", "y")], ids="-".join)
def test_zeros_and_nans_are_one_group(keys: tuple[str, ...], dtype: pa.DataType, pieces: int, seed: int) -> None:
    table = float_table(dtype, seed)
    node = Tree.source(table.schema).group(*keys, n=count(), s=total(left("g"))).relation
    batches = table.to_batches(max_chunksize=-(-ROWS // pieces))
    assert isinstance(node, PartialAggregate)
    out = pa.Table.from_batches(run_here(node, {0: batches}, piece_bytes=1), node.schema)
    keys_given = list(zip(*(map(exact, cells(out.column(key))) for key in keys), strict=True))
    assert len(set(keys_given)) == len(keys_given)
    assert not any(float_bits(-0.0) in key for key in keys_given)
    wanted = {tuple(0 if k == float_bits(-0.0) else k for k in key) for key in zip(
        *(map(exact, cells(table.column(key))) for key in keys), strict=True
    )}  # fmt: skip
    assert set(keys_given) == wanted
    assert_same_groups(merged(node, out), aggregated(node, table), f"seed {seed}")


@everywhere
@pytest.mark.parametrize("dtype", SPECIAL, ids=str)
@pytest.mark.parametrize("how", ["inner", "left", "left_semi", "left_anti"])
def test_zeros_and_nans_join_and_then_group(how: str, dtype: pa.DataType, seed: int) -> None:
    table = float_table(dtype, seed)
    build = pa.table({"k": pa.array([0.0, math.nan, 3.0], dtype, from_pandas=False), "v": [1, 2, 3]})
    joined = Tree.source(table.schema).join(Tree.source(build.schema, 1), {"x": "k"}, how)
    node = joined.group("x", n=count()).relation
    out = pa.Table.from_batches(run_here(node, {0: table, 1: build}), node.schema)
    groups = dict(zip(map(exact, cells(out.column("x"))), out.column("n.count").to_pylist(), strict=True))
    expected: dict[object, int] = {}
    for cell in cells(table.column("x")):
        key = exact(0.0 if cell == 0 else cell)
        matches = key in (exact(0.0), "NaN", exact(3.0))
        if matches if how in ("inner", "left_semi") else (not matches or how == "left"):
            expected[key] = expected.get(key, 0) + 1
    assert groups == expected


def test_top_rows_hold_values_as_they_are(seed: int) -> None:
    table = float_table(pa.float64(), seed)
    for descending in (False, True):
        node = Tree.source(table.schema).select(r=X).top(900, ("r", descending)).relation
        result = column_of(node, table)
        order = sorted(
            cells(table.column("x")),
            key=lambda c: (
                c is not None,
                c is not None and math.isnan(c),
                0 if c is None or math.isnan(c) else c,
            ),
            reverse=descending,
        )
        assert [0 if v == float_bits(-0.0) else v for v in result] == [
            0 if exact(c) == float_bits(-0.0) else exact(c) for c in order[:900]
        ]


# -- statistics --------------------------------------------------------------------------------------------------


def lying_file(path: Path, dtype: pa.DataType, *, inverted: bool = False) -> pa.Table:
    """Write a file whose statistics say that its greatest value is 5, or even that its least is above that."""
    rng = np.random.default_rng(0)
    values = [int(v) for v in (*rng.integers(_TOP // 2, _TOP, 999), _TOP)]
    if pa.types.is_decimal(dtype):
        values = [v % 10**17 for v in values]
    low = min(values)
    raw = pa.array(values, pa.int64())
    values_array = raw if pa.types.is_int64(dtype) else pa.array([_decimal(v, dtype) for v in values], dtype)
    table = pa.table({"g": pa.array([i % 3 for i in range(1000)], pa.int32()), "a": values_array})
    pq.write_table(table, path, store_decimal_as_integer=True, use_dictionary=False)
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    top = struct.pack("<q", max(values))
    footer = data[start:]
    assert footer.count(top) >= 1
    footer = footer.replace(top, struct.pack("<q", 5))
    footer = footer.replace(struct.pack("<q", low), struct.pack("<q", 9 if inverted else 1))
    path.write_bytes(data[:start] + footer)
    statistics = pq.ParquetFile(path).metadata.row_group(0).column(1).statistics
    if not pa.types.is_decimal(dtype):
        assert (statistics.min, statistics.max) == (9 if inverted else 1, 5)
    return table


def _decimal(value: int, dtype: pa.DataType) -> Decimal:
    return Decimal(value).scaleb(-dtype.scale)


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("dtype", [pa.int64(), pa.decimal128(18, 2)], ids=str)
def test_sums_do_not_trust_statistics(dtype: pa.DataType, inverted: bool, tmp_path: Path) -> None:
    table = lying_file(tmp_path / "t.parquet", dtype, inverted=inverted)
    tree = Tree.scan(tmp_path / "t.parquet", mode=EvalMode.LEGACY)
    a = left("a")
    decimals = a if pa.types.is_decimal(dtype) else a.cast(pa.decimal128(20, 0))
    node = tree.group("g", s=total(decimals), p=total(decimals * 3), m=Aggregate(AggregateFunction.MAX, (a,))).relation
    assert isinstance(node, PartialAggregate)
    out = pa.Table.from_batches(run(node), node.schema)
    assert_same_groups(merged(node, out), aggregated(node, table), "lying statistics")
    if pa.types.is_int64(dtype):
        node = Tree.scan(tmp_path / "t.parquet").group("g", s=total(a)).relation
        with pytest.raises(ExpressionEvaluationError, match="overflows"):
            list(run(node))


@pytest.mark.parametrize("inverted", [False, True])
def test_arithmetic_does_not_trust_statistics(inverted: bool, tmp_path: Path) -> None:
    table = lying_file(tmp_path / "t.parquet", pa.int64(), inverted=inverted)
    for mode in (EvalMode.LEGACY, EvalMode.ANSI):
        tree = Tree.scan(tmp_path / "t.parquet", mode=mode)
        for expression in (left("a") + left("a"), left("a") * 5, -left("a"), left("a").cast(pa.int32())):
            resolved = tree.value(expression)
            node = tree.select(r=expression).relation
            try:
                expected = values(resolved, table)
            except ExpressionEvaluationError:
                with pytest.raises(ExpressionEvaluationError):
                    column_of(node, table)
                continue
            assert column_of(node, table) == expected, str(resolved)


@everywhere
def test_quotients_and_rounded_decimals(place: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind, by = pa.decimal128(38, 6), pa.decimal128(18, 2)
    sizes = [int(rng.integers(1, 10**18)) * 10 ** int(rng.integers(0, 19)) for _ in range(200)]
    dividends = [Decimal(int(rng.choice([-1, 1])) * size).scaleb(-6, Context(prec=60)) for size in sizes]
    divisors = [None if n % 11 == 0 else Decimal(int(rng.integers(-50, 50))) for n in range(200)]
    table = pa.table({"a": pa.array(dividends, kind), "b": pa.array(divisors, by)})
    expressions = {
        "quotient": left("a") / left("b"), "rounded": left("a").cast(pa.decimal128(34, 2)),
        "narrow": left("a").cast(pa.decimal128(9, 0)), "product": left("a") * left("b"),
    }  # fmt: skip
    outputs = [
        Output(name, resolve_value(expression, table.schema, table.schema)) for name, expression in expressions.items()
    ]
    tree = Project(ExchangeSource(0, table.schema), tuple(outputs))
    metrics = PipelineMetrics()
    result = pa.Table.from_batches(run_here(tree, {0: table}, metrics=metrics), tree.schema)
    (batch,) = table.to_batches()
    for output in outputs:
        expected = evaluate_column(output.expression, batch, batch, batch.num_rows)
        assert result.column(output.name).to_pylist() == expected.to_pylist(), output.name
    if place != "cpu":
        assert (metrics.device_steps, metrics.host_steps) == (1, 0)
