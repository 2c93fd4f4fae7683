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
from gpujoin.model.spec import JoinSpec, NullEquality
from gpujoin.model.stages import Distribution, null_keys_of
from gpujoin.plan.distribution import DIVIDES
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
from gpujoin.plan.remap import output_positions, remapped_spec
from gpujoin.plan.runtime_filters import keys_of, may_raise

_MOST_EXCHANGES = 1
"""Before the keys that a side is filtered by, which are computed once more."""


@dataclass(frozen=True)
class JoinPlacer:
    """Shares the rows of joins out."""

    planning: Planning
    place_keys: Callable[[Relation], Part | None] | None = None
    """Shares out rows whose keys filter others; ``None``: no keys do, as where such rows are placed themselves."""

    def place(self, node: Join, sides: Mapping[Side, Part | None]) -> Part | None:
        """Share a join's rows out, given its sides'; ``None`` where that cannot be."""
        if node.distribution is not Distribution.ANY:
            sides = {side: part or self.planning.in_one_task(node.side(side)) for side, part in sides.items()}
        legal = [side for side in Side if node.distribution.replicates(side.other)]
        ways = [way for side in legal for way in self._replicating(node, side, sides)]
        left, right = sides[Side.LEFT], sides[Side.RIGHT]
        if node.distribution is Distribution.ANY:
            if left is not None and right is not None:
                together = in_the_same_task(node, [left, right], self.planning.limits)
                if together is not None:
                    return together
            ways += [way for side in Side for way in self._gathering(node, side, sides)]
        if node.distribution.partitions and left is not None and right is not None:
            both = {Side.LEFT: left, Side.RIGHT: right}
            filtered = (self._filtered(node, side, both) for side in Side)
            for join, parts in ((node, both), *(given for given in filtered if given is not None)):
                exchanged = self._exchanging(join, parts)
                ways += [] if exchanged is None else [exchanged]
        return min(ways, key=lambda way: way.cost, default=None)

    def _replicating(self, node: Join, side: Side, sides: Mapping[Side, Part | None]) -> Iterator[Part]:
        """Share one side out; every task reads the other, or is sent its rows."""
        part = sides[side]
        if part is None or not (part.in_one_task or node.spec.join_type in DIVIDES[side]):
            return
        other, sent = node.side(side.other), sides[side.other]
        nbytes = self.planning.size_of(other)
        most = self.planning.limits.broadcast_threshold if node.distribution is Distribution.ANY else math.inf
        readable = not any(map(_is_computed_once, other.walk()))
        if readable:
            scans = frozenset(scan.index for scan in other.walk() if isinstance(scan, Scan))
            read = sum(self.planning.facts[index].nbytes for index in scans)
            if read <= most:
                cost = part.cost + (read + HELD * nbytes) * part.tasks(self.planning.limits)
                yield self._joined_with(node, side, dataclasses.replace(part.reading(scans), cost=cost), other)
        kept = readable and self.planning.limits.keeps_tables
        if sent is not None and nbytes <= most and not kept:
            if part.spark is not None:
                part = self.planning.spread(part, node.side(side))
            part = self._sent(part, sent, nbytes)
            yield self._joined_with(node, side, part, ExchangeSource(part.inputs[-1].index, other.schema))

    def _gathering(self, node: Join, side: Side, sides: Mapping[Side, Part | None]) -> Iterator[Part]:
        """Send the rows of one side to one task, which reads the other or is sent its rows, where both have few."""
        part = sides[side]
        if part is None or part.in_one_task or not all(self.planning.is_small(node.side(each)) for each in Side):
            return
        gathered, _ = self.planning.gathered(part, node.side(side))
        yield from self._replicating(node, side, {**sides, side: gathered})

    def _joined_with(self, node: Join, side: Side, part: Part, other: Relation) -> Part:
        """Join a side that is shared out with the other, whole one."""
        trees = [part.tree, other] if side is Side.LEFT else [other, part.tree]
        positions = output_positions(node.spec, side)
        return part.above(node.with_children(trees), (by.moved(positions) for by in part.known))

    def _filtered(self, node: Join, side: Side, parts: Mapping[Side, Part]) -> tuple[Join, Mapping[Side, Part]] | None:
        """Send keys to the tasks of one side, which drop rows before they are exchanged; ``None`` where they do not."""
        if self.place_keys is None or parts[side].spark is not None:  # which takes nothing through exchanges
            return None
        if node.spec.as_of is not None and may_raise(node.side(side), keys_of(node, side)):
            return None  # the order key, which the semi-join does not compare, is computed of all rows
        semi = filtered_by_keys(node, side, self.planning.sizes)
        if semi is None:
            return None
        nbytes = self.planning.size_of(semi.right)
        if nbytes > self.planning.limits.key_bytes:
            return None
        keys = self.place_keys(semi.right)
        if keys is None or _exchanges(keys) > _MOST_EXCHANGES:
            return None
        part = self._sent(parts[side], keys, nbytes, filters=True)
        source = ExchangeSource(part.inputs[-1].index, semi.right.schema)
        part = part.above(semi.with_children([part.tree, source]), part.known)
        sides = {Side.LEFT: node.left, Side.RIGHT: node.right, side: semi}
        return dataclasses.replace(node, left=sides[Side.LEFT], right=sides[Side.RIGHT]), {**parts, side: part}

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

    def _exchanging(self, node: Join, sides: Mapping[Side, Part]) -> Part | None:
        """Share both sides out by their keys."""
        spec = node.spec
        if not spec.keys:
            return None
        keys = _Keys.of(node)
        plans = [{}, *({side: by} for side in Side for by in sides[side].known)]
        ways = []
        for kept in plans:
            way = self._exchanged(node, sides, keys, kept)
            ways += [] if way is None else [way]
        return min(ways, key=lambda way: way.cost, default=None)

    def _exchanged(
        self, node: Join, sides: Mapping[Side, Part], keys: _Keys, kept: Mapping[Side, Partitioning]
    ) -> Part | None:
        """Exchange by all keys, or as one side is partitioned already."""
        if not kept:
            chosen: list[int] | None = list(range(len(keys.types)))
        else:
            ((side, partitioning),) = kept.items()
            chosen = keys.served_by(partitioning, side)
        if chosen is None:
            return None
        loose = {side: part.indeterminate for side, part in sides.items()}
        fixed = [i for i in chosen if not any(keys.columns[side][i] in loose[side] for side in Side)]
        if not fixed and not kept and self.planning.limits.indeterminate_keys:
            fixed = chosen
        if not fixed or (kept and fixed != chosen):
            return None
        chosen = fixed
        spec = node.spec
        unknown = {side: spec.join_type.null_aware and keys.may_be_unknown(side, chosen) for side in Side}
        if kept and any(unknown.values()):
            return None
        placed: dict[Side, Part] = {}
        moves: dict[Side, dict[int, int]] = {}
        by: dict[Side, Partitioning] = {}
        for side, part in sides.items():
            columns = tuple(keys.columns[side][i] for i in chosen)
            types = tuple(keys.types[i] for i in chosen)
            known = [
                partitioning
                for partitioning in part.known
                if (partitioning.columns, partitioning.types) == (columns, types)
            ]
            if any(keys.null_safe[i] for i in chosen):
                known = [partitioning for partitioning in known if not partitioning.spread]
            if kept and known:
                placed[side], by[side] = part, known[0]
                moves[side] = {i: i for i in range(len(node.side(side).schema))}
                continue
            cut = Cut(
                _used(spec, side), columns, types, [keys.null_safe[i] for i in chosen],
                null_keys_of(spec.join_type, side), side is Side.RIGHT and unknown[Side.LEFT],
            )  # fmt: skip
            placed[side], moves[side] = self.planning.cut(part, cut, node.side(side))
            by[side] = placed[side].known[0]
        left, right = placed[Side.LEFT], placed[Side.RIGHT]
        joined = Join(left.tree, right.tree, remapped_spec(spec, moves), node.build_side, node.distribution)
        known_after = []
        for side in (side for side in Side if _keeps(spec.join_type, side)):
            positions = output_positions(joined.spec, side)
            spread = by[side].spread and not _matched_only(spec.join_type)
            known_after.append(by[side].moved(positions, spread=spread))
            known_after += [known.moved(positions) for known in placed[side].known if known != by[side]]
        return Part(
            joined, (), (*left.inputs, *right.inputs), left.replicated | right.replicated,
            tuple(dict.fromkeys(known for known in known_after if known is not None)), left.cost + right.cost, 0.0,
        )  # fmt: skip


@dataclass(frozen=True)
class _Keys:
    """The keys of a join."""

    columns: Mapping[Side, tuple[int, ...]]
    types: tuple[pa.DataType, ...]
    null_safe: tuple[bool, ...]
    nullable: Mapping[Side, tuple[bool, ...]]

    @classmethod
    def of(cls, node: Join) -> _Keys:
        pairs = node.spec.keys
        schemas = {side: node.side(side).schema for side in Side}
        return cls(
            {side: tuple(pair.of(side) for pair in pairs) for side in Side},
            tuple(
                key_type(schemas[Side.LEFT].field(pair.left).type, schemas[Side.RIGHT].field(pair.right).type)
                for pair in pairs
            ),
            tuple(pair.nulls is NullEquality.EQUAL for pair in pairs),
            {side: tuple(schemas[side].field(pair.of(side)).nullable for pair in pairs) for side in Side},
        )

    def may_be_unknown(self, side: Side, chosen: Iterable[int]) -> bool:
        """Whether a null on one side may make one of some equalities unknown."""
        return any(self.nullable[side][i] and not self.null_safe[i] for i in chosen)

    def served_by(self, known: Partitioning, side: Side) -> list[int] | None:
        """Which of the keys a side is partitioned by; ``None`` if by others too."""
        chosen = []
        for place, dtype in zip(known.columns, known.types, strict=True):
            equal = [
                i
                for i, (at, wanted) in enumerate(zip(self.columns[side], self.types, strict=True))
                if at == place and wanted == dtype and not (known.spread and self.null_safe[i])
            ]
            if not equal:
                return None
            chosen.append(equal[0])
        return chosen


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


def _used(spec: JoinSpec, side: Side) -> list[int]:
    used = {pair.of(side) for pair in spec.keys} | set(spec.output_of(side))
    if spec.condition is not None:
        used |= {ref.index for ref in spec.condition.columns() if ref.side is side}
    if spec.as_of is not None:
        used.add(spec.as_of.left if side is Side.LEFT else spec.as_of.right)
    return sorted(used)
