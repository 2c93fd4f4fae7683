"""RMM and CUDA's Python bindings, as far as the backend uses them."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from tests.backends.cudf.libraries import record

MEMORY = 8 << 30


class Stream:
    """A stream."""

    def synchronize(self) -> None:
        """Wait for it."""
        record.synchronized += 1
        record.use("a wait")


class DeviceMemoryResource:
    """A memory resource."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.given = given


class LimitingResourceAdaptor(DeviceMemoryResource):
    """Bounds another one."""

    def __init__(self, upstream: Any, limit: int) -> None:
        super().__init__(upstream)
        self.limit = limit

    def get_allocation_limit(self) -> int:
        """Most bytes."""
        return self.limit

    def get_allocated_bytes(self) -> int:
        """Bytes in use, which are not counted."""
        return 0


_resources: dict[int, Any] = {}


def modules() -> dict[str, ModuleType]:
    """The modules by name."""
    resource = _module(
        "rmm.mr", DeviceMemoryResource=DeviceMemoryResource, LimitingResourceAdaptor=LimitingResourceAdaptor,
        CudaMemoryResource=DeviceMemoryResource, PoolMemoryResource=DeviceMemoryResource,
        CudaAsyncViewMemoryResource=DeviceMemoryResource, available_device_memory=lambda: (MEMORY, MEMORY),
        set_per_device_resource=_resources.__setitem__,
        get_current_device_resource=lambda: _resources.get(0, DeviceMemoryResource()),
    )  # fmt: skip
    stream = _module("rmm.pylibrmm.stream", PER_THREAD_DEFAULT_STREAM=Stream(), Stream=Stream)
    allocator = _module("rmm.allocators.cupy", rmm_cupy_allocator=None)
    success = SimpleNamespace(name="cudaSuccess")
    runtime = _module(
        "cuda.bindings.runtime", cudaError_t=SimpleNamespace(cudaSuccess=success),
        cudaDeviceAttr=SimpleNamespace(cudaDevAttrMemoryPoolsSupported=1),
        cudaMemPoolAttr=SimpleNamespace(cudaMemPoolAttrReleaseThreshold=1),
        cudaDeviceGetAttribute=lambda *_: (success, 1), cudaDeviceGetDefaultMemPool=lambda *_: (success, 1),
        cudaMemPoolSetAttribute=lambda *_: (success,), cudaMemPoolTrimTo=lambda *_: (success,),
        cudaGetDeviceCount=lambda: (success, 1),
    )  # fmt: skip
    driver = _module("cuda.bindings.driver", cuuint64_t=int)
    return {
        "rmm": _module("rmm", mr=resource), "rmm.mr": resource,
        "rmm.pylibrmm": _module("rmm.pylibrmm", stream=stream), "rmm.pylibrmm.stream": stream,
        "rmm.allocators": _module("rmm.allocators", cupy=allocator), "rmm.allocators.cupy": allocator,
        "cuda.bindings": _module("cuda.bindings", runtime=runtime, driver=driver),
        "cuda.bindings.runtime": runtime, "cuda.bindings.driver": driver,
    }  # fmt: skip


def _module(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(members)
    return module
