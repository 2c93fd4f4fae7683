"""What the contexts of several processes take of a GPU, counted while these live, and what they leave to a task."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpujoin.spark.worker.slots import DIRECTORY_VARIABLE, GpuSlots

GIB = 1 << 30
ROOT = Path(__file__).parents[2]

COUNTING = """
import sys
from pathlib import Path
from gpujoin.spark.worker.slots import GpuSlots
held = GpuSlots(2, Path(sys.argv[1])).count_context(sys.argv[2], int(sys.argv[3]))
print("counted", flush=True)
sys.stdin.readline()
"""

WORKER = """
import sys
from tests.backends.cudf.libraries.plugin import install
install()
from gpujoin.config import Options
from gpujoin.spark.worker.devices import allocate_backend
options = Options(gpu_concurrent_tasks=2, gpu_memory_fraction=0.75, gpu_context_bytes="1g")
while True:
    with allocate_backend(options, ["0"]) as chosen:
        print(*chosen.notes or [chosen.backend.device.memory_limit], flush=True)
    if not sys.stdin.readline():
        break
"""
"""A worker that runs a task for each line that it is sent; the stand-in for RMM says that the GPU has 8 GiB."""


class Process:
    """A Python program that lives until it is ended, and what it says."""

    def __init__(self, program: str, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )  # fmt: skip

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def again(self) -> str:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return self.says()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.kill()


def test_contexts_are_counted_while_their_processes_live(tmp_path: Path, processes: list[Process]) -> None:
    slots = GpuSlots(2, tmp_path)
    assert slots.context_bytes("0") == 0
    processes += [Process(COUNTING, str(tmp_path), gpu, size) for gpu, size in (("0", "3"), ("0", "4"), ("1", "50"))]
    assert [process.says() for process in processes] == ["counted"] * 3
    own = slots.count_context("0", 100)
    assert (slots.context_bytes("0"), slots.context_bytes("1"), slots.context_bytes("2")) == (107, 50, 0)
    processes[0].kill()
    assert slots.context_bytes("0") == 104, "the kernel drops the lock of a process that was killed"
    own.close()
    assert slots.context_bytes("0") == 4
    assert [path.name for path in tmp_path.glob("gpu-0.context-*")] != []
    processes[1].kill()
    assert slots.context_bytes("0") == 0
    assert list(tmp_path.glob("gpu-0.context-*")) == []


def test_contexts_that_start_at_once_are_all_counted(tmp_path: Path) -> None:
    """Also while others add them up, and remove the files of those that ended."""
    slots = GpuSlots(2, tmp_path)

    def turn(number: int) -> int:
        with slots.count_context("0", 1 << number):
            return slots.context_bytes("0") >> number & 1

    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):  # one after the other: the same bit twice would be the next one
            assert list(pool.map(turn, range(40))) == [1] * 40
    assert slots.context_bytes("0") == 0


def test_a_file_that_says_nothing_counts_nothing(tmp_path: Path) -> None:
    slots = GpuSlots(2, tmp_path)
    with slots.count_context("0", 5) as file:
        file.truncate(0)
        assert slots.context_bytes("0") == 0


def test_a_task_gets_what_the_contexts_leave(tmp_path: Path, processes: list[Process]) -> None:
    """Tasks share 6 of 8 GiB while the contexts of all workers, idle ones too, take no more than the other 2.

    An eighth of a share is for tables that workers keep between tasks.
    """
    pytest.importorskip("pylibcudf", reason='no GPU libraries: pip install ".[cu13]"')
    limits = {shared: str(shared * GIB // 2 * 7 // 8) for shared in (4, 5, 6)}
    for number, shared in enumerate([6, 6, 5, 4], start=1):
        processes.append(Process(WORKER, **{DIRECTORY_VARIABLE: str(tmp_path)}))
        assert processes[-1].says() == limits[shared], f"{number} contexts of 1 GiB"
    assert processes[0].again() == limits[4], "a later task of the first worker knows of the others"
    for ended in processes[1:]:
        ended.kill()
    assert processes[0].again() == limits[6]
    others = GpuSlots(2, tmp_path).count_context("0", 7 * GIB)
    assert processes[0].again().startswith("on the CPU: the contexts of its processes take all of GPU 0")
    others.close()
    assert processes[0].again() == limits[6]
