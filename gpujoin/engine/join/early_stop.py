"""Early stop: joins that return build rows only stop reading probe rows once they know enough.

Probe rows come in rounds, each four times as large as the one before. Once every build row has a match, no further
probe row is read. Where the cost of a search grows with the pairs it returns, the search structure is built anew
without the rows that have a match. An example, a semi join of two left rows, which are the build side, with 1000 right
rows::

    round 1, 64 right rows       left row 0 has a match; it is left out of the search from now on
    round 2, 256 right rows      left row 1 has a match; the last 680 right rows are not read

Probe rows that only ask for a match of their own are searched in rounds too (`gpujoin.engine.join.rounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.join.probe import Run
from gpujoin.engine.join.rounds import GROWTH
from gpujoin.engine.morsels import in_order

FIRST_ROWS = 64
"""Probe rows of the first round."""
REBUILD_SHARE = 8
"""When the search structure is built anew without matched rows: once they are at least 1/8 of its rows, or once 8 times
as many probe rows have come as it has rows. Building it costs about as much as one probe for each of its rows."""


class EarlyStop:
    """The rounds of a run that returns build rows only."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._target = run
        """The run that joins further probe rows: over all build rows, or over those without a match."""
        self._numbers: npt.NDArray[np.int64] | None = None
        """Numbers of its build rows; ``None`` for all."""
        self._round_rows = 0
        self._rows = 0
        """Probe rows of this round, and how many of them have come."""
        self._rows_since_build = 0
        self.complete = not run.built.num_rows
        """Whether every build row has a match."""

    def probe(
        self, morsels: Iterable[pa.RecordBatch], join: Callable[[Run, pa.RecordBatch], Iterator[Any]]
    ) -> Iterator[Any]:
        """Join morsels, read no further than needed, with the build rows that are left."""
        built = self._run.built
        threads, source = built.backend.threads, _MorselSource(morsels)
        largest = max(built.backend.morsel_rows * threads, built.num_rows)
        self._round_rows = self._round_rows or min(FIRST_ROWS, largest)
        while not self.complete and source.has_rows():
            head = source.take(self._round_rows - self._rows)
            yield from in_order(partial(join, self._target), head, threads)
            self._rows += source.rows_taken
            marks = self._marks()
            if self._rows < self._round_rows:
                continue
            self._rows_since_build += self._rows
            self._rows, self._round_rows = 0, min(self._round_rows * GROWTH, largest)
            self._leave_out(np.flatnonzero(~marks))

    def _marks(self) -> npt.NDArray[np.bool_]:
        """Marks of all build rows, those of the run that joined the last rows included."""
        marks, further = self._run.marks, self._target.marks
        assert marks is not None
        assert further is not None
        if self._numbers is not None:
            marks.on_host[self._numbers] |= further.on_host
        return marks.on_host

    def _leave_out(self, waiting: npt.NDArray[np.int64]) -> None:
        """Rebuild the search structure over the rows without a match, if that pays."""
        built, rows = self._run.built, self._target.built.num_rows
        matched = rows - len(waiting)
        self.complete = not len(waiting)
        if self.complete or not matched or not built.counts_pairs:
            return
        if matched * REBUILD_SHARE >= rows or self._rows_since_build >= REBUILD_SHARE * rows:
            metrics = self._run.metrics
            self._target, self._numbers = Run.start(built.only(waiting, metrics), metrics), waiting
            self._rows_since_build = 0


class _MorselSource:
    """A stream of morsels from which any number of rows can be taken."""

    def __init__(self, morsels: Iterable[pa.RecordBatch]) -> None:
        self._morsels = iter(morsels)
        self._rest: pa.RecordBatch | None = None
        self.rows_taken = 0
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
        self.rows_taken = 0
        while self.rows_taken < rows and self.has_rows():
            assert self._rest is not None
            head = self._rest.slice(0, rows - self.rows_taken)
            self._rest = self._rest.slice(head.num_rows)
            self.rows_taken += head.num_rows
            yield head
