"""A pytest plugin that puts the stand-ins in the place of the libraries before anything imports these.

``python -m pytest -p tests.backends.cudf.libraries.plugin -m gpu tests/backends/cudf``
"""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.backends.cudf.libraries import cupy, pylibcudf, record, rmm
from tests.kernels.emulator import EmulatedDevice, EmulatorOptions


class KernelDevice(EmulatedDevice):
    """The emulator, in the place of the device of CUDA kernels."""

    def __init__(self, free_bytes: Any = None) -> None:
        super().__init__(EmulatorOptions())
        self._free_bytes = free_bytes

    @property
    def free_bytes(self) -> int:
        """What the backend says is free."""
        return super().free_bytes if self._free_bytes is None else self._free_bytes()

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Allocate an array, of RMM's resource."""
        return _counted(lambda: super(KernelDevice, self).empty(shape, dtype), shape, dtype)

    def full(self, shape: Any, value: Any, dtype: Any) -> Any:
        """Allocate an array of one value, of RMM's resource."""
        return _counted(lambda: super(KernelDevice, self).full(shape, value, dtype), shape, dtype)

    def launch(self, kernel: Any, *arguments: Any, **named: Any) -> None:
        """Launch it, unless the device is lost."""
        record.use(f"a launch of {kernel.name}")
        super().launch(kernel, *arguments, **named)

    def compile(self, modules: Any, threads: int) -> None:
        """Nothing: modules are compiled when they are launched."""


def _counted(make: Callable[[], Any], shape: Any, dtype: Any) -> Any:
    """Count an array in RMM's resource until its memory is freed."""
    nbytes, resource = int(np.prod(shape)) * np.dtype(dtype).itemsize, rmm.current()
    resource.allocate(nbytes)
    array = owner = make()
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    weakref.finalize(owner, resource.deallocate, nbytes).atexit = False
    return array


def install() -> None:
    """Replace the modules."""
    made = {"cupy": cupy.Module(), "pylibcudf": pylibcudf.module(), **rmm.modules()}
    launch = ModuleType("gpujoin.launch.cuda")
    launch.CudaDevice = KernelDevice  # type: ignore[attr-defined]
    sys.modules.update(made, **{"gpujoin.launch.cuda": launch})
    for name in ("gpujoin.backends.cudf", "gpujoin.backends.cudf.discovery"):
        vars(importlib.import_module(name))["why_unavailable"] = lambda: None


install()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was recorded."""
    sets = (record.without_stream, record.outside, record.freed_early)
    without, outside, early = (", ".join(sorted(names)) or "none" for names in sets)
    terminalreporter.write_line(
        f"stand-ins: {sum(record.calls.values())} calls of {len(record.calls)} functions of pylibcudf, without stream: "
        f"{without}; outside the device: {outside}; freed while in use: {early}; "
        f"{record.synchronized} waits; {record.freed} pieces of memory freed"
    )
