"""Counters and times of a join, which add up over tasks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpujoin.errors import DeviceLostError, DeviceValueError, OutOfMemoryError
from gpujoin.logs import log


@dataclass(slots=True)
class JoinMetrics:
    """Counters of one join in one task; :meth:`merge` adds up tasks.

    Attributes
    ----------
    build_rows, probe_rows, output_rows, output_batches : int
        Rows and batches.
    build_bytes, probe_bytes, output_bytes : int
        Arrow bytes.
    candidate_pairs : int
        Pairs on which a residual condition was evaluated.
    compiled_probes : int
        Morsels whose condition ran in a compiled kernel over the probe's matches, so that no pairs were made for it.
    uploads_ahead : int
        Morsels whose keys were copied to a device while the one before was joined.
    build_seconds, probe_seconds, condition_seconds, gather_seconds, wait_seconds : float
        Time spent, summed over threads; ``wait`` is waiting for a GPU slot.
    spills, spill_bytes : int
        Parts written to disk, and their bytes.
    retries : int
        Times that work was repeated on fewer rows after memory ran out.
    fallbacks : int
        Times that work was finished on another backend than planned.
    fallback_reasons : dict of str to int
        Why ``auto`` did not take a GPU that seemed to be there, or went on without it, and how often.
    algorithms : dict of str to int
        How often each build algorithm was chosen.
    algorithm_reasons : dict of str to str
        Reason for each algorithm that a GPU took, from one task. It tells if another algorithm was chosen at
        first, because build keys turned out to have duplicates or a kernel did not compile. Of a join that a GPU was
        asked for, but does not compute, it tells why the CPU does.
    backends : dict of str to int
        How many tasks ran on each backend.
    """

    build_rows: int = 0
    probe_rows: int = 0
    output_rows: int = 0
    output_batches: int = 0
    build_bytes: int = 0
    probe_bytes: int = 0
    output_bytes: int = 0
    candidate_pairs: int = 0
    compiled_probes: int = 0
    uploads_ahead: int = 0
    build_seconds: float = 0.0
    probe_seconds: float = 0.0
    condition_seconds: float = 0.0
    gather_seconds: float = 0.0
    wait_seconds: float = 0.0
    spills: int = 0
    spill_bytes: int = 0
    retries: int = 0
    fallbacks: int = 0
    fallback_reasons: dict[str, int] = field(default_factory=dict)
    algorithms: dict[str, int] = field(default_factory=dict)
    algorithm_reasons: dict[str, str] = field(default_factory=dict)
    backends: dict[str, int] = field(default_factory=dict)

    def merge(self, other: JoinMetrics) -> None:
        """Add another task's counters to this one's."""
        for item in dataclasses.fields(self):
            own, added = getattr(self, item.name), getattr(other, item.name)
            if item.name == "algorithm_reasons":
                own.update({**added, **own})
            elif isinstance(own, dict):
                for key, count in added.items():
                    own[key] = own.get(key, 0) + count
            else:
                setattr(self, item.name, own + added)

    def count_fallback(self, problem: OutOfMemoryError | DeviceValueError) -> None:
        """Count a fallback to the CPU; a lost device is kept as the reason.

        Rows with a value that a device does not compute are a matter of the log.
        """
        if isinstance(problem, DeviceValueError):
            log.debug("rows are joined on the CPU: %s", problem)
            return
        self.fallbacks += 1
        if isinstance(problem, DeviceLostError):
            note = f"on the CPU: {problem}"
            self.fallback_reasons[note] = self.fallback_reasons.get(note, 0) + 1

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Add the time spent in a ``with`` block to ``<name>_seconds``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            attribute = f"{name}_seconds"
            setattr(self, attribute, getattr(self, attribute) + time.perf_counter() - start)
