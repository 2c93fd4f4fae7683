"""Joins that need to know only whether a row has a match look no further once they know.

Rows of the side whose matches are asked for are looked at in rounds.

*Probe rows* (:func:`until_matched`): the first round looks at few candidates of every row, each further one at four
times as many of the rows that are still without a match. What is looked at in vain is thereby at most some four times
what is needed, and never more pairs are held than the slices of other joins have. An example, candidates in brackets,
the first one for which the condition is true marked::

    round 1, 4 each     row 0 [. * . .]   row 1 [. . . .]            row 2 [. . . *]
    round 2, 16 each                      row 1 [. . . . . * . . …]

*Build rows* (:func:`until_all_match`), where they alone are returned: probe rows come in rounds, each larger than the
one before. After a round the build rows that have met a match are left out of the search where its cost grows with the
pairs that it gives, and once none is left no further probe row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.join.derive import Rest
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import in_order
from gpujoin.errors import OutOfMemoryError
from gpujoin.model.backend import AnyBackend, PairSlice, Probe, Resumable
from gpujoin.model.maps import Indices, OutOfBounds

if TYPE_CHECKING:
    from gpujoin.engine.join.probe import Morsel, Run

T = TypeVar("T")
RowNumbers = npt.NDArray[np.int64]
Matched = Callable[[], npt.NDArray[np.bool_]]

FIRST_CANDIDATES = 4
"""Candidates of a row that the first round looks at."""
FIRST_ROWS = 64
"""Probe rows of the first round."""
GROWTH = 4
"""Each round is so many times as large as the one before."""
REBUILD_SHARE = 8
"""The search is made again without the rows that have a match where they are one part in so many of it, or where so
many times as many probe rows have come as it has rows: making it costs about what as many probes do."""


# -- probe rows --------------------------------------------------------------------------------------------------


def until_matched(morsel: Morsel, limit: int) -> Iterator[PairSlice] | None:
    """Candidates of a morsel, at most ``limit`` at a time, of rows that have no match yet.

    Parameters
    ----------
    morsel : Morsel
        Its marks are read between two slices: they must be set as slices are taken.
    limit : int
        Largest slice.

    Returns
    -------
    iterator of PairSlice or None
        ``None`` where the join needs all pairs, or the probe cannot be taken up where it was left.
    """
    derivation = morsel.layout.derivation
    if derivation.pairs:
        return None
    of_probe_rows = derivation.build_rest is Rest.NOTHING
    if morsel.probe is not None:
        if not of_probe_rows:
            return None
        return rounds_of(morsel, morsel.probe, morsel.num_rows, morsel.marked, limit)
    if of_probe_rows:
        return _product_by_probe_row(morsel, limit)
    return _product_by_build_row(morsel, limit)


def rounds_of(
    morsel: Morsel, probe: Probe[Any], rows: int, matched: Matched, limit: int
) -> Iterator[PairSlice]:
    """Candidates of a probe, in rounds; all of them, row by row, if it cannot be taken up where it was left.

    Parameters
    ----------
    morsel : Morsel
        For its backend and counters.
    probe : Probe
        Probe of the rows.
    rows : int
        Number of rows.
    matched : callable () -> ndarray of bool
        Which of them have a match; asked after each round.
    limit : int
        Largest slice.
    """
    if not (isinstance(probe, Resumable) and probe.resumable):
        yield from morsel.slices_of(probe, limit)
        return
    counts = morsel.backend.indices_to_host(Indices(probe.counts, rows))
    waiting = np.flatnonzero(counts)
    offset, width = 0, FIRST_CANDIDATES
    while len(waiting):
        for chunk in _chunks(waiting, max(1, limit // width)):
            yield from _pairs_at(morsel, probe, chunk, offset, min(width, limit))
        offset, width = offset + min(width, limit), min(width * GROWTH, limit)
        waiting = waiting[~matched()[waiting] & (counts[waiting] > offset)]


def _pairs_at(
    morsel: Morsel, probe: Resumable, rows: RowNumbers, offset: int, limit: int
) -> Iterator[PairSlice]:
    """Candidates of some rows; in smaller parts where memory is short."""
    try:
        yield probe.pairs_at(rows, offset, limit)
        return
    except OutOfMemoryError:
        if len(rows) == limit == 1:
            raise
        morsel.metrics.retries += 1
    if len(rows) > 1:
        half = len(rows) // 2
        yield from _pairs_at(morsel, probe, rows[:half], offset, limit)
        yield from _pairs_at(morsel, probe, rows[half:], offset, limit)
    else:
        half = limit // 2
        yield from _pairs_at(morsel, probe, rows, offset, half)
        yield from _pairs_at(morsel, probe, rows, offset + half, limit - half)


def _product_by_probe_row(morsel: Morsel, limit: int) -> Iterator[PairSlice]:
    waiting = np.arange(morsel.num_rows)
    for rows, others in product_rounds(waiting, morsel.build_rows, limit, morsel.marked):
        yield pairs_of(morsel.backend, rows, others)


def _product_by_build_row(morsel: Morsel, limit: int) -> Iterator[PairSlice]:
    waiting = np.flatnonzero(~morsel.build_marked())
    for rows, others in product_rounds(waiting, morsel.num_rows, limit, morsel.build_marked):
        yield pairs_of(morsel.backend, others, rows)


def product_rounds(
    waiting: RowNumbers, others: int, limit: int, matched: Matched
) -> Iterator[tuple[RowNumbers, RowNumbers]]:
    """Pairs of rows and of ``0 … others - 1``, in rounds, of rows without a match; asked after each round."""
    offset, width = 0, FIRST_CANDIDATES
    while len(waiting) and offset < others:
        width = min(width, limit, others - offset)
        candidates = np.arange(offset, offset + width)
        for rows in _chunks(waiting, max(1, limit // width)):
            yield np.repeat(rows, width), np.tile(candidates, len(rows))
        offset, width = offset + width, width * GROWTH
        waiting = waiting[~matched()[waiting]]


def pairs_of(backend: AnyBackend, probe: RowNumbers, build: RowNumbers) -> PairSlice:
    """Row numbers as a slice of a backend."""
    take = backend.indices_from_host
    return PairSlice(take(probe, OutOfBounds.NEVER), take(build, OutOfBounds.NEVER))


def _chunks(rows: RowNumbers, size: int) -> Iterator[RowNumbers]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


# -- build rows --------------------------------------------------------------------------------------------------


@dataclass
class Progress:
    """How far a run is that needs no further probe rows once each build row has a match.

    Attributes
    ----------
    round_rows, rows : int
        Probe rows of this round, and those of it that have come.
    rows_since_build : int
        Probe rows since the search was made.
    complete : bool
        Whether each build row is known to have a match.
    """

    round_rows: int = 0
    rows: int = 0
    rows_since_build: int = 0
    complete: bool = False


def until_all_match(
    run: Run,
    morsels: Iterable[pa.RecordBatch],
    work: Callable[[Run, pa.RecordBatch], Iterator[T]],
    merge: Callable[[JoinMetrics], None],
) -> Iterator[T]:
    """Run ``work`` over probe rows until every build row has a match.

    Parameters
    ----------
    run : Run
        A run that may stop early (:attr:`Run.stops_early`); what it knows is kept there from call to call.
    morsels : iterable of RecordBatch
        Probe rows, a morsel each; read no further than needed.
    work : callable (Run, RecordBatch) -> iterator
        Joins a morsel over the build rows that are left.
    merge : callable (JoinMetrics) -> None
        Takes the counters of searches made again.
    """
    progress, backend = run.progress, run.built.backend
    if progress.complete or not run.built.num_rows:
        progress.complete = True
        return
    source = _MorselSource(morsels)
    largest = max(backend.morsel_rows * backend.threads, run.built.num_rows)
    progress.round_rows = progress.round_rows or min(FIRST_ROWS, largest)
    while source.has_rows():
        current = run.current

        def joined(rows: pa.RecordBatch, target: Run = current) -> Iterator[T]:
            return work(target, rows)

        taken = source.take(progress.round_rows - progress.rows)
        yield from in_order(joined, taken, backend.threads)
        progress.rows += source.taken
        if progress.rows < progress.round_rows:
            continue
        progress.rows_since_build += progress.rows
        progress.rows, progress.round_rows = 0, min(progress.round_rows * GROWTH, largest)
        if _leave_out_matched(run, merge):
            return


def _leave_out_matched(run: Run, merge: Callable[[JoinMetrics], None]) -> bool:
    """Leave rows that have a match out of the search, where that pays; whether all have one."""
    marks = run.host_marks()
    searched = run.current.built.num_rows
    waiting = np.flatnonzero(~marks)
    matched = searched - len(waiting)
    run.progress.complete = not len(waiting)
    if not len(waiting) or not matched or not run.built.counts_pairs:
        return not len(waiting)
    if matched * REBUILD_SHARE >= searched or run.progress.rows_since_build >= REBUILD_SHARE * searched:
        metrics = JoinMetrics()
        run.leave_out(marks, waiting, metrics)
        merge(metrics)
        run.progress.rows_since_build = 0
    return False


class _MorselSource:
    """Morsels that can be cut."""

    def __init__(self, morsels: Iterable[pa.RecordBatch]) -> None:
        self._morsels = iter(morsels)
        self._rest: pa.RecordBatch | None = None
        self.taken = 0
        """Rows that the last :meth:`take` has given."""

    def has_rows(self) -> bool:
        """Whether there are further rows."""
        while self._rest is None or not self._rest.num_rows:
            following = next(self._morsels, None)
            if following is None:
                return False
            self._rest = following
        return True

    def take(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Give so many rows, or fewer where there are no more."""
        self.taken = 0
        while self.taken < rows and self.has_rows():
            assert self._rest is not None
            part = self._rest.slice(0, rows - self.taken)
            self._rest = self._rest.slice(part.num_rows)
            self.taken += part.num_rows
            yield part
