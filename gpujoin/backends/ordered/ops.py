"""Array operations that range indexes need of a backend.

Otherwise only functions that NumPy and CuPy have in common are used, so the code that runs on a device is tested
without one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""A one-dimensional array of the backend's module."""


@dataclass(frozen=True)
class OrderOps:
    """An array module, with operations that a backend does better."""

    xp: Any
    """``numpy`` or ``cupy``."""
    sort: Callable[[Array], tuple[Array, Array]]
    """Stable sort: ascending values, and their original positions."""
    search: Callable[[Array, Array, bool], Array]
    """Number of sorted values less than each value, or up to and including it if the flag is set."""
    owners: Callable[[Array, int], Array]
    """``[0] * sizes[0] + [1] * sizes[1] + …``, given the sizes, at least one of them positive, and their sum."""
    index: Any
    """Type of row numbers that an index returns."""
    block: int
    """Best number of searches at a time: they fit a cache, or fill a device."""
    entered: Callable[[], AbstractContextManager[Any]]
    """Context manager that makes the device current."""
