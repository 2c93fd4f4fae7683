"""Order codes: 64-bit integers in the order of texts, bytes or wide decimals.

A code is twice the value's rank among the distinct values of the build side, so that odd ones are left for probe values
that lie between two of them. An example::

    build   b  d  b  f     distinct values b d f     codes 0 2 0 4
    probe   a  c  d                                  codes -1 1 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import pyarrow as pa

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame
from gpujoin.backends.cudf.pipeline.compute import valid_of
from gpujoin.functions.values import Value
from gpujoin.model.types import is_bytes, is_text, is_wide_decimal, logical


def is_ranked(dtype: pa.DataType) -> bool:
    """Whether values of a type do not fit 64 bits, so that codes are ranks."""
    kind = logical(dtype)
    return bool(is_text(kind) or is_bytes(kind) or is_wide_decimal(kind))


def ranks(columns: Columns[Frame], values: Frame) -> Array:
    """Number each row, as int64, by its value's place among the distinct ones in order; nulls are the first.

    The frame has one column.
    """
    xp = columns.ops.xp
    if not columns.backend.frame_rows(values):
        return xp.zeros(0, dtype="int64")
    distinct, numbers = columns.codes(values)
    index = columns.order(distinct, (False,), (True,))
    rank = xp.empty(index.shape[0], dtype="int64")
    rank[index] = xp.arange(index.shape[0], dtype="int64")
    return rank[numbers]


@dataclass(frozen=True)
class RankCodes(Generic[Frame]):
    """Codes by the distinct values of a build side."""

    columns: Columns[Frame]
    distinct: Frame
    """The distinct values: a frame of one column."""

    @classmethod
    def from_build(cls, columns: Columns[Frame], values: Frame) -> tuple[RankCodes[Frame], Value]:
        """Make the codes of a build side's values, a frame of one column. Also returns the codes of its rows."""
        filled = columns.backend.frame_rows(values)
        distinct = columns.codes(values)[0] if filled else values
        return cls(columns, distinct), Value(pa.int64(), 2 * ranks(columns, values), valid_of(columns, values, 0))

    def codes(self, values: Frame) -> Value:
        """Codes of the rows of a probe side."""
        xp, rows = self.columns.ops.xp, self.columns.backend.frame_rows
        count, valid = rows(self.distinct), valid_of(self.columns, values, 0)
        if not rows(values):
            return Value(pa.int64(), xp.zeros(0, dtype="int64"))
        rank = ranks(self.columns, self.columns.concat([self.distinct, values]))
        marks = xp.zeros(int(rank.max()) + 1, dtype="int64")
        marks[rank[:count]] = 1
        sought = rank[count:]
        return Value(pa.int64(), (2 * xp.cumsum(marks, dtype="int64") - 1 - marks)[sought], valid)
