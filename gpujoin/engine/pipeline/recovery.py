"""Runs a pipeline again, more cautiously, where memory or a library failed.

A pipeline is tried on the rungs of :class:`~gpujoin.model.pipeline.Rung`, from the fastest on. A failure that is not
caused by the data makes it run again on a lower rung, if no row was returned yet and the inputs can be read again:

====================================  ======================================================
fault                                 next rung
====================================  ======================================================
memory, or a library, on the GPU      as Polars queries
a value that the GPU is not sure of   as Polars queries
a file that Polars does not decode    as Polars queries over files decoded by PyArrow
memory, or a library, in Polars       in small pieces, each expression and join by itself
====================================  ======================================================

An example: Polars does not read a Parquet file in which a text is the byte ``FF``. The pipeline raises ``DecodeError``;
it runs again over rows decoded by PyArrow, in which that column is carried as bytes, and the result is Spark's.

Errors of the data (an overflow in ANSI mode), of files that have changed, and cancellation are never tried again. Nor
is a pipeline that has called a Python function, which may count, print or write something each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import pyarrow as pa

from gpujoin.config import FallbackMode
from gpujoin.errors import (
    DecodeError,
    DeviceLostError,
    DeviceMemoryError,
    DeviceValueError,
    GpuJoinError,
    RelationError,
)
from gpujoin.logs import log
from gpujoin.model.pipeline import PipelineMetrics, Rung

_HELD_BYTES = 8 << 20
"""Bytes of output that are held back before the first batch is returned: less than a default batch (`batchBytes`)."""
_HELD_BATCHES = 16
"""Most batches that are held back, so that a consumer of few rows does not wait for many pieces."""


class Fault(Enum):
    """Kinds of failures that are not caused by the data."""

    MEMORY = "memory"
    VALUE = "value"
    DECODING = "decoding"
    LIBRARY = "library"


_NEXT: dict[tuple[Rung, Fault], Rung] = {
    (Rung.DEVICE, Fault.MEMORY): Rung.FAST,
    (Rung.DEVICE, Fault.LIBRARY): Rung.FAST,
    (Rung.DEVICE, Fault.VALUE): Rung.FAST,
    (Rung.DEVICE, Fault.DECODING): Rung.ARROW_SCANS,
    (Rung.FAST, Fault.MEMORY): Rung.CAREFUL,
    (Rung.FAST, Fault.LIBRARY): Rung.CAREFUL,
    (Rung.FAST, Fault.DECODING): Rung.ARROW_SCANS,
    (Rung.ARROW_SCANS, Fault.MEMORY): Rung.CAREFUL,
    (Rung.ARROW_SCANS, Fault.LIBRARY): Rung.CAREFUL,
    (Rung.ARROW_SCANS, Fault.DECODING): Rung.CAREFUL,
}


def fault_of(problem: BaseException, faults: tuple[type[BaseException], ...]) -> Fault | None:
    """Kind of fault that an error is; ``None`` for errors of the data and for cancellation.

    ``faults`` are exceptions of the backend's library that are no ``Exception``.
    """
    if isinstance(problem, DecodeError):
        return Fault.DECODING
    if isinstance(problem, MemoryError):  # DeviceMemoryError and PyArrow's too
        return Fault.MEMORY
    if isinstance(problem, DeviceValueError):
        return Fault.VALUE
    if isinstance(problem, GpuJoinError):
        return None
    return Fault.LIBRARY if isinstance(problem, (Exception, *faults)) else None


class Repeatable(Protocol):
    """Something that a run uses up."""

    @property
    def repeatable(self) -> bool:
        """Whether another run may use it."""


class ReplayableInput:
    """An input of batches that can be read again if it has at most ``limit`` bytes."""

    def __init__(self, source: Iterable[pa.RecordBatch], limit: int) -> None:
        self._source = iter(source)
        self._limit = limit
        self._batches: list[pa.RecordBatch] = []
        self._size = 0
        self._incomplete = False

    @property
    def repeatable(self) -> bool:
        """Whether all batches so far can be read again."""
        return not self._incomplete

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Batches of earlier passes, then the rest.

        Raises ``RelationError`` if the input was too large to be kept, or has failed.
        """
        if self._incomplete:
            raise RelationError("an input that was too large to be kept, or failed, cannot be read again")
        at = 0
        while True:
            if at < len(self._batches):
                batch = self._batches[at]
            else:
                try:
                    batch = next(self._source)
                except StopIteration:
                    return
                except BaseException:
                    self._incomplete = True  # an iterator that has failed ends as if there were no more rows
                    raise
                self._keep(batch)
            at += 1
            yield batch

    def _keep(self, batch: pa.RecordBatch) -> None:
        if self._incomplete:
            return
        self._size += batch.nbytes
        if self._size > self._limit:
            self._incomplete = True
            self._batches.clear()
        else:
            self._batches.append(batch)


@dataclass(frozen=True)
class Attempt:
    """A run of a pipeline on one rung."""

    rung: Rung
    rows: Iterator[pa.RecordBatch]
    """Output. Nothing runs before the first batch is asked for."""
    faults: tuple[type[BaseException], ...]
    """Exceptions of the backend's library that are no ``Exception``."""


def run_attempts(
    start: Rung,
    attempt_on: Callable[[Rung], Attempt],
    inputs: Sequence[Repeatable],
    metrics: PipelineMetrics,
    fallback: FallbackMode,
) -> Iterator[pa.RecordBatch]:
    """Rows of the first attempt that does not fail for a reason other than the data.

    Every attempt uses all of ``inputs``. ``FallbackMode.RAISE``: a library's error is raised at once. Short memory
    and undecoded files go on to the next rung.
    """
    rung = start
    while True:
        attempt = attempt_on(rung)
        output = _Output(metrics, hold=rung is not Rung.CAREFUL)
        try:
            for batch in attempt.rows:
                yield from output.add(batch)
            yield from output.rest()
        except BaseException as problem:
            lower = _next_rung(attempt, problem, fallback)
            if lower is None or output.begun or not all(source.repeatable for source in inputs):
                raise
            _tell(rung, lower, problem, metrics)
            rung = lower
            # The stack frames of the error keep the memory of the failed attempt alive.
            problem.__traceback__ = None
        else:
            return


def _next_rung(attempt: Attempt, problem: BaseException, fallback: FallbackMode) -> Rung | None:
    fault = fault_of(problem, attempt.faults)
    if fault is None or (fault is Fault.LIBRARY and fallback is FallbackMode.RAISE):
        return None
    return _NEXT.get((attempt.rung, fault))


def _tell(failed: Rung, lower: Rung, problem: BaseException, metrics: PipelineMetrics) -> None:
    metrics.cpu_runs += failed is Rung.DEVICE
    why = _reason(failed, lower, problem)
    metrics.recovered[why] = metrics.recovered.get(why, 0) + 1
    name = type(problem).__name__
    log.warning("a part failed %s and is computed again %s: %s: %s", failed.value, lower.value, name, problem)


def _reason(failed: Rung, lower: Rung, problem: BaseException) -> str:
    if failed is Rung.DEVICE and isinstance(problem, DeviceLostError):
        return f"on the CPU: {problem}"
    if failed is Rung.DEVICE and isinstance(problem, DeviceMemoryError):
        return "on the CPU: the GPU's memory ran out, and what had been begun there was begun again"
    return f"computed again {lower.value}, after {type(problem).__name__} {failed.value}"


class _Output:
    """Output of an attempt. The first batches are held back: a run cannot be repeated once rows were returned."""

    def __init__(self, metrics: PipelineMetrics, *, hold: bool) -> None:
        self._metrics = metrics
        self._batches: list[pa.RecordBatch] = []
        self._size = 0
        self.begun = not hold

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return a batch, or hold it back for now."""
        self._batches.append(batch)
        self._size += batch.nbytes
        if self.begun or self._size > _HELD_BYTES or len(self._batches) > _HELD_BATCHES:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Return the batches that are held back."""
        batches, self._batches = self._batches, []
        for batch in batches:
            self.begun = True
            self._metrics.output_batches += 1
            self._metrics.output_rows += batch.num_rows
            self._metrics.output_bytes += batch.nbytes
            yield batch
