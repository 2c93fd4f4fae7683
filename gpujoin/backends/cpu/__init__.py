"""The CPU backend: direct addressing and hashing in NumPy, gathering in NumPy and Arrow, conditions in Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpujoin.backends.cpu.backend import CpuBackend
    from gpujoin.backends.registry import BackendRequest
    from gpujoin.model.reasons import Reason

__all__ = ["create", "unavailable"]


def unavailable() -> Reason | None:
    """``None``: what this backend needs is always installed."""
    return None


def create(request: BackendRequest) -> CpuBackend:
    """Make the backend."""
    from gpujoin.backends.cpu.backend import CpuBackend

    return CpuBackend(request.threads)
