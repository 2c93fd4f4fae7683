"""Joins of an optimized plan that are fed by Spark's rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpujoin.config import BackendChoice, Options, Strategy
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.plan.ranges import Shape
from gpujoin.plan.strategy import JoinFacts, SideFacts, choose
from gpujoin.spark.catalyst.joins import join_type_in, join_type_shown, spark_type_name
from gpujoin.spark.catalyst.moments import DIFFERENCES
from gpujoin.spark.catalyst.split import NULL_AWARE
from gpujoin.spark.catalyst.traits import across
from gpujoin.spark.classic import JoinPlan, choose_without_reading
from gpujoin.spark.explaining import size_of
from gpujoin.spark.query.plans import conjuncts
from gpujoin.spark.runtime import execute
from gpujoin.spark.settings import broadcast_threshold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gpujoin.plan.explain import JoinExplanation
    from gpujoin.spark.catalyst.nodes import Node
    from gpujoin.spark.query.plans import PlanNode


class RowJoinPlan(JoinPlan):
    """A Join of an optimized plan; most are left to Spark after a look at Spark's own estimates alone."""

    def __init__(
        self,
        spark: SparkSession,
        node: PlanNode,
        fetch: Callable[[], Any],
        conf: Mapping[str, str],
        options: Options,
        join_id: str,
        inputs: tuple[JoinExplanation, ...],
        *,
        changed: bool,
    ) -> None:
        self._node = node
        self._changed = changed
        super().__init__(spark, fetch, conf, options, join_id, inputs)

    def decide(self) -> None:
        """Plan the join; see :meth:`JoinPlan.decide`."""
        reasons = self._left_at_once()
        if reasons:
            self.explanation = self._explain_spark(reasons)
            return
        super().decide()

    def run(self) -> DataFrame:
        """Run the join that was decided on; the columns are those of its request."""
        assert self.execution is not None
        return execute(self.execution.request, self.execution.left, self.execution.right)

    def placeholder(self) -> Any:
        """Give a plan that stands for the result where nothing may run: Spark's own join."""
        return self._join

    def _left_at_once(self) -> tuple[Reason, ...]:
        """Why the cost rule leaves the join to Spark, found without preparing its sides."""
        if (
            choose_without_reading(self._options) is not None
            or self._options.backend is not BackendChoice.AUTO
        ):
            return ()
        if self._options.strategy is not Strategy.AUTO:
            return ()
        kind, _ = join_type_in(self._node.fields["joinType"])
        if kind is None:
            name = spark_type_name(self._node.fields["joinType"])
            return (Reason(ReasonKind.UNSUPPORTED, "join type", f"{name} is not covered"),)
        choice = choose(self._quick_facts(kind), self._options)
        slower = choice.strategy is Strategy.SPARK and choice.reasons[0].kind is ReasonKind.SLOWER
        return choice.reasons if slower else ()

    @cached_property
    def _shown(self) -> tuple[str, int | None, int | None]:
        if self._changed:
            return super()._shown
        left, right = self._facts_of(Side.LEFT), self._facts_of(Side.RIGHT)
        return join_type_shown(self._node.fields["joinType"]), left.size_bytes, right.size_bytes

    def _facts_of(self, side: Side) -> SideFacts:
        """Spark's estimates of a side."""
        if self._changed:
            return _facts_of(self._join.left() if side is Side.LEFT else self._join.right())
        child = self._node.child(side)
        return SideFacts(child.size_bytes, child.estimated_rows)

    def _quick_facts(self, kind: JoinType) -> JoinFacts:
        condition = self._node.condition
        parts = () if condition is None else conjuncts(condition)
        ids = {side: frozenset(c.expr_id for c in self._node.child(side).output) for side in Side}
        equal = [part for part in parts if across(part, ids)]
        unknown = [part for part in parts if kind in NULL_AWARE and _or_unknown(part, ids)]
        ranges = [part for part in parts if across(part, ids, _BY_ORDER) or _is_distance(part, ids)]
        shape, keys = None, len(equal)
        if unknown:
            kind, shape, keys = NULL_AWARE[kind], Shape.NOT_IN, len(unknown) + len(equal)
        elif ranges and not equal:
            shape = Shape.RANGE
        return JoinFacts(
            join_type=kind,
            equality=bool(equal or unknown),
            condition=len(parts) > keys,
            shape=shape,
            keys=keys,
            left=self._facts_of(Side.LEFT),
            right=self._facts_of(Side.RIGHT),
            gpu=self._outlook,
            spark_threshold=broadcast_threshold(self._conf, self._spark),
        )


_BY_ORDER = ("LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual")

_DIFFERENCES = ("Subtract", "DateDiff", *DIFFERENCES)


def _or_unknown(part: Node, ids: dict[Side, frozenset[int]]) -> bool:
    """Whether this looks like an equality of ``NOT IN``."""
    return part.name == "Or" and any(across(child, ids) for child in part.children)


def _is_distance(part: Node, ids: dict[Side, frozenset[int]]) -> bool:
    """Whether this looks like ``abs(a - b) <= constant``, or the same without ``abs``."""
    if part.name not in _BY_ORDER:
        return False
    return any(across(_difference(child), ids, _DIFFERENCES) for child in part.children)


def _difference(node: Node) -> Node:
    while node.name in ("Abs", "Cast"):
        node = node.children[0]
    return node


def _facts_of(plan: Any) -> SideFacts:
    stats, size = plan.stats(), size_of(plan)
    if stats.rowCount().isDefined():
        return SideFacts(size, float(str(stats.rowCount().get())))
    return SideFacts(size, None if size is None else size / (plan.schema().defaultSize() + 8))
