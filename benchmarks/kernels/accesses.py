"""Launches ``machine.cu``: benchmarks of the single kinds of memory accesses that joins consist of."""

from __future__ import annotations

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


def _launch(device: Device, name: str, items: int, arguments: list[Array]) -> None:
    if items:
        device.launch(device.kernel(SPECIALISATIONS[0], name), grid_of(device, items), BLOCK_THREADS, arguments)
