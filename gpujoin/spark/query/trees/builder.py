"""Builds the tree of an island from fragments, one for each node of the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pat
from pyspark.sql.types import AtomicType

from gpujoin.config import Options
from gpujoin.engine.pipeline import supports_node
from gpujoin.errors import JoinSpecError, KeyTypeError, RelationError
from gpujoin.functions import BY_CLASS
from gpujoin.functions.comparison import OPERATORS
from gpujoin.functions.signatures import cast_to
from gpujoin.model.expressions import Call, EvalMode, Expression, Function, Literal
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import Output, Project, Relation, SparkSource
from gpujoin.model.sqltext import bare_name
from gpujoin.model.stages import Distribution
from gpujoin.model.switches import node_switch, off, switched_off
from gpujoin.plan import fragments
from gpujoin.plan.distribution import asked_distribution
from gpujoin.plan.estimates import Sizes, row_bytes
from gpujoin.plan.scanned import Buckets, ScannedFiles
from gpujoin.report.amounts import show_paths
from gpujoin.report.parts import is_held, part_name, why_uncovered
from gpujoin.spark.catalyst import intervals
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.catalyst.translate import ExpressionReader
from gpujoin.spark.catalyst.words import OF_OPTIMIZER
from gpujoin.spark.compat import arrow_type
from gpujoin.spark.query.nearest.terms import Nearest
from gpujoin.spark.query.plans import PlanNode
from gpujoin.spark.query.reading import Reading
from gpujoin.spark.query.scans import Snapshot

_MOST_REASONS = 2
"""Reasons that are told of one part of a query; the others follow from its other columns, as a rule."""
_BY_HINTS = "spark.gpujoin.strategy=auto, under which hints such as /*+ shuffle_hash(t) */ or broadcast(t) decide"
"""How a join is told apart from others that was not written as ``gpu_join``."""
_OF_STREAMS = frozenset({"Join", "GpuAsOfJoin", "Filter", "Project"})
"""Nodes that compute the rows of each micro-batch by themselves: Spark's do the same with a stream as with a table."""
REPARTITIONS = ("Repartition", "RepartitionByExpression", "RebalancePartitions")
"""Nodes that only move rows between tasks."""
UNKNOWN_ROWS = 1e6
"""Taken for the rows of what Spark knows no size of, as of ``createDataFrame`` and JDBC."""
UNKNOWN_LEAST_ROWS = 1e5
"""Taken for them where Spark's own seconds are predicted: few enough to be broadcast once their size is known, and more
than are compared pair by pair."""


class BrokenError(Exception):
    """A part of a plan cannot run in a worker.

    Attributes
    ----------
    node : PlanNode
        Where.
    kind : ReasonKind
        ``CONFIGURED`` where a setting has it so.
    setting : str or None
        What changes it.
    """

    def __init__(
        self,
        node: PlanNode,
        why: str,
        kind: ReasonKind = ReasonKind.UNSUPPORTED,
        setting: str | None = None,
    ) -> None:
        super().__init__(why)
        self.node = node
        self.kind = kind
        self.setting = setting


class OtherBackendError(BrokenError):
    """A part of a plan is to run on another backend than the joins above it."""


Fragment: TypeAlias = fragments.Fragment[int]
"""A part of a plan as a relation; its columns are known by the ids of Spark's attributes."""


@dataclass
class ScanSource:
    """What a scan of a tree reads, by its index."""

    files: ScannedFiles
    columns: tuple[str, ...]
    filters: tuple[Expression, ...]
    stores: frozenset[str]
    """Names of the stores that the files are in."""
    snapshot: Snapshot | None = None
    """The table of Delta or Iceberg that it reads."""
    buckets: Mapping[int, Buckets] = field(default_factory=dict)
    """The buckets of columns by which the files are divided, by the positions of the columns."""

    @property
    def name(self) -> str:
        """Name what is read: a table, or its files."""
        return show_paths(self.files.paths) if self.snapshot is None else self.snapshot.table


@dataclass(frozen=True)
class First:
    """A choice of rows: of those with equal values in some columns the first in an order."""

    equal: tuple[int, ...]
    """Attributes, by expression id."""
    order: tuple[tuple[int, bool, bool], ...]
    """Attributes, whether the greatest is first, and whether null is."""


@dataclass(frozen=True)
class SparkRows:
    """A part of a plan whose rows Spark computes, for an island above it."""

    node: PlanNode
    """Its topmost node."""
    columns: tuple[Node, ...]
    """The attributes that are taken, and stand-ins of what else is computed (`trees.computed`)."""
    nbytes: float
    """About how many bytes they have."""
    guessed: bool
    """Whether nobody knows how many there are."""
    least_rows: float
    """How many there are if Spark's filters keep as few as filters usually do."""
    problem: BrokenError | None
    """Why the part is not in the island, and where; ``None`` where Spark computes more than the part itself."""
    first: First | None = None
    """Which of its rows are taken; ``None``: all."""

    @property
    def why(self) -> str:
        """Why the part is not in the island, for people."""
        if self.problem is not None:
            name = part_name(self.problem.node)
            return name if is_held(self.problem.node) else f"{name} ({self.problem})"
        names = [str(column.fields["name"]) for column in self.columns if column.expr_id < 0]
        return ", ".join(names) or "the first of rows with equal keys"


class ColumnReader(ExpressionReader):
    """Translates expressions over the columns of one fragment, or of a join's two.

    ``constant`` gives the value of a scalar subquery.
    """

    def __init__(
        self,
        fragments: Mapping[Side, Fragment],
        constant: Callable[[Node], Expression],
    ) -> None:
        self._fragments = fragments
        self._constant = constant

    def column(self, node: Node) -> Expression:
        """Translate an attribute reference."""
        check_column(node)
        for side, fragment in self._fragments.items():
            if node.expr_id in fragment.positions:
                reference = fragment.reference(node.expr_id, side)
                is_generated = OF_OPTIMIZER.fullmatch(bare_name(reference.name))
                return dataclasses.replace(reference, written=str(node)) if is_generated else reference
        raise NotTranslatableError(f"{node.fields['name']} is no column of the input")

    def subquery(self, node: Node) -> Expression:
        """Translate a scalar subquery: its value."""
        return self._constant(node)

    def _operation(self, node: Node) -> Expression:
        spec = BY_CLASS.get(node.name)
        compares = spec is not None and spec.function in OPERATORS
        if spec is not None and compares and any(map(intervals.is_distance, node.children)):
            operands = tuple(map(self._microseconds, node.children))
            return Call(function=spec.function, arguments=operands, type=pa.bool_())
        return super()._operation(node)

    def _microseconds(self, node: Node) -> Expression:
        """Translate a difference of moments that Spark gives in microseconds, or a constant."""
        constant = intervals.constant_interval(node)
        if constant is not None:
            return constant
        if node.name == "Cast" and intervals.keeps_all(node):
            return self._microseconds(node.children[0])
        if node.name == "Abs":
            operands: tuple[Expression, ...] = (self._microseconds(node.children[0]),)
        else:
            operands = tuple(map(self, node.children)) if node.name in intervals.DIFFERENCES else ()
        if not operands or any(operand.type != intervals.MICROSECONDS for operand in operands):
            return intervals.micros_of(self(node))
        function = Function.ABS if node.name == "Abs" else Function.SUBTRACT
        return Call(function=function, arguments=operands, mode=intervals.EXACT, type=intervals.MICROSECONDS)


BuildNode: TypeAlias = "Callable[[TreeBuilder, PlanNode, frozenset[int]], Fragment]"


@dataclass
class TreeBuilder:
    """Builds the tree of one island."""

    options: Options
    """Settings."""
    constant: Callable[[Node], Literal] | None
    """Gives the value of a scalar subquery; ``None``: the island computes it."""
    nodes: Mapping[str, BuildNode] = field(repr=False)
    """How each class of plan nodes is translated, given the builder, the node, and what is required of it."""
    reading: Reading = field(default_factory=Reading)
    """How files are read."""
    sources: dict[int, ScanSource] = field(default_factory=dict)
    """The scans made so far."""
    sizes: Sizes = field(default_factory=Sizes, repr=False)
    """Estimated sizes of its relations."""
    spark_sources: list[SparkRows] = field(default_factory=list)
    """The inputs from Spark so far, by their index."""
    sound: set[Relation] = field(default_factory=set, repr=False)
    """Nodes that can be run."""
    backend: str | None = None
    """The backend that a join of the tree was asked to run on."""
    nearest: Mapping[PlanNode, Nearest] = field(default_factory=dict, repr=False)
    """The joins that may give of each row's matches the nearest alone."""
    stream_rows: float | None = None
    """Rows of a micro-batch of a stream of which Spark knows no number; ``None``: nobody does."""
    zone: str | None = None
    """The session's time zone; ``None``: not known."""
    carried: set[int] = field(default_factory=set, repr=False)
    """Columns that a node above asks for, and that projections below it pass on although they do not name them."""
    broadcasts: list[Any] = field(default_factory=list, repr=False)
    """The JVM's broadcasts that Python functions of the tree may read."""

    def build(self, node: PlanNode, required: frozenset[int]) -> Fragment:
        """Translate the plan below a node; attributes that are not required may be left out.

        Raises ``BrokenError`` if some node is not covered.
        """
        self.check_switch(node)
        build = self.nodes.get(node.name)
        if node.streaming and not is_joined_with_tables(node):
            raise BrokenError(node, "it is computed of a stream, which Spark does")
        if build is None:
            why, setting = why_uncovered(node)
            raise BrokenError(node, why, setting=setting)
        try:
            fragment = build(self, node, required)
            reasons = self.obstacles(fragment.relation)
        except (NotTranslatableError, RelationError, JoinSpecError, KeyTypeError) as problem:
            raise BrokenError(node, str(problem)) from problem
        if reasons:
            raise broken_by(node, reasons)
        return fragment

    def check_switch(self, node: PlanNode) -> None:
        """Raise ``BrokenError`` if what a node does is switched off."""
        self.check_switches(node, node_switch(node.name))

    def check_switches(self, node: PlanNode, *names: str | None) -> None:
        """Raise ``BrokenError`` if a name of what a node does is switched off."""
        for name in names:
            if name in self.options.disable:
                raise broken_by(node, (off(name),))

    def input(self, node: PlanNode, required: frozenset[int], *, any_rows: bool = False) -> Fragment:
        """Translate an input of a join, an aggregation or a union; what is not covered Spark computes.

        ``any_rows``: rows are taken from Spark even if they are other ones each time they are computed. Raises
        ``BrokenError`` if Spark's rows cannot be taken either.
        """
        start = self.state
        try:
            return self.build(node, required)
        except BrokenError as problem:
            self.state = start
            return self.from_spark(node, required, problem, any_rows=any_rows)

    @property
    def state(self) -> tuple[dict[int, ScanSource], int, str | None]:
        """The scans so far, how many inputs from Spark, and the backend; set, it forgets what was built since."""
        return dict(self.sources), len(self.spark_sources), self.backend

    @state.setter
    def state(self, earlier: tuple[dict[int, ScanSource], int, str | None]) -> None:
        scans, spark_rows, self.backend = earlier
        self.sources = dict(scans)
        del self.spark_sources[spark_rows:]

    def from_spark(
        self,
        node: PlanNode,
        required: frozenset[int],
        problem: BrokenError | None,
        computed: Sequence[Node] = (),
        first: First | None = None,
        *,
        any_rows: bool = False,
    ) -> Fragment:
        """Take the rows of a plan, or the ``first`` of them, from Spark, with what it computes with them.

        Raises the problem for which they are if they cannot be taken. ``any_rows`` is as in :meth:`input`.
        """
        columns = [column for column in node.output if column.expr_id in required]
        columns = [*columns, *computed] or _plainest(node.output)  # a plan without columns gets one
        columns = list({column.expr_id: column for column in columns}.values())
        if not node.deterministic and not any_rows:
            # Each use of it would be computed by itself, and differently.
            raise problem or BrokenError(node, "its rows are other ones each time they are computed")
        estimate = node.estimated_rows
        if estimate is None and node.streaming:
            estimate = self.stream_rows
        guessed = estimate is None
        rows = UNKNOWN_ROWS if estimate is None else estimate
        try:
            source = SparkSource(len(self.spark_sources), columns_of(columns), rows, node.level, guessed)
        except (JoinSpecError, RelationError) as refused:
            raise BrokenError(node, str(refused)) from refused
        reasons = self.obstacles(source)
        if reasons:
            raise problem or broken_by(node, reasons)
        nbytes = rows * row_bytes(source.columns)
        least = UNKNOWN_LEAST_ROWS if guessed else max(1.0, rows * node.usual_share)
        self.spark_sources.append(SparkRows(node, tuple(columns), nbytes, guessed, least, problem, first))
        return Fragment.from_columns(source, (column.expr_id for column in columns))

    def run_on(self, node: PlanNode) -> None:
        """Note the backend that a join was asked to run on.

        Raises ``OtherBackendError`` if a join above it was asked to run on another one.
        """
        backend = (node.request or {}).get("backend")
        if backend is None:
            return
        if self.backend not in (None, backend):
            raise OtherBackendError(node, f"backend {backend} was asked for, and {self.backend} above it")
        self.backend = backend

    def obstacles(self, relation: Relation) -> tuple[Reason, ...]:
        """Tell why a tree cannot be run; what was found sound is not looked at again."""
        if relation in self.sound:
            return ()
        below = [reason for child in relation.children for reason in self.obstacles(child)]
        switch = switched_off(relation, self.options.disable)
        reasons = tuple(dict.fromkeys([*([switch] if switch else []), *supports_node(relation), *below]))
        if not reasons:
            self.sound.add(relation)
        return reasons

    def reader(self, *fragments: Fragment) -> ColumnReader:
        """Make a translator over one fragment, or over a join's two."""
        sides = dict(zip(Side, fragments, strict=False))
        return ColumnReader(sides, self.constant or _no_value)


def why_not(reasons: Sequence[Reason]) -> str:
    """Say the first of some reasons."""
    texts = list(dict.fromkeys(reason.why for reason in reasons))
    more = len(texts) - _MOST_REASONS
    return "; ".join(texts[:_MOST_REASONS]) + (f"; and {more} more" if more > 0 else "")


def broken_by(node: PlanNode, reasons: Sequence[Reason]) -> BrokenError:
    """Make the error of a node for some reasons: of a setting, if there are no others."""
    if all(reason.kind is ReasonKind.CONFIGURED for reason in reasons):
        return BrokenError(node, why_not(reasons), ReasonKind.CONFIGURED, reasons[0].setting)
    return BrokenError(node, why_not(reasons))


def in_type_of_all(value: Expression, dtype: pa.DataType) -> Expression:
    """Cast a value to the type of the column that it shares with others.

    Structs come together by position: names of their fields, and where there may be nulls, are the column's.
    """
    return cast_to(value, dtype, EvalMode.LEGACY) if pat.is_nested(dtype) else value


def _no_value(node: Node) -> Literal:
    raise NotTranslatableError(f"{node} outside of a filter is not computed here")


def is_joined_with_tables(node: PlanNode) -> bool:
    """Tell whether a node of a stream computes each micro-batch by itself, and joins no streams with one another."""
    return node.name in _OF_STREAMS and sum(child.streaming for child in node.children) == 1


def columns_of(columns: Sequence[Node]) -> pa.Schema:
    """Name the columns of rows that are in no file; without any, one is made to count them by."""
    names = [str(column.fields["name"]) for column in columns]
    fields = []
    for column, name in zip(columns, names, strict=True):
        unique = name if names.count(name) == 1 else f"{name}#{column.expr_id}"
        try:
            dtype = arrow_type(column.data_type)
        except JoinSpecError as problem:
            raise JoinSpecError(f"column {name}: {problem}") from problem
        fields.append(pa.field(unique, dtype, bool(column.fields["nullable"])))
    return pa.schema(fields or [pa.field("rows", pa.bool_(), nullable=False)])


def _plainest(columns: Sequence[Node]) -> list[Node]:
    """Give the first column that is not nested, else the first, by which rows can be counted."""
    return [*[plain for plain in columns if isinstance(plain.data_type, AtomicType)], *columns][:1]


def counting_column(schema: pa.Schema) -> int:
    """Give the position of the first column that is not nested, else the first, by which rows can be counted."""
    return next((i for i, of_type in enumerate(schema.types) if not pat.is_nested(of_type)), 0)


def passed_on(fragment: Fragment, ids: Collection[int]) -> dict[int, Output]:
    """Pass on some columns of a fragment, under names that no others have."""
    references = {expr_id: fragment.reference(expr_id) for expr_id in fragment.positions if expr_id in ids}
    return {expr_id: Output(f"{bare_name(ref.name)}#{expr_id}", ref) for expr_id, ref in references.items()}


def named_outputs(named: Collection[Node], value: Callable[[Node], Expression]) -> dict[int, Output]:
    """Compute named expressions, by the ids of their attributes."""
    values = {each.expr_id: value(each.children[0] if each.name == "Alias" else each) for each in named}
    return {each.expr_id: Output(f"{each.fields['name']}#{each.expr_id}", values[each.expr_id]) for each in named}


def with_outputs(relation: Relation, outputs: Mapping[int, Output]) -> Fragment:
    """Project a relation to columns that are known by the ids of attributes."""
    return Fragment.from_columns(Project(relation, tuple(outputs.values())), outputs)


def narrowed(fragment: Fragment, required: frozenset[int]) -> Fragment:
    """Leave out columns that are not required, though never all."""
    ids = [i for i in fragment.positions if i in required] or list(fragment.positions)[:1]
    if len(ids) == len(fragment.relation.schema):
        return fragment
    outputs = tuple(
        Output(fragment.relation.schema.field(fragment.positions[i]).name, fragment.reference(i)) for i in ids
    )
    return Fragment.from_columns(Project(fragment.relation, outputs), ids)


def check_column(attribute: Node) -> None:
    """Refuse to compute with a column of texts that are not compared by bytes; it may be passed on."""
    declared = attribute.fields["dataType"]
    if isinstance(declared, str) and "collate" not in declared:
        return
    name = attribute.type_name.lower()
    if "collate" in name:
        raise NotTranslatableError(f"column {attribute.fields['name']} has type {name}; only strings compared by bytes")


def distribution_of(builder: TreeBuilder, node: PlanNode, kind: JoinType, *, keys: bool) -> Distribution:
    """Read how the rows of a join are to be brought together.

    Raises ``BrokenError`` if that cannot be, or the join is to be left to Spark.
    """
    distribution = asked_distribution(node.strategy(builder.options), node.hints, kind, keys=keys)
    if isinstance(distribution, Reason):
        setting = distribution.setting if "strategy" in (node.request or {}) else _BY_HINTS
        raise BrokenError(node, distribution.why, distribution.kind, setting)
    return distribution
