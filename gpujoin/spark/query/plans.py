"""Optimized logical plans as Python trees, and putting changed plans together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpujoin.model.jointype import Side
from gpujoin.spark.catalyst.nodes import Later, Node, read_attributes, read_expression, tree_of
from gpujoin.spark.gateway import plan_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpujoin.spark.query.nearest.terms import Nearest


@dataclass(eq=False)
class PlanNode:
    """One node of a logical plan.

    Attributes
    ----------
    class_name : str
        Its Java class.
    fields : dict
        Constructor arguments, as in the plan's JSON form.
    gateway : py4j JVM view
        ``spark._jvm``.
    fetch : callable
        Gives the JVM object.
    children : tuple of PlanNode
        Its inputs.
    nearest : Nearest or None
        Of a join: that of each row's matches the nearest alone is needed.
    for_nearest : PlanNode or None
        Of a ``Sort``: a join of which it does no more than say which match is the nearest.
    """

    class_name: str
    fields: Mapping[str, Any] = field(repr=False)
    gateway: Any = field(repr=False)
    fetch: Callable[[], Any] = field(repr=False)
    children: tuple[PlanNode, ...] = ()
    nearest: Nearest | None = field(default=None, repr=False)
    for_nearest: PlanNode | None = field(default=None, repr=False)

    @cached_property
    def jvm(self) -> Any:
        """The JVM object."""
        return self.fetch()

    @property
    def name(self) -> str:
        """Class name without the package."""
        return self.class_name.rpartition(".")[2]

    def walk(self) -> Iterator[PlanNode]:
        """Yield this node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def child(self, side: Side) -> PlanNode:
        """Give one input of a join."""
        return self.children[0 if side is Side.LEFT else 1]

    @cached_property
    def output(self) -> tuple[Node, ...]:
        """The columns, as attribute references."""
        if self.fields.get("output"):
            return self.expressions("output")
        return read_attributes(self.gateway, self.jvm.output())

    @cached_property
    def condition(self) -> Node | None:
        """The condition of a join."""
        return self.optional("condition")

    def expression(self, accessor: str) -> Node:
        """Read one expression of the node, such as a filter's ``condition``."""
        rows = self.fields.get(accessor)
        if rows is None:
            return read_expression(self._value(accessor))
        return tree_of(rows, Later(lambda: self._value(accessor)))

    def optional(self, accessor: str) -> Node | None:
        """Read an expression that the node may lack, such as a join's ``condition``."""
        rows = self.fields.get(accessor)
        return None if rows is None else tree_of(rows, Later(lambda: self._value(accessor).get()))

    def expressions(self, accessor: str) -> tuple[Node, ...]:
        """Read a sequence of expressions of the node, such as a projection's ``projectList``."""
        every = self.fields.get(accessor)
        if every is None:
            return read_sequence(self._value(accessor))
        return tuple(
            tree_of(rows, Later(lambda i=i: self._value(accessor).apply(i)))  # type: ignore[misc]
            for i, rows in enumerate(every)
        )

    def _value(self, accessor: str) -> Any:
        if accessor not in self._values:
            self._values[accessor] = getattr(self.jvm, accessor)()
        return self._values[accessor]

    @cached_property
    def _values(self) -> dict[str, Any]:
        return {}

    @cached_property
    def subqueries(self) -> tuple[Node, ...]:
        """The expressions of this node, not of those below, that hold a plan."""
        if self.jvm.subqueries().isEmpty():
            return ()
        found = []
        for expression in read_sequence(self.jvm.expressions()):
            found += [node for node in expression.walk() if "plan" in node.fields]
        return tuple(found)


def read_plan(plan: Any, gateway: Any) -> PlanNode:
    """Read a logical plan.

    Parameters
    ----------
    plan : py4j object
        The topmost node.
    gateway : py4j JVM view
        ``spark._jvm``.
    """
    rows = iter(plan_rows(plan, gateway))
    leaves = _Leaves(plan)

    def take(fetch: Callable[[], Any]) -> PlanNode:
        row = next(rows)
        count = row.pop("num-children")
        node = PlanNode(row.pop("class"), row, gateway, fetch if count else leaves.next())
        node.children = tuple(take(lambda i=i: node.jvm.children().apply(i)) for i in range(count))  # type: ignore[misc]
        return node

    return take(lambda: plan)


class _Leaves:
    """The leaves of a plan, which most is asked of, without the way down to each."""

    def __init__(self, plan: Any) -> None:
        self._plan = plan
        self._count = 0

    def next(self) -> Callable[[], Any]:
        number = self._count
        self._count += 1
        return lambda: self._all.apply(number)

    @cached_property
    def _all(self) -> Any:
        return self._plan.collectLeaves()


def read_sequence(expressions: Any) -> tuple[Node, ...]:
    """Read each expression of a Scala sequence."""
    return tuple(read_expression(expression) for expression in items(expressions))


def conjuncts(node: Node) -> tuple[Node, ...]:
    """Give the operands of nested ``AND``s.

    A dynamic pruning filter is none: it repeats for whole partitions what a join above it asks of every row.
    """
    if node.name == "DynamicPruningSubquery":
        return ()
    if node.name == "And":
        return tuple(part for child in node.children for part in conjuncts(child))
    return (node,)


def items(sequence: Any) -> list[Any]:
    """Give the elements of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]


def to_seq(gateway: Any, values: Sequence[Any]) -> Any:
    """Make a Scala sequence."""
    return gateway.org.apache.spark.api.python.PythonUtils.toSeq(list(values))


def to_map(gateway: Any, entries: Mapping[Any, Any] | Sequence[tuple[Any, Any]]) -> Any:
    """Make a Scala map, which is also a partial function: Catalyst's ``transform`` methods take it as a rule."""
    table = gateway.java.util.HashMap()
    for key, value in entries.items() if isinstance(entries, Mapping) else entries:
        table.put(key, value)
    return gateway.org.apache.spark.api.python.PythonUtils.toScalaMap(table)


def without_broadcast(gateway: Any, join: Any, large: Sequence[bool]) -> Any:
    """Keep Spark from broadcasting sides of a join whose size it takes to be next to nothing; hints of the user stay.

    Parameters
    ----------
    gateway : py4j JVM view
        ``spark._jvm``.
    join : py4j object
        A logical ``Join``.
    large : sequence of bool
        Whether the left side is large, and whether the right side is.
    """
    hints = [join.hint().leftHint(), join.hint().rightHint()]
    if not any(one and hint.isEmpty() for one, hint in zip(large, hints, strict=True)):
        return join
    logical = gateway.org.apache.spark.sql.catalyst.plans.logical
    never = _object(logical, "NO_BROADCAST_HASH")
    info = gateway.scala.Some(logical.HintInfo(gateway.scala.Some(never)))
    left, right = (info if one and hint.isEmpty() else hint for one, hint in zip(large, hints, strict=True))
    return join.copy(
        join.left(), join.right(), join.joinType(), join.condition(), logical.JoinHint(left, right)
    )


def with_an_order(node: PlanNode, plan: Any) -> Any:
    """Give the row numbers of a window that has no order a constant one, without which Spark does not analyze them.

    Spark itself makes such windows: subqueries with ``LIMIT``, decorrelated.

    Parameters
    ----------
    node : PlanNode
        A node of an optimized plan.
    plan : py4j object
        The same with other children.
    """
    if node.name != "Window" or node.expressions("orderSpec"):
        return plan
    expressions = node.gateway.org.apache.spark.sql.catalyst.expressions
    entries = []
    for named in node.expressions("windowExpressions"):
        for one in named.walk():
            if one.name == "WindowExpression" and one.children[0].name == "RowNumber":
                spec = one.children[1].jvm
                order = expressions.SortOrder(
                    _object(expressions, "Literal").TrueLiteral(),
                    _object(expressions, "Ascending"), _object(expressions, "NullsFirst"), to_seq(node.gateway, []),
                )  # fmt: skip
                ordered = spec.copy(
                    spec.partitionSpec(), to_seq(node.gateway, [order]), spec.frameSpecification()
                )
                entries.append((spec, ordered))
    return plan.transformExpressions(to_map(node.gateway, entries)) if entries else plan


def _object(package: Any, name: str) -> Any:
    """A Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
