"""How the rows of a join are shared out among tasks.

There are three ways: one side is shared out and every task reads the other, or is sent its rows; the other way round;
or both sides are exchanged by their keys, but for a side that is partitioned by them already. Where both have few rows,
one task may join them. The cheapest is taken. Sides that are in one task each are joined by one, without an exchange.
Before rows are exchanged, keys of the other side may drop some (`key_filters`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from gpujoin.model.expressions import ColumnId
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import (
    ExchangeSource,
    Join,
    Limit,
    Relation,
    Scan,
    SparkSource,
    TopN,
)
from gpujoin.model.spec import NullEquality
from gpujoin.model.stages import Distribution, null_keys_of
from gpujoin.plan.distribution import DIVIDES
from gpujoin.plan.fragments import ColumnTree, Fragment
from gpujoin.plan.key_filters import filtered_by_keys
from gpujoin.plan.key_types import key_type
from gpujoin.plan.parts import (
    ALONE,
    EXCHANGED,
    HELD,
    WAITING,
    Cut,
    Part,
    Partitioning,
    Planning,
    in_the_same_task,
)
from gpujoin.plan.runtime_filters import keys_of, may_raise

_MOST_EXCHANGES = 1
"""Before the keys that a side is filtered by, which are computed once more."""


@dataclass(frozen=True)
class JoinPlacer:
    """Shares the rows of joins out."""

    planning: Planning
    place_keys: Callable[[ColumnTree], Part | None] | None = None
    """Shares out rows whose keys filter others; ``None``: no keys do, as where such rows are placed themselves."""

    def place(self, tree: ColumnTree, sides: Mapping[Side, Part | None]) -> Part | None:
        """Share a join's rows out, given its sides'; ``None`` where that cannot be."""
        node = _join_of(tree)
        if node.distribution is not Distribution.ANY:
            sides = {side: part or self.planning.in_one_task(tree.side(side)) for side, part in sides.items()}
        legal = [side for side in Side if node.distribution.replicates(side.other)]
        ways = [way for side in legal for way in self._replicating(tree, side, sides)]
        left, right = sides[Side.LEFT], sides[Side.RIGHT]
        if node.distribution is Distribution.ANY:
            if left is not None and right is not None:
                together = in_the_same_task(tree, [left, right], self.planning.limits)
                if together is not None:
                    return together
            ways += [way for side in Side for way in self._gathering(tree, side, sides)]
        if node.distribution.partitions and left is not None and right is not None:
            both = {Side.LEFT: left, Side.RIGHT: right}
            filtered = (self._filtered(tree, side, both) for side in Side)
            for join, parts in ((tree, both), *(given for given in filtered if given is not None)):
                exchanged = self._exchanging(join, parts)
                ways += [] if exchanged is None else [exchanged]
        return min(ways, key=lambda way: way.cost, default=None)

    def _replicating(self, tree: ColumnTree, side: Side, sides: Mapping[Side, Part | None]) -> Iterator[Part]:
        """Share one side out; every task reads the other, or is sent its rows."""
        node, part = _join_of(tree), sides[side]
        if part is None or not (part.in_one_task or node.spec.join_type in DIVIDES[side]):
            return
        other, sent, rows = node.side(side.other), sides[side.other], tree.side(side.other)
        nbytes = self.planning.size_of(other)
        most = self.planning.limits.broadcast_threshold if node.distribution is Distribution.ANY else math.inf
        readable = not any(map(_is_computed_once, other.walk()))
        if readable:
            scans = frozenset(scan.index for scan in other.walk() if isinstance(scan, Scan))
            read = sum(self.planning.facts[index].nbytes for index in scans)
            if read <= most:
                cost = part.cost + (read + HELD * nbytes) * part.tasks(self.planning.limits)
                yield _joined_with(tree, side, dataclasses.replace(part.reading(scans), cost=cost), rows)
        kept = readable and self.planning.limits.keeps_tables
        if sent is not None and nbytes <= most and not kept:
            if part.spark is not None:
                part = self.planning.spread(part, node.side(side))
            part = self._sent(part, sent, nbytes)
            yield _joined_with(tree, side, part, rows.under(ExchangeSource(part.inputs[-1].index, other.schema)))

    def _gathering(self, tree: ColumnTree, side: Side, sides: Mapping[Side, Part | None]) -> Iterator[Part]:
        """Send the rows of one side to one task, which reads the other or is sent its rows, where both have few."""
        part, inputs = sides[side], tree.relation.children
        if part is None or part.in_one_task or not all(map(self.planning.is_small, inputs)):
            return
        gathered = self.planning.gathered(part, tree.side(side).relation)
        yield from self._replicating(tree, side, {**sides, side: gathered})

    def _filtered(
        self, tree: ColumnTree, side: Side, parts: Mapping[Side, Part]
    ) -> tuple[ColumnTree, Mapping[Side, Part]] | None:
        """Send keys to the tasks of one side, which drop rows before they are exchanged; ``None`` where they do not."""
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
        part = self._sent(parts[side], keys, nbytes, filters=True)
        source = ExchangeSource(part.inputs[-1].index, semi.right.schema)
        part = part.above(filtered.under(semi.with_children([part.tree, source])))
        inputs = [dataclasses.replace(each, relation=semi) if each is filtered else each for each in tree.inputs]
        join = dataclasses.replace(tree, relation=node.with_children([each.relation for each in inputs]))
        return dataclasses.replace(join, inputs=tuple(inputs)), {**parts, side: part}

    def _sent(self, part: Part, rows: Part, nbytes: float, *, filters: bool = False) -> Part:
        """Send some rows to all tasks of a part."""
        limits = self.planning.limits
        exchange = dataclasses.replace(self.planning.replicated(rows, nbytes), filters=filters)
        tasks = part.tasks(limits)
        cost = part.cost + rows.cost + WAITING * min(tasks, limits.cores)
        cost += (EXCHANGED + HELD) * nbytes * tasks
        if part.in_one_task:
            cost += ALONE * nbytes
        return dataclasses.replace(part, inputs=(*part.inputs, exchange), cost=cost)

    def _exchanging(self, tree: ColumnTree, sides: Mapping[Side, Part]) -> Part | None:
        """Share both sides out by their keys: by all of them, or as one side is partitioned already."""
        keys = _Keys.of(tree)
        if not keys.types:
            return None
        partitionings = [None, *((side, by) for side in Side for by in sides[side].known)]
        ways = [self._exchanged(tree, sides, keys, partitioned) for partitioned in partitionings]
        return min((way for way in ways if way is not None), key=lambda way: way.cost, default=None)

    def _exchanged(
        self, tree: ColumnTree, sides: Mapping[Side, Part], keys: _Keys, partitioned: tuple[Side, Partitioning] | None
    ) -> Part | None:
        """Exchange by all keys, or by those by which a side is ``partitioned``, which then stays as it is."""
        chosen = keys if partitioned is None else keys.served_by(*partitioned)
        if chosen is None:
            return None
        determinate = chosen.within(sides)
        if partitioned is not None and determinate.columns != chosen.columns:
            return None
        if determinate.types or not self.planning.limits.indeterminate_keys:
            chosen = determinate
        node = _join_of(tree)
        join_type = node.spec.join_type
        unknown = {side: join_type.null_aware and chosen.may_be_unknown(side) for side in Side}
        if not chosen.types or (partitioned is not None and any(unknown.values())):
            return None
        parts: dict[Side, Part] = {}
        by: dict[Side, Partitioning] = {}
        for side, part in sides.items():
            known = [partitioning for partitioning in part.known if chosen.are_those_of(partitioning, side)]
            if partitioned is not None and known:
                parts[side], by[side] = part, known[0]
                continue
            cut = Cut(
                tree.reads(frozenset(tree.ids))[side is Side.RIGHT], chosen.columns[side], chosen.types,
                chosen.null_safe, null_keys_of(join_type, side), side is Side.RIGHT and unknown[Side.LEFT],
            )  # fmt: skip
            parts[side] = self.planning.cut(part, cut, node.side(side))
            by[side] = parts[side].known[0]
        known_after = []
        for side in (side for side in Side if _keeps(join_type, side)):
            spread = by[side].spread and not _matched_only(join_type)
            known_after.append(dataclasses.replace(by[side], spread=spread))
            known_after += [known for known in parts[side].known if known != by[side]]
        left, right = parts[Side.LEFT], parts[Side.RIGHT]
        return Part(
            tree.over([left.rows, right.rows]), (), (*left.inputs, *right.inputs), left.replicated | right.replicated,
            tuple(dict.fromkeys(known_after)), left.cost + right.cost, 0.0,
        )  # fmt: skip


def _join_of(tree: ColumnTree) -> Join:
    assert isinstance(tree.relation, Join)
    return tree.relation


def _joined_with(tree: ColumnTree, side: Side, part: Part, other: Fragment[ColumnId]) -> Part:
    """Join a side that is shared out with the other, whole one."""
    return part.above(tree.over([part.rows, other] if side is Side.LEFT else [other, part.rows]))


@dataclass(frozen=True)
class _Keys:
    """Keys of a join."""

    columns: Mapping[Side, tuple[ColumnId, ...]]
    types: tuple[pa.DataType, ...]
    null_safe: tuple[bool, ...]
    nullable: Mapping[Side, tuple[bool, ...]]

    @classmethod
    def of(cls, tree: ColumnTree) -> _Keys:
        pairs = _join_of(tree).spec.keys
        schemas = {side: tree.side(side).relation.schema for side in Side}
        return cls(
            {side: tuple(tree.side(side).ids[pair.of(side)] for pair in pairs) for side in Side},
            tuple(
                key_type(schemas[Side.LEFT].field(pair.left).type, schemas[Side.RIGHT].field(pair.right).type)
                for pair in pairs
            ),
            tuple(pair.nulls is NullEquality.EQUAL for pair in pairs),
            {side: tuple(schemas[side].field(pair.of(side)).nullable for pair in pairs) for side in Side},
        )

    def _of(self, places: Iterable[int]) -> _Keys:
        """Some of them."""
        chosen = list(places)
        return _Keys(
            {side: tuple(self.columns[side][n] for n in chosen) for side in Side},
            tuple(self.types[n] for n in chosen), tuple(self.null_safe[n] for n in chosen),
            {side: tuple(self.nullable[side][n] for n in chosen) for side in Side},
        )  # fmt: skip

    def within(self, sides: Mapping[Side, Part]) -> _Keys:
        """Those of which no value may be another one when a task runs again."""
        determinate = {side: part.determinate for side, part in sides.items()}
        return self._of(
            n for n in range(len(self.types)) if all(self.columns[side][n] in determinate[side] for side in Side)
        )

    def may_be_unknown(self, side: Side) -> bool:
        """Whether a null on one side may make one of the equalities unknown."""
        return any(null and not safe for null, safe in zip(self.nullable[side], self.null_safe, strict=True))

    def served_by(self, side: Side, known: Partitioning) -> _Keys | None:
        """Those that a side is partitioned by; ``None`` if it is by others too."""
        chosen = []
        for id_, dtype in zip(known.columns, known.types, strict=True):
            equal = [
                n
                for n, (column, own) in enumerate(zip(self.columns[side], self.types, strict=True))
                if column is id_ and own == dtype and not (known.spread and self.null_safe[n])
            ]
            if not equal:
                return None
            chosen.append(equal[0])
        return self._of(chosen)

    def are_those_of(self, known: Partitioning, side: Side) -> bool:
        """Whether rows of a side that is partitioned so are where these keys send them."""
        same = (known.columns, known.types) == (self.columns[side], self.types)
        return same and not (known.spread and any(self.null_safe))


def _exchanges(part: Part) -> int:
    """How many exchanges there are before a part."""
    return sum(1 + exchange.producer.exchanges for exchange in part.inputs)


def _is_computed_once(node: Relation) -> bool:
    """Whether a node is not computed by each task that needs its rows.

    Of a limit each task might take other rows.
    """
    if isinstance(node, (SparkSource, Limit, TopN)):
        return True
    return isinstance(node, Join) and node.distribution is Distribution.PARTITIONED


def _matched_only(kind: JoinType) -> bool:
    """Whether all rows of the result have met a match, so that no null key is left that matches nothing."""
    return kind in (JoinType.INNER, JoinType.LEFT_SEMI)


def _keeps(kind: JoinType, side: Side) -> bool:
    """Whether a side's columns are in the result as they were, in every row."""
    if kind is JoinType.INNER:
        return True
    return side is Side.RIGHT if kind is JoinType.RIGHT else side is Side.LEFT and kind is not JoinType.FULL
