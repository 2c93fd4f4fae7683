"""Launches ``normalise.cu``: packs key columns into codes of 64 or 128 bits, or hashes them to 64 bits.

Packed codes are exact. Hashes are not, so rows with equal hashes are compared afterwards (:func:`compare`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from gpujoin.errors import KernelArgumentError
from gpujoin.launch.device import Array, Device, ModuleSpec
from gpujoin.launch.facts import column_facts
from gpujoin.launch.keys import (
    BLOCK_THREADS,
    KeyCodes,
    check_column,
    check_contiguous,
    check_rows,
    grid_of,
)

_NONE = -1
_WORD = 64
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LONGEST_TEXT = 16
_MOST_WORDS = 2

ONE_WORD_DIGITS = 18
"""Most digits of decimals that are one word."""


class Kind(Enum):
    """Kinds of values of a key column."""

    INTEGER = "integer"
    """Signed integers of 1, 2, 4 or 8 bytes; also booleans, dates, times, timestamps and short decimals."""
    FLOAT = "float"
    """IEEE numbers of 4 or 8 bytes; −0.0 equals 0.0, and NaN equals NaN."""
    DECIMAL = "decimal"
    """Unscaled integers of 16 bytes, as two 64-bit words, the low one first."""
    TEXT = "text"
    """Bytes of any length."""


def _module(value_bytes: int = 8, floating: int = 0, offset_bytes: int = 4) -> ModuleSpec:
    defines = (("VALUE_BYTES", value_bytes), ("FLOATING", floating), ("OFFSET_BYTES", offset_bytes))
    return ModuleSpec("normalise.cu", defines)


SPECIALISATIONS: tuple[ModuleSpec, ...] = (
    *(_module(width) for width in (1, 2, 4, 8, 16)), _module(4, 1), _module(8, 1), _module(offset_bytes=8),
)  # fmt: skip


@dataclass(frozen=True)
class KeyColumn:
    """One key column of a side."""

    kind: Kind
    values: Array
    """Values of shape ``(rows,)``; decimals as uint64 of shape ``(rows, 2)``; the bytes of all texts as uint8."""
    valid: Array | None = None
    """False where null; ``None``: nowhere."""
    offsets: Array | None = None
    """For texts: first byte of each, and the end of the last one."""
    null_safe: bool = False
    """Whether null equals null; otherwise a row with a null matches nothing."""
    digits: int | None = None
    """For decimals: the precision; up to 18 digits are one word."""

    @property
    def rows(self) -> int:
        """Row count."""
        return int(self.values.shape[0] if self.offsets is None else self.offsets.shape[0] - 1)

    @property
    def value_bytes(self) -> int:
        """Bytes of a fixed-width value."""
        return int(self.values.dtype.itemsize) * (2 if self.kind is Kind.DECIMAL else 1)

    @property
    def module(self) -> ModuleSpec:
        """Module of the column's kernels."""
        if self.offsets is not None:
            return _module(offset_bytes=int(self.offsets.dtype.itemsize))
        return _module(self.value_bytes, int(self.kind is Kind.FLOAT))

    @property
    def data(self) -> list[Array]:
        """The first parameters of the column's kernels."""
        if self.offsets is not None:
            return [self.offsets, self.values, self.valid]
        bits = self.values.view(f"int{8 * self.value_bytes}") if self.kind is Kind.FLOAT else self.values
        return [bits, self.valid]


_DTYPES: dict[Kind, tuple[str, ...]] = {
    Kind.INTEGER: ("int8", "int16", "int32", "int64"),
    Kind.FLOAT: ("float32", "float64"),
    Kind.DECIMAL: ("uint64",),
    Kind.TEXT: ("uint8",),
}


def checked_columns(columns: Sequence[KeyColumn]) -> int:
    """Check key columns, and return their number of rows."""
    lengths = {column.rows for column in columns}
    if len(lengths) != 1:
        raise KernelArgumentError(f"key columns have {sorted(lengths)} rows; pass one or more of equal length")
    rows = lengths.pop()
    check_rows(rows)
    for number, column in enumerate(columns):
        name = f"key column {number}"
        values, offsets = column.values, column.offsets
        if values.dtype.name not in _DTYPES[column.kind]:
            requirement = " or ".join(_DTYPES[column.kind])
            raise KernelArgumentError(f"{name} of kind {column.kind.value} is {values.dtype}; pass {requirement}")
        if tuple(values.shape[1:]) != ((2,) if column.kind is Kind.DECIMAL else ()):
            raise KernelArgumentError(f"{name} of kind {column.kind.value} has shape {values.shape}")
        check_contiguous(name, values)
        if (offsets is None) == (column.kind is Kind.TEXT):
            raise KernelArgumentError(f"{name} of kind {column.kind.value}: texts have offsets, others none")
        if offsets is not None:
            check_column(f"offsets of {name}", offsets, np.int64 if offsets.dtype == np.int64 else np.int32)
        if column.valid is not None:
            check_column(f"the validity of {name}", column.valid, np.bool_, rows)
    return rows


@dataclass(frozen=True)
class KeyField:
    """Position of a column in a packed code."""

    shift: int
    width: int
    """First bit and number of bits."""
    low: int | None = None
    span: int | None = None
    """For integers: smallest build value, and its distance from the largest one; ``None``: values are stored
    unchanged."""
    longest: int = 0
    """For texts: bytes of the longest build value."""
    length_shift: int = _NONE
    """For texts: first bit of the length, −1 where none is needed."""
    null_bit: int = _NONE
    """Bit that is set for null, −1 where null matches nothing."""


@dataclass(frozen=True)
class KeyLayout:
    """Layout of packed codes, made from the build side's keys and used for both sides."""

    fields: tuple[KeyField, ...]
    """Field of each column; empty where a single column is its own code."""
    words: int
    """64-bit words of a code: 1 or 2."""
    types: tuple[tuple[Kind, str], ...] | None = None
    """Kind of each column, and the array type of its values; ``None``: any."""


def layout_of(device: Device, columns: Sequence[KeyColumn]) -> KeyLayout | None:
    """Lay out the build side's key columns in a code; ``None`` if they take more than 128 bits."""
    checked_columns(columns)
    types = _types(columns)
    if len(columns) == 1 and _is_code(columns[0]):
        return KeyLayout((), 1, types)
    fields: list[KeyField] = []
    bits = 0
    for column in columns:
        field = _field(device, column, bits)
        if field is None:
            return None
        bits = field.shift + field.width
        if field.length_shift != _NONE:
            bits += field.longest.bit_length()
        if column.null_safe:
            field = KeyField(field.shift, field.width, field.low, field.span, field.longest, field.length_shift, bits)
            bits += 1
        fields.append(field)
    if bits > _MOST_WORDS * _WORD:
        return None
    return KeyLayout(tuple(fields), 1 if bits <= _WORD else _MOST_WORDS, types)


def _types(columns: Sequence[KeyColumn]) -> tuple[tuple[Kind, str], ...]:
    return tuple((column.kind, column.values.dtype.name) for column in columns)


def _is_code(column: KeyColumn) -> bool:
    """Whether a single column is its own code."""
    wide = column.values.dtype.name in ("int32", "int64")
    return column.kind is Kind.INTEGER and wide and not column.null_safe


def _field(device: Device, column: KeyColumn, shift: int) -> KeyField | None:
    if column.kind is Kind.TEXT:
        longest, zero_ended = _text_facts(device, column)
        if longest > _LONGEST_TEXT:
            return None
        width = max(1, 8 * longest)
        return KeyField(shift, width, longest=longest, length_shift=shift + width if zero_ended else _NONE)
    if column.kind is Kind.INTEGER and column.values.dtype.name in ("int32", "int64"):
        facts = column_facts(device, KeyCodes(column.values, column.valid))
        if facts.low is None or facts.high is None:
            return KeyField(shift, 1, 0, 0)
        span = facts.high - facts.low
        return KeyField(shift, max(1, span.bit_length()), facts.low, span)
    if column.kind is Kind.DECIMAL and column.digits is not None and column.digits <= ONE_WORD_DIGITS:
        return KeyField(shift, _WORD)
    return KeyField(shift, 8 * column.value_bytes)


def _text_facts(device: Device, column: KeyColumn) -> tuple[int, bool]:
    """Bytes of the longest text, and whether any text ends in a zero byte."""
    facts = device.zeros(2, np.uint64)
    if column.rows:
        arguments = [*column.data, np.uint64(column.rows), facts]
        _launch(device, column, "text_facts", column.rows, arguments)
    longest, zero_ended = device.download(facts).tolist()
    return int(longest), bool(zero_ended)


def pack(device: Device, layout: KeyLayout, columns: Sequence[KeyColumn]) -> KeyCodes:
    """Pack the key columns of a side into codes, by the layout of the build side's keys."""
    rows = checked_columns(columns)
    if layout.types is not None and _types(columns) != layout.types:
        sides = ["; ".join(f"{kind.value} {dtype}" for kind, dtype in side) for side in (_types(columns), layout.types)]
        raise KernelArgumentError(f"keys are {sides[0]} where the layout was made for {sides[1]}")
    if not layout.fields:
        return KeyCodes(columns[0].values, columns[0].valid)
    words = layout.words
    codes, coded = device.empty(rows * words, np.uint64), device.empty(rows, np.bool_)
    for position, (column, field) in enumerate(zip(columns, layout.fields, strict=True)):
        first = np.uint32(position == 0)
        arguments: list[Any] = [*column.data, np.uint64(rows), np.uint32(words), first, np.uint32(field.shift)]
        if column.kind is Kind.TEXT:
            name = "pack_texts"
            arguments += [np.uint32(field.longest), np.int32(field.length_shift)]
        else:
            name = "pack_values"
            ranged = np.uint32(field.low is not None)
            arguments += [np.uint32(field.width), ranged, np.int64(field.low or 0), np.uint64(field.span or 0)]
        if rows:
            _launch(device, column, name, rows, [*arguments, np.int32(field.null_bit), codes, coded])
    shaped = codes.view(np.int64) if words == 1 else codes.reshape(rows, words)
    return KeyCodes(shaped, coded)


def fingerprints(device: Device, columns: Sequence[KeyColumn], seed: int) -> KeyCodes:
    """Hash the keys of rows, of any width, to 64 bits. Rows with equal hashes must be compared (:func:`compare`).

    Both sides take the same seed.
    """
    rows = checked_columns(columns)
    codes = device.full(rows, np.uint64((seed + 1) * _GOLDEN & _MASK), np.uint64)
    coded = device.full(rows, True, np.bool_)
    for column in columns:
        name = "hash_texts" if column.kind is Kind.TEXT else "hash_values"
        if rows:
            arguments = [*column.data, np.uint64(rows), np.uint32(column.null_safe), codes, coded]
            _launch(device, column, name, rows, arguments)
    return KeyCodes(codes.view(np.int64), coded)


def compare(
    device: Device, left: Sequence[KeyColumn], left_row: Array, right: Sequence[KeyColumn], right_row: Array
) -> Array:
    """Compare the keys of pairs of rows: row ``left_row[i]`` of one side with ``right_row[i]`` of the other."""
    checked_columns(left)
    checked_columns(right)
    pairs = int(left_row.shape[0])
    check_column("left rows", left_row, np.int32)
    check_column("right rows", right_row, np.int32, pairs)
    equal = device.full(pairs, True, np.bool_)
    for columns in zip(left, right, strict=True):
        left_column, right_column = _of_one_width(*columns)
        if left_column.module != right_column.module:
            raise KernelArgumentError(
                f"a key is {left_column.values.dtype} on one side and {right_column.values.dtype} on the other"
            )
        sides: list[list[Any]] = [[*left_column.data, left_row], [*right_column.data, right_row]]
        name = "verify_values"
        if left_column.kind is Kind.TEXT:
            name = "verify_texts"
            sides = [
                [*column.data, np.uint64(column.rows), row]
                for column, row in ((left_column, left_row), (right_column, right_row))
            ]
        if pairs:
            arguments = [*sides[0], *sides[1], np.uint64(pairs), np.uint32(left_column.null_safe), equal]
            _launch(device, left_column, name, pairs, arguments)
    return equal


def _of_one_width(left: KeyColumn, right: KeyColumn) -> tuple[KeyColumn, KeyColumn]:
    """Widen the offsets of two texts to the same type."""
    if left.offsets is None or right.offsets is None or left.offsets.dtype == right.offsets.dtype:
        return left, right
    wide = np.int64
    return replace(left, offsets=left.offsets.astype(wide)), replace(right, offsets=right.offsets.astype(wide))


def _launch(device: Device, column: KeyColumn, name: str, items: int, arguments: list[Any]) -> None:
    device.launch(device.kernel(column.module, name), grid_of(device, items), BLOCK_THREADS, arguments)
