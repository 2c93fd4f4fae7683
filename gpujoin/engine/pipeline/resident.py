"""Tables that stay on a device from task to task: rows of build sides, and search structures over them.

A worker runs many tasks, one after the other, and each task of a stage joins its own rows with the same small tables.
The first task decodes such a table on the device and builds its search structure there; later ones take both::

    task 0   scan items  ►  filter  ►  rows on the device  ►  hash table        kept: rows, hash table by item
    task 1   rows and hash table as they are
    task 2   rows as they are; another join, by colour, builds its own          kept: rows, hash tables by item, colour

A table is known by everything that it was made from: the nodes over its files, each file with its size and the time of
its last change, the settings. Tables are let go, those used longest ago first, where they would be more than
:attr:`ResidentTables.limit` together, and where an allocation on the device would fail otherwise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from gpujoin.backends.cudf import keep_tables
from gpujoin.cache import Cache
from gpujoin.engine.join.build import BuiltSide
from gpujoin.model.files import ValueRanges

_LARGEST = 2
"""A table that takes more than this part of the room would leave none for the others of a query."""


@dataclass(frozen=True)
class ResidentBuild:
    """The built side of a join over the rows of a table."""

    side: BuiltSide
    """The side; any number of passes may probe it."""
    column_bytes: int
    """Memory of the columns of the rows when the side was built. They belong to the table."""

    @classmethod
    def from_built(cls, side: BuiltSide) -> ResidentBuild:
        """Wrap a side that was just built."""
        return cls(side, _column_bytes(side))

    @property
    def nbytes(self) -> int:
        """Memory of the search structure, and of packed copies of columns."""
        return self.side.search_bytes + _column_bytes(self.side) - self.column_bytes


def _column_bytes(side: BuiltSide) -> int:
    return sum(side.backend.frame_bytes(columns.frame) for columns in (side.output, side.condition))


@dataclass(frozen=True)
class ResidentTable:
    """The rows of a table on a device, in one piece, with the built sides over them."""

    piece: Any
    """The rows as the pipeline has them."""
    row_bytes: int
    """Memory of the rows."""
    built: dict[Hashable, ResidentBuild] = field(default_factory=dict)
    """Built sides of joins over the rows, by what the joins are."""
    ranges: dict[tuple[int, int], ValueRanges | None] = field(default_factory=dict)
    """Ranges of values on the host, by column and the limit on values listed one by one."""

    @property
    def nbytes(self) -> int:
        """Memory on the device."""
        return self.row_bytes + sum(built.nbytes for built in tuple(self.built.values()))


class ResidentTables:
    """Tables that stay on one device, up to :attr:`limit` bytes. Any thread may call :meth:`drop`."""

    def __init__(self) -> None:
        self.limit = 0
        """Bytes that may be kept."""
        self._tables: Cache[Hashable, ResidentTable] = Cache(math.inf)
        """The limit is not the cache's: tables grow while they are kept."""

    @property
    def nbytes(self) -> int:
        """Memory on the device."""
        return sum(table.nbytes for _, table in self._tables.items())

    def get(self, name: Hashable) -> ResidentTable | None:
        """The table of a name, if it is kept."""
        return self._tables.get(name)

    def of(self, piece: Any) -> ResidentTable | None:
        """The table with a piece as its rows, if it is kept."""
        return next((table for _, table in self._tables.items() if table.piece is piece), None)

    def put(self, name: Hashable, table: ResidentTable) -> None:
        """Keep a table, and as many of the others as there is room for. A table that is too large is not kept."""
        self._tables.pop(name)
        if table.nbytes <= self.limit // _LARGEST:
            self._tables.put(name, table)
            self.fit()

    def fit(self) -> None:
        """Let go of tables until the others have room."""
        while self.nbytes > self.limit and self.drop():
            pass

    def drop(self) -> bool:
        """Let go of the table that was not used for the longest; ``False`` if there is none."""
        return self._tables.drop()

    def clear(self) -> None:
        """Let go of all tables."""
        self._tables.clear()


_tables: dict[tuple[int, int], ResidentTables] = {}
"""Tables by process and device: a child of this process has no use for memory of the device, and must not free it."""


def resident_tables(device: int) -> ResidentTables:
    """Give this process's tables on a device, by its number; they are let go where memory there is short."""
    place = os.getpid(), device
    if place not in _tables:
        _tables[place] = ResidentTables()
        keep_tables(device, _tables[place])
    return _tables[place]
