"""Runs the joins of a tree."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator
from contextlib import ExitStack

import pyarrow as pa

from gpujoin.engine.join.hash_join import HashJoin, JoinRun, bytes_of
from gpujoin.engine.pipeline.context import Piece, RunContext
from gpujoin.engine.pipeline.reuse import TableReuse
from gpujoin.model.jointype import Side
from gpujoin.model.relations import Join, Relation
from gpujoin.plan.fragments import ColumnTree
from gpujoin.plan.runtime_filters import keys_of
from gpujoin.plan.skipping import matching_keys, scans_of

MOST_KEYS = 1 << 18
"""Most keys of a build side that are looked up while the other side is read; measured in `docs/performance.md`.

Sorting them takes some 5 ms. With more, looking them up costs as much as the join that it saves rows for.
"""

MOST_KEYS_OF_CONDITIONS = 1 << 21
"""The same for joins with a condition, which cost several times as much a row. Sorting takes some 70 ms."""


class JoinNodes:
    """Runs joins: builds one side in memory, then joins the other one, a piece at a time.

    A join whose build side is small may be part of the backend's query of a piece (`PipelineBackend.lookup`). Others
    are gather maps (:class:`~gpujoin.engine.join.hash_join.HashJoin`), which also go to disk where memory is short.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._reuse = TableReuse(run)

    def pieces(self, node: Join) -> Iterator[Piece]:
        """Compute a join."""
        side = node.build_side
        name = self._reuse.name_of_build_side(node)
        table = self._reuse.build_side(name)
        if table is not None:
            self._run.metrics.tables_kept += 1
            yield from self._probed(
                node, table.join.start(self._run.settings.join_metrics), table.piece, self.streamed(node)
            )
            return
        pieces, rest = self.build_pieces(node.side(side))
        if rest is not None:
            yield from self.gather_join(node, itertools.chain(pieces, rest), None, self.streamed(node))
            return
        build = self._run.backend.concat(pieces, node.side(side).schema, self._run.metrics)
        pieces.clear()
        if name is None:
            self.skip_without_match(node, build)
            yield from self.joined(node, build, self.streamed(node))
        else:
            yield from self.gather_join(node, iter([build]), build, self.streamed(node), name)

    def skip_without_match(self, node: Join, build: Piece) -> None:
        """Have scans of the stream side skip row groups without a match for the build side."""
        side = node.build_side.other
        streamed = ColumnTree.from_relation(node.side(side))
        columns = streamed.at(keys_of(node, side))
        most = MOST_KEYS if node.spec.condition is None else MOST_KEYS_OF_CONDITIONS
        for of_build, of_streamed in matching_keys(node):
            scans = [
                (scan, column)
                for scan, column in scans_of(streamed, streamed.ids[of_streamed], columns, self._run.repeated)
                if self._run.places[scan] == 1  # a node that stands elsewhere, too, gives all rows there
            ]
            ranges = self._run.backend.value_ranges(build, of_build, most) if scans else None
            if ranges is not None:
                for scan, column in scans:
                    self._run.match_ranges[scan].append((column, ranges))

    def streamed(self, node: Join) -> Iterator[Piece]:
        """Compute the side of a join that is not its build side."""
        return self._run.pieces(node.side(node.build_side.other))

    def joined(self, node: Join, build: Piece, streamed: Iterator[Piece]) -> Iterator[Piece]:
        """Join pieces of the stream side with a build side in memory."""
        lookup = self._run.backend.lookup(node, build)
        if lookup is None:
            yield from self.gather_join(node, iter([build]), build, streamed)
            return
        for piece in streamed:
            self._run.metrics.query_joins += 1
            yield from lookup.join(piece)
        yield from lookup.finish()

    def gather_join(
        self,
        node: Join,
        built: Iterator[Piece],
        build_piece: Piece | None,
        pieces: Iterator[Piece],
        name: Hashable | None = None,
    ) -> Iterator[Piece]:
        """Build one side, and join the pieces of the other with it. A build side with a name is stored for later runs.

        ``build_piece`` has all rows of the build side, if these are in memory.
        """
        backend, side = self._run.backend, node.build_side
        schemas = self._schemas(node, build_piece)
        with ExitStack() as stack:
            join = stack.enter_context(
                HashJoin(
                    node.spec, schemas[Side.LEFT], schemas[Side.RIGHT], build_side=side, options=self._run.options,
                    backend=backend.joins, metrics=self._run.settings.join_metrics,
                )
            )  # fmt: skip
            join.build(batch for piece in built for batch in backend.to_join(piece, schemas[side]))
            if join.spilled and build_piece is not None and schemas != self._schemas(node, None):
                # Rows that go to disk take their late columns along.
                stack.close()
                yield from self.gather_join(node, iter([build_piece]), None, pieces)
                return
            if name is not None and self._reuse.store_build_side(name, join, build_piece):
                stack.pop_all()  # it stays open
            passed = join.start()
            if join.spilled:  # in one call: each call would write its own files
                stack.callback(passed.close)
                for _ in passed.probe(self._to_probe(pieces, schemas[side.other])):
                    raise AssertionError("a join whose build side is on disk gives rows when it is finished only")
            yield from self._probed(node, passed, build_piece, pieces)

    def _schemas(self, node: Join, build_piece: Piece | None) -> dict[Side, pa.Schema]:
        """The layouts of both sides' rows in a join; late columns are numbers if the build side is known."""
        return {side: self._run.backend.join_schema(node, side, values=build_piece is None) for side in Side}

    def _probed(
        self, node: Join, passed: JoinRun, build_piece: Piece | None, pieces: Iterator[Piece]
    ) -> Iterator[Piece]:
        """Join pieces of the streamed side with a built side."""
        backend, side = self._run.backend, node.build_side
        schema = self._schemas(node, build_piece)[side.other]
        for streamed in self._run.collected(pieces):
            if passed.can_stop:
                break
            self._run.metrics.gather_joins += 1
            joined = self._pairs(node, passed.probe(backend.to_join(streamed, schema)))
            yield from backend.from_join(joined, node, {side: build_piece, side.other: streamed}, self._run.metrics)
        last = self._pairs(node, passed.finish())
        yield from backend.from_join(last, node, {side: build_piece, side.other: None}, self._run.metrics)

    def _pairs(self, node: Join, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._run.counts.pass_on(node, iter(batches), lambda batch: (batch.num_rows, bytes_of(batch)))

    def _to_probe(self, pieces: Iterator[Piece], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for piece in self._run.collected(pieces):
            self._run.metrics.gather_joins += 1
            yield from self._run.backend.to_join(piece, schema)

    def build_pieces(self, node: Relation) -> tuple[list[Piece], Iterator[Piece] | None]:
        """The pieces of a build side; beyond the memory budget the first pieces, and an iterator over the others."""
        name = self._reuse.name_of_rows(node)
        stored = None if name is None else self._reuse.rows(name)
        if stored is not None:
            self._run.metrics.tables_kept += 1
            for piece in stored:
                self._run.counts.take(node, *self._run.backend.size(piece))
            return list(stored), None
        pieces: list[Piece] = []
        size = 0
        source = self._run.collected(self._run.pieces(node))
        for piece in source:
            pieces.append(piece)
            rows, nbytes = self._run.backend.size(piece)
            self._run.counts.take(node, rows, nbytes)
            size += nbytes
            while size > self._run.backend.budget(self._run.memory.build_bytes):
                if not self._reuse.make_room():
                    return pieces, source
        if name is not None:
            pieces = self._reuse.store_rows(name, node, pieces, size)
        return pieces, None
