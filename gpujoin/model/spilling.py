"""What a backend needs of spilling: parts of rows on disk, and how often rows are divided into parts.

Rows over their share of memory are divided by the hash of their keys into :data:`FAN_OUT` parts, and each part is read
back and finished by itself. A part that is over the share too is divided again, with another hash, up to
:data:`MAX_DIVISIONS` times. An example with four groups, a fan-out of 2, and memory for two groups::

    groups a b c d  --hash 0-->  part 0: a b c  --hash 1-->  part 0: a      finished
                                                             part 1: b c    finished
                                 part 1: d                                  finished
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

FAN_OUT = 16
"""Parts that rows are divided into at a time: enough that one division makes sixteen times the memory suffice, and few
enough that each part is written in blobs near a megabyte."""

MAX_DIVISIONS = 4
"""How often rows are divided by hash: 16**4 parts, 128 TiB at the default budget of 2 GiB. What is too large after that
has few keys, which no hash divides."""


class SpillPart(Protocol):
    """Rows of one schema on disk: appended, then read in the order in which they were appended."""

    @property
    def rows(self) -> int:
        """Rows appended so far."""
        ...

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows.

        Raises
        ------
        SpillError
            If they cannot be written.
        """
        ...

    def read(self) -> Iterator[pa.RecordBatch]:
        """Read all rows, any number of times.

        Raises
        ------
        CorruptBlobError
            If they are not what was written.
        """
        ...


class SpillStore(Protocol):
    """Holds spilled parts of rows; closing it frees their space."""

    def new_parts(self, schema: pa.Schema, count: int) -> tuple[SpillPart, ...]:
        """Make empty parts for rows of one schema."""
        ...

    def close(self) -> None:
        """Free the space; a second call does nothing."""
        ...
