"""Finds islands: maximal parts of an optimized plan that workers run, on files and on rows that Spark computes.

An island ends where a node is not covered. Spark computes that node and what is below it, and the island takes its
rows. In ``select … from sales join stores using (store) group by city``, where ``stores`` is a CSV file, the island is
the aggregation, the join and the scan of ``sales``; the rows of ``stores`` come from Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import pyarrow as pa

from gpujoin.config import Options
from gpujoin.errors import RelationError
from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.expressions import Literal
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import Join, Output, PartialAggregate, Project, Relation, Scan
from gpujoin.model.trees import preorder
from gpujoin.plan.estimates import Sizes
from gpujoin.plan.nested_groups import with_plain_values
from gpujoin.plan.repeated import repeated_parts
from gpujoin.plan.runtime_filters import with_runtime_filters
from gpujoin.plan.semi_joins import with_semi_joins
from gpujoin.report.parts import part_name
from gpujoin.spark.catalyst.joins import AS_OF_JOIN, JOINS
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.query.aggregates import ReadAggregate, read_aggregate, unique_calls
from gpujoin.spark.query.nearest.terms import Nearest
from gpujoin.spark.query.plans import PlanNode, with_subqueries
from gpujoin.spark.query.reading import Reading
from gpujoin.spark.query.scans import TABLES
from gpujoin.spark.query.trees.builder import (
    REPARTITIONS,
    BrokenError,
    BuildNode,
    Fragment,
    OtherBackendError,
    ScanSource,
    SparkRows,
    TreeBuilder,
    broken_by,
    is_joined_with_tables,
)
from gpujoin.spark.query.trees.distinct import Estimates
from gpujoin.spark.query.trees.joins import join
from gpujoin.spark.query.trees.limits import Top, limit, local_limit
from gpujoin.spark.query.trees.nearest import as_of_join
from gpujoin.spark.query.trees.nodes import (
    aggregate,
    aggregate_input,
    aggregated,
    expand,
    few_numbers,
    filter_,
    generate,
    one_row,
    project,
    repartition,
    scan,
    union,
    written_rows,
)
from gpujoin.spark.query.trees.pivot import is_pivot
from gpujoin.spark.query.trees.python_calls import CALLS, ROWS, python_calls, python_rows
from gpujoin.spark.query.trees.python_windows import any_window
from gpujoin.spark.query.trees.windows import group_limit

BUILDERS: dict[str, BuildNode] = {
    "LogicalRelation": scan,
    "DataSourceV2ScanRelation": scan,
    "LocalRelation": written_rows,
    "Range": few_numbers,
    "OneRowRelation": one_row,
    "Filter": filter_,
    "Project": project,
    "Join": join,
    "GpuAsOfJoin": as_of_join,
    "Union": union,
    "Aggregate": aggregate,
    "Expand": expand,
    "Window": any_window,
    "WindowGroupLimit": group_limit,
    "GlobalLimit": limit,
    "LocalLimit": local_limit,
    "Offset": limit,
    "Generate": generate,
    CALLS: python_calls,
    **dict.fromkeys(REPARTITIONS, repartition),
}
"""How each class of plan nodes becomes a fragment."""

AGGREGATE = "org.apache.spark.sql.catalyst.plans.logical.Aggregate"
_ROWS_FROM = frozenset({"Join", "GpuAsOfJoin", "Filter", "Project", "Window", "Union", CALLS, *ROWS})
_PASSES_ON = frozenset({"Project", "Filter", "Generate", "Expand", CALLS, "MapInPandas", "MapInArrow"})
"""Nodes whose rows stay in the tasks of their input."""
ALONE = frozenset({"Window", CALLS, *ROWS})
"""Nodes for which an island is made also where it has neither a join nor an aggregation."""
_SHARED = 4
"""A union is the topmost node where at least one in so many bytes would be read for parts that its inputs share."""
_VALUE_BYTES = 8
_MOST_COLUMNS = 1000
"""Each column that is given back to Spark takes some calls through the gateway: about a millisecond."""


class Finish(Enum):
    """What Spark does with an island's rows."""

    NOTHING = "nothing"
    """They are the rows of the plan."""
    MERGE = "merge"
    """They are partial results that its aggregate functions merge."""
    AGGREGATE = "aggregate"
    """They are the distinct rows, and perhaps partial results, that its own aggregation reads."""


@dataclass(frozen=True)
class Island:
    """A part of a plan that workers run."""

    node: PlanNode
    """The topmost node."""
    relation: Relation
    """The relation that workers compute, with the columns of ``columns``."""
    plain: Relation
    """The relation without runtime filters."""
    columns: tuple[int | None, ...]
    """Which attribute of the plan each output column is; ``None``: a new one. A plan without columns has none, and
    its relation one.
    """
    sources: Mapping[int, ScanSource]
    """The files of the scans, by index."""
    spark_sources: tuple[SparkRows, ...]
    """Parts whose rows Spark computes."""
    finish: Finish
    """The operation that Spark does with the rows."""
    aggregation: ReadAggregate | None
    """The aggregation, if the topmost node is one."""
    calls: Mapping[int, AggregateCall]
    """Partial results, by position among the aggregates."""
    distinct: tuple[Node, ...] = ()
    """Columns that the distinct aggregates read, beside the keys."""
    computes_subqueries: bool = False
    """Whether it has the scalar subqueries of its nodes within it."""
    sizes: Sizes = field(kw_only=True, repr=False)
    """Estimated sizes of its relations."""
    broadcasts: tuple[Any, ...] = field(default=(), kw_only=True, repr=False)
    """The JVM's broadcasts that its Python functions may read."""
    whole: Callable[[], Island | None] = field(default=lambda: None, repr=False)
    """Gives the same island with its aggregation finished, for one task; ``None`` if Spark has to finish it."""

    @property
    def stores(self) -> frozenset[str]:
        """Names of the stores that its files are in."""
        return frozenset().union(*(source.stores for source in self.sources.values()))

    @property
    def output_bytes(self) -> float:
        """About how many bytes its rows take: a guess."""
        rows = self.sizes.of(self.relation).rows
        return rows * _VALUE_BYTES * len(self.columns)

    @property
    def streamed(self) -> bool:
        """Whether rows of a stream are joined in it."""
        return any(source.node.streaming for source in self.spark_sources)

    @property
    def nbytes(self) -> int:
        """Compressed bytes of the columns read, and about the bytes of the rows from Spark."""
        scan_bytes = sum(source.files.nbytes for source in self.sources.values())
        return scan_bytes + int(sum(source.nbytes for source in self.spark_sources))

    @property
    def work_bytes(self) -> int:
        """The same, with what opening very many files costs."""
        return self.nbytes + sum(source.files.work_bytes - source.files.nbytes for source in self.sources.values())

    @property
    def known_bytes(self) -> int | None:
        """Count the same bytes without rows from Spark of unknown number; ``None`` if there are no others."""
        row_bytes_ = [rows.nbytes for rows in self.spark_sources if not rows.guessed]
        if not row_bytes_ and not self.sources:
            return None
        return int(sum(source.files.nbytes for source in self.sources.values()) + sum(row_bytes_))

    def own_nodes(self) -> Iterator[PlanNode]:
        """Yield its nodes, parents first, without those that Spark computes."""
        nodes = preorder(self.node, {source.node for source in self.spark_sources})
        return with_subqueries(nodes, set()) if self.computes_subqueries else nodes

    @property
    def as_of_joins(self) -> tuple[PlanNode, ...]:
        """Give the joins of ``gpu_asof_join``, parents first."""
        return tuple(node for node in self.own_nodes() if node.class_name == AS_OF_JOIN)

    @property
    def joins(self) -> tuple[Join, ...]:
        """The joins inside, parents first."""
        return tuple(inner for inner in self.relation.walk() if isinstance(inner, Join))


class IslandFinder:
    """Finds islands in a plan.

    Parameters
    ----------
    options : Options
        Settings.
    constant : callable or None
        Gives the value of a scalar subquery; ``None``: islands compute it.
    reading : Reading
        How files are read.
    nearest : mapping from PlanNode to Nearest
        The joins that may give of each row's matches the nearest alone.
    stream_rows : float or None
        Rows of a micro-batch of a stream; ``None``: not known.
    zone : str or None
        The session's time zone; ``None``: not known.

    Attributes
    ----------
    broken : dict from PlanNode to Reason
        Why a node is in no island.
    """

    def __init__(
        self,
        options: Options,
        constant: Callable[[Node], Literal] | None,
        reading: Reading,
        nearest: Mapping[PlanNode, Nearest],
        stream_rows: float | None = None,
        *,
        zone: str | None = None,
    ) -> None:
        self._options = options
        self._constant = constant
        self._reading = reading
        self._nearest = nearest
        self._stream_rows = stream_rows
        self._zone = zone
        self.broken: dict[PlanNode, Reason] = {}

    def at(self, node: PlanNode, top: Top | None = None) -> Island | None:
        """Make the island with a given topmost node; ``None`` if there is none.

        ``top`` says how few of its rows are asked for. An aggregation is then finished in the island.
        """
        if not (may_top(node) or _gives_first(node, top)) or node in self.broken:
            return None
        builder = TreeBuilder(
            self._options,
            self._constant,
            BUILDERS,
            self._reading,
            nearest=self._nearest,
            stream_rows=self._stream_rows,
            zone=self._zone,
        )
        island: Island | None
        try:
            if top is None and node.class_name == AGGREGATE:
                island = self._aggregation(node, builder)
            else:
                island = _rows(node, builder, top)
        except BrokenError as problem:
            if top is None:
                self._note(problem)
            return None
        except (NotTranslatableError, RelationError):
            if top is None:
                raise
            return None
        pays = island is not None and _pays(island.relation)
        if island is not None and node.name == "Union" and not (_gives_first(node, top) or _are_shared(island)):
            return None
        for source in builder.spark_sources:
            if source.problem is not None:
                self._note(
                    source.problem,
                    None if pays or not _is_in_memory(source.problem.node) else ReasonKind.SLOWER,
                )
        return island if pays else None

    def _note(self, problem: BrokenError, kind: ReasonKind | None = None) -> None:
        if isinstance(problem, OtherBackendError):
            return  # it is in an island of its own
        if problem.kind is ReasonKind.UNSUPPORTED and not problem.node.children:
            kind = kind or ReasonKind.UNREAD
        self.broken[problem.node] = Reason(kind or problem.kind, part_name(problem.node), str(problem), problem.setting)

    def _aggregation(self, node: PlanNode, builder: TreeBuilder) -> Island | None:
        builder.check_switch(node)
        try:
            aggregation = read_aggregate(node)
            if aggregation.calls_functions:
                return _columns(node, aggregate(builder, node, frozenset(c.expr_id for c in node.output)), builder)
            below = aggregate_input(builder, node, aggregation)
            if aggregation.final_only or is_pivot(aggregation):
                ids = frozenset(column.expr_id for column in node.output)
                return _columns(node, aggregated(builder, aggregation, below, ids), builder)
            return _partial(node, aggregation, below, builder)
        except NotTranslatableError as problem:
            raise BrokenError(node, str(problem)) from problem


def _is_in_memory(node: PlanNode) -> bool:
    """Whether its rows are in Spark's memory: cached, collected or made by a program."""
    return not node.children and node.class_name not in TABLES


def _pays(relation: Relation) -> bool:
    """Whether any of it is faster here, which the aggregation of rows from Spark is not."""
    return any(isinstance(node, (Join, Scan)) for node in relation.walk())


def _are_shared(island: Island) -> bool:
    """Whether the inputs of a union, each an island otherwise, share parts that are worth computing once."""

    def bytes_below(node: Relation) -> int:
        return sum(island.sources[scan.index].files.nbytes for scan in node.walk() if isinstance(scan, Scan))

    repeated = repeated_parts(island.relation).kinds
    first: set[int] = set()
    spared = 0
    for node in island.relation.walk():
        kind = repeated.get(node)
        if kind in first:
            spared += bytes_below(node)
        elif kind is not None:
            first.add(kind)
    if any(source.node in island.node.children for source in island.spark_sources):
        return False
    return 0 < bytes_below(island.relation) <= _SHARED * spared


def may_top(node: PlanNode) -> bool:
    """Whether a node may be the topmost of an island, however many of its rows are asked for."""
    if node.streaming and not is_joined_with_tables(node):
        return False
    if node.class_name == AGGREGATE:
        return True
    return node.name in _ROWS_FROM and any(
        inner.class_name in JOINS or inner.class_name == AGGREGATE or inner.name in ALONE for inner in node.walk()
    )


def _gives_first(node: PlanNode, top: Top | None) -> bool:
    """Whether a node's rows are sorted, to give the first of them."""
    ordered = top is not None and bool(top.order)
    return ordered and not node.streaming and (node.name in _ROWS_FROM or node.class_name in TABLES)


def _rows(node: PlanNode, builder: TreeBuilder, top: Top | None = None) -> Island:
    ids = [column.expr_id for column in node.output]
    if len(ids) > _MOST_COLUMNS:
        raise BrokenError(node, f"it has {len(ids)} columns, more than {_MOST_COLUMNS}")
    arranged = _arrangement(node)
    if arranged is not None:
        raise BrokenError(arranged, "above joins and aggregations, Spark arranges the rows")
    below = _mapped(node, builder) if node.name in ROWS else builder.build(node, frozenset(ids))
    if top is not None:
        below = top.limit(below, builder)
    return _columns(node, below, builder)


def _mapped(node: PlanNode, builder: TreeBuilder) -> Fragment:
    """Give the rows that a Python function makes of those of an island: its last step."""
    builder.check_switch(node)
    try:
        return python_rows(builder, node)
    except (NotTranslatableError, RelationError) as problem:
        raise BrokenError(node, str(problem)) from problem


def _arrangement(node: PlanNode) -> PlanNode | None:
    """Find the repartitioning that has placed the rows of a node."""
    while node.name in _PASSES_ON:
        node = node.children[0]
    return node if node.name in REPARTITIONS else None


def _columns(node: PlanNode, below: Fragment, builder: TreeBuilder) -> Island:
    """The island that gives a node's columns."""
    obstacles = builder.obstacles(below.relation)
    if obstacles:
        raise broken_by(node, obstacles)
    ids = [column.expr_id for column in node.output]
    outputs = tuple(Output(f"c{n}", below.reference(i)) for n, i in enumerate(ids))
    outputs = outputs or (Output("c0", Literal(value=True, type=pa.bool_())),)  # whose rows are counted
    plain = Project(below.relation, outputs)
    relation = with_runtime_filters(with_semi_joins(plain, builder.sizes), builder.sizes)
    sources, rows = builder.sources, tuple(builder.spark_sources)
    return Island(
        node, relation, plain, tuple(ids), sources, rows, Finish.NOTHING, None, {},
        computes_subqueries=builder.constant is None, sizes=builder.sizes, broadcasts=tuple(builder.broadcasts),
    )  # fmt: skip


def _partial(node: PlanNode, aggregation: ReadAggregate, below: Fragment, builder: TreeBuilder) -> Island:
    reader = builder.reader(below)
    keys = [*aggregation.keys, *aggregation.distinct_columns]
    estimates = Estimates.from_aggregation(aggregation, reader)
    grouped = [*map(reader, keys), *estimates.registers]
    outputs = tuple(Output(f"k{n}", key) for n, key in enumerate(grouped))
    calls = {**aggregation.calls(reader), **estimates.calls}
    unique = unique_calls(calls)
    if not outputs and not unique:
        raise NotTranslatableError("an aggregation of nothing")
    plain = with_plain_values(PartialAggregate(below.relation, outputs, unique))
    obstacles = builder.obstacles(plain)
    if obstacles:
        raise broken_by(node, obstacles)
    relation = with_runtime_filters(with_semi_joins(plain, builder.sizes), builder.sizes)
    columns: list[int | None] = [key.expr_id if key.name == "AttributeReference" else None for key in keys]
    columns += [None] * (len(relation.schema) - len(keys))
    finish = Finish.AGGREGATE if aggregation.distinct else Finish.MERGE
    whole = partial(_whole, node, aggregation, below, builder)
    sources, rows = builder.sources, tuple(builder.spark_sources)
    return Island(
        node,
        relation,
        plain,
        tuple(columns),
        sources,
        rows,
        finish,
        aggregation,
        calls,
        aggregation.distinct_columns,
        computes_subqueries=builder.constant is None,
        sizes=builder.sizes,
        broadcasts=tuple(builder.broadcasts),
        whole=whole,
    )


def _whole(node: PlanNode, aggregation: ReadAggregate, below: Fragment, builder: TreeBuilder) -> Island | None:
    try:
        ids = frozenset(column.expr_id for column in node.output)
        return _columns(node, aggregated(builder, aggregation, below, ids), builder)
    except (BrokenError, NotTranslatableError, RelationError):
        return None
