"""The devices that tests of kernels run on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from gpujoin.launch.device import Argument, Device, Kernel


class RecordingDevice(Device, Protocol):
    """A device that remembers what was launched."""

    launches: list[str]
    """Names of the kernels launched so far."""


@contextmanager
def cuda_device() -> Iterator[RecordingDevice]:
    """The GPU.

    Every launch is waited for, so an error is told by the test that made it, and every array is an allocation of its
    own: a pool would hide from compute-sanitizer what goes out of bounds.
    """
    import cupy

    from gpujoin.launch.cuda import CudaDevice

    class Recording(CudaDevice):
        def __init__(self) -> None:
            super().__init__()
            self.launches: list[str] = []

        def launch(
            self,
            kernel: Kernel,
            grid: int | tuple[int, ...],
            block: int | tuple[int, ...],
            args: Sequence[Argument],
            *,
            shared_bytes: int = 0,
        ) -> None:
            super().launch(kernel, grid, block, args, shared_bytes=shared_bytes)
            self.launches.append(kernel.name)
            cupy.cuda.get_current_stream().synchronize()

    with cupy.cuda.using_allocator(None):
        yield Recording()
