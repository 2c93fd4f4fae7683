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
    """Built sides and rows, up to a number of bytes; those used last stay longest."""

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
        """Keep a table, and as many of the others as ``limit`` bytes hold; one that is larger by itself is not kept."""
        self._tables[name] = table
        while sum(kept.nbytes for kept in self._tables.values()) > limit:
            self._tables.popitem(last=False)

    def drop(self) -> bool:
        """Keep the table no longer that was not used for the longest; ``False`` if there is none."""
        if not self._tables:
            return False
        self._tables.popitem(last=False)
        return True

    def clear(self) -> None:
        """Keep nothing: memory is short."""
        self._tables.clear()


TABLES = BuiltTables()
"""Those of this process."""


def unnumbered(node: Relation) -> Relation:
    """Leave out the numbers of scans: the same files may be numbered in several ways."""
    if isinstance(node, Scan):
        return dataclasses.replace(node, index=0)
    return node.with_children([unnumbered(child) for child in node.children]) if node.children else node
