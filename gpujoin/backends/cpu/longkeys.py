"""Byte keys that are too long for words: hashed by Polars, compared by Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.backends.cpu.rowmaps import IndexArray

_UNCHECKED = pc.TakeOptions(boundscheck=False)
_SEED = 0x6A6F696E


@dataclass(frozen=True, slots=True)
class Tail:
    """Values of a large_binary array, by row number."""

    array: pa.Array
    """Text or bytes."""
    rows: IndexArray | None = None
    """Row numbers; ``None``: all rows, in order."""

    @property
    def nbytes(self) -> int:
        """Memory referred to."""
        return int(self.array.nbytes) + (0 if self.rows is None else self.rows.nbytes)

    def slice(self, rows: slice) -> Tail:
        """A range of the values."""
        if self.rows is None:
            return Tail(self.array[rows])
        return Tail(self.array, self.rows[rows])

    def take(self, rows: npt.NDArray[Any]) -> Tail:
        """Given values; they are copied only when they are compared."""
        return Tail(self.array, rows if self.rows is None else np.take(self.rows, rows))

    def equal(self, rows: npt.NDArray[Any], others: Tail, where: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Compare values pairwise: value ``rows[i]`` of this with value ``i`` of ``others``; a null equals nothing.

        −1 is read as 0. Pairs outside ``where`` count as different.
        """
        compared = np.flatnonzero(where)
        if others.rows is None and 2 * len(compared) > len(where):
            # Comparing all in place is cheaper than gathering most.
            return _equal(self._values(np.maximum(rows, 0)), others.array) & where
        same = np.zeros(len(where), np.bool_)
        if len(compared):
            same[compared] = _equal(self._values(np.maximum(rows[compared], 0)), others._values(compared))
        return same

    def _values(self, at: npt.NDArray[Any]) -> pa.Array:
        rows = at if self.rows is None else np.take(self.rows, at)
        return pc.call_function("take", [self.array, pa.array(rows)], _UNCHECKED)


def _equal(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = pc.fill_null(pc.equal(left, right), False).to_numpy(zero_copy_only=False)
    return same


def fingerprints(array: pa.Array) -> npt.NDArray[np.uint64]:
    """Hash each value to 64 bits; hashes are stable within this process."""
    from gpujoin.backends.cpu.interrupts import polars as pl

    if not len(array):
        return np.zeros(0, np.uint64)
    series = pl.from_arrow(array)
    assert isinstance(series, pl.Series)
    return series.hash(_SEED).to_numpy()
