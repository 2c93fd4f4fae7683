"""An emulator for CUDA kernels: the same ``.cu`` files, compiled by g++, run and checked on the CPU.

:class:`EmulatedDevice` fulfils :class:`gpujoin.launch.device.Device`. ``docs/kernels.md`` says what it checks and
what it cannot see.
"""

from tests.kernels.emulator.compile import why_no_compiler
from tests.kernels.emulator.device import EmulatedDevice, EmulationError, EmulatorOptions

__all__ = ["EmulatedDevice", "EmulationError", "EmulatorOptions", "why_no_compiler"]
