"""Errors of CUDA after which a process has lost its GPU: which they are, and what becomes of the GPU."""

from __future__ import annotations

import pytest

from gpujoin.backends import cudf, registry
from gpujoin.backends.cudf import lost
from gpujoin.errors import BackendUnavailableError, DeviceLostError, DeviceMemoryError, KernelLaunchError
from gpujoin.model.backend import BackendName

FINAL: list[Exception] = [
    RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"),
    RuntimeError("CUDA error encountered at: join.cu:71: 214 cudaErrorECCUncorrectable uncorrectable ECC error"),
    RuntimeError("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"),
    RuntimeError("cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable"),
    KernelLaunchError("Kernel unique_probe, grid 8: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error"),
    MemoryError("std::bad_alloc: CUDA error at: cuda_async_view.hpp:90: cudaErrorIllegalAddress an illegal access"),
    DeviceMemoryError("the GPU is out of memory: std::bad_alloc: cudaErrorHardwareStackError"),
]
OTHER: list[Exception] = [
    RuntimeError("cudaErrorMemoryAllocation: out of memory"),
    RuntimeError("cudaErrorInvalidValue: invalid argument"),
    RuntimeError("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available"),
    RuntimeError("the reader knows an unknown encoding"),
    DeviceMemoryError("the GPU is out of memory"),
    MemoryError(),
]


@pytest.fixture(autouse=True)
def no_gpu_is_lost_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost, "_reasons", {})


@pytest.mark.parametrize("problem", FINAL, ids=str)
def test_after_some_errors_a_gpu_is_lost(problem: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DeviceLostError, match="this process has lost GPU 3"), lost.lost_errors(3):
        raise problem
    assert str(problem) in (lost.reason(3) or "")
    assert cudf.lost_reason(3) == lost.reason(3)
    assert lost.reason(0) is None, "other GPUs go on"
    with pytest.raises(DeviceLostError), lost.lost_errors(3):
        pytest.fail("the GPU is not used again")
    with lost.lost_errors(0):
        pass


@pytest.mark.parametrize("problem", OTHER, ids=repr)
def test_after_others_it_is_not(problem: Exception) -> None:
    with pytest.raises(type(problem)) as caught, lost.lost_errors(3):
        raise problem
    assert caught.value is problem
    assert lost.reason(3) is None


def test_no_backend_is_made_of_a_lost_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost, "_reasons", {2: "this process has lost GPU 2: XID 79"})
    monkeypatch.setattr(registry, "unavailable", lambda name: None)
    with pytest.raises(BackendUnavailableError, match="lost GPU 2: XID 79"):
        registry.create(BackendName.GPU, registry.BackendRequest(device=2))
