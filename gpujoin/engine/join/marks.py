"""Marks of rows that have a match, and gather maps, on one backend or another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gpujoin.model.backend import AnyBackend
from gpujoin.model.maps import Indices, RowMap


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

    @cached_property
    def on_host(self) -> npt.NDArray[np.bool_]:
        """The mask as NumPy booleans."""
        if self.backend is None:
            return np.asarray(self.values)
        return self.backend.mask_to_host(self.values)


def on_backend(rows: RowMap, source: AnyBackend, target: AnyBackend) -> RowMap:
    """Convert a map of one backend to a map of another. Only maps that store indices need to be copied."""
    if not isinstance(rows, Indices) or source is target:
        return rows
    return target.indices_from_host(source.indices_to_host(rows), rows.out_of_bounds)
