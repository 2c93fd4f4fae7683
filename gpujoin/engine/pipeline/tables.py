"""Tables that a process has read and built for joins, kept from run to run.

A stream is joined with the same table in each micro-batch. What is kept of it is the join's build side: rows that were
read, filtered and projected, with their search structure. It is known by everything that it was made from: the nodes
over the files, each file with its size and the time of its last change, the join, the settings. So where a file
changes, nothing that is kept has its name.

Of a small table that every task of a query reads, the rows are kept, as they go into the build side. The tasks of one
worker read it once, and so do later queries that read the same of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any

from gpujoin.cache import Cache
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.memory import hold
from gpujoin.engine.pipeline.resident import ResidentTables
from gpujoin.model.pipeline import Rung
from gpujoin.model.relations import Relation, Scan


@dataclass(frozen=True)
class BuiltTable:
    """A built side of a join."""

    join: HashJoin
    """The join; any number of passes may probe it."""
    piece: Any
    """The rows in the pipeline's form."""
    nbytes: int
    """Bytes of the rows, and of their search structure."""


@dataclass(frozen=True)
class TableRows:
    """The rows of a table as they go into a build side."""

    pieces: tuple[Any, ...]
    nbytes: int

    def __post_init__(self) -> None:
        hold(self, self.nbytes)


class BuiltTables:
    """Built sides and rows, up to a number of bytes; of each, those used last stay longest.

    Rows make room for built sides: a stream needs its own in each micro-batch, whatever other queries read meanwhile.
    """

    def __init__(self) -> None:
        self._built: Cache[Hashable, BuiltTable] = Cache(0, _nbytes)
        self._rows: Cache[Hashable, TableRows] = Cache(0, _nbytes)

    def get(self, name: Hashable) -> BuiltTable | None:
        """The built side of a name, if it is kept."""
        return self._built.get(name)

    def rows(self, name: Hashable) -> TableRows | None:
        """The rows of a name, if they are kept."""
        return self._rows.get(name)

    def put(self, name: Hashable, table: BuiltTable | TableRows, limit: int) -> None:
        """Keep a table, and as many of the others as ``limit`` bytes hold.

        Rows have at most half of them, and only what built sides leave. A table that has no room is not kept.
        """
        if isinstance(table, BuiltTable):
            self._built.pop(name)
            if table.nbytes <= limit:
                self._built.limit = limit
                self._built.put(name, table)
        self._rows.limit = min(limit // 2, limit - self._built.total)
        self._rows.fit()
        if isinstance(table, TableRows):
            self._rows.pop(name)
            if table.nbytes <= self._rows.limit:
                self._rows.put(name, table)

    def drop(self) -> bool:
        """Let go of the table that was not used for the longest, rows first; ``False`` if there is none."""
        return self._rows.drop() or self._built.drop()

    def clear(self) -> None:
        """Let go of all tables."""
        self._built.clear()
        self._rows.clear()


def _nbytes(table: BuiltTable | TableRows) -> int:
    return table.nbytes


TABLES = BuiltTables()
"""The tables of this process."""


@dataclass(frozen=True)
class TableCache:
    """Tables of earlier runs, which a run may use, and room for its own."""

    built: BuiltTables | None = None
    """Tables of the CPU, if any. They make room for build sides."""
    resident: ResidentTables | None = None
    """Tables of the run's device."""
    stores_build_sides: bool = False
    """Whether build sides are stored that are made of files alone and probed by other rows."""
    replicated: Collection[int] = ()
    """Indices of replicated scans: rows of build sides that are made of these alone are stored."""

    def on_rung(self, rung: Rung) -> TableCache:
        """The part of it that is used on a rung. A careful run stores nothing."""
        if rung is Rung.DEVICE:
            return TableCache(None, self.resident, replicated=self.replicated)
        return dataclasses.replace(self, resident=None) if rung is Rung.FAST else TableCache(self.built)


def unnumbered(node: Relation) -> Relation:
    """Leave out the numbers of scans: the same files may be numbered in several ways."""
    if isinstance(node, Scan):
        return dataclasses.replace(node, index=0)
    return node.with_children([unnumbered(child) for child in node.children]) if node.children else node
