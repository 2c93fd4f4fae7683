"""Memory of the CPU backend: arrays, chunks that fit a cache, and errors of short memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.errors import HostMemoryError, OutOfMemoryError

CHUNK = 1 << 15
"""Values that are computed at a time: intermediate results stay in the second-level cache."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


def empty(length: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Allocate an uninitialised array from Arrow's memory pool.

    The pool keeps freed memory mapped, while NumPy returns the memory of large arrays to the system. Touching new pages
    for each batch took longer than gathering into them (`benchmarks/engine/README.md`, "fresh pages").
    """
    dtype = np.dtype(dtype)
    return np.frombuffer(pa.allocate_buffer(length * dtype.itemsize), dtype, count=length)


def memory_errors(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Convert the ``MemoryError`` of NumPy or Arrow to a :class:`HostMemoryError`."""

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except OutOfMemoryError:
            raise
        except MemoryError as problem:
            raise HostMemoryError(f"the CPU backend ran out of memory: {problem}") from problem

    return guarded
