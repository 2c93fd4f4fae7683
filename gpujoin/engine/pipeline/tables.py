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
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.memory import hold
from gpujoin.model.relations import Relation, Scan


@dataclass(frozen=True)
class BuiltTable:
    """A built side of a join."""

    join: HashJoin
    """Which any number of passes may probe."""
    piece: Any
    """The rows as the pipeline has them."""

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return self.join.build_bytes


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
        self._tables: OrderedDict[Hashable, BuiltTable | TableRows] = OrderedDict()

    def get(self, name: Hashable) -> BuiltTable | None:
        """Give a built side that is kept."""
        table = self._used(name)
        return table if isinstance(table, BuiltTable) else None

    def rows(self, name: Hashable) -> TableRows | None:
        """Give rows that are kept."""
        table = self._used(name)
        return table if isinstance(table, TableRows) else None

    def _used(self, name: Hashable) -> BuiltTable | TableRows | None:
        if name in self._tables:
            self._tables.move_to_end(name)
        return self._tables.get(name)

    def put(self, name: Hashable, table: BuiltTable | TableRows, limit: int) -> None:
        """Keep a table, and as many of the others as ``limit`` bytes hold.

        Rows have at most half of them, and only what built sides leave. A table that has no room is not kept.
        """
        self._tables.pop(name, None)
        built = isinstance(table, BuiltTable)
        room = limit if built else min(limit // 2, limit - self._nbytes(BuiltTable))
        if table.nbytes > room:
            return
        if built:
            self._evict(BuiltTable, room - table.nbytes)
            room -= self._nbytes(BuiltTable)
        self._evict(TableRows, room - table.nbytes)
        self._tables[name] = table

    def drop(self) -> bool:
        """Keep the table no longer that was not used for the longest, rows first; ``False`` if there is none."""
        for kind in (TableRows, BuiltTable):
            for name, table in self._tables.items():
                if isinstance(table, kind):
                    del self._tables[name]
                    return True
        return False

    def clear(self) -> None:
        """Keep nothing: memory is short."""
        self._tables.clear()

    def _nbytes(self, kind: type[BuiltTable | TableRows]) -> int:
        return sum(table.nbytes for table in self._tables.values() if isinstance(table, kind))

    def _evict(self, kind: type[BuiltTable | TableRows], most: int) -> None:
        """Keep only as many tables of a kind as ``most`` bytes hold."""
        excess = self._nbytes(kind) - most
        for name, table in list(self._tables.items()):
            if excess <= 0:
                return
            if isinstance(table, kind):
                del self._tables[name]
                excess -= table.nbytes


TABLES = BuiltTables()
"""Those of this process."""


def unnumbered(node: Relation) -> Relation:
    """Leave out the numbers of scans: the same files may be numbered in several ways."""
    if isinstance(node, Scan):
        return dataclasses.replace(node, index=0)
    return node.with_children([unnumbered(child) for child in node.children]) if node.children else node
