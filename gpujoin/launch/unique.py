"""Launches ``unique.cu``: hash joins with unique build keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpujoin.launch.csr import SLOT_BYTES, empty_table, slots_for
from gpujoin.launch.device import Array, Device, ModuleSpec, check_room
from gpujoin.launch.keys import KeyCodes, check_width, checked_keys, launch_inserts, launch_over_keys, total, value_of
from gpujoin.launch.matches import UniqueMatches

MAX_SLOTS = (1 << 32) - 1
"""Most slots of a table, which are numbered by unsigned integers: no more than half of them are ever taken."""

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

    def probe(self, device: Device, probe: KeyCodes) -> UniqueMatches:
        """Find the build row of each probe row."""
        checked_keys(probe)
        check_width(probe, self.keys.key_bytes)
        build_row = device.empty(probe.rows, np.int32)
        matches = total(device)
        arguments = [self.keys.codes, self.table, np.uint64(self.table.shape[0]), build_row, matches]
        launch_over_keys(device, "unique.cu", "unique_probe", probe, *arguments)
        return UniqueMatches(build_row, value_of(device, matches))


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
