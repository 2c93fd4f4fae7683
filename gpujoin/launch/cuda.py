"""Implements the device protocol on a GPU, with CuPy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from gpujoin.errors import DeviceMemoryError, KernelArgumentError, KernelCompileError, KernelLaunchError
from gpujoin.launch import images
from gpujoin.launch.compiler import compile_cubin, kept_image
from gpujoin.launch.device import (
    STATIC_SHARED_BYTES,
    Argument,
    Array,
    DeviceProperties,
    Kernel,
    ModuleSpec,
    PointerTable,
    check_launch,
)
from gpujoin.launch.keys import BLOCK_THREADS
from gpujoin.logs import log

_NULL = np.uint64(0)


@dataclass(frozen=True)
class CudaKernel:
    """A function of a module loaded on one GPU."""

    name: str
    module: ModuleSpec
    function: Any
    ordinal: int


@dataclass(frozen=True)
class LoadedModule:
    """A module loaded on one GPU."""

    library: Any
    origin: str
    """Architecture of the image that came with the package, or ``NVRTC``."""
    kernels: dict[str, CudaKernel]


class CudaDevice:
    """CuPy's current GPU; launches go to the stream that is current then.

    Allocations come from CuPy's current allocator. An object serves one GPU, and any thread. Modules are loaded once
    and stay: one that is unloaded may still be running in another thread. There are some 30 of the launchers and one
    for each form of a condition, constants left out; each takes 50 to 100 KB of device memory.

    Parameters
    ----------
    free_bytes : callable or None
        Returns the bytes that the allocator can still provide; ``None``: those that CUDA and CuPy's own pool have free.

    Raises
    ------
    KernelLaunchError
        If CUDA does not report the GPU's properties.
    """

    def __init__(self, free_bytes: Callable[[], int] | None = None) -> None:
        self._free_bytes = free_bytes or _cupy_free_bytes
        try:
            self._ordinal = int(cupy.cuda.runtime.getDevice())
            facts = cupy.cuda.runtime.getDeviceProperties(self._ordinal)
        except cupy.cuda.runtime.CUDARuntimeError as problem:
            raise KernelLaunchError(f"CUDA does not tell the properties of its device: {problem}") from problem
        self._capability = int(facts["major"]), int(facts["minor"])
        self._architecture = f"sm_{facts['major']}{facts['minor']}"
        self._properties = DeviceProperties(
            multiprocessors=int(facts["multiProcessorCount"]),
            shared_bytes=int(facts["sharedMemPerBlockOptin"]),
            l2_bytes=int(facts["l2CacheSize"]),
            blocks_per_multiprocessor=int(facts["maxThreadsPerMultiProcessor"]) // BLOCK_THREADS,
        )
        self._modules: dict[ModuleSpec, LoadedModule] = {}
        self._loading = threading.Lock()

    @property
    def xp(self) -> Any:
        """CuPy."""
        return cupy

    @property
    def properties(self) -> DeviceProperties:
        """Properties of the GPU."""
        return self._properties

    @property
    def free_bytes(self) -> int:
        return self._free_bytes()

    def kernel(self, module: ModuleSpec, name: str) -> CudaKernel:
        with self._loading:
            loaded = self._modules.get(module)
            if loaded is None:
                loaded = self._modules[module] = self._load(module, name)
            if name not in loaded.kernels:
                loaded.kernels[name] = self._kernel(loaded.library, module, name)
            return loaded.kernels[name]

    def compile(self, modules: Sequence[ModuleSpec], threads: int) -> None:
        """Compile modules that did not come with the package, on several threads, before any launch needs them.

        Raises ``KernelCompileError`` if a module does not compile; the others are kept.
        """
        missing = [module for module in modules if next(images.shipped(module, self._capability), None) is None]
        with ThreadPoolExecutor(threads) as pool:
            compilations = [pool.submit(compile_cubin, module, self._architecture) for module in missing]
        for compilation in compilations:
            compilation.result()

    def _load(self, module: ModuleSpec, name: str) -> LoadedModule:
        """Load the image of a module that came with the package, or else compile it; ``name`` is one of its kernels."""
        for image in images.shipped(module, self._capability):
            try:
                path = kept_image(f"{image.name}.{image.architecture}{image.suffix}", image.content)
                library = cupy.RawModule(path=str(path))
                kernel = self._kernel(library, module, name)
            except (KernelCompileError, RuntimeError) as problem:
                log.warning("the compiled %s for %s is not used: %s", module, image.architecture, problem)
            else:
                return LoadedModule(library, image.architecture, {name: kernel})
        library = cupy.RawModule(path=str(compile_cubin(module, self._architecture)))
        return LoadedModule(library, "NVRTC", {name: self._kernel(library, module, name)})

    def _kernel(self, library: Any, module: ModuleSpec, name: str) -> CudaKernel:
        try:
            function = library.get_function(name)
            static = int(function.shared_size_bytes)
            if static < STATIC_SHARED_BYTES:
                function.max_dynamic_shared_size_bytes = self._properties.shared_bytes - static
        except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as problem:
            raise KernelCompileError(f"Kernel {name} of {module} cannot be loaded: {problem}") from problem
        return CudaKernel(name, module, function, self._ordinal)

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        with _memory_errors():
            return cupy.empty(shape, dtype=dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        with _memory_errors():
            return cupy.zeros(shape, dtype=dtype)

    def full(self, shape: int | tuple[int, ...], value: Any, dtype: Any) -> Array:
        with _memory_errors():
            array = cupy.empty(shape, dtype=dtype)
            # CuPy's kernel fills at less than half the rate of a copy, the driver repeats a byte at that rate.
            value_bytes = set(np.full(1, value, dtype).tobytes())
            if len(value_bytes) == 1 and array.nbytes:
                array.data.memset_async(value_bytes.pop(), array.nbytes)
            else:
                array.fill(value)
            return array

    def upload(self, host: np.ndarray[Any, Any]) -> Array:
        with _memory_errors():
            return cupy.asarray(np.ascontiguousarray(host))

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        return cupy.asnumpy(array)

    def pointers(self, arrays: Sequence[Array | None]) -> PointerTable:
        columns = tuple(arrays)
        for position, array in enumerate(columns):
            if array is None:
                continue
            if not self._is_here(array):
                raise KernelArgumentError(
                    f"Array {position} of a pointer table does not lie on GPU {self._ordinal}; copy it there first."
                )
            if not array.flags.c_contiguous:
                raise KernelArgumentError(
                    f"Array {position} of a pointer table is not contiguous; pass a contiguous one."
                )
        addresses = [0 if array is None else int(array.data.ptr) for array in columns]
        return PointerTable(self.upload(np.asarray(addresses, dtype=np.uint64)), columns)

    def launch(
        self,
        kernel: Kernel,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Argument],
        *,
        shared_bytes: int = 0,
    ) -> None:
        """Launch a kernel on CuPy's current stream."""
        assert isinstance(kernel, CudaKernel), "a kernel of another device"
        blocks, threads = check_launch(kernel, grid, block, args, shared_bytes, self._properties)
        passed = tuple(self._pass(kernel, position, argument) for position, argument in enumerate(args))
        try:
            kernel.function(blocks, threads, passed, shared_mem=shared_bytes)
        except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as problem:
            raise KernelLaunchError(
                f"Kernel {kernel.name} of {kernel.module}, grid {blocks}, block {threads}, "
                f"{shared_bytes} bytes of shared memory: {problem}"
            ) from problem

    def _pass(self, kernel: CudaKernel, position: int, argument: Argument) -> Any:
        if argument is None:
            return _NULL
        if isinstance(argument, PointerTable):
            return argument.addresses
        if isinstance(argument, np.generic):
            return argument
        if not self._is_here(argument):
            raise KernelArgumentError(
                f"kernel {kernel.name} of {kernel.module}: argument {position} does not lie on GPU {self._ordinal}."
            )
        return argument

    def _is_here(self, array: Any) -> bool:
        return isinstance(array, cupy.ndarray) and array.device.id == self._ordinal


def _cupy_free_bytes() -> int:
    free, _ = cupy.cuda.runtime.memGetInfo()
    return int(free) + int(cupy.get_default_memory_pool().free_bytes())


@contextmanager
def _memory_errors() -> Iterator[None]:
    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as problem:
        raise DeviceMemoryError(str(problem)) from problem
    except MemoryError as problem:
        raise DeviceMemoryError(f"device memory ran out: {problem}") from problem
