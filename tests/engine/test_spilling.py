"""Build sides over their memory budget: answers, paths taken, and files removed whatever happens."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.engine.hashjoin import HashJoin
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import ConfigurationError, CorruptBlobError, JoinSpecError
from gpujoin.model.backend import AnyBackend
from gpujoin.model.jointype import JoinType, Side
from gpujoin.testing.compare import assert_same_rows
from gpujoin.testing.faults import FaultyBackend
from gpujoin.testing.generate import KeyShape
from gpujoin.testing.oracle import oracle_join
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


def tight(directory: Path, **changes: object) -> Options:
    return Options(spill_dir=str(directory), memory_budget=2000).replace(**changes)


@pytest.mark.parametrize("keys", [0, 1, 2])
@pytest.mark.parametrize("condition", ["no condition", "l.v < r.v"])
@pytest.mark.parametrize("join_type", [JoinType.CROSS, *KEYED], ids=lambda t: t.value)
def test_spilled_joins(
    backend: AnyBackend, join_type: JoinType, condition: str, keys: int, tmp_path: Path, seed: int
) -> None:
    if join_type is JoinType.CROSS and (keys or condition != "no condition"):
        pytest.skip("a cross join has neither keys nor condition")
    if join_type is JoinType.NULL_AWARE_ANTI and keys != 1:
        pytest.skip("a null-aware anti join has one key")
    one, two = sides(seed, [pa.int64(), pa.string()][:keys], (130, 120))
    both = build_sides(join_type)
    turn = keys + (condition == "no condition")
    for equal in (False, True) if keys else (False,):
        spec = keyed(join_type, one, two, keys=keys, equal=equal, condition=CONDITIONS[condition])
        expected = oracle_join(one, two, spec)
        for build_side in (both[(turn + equal) % len(both)],) if keys else both:
            metrics = JoinMetrics()
            actual = run_join(
                spec, one, two, backend=backend, build_side=build_side, options=tight(tmp_path), batch_rows=17,
                metrics=metrics,
            )  # fmt: skip
            assert_same_rows(
                actual, expected, allow_empty=True, context=f"seed {seed}, build {build_side.value}"
            )
            assert metrics.spills > 1
            assert metrics.spill_bytes > 2000
            assert metrics.output_rows == expected.num_rows
            assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("budget", [1, 200, 1000, 8_000, 1 << 30])
def test_the_budget_does_not_change_the_answer(
    backend: AnyBackend, budget: int, tmp_path: Path, seed: int
) -> None:
    one, two = sides(seed, [pa.int64()], (120, 110), KeyShape.ZIPF)
    for join_type in (JoinType.FULL, JoinType.LEFT_ANTI):
        spec = keyed(join_type, one, two)
        metrics = JoinMetrics()
        actual = run_join(
            spec, one, two, backend=backend, options=tight(tmp_path, memory_budget=budget), metrics=metrics
        )
        assert_same_rows(actual, oracle_join(one, two, spec), context=f"seed {seed}")
        assert bool(metrics.spills) is (two.nbytes > budget)


def test_one_hot_key_is_divided_by_position(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    one, two = sides(seed, [pa.int64()], (60, 900), KeyShape.HOT)
    spec = keyed(JoinType.FULL, one, two, left_output=(0, 1), right_output=(0, 1))
    metrics = JoinMetrics()
    actual = run_join(
        spec, one, two, backend=backend, options=tight(tmp_path, memory_budget=4000), metrics=metrics
    )
    assert_same_rows(actual, oracle_join(one, two, spec), context=f"seed {seed}")
    assert metrics.spills > 32  # 16 parts of each side, and slices of the part that hashing cannot divide


@pytest.mark.parametrize("join_type", KEYED, ids=lambda t: t.value)
def test_when_every_key_has_the_same_hash(
    backend: AnyBackend, join_type: JoinType, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = sides(
        seed, [pa.int64(), pa.string()][: 1 if join_type is JoinType.NULL_AWARE_ANTI else 2], (90, 90)
    )
    count = 1 if join_type is JoinType.NULL_AWARE_ANTI else 2
    spec = keyed(join_type, one, two, keys=count)
    expected = oracle_join(one, two, spec)
    force_collisions(monkeypatch)
    for budget in (2000, 1 << 30):
        metrics = JoinMetrics()
        actual = run_join(
            spec, one, two, backend=backend, options=tight(tmp_path, memory_budget=budget), metrics=metrics
        )
        assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}, budget {budget}")
        assert bool(metrics.spills) is (budget == 2000)
        assert (
            set(metrics.algorithms) <= {"empty", "hash", "hash_words", "hash_bytes"}
            or backend.name.value == "gpu"
        )


def test_probing_several_times(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    one, two = sides(seed, [pa.int64()], (100, 100))
    spec = keyed(JoinType.FULL, one, two)
    for budget in (1000, 1 << 30):
        options = tight(tmp_path, memory_budget=budget)
        with HashJoin(spec, one.schema, two.schema, options=options, backend=backend) as join:
            join.build(batches(two, 30))
            found = [*join.probe(batches(one.slice(0, 50), 20)), *join.probe(batches(one.slice(50), 20))]
            found += join.finish()
        assert_same_rows(pa.Table.from_batches(found), oracle_join(one, two, spec), context=f"seed {seed}")


def test_a_pass_over_a_spilled_build_is_finished_once(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    one, two = sides(seed, [pa.int64()], (60, 300))
    spec = keyed(JoinType.FULL, one, two)
    with HashJoin(spec, one.schema, two.schema, backend=backend, options=tight(tmp_path)) as join:
        join.build(batches(two, 50))
        assert join.spilled
        assert list(join.probe(batches(one, 50))) == []
        assert_same_rows(pa.Table.from_batches(join.finish()), oracle_join(one, two, spec))
        with pytest.raises(JoinSpecError, match=r"finish\(\) was called before"):
            list(join.finish())
        with pytest.raises(JoinSpecError, match="begin another"):
            list(join.probe(batches(one, 50)))


def test_independent_passes_over_one_build(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    one, two = sides(seed, [pa.int64()], (100, 100))
    spec = keyed(JoinType.FULL, one, two)
    expected = oracle_join(one, two, spec)
    for budget in (1000, 1 << 30):
        options = tight(tmp_path, memory_budget=budget)
        with HashJoin(spec, one.schema, two.schema, options=options, backend=backend) as join:
            join.build(batches(two, 30))
            for _ in range(2):
                run, metrics = None, JoinMetrics()
                run = join.start(metrics)
                found = [*run.probe(batches(one, 20)), *run.finish()]
                run.close()
                assert_same_rows(pa.Table.from_batches(found), expected, context=f"seed {seed}")
                assert metrics.probe_rows == 100
        assert list(tmp_path.iterdir()) == []


def spilled(backend: AnyBackend, directory: Path, seed: int) -> tuple[HashJoin, pa.Table]:
    one, two = sides(seed, [pa.int64()], (400, 400))
    spec = keyed(JoinType.FULL, one, two)
    join = HashJoin(spec, one.schema, two.schema, options=tight(directory, batch_bytes=100), backend=backend)
    join.build(batches(two, 40))
    assert list(directory.iterdir())
    return join, one


def test_files_go_when_the_consumer_stops_early(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    join, one = spilled(backend, tmp_path, seed)
    with join:
        assert list(join.probe(batches(one, 40))) == []
        stream = join.finish()
        assert next(stream).num_rows
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


def test_files_go_when_nobody_closes(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    join, one = spilled(backend, tmp_path, seed)
    list(join.probe(batches(one, 40)))
    stream = join.finish()
    next(stream)
    del stream, join
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", Side, ids=lambda s: s.value)
def test_files_go_when_the_input_fails(backend: AnyBackend, tmp_path: Path, failing: Side, seed: int) -> None:
    one, two = sides(seed, [pa.int64()], (400, 400))

    def read(table: pa.Table, side: Side) -> Iterator[pa.RecordBatch]:
        yield from batches(table, 40)
        if side is failing:
            raise ConnectionResetError("the input broke")

    def join_all() -> None:
        spec = keyed(JoinType.FULL, one, two)
        with HashJoin(spec, one.schema, two.schema, options=tight(tmp_path), backend=backend) as join:
            join.build(read(two, Side.RIGHT))
            assert list(tmp_path.iterdir())
            list(join.probe(read(one, Side.LEFT)))

    with pytest.raises(ConnectionResetError):
        join_all()
    assert list(tmp_path.iterdir()) == []


PROGRAM = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from gpujoin.backends.registry import BackendRequest, create
    from gpujoin.model.backend import BackendName
    from tests.engine.test_spilling import batches, spilled

    join, one = spilled(create(BackendName.CPU, BackendRequest()), Path(sys.argv[1]), 1)
    list(join.probe(batches(one, 40)))
    stream = join.finish()
    next(stream)
    print("spilled", flush=True)
    match sys.argv[2]:
        case "exit": sys.exit(3)
        case "raise": raise RuntimeError("unhandled")
        case "fork":
            child = os.fork()
            if not child:
                del join, stream
                sys.exit(0)
            os.waitpid(child, 0)
            print(len(list(Path(sys.argv[1]).iterdir())), flush=True)
        case "wait": time.sleep(600)
    """
)


def program(directory: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory), how],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip


@pytest.mark.parametrize(("how", "code"), [("exit", 3), ("raise", 1)])
def test_files_go_at_interpreter_exit(tmp_path: Path, how: str, code: int) -> None:
    process = program(tmp_path, how)
    out, _ = process.communicate(timeout=300)
    assert (out, process.returncode) == ("spilled\n", code)
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_remove_its_parents_files(tmp_path: Path) -> None:
    out, _ = program(tmp_path, "fork").communicate(timeout=300)
    assert out.splitlines()[-1] != "0"
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(
    backend: AnyBackend, tmp_path: Path, seed: int
) -> None:
    process = program(tmp_path, "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "spilled\n"
    alive, _ = spilled(backend, tmp_path, seed)
    alive.close()
    assert list(tmp_path.iterdir()), "a living process's files were taken from it"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    for _ in range(50):
        join, _ = spilled(backend, tmp_path, seed)
        join.close()
        if not list(tmp_path.iterdir()):
            break
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []


CROWD = textwrap.dedent(
    """
    import sys
    from gpujoin.config import Options
    from gpujoin.engine.metrics import JoinMetrics
    from gpujoin.engine.spill import SpillDirectory

    for _ in range(150):
        with SpillDirectory(Options(spill_dir=sys.argv[1]), JoinMetrics()) as directory:
            (directory.path / "file").write_bytes(b"x")
            assert (directory.path / "file").exists()
    """
)


def test_processes_that_share_a_directory_leave_each_other_alone(tmp_path: Path) -> None:
    crowd = [
        subprocess.Popen([sys.executable, "-c", CROWD, str(tmp_path)], cwd=Path(__file__).parents[2])
        for _ in range(3)
    ]
    assert [process.wait(timeout=600) for process in crowd] == [0, 0, 0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "append", "swap"])
def test_a_damaged_file_is_named_and_gives_no_rows(
    backend: AnyBackend, tmp_path: Path, damage: str, seed: int
) -> None:
    join, one = spilled(backend, tmp_path, seed)
    with join:
        list(join.probe(batches(one, 40)))
        files = sorted(
            (f for f in tmp_path.rglob("*.arrow") if f.stat().st_size), key=lambda f: f.stat().st_size
        )
        victim = files[-1]
        data = bytearray(victim.read_bytes())
        match damage:
            case "truncate":
                victim.write_bytes(data[:-9])
            case "append":
                victim.write_bytes(data + b"12345678")
            case "flip":
                data[len(data) // 2] ^= 1
                victim.write_bytes(data)
            case "remove":
                victim.unlink()
            case "swap":
                victim.write_bytes(bytes(len(data)))
        with pytest.raises(CorruptBlobError, match=victim.name):
            list(join.finish())
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_directory_is_an_error_at_once(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    (tmp_path / "file").write_text("")
    one, two = sides(seed, [pa.int64()], (400, 400))
    with HashJoin(
        keyed(JoinType.INNER, one, two), one.schema, two.schema, options=tight(tmp_path / "file"), backend=backend
    ) as join, pytest.raises(ConfigurationError, match=r"spillDir.*file"):  # fmt: skip
        join.build(batches(two, 40))


def test_spilling_under_faults(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    one, two = sides(seed, [pa.int64()], (120, 120))
    for join_type in (JoinType.FULL, JoinType.NULL_AWARE_ANTI, JoinType.EXISTENCE):
        spec = keyed(join_type, one, two, condition=CONDITIONS["l.v < r.v"])
        expected = oracle_join(one, two, spec)
        for every in (1, 2, 5, 17):
            faulty = FaultyBackend(backend, every=every)
            actual = run_join(spec, one, two, backend=faulty, options=tight(tmp_path), batch_rows=30)
            assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}, every {every}")
            assert faulty.faults
            assert list(tmp_path.iterdir()) == []


def test_misuse_is_refused(backend: AnyBackend, seed: int) -> None:
    one, two = sides(seed, [pa.int64()], (5, 5))
    join = HashJoin(keyed(JoinType.INNER, one, two), one.schema, two.schema, backend=backend)
    with pytest.raises(JoinSpecError, match=r"build\(\) before"):
        list(join.probe(batches(one, 5)))
    with pytest.raises(JoinSpecError, match=r"build\(\) before"):
        list(join.finish())
    join.build(batches(two, 5))
    with pytest.raises(JoinSpecError, match="twice"):
        join.build(batches(two, 5))
    with pytest.raises(JoinSpecError, match="left batch has columns"):
        list(join.probe(batches(one.drop_columns(["v"]), 5)))
    join.close()
    join.close()
    with pytest.raises(JoinSpecError, match="builds its right side"):
        HashJoin(keyed(JoinType.NULL_AWARE_ANTI, one, two), one.schema, two.schema, build_side=Side.LEFT)
