"""The device protocol, fulfilled by emulation."""

from __future__ import annotations

import ctypes
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpujoin.errors import KernelArgumentError, KernelCompileError, KernelError
from gpujoin.launch.device import (
    Argument,
    Array,
    DeviceProperties,
    Kernel,
    ModuleSpec,
    PointerTable,
    check_launch,
)
from tests.kernels.emulator.arrays import DeviceArray, DeviceModule, on_device
from tests.kernels.emulator.compile import CompiledModule, compile_module, compile_runtime, source_lines
from tests.kernels.emulator.memory import Arena, Extent, Object, Report, Request, Traffic, address_of, load_runtime

CACHE_VARIABLE = "GPUJOIN_EMULATOR_CACHE"
STEPS_VARIABLE = "GPUJOIN_EMULATOR_STEPS"
_MOST_PARAMETERS = 64
_READ_AT_ONCE = (2, 4, 8, 16)
"""Bytes of what a thread reads by one instruction."""
_SMALL = DeviceProperties(multiprocessors=1, shared_bytes=227 * 1024, l2_bytes=60 << 20, blocks_per_multiprocessor=3)


class EmulationError(KernelError):
    """An emulated kernel did what a kernel must not do.

    Attributes
    ----------
    kind : str
        ``race``, ``divergent barrier``, ``divergent warp``, ``out of bounds``, ``unwritten``, ``misaligned``,
        ``const``, ``undefined``, ``foreign local``, ``trap`` or ``endless``.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class EmulatorOptions:
    """How kernels are run.

    Attributes
    ----------
    seed : int
        Decides the order of blocks and threads and the interleaving of atomics, anew for each launch.
    cache : Path or None
        Folder of compiled modules; ``None``: ``$GPUJOIN_EMULATOR_CACHE``, else one of this user's below the folder of
        temporary files.
    memory_limit : int or None
        Most bytes of device memory in use at a time.
    step_limit : int
        Most memory accesses, barriers and warp functions of one launch; more are taken for an endless loop. The
        default is ``$GPUJOIN_EMULATOR_STEPS``, else 400 million.
    count_traffic : bool
        Whether the accesses of each launch are counted.
    properties : DeviceProperties
        What launchers are told of the device: by default room for so few blocks that small inputs take several
        tiles a block.
    """

    seed: int = 0
    cache: Path | None = None
    memory_limit: int | None = None
    step_limit: int = field(default_factory=lambda: int(os.environ.get(STEPS_VARIABLE, "400000000")))
    count_traffic: bool = False
    properties: DeviceProperties = _SMALL


@dataclass(frozen=True)
class Launched:
    """A launch whose accesses were counted.

    Attributes
    ----------
    name : str
        Of the kernel.
    traffic : dict of int to list of Traffic
        For each parameter that is a pointer, what was asked of the array; of a table of pointers, of its arrays.
    """

    name: str
    traffic: dict[int, list[Traffic]]


class _Parameter(ctypes.Structure):
    """``emu::Parameter``."""

    _fields_ = tuple((name, ctypes.c_int) for name in ("pointer", "constant", "size", "letter"))


@dataclass(frozen=True)
class _Loaded:
    compiled: CompiledModule
    library: ctypes.CDLL
    base: int


@dataclass(frozen=True)
class EmulatedKernel:
    """A kernel of a loaded module."""

    name: str
    module: ModuleSpec
    loaded: _Loaded = field(repr=False)
    entry: int = field(repr=False)
    parameters: tuple[_Parameter, ...] = field(repr=False)
    bound: int = field(repr=False)


def cache_directory(given: Path | None = None) -> Path:
    """The folder of compiled modules, made if it is not there."""
    named = os.environ.get(CACHE_VARIABLE)
    path = given or (Path(named) if named else Path(tempfile.gettempdir()) / f"gpujoin-emulator-{os.getuid()}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


@cache
def _runtime(directory: Path) -> tuple[Path, ctypes.CDLL]:
    path = compile_runtime(directory)
    return path, load_runtime(path)


class EmulatedDevice:
    """A device whose kernels run on the CPU, every access of theirs checked.

    Parameters
    ----------
    options : EmulatorOptions
        How they are run.
    sources : dict of str to str
        Texts of CUDA sources by name, instead of those in the kernel folder; for tests of the emulator and mutations.

    Notes
    -----
    Arrays made here, or by :attr:`xp`, count as device memory. Those of :attr:`xp` are brought into the checked memory
    when they are passed to a kernel, as written as a whole.
    """

    def __init__(self, options: EmulatorOptions | None = None, sources: dict[str, str] | None = None) -> None:
        self.options = options or EmulatorOptions()
        self._cache = cache_directory(self.options.cache)
        self._runtime_path, self._runtime = _runtime(self._cache)
        self.arena = Arena(self._runtime, self.options.memory_limit)
        self._sources = sources or {}
        self._modules: dict[ModuleSpec, _Loaded] = {}
        self._kernels: dict[tuple[ModuleSpec, str], EmulatedKernel] = {}
        self._xp = DeviceModule()
        self.launches: list[str] = []
        """Names of the kernels launched so far."""
        self.counted: list[Launched] = []
        """The launches so far, where accesses are counted."""
        self.steps = 0
        """Memory accesses, barriers and warp functions of all launches so far."""

    @property
    def xp(self) -> Any:
        """NumPy, its results counting as device arrays."""
        return self._xp

    @property
    def properties(self) -> DeviceProperties:
        """As the options say."""
        return self.options.properties

    @property
    def free_bytes(self) -> int:
        """See :attr:`gpujoin.launch.device.Device.free_bytes`."""
        return self.arena.limit - self.arena.used

    def kernel(self, module: ModuleSpec, name: str) -> EmulatedKernel:
        """See :meth:`gpujoin.launch.device.Device.kernel`."""
        kernel = self._kernels.get((module, name))
        if kernel is None:
            kernel = self._kernels[module, name] = self._find(module, name)
        return kernel

    def _find(self, module: ModuleSpec, name: str) -> EmulatedKernel:
        loaded = self._modules.get(module) or self._load(module)
        if name not in loaded.compiled.kernels:
            raise KernelCompileError(f"{module} has no kernel {name!r}; it has {', '.join(loaded.compiled.kernels)}.")
        described = (_Parameter * _MOST_PARAMETERS)()
        count = getattr(loaded.library, f"emu_describe_{name}")(described, _MOST_PARAMETERS)
        if count > _MOST_PARAMETERS:
            raise KernelCompileError(
                f"Kernel {name} of {module} has {count} parameters; {_MOST_PARAMETERS} is the most."
            )
        entry = ctypes.cast(getattr(loaded.library, f"emu_call_{name}"), ctypes.c_void_p).value
        assert entry is not None
        bound = int(getattr(loaded.library, f"emu_bound_{name}")())
        return EmulatedKernel(name, module, loaded, entry, tuple(described[:count]), bound)

    def _load(self, module: ModuleSpec) -> _Loaded:
        compiled = compile_module(module, self._cache, self._runtime_path, self._sources.get(module.source))
        library = ctypes.CDLL(str(compiled.path))
        anything = ctypes.cast(getattr(library, f"emu_call_{compiled.kernels[0]}"), ctypes.c_void_p)
        base = int(self._runtime.emu_image_base(anything))
        loaded = self._modules[module] = _Loaded(compiled, library, base)
        return loaded

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """See :meth:`gpujoin.launch.device.Device.empty`; filled with poison."""
        return self.arena.allocate(shape, dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """See :meth:`gpujoin.launch.device.Device.zeros`."""
        return self.full(shape, 0, dtype)

    def full(self, shape: int | tuple[int, ...], value: Any, dtype: Any) -> Array:
        """See :meth:`gpujoin.launch.device.Device.full`."""
        array = self.arena.allocate(shape, dtype)
        array.view(np.ndarray)[...] = value
        self.arena.mark_written(array)
        return array

    def upload(self, host: np.ndarray[Any, Any]) -> Array:
        """See :meth:`gpujoin.launch.device.Device.upload`."""
        return self.arena.adopt(np.ascontiguousarray(host))

    def download(self, array: Array) -> np.ndarray[Any, Any]:
        """See :meth:`gpujoin.launch.device.Device.download`.

        Raises
        ------
        EmulationError
            Of kind ``unwritten``: nothing has written some of the items.
        """
        if not isinstance(array, DeviceArray):
            raise TypeError(f"{type(array).__name__} is not a device array")
        if self.arena.holds(array) and array.flags.c_contiguous:
            count, first = self.arena.unwritten(array)
            if count:
                raise EmulationError(
                    "unwritten", f"{count} of {array.size} items were never written, the first at {first}"
                )
        return array.get()

    def pointers(self, arrays: Sequence[Array | None]) -> PointerTable:
        """See :meth:`gpujoin.launch.device.Device.pointers`; arrays must lie in the checked memory."""
        kept = tuple(None if array is None else self._resident(array, f"array {i}") for i, array in enumerate(arrays))
        addresses = [0 if array is None else address_of(array) for array in kept]
        return PointerTable(self.upload(np.asarray(addresses, dtype=np.uint64)), kept)

    def _resident(self, array: Array, what: str) -> DeviceArray:
        if not isinstance(array, DeviceArray):
            raise KernelArgumentError(f"{what} does not lie on the emulated device; upload it.")
        if not array.flags.c_contiguous:
            raise KernelArgumentError(f"{what} is an array with strides {array.strides}; pass a contiguous one.")
        return array if array.size == 0 or self.arena.holds(array) else self.arena.adopt(array)

    def launch(
        self,
        kernel: Kernel,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Argument],
        *,
        shared_bytes: int = 0,
    ) -> None:
        """See :meth:`gpujoin.launch.device.Device.launch`; the kernel has ended when this returns.

        Raises
        ------
        EmulationError
            The kernel did something wrong.
        """
        assert isinstance(kernel, EmulatedKernel), "a kernel of another device"
        blocks, threads = check_launch(kernel, grid, block, args, shared_bytes, self.properties)
        if threads[0] * threads[1] * threads[2] > kernel.bound:
            raise KernelArgumentError(
                f"kernel {kernel.name} of {kernel.module}: a block of {threads} threads, but its launch bound is "
                f"{kernel.bound}."
            )
        passed = _Arguments(self, kernel, args)
        request, keep = self._request(kernel, blocks, threads, shared_bytes, passed)
        self.launches.append(kernel.name)
        report = Report()
        self._runtime.emu_trace(int(self.options.count_traffic))
        failed = self._runtime.emu_launch(ctypes.byref(request), ctypes.byref(report))
        self.steps += report.steps
        passed.copy_back()
        del keep
        if failed:
            raise self._error(kernel, report)
        if self.options.count_traffic:
            self.counted.append(Launched(kernel.name, self._traffic(passed)))

    def misses(self, array: Array, cache_bytes: int) -> int:
        """Sectors of an array that a cache of so many bytes had to fetch in the last launch, if accesses are counted.

        The least recently used sectors give way, and all threads of the launch advance together.
        """
        return int(self._runtime.emu_misses(address_of(array), array.nbytes, cache_bytes // 32))

    def _traffic(self, passed: _Arguments) -> dict[int, list[Traffic]]:
        traffic: dict[int, list[Traffic]] = {}
        for position, extent in passed.arrays:
            of_array = Traffic()
            self._runtime.emu_traffic(extent.address, extent.bytes, ctypes.byref(of_array))
            traffic.setdefault(position, []).append(of_array)
        return traffic

    def _request(
        self,
        kernel: EmulatedKernel,
        blocks: tuple[int, int, int],
        threads: tuple[int, int, int],
        shared_bytes: int,
        passed: _Arguments,
    ) -> tuple[Request, object]:
        compiled, base = kernel.loaded.compiled, kernel.loaded.base
        static = sum(variable.size for variable in compiled.shared)
        if static > 48 * 1024:
            raise KernelCompileError(f"{kernel.module} has {static} bytes of static shared memory; 48 KiB is the most.")
        objects = (Object * max(1, len(compiled.shared)))()
        for slot, variable in zip(objects, compiled.shared, strict=False):
            slot.address, slot.bytes = base + variable.offset, variable.size
        spans = [(variable.offset, variable.offset + variable.size) for variable in compiled.shared]
        dynamic = 0
        if compiled.dynamic is not None:
            spans.append((compiled.dynamic, compiled.dynamic + self.properties.shared_bytes))
            dynamic = base + compiled.dynamic
        low = min((start for start, _ in spans), default=0)
        high = max((end for _, end in spans), default=0)
        assert high - low <= self._runtime.emu_shared_bytes()
        extents = (Extent * max(1, len(passed.extents)))(*passed.extents)
        request = Request(
            entry=kernel.entry,
            arguments=passed.array,
            grid=blocks,
            block=threads,
            dynamic_bytes=shared_bytes,
            dynamic_address=dynamic,
            shared_address=base + low if high else 1,
            shared_bytes=high - low,
            shared=objects,
            extents=extents,
            shared_count=len(compiled.shared),
            extent_count=len(passed.extents),
            seed=(self.options.seed * 1_000_003 + len(self.launches)) & (2**64 - 1),
            step_limit=self.options.step_limit,
        )
        return request, (objects, extents)

    def _error(self, kernel: EmulatedKernel, report: Report) -> EmulationError:
        library = kernel.loaded.compiled.path
        where = source_lines(library, report.site) if report.site else ""
        other = source_lines(library, report.other_site) if report.other_site else ""
        kind = report.kind.decode()
        parts = [
            f"kernel {kernel.name} of {kernel.module}, seed {self.options.seed}, launch {len(self.launches)}: {kind}",
            report.message.decode(),
            *([f"at {where}"] if where else []),
            *([f"the other at {other}"] if other else []),
        ]
        return EmulationError(kind, "; ".join(parts))


class _Arguments:
    """Arguments of one launch, laid out as cuLaunchKernel takes them, and the memory that they open to the kernel."""

    def __init__(self, device: EmulatedDevice, kernel: EmulatedKernel, args: Sequence[Argument]) -> None:
        self._device = device
        self._where = f"kernel {kernel.name} of {kernel.module}"
        if len(args) != len(kernel.parameters):
            raise KernelArgumentError(
                f"{self._where} takes {len(kernel.parameters)} arguments and was given {len(args)}."
            )
        self.extents: list[Extent] = []
        self.arrays: list[tuple[int, Extent]] = []
        """Positions of arguments and the arrays there, those in tables of pointers included."""
        self._copies: list[tuple[Array, DeviceArray]] = []
        self._cells = (ctypes.c_uint64 * max(1, len(args)))()
        for position, (argument, parameter) in enumerate(zip(args, kernel.parameters, strict=True)):
            known = len(self.extents)
            self._cells[position] = self._bits(argument, parameter, f"{self._where}: argument {position}")
            # The addresses themselves come last, and are no data.
            end = len(self.extents) - isinstance(argument, PointerTable)
            self.arrays += [(position, extent) for extent in self.extents[known:end]]
        self._refuse_aliases()
        start = ctypes.addressof(self._cells)
        self.array = (ctypes.c_void_p * max(1, len(args)))(*(start + 8 * i for i in range(len(args))))

    def _refuse_aliases(self) -> None:
        """What is written must not be passed as const as well: a device may read that through a cache of constants."""
        constant = [extent for extent in self.extents if extent.read_only]
        for written in (extent for extent in self.extents if not extent.read_only):
            for read in constant:
                if read.address < written.address + written.bytes and written.address < read.address + read.bytes:
                    raise KernelArgumentError(
                        f"{self._where}: one array is passed both as pointer to const and to be written."
                    )

    def _bits(self, argument: Argument, parameter: _Parameter, what: str) -> int:
        letter = chr(parameter.letter)
        if not parameter.pointer:
            return self._scalar_bits(argument, letter, parameter.size, what)
        if argument is None:
            return 0
        if isinstance(argument, np.generic):
            raise KernelArgumentError(f"{what} is the scalar {argument!r}, but the parameter is a pointer.")
        if isinstance(argument, PointerTable):
            if letter != "p":
                raise KernelArgumentError(f"{what} is a pointer table, but the parameter points at no pointers.")
            for array in argument.arrays:
                if array is not None:
                    self._check_alignment(array, array.itemsize * math.prod(array.shape[1:]), what)
                    self._open(array, constant=False)
            return self._open(argument.addresses, constant=bool(parameter.constant))
        if not isinstance(argument, DeviceArray):
            raise KernelArgumentError(f"{what} does not lie on the emulated device; upload it.")
        self._check_pointee(argument.dtype, letter, parameter.size, what)
        self._check_alignment(argument, parameter.size, what)
        resident = self._device._resident(argument, what)
        if resident is not argument:
            self._copies.append((argument, resident))
        return self._open(resident, constant=bool(parameter.constant))

    @staticmethod
    def _scalar_bits(argument: Argument, letter: str, size: int, what: str) -> int:
        if not isinstance(argument, np.generic):
            raise KernelArgumentError(f"{what} is {argument!r}, but the parameter is a scalar of {size} bytes.")
        if argument.dtype.kind != letter or argument.dtype.itemsize != size:
            raise KernelArgumentError(
                f"{what} is of {argument.dtype}, but the parameter is of kind {letter!r} and {size} bytes."
            )
        return int.from_bytes(argument.tobytes(), "little")

    @staticmethod
    def _check_pointee(dtype: np.dtype[Any], letter: str, size: int, what: str) -> None:
        kinds = {"i": "iub", "u": "iub", "b": "iub", "f": "f", "s": "iubf", "v": "iubf", "p": ""}[letter]
        raw = dtype == np.uint8
        fits = size % dtype.itemsize == 0 if letter in "sv" else dtype.itemsize == size
        if not raw and (dtype.kind not in kinds or not fits):
            raise KernelArgumentError(
                f"{what} is an array of {dtype}, but the parameter points at kind {letter!r} of {size} bytes."
            )

    @staticmethod
    def _check_alignment(array: np.ndarray[Any, Any], width: int, what: str) -> None:
        """Values of up to 16 bytes are read at once where nvcc can: in the middle of others that loses the device."""
        if array.size and width in _READ_AT_ONCE and address_of(array) % width:
            raise EmulationError("misaligned", f"{what} begins in the middle of a value of {width} bytes.")

    def _open(self, array: DeviceArray, *, constant: bool) -> int:
        if array.size == 0:
            # A valid address at which nothing may be touched.
            return self._device.arena.base
        address = address_of(array)
        self.extents.append(Extent(address, array.nbytes, array.itemsize, int(constant)))
        return address

    def copy_back(self) -> None:
        """Bring what the kernel wrote to arrays outside of the checked memory."""
        for original, resident in self._copies:
            original.view(np.ndarray)[...] = resident.view(np.ndarray)


__all__ = [
    "EmulatedDevice",
    "EmulatedKernel",
    "EmulationError",
    "EmulatorOptions",
    "cache_directory",
    "on_device",
]
