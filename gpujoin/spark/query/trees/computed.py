"""Has Spark compute parts of a join's condition, as further columns of its rows.

A part that reads one side alone, and is not covered here, need not keep the join from running here: Spark computes it
with that side's rows. In ``l.n = regexp_count(r.s, 'key')`` the right rows come from Spark with a column for the
number, and the join compares columns::

    join l.n = regexp_count(r.s, 'key')      join l.n = c1
      scan l                                  scan l
      scan r                                  rows from Spark: r.id as c0, regexp_count(r.s, 'key') as c1
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql.types import DataType

from gpujoin.errors import RelationError
from gpujoin.functions import BY_CLASS
from gpujoin.functions.comparison import OPERATORS
from gpujoin.model.jointype import Side
from gpujoin.model.relations import Output, Project
from gpujoin.spark.catalyst import intervals
from gpujoin.spark.catalyst.nodes import CATALYST, Node, NotTranslatableError, Reading, new_id
from gpujoin.spark.catalyst.traits import EQUALITIES, MayFail, may_fail, obstacles
from gpujoin.spark.catalyst.translate import refuse_collation
from gpujoin.spark.query.plans import PlanNode
from gpujoin.spark.query.trees.builder import First, Fragment, TreeBuilder, why_not
from gpujoin.spark.query.trees.keys import bare_key, check_keys, has_not_in_form


@dataclass(eq=False)
class StandIn(Node):
    """An attribute with a negative id that stands for an expression which Spark computes."""

    source: Node = field(kw_only=True)
    """The expression."""

    @classmethod
    def from_node(cls, source: Node, reading: Reading) -> StandIn:
        """Make one for an expression over the attributes of a plan's reading."""
        name, nullable = str(source), source.nullable
        fields = {"exprId": {"id": new_id()}, "name": name, "dataType": None, "nullable": nullable}
        return cls(f"{CATALYST}expressions.AttributeReference", fields, reading=reading, source=source)

    @cached_property
    def number(self) -> int:
        """Number of the expression in the plan's reading."""
        if self.source.reading is self.reading:
            return self.source.number
        return int(self.reading.handle.add(self.source.jvm))

    @property
    def type_name(self) -> str:
        """The expression's type as Spark writes it."""
        return self.source.type_name

    @property
    def data_type(self) -> DataType:
        """The expression's type."""
        return self.source.data_type

    @property
    def nullable(self) -> bool:
        """Whether it may be null."""
        return self.source.nullable


class ComputedParts:
    """Puts stand-ins in the place of what Spark has to compute of a join's condition.

    Parameters
    ----------
    builder : TreeBuilder
        Of the tree.
    sides : mapping of Side to Fragment
        The join's inputs, which say what is covered.
    reading : Reading
        Of the plan.

    Attributes
    ----------
    stand_ins : dict of Side to list of StandIn
        What Spark has to compute with the rows of each side.
    """

    def __init__(self, builder: TreeBuilder, sides: Mapping[Side, Fragment], reading: Reading) -> None:
        self._builder = builder
        self._sides = sides
        self._reading = reading
        self.stand_ins: dict[Side, list[StandIn]] = {side: [] for side in Side}

    def condition(self, part: Node) -> Node:
        """Give a conjunct in which everything is covered.

        Raises ``NotTranslatableError`` if a part that is not covered reads both sides, or may fail: Spark may not
        come to compute it.
        """
        if part.name in EQUALITIES:
            return self.equality(part)
        return self.covered(part)

    def equality(self, part: Node) -> Node:
        """Cover the operands of an equality, which are computed for every row."""
        sides = [self._side_of(child) for child in part.children]
        if None in sides or sides[0] is sides[1]:
            return self.covered(part)
        check_keys(*map(bare_key, part.children), of_lists=True)
        return _with_children(part, lambda child: self.covered(bare_key(child), always=True))

    def not_in(self, part: Node) -> Node:
        """Give a conjunct of ``NOT IN``, ``a = b OR (a = b) IS NULL``, or any other."""
        if not has_not_in_form(part):
            return self.condition(part)
        equal, unknown = part.children
        return dataclasses.replace(part, children=(self.equality(equal), _with_children(unknown, self.equality)))

    def forced(self, node: Node, side: Side) -> Node:
        """Have Spark compute an expression of one side, covered or not; an attribute is one already."""
        return node if node.name == "AttributeReference" else self._stand_in(node, side)

    def covered(self, node: Node, *, always: bool = False) -> Node:
        """Give an expression in which everything is covered.

        ``always``: Spark computes it of every row, so that it may fail here too.
        """
        if node.name in ("AttributeReference", "Literal", "LambdaFunction"):
            return node  # a lambda is covered as a whole, or not at all
        side = self._side_of(node)
        if side is not None:
            return self._one_sided(node, side, always=always)
        spec = BY_CLASS.get(node.name)
        if spec is not None and spec.function in OPERATORS and any(map(intervals.is_distance, node.children)):
            return _with_children(node, self._distance)
        return _with_children(node, self.covered)

    def _one_sided(self, node: Node, side: Side, *, always: bool) -> Node:
        below = self._sides[side]
        try:
            value = self._builder.reader(below)(node)
            reasons = self._builder.obstacles(Project(below.relation, (Output("c", value),)))
            why = why_not(reasons) if reasons else ""
        except (NotTranslatableError, RelationError) as problem:
            why = str(problem)
        if not why:
            return node
        if not always and may_fail(node) is not MayFail.NEVER:
            raise NotTranslatableError(f"{why}; and it may fail")
        return self._stand_in(node, side)

    def _distance(self, node: Node) -> Node:
        """A difference in time, of moments that Spark gives in microseconds."""
        if intervals.constant_interval(node) is not None:
            return node
        if node.name == "Abs" or (node.name == "Cast" and intervals.keeps_all(node)):
            return _with_children(node, self._distance)
        if node.name not in intervals.DIFFERENCES:
            raise NotTranslatableError(f"{node} is not computed here: it is an interval")
        return _with_children(node, lambda child: self._moment(child, node))

    def _moment(self, node: Node, difference: Node) -> Node:
        side = self._side_of(node)
        if side is None or may_fail(node) is not MayFail.NEVER:
            raise NotTranslatableError(f"{node} is not computed from one side alone, or may fail")
        return self._stand_in(intervals.clock_microseconds(node, difference, node.reading.gateway), side)

    def _stand_in(self, node: Node, side: Side) -> StandIn:
        reasons = obstacles(node)
        if reasons:
            raise NotTranslatableError(reasons[0].why)
        refuse_collation(node)
        for stand_in in self.stand_ins[side]:
            if stand_in.source.name == node.name and stand_in.source.jvm.semanticEquals(node.jvm):
                return stand_in
        self.stand_ins[side].append(StandIn.from_node(node, self._reading))
        return self.stand_ins[side][-1]

    def _side_of(self, node: Node) -> Side | None:
        """Give the only side whose columns an expression reads; ``None`` if it reads both or none."""
        ids = node.attribute_ids
        return next((side for side in Side if ids and ids <= self._sides[side].positions.keys()), None)


def _with_children(node: Node, change: Callable[[Node], Node]) -> Node:
    children = tuple(map(change, node.children))
    same = all(new is other for new, other in zip(children, node.children, strict=True))
    return node if same else dataclasses.replace(node, children=children)


def join_inputs(
    builder: TreeBuilder, node: PlanNode, parts: Sequence[Node], required: frozenset[int], *, not_in: bool
) -> tuple[dict[Side, Fragment], list[Node]]:
    """Build the inputs of a join, with columns for what Spark has to compute of its condition.

    Also gives the conjuncts over their columns. ``not_in``: it is a join by which ``NOT IN`` may be computed.
    """
    start, any_rows = builder.state, node.request is not None
    sides = {side: builder.input(node.child(side), _with_parts(required, parts), any_rows=any_rows) for side in Side}
    computed = ComputedParts(builder, sides, node.reading)
    covered, problems = [], []
    for part in parts:
        try:
            covered.append(computed.not_in(part) if not_in else computed.condition(part))
        except NotTranslatableError as problem:
            problems.append(str(problem))
    if problems:
        raise NotTranslatableError("; ".join(problems))
    if any(computed.stand_ins.values()):
        builder.state = start
        sides = {
            side: with_stand_ins(
                builder,
                node.child(side),
                _with_parts(required, covered),
                computed.stand_ins[side],
                any_rows=any_rows,
            )
            for side in Side
        }
    return sides, covered


def with_stand_ins(
    builder: TreeBuilder,
    node: PlanNode,
    required: frozenset[int],
    stand_ins: Sequence[StandIn],
    first: First | None = None,
    *,
    any_rows: bool = False,
) -> Fragment:
    """Build an input; where Spark has to compute something with its rows, they come from Spark."""
    if not stand_ins and first is None:
        return builder.input(node, required, any_rows=any_rows)
    return builder.from_spark(node, required, None, stand_ins, first, any_rows=any_rows)


def _with_parts(required: frozenset[int], parts: Sequence[Node]) -> frozenset[int]:
    return required.union(*(part.attribute_ids for part in parts))
