"""How the rows of a join are shared out among tasks.

There are three ways: one side is shared out and every task reads the other, or is sent its rows; the other way round;
or both sides are exchanged by their keys, but for a side that is partitioned by them already. Where both have few rows,
one task may join them. The cheapest is taken. Sides that are in one task each are joined by one, without an exchange.
Before rows are exchanged, keys of the other side may drop some (`runtime_filters`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from gpujoin.model.expressions import ColumnId
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import (
    ExchangeSource,
    Join,
    Limit,
    PythonStep,
    Relation,
    Scan,
    SparkSource,
    TopN,
)
from gpujoin.model.spec import NullEquality
from gpujoin.model.stages import Branch, Distribution, null_keys_of
from gpujoin.plan.distribution import DIVIDES
from gpujoin.plan.fragments import ColumnTree, Fragment
from gpujoin.plan.key_types import key_type
from gpujoin.plan.parts import (
    ALONE,
    BUILDING,
    EXCHANGED,
    WAITING,
    Bucketing,
    Cut,
    Part,
    Partitioning,
    Planning,
    in_the_same_task,
)
from gpujoin.plan.runtime_filters import filtered_by_keys, keys_of, may_raise

_MOST_EXCHANGES = 1
"""Before the keys that a side is filtered by, which are computed once more."""


@dataclass(frozen=True)
class JoinPlacer:
    """Shares the rows of joins out."""

    planning: Planning
    place_keys: Callable[[ColumnTree], Part | None] | None = None
    """Shares out rows whose keys filter others; ``None``: no keys do, as where such rows are placed themselves."""

    def place(self, tree: ColumnTree, sides: Mapping[Side, Part | None]) -> Part | None:
        """Share out a join's rows, given those of its sides; ``None`` if that is impossible."""
        node = _join_of(tree)
        if node.distribution is not Distribution.ANY:
            sides = {side: part or self.planning.in_one_task(tree.side(side)) for side, part in sides.items()}
        legal = [side for side in Side if node.distribution.replicates(side.other)]
        ways = [way for side in legal for way in self._replicate(tree, side, sides)]
        left, right = sides[Side.LEFT], sides[Side.RIGHT]
        if node.distribution is Distribution.ANY:
            if left is not None and right is not None:
                together = in_the_same_task(tree, [left, right], self.planning.limits)
                if together is not None:
                    return together
            ways += [way for side in Side for way in self._gather(tree, side, sides)]
        if node.distribution.partitions and left is not None and right is not None:
            ways += self._bucketed(tree, left, right)
            both = {Side.LEFT: left, Side.RIGHT: right}
            filtered = (self._filter_by_keys(tree, side, both) for side in Side)
            for join, parts in ((tree, both), *(pair for pair in filtered if pair is not None)):
                exchanged = self._exchange(join, parts)
                ways += [] if exchanged is None else [exchanged]
        return min(ways, key=lambda way: way.cost, default=None)

    def _bucketed(self, tree: ColumnTree, left: Part, right: Part) -> Iterator[Part]:
        """Have each task read some buckets of both sides, if a key divides the files of both into buckets alike."""
        join_type = _join_of(tree).spec.join_type
        if join_type.null_aware or not (left.divides_files and right.divides_files):
            return
        keys = {(key.columns[Side.LEFT], key.columns[Side.RIGHT]) for key in _keys_of(tree)}
        for ours, theirs in itertools.product(left.bucketings, right.bucketings):
            if ours.kind != theirs.kind or (ours.column, theirs.column) not in keys:
                continue
            scans = (*ours.scans, *theirs.scans)
            delay = self.planning.delay(scans)
            columns = {Side.LEFT: ours.column, Side.RIGHT: theirs.column}
            (branch,), (other,) = left.branches, right.branches
            yield Part(
                tree.over([left.rows, right.rows]),
                (Branch(branch.partitioned, branch.replicated | other.replicated, scans),),
                (*left.inputs, *right.inputs), frozenset(), (),
                delay * (left.cost + right.cost), left.nbytes + right.nbytes,
                bucketings=tuple(
                    Bucketing(columns[side], ours.kind, scans) for side in Side if _keeps(join_type, side)
                ),
            )  # fmt: skip

    def _replicate(self, tree: ColumnTree, side: Side, sides: Mapping[Side, Part | None]) -> Iterator[Part]:
        """Share one side out; every task reads the other, or is sent its rows."""
        node, part = _join_of(tree), sides[side]
        if part is None or not (part.in_one_task or node.spec.join_type in DIVIDES[side]):
            return
        other, replica, rows = node.side(side.other), sides[side.other], tree.side(side.other)
        nbytes = self.planning.size_of(other)
        most = self.planning.limits.broadcast_threshold if node.distribution is Distribution.ANY else math.inf
        readable = not any(map(_runs_in_one_task, other.walk()))
        if readable:
            scans = frozenset(scan.index for scan in other.walk() if isinstance(scan, Scan))
            read_bytes = sum(self.planning.facts[index].nbytes for index in scans)
            if read_bytes <= most:
                cost = part.cost + (read_bytes + BUILDING * nbytes) * part.tasks(self.planning.limits)
                yield _joined_with(tree, side, dataclasses.replace(part.reading(scans), cost=cost), rows)
        is_cached = readable and self.planning.limits.keeps_tables
        if replica is not None and nbytes <= most and not is_cached:
            if part.spark is not None:
                part = self.planning.spread(part, node.side(side))
            part = self._send_to_all(part, replica, nbytes)
            yield _joined_with(tree, side, part, rows.under(ExchangeSource(part.inputs[-1].index, other.schema)))

    def _gather(self, tree: ColumnTree, side: Side, sides: Mapping[Side, Part | None]) -> Iterator[Part]:
        """Send the rows of one side to one task, which reads the other or receives its rows too."""
        part, inputs = sides[side], tree.relation.children
        if part is None or part.in_one_task or not all(map(self.planning.is_small, inputs)):
            return
        gathered = self.planning.gathered(part, tree.side(side).relation)
        yield from self._replicate(tree, side, {**sides, side: gathered})

    def _filter_by_keys(
        self, tree: ColumnTree, side: Side, parts: Mapping[Side, Part]
    ) -> tuple[ColumnTree, Mapping[Side, Part]] | None:
        """Send keys to the tasks of one side, to drop rows before the exchange; ``None`` if they would drop few."""
        if self.place_keys is None or parts[side].spark is not None:  # which takes nothing through exchanges
            return None
        node, filtered = _join_of(tree), tree.side(side)
        if node.spec.as_of is not None and may_raise(node.side(side), keys_of(node, side)):
            return None  # the order key, which the semi-join does not compare, is computed of all rows
        semi = filtered_by_keys(node, side, self.planning.sizes)
        if semi is None:
            return None
        nbytes = self.planning.size_of(semi.right)
        if nbytes > self.planning.limits.key_bytes:
            return None
        keys = self.place_keys(ColumnTree.from_relation(semi.right))
        if keys is None or _exchanges(keys) > _MOST_EXCHANGES:
            return None
        part = self._send_to_all(parts[side], keys, nbytes, filters=True)
        source = ExchangeSource(part.inputs[-1].index, semi.right.schema)
        part = part.above(filtered.under(semi.with_children([part.tree, source])))
        inputs = [dataclasses.replace(each, relation=semi) if each is filtered else each for each in tree.inputs]
        join = dataclasses.replace(tree, relation=node.with_children([each.relation for each in inputs]))
        return dataclasses.replace(join, inputs=tuple(inputs)), {**parts, side: part}

    def _send_to_all(self, part: Part, rows: Part, nbytes: float, *, filters: bool = False) -> Part:
        """Send some rows to all tasks of a part."""
        limits = self.planning.limits
        exchange = dataclasses.replace(self.planning.replicated(rows, nbytes), filters=filters)
        tasks = part.tasks(limits)
        cost = part.cost + rows.cost + WAITING * min(tasks, limits.cores)
        cost += (EXCHANGED + BUILDING) * nbytes * tasks
        if part.in_one_task:
            cost += ALONE * nbytes
        return dataclasses.replace(part, inputs=(*part.inputs, exchange), cost=cost)

    def _exchange(self, tree: ColumnTree, sides: Mapping[Side, Part]) -> Part | None:
        """Share both sides out by their keys: by all of them, or as one side is partitioned already."""
        keys = _keys_of(tree)
        may_decide = {side: part.determinate for side, part in sides.items()}
        determinate = [key for key in keys if all(key.columns[side] in may_decide[side] for side in Side)]
        usable = determinate if determinate or not self.planning.limits.indeterminate_keys else keys
        ways = [self._exchange_by(tree, sides, usable, reuse=False)]
        for side in Side:
            served = (_keys_served(determinate, side, partitioning) for partitioning in sides[side].partitionings)
            ways += [self._exchange_by(tree, sides, some, reuse=True) for some in served]
        return min((way for way in ways if way is not None), key=lambda way: way.cost, default=None)

    def _exchange_by(
        self, tree: ColumnTree, sides: Mapping[Side, Part], keys: Sequence[_Key], *, reuse: bool
    ) -> Part | None:
        """Exchange both sides by keys; with ``reuse`` a side that is partitioned by them already stays as it is."""
        join_type = _join_of(tree).spec.join_type
        is_any_unknown = join_type.null_aware and any(key.may_be_unknown(side) for key in keys for side in Side)
        if not keys or (reuse and is_any_unknown):
            return None
        placed = {side: self._partition(tree, side, part, keys, reuse=reuse) for side, part in sides.items()}
        left, right = placed[Side.LEFT][0], placed[Side.RIGHT][0]
        partitionings: list[Partitioning] = []
        for side in (side for side in Side if _keeps(join_type, side)):
            part, by = placed[side]
            partitionings.append(dataclasses.replace(by, spread=by.spread and not _matched_only(join_type)))
            partitionings += [partitioning for partitioning in part.partitionings if partitioning != by]
        return Part(
            tree.over([left.rows, right.rows]), (), (*left.inputs, *right.inputs), left.replicated | right.replicated,
            tuple(dict.fromkeys(partitionings)), left.cost + right.cost, 0.0,
        )  # fmt: skip

    def _partition(
        self, tree: ColumnTree, side: Side, part: Part, keys: Sequence[_Key], *, reuse: bool
    ) -> tuple[Part, Partitioning]:
        """Exchange one side by keys, or give it as it is if it is partitioned by them and that is to be used."""
        node = _join_of(tree)
        join_type = node.spec.join_type
        columns, types = tuple(key.columns[side] for key in keys), tuple(key.type for key in keys)
        null_safe = [key.null_safe for key in keys]
        for partitioning in part.partitionings if reuse else ():
            is_equal = (partitioning.columns, partitioning.types) == (columns, types)
            if is_equal and not (partitioning.spread and any(null_safe)):
                return part, partitioning
        left_may_be_unknown = join_type.null_aware and any(key.may_be_unknown(Side.LEFT) for key in keys)
        cut = Cut(
            tree.reads(frozenset(tree.ids))[side is Side.RIGHT], columns, types, null_safe,
            null_keys_of(join_type, side), side is Side.RIGHT and left_may_be_unknown,
        )  # fmt: skip
        exchanged = self.planning.cut(part, cut, node.side(side))
        return exchanged, exchanged.partitionings[0]


def _join_of(tree: ColumnTree) -> Join:
    assert isinstance(tree.relation, Join)
    return tree.relation


def _joined_with(tree: ColumnTree, side: Side, part: Part, other: Fragment[ColumnId]) -> Part:
    """Join a side that is shared out with the other, whole one."""
    return part.above(tree.over([part.rows, other] if side is Side.LEFT else [other, part.rows]))


@dataclass(frozen=True)
class _Key:
    """A key of a join."""

    columns: Mapping[Side, ColumnId]
    type: pa.DataType
    null_safe: bool
    nullable: Mapping[Side, bool]

    def may_be_unknown(self, side: Side) -> bool:
        """Whether a null on one side makes the equality of the key unknown."""
        return self.nullable[side] and not self.null_safe


def _keys_of(tree: ColumnTree) -> list[_Key]:
    keys = []
    for pair in _join_of(tree).spec.keys:
        left, right = (tree.side(side).relation.schema.field(pair.of(side)) for side in Side)
        columns = {side: tree.side(side).ids[pair.of(side)] for side in Side}
        nullable = {Side.LEFT: left.nullable, Side.RIGHT: right.nullable}
        keys.append(_Key(columns, key_type(left.type, right.type), pair.nulls is NullEquality.EQUAL, nullable))
    return keys


def _keys_served(keys: Sequence[_Key], side: Side, partitioning: Partitioning) -> list[_Key]:
    """Give the keys by which a side is partitioned; none if it is partitioned by others too."""
    serving: list[_Key] = []
    for id_, dtype in zip(partitioning.columns, partitioning.types, strict=True):
        equal = (key for key in keys if key.columns[side] is id_ and key.type == dtype)
        key = next((key for key in equal if not (partitioning.spread and key.null_safe)), None)
        if key is None:
            return []
        serving.append(key)
    return serving


def _exchanges(part: Part) -> int:
    """How many exchanges there are before a part."""
    return sum(1 + exchange.producer.exchanges for exchange in part.inputs)


def _runs_in_one_task(node: Relation) -> bool:
    """Whether only one task computes a node, however many need its rows.

    Of a limit each task might take other rows, and each would call a Python function for all of them.
    """
    if isinstance(node, (SparkSource, Limit, TopN, PythonStep)):
        return True
    return isinstance(node, Join) and node.distribution is Distribution.PARTITIONED


def _matched_only(kind: JoinType) -> bool:
    """Whether every row of the result has a match, and so no null key."""
    return kind in (JoinType.INNER, JoinType.LEFT_SEMI)


def _keeps(kind: JoinType, side: Side) -> bool:
    """Whether a side's columns are in the result as they were, in every row."""
    if kind is JoinType.INNER:
        return True
    return side is Side.RIGHT if kind is JoinType.RIGHT else side is Side.LEFT and kind is not JoinType.FULL
