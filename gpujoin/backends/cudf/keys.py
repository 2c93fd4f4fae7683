"""Key frames as an index sees them: integers as they are, two narrow ones packed, all else as verified hashes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cupy
import pylibcudf as plc

from gpujoin.backends.cudf.arrays import Array, ArrayOps, pack
from gpujoin.backends.cudf.device import STREAM
from gpujoin.backends.cudf.frames import CudfFrame, as_array, as_column, text_parts, validity
from gpujoin.launch.keys import KeyCodes
from gpujoin.launch.normalise import KeyColumn, Kind

_T = plc.types.TypeId
_SEED_STEP = 0x9E3779B9


@dataclass(frozen=True)
class FrameKeys:
    """The columns of a key frame; see :class:`gpujoin.backends.cudf.index.Keys`.

    One integer column is its own code. Two int32 columns are packed into one int64. Text, and several or wider
    columns, get the 64-bit xxHash of the row, and what has equal hashes is compared, column by column. Hashing and
    comparing cost one pass of gathers over the matches, whatever the types and their number; joining the keys by
    cuDF's own join would hash the whole build side again at every probe.
    """

    ops: ArrayOps
    frame: CudfFrame

    @property
    def nbytes(self) -> int:
        """See :class:`gpujoin.backends.cudf.index.Keys`."""
        return self.frame.nbytes

    @cached_property
    def exact(self) -> bool:
        """See :class:`gpujoin.backends.cudf.index.Keys`."""
        kinds = [column.type().id() for column in self.frame.table.columns()]
        return kinds in ([_T.INT32], [_T.INT64], [_T.INT32, _T.INT32])

    @cached_property
    def _valid(self) -> Array | None:
        masks = [m for m in map(validity, self.frame.table.columns()) if m is not None]
        if not masks:
            return None
        valid = masks[0]
        for mask in masks[1:]:
            valid = valid & mask
        return valid

    def __len__(self) -> int:
        return self.frame.rows

    def columns(self) -> tuple[KeyColumn, ...]:
        """See :class:`gpujoin.backends.cudf.index.Keys`."""
        return self._columns

    @cached_property
    def _columns(self) -> tuple[KeyColumn, ...]:
        return tuple(map(_key_column, self.frame.table.columns()))

    def coded(self, seed: int) -> KeyCodes:
        """See :class:`gpujoin.backends.cudf.index.Keys`."""
        columns = self.frame.table.columns()
        if not self.exact:
            hashes = plc.hashing.xxhash_64(self.frame.table, seed * _SEED_STEP, stream=STREAM)
            return KeyCodes(as_array(hashes).view(cupy.int64), self._valid)
        if len(columns) == 1:
            return KeyCodes(as_array(columns[0]), self._valid)
        high, low = (as_array(column) for column in columns)
        return KeyCodes(pack(self.ops, high, low), self._valid)

    def same(self, rows: Array, other: FrameKeys, other_rows: Array) -> Array:
        """See :class:`gpujoin.backends.cudf.index.Keys`."""
        same = cupy.ones(rows.shape[0], dtype=bool)
        for mine, theirs in zip(self.frame.table.columns(), other.frame.table.columns(), strict=True):
            if mine.type().id() == _T.STRING:
                same &= _same_text(mine, rows, theirs, other_rows)
            else:
                same &= as_array(mine)[rows] == as_array(theirs)[other_rows]
        return same


def _key_column(column: plc.Column) -> KeyColumn:
    """A column of a key frame, sharing its memory."""
    if column.type().id() != _T.STRING:
        return KeyColumn(Kind.INTEGER, as_array(column), validity(column))
    offsets, data = text_parts(column)
    return KeyColumn(Kind.TEXT, data, validity(column), offsets)


def _same_text(mine: plc.Column, rows: Array, theirs: plc.Column, other_rows: Array) -> Array:
    if rows.shape[0] == 0:
        return cupy.ones(0, dtype=bool)
    left, right = (
        plc.copying.gather(
            plc.Table([column]), as_column(index), plc.copying.OutOfBoundsPolicy.DONT_CHECK, stream=STREAM
        ).columns()[0]
        for column, index in ((mine, rows), (theirs, other_rows))
    )
    equal = plc.binaryop.binary_operation(
        left, right, plc.binaryop.BinaryOperator.EQUAL, plc.DataType(_T.BOOL8), stream=STREAM
    )
    return as_array(equal)
