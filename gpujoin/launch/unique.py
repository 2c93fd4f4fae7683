"""Launches ``unique.cu``: hash joins with unique build keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpujoin.launch.csr import SLOT_BYTES, empty_table, slots_for
from gpujoin.launch.device import Array, Device, ModuleSpec, check_room
from gpujoin.launch.keys import KeyCodes, check_width, checked_keys, launch_inserts, launch_over_keys, total, value_of
from gpujoin.launch.matches import UniqueMatches
from gpujoin.launch.rows import FieldColumn, PackedRows, pack, pointers, unset_columns

MAX_SLOTS = (1 << 32) - 1
"""Most slots of a table, which are numbered by unsigned integers: no more than half of them are ever taken."""

KEY_IN_SLOT = 4
"""Bytes of a key that is its own tag."""

SPECIALISATIONS: tuple[ModuleSpec, ...] = tuple(
    ModuleSpec("unique.cu", (("KEY_BYTES", width),)) for width in (4, 8, 16)
)


@dataclass(frozen=True)
class HashTable:
    """A hash table with one row for each key."""

    keys: KeyCodes
    """Codes of the build rows, with which those of probe rows are compared."""
    table: Array
    """The slots."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.keys.nbytes + int(self.table.nbytes)

    def with_payload(self, device: Device, payload: Sequence[FieldColumn]) -> PayloadTable:
        """Make the table whose packed rows have the keys beside the payload of the build rows."""
        if self.keys.key_bytes == KEY_IN_SLOT:
            return PayloadTable(self.keys.key_bytes, self.table, 0, pack(device, payload))
        packed = pack(device, [*payload, FieldColumn(self.keys.codes)])
        return PayloadTable(self.keys.key_bytes, self.table, packed.layout.offsets[-1], packed.without_last())

    def probe(self, device: Device, probe: KeyCodes) -> UniqueMatches:
        """Find the build row of each probe row."""
        checked_keys(probe)
        check_width(probe, self.keys.key_bytes)
        build_row = device.empty(probe.rows, np.int32)
        matches = total(device)
        arguments = [self.keys.codes, self.table, np.uint64(self.table.shape[0]), build_row, matches]
        launch_over_keys(device, "unique.cu", "unique_probe", probe, *arguments)
        return UniqueMatches(build_row, value_of(device, matches))


@dataclass(frozen=True)
class PayloadTable:
    """A hash table with one row for each key, and packed rows that have keys and payload side by side.

    The read that compares a key brings the payload too, where :class:`HashTable` has them in two places. Keys of 4
    bytes are in the slots, and not in the rows.
    """

    key_bytes: int
    table: Array
    """The slots."""
    key_at: int
    """Offset of the key in a packed row."""
    packed: PackedRows
    """The rows, with the payload's fields."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.table.nbytes) + self.packed.nbytes

    def fetch(self, device: Device, probe: KeyCodes) -> tuple[list[FieldColumn], Array, int]:
        """Fetch as :meth:`gpujoin.launch.direct.PayloadTable.fetch` does."""
        checked_keys(probe)
        check_width(probe, self.key_bytes)
        columns = unset_columns(device, self.packed, probe.rows)
        marks = device.empty(probe.rows, np.bool_)
        matches = total(device)
        arguments = [
            self.table, np.uint64(self.table.shape[0]), np.uint32(self.key_at), self.packed.memory,
            *self.packed.arguments(), *pointers(device, columns), marks, matches,
        ]  # fmt: skip
        launch_over_keys(device, "unique.cu", "unique_fetch", probe, *arguments)
        return columns, marks, value_of(device, matches)


def build(device: Device, keys: KeyCodes, *, duplicates: bool = False) -> HashTable | None:
    """Build a table; ``None`` if a key occurs twice.

    With ``duplicates``, any of a key's rows is kept, which is enough for semi and anti joins.
    """
    checked_keys(keys)
    slots = slots_for(keys.rows, MAX_SLOTS)
    check_room(device, SLOT_BYTES * slots, f"a hash table of {keys.rows} rows")
    table = empty_table(device, slots)
    duplicate = device.zeros(1, np.uint32)
    launch_inserts(device, "unique.cu", "unique_insert", keys, table, np.uint64(slots), duplicate)
    if not duplicates and value_of(device, duplicate):
        return None
    return HashTable(KeyCodes(keys.codes, None), table)
