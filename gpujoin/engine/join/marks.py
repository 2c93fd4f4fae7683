"""Marks of rows that have a match, on one backend or another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gpujoin.model.backend import AnyBackend, BackendName


@dataclass(frozen=True)
class Mask:
    """Marks of the rows of a side that have a match, on a backend or on the host."""

    values: Any
    """Mask of a backend, or NumPy booleans."""
    backend: AnyBackend | None
    """Backend of the mask; ``None``: NumPy."""

    def on(self, backend: AnyBackend) -> Any:
        """The mask on a backend."""
        return self.values if backend is self.backend else backend.mask_from_host(self.on_host)

    def slice(self, start: int, length: int) -> Mask:
        """Marks of the rows ``start`` to ``start + length - 1``."""
        return Mask(self.values[start : start + length], self.backend)

    @cached_property
    def on_host(self) -> npt.NDArray[np.bool_]:
        """The mask as NumPy booleans."""
        if self.backend is None:
            return np.asarray(self.values)
        return self.backend.mask_to_host(self.values)


class BuildMarks:
    """Marks of the build rows that have a match: on the host, or on a device where frames are joined.

    Marks on a device are shared by all morsels of frames there. What the CPU joins of such a run is marked on the host.
    """

    def __init__(self, rows: int, device: AnyBackend | None) -> None:
        self._rows = rows
        self._device = device
        self._on_device: Any = None if device is None else device.marks(rows)
        self._on_host = np.zeros(rows, np.bool_) if device is None else None

    @property
    def on_host(self) -> npt.NDArray[np.bool_]:
        """The marks that were made on the host."""
        if self._on_host is None:
            self._on_host = np.zeros(self._rows, np.bool_)
        return self._on_host

    def on(self, backend: AnyBackend) -> Any:
        """The marks that a morsel sets on a backend: those of all morsels, or new ones to be added."""
        if backend.name is BackendName.CPU:
            return self.on_host
        return backend.marks(self._rows) if self._on_device is None else self._on_device

    def add(self, marks: Any, backend: AnyBackend) -> None:
        """Add the marks of a morsel that is complete. Threads may add at once: all write the same value."""
        if marks is not self._on_device and marks is not self._on_host:
            self.on_host[backend.mask_to_host(marks)] = True

    @property
    def matched(self) -> Mask:
        """All marks."""
        if self._device is None:
            return Mask(self.on_host, None)
        if self._on_host is None:
            return Mask(self._on_device, self._device)
        return Mask(self._on_host | self._device.mask_to_host(self._on_device), None)
