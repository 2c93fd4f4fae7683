"""Candidates of joins that need to know only whether a row has a match: in rounds, until each row has one.

The first round looks at few candidates of every row, each further one at four times as many of the rows that are still
without a match. What is looked at in vain is thereby at most some four times what is needed, and never more pairs
are held than the slices of other joins have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpujoin.engine.derive import Rest
from gpujoin.errors import DeviceMemoryError
from gpujoin.model.backend import PairSlice, Resumable
from gpujoin.model.maps import OutOfBounds

if TYPE_CHECKING:
    from gpujoin.engine.match import Morsel

FIRST_LOOKS = 4
GROWTH = 4

Rows = npt.NDArray[np.int64]


def until_matched(morsel: Morsel, most: int) -> Iterator[PairSlice] | None:
    """Candidates of a morsel, at most ``most`` at a time, of rows that have no match yet.

    Parameters
    ----------
    morsel : Morsel
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
    if (
        derivation.build_rest is Rest.NOTHING
        and isinstance(morsel.probe, Resumable)
        and morsel.probe.resumable
    ):
        return _rounds_of_probe(morsel, morsel.probe, most)
    return None


def _rounds_of_probe(morsel: Morsel, probe: Resumable, most: int) -> Iterator[PairSlice]:
    counts = morsel.backend.indices_to_host(morsel.counts_map())
    waiting = np.flatnonzero(counts)
    skip, width = 0, FIRST_LOOKS
    while len(waiting):
        for rows in _chunks(waiting, max(1, most // width)):
            yield from _surely(morsel, probe, rows, skip, min(width, most))
        skip, width = skip + min(width, most), min(width * GROWTH, most)
        done = morsel.backend.mask_to_host(morsel.marks)
        waiting = waiting[~done[waiting] & (counts[waiting] > skip)]


def _surely(morsel: Morsel, probe: Resumable, rows: Rows, skip: int, width: int) -> Iterator[PairSlice]:
    """The same candidates in smaller parts where memory is short."""
    try:
        yield probe.beginning(rows, skip, width)
        return
    except DeviceMemoryError:
        if len(rows) == width == 1:
            raise
        morsel.run.metrics.retries += 1
    if len(rows) > 1:
        half = len(rows) // 2
        yield from _surely(morsel, probe, rows[:half], skip, width)
        yield from _surely(morsel, probe, rows[half:], skip, width)
    else:
        half = width // 2
        yield from _surely(morsel, probe, rows, skip, half)
        yield from _surely(morsel, probe, rows, skip + half, width - half)


def _product_by_probe_row(morsel: Morsel, most: int) -> Iterator[PairSlice]:
    waiting = np.arange(morsel.rows.num_rows)
    for waiting_rows, others in _product_rounds(
        waiting, morsel.built.rows.num_rows, most, lambda: morsel.backend.mask_to_host(morsel.marks)
    ):
        yield _pairs(morsel, waiting_rows, others)


def _product_by_build_row(morsel: Morsel, most: int) -> Iterator[PairSlice]:
    def done() -> npt.NDArray[np.bool_]:
        return morsel.backend.mask_to_host(morsel.run.marks)

    waiting = np.flatnonzero(~done())
    for waiting_rows, others in _product_rounds(waiting, morsel.rows.num_rows, most, done):
        yield _pairs(morsel, others, waiting_rows)


def _product_rounds(
    waiting: Rows, others: int, most: int, done: Callable[[], npt.NDArray[np.bool_]]
) -> Iterator[tuple[Rows, Rows]]:
    skip, width = 0, FIRST_LOOKS
    while len(waiting) and skip < others:
        width = min(width, most, others - skip)
        looked_at = np.arange(skip, skip + width)
        for rows in _chunks(waiting, max(1, most // width)):
            yield np.repeat(rows, width), np.tile(looked_at, len(rows))
        skip, width = skip + width, width * GROWTH
        waiting = waiting[~done()[waiting]]


def _pairs(morsel: Morsel, probe: Rows, build: Rows) -> PairSlice:
    take = morsel.backend.indices_from_host
    return PairSlice(take(probe, OutOfBounds.NEVER), take(build, OutOfBounds.NEVER))


def _chunks(rows: Rows, size: int) -> Iterator[Rows]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
