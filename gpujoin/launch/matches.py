"""The matches of probe rows, as kernels return them."""

from __future__ import annotations

from dataclasses import dataclass

from gpujoin.launch.device import Array


@dataclass(frozen=True)
class UniqueMatches:
    """At most one match of each probe row."""

    row: Array
    """Build row, −1 where there is none."""
    pairs: int
    """Number of probe rows with a match."""


@dataclass(frozen=True)
class Ranges:
    """Any number of matches of each probe row, as ranges of places (:class:`Places`)."""

    start: Array
    count: Array
    """First place and number of places of each probe row; the start is arbitrary where the number is zero."""
    pairs: int
    """Total number of matches, exact in 64 bits."""


@dataclass(frozen=True)
class Places:
    """Build rows ordered by slot (compressed sparse rows), so that rows of the same key are neighbours."""

    first: Array
    """First place of each slot, and the end of the last one."""
    rows: Array
    """Build row at each place."""
    most: int = 2
    """Most rows of a slot; 2 stands for any number above 1 if it was not counted."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.first.nbytes + self.rows.nbytes)
