"""Launches ``hashset.cu``: sets of keys, for joins that only ask whether a probe row has a match."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpujoin.launch import csr, unique
from gpujoin.launch.device import Array, Device, ModuleSpec, check_room
from gpujoin.launch.keys import KeyCodes, check_width, checked_keys, launch_inserts, launch_over_keys, total, value_of
from gpujoin.launch.matches import UniqueMatches

SPECIALISATIONS: tuple[ModuleSpec, ...] = tuple(ModuleSpec("hashset.cu", (("KEY_BYTES", width),)) for width in (4, 8))

_WORDS: dict[int, type[np.unsignedinteger]] = {4: np.uint32, 8: np.uint64}
"""Types of slots, by the bytes of a key; wider keys have no atomic exchange."""


@dataclass(frozen=True)
class HashSet:
    """The distinct keys of a build side."""

    key_bytes: int
    """Width of the codes."""
    table: Array
    """The slots, of the width of a key."""
    slots: int
    all_set: Array
    """1 if the key with all bits set, by which free slots are marked, is in the set."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.table.nbytes)

    def probe(self, device: Device, probe: KeyCodes) -> UniqueMatches:
        """Find the probe rows whose key is in the set; build row 0 stands for any."""
        checked_keys(probe)
        check_width(probe, self.key_bytes)
        build_row = device.empty(probe.rows, np.int32)
        matches = total(device)
        arguments = [self.table, np.uint64(self.slots), self.all_set, build_row, matches]
        launch_over_keys(device, "hashset.cu", "set_probe", probe, *arguments)
        return UniqueMatches(build_row, value_of(device, matches))


MarkTable = HashSet | unique.HashTable
"""Tells which probe rows have a match."""


def build(device: Device, keys: KeyCodes) -> MarkTable:
    """Build a set of keys with repetitions; keys of 16 bytes get a hash table with any one row of each."""
    checked_keys(keys)
    if keys.key_bytes not in _WORDS:
        rows = unique.build(device, keys, duplicates=True)
        assert rows is not None
        return rows
    slots = slots_for(keys.rows, keys.key_bytes)
    check_room(device, slots * keys.key_bytes, f"a set of {keys.rows} keys")
    word = _WORDS[keys.key_bytes]
    table = device.full(slots, int(np.iinfo(word).max), word)
    all_set = device.zeros(1, np.uint32)
    launch_inserts(device, "hashset.cu", "set_insert", keys, table, np.uint64(slots), all_set)
    return HashSet(keys.key_bytes, table, slots, all_set)


def slots_for(rows: int, key_bytes: int) -> int:
    """Number of slots of a set: at least one for each row, at most as many as are numbered by unsigned integers."""
    return csr.slots_for(rows, unique.MAX_SLOTS, key_bytes)
