"""The device protocol: memory, compiled modules and launches, as launchers use them.

Launchers are written against the :class:`Device` protocol alone. :class:`gpujoin.launch.cuda.CudaDevice` fulfils it on
a GPU; the tests fulfil it on the CPU by an emulator that compiles the same sources with g++.

Arguments of a kernel are device arrays, NumPy scalars of exactly the parameter's type, :class:`PointerTable` or
``None`` for a null pointer. Python numbers are refused, for they do not say their width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from gpujoin.errors import DeviceMemoryError, KernelArgumentError

Array: TypeAlias = Any
"""A device array: CuPy's on a GPU, NumPy's over emulated device memory in the tests."""

Argument: TypeAlias = "Array | np.generic | PointerTable | None"
"""Values that can be passed to a kernel parameter."""

WARP = 32
"""Threads of a warp."""

SECTOR_BYTES = 32
"""Bytes of a sector, which a random access moves at least; as in ``sectors.cuh``."""

MAX_BLOCK_THREADS = 1024
MAX_GRID_BLOCKS = (1 << 31) - 1
STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory of a block that needs no opt-in; more must be dynamic, after opting in."""


@dataclass(frozen=True)
class ModuleSpec:
    """One specialisation of a CUDA source file."""

    source: str
    """Path below the kernel folder, such as ``"direct.cu"``."""
    defines: tuple[tuple[str, int | str], ...] = ()
    """Macros defined before the source, which has ``#ifndef`` defaults for all of them."""

    def __str__(self) -> str:
        defines = ", ".join(f"{name}={value}" for name, value in self.defines)
        return f"{self.source}[{defines}]" if defines else self.source

    @property
    def options(self) -> tuple[str, ...]:
        """The macros as compiler options."""
        return tuple(f"-D{name}={value}" for name, value in self.defines)


@dataclass(frozen=True)
class DeviceProperties:
    """Properties of a device by which launchers choose the sizes of grids and tables."""

    multiprocessors: int
    shared_bytes: int
    """Most shared memory of one block, static and dynamic together, after opting in."""
    l2_bytes: int
    blocks_per_multiprocessor: int = 8
    """Blocks of 256 threads that a multiprocessor has at a time. A grid of so many runs in one wave, so that rows in
    the order of a table meet it front to back once."""

    @property
    def blocks(self) -> int:
        """Most blocks of a launch. Where there is more work, each block takes several tiles."""
        return self.multiprocessors * self.blocks_per_multiprocessor


@dataclass(frozen=True)
class PointerTable:
    """Addresses of device arrays, for a kernel that takes ``T* const*``."""

    addresses: Array
    """Address of each array; 0 for ``None``."""
    arrays: tuple[Array | None, ...] = field(repr=False)
    """The arrays pointed to, which live as long as the table."""


class Kernel(Protocol):
    """A compiled ``extern "C" __global__`` function of one module."""

    @property
    def name(self) -> str:
        """The function's name in the source."""

    @property
    def module(self) -> ModuleSpec:
        """The specialisation it was compiled from."""


class Device(Protocol):
    """Runs kernels and allocates memory. All work is queued on one stream, in the order of the calls."""

    @property
    def xp(self) -> Any:
        """The array module of the device's arrays: ``cupy`` or ``numpy``."""

    @property
    def properties(self) -> DeviceProperties:
        """Properties by which grids and tables are sized."""

    @property
    def free_bytes(self) -> int:
        """Bytes that can still be allocated, as far as known."""

    def kernel(self, module: ModuleSpec, name: str) -> Kernel:
        """A kernel, compiled at the first call.

        Raises ``KernelCompileError`` if the source does not compile, or has no such kernel.
        """

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """Allocate an array without setting its content. The emulator reports reads of unset content.

        Raises ``DeviceMemoryError`` if there is not enough device memory; likewise for the other allocations.
        """

    def zeros(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """Allocate an array of zeros."""

    def full(self, shape: int | tuple[int, ...], value: Any, dtype: Any) -> Array:
        """Allocate an array of one value."""

    def upload(self, host: np.ndarray[Any, Any]) -> Array:
        """Copy a host array to the device."""

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        """Copy a device array to the host, after the work queued before."""

    def pointers(self, arrays: Sequence[Array | None]) -> PointerTable:
        """Table of the addresses of contiguous device arrays, to be passed as one argument."""

    def launch(
        self,
        kernel: Kernel,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Argument],
        *,
        shared_bytes: int = 0,
    ) -> None:
        """Queue a kernel of this device, with one argument for each parameter; see the module's docstring.

        ``grid`` and ``block`` are numbers of blocks and of a block's threads, x first, and ``shared_bytes`` a block's
        dynamic shared memory. Raises ``KernelLaunchError`` if the device refuses the launch.
        """


def check_room(device: Device, nbytes: int, what: str) -> None:
    """Raise if an output of exactly ``nbytes`` does not fit, before anything is allocated or launched."""
    free = device.free_bytes
    if nbytes > free:
        raise DeviceMemoryError(f"{what} takes {nbytes} bytes, and the device has {free} free; ask for less at a time")


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Convert the errors that array operations raise for lack of memory to ``DeviceMemoryError``, naming the result."""
    try:
        yield
    except DeviceMemoryError:
        raise
    except MemoryError as problem:
        raise DeviceMemoryError(f"{what} does not fit the device: {problem}; ask for less at a time") from problem


def blocks_for(items: int, per_block: int, limit: int = MAX_GRID_BLOCKS) -> int:
    """Number of blocks that cover ``items``: at least one, and at most ``limit``; then each takes several tiles."""
    return max(1, min(-(-items // per_block), limit))


def dimensions(extent: int | tuple[int, ...]) -> tuple[int, int, int]:
    """Convert the extent of a grid or block to three numbers.

    Raises ``KernelArgumentError`` if there are more than three numbers, or one is below 1.
    """
    numbers = (extent,) if isinstance(extent, int) else tuple(int(n) for n in extent)
    if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
        raise KernelArgumentError(f"A grid or block is one to three positive numbers, not {extent!r}.")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def check_launch(
    kernel: Kernel,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    args: Sequence[Argument],
    shared_bytes: int,
    properties: DeviceProperties,
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Check a launch, on every device, and give its grid and block in three dimensions.

    Raises ``KernelArgumentError``, naming the kernel and the problem.
    """
    where = f"kernel {kernel.name} of {kernel.module}"
    grid, block = dimensions(grid), dimensions(block)
    if grid[0] > MAX_GRID_BLOCKS or max(grid[1:]) > 65535:
        raise KernelArgumentError(f"{where}: a grid of {grid} blocks is too large; let a block take several tiles.")
    if math.prod(block) > MAX_BLOCK_THREADS:
        raise KernelArgumentError(f"{where}: a block of {block} threads is too large; {MAX_BLOCK_THREADS} is the most.")
    if not 0 <= shared_bytes <= properties.shared_bytes:
        raise KernelArgumentError(
            f"{where}: {shared_bytes} bytes of shared memory; the device has 0 to {properties.shared_bytes} a block."
        )
    for position, argument in enumerate(args):
        problem = _problem(argument)
        if problem is not None:
            raise KernelArgumentError(f"{where}: argument {position} {problem}")
    return grid, block


def _problem(argument: Argument) -> str | None:
    if argument is None or isinstance(argument, PointerTable | np.generic):
        return None
    if isinstance(argument, bool | int | float):
        return f"is the Python number {argument!r}; pass a NumPy scalar of the parameter's type, such as np.int64(…)."
    if not hasattr(argument, "dtype") or not hasattr(argument, "flags"):
        return f"is a {type(argument).__name__}; pass a device array, a NumPy scalar, a PointerTable or None."
    if not argument.flags.c_contiguous:
        return f"is an array with strides {argument.strides}; pass a contiguous one."
    return None
