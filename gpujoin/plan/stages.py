"""Which inputs of a tree are divided among tasks, which are read by every task, and where rows are exchanged.

The planner goes through the tree from the scans up and keeps, for each subtree, the cheapest way to share its rows out
among tasks (`gpujoin.plan.parts`). At a join there are three (`gpujoin.plan.join_parts`), and a join may ask for one of
them. Costs are compressed bytes read, with exchanged bytes weighed against them.

Files can be read by every task. Rows from Spark cannot: where every task needs them, they are exchanged, a copy to each
task. The tasks in which Spark computes rows can take none through exchanges; where they need some, their own rows are
exchanged first, each to any task. For a star query of ``sales`` (Parquet, 3 splits) and ``stores`` (a cached table)::

    join (right side built)                 stage 2, 3 tasks: join
      scan sales                              scan sales, a third each
      rows from Spark: stores                 source 0: all of stores, three times over
                                            stage 1, a task for each partition of stores: source 1, as Spark gives it
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpujoin.errors import KeyTypeError
from gpujoin.model.expressions import ColumnRef
from gpujoin.model.jointype import Side
from gpujoin.model.relations import (
    ConstantTable,
    Expand,
    Explode,
    Filter,
    Join,
    Limit,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    SparkSource,
    TopN,
    Union,
    Window,
)
from gpujoin.model.stages import NullKeys, Stage
from gpujoin.plan.join_parts import JoinPlacer
from gpujoin.plan.key_types import key_type
from gpujoin.plan.merging import is_mergeable, merged
from gpujoin.plan.parts import Cut, Part, Planning, ScanFacts, StageLimits, in_the_same_task
from gpujoin.plan.ranges import Shape, shape_of_node
from gpujoin.plan.remap import positions_of, remapped_aggregate, with_key_columns

_MANY_PAIRS = 1 << 26
"""Pairs of rows that one task compares in some two seconds (``Costs.pair``)."""


def numbered(relation: Relation) -> tuple[Relation, tuple[int, ...]]:
    """Number the scans of a tree anew, each by itself, and give the index that each had.

    The same files may be read in several places.
    """
    indexes: list[int] = []

    def visit(node: Relation) -> Relation:
        if isinstance(node, Scan):
            number = len(indexes)
            indexes.append(node.index)
            return node if node.index == number else dataclasses.replace(node, index=number)
        return node.with_children([visit(child) for child in node.children]) if node.children else node

    return visit(relation), tuple(indexes)


def plan_stages(relation: Relation, facts: Mapping[int, ScanFacts], limits: StageLimits) -> Stage | None:
    """Cut a tree without sources, every scan with an index of its own (:func:`numbered`), into stages.

    The rows of the last stage's tasks together are those of the tree, where a group of a partial aggregation may come
    out of several tasks, and a limit at the top is one of each task. ``None`` where that cannot be.
    """
    top, below = [], relation
    while isinstance(below, Project) or (isinstance(below, (Limit, TopN)) and not below.final):
        top.append(below)
        below = below.child
    part = _Planner(Planning(facts, limits)).place(below)
    if part is None:
        return None
    for node in reversed(top):
        part = part.above(node.with_children([part.tree]))
    return part.stage(limits)


def plan_one_task(relation: Relation, limits: StageLimits) -> Stage:
    """Make a stage of one task that reads all that a tree reads; rows from Spark are sent to it."""
    return Planning({}, limits).in_one_task(relation).stage(limits)


@dataclass(frozen=True)
class _Planner:
    planning: Planning
    filters: bool = True
    """Whether keys drop rows before they are exchanged."""

    def place(self, node: Relation) -> Part | None:
        """Share the rows of a subtree out among tasks, as cheaply as can be; ``None`` where that cannot be."""
        match node:
            case Scan() | SparkSource() | ConstantTable():
                return self.planning.leaf(node)
            case Filter():
                below = self.place(node.child)
                return None if below is None else below.above(node.with_children([below.tree]), below.known)
            case Project():
                below = self.place(node.child)
                if below is None:
                    return None
                positions = positions_of(node.outputs)
                return below.above(node.with_children([below.tree]), (by.moved(positions) for by in below.known))
            case Expand():
                below = self.place(node.child)
                return None if below is None else below.above(node.with_children([below.tree]))
            case Explode():
                below = self.place(node.child)
                if below is None:
                    return None
                places = {old: new for new, old in enumerate(node.kept)}
                return below.above(node.with_children([below.tree]), (by.moved(places) for by in below.known))
            case PartialAggregate():
                return self._final(node) if node.final else self._partial(node)
            case Window():
                return self._window(node)
            case TopN() | Limit():
                return self._limited(node)
            case Union():
                return self._union(node)
            case Join():
                divided = self._join(node, self.planning.dividing()) if self._compares_many(node) else None
                return divided or self._join(node, self.planning)
            case _:
                return None

    def _join(self, node: Join, planning: Planning) -> Part | None:
        below = dataclasses.replace(self, planning=planning)
        sides = {side: below.place(node.side(side)) for side in Side}
        # Keys are not filtered by keys in turn: at each join of a chain all below it would be placed twice.
        keys = _Planner(planning, filters=False).place if self.filters else None
        return JoinPlacer(planning, keys).place(node, sides)

    def _compares_many(self, node: Join) -> bool:
        """Whether a join of few rows compares so many pairs of them that several tasks had better share them."""
        inputs = node.children
        if shape_of_node(node) is not Shape.PRODUCT or not all(map(self.planning.is_small, inputs)):
            return False
        return math.prod(self.planning.sizes.of(rows).rows for rows in inputs) > _MANY_PAIRS

    def _partial(self, node: PartialAggregate) -> Part | None:
        below = self.place(node.child)
        if below is None:
            return None
        positions = positions_of(node.keys)
        return below.above(node.with_children([below.tree]), (by.moved(positions) for by in below.known))

    def _final(self, node: PartialAggregate) -> Part | None:
        """Each group comes out of one task only, which must have all its rows."""
        below = self.place(node.child)
        if below is None:
            return None
        keys = [key.expression for key in node.keys]
        if not _together(below, {key.index for key in keys if isinstance(key, ColumnRef)}):
            two_phases = self._two_phases(node, below)
            if two_phases is not None:
                return two_phases
            if any(not isinstance(key, ColumnRef) for key in keys):
                node = with_key_columns(node, below.tree)
                below = below.above(node.child, below.known)
                keys = [key.expression for key in node.keys]
            refs = [key.index for key in keys if isinstance(key, ColumnRef)]
            used = set(refs).union(*({ref.index for ref in part.columns()} for part in node.expressions()))
            brought = self._brought_together(below, refs, used, node.child)
            if brought is None:
                return None
            below, moved = brought
            node = remapped_aggregate(node, below.tree, moved)
        positions = positions_of(node.keys)
        return below.above(node.with_children([below.tree]), (by.moved(positions) for by in below.known))

    def _two_phases(self, node: PartialAggregate, below: Part) -> Part | None:
        """Aggregate in part, exchange the groups, and merge them; ``None`` where that cannot be."""
        partial = dataclasses.replace(node, final=False)
        if not is_mergeable(node.aggregates, partial.schema):
            return None
        part = below.above(partial.with_children([below.tree]))
        brought = self._brought_together(
            part, range(len(node.keys)), set(range(len(partial.schema))), partial, below.tasks(self.planning.limits)
        )
        if brought is None:
            return None
        fed, _ = brought
        # Which groups come out twice changes when a task runs again; merged, they are the same.
        (exchange,) = fed.inputs
        settled = dataclasses.replace(
            exchange, indeterminate=below.above(node.with_children([below.tree])).indeterminate
        )
        return dataclasses.replace(fed, inputs=(settled,)).above(merged(fed.tree, node), fed.known)

    def _brought_together(
        self, below: Part, keys: Sequence[int], used: set[int], node: Relation, copies: int = 1
    ) -> tuple[Part, dict[int, int]] | None:
        """Exchange a node's rows so that those equal in columns are in one task, with the columns that are used.

        Few rows go to one task, all of them, as does the one group that each of ``copies`` tasks gives where there are
        no keys. ``None`` where that cannot be.
        """
        one_group = isinstance(node, PartialAggregate) and not keys
        if one_group or self.planning.is_small(node, copies):
            return self.planning.gathered(below, node, sorted(used))
        cut = _cut_by(below, keys, used)
        return None if cut is None else self.planning.cut(below, cut, node)

    def _window(self, node: Window) -> Part | None:
        """All rows of a partition are in one task."""
        below = self.place(node.child)
        if below is None:
            return None
        if not _together(below, set(node.partition)):
            brought = self._brought_together(below, node.partition, set(range(len(node.child.schema))), node.child)
            if brought is None:
                return None
            below, _ = brought
        return below.above(node.with_children([below.tree]), below.known)

    def _limited(self, node: TopN | Limit) -> Part | None:
        """Each task gives as many rows as are asked for; of these one task takes as many, if that is said of all."""
        below = self.place(node.child)
        if below is None:
            return None
        if not node.final:
            return below.above(node.with_children([below.tree]))
        each = dataclasses.replace(node, child=below.tree, final=False)
        gathered, _ = self.planning.gathered(below.above(each), node)
        return gathered.above(node.with_children([gathered.tree]))

    def _union(self, node: Union) -> Part | None:
        parts: list[Part] = []
        for child in node.inputs:
            part = self.place(child)
            if part is None:
                return None
            parts.append(part)
        together = in_the_same_task(node, parts, self.planning.limits)
        if together is not None:
            return together
        # Every task runs all inputs: what it has without reading a file would come out of each, not of one.
        if not all(part.branches for part in parts) or any(map(_is_had_by_all, parts)):
            parts = [self.planning.spread(part, child) for part, child in zip(parts, node.inputs, strict=True)]
        return Part(
            node.with_children([part.tree for part in parts]),
            tuple(branch for part in parts for branch in part.branches),
            tuple(exchange for part in parts for exchange in part.inputs),
            frozenset(),
            (),
            sum(part.cost for part in parts),
            sum(part.nbytes for part in parts),
        )


def _is_had_by_all(part: Part) -> bool:
    """Whether every task would give rows that one task is to give: they are sent to it, or need nothing to be read."""
    return part.in_one_task and (bool(part.inputs) or any(map(_gives_rows_of_nothing, part.tree.walk())))


def _gives_rows_of_nothing(node: Relation) -> bool:
    """Whether a node gives rows where nothing is read of its scans: rows of the query itself, totals without keys."""
    return isinstance(node, ConstantTable) or (isinstance(node, PartialAggregate) and not node.keys)


def _together(part: Part, columns: set[int]) -> bool:
    """Whether rows with equal values in these columns are in one task."""
    return part.in_one_task or any(columns.issuperset(by.columns) and not by.spread for by in part.known)


def _cut_by(part: Part, keys: Sequence[int], used: set[int]) -> Cut | None:
    """An exchange that brings rows together that are equal in columns; ``None`` where none of those can decide."""
    schema = part.tree.schema
    places = [i for i in keys if i not in part.indeterminate]
    try:
        types = [key_type(schema.field(i).type, schema.field(i).type) for i in places]
    except KeyTypeError:
        return None
    return Cut(sorted(used), places, types, [True] * len(places), NullKeys.SPREAD) if places else None
