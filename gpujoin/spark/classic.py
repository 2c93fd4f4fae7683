"""Planning one join that is fed by Spark's rows: from a Join of a plan to a request of the runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options, Strategy
from gpujoin.errors import JoinSpecError
from gpujoin.model.backend import BackendName
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.spec import JoinSpec
from gpujoin.model.stages import DeterminismLevel
from gpujoin.plan.distribution import Hint
from gpujoin.plan.explain import JoinExplanation
from gpujoin.plan.products import Product, product_warnings, refuse_products
from gpujoin.plan.ranges import Shape, shape_of
from gpujoin.plan.strategy import Choice, JoinFacts, SideFacts, choose
from gpujoin.spark.catalyst.columns import SideColumns
from gpujoin.spark.catalyst.joins import JoinNode, join_type_name, read_join
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.catalyst.split import NULL_AWARE, SplitCondition, split_condition
from gpujoin.spark.compat import arrow_schema
from gpujoin.spark.explaining import expected_backend, size_of
from gpujoin.spark.gateway import optimized_plan
from gpujoin.spark.query.plans import read_plan
from gpujoin.spark.request import JoinRequest, PreparedSide
from gpujoin.spark.rewrite import PlanBuilder
from gpujoin.spark.settings import broadcast_threshold, gpu_outlook
from gpujoin.spark.workerpython import refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHARED_KEY_TYPES = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz"}
)
_CHEAP = frozenset({"Project", "Filter", "Range", "LocalRelation", "InMemoryRelation", "LogicalRelation"})
_LARGE = "spark.sql.execution.arrow.useLargeVarTypes"


@dataclass(frozen=True)
class Execution:
    """A join ready to be run.

    Attributes
    ----------
    request : JoinRequest
        What to run.
    left, right : DataFrame
        Prepared inputs.
    sources : tuple of int
        For each column of Spark's Join, its position in the result.
    """

    request: JoinRequest
    left: DataFrame
    right: DataFrame
    sources: tuple[int, ...]


class JoinPlan:
    """What was decided about a Join of a logical plan, and the means to carry it out.

    Parameters
    ----------
    spark : SparkSession
        A classic session.
    fetch : callable
        Gives the Join, a py4j object.
    conf : mapping
        The session's configuration.
    options : Options
        Settings and arguments.
    join_id : str
        The join's id.
    inputs : tuple of JoinExplanation
        The joins below, which are planned already.

    Attributes
    ----------
    explanation : JoinExplanation
        What was decided; it has reasons if the join is left to Spark.
    execution : Execution or None
        ``None`` if the join is left to Spark.
    """

    def __init__(
        self,
        spark: SparkSession,
        fetch: Callable[[], Any],
        conf: Mapping[str, str],
        options: Options,
        join_id: str,
        inputs: tuple[JoinExplanation, ...],
    ) -> None:
        self._spark = spark
        self._fetch = fetch
        self._conf = conf
        self._options = options
        self._join_id = join_id
        self._inputs = inputs
        self._builder = PlanBuilder(spark)
        self._outlook = gpu_outlook(conf)
        self.execution: Execution | None = None
        self.explanation = self._explain_spark(())

    @cached_property
    def _join(self) -> Any:
        return self._fetch()

    def decide(self) -> None:
        """Plan the join; fills :attr:`explanation` and :attr:`execution`. Nothing runs."""
        choice = choose_without_reading(self._options)
        if choice is not None:
            self.explanation = self._explain_spark(choice.reasons)
            return
        gateway = self._builder.gateway
        join = read_join(gateway, self._join)
        if isinstance(join, Reason):
            self.explanation = self._explain_spark((join,))
            return
        reasons = self._refusals(join)
        columns = {side: SideColumns(side) for side in Side}
        outputs = register_outputs(join, columns)
        split = split_condition(join, columns, gateway)
        reasons += split.reasons
        reasons += _condition_refusals(split)
        if reasons:
            self.explanation = self._explain_spark(tuple(reasons), split)
            return
        self._decide_strategy(join, split, columns, outputs)

    def replacement(self, result: DataFrame) -> Any:
        """Give the runtime's result as a logical plan with the columns of Spark's Join."""
        assert self.execution is not None
        return self._builder.in_place_of(self._join, result, self.execution.sources, self._join_id)

    def leave(self, reasons: tuple[Reason, ...]) -> None:
        """Leave the join to Spark after all."""
        self.execution = None
        self.explanation = dataclasses.replace(
            self.explanation,
            strategy=Strategy.SPARK,
            backend="spark",
            build_side=None,
            reasons=reasons,
            notes=(),
        )

    # -- parts of decide() ---------------------------------------------------------------------------------

    def _refusals(self, join: JoinNode) -> list[Reason]:
        return [
            Reason(ReasonKind.UNSUPPORTED, f"{side.value} side", "it is a stream")
            for side in Side
            if join.child(side).isStreaming()
        ]

    def _decide_strategy(
        self,
        join: JoinNode,
        split: SplitCondition,
        columns: dict[Side, SideColumns],
        outputs: dict[Side, list[int]],
    ) -> None:
        for side in Side:
            if not columns[side].expressions:
                columns[side].index_of(self._builder.constant())
        frames = {side: self._prepare(join, side, split, columns[side]) for side in Side}
        facts = self._facts(join, split, frames)
        choice = choose(facts, self._options)
        refuse_products(_products(facts), self._options.max_product_rows)
        if choice.strategy is Strategy.SPARK:
            self.explanation = self._explain(split, facts, choice)
            return
        refused = refusal(self._spark.sparkContext, self._conf)
        if refused is not None:
            self.explanation = self._explain(split, facts, Choice(Strategy.SPARK, None, (refused,)))
            return
        try:
            exchanged = choice.strategy is Strategy.SHUFFLE
            prepared = {
                side: self._prepared(frames[side], facts.side(side), exchanged=exchanged) for side in Side
            }
        except JoinSpecError as problem:
            reason = Reason(ReasonKind.UNSUPPORTED, "columns", str(problem))
            self.explanation = self._explain(split, facts, Choice(Strategy.SPARK, None, (reason,)))
            return
        spec, sources = self._specified(join, split, outputs)
        self.explanation = self._explain(split, facts, choice)
        assert choice.build_side is not None
        self.execution = Execution(
            JoinRequest(
                spec=spec,
                left=prepared[Side.LEFT],
                right=prepared[Side.RIGHT],
                strategy=choice.strategy,
                build_side=choice.build_side,
                options=self._options,
                partitions=self._options.exchange_partitions,
                join_id=self._join_id,
                description=_description(self.explanation),
                cheap_to_sample=all(map(_is_cheap, frames.values())),
            ),
            frames[Side.LEFT],
            frames[Side.RIGHT],
            sources,
        )

    def _specified(
        self, join: JoinNode, split: SplitCondition, outputs: dict[Side, list[int]]
    ) -> tuple[JoinSpec, tuple[int, ...]]:
        return _spec(join, split, outputs)

    def _prepare(self, join: JoinNode, side: Side, split: SplitCondition, columns: SideColumns) -> DataFrame:
        names = [columns.name_of(i) for i in range(len(columns.expressions))]
        return self._builder.select(join.child(side), split.filters[side], columns.expressions, names)

    def _prepared(self, frame: DataFrame, facts: SideFacts, *, exchanged: bool) -> PreparedSide:
        large = self._conf.get(_LARGE, "false").lower() == "true"
        schema = frame.schema
        return PreparedSide(
            spark=schema, arrow=arrow_schema(schema, large=large), size_bytes=facts.size_bytes, rows=facts.rows,
            determinism=self._determinism(frame) if exchanged else DeterminismLevel.INDETERMINATE,
        )  # fmt: skip

    def _determinism(self, frame: DataFrame) -> DeterminismLevel:
        return read_plan(optimized_plan(frame), self._builder.gateway).level

    def _facts(self, join: JoinNode, split: SplitCondition, frames: dict[Side, DataFrame]) -> JoinFacts:
        kind = _kind(join, split)
        return JoinFacts(
            join_type=kind,
            equality=bool(split.keys),
            condition=split.residual is not None,
            shape=shape_of(kind, len(split.keys), split.residual, Side.RIGHT),
            keys=len(split.keys),
            left=_side_facts(frames[Side.LEFT], join.left_hint),
            right=_side_facts(frames[Side.RIGHT], join.right_hint),
            gpu=self._outlook,
            spark_threshold=broadcast_threshold(self._conf, self._spark),
        )

    def _explain(self, split: SplitCondition, facts: JoinFacts, choice: Choice) -> JoinExplanation:
        base = self._explain_spark(choice.reasons, split)
        left_bytes, right_bytes = facts.left.size_bytes, facts.right.size_bytes
        base = dataclasses.replace(
            base, left_bytes=left_bytes, right_bytes=right_bytes,
            warnings=product_warnings(_products(facts), self._options.warn_product_rows),
        )  # fmt: skip
        if choice.strategy is Strategy.SPARK:
            return base
        backend, notes = expected_backend(
            self._options, self._outlook, keyed=facts.equality, condition=split.residual
        )
        return dataclasses.replace(
            base,
            strategy=choice.strategy,
            backend=backend,
            shape=None if facts.shape is None else facts.shape.value,
            build_side=choice.build_side,
            notes=choice.notes + notes,
        )

    def _explain_spark(
        self, reasons: tuple[Reason, ...], split: SplitCondition | None = None
    ) -> JoinExplanation:
        join_type, left_bytes, right_bytes = self._shown
        return JoinExplanation(
            join_type=join_type,
            strategy=Strategy.SPARK,
            backend="spark",
            keys=tuple(split.shown_keys) if split else (),
            condition=" AND ".join(split.shown_residual) or None if split else None,
            left_bytes=left_bytes,
            right_bytes=right_bytes,
            reasons=reasons,
            join_id=self._join_id,
            inputs=self._inputs,
        )

    @cached_property
    def _shown(self) -> tuple[str, int | None, int | None]:
        """The join's type, and Spark's estimates of its sides' sizes."""
        return join_type_name(self._join), size_of(self._join.left()), size_of(self._join.right())


def choose_without_reading(options: Options) -> Choice | None:
    """Decide what settings alone decide: Spark's join."""
    if options.enabled and options.strategy is not Strategy.SPARK:
        return None
    nothing = JoinFacts(JoinType.INNER, equality=True, condition=False, left=SideFacts(), right=SideFacts())
    return choose(nothing, options)


def register_outputs(join: JoinNode, columns: dict[Side, SideColumns]) -> dict[Side, list[int]]:
    """Make columns of what the join returns; their positions, per side."""
    sides = (Side.LEFT,) if join.join_type.left_rows_only else (Side.LEFT, Side.RIGHT)
    return {
        side: [columns[side].index_of(c) for c in join.columns(side)] if side in sides else []
        for side in Side
    }


def _condition_refusals(split: SplitCondition) -> list[Reason]:
    """Whether the CPU backend, on which every join must be able to end, evaluates the residual condition exactly."""
    if split.residual is None or split.reasons:
        return []
    if create(BackendName.CPU, BackendRequest()).can_evaluate(split.residual):
        return []
    shown = " AND ".join(split.shown_residual)
    return [Reason(ReasonKind.UNSUPPORTED, "condition", f"{shown} cannot be evaluated exactly as Spark does")]


def _spec(
    join: JoinNode, split: SplitCondition, outputs: dict[Side, list[int]]
) -> tuple[JoinSpec, tuple[int, ...]]:
    """The specification, and where each column of Spark's join is found in its result."""
    kind = _kind(join, split)
    if kind in (JoinType.INNER, JoinType.CROSS):
        kind = JoinType.INNER if split.keys or split.residual is not None else JoinType.CROSS
    left = outputs[Side.LEFT]
    same = _same_as_left(join, split)
    right = [i for i in outputs[Side.RIGHT] if i not in same]
    if not left and not right:
        left = [0]
    spec = JoinSpec(kind, tuple(split.keys), split.residual, tuple(left), tuple(right))
    sources = list(range(len(outputs[Side.LEFT])))
    sources += [left.index(same[i]) if i in same else len(left) + right.index(i) for i in outputs[Side.RIGHT]]
    if kind.flags_rows:
        sources.append(len(left))
    return spec, tuple(sources)


def _products(facts: JoinFacts) -> tuple[Product, ...]:
    """The pairs of a join without keys or ranges, if it is one and its rows are estimated."""
    left, right = facts.left.rows, facts.right.rows
    if facts.shape is not Shape.PRODUCT or left is None or right is None:
        return ()
    return (Product(left, right),)


def _kind(join: JoinNode, split: SplitCondition) -> JoinType:
    """What the join returns, an anti join over equalities that may be unknown being ``NOT IN``."""
    return NULL_AWARE[join.join_type] if split.null_aware else join.join_type


def _same_as_left(join: JoinNode, split: SplitCondition) -> dict[int, int]:
    """Right key columns of an inner join that need not be gathered: equal values of these types are the same."""
    if join.join_type is not JoinType.INNER:
        return {}
    return {
        pair.right: pair.left
        for pair, (one, two) in zip(split.keys, split.key_nodes, strict=True)
        if _is_plain(one) and _is_plain(two) and one.type_name == two.type_name
    }


def _is_plain(node: Node) -> bool:
    return node.name == "AttributeReference" and (
        node.type_name in _SHARED_KEY_TYPES or node.type_name.startswith("decimal")
    )


def _side_facts(frame: DataFrame, hint: Hint | None) -> SideFacts:
    plan = optimized_plan(frame)
    stats, size = plan.stats(), size_of(plan)
    if stats.rowCount().isDefined():
        return SideFacts(size, float(str(stats.rowCount().get())), hint)
    width = plan.schema().defaultSize() + 8
    return SideFacts(size, None if size is None else size / width, hint)


def _is_cheap(frame: DataFrame) -> bool:
    """Whether the first rows of a frame's partitions take no more than reading them."""
    todo = [optimized_plan(frame)]
    while todo:
        plan = todo.pop()
        if str(plan.nodeName()) not in _CHEAP and not str(plan.nodeName()).startswith("Relation"):
            return False
        children = plan.children()
        todo += [children.apply(i) for i in range(children.size())]
    return True


def _description(explanation: JoinExplanation) -> str:
    parts = [f"{explanation.join_type} join"]
    if explanation.keys:
        parts.append("on " + ", ".join(explanation.keys))
    if explanation.condition:
        parts.append("where " + explanation.condition)
    return " ".join(parts)
