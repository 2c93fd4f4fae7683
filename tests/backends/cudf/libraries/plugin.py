"""A pytest plugin that puts the stand-ins in the place of the libraries before anything imports these.

``python -m pytest -p tests.backends.cudf.libraries.plugin -m gpu tests/backends/cudf``
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.backends.cudf.libraries import cupy, pylibcudf, record, rmm
from tests.kernels.emulator import EmulatedDevice, EmulatorOptions


class KernelDevice(EmulatedDevice):
    """The emulator, in the place of the device of CUDA kernels."""

    def __init__(self, free_bytes: Any = None) -> None:
        super().__init__(EmulatorOptions())

    def launch(self, kernel: Any, *arguments: Any, **named: Any) -> None:
        """Launch it, unless the device is lost."""
        record.use(f"a launch of {kernel.name}")
        super().launch(kernel, *arguments, **named)

    def compile(self, modules: Any, threads: int) -> None:
        """Nothing: modules are compiled when they are launched."""


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
    without, outside = (", ".join(sorted(names)) or "none" for names in (record.without_stream, record.outside))
    terminalreporter.write_line(
        f"stand-ins: {sum(record.calls.values())} calls of {len(record.calls)} functions of pylibcudf, without stream: "
        f"{without}; outside the device: {outside}; {record.synchronized} waits; {record.freed} pieces of memory freed"
    )
