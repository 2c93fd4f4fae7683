"""Decides which inputs of a tree are divided among tasks, which are replicated, and where rows are exchanged.

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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpujoin.errors import KeyTypeError
from gpujoin.model.expressions import ColumnId
from gpujoin.model.jointype import Side
from gpujoin.model.relations import (
    ConstantTable,
    Join,
    Limit,
    PartialAggregate,
    Project,
    PythonAggregate,
    PythonCogroups,
    PythonRows,
    PythonStep,
    PythonWindow,
    Relation,
    Scan,
    SparkSource,
    TopN,
    Union,
    Window,
)
from gpujoin.model.stages import NullKeys, Stage
from gpujoin.plan.fragments import ColumnTree, with_key_columns
from gpujoin.plan.join_parts import JoinPlacer
from gpujoin.plan.key_types import key_type
from gpujoin.plan.merging import is_mergeable, merged
from gpujoin.plan.parts import STAGE_BYTES, Cut, Part, Planning, ScanFacts, StageLimits, in_the_same_task
from gpujoin.plan.ranges import Shape, shape_of_node

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
    part = _Planner(Planning(facts, limits)).place(ColumnTree.from_relation(below))
    if part is None:
        return None
    tree = part.tree
    for node in reversed(top):
        tree = node.with_children([tree])
    return part.above(part.rows.under(tree)).stage(limits)


def plan_one_task(relation: Relation, limits: StageLimits) -> Stage:
    """Make a stage of one task that reads everything, and to which rows from Spark are sent."""
    return Planning({}, limits).in_one_task(ColumnTree.from_relation(relation)).stage(limits)


@dataclass(frozen=True)
class _Planner:
    planning: Planning
    filters: bool = True
    """Whether keys drop rows before they are exchanged."""

    def place(self, tree: ColumnTree) -> Part | None:
        """Share out the rows of a subtree among tasks as cheaply as possible; ``None`` if that is impossible."""
        match node := tree.relation:
            case Scan() | SparkSource() | ConstantTable():
                return self.planning.leaf(tree, node)
            case Union():
                return self._union(tree)
            case Join():
                divided = self._join(tree, self.planning.dividing()) if self._compares_many(node) else None
                return divided or self._join(tree, self.planning)
        below = self.place(tree.inputs[0]) if tree.inputs else None
        if below is None:
            return None
        match node:
            case PartialAggregate() if node.final:
                return self._final(tree, node, below)
            case TopN() | Limit() if node.final:
                return self._limited(tree, node, below)
            case Window():
                return self._partitioned(tree, node.partition, below)
            case PythonRows(keys=tuple() as keys):
                return self._partitioned(tree, keys, below)
            case PythonAggregate() | PythonCogroups() | PythonWindow():
                return self._partitioned(tree, node.keys, below)
        return below.above(tree.over([below.rows]))

    def _join(self, tree: ColumnTree, planning: Planning) -> Part | None:
        below = dataclasses.replace(self, planning=planning)
        sides = {side: below.place(tree.side(side)) for side in Side}
        # Keys are not filtered by keys in turn: at each join of a chain all below it would be placed twice.
        keys = _Planner(planning, filters=False).place if self.filters else None
        return JoinPlacer(planning, keys).place(tree, sides)

    def _compares_many(self, node: Join) -> bool:
        """Whether a join of few rows has so many pairs that several tasks had better share them."""
        inputs = node.children
        if shape_of_node(node) is not Shape.PRODUCT or not all(map(self.planning.is_small, inputs)):
            return False
        return math.prod(self.planning.sizes.of(rows).rows for rows in inputs) > _MANY_PAIRS

    def _final(self, tree: ColumnTree, node: PartialAggregate, below: Part) -> Part | None:
        """Each group comes out of one task only, which must have all its rows."""
        (child,) = tree.inputs
        keys = tree.ids[: len(node.keys)]
        below = self._by_buckets(below, keys)
        if not _together(below, child.positions.keys() & keys):
            two_phases = self._two_phases(tree, node, below)
            if two_phases is not None:
                return two_phases
            if not child.positions.keys() >= set(keys):
                tree = with_key_columns(tree)
                (child,) = tree.inputs
                below = below.above(child.over([below.rows]))
            columns = child.read_by(tree.relation.expressions())
            brought = self._bring_together(below, keys, columns, node.child)
            if brought is None:
                return None
            below = brought
        return below.above(tree.over([below.rows]))

    def _two_phases(self, tree: ColumnTree, node: PartialAggregate, below: Part) -> Part | None:
        """Aggregate in part, exchange the groups and merge them; ``None`` if that is impossible."""
        partial = dataclasses.replace(node, final=False)
        if not is_mergeable(node.aggregates, partial.schema):
            return None
        whole = below.above(tree.over([below.rows]))
        part = whole.above(tree.under(partial.with_children([below.tree])))
        keys, tasks = tree.ids[: len(node.keys)], below.tasks(self.planning.limits)
        fed = self._bring_together(part, keys, tree.positions.keys(), partial, tasks)
        if fed is None:
            return None
        # Which groups come out twice changes when a task runs again; merged, they are the same.
        (exchange,) = fed.inputs
        settled = dataclasses.replace(exchange, indeterminate=whole.indeterminate)
        return dataclasses.replace(fed, inputs=(settled,)).above(tree.under(merged(fed.tree, node)))

    def _bring_together(
        self, below: Part, keys: Collection[ColumnId], output: Collection[ColumnId], node: Relation, copies: int = 1
    ) -> Part | None:
        """Exchange a node's rows so that those with equal columns are in one task.

        Few rows go to one task, all of them, as does the one group that each of ``copies`` tasks gives where there are
        no keys. ``None`` where that cannot be.
        """
        one_group = isinstance(node, PartialAggregate) and not keys
        if one_group or self.planning.is_small(node, copies):
            return self.planning.gathered(below.with_columns(output), node)
        cut = _cut_by(below, keys, output)
        return None if cut is None else self.planning.cut(below, cut, node)

    def _partitioned(self, tree: ColumnTree, partition: Sequence[int], below: Part) -> Part | None:
        """All rows with equal values in some columns of the input are in one task."""
        (child,) = tree.inputs
        keys = [child.ids[n] for n in partition]
        below = self._by_buckets(below, keys)
        if not keys and isinstance(tree.relation, PythonStep) and not below.in_one_task:
            below = self.planning.gathered(below.with_columns(child.positions.keys()), child.relation)
        elif not _together(below, set(keys)):
            brought = self._bring_together(below, keys, child.positions.keys(), child.relation)
            if brought is None:
                return None
            below = brought
        return below.above(tree.over([below.rows]))

    def _by_buckets(self, below: Part, keys: Collection[ColumnId]) -> Part:
        """Divide files by the buckets of a key, where this costs less than to exchange the rows."""
        if not below.divides_files or below.branches[0].bucketed:
            return below
        for bucketing in below.bucketings:
            if bucketing.column in keys:
                delay = self.planning.delay(bucketing.scans)
                if delay * below.cost < below.cost + STAGE_BYTES:
                    branch = dataclasses.replace(below.branches[0], bucketed=bucketing.scans)
                    cost = delay * below.cost
                    return dataclasses.replace(below, branches=(branch,), bucketings=(bucketing,), cost=cost)
        return below

    def _limited(self, tree: ColumnTree, node: TopN | Limit, below: Part) -> Part:
        """Each task gives as many rows as are asked for, and of these one task takes as many."""
        each = dataclasses.replace(node, child=below.tree, final=False)
        gathered = self.planning.gathered(below.above(tree.under(each)), node)
        return gathered.above(tree.over([gathered.rows]))

    def _union(self, tree: ColumnTree) -> Part | None:
        parts: list[Part] = []
        for child in tree.inputs:
            part = self.place(child)
            if part is None:
                return None
            parts.append(part)
        together = in_the_same_task(tree, parts, self.planning.limits)
        if together is not None:
            return together
        # Every task runs all inputs: what it has without reading a file would come out of each, not of one.
        if not all(part.branches for part in parts) or any(map(_is_repeated, parts)):
            inputs = (child.relation for child in tree.inputs)
            parts = [self.planning.spread(part, child) for part, child in zip(parts, inputs, strict=True)]
        return Part(
            tree.over([part.rows for part in parts]),
            tuple(branch for part in parts for branch in part.branches),
            tuple(exchange for part in parts for exchange in part.inputs),
            frozenset(),
            (),
            sum(part.cost for part in parts),
            sum(part.nbytes for part in parts),
        )


def _is_repeated(part: Part) -> bool:
    """Whether each task would give the rows of an input: they are sent to it, or no file has to be read for them."""
    return part.in_one_task and (bool(part.inputs) or any(map(_gives_rows_of_nothing, part.tree.walk())))


def _gives_rows_of_nothing(node: Relation) -> bool:
    """Whether a node gives rows without reading any: rows of the query itself, totals without keys."""
    return isinstance(node, ConstantTable) or (isinstance(node, PartialAggregate) and not node.keys)


def _together(part: Part, columns: Collection[ColumnId]) -> bool:
    """Whether rows with equal values in these columns are in one task."""
    if part.in_one_task or any(set(by.columns) <= set(columns) and not by.spread for by in part.partitionings):
        return True
    by_buckets = part.divides_files and bool(part.branches[0].bucketed)
    return by_buckets and any(by.column in columns for by in part.bucketings)


def _cut_by(part: Part, keys: Collection[ColumnId], output: Collection[ColumnId]) -> Cut | None:
    """Make an exchange that brings rows with equal columns together; ``None`` if no such column is determinate."""
    key_ids = [id_ for id_ in keys if id_ in part.determinate]
    dtypes = [part.tree.schema.field(part.rows.positions[id_]).type for id_ in key_ids]
    try:
        types = [key_type(dtype, dtype) for dtype in dtypes]
    except KeyTypeError:
        return None
    return Cut(output, key_ids, types, [True] * len(key_ids), NullKeys.SPREAD) if key_ids else None
