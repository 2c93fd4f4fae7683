"""Timing, peak memory and checked answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.kernels.engines import Answer, Engine, answer
from gpujoin.errors import DeviceMemoryError


class Given(Protocol):
    """The inputs of a workload."""

    @property
    def nbytes(self) -> int:
        """Size of all columns."""
        ...


class Measured(Protocol):
    """A workload, as far as measuring it goes."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    def inputs(self, xp: Any) -> Given:
        """Make the inputs on the device."""
        ...

    def floor_bytes(self, output_rows: int) -> int:
        """Bytes of reading every input once and writing the output once."""
        ...


class Meter(Protocol):
    """Measures what runs on a device."""

    def seconds(self, run: Callable[[], object]) -> float:
        """How long a run takes, all it queued included."""
        ...

    def peak_bytes(self, run: Callable[[], object]) -> int | None:
        """Most device memory that a run had at a time, above what was there before; ``None`` where nobody counts."""
        ...

    def release(self) -> None:
        """Give freed memory back."""
        ...


@dataclass(frozen=True)
class HostMeter:
    """The clock of the host; what it times has ended when it returns."""

    def seconds(self, run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def peak_bytes(self, run: Callable[[], object]) -> int | None:
        run()
        return None

    def release(self) -> None:
        return


class DeviceMeter:
    """Events of the current CUDA stream, and the statistics of RMM."""

    def __init__(self) -> None:
        import cupy
        import rmm.mr
        from rmm.allocators.cupy import rmm_cupy_allocator

        self._cupy = cupy
        self._statistics = rmm.mr.StatisticsResourceAdaptor(rmm.mr.CudaAsyncMemoryResource())
        rmm.mr.set_current_device_resource(self._statistics)
        cupy.cuda.set_allocator(rmm_cupy_allocator)

    def seconds(self, run: Callable[[], object]) -> float:
        start, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        self._cupy.cuda.runtime.deviceSynchronize()
        start.record()
        result = run()
        end.record()
        end.synchronize()
        del result
        return float(self._cupy.cuda.get_elapsed_time(start, end)) / 1e3

    def peak_bytes(self, run: Callable[[], object]) -> int | None:
        self._statistics.push_counters()
        run()
        self._cupy.cuda.runtime.deviceSynchronize()
        return int(self._statistics.pop_counters().peak_bytes)

    def release(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()


@dataclass(frozen=True)
class Result:
    """One engine on one workload.

    Attributes
    ----------
    workload, engine : str
        Names.
    algorithm : str
        What ``auto`` chose, else the engine's name.
    output_rows : int
        Rows of the answer.
    seconds : float or None
        Best of some runs; ``None`` where it could not run.
    peak_bytes : int or None
        Device memory beyond the inputs, output included.
    floor_bytes : int
        Least traffic: inputs read once, output written once.
    floor_seconds : float
        The same at the measured copy rate.
    input_bytes : int
        Of both sides.
    problem : str
        Why it could not run.
    """

    workload: str
    engine: str
    algorithm: str
    output_rows: int
    seconds: float | None
    peak_bytes: int | None
    floor_bytes: int
    floor_seconds: float
    input_bytes: int
    problem: str = ""


def compare(
    xp: Any,
    workload: Measured,
    engines: Iterable[Engine],
    meter: Meter,
    *,
    copy_rate: float,
    repeats: int,
    chosen: Callable[[], str],
    deadline: float = float("inf"),
) -> Iterator[Result]:
    """Run each engine on one workload.

    Parameters
    ----------
    xp : module
        Array module of the device.
    workload : Measured
        What is joined.
    engines : iterable of Engine
        The first that runs gives the answer that the others must give too.
    meter : Meter
        What measures.
    copy_rate : float
        Bytes read and written in a second, both counted.
    repeats : int
        Timed runs after one for warming up.
    chosen : callable
        What ``auto`` chose last.
    deadline : float
        ``time.monotonic()`` at which no further engine is started.

    Raises
    ------
    AssertionError
        If two engines give different answers, or one gives different ones.
    """
    given = workload.inputs(xp)
    input_bytes = given.nbytes
    first: tuple[str, Answer] | None = None
    for engine in engines:
        if time.monotonic() > deadline:
            return
        try:
            seconds, peak, found = _measured(xp, engine, given, meter, repeats)
        except (DeviceMemoryError, MemoryError) as problem:
            meter.release()
            yield Result(
                workload.name,
                engine.name,
                engine.name,
                0,
                None,
                None,
                0,
                0.0,
                input_bytes,
                str(problem)[:200],
            )
            continue
        if first is None:
            first = (engine.name, found)
        if found != first[1]:
            raise AssertionError(f"{workload.name}: {engine.name} gives {found}, {first[0]} gives {first[1]}")
        floor = workload.floor_bytes(found[0])
        algorithm = chosen() if engine.name == "auto" else engine.name
        yield Result(
            workload.name,
            engine.name,
            algorithm,
            found[0],
            seconds,
            peak,
            floor,
            floor / copy_rate,
            input_bytes,
        )


def _measured(
    xp: Any, engine: Engine, given: Given, meter: Meter, repeats: int
) -> tuple[float, int | None, Answer]:
    prepared = engine.prepare(given)
    found = answer(xp, engine.run(prepared))

    def run() -> None:
        for _ in engine.run(prepared):
            pass

    peak = meter.peak_bytes(run)
    best = min(meter.seconds(run) for _ in range(repeats))
    if answer(xp, engine.run(prepared)) != found:
        raise AssertionError(f"{engine.name} gives another answer the second time")
    meter.release()
    return best, peak, found
