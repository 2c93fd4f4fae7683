"""Shares out rows of subtrees among tasks, and sends them to the next stage by exchanges."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from gpujoin.model.expressions import ColumnId
from gpujoin.model.relations import (
    ConstantTable,
    ExchangeSource,
    Join,
    Relation,
    Scan,
    SparkSource,
)
from gpujoin.model.stages import Branch, DeterminismLevel, Exchange, NullKeys, SparkInput, Stage
from gpujoin.plan.determinism import indeterminate_columns
from gpujoin.plan.estimates import Sizes, row_bytes
from gpujoin.plan.fragments import ColumnTree, Fragment
from gpujoin.plan.scanned import OPENING, Buckets, bucket_delay

EXCHANGED = 1.5
"""What exchanging a byte costs, in compressed bytes read: split, encode, Spark's shuffle, receive
(`benchmarks/pipeline/README.md`, "exchange")."""
STAGE_BYTES = 16 << 20
"""The cost of another stage, in compressed bytes read."""
WAITING = 8 << 20
"""The cost of a core that waits for another stage, in compressed bytes read."""
ALONE = 2.0
"""The cost of another byte of a join in one task, while the other cores are idle."""
_MOST_KEY_BYTES = 64 << 20
"""Keys of so many bytes may go to every task, even where a smaller table may not."""
_MOST_GATHERED = 4
"""One task takes so many times the rows of one input together."""
BUILDING = 0.3
"""The cost of building a byte of a replicated side."""


@dataclass(frozen=True)
class ScanFacts:
    """What is known of a scan's input."""

    rows: float
    """Rows of its files."""
    nbytes: int
    """Compressed bytes of the columns read."""
    files: int = 1
    """How many files there are."""
    buckets: Mapping[int, Buckets] = field(default_factory=dict)
    """The buckets of columns by which the files are divided, by the positions of the columns."""


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
    sides."""
    indeterminate_keys: bool = False
    """Whether rows may be exchanged by keys whose values may be others when a task runs again, as Spark's own
    shuffles do, where there are no other keys."""
    keeps_tables: bool = False
    """Whether tasks keep the tables that they read: these are sent to no task that can read them."""
    gathered_bytes: int = 0
    """Rows of up to so many bytes go on to one task, which needs no further exchange, and not by key. Files of so few
    compressed bytes, with what opening them costs, are read by one task."""

    @property
    def key_bytes(self) -> int:
        """Most bytes of keys that every task may be sent to drop rows before they are exchanged.

        Rows of a table that must be exchanged may still have few keys. Where no table may go to every task, none do.
        """
        return max(self.broadcast_threshold, _MOST_KEY_BYTES) if self.broadcast_threshold >= 0 else -1


@dataclass(frozen=True)
class Partitioning:
    """Rows with equal values in these columns, as these types, are in one partition.

    With ``spread`` that does not hold of rows in which one of them is null.
    """

    columns: tuple[ColumnId, ...]
    types: tuple[pa.DataType, ...]
    spread: bool


@dataclass(frozen=True)
class Bucketing:
    """Rows with equal values in a column are in files of one bucket, in each of some scans."""

    column: ColumnId
    kind: str
    """How the bucket of a value is computed."""
    scans: tuple[tuple[int, int], ...]
    """The scans, each with the column whose buckets these are."""


@dataclass(frozen=True)
class Part:
    """A subtree with its rows shared out among tasks."""

    rows: Fragment[ColumnId]
    """The subtree, with sources where it was cut, and where its columns are."""
    branches: tuple[Branch, ...]
    inputs: tuple[Exchange, ...]
    replicated: frozenset[int]
    partitionings: tuple[Partitioning, ...]
    """How its rows are known to be partitioned, be it by columns that are no longer there."""
    cost: float
    """Cumulative cost, producers included."""
    nbytes: float
    """Compressed bytes of what is divided, or bytes of the rows from Spark."""
    spark: SparkInput | None = None
    """Like the branches, inputs and replicated scans: as in :class:`Stage`."""
    bucketings: tuple[Bucketing, ...] = ()
    """How the files are divided by buckets; where they are not divided so yet, each way in which they may be."""

    @property
    def tree(self) -> Relation:
        """The subtree."""
        return self.rows.relation

    @property
    def partitioned(self) -> tuple[Exchange, ...]:
        """The exchanges of which every task gets a share."""
        return tuple(exchange for exchange in self.inputs if not exchange.replicated)

    @property
    def in_one_task(self) -> bool:
        """Whether all rows are in one task."""
        return len(self.branches) == 1 and self.branches[0].partitioned is None

    @property
    def divides_files(self) -> bool:
        """Whether the files of one scan, or of several by buckets, are divided, and nothing else is."""
        return len(self.branches) == 1 and not self.in_one_task and not self.partitioned

    def tasks(self, limits: StageLimits) -> int:
        """Give the number of tasks of a stage that ends with these rows."""
        if self.in_one_task:
            return 1
        if not self.partitioned:
            return max(limits.cores, math.ceil(self.nbytes / limits.task_bytes))
        if limits.partitions is not None:
            return limits.partitions
        spread = not any(exchange.columns for exchange in self.partitioned)
        if spread and len(self.partitioned) < len(self.inputs):
            # Nothing is held of rows that are spread, and each task is sent one more copy of the others.
            return limits.cores
        tasks_by_bytes = math.ceil(sum(exchange.nbytes for exchange in self.partitioned) / limits.partition_bytes)
        if any(stage.spark is not None for exchange in self.partitioned for stage in exchange.producer.walk()):
            tasks_by_bytes = min(tasks_by_bytes, limits.guessed_partitions)
        return max(limits.cores, tasks_by_bytes)

    @cached_property
    def indeterminate(self) -> frozenset[int]:
        """Positions of the columns by whose values no row may be sent anywhere."""
        sources = {exchange.index: exchange.indeterminate for exchange in self.inputs}
        if self.spark is not None:
            sources[self.spark.source] = self.spark.indeterminate
        return indeterminate_columns(self.tree, sources)

    @cached_property
    def determinate(self) -> frozenset[ColumnId]:
        """The columns by whose values rows may be sent to other tasks."""
        indeterminate = self.indeterminate
        return frozenset(id_ for id_, at in self.rows.positions.items() if at not in indeterminate)

    def stage(self, limits: StageLimits) -> Stage:
        """End a stage with these rows."""
        inputs = in_order(self.tree, self.inputs)
        if self.branches:
            return Stage(self.tree, self.branches, inputs, cost=self.cost)
        partitions = self.tasks(limits) if inputs else 1
        return Stage(self.tree, (), inputs, partitions, self.replicated, self.spark, self.cost)

    def above(self, rows: Fragment[ColumnId]) -> Part:
        """The same rows shared out the same way, with another tree over them."""
        return dataclasses.replace(self, rows=rows)

    def with_columns(self, columns: Collection[ColumnId]) -> Part:
        """The same rows with the columns that are used."""
        ids = [id_ for id_ in self.rows.positions if id_ in columns]
        return self if len(ids) == len(self.rows.positions) else self.above(self.rows.select(ids))

    def reading(self, scans: frozenset[int]) -> Part:
        """The same, where each task also reads some scans whole."""
        branches = tuple(dataclasses.replace(branch, replicated=branch.replicated | scans) for branch in self.branches)
        return dataclasses.replace(self, branches=branches, replicated=self.replicated | scans)


@dataclass(frozen=True)
class Cut:
    """An exchange to be: the columns that it sends, and those that decide on the partition, as in :class:`Exchange`."""

    output: Collection[ColumnId]
    columns: Sequence[ColumnId]
    types: Sequence[pa.DataType]
    null_safe: Sequence[bool]
    nulls: NullKeys
    last_complete: bool = False


@dataclass
class Planning:
    """What a tree's stages are planned by, and the numbers of the sources so far."""

    facts: Mapping[int, ScanFacts]
    limits: StageLimits

    def __post_init__(self) -> None:
        self._source_numbers = itertools.count()
        self.sizes = Sizes({index: facts.rows for index, facts in self.facts.items()})

    def dividing(self) -> Planning:
        """The same planning, by which rows do not go to one task because they are few."""
        planning = copy.copy(self)  # which numbers sources on
        planning.limits = dataclasses.replace(self.limits, gathered_bytes=0)
        return planning

    @property
    def _gathers(self) -> bool:
        """Whether few rows go to one task; those of a stream stay with the tasks that keep its tables."""
        limits = self.limits
        return limits.partitions is None and limits.gathered_bytes > 0 and not limits.keeps_tables

    def delay(self, scans: Iterable[tuple[int, int]]) -> float:
        """How many times longer than an even share takes what scans have in the largest buckets of columns."""
        return bucket_delay([self.facts[index].buckets[column] for index, column in scans], self.limits.cores)

    def size_of(self, node: Relation) -> float:
        """About how many bytes the rows of a node have."""
        return _size(node.schema, self.sizes.of(node).rows)

    def leaf(self, rows: ColumnTree, node: Scan | SparkSource | ConstantTable) -> Part:
        """Share out the rows of files, or of Spark; those of the query itself are in one task."""
        if isinstance(node, SparkSource):
            return self._from_spark(rows, node)
        if isinstance(node, ConstantTable):
            return Part(rows, (Branch(None),), (), frozenset(), (), 0.0, 0.0)
        facts = self.facts[node.index]
        nbytes = float(facts.nbytes)
        most = min(self.limits.gathered_bytes, self.limits.task_bytes)
        if self._gathers and nbytes + OPENING * (facts.files - 1) <= most:
            return Part(rows, (Branch(None, frozenset({node.index})),), (), frozenset(), (), nbytes, nbytes)
        bucketings = tuple(
            Bucketing(rows.ids[column], buckets.kind, ((node.index, column),))
            for column, buckets in facts.buckets.items()
        )
        branch = Branch(node.index)
        return Part(rows, (branch,), (), frozenset(), (), nbytes, nbytes, bucketings=bucketings)

    def _from_spark(self, rows: Fragment[ColumnId], node: SparkSource) -> Part:
        """Take rows from Spark, in a task for each of its partitions."""
        number = next(self._source_numbers)
        columns = frozenset(range(len(node.columns)))
        loose = columns if node.level is DeterminismLevel.INDETERMINATE else frozenset[int]()
        nbytes = _size(node.columns, node.rows)
        source_input = SparkInput(number, node.index, loose)
        source = rows.under(ExchangeSource(number, node.columns))
        return Part(source, (), (), frozenset(), (), nbytes, nbytes, spark=source_input)

    def in_one_task(self, rows: ColumnTree) -> Part:
        """Have one task read all that a tree reads; rows from Spark are sent to it."""
        inputs: list[Exchange] = []

        def visit(node: Relation) -> Relation:
            if not isinstance(node, SparkSource):
                children = [visit(child) for child in node.children]
                return node.with_children(children) if children else node
            part = self._from_spark(ColumnTree.from_relation(node), node)
            inputs.append(self.replicated(part, part.nbytes))
            return ExchangeSource(inputs[-1].index, node.schema)

        tree = visit(rows.relation)
        scans = frozenset(node.index for node in tree.walk() if isinstance(node, Scan))
        nbytes = sum(float(self.facts[index].nbytes) for index in scans if index in self.facts)
        cost = nbytes + sum(STAGE_BYTES + (1 + EXCHANGED) * exchange.nbytes for exchange in inputs)
        return Part(rows.under(tree), (Branch(None, scans),), tuple(inputs), frozenset(), (), cost, nbytes)

    def replicated(self, part: Part, nbytes: float) -> Exchange:
        """End a stage; all its rows go on to every task of the next one."""
        return Exchange(
            next(self._source_numbers), part.stage(self.limits), (), (), (), NullKeys.SPREAD, nbytes,
            part.indeterminate, replicated=True,
        )  # fmt: skip

    def cut(self, part: Part, cut: Cut, node: Relation) -> Part:
        """End a stage, whose rows go on partitioned by keys."""
        part = part.with_columns(cut.output)
        nbytes = _size(part.tree.schema, self.sizes.of(node).rows)
        columns = tuple(part.rows.positions[id_] for id_ in cut.columns)
        exchange = Exchange(
            next(self._source_numbers), part.stage(self.limits), columns, tuple(cut.types), tuple(cut.null_safe),
            cut.nulls, nbytes, part.indeterminate, last_complete=cut.last_complete,
        )  # fmt: skip
        spread = cut.nulls is not NullKeys.DROP and not all(cut.null_safe)
        cost = part.cost + EXCHANGED * nbytes * (2 if cut.last_complete else 1) + STAGE_BYTES
        partitionings = (Partitioning(tuple(cut.columns), tuple(cut.types), spread),)
        source = part.rows.under(ExchangeSource(exchange.index, part.tree.schema))
        return Part(source, (), (exchange,), frozenset(), partitionings, cost, 0.0)

    def is_small(self, node: Relation, copies: int = 1) -> bool:
        """Whether one task had better take all rows of a node.

        Each of ``copies`` tasks may give about as many. Where the number of partitions was asked for, none are.
        """
        nbytes = max(self.size_of(node), self.sizes.of(node).rows)  # rows without columns are many, too
        return self._gathers and nbytes * copies <= self.limits.gathered_bytes

    def gathered(self, part: Part, node: Relation) -> Part:
        """End a stage; all its rows, about as many as a node's, go on to one task."""
        nbytes = _size(part.tree.schema, self.sizes.of(node).rows)
        exchange = self.replicated(part, nbytes)
        source = part.rows.under(ExchangeSource(exchange.index, part.tree.schema))
        cost = part.cost + EXCHANGED * nbytes + STAGE_BYTES
        return Part(source, (Branch(None),), (exchange,), frozenset(), (), cost, nbytes)

    def spread(self, part: Part, node: Relation) -> Part:
        """End a stage; each row goes on to any task of the next one."""
        nbytes = self.size_of(node)
        exchange = Exchange(
            next(self._source_numbers), part.stage(self.limits), (), (), (), NullKeys.SPREAD, nbytes, part.indeterminate
        )  # fmt: skip
        cost = part.cost + EXCHANGED * nbytes + STAGE_BYTES
        source = part.rows.under(ExchangeSource(exchange.index, part.tree.schema))
        return Part(source, (), (exchange,), frozenset(), (), cost, 0.0)


def in_the_same_task(node: ColumnTree, parts: Sequence[Part], limits: StageLimits) -> Part | None:
    """Have one task run a node over inputs that are each in one task; ``None`` unless all are, and are few together."""
    nbytes = [part.nbytes for part in parts]
    few = max(_MOST_GATHERED * limits.gathered_bytes, *nbytes)
    if sum(nbytes) > few or not all(part.in_one_task for part in parts):
        return None
    scans = frozenset[int]().union(*(branch.replicated for part in parts for branch in part.branches))
    return Part(
        node.over([part.rows for part in parts]), (Branch(None, scans),),
        tuple(exchange for part in parts for exchange in part.inputs), frozenset(), (),
        sum(part.cost for part in parts), sum(nbytes),
    )  # fmt: skip


def sources_in_order(tree: Relation) -> Iterator[int]:
    """Give the sources of a tree in the order in which a pipeline reads them: a join's build side first."""
    if isinstance(tree, ExchangeSource):
        yield tree.index
    children: Sequence[Relation] = tree.children
    if isinstance(tree, Join):
        children = (tree.side(tree.build_side), tree.side(tree.build_side.other))
    for child in children:
        yield from sources_in_order(child)


def in_order(tree: Relation, inputs: Iterable[Exchange]) -> tuple[Exchange, ...]:
    """Give exchanges in the order in which a tree reads them."""
    order = {index: place for place, index in enumerate(sources_in_order(tree))}
    return tuple(sorted(inputs, key=lambda exchange: order[exchange.index]))


def _size(schema: pa.Schema, rows: float) -> float:
    """About how many bytes rows have."""
    return rows * row_bytes(schema)
