"""What a probe finds."""

from __future__ import annotations

from dataclasses import dataclass

from gpujoin.launch.device import Array


@dataclass(frozen=True)
class UniqueMatches:
    """At most one match of each probe row.

    Attributes
    ----------
    row : int32 array of shape ``(probe rows,)``
        Build row, −1 where there is none.
    pairs : int
        How many have one.
    """

    row: Array
    pairs: int


@dataclass(frozen=True)
class Ranges:
    """Any number of matches of each probe row, as consecutive places of the build side's rows.

    Attributes
    ----------
    start, count : int32 array of shape ``(probe rows,)``
        First place, and number of places; the start is meaningless where the number is zero.
    pairs : int
        Sum of the numbers, exact in 64 bits.
    """

    start: Array
    count: Array
    pairs: int


@dataclass(frozen=True)
class Places:
    """Build rows by slot; rows of one key are neighbours.

    Attributes
    ----------
    first : int32 array of shape ``(slots + 1,)``
        Where each slot's rows start, and where the last ones end.
    rows : int32 array
        Build row at each place.
    most : int
        Rows of the fullest slot; 2 stands for any number above 1 where it was not counted.
    """

    first: Array
    rows: Array
    most: int = 2

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.first.nbytes + self.rows.nbytes)
