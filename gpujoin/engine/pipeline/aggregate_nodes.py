"""Runs the aggregations of a tree."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType

import pyarrow as pa

from gpujoin.engine.pipeline.aggregation import Aggregation, SetLevel, aggregated_by_sets
from gpujoin.engine.pipeline.context import Piece, RunContext
from gpujoin.engine.pipeline.join_nodes import JoinNodes
from gpujoin.engine.pipeline.placement import MixedAggregation, MixedPipeline
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.files import Floor
from gpujoin.model.pipeline import AnyPipelineBackend, NumberedRows
from gpujoin.model.relations import PartialAggregate
from gpujoin.plan.complete_groups import scanned_keys
from gpujoin.plan.eager_aggregation import EagerAggregation, eager_aggregation
from gpujoin.plan.grouping_sets import GroupingSets, grouping_sets, most_held
from gpujoin.plan.late_keys import LateKeys, late_keys
from gpujoin.plan.runtime_filters import may_raise

HEAVY = 8
"""Eager aggregation is used where this many rows of a sample of the build side have the same key."""


class AggregateNodes:
    """Runs aggregations: rows of each piece to groups, and these to fewer.

    Over a join some are computed otherwise: with the build side aggregated before the join (`plan.eager_aggregation`),
    by numbers of the build side's rows in place of their columns (`plan.late_keys`), and over an `Expand` by each
    grouping set from a finer one (`plan.grouping_sets`).
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._joins = JoinNodes(run)

    def pieces(self, node: PartialAggregate) -> Iterator[Piece]:
        """Compute an aggregation."""
        eager = eager_aggregation(node)
        if eager is not None:
            return self._aggregated_eagerly(node, eager)
        backend = self._run.backend
        if isinstance(backend, MixedPipeline):
            return self._groups_of(node, self._aggregated(node, self._run.pieces(node.child)))
        sets = None if node.child in self._run.repeated else grouping_sets(node)
        late = late_keys(node if sets is None else sets.finest, self._run.repeated)
        if late is not None:
            return self._aggregated_late(backend, node, sets, late)
        if sets is None:
            return self._groups_of(node, self._aggregated_in_order(node))
        return self._grouped(backend, node, sets.finest, sets, self._run.pieces(sets.finest.child))

    def _groups_of(self, node: PartialAggregate, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Count the groups of an aggregation."""
        return self._run.counts.pass_on(node, pieces, self._run.backend.size)

    def _grouped(
        self,
        backend: AnyPipelineBackend,
        node: PartialAggregate,
        finest: PartialAggregate,
        sets: GroupingSets | None,
        pieces: Iterator[Piece],
    ) -> Iterator[Piece]:
        """Aggregate rows by all keys, or by grouping sets. Groups count as output of ``node``."""
        if sets is None:
            yield from self._groups_of(node, self._aggregated(finest, pieces))
            return
        levels = [SetLevel(each.source, each.keys) for each in sets.sets]
        for place, groups in self._groups_of_sets(backend, node, finest, levels, pieces):
            yield backend.project(groups, sets.sets[place].outputs)

    def _aggregated_eagerly(self, node: PartialAggregate, eager: EagerAggregation) -> Iterator[Piece]:
        """Aggregate over a join, with eager aggregation of the build side if some of its keys have many rows."""
        backend, join = self._run.backend, eager.join
        side = join.build_side
        pieces, rest = self._joins.build_pieces(join.side(side))
        if rest is not None:
            pairs = self._joins.gather_join(join, itertools.chain(pieces, rest), None, self._joins.streamed(join))
            yield from self._groups_of(node, self._aggregated(node, pairs))
            return
        build = backend.concat(pieces, join.side(side).schema, self._run.metrics)
        self._joins.skip_without_match(join, build)
        streamed = self._joins.streamed(join)
        rows = backend.size(build)[0]
        pieces.clear()
        keys = [key.of(side) for key in join.spec.keys]
        most_pairs = Literal(value=rows, type=pa.int64())
        sums = [
            Call(function=Function.MULTIPLY, arguments=(total, most_pairs), mode=EvalMode.ANSI, type=pa.int64())
            for total in eager.sums
        ]
        if backend.heaviest(build, keys) < HEAVY or not backend.proves([*eager.of_build, *sums], [build]):
            yield from self._groups_of(node, self._aggregated(node, self._joins.joined(join, build, streamed)))
            return
        self._run.metrics.eager_aggregations += 1
        groups = list(self._aggregated(eager.built, iter([build])))
        grouped_build = backend.concat(groups, eager.built.schema, self._run.metrics)
        joined = self._pairs_or_sums(eager, build, grouped_build, streamed)
        for piece in self._groups_of(node, self._aggregated(eager.final, joined)):
            yield backend.project(piece, eager.outputs)

    def _pairs_or_sums(
        self, eager: EagerAggregation, build: Piece, built: Piece, streamed: Iterator[Piece]
    ) -> Iterator[Piece]:
        """Input of the final aggregation: sums over all pairs of a key where nothing can fail, else single pairs."""
        backend = self._run.backend

        def is_exact(piece: Piece) -> bool:
            return backend.proves(eager.of_pairs, [piece, build]) and backend.proves(eager.of_joined, [piece, built])

        for exact, pieces in itertools.groupby(self._run.collected(streamed), is_exact):
            node, side, values = (eager.joined, built, eager.aggregated) if exact else (eager.join, build, eager.plain)
            for joined in self._joins.joined(node, side, pieces):
                yield backend.project(joined, values)

    def _aggregated(
        self, node: PartialAggregate, pieces: Iterator[Piece], scanned: Mapping[int, int] = MappingProxyType({})
    ) -> Iterator[Piece]:
        """Aggregate pieces. ``scanned`` maps columns of a scan, which tell complete groups, to keys."""
        backend, budget = self._run.backend, 2 * self._run.memory.state_bytes
        with ExitStack() as stack:
            new_store = partial(self._run.new_store, stack)
            if isinstance(backend, MixedPipeline):
                mixed = MixedAggregation(backend, node, budget, new_store)
                for piece in pieces:
                    yield from mixed.add(piece)
                yield from mixed.finish()
                return
            state = backend.aggregate(node, self._run.metrics)
            aggregation = Aggregation(state, node, budget, self._run.metrics, new_store, ordered=state)
            for states, floor in self._run.ahead(lambda piece: (state.reduce(piece), backend.floor(piece)), pieces):
                key = None if floor is None else scanned.get(floor.column)
                of_key = None if floor is None or key is None else Floor(key, floor.value)
                yield from aggregation.add_groups(states, of_key)
            yield from aggregation.finish()

    def _aggregated_in_order(self, node: PartialAggregate) -> Iterator[Piece]:
        """Aggregate, and return a group early if the scanned files tell that it is complete."""
        stopped = node in self._run.may_stop and may_raise(node)
        ordered = None if stopped else scanned_keys(node, self._run.repeated)
        if ordered is not None:
            self._run.ascending[ordered.scan] = tuple(ordered.keys)
        return self._aggregated(node, self._run.pieces(node.child), {} if ordered is None else ordered.keys)

    def _aggregated_late(
        self, backend: AnyPipelineBackend, node: PartialAggregate, sets: GroupingSets | None, late: LateKeys
    ) -> Iterator[Piece]:
        """Aggregate over a join by row numbers of the build side, unless fewer pairs come than half of its rows."""
        pieces, rest = self._joins.build_pieces(late.built)
        build = None if rest is not None else backend.concat(pieces, late.built.schema, self._run.metrics)
        if build is None or not backend.proves(late.keys, [build]):
            self._run.computed[late.built] = itertools.chain(pieces, rest or ())
            finest = node if sets is None else sets.finest
            yield from self._grouped(backend, node, finest, sets, self._run.pieces(finest.child))
            return
        rows = backend.numbered_rows(build, late.keys)
        pieces.clear()
        self._run.computed[late.source] = iter([rows.numbered(late.build_columns)])
        joined = self._run.collected(self._run.pieces(late.numbered.child))
        first, joined_rows = [], 0
        for piece in joined:
            first.append(piece)
            joined_rows += backend.size(piece)[0]
            if joined_rows > rows.rows // 2:
                break
        else:
            number = len(late.numbered.child.schema) - 1
            whole = (backend.project(rows.appended(piece, number), late.of_rows) for piece in first)
            yield from self._grouped(backend, node, late.by_rows, sets, whole)
            return
        self._run.metrics.late_keys += 1
        alike = rows.alike(range(len(late.keys)))
        renumbered = (rows.renumbered(piece, alike) for piece in itertools.chain(first, joined))
        if sets is None:
            for groups in self._groups_of(node, self._aggregated(late.numbered, renumbered)):
                yield backend.project(rows.appended(groups, 0), late.of_groups)
            return
        levels = _numbered_levels(sets, late, rows)
        for place, groups in self._groups_of_sets(backend, node, late.numbered, levels, renumbered):
            whole = backend.project(rows.appended(groups, 0), late.of_groups)
            yield backend.project(whole, sets.sets[place].outputs)

    def _groups_of_sets(
        self,
        backend: AnyPipelineBackend,
        node: PartialAggregate,
        finest: PartialAggregate,
        levels: Sequence[SetLevel],
        pieces: Iterator[Piece],
    ) -> Iterator[tuple[int, Piece]]:
        """Aggregate rows by grouping sets. Groups come with their set's number, and count as output of ``node``."""
        budget = 2 * self._run.memory.state_bytes // most_held(finest, [level.source for level in levels])
        with ExitStack() as stack:
            state = backend.aggregate(finest, self._run.metrics)
            new_store = partial(self._run.new_store, stack)
            reduced = self._run.ahead(state.reduce, pieces)
            for place, groups in aggregated_by_sets(
                state, finest, levels, reduced, budget, self._run.metrics, new_store
            ):
                self._run.counts.give(node, *self._run.backend.size(groups))
                yield place, groups


def _numbered_levels(sets: GroupingSets, late: LateKeys, rows: NumberedRows[Piece]) -> list[SetLevel]:
    """Levels of grouping sets over groups by row number, each with the numbers that its late keys leave."""
    keys_of_sets = [late.standing_for(each.keys) for each in sets.sets]
    alike = {late_kept: rows.alike(late_kept) for _, late_kept in keys_of_sets if late_kept}
    levels = []
    for each, (keys, late_kept) in zip(sets.sets, keys_of_sets, strict=True):
        is_same = each.source is None or late_kept == keys_of_sets[each.source][1]
        levels.append(SetLevel(each.source, keys, None if is_same else alike.get(late_kept)))
    return levels
