"""The emulator's library, and emulated device memory: one arena whose every byte is known."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from gpujoin.errors import DeviceMemoryError
from tests.kernels.emulator.arrays import DeviceArray

FORBIDDEN, UNWRITTEN, WRITTEN = 0, 1, 2
_ALIGNMENT = 256
_GAP_BYTES = 64 * 1024
"""Forbidden bytes after each array: more than a block of threads overruns it by when a bounds check is missing."""


class Extent(ctypes.Structure):
    """``emu::Extent``."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("item_bytes", ctypes.c_uint32),
        ("read_only", ctypes.c_uint32),
    )


class Object(ctypes.Structure):
    """``emu::Object``."""

    _fields_ = (("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


class Request(ctypes.Structure):
    """``emu::Request``."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_bytes", ctypes.c_uint64),
        ("dynamic_address", ctypes.c_uint64),
        ("shared_address", ctypes.c_uint64),
        ("shared_bytes", ctypes.c_uint64),
        ("shared", ctypes.POINTER(Object)),
        ("extents", ctypes.POINTER(Extent)),
        ("shared_count", ctypes.c_uint32),
        ("extent_count", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("step_limit", ctypes.c_uint64),
    )


class Report(ctypes.Structure):
    """``emu::Report``."""

    _fields_ = (
        ("kind", ctypes.c_char * 32),
        ("message", ctypes.c_char * 1024),
        ("site", ctypes.c_uint64),
        ("other_site", ctypes.c_uint64),
        ("steps", ctypes.c_uint64),
    )


class Counts(ctypes.Structure):
    """``emu::Counts``: what threads asked of an array.

    Attributes
    ----------
    accesses, bytes : int
        Of threads.
    requests : int
        Of warps: what their lanes ask for by one instruction.
    sectors, thread_sectors : int
        Sectors of 32 bytes, distinct within each request, and within all that a thread asks for.
    """

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("accesses", "bytes", "requests", "sectors", "thread_sectors"))
    accesses: int
    bytes: int
    requests: int
    sectors: int
    thread_sectors: int

    @property
    def sector_bytes(self) -> int:
        """Bytes of sectors that a cache has to give: a warp's accesses meet in them, or a thread's follow in them."""
        return 32 * min(self.sectors, self.thread_sectors)


class Traffic(ctypes.Structure):
    """``emu::Traffic``: what a launch asked of an array."""

    _fields_ = (("reads", Counts), ("writes", Counts), ("atomics", Counts), ("distinct_sectors", ctypes.c_uint64))
    reads: Counts
    writes: Counts
    atomics: Counts
    distinct_sectors: int

    @property
    def all(self) -> tuple[Counts, Counts, Counts]:
        """The three kinds of accesses."""
        return self.reads, self.writes, self.atomics


def load_runtime(path: Path) -> ctypes.CDLL:
    """The emulator's library with the types of its functions."""
    library = ctypes.CDLL(str(path))
    library.emu_launch.argtypes = (ctypes.POINTER(Request), ctypes.POINTER(Report))
    library.emu_launch.restype = ctypes.c_int
    library.emu_trace.argtypes = (ctypes.c_int,)
    library.emu_trace.restype = None
    library.emu_traffic.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(Traffic))
    library.emu_traffic.restype = None
    library.emu_misses.argtypes = (ctypes.c_uint64,) * 3
    library.emu_misses.restype = ctypes.c_uint64
    library.emu_arena.restype = ctypes.c_void_p
    library.emu_arena_bytes.restype = ctypes.c_uint64
    library.emu_shared_bytes.restype = ctypes.c_uint64
    library.emu_image_base.argtypes = (ctypes.c_void_p,)
    library.emu_image_base.restype = ctypes.c_uint64
    library.emu_mark.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int)
    library.emu_mark.restype = None
    library.emu_unwritten.argtypes = (ctypes.c_uint64,) * 3 + (ctypes.POINTER(ctypes.c_uint64),)
    library.emu_unwritten.restype = ctypes.c_uint64
    return library


class _Allocation:
    """Owner of a piece of the arena, which NumPy arrays keep alive as their base."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
        }


class Arena:
    """Device memory, given out in pieces with forbidden bytes between them.

    Parameters
    ----------
    library : ctypes.CDLL
        From :func:`load_runtime`.
    limit : int or None
        Most bytes to give out at a time; ``None``: all of the arena.
    """

    def __init__(self, library: ctypes.CDLL, limit: int | None = None) -> None:
        self._library = library
        self.base = int(library.emu_arena())
        self.size = int(library.emu_arena_bytes())
        self.limit = self.size if limit is None else limit
        self.used = 0
        self.peak = 0

    def allocate(self, shape: int | tuple[int, ...], dtype: Any) -> DeviceArray:
        """An unwritten array.

        Raises
        ------
        DeviceMemoryError
            The limit is reached.
        """
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        nbytes = math.prod(shape) * dtype.itemsize
        if self.used + nbytes > self.limit:
            raise DeviceMemoryError(f"{nbytes} bytes asked for, {self.limit - self.used} free on the emulated device")
        offset, rounded = _pool.take(nbytes, self.size)
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        self._library.emu_mark(offset, nbytes, UNWRITTEN)
        owner = _Allocation(self.base + offset, nbytes)
        weakref.finalize(owner, self._free, offset, rounded, nbytes)
        flat = np.asarray(owner) if nbytes else np.empty(0, np.uint8)
        return flat.view(dtype).reshape(shape).view(DeviceArray)

    def _free(self, offset: int, rounded: int, nbytes: int) -> None:
        self._library.emu_mark(offset, nbytes, FORBIDDEN)
        _pool.give(offset, rounded)
        self.used -= nbytes

    def adopt(self, array: np.ndarray[Any, Any]) -> DeviceArray:
        """A copy of an array in device memory."""
        copy = self.allocate(array.shape, array.dtype)
        copy.view(np.ndarray)[...] = array
        self.mark_written(copy)
        return copy

    def mark_written(self, array: np.ndarray[Any, Any]) -> None:
        """The host has written all of a contiguous array."""
        if array.nbytes:
            self._library.emu_mark(address_of(array) - self.base, array.nbytes, WRITTEN)

    def holds(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether the array lies in device memory."""
        return 0 <= address_of(array) - self.base < self.size

    def unwritten(self, array: np.ndarray[Any, Any]) -> tuple[int, int]:
        """How many items of a contiguous array nothing has written, and the first of them."""
        first = ctypes.c_uint64(0)
        offset = address_of(array) - self.base
        count = self._library.emu_unwritten(offset, array.size, array.itemsize, ctypes.byref(first))
        return int(count), first.value


class _Pool:
    """Which parts of the arena are free. There is one arena in a process, whatever devices use it."""

    def __init__(self) -> None:
        self._end = _GAP_BYTES
        self._live = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)

    def take(self, nbytes: int, size: int) -> tuple[int, int]:
        rounded = -(-(nbytes + _GAP_BYTES) // _ALIGNMENT) * _ALIGNMENT
        if self._free[rounded]:
            offset = self._free[rounded].pop()
        else:
            offset = self._end
            if offset + rounded > size:
                raise DeviceMemoryError(f"{nbytes} bytes asked for, {size - offset} free on the emulated device")
            self._end += rounded
        self._live += 1
        return offset, rounded

    def give(self, offset: int, rounded: int) -> None:
        self._live -= 1
        if self._live == 0:
            self._end = _GAP_BYTES
            self._free.clear()
        else:
            self._free[rounded].append(offset)


_pool = _Pool()


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Address of an array's first item."""
    return int(array.__array_interface__["data"][0])
