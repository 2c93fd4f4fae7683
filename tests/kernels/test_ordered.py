"""Joins by order by the engine over emulated kernels, and the index that they search, against array operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from gpujoin import asof_join_tables
from gpujoin.backends.cudf.rangekernels import KernelRangeIndex, KernelRangeProbe, kernel_index
from gpujoin.backends.cudf.ranges import order_ops
from gpujoin.backends.ordered import probe as ordered_probe
from gpujoin.backends.ordered.index import Points, RangeIndex, RangeProbe
from gpujoin.config import Options
from gpujoin.engine.join import build
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.backend import PairSlice
from gpujoin.model.expressions import left, right
from gpujoin.model.jointype import JoinType
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HOST, HostBackend, emulated_ops, entered, on_host
from tests.engine.support import keyed, run_join
from tests.engine.test_asof import DIRECTIONS, TYPES, row_loop, sides
from tests.engine.test_ranges import JOINS, SHAPES, check, tables
from tests.faults import FaultyBackend
from tests.kernels.conftest import MakeDevice
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.ordered_cases import LEAST, MOST
from tests.oracle.join import oracle_join

Array = npt.NDArray[Any]
LOOKING = {"find_stretches", "count_candidates"}
KERNELS = {
    "less": {"find_stretches"}, "between, left is the point": LOOKING, "overlap": LOOKING,
    "three ranges": LOOKING, "equal expressions": {"find_stretches"},
}  # fmt: skip

MORE = [(shape, keys) for shape in KERNELS for keys in (0, 1) if (shape, keys) not in (("less", 0), ("overlap", 1))]


def backend_on(device: EmulatedDevice) -> HostBackend:
    return HostBackend(ops=emulated_ops(device))


@pytest.mark.parametrize(
    ("shape", "keys"),
    [("less", 0), ("overlap", 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
@pytest.mark.parametrize("join_type", JOINS, ids=lambda t: t.value)
def test_ranges(
    emulated: EmulatedDevice, join_type: JoinType, shape: str, keys: int, monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(build, "LEAST_SPREAD", 1)
    condition, algorithms = SHAPES[shape]
    left_table, right_table = tables(seed, pa.int64(), (60, 50), keys=keys)
    backend: Any = backend_on(emulated)
    check(
        backend,
        join_type,
        left_table,
        right_table,
        condition,
        algorithms,
        keys=keys,
        batch_rows=(1000,),
        context=f"seed {seed}",
    )
    launched = set(emulated.launches)
    assert KERNELS[shape] & launched
    assert "find_stretches" in launched


@pytest.mark.parametrize("join_type", JOINS, ids=lambda t: t.value)
def test_two_ranges_by_search(
    emulated: EmulatedDevice, join_type: JoinType, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Looking is made to cost so much that pairs are counted, and most of them found, by search."""
    monkeypatch.setattr(ordered_probe, "LOOKS_PER_STEP", 0)
    condition, algorithms = SHAPES["overlap"]
    for keys in (0, 1):
        monkeypatch.setattr(build, "LEAST_SPREAD", 1)
        left_table, right_table = tables(seed + keys, pa.int32(), (60, 50), keys=keys)
        backend: Any = backend_on(emulated)
        check(
            backend,
            join_type,
            left_table,
            right_table,
            condition,
            algorithms,
            keys=keys,
            batch_rows=(1000,),
            context=f"seed {seed}",
        )
    assert "wavelet_count" in emulated.launches
    assert "count_candidates" not in emulated.launches


def test_intervals_that_ascend_together(emulated: EmulatedDevice, rng: np.random.Generator) -> None:
    """Intervals of one length: two binary searches in place of a wavelet matrix."""
    begins = [rng.integers(0, 300, 80) for _ in range(2)]
    left_table, right_table = (pa.table({"a": b, "b": b + 9, "row": np.arange(80)}) for b in begins)
    condition = (left("a") <= right("b")) & (left("b") >= right("a"))
    for kind in (JoinType.FULL, JoinType.LEFT_SEMI):
        spec, metrics = keyed(kind, left_table, right_table, keys=0, condition=condition), JoinMetrics()
        result = run_join(spec, left_table, right_table, backend=backend_on(emulated), metrics=metrics, batch_rows=30)
        assert_same_rows(result, oracle_join(left_table, right_table, spec))
        assert metrics.algorithms == {"range_monotone": 1}
    assert "narrow_stretches" in emulated.launches


@pytest.mark.few(2)
@pytest.mark.parametrize("by", [0, 2])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", [*TYPES, "float"])
def test_as_of(emulated: EmulatedDevice, name: str, direction: Any, by: int, seed: int) -> None:
    dtype, most = TYPES[name] if name in TYPES else (pa.float32(), 3.0)
    keys = [f"k{n}" for n in range(by)]
    left_table, right_table = sides(seed, dtype, by)
    for tolerance in (None, most):
        for allow_exact in (True, False):
            metrics = JoinMetrics()
            result = asof_join_tables(
                left_table, right_table, "t", keys or None, direction=direction, tolerance=tolerance,
                allow_exact=allow_exact, backend=backend_on(emulated), options=Options(batch_bytes=300),
                metrics=metrics,
            )  # fmt: skip
            expected = row_loop(
                left_table.to_pylist(), right_table.to_pylist(), keys, direction, tolerance, allow_exact
            )
            actual = sorted(zip(result["i"].to_pylist(), result["j"].to_pylist(), strict=True))
            assert actual == expected, f"seed {seed}, tolerance {tolerance}, exact {allow_exact}"
            assert metrics.algorithms == {"as_of": 1}
            assert metrics.algorithm_reasons["as_of"].startswith("kernels: ")
    assert set(emulated.launches) == {"nearest_rows"}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", TYPES)
def test_as_of_without_kernels(name: str, direction: Any, seed: int) -> None:
    """The device backend's own code where kernels are not wanted."""
    dtype, most = TYPES[name]
    left_table, right_table = sides(seed, dtype, 1)
    for tolerance in (None, most):
        for allow_exact in (True, False):
            metrics = JoinMetrics()
            result = asof_join_tables(
                left_table, right_table, "t", ["k0"], direction=direction, tolerance=tolerance, allow_exact=allow_exact,
                backend=HostBackend(), options=Options(batch_bytes=300), metrics=metrics,
            )  # fmt: skip
            expected = row_loop(
                left_table.to_pylist(), right_table.to_pylist(), ["k0"], direction, tolerance, allow_exact
            )
            assert sorted(zip(result["i"].to_pylist(), result["j"].to_pylist(), strict=True)) == expected
            assert metrics.algorithms == {"cudf as_of": 1}


def test_as_of_by_bytes_and_of_special_floats(emulated: EmulatedDevice) -> None:
    left_table, right_table = (
        pa.table({"t": [b"b", b"", None, b"zz"], "i": range(4)}),
        pa.table({"t": [b"a", b"b", None], "j": range(3)}),
    )
    result = asof_join_tables(left_table, right_table, "t", allow_exact=False, backend=backend_on(emulated))
    assert sorted(zip(result["i"].to_pylist(), result["j"].to_pylist(), strict=True)) == [
        (0, 0), (1, None), (2, None), (3, 1),
    ]  # fmt: skip
    nan, inf = float("nan"), float("inf")
    left_table = pa.table({"t": pa.array([nan, None, inf, -inf, -0.0]), "i": range(5)})
    right_table = pa.table({"t": pa.array([nan, None, inf, -inf, 0.0]), "j": range(5)})
    for direction in DIRECTIONS:
        for tolerance in (None, 0):
            result = asof_join_tables(
                left_table, right_table, "t", direction=direction, tolerance=tolerance, backend=backend_on(emulated)
            )
            pairs = dict(zip(result["i"].to_pylist(), result["j"].to_pylist(), strict=True))
            assert pairs == {0: None, 1: None, 2: 2, 3: 3, 4: 4}
    assert set(emulated.launches) == {"nearest_rows"}


@pytest.mark.parametrize("every", [2, 5])
def test_running_out_of_memory_now_and_then(emulated: EmulatedDevice, every: int, seed: int) -> None:
    """Nothing is lost or repeated where the CPU takes over."""
    left_table, right_table = tables(seed, pa.int64(), (60, 50))
    spec = keyed(JoinType.FULL, left_table, right_table, keys=0, condition=SHAPES["overlap"][0])
    backend: Any = FaultyBackend(backend_on(emulated), every=every)
    result = run_join(
        spec,
        left_table,
        right_table,
        backend=backend,
        options=Options(batch_bytes=2000, candidate_pairs=16),
        batch_rows=23,
    )
    assert backend.faults
    assert_same_rows(result, oracle_join(left_table, right_table, spec), context=f"seed {seed}")
    left_table, right_table = sides(seed, pa.int64(), 1)
    backend = FaultyBackend(backend_on(emulated), every=every)
    actual = asof_join_tables(left_table, right_table, "t", "k0", direction="nearest", backend=backend)
    assert backend.faults
    expected = row_loop(left_table.to_pylist(), right_table.to_pylist(), ["k0"], "nearest", None, True)
    assert sorted(zip(actual["i"].to_pylist(), actual["j"].to_pylist(), strict=True)) == expected


# -- the index, against the one over arrays ------------------------------------------------------------------


def _pairs(parts: list[PairSlice]) -> list[tuple[int, int]]:
    return [
        pair
        for part in parts
        for pair in zip(on_host(part.probe.values).tolist(), on_host(part.build.values).tolist(), strict=True)  # type: ignore[union-attr]
    ]


class _Case:
    """Build rows and probe rows, for either index."""

    def __init__(self, rng: np.random.Generator, *, rows: int, probes: int, two_points: bool, grouped: bool) -> None:
        ends = np.array([LEAST, MOST, 0])

        def column(count: int, most: int) -> Array:
            drawn = rng.integers(0, most, count)
            return np.where(rng.random(count) < 0.03, ends[rng.integers(0, 3, count)], drawn)

        def mask(count: int) -> Array | None:
            return rng.random(count) < 0.9 if rng.random() < 0.7 else None

        self.rows, self.probes = rows, probes
        self.points = [(column(rows, 60), mask(rows)) for _ in range(2 if two_points else 1)]
        self.groups = (rng.integers(0, 7, rows) * 2, mask(rows)) if grouped else None
        lows = [column(probes, 60) for _ in self.points]
        highs = [np.where(rng.random(probes) < 0.1, low - (low > 0), np.minimum(low, MOST - 40) + 20) for low in lows]
        self.bounds = [((low, mask(probes)), (high, None)) for low, high in zip(lows, highs, strict=True)]
        self.of_probe = (rng.integers(-1, 15, probes), mask(probes)) if grouped else None

    def probe(self, ops: Any) -> tuple[RangeIndex | KernelRangeIndex, RangeProbe | KernelRangeProbe]:
        xp = ops.xp

        def points(given: tuple[Array, Array | None]) -> Points:
            values, valid = given
            return Points(xp.asarray(values), None if valid is None else xp.asarray(valid))

        built = [points(column) for column in self.points]
        groups, probe_groups = (None if g is None else points(g) for g in (self.groups, self.of_probe))
        bounds = [(points(low), points(high)) for low, high in self.bounds]
        order = order_ops(ops, entered)
        if ops.kernels is None:
            plain = RangeIndex(order, built, groups, self.rows)
            return plain, RangeProbe(plain, bounds, probe_groups)
        index = kernel_index(ops.kernels, order, built, groups, self.rows)
        assert index is not None
        return index, KernelRangeProbe(index, bounds, probe_groups)


@pytest.mark.parametrize("looks", [0, 2, 1 << 40], ids=["search", "auto", "look"])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("two_points", [False, True])
def test_every_answer_is_that_of_array_operations(
    emulated: EmulatedDevice, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, two_points: bool,
    grouped: bool, looks: int,
) -> None:  # fmt: skip
    """Counts, pairs in their order, marks, edges and what is taken up later, for any sizes."""
    monkeypatch.setattr(ordered_probe, "LOOKS_PER_STEP", looks)
    for rows, probes in ((0, 5), (1, 1), (33, 0), (150, 70)):
        case = _Case(rng, rows=rows, probes=probes, two_points=two_points, grouped=grouped)
        (plain, array_probe), (index, kernel_probe) = case.probe(HOST), case.probe(emulated_ops(emulated))
        assert index.algorithm == plain.algorithm
        assert (kernel_probe.rows, kernel_probe.pairs, kernel_probe.resumable) == (
            array_probe.rows,
            array_probe.pairs,
            array_probe.resumable,
        )
        assert on_host(kernel_probe.counts).tolist() == array_probe.counts.tolist()
        assert on_host(kernel_probe.matched()).tolist() == array_probe.matched().tolist()
        for most in (1 << 20, 17):
            assert _pairs(list(kernel_probe.slices(most))) == _pairs(list(array_probe.slices(most)))
        marks = [np.zeros(rows, bool), emulated.zeros(rows, np.bool_)]
        array_probe.mark_build(marks[0])
        kernel_probe.mark_build(marks[1])
        assert on_host(marks[1]).tolist() == marks[0].tolist()
        if not two_points:
            for last in (False, True):
                assert (
                    on_host(kernel_probe.edge(last=last).values).tolist() == array_probe.edge(last=last).values.tolist()
                )
        if array_probe.resumable:
            some_rows = np.flatnonzero(array_probe.counts)[::2]
            for skip, most in ((0, 1), (1, 3), (2, 1000), (1 << 30, 5)):
                parts = [[probe.pairs_at(some_rows, skip, most)] for probe in (array_probe, kernel_probe)]
                assert _pairs(parts[1]) == _pairs(parts[0])


def test_memory_is_counted(emulated: EmulatedDevice, rng: np.random.Generator) -> None:
    case = _Case(rng, rows=64, probes=10, two_points=False, grouped=False)
    case.points = [(case.points[0][0], None)]
    index, _ = case.probe(emulated_ops(emulated))
    assert index.nbytes == 64 * (8 + 8 + 4), "points, all of them samples, and rows"
    case = _Case(rng, rows=64, probes=10, two_points=True, grouped=True)
    index, _ = case.probe(emulated_ops(emulated))
    assert isinstance(index, KernelRangeIndex)
    before = index.nbytes
    assert index.wavelet() is index.wavelet()
    assert index.nbytes == before + index.wavelet().nbytes


# -- which way is taken --------------------------------------------------------------------------------------


def less_than(device: EmulatedDevice, wanted: Algorithm, seed: int) -> JoinMetrics:
    left_table, right_table = tables(seed, pa.int64(), (30, 20))
    spec, metrics = keyed(JoinType.LEFT, left_table, right_table, keys=0, condition=SHAPES["less"][0]), JoinMetrics()
    result = run_join(
        spec,
        left_table,
        right_table,
        backend=backend_on(device),
        metrics=metrics,
        options=Options(gpu_algorithm=wanted),
    )
    assert_same_rows(result, oracle_join(left_table, right_table, spec))
    return metrics


def test_the_setting_can_forbid_kernels(emulated: EmulatedDevice, seed: int) -> None:
    metrics = less_than(emulated, Algorithm.CUDF, seed)
    assert metrics.algorithms == {"cudf range": 1}
    assert metrics.algorithm_reasons == {"cudf range": "cudf: asked for by spark.gpujoin.gpu.algorithm"}
    assert "find_stretches" not in emulated.launches
    metrics = less_than(emulated, Algorithm.AUTO, seed)
    assert metrics.algorithms == {"range": 1}
    assert metrics.algorithm_reasons["range"].startswith("kernels: ")
    assert "find_stretches" in emulated.launches


def test_a_kernel_that_does_not_compile_is_named(
    make_device: MakeDevice, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    device = make_device({"ranges.cu": "this is no program"})
    with caplog.at_level("WARNING", "gpujoin"):
        metrics = less_than(device, Algorithm.AUTO, seed)
    assert metrics.algorithms == {"cudf range": 1}
    assert "ranges.cu" in caplog.text


def test_without_as_of_search_the_edges_of_ranges_are_compared(
    make_device: MakeDevice, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    device = make_device({"nearest.cu": "this is no program"})
    left_table, right_table = sides(seed, pa.float64(), 1)
    with caplog.at_level("WARNING", "gpujoin"):
        result = asof_join_tables(
            left_table, right_table, "t", "k0", direction="nearest", tolerance=2.0, backend=backend_on(device)
        )
    assert "nearest.cu" in caplog.text
    assert set(device.launches) == {"find_stretches"}
    expected = row_loop(left_table.to_pylist(), right_table.to_pylist(), ["k0"], "nearest", 2.0, True)
    assert sorted(zip(result["i"].to_pylist(), result["j"].to_pylist(), strict=True)) == expected


def test_groups_of_too_high_numbers_are_searched_by_arrays(
    emulated: EmulatedDevice, caplog: pytest.LogCaptureFixture
) -> None:
    ops = emulated_ops(emulated)
    values = emulated.upload(np.array([1, 1 << 31]))
    with caplog.at_level("WARNING", "gpujoin"):
        index = kernel_index(emulated, order_ops(ops, entered), [Points(values, None)], Points(values, None), 2)
    assert index is None
    assert str(1 << 31) in caplog.text
    fits = replace(Points(values, None), valid=emulated.upload(np.array([True, False])))
    assert kernel_index(emulated, order_ops(ops, entered), [Points(values, None)], fits, 2) is not None
