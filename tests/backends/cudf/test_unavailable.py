"""A GPU that seems to be there and cannot be used: every failure to import its libraries or to start CUDA is told."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import gpujoin.backends.cudf
from gpujoin import JoinMetrics, Options, join_tables
from gpujoin.backends import cudf
from gpujoin.backends.cudf import lost
from gpujoin.backends.registry import BackendRequest, create, unavailable
from gpujoin.errors import BackendUnavailableError, DeviceMemoryError
from gpujoin.logs import warn_once
from gpujoin.model.backend import BackendName
from gpujoin.spark.worker import devices
from gpujoin.spark.worker.devices import allocate_backend
from gpujoin.spark.worker.slots import DIRECTORY_VARIABLE, GpuSlots, Slot

BACKEND = "gpujoin.backends.cudf.backend"
LEFT, RIGHT = pa.table({"k": [1, 2, 2]}), pa.table({"k": [2, 3], "v": [5, 6]})


class LibraryNotFoundError(Exception):
    """As `DynamicLibNotFoundError` of cuda-pathfinder, which is no subclass of any other error."""


FAILURES: list[BaseException] = [
    ImportError("libcudf.so: cannot open shared object file"),
    OSError("libcufile.so.0: file too short"),
    RuntimeError("cudaErrorECCUncorrectable: uncorrectable ECC error"),
    LibraryNotFoundError("libcufile.so.0"),
    AttributeError("module 'rmm' has no attribute 'mr'"),
    DeviceMemoryError("no memory for a context"),
    SystemExit(3),
]


class FailingImport:
    """A finder that raises when a module is looked for."""

    def __init__(self, module: str, problem: BaseException) -> None:
        self._module, self._problem = module, problem
        self.tried = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == self._module:
            self.tried += 1
            raise self._problem


@pytest.fixture(params=FAILURES, ids=lambda problem: type(problem).__name__)
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FailingImport:
    """The backend seems to be available, and its import fails."""
    finder = FailingImport(BACKEND, request.param)
    monkeypatch.setattr(gpujoin.backends.cudf, "why_unavailable", lambda: None)
    monkeypatch.delitem(sys.modules, BACKEND, raising=False)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    warn_once.cache_clear()
    return finder


def test_a_failing_import_is_an_unavailable_backend(failing: FailingImport) -> None:
    assert unavailable(BackendName.GPU) is None
    with pytest.raises(BackendUnavailableError, match="GPU 0 cannot be used") as caught:
        create(BackendName.GPU, BackendRequest())
    assert "gpujoin doctor" in str(caught.value)
    assert failing.tried == 1
    with pytest.raises(BackendUnavailableError):
        join_tables(LEFT, RIGHT, on="k", backend="gpu")


def test_auto_joins_on_the_cpu_and_says_why(failing: FailingImport, caplog: pytest.LogCaptureFixture) -> None:
    metrics = JoinMetrics()
    with caplog.at_level(logging.WARNING, "gpujoin"):
        for _ in range(2):
            found = join_tables(LEFT, RIGHT, on="k", metrics=metrics)
            assert found.to_pylist() == [{"k": 2, "v": 5}] * 2
    assert failing.tried == 2
    ((reason, times),) = metrics.fallback_reasons.items()
    assert "GPU 0 cannot be used" in reason
    assert times == 2
    assert sum(metrics.algorithms.values()) == 2
    assert [record.getMessage() for record in caplog.records] == [f"gpujoin: {reason}"]


def test_a_task_runs_on_the_cpu_and_gives_its_slot_back(
    failing: FailingImport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.setattr(devices, "_backends", {})
    with allocate_backend(Options(gpu_concurrent_tasks=1), ["0"]) as chosen:
        assert chosen.backend.name is BackendName.CPU
        assert chosen.slot is None
        (note,) = chosen.notes
        assert note.startswith("on the CPU: GPU 0 cannot be used")
        assert GpuSlots(1).count_held("0") == 0
    assert failing.tried == 2, "before the slot was taken, and with it"
    with pytest.raises(BackendUnavailableError), allocate_backend(Options(backend="gpu"), ["0"]):  # type: ignore[arg-type]
        pytest.fail("the GPU cannot be used")
    assert GpuSlots(1).count_held("0") == 0


def test_a_driver_that_does_not_start_is_an_unavailable_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in exclusive mode: the device is counted, and cannot be made current."""
    cupy = pytest.importorskip("cupy", reason='no CuPy: pip install ".[cu13]"')
    pytest.importorskip("pylibcudf", reason='no cuDF: pip install ".[cu13]"')
    if unavailable(BackendName.GPU) is None:
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(gpujoin.backends.cudf, "why_unavailable", lambda: None)
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 1)
    with pytest.raises(BackendUnavailableError, match="CUDARuntimeError"):
        create(BackendName.GPU, BackendRequest())


class Backend:
    """Stands for a backend of a GPU, which only has to be made."""

    def __init__(self, request: BackendRequest) -> None:
        self.request, self.name = request, BackendName.GPU


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[int, ...]]]:
    """Devices for which a backend was made, and the slots that were held then on GPUs 0 and 1."""
    made: list[tuple[int, tuple[int, ...]]] = []

    def make(request: BackendRequest) -> Backend:
        slots = GpuSlots(1)
        made.append((request.device, (slots.count_held("0"), slots.count_held("1"))))
        return Backend(request)

    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.setattr(devices, "_backends", {})
    monkeypatch.setattr(gpujoin.backends.cudf, "why_unavailable", lambda: None)
    monkeypatch.setattr(gpujoin.backends.cudf, "create", make)
    monkeypatch.setattr(gpujoin.backends.cudf, "import_libraries", lambda: made.append((-1, ())))
    return made


def taken(gpu: str, task: str | None = None, *, per_gpu: int = 1) -> Slot:
    """Take a slot of a GPU, as another process does."""
    slot = GpuSlots(per_gpu).acquire([gpu], 0, task)
    assert slot is not None
    return slot


def test_the_only_gpu_is_started_before_its_slot_is_taken(made: list[Any]) -> None:
    options = Options(gpu_concurrent_tasks=1, gpu_memory_fraction=0.5)
    for _ in range(2):
        with allocate_backend(options, ["0"]) as chosen:
            assert isinstance(chosen.backend, Backend)
            assert chosen.backend.request == BackendRequest(device=0, memory_share=0.5)
            assert GpuSlots(1).count_held("0") == 1
    assert made == [(0, (0, 0))]


def test_a_gpu_in_use_is_not_looked_for_again(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(gpu_concurrent_tasks=1)
    with allocate_backend(options, ["0"]):
        pass
    monkeypatch.setattr(gpujoin.backends.cudf, "why_unavailable", lambda: pytest.fail("the driver was asked"))
    with allocate_backend(options, ["0"]) as chosen:
        assert isinstance(chosen.backend, Backend)


def test_a_lost_gpu_is_not_taken_again(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one of the task is, if there is one; else the CPU, with the reason."""
    options = Options(gpu_concurrent_tasks=1)
    with allocate_backend(options, ["0"]):
        pass
    monkeypatch.setattr(lost, "_reasons", {0: "this process has lost GPU 0: cudaErrorECCUncorrectable"})
    with allocate_backend(options, ["0", "1"]) as chosen:
        assert chosen.slot is not None
        assert chosen.slot.gpu == "1"
    with allocate_backend(options, ["0"]) as chosen:
        assert chosen.backend.name is BackendName.CPU
        assert chosen.notes == ("on the CPU: this process has lost GPU 0: cudaErrorECCUncorrectable",)
    with pytest.raises(BackendUnavailableError, match="ECC"), allocate_backend(options.replace(backend="gpu"), ["0"]):
        pytest.fail("the GPU is lost")
    assert GpuSlots(1).count_held("0") == 0


def test_of_several_gpus_one_is_started_with_its_slot_and_then_kept_to(made: list[Any]) -> None:
    options = Options(gpu_concurrent_tasks=1)
    with taken("0"), allocate_backend(options, ["0", "1"]) as chosen:
        assert chosen.slot is not None
        assert chosen.slot.gpu == "1"
    with allocate_backend(options, ["0", "1"]) as chosen:
        assert chosen.slot is not None
        assert chosen.slot.gpu == "1"
    assert made == [(-1, ()), (1, (1, 1)), (-1, ())]


BUSY = "cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable"


@pytest.fixture
def busy(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """GPUs in exclusive mode that another process uses."""
    busy: set[int] = set()
    create = gpujoin.backends.cudf.create

    def make(request: BackendRequest) -> Any:
        backend = create(request)
        if request.device in busy:
            raise BackendUnavailableError(BUSY)
        return backend

    monkeypatch.setattr(gpujoin.backends.cudf, "create", make)
    monkeypatch.setattr(devices, "_refusing", set())
    return busy


def test_a_gpu_that_admits_no_second_process_is_not_waited_for(made: list[Any], busy: set[int]) -> None:
    """In exclusive mode the process that has the GPU keeps it, so a slot would be of no use."""
    busy.add(0)
    options = Options(gpu_concurrent_tasks=1, gpu_slot_timeout=600)
    with taken("0"), allocate_backend(options, ["0"]) as chosen:
        assert chosen.backend.name is BackendName.CPU
        assert chosen.notes == (f"on the CPU: {BUSY}",)
    with pytest.raises(BackendUnavailableError, match="busy"), allocate_backend(options.replace(backend="gpu"), ["0"]):
        pytest.fail("the GPU is busy")
    busy.clear()
    with allocate_backend(options, ["0"]) as chosen:
        assert isinstance(chosen.backend, Backend), "a GPU that was left is taken by a later task"


@pytest.mark.parametrize("backend", ["auto", "gpu"])
def test_a_second_process_of_a_task_joins_on_the_cpu(made: list[Any], busy: set[int], backend: str) -> None:
    """What the first one does on the GPU is what was asked for."""
    busy.add(0)
    options = Options(gpu_concurrent_tasks=1, backend=backend)  # type: ignore[arg-type]
    with taken("0", "the task"), allocate_backend(options, ["0"], "the task") as chosen:
        assert chosen.backend.name is BackendName.CPU
        assert chosen.notes[0].startswith("on the CPU: GPU 0 admits no second process")


def test_another_gpu_is_taken_where_one_refuses(made: list[Any], busy: set[int]) -> None:
    """And comes first from then on."""
    busy.add(0)
    options = Options(gpu_concurrent_tasks=1)
    with allocate_backend(options, ["0", "1"]) as chosen:
        assert isinstance(chosen.backend, Backend)
        assert chosen.backend.request.device == 1
        assert (GpuSlots(1).count_held("0"), GpuSlots(1).count_held("1")) == (0, 1)
    made.clear()
    with allocate_backend(options, ["0", "1"]) as chosen:
        assert isinstance(chosen.backend, Backend)
        assert chosen.backend.request.device == 1
    assert 0 not in [device for device, _ in made]


def test_a_process_keeps_to_the_gpu_on_which_it_has_a_context(made: list[Any]) -> None:
    """Even where another one has a slot with a lower number: a second context takes memory, and time to make."""
    options = Options(gpu_concurrent_tasks=2)
    with taken("0", per_gpu=2), allocate_backend(options, ["0", "1"]) as chosen:
        assert chosen.slot is not None
        assert chosen.slot.gpu == "1", "tasks spread over the GPUs"
    with taken("1", per_gpu=2), allocate_backend(options, ["0", "1"]) as chosen:
        assert chosen.slot is not None
        assert (chosen.slot.gpu, chosen.slot.number) == ("1", 1)


def test_memory_of_a_task_that_is_ended_goes_back_with_its_slot(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Spark has enough rows: nothing keeps those on the device, so memory goes back to other processes."""

    class Rows:
        pass

    alive: list[weakref.ref[Rows]] = []
    given_back: list[bool] = []
    monkeypatch.setattr(cudf, "release_cached_memory", lambda ordinal: given_back.append(alive[0]() is None))

    def rows() -> Iterator[None]:
        held = Rows()
        alive.append(weakref.ref(held))
        yield

    def task() -> Generator[None]:
        with allocate_backend(Options(), ["0"]):
            yield from rows()

    running = task()
    next(running)
    running.close()
    assert given_back == [True]
