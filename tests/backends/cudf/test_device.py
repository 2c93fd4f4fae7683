"""What counts as running out of memory, and what becomes of it."""

from __future__ import annotations

import gc
import logging
import os
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpujoin.errors import BackendUnavailableError, DeviceMemoryError

pytest.importorskip("cupy", reason='no CuPy: pip install ".[cu13]"')
pytest.importorskip("rmm", reason='no RMM: pip install ".[cu13]"')

from gpujoin.backends.cudf import device as module
from gpujoin.backends.cudf.device import Device, context_bytes, device_errors, is_out_of_memory


class CudaError(RuntimeError):
    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


OUT_OF_MEMORY: list[BaseException] = [
    MemoryError("std::bad_alloc: out_of_memory: RMM failure at: limiting_resource_adaptor"),
    MemoryError(),
    RuntimeError("CUDA error at: cuda_async_view: cudaErrorMemoryAllocation out of memory"),
    CudaError(2, "cudaErrorMemoryAllocation: out of memory"),
]
OTHER: list[BaseException] = [
    RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"),
    CudaError(700, "an illegal memory access was encountered"),
    ValueError("column size mismatch"),
    OverflowError("number of rows exceeds the column size limit"),
]


@pytest.mark.parametrize("problem", OUT_OF_MEMORY, ids=repr)
def test_every_out_of_memory_becomes_one(problem: BaseException) -> None:
    assert is_out_of_memory(problem)
    with pytest.raises(DeviceMemoryError, match="GPU is out of memory"), device_errors():
        raise problem


@pytest.mark.parametrize("problem", OTHER, ids=repr)
def test_other_errors_stay_what_they_are(problem: BaseException) -> None:
    with pytest.raises(type(problem)) as caught, device_errors():
        raise problem
    assert caught.value is problem


def test_ours_pass_unchanged() -> None:
    ours = DeviceMemoryError("a map of 3000000000 rows")
    with pytest.raises(DeviceMemoryError) as caught, device_errors():
        raise ours
    assert caught.value is ours


def test_the_failed_call_lets_go_of_its_memory() -> None:
    class Held:
        pass

    alive: list[Any] = []

    def allocate() -> None:
        held = Held()
        alive.append(weakref.ref(held))
        raise MemoryError("out of memory")

    with pytest.raises(DeviceMemoryError) as caught, device_errors():
        allocate()
    gc.collect()
    assert alive[0]() is None, "device memory would live as long as the exception"
    assert caught.value.__traceback__ is not None


@pytest.mark.parametrize("tables", [0, 3])
def test_rmm_asks_for_room_until_there_is_none_to_be_had(tables: int) -> None:
    """By the library itself: a limit is tested before any device is asked."""
    import rmm.mr

    kept, asked = list(range(tables)), []

    def release(nbytes: int) -> bool:
        asked.append(nbytes)
        return bool(kept) and kept.pop() >= 0

    limiting = rmm.mr.LimitingResourceAdaptor(rmm.mr.CudaMemoryResource(), 1000)
    resource = rmm.mr.FailureCallbackResourceAdaptor(limiting, release)
    with pytest.raises(DeviceMemoryError, match="Exceeded memory limit 1000"), device_errors():
        resource.allocate(5000)
    assert asked == [5000] * (tables + 1)


def test_no_driver_is_said_clearly() -> None:
    from gpujoin.backends.cudf.discovery import why_unavailable

    if why_unavailable() is None:
        pytest.skip("this machine has a GPU")
    with pytest.raises(BackendUnavailableError, match="gpujoin doctor"):
        Device(0, None)


UNKNOWN = (1 << 64) - 1
OWN, OTHER_PROCESS = os.getpid(), os.getpid() + 1


@pytest.mark.parametrize(
    ("processes", "namespace", "expected"),
    [
        ({OTHER_PROCESS: 5, OWN: 300}, "first", 300),
        ({OTHER_PROCESS: 5}, "first", None),
        ({OWN: UNKNOWN}, "first", None),
        ({OWN: 0}, "first", None),
        ({OWN: 300}, "of a container", None),
        (None, "first", None),
    ],
    ids=["known", "not listed", "not available", "nothing", "container", "no permission"],
)
def test_what_a_process_takes_is_asked_of_nvml(
    processes: dict[int, int] | None, namespace: str, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = pytest.importorskip("cuda.bindings.nvml", reason="CUDA's bindings have no NVML")
    shut: list[bool] = []

    def running(handle: int) -> list[SimpleNamespace]:
        assert handle == 7
        if processes is None:
            raise nvml.NoPermissionError(nvml.Return.ERROR_NO_PERMISSION)
        return [SimpleNamespace(pid=pid, used_gpu_memory=nbytes) for pid, nbytes in processes.items()]

    errors = pytest.importorskip("cuda.bindings.runtime").cudaError_t
    inode = Path("/proc/self/ns/pid").stat().st_ino if namespace == "first" else 1
    monkeypatch.setattr(module, "_FIRST_PID_NAMESPACE", inode)
    bus = b"0000:0B:00.0\0\0\0"
    monkeypatch.setattr(module, "runtime", SimpleNamespace(
        cudaError_t=errors, cudaDeviceGetPCIBusId=lambda length, ordinal: (errors.cudaSuccess, bus)
    ))  # fmt: skip
    monkeypatch.setattr(nvml, "init_v2", lambda: None)
    monkeypatch.setattr(nvml, "shutdown", lambda: shut.append(True))
    monkeypatch.setattr(nvml, "device_get_handle_by_pci_bus_id_v2", {"0000:0B:00.0": 7}.__getitem__)
    monkeypatch.setattr(nvml, "device_get_compute_running_processes_v3", running)
    assert context_bytes(3) == expected
    assert shut == ([] if namespace == "of a container" else [True])


def test_a_table_that_cannot_be_let_go_makes_no_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The allocation fails then: C++ asks for room, and takes no exception."""

    class Stuck:
        def drop(self) -> bool:
            raise RuntimeError("the device is gone")

    monkeypatch.setitem(module._kept_tables, 7, Stuck())
    with caplog.at_level(logging.WARNING, "gpujoin"):
        assert module._release(7)(100) is False
    assert "cannot be let go: the device is gone" in caplog.text
