"""Building the tree of an island: what a fragment of a plan is, and what all kinds of nodes need for theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from gpujoin.config import Options
from gpujoin.engine.pipeline import supports_node
from gpujoin.errors import JoinSpecError, KeyTypeError, RelationError
from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, Literal
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason
from gpujoin.model.relations import FileFooter, Output, Project, Relation, SparkSource
from gpujoin.model.stages import Distribution
from gpujoin.plan.distribution import asked_distribution
from gpujoin.plan.estimates import estimate, row_bytes
from gpujoin.spark.catalyst.columns import arrow_type
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.catalyst.translate import ExpressionReader, NotTranslatableError
from gpujoin.spark.query.plans import PlanNode
from gpujoin.spark.query.scans import ParquetFiles

UNKNOWN_ROWS = 1e6
"""Taken for the rows of what Spark knows no size of, as of ``createDataFrame`` and JDBC."""


class BrokenError(Exception):
    """A part of a plan cannot run in a worker.

    Attributes
    ----------
    node : PlanNode
        Where.
    """

    def __init__(self, node: PlanNode, why: str) -> None:
        super().__init__(why)
        self.node = node


class OtherBackendError(BrokenError):
    """A part of a plan is to run on another backend than the joins above it."""


@dataclass(frozen=True)
class Fragment:
    """A part of a plan as a relation.

    Attributes
    ----------
    relation : Relation
        What computes it.
    positions : dict from int to int
        Where in the relation's output each attribute is, by expression id.
    """

    relation: Relation
    positions: Mapping[int, int]

    def reference(self, expr_id: int, side: Side = Side.LEFT) -> ColumnRef:
        """Refer to an attribute's column."""
        position = self.positions[expr_id]
        column = self.relation.schema.field(position)
        return ColumnRef(side=side, name=column.name, index=position, type=column.type)


@dataclass
class ScanSource:
    """What a scan of a tree reads, by its index."""

    files: ParquetFiles
    footers: tuple[FileFooter, ...]
    columns: tuple[str, ...]
    filters: tuple[str, ...]

    @property
    def rows(self) -> float:
        """Rows of the files."""
        return float(sum(sum(footer.rows) for footer in self.footers))

    @property
    def nbytes(self) -> int:
        """Compressed bytes of the columns read."""
        return sum(sum(footer.group_bytes) for footer in self.footers)


@dataclass(frozen=True)
class SparkRows:
    """A part of a plan whose rows Spark computes, for an island above it.

    Attributes
    ----------
    node : PlanNode
        Its topmost node.
    columns : tuple of Node
        The attributes that are taken.
    nbytes : float
        About how many bytes they have.
    problem : BrokenError
        Why the part is not in the island, and where.
    """

    node: PlanNode
    columns: tuple[Node, ...]
    nbytes: float
    problem: BrokenError


class ColumnReader(ExpressionReader):
    """Translates expressions over the columns of one fragment, or of a join's two.

    Parameters
    ----------
    fragments : dict from Side to Fragment
        Where columns come from.
    constant : callable
        Gives the value of a scalar subquery.
    """

    def __init__(self, fragments: Mapping[Side, Fragment], constant: Callable[[Node], Literal]) -> None:
        self._fragments = fragments
        self._constant = constant

    def column(self, node: Node) -> Expression:
        """Translate an attribute reference."""
        for side, fragment in self._fragments.items():
            if node.expr_id in fragment.positions:
                return fragment.reference(node.expr_id, side)
        raise NotTranslatableError(f"{node.fields['name']} is no column of the input")

    def subquery(self, node: Node) -> Expression:
        """Translate a scalar subquery: its value."""
        return self._constant(node)


BuildNode: TypeAlias = "Callable[[TreeBuilder, PlanNode, frozenset[int]], Fragment]"


@dataclass
class TreeBuilder:
    """Builds the tree of one island.

    Attributes
    ----------
    options : Options
        Settings.
    constant : callable
        Gives the value of a scalar subquery.
    nodes : mapping from str to callable
        How each class of plan nodes is translated, given the builder, the node, and what is required of it.
    sources : dict from int to ScanSource
        The scans made so far.
    spark_sources : list of SparkRows
        The inputs from Spark so far, by their index.
    sound : dict from int to Relation
        Nodes that can be run, by their ``id()``.
    backend : str or None
        The backend that a join of the tree was asked to run on.
    """

    options: Options
    constant: Callable[[Node], Literal]
    nodes: Mapping[str, BuildNode] = field(repr=False)
    sources: dict[int, ScanSource] = field(default_factory=dict)
    spark_sources: list[SparkRows] = field(default_factory=list)
    sound: dict[int, Relation] = field(default_factory=dict, repr=False)
    backend: str | None = None

    def build(self, node: PlanNode, required: frozenset[int]) -> Fragment:
        """Translate a plan.

        Parameters
        ----------
        node : PlanNode
            Its topmost node.
        required : frozenset of int
            Attributes that are needed of it; others may be left out.

        Raises
        ------
        BrokenError
            If some node is not covered.
        """
        build = self.nodes.get(node.name)
        if build is None:
            raise BrokenError(node, f"{node.name} is not covered")
        try:
            found = build(self, node, required)
            reasons = self.obstacles(found.relation)
        except (NotTranslatableError, RelationError, JoinSpecError, KeyTypeError) as problem:
            raise BrokenError(node, str(problem)) from problem
        if reasons:
            raise BrokenError(node, "; ".join(str(reason) for reason in reasons))
        return found

    def input(self, node: PlanNode, required: frozenset[int]) -> Fragment:
        """Translate an input of a join, an aggregation or a union; what is not covered Spark computes.

        Parameters
        ----------
        node, required
            As in :meth:`build`.

        Raises
        ------
        BrokenError
            If Spark's rows cannot be taken either.
        """
        scans, taken, backend = dict(self.sources), len(self.spark_sources), self.backend
        try:
            return self.build(node, required)
        except BrokenError as problem:
            self.sources, self.backend = scans, backend
            del self.spark_sources[taken:]
            return self._from_spark(node, required, problem)

    def _from_spark(self, node: PlanNode, required: frozenset[int], problem: BrokenError) -> Fragment:
        columns = [column for column in node.output if column.expr_id in required] or list(node.output[:1])
        columns = list({column.expr_id: column for column in columns}.values())
        if not node.deterministic:
            raise problem  # each use of it would be computed by itself, and differently
        rows = node.estimated_rows
        rows = UNKNOWN_ROWS if rows is None else rows
        try:
            source = SparkSource(len(self.spark_sources), _spark_schema(columns), rows, node.level)
        except (NotTranslatableError, JoinSpecError, RelationError):
            raise problem from None
        if self.obstacles(source):
            raise problem
        nbytes = rows * row_bytes(source.columns)
        self.spark_sources.append(SparkRows(node, tuple(columns), nbytes, problem))
        return Fragment(source, {column.expr_id: n for n, column in enumerate(columns)})

    def run_on(self, node: PlanNode) -> None:
        """Note the backend that a join was asked to run on.

        Raises
        ------
        OtherBackendError
            If a join above it was asked to run on another one.
        """
        asked = (node.asked or {}).get("backend")
        if asked is None:
            return
        if self.backend not in (None, asked):
            raise OtherBackendError(node, f"backend {asked} was asked for, and {self.backend} above it")
        self.backend = asked

    def obstacles(self, relation: Relation) -> tuple[Reason, ...]:
        """Tell why a tree cannot be run; what was found sound is not looked at again."""
        if id(relation) in self.sound:
            return ()
        below = [reason for child in relation.children for reason in self.obstacles(child)]
        found = tuple(dict.fromkeys([*supports_node(relation), *below]))
        if not found:
            self.sound[id(relation)] = relation
        return found

    def reader(self, *fragments: Fragment) -> ColumnReader:
        """Make a translator over one fragment, or over a join's two."""
        return ColumnReader(dict(zip(Side, fragments, strict=False)), self.constant)

    def rows(self, fragment: Fragment) -> float:
        """Estimate how many rows a fragment has."""
        return estimate(fragment.relation, self.scanned).rows

    @property
    def scanned(self) -> dict[int, float]:
        """Rows of the scans' files."""
        return {index: source.rows for index, source in self.sources.items()}


def _spark_schema(columns: Sequence[Node]) -> pa.Schema:
    """Columns of rows from Spark, under names that tell them apart."""
    names = [str(column.fields["name"]) for column in columns]
    fields = []
    for column, name in zip(columns, names, strict=True):
        check_column(column)
        unique = name if names.count(name) == 1 else f"{name}#{column.expr_id}"
        fields.append(pa.field(unique, arrow_type(column.data_type), bool(column.fields["nullable"])))
    return pa.schema(fields)


def narrowed(fragment: Fragment, required: frozenset[int]) -> Fragment:
    """Leave out columns that are not required, though never all."""
    kept = [i for i in fragment.positions if i in required] or list(fragment.positions)[:1]
    if len(kept) == len(fragment.relation.schema):
        return fragment
    outputs = tuple(
        Output(fragment.relation.schema.field(fragment.positions[i]).name, fragment.reference(i))
        for i in kept
    )
    return Fragment(Project(fragment.relation, outputs), {i: n for n, i in enumerate(kept)})


def both(one: Expression, two: Expression) -> Expression:
    """Give the conjunction of two conditions."""
    return Call(function=Function.AND, arguments=(one, two), type=pa.bool_())


def check_column(attribute: Node) -> None:
    """Refuse a column that is not read or compared as its declared type says."""
    declared = attribute.fields["dataType"]
    if isinstance(declared, str) and "collate" not in declared:
        return
    name = attribute.type_name.lower()
    if "collate" in name:
        raise NotTranslatableError(
            f"column {attribute.fields['name']} has type {name}; only strings compared by bytes"
        )


def distribution_of(builder: TreeBuilder, node: PlanNode, kind: JoinType, *, keys: bool) -> Distribution:
    """Read how the rows of a join are to be brought together.

    Raises
    ------
    NotTranslatableError
        If that cannot be, or the join is to be left to Spark.
    """
    found = asked_distribution(node.strategy(builder.options), node.hints, kind, keys=keys)
    if isinstance(found, Reason):
        raise NotTranslatableError(str(found))
    return found
