"""Names and stores the build sides and rows of tables that later runs of a process use again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Hashable, Sequence

from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.pipeline.context import Piece, RunContext
from gpujoin.engine.pipeline.placement import MixedPiece
from gpujoin.engine.pipeline.resident import ResidentTable
from gpujoin.engine.pipeline.tables import BuiltTable, TableRows, unnumbered
from gpujoin.model.jointype import Side
from gpujoin.model.relations import ExchangeSource, Join, Relation, Scan
from gpujoin.plan.distribution import is_table

_OF_TABLES = 8
"""A table of more than this part of the memory for tables is not stored: others would have no room."""


class TableReuse:
    """Decides which build sides of a run are stored for later runs, under which name, and where.

    On the CPU they are in :class:`~gpujoin.engine.pipeline.tables.BuiltTables`, on a device in what belongs to that
    device.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._settings = run.settings
        self._cache = run.settings.cache

    def name_of_build_side(self, node: Join) -> Hashable | None:
        """Name of a join's build side, if it is stored; else ``None``."""
        side = node.build_side
        table, streamed = node.side(side), node.side(side.other)
        if not self._cache.stores_build_sides or not is_table(table) or is_table(streamed) or not _is_settled(table):
            return None
        sides = {side: unnumbered(table), side.other: ExchangeSource(0, streamed.schema)}
        named = dataclasses.replace(node, left=sides[Side.LEFT], right=sides[Side.RIGHT])
        schemas = tuple(self._run.backend.join_schema(node, side, values=False) for side in Side)
        return type(self._run.backend), named, schemas, self._settings.requested_options

    def name_of_rows(self, node: Relation) -> Hashable | None:
        """Name of the rows of a build side, if they are stored; else ``None``.

        Rows are not stored if this run reads only a part of them, or has or keeps them otherwise.
        """
        scans = [scan for scan in node.walk() if isinstance(scan, Scan)]
        replicated = all(scan.index in self._cache.replicated for scan in scans)
        if (
            not scans
            or not (replicated or node in self._settings.stored_rows)
            or any(scan in self._run.match_ranges for scan in scans)
        ):
            return None
        if not is_table(node) or not _is_settled(node):
            return None
        if any(part in self._run.computed or part in self._run.repeated for part in node.walk()):
            return None
        return "rows", type(self._run.backend), unnumbered(node), self._settings.requested_options

    def rows(self, name: Hashable) -> Sequence[Piece] | None:
        """Pieces of a build side that an earlier run has stored."""
        if self._cache.resident is not None:
            table = self._cache.resident.get(name)
            return None if table is None else (table.piece,)
        rows = None if self._cache.built is None else self._cache.built.rows(name)
        return None if rows is None else rows.pieces

    def store_rows(self, name: Hashable, node: Relation, pieces: list[Piece], size: int) -> list[Piece]:
        """Store the pieces of a build side for later runs. Returns the stored pieces: one on the device."""
        backend, memory = self._run.backend, self._run.memory
        if self._cache.resident is not None:
            piece = backend.concat(pieces, node.schema, self._run.metrics)
            if isinstance(piece, MixedPiece) and piece.frame is not None:
                self._cache.resident.put(name, ResidentTable(piece, backend.size(piece)[1]))
            return [piece]
        if self._cache.built is not None and size <= memory.tables_bytes // _OF_TABLES:
            self._cache.built.put(name, TableRows(tuple(pieces), size), memory.tables_bytes)
        return pieces

    def build_side(self, name: Hashable | None) -> BuiltTable | None:
        """The built side that an earlier run has stored under a name."""
        return None if name is None or self._cache.built is None else self._cache.built.get(name)

    def store_build_side(self, name: Hashable, join: HashJoin, piece: Piece | None) -> bool:
        """Store a built side, with its rows in the pipeline's form. If it is stored, the join stays open."""
        if self._cache.built is None or join.spilled:
            return False
        # The join's rows are those of the piece, but for the values of late columns, which the piece alone counts.
        piece_bytes = 0 if piece is None else self._run.backend.size(piece)[1]
        table = BuiltTable(join, piece, max(join.build_bytes, piece_bytes))
        self._cache.built.put(name, table, self._run.memory.tables_bytes)
        return True

    def make_room(self) -> bool:
        """Let go of one table; ``False`` if none is stored."""
        return self._cache.built is not None and self._cache.built.drop()


def _is_settled(table: Relation) -> bool:
    """Whether a later change of a table's files will show in their times."""
    now_ms = time.time_ns() // 1_000_000
    return all(part.is_settled(now_ms) for scan in table.walk() if isinstance(scan, Scan) for part in scan.slices or ())
