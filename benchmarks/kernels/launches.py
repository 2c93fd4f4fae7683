"""How long each kernel of each workload takes, on one GPU: what to look at first where a join is slower than predicted.

python -m benchmarks.kernels.launches [--workloads i,ii] [--smaller 0] [--out FILE]

Writes JSON and prints a table: milliseconds of every kernel, summed over its launches, of filling arrays, and of the
rest (sums by CuPy, allocations, waiting for counts). The first run of each engine is not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.kernels.engines import Engine, engines
from benchmarks.kernels.workloads import SMALLER, named, sweeps
from gpujoin.launch.device import Array, Device, Kernel

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


class Clock(Protocol):
    """Makes events and tells the milliseconds between two; ``cupy.cuda``."""

    def Event(self) -> Event:  # noqa: N802 - CuPy's name
        """Make one."""
        ...

    def get_elapsed_time(self, start: Any, end: Any) -> float:
        """Milliseconds between two that have come."""
        ...


class TimedDevice:
    """A device that takes the time of each launch between two events; everything else is the device's own."""

    def __init__(self, device: Device, clock: Clock) -> None:
        self._device = device
        self._clock = clock
        self._spans: list[tuple[str, Event, Event]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def launch(self, kernel: Kernel, *arguments: Any, **named: Any) -> None:
        """Launch a kernel between two events."""
        self._timed(kernel.name, self._device.launch, kernel, *arguments, **named)

    def full(self, *arguments: Any) -> Array:
        """Make and fill an array between two events."""
        return self._timed(FILLING, self._device.full, *arguments)

    def zeros(self, *arguments: Any) -> Array:
        """Make an array of zeros between two events."""
        return self._timed(FILLING, self._device.zeros, *arguments)

    def _timed(self, name: str, run: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        start = self._event()
        result = run(*arguments, **named)
        self._spans.append((name, start, self._event()))
        return result

    def _event(self) -> Event:
        event = self._clock.Event()
        event.record()
        return event

    def measured(self, engine: Engine, prepared: Any) -> tuple[float, dict[str, float]]:
        """Milliseconds of a run in all and by kernel, after a run that is not counted."""
        deque(engine.run(prepared), maxlen=0)
        self._spans.clear()
        start = self._event()
        deque(engine.run(prepared), maxlen=0)
        end = self._event()
        end.synchronize()
        elapsed = self._clock.get_elapsed_time
        total = float(elapsed(start, end))
        spent: defaultdict[str, float] = defaultdict(float)
        for name, begin, done in self._spans:
            spent[name] += float(elapsed(begin, done))
        spent[REST] = total - sum(spent.values())
        return total, dict(spent)


def rendered(spent_by_engine: Sequence[Spent]) -> str:
    """A line for each engine and workload, its kernels by their time."""
    lines = ["| workload | engine | ms | made of |", "|---|---|---|---|"]
    for spent in spent_by_engine:
        kernels = sorted(spent.kernels.items(), key=lambda item: -item[1])
        told = ", ".join(f"{name} {ms:.2f}" for name, ms in kernels if ms >= 0.005)
        lines.append(f"| {spent.workload} | {spent.engine} | {spent.total:.2f} | {told} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on the current GPU. Exit status 2: there is none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels.launches", description=__doc__)
    parser.add_argument("--workloads", help="beginnings of their names, up to the colon (default: those of the goal)")
    parser.add_argument("--smaller", type=int, default=SMALLER, help="fewer rows, by two to this power")
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
    measured: list[Spent] = []
    for workload in every:
        if wanted is not None and workload.name.partition(":")[0] not in wanted:
            continue
        fewer = workload.smaller(given.smaller)
        inputs = fewer.inputs(device.xp)
        for engine in engines(device, fewer, lambda _: None):
            measured.append(Spent(workload.name, engine.name, *device.measured(engine, engine.prepare(inputs))))
            meter.release()
        del inputs
    print(rendered(measured))
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(spent) for spent in measured], indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
