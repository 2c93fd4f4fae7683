"""Launches ``machine.cu``: benchmarks of the single kinds of memory accesses that joins consist of."""

from __future__ import annotations

from enum import Enum

import numpy as np

from gpujoin.launch.device import Array, Device, ModuleSpec
from gpujoin.launch.keys import BLOCK_THREADS, check_column, grid_of, total

SPECIALISATIONS: tuple[ModuleSpec, ...] = (ModuleSpec("machine.cu"),)

_WORDS_OF_A_COPY = 2


def copy(device: Device, source: Array, target: Array) -> None:
    """Copy an array of uint64, of even length, to another."""
    check_column("the source", source, np.uint64)
    check_column("the target", target, np.uint64, int(source.shape[0]))
    words = int(source.shape[0]) // _WORDS_OF_A_COPY
    _launch(device, "copy_words", words, [source, target, np.uint64(words)])


def gather_words(device: Device, source: Array, reads: int) -> Array:
    """Read uint64 words at random places; returns their sum, on the device."""
    check_column("the source", source, np.uint64)
    result = total(device)
    _launch(device, "gather_words", reads, [source, np.uint64(source.shape[0]), np.uint64(reads), result])
    return result


def gather_runs(device: Device, source: Array, words: int, reads: int) -> Array:
    """Read runs of some uint64 words at random places; returns their sum, on the device."""
    check_column("the source", source, np.uint64)
    result = total(device)
    runs = int(source.shape[0]) // words
    arguments = [source, np.uint64(runs), np.uint32(words), np.uint64(reads), result]
    _launch(device, "gather_runs", reads * words, arguments)
    return result


def add_counters(device: Device, counters: Array, additions: int) -> None:
    """Add one to uint32 counters at random places."""
    check_column("the counters", counters, np.uint32)
    _launch(device, "add_counters", additions, [counters, np.uint64(counters.shape[0]), np.uint64(additions)])


def take_slots(device: Device, slots: Array, takes: int) -> None:
    """Read uint64 slots at random places, and exchange the free ones, which have all bits set."""
    check_column("the slots", slots, np.uint64)
    _launch(device, "take_slots", takes, [slots, np.uint64(slots.shape[0]), np.uint64(takes)])


def swap_slots(device: Device, slots: Array, swaps: int) -> None:
    """Compare uint64 slots at random places with what was just read there, and exchange them."""
    check_column("the slots", slots, np.uint64)
    _launch(device, "swap_slots", swaps, [slots, np.uint64(slots.shape[0]), np.uint64(swaps)])


class Order(Enum):
    """In which order blocks come to the tiles of a list of work."""

    STRIDE = "by grid stride"
    TICKET = "by ticket"


def enter_numbers(device: Device, slots: Array, partitions: int, entries: int, order: Order) -> None:
    """Enter numbers from 0 on into a hash table, partition by partition.

    Parameters
    ----------
    device : Device
        Where.
    slots : array of uint64
        The free table, with all bits set; each partition has an equal window of it.
    partitions : int
        Windows; they divide the slots, and numbers are divided among them evenly, in order.
    entries : int
        How many numbers, fewer than slots.
    order : Order
        Whether each block strides through the list, so that blocks may drift apart, or draws tile after tile.
    """
    check_column("the slots", slots, np.uint64)
    window, each = int(slots.shape[0]) // partitions, -(-entries // partitions)
    arguments: list[Array] = [slots, np.uint64(window), np.uint64(each), np.uint64(entries)]
    if order is Order.STRIDE:
        _launch(device, "enter_by_stride", entries, arguments)
    else:
        _launch(device, "enter_by_ticket", entries, [*arguments, device.zeros(1, np.uint64)])


DIGITS = 256
"""Values of a digit of 8 bits."""
RADIX_TILE = 4096
"""Rows of a tile, as in ``machine.cu``."""


def radix_pass(device: Device, keys: Array, payload: Array) -> tuple[Array, Array]:
    """Bring rows into the order of 8 bits of the hashes of their keys; returns keys and payload.

    Rows of a digit are in any order. A pass reads the keys to count digits, then both columns, and writes both.
    """
    rows = int(keys.shape[0])
    check_column("the keys", keys, np.uint64)
    check_column("the payload", payload, np.uint64, rows)
    tiles = -(-rows // RADIX_TILE)
    counts = device.zeros(DIGITS * tiles, np.uint32)
    _launch(device, "count_digits", tiles * BLOCK_THREADS, [keys, np.uint64(rows), counts])
    ends = device.xp.cumsum(counts, dtype=np.uint64)
    targets = device.empty(rows, np.uint64), device.empty(rows, np.uint64)
    _launch(device, "move_by_digit", tiles * BLOCK_THREADS, [keys, payload, np.uint64(rows), ends, *targets])
    return targets


def _launch(device: Device, name: str, items: int, arguments: list[Array]) -> None:
    if items:
        device.launch(device.kernel(SPECIALISATIONS[0], name), grid_of(device, items), BLOCK_THREADS, arguments)
