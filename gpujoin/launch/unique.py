"""Launches ``unique.cu``: hash joins with unique build keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpujoin.launch.csr import empty_table, slots_for, table_bytes
from gpujoin.launch.device import Array, Device, ModuleSpec, check_room
from gpujoin.launch.keys import (
    BLOCK_THREADS,
    KeyCodes,
    check_width,
    checked_keys,
    grid_of,
    total,
    value_of,
)
from gpujoin.launch.matches import UniqueMatches

MAX_SLOTS = (1 << 32) - 1
"""Most slots of a table, which are numbered by unsigned integers: no more than half of them are ever taken."""

SPECIALISATIONS: tuple[ModuleSpec, ...] = tuple(
    ModuleSpec("unique.cu", (("KEY_BYTES", width),)) for width in (4, 8, 16)
)


@dataclass(frozen=True)
class HashTable:
    """A hash table with one row for each key."""

    key_bytes: int
    """Width of the codes."""
    table: Array
    """The slots, as 8-byte words."""
    slots: int

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.table.nbytes)

    def probe(self, device: Device, probe: KeyCodes) -> UniqueMatches:
        """Find the build row of each probe row."""
        checked_keys(probe)
        check_width(probe, self.key_bytes)
        build_row = device.empty(probe.rows, np.int32)
        matches = total(device)
        if probe.rows:
            kernel = device.kernel(_module(probe.key_bytes), "unique_probe")
            arguments = [
                probe.codes, probe.valid, np.uint64(probe.rows), self.table, np.uint64(self.slots), build_row, matches,
            ]  # fmt: skip
            device.launch(kernel, grid_of(device, probe.rows), BLOCK_THREADS, arguments)
        return UniqueMatches(build_row, value_of(device, matches))


def build(device: Device, keys: KeyCodes, *, duplicates: bool = False) -> HashTable | None:
    """Build a table; ``None`` if a key occurs twice.

    With ``duplicates``, any of a key's rows is kept, which is enough for semi and anti joins.
    """
    checked_keys(keys)
    slots = slots_for(keys.rows, MAX_SLOTS)
    check_room(device, table_bytes(keys.key_bytes, slots), f"a hash table of {keys.rows} rows")
    table = empty_table(device, keys.key_bytes, slots)
    duplicate = device.zeros(1, np.uint32)
    if keys.rows:
        kernel = device.kernel(_module(keys.key_bytes), "unique_insert")
        arguments = [keys.codes, keys.valid, np.uint64(keys.rows), table, np.uint64(slots), duplicate]
        device.launch(kernel, grid_of(device, keys.rows), BLOCK_THREADS, arguments)
    if not duplicates and value_of(device, duplicate):
        return None
    return HashTable(keys.key_bytes, table, slots)


def _module(key_bytes: int) -> ModuleSpec:
    return ModuleSpec("unique.cu", (("KEY_BYTES", key_bytes),))
