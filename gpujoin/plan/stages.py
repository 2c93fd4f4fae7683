"""Which inputs of a tree are divided among tasks, which are read by every task, and where rows are exchanged.

The planner goes through the tree from the scans up and keeps, for each subtree, the cheapest way to share its rows out
among tasks. At a join there are three: one side is shared out and every task reads the other; the other way round; or
both sides are exchanged by their keys, but for a side that is partitioned by them already. Costs are compressed bytes
read, with exchanged bytes weighed against them. A join may ask for one of the three (:class:`Distribution`).

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
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from gpujoin.errors import KeyTypeError
from gpujoin.model.expressions import ColumnRef
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import (
    ExchangeSource,
    Expand,
    Filter,
    Join,
    Limit,
    Output,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    SparkSource,
    TopN,
    Union,
    column,
)
from gpujoin.model.spec import JoinSpec, NullEquality
from gpujoin.model.stages import (
    Branch,
    DeterminismLevel,
    Distribution,
    Exchange,
    NullKeys,
    SparkInput,
    Stage,
    null_keys_of,
)
from gpujoin.plan.determinism import indeterminate_columns
from gpujoin.plan.distribution import DIVIDES
from gpujoin.plan.estimates import estimate, row_bytes
from gpujoin.plan.key_types import key_type
from gpujoin.plan.remap import (
    output_positions,
    positions_of,
    remapped_aggregate,
    remapped_spec,
    with_key_columns,
)

_EXCHANGED = 1.5
"""What exchanging a byte costs, in compressed bytes read: split, encode, Spark's shuffle, receive
(`benchmarks/pipeline/README.md`, "exchange")."""
_STAGE_BYTES = 16 << 20
"""What another stage costs, in compressed bytes read."""
_HELD = 0.3
"""What building a byte of a side that every task reads costs."""


@dataclass(frozen=True)
class ScanFacts:
    """What is known of a scan's input."""

    rows: float
    """Rows of its files."""
    nbytes: int
    """Compressed bytes of the columns read."""


@dataclass(frozen=True)
class StageLimits:
    """By what stages are planned."""

    cores: int
    """Tasks that run at once."""
    task_bytes: int
    """Compressed bytes that a task reads of the input that is divided."""
    broadcast_threshold: int
    """Most bytes of an input that every task may read or be sent."""
    partition_bytes: int = 64 << 20
    """Size of what a task is given through exchanges."""
    partitions: int | None = None
    """Tasks of a stage fed by exchanges; ``None``: by size."""
    guessed_partitions: int = 200
    """Most of them, where the size is Spark's guess of rows that it computes: it takes a join for the product of both
    sides.
    """
    indeterminate_keys: bool = False
    """Whether rows may be exchanged by keys whose values may be others when a task runs again, as Spark's own
    shuffles do, where there are no other keys.
    """


def numbered(relation: Relation) -> tuple[Relation, tuple[int, ...]]:
    """Number the scans of a tree anew, each by itself, and give the index that each had.

    The same files may be read in several places.
    """
    found: list[int] = []

    def visit(node: Relation) -> Relation:
        if isinstance(node, Scan):
            found.append(node.index)
            return dataclasses.replace(node, index=len(found) - 1)
        return node.with_children([visit(child) for child in node.children]) if node.children else node

    return visit(relation), tuple(found)


def plan_stages(relation: Relation, facts: Mapping[int, ScanFacts], limits: StageLimits) -> Stage | None:
    """Cut a tree without sources, every scan with an index of its own (:func:`numbered`), into stages.

    The rows of the last stage's tasks together are those of the tree, where a group of a partial aggregation may come
    out of several tasks, and a limit at the top is one of each task. ``None`` where that cannot be.
    """
    top, below = [], relation
    while isinstance(below, (Limit, TopN, Project)):
        top.append(below)
        below = below.child
    part = _Planner(facts, limits).place(below)
    if part is None:
        return None
    for node in reversed(top):
        part = part.above(node.with_children([part.tree]))
    return part.stage(limits)


def plan_one_task(relation: Relation, limits: StageLimits) -> Stage:
    """Make a stage of one task that reads all that a tree reads; rows from Spark are sent to it."""
    return _in_one_task(relation, itertools.count(), {}, limits).stage(limits)


def sources_in_order(tree: Relation) -> Iterator[int]:
    """Give the sources of a tree in the order in which a pipeline reads them: a join's build side first."""
    if isinstance(tree, ExchangeSource):
        yield tree.index
    children: Sequence[Relation] = tree.children
    if isinstance(tree, Join):
        children = (tree.side(tree.build_side), tree.side(tree.build_side.other))
    for child in children:
        yield from sources_in_order(child)


@dataclass(frozen=True)
class _Partitioning:
    """Rows with equal values in these columns, as these types, are in one partition.

    With ``spread`` that does not hold of rows in which one of them is null.
    """

    columns: tuple[int, ...]
    types: tuple[pa.DataType, ...]
    spread: bool

    def moved(self, positions: Mapping[int, int], *, spread: bool | None = None) -> _Partitioning | None:
        """The same by the positions that columns have in another output; ``None`` if one is not there."""
        if any(index not in positions for index in self.columns):
            return None
        where = tuple(positions[index] for index in self.columns)
        return _Partitioning(where, self.types, self.spread if spread is None else spread)


@dataclass(frozen=True)
class _Part:
    """A subtree with its rows shared out among tasks.

    Attributes
    ----------
    tree : Relation
        The subtree, with sources where it was cut.
    branches, inputs, replicated, spark :
        As in :class:`Stage`.
    known : tuple of _Partitioning
        How its rows are known to be partitioned.
    cost : float
        Of it and of all that comes before.
    nbytes : float
        Compressed bytes of what is divided, or bytes of the rows from Spark.
    """

    tree: Relation
    branches: tuple[Branch, ...]
    inputs: tuple[Exchange, ...]
    replicated: frozenset[int]
    known: tuple[_Partitioning, ...]
    cost: float
    nbytes: float
    spark: SparkInput | None = None

    @property
    def partitioned(self) -> tuple[Exchange, ...]:
        """The exchanges of which every task gets a share."""
        return tuple(exchange for exchange in self.inputs if not exchange.replicated)

    def tasks(self, limits: StageLimits) -> int:
        if not self.partitioned:
            return max(limits.cores, math.ceil(self.nbytes / limits.task_bytes))
        if limits.partitions is not None:
            return limits.partitions
        spread = not any(exchange.columns for exchange in self.partitioned)
        if spread and len(self.partitioned) < len(self.inputs):
            # Nothing is held of rows that are spread, and each task is sent one more copy of the others.
            return limits.cores
        needed = math.ceil(sum(exchange.nbytes for exchange in self.partitioned) / limits.partition_bytes)
        if any(
            stage.spark is not None for exchange in self.partitioned for stage in exchange.producer.walk()
        ):
            needed = min(needed, limits.guessed_partitions)
        return max(limits.cores, needed)

    @property
    def indeterminate(self) -> frozenset[int]:
        """Columns by whose values no row may be sent anywhere."""
        sources = {exchange.index: exchange.indeterminate for exchange in self.inputs}
        if self.spark is not None:
            sources[self.spark.source] = self.spark.indeterminate
        return indeterminate_columns(self.tree, sources)

    def stage(self, limits: StageLimits) -> Stage:
        inputs = _in_order(self.tree, self.inputs)
        if self.branches:
            return Stage(self.tree, self.branches, inputs)
        partitions = self.tasks(limits) if inputs else 1
        return Stage(self.tree, (), inputs, partitions, self.replicated, self.spark)

    def above(self, tree: Relation, known: Iterable[_Partitioning | None] = ()) -> _Part:
        """The same rows shared out the same way, with another tree over them."""
        return dataclasses.replace(self, tree=tree, known=tuple(by for by in known if by is not None))

    def reading(self, scans: frozenset[int]) -> _Part:
        """The same, where each task also reads some scans whole."""
        branches = tuple(
            dataclasses.replace(branch, replicated=branch.replicated | scans) for branch in self.branches
        )
        return dataclasses.replace(self, branches=branches, replicated=self.replicated | scans)


@dataclass
class _Planner:
    facts: Mapping[int, ScanFacts]
    limits: StageLimits

    def __post_init__(self) -> None:
        self._source_numbers = itertools.count()
        self._rows = {index: facts.rows for index, facts in self.facts.items()}

    def place(self, node: Relation) -> _Part | None:
        """Share the rows of a subtree out among tasks, as cheaply as can be; ``None`` where that cannot be."""
        match node:
            case Scan():
                nbytes = float(self.facts[node.index].nbytes)
                return _Part(node, (Branch(node.index),), (), frozenset(), (), nbytes, nbytes)
            case SparkSource():
                return _from_spark(node, next(self._source_numbers))
            case Filter():
                below = self.place(node.child)
                return None if below is None else below.above(node.with_children([below.tree]), below.known)
            case Project():
                below = self.place(node.child)
                if below is None:
                    return None
                positions = positions_of(node.outputs)
                return below.above(
                    node.with_children([below.tree]), (by.moved(positions) for by in below.known)
                )
            case Expand():
                below = self.place(node.child)
                return None if below is None else below.above(node.with_children([below.tree]))
            case PartialAggregate():
                return self._once(node) if node.once else self._partial(node)
            case Union():
                return self._union(node)
            case Join():
                return self._join(node)
            case _:
                return None

    def _partial(self, node: PartialAggregate) -> _Part | None:
        below = self.place(node.child)
        if below is None:
            return None
        positions = positions_of(node.keys)
        return below.above(node.with_children([below.tree]), (by.moved(positions) for by in below.known))

    def _once(self, node: PartialAggregate) -> _Part | None:
        """Each group comes out of one task only, which must have all its rows."""
        if not node.keys:
            return None
        below = self.place(node.child)
        if below is None:
            return None
        keys = [key.expression for key in node.keys]
        columns = {key.index for key in keys if isinstance(key, ColumnRef)}
        if not any(columns.issuperset(by.columns) and not by.spread for by in below.known):
            if any(not isinstance(key, ColumnRef) for key in keys):
                node = with_key_columns(node, below.tree)
                below = below.above(node.child, below.known)
                keys = [key.expression for key in node.keys]
            refs = [key for key in keys if isinstance(key, ColumnRef)]
            fixed = [ref for ref in refs if ref.index not in below.indeterminate]
            if not fixed:
                return None
            places = [ref.index for ref in fixed]
            used = {ref.index for ref in refs}.union(
                *({ref.index for ref in part.columns()} for part in node.expressions())
            )
            try:
                types = [key_type(ref.type, ref.type) for ref in fixed if ref.type is not None]
            except KeyTypeError:
                return None
            rows = estimate(node.child, self._rows).rows
            cut = _Cut(sorted(used), places, types, [True] * len(places), NullKeys.SPREAD)
            fed, moved = self._cut(below, cut, rows)
            node, below = remapped_aggregate(node, fed.tree, moved), fed
        positions = positions_of(node.keys)
        return below.above(node.with_children([below.tree]), (by.moved(positions) for by in below.known))

    def _union(self, node: Union) -> _Part | None:
        parts: list[_Part] = []
        for child in node.inputs:
            part = self.place(child)
            if part is None:
                return None
            parts.append(part)
        if not all(part.branches for part in parts):
            parts = [self._spread(part, child) for part, child in zip(parts, node.inputs, strict=True)]
        return _Part(
            node.with_children([part.tree for part in parts]),
            tuple(branch for part in parts for branch in part.branches),
            tuple(exchange for part in parts for exchange in part.inputs),
            frozenset(),
            (),
            sum(part.cost for part in parts),
            sum(part.nbytes for part in parts),
        )

    # -- joins ---------------------------------------------------------------------------------------------

    def _join(self, node: Join) -> _Part | None:
        sides = {side: self.place(node.side(side)) for side in Side}
        if node.distribution is not Distribution.ANY:
            sides = {
                side: part or _in_one_task(node.side(side), self._source_numbers, self.facts, self.limits)
                for side, part in sides.items()
            }
        legal = [side for side in Side if node.distribution.replicates(side.other)]
        ways = [way for side in legal if (way := self._repeating(node, side, sides)) is not None]
        left, right = sides[Side.LEFT], sides[Side.RIGHT]
        if node.distribution.partitions and left is not None and right is not None:
            exchanged = self._exchanging(node, {Side.LEFT: left, Side.RIGHT: right})
            ways += [] if exchanged is None else [exchanged]
        return min(ways, key=lambda way: way.cost, default=None)

    def _repeating(self, node: Join, side: Side, sides: Mapping[Side, _Part | None]) -> _Part | None:
        """Share one side out; every task reads the other."""
        part = sides[side]
        if part is None or node.spec.join_type not in DIVIDES[side]:
            return None
        other = node.side(side.other)
        held = _size(other.schema, estimate(other, self._rows).rows)
        most = self.limits.broadcast_threshold if node.distribution is Distribution.ANY else math.inf
        inputs: tuple[Exchange, ...] = ()
        if any(map(_is_computed_once, other.walk())):
            sent = sides[side.other]
            if sent is None or held > most:
                return None
            if part.spark is not None:
                part = self._spread(part, node.side(side))
            inputs = (_replicated(next(self._source_numbers), sent, held, self.limits),)
            other = ExchangeSource(inputs[0].index, other.schema)
            cost, repeated, scans = sent.cost + _STAGE_BYTES, _EXCHANGED * held, frozenset[int]()
        else:
            scans = frozenset(scan.index for scan in other.walk() if isinstance(scan, Scan))
            cost, repeated = 0.0, sum(self.facts[index].nbytes for index in scans)
            if repeated > most:
                return None
        cost += part.cost + (repeated + _HELD * held) * part.tasks(self.limits)
        trees = [part.tree, other] if side is Side.LEFT else [other, part.tree]
        positions = output_positions(node.spec, side)
        joined = part.reading(scans).above(
            node.with_children(trees), (by.moved(positions) for by in part.known)
        )
        return dataclasses.replace(joined, cost=cost, inputs=(*part.inputs, *inputs))

    def _exchanging(self, node: Join, sides: Mapping[Side, _Part]) -> _Part | None:
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
        self, node: Join, sides: Mapping[Side, _Part], keys: _Keys, kept: Mapping[Side, _Partitioning]
    ) -> _Part | None:
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
        if not fixed and not kept and self.limits.indeterminate_keys:
            fixed = chosen
        if not fixed or (kept and fixed != chosen):
            return None
        chosen = fixed
        spec = node.spec
        unknown = {side: spec.join_type.null_aware and keys.may_be_unknown(side, chosen) for side in Side}
        if kept and any(unknown.values()):
            return None
        placed: dict[Side, _Part] = {}
        moves: dict[Side, dict[int, int]] = {}
        by: dict[Side, _Partitioning] = {}
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
            cut = _Cut(
                _used(spec, side), columns, types, [keys.null_safe[i] for i in chosen],
                null_keys_of(spec.join_type, side), side is Side.RIGHT and unknown[Side.LEFT],
            )  # fmt: skip
            rows = estimate(node.side(side), self._rows).rows
            placed[side], moves[side] = self._cut(part, cut, rows)
            by[side] = placed[side].known[0]
        left, right = placed[Side.LEFT], placed[Side.RIGHT]
        joined = Join(left.tree, right.tree, remapped_spec(spec, moves), node.build_side, node.distribution)
        known_after = []
        for side in (side for side in Side if _keeps(spec.join_type, side)):
            positions = output_positions(joined.spec, side)
            spread = by[side].spread and not _matched_only(spec.join_type)
            known_after.append(by[side].moved(positions, spread=spread))
            known_after += [known.moved(positions) for known in placed[side].known if known != by[side]]
        return _Part(
            joined, (), (*left.inputs, *right.inputs), left.replicated | right.replicated,
            tuple(dict.fromkeys(known for known in known_after if known is not None)), left.cost + right.cost, 0.0,
        )  # fmt: skip

    def _cut(self, part: _Part, cut: _Cut, rows: float) -> tuple[_Part, dict[int, int]]:
        """End a stage; its rows go on partitioned by keys, with the columns that are used further on."""
        schema = part.tree.schema
        moved = {old: new for new, old in enumerate(cut.used)}
        tree = part.tree
        if list(cut.used) != list(range(len(schema))):
            kept = [(schema.field(i), column(schema, i)) for i in cut.used]
            tree = Project(tree, tuple(Output(f.name, ref, f.nullable) for f, ref in kept))
        nbytes = _size(tree.schema, rows)
        columns = tuple(moved[index] for index in cut.columns)
        part = dataclasses.replace(part, tree=tree)
        exchange = Exchange(
            next(self._source_numbers), part.stage(self.limits), columns, tuple(cut.types), tuple(cut.null_safe),
            cut.nulls, nbytes, part.indeterminate, last_complete=cut.last_complete,
        )  # fmt: skip
        spread = cut.nulls is not NullKeys.DROP and not all(cut.null_safe)
        cost = part.cost + _EXCHANGED * nbytes * (2 if cut.last_complete else 1) + _STAGE_BYTES
        known = (_Partitioning(columns, tuple(cut.types), spread),)
        fed = _Part(
            ExchangeSource(exchange.index, tree.schema), (), (exchange,), frozenset(), known, cost, 0.0
        )
        return fed, moved

    def _spread(self, part: _Part, node: Relation) -> _Part:
        """End a stage; each row goes on to any task of the next one."""
        nbytes = _size(node.schema, estimate(node, self._rows).rows)
        exchange = Exchange(
            next(self._source_numbers), part.stage(self.limits), (), (), (), NullKeys.SPREAD, nbytes, part.indeterminate
        )  # fmt: skip
        cost = part.cost + _EXCHANGED * nbytes + _STAGE_BYTES
        source = ExchangeSource(exchange.index, part.tree.schema)
        return _Part(source, (), (exchange,), frozenset(), (), cost, 0.0)


def _in_one_task(
    relation: Relation, numbers: Iterator[int], facts: Mapping[int, ScanFacts], limits: StageLimits
) -> _Part:
    """Have one task read all that a tree reads; rows from Spark are sent to it."""
    inputs: list[Exchange] = []

    def visit(node: Relation) -> Relation:
        if not isinstance(node, SparkSource):
            children = [visit(child) for child in node.children]
            return node.with_children(children) if children else node
        part = _from_spark(node, next(numbers))
        inputs.append(_replicated(next(numbers), part, part.nbytes, limits))
        return ExchangeSource(inputs[-1].index, node.schema)

    tree = visit(relation)
    scans = frozenset(node.index for node in tree.walk() if isinstance(node, Scan))
    nbytes = sum(float(facts[index].nbytes) for index in scans if index in facts)
    cost = nbytes + sum(_STAGE_BYTES + (1 + _EXCHANGED) * exchange.nbytes for exchange in inputs)
    return _Part(tree, (Branch(None, scans),), tuple(inputs), frozenset(), (), cost, nbytes)


def _from_spark(node: SparkSource, number: int) -> _Part:
    """Take rows from Spark, in a task for each of its partitions."""
    columns = frozenset(range(len(node.columns)))
    loose = columns if node.level is DeterminismLevel.INDETERMINATE else frozenset[int]()
    nbytes = _size(node.columns, node.rows)
    taken = SparkInput(number, node.index, loose)
    return _Part(ExchangeSource(number, node.columns), (), (), frozenset(), (), nbytes, nbytes, spark=taken)


def _replicated(number: int, part: _Part, nbytes: float, limits: StageLimits) -> Exchange:
    """Send all rows of a part to every task of another stage."""
    return Exchange(
        number, part.stage(limits), (), (), (), NullKeys.SPREAD, nbytes, part.indeterminate, replicated=True
    )


def _is_computed_once(node: Relation) -> bool:
    """Whether a node is not computed by each task that needs its rows."""
    return isinstance(node, SparkSource) or (
        isinstance(node, Join) and node.distribution is Distribution.PARTITIONED
    )


def _in_order(tree: Relation, inputs: Iterable[Exchange]) -> tuple[Exchange, ...]:
    """Exchanges in the order in which a tree reads them."""
    order = {index: place for place, index in enumerate(sources_in_order(tree))}
    return tuple(sorted(inputs, key=lambda exchange: order[exchange.index]))


def _size(schema: pa.Schema, rows: float) -> float:
    """About how many bytes rows have."""
    return rows * row_bytes(schema)


@dataclass(frozen=True)
class _Cut:
    """What goes into an exchange: columns used further on, and by which of them, as in :class:`Exchange`."""

    used: Sequence[int]
    columns: Sequence[int]
    types: Sequence[pa.DataType]
    null_safe: Sequence[bool]
    nulls: NullKeys
    last_complete: bool = False


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

    def served_by(self, known: _Partitioning, side: Side) -> list[int] | None:
        """Which of the keys a side is partitioned by; ``None`` if by others too."""
        chosen = []
        for place, dtype in zip(known.columns, known.types, strict=True):
            found = [
                i
                for i, (at, wanted) in enumerate(zip(self.columns[side], self.types, strict=True))
                if at == place and wanted == dtype and not (known.spread and self.null_safe[i])
            ]
            if not found:
                return None
            chosen.append(found[0])
        return chosen


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
