"""Launches ``direct.cu``: joins by direct address over keys of a small range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpujoin.errors import KernelArgumentError
from gpujoin.launch.csr import lay_out, layout_bytes
from gpujoin.launch.device import Array, Device, ModuleSpec, check_room, memory_errors
from gpujoin.launch.keys import (
    MAX_ROWS,
    ROW_NUMBER_BYTES,
    KeyCodes,
    checked_keys,
    launch_over_keys,
    total,
    value_of,
)
from gpujoin.launch.matches import Places, Ranges, UniqueMatches
from gpujoin.launch.rows import FieldColumn, PackedRows, pack, pointers, reorder, unset_columns

SPECIALISATIONS: tuple[ModuleSpec, ...] = tuple(ModuleSpec("direct.cu", (("KEY_BYTES", width),)) for width in (4, 8))

_WORD_BITS = 32


@dataclass(frozen=True)
class Range:
    """A range of keys: ``low … low + slots - 1``.

    Raises
    ------
    KernelArgumentError
        If there is no slot, if there are more than a 32-bit number can count, or if a key exceeds 64 bits.
    """

    low: int
    slots: int

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= MAX_ROWS:
            raise KernelArgumentError(
                f"a direct-address table has 1 to {MAX_ROWS} slots, not {self.slots}; join by hash"
            )
        if not (self.low >= -(1 << 63) and self.low + self.slots <= 1 << 63):
            raise KernelArgumentError(f"keys {self.low} … {self.low + self.slots - 1} are not 64-bit integers")

    @property
    def arguments(self) -> tuple[np.int64, np.uint64]:
        """The range in the order of the kernel's parameters."""
        return np.int64(self.low), np.uint64(self.slots)


@dataclass(frozen=True)
class UniqueTable:
    """A table with the build row of each key of a range, or −1."""

    keys: Range
    key_bytes: int
    row: Array
    full: bool = False
    """Whether each key of the range is known to be there."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.row.nbytes)

    def with_payload(self, device: Device, payload: Sequence[FieldColumn]) -> PayloadTable:
        """Make the table that has the payload of the build rows, one at least, in place of their numbers."""
        xp, slots = device.xp, self.keys.slots
        check_room(device, 2 * ROW_NUMBER_BYTES * slots, f"the rows of {slots} slots")
        bits = None if self.full else device.zeros(-(-slots // _WORD_BITS), np.uint32)
        with memory_errors(f"the rows of {slots} slots"):
            if bits is not None:
                bits.view(np.uint8)[: -(-slots // 8)] = xp.packbits(self.row >= 0, bitorder="little")
            order = self.row if self.full else xp.maximum(self.row, np.int32(0))
        return PayloadTable(self.keys, bits, reorder(device, pack(device, payload), order))

    def probe(self, device: Device, probe: KeyCodes) -> UniqueMatches:
        """Find the build row of each probe row."""
        checked_keys(probe, ranged=True)
        build_row = device.empty(probe.rows, np.int32)
        matches = total(device)
        _launch(device, "direct_probe", probe, self.keys, self.row, build_row, matches)
        return UniqueMatches(build_row, value_of(device, matches))


@dataclass(frozen=True)
class ManyTable:
    """A table with any number of build rows for each key of a range."""

    keys: Range
    key_bytes: int
    places: Places

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.places.nbytes

    def probe(self, device: Device, probe: KeyCodes) -> Ranges:
        """Find the matches of each probe row, as first place and number of places."""
        return find_ranges(device, self.keys, self.places.first, probe)


@dataclass(frozen=True)
class KeySet:
    """A bit for each key of a range: whether a build row has it."""

    keys: Range
    bits: Array

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.bits.nbytes)

    def probe(self, device: Device, probe: KeyCodes) -> UniqueMatches:
        """Find the probe rows whose key is in the set; build row 0 stands for any."""
        checked_keys(probe, ranged=True)
        marks = device.empty(probe.rows, np.bool_)
        matches = total(device)
        _launch(device, "direct_test_bits", probe, self.keys, self.bits, marks, matches)
        return matches_of(device, marks, value_of(device, matches))


@dataclass(frozen=True)
class PayloadTable:
    """A table with the payload of the build row of each key of a range, for unique keys.

    A probe reads the payload itself, where :class:`UniqueTable` has the number of its row: one random access in place
    of two.
    """

    keys: Range
    bits: Array | None
    """A bit for each key of the range: whether a build row has it; ``None``: all are there."""
    packed: PackedRows
    """The payload, that of key ``low + i`` at place i."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.packed.nbytes + (0 if self.bits is None else int(self.bits.nbytes))

    def fetch(self, device: Device, probe: KeyCodes) -> tuple[list[FieldColumn], Array, int]:
        """Fetch the build columns of each probe row, whether it has a match, and how many rows have one.

        Where a row has no match, values are what the memory held, and columns that have validity are null.
        """
        checked_keys(probe, ranged=True)
        columns = unset_columns(device, self.packed, probe.rows)
        marks = device.empty(probe.rows, np.bool_)
        matches = total(device)
        arguments = [
            self.bits, self.packed.memory, *self.packed.arguments(), *pointers(device, columns), marks, matches,
        ]  # fmt: skip
        _launch(device, "direct_fetch", probe, self.keys, *arguments)
        return columns, marks, value_of(device, matches)


def build_unique(device: Device, build: KeyCodes, keys: Range, *, present: int | None = None) -> UniqueTable | None:
    """Build a table of unique keys in a range; ``None`` if a key occurs twice. Other codes are left out.

    ``present`` is the number of rows with a key of the range, if it is known.

    Raises ``KernelArgumentError`` also if the codes have no range, as hashes and 16-byte codes.
    """
    checked_keys(build, ranged=True)
    check_room(device, ROW_NUMBER_BYTES * keys.slots, f"a table of {keys.slots} slots")
    table = device.full(keys.slots, -1, np.int32)
    duplicate = device.zeros(1, np.uint32)
    _launch(device, "direct_insert", build, keys, table, duplicate)
    return None if value_of(device, duplicate) else UniqueTable(keys, build.key_bytes, table, present == keys.slots)


def build_many(device: Device, build: KeyCodes, keys: Range, *, ordered: bool = True) -> ManyTable:
    """Build a table of any number of rows for each key; ``ordered`` as for :func:`gpujoin.launch.csr.lay_out`."""
    slot_of = slots_of(device, build, keys)
    return ManyTable(keys, build.key_bytes, lay_out(device, slot_of, keys.slots, ordered=ordered))


def slots_of(device: Device, build: KeyCodes, keys: Range) -> Array:
    """Find the int32 slot of each row, −1 where its key is not in the range.

    Raises ``DeviceMemoryError`` if what lays rows out by slot does not fit.
    """
    checked_keys(build, ranged=True)
    check_room(device, layout_bytes(build.rows, keys.slots), f"{build.rows} rows in {keys.slots} slots")
    slot_of = device.empty(build.rows, np.int32)
    _launch(device, "direct_slots", build, keys, slot_of)
    return slot_of


def find_ranges(device: Device, keys: Range, first: Array, probe: KeyCodes) -> Ranges:
    """Find the matches of each probe row, as first place and number of places, by the first place of each key."""
    checked_keys(probe, ranged=True)
    start, count = device.empty(probe.rows, np.int32), device.empty(probe.rows, np.int32)
    matches = total(device)
    _launch(device, "direct_ranges", probe, keys, first, start, count, matches)
    return Ranges(start, count, value_of(device, matches))


def build_set(device: Device, build: KeyCodes, keys: Range) -> KeySet:
    """Enter every key in a bitmap: enough for semi, anti and existence joins without a condition."""
    checked_keys(build, ranged=True)
    check_room(device, keys.slots // 8, f"a set of {keys.slots} keys")
    bits = device.zeros(-(-keys.slots // _WORD_BITS), np.uint32)
    _launch(device, "direct_enter_bits", build, keys, bits)
    return KeySet(keys, bits)


def matches_of(device: Device, marks: Array, pairs: int) -> UniqueMatches:
    """Make matches of bool marks, of which ``pairs`` are set: build row 0 stands for any."""
    return UniqueMatches(device.xp.subtract(marks.view(np.int8), np.int8(1), dtype=np.int32), pairs)


def _launch(device: Device, name: str, keys: KeyCodes, span: Range, *arrays: Any) -> None:
    launch_over_keys(device, "direct.cu", name, keys, *span.arguments, *arrays)
