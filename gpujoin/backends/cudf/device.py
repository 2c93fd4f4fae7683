"""One GPU: makes it current, bounds its memory, and converts its errors.

Every public method of the backend runs inside :meth:`Device.entered`. There the device and one stream are current for
CuPy, the same stream is passed to pylibcudf, and both allocate from one RMM resource. The stream is the default stream
of the calling thread. Leaving the block waits for it, so any thread may use and free what a method returns.
"""

from __future__ import annotations

import functools
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy
import rmm.mr
from cuda.bindings import driver, runtime
from rmm.allocators.cupy import rmm_cupy_allocator
from rmm.pylibrmm.stream import PER_THREAD_DEFAULT_STREAM, Stream

from gpujoin.backends.cudf import lost
from gpujoin.errors import BackendUnavailableError, DeviceLostError, DeviceMemoryError
from gpujoin.launch.compiler import usable_directory
from gpujoin.logs import log
from gpujoin.model.backend import KeptTables

STREAM: Stream = PER_THREAD_DEFAULT_STREAM
"""Stream to pass to pylibcudf. ``Table.from_arrow`` accepts only RMM's own class."""

_CUPY_CACHE_VARIABLE = "CUPY_CACHE_DIR"
_SHARE_OF_FREE_MEMORY = 0.8
_OUT_OF_MEMORY = ("out_of_memory", "out of memory", "bad_alloc", "cudaErrorMemoryAllocation")
_CUDA_OUT_OF_MEMORY = 2
_POOL_ALIGNMENT = 256
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the namespace with NVML's process numbers (``PROC_PID_INIT_INO`` of Linux)."""
_BUS_ID_LENGTH = 16
_NOT_AVAILABLE = (1 << 64) - 1
"""``NVML_VALUE_NOT_AVAILABLE``, the memory of a process if the driver does not manage it."""

_TABLES_SHARE = 8
"""An eighth of a slot's share of the memory is for tables that workers keep between tasks, all of them together."""


@dataclass(frozen=True)
class _Installed:
    """RMM's resource of a device, and its adaptor that bounds this process."""

    limit: int
    limiting: rmm.mr.LimitingResourceAdaptor
    resource: rmm.mr.DeviceMemoryResource


_installed: dict[int, _Installed] = {}
_installing = threading.Lock()
_kept_tables: dict[int, KeptTables] = {}
"""Tables that stay on each device between tasks."""


class Device:
    """A GPU, by its number among those visible to CUDA, with a bounded share of its memory.

    The bound is a number of bytes, or a share of all memory, or by default four fifths of what is free now. libcudf
    takes temporary memory from RMM's resource of the device, which is one for the whole process. So the resource is
    installed there, and the limit is that of the latest ``Device`` made for the GPU. Raises ``BackendUnavailableError``
    if there is no such GPU, or CUDA cannot use it.
    """

    def __init__(self, ordinal: int, memory_limit: int | None, memory_share: float | None = None) -> None:
        self.ordinal = ordinal
        self._inside = threading.local()
        _keep_cupys_kernels()
        try:
            count = int(cupy.cuda.runtime.getDeviceCount())
        except cupy.cuda.runtime.CUDARuntimeError as problem:
            raise BackendUnavailableError(
                f"CUDA does not start: {problem}; run `gpujoin doctor` to see what is missing"
            ) from problem
        if not 0 <= ordinal < count:
            raise BackendUnavailableError(
                f"GPU {ordinal} does not exist: CUDA sees {count} (CUDA_VISIBLE_DEVICES hides the others)"
            )
        with cupy.cuda.Device(ordinal):
            if memory_limit is None and memory_share is not None:
                memory_limit = int(rmm.mr.available_device_memory()[1] * memory_share)
            _install(ordinal, memory_limit)

    @property
    def memory_limit(self) -> int:
        """Bytes of the GPU that this process may use now, its context not counted."""
        return _installed[self.ordinal].limit

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the device current in this thread, and wait for its work at the end. Blocks may be nested.

        Raises ``DeviceMemoryError`` for every error by which RMM, libcudf and CuPy report that device memory ran out,
        and ``DeviceLostError`` for those after which the process cannot use the device.
        """
        if getattr(self._inside, "depth", 0):
            yield
            return
        self._inside.depth = 1
        try:
            with (
                lost.lost_errors(self.ordinal),
                device_errors(),
                cupy.cuda.Device(self.ordinal),
                cupy.cuda.Stream.ptds,
                cupy.cuda.using_allocator(rmm_cupy_allocator),
            ):
                try:
                    yield
                finally:
                    STREAM.synchronize()
        finally:
            self._inside.depth = 0


def _keep_cupys_kernels() -> None:
    """Set CuPy's folder for compiled kernels, if its default cannot be written to."""
    if _CUPY_CACHE_VARIABLE not in os.environ:
        default = Path("~/.cupy/kernel_cache")
        os.environ[_CUPY_CACHE_VARIABLE] = str(usable_directory(default.expanduser, _CUPY_CACHE_VARIABLE))


@contextmanager
def device_errors() -> Iterator[None]:
    """Convert all out-of-memory errors to :class:`~gpujoin.errors.DeviceMemoryError`.

    The variables of the failed stack frames are cleared, since an exception would keep device memory alive through
    them.
    """
    try:
        yield
    except DeviceMemoryError:
        raise
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
        message = str(problem)
        traceback.clear_frames(problem.__traceback__)
    else:
        return
    raise DeviceMemoryError(f"the GPU is out of memory: {message}")


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an error of RMM, libcudf or CuPy is an out-of-memory error."""
    if isinstance(problem, MemoryError):
        return True
    if getattr(problem, "status", None) == _CUDA_OUT_OF_MEMORY:
        return True
    return any(sign in str(problem) for sign in _OUT_OF_MEMORY)


def free_bytes() -> int:
    """Bytes that RMM's resource of the current device can still provide if kept tables are let go."""
    ordinal = int(cupy.cuda.runtime.getDevice())
    installed = _installed.get(ordinal)
    if installed is None:
        return int(rmm.mr.available_device_memory()[0])
    table_bytes = _kept_tables[ordinal].nbytes if ordinal in _kept_tables else 0
    return installed.limit - int(installed.limiting.get_allocated_bytes()) + table_bytes


def keep_tables(ordinal: int, tables: KeptTables) -> None:
    """Have tables make room for allocations on a device, one after the other. If it is lost, all are let go."""
    _kept_tables[ordinal] = tables
    lost.forget_with(ordinal, tables.clear)


def allocated_bytes(ordinal: int) -> int:
    """Bytes of a device that this process holds, its context and the pool's unused memory not counted."""
    installed = _installed.get(ordinal)
    return 0 if installed is None else int(installed.limiting.get_allocated_bytes())


def share_memory(ordinal: int, fraction: float, slots: int, contexts: int) -> int:
    """Limit this process to a share of what a fraction of the memory, and the contexts of all processes, leave.

    Returns the bytes of that share that are left out of the limit: they are for tables that processes keep between
    tasks, so that these and the tasks that run fit together. 0 where the driver has no memory pools, since a pool of
    RMM is kept whole. Raises ``BackendUnavailableError`` if the contexts leave nothing. Does nothing if no device of
    this number was made.
    """
    if ordinal not in _installed:
        return 0
    with lost.lost_errors(ordinal), cupy.cuda.Device(ordinal):
        total = int(rmm.mr.available_device_memory()[1])
        share = int(min(total * fraction, total - contexts) / slots)
        if share <= 0:
            raise BackendUnavailableError(
                f"the contexts of its processes take all of GPU {ordinal}: {contexts} of {total} bytes; use fewer "
                "executor cores, or set spark.gpujoin.gpu.contextBytes if contexts are smaller"
            )
        table_bytes = share // _TABLES_SHARE if _pools_supported(ordinal) else 0
        _install(ordinal, share - table_bytes)
    return table_bytes


def context_bytes(ordinal: int) -> int | None:
    """Bytes that this process takes of a GPU, by NVML; ``None`` if NVML does not tell.

    It does not in containers, whose process numbers are not those of NVML, nor of MIG instances.
    """
    try:
        if Path("/proc/self/ns/pid").stat().st_ino != _FIRST_PID_NAMESPACE:
            return None
        from cuda.bindings import nvml

        bus = _checked(runtime.cudaDeviceGetPCIBusId(_BUS_ID_LENGTH, ordinal)).decode().rstrip("\0")
        nvml.init_v2()
        try:
            handle = nvml.device_get_handle_by_pci_bus_id_v2(bus)
            processes = nvml.device_get_compute_running_processes_v3(handle)
            sizes = [int(p.used_gpu_memory) for p in processes if p.pid == os.getpid()]
        finally:
            nvml.shutdown()
    except Exception as problem:  # noqa: BLE001 - those of NVML are of a class of its binding, which may be missing
        log.debug("NVML does not tell what this process takes of GPU %d: %s", ordinal, problem)
        return None
    return next((nbytes for nbytes in sizes if 0 < nbytes != _NOT_AVAILABLE), None)


def release_cached_memory(ordinal: int) -> None:
    """Return memory that no frame uses, for other processes; for example when a GPU slot is released."""
    if ordinal not in _installed:
        return
    with suppress(DeviceLostError), lost.lost_errors(ordinal):
        if _pools_supported(ordinal):
            _checked(runtime.cudaMemPoolTrimTo(_checked(runtime.cudaDeviceGetDefaultMemPool(ordinal)), 0))
        else:  # a pool of RMM keeps what it has as long as it lives
            with _installing, cupy.cuda.Device(ordinal):
                _set_resource(ordinal, _installed[ordinal].limit)


def _install(ordinal: int, limit: int | None) -> None:
    with _installing:
        current = _installed.get(ordinal)
        if current is not None and limit in (None, current.limit):
            return
        if limit is None:
            free, _ = rmm.mr.available_device_memory()
            limit = int(free * _SHARE_OF_FREE_MEMORY)
        _set_resource(ordinal, limit)


def _set_resource(ordinal: int, limit: int) -> None:
    """Install a resource. Kept tables are let go, since it would not count them."""
    if ordinal in _kept_tables:
        _kept_tables[ordinal].clear()
    limiting = rmm.mr.LimitingResourceAdaptor(_pool(ordinal, limit), limit)
    resource = rmm.mr.FailureCallbackResourceAdaptor(limiting, _release(ordinal))
    rmm.mr.set_per_device_resource(ordinal, resource)
    _installed[ordinal] = _Installed(limit, limiting, resource)


@functools.cache
def _release(ordinal: int) -> Callable[[int], bool]:
    """Let go of a kept table of a device; ``False`` if there is none, so that the allocation fails.

    Kept for ever: a resource in C++ has a pointer to it.
    """

    def release(nbytes: int) -> bool:
        tables = _kept_tables.get(ordinal)
        try:
            if tables is None or not tables.drop():
                return False
        except Exception as problem:  # noqa: BLE001 - C++ calls this, and takes no exception
            log.warning("a table that is kept on GPU %d cannot be let go: %s", ordinal, problem)
            return False
        log.debug("a table that was kept on GPU %d made room for %d bytes", ordinal, nbytes)
        return True

    return release


def _pool(ordinal: int, limit: int) -> rmm.mr.DeviceMemoryResource:
    """The driver's own memory pool, if there is one; else a growing pool of RMM."""
    if not _pools_supported(ordinal):
        most = limit // _POOL_ALIGNMENT * _POOL_ALIGNMENT
        return rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=0, maximum_pool_size=most)
    pool = _checked(runtime.cudaDeviceGetDefaultMemPool(ordinal))
    keep = runtime.cudaMemPoolAttr.cudaMemPoolAttrReleaseThreshold
    _checked(runtime.cudaMemPoolSetAttribute(pool, keep, driver.cuuint64_t(limit)))
    return rmm.mr.CudaAsyncViewMemoryResource(pool)


def _pools_supported(ordinal: int) -> bool:
    attribute = runtime.cudaDeviceAttr.cudaDevAttrMemoryPoolsSupported
    return bool(_checked(runtime.cudaDeviceGetAttribute(attribute, ordinal)))


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status != runtime.cudaError_t.cudaSuccess:
        raise BackendUnavailableError(f"a CUDA call failed: {status.name}; run `gpujoin doctor`")
    return values[0] if values else None
