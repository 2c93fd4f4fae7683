"""Replacing parts of a logical plan, so that nothing above them can tell the difference."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from gpujoin.errors import JoinSpecError
from gpujoin.logs import log
from gpujoin.spark.jvm.compiled import shared_instance
from gpujoin.spark.jvm.gateway import (
    analyzed_plan,
    dataframe_of,
    gateway_of,
    java_context,
    java_frame,
    java_session,
    names_of,
)

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    from gpujoin.spark.catalyst.nodes import Reading
    from gpujoin.spark.query.plans import PlanNode

MARK = "gpujoin_"
"""The beginning of the ids of joins; in plans these are the names of aliases right above the joins."""


class Rewriting:
    """A plan in the JVM, of which parts are replaced."""

    def __init__(self, spark: SparkSession, reading: Reading) -> None:
        self._spark = spark
        self._reading = reading

    @cached_property
    def _handle(self) -> Any:
        rewriter = shared_instance(self._reading.gateway, "PlanRewriter")
        return rewriter.rewriting(self._reading.handle, java_session(self._spark))

    def place(
        self,
        node: PlanNode,
        described: Mapping[str, Any],
        commands: bytes,
        accumulator: Any,
        broadcasts: Any,
        exchange: Any = None,
    ) -> None:
        """Put stages of Python tasks in the place of a plan, described as ``PlanRewriter.java`` reads it.

        With an ``exchange``, the JVM's ``ByteExchange``, they send one another bytes.
        """
        text = json.dumps(described)
        if exchange is None:
            self._handle.place(node.number, text, commands, accumulator, broadcasts)
            return
        session = java_session(self._spark)
        rows = exchange.rows(session, text, commands, accumulator, broadcasts)
        self._handle.placeRows(node.number, text, rows)

    def replace(self, node: PlanNode, plan: Any) -> None:
        """Put a plan with the same columns in the place of another."""
        self._handle.replace(node.number, plan)

    def replace_renamed(self, node: PlanNode, frame: DataFrame) -> None:
        """Put the plan of a DataFrame in the place of another, whose columns have the same types in the same order."""
        self._handle.replaceRenamed(node.number, analyzed_plan(frame))

    def rows(self, node: PlanNode, columns: Sequence[int]) -> DataFrame:
        """Give columns ``c0``, ``c1``, … of a plan as it is by now: expressions over its columns, by their numbers."""
        numbers = self._reading.gateway.java.util.ArrayList()
        for number in columns:
            numbers.add(number)
        return dataframe_of(self._spark, self._handle.rows(node.number, numbers))

    def announcing(self, labels: Sequence[int]) -> DataFrame:
        """Give a blob row of source -1 for each label: its partition is there, even if nothing is sent to it."""
        every = self._reading.gateway.java.util.ArrayList()
        for label in labels:
            every.add(label)
        return dataframe_of(self._spark, self._handle.announcing(every))

    def without(self, root: PlanNode, empty: Iterable[PlanNode]) -> Any:
        """Give the whole plan without the parts that have no rows, folded by Spark's own rule."""
        for node in empty:
            self._handle.empty(node.number)
        return self._handle.withoutEmpty(root.number)

    def leave_out(self, node: PlanNode) -> None:
        """Put a plan's only input in its place."""
        self.replace(node, self.current(node.children[0]))

    def current(self, node: PlanNode) -> Any:
        """Give a plan as it is by now."""
        return self._handle.current(node.number)


def declared(frame: DataFrame, plan: Any) -> Any:
    """Analyze a rewritten query, with the columns of the original one.

    Raises ``JoinSpecError`` where they have other names or types.
    """
    spark = frame.sparkSession
    session, query = java_session(spark), java_frame(frame)
    result = _rewriter(spark).declared(session, plan, query)
    if result is None:
        schema = dataframe_of(spark, plan).schema
        raise JoinSpecError(f"the rewritten query has schema {schema}, not {frame.schema}")
    return result


def name_query(spark: SparkSession, plan: Any, name: str) -> None:
    """Have the plan of a rewritten query tell the name of its explanation."""
    _rewriter(spark).name(plan, name)


def with_counted_size(frame: DataFrame, checkpoint: DataFrame) -> DataFrame:
    """Give a checkpoint of a query the size of its rows, where they were counted as it was made."""
    spark = frame.sparkSession
    plan = _rewriter(spark).counted(java_frame(checkpoint), java_frame(frame), java_session(spark))
    return checkpoint if plan is None else dataframe_of(spark, plan)


def name_of_query(frame: DataFrame) -> str | None:
    """Give the name of a rewritten query's explanation; ``None`` for any other query."""
    name = _rewriter(frame.sparkSession).nameOf(java_frame(frame))
    return None if name is None else str(name)


def post_metrics(context: SparkContext, stage: str, execution: str, values: Sequence[int]) -> None:
    """Add what a task has measured to the metrics of its stage's node, as ``IslandFacts.java`` orders them."""
    java = java_context(context)
    if java is None:
        return
    try:
        nodes = shared_instance(names_of(java), "IslandStrategy")
        nodes.post(java.sc(), stage, execution, ",".join(map(str, values)))
    except (Py4JError, OSError):  # the application has ended
        log.debug("metrics of %s could not be posted", stage, exc_info=True)


def _rewriter(spark: SparkSession) -> Any:
    return shared_instance(gateway_of(spark), "PlanRewriter")
