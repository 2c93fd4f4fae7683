"""CuPy, as far as the backend uses it, over the emulator's arrays."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tests.backends.cudf.libraries import record
from tests.kernels.emulator.arrays import DeviceArray, DeviceModule


class CUDARuntimeError(RuntimeError):
    """See CuPy."""


class OutOfMemoryError(MemoryError):
    """See CuPy."""


class UnownedMemory:
    """Memory at an address, which a Python object owns."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner = ptr, size, owner


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        self.mem, self.offset = mem, offset


class _View:
    """Owner of a view, which NumPy keeps as its base."""

    def __init__(self, pointer: MemoryPointer, nbytes: int) -> None:
        assert 0 <= pointer.offset <= pointer.offset + nbytes <= pointer.mem.size, "a view beyond its memory"
        self.pointer = pointer
        self.__array_interface__ = {
            "version": 3, "data": (pointer.mem.ptr + pointer.offset, False), "shape": (nbytes,), "typestr": "|u1",
        }  # fmt: skip


class _ArrayType(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, DeviceArray)


class ndarray(metaclass=_ArrayType):  # noqa: N801 - CuPy's name
    """Makes views of memory; all arrays are instances."""

    def __new__(cls, shape: tuple[int, ...], dtype: Any, memptr: MemoryPointer) -> Any:
        record.arrive()
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        flat = np.asarray(_View(memptr, nbytes)) if nbytes else np.empty(0, np.uint8)
        return flat.view(dtype).reshape(shape).view(DeviceArray)


def asnumpy(array: Any) -> np.ndarray[Any, Any]:
    """Copy to the host."""
    record.use("a copy to the host")
    host = np.array(array.view(np.ndarray))
    record.count_copy("down", host.nbytes)
    return host


def asarray(array: Any, dtype: Any = None) -> Any:
    """Copy a host array to the device; a device array is returned as it is."""
    if isinstance(array, DeviceArray):
        return array if dtype is None else array.astype(dtype)
    record.use("a copy to the device")
    host = np.array(array, dtype=dtype)
    record.count_copy("up", host.nbytes)
    return host.view(DeviceArray)


class Event:
    """A point in time: what a thread asks for is done when the call returns."""

    def record(self) -> None:
        """Take the time."""
        self.seconds = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is left to wait for."""


def _elapsed(start: Event, end: Event) -> float:
    """Milliseconds, more than 0 as on a device."""
    return max(1e-6, (end.seconds - start.seconds) * 1e3)


PROPERTIES = {"name": b"stand-in", "totalGlobalMem": 8 << 30, "l2CacheSize": 60 << 20, "major": 9, "minor": 0}


def _slow(name: str) -> Any:
    """A function for which CuPy compiles CUB's headers when it is first used."""

    def refused(*arguments: Any, **options: Any) -> Any:
        raise AssertionError(f"CuPy compiles {name} for two seconds; see gpujoin.backends.ordered.reductions")

    return refused


def _sum(array: Any, dtype: Any = None) -> Any:
    """Sum of 64-bit numbers, for which CuPy has a compiled kernel."""
    assert array.dtype.itemsize == 8, "see gpujoin.backends.ordered.reductions"
    assert array.dtype.kind in "iuf"
    return np.asarray(np.ndarray.sum(array.view(np.ndarray), dtype=dtype)).view(DeviceArray)


def _interface(array: Any) -> dict[str, Any]:
    return {"shape": array.shape, "typestr": array.dtype.str, "data": (array.ctypes.data, False), "version": 3}


class Module(ModuleType):
    """The module."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self._functions = DeviceModule()
        DeviceArray.__cuda_array_interface__ = property(_interface)  # type: ignore[attr-defined]
        DeviceArray.any, DeviceArray.all = _slow("any"), _slow("all")  # type: ignore[method-assign]
        DeviceArray.sum = _sum  # type: ignore[assignment]
        self.any, self.all, self.count_nonzero = (_slow(name) for name in ("any", "all", "count_nonzero"))
        self.ndarray, self.asnumpy, self.asarray = ndarray, asnumpy, asarray
        self.__version__ = "14.2.0"
        self.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
        stream = SimpleNamespace(synchronize=lambda: None, ptr=2)
        self.cuda = SimpleNamespace(
            Device=lambda ordinal: nullcontext(), Stream=SimpleNamespace(ptds=nullcontext()),
            using_allocator=lambda allocator: record.entered(), UnownedMemory=UnownedMemory,
            MemoryPointer=MemoryPointer,
            get_current_stream=lambda: stream, memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            runtime=SimpleNamespace(
                getDeviceCount=lambda: 1, getDevice=lambda: 0, CUDARuntimeError=CUDARuntimeError,
                getDeviceProperties=lambda ordinal: PROPERTIES, deviceSynchronize=lambda: None,
                driverGetVersion=lambda: 13000,
            ),
            Event=Event, get_elapsed_time=_elapsed, set_allocator=lambda allocator: None,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._functions, name)
