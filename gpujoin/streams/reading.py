"""Spark's join of two streams as a :class:`~gpujoin.streams.join.StreamJoin`.

All of an ``ON`` counts, not only which rows match: Spark reads from its comparisons of event times how long rows are
kept. So what reads an event time must be understood here; anything else of one side Spark may compute beforehand
(:mod:`gpujoin.spark.query.trees.computed`).

Spark's operator compares keys as bytes, so that null equals null. Where null keys must not match, Spark filters them
out below the join; it does not for keys such as ``nullif(l.k, 3)``, whose nulls do match::

    left  k 3      nullif(k, 3) null     matches
    right k 3      nullif(k, 3) null
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpujoin.functions.spec import SPECS
from gpujoin.functions.support import obstacle
from gpujoin.model.expressions import Call, Expression, Literal
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.plan.ranges import all_of
from gpujoin.spark.catalyst import zones
from gpujoin.spark.catalyst.joins import join_type_in, spark_type_name
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.catalyst.translate import refuse_zones
from gpujoin.spark.query.plans import PlanNode, conjuncts
from gpujoin.spark.query.trees.builder import (
    BrokenError,
    ColumnReader,
    Fragment,
    SparkRows,
    TreeBuilder,
)
from gpujoin.spark.query.trees.computed import ComputedParts, StandIn
from gpujoin.spark.query.trees.keys import Key, check_keys, key_of
from gpujoin.streams.join import STREAMED, SemiOrder, StreamJoin

if TYPE_CHECKING:
    from gpujoin.config import Options

_SHIFTS = frozenset({"TimestampAddInterval", "TimeAdd"})
"""A timestamp plus an interval, before and since Spark 4.1."""
_COMPARISONS = frozenset({"LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"})
_TERMS = _SHIFTS | {
    "Add", "AttributeReference", "Cast", "CheckOverflow", "DatetimeSub", "Literal", "PromotePrecision", "Subtract",
    "UnaryMinus",
}  # fmt: skip
"""Operators that Spark's ``StreamingJoinHelper`` solves comparisons of."""


@dataclass(frozen=True)
class ReadJoin:
    """A join of streams that was read."""

    node: PlanNode
    """The join in the plan."""
    join: StreamJoin
    """The join."""
    rows: Mapping[Side, SparkRows]
    """What Spark gives: the columns of each side, and what it computes with them for the condition."""


_UNSOLVED_SHIFTS = frozenset({"TimestampAdd", "TimestampAddYMInterval"})
"""Shifts of event times of which it is not said how long rows are kept."""


class _StreamReader(ColumnReader):
    """Translates conditions; what depends on the session's time zone is left to Spark, in UTC too.

    So every cast of an event time keeps its instant, as those do from which Spark reads how long rows are kept.
    A running stream is not given back to Spark, so it computes no function that leaves some values to Spark.
    """

    def _operation(self, node: Node) -> Expression:
        if node.name == "Cast":
            refuse_zones(node)
        kinds = {child.type_name for child in node.children[:1]}
        if node.name in _UNSOLVED_SHIFTS:
            raise NotTranslatableError(f"{node} is not computed here")
        expression = super()._operation(node)
        partial = any(isinstance(part, Call) and SPECS[part.function].partial for part in expression.walk())
        if partial or (node.data_type.typeName() == "timestamp_ntz" and "string" in kinds):
            raise NotTranslatableError(f"{node} of some values is known to Spark alone")
        return expression

    def zone(self, node: Node) -> None:
        """Refuse what depends on the session's time zone."""
        refuse_zones(node)
        if zones.session_zone(node) is not None:
            raise NotTranslatableError(f"{node} depends on the session's time zone")

    def zone_of_days(self, node: Node) -> None:
        """Refuse to add whole days where they are not always 24 hours."""
        zone = zones.session_zone(node)
        if zone is not None:
            raise NotTranslatableError(f"{node} is a day or more, which is not always 24 hours in {zone}")


class _StreamBuilder(TreeBuilder):
    """Takes the rows of both sides from Spark."""

    def reader(self, *fragments: Fragment) -> ColumnReader:
        """Make a translator over one fragment, or over a join's two."""
        return _StreamReader(dict(zip(Side, fragments, strict=False)), _no_subquery)


def read_join(node: PlanNode, options: Options, semi_order: SemiOrder) -> ReadJoin:
    """Read a join whose inputs are streams.

    Raises
    ------
    BrokenError, NotTranslatableError, JoinSpecError, KeyTypeError, ConditionError
        If it is not covered.
    """
    kind, _ = join_type_in(node.fields["joinType"])
    if kind not in STREAMED:
        raise NotTranslatableError(
            f"joins of streams of type {spark_type_name(node.fields['joinType'])} are not computed here"
        )
    for side in Side:
        if not node.child(side).deterministic:
            raise BrokenError(node.child(side), "its rows are other ones each time they are computed")
    builder = _StreamBuilder(options, _no_subquery, {})
    inputs, keys, rest = _inputs(builder, node)
    rows = dict(zip(Side, builder.spark_sources, strict=True))
    times = {side: _event_times(rows[side]) for side in Side}
    reader = builder.reader(*(inputs[side] for side in Side))
    condition = all_of(reader(part) for part in rest)
    lacking = None if condition is None else obstacle(condition)
    if lacking is not None:
        raise NotTranslatableError(f"{lacking} is not computed here")
    pairs = []
    for left, right, nulls in keys:
        pair = KeyPair(
            inputs[Side.LEFT].positions[left.expr_id],
            inputs[Side.RIGHT].positions[right.expr_id],
            NullEquality.EQUAL,
        )
        pairs.append(pair)
        if nulls is NullEquality.EQUAL and any(pair.of(side) in times[side] for side in Side):
            raise NotTranslatableError("an event time is compared by <=>, from which Spark reads no watermark")
    outputs = {
        side: tuple(inputs[side].positions[column.expr_id] for column in node.child(side).output) for side in Side
    }
    right_output = () if kind is JoinType.LEFT_SEMI else outputs[Side.RIGHT]
    spec = JoinSpec(kind, tuple(pairs), condition, outputs[Side.LEFT], right_output)
    schemas = {side: inputs[side].relation.schema for side in Side}
    join = StreamJoin(
        spec, schemas[Side.LEFT], schemas[Side.RIGHT], times[Side.LEFT], times[Side.RIGHT], semi_order,
        *(_computed(rows[side]) for side in Side),
    )  # fmt: skip
    return ReadJoin(node, join, rows)


def _no_subquery(node: Node) -> Literal:
    raise NotTranslatableError(f"{node} is not computed here")


def _event_times(rows: SparkRows) -> tuple[int, ...]:
    """Positions of the columns under a watermark; what Spark computes is none, as in its own join."""
    return tuple(place for place, column in enumerate(rows.columns) if is_event_time(column))


def _computed(rows: SparkRows) -> tuple[tuple[int, str], ...]:
    """Columns that stand for expressions, and these with columns by position: ids and qualifiers come and go."""
    places = {column.expr_id: place for place, column in enumerate(rows.columns)}

    def text_of(node: Node) -> str:
        if node.name == "AttributeReference":
            return f"#{places[node.expr_id]}"
        arguments = node.fields["@value"] if node.name == "Literal" else ", ".join(map(text_of, node.children))
        return f"{node.name}({arguments}): {node.type_name}"

    return tuple(
        (place, text_of(column.source)) for place, column in enumerate(rows.columns) if isinstance(column, StandIn)
    )


def is_event_time(column: Node) -> bool:
    """Tell whether an attribute is under a watermark."""
    return bool(column.fields.get("@event_time", False))


def _inputs(builder: TreeBuilder, node: PlanNode) -> tuple[dict[Side, Fragment], list[Key], list[Node]]:
    """Take all columns of both sides from Spark, with computed keys and parts of the condition.

    Also gives the keys, each a column, and the other conjuncts.
    """
    required = frozenset(column.expr_id for side in Side for column in node.child(side).output)
    times = {column.expr_id for side in Side for column in node.child(side).output if is_event_time(column)}
    start = builder.state
    sides = {side: builder.from_spark(node.child(side), required, None) for side in Side}
    computed = ComputedParts(builder, sides, node.reading)
    keys: list[Key] = []
    rest: list[Node] = []
    for part in () if node.condition is None else conjuncts(node.condition):
        key = key_of(part, sides)
        if key is None:
            rest.append(_covered(computed, part, times, builder.reader(*sides.values())))
            continue
        left, right, nulls = key
        check_keys(left, right)
        columns = computed.forced(left, Side.LEFT), computed.forced(right, Side.RIGHT), nulls
        if columns not in keys:
            keys.append(columns)
    builder.state = start
    sides = {side: builder.from_spark(node.child(side), required, None, computed.stand_ins[side]) for side in Side}
    return sides, keys, rest


def _covered(computed: ComputedParts, part: Node, times: AbstractSet[int], reader: ColumnReader) -> Node:
    """Have Spark compute the uncovered parts of a conjunct, unless it may limit how long rows are kept.

    That is what reads an event time, and any comparison that Spark solves.
    """
    covered = computed.condition(part)
    for inner in covered.walk():
        if isinstance(inner, StandIn) and inner.source.attribute_ids & times:
            reader(inner.source)  # says what is not covered
            raise NotTranslatableError(f"{inner.source} reads an event time and is not computed here")
        if isinstance(inner, StandIn) and times and _may_bound(part):
            raise NotTranslatableError(
                f"{inner.source} is not computed here, and Spark may read from {part} how long rows are kept"
            )
    return covered


def _may_bound(part: Node) -> bool:
    """Tell whether Spark may read from a conjunct how long rows are kept.

    It does so whatever columns are compared, from ``cast(l.s as int) > 5`` too.
    """
    return part.name in _COMPARISONS and all(
        inner.name in _TERMS for operand in part.children for inner in operand.walk()
    )
