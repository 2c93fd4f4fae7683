"""Small trials that decide about designs of joins before these are written: ``python -m benchmarks.kernels.trials``.

- *Compare and swap* in tables that lie in the L2 cache: what entering rows of one partition could reach.
- *Entering partition by partition*, by grid stride and by ticket: whether blocks that drift apart are why an earlier
  partitioned table was no faster than one without partitions.
- *Random reads* of 32 and 64 bytes: what fetching a packed row costs.
- *One radix pass* of 8 bits over keys and payload: what partitioning costs.

Writes JSON, and prints a table. Exit status 2: there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels import accesses, data
from benchmarks.kernels.measure import Meter
from benchmarks.kernels.workloads import SMALLER
from gpujoin.launch.device import Device

SWAP_MEGABYTES = (8, 16, 30)
WINDOW_MEGABYTES = (8, 16)
READ_BYTES = (32, 64)
LOAD = 2
"""Slots for each number that is entered."""
LOG_WORDS = 28
"""8-byte words of the largest arrays, as a power of two."""
FREE = (1 << 64) - 1


@dataclass(frozen=True)
class Trial:
    """What was measured.

    Attributes
    ----------
    name : str
        What was done.
    items : int
        How many times.
    seconds : float
        The best run.
    bytes_moved : int
        Bytes that it reads and writes at least, where that is what bounds it; else 0.
    """

    name: str
    items: int
    seconds: float
    bytes_moved: int = 0

    @property
    def rate(self) -> float:
        """Items in a second."""
        return self.items / self.seconds


def trials(device: Device, meter: Meter, log_words: int = LOG_WORDS, repeats: int = 3) -> Iterator[Trial]:
    """Measure all, on arrays of ``2 ** log_words`` 8-byte words."""
    words = 1 << log_words

    def best(run: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> float:
        seconds = []
        for _ in range(repeats + 1):
            prepare()
            seconds.append(meter.seconds(run))
        return min(seconds[1:])

    slots = device.empty(words, np.uint64)
    slots.fill(FREE)
    for megabytes in SWAP_MEGABYTES:
        table = slots[: min(megabytes << 17, words)]
        seconds = best(lambda: accesses.swap_slots(device, table, words))  # noqa: B023
        yield Trial(f"compare and swap, table of {megabytes} MB", words, seconds)
    entries = words // LOAD
    for partitions in (1, *(max(1, words // (megabytes << 17)) for megabytes in WINDOW_MEGABYTES)):
        for order in accesses.Order:
            seconds = best(
                lambda: accesses.enter_numbers(device, slots, partitions, entries, order),  # noqa: B023
                lambda: slots.fill(FREE),
            )
            window = 8 * words // partitions / 1e6
            yield Trial(f"entering {order.value}, windows of {window:.0f} MB", entries, seconds)
    for nbytes in READ_BYTES:
        reads = words // (nbytes // 8)
        seconds = best(lambda: accesses.gather_runs(device, slots, nbytes // 8, reads))  # noqa: B023
        yield Trial(f"random reads of {nbytes} bytes", reads, seconds)
    keys, payload = (data.numbers(device.xp, start, words // 2) for start in (0, words))
    seconds = best(lambda: accesses.radix_pass(device, keys, payload))
    yield Trial("radix pass of 8 bits, key and payload", words // 2, seconds, (3 + 2) * 8 * (words // 2))


def table(measured: Sequence[Trial]) -> str:
    """The trials as Markdown."""
    lines = ["| trial | items | ms | G items/s | TB/s |", "|---|---:|---:|---:|---:|"]
    for trial in measured:
        rate = f"{trial.bytes_moved / trial.seconds / 1e12:.2f}" if trial.bytes_moved else "–"
        lines.append(
            f"| {trial.name} | {trial.items:,} | {trial.seconds * 1e3:.2f} | {trial.rate / 1e9:.1f} | {rate} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on the current GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels.trials", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--smaller", type=int, default=SMALLER, help="smaller arrays, by two to this power")
    options = parser.parse_args(arguments)

    from gpujoin.backends.cudf import unavailable

    reason = unavailable()
    if reason is not None:
        print(f"benchmarks.kernels.trials: nothing to measure here: {reason}", file=sys.stderr)
        return 2
    from benchmarks.kernels.__main__ import machine
    from benchmarks.kernels.measure import DeviceMeter
    from gpujoin.launch.cuda import CudaDevice

    meter = DeviceMeter()
    measured: list[Trial] = []
    for trial in trials(CudaDevice(lambda: meter.free_bytes), meter, max(10, LOG_WORDS - options.smaller)):
        measured.append(trial)
        if options.out is not None:  # after each: a later one may not come to its end
            record = {"machine": machine(), "trials": [asdict(each) for each in measured]}
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
