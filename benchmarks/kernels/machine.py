"""The constants of the machine that predictions rest on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.kernels import accesses
from benchmarks.kernels.measure import Meter
from gpujoin.launch.device import Device

TABLE_MEGABYTES = (16, 30, 60)
RUN_BYTES = (32, 64, 128)


@dataclass(frozen=True)
class Constants:
    """Rates in a second.

    Attributes
    ----------
    copy_bytes : float
        Bytes copied, read and written both counted.
    gather_words : float
        8-byte reads at random places of device memory.
    gather_runs : dict of int to float
        Reads of so many bytes at such places, a sector or several side by side.
    lookups, atomics : dict of int to float
        8-byte reads and 4-byte additions at random places of a table of so many megabytes.
    exchanges : float
        8-byte slots at random places of device memory, half as many as there are, that are read and exchanged.
    """

    copy_bytes: float
    gather_words: float
    gather_runs: dict[int, float]
    lookups: dict[int, float]
    atomics: dict[int, float]
    exchanges: float


def constants(device: Device, meter: Meter, log_words: int, repeats: int = 3) -> Constants:
    """Measure them, on arrays of ``2 ** log_words`` 8-byte words.

    Parameters
    ----------
    device : Device
        Where.
    meter : Meter
        What measures.
    log_words : int
        Also the number of random accesses, as a power of two.
    repeats : int
        Runs, the best of which counts.
    """
    words = 1 << log_words

    def best(run: Callable[[], Any]) -> float:
        run()
        return min(meter.seconds(run) for _ in range(repeats))

    source, target = (device.zeros(words, np.uint64) for _ in range(2))
    copy = best(lambda: accesses.copy(device, source, target))
    gather = best(lambda: accesses.gather_words(device, source, words))
    runs, lookups, atomics = {}, {}, {}
    for nbytes in RUN_BYTES:
        reads = words // (nbytes // 8)
        runs[nbytes] = reads / best(lambda: accesses.gather_runs(device, source, nbytes // 8, reads))  # noqa: B023
    for megabytes in TABLE_MEGABYTES:
        size = min(megabytes << 17, words)
        table = source[:size]
        lookups[megabytes] = words / best(lambda: accesses.gather_words(device, table, words))  # noqa: B023
        counters = device.zeros(2 * size, np.uint32)
        atomics[megabytes] = words / best(lambda: accesses.add_counters(device, counters, words))  # noqa: B023
    slots = device.empty(words, np.uint64)

    def exchange() -> None:
        accesses.take_slots(device, slots, words // 2)

    taken = []
    for _ in range(repeats):
        slots.fill(2**64 - 1)
        taken.append(meter.seconds(exchange))
    return Constants(2 * 8 * words / copy, words / gather, runs, lookups, atomics, words // 2 / min(taken))
