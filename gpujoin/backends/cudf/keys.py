"""Key frames on the device, in the form that an index reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cupy
import pyarrow as pa
import pylibcudf as plc

from gpujoin.backends.cudf.arrays import Array, ArrayOps, pack
from gpujoin.backends.cudf.canonical import may_match, null_flag, words
from gpujoin.backends.cudf.device import STREAM
from gpujoin.backends.cudf.frames import CudfFrame, as_array, as_column, as_field, text_parts, validity
from gpujoin.launch.keys import KeyCodes
from gpujoin.launch.normalise import KeyColumn, Kind

_T = plc.types.TypeId
_SEED_STEP = 0x9E3779B9


@dataclass(frozen=True)
class FrameKeys:
    """The columns of a key frame.

    Kernels read the columns directly. Without kernels, fixed-width columns are encoded as words, integers that are
    equal exactly where the keys are. A single word is the code, two words of 32 bits are packed into one int64, and
    text or more words are hashed by xxHash to 64 bits. Matches of hashes are compared column by column, which costs one
    pass of gathers over the matches. cuDF's own join would hash the whole build side again at every probe.
    """

    ops: ArrayOps
    frame: CudfFrame

    @property
    def nbytes(self) -> int:
        return self.frame.nbytes

    @cached_property
    def exact(self) -> bool:
        kinds = [word.dtype for word in self._words]
        return not self._texts and kinds in ([cupy.int32], [cupy.int64], [cupy.int32, cupy.int32])

    def __len__(self) -> int:
        return self.frame.rows

    def columns(self) -> tuple[KeyColumn, ...]:
        return self._columns

    @cached_property
    def _columns(self) -> tuple[KeyColumn, ...]:
        columns, types = self.frame.table.columns(), self.frame.types
        null_safe = self.frame.null_safe or (False,) * len(columns)
        return tuple(map(_key_column, columns, types, null_safe))

    @cached_property
    def _texts(self) -> list[int]:
        return [i for i, column in enumerate(self._columns) if column.kind is Kind.TEXT]

    @cached_property
    def _words(self) -> list[Array]:
        """Words of all columns; for null-safe texts, the word that tells nulls."""
        all_words: list[Array] = []
        for column in self._columns:
            if column.kind is not Kind.TEXT:
                all_words += words(self.ops.xp, column)
            elif column.null_safe:
                all_words.append(null_flag(self.ops.xp, column))
        return all_words

    def coded(self, seed: int) -> KeyCodes:
        valid = may_match(self._columns)
        if not self.exact:
            source = self.frame.table.columns()
            hashed = plc.Table([*map(as_column, self._words), *(source[i] for i in self._texts)])
            hashes = plc.hashing.xxhash_64(hashed, seed * _SEED_STEP, stream=STREAM)
            return KeyCodes(as_array(hashes).view(cupy.int64), valid)
        if len(self._words) == 1:
            return KeyCodes(self._words[0], valid)
        high, low = self._words
        return KeyCodes(pack(self.ops, high, low), valid)

    def same(self, rows: Array, other: FrameKeys, other_rows: Array) -> Array:
        same = cupy.ones(rows.shape[0], dtype=bool)
        for word, other_word in zip(self._words, other._words, strict=True):
            same &= word[rows] == other_word[other_rows]
        for i in self._texts:
            equal = _same_text(self.frame.table.columns()[i], rows, other.frame.table.columns()[i], other_rows)
            valid = self._columns[i].valid
            if self._columns[i].null_safe and valid is not None:
                # Words tell nulls from texts, so two nulls are equal here and a null never equals a text.
                equal |= ~valid[rows]
            same &= equal
        return same


def _key_column(column: plc.Column, dtype: pa.DataType, null_safe: bool) -> KeyColumn:
    """View a column of a key frame as kernels read it."""
    kind, valid = column.type().id(), validity(column)
    if kind == _T.STRING:
        offsets, data = text_parts(column)
        return KeyColumn(Kind.TEXT, data, valid, offsets, null_safe=null_safe)
    if kind == _T.DECIMAL128:
        words = as_field(column).values.view(cupy.uint64)
        return KeyColumn(Kind.DECIMAL, words, valid, null_safe=null_safe, digits=dtype.precision)
    values = as_array(column)
    if kind in (_T.FLOAT32, _T.FLOAT64):
        return KeyColumn(Kind.FLOAT, values, valid, null_safe=null_safe)
    # Booleans and unsigned integers are read as signed ones: keys are only compared for equality.
    return KeyColumn(Kind.INTEGER, values.view(f"int{8 * values.dtype.itemsize}"), valid, null_safe=null_safe)


def _same_text(left_column: plc.Column, left_rows: Array, right_column: plc.Column, right_rows: Array) -> Array:
    if left_rows.shape[0] == 0:
        return cupy.ones(0, dtype=bool)
    left, right = (
        plc.copying.gather(
            plc.Table([column]), as_column(index), plc.copying.OutOfBoundsPolicy.DONT_CHECK, stream=STREAM
        ).columns()[0]
        for column, index in ((left_column, left_rows), (right_column, right_rows))
    )
    equal = plc.binaryop.binary_operation(
        left, right, plc.binaryop.BinaryOperator.EQUAL, plc.DataType(_T.BOOL8), stream=STREAM
    )
    return as_array(equal)
