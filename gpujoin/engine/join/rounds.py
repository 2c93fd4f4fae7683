"""Rounds of candidates: a row that only asks for a match is searched no further than its first one.

The first round takes four candidates of every row. Each further round takes four times as many, of the rows that are
still without a match. At most about four times as many pairs are evaluated as needed, and never more at a time than in
other joins. An example, ``l LEFT SEMI JOIN r ON l.k = r.k AND l.a < r.b``, where each of three left rows has 100
candidates. A ``*`` is a pair for which the condition is true::

    round 1, 4 candidates each     row 0 [. * . .]   row 1 [. . . .]            row 2 [. . . *]
    round 2, 16 candidates each                      row 1 [. . . . . * . . …]

28 pairs are evaluated, not 300, and all three rows are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import may_halve
from gpujoin.errors import OutOfMemoryError
from gpujoin.model.backend import AnyBackend, PairSlice, Probe, Resumable
from gpujoin.model.maps import Indices, OutOfBounds, slice_map

RowNumbers: TypeAlias = npt.NDArray[np.int64]
Matched: TypeAlias = Callable[[], npt.NDArray[np.bool_]]
"""Returns the mask of the rows with a match so far; called after each round."""

FIRST_CANDIDATES = 4
"""Candidates of a row that the first round looks at."""
GROWTH = 4
"""Factor by which rounds grow."""


def probe_slices(probe: Probe[Any], limit: int, metrics: JoinMetrics) -> Iterator[PairSlice]:
    """All pairs of a probe, at most ``limit`` at a time; the limit is halved where a slice does not fit memory."""
    returned = 0
    while returned < probe.pairs:
        try:
            for pairs in _without_first(probe.slices(limit), returned):
                returned += pairs.length
                yield pairs
            return
        except OutOfMemoryError as problem:
            length = min(limit, probe.pairs)
            if not may_halve(problem, length, metrics):
                raise
            limit = length // 2


def _without_first(slices: Iterator[PairSlice], count: int) -> Iterator[PairSlice]:
    for pairs in slices:
        skipped = min(count, pairs.length)
        count -= skipped
        length = pairs.length - skipped
        if length:
            maps = (slice_map(rows, skipped, length) for rows in (pairs.probe, pairs.build))
            yield PairSlice(*maps) if skipped else pairs


def probe_rounds(
    backend: AnyBackend, probe: Probe[Any], rows: int, matched: Matched, limit: int, metrics: JoinMetrics
) -> Iterator[PairSlice]:
    """Candidate pairs of a probe, in rounds; all pairs, row by row, if the probe is not :class:`Resumable`."""
    if not (isinstance(probe, Resumable) and probe.resumable):
        yield from probe_slices(probe, limit, metrics)
        return
    counts = backend.indices_to_host(Indices(probe.counts, rows))
    waiting = np.flatnonzero(counts)
    offset, width = 0, FIRST_CANDIDATES
    while len(waiting):
        for chunk in _chunks(waiting, max(1, limit // width)):
            yield probe.pairs_at(chunk, offset, min(width, limit))
        offset, width = offset + min(width, limit), min(width * GROWTH, limit)
        waiting = waiting[~matched()[waiting] & (counts[waiting] > offset)]


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
