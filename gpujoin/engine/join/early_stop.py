"""Early stop: joins that only ask whether a row has a match stop searching once they know.

*Probe rows* (:func:`until_matched`), of semi, anti and existence joins: candidates are evaluated in rounds. The first
round takes four candidates of every row. Each further round takes four times as many, of the rows that are still
without a match. At most about four times as many pairs are evaluated as needed, and never more at a time than in other
joins. An example, ``l LEFT SEMI JOIN r ON l.k = r.k AND l.a < r.b``, where each of three left rows has 100 candidates.
A ``*`` is a pair for which the condition is true::

    round 1, 4 candidates each     row 0 [. * . .]   row 1 [. . . .]            row 2 [. . . *]
    round 2, 16 candidates each                      row 1 [. . . . . * . . …]

28 pairs are evaluated, not 300, and all three rows are returned.

*Build rows* (:func:`until_all_match`), of joins that return build rows only: probe rows come in rounds too, each four
times as large as the one before. Once every build row has a match, no further probe row is read. Where the cost of a
search grows with the pairs it returns, the search structure is built anew without the rows that have a match. An
example, a semi join of two left rows, which are the build side, with 1000 right rows::

    round 1, 64 right rows       left row 0 has a match; it is left out of the search from now on
    round 2, 256 right rows      left row 1 has a match; the last 680 right rows are not read
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
from gpujoin.errors import DeviceLostError, OutOfMemoryError
from gpujoin.model.backend import AnyBackend, PairSlice, Probe, Resumable
from gpujoin.model.maps import Indices, OutOfBounds

if TYPE_CHECKING:
    from gpujoin.engine.join.morsel import Morsel
    from gpujoin.engine.join.probe import Run

T = TypeVar("T")
RowNumbers = npt.NDArray[np.int64]
Matched = Callable[[], npt.NDArray[np.bool_]]

FIRST_CANDIDATES = 4
"""Candidates of a row that the first round looks at."""
FIRST_ROWS = 64
"""Probe rows of the first round."""
GROWTH = 4
"""Factor by which each round is larger than the one before."""
REBUILD_SHARE = 8
"""When the search structure is built anew without matched rows: once they are at least 1/8 of its rows, or once 8 times
as many probe rows have come as it has rows. Building it costs about as much as one probe for each of its rows."""


# -- probe rows --------------------------------------------------------------------------------------------------


def until_matched(morsel: Morsel, limit: int) -> Iterator[PairSlice] | None:
    """Candidate pairs of the rows of a morsel that have no match yet, in rounds of slices of at most ``limit`` pairs.

    The caller sets the morsel's marks between two slices. ``None`` where the join needs all pairs.
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


def rounds_of(morsel: Morsel, probe: Probe[Any], rows: int, matched: Matched, limit: int) -> Iterator[PairSlice]:
    """Candidate pairs of a probe, in rounds; all pairs, row by row, if the probe is not :class:`Resumable`.

    ``matched`` gives the mask of the rows that have a match, after each round.
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


def _pairs_at(morsel: Morsel, probe: Resumable, rows: RowNumbers, offset: int, limit: int) -> Iterator[PairSlice]:
    """Pairs of given probe rows; in smaller slices where memory is short."""
    try:
        yield probe.pairs_at(rows, offset, limit)
        return
    except OutOfMemoryError as problem:
        if len(rows) == limit == 1 or isinstance(problem, DeviceLostError):
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
    """Pairs of each waiting row with the rows ``0 … others - 1``, in rounds, as long as the row has no match."""
    offset, width = 0, FIRST_CANDIDATES
    while len(waiting) and offset < others:
        width = min(width, limit, others - offset)
        candidates = np.arange(offset, offset + width)
        for rows in _chunks(waiting, max(1, limit // width)):
            yield np.repeat(rows, width), np.tile(candidates, len(rows))
        offset, width = offset + width, width * GROWTH
        waiting = waiting[~matched()[waiting]]


def pairs_of(backend: AnyBackend, probe: RowNumbers, build: RowNumbers) -> PairSlice:
    """Convert row numbers to a slice of pairs of a backend."""
    take = backend.indices_from_host
    return PairSlice(take(probe, OutOfBounds.NEVER), take(build, OutOfBounds.NEVER))


def _chunks(rows: RowNumbers, size: int) -> Iterator[RowNumbers]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


# -- build rows --------------------------------------------------------------------------------------------------


@dataclass
class Progress:
    """Progress of a run that stops once each build row has a match."""

    round_rows: int = 0
    rows: int = 0
    """Probe rows of this round, and how many of them have come."""
    rows_since_build: int = 0
    """Probe rows since the search structure was built."""
    complete: bool = False
    """Whether every build row has a match."""


def until_all_match(
    run: Run,
    morsels: Iterable[pa.RecordBatch],
    work: Callable[[Run, pa.RecordBatch], Iterator[T]],
    merge: Callable[[JoinMetrics], None],
) -> Iterator[T]:
    """Run ``work`` over probe rows until every build row has a match.

    Morsels are read no further than needed. The run may stop early (:attr:`Run.stops_early`) and keeps the progress
    between calls. ``work`` joins a morsel with the build rows that are left; ``merge`` takes the counters of search
    structures that are built anew.
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
    """Build the search structure anew without matched rows, where that pays. Returns whether all rows have a match."""
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
    """A stream of morsels from which any number of rows can be taken."""

    def __init__(self, morsels: Iterable[pa.RecordBatch]) -> None:
        self._morsels = iter(morsels)
        self._rest: pa.RecordBatch | None = None
        self.taken = 0
        """Rows that the last call of :meth:`take` returned."""

    def has_rows(self) -> bool:
        """Whether there are further rows."""
        while self._rest is None or not self._rest.num_rows:
            following = next(self._morsels, None)
            if following is None:
                return False
            self._rest = following
        return True

    def take(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Take ``rows`` rows, or fewer at the end of the stream."""
        self.taken = 0
        while self.taken < rows and self.has_rows():
            assert self._rest is not None
            head = self._rest.slice(0, rows - self.taken)
            self._rest = self._rest.slice(head.num_rows)
            self.taken += head.num_rows
            yield head
