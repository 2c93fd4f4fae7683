"""Encodes key frames as integer words: exactly for numbers and short bytes, as fingerprints for long bytes.

A :class:`KeyLayout` is fitted to the keys of the build side. It encodes key frames as :class:`KeyRows`: a few integer
columns that are equal exactly where the keys are equal. Long byte keys are encoded as a fingerprint, and the bytes are
kept and compared as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.bits import validity, view
from gpujoin.backends.cpu.bytekeys import Bytes, fixed_words, padded_words
from gpujoin.backends.cpu.frame import Frame
from gpujoin.backends.cpu.longkeys import Tail, fingerprints
from gpujoin.backends.cpu.memory import CHUNK, empty
from gpujoin.backends.cpu.rowmaps import Mask

Words: TypeAlias = npt.NDArray[Any]
"""An integer for each row: int32, int64 or uint64."""

_PACKED_LIMIT = 1 << 62
_MOST_FIXED_WORDS = 6
_MOST_PADDED = 15


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Encoded keys."""

    words: tuple[Words, ...]
    """Integer columns of one length, at least one."""
    tails: tuple[Tail, ...]
    """Long byte keys, which the words do not determine."""
    valid: Mask | None
    """Mask of the rows that may match something; ``None``: all."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.words[0])

    @property
    def nbytes(self) -> int:
        """Memory of the words and tails."""
        return sum(words.nbytes for words in self.words) + sum(tail.nbytes for tail in self.tails)

    def slice(self, rows: slice) -> KeyRows:
        """A range of the rows, without copying; all are assumed to be valid."""
        return KeyRows(tuple(words[rows] for words in self.words), tuple(tail.slice(rows) for tail in self.tails), None)

    def take(self, rows: npt.NDArray[Any]) -> KeyRows:
        """Given rows; all are assumed to be valid."""
        return KeyRows(
            tuple(np.take(words, rows) for words in self.words),
            tuple(tail.take(rows) for tail in self.tails),
            None,
        )

    def equal(self, rows: npt.NDArray[np.int64], others: KeyRows) -> npt.NDArray[np.bool_]:
        """Compare keys pairwise: row ``rows[i]`` of this with row ``i`` of ``others``; −1 is read as row 0."""
        same: npt.NDArray[np.bool_] = np.take(self.words[0], rows, mode="clip") == others.words[0]
        for word, other_word in zip(self.words[1:], others.words[1:], strict=True):
            same &= np.take(word, rows, mode="clip") == other_word
        return self.tails_equal(rows, others, same)

    def tails_equal(
        self, rows: npt.NDArray[Any], others: KeyRows, where: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Compare only the tails, pairwise, within a mask; false elsewhere."""
        for tail, other_tail in zip(self.tails, others.tails, strict=True):
            where = tail.equal(rows, other_tail, where)
        return where

    def without_tails(self) -> KeyRows:
        """The words alone."""
        return KeyRows(self.words, (), self.valid)


class ColumnLayout(Protocol):
    """Encodes one key column as words."""

    def encode(self, column: pa.Array) -> KeyRows:
        """Words of a column; ``valid`` leaves out nulls and values that the build side cannot hold."""


@dataclass(frozen=True, slots=True)
class IntegerColumn:
    """Encodes int32 or int64 values as themselves."""

    def encode(self, column: pa.Array) -> KeyRows:
        """One word, the values themselves."""
        dtype = np.int32 if pat.is_int32(column.type) else np.int64
        return KeyRows((view(column, dtype),), (), validity(column))


@dataclass(frozen=True, slots=True)
class FixedBytes:
    """Encodes bytes where all build values have the same length; values of other lengths match nothing."""

    length: int

    def encode(self, column: pa.Array) -> KeyRows:
        """Words of the bytes."""
        data = Bytes.from_array(column)
        valid = validity(column)
        if valid is not None or not data.all_of_length(self.length):
            fits = data.lengths() == self.length
            valid = fits if valid is None else valid & fits
        return KeyRows(fixed_words(data, self.length), (), valid)


@dataclass(frozen=True, slots=True)
class PaddedBytes:
    """Encodes short bytes with their length in one or two words; longer values match nothing."""

    words: int

    def encode(self, column: pa.Array) -> KeyRows:
        """Words of the bytes, the length in the last."""
        data = Bytes.from_array(column)
        valid = validity(column)
        fits = data.lengths() < 8 * self.words
        if not fits.all():
            valid = fits if valid is None else valid & fits
        return KeyRows(padded_words(data, self.words), (), valid)


@dataclass(frozen=True, slots=True)
class LongBytes:
    """Encodes long bytes as a fingerprint; the bytes are compared as well."""

    def encode(self, column: pa.Array) -> KeyRows:
        """The fingerprint, and the bytes."""
        return KeyRows((fingerprints(column),), (Tail(column),), validity(column))


@dataclass(frozen=True, slots=True)
class Packing:
    """Packs several integer words into one: each minus its least value, in mixed radix."""

    least: tuple[int, ...]
    ranges: tuple[int, ...]
    """Greatest minus least value plus one, of each word."""

    @property
    def codes(self) -> int:
        """Number of possible codes."""
        total = 1
        for size in self.ranges:
            total *= size
        return total

    @classmethod
    def from_keys(cls, keys: KeyRows) -> Packing | None:
        """The packing of build keys; ``None`` if they do not fit 62 bits."""
        least, ranges, total = [], [], 1
        for words in keys.words:
            if words.dtype == np.uint64:
                return None
            low, high = bounds(words, keys.valid)
            least.append(low)
            ranges.append(high - low + 1)
            total *= ranges[-1]
            if total > _PACKED_LIMIT:
                return None
        return cls(tuple(least), tuple(ranges))

    def pack(self, keys: KeyRows) -> KeyRows:
        """Code of each row as int64; −1 where a word is outside the build side's range."""
        codes = empty(keys.rows, np.int64)
        for start in range(0, keys.rows, CHUNK):
            self._pack(keys, slice(start, start + CHUNK), codes[start : start + CHUNK])
        return KeyRows((codes,), (), keys.valid)

    def _pack(self, keys: KeyRows, rows: slice, out: npt.NDArray[np.int64]) -> None:
        code = out.view(np.uint64)
        code[:] = 0
        outside = np.zeros(len(out), np.bool_)
        for words, low, size in zip(keys.words, self.least, self.ranges, strict=True):
            # Modulo 2**64 the distance from the least value is below the range exactly for values within it.
            distance = words[rows].astype(np.int64).view(np.uint64)
            distance -= np.uint64(low % (1 << 64))
            outside |= distance >= np.uint64(size)
            code *= np.uint64(size)
            code += distance
        if outside.any():
            out[outside] = -1


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """Encodes the key frames of both sides, as fitted to the build side."""

    columns: tuple[ColumnLayout, ...]
    packing: Packing | None
    """Packs all words into one, if they fit."""

    @classmethod
    def fit(cls, frame: Frame) -> tuple[KeyLayout, KeyRows]:
        """Choose the layout for a build side's keys and encode them."""
        columns = tuple(_column_layout(column) for column in frame.columns)
        keys = _joined([layout.encode(column) for layout, column in zip(columns, frame.columns, strict=True)])
        if len(keys.words) == 1 or keys.tails or not any_valid(keys):
            return cls(columns, None), keys
        packing = Packing.from_keys(keys)
        if packing is None:
            return cls(columns, None), keys
        return cls(columns, packing), packing.pack(keys)

    def encode(self, frame: Frame) -> KeyRows:
        """Encode another frame with the same column types."""
        keys = _joined([layout.encode(column) for layout, column in zip(self.columns, frame.columns, strict=True)])
        return keys if self.packing is None else self.packing.pack(keys)


def any_valid(keys: KeyRows) -> bool:
    """Whether any row may match."""
    return keys.rows > 0 and (keys.valid is None or bool(keys.valid.any()))


def bounds(words: Words, valid: Mask | None) -> tuple[int, int]:
    """Least and greatest value of the valid rows; there must be at least one."""
    if valid is not None:
        words = words[valid]
    return int(words.min()), int(words.max())


def _column_layout(column: pa.Array) -> ColumnLayout:
    if not pat.is_large_binary(column.type):
        return IntegerColumn()
    data = Bytes.from_array(column)
    lengths = data.lengths()
    valid = validity(column)
    if valid is not None:
        lengths = lengths[valid]
    if not len(lengths):
        return PaddedBytes(1)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if longest < 8:
        return PaddedBytes(1)
    if shortest == longest <= 8 * _MOST_FIXED_WORDS:
        return FixedBytes(longest)
    return PaddedBytes(2) if longest <= _MOST_PADDED else LongBytes()


def _joined(parts: Sequence[KeyRows]) -> KeyRows:
    valid: Mask | None = None
    for part in parts:
        if part.valid is not None:
            valid = part.valid if valid is None else valid & part.valid
    return KeyRows(
        tuple(words for part in parts for words in part.words),
        tuple(tail for part in parts for tail in part.tails),
        valid,
    )
