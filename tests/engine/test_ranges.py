"""Joins by order: shapes × join types × types × build sides, against the row loop and DuckDB."""

from __future__ import annotations

import functools
import weakref
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from gpujoin.backends.cpu.backend import CpuBackend
from gpujoin.config import Options
from gpujoin.engine.join import build, probe
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import DeviceMemoryError, ExpressionEvaluationError, ProductSizeError
from gpujoin.model.backend import AnyBackend
from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, lit, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.engine.support import KEYED, build_sides, keyed, run_join
from tests.faults import FaultyBackend
from tests.generate import KEY_TYPES, Generator, KeyShape, Mix
from tests.oracle.join import oracle_join

JOINS: list[JoinType] = [kind for kind in KEYED if kind is not JoinType.NULL_AWARE_ANTI]
ORDERED = [name for name in KEY_TYPES if name not in ("null", "struct", "struct_of_floats")]

SHAPES: dict[str, tuple[Expression, set[str]]] = {
    "less": (left("a") < right("c"), {"range"}),
    "at least": (left("a") >= right("c"), {"range"}),
    "between, right is the point": ((right("c") >= left("a")) & (right("c") < left("b")), {"range", "range_pair"}),
    "between, left is the point": ((left("a") > right("c")) & (left("a") <= right("d")), {"range", "range_pair"}),
    "overlap": ((left("a") <= right("d")) & (left("b") >= right("c")), {"range_pair"}),
    "equal expressions": (left("a") == right("c"), {"range"}),
    "with a rest": (
        (left("a") < right("c")) & ((left("row") + right("row")) % lit(3) == lit(0)), {"range"},
    ),
    "three ranges": (
        (left("a") < right("c")) & (left("b") > right("d")) & (left("row") <= right("row")), {"range_pair"},
    ),
}  # fmt: skip
"""Conditions over :func:`tables`, and the algorithms that they take: two where it depends on the build side."""


@functools.cache
def tables(
    seed: int, dtype: pa.DataType, rows: tuple[int, int] = (45, 39), *, keys: int = 0, nulls: float = 0.1
) -> tuple[pa.Table, pa.Table]:
    generator = Generator(seed, Mix(nulls=nulls, spread=20))
    most = max(rows)
    pairs = [generator.keys(dtype, most, KeyShape.UNIFORM, nulls=nulls, distinct=25) for _ in range(2)]
    columns: tuple[dict[str, pa.Array], dict[str, pa.Array]] = ({}, {})
    for number in range(keys):
        pair = generator.keys(pa.int32() if number else pa.string(), most, KeyShape.UNIFORM, distinct=2)
        for side in (0, 1):
            columns[side][f"k{number}"] = pair[side].slice(0, rows[side])
    for side, names in enumerate((("a", "b"), ("c", "d"))):
        for name, pair in zip(names, pairs, strict=True):
            columns[side][name] = pair[side].slice(0, rows[side])
        columns[side]["row"] = pa.array(range(rows[side]), pa.int32())
        columns[side]["s"] = generator.array(pa.string(), rows[side])
    return pa.table(columns[0]), pa.table(columns[1])


def check(
    backend: AnyBackend,
    join_type: JoinType,
    left_table: pa.Table,
    right_table: pa.Table,
    condition: Expression,
    algorithms: set[str],
    *,
    keys: int = 0,
    options: Options | None = None,
    batch_rows: tuple[int, ...] = (7, 1000),
    context: str = "",
) -> None:
    spec = keyed(join_type, left_table, right_table, keys=keys, condition=condition)
    expected = oracle_join(left_table, right_table, spec)
    for build_side in build_sides(join_type):
        for rows in batch_rows:
            metrics = JoinMetrics()
            chosen = options or Options(batch_bytes=2000, candidate_pairs=50)
            actual = run_join(
                spec, left_table, right_table, backend=backend, build_side=build_side, batch_rows=rows, metrics=metrics,
                options=chosen,
            )  # fmt: skip
            assert_same_rows(
                actual,
                expected,
                allow_empty=True,
                context=f"{context}, build {build_side.value}, batches of {rows}",
            )
            assert set(metrics.algorithms) <= algorithms | {"range_monotone"}
            assert metrics.algorithms, "no index was made"
            assert metrics.retries == metrics.fallbacks == 0


WITHIN: dict[str, Expression] = {
    "at most": call(Function.ABS, left("a") - right("c")) <= lit(3),
    "less, the other way round": lit(4) > call(Function.ABS, right("c") - left("a")),
    "nothing is so near": call(Function.ABS, left("a") - right("c")) <= lit(-1),
    "with a rest": (call(Function.ABS, left("a") - right("c")) < lit(9)) & (left("row") != right("row")),
}  # fmt: skip


@pytest.mark.few
@pytest.mark.parametrize("shape", WITHIN)
@pytest.mark.parametrize("join_type", JOINS, ids=lambda t: t.value)
def test_distances(backend: AnyBackend, join_type: JoinType, shape: str, rng: np.random.Generator) -> None:
    def column(dtype: pa.DataType, rows: int) -> pa.Array:
        return pa.array(rng.integers(-60, 60, rows), dtype, mask=rng.random(rows) < 0.1)

    for left_type, right_type in (
        (pa.int32(), pa.int32()),
        (pa.int16(), pa.int64()),
        (pa.int64(), pa.int8()),
    ):
        left_table = pa.table({"a": column(left_type, 50), "row": pa.array(range(50), pa.int32())})
        right_table = pa.table({"c": column(right_type, 40), "row": pa.array(range(40), pa.int32())})
        check(
            backend,
            join_type,
            left_table,
            right_table,
            resolve(WITHIN[shape], left_table.schema, right_table.schema),
            {"range"},
        )


APART: dict[str, tuple[pa.DataType, pa.DataType, list[Any], Any]] = {
    "doubles": (pa.float64(), pa.float64(), [0.1, 0.2, 0.3, 0.5, -0.0, 0.0, 1e300, float("nan"), float("inf"),
        float("-inf"), 5e-324, 0.30000000000000004, 0.4, -0.1, None], 0.2),
    "floats": (pa.float32(), pa.float32(), [0.1, 0.2, 0.3, 0.5, -0.0, 3e38, -3e38, float("nan"), float("inf"), 1e-45,
        0.4, 0.7, 0.6, None], 0.2),
    "float and double": (pa.float32(), pa.float64(), [0.1, 0.2, 0.3, 0.5, 0.0, float("nan"), 0.4, None], 0.1),
    "decimals": (pa.decimal128(9, 2), pa.decimal128(9, 2), [Decimal(n) / 100 for n in range(-8, 9)] + [None],
        Decimal("0.03")),
    "decimals of two scales": (pa.decimal128(7, 1), pa.decimal128(9, 3),
        [Decimal(n) / 10 for n in range(-8, 9)] + [None], Decimal("0.15")),
    "dates": (pa.date32(), pa.date32(), [*range(-6, 8), -(1 << 20), None], 2),
}  # fmt: skip
"""Types of the sides, values, and a distance that some of them have exactly."""


@pytest.mark.parametrize("kind", APART)
def test_differences(backend: AnyBackend, kind: str) -> None:
    """Differences of all values, within a distance, below and above it, against the row loop."""
    left_type, right_type, values, near = APART[kind]
    left_table = pa.table({"a": pa.array(values).cast(left_type) if kind != "dates" else pa.array(values, left_type)})
    right_table = pa.table(
        {"c": pa.array(values).cast(right_type) if kind != "dates" else pa.array(values, right_type)}
    )
    function = Function.DATE_DIFF if kind == "dates" else Function.SUBTRACT
    apart = call(function, left("a"), right("c"))
    conditions = [
        call(Function.ABS, apart) <= lit(near), call(Function.ABS, apart) < lit(near), apart <= lit(near),
        lit(near) > apart, (apart <= lit(near)) & (call(function, right("c"), left("a")) <= lit(near)),
    ]  # fmt: skip
    if "float" not in kind and "double" not in kind:
        conditions += [apart >= lit(near), apart > lit(near), apart == lit(near)]
    for condition in conditions:
        resolved = resolve(condition, left_table.schema, right_table.schema, mode=EvalMode.ANSI)
        check(
            backend,
            JoinType.FULL,
            left_table,
            right_table,
            resolved,
            {"range", "range_pair"},
            batch_rows=(1000,),
            context=str(condition),
        )


@pytest.mark.parametrize("join_type", [JoinType.INNER, JoinType.LEFT], ids=lambda t: t.value)
@pytest.mark.parametrize("dtype", [pa.int32(), pa.int64(), pa.date32()], ids=str)
def test_distances_given_by_a_column(
    backend: AnyBackend, join_type: JoinType, dtype: pa.DataType, rng: np.random.Generator
) -> None:
    """Negative, null, and larger than any distance; one- and two-sided, strictly and not."""
    values = pa.array(rng.integers(-60, 60, 50), pa.int32(), mask=rng.random(50) < 0.1)
    most = (1 << 63) - 1
    reach = pa.array([-most - 1, most, -1, 0, None, *rng.integers(-3, 30, 45).tolist()], pa.int64())
    left_table = pa.table({"a": values.cast(dtype), "reach": reach, "row": pa.array(range(50), pa.int32())})
    right_table = pa.table({"c": values.take(pa.array(rng.permutation(50)[:40])).cast(dtype)})
    function = Function.DATE_DIFF if pa.types.is_date(dtype) else Function.SUBTRACT
    for difference in (call(function, left("a"), right("c")), call(function, right("c"), left("a"))):
        for condition in (
            call(Function.ABS, difference) <= left("reach"),
            call(Function.ABS, difference) < left("reach"),
            difference <= left("reach"),
            left("reach") > difference,
        ):
            spec = keyed(
                join_type,
                left_table,
                right_table,
                keys=0,
                condition=resolve(condition, left_table.schema, right_table.schema),
            )
            metrics = JoinMetrics()
            result = run_join(
                spec,
                left_table,
                right_table,
                backend=backend,
                build_side=Side.RIGHT,
                batch_rows=30,
                metrics=metrics,
            )
            assert_same_rows(result, oracle_join(left_table, right_table, spec), context=str(condition))
            assert set(metrics.algorithms) <= {"range", "range_monotone"}
            assert metrics.algorithms, "no index was made"


@pytest.mark.parametrize("mode", [EvalMode.ANSI, EvalMode.LEGACY], ids=lambda m: m.value)
def test_distances_that_overflow(backend: AnyBackend, mode: EvalMode) -> None:
    """Where a difference of some pair has no value in its type, every pair is looked at, as Spark does."""
    left_table = pa.table({"a": pa.array([2**31 - 1, 0, 5], pa.int32())})
    right_table = pa.table({"c": pa.array([-1, 3, None], pa.int32())})
    apart = call(Function.SUBTRACT, left("a"), right("c"), mode=mode)
    condition = resolve(call(Function.ABS, apart, mode=mode) <= lit(3), left_table.schema, right_table.schema)
    spec = keyed(JoinType.INNER, left_table, right_table, keys=0, condition=condition)
    if mode is EvalMode.ANSI:
        with pytest.raises(ExpressionEvaluationError):
            run_join(spec, left_table, right_table, backend=backend)
        return
    assert_same_rows(
        run_join(spec, left_table, right_table, backend=backend), oracle_join(left_table, right_table, spec)
    )


def test_a_morsel_whose_ranges_cannot_be_computed_is_gone_before_the_next_attempt(
    backend: AnyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"a": pa.array([2**31 - 1, -1, 5], pa.int32())})
    condition = resolve(call(Function.ABS, left("a") - right("a")) <= lit(3), table.schema, table.schema)
    spec = keyed(JoinType.INNER, table, table, keys=0, condition=condition)
    morsels: list[weakref.ref[probe.Morsel]] = []
    alive: list[bool] = []
    start, without_ranges = probe.Morsel.start, build.BuiltSide.without_ranges

    def noted(self: probe.Morsel) -> probe.Morsel:
        morsels.append(weakref.ref(self))
        return start(self)

    def looked(self: build.BuiltSide, metrics: JoinMetrics) -> build.BuiltSide:
        alive.extend(morsel() is not None for morsel in morsels)
        return without_ranges(self, metrics)

    monkeypatch.setattr(probe.Morsel, "start", noted)
    monkeypatch.setattr(build.BuiltSide, "without_ranges", looked)
    assert_same_rows(run_join(spec, table, table, backend=backend), oracle_join(table, table, spec))
    assert alive == [False]


@pytest.mark.few
@pytest.mark.parametrize("dtype", [pa.int32(), pa.float64(), pa.string()], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("join_type", JOINS, ids=lambda t: t.value)
def test_shapes(backend: AnyBackend, join_type: JoinType, shape: str, dtype: pa.DataType, seed: int) -> None:
    condition, algorithms = SHAPES[shape]
    left_table, right_table = tables(seed, dtype)
    check(
        backend,
        join_type,
        left_table,
        right_table,
        condition,
        algorithms,
        batch_rows=((7,), (1000,))[(JOINS.index(join_type) + list(SHAPES).index(shape)) % 2],
        context=f"seed {seed}",
    )


@pytest.mark.few
@pytest.mark.parametrize("shape", ["less", "between, left is the point", "overlap"])
@pytest.mark.parametrize("key", ORDERED)
@pytest.mark.parametrize("join_type", [JoinType.FULL, JoinType.LEFT_SEMI], ids=lambda t: t.value)
def test_types(backend: AnyBackend, join_type: JoinType, key: str, shape: str, seed: int) -> None:
    left_table, right_table = tables(seed, KEY_TYPES[key])
    condition, algorithms = SHAPES[shape]
    check(
        backend,
        join_type,
        left_table,
        right_table,
        condition,
        algorithms,
        batch_rows=(1000,),
        context=f"seed {seed}",
    )


@pytest.mark.few
@pytest.mark.parametrize("shape", ["less", "between, left is the point", "overlap", "with a rest"])
@pytest.mark.parametrize("keys", [1, 2])
@pytest.mark.parametrize("join_type", JOINS, ids=lambda t: t.value)
def test_within_keys(
    backend: AnyBackend,
    join_type: JoinType,
    keys: int,
    shape: str,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    monkeypatch.setattr(build, "LEAST_SPREAD", 1)
    condition, algorithms = SHAPES[shape]
    left_table, right_table = tables(seed, pa.int64(), (60, 50), keys=keys)
    check(backend, join_type, left_table, right_table, condition, algorithms, keys=keys, context=f"seed {seed}")


def test_few_rows_of_equal_key_are_looked_at_one_by_one(backend: AnyBackend) -> None:
    for copies, wanted in ((2, False), (40, True)):
        keys = np.repeat(np.arange(20), copies)
        table = pa.table({"k0": keys, "v": np.arange(len(keys))})
        spec = keyed(JoinType.INNER, table, table, keys=1, condition=left("v") <= right("v"))
        metrics = JoinMetrics()
        result = run_join(spec, table, table, backend=backend, metrics=metrics)
        assert result.num_rows == 20 * copies * (copies + 1) // 2
        assert (set(metrics.algorithms) == {"range"}) is wanted
        assert metrics.candidate_pairs == (0 if wanted else 20 * copies * copies)


@pytest.mark.parametrize("rows", [(0, 0), (0, 9), (9, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("shape", ["less", "overlap"])
@pytest.mark.parametrize("join_type", JOINS, ids=lambda t: t.value)
def test_empty_sides(backend: AnyBackend, join_type: JoinType, shape: str, rows: tuple[int, int], seed: int) -> None:
    condition, algorithms = SHAPES[shape]
    left_table, right_table = tables(seed, pa.date32(), rows)
    check(backend, join_type, left_table, right_table, condition, algorithms | {"range"})


@pytest.mark.parametrize("shape", ["less", "overlap"])
@pytest.mark.parametrize("join_type", JOINS, ids=lambda t: t.value)
def test_all_null(backend: AnyBackend, join_type: JoinType, shape: str, seed: int) -> None:
    condition, algorithms = SHAPES[shape]
    left_table, right_table = tables(seed, pa.float64(), (12, 10))
    nothing = right_table.set_column(0, "c", pa.nulls(10, pa.float64()))
    check(backend, join_type, left_table, nothing, condition, algorithms | {"range"})
    nothing = left_table.set_column(0, "a", pa.nulls(12, pa.float64()))
    check(backend, join_type, nothing, right_table, condition, algorithms | {"range"})


@pytest.mark.parametrize("join_type", [JoinType.INNER, JoinType.FULL], ids=lambda t: t.value)
def test_operands_of_different_types(backend: AnyBackend, join_type: JoinType, seed: int) -> None:
    for left_type, right_type in (
        (pa.int8(), pa.int64()), (pa.int32(), pa.float64()), (pa.float32(), pa.float64()),
        (pa.decimal128(7, 2), pa.decimal128(38, 10)), (pa.int16(), pa.decimal128(9, 3)), (pa.uint64(), pa.int32()),
        (pa.dictionary(pa.int32(), pa.string()), pa.large_string()),
    ):  # fmt: skip
        left_table, _ = tables(seed, left_type if left_type != pa.uint64() else pa.int32(), (30, 30))
        if left_type == pa.uint64():
            left_table = left_table.set_column(0, "a", pa.array([*range(29), (1 << 64) - 1], pa.uint64()))
        _, right_table = tables(seed, right_type, (30, 28))
        condition = (left("a") < right("c")) if left_type != pa.uint64() else (left("a") >= right("c"))
        check(
            backend,
            join_type,
            left_table,
            right_table,
            condition,
            {"range"},
            context=f"seed {seed}, {left_type} {right_type}",
        )


def extremes(dtype: pa.DataType) -> pa.Array:
    values: dict[pa.DataType, list[object]] = {
        pa.int64(): [-(1 << 63), -(1 << 63) + 1, -1, 0, 1, (1 << 63) - 1, None],
        pa.float64(): [
            float("-inf"),
            -1.0,
            -5e-324,
            -0.0,
            0.0,
            5e-324,
            1.0,
            float("inf"),
            float("nan"),
            None,
        ],
        pa.float32(): [float("-inf"), -1.0, -0.0, 0.0, 1.0, float("inf"), float("nan"), None],
        pa.string(): ["", "\x00", "a", "a\x00", "b", "é", "￿", "\U00010000", None],
        pa.bool_(): [False, True, None],
    }
    return pa.array(values[dtype], dtype)


@pytest.mark.parametrize("dtype", [pa.int64(), pa.float64(), pa.float32(), pa.string(), pa.bool_()], ids=str)
def test_extremes_against_each_other(backend: AnyBackend, dtype: pa.DataType) -> None:
    left_table, right_table = pa.table({"a": extremes(dtype)}), pa.table({"c": extremes(dtype)})
    for compare in (Function.LT, Function.LE, Function.GT, Function.GE, Function.EQ):
        check(backend, JoinType.FULL, left_table, right_table, call(compare, left("a"), right("c")), {"range"})


def test_against_duckdb(backend: AnyBackend, duck: duckdb.DuckDBPyConnection, rng: np.random.Generator) -> None:
    n = 3000
    left_table = pa.table({"a": rng.integers(0, 30 * n, n), "i": np.arange(n)})
    left_table = left_table.append_column("b", pa.array(left_table["a"].to_numpy() + rng.integers(0, 100, n)))
    right_table = pa.table({"c": rng.integers(0, 30 * n, n), "j": np.arange(n)})
    right_table = right_table.append_column("d", pa.array(right_table["c"].to_numpy() + rng.integers(0, 100, n)))
    condition = (left("a") <= right("d")) & (left("b") >= right("c"))
    duck.register("l", left_table)
    duck.register("r", right_table)
    expected = duck.sql("select i, j from l full join r on a <= d and b >= c").to_arrow_table()
    for build_side in Side:
        spec = JoinSpec(
            JoinType.FULL,
            (),
            resolve(condition, left_table.schema, right_table.schema),
            left_output=(1,),
            right_output=(1,),
        )
        metrics = JoinMetrics()
        actual = run_join(spec, left_table, right_table, backend=backend, build_side=build_side, metrics=metrics)
        assert metrics.algorithms == {"range_pair": 1}
        assert metrics.candidate_pairs == 0
        assert_same_rows(actual, expected)


def test_nested_intervals_are_searched_and_counted_exactly(backend: AnyBackend, rng: np.random.Generator) -> None:
    """Long and short intervals, so that stretches are long and matches few: the wavelet matrix has to find them."""
    n = 2000
    low = rng.integers(0, 1 << 20, n)
    width = np.where(rng.random(n) < 0.02, 1 << 19, 20)
    left_table = pa.table({"a": low, "b": low + width})
    at = rng.integers(0, 1 << 20, n)
    right_table = pa.table({"c": at, "d": at + 5})
    condition = (left("a") <= right("d")) & (left("b") >= right("c"))
    expected = sum(int(((low <= d) & (low + width >= c)).sum()) for c, d in zip(at, at + 5, strict=True))
    for build_side in Side:
        spec = JoinSpec(JoinType.INNER, (), resolve(condition, left_table.schema, right_table.schema), (0,), (0,))
        result = run_join(spec, left_table, right_table, backend=backend, build_side=build_side)
        assert result.num_rows == expected
        semi = JoinSpec(JoinType.LEFT_SEMI, (), resolve(condition, left_table.schema, right_table.schema), (0,), ())
        semi_join = run_join(semi, left_table, right_table, backend=backend, build_side=build_side)
        assert semi_join.num_rows == sum(
            bool(((at + 5 >= a) & (at <= b)).any()) for a, b in zip(low, low + width, strict=True)
        )


@pytest.mark.parametrize("other", [False, pytest.param(True, marks=pytest.mark.extra)], ids=["turn", "other turn"])
def test_spilled(backend: AnyBackend, other: bool, tmp_path: Path, seed: int) -> None:
    options = Options(spill_dir=str(tmp_path), memory_budget=1000)
    left_table, right_table = tables(seed, pa.int32(), (70, 60))
    for turn, join_type in enumerate(JOINS):
        condition, algorithms = SHAPES[("less", "overlap")[(turn + other) % 2]]
        check(backend, join_type, left_table, right_table, condition, algorithms | {"range"}, options=options)
    assert not list(tmp_path.iterdir())


class TestOperandsWithoutValue:
    """An operand that fails for some row alone must fail the join only if a pair would have failed."""

    left_table = pa.table({"a": pa.array([1, 2, (1 << 31) - 1], pa.int32())})
    right_table = pa.table({"c": pa.array([1, 5], pa.int32())})

    def spec(self, condition: Expression, join_type: JoinType = JoinType.FULL) -> JoinSpec:
        resolved = resolve(condition, self.left_table.schema, self.right_table.schema, mode=EvalMode.ANSI)
        return JoinSpec(join_type, (), resolved, (0,), (0,))

    @pytest.mark.parametrize("build_side", Side)
    def test_it_fails_where_a_pair_does(self, backend: AnyBackend, build_side: Side) -> None:
        condition = left("a") + lit(1) < right("c")
        with pytest.raises(ExpressionEvaluationError, match="overflow"):
            run_join(
                self.spec(condition),
                self.left_table,
                self.right_table,
                backend=backend,
                build_side=build_side,
            )

    @pytest.mark.parametrize("build_side", Side)
    def test_it_does_not_where_none_does(self, backend: AnyBackend, build_side: Side) -> None:
        condition = (left("a") < lit(10)) & (left("a") + lit(1) < right("c"))
        spec = self.spec(condition)
        metrics = JoinMetrics()
        result = run_join(
            spec, self.left_table, self.right_table, backend=backend, build_side=build_side, metrics=metrics
        )
        assert_same_rows(result, oracle_join(self.left_table, self.right_table, spec))
        assert metrics.candidate_pairs == 6


@pytest.mark.few
@pytest.mark.parametrize("build_side", Side, ids=lambda s: f"build {s.value}")
@pytest.mark.parametrize("join_type", [JoinType.FULL, JoinType.EXISTENCE, JoinType.LEFT_SEMI], ids=lambda t: t.value)
@pytest.mark.parametrize("shape", ["overlap", "with a rest"])
def test_fault_at_any_call(backend: AnyBackend, shape: str, join_type: JoinType, build_side: Side, seed: int) -> None:
    left_table, right_table = tables(seed, pa.int32(), (22, 19))
    spec = keyed(join_type, left_table, right_table, keys=0, condition=SHAPES[shape][0])
    expected = oracle_join(left_table, right_table, spec)
    options = Options(batch_bytes=3000, candidate_pairs=40)
    how = {
        "spec": spec,
        "left_table": left_table,
        "right_table": right_table,
        "build_side": build_side,
        "options": options,
        "batch_rows": 9,
    }
    counting = FaultyBackend(backend)
    run_join(**how, backend=counting)
    for number in range(1, counting.total_calls + 1):
        for faults in ({"at": {number}}, {"after": number - 1}):
            faulty = FaultyBackend(backend, **faults)
            actual = run_join(**how, backend=faulty)
            assert faulty.faults >= 1
            assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}, {faults}")


class TestProducts:
    numbers = pa.table({"v": pa.array(range(1000), pa.int32())})
    never = call(Function.NE, left("v") + right("v"), left("v") + right("v"))
    odd = (left("v") + right("v")) % lit(2) == lit(1)

    def run(
        self, condition: Expression, join_type: JoinType, side: Side, **options: Any
    ) -> tuple[pa.Table, JoinMetrics]:
        spec = keyed(join_type, self.numbers, self.numbers, keys=0, condition=condition)
        metrics = JoinMetrics()
        result = run_join(
            spec, self.numbers, self.numbers, backend=CpuBackend(), build_side=side, metrics=metrics,
            options=Options(**options),
        )  # fmt: skip
        return result, metrics

    @pytest.mark.parametrize("side", Side)
    @pytest.mark.parametrize("join_type", [JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE])
    def test_stop_at_the_first_match(self, join_type: JoinType, side: Side) -> None:
        result, metrics = self.run(self.odd, join_type, side, candidate_pairs=10_000)
        assert result.num_rows == (0 if join_type is JoinType.LEFT_ANTI else 1000)
        assert metrics.candidate_pairs <= 8 * 1000
        result, metrics = self.run(self.never, join_type, side, candidate_pairs=10_000)
        assert result.num_rows == (0 if join_type is JoinType.LEFT_SEMI else 1000)
        assert metrics.candidate_pairs == 1000 * 1000

    def test_too_large_ones_are_refused(self) -> None:
        assert self.run(self.odd, JoinType.INNER, Side.RIGHT, max_product_rows=1_000_000)[0].num_rows == 500_000
        for join_type in (JoinType.INNER, JoinType.LEFT_SEMI):
            with pytest.raises(ProductSizeError, match="maxProductRows"):
                self.run(self.odd, join_type, Side.RIGHT, max_product_rows=999_999)
        self.run(left("v") < right("v"), JoinType.LEFT_SEMI, Side.RIGHT, max_product_rows=0)


def test_a_device_that_stays_full_still_finishes(seed: int) -> None:
    left_table, right_table = tables(seed, pa.string(), (60, 50))
    spec = keyed(JoinType.FULL, left_table, right_table, keys=0, condition=SHAPES["overlap"][0])
    faulty = FaultyBackend(CpuBackend(), max_rows=10)
    with pytest.raises(DeviceMemoryError):
        faulty.build_ranges(CpuBackend().from_arrow(pa.table({"p": np.arange(11)})), grouped=False)
    assert_same_rows(
        run_join(spec, left_table, right_table, backend=faulty), oracle_join(left_table, right_table, spec)
    )
