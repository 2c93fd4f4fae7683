"""Rows in the order of their groups, for aggregates that compare each row with a value of its group.

Polars computes such expressions group by group, which takes some thirty times as long as a sum where groups are small.
An example, of the groups ``a`` and ``b``::

    rows   a 3   b 7   a 5        ordered   a 3   a 5   b 7        starts   0  2
                                  sums of groups 8 7, spread over their rows   8  8  7
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from gpujoin.backends.ordered.moments import GroupedRows

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Segments:
    """Columns whose rows are read in the order of their groups."""

    columns: pl.DataFrame
    order: npt.NDArray[np.uint32] | None
    """The rows in that order; ``None``: as they are."""
    starts: npt.NDArray[np.int64]
    """Positions in the order at which the groups begin; every group has a row."""

    @classmethod
    def from_lists(cls, columns: pl.DataFrame, rows: pl.Series) -> Segments:
        """Take the rows of each group from a list."""
        lengths = rows.list.len().cast(pl.Int64).to_numpy()
        return cls(columns, rows.explode(empty_as_null=False).to_numpy(), np.cumsum(lengths) - lengths)

    @classmethod
    def from_frame(cls, columns: pl.DataFrame) -> Segments:
        """Take all rows as one group. There must be some."""
        return cls(columns, None, np.zeros(1, np.int64))

    @cached_property
    def groups(self) -> npt.NDArray[np.int64]:
        """Number of each row's group."""
        lengths = np.diff(self.starts, append=self.columns.height)
        return np.repeat(np.arange(len(self.starts)), lengths)

    def doubles(self, name: str) -> Doubles:
        """A column as doubles, 0 for null; see :meth:`present`."""
        values = self.columns[name].cast(pl.Float64).fill_null(0.0).to_numpy()
        return values if self.order is None else values[self.order]

    def present(self, name: str) -> npt.NDArray[np.bool_]:
        """Which values of a column are not null."""
        mask = self.columns[name].is_not_null().to_numpy()
        return mask if self.order is None else mask[self.order]

    def grouped(self, counted: npt.NDArray[np.bool_], counts: Doubles | None = None) -> GroupedRows:
        """The rows of a mask, grouped. Each stands for as many values as ``counts`` says, or for one."""
        rows = np.where(counted, np.arange(len(counted)), len(counted))
        first = np.minimum.reduceat(rows, self.starts) if len(self.starts) else rows
        return GroupedRows(
            np, self.groups, counted, self._sum(counted if counts is None else np.where(counted, counts, 0.0)),
            np.where(first < len(counted), first, 0),
            lambda columns: [self._sum(np.where(counted, values, 0.0)) for values in columns],
        )  # fmt: skip

    def _sum(self, values: npt.NDArray[Any]) -> Doubles:
        """Sum of each group."""
        return np.add.reduceat(values, self.starts, dtype=np.float64) if len(self.starts) else np.zeros(0)
