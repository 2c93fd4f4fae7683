"""The rows on which an expression is evaluated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.functions.vector import Mask, Vector, from_arrow
from gpujoin.model.expressions import ColumnRef
from gpujoin.model.jointype import Side


class Rows:
    """Candidate pairs: row ``i`` pairs row ``i`` of two batches. Columns are read when first asked for.

    The length is passed separately because a batch without columns has none.
    """

    def __init__(self, left: pa.RecordBatch, right: pa.RecordBatch, length: int) -> None:
        self._batches = {Side.LEFT: left, Side.RIGHT: right}
        self._columns: dict[tuple[Side, int], Vector] = {}
        self._selection: npt.NDArray[np.int64] | None = None
        self._parent: Rows | None = None
        self._variables: dict[str, Vector] = {}
        self.length = length

    def column(self, ref: ColumnRef) -> Vector:
        """The values of a column."""
        key = (ref.side, ref.index)
        column = self._columns.get(key)
        if column is None:
            if self._parent is not None and self._selection is not None:
                column = self._parent.column(ref).take(self._selection)
            else:
                column = from_arrow(self._batches[ref.side].column(ref.index))
            self._columns[key] = column
        return column

    def variable(self, name: str) -> Vector:
        """The values of a variable."""
        values = self._variables.get(name)
        if values is None:
            assert self._parent is not None, f"{name} has no value"
            assert self._selection is not None
            values = self._variables[name] = self._parent.variable(name).take(self._selection)
        return values

    def where(self, mask: Mask) -> tuple[Rows, npt.NDArray[np.int64]]:
        """The rows at which a mask is true, and their positions."""
        selection = np.flatnonzero(mask)
        return self.repeated(selection, {}), selection

    def repeated(self, selection: npt.NDArray[np.int64], variables: Mapping[str, Vector]) -> Rows:
        """The rows at some positions, and values of variables for them."""
        rows = Rows(self._batches[Side.LEFT], self._batches[Side.RIGHT], len(selection))
        rows._selection, rows._parent = selection, self
        rows._variables.update(variables)
        return rows


def scatter(vector: Vector, positions: npt.NDArray[np.int64], length: int) -> Vector:
    """Spread the values of some rows over all rows, by position; the other rows are null."""
    vector = vector.expand(len(positions))
    if vector.in_arrow:
        source = np.zeros(length, np.int64)
        absent = np.ones(length, np.bool_)
        source[positions] = np.arange(len(positions))
        absent[positions] = False
        return Vector(vector.dtype, vector.values.take(pa.array(source, mask=absent)))
    values = np.zeros(length, vector.values.dtype)
    valid = np.zeros(length, np.bool_)
    values[positions] = vector.values
    valid[positions] = True if vector.valid is None else vector.valid
    return Vector(vector.dtype, values, valid)
