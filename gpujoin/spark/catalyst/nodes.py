"""Catalyst expressions as Python trees, read from their JSON form in one gateway call."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql.types import BooleanType, DataType, _parse_datatype_json_string

CATALYST = "org.apache.spark.sql.catalyst."

_BUNDLED = 20
"""Attributes read in one call. A reply of more than 8 KiB waits some 40 ms for an acknowledgement."""


_TRUTHS = frozenset({
    "And", "Contains", "EndsWith", "EqualNullSafe", "EqualTo", "GreaterThan", "GreaterThanOrEqual", "In", "InSet",
    "IsNaN", "IsNotNull", "IsNull", "LessThan", "LessThanOrEqual", "Like", "Not", "Or", "RLike", "StartsWith",
})  # fmt: skip
"""Classes whose values are booleans whatever their operands: the JVM need not be asked for their type."""
_DECLARED = frozenset({"AttributeReference", "Literal", "Cast"})
"""Classes whose JSON form says their type."""


@dataclass(frozen=True)
class Later:
    """A JVM object that is fetched when it is first needed.

    Attributes
    ----------
    fetch : callable
        Gives it.
    """

    fetch: Callable[[], Any]


@dataclass(eq=False)
class Node:
    """One Catalyst expression.

    The JSON form leaves out what has no JSON encoding (evaluation modes, escape characters, collations), so each node
    also knows its JVM object, which is fetched when first asked for.

    Attributes
    ----------
    class_name : str
        Full Java class name.
    fields : dict
        Constructor arguments, as in the JSON.
    children : tuple of Node
        Operands, in order.
    parent : Node or None
        The node whose JVM object has this one's as a child.
    position : int
        Which child of it.
    root : py4j object or Later
        The JVM object of the topmost node.
    """

    class_name: str
    fields: dict[str, Any]
    children: tuple[Node, ...] = ()
    parent: Node | None = field(default=None, repr=False)
    position: int = 0
    root: Any = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Class name without the package."""
        return self.class_name.rpartition(".")[2]

    @cached_property
    def jvm(self) -> Any:
        """The JVM object."""
        if self.parent is None:
            return self.root.fetch() if isinstance(self.root, Later) else self.root
        return self.parent.jvm.children().apply(self.position)

    @cached_property
    def type_name(self) -> str:
        """The type as Spark writes it, with its collation."""
        if self.name in _TRUTHS:
            return "boolean"
        declared = self.fields.get("dataType")
        if isinstance(declared, str) and self.name in _DECLARED:
            return declared
        return str(self.jvm.dataType().catalogString())

    @cached_property
    def data_type(self) -> DataType:
        """The result type; collations are lost (see :attr:`type_name`)."""
        if self.name in _TRUTHS:
            return BooleanType()
        if self.name in _DECLARED:
            return declared_type(self)
        return _parse_datatype_json_string(self.jvm.dataType().json())

    @cached_property
    def expr_id(self) -> int:
        """The id of an attribute reference or an alias."""
        return int(self.fields["exprId"]["id"])

    @cached_property
    def attribute_ids(self) -> frozenset[int]:
        """Ids of the attributes that the tree reads."""
        return frozenset(n.expr_id for n in self.walk() if n.name == "AttributeReference")

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def __str__(self) -> str:
        return str(self.jvm.sql())


def read_expression(expression: Any) -> Node:
    """Read a Catalyst expression.

    Parameters
    ----------
    expression : py4j object
        ``org.apache.spark.sql.catalyst.expressions.Expression``.
    """
    return tree_of(json.loads(expression.toJSON()), expression)


def read_attributes(gateway: Any, attributes: Any) -> tuple[Node, ...]:
    """Read a sequence of attributes in few calls.

    Parameters
    ----------
    gateway : py4j JVM view
        ``spark._jvm``.
    attributes : py4j object
        ``Seq[Attribute]``.
    """
    found: list[Node] = []
    for start in range(0, int(attributes.size()), _BUNDLED):
        some = attributes.slice(start, start + _BUNDLED)
        bundle = gateway.org.apache.spark.sql.catalyst.expressions.Coalesce(some)
        found += tree_of(json.loads(bundle.toJSON()), bundle).children
    return tuple(found)


def tree_of(rows: Sequence[dict[str, Any]], root: Any) -> Node:
    """Make the tree of an expression's JSON form.

    Parameters
    ----------
    rows : sequence of dict
        A row for each node, parents first.
    root : py4j object or Later
        The expression itself.
    """
    position = 0

    def take(parent: Node | None, index: int) -> Node:
        nonlocal position
        row = dict(rows[position])
        position += 1
        count = row.pop("num-children")
        node = Node(row.pop("class"), row, parent=parent, position=index, root=root)
        node.children = tuple(take(node, i) for i in range(count))
        return node

    return take(None, 0)


def declared_type(node: Node) -> DataType:
    """Give the type that the JSON form of an attribute or literal declares, without a call; collations are lost."""
    declared = node.fields["dataType"]
    return _parse_datatype_json_string(json.dumps(declared))


@dataclass(eq=False)
class Expanded(Node):
    """A node after :func:`expand`; its own JVM object may have other operands than its children.

    Attributes
    ----------
    source : Node
        Whose JVM object computes this whole tree by itself.
    """

    source: Node = field(kw_only=True)
    children: tuple[Expanded, ...] = ()

    def __str__(self) -> str:
        return str(self.source)


def expand(node: Node, gateway: Any) -> Expanded:
    """Replace what Spark's optimizer would replace anyway, so that fewer kinds of node need to be known.

    Shorthands (``between``, ``nvl``, ``nullif``, ``try_add``, …) become what they stand for, and common expressions
    are put where they are read; both are deterministic here, so nothing changes but the amount of work.

    Parameters
    ----------
    node : Node
        A deterministic expression.
    gateway : py4j JVM view
        ``spark._jvm``.
    """
    return _Expansion(gateway).run(node, {})[0]


class _Expansion:
    def __init__(self, gateway: Any) -> None:
        self._to_seq = gateway.org.apache.spark.api.python.PythonUtils.toSeq
        self._replaceable = gateway.java.lang.Class.forName(CATALYST + "expressions.RuntimeReplaceable")

    def run(self, node: Node, known: dict[int, Expanded]) -> tuple[Expanded, bool]:
        """Expand a node; also tell whether it reads common expressions that are defined outside of it."""
        if node.name == "CommonExpressionRef":
            return known[_common_id(node)], True
        if node.name == "With":
            inner, outward = self._with(node, known)
        elif node.name not in _PLAIN and self._replaceable.isInstance(node.jvm):
            inner, outward = self.run(read_expression(node.jvm.replacement()), known)
        else:
            return self._operation(node, known)
        return inner if outward else dataclasses.replace(inner, source=node), outward

    def _operation(self, node: Node, known: dict[int, Expanded]) -> tuple[Expanded, bool]:
        parts = [self.run(child, known) for child in node.children]
        children = tuple(part for part, _ in parts)
        outward = any(outward for _, outward in parts)
        source = node
        if outward:
            closed = node.jvm.withNewChildren(self._to_seq([child.source.jvm for child in children]))
            source = Node(
                node.class_name, node.fields, tuple(child.source for child in children), root=closed
            )
        expanded = Expanded(
            node.class_name, node.fields, children, parent=node.parent, position=node.position, root=node.root,
            source=source,
        )  # fmt: skip
        return expanded, outward

    def _with(self, node: Node, known: dict[int, Expanded]) -> tuple[Expanded, bool]:
        body, *definitions = node.children
        inner, outward = dict(known), False
        for definition in definitions:
            part, reads_outside = self.run(definition.children[0], inner)
            inner[_common_id(definition)] = part
            outward |= reads_outside
        outward |= any(
            part.name == "CommonExpressionRef" and _common_id(part) in known for part in body.walk()
        )
        return self.run(body, inner)[0], outward


def _common_id(node: Node) -> int:
    return int(node.jvm.id().id())


_PLAIN = frozenset({
    "Add", "Alias", "And", "AttributeReference", "CaseWhen", "Cast", "Coalesce", "Contains", "Divide", "EndsWith",
    "EqualNullSafe", "EqualTo", "GreaterThan", "GreaterThanOrEqual", "If", "In", "IsNotNull", "IsNull", "LessThan",
    "LessThanOrEqual", "Like", "Literal", "Multiply", "Not", "Or", "StartsWith", "Subtract",
})  # fmt: skip
"""Common classes that are known not to be shorthands, to save asking the JVM."""
