"""GPU slots, held and lost by real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.errors import ConfigurationError
from gpujoin.model.backend import BackendName
from gpujoin.model.relations import ExchangeSource, Limit
from gpujoin.spark.worker import devices as devices_module
from gpujoin.spark.worker import slots
from gpujoin.spark.worker.devices import Device
from gpujoin.spark.worker.record import TaskRecord
from gpujoin.spark.worker.slots import DIRECTORY_VARIABLE, GpuSlots, Slot, slot_directory
from gpujoin.spark.worker.stage import RunStage
from gpujoin.spark.worker.task import Task
from gpujoin.spark.worker.taskreads import TaskReads
from tests.planted import UNSAFE, plant

_HOLD = """
import sys, time
from pathlib import Path
from gpujoin.spark.worker.slots import GpuSlots
slot = GpuSlots(int(sys.argv[2]), Path(sys.argv[1])).acquire(sys.argv[3].split(","), float(sys.argv[4]), *sys.argv[5:])
print("none" if slot is None else f"{slot.gpu} {slot.number} {slot.waited:.3f}", flush=True)
time.sleep(600)
"""


class Holder:
    """A process that takes a slot and keeps it."""

    def __init__(self, directory: Path, per_gpu: int, gpus: str = "0", timeout: float = 0.0, *task: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(directory), str(per_gpu), gpus, str(timeout), *task],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def said(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def holders() -> Iterator[list[Holder]]:
    started: list[Holder] = []
    yield started
    for holder in started:
        holder.kill()


def test_a_killed_process_frees_its_slot(tmp_path: Path, holders: list[Holder]) -> None:
    holders.append(Holder(tmp_path, 1))
    assert holders[0].said()[:2] == ["0", "0"]
    slots = GpuSlots(1, tmp_path)
    assert slots.count_held("0") == 1
    assert slots.acquire(["0"], 0.0) is None
    holders[0].kill()
    slot = slots.acquire(["0"], 60.0)
    assert slot is not None
    slot.release()


def test_no_more_processes_than_slots(tmp_path: Path, holders: list[Holder]) -> None:
    holders.extend(Holder(tmp_path, 2) for _ in range(4))
    answers = [tuple(h.said()[:2]) for h in holders]
    assert sorted(answers) == [("0", "0"), ("0", "1"), ("none",), ("none",)]
    assert GpuSlots(2, tmp_path).count_held("0") == 2


def test_a_waiting_process_gets_the_slot_of_a_killed_one(tmp_path: Path, holders: list[Holder]) -> None:
    holders.append(Holder(tmp_path, 1))
    holders[0].said()
    holders.append(Holder(tmp_path, 1, timeout=300.0))
    time.sleep(1.0)  # by then it has asked, as a rule
    holders[0].kill()
    gpu, number, _ = holders[1].said()
    assert (gpu, number) == ("0", "0")


def test_the_timeout_is_kept(tmp_path: Path) -> None:
    slots = GpuSlots(1, tmp_path)
    with slots.acquire(["0"], 0.0) or pytest.fail("the only slot was taken"):
        start = time.monotonic()
        assert slots.acquire(["0"], 0.3) is None
        assert time.monotonic() - start >= 0.3
    assert slots.count_held("0") == 0


def test_processes_spread_over_gpus_and_gpus_are_apart(tmp_path: Path) -> None:
    slots = GpuSlots(2, tmp_path)
    taken = [slots.acquire(["0", "GPU-8f/2"], 0.0) for _ in range(5)]
    assert [None if s is None else (s.gpu, s.number) for s in taken] == [
        ("0", 0), ("GPU-8f/2", 0), ("0", 1), ("GPU-8f/2", 1), None,
    ]  # fmt: skip
    assert slots.acquire(["1"], 0.0) is not None
    for slot in taken:
        if slot is not None:
            slot.release()
            slot.release()
    assert slots.count_held("0") == slots.count_held("GPU-8f/2") == 0


def test_a_subprocess_does_not_keep_the_slot(tmp_path: Path) -> None:
    slots = GpuSlots(1, tmp_path)
    slot = slots.acquire(["0"], 0.0)
    assert slot is not None
    child = subprocess.Popen(["sleep", "600"])
    try:
        slot.release()
        assert slots.count_held("0") == 0
    finally:
        child.kill()
        child.wait()


def test_the_directory_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "container"))
    assert str(os.getuid()) in slot_directory().name
    assert not str(slot_directory()).startswith(str(tmp_path))
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "here"))
    assert slot_directory() == tmp_path / "here"
    assert GpuSlots(1).acquire(["0"], 0.0) is not None
    assert (tmp_path / "here").stat().st_mode & 0o777 == 0o700


def test_a_link_or_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigurationError, match="GPUJOIN_SLOT_DIR"):
        GpuSlots(1, tmp_path / "link")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="GPUJOIN_SLOT_DIR"):
        GpuSlots(1, tmp_path / "file" / "below")


def test_workers_of_one_task_share_a_slot(tmp_path: Path, holders: list[Holder]) -> None:
    """A second worker joins at once, another task does not, and the last one to go frees the slot."""
    holders.append(Holder(tmp_path, 1, "0", 0.0, "one"))
    assert holders[0].said()[:2] == ["0", "0"]
    slots = GpuSlots(1, tmp_path)
    assert slots.acquire(["0"], 0.0, "two") is None
    assert slots.acquire(["0"], 0.0) is None
    assert slots.acquire(["1"], 0.0, "one") is not None, "the task's slot is on another GPU"
    joined = slots.acquire(["0"], 0.0, "one")
    assert joined is not None
    assert joined.shared
    holders[0].kill()
    assert slots.count_held("0") == 1
    assert slots.acquire(["0"], 0.0, "two") is None
    third = slots.acquire(["0"], 0.0, "one")
    assert third is not None
    assert third.shared
    joined.release()
    joined.release()
    assert slots.acquire(["0"], 0.0, "two") is None
    third.release()
    with slots.acquire(["0"], 0.0, "two") or pytest.fail("the slot stayed taken") as taken:
        assert not taken.shared
        assert slots.acquire(["0"], 0.0, "one") is None
    assert not list(tmp_path.glob("task-*"))


def test_a_mark_that_nobody_holds_says_nothing(tmp_path: Path, holders: list[Holder]) -> None:
    holders.append(Holder(tmp_path, 1, "0", 0.0, "one"))
    holders[0].said()
    holders[0].kill()
    assert [path.name for path in tmp_path.glob("task-*")] == ["task-one"]
    slots = GpuSlots(1, tmp_path)
    with slots.acquire(["0"], 0.0, "two") or pytest.fail("the slot stayed taken"):
        assert slots.acquire(["0"], 0.0, "one") is None


def test_workers_of_a_task_that_ask_at_once_share_a_slot(tmp_path: Path) -> None:
    slots = GpuSlots(1, tmp_path)
    start = threading.Barrier(4)

    def ask(task: str) -> Slot | None:
        start.wait()
        return slots.acquire(["0"], 60.0, task)

    with ThreadPoolExecutor(4) as pool:
        for turn in range(200):
            taken = list(pool.map(ask, [f"task {turn}"] * 4))
            assert sorted(slot is not None and slot.shared for slot in taken) == [False, True, True, True]
            for slot in taken:
                assert slot is not None
                assert slots.count_held("0") == 1
                slot.release()
            assert slots.count_held("0") == 0
    assert not list(tmp_path.glob("task-*"))


def test_a_join_above_a_join_does_not_wait_for_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers' generators, the upper one fed by the lower one, as in one task; a CPU stands for the one GPU."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    cpu = create(BackendName.CPU, BackendRequest())
    monkeypatch.setattr(devices_module, "devices", lambda addresses: (Device("0", 0),))
    monkeypatch.setattr("gpujoin.backends.registry.unavailable", lambda name: None)
    monkeypatch.setattr(devices_module, "_gpu", lambda device, options, slots: cpu)
    rows = pa.record_batch({"n": range(10)})
    options = Options(gpu_concurrent_tasks=1, gpu_slot_timeout=0.0)
    tree = Limit(ExchangeSource(0, rows.schema), 100)
    lower, upper = (
        RunStage(tree, TaskReads.from_reads([{}]), (0,), (), (), None, options, name) for name in ("lower", "upper")
    )
    records: list[TaskRecord] = []
    task = Task(name="one", report=records.append)
    assert sum(batch.num_rows for batch in upper.run(lower.run([rows] * 5, task), task)) == 50
    assert [record.notes for record in records] == [(), ()], "a worker without a slot says so"
    assert GpuSlots(1).count_held("0") == 0


@pytest.mark.parametrize("how", UNSAFE)
def test_an_unsafe_default_directory_is_passed_over(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another user who makes the directory first neither gets the locks nor keeps tasks from running."""
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    parents = [tmp_path / "shm", tmp_path / "tmp"]
    for parent in parents:
        parent.mkdir()
    monkeypatch.setattr(slots, "_PARENTS", tuple(map(str, parents)))
    planted = parents[0] / f"gpujoin-slots-{os.getuid()}"
    plant(planted, how)
    with caplog.at_level("WARNING", "gpujoin"):
        held = GpuSlots(1).acquire(["0"], 0)
    assert held is not None
    held.release()
    assert "is not safe" in caplog.text
    assert list((parents[1] / planted.name).iterdir())
    with pytest.raises(ConfigurationError, match=r"is not safe|cannot be made"):
        GpuSlots(1, planted)


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_a_planted_slot_file_neither_hangs_nor_is_followed(tmp_path: Path, kind: str) -> None:
    slots_of_host = GpuSlots(1, tmp_path / "slots")
    planted = tmp_path / "slots" / "gpu-0.slot-0"
    if kind == "fifo":
        os.mkfifo(planted)
    else:
        planted.symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigurationError, match=r"gpu-0\.slot-0"):
        slots_of_host.acquire(["0"], 0)
    assert not (tmp_path / "victim").exists()
