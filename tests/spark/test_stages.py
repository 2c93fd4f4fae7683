"""What Spark's workers are sent, and what they say when it cannot run there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from gpujoin.errors import GpuJoinError
from gpujoin.spark.worker.functions import stage_function
from gpujoin.spark.worker.task import Task

_RUN = """
import pickle, sys
hidden = sys.argv[2].split(",")
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Hide())
with open(sys.argv[1], "rb") as file:
    function = pickle.load(file)
list(function(iter(())))
"""


@dataclass(frozen=True)
class Echo:
    """Gives back what it gets, and the number of its task."""

    tag: str

    def run(self, batches: Iterable[pa.RecordBatch], task: Task) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"n": [batch.num_rows], "tag": [f"{self.tag} {task.partition}"]})


@dataclass(frozen=True)
class Stuck:
    """Cannot be pickled."""

    lock: threading.Lock

    def run(self, batches: Iterable[pa.RecordBatch], task: Task) -> Iterator[pa.RecordBatch]:
        yield from batches


def run_elsewhere(path: Path, hidden: str) -> subprocess.CompletedProcess[str]:
    pickled = cloudpickle.dumps(stage_function(Echo("x"), "gpujoin_echo"))  # type: ignore[no-untyped-call]
    path.write_bytes(pickled)
    return subprocess.run([sys.executable, "-c", _RUN, str(path), hidden], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("missing", ["gpujoin", "numpy"])
def test_a_worker_without_a_package_says_what_to_install(missing: str, tmp_path: Path) -> None:
    done = run_elsewhere(tmp_path / "function", missing)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: gpujoin")
    assert f"No module named '{missing}" in last
    assert sys.executable in last
    assert "Install" in last


def test_little_is_sent(tmp_path: Path) -> None:
    assert run_elsewhere(tmp_path / "function", "nothing").returncode == 0
    assert (tmp_path / "function").stat().st_size < 4500


def test_the_function_works_here_too_and_bears_its_name() -> None:
    function = stage_function(Echo("hello"), "gpujoin_echo")
    assert function.__name__ == "gpujoin_echo"
    (batch,) = function(iter([pa.record_batch({"a": [1, 2]})]))
    assert batch.to_pylist() == [{"n": 2, "tag": "hello 0"}]


def test_another_version_in_the_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpujoin.spark.worker.functions.__version__", "0.0.1")
    function = stage_function(Echo("x"), "gpujoin_echo")
    with pytest.raises(GpuJoinError, match=r"driver has gpujoin 0\.0\.1"):
        list(function(iter(())))


def test_an_unpicklable_join_is_refused() -> None:
    with pytest.raises(GpuJoinError, match="cannot be sent"):
        stage_function(Stuck(threading.Lock()), "gpujoin_stuck")


def test_the_daemon_imports_all_and_starts_no_thread() -> None:
    program = (
        "import gpujoin.spark.daemon, os, sys\n"
        "assert 'gpujoin.spark.worker.task' in sys.modules and 'pyarrow' in sys.modules\n"
        "assert not any(name.startswith(('cupy', 'pylibcudf', 'rmm', 'cuda')) for name in sys.modules)\n"
        "print(len(os.listdir('/proc/self/task')))\n"
    )
    environment = {name: value for name, value in os.environ.items() if "THREADS" not in name}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 1
