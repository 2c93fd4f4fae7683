"""GPUs that this process has lost: after some errors of CUDA every later call of the process fails.

An uncorrectable ECC error, an illegal access or a GPU that fell off the bus leave a context that cannot be used again.
The first such error is kept for each GPU. Every later use raises it at once, so the engine goes on on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpujoin.errors import DeviceLostError
from gpujoin.logs import warn_once

_FINAL = frozenset(
    {
        "assert", "contained", "contextisdestroyed", "deviceassert", "devicesunavailable", "deviceunavailable",
        "deviceuninitialized", "eccuncorrectable", "externaldevice", "hardwarestackerror", "illegaladdress",
        "illegalinstruction", "initializationerror", "invalidaddressspace", "invalidcontext", "invalidpc",
        "launchfailed", "launchfailure", "launchtimeout", "misalignedaddress", "mpsrpcfailure", "nodevice",
        "nvlinkuncorrectable", "systemnotready", "tensormemoryleak", "unknown",
    }
)  # fmt: skip
"""Errors after which a process cannot use its GPU any more, in the names of the runtime and of the driver without
``cudaError`` or ``CUDA_ERROR_``, in small letters: https://docs.nvidia.com/cuda/cuda-runtime-api (``cudaError_t``)."""

_PREFIX = "cudaerror"

_reasons: dict[int, str] = {}
_forgetting: dict[int, Callable[[], None]] = {}


def reason(ordinal: int) -> str | None:
    """Why this process cannot use a GPU any more; ``None`` if it can, as far as known."""
    return _reasons.get(ordinal)


def forget_with(ordinal: int, forget: Callable[[], None]) -> None:
    """Call a function when a GPU is lost: what lay there is of no use any more."""
    _forgetting[ordinal] = forget


def is_final(problem: BaseException) -> bool:
    """Whether an error of CuPy, RMM, libcudf or a launcher names an error of CUDA after which a GPU is lost."""
    words = "".join(c if c.isalnum() else " " for c in str(problem).replace("_", "").lower()).split()
    return any(word.startswith(_PREFIX) and word.removeprefix(_PREFIX) in _FINAL for word in words)


@contextmanager
def lost_errors(ordinal: int) -> Iterator[None]:
    """Raise ``DeviceLostError`` for errors after which a GPU is lost, and at once if it is lost already."""
    _raise_if_lost(ordinal)
    try:
        yield
    except (MemoryError, RuntimeError) as problem:
        if not is_final(problem):
            raise
        message = f"this process has lost GPU {ordinal}: {problem}"
        _reasons.setdefault(ordinal, message)
        warn_once(f"{message}; its joins go on on the CPU")
        if ordinal in _forgetting:
            _forgetting[ordinal]()
    _raise_if_lost(ordinal)


def _raise_if_lost(ordinal: int) -> None:
    message = reason(ordinal)
    if message is not None:
        raise DeviceLostError(message)
