"""How long each kernel of each workload takes, on one GPU: what to look at first where a join is slower than predicted.

python -m benchmarks.kernels.launches [--workloads i,ii] [--smaller 0] [--out FILE]

Writes JSON and prints a table: milliseconds of every kernel, summed over its launches, of filling arrays, and of the rest
(sums by CuPy, allocations, waiting for counts). The first run of each engine is not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.kernels.engines import Engine, engines
from benchmarks.kernels.workloads import named, sweeps
from gpujoin.launch.device import Argument, Array, Device, Kernel

FILLING = "filling arrays"
REST = "rest"


@dataclass(frozen=True)
class Spent:
    """Milliseconds of one engine on one workload, in all and by kernel."""

    workload: str
    engine: str
    total: float
    kernels: dict[str, float]


class Event(Protocol):
    """A point in the device's work, as CuPy has them."""

    def record(self) -> None:
        """Put it after what was queued so far."""
        ...

    def synchronize(self) -> None:
        """Wait for it."""
        ...


class Events(Protocol):
    """Makes events and tells the milliseconds between two; ``cupy.cuda``."""

    def Event(self) -> Event:  # noqa: N802 - CuPy's name
        """Make one."""
        ...

    def get_elapsed_time(self, start: Any, end: Any) -> float:
        """Milliseconds between two that have come."""
        ...


class TimedDevice:
    """A device that takes the time of each launch between two events; everything else is the device's own."""

    def __init__(self, device: Device, events: Events) -> None:
        self._device = device
        self._make = events
        self._events: list[tuple[str, Event, Event]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def launch(
        self,
        kernel: Kernel,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Argument],
        *,
        shared_bytes: int = 0,
    ) -> None:
        """Launch a kernel between two events."""
        start = self._event()
        self._device.launch(kernel, grid, block, args, shared_bytes=shared_bytes)
        self._events.append((kernel.name, start, self._event()))

    def full(self, shape: int | tuple[int, ...], value: Any, dtype: Any) -> Array:
        """Make and fill an array between two events."""
        start = self._event()
        array = self._device.full(shape, value, dtype)
        self._events.append((FILLING, start, self._event()))
        return array

    def zeros(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """Make an array of zeros between two events."""
        return self.full(shape, np.dtype(dtype).type(0), dtype)

    def _event(self) -> Event:
        event = self._make.Event()
        event.record()
        return event

    def measured(self, engine: Engine, prepared: Any) -> tuple[float, dict[str, float]]:
        """Milliseconds of a run in all and by kernel, after a run that is not counted."""
        deque(engine.run(prepared), maxlen=0)
        self._events.clear()
        start = self._event()
        deque(engine.run(prepared), maxlen=0)
        end = self._event()
        end.synchronize()
        elapsed = self._make.get_elapsed_time
        total = float(elapsed(start, end))
        spent: defaultdict[str, float] = defaultdict(float)
        for name, begin, done in self._events:
            spent[name] += float(elapsed(begin, done))
        spent[REST] = total - sum(spent.values())
        return total, dict(spent)


def rendered(found: Sequence[Spent]) -> str:
    """A line for each engine and workload, its kernels by their time."""
    lines = ["| workload | engine | ms | made of |", "|---|---|---|---|"]
    for spent in found:
        kernels = sorted(spent.kernels.items(), key=lambda item: -item[1])
        told = ", ".join(f"{name} {ms:.2f}" for name, ms in kernels if ms >= 0.005)
        lines.append(f"| {spent.workload} | {spent.engine} | {spent.total:.2f} | {told} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on the current GPU. Exit status 2: there is none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels.launches", description=__doc__)
    parser.add_argument("--workloads", help="beginnings of their names, up to the colon (default: those of the goal)")
    parser.add_argument("--smaller", type=int, default=0, help="fewer rows, by two to this power")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args(arguments)

    from gpujoin.backends.cudf import unavailable

    reason = unavailable()
    if reason is not None:
        print(f"benchmarks.kernels.launches: nothing to measure here: {reason}", file=sys.stderr)
        return 2
    import cupy

    from benchmarks.kernels.measure import DeviceMeter
    from gpujoin.launch.cuda import CudaDevice

    meter = DeviceMeter()
    device = TimedDevice(CudaDevice(lambda: meter.free_bytes), cupy.cuda)
    wanted = None if given.workloads is None else set(given.workloads.split(","))
    every = named() if wanted is None else [*named(), *sweeps()]
    found: list[Spent] = []
    for workload in every:
        if wanted is not None and workload.name.partition(":")[0] not in wanted:
            continue
        fewer = workload.smaller(given.smaller)
        inputs = fewer.inputs(device.xp)
        for engine in engines(device, fewer, lambda _: None):
            found.append(Spent(workload.name, engine.name, *device.measured(engine, engine.prepare(inputs))))
            meter.release()
        del inputs
    print(rendered(found))
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(spent) for spent in found], indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
