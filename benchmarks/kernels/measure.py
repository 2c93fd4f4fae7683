"""Timing, peak memory and checked answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from benchmarks.kernels.engines import Answer, Engine, answer
from gpujoin.errors import DeviceMemoryError

INPUTS = "inputs"
"""Stands for an engine in what is said of a workload whose inputs cannot be made."""

_PROBLEM = 300
"""Characters of what is told of a problem."""


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

    def healthy(self) -> bool:
        """Whether the device can go on: after some errors nothing runs in the process any more."""
        ...


class DeviceLostError(RuntimeError):
    """Nothing more can be measured in this process."""


class Log(Protocol):
    """Where results are kept as they come."""

    answers: dict[str, tuple[str, Answer]]
    """For each workload an engine and its answer."""

    def tried(self, workload: str, engine: str) -> bool:
        """Whether an engine has had its turn."""
        ...

    def begin(self, workload: str, engine: str) -> None:
        """Say what runs from now on."""
        ...

    def end(self, result: Result, answer: Answer | None) -> None:
        """Keep what came of it."""
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

    def healthy(self) -> bool:
        return True


class DeviceMeter:
    """Events of the current CUDA stream, and the statistics of RMM."""

    def __init__(self) -> None:
        import cupy
        import rmm.mr
        from rmm.allocators.cupy import rmm_cupy_allocator

        self._cupy = cupy
        self._free = int(rmm.mr.available_device_memory()[0])
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

    def healthy(self) -> bool:
        try:
            self._cupy.cuda.runtime.deviceSynchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError:
            return False
        return True

    @property
    def free_bytes(self) -> int:
        """What can still be allocated. The driver's pool keeps what is freed, which CUDA does not count as free."""
        return self._free - int(self._statistics.allocation_counts.current_bytes)


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
        Why it could not run, or what is wrong with its answer.
    failed : bool
        Whether that is an error: all but too little memory.
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
    failed: bool = False


def failure(workload: str, engine: str, problem: str, input_bytes: int = 0, *, failed: bool = True) -> Result:
    """The result of an engine that has none."""
    return Result(workload, engine, engine, 0, None, None, 0, 0.0, input_bytes, problem.strip()[:_PROBLEM], failed)


class NoLog:
    """Keeps what comparing needs, and nothing on disk."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, Answer]] = {}

    def tried(self, workload: str, engine: str) -> bool:
        del workload, engine
        return False

    def begin(self, workload: str, engine: str) -> None:
        del workload, engine

    def end(self, result: Result, answer: Answer | None) -> None:
        if answer is not None:
            self.answers.setdefault(result.workload, (result.engine, answer))


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
    log: Log | None = None,
) -> Iterator[Result]:
    """Run each engine on one workload.

    An engine that fails, or gives another answer than the first one or than before, has a result that says so; the
    others go on.

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
    log : Log or None
        Told of each engine before it starts and when it is done; those that it has tried are left out.

    Raises
    ------
    DeviceLostError
        If an engine has left the device unusable for this process; the log has its result.
    """
    log = log or NoLog()
    waiting = [engine for engine in engines if not log.tried(workload.name, engine.name)]
    if not waiting or log.tried(workload.name, INPUTS):
        return
    log.begin(workload.name, INPUTS)
    try:
        given = workload.inputs(xp)
    except MemoryError as problem:
        meter.release()
        result = failure(workload.name, INPUTS, str(problem), failed=False)
        log.end(result, None)
        yield result
        return
    for engine in waiting:
        if time.monotonic() > deadline:
            return
        log.begin(workload.name, engine.name)
        answered: Answer | None = None
        try:
            seconds, peak, answered = _measured(xp, engine, given, meter, repeats)
        except (DeviceMemoryError, MemoryError) as problem:
            result = failure(workload.name, engine.name, str(problem), given.nbytes, failed=False)
        except Exception as problem:  # noqa: BLE001 - whatever one engine meets, the others are measured
            told = f"{type(problem).__name__}: {problem}"
            result = failure(workload.name, engine.name, told, given.nbytes)
        else:
            floor = workload.floor_bytes(answered[0])
            algorithm = chosen() if engine.name == "auto" else engine.name
            result = Result(
                workload.name, engine.name, algorithm, answered[0], seconds, peak, floor, floor / copy_rate,
                given.nbytes,
            )  # fmt: skip
            other, expected = log.answers.get(workload.name, (engine.name, answered))
            if answered != expected:
                told = f"gives {_told(answered)}, {other} gives {_told(expected)}"
                result = replace(result, seconds=None, problem=told, failed=True)
        log.end(result, None if result.failed else answered)
        yield result
        if result.seconds is None:
            meter.release()
            if not meter.healthy():
                raise DeviceLostError(f"{workload.name}, {engine.name}: {result.problem}")


def _told(found: Answer) -> str:
    return f"{found[0]} rows with sums {', '.join(map(str, found[1:4]))}"


def _measured(xp: Any, engine: Engine, given: Given, meter: Meter, repeats: int) -> tuple[float, int | None, Answer]:
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
