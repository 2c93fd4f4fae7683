"""Optimized logical plans as Python trees, and putting changed plans together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpujoin.spark.catalyst.nodes import Node, read_attributes, read_expression

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(eq=False)
class PlanNode:
    """One node of a logical plan.

    Replies of the gateway that do not fit one network packet wait some 40 ms for an acknowledgement, so a plan is read
    node by node, in small calls, and not as one text.

    Attributes
    ----------
    jvm : py4j object
        The node.
    class_name : str
        Its Java class.
    children : tuple of PlanNode
        Its inputs.
    gateway : py4j JVM view
        ``spark._jvm``.
    """

    jvm: Any
    class_name: str
    children: tuple[PlanNode, ...]
    gateway: Any

    @property
    def name(self) -> str:
        """Class name without the package."""
        return self.class_name.rpartition(".")[2]

    def walk(self) -> Iterator[PlanNode]:
        """Yield this node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    @cached_property
    def output(self) -> tuple[Node, ...]:
        """The columns, as attribute references."""
        return read_attributes(self.gateway, self.jvm.output())

    def expression(self, accessor: str) -> Node:
        """Read one expression of the node, such as a filter's ``condition``."""
        return read_expression(getattr(self.jvm, accessor)())

    def expressions(self, accessor: str) -> tuple[Node, ...]:
        """Read a sequence of expressions of the node, such as a projection's ``projectList``."""
        return read_sequence(getattr(self.jvm, accessor)())

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
    children = plan.children()
    below = tuple(read_plan(child, gateway) for child in items(children))
    return PlanNode(plan, str(plan.getClass().getName()), below, gateway)


def read_sequence(expressions: Any) -> tuple[Node, ...]:
    """Read each expression of a Scala sequence."""
    return tuple(read_expression(expression) for expression in items(expressions))


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
    never = getattr(getattr(logical, "NO_BROADCAST_HASH$"), "MODULE$")
    info = gateway.scala.Some(logical.HintInfo(gateway.scala.Some(never)))
    left, right = (info if one and hint.isEmpty() else hint for one, hint in zip(large, hints, strict=True))
    return join.copy(
        join.left(), join.right(), join.joinType(), join.condition(), logical.JoinHint(left, right)
    )
