"""Build sides over their memory budget: answers, paths taken, and files removed whatever happens."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.spill import MAX_DIVISIONS
from gpujoin.errors import CorruptBlobError, JoinSpecError, SpillError
from gpujoin.model.backend import AnyBackend
from gpujoin.model.jointype import JoinType, Side
from gpujoin.testing import assert_same_rows
from tests.disks import Mount, flip_bit, spill_files
from tests.engine.support import (
    CONDITIONS,
    KEYED,
    batches,
    build_sides,
    force_collisions,
    keyed,
    run_join,
    sides,
)
from tests.faults import FaultyBackend
from tests.generate import KeyShape
from tests.oracle.join import oracle_join


def tight(directory: Path, **changes: object) -> Options:
    return Options(spill_dir=str(directory), memory_budget=8000).replace(**changes)


KEYS_OF_JOINS = [
    *((join_type, keys) for join_type in KEYED if join_type is not JoinType.NULL_AWARE_ANTI for keys in (0, 1, 2)),
    (JoinType.NULL_AWARE_ANTI, 1),
]
"""Join types, and how many keys they may have."""


@pytest.mark.few
@pytest.mark.parametrize("condition", ["no condition", "l.v < r.v"])
@pytest.mark.parametrize(("join_type", "keys"), KEYS_OF_JOINS, ids=lambda v: v.value if isinstance(v, JoinType) else v)
def test_spilled_joins(
    backend: AnyBackend, join_type: JoinType, condition: str, keys: int, tmp_path: Path, seed: int
) -> None:
    check_spilled(backend, join_type, condition, keys, tmp_path, seed)


def test_spilled_cross_joins(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    check_spilled(backend, JoinType.CROSS, "no condition", 0, tmp_path, seed)


def check_spilled(
    backend: AnyBackend, join_type: JoinType, condition: str, keys: int, tmp_path: Path, seed: int
) -> None:
    left, right = sides(seed, [pa.int64(), pa.string()][:keys], (130, 120))
    both = build_sides(join_type)
    turn = keys + (condition == "no condition")
    for equal in (False, True) if keys else (False,):
        spec = keyed(join_type, left, right, keys=keys, equal=equal, condition=CONDITIONS[condition])
        expected = oracle_join(left, right, spec)
        for build_side in (both[(turn + equal) % len(both)],) if keys else both:
            metrics = JoinMetrics()
            actual = run_join(
                spec, left, right, backend=backend, build_side=build_side, options=tight(tmp_path), batch_rows=17,
                metrics=metrics,
            )  # fmt: skip
            assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}, build {build_side.value}")
            assert metrics.spills > 1
            assert metrics.spill_bytes > 2000
            assert metrics.output_rows == expected.num_rows
            assert spill_files(tmp_path) == []


@pytest.mark.parametrize("budget", [pytest.param(1, marks=pytest.mark.extra), 200, 1000, 8_000, 1 << 30])
def test_the_budget_does_not_change_the_answer(backend: AnyBackend, budget: int, tmp_path: Path, seed: int) -> None:
    left, right = sides(seed, [pa.int64()], (120, 110), KeyShape.ZIPF)
    for join_type in (JoinType.FULL, JoinType.LEFT_ANTI):
        spec = keyed(join_type, left, right)
        metrics = JoinMetrics()
        actual = run_join(
            spec, left, right, backend=backend, options=tight(tmp_path, memory_budget=budget), metrics=metrics
        )
        assert_same_rows(actual, oracle_join(left, right, spec), context=f"seed {seed}")
        assert bool(metrics.spills) is (right.nbytes > budget // 4)


def test_one_hot_key_is_divided_by_position(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    left, right = sides(seed, [pa.int64()], (60, 900), KeyShape.HOT)
    spec = keyed(JoinType.FULL, left, right, left_output=(0, 1), right_output=(0, 1))
    metrics = JoinMetrics()
    actual = run_join(spec, left, right, backend=backend, options=tight(tmp_path, memory_budget=4000), metrics=metrics)
    assert_same_rows(actual, oracle_join(left, right, spec), context=f"seed {seed}")
    assert metrics.spills > 32  # 16 parts of each side, and slices of the part that hashing cannot divide


@pytest.mark.parametrize("join_type", KEYED, ids=lambda t: t.value)
def test_when_every_key_has_the_same_hash(
    backend: AnyBackend, join_type: JoinType, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = sides(seed, [pa.int64(), pa.string()][: 1 if join_type is JoinType.NULL_AWARE_ANTI else 2], (90, 90))
    count = 1 if join_type is JoinType.NULL_AWARE_ANTI else 2
    spec = keyed(join_type, left, right, keys=count)
    expected = oracle_join(left, right, spec)
    force_collisions(monkeypatch)
    for budget in (2000, 1 << 30):
        metrics = JoinMetrics()
        actual = run_join(
            spec, left, right, backend=backend, options=tight(tmp_path, memory_budget=budget), metrics=metrics
        )
        assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}, budget {budget}")
        assert bool(metrics.spills) is (budget == 2000)
        assert set(metrics.algorithms) <= {"empty", "hash", "hash_words", "hash_bytes"} or backend.name.value == "gpu"


def test_probing_several_times(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    left, right = sides(seed, [pa.int64()], (100, 100))
    spec = keyed(JoinType.FULL, left, right)
    for budget in (1000, 1 << 30):
        options = tight(tmp_path, memory_budget=budget)
        with HashJoin(spec, left.schema, right.schema, options=options, backend=backend) as join:
            join.build(batches(right, 30))
            result = [*join.probe(batches(left.slice(0, 50), 20)), *join.probe(batches(left.slice(50), 20))]
            result += join.finish()
        assert_same_rows(pa.Table.from_batches(result), oracle_join(left, right, spec), context=f"seed {seed}")


def test_a_pass_over_a_spilled_build_is_finished_once(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    left, right = sides(seed, [pa.int64()], (60, 300))
    spec = keyed(JoinType.FULL, left, right)
    with HashJoin(spec, left.schema, right.schema, backend=backend, options=tight(tmp_path)) as join:
        join.build(batches(right, 50))
        assert join.spilled
        assert list(join.probe(batches(left, 50))) == []
        assert_same_rows(pa.Table.from_batches(join.finish()), oracle_join(left, right, spec))
        with pytest.raises(JoinSpecError, match=r"finish\(\) was called before"):
            list(join.finish())
        with pytest.raises(JoinSpecError, match="begin another"):
            list(join.probe(batches(left, 50)))


def test_independent_passes_over_one_build(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    left, right = sides(seed, [pa.int64()], (100, 100))
    spec = keyed(JoinType.FULL, left, right)
    expected = oracle_join(left, right, spec)
    for budget in (1000, 1 << 30):
        options = tight(tmp_path, memory_budget=budget)
        with HashJoin(spec, left.schema, right.schema, options=options, backend=backend) as join:
            join.build(batches(right, 30))
            for _ in range(2):
                run, metrics = None, JoinMetrics()
                run = join.start(metrics)
                result = [*run.probe(batches(left, 20)), *run.finish()]
                run.close()
                assert_same_rows(pa.Table.from_batches(result), expected, context=f"seed {seed}")
                assert metrics.probe_rows == 100
        assert spill_files(tmp_path) == []


def spilled(backend: AnyBackend, directory: Path, seed: int) -> tuple[HashJoin, pa.Table]:
    left, right = sides(seed, [pa.int64()], (400, 400))
    spec = keyed(JoinType.FULL, left, right)
    join = HashJoin(spec, left.schema, right.schema, options=tight(directory, batch_bytes=100), backend=backend)
    join.build(batches(right, 40))
    assert len(spill_files(directory)) == 1
    assert list(directory.iterdir()) == []
    return join, left


def test_space_goes_when_the_consumer_stops_early(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    join, left = spilled(backend, tmp_path, seed)
    with join:
        assert list(join.probe(batches(left, 40))) == []
        stream = join.finish()
        assert next(stream).num_rows
        assert spill_files(tmp_path)
    assert spill_files(tmp_path) == []


def test_space_goes_when_nobody_closes(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    join, left = spilled(backend, tmp_path, seed)
    list(join.probe(batches(left, 40)))
    stream = join.finish()
    next(stream)
    del stream, join
    gc.collect()
    assert spill_files(tmp_path) == []


@pytest.mark.parametrize("failing", Side, ids=lambda s: s.value)
def test_space_goes_when_the_input_fails(backend: AnyBackend, tmp_path: Path, failing: Side, seed: int) -> None:
    left, right = sides(seed, [pa.int64()], (400, 400))

    def read(table: pa.Table, side: Side) -> Iterator[pa.RecordBatch]:
        yield from batches(table, 40)
        if side is failing:
            assert spill_files(tmp_path)
            raise ConnectionResetError("the input broke")

    def join_all() -> None:
        spec = keyed(JoinType.FULL, left, right)
        with HashJoin(spec, left.schema, right.schema, options=tight(tmp_path), backend=backend) as join:
            join.build(read(right, Side.RIGHT))
            list(join.probe(read(left, Side.LEFT)))

    with pytest.raises(ConnectionResetError):
        join_all()
    assert spill_files(tmp_path) == []


def test_a_join_of_many_probes_has_few_files(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    """However often rows come and parts are divided: one file for each side and division."""
    left, right = sides(seed, [pa.int64()], (80, 80))
    spec = keyed(JoinType.FULL, left, right)
    most = 0
    with HashJoin(spec, left.schema, right.schema, options=tight(tmp_path, memory_budget=1), backend=backend) as join:
        join.build(batches(right, 5))
        for batch in batches(left, 5):
            list(join.probe([batch]))
        rows = []
        for batch in join.finish():
            rows.append(batch)
            most = max(most, len(spill_files(tmp_path)))
    assert_same_rows(pa.Table.from_batches(rows), oracle_join(left, right, spec), context=f"seed {seed}")
    assert 4 <= most <= 2 * (MAX_DIVISIONS + 1)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_one_bit_of_spilled_rows_never_gives_another_answer(
    backend: AnyBackend, tmp_path: Path, encrypted: bool, seed: int, rng: np.random.Generator
) -> None:
    left, right = sides(seed, [pa.int64()], (100, 100))
    spec = keyed(JoinType.FULL, left, right)
    for _ in range(12):
        options = tight(tmp_path, spill_encryption=encrypted)
        with HashJoin(spec, left.schema, right.schema, options=options, backend=backend) as join:
            join.build(batches(right, 20))
            list(join.probe(batches(left, 20)))
            file = rng.choice(spill_files(tmp_path))
            flip_bit(int(file), int(rng.integers(8 * os.fstat(file).st_size)))
            with pytest.raises(CorruptBlobError, match=str(tmp_path)):
                list(join.finish())
    assert spill_files(tmp_path) == []


def test_a_truncated_file_gives_no_rows(
    backend: AnyBackend, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    left, right = sides(seed, [pa.int64()], (100, 100))
    spec = keyed(JoinType.FULL, left, right)
    for _ in range(10):
        with HashJoin(spec, left.schema, right.schema, options=tight(tmp_path), backend=backend) as join:
            join.build(batches(right, 20))
            list(join.probe(batches(left, 20)))
            file = rng.choice(spill_files(tmp_path))
            os.ftruncate(file, int(rng.integers(os.fstat(file).st_size)))
            with pytest.raises(CorruptBlobError, match="truncated"):
                list(join.finish())


@pytest.mark.parametrize("side", Side, ids=lambda s: s.value)
def test_a_full_disk_is_an_error_that_leaves_nothing(backend: AnyBackend, tmpfs: Mount, side: Side, seed: int) -> None:
    place = tmpfs("size=64k")
    free = os.statvfs(place).f_bfree
    large = {side: 20_000, side.other: 300}
    left, right = sides(seed, [pa.int64()], (large[Side.LEFT], large[Side.RIGHT]))
    spec = keyed(JoinType.INNER, left, right)
    with pytest.raises(SpillError, match=f"{place}: No space left on device"):
        run_join(spec, left, right, backend=backend, options=tight(place), batch_rows=500)
    assert os.statvfs(place).f_bfree == free


def test_an_unwritable_directory_is_an_error_at_once(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    (tmp_path / "file").write_text("")
    left, right = sides(seed, [pa.int64()], (400, 400))
    with HashJoin(
        keyed(JoinType.INNER, left, right), left.schema, right.schema, options=tight(tmp_path / "file"), backend=backend
    ) as join, pytest.raises(SpillError, match=r"spillDir.*file"):  # fmt: skip
        join.build(batches(right, 40))


def test_spilling_under_faults(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    left, right = sides(seed, [pa.int64()], (120, 120))
    for join_type in (JoinType.FULL, JoinType.NULL_AWARE_ANTI, JoinType.EXISTENCE):
        spec = keyed(join_type, left, right, condition=CONDITIONS["l.v < r.v"])
        expected = oracle_join(left, right, spec)
        for every in (1, 2, 5, 17):
            faulty = FaultyBackend(backend, every=every)
            actual = run_join(spec, left, right, backend=faulty, options=tight(tmp_path), batch_rows=30)
            assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}, every {every}")
            assert faulty.faults
            assert spill_files(tmp_path) == []


def test_misuse_is_refused(backend: AnyBackend, seed: int) -> None:
    left, right = sides(seed, [pa.int64()], (5, 5))
    join = HashJoin(keyed(JoinType.INNER, left, right), left.schema, right.schema, backend=backend)
    with pytest.raises(JoinSpecError, match=r"build\(\) before"):
        list(join.probe(batches(left, 5)))
    with pytest.raises(JoinSpecError, match=r"build\(\) before"):
        list(join.finish())
    join.build(batches(right, 5))
    with pytest.raises(JoinSpecError, match="twice"):
        join.build(batches(right, 5))
    with pytest.raises(JoinSpecError, match="left batch has columns"):
        list(join.probe(batches(left.drop_columns(["v"]), 5)))
    join.close()
    join.close()
    with pytest.raises(JoinSpecError, match="builds its right side"):
        HashJoin(keyed(JoinType.NULL_AWARE_ANTI, left, right), left.schema, right.schema, build_side=Side.LEFT)
