"""The memory that a worker takes: bounded by its budget, and by limits of the system without being ended by them."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.memory.cases import write
from benchmarks.memory.measure import measured
from gpujoin import HashJoin
from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.engine import memory
from gpujoin.engine.memory import HostMemory, held_bytes, hold
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.pipeline import run
from gpujoin.errors import HostMemoryError
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.expressions import left
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import ExchangeSource, Join
from gpujoin.testing import assert_same_rows
from tests.engine.support import CONDITIONS, KEYED, build_sides, keyed, run_join, sides
from tests.faults import failing_cpu
from tests.generate import KeyShape
from tests.oracle.join import oracle_join
from tests.trees import Tree, count, total

MIB = 1 << 20
BUDGET = 64 * MIB
ROWS = 2_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs of 72 and 36 MiB, and texts of 100 MiB."""
    path = tmp_path_factory.mktemp("memory")
    write(path, ROWS)
    return path


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("aggregate", marks=pytest.mark.extra),
        pytest.param("join, aggregated", marks=pytest.mark.extra),
        "exchange",
        pytest.param("join", marks=pytest.mark.slow),
        pytest.param("texts built", marks=pytest.mark.slow),
        pytest.param("exchange of texts", marks=pytest.mark.slow),
        pytest.param("texts", marks=pytest.mark.slow),
        pytest.param("top of texts", marks=pytest.mark.slow),
    ],
)
def test_a_worker_takes_little_more_than_its_budget(name: str, folder: Path) -> None:
    use = measured(name, folder, {"memory_budget": BUDGET})
    assert not use.error
    assert use.rows
    assert use.growth < 1.25 * BUDGET + 96 * MIB, f"{use.growth / MIB:.0f} MiB"


@pytest.mark.extra
@pytest.mark.parametrize("name", ["aggregate", pytest.param("join", marks=pytest.mark.slow)])
def test_a_limited_address_space_ends_no_worker(name: str, folder: Path) -> None:
    use = measured(name, folder, {"memory_budget": 1 << 40}, address_space=1 << 30)
    assert not use.error
    assert use.rows


def test_an_address_space_that_the_libraries_fill_is_told(folder: Path) -> None:
    use = measured("aggregate", folder, {"memory_budget": 1 << 40}, address_space=540 * MIB)
    assert use.rows is None
    assert use.error.startswith("HostMemoryError: the address space of this worker is limited to 540 MiB")
    assert "Raise spark.executor.pyspark.memory" in use.error


def test_build_sides_share_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Built:
        pass

    gc.collect()
    budget = HostMemory(400 * MIB + 4 * held_bytes())
    assert budget.build_bytes == pytest.approx(100 * MIB, abs=4)
    first, second = Built(), Built()
    hold(first, 30 * MIB)
    hold(second, 60 * MIB)
    # A quarter of the share is left to whoever comes, however much the others hold.
    assert budget.build_bytes == pytest.approx(25 * MIB, rel=0.01)
    del second
    assert budget.build_bytes == pytest.approx(70 * MIB, abs=4)
    del first
    assert budget.build_bytes == pytest.approx(100 * MIB, abs=4)


def test_a_join_holds_its_build_side_until_it_is_closed() -> None:
    left_table, right_table = sides(7, [pa.int64()], (50, 5000))
    gc.collect()
    before = held_bytes()
    with HashJoin(keyed(JoinType.INNER, left_table, right_table), left_table.schema, right_table.schema) as join:
        join.build(right_table.to_batches())
        assert held_bytes() - before >= right_table.nbytes
    del join
    gc.collect()
    assert held_bytes() == before


@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_bounds_the_budget(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("memory" if version == 1 else "") / "spark" / "executor"
    folder.mkdir(parents=True)
    most, current = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    )
    own = tmp_path / "own"
    own.write_text("4:memory:/spark/executor\n3:cpu:/other\n" if version == 1 else "0::/spark/executor\n")

    def takes(taken: int, *, files: int = 0) -> None:
        (folder / most).write_text(f"{1000 * MIB}\n")
        (folder / current).write_text(f"{taken}\n")
        (folder / "memory.stat").write_text(f"anon 5\nactive_file {files // 2}\ninactive_file {files // 2}\n")

    takes(600 * MIB, files=200 * MIB)
    folders = memory._limited_folders.__wrapped__(tmp_path, own)
    assert folders == (folder,)
    monkeypatch.setattr(memory, "_limited_folders", lambda: folders)
    # 400 MiB are taken, those of files aside; half of the 600 MiB left are for this worker.
    assert HostMemory.from_budget(1 << 40).budget == 300 * MIB
    assert HostMemory.from_budget(100 * MIB).budget == 100 * MIB
    budget = HostMemory.from_budget(1 << 40)
    budget.watch()
    takes(990 * MIB)
    with pytest.raises(HostMemoryError, match="of 1000 MiB that this container may take, 990 MiB are taken"):
        budget.watch()


def test_a_large_row_group_is_read_in_slices(tmp_path: Path, rng: np.random.Generator) -> None:
    rows = 40_000
    table = pa.table(
        {
            "k": pa.array(rng.integers(0, 50, rows), mask=rng.random(rows) < 0.1),
            "x": pa.array(rng.choice([0.0, -0.0, float("nan"), 1.5, float("inf")], rows)),
            "s": pa.array([None if i % 11 == 0 else "é" * (i % 40) for i in range(rows)]),
            "b": pa.array(rng.random(rows) < 0.5),
            "d": pa.array(rng.integers(-(10**6), 10**6, rows)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(25, 2)),
        }
    )
    path = tmp_path / "one_group.parquet"
    pq.write_table(table, path, row_group_size=rows)
    tree = Tree.scan(path)
    whole = pa.Table.from_batches(run(tree.relation), tree.schema)
    batches = list(run(tree.relation, piece_bytes=1 << 16))
    assert len(batches) > 10
    assert_same_rows(pa.Table.from_batches(batches, tree.schema), whole)
    filtered = Tree.scan(path, ["k", "d"]).where(left("k") > 25).group("k", n=count(), t=total(left("d")))
    once = pl.from_arrow(pa.Table.from_batches(run(filtered.relation), filtered.schema))
    sliced = pl.from_arrow(pa.Table.from_batches(run(filtered.relation, piece_bytes=1 << 14), filtered.schema))
    assert isinstance(once, pl.DataFrame)
    assert isinstance(sliced, pl.DataFrame)
    assert once.sort("k").equals(sliced.sort("k"))


def test_a_spilled_join_keeps_the_probe_rows_of_all_pieces_together(folder: Path, tmp_path: Path) -> None:
    joined = Tree.scan(folder / "facts.parquet", ["k", "v"]).join(
        Tree.scan(folder / "others.parquet", ["k", "x"], index=1).select(k2=left("k"), x2=left("x")),
        {"k": "k2"},
    )
    metrics = JoinMetrics()
    options = Options(memory_budget=8 * MIB, spill_dir=str(tmp_path))
    tree = joined.group(n=count(), s=total(left("v"))).relation
    result = pa.Table.from_batches(run(tree, options=options, join_metrics=metrics), tree.schema)
    plain = pa.Table.from_batches(run(tree), tree.schema)
    assert result.equals(plain)
    assert metrics.spills > 0


def cpu() -> AnyBackend:
    """The CPU's backend, faulty where it is to be."""
    return create(BackendName.CPU, BackendRequest())


@pytest.mark.few
@pytest.mark.parametrize("build_side", Side, ids=lambda s: f"build {s.value}")
@pytest.mark.parametrize("join_type", KEYED, ids=lambda t: t.value)
def test_memory_of_the_cpu_that_runs_out_at_any_call(join_type: JoinType, build_side: Side, seed: int) -> None:
    if build_side not in build_sides(join_type):
        pytest.skip("not to be built")
    left_table, right_table = sides(seed, [pa.int32()], (22, 19), KeyShape.UNIFORM)
    spec = keyed(join_type, left_table, right_table, condition=CONDITIONS["l.v < r.v"])
    run_spec = partial(
        run_join, spec, left_table, right_table,
        build_side=build_side, options=Options(batch_bytes=3000, candidate_pairs=40), batch_rows=9,
    )  # fmt: skip
    expected = oracle_join(left_table, right_table, spec)
    with failing_cpu() as counting:
        assert_same_rows(run_spec(backend=cpu()), expected, allow_empty=True)
    assert counting.faults == 0
    for number in range(1, counting.total_calls + 1):
        with failing_cpu(at={number}) as faulty:
            try:
                actual = run_spec(backend=cpu())
            except HostMemoryError:
                continue  # few rows do not fit: who asked for the join does it again
        assert faulty.faults == 1
        assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}, call {number}")


@pytest.mark.parametrize("how", [JoinType.INNER, JoinType.FULL], ids=lambda t: t.value)
def test_a_pipeline_joins_again_in_small_pieces_where_memory_of_the_cpu_runs_out(how: JoinType, seed: int) -> None:
    """At any call of the join: the pipeline's recovery is the layer that does it again."""
    left_table, right_table = sides(seed, [pa.int32()], (40, 37), KeyShape.UNIFORM)
    spec = keyed(how, left_table, right_table, condition=CONDITIONS["l.v < r.v"])
    node = Join(ExchangeSource(0, left_table.schema), ExchangeSource(1, right_table.schema), spec, Side.RIGHT)
    inputs = {0: left_table, 1: right_table}
    expected = oracle_join(left_table, right_table, spec)
    with failing_cpu() as counting:
        assert_same_rows(pa.Table.from_batches(run(node, inputs), node.schema), expected)
    assert counting.total_calls > 4
    for number in range(1, counting.total_calls + 1):
        metrics = PipelineMetrics()
        with failing_cpu(at={number}) as faulty:
            result = pa.Table.from_batches(run(node, inputs, metrics=metrics), node.schema)
        assert faulty.faults == 1
        assert sum(metrics.recovered.values()) == 1, number
        assert_same_rows(result, expected, context=f"seed {seed}, call {number}")


@pytest.mark.parametrize("join_type", KEYED, ids=lambda t: t.value)
def test_memory_of_the_cpu_that_runs_out_again_and_again(join_type: JoinType, seed: int) -> None:
    left_table, right_table = sides(seed, [pa.int32()], (40, 37), KeyShape.UNIFORM)
    spec = keyed(join_type, left_table, right_table)
    expected = oracle_join(left_table, right_table, spec)
    recovered = 0
    for every in (2, 3, 5, 7, 11, 29, 53):
        with failing_cpu(every=every) as faulty:
            try:
                actual = run_join(
                    spec,
                    left_table,
                    right_table,
                    backend=cpu(),
                    options=Options(batch_bytes=3000),
                    batch_rows=13,
                )
            except HostMemoryError:
                continue
        assert faulty.faults or faulty.total_calls < every
        assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}, every {every}")
        recovered += 1
    assert recovered


@pytest.mark.parametrize("condition", ["no condition", "l.v < r.v"])
def test_pairs_come_in_smaller_slices_where_memory_of_the_cpu_is_short(condition: str, seed: int) -> None:
    left_table, right_table = sides(seed, [pa.int32()], (300, 300), KeyShape.UNIFORM, distinct=4)
    spec = keyed(JoinType.FULL, left_table, right_table, condition=CONDITIONS[condition])
    metrics = JoinMetrics()
    with failing_cpu(max_rows=1500, operations={"slices"}) as faulty:
        actual = run_join(spec, left_table, right_table, backend=cpu(), metrics=metrics)
    assert metrics.retries == faulty.faults > 0
    assert_same_rows(actual, oracle_join(left_table, right_table, spec), context=f"seed {seed}")
