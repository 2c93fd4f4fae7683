"""Joins that return build rows alone, by whether they have a match: rows that have one need no further probe rows.

Probe rows come in rounds, each larger than the one before. After a round the build rows that have met a match are left
out of the search where its cost grows with the pairs found, and once none is left no further probe row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import pyarrow as pa

from gpujoin.engine.built import Run
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import in_order

FIRST_ROWS = 64
GROWTH = 4
WORTH = 8
"""The search is made again without the rows that have a match where they are one part in so many of it, or where so
many times as many probe rows have come as it has rows: making it costs about what as many probes do."""

T = TypeVar("T")


def settling(
    run: Run,
    morsels: Iterable[pa.RecordBatch],
    work: Callable[[Run, pa.RecordBatch], Iterator[T]],
    merge: Callable[[JoinMetrics], None],
) -> Iterator[T]:
    """Run ``work`` over probe rows until every build row has a match.

    Parameters
    ----------
    run : Run
        A run of a join that settles (:attr:`Run.settles`); what it knows is kept there from call to call.
    morsels : iterable of RecordBatch
        Probe rows, a morsel each; read no further than needed.
    work : callable (Run, RecordBatch) -> iterator
        Joins a morsel over the build rows that are left.
    merge : callable (JoinMetrics) -> None
        Takes the counters of searches made again.
    """
    if run.settled or not run.built.rows.num_rows:
        run.rounds.settled = True
        return
    source, state = _Source(morsels), run.rounds
    most = max(run.built.backend.morsel_rows * run.built.backend.threads, run.built.rows.num_rows)
    state.size = state.size or min(FIRST_ROWS, most)
    while source.more():
        current = run.current

        def joined(rows: pa.RecordBatch, target: Run = current) -> Iterator[T]:
            return work(target, rows)

        taken = source.upto(state.size - state.taken)
        yield from in_order(joined, taken, run.built.backend.threads)
        state.taken += source.count
        if state.taken < state.size:
            continue
        state.since += state.taken
        state.taken, state.size = 0, min(state.size * GROWTH, most)
        if _leaves_none(run, merge):
            return


def _leaves_none(run: Run, merge: Callable[[JoinMetrics], None]) -> bool:
    """Leave out what has a match; whether nothing is left."""
    marks = run.host_marks()
    searched = run.current.built.rows.num_rows
    waiting = np.flatnonzero(~marks)
    found = searched - len(waiting)
    run.rounds.settled = not len(waiting)
    if not len(waiting) or not found or not run.built.counts_pairs:
        return not len(waiting)
    if found * WORTH >= searched or run.rounds.since >= WORTH * searched:
        metrics = JoinMetrics()
        run.leave_out(marks, waiting, metrics)
        merge(metrics)
        run.rounds.since = 0
    return False


class _Source:
    """Morsels that can be cut."""

    def __init__(self, morsels: Iterable[pa.RecordBatch]) -> None:
        self._morsels = iter(morsels)
        self._rest: pa.RecordBatch | None = None
        self.count = 0
        """Rows that the last :meth:`upto` has given."""

    def more(self) -> bool:
        """Whether there are further rows."""
        while self._rest is None or not self._rest.num_rows:
            self._rest = next(self._morsels, None)
            if self._rest is None:
                return False
        return True

    def upto(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Give so many rows, or fewer where there are no more."""
        self.count = 0
        while self.count < rows and self.more():
            assert self._rest is not None
            part = self._rest.slice(0, rows - self.count)
            self._rest = self._rest.slice(part.num_rows)
            self.count += part.num_rows
            yield part
