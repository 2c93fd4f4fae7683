"""Candidates of joins that need to know only whether a row has a match: in rounds, until each row has one.

The first round looks at few candidates of every row, each further one at four times as many of the rows that are still
without a match. What is looked at in vain is thereby at most some four times what is needed, and never more pairs
are held than the slices of other joins have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.derive import Rest
from gpujoin.engine.layout import JoinLayout
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import OutOfMemoryError
from gpujoin.model.backend import AnyBackend, PairSlice, Probe, Resumable
from gpujoin.model.maps import Indices, OutOfBounds

FIRST_LOOKS = 4
GROWTH = 4

Rows = npt.NDArray[np.int64]
Done = Callable[[], npt.NDArray[np.bool_]]


class Matching(Protocol):
    """Probe rows that are being matched, as far as they are read here.

    Attributes
    ----------
    backend : Backend
        Where they are matched.
    layout : JoinLayout
        The join.
    rows : RecordBatch
        The rows.
    probe : Probe or None
        Their candidates; ``None``: every build row is one of every row.
    """

    backend: AnyBackend
    layout: JoinLayout
    rows: pa.RecordBatch
    probe: Probe[Any] | None

    @property
    def metrics(self) -> JoinMetrics:
        """Counters of the run."""
        ...

    @property
    def build_rows(self) -> int:
        """How many build rows there are."""
        ...

    def marked(self) -> npt.NDArray[np.bool_]:
        """Tell which of the rows have a match among the candidates taken so far."""
        ...

    def build_marked(self) -> npt.NDArray[np.bool_]:
        """Tell which build rows have had a match so far."""
        ...

    def slices_of(self, probe: Probe[Any], most: int) -> Iterator[PairSlice]:
        """Give the pairs of a probe, at most ``most`` at a time."""
        ...


def until_matched(morsel: Matching, most: int) -> Iterator[PairSlice] | None:
    """Candidates of a morsel, at most ``most`` at a time, of rows that have no match yet.

    Parameters
    ----------
    morsel : Matching
        Its marks are read between two slices: they must be set as slices are taken.
    most : int
        Largest slice.

    Returns
    -------
    iterator of PairSlice or None
        ``None`` where the join needs all pairs, or the probe cannot be taken up where it was left.
    """
    derivation = morsel.layout.derivation
    if derivation.pairs:
        return None
    if morsel.probe is None:
        if derivation.build_rest is Rest.NOTHING:
            return _product_by_probe_row(morsel, most)
        return _product_by_build_row(morsel, most)
    if derivation.build_rest is Rest.NOTHING:
        return rounds_of(morsel, morsel.probe, morsel.rows.num_rows, morsel.marked, most)
    return None


def rounds_of(morsel: Matching, probe: Probe[Any], rows: int, done: Done, most: int) -> Iterator[PairSlice]:
    """Candidates of a probe, in rounds; all of them, row by row, if it cannot be taken up where it was left.

    Parameters
    ----------
    morsel : Matching
        For its backend and counters.
    probe : Probe
        Of some rows.
    rows : int
        How many.
    done : callable () -> ndarray of bool
        Which of them have a match; asked after each round.
    most : int
        Largest slice.
    """
    if not (isinstance(probe, Resumable) and probe.resumable):
        yield from morsel.slices_of(probe, most)
        return
    counts = morsel.backend.indices_to_host(Indices(probe.counts, rows))
    waiting = np.flatnonzero(counts)
    skip, width = 0, FIRST_LOOKS
    while len(waiting):
        for some in _chunks(waiting, max(1, most // width)):
            yield from _surely(morsel, probe, some, skip, min(width, most))
        skip, width = skip + min(width, most), min(width * GROWTH, most)
        waiting = waiting[~done()[waiting] & (counts[waiting] > skip)]


def _surely(morsel: Matching, probe: Resumable, rows: Rows, skip: int, width: int) -> Iterator[PairSlice]:
    """The same candidates in smaller parts where memory is short."""
    try:
        yield probe.beginning(rows, skip, width)
        return
    except OutOfMemoryError:
        if len(rows) == width == 1:
            raise
        morsel.metrics.retries += 1
    if len(rows) > 1:
        half = len(rows) // 2
        yield from _surely(morsel, probe, rows[:half], skip, width)
        yield from _surely(morsel, probe, rows[half:], skip, width)
    else:
        half = width // 2
        yield from _surely(morsel, probe, rows, skip, half)
        yield from _surely(morsel, probe, rows, skip + half, width - half)


def _product_by_probe_row(morsel: Matching, most: int) -> Iterator[PairSlice]:
    waiting = np.arange(morsel.rows.num_rows)
    for waiting_rows, others in product_rounds(waiting, morsel.build_rows, most, morsel.marked):
        yield paired(morsel.backend, waiting_rows, others)


def _product_by_build_row(morsel: Matching, most: int) -> Iterator[PairSlice]:
    waiting = np.flatnonzero(~morsel.build_marked())
    for waiting_rows, others in product_rounds(waiting, morsel.rows.num_rows, most, morsel.build_marked):
        yield paired(morsel.backend, others, waiting_rows)


def product_rounds(waiting: Rows, others: int, most: int, done: Done) -> Iterator[tuple[Rows, Rows]]:
    """Pairs of rows and of ``0 … others - 1``, in rounds, of rows that are not done; asked after each round."""
    skip, width = 0, FIRST_LOOKS
    while len(waiting) and skip < others:
        width = min(width, most, others - skip)
        looked_at = np.arange(skip, skip + width)
        for rows in _chunks(waiting, max(1, most // width)):
            yield np.repeat(rows, width), np.tile(looked_at, len(rows))
        skip, width = skip + width, width * GROWTH
        waiting = waiting[~done()[waiting]]


def paired(backend: AnyBackend, probe: Rows, build: Rows) -> PairSlice:
    """Row numbers as a slice of a backend."""
    take = backend.indices_from_host
    return PairSlice(take(probe, OutOfBounds.NEVER), take(build, OutOfBounds.NEVER))


def _chunks(rows: Rows, size: int) -> Iterator[Rows]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
