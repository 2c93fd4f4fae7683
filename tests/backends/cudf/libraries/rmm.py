"""RMM and CUDA's Python bindings, as far as the backend uses them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.backends.cudf.libraries import record

MEMORY = 8 << 30


class Stream:
    """A stream."""

    def synchronize(self) -> None:
        """Wait for it."""
        record.wait()


class DeviceMemoryResource:
    """A memory resource. Bytes are counted, not given out."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.given = given

    def allocate(self, nbytes: int) -> None:
        """Count bytes as allocated."""

    def deallocate(self, nbytes: int) -> None:
        """Count bytes as free."""


class LimitingResourceAdaptor(DeviceMemoryResource):
    """Bounds another one."""

    def __init__(self, upstream: Any, limit: int) -> None:
        super().__init__(upstream)
        self.limit = limit
        self.allocated = 0

    def get_upstream(self) -> Any:
        """The other one."""
        return self.given[0]

    def allocate(self, nbytes: int) -> None:
        """Count bytes, or raise RMM's error."""
        if self.allocated + nbytes > self.limit:
            raise MemoryError(
                f"std::bad_alloc: out_of_memory: Exceeded memory limit {self.limit}; Allocated bytes {self.allocated};"
                f" Requested bytes {nbytes}"
            )
        self.allocated += nbytes

    def deallocate(self, nbytes: int) -> None:
        """Count bytes as free."""
        self.allocated -= nbytes

    def get_allocation_limit(self) -> int:
        """Most bytes."""
        return self.limit

    def get_allocated_bytes(self) -> int:
        """Bytes in use, of columns and of what kernels are given; not of what CuPy's functions make."""
        return self.allocated


class StatisticsResourceAdaptor(DeviceMemoryResource):
    """Counts what is in use, and the most since the counters were pushed."""

    def __init__(self, upstream: Any) -> None:
        super().__init__(upstream)
        self.current_bytes, self.peaks = 0, [0]

    @property
    def allocation_counts(self) -> SimpleNamespace:
        """Bytes in use."""
        return SimpleNamespace(current_bytes=self.current_bytes)

    def push_counters(self) -> None:
        """Begin to count."""
        self.peaks.append(0)

    def pop_counters(self) -> SimpleNamespace:
        """Stop counting."""
        return SimpleNamespace(peak_bytes=self.peaks.pop())

    def allocate(self, nbytes: int) -> None:
        """Count bytes as allocated."""
        self.current_bytes += nbytes
        self.peaks[-1] = max(self.peaks[-1], self.current_bytes)

    def deallocate(self, nbytes: int) -> None:
        """Count bytes as free."""
        self.current_bytes -= nbytes


class FailureCallbackResourceAdaptor(DeviceMemoryResource):
    """Asks a function whether to try again what another one did not allocate."""

    def __init__(self, upstream: Any, callback: Callable[[int], bool]) -> None:
        super().__init__(upstream)
        self.upstream, self.callback = upstream, callback

    def get_upstream(self) -> Any:
        """The other one."""
        return self.upstream

    def allocate(self, nbytes: int) -> None:
        """Try until it is there, or the function says no."""
        while True:
            try:
                self.upstream.allocate(nbytes)
            except MemoryError:
                if not self.callback(nbytes):
                    raise
            else:
                return

    def deallocate(self, nbytes: int) -> None:
        """Count bytes as free."""
        self.upstream.deallocate(nbytes)


_resources: dict[int, Any] = {}


def current() -> Any:
    """The resource of the current device."""
    return _resources.get(0) or _resources.setdefault(0, DeviceMemoryResource())


def make_room() -> bool:
    """Ask for room for a byte that was not allocated; whether to try again."""
    resource = current()
    return isinstance(resource, FailureCallbackResourceAdaptor) and resource.callback(1)


record.make_room = make_room


def modules() -> dict[str, ModuleType]:
    """The modules by name."""
    resource = _module(
        "rmm.mr", DeviceMemoryResource=DeviceMemoryResource, LimitingResourceAdaptor=LimitingResourceAdaptor,
        CudaMemoryResource=DeviceMemoryResource, CudaAsyncMemoryResource=DeviceMemoryResource,
        StatisticsResourceAdaptor=StatisticsResourceAdaptor,
        set_current_device_resource=lambda resource: _resources.__setitem__(0, resource),
        PoolMemoryResource=DeviceMemoryResource,
        CudaAsyncViewMemoryResource=DeviceMemoryResource,
        FailureCallbackResourceAdaptor=FailureCallbackResourceAdaptor, available_device_memory=lambda: (MEMORY, MEMORY),
        set_per_device_resource=_resources.__setitem__,
        get_current_device_resource=current,
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
