"""Row-wise copies of the fixed-width columns of large frames from which many rows are gathered.

Gathering a random row from ``c`` columns misses the cache ``c`` times, and from a row-wise copy once or twice. Rows are
gathered into a buffer that stays in the second-level cache, and divided into columns there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpujoin.backends.cpu.memory import empty

FEWEST_COLUMNS = 3
FEWEST_BYTES = 24 << 20
"""Least bytes of columns for a copy; smaller columns stay in the cache (`benchmarks/engine/README.md`)."""
_BUFFER_BYTES = 1 << 20
_INTERLEAVED = 1 << 14

Columns = Sequence[npt.NDArray[Any]]


class RowStore:
    """A row-wise copy of several columns of fixed width."""

    def __init__(self, columns: Columns) -> None:
        offsets = [0] * len(columns)
        width = 0
        for number in sorted(range(len(columns)), key=lambda i: -columns[i].itemsize):
            offsets[number] = width
            width += columns[number].itemsize
        width = -(-width // 8) * 8
        names = [f"c{i}" for i in range(len(columns))]
        self._row = np.dtype(
            {
                "names": names,
                "formats": [column.dtype for column in columns],
                "offsets": offsets,
                "itemsize": width,
            }
        )
        rows = len(columns[0])
        self._rows = empty(rows, f"V{width}")
        typed = self._rows.view(self._row)
        for start in range(0, rows, _INTERLEAVED):
            part = slice(start, start + _INTERLEAVED)
            for name, column in zip(names, columns, strict=True):
                typed[name][part] = column[part]

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._rows.nbytes

    def take(self, positions: npt.NDArray[np.intp]) -> list[npt.NDArray[Any]]:
        """Gather rows of all columns; negative positions read row 0."""
        names = self._row.names or ()
        results = [empty(len(positions), self._row[name]) for name in names]
        step = max(1, _BUFFER_BYTES // self._row.itemsize)
        buffer = empty(min(step, len(positions)), self._rows.dtype)
        typed = buffer.view(self._row)
        for start in range(0, len(positions), step):
            part = positions[start : start + step]
            np.take(self._rows, part, out=buffer[: len(part)], mode="clip")
            for name, result in zip(names, results, strict=True):
                result[start : start + len(part)] = typed[name][: len(part)]
        return results


class RowStoreCache:
    """Makes the row store of a frame, after as many rows were gathered as the frame has."""

    __slots__ = ("_gathered", "_lock", "_store")

    def __init__(self) -> None:
        self._gathered = 0
        self._store: RowStore | None = None
        self._lock = threading.Lock()

    def get(self, columns: Columns, length: int) -> RowStore | None:
        """The row store of a frame's fixed-width columns, if it pays to gather ``length`` rows from it."""
        if len(columns) < FEWEST_COLUMNS:
            return None
        rows = len(columns[0])
        if sum(column.itemsize for column in columns) * rows < FEWEST_BYTES:
            return None
        with self._lock:
            if self._store is None and self._gathered >= rows:
                self._store = RowStore(columns)
            self._gathered += length
            return self._store
