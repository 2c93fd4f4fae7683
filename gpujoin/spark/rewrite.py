"""Replacing a Join of an analyzed plan, so that nothing above it can tell the difference."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpujoin.spark.catalyst.nodes import Node, read_expression, read_expressions
from gpujoin.spark.gateway import analyzed_plan, dataframe_of, gateway_of, items, schema_of
from gpujoin.spark.jvm.compiled import shared_instance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from gpujoin.spark.catalyst.nodes import Reading
    from gpujoin.spark.query.plans import PlanNode

MARK = "gpujoin_"
"""What the ids of joins begin with; in plans they are the names of aliases right above the joins."""

_QUERY_TAG = "gpujoin.query"


class Rewriting:
    """A plan that was read, in which some plans are replaced; the JVM holds the plans.

    Parameters
    ----------
    spark : SparkSession
        A classic session.
    reading : Reading
        Of the plan.
    """

    def __init__(self, spark: SparkSession, reading: Reading) -> None:
        self._spark = spark
        self._reading = reading

    @cached_property
    def _handle(self) -> Any:
        rewriter = shared_instance(self._reading.gateway, "PlanRewriter")
        return rewriter.rewriting(self._reading.handle, self._spark._jsparkSession)  # noqa: SLF001

    def place(
        self, node: PlanNode, described: Mapping[str, Any], commands: bytes, accumulator: Any, broadcasts: Any
    ) -> None:
        """Put stages of Python tasks in the place of a plan, described as ``PlanRewriter.java`` reads it."""
        self._handle.place(node.number, json.dumps(described), commands, accumulator, broadcasts)

    def replace(self, node: PlanNode, plan: Any) -> None:
        """Put a plan with the same columns in the place of another."""
        self._handle.replace(node.number, plan)

    def leave_out(self, node: PlanNode) -> None:
        """Put a plan's only input in its place."""
        self.replace(node, self.current(node.children[0]))

    def current(self, node: PlanNode) -> Any:
        """Give a plan as it is by now."""
        return self._handle.current(node.number)

    def result(self, root: PlanNode, large: Mapping[int, Sequence[bool]]) -> Any:
        """Give the whole plan.

        Parameters
        ----------
        root : PlanNode
            Its topmost node.
        large : mapping of int to sequence of bool
            Whether the left and the right side of a join must not be broadcast, by its number.
        """
        return self._handle.result(root.number, json.dumps(large))


class PlanBuilder:
    """Makes logical plans through the gateway of a classic session.

    Parameters
    ----------
    spark : SparkSession
        A classic session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.gateway = gateway_of(spark)
        self._expressions = self.gateway.org.apache.spark.sql.catalyst.expressions
        self._logical = self.gateway.org.apache.spark.sql.catalyst.plans.logical

    @cached_property
    def _nothing(self) -> Any:
        return self.gateway.scala.Option.empty()

    def dataframe(self, plan: Any) -> DataFrame:
        """Make a DataFrame of a logical plan, which Spark analyzes."""
        return dataframe_of(self._spark, plan)

    def select(
        self, plan: Any, filters: Sequence[Node], columns: Sequence[Node], names: Sequence[str]
    ) -> DataFrame:
        """Filter a plan and compute named columns over it.

        Parameters
        ----------
        plan : py4j object
            A logical plan.
        filters : sequence of Node
            Conditions over its attributes, in the order in which they are to be tried.
        columns : sequence of Node
            Expressions over its attributes.
        names : sequence of str
            What the columns are to be called.
        """
        output = plan.output()
        whole = self._begins_with(output, columns)
        for condition in filters:
            plan = self._logical.Filter(condition.jvm, plan)
        rest = self._seq([self._named(node) for node in columns[output.size() if whole else 0 :]])
        projected = self._logical.Project(output.appendedAll(rest) if whole else rest, plan)
        return self.dataframe(projected).toDF(*names)

    def _begins_with(self, output: Any, columns: Sequence[Node]) -> bool:
        """Whether the first columns are just those of a plan; then they need not be passed one by one."""
        known = [node.expr_id for node in read_expressions(self.gateway, output)]
        return known == [node.expr_id for node in columns[: len(known)] if node.name == "AttributeReference"]

    def _named(self, node: Node) -> Any:
        if node.name == "AttributeReference":
            return node.jvm
        return self._alias(node.jvm, "computed", self._new_id(), self._no_names(), self._nothing)

    def constant(self) -> Node:
        """Make the literal ``true``, for a side of which no column is needed: rows without columns have no number."""
        return read_expression(self.gateway, self._expressions.Literal.TrueLiteral())

    def in_place_of(self, join: Any, result: DataFrame, sources: Sequence[int], join_id: str) -> Any:
        """Give a result's columns the identities of a join's columns.

        Aliases with the old identities would do in a plan by themselves. But Spark gives new identities to every alias
        whose identity occurs on another one below, as it does where the inputs compute columns, or are such results
        themselves. A union with an empty relation takes its identities from that relation, which comes first and so
        keeps them. Spark's optimizer removes the union.

        Parameters
        ----------
        join : py4j object
            The Join.
        result : DataFrame
            What takes its place; its column names are plain and unique.
        sources : sequence of int
            For each column of the join, its position in the result.
        join_id : str
            Marks the result; begins with :data:`MARK`.
        """
        names = result.columns
        chosen = result.selectExpr(*(f"{names[source]} AS c{i}" for i, source in enumerate(sources)))
        plan = self._never_null(analyzed_plan(chosen), chosen.schema, schema_of(join))
        name = self.gateway.org.apache.spark.sql.catalyst.AliasIdentifier(join_id)
        identities = self._logical.LocalRelation(join.output(), self._no_names(), False, self._nothing)
        children = [identities, self._logical.SubqueryAlias(name, plan)]
        return self._logical.Union(self._seq(children), False, False)

    def renamed(self, attribute: Any, like: Any) -> Any:
        """Give an attribute's values the name and the identity of another attribute."""
        metadata = like.metadata()
        explicit = self._nothing if metadata.isEmpty() else self.gateway.scala.Some(metadata)
        return self._alias(attribute, like.name(), like.exprId(), like.qualifier(), explicit)

    def project(self, columns: Sequence[Any], plan: Any) -> Any:
        """Put a projection above a plan."""
        return self._logical.Project(self._seq(columns), plan)

    def declared(self, plan: Any, given: StructType, wanted: StructType) -> Any:
        """Let columns be nullable, and have metadata, as they were declared: Spark's optimizer may know better."""
        columns = items(plan.output())
        for i, (has, needs) in enumerate(zip(given, wanted, strict=True)):
            if has.nullable == needs.nullable and has.metadata == needs.metadata:
                continue
            value = columns[i]
            # Spark's analyzer forgets that an alias has no metadata, and gives it those of the column that it names.
            if has.nullable != needs.nullable or not needs.metadata:
                known = self._expressions.KnownNullable if needs.nullable else self._expressions.KnownNotNull
                value = known(value)
            metadata = self.gateway.scala.Some(self._metadata(needs))
            columns[i] = self._alias(value, columns[i].name(), self._new_id(), self._no_names(), metadata)
        return self.project(columns, plan)

    def _metadata(self, column: StructField) -> Any:
        return self.gateway.org.apache.spark.sql.types.Metadata.fromJson(json.dumps(column.metadata))

    def _never_null(self, plan: Any, given: StructType, wanted: StructType) -> Any:
        """Let Spark know of columns that are never null."""
        loose = {
            i
            for i, (has, needs) in enumerate(zip(given, wanted, strict=True))
            if has.nullable > needs.nullable
        }
        if not loose:
            return plan
        columns = items(plan.output())
        for i in loose:
            value = self._expressions.KnownNotNull(columns[i])
            columns[i] = self._alias(value, f"c{i}", self._new_id(), self._no_names(), self._nothing)
        return self._logical.Project(self._seq(columns), plan)

    def _alias(self, value: Any, name: str, identity: Any, qualifier: Any, metadata: Any) -> Any:
        return self._expressions.Alias(value, name, identity, qualifier, metadata, self._no_names())

    def _new_id(self) -> Any:
        return self._expressions.NamedExpression.newExprId()

    def _no_names(self) -> Any:
        return self._seq([])

    def _seq(self, values: Sequence[Any]) -> Any:
        return self.gateway.org.apache.spark.api.python.PythonUtils.toSeq(list(values))


def query_tag(gateway: Any) -> Any:
    """Make the key under which the plan of a rewritten query names its explanation."""
    return gateway.org.apache.spark.sql.catalyst.trees.TreeNodeTag(_QUERY_TAG)
