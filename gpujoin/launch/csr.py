"""Launches ``csr.cu``: many-to-many joins over build rows in compressed sparse row form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpujoin.errors import DeviceMemoryError
from gpujoin.launch.device import SECTOR_BYTES, Array, Device, Kernel, ModuleSpec, check_room, memory_errors
from gpujoin.launch.keys import (
    BLOCK_THREADS,
    MAX_ROWS,
    ROW_NUMBER_BYTES,
    KeyCodes,
    check_column,
    check_rows,
    check_width,
    checked_keys,
    grid_of,
    launch_inserts,
    launch_over_keys,
    total,
    value_of,
)
from gpujoin.launch.matches import Places, Ranges
from gpujoin.launch.sums import first_places

SPECIALISATIONS: tuple[ModuleSpec, ...] = tuple(ModuleSpec("csr.cu", (("KEY_BYTES", width),)) for width in (4, 8, 16))

SLOT_BYTES = 8
"""Bytes of a slot of the hash table, as in ``hash_table.cuh``."""

SLOTS_PER_ROW = 2
"""Slots for each row: at most half are taken, so that most searches end in the sector where they begin."""

SECTOR_SLOTS = SECTOR_BYTES // SLOT_BYTES
"""A table has a multiple of so many slots: whole sectors."""

_FEWEST_SLOTS = 32
_SORTED_ROW_BYTES = 4 + 8 + 4
"""Bytes for each row to sort: a copy of the slot numbers, 64-bit row numbers, and their 32-bit form."""
_MOST_ROWS = int(0.85 * MAX_ROWS)
"""Most rows of a table: with more, so few slots are free that searches for absent keys take very long."""
_ROWS_ORDERED_BY_INSERTION = 32
"""Most rows of a slot that are ordered by insertion, which is quadratic; more are sorted."""


def slots_for(rows: int, most: int = MAX_ROWS, slot_bytes: int = SLOT_BYTES) -> int:
    """Number of slots of a hash table: at least one for each row, whole sectors, at most as many as can be numbered."""
    in_sector = SECTOR_BYTES // slot_bytes
    sectors = -(-max(_FEWEST_SLOTS, rows * SLOTS_PER_ROW) // in_sector)
    return min(sectors, most // in_sector) * in_sector


def layout_bytes(rows: int, slots: int) -> int:
    """Memory to lay rows out: slot, number and place of each row, count and first place of each slot."""
    return 3 * ROW_NUMBER_BYTES * rows + 2 * ROW_NUMBER_BYTES * slots


def empty_table(device: Device, slots: int) -> Array:
    """Make a hash table without rows."""
    return device.full(slots, -1, np.int64)


@dataclass(frozen=True)
class CsrTable:
    """A hash table with any number of rows for each key, in compressed sparse row form."""

    keys: KeyCodes
    """Codes of the build rows, with which those of probe rows are compared."""
    table: Array
    """Hash table of the distinct keys."""
    places: Places
    """Rows by slot."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.keys.nbytes + int(self.table.nbytes) + self.places.nbytes

    def probe(self, device: Device, probe: KeyCodes) -> Ranges:
        """Find the matches of each probe row, as first place and number of places."""
        return find_ranges(device, self.keys, self.table, self.places.first, probe)


def build(device: Device, keys: KeyCodes, *, ordered: bool = True) -> CsrTable:
    """Build a table over rows, ordered as by :func:`lay_out`.

    Raises ``DeviceMemoryError`` also if there are more rows than slots can be numbered for.
    """
    table, slot_of = enter(device, keys)
    places = lay_out(device, slot_of, int(table.shape[0]), ordered=ordered)
    return CsrTable(KeyCodes(keys.codes, None), table, places)


def enter(device: Device, keys: KeyCodes) -> tuple[Array, Array]:
    """Enter keys in a hash table. Gives the table, and the int32 slot of each row, −1 where it matches nothing.

    Raises ``DeviceMemoryError`` if the table and what lays its rows out do not fit, or if there are more rows than
    slots can be numbered for.
    """
    checked_keys(keys)
    if keys.rows > _MOST_ROWS:
        raise DeviceMemoryError(f"{keys.rows} rows fill a table of {MAX_ROWS} slots; ask for less at a time")
    slots = slots_for(keys.rows)
    nbytes = SLOT_BYTES * slots + layout_bytes(keys.rows, slots)
    check_room(device, nbytes, f"a table of {keys.rows} rows side by side by key")
    table = empty_table(device, slots)
    slot_of = device.empty(keys.rows, np.int32)
    launch_inserts(device, "csr.cu", "csr_insert", keys, table, np.uint64(slots), slot_of)
    return table, slot_of


def find_ranges(device: Device, build: KeyCodes, table: Array, first: Array, probe: KeyCodes) -> Ranges:
    """Find the matches of each probe row in a table of :func:`enter`, as first place and number of places."""
    checked_keys(probe)
    check_width(probe, build.key_bytes)
    start, count = device.empty(probe.rows, np.int32), device.empty(probe.rows, np.int32)
    matches = total(device)
    arguments = [build.codes, table, np.uint64(table.shape[0]), first, start, count, matches]
    launch_over_keys(device, "csr.cu", "csr_ranges", probe, *arguments)
    return Ranges(start, count, value_of(device, matches))


def lay_out(device: Device, slot_of: Array, slots: int, *, ordered: bool) -> Places:
    """Order rows by their int32 slots; −1 for a row that has none.

    Without ``ordered``, the rows of a slot need not ascend, which saves a pass or a sort.
    """
    rows = int(slot_of.shape[0])
    counts, number = _counted(device, slot_of, slots)
    what = f"the order of {rows} rows in {slots} slots"
    first = first_places(device, counts)
    with memory_errors(what):
        placed_rows = int(first[-1])
        if placed_rows == 0:
            return Places(first, device.empty(0, np.int32), 0)
        most = int(counts.max())
        del counts
    if ordered and most > _ROWS_ORDERED_BY_INSERTION:
        del number
        check_room(device, _SORTED_ROW_BYTES * rows, what)
        with memory_errors(what):
            by_slot = device.xp.argsort(slot_of, kind="stable")[rows - placed_rows :]
            return Places(first, by_slot.astype(np.int32), most)
    placed = device.empty(placed_rows, np.int32)
    arguments = [slot_of, np.uint64(rows), first, number, placed]
    device.launch(_kernel(device, "csr_place"), grid_of(device, rows), BLOCK_THREADS, arguments)
    if ordered:
        arguments = [first, np.uint64(slots), placed]
        device.launch(_kernel(device, "csr_order"), grid_of(device, slots), BLOCK_THREADS, arguments)
    return Places(first, placed, most)


def _counted(device: Device, slot_of: Array, slots: int) -> tuple[Array, Array]:
    """Rows of each slot, and the number of each row among those of its slot."""
    check_column("slot numbers", slot_of, np.int32)
    rows = int(slot_of.shape[0])
    check_rows(max(rows, slots))
    counts, number = device.zeros(slots, np.int32), device.empty(rows, np.int32)
    if rows:
        arguments = [slot_of, np.uint64(rows), counts, number]
        device.launch(_kernel(device, "csr_count"), grid_of(device, rows), BLOCK_THREADS, arguments)
    return counts, number


def _kernel(device: Device, name: str) -> Kernel:
    return device.kernel(ModuleSpec("csr.cu", (("KEY_BYTES", 8),)), name)
