"""Makes backends by name, and imports them at the first use.

What only one of them has is in its package, ``backends.cpu`` or ``backends.cudf``, importing which loads no library.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from gpujoin.errors import BackendUnavailableError
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.reasons import Reason

_MODULES = {BackendName.CPU: "gpujoin.backends.cpu", BackendName.GPU: "gpujoin.backends.cudf"}


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """Parameters of a backend."""

    threads: int = 1
    """CPU threads to use."""
    device: int = 0
    """GPU ordinal; ignored by the CPU backend."""
    memory_limit: int | None = None
    """Most device memory to use, in bytes; ``None``: what the share says."""
    memory_share: float | None = None
    """Most device memory to use, as a share of all that the device has; ``None``: the backend decides."""


def unavailable(name: BackendName) -> Reason | None:
    """Reason why a backend cannot be used in this process; ``None`` if it can.

    Fast, and safe to call before a fork: no device context is created.
    """
    return importlib.import_module(_MODULES[name]).unavailable()


def create(name: BackendName, request: BackendRequest) -> AnyBackend:
    """Make a backend.

    Raises ``BackendUnavailableError`` if packages are missing, or there is no device; the message says what to
    install.
    """
    reason = unavailable(name)
    if reason is not None:
        raise BackendUnavailableError(str(reason))
    return importlib.import_module(_MODULES[name]).create(request)


def release_cached_memory(device: int) -> None:
    """Return unused memory of a GPU to other processes. Does nothing before a backend was made on it."""
    importlib.import_module(_MODULES[BackendName.GPU]).release_cached_memory(device)
