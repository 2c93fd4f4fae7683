"""Joins on ranges in pipelines against the row-loop oracle: alone and within keys, on the host and on a device."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.pipeline import run, supports
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.backend import BackendName
from gpujoin.model.expressions import Function, call, left, lit, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.spec import NullEquality
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HostBackend, emulated_ops
from tests.backends.cudf.pipeline import ShortBackend, host_pipeline
from tests.engine.pipeline.places import everywhere, on_device
from tests.engine.pipeline.test_joins import check, join_of, side_table
from tests.kernels.conftest import MakeDevice, emulator_cache, make_device
from tests.oracle.join import oracle_join

__all__ = ["emulator_cache", "make_device"]

N, DAY, TIME, F64, D9, D38 = (([left(c), right(c)]) for c in ("n", "date", "ts", "f64", "d9_2", "d38_18"))
RANGES = {
    "at least": N[0] >= N[1],
    "between": (N[0] > N[1]) & (N[0] <= N[1] + 2),
    "two axes": (N[0] < N[1]) & (F64[1] < F64[0]),
    "overlap": (N[0] <= N[1] + 3) & (N[1] <= N[0] + left("k")),
    "within": call(Function.ABS, N[0] - N[1]) <= 1,
    "within a column": call(Function.ABS, N[0] - N[1]) <= left("k"),
    "doubles": (F64[0] < F64[1]) & (DAY[0] != DAY[1]),
    "doubles within": call(Function.ABS, left("x") - right("x")) < 0.5,
    "dates": (DAY[0] >= DAY[1]) & (DAY[0] < call(Function.DATE_ADD, DAY[1], lit(400))),
    "days within": call(Function.ABS, call(Function.DATE_DIFF, DAY[0], DAY[1])) <= 365,
    "timestamps": TIME[0] > TIME[1],
    "decimals": (D9[0] > D9[1]) & (D9[0] - D9[1] < 2),
    "texts": (left("str") < right("str")) & (left("str") != "b"),
    "wide decimals": (D38[0] > D38[1]) & (N[0] <= N[1]),
    "decimals of two widths": D9[0] <= right("d38_18"),
    "two widths": N[0] < right("k").cast(pa.int64()),
}


KINDS = [
    JoinType.INNER, JoinType.LEFT, JoinType.RIGHT, JoinType.FULL, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI,
    JoinType.EXISTENCE,
]  # fmt: skip


def range_table(rng: np.random.Generator, rows: int) -> pa.Table:
    """Two keys, few numbers, and doubles near each other."""
    table = side_table(rng, "i8", rows)
    small = pa.array(rng.integers(0, 3, rows), pa.int32(), mask=rng.random(rows) < 0.1)
    table = table.set_column(0, "k", small)
    return table.append_column("x", pa.array(rng.integers(0, 40, rows) / 10, mask=rng.random(rows) < 0.1))


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("other", [False, pytest.param(True, marks=pytest.mark.extra)], ids=["turn", "other turn"])
@pytest.mark.parametrize("keyed", [False, True], ids=["alone", "within keys"])
@pytest.mark.parametrize("name", RANGES)
def test_ranges(name: str, keyed: bool, other: bool, rng: np.random.Generator, seed: int) -> None:
    """Searched by order; on a device without a copy of rows to the host. Types of joins take turns."""
    left_table, right_table = range_table(rng, 66), range_table(rng, 70)
    of_left = [] if name == "within a column" else [(JoinType.LEFT, Side.LEFT)]  # whose distances are the left side's
    turn = (list(RANGES).index(name) + keyed + on_device() + other) % 2
    for how, side in [*((kind, Side.RIGHT) for kind in KINDS), *of_left][turn::2]:
        node = join_of(how, left_table, right_table, side, condition=RANGES[name], keys=None if keyed else ())
        joins = JoinMetrics()
        metrics = check(node, left_table, right_table, f"seed {seed}, {how}", join_metrics=joins)
        assert any("range" in algorithm for algorithm in joins.algorithms), joins.algorithms
        if on_device():
            assert supports(node, BackendName.GPU) == ()
            assert metrics.device_joins > 0
            assert metrics.host_steps == 0
            assert joins.fallbacks == 0


@everywhere
def test_ranges_of_null_safe_keys(rng: np.random.Generator, seed: int) -> None:
    left_table, right_table = range_table(rng, 66), range_table(rng, 70)
    node = join_of(
        JoinType.LEFT, left_table, right_table, Side.RIGHT, condition=RANGES["between"], nulls=NullEquality.EQUAL
    )
    joins = JoinMetrics()
    check(node, left_table, right_table, f"seed {seed}", join_metrics=joins)
    assert any("range" in algorithm for algorithm in joins.algorithms)


@everywhere
@pytest.mark.parametrize("rows", [(0, 5), (5, 0), (1, 1)], ids=str)
def test_ranges_of_few_rows(rows: tuple[int, int], rng: np.random.Generator) -> None:
    left_table, right_table = (range_table(rng, 5).slice(0, n) for n in rows)
    for how in KINDS:
        node = join_of(how, left_table, right_table, Side.RIGHT, condition=RANGES["within a column"], keys=())
        check(node, left_table, right_table, how.value)


@everywhere
def test_operands_that_fail_for_some_row(rng: np.random.Generator) -> None:
    """Pairs are tested one by one then, and only a pair that Spark looks at makes the join fail."""
    left_table, right_table = range_table(rng, 40), range_table(rng, 30)
    edge = pa.array([2**31 - 1, *range(39)], pa.int32())
    left_table = left_table.set_column(1, "n", edge)
    condition = (left("k") != 2) & (left("n") + 1 > right("n"))
    first = left_table.set_column(0, "k", pa.array([2] * 40, pa.int32()))
    for table in (first, left_table):
        node = join_of(JoinType.INNER, table, right_table, Side.RIGHT, condition=condition, keys=())
        try:
            oracle_join(table, right_table, node.spec)
        except ExpressionEvaluationError:
            with pytest.raises(ExpressionEvaluationError):
                check(node, table, right_table, "")
            continue
        check(node, table, right_table, "")


@pytest.mark.parametrize("name", ["between", "two axes", "within"])
def test_kernels_search_frames(name: str, make_device: MakeDevice, rng: np.random.Generator, seed: int) -> None:
    left_table, right_table = range_table(rng, 66), range_table(rng, 70)
    emulated = make_device()
    for keys in (None, ()):
        node = join_of(JoinType.FULL, left_table, right_table, Side.RIGHT, condition=RANGES[name], keys=keys)
        joins, metrics = JoinMetrics(), PipelineMetrics()
        device = host_pipeline(HostBackend(ops=emulated_ops(emulated)))
        inputs = {0: left_table, 1: right_table}
        result = pa.Table.from_batches(run(node, inputs, metrics=metrics, join_metrics=joins, device=device))
        assert_same_rows(
            result, oracle_join(left_table, right_table, node.spec).cast(node.schema), context=f"seed {seed}"
        )
        assert [name for name in joins.algorithms if name.startswith("range")], joins.algorithms
        assert metrics.host_steps == 0


@pytest.mark.few
@pytest.mark.parametrize("floor", [0, 100])
@pytest.mark.parametrize("how", [JoinType.INNER, JoinType.LEFT, JoinType.FULL], ids=lambda how: how.value)
def test_ranges_that_do_not_fit_go_on_on_the_host(
    how: JoinType, floor: int, rng: np.random.Generator, seed: int
) -> None:
    """Whichever gather fails: the host goes on in the order of the device's pairs."""
    left_table, right_table = range_table(rng, 300), range_table(rng, 40)
    node = join_of(how, left_table, right_table, Side.RIGHT, condition=RANGES["between"], keys=())
    expected = oracle_join(left_table, right_table, node.spec).cast(node.schema)
    for fail in range(1, 5):
        joins = JoinMetrics()
        device = host_pipeline(ShortBackend(() if floor else (fail,), floor))
        inputs = {0: left_table, 1: right_table}
        result = pa.Table.from_batches(run(node, inputs, join_metrics=joins, device=device, piece_bytes=1 << 14))
        assert_same_rows(result, expected, allow_empty=True, context=f"seed {seed}, gather {fail}")
        if floor:
            assert joins.fallbacks > 0
            break
