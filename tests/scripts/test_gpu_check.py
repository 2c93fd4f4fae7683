"""The parts of ``make gpu-check`` that need no GPU, its workloads on the other backends."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpujoin.backends.cudf import unavailable
from gpujoin.backends.registry import BackendRequest, create
from gpujoin.errors import DeviceMemoryError
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HostBackend
from tests.faults import FaultyBackend

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


check, faults, smoke = (load(name) for name in ("gpu_check", "gpu_faults", "gpu_smoke"))


@pytest.fixture
def cpu() -> AnyBackend:
    return create(BackendName.CPU, BackendRequest())


def test_operations_agree_between_backends(cpu: AnyBackend) -> None:
    wanted = faults.operations(cpu)
    found = faults.operations(HostBackend())
    faults.same(found, wanted)
    assert {build.algorithm for _, keys, _ in faults.key_tables() for build in [HostBackend().build(keys)]} == {
        "cudf direct", "cudf sorted", "cudf sorted fingerprint",
    }  # fmt: skip
    with pytest.raises(AssertionError):
        faults.same([*found[:-1], found[0]], wanted)


def test_joins_agree_between_backends(cpu: AnyBackend) -> None:
    for found, wanted in zip(faults.whole_joins(HostBackend()), faults.whole_joins(cpu), strict=True):
        assert_same_rows(found, wanted)


class Memory:
    """Stands for a device whose k-th allocation fails: the k-th operation of a faulty backend."""

    def __init__(self) -> None:
        self.fail_at = self.allocations = 0
        self.failed: list[int] = []

    def arm(self, fail_at: int) -> None:
        self.fail_at, self.allocations = fail_at, 0

    def attempt(self) -> bool:
        backend = FaultyBackend(HostBackend(), at=(self.fail_at,))
        try:
            for _, build, probe in faults.key_tables():
                backend.build(backend.from_arrow(build)).probe(backend.from_arrow(probe))
        except DeviceMemoryError:
            self.failed.append(self.fail_at)
            return True
        finally:
            self.allocations = backend.total_calls
        return False


def test_each_allocation_fails_once() -> None:
    memory = Memory()
    tried, total = faults.each_fault(memory, memory.attempt, time.monotonic() + 600)
    assert tried == total == 16
    assert memory.failed == list(range(1, 17))
    tried, total = faults.each_fault(memory, memory.attempt, time.monotonic())
    assert (tried, total) == (1, 16)


def test_a_failing_resource_counts_and_fails() -> None:
    pytest.importorskip("rmm", reason='no RMM: pip install ".[cu13]"')

    class Upstream:
        def allocate(self, nbytes: int, stream: Any) -> int:
            return 4096 + nbytes

        def deallocate(self, pointer: int, nbytes: int, stream: Any) -> None:
            assert pointer == 4096 + nbytes

    memory = faults.FailingResource(Upstream())
    memory.arm(2)
    pointer = memory._allocate(16, None)
    with pytest.raises(MemoryError, match="allocation 2"):
        memory._allocate(16, None)
    assert memory.held == {pointer: 16}
    memory._deallocate(pointer, 16, None)
    assert not memory.held


def test_smoke_workloads_agree_between_backends(cpu: AnyBackend) -> None:
    def total(table: Any) -> int:
        return int(table.column(0).to_numpy().sum())

    def cpu_total(frame: Any) -> int:
        import pyarrow as pa

        return total(pa.Table.from_batches([cpu.to_arrow(frame, pa.schema([("k", pa.int64())]))]))

    algorithms = set()
    for make in smoke.workloads(12).values():
        build, probe = make()
        run, chosen = smoke.by_backend(HostBackend(), build, probe, total)
        other, _ = smoke.by_backend(cpu, build, probe, cpu_total)
        _, answer = smoke.best(run, 1)
        assert answer == other()
        assert answer[0] > 0
        algorithms.update(chosen)
    assert algorithms == {"cudf direct", "cudf sorted"}


def test_a_run_that_changes_its_answer_is_found() -> None:
    answers = iter([(1, 2, 3), (1, 2, 4)])
    with pytest.raises(AssertionError, match="two runs"):
        smoke.best(lambda: next(answers))


def test_ratios_are_geometric_means() -> None:
    rows = [
        ("a", "gpujoin", 1.0),
        ("a", "cuDF", 2.0),
        ("b", "gpujoin", 1.0),
        ("b", "cuDF", 8.0),
        ("b", "CPU", 9.0),
    ]
    told = check.ratios([{"workload": w, "engine": e, "seconds": s} for w, e, s in rows])
    assert "4.00x cuDF over 2" in told
    assert "9.00x CPU over 1" in told


def test_speedups_of_the_kernels_are_geometric_means() -> None:
    rows = [("a", "auto", 1.0), ("a", "cuDF", 2.0), ("b", "auto", 1.0), ("b", "cuDF", 8.0), ("c", "auto", None),
            ("c", "cuDF", 1.0), ("a", "csr", 9.0)]  # fmt: skip
    results = [{"workload": w, "engine": e, "seconds": s} for w, e, s in rows]
    told = check.speedups({"results": results, "skipped": []})
    assert told == "4.00x cuDF over 2 workloads, worst 2.00x"
    told = check.speedups({"results": [], "skipped": ["a", "b"]})
    assert told == "nothing to compare; no time for 2"


def test_commands_are_judged() -> None:
    status, lines = check.run([sys.executable, "-c", "print('one'); print('[2]'); raise SystemExit(3)"], 60)
    assert (status, lines) == (3, ["one", "[2]"])
    assert check.last_json(lines) == [2]
    assert check.judged("x", status, lines, "said", None).outcome == "failed"
    assert check.judged("x", 0, lines, "said", None).outcome == "passed"
    assert check.run(["/no/such/command"], 5)[0] == 127
    assert check.last_json([]) is None
    assert check.last_json(["text"]) is None


def is_running(process: str) -> bool:
    """Whether there is such a process, other than one that has ended and that nobody has asked after."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_that_takes_too_long_is_ended_with_its_children() -> None:
    parent = "import subprocess; child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); child.wait()"
    status, lines = check.run([sys.executable, "-c", parent], 2.0)
    assert status is None
    child, *_ = lines  # after it what Python says of the interrupt
    deadline = time.monotonic() + 60
    while is_running(child):
        assert time.monotonic() < deadline, "the child outlives its parent"
        time.sleep(0.01)
    assert check.judged("x", None, lines, "", None).summary.startswith("took too long")


def test_the_report_tells_failures(tmp_path: Path) -> None:
    suite = {
        "machine": ["GPU 0: X"], "versions": {"cupy": "14"},
        "tests": [{"name": "t::bad", "outcome": "failed", "message": "one is not two"}],
    }  # fmt: skip
    timed = [{"workload": "a", "engine": "cuDF", "algorithm": "hash", "output_rows": 3, "seconds": 0.001}]
    phases = [
        check.Phase("tests", "failed", 1.0, "1 failed", suite, ["last line"]),
        check.Phase("smoke benchmark", "passed", 1.0, "ok", timed),
    ]
    text = check.render(phases)
    for wanted in ("**FAILED**", "GPU 0: X", "one is not two", "last line", "| a | cuDF | hash | 3 | 1.00 |"):
        assert wanted in text
    assert "**Passed**" in check.render(phases[1:])


def test_without_a_gpu_one_line_and_status_two(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    if unavailable() is None:
        pytest.skip("this machine has a GPU")
    monkeypatch.setenv("GPU_CHECK_OUT", str(tmp_path / "out"))
    done = subprocess.run([sys.executable, ROOT / "scripts" / "gpu_check.py"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("gpu-check: nothing to check here: gpu backend: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", check.LIMITS)
def test_no_part_takes_the_time_of_another(command: str) -> None:
    """All parts of a command end within ten minutes, each in time of its own."""
    limits = check.LIMITS[command]
    assert sum(limits.values()) <= check.BUDGET_SECONDS <= 600 - 2 * check.GRACE_SECONDS
    for budget in (check.BUDGET_SECONDS, 200.0, 40.0):
        left_over = budget
        for name in limits:
            share = check.share_of(name, limits, left_over)
            assert share >= (0 if budget < 200 else check.LEAST.get(name, 0))
            assert budget < 200 or share > 15 or name in ("memcheck", "large_queries")
            left_over -= share
        assert left_over == pytest.approx(0)
    *_, last = limits
    assert check.share_of(last, limits, 150.0) == 150.0, "what the others left over"


INTERRUPTED = """
import time
try:
    print("begun", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("report", flush=True)
    {then}
"""


def test_a_command_that_takes_too_long_may_write_its_report() -> None:
    status, lines = check.run([sys.executable, "-c", INTERRUPTED.format(then="raise SystemExit(0)")], 2.0)
    assert (status, lines) == (None, ["begun", "report"])


def test_a_command_that_does_not_end_when_interrupted_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "GRACE_SECONDS", 0.5)
    status, lines = check.run([sys.executable, "-c", INTERRUPTED.format(then="time.sleep(600)")], 2.0)
    assert (status, lines) == (None, ["begun", "report"])


def test_failures_of_one_kind_are_one_line() -> None:
    tests = [{"name": f"t::{n}", "message": "no device"} for n in range(7)] + [{"name": "u", "message": "1 != 2"}]
    first, second = check.failures(tests)
    assert first == "- `t::0`, `t::1`, `t::2`, `t::3`, `t::4` and 2 more: no device"
    assert second == "- `u`: 1 != 2"


def test_queries_are_skipped_for_want_of_what_they_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(check, "run", lambda command, limit: pytest.fail("nothing is to be run"))
    monkeypatch.setattr(check, "without_spark", lambda: "no Spark")
    assert check.queries(100.0, tmp_path).summary == "no Spark"
    monkeypatch.setattr(check, "without_spark", lambda: None)
    monkeypatch.setattr(check, "has_generator", lambda: False)
    monkeypatch.delenv("GPU_CHECK_TPCH", raising=False)
    assert "tpchgen-cli" in check.queries(100.0, tmp_path).summary
    monkeypatch.setenv("GPU_CHECK_TPCH", str(tmp_path))
    assert check.queries(1.0, tmp_path).summary == "the other parts took all the time"


def test_tpch_runs_at_two_scales(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All queries at scale 1, some at scale 10, whose results are files of their own."""
    commands: list[list[str]] = []

    def run(command: list[str], limit: float) -> tuple[int, list[str]]:
        commands.append(command)
        return 0, ["done"]

    monkeypatch.setattr(check, "run", run)
    monkeypatch.setattr(check, "without_spark", lambda: None)
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("GPU_CHECK_TPCH", "one")
    monkeypatch.setenv("GPU_CHECK_TPCH_10", "ten")
    small, large = check.queries(100.0, tmp_path), check.large_queries(100.0, tmp_path)
    assert [phase.name for phase in (small, large)] == ["TPC-H", "TPC-H at scale 10"]
    given = [dict(itertools.pairwise(command)) for command in commands]
    assert [(g["--sf"], g["--data"], g["--name"], g.get("--queries")) for g in given] == [
        ("1", "one", "tpch-gpu", None), ("10", "ten", "tpch-gpu-10", check.LARGE_QUERIES),
    ]  # fmt: skip


def test_all_parts_run_and_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU pretended, every part fails here for want of it, and the report says so."""
    if unavailable() is None:
        pytest.skip("this machine has a GPU")
    monkeypatch.setenv("GPU_CHECK_OUT", str(tmp_path))
    monkeypatch.setattr(check, "why_not", lambda: None)
    passes = check.Phase("tests", "passed", 0.0, "fine")
    for name in ("tests", "kernel_tests"):
        monkeypatch.setattr(check, name, lambda limit, out, arguments: passes)
    for name in ("queries", "large_queries"):
        monkeypatch.setattr(check, name, lambda limit, out: check.Phase("TPC-H", "skipped", 0.0, "slow"))
    assert check.main([]) == 1
    outcomes = {}
    for command in check.COMMANDS:
        with tarfile.open(tmp_path / f"gpu-check-{command}.tar.gz") as archive:
            names = set(archive.getnames())
            packed = archive.extractfile(f"gpu-check-{command}/report.json")
            assert packed is not None
            record = json.load(packed)
        assert f"gpu-check-{command}/report.md" in names
        assert record["passed"] is (command == "kernels"), record
        outcomes.update({phase["name"]: phase["outcome"] for phase in record["phases"]})
    assert outcomes["tests"] == "passed"
    assert outcomes["smoke benchmark"] == outcomes["memory faults"] == outcomes["kernels"] == "failed"
    report = (tmp_path / "gpu-check-engine.md").read_text()
    assert "libcuda" in report or "No module named" in report
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"gpu-check-{command}.{kind}" for command in check.COMMANDS for kind in ("md", "tar.gz")
    )


def test_one_command_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[float, list[str]]] = []

    def tests(limit: float, out: Path, arguments: list[str]) -> Any:
        given.append((limit, arguments))
        return check.Phase("kernel tests", "passed", 0.0, "fine")

    for name in ("kernels_memcheck", "kernels_racecheck"):
        monkeypatch.setattr(check, name, lambda limit: check.Phase("memcheck", "skipped", 0.0, "none"))
    monkeypatch.setattr(check, "kernel_tests", tests)
    monkeypatch.setattr(check, "why_not", lambda: None)
    monkeypatch.setenv("GPU_CHECK_OUT", str(tmp_path))
    monkeypatch.setenv("GPU_CHECK_SECONDS", "56")
    assert check.main(["kernels", "-k", "hash"]) == 0
    ((limit, arguments),) = given
    assert limit == pytest.approx(0.75 * 56 * 50 / 130)
    assert arguments == ["-k", "hash"]
    assert {path.name for path in tmp_path.iterdir()} == {"gpu-check-kernels.md", "gpu-check-kernels.tar.gz"}
