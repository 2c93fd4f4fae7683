"""Catalyst expressions as Python trees, of which everything is read in one gateway call."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Protocol, TypeAlias

from pyspark.sql import types as t
from pyspark.sql.types import DataType, _parse_datatype_json_string

from gpujoin.model.expressions import EvalMode, Expression
from gpujoin.model.trees import preorder
from gpujoin.model.zones import ZoneLiteral
from gpujoin.spark.jvm.compiled import plan_reader
from gpujoin.spark.jvm.gateway import PART_LENGTH, JvmNames, unpacked

_BY_BYTES = re.compile(r" collate UTF8_BINARY\b", re.IGNORECASE)
"""How Spark writes the collation of plain strings where somebody has named it, as Spark Connect does for the results of
Python functions."""

CATALYST = "org.apache.spark.sql.catalyst."
_ids = itertools.count(-1, -1)


def new_id() -> int:
    """Give the expression id of a column that Spark's plan does not have: below zero, and never the same again."""
    return next(_ids)


class NotTranslatableError(Exception):
    """A node is not understood; the message says which, and why."""


Rows = Sequence["dict[str, Any] | int"] | int
"""An expression as ``PlanReader.java`` writes it: a row for each node, parents first; an attribute is its number."""


class Reading:
    """What was read of a plan or of expressions, and the JVM's objects by their numbers.

    Parameters
    ----------
    gateway : JvmNames
        Of the session.
    handle : py4j object
        ``PlanReader.Reading``.
    conf : mapping
        Settings of the session that it is planned in.

    Attributes
    ----------
    rows : list
        What was read.
    aliases : dict of int to Node
        What is computed under a name, by its expression id, of the expressions that were asked for.
    refused : frozenset of str
        Operations that are left to Spark, since they met values of these tables that only Spark computes.
    """

    refused: frozenset[str] = frozenset()

    def __init__(self, gateway: JvmNames, handle: Any, conf: Mapping[str, str]) -> None:
        self.gateway = gateway
        self.handle = handle
        self.conf = conf
        parts = [handle.data(PART_LENGTH)]
        while len(parts[-1]) == PART_LENGTH:
            parts.append(handle.more(PART_LENGTH))
        content = unpacked("".join(parts))
        self.rows = content["rows"]
        self._attributes = content["attributes"]
        self._types = content["types"]
        self._nodes: dict[int, Node] = {}
        self.aliases: dict[int, Node] = {}

    def tree(self, rows: Rows) -> Node:
        """Make the tree of an expression."""
        return self.attribute(rows) if isinstance(rows, int) else self._take(iter(rows))

    def trees(self, value: Any) -> Iterator[Node]:
        """Make the trees of all expressions in a field of a row."""
        if not isinstance(value, list):
            return
        if any(isinstance(row, dict) and "@number" in row for row in value):
            yield self.tree(value)
        else:
            for part in value:
                yield from self.trees(part)

    def attribute(self, number: int) -> Node:
        """Give an attribute of the table."""
        node = self._nodes.get(number)
        if node is None:
            row = self._attributes[number]
            node = self._nodes[number] = Node(row["class"], row, reading=self)
        return node

    def type_of(self, number: int) -> tuple[str, str]:
        """Give a type's JSON form, and its name with its collation, if that is none of bytes."""
        text, name = self._types[number]
        return text, _BY_BYTES.sub("", name)

    def _take(self, rows: Iterator[dict[str, Any] | int]) -> Node:
        row = next(rows)
        if isinstance(row, int):
            return self.attribute(row)
        children = tuple(self._take(rows) for _ in range(row["num-children"]))
        node = Node(row["class"], row, children, reading=self)
        if node.name == "Alias":
            self.aliases[node.expr_id] = children[0]
        return node


@dataclass(eq=False)
class Node:
    """One Catalyst expression."""

    class_name: str
    """Full Java class name."""
    fields: dict[str, Any]
    """Constructor arguments, and what the node says of itself."""
    children: tuple[Node, ...] = ()
    """Operands, in order."""
    reading: Reading = field(repr=False, kw_only=True)
    """Which the node is of."""

    @cached_property
    def name(self) -> str:
        """Class name without the package."""
        return self.class_name.rpartition(".")[2]

    @cached_property
    def jvm(self) -> Any:
        """The JVM object."""
        return self.reading.handle.expression(self.number)

    @property
    def number(self) -> int:
        """Number of the JVM object."""
        return int(self.fields["@number"])

    @property
    def type_name(self) -> str:
        """The type as Spark writes it, with its collation, if texts are not compared by bytes."""
        return self.reading.type_of(self.fields["@type"])[1]

    @property
    def data_type(self) -> DataType:
        """The result type; collations are lost (see :attr:`type_name`)."""
        return _data_type(self.reading.type_of(self.fields["@type"])[0])

    @property
    def deterministic(self) -> bool:
        """Whether it has one value for equal inputs."""
        return bool(self.fields.get("@deterministic", True))

    @property
    def nullable(self) -> bool:
        """Whether it may be null."""
        return bool(self.fields["@nullable"])

    @property
    def eval_mode(self) -> EvalMode:
        """What the operation does on overflow, division by zero and malformed input."""
        for name, is_ansi in (("failOnError", True), ("ansiEnabled", True), ("nullOnOverflow", False)):
            if name in self.fields:
                return EvalMode.ANSI if bool(self.fields[name]) is is_ansi else EvalMode.LEGACY
        holder = self.fields.get("evalContext") or self.fields
        return EvalMode(holder["evalMode"].lower()) if "evalMode" in holder else EvalMode.LEGACY

    @cached_property
    def expr_id(self) -> int:
        """The id of an attribute reference or an alias."""
        return int(self.fields["exprId"]["id"])

    @cached_property
    def attribute_ids(self) -> frozenset[int]:
        """Ids of the attributes that the tree reads."""
        if self.name == "AttributeReference":
            return frozenset((self.expr_id,))
        return frozenset().union(*(child.attribute_ids for child in self.children))

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it, parents first."""
        return preorder(self)

    def __str__(self) -> str:
        from gpujoin.spark.catalyst.words import words

        return words(self)


class Reader(Protocol):
    """Translates expressions; what the translation of a function asks of it."""

    def __call__(self, node: Node) -> Expression:
        """Translate an expression. Raises ``NotTranslatableError`` if it is not covered."""

    def zone(self, node: Node) -> ZoneLiteral | None:
        """Give the session's time zone; ``None`` if it is UTC."""

    def zone_of_days(self, node: Node) -> ZoneLiteral | None:
        """As :meth:`zone`, for a node that adds whole days by the clock."""


Translation: TypeAlias = Callable[[Reader, Node], Expression]
"""Translates the expressions of a class, with a reader for their operands."""


@lru_cache(maxsize=1024)
def _data_type(text: str) -> DataType:
    return _parse_datatype_json_string(text)


def read_expression(beside: Reading, expression: Any) -> Node:
    """Read a Catalyst expression made for a query that has been read."""
    reading = Reading(beside.gateway, plan_reader(beside.gateway).expression(expression), beside.conf)
    return reading.tree(reading.rows[0])


def python_value(dtype: t.DataType, value: Any) -> Any:
    """Give the Python value of a constant, from Catalyst's internal one as ``PlanReader.java`` writes it.

    Raises ``NotTranslatableError`` if constants of the type are not covered; ``OverflowError`` if Python has no such
    date.
    """
    if value is None:
        return None
    match dtype:
        case t.BooleanType():
            return bool(value)
        case t.BinaryType():
            return base64.b64decode(value["bytes"])
        case t.IntegralType():
            return int(value)
        case t.FloatType() | t.DoubleType():
            return float(value)
        case t.DecimalType():
            return decimal.Decimal(value)
        case t.StringType():
            if not isinstance(value, str):
                raise NotTranslatableError("a string constant is not valid UTF-8")
            return value
        case t.DateType():
            return dt.date(1970, 1, 1) + dt.timedelta(days=int(value))
        case t.TimestampType():
            return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=int(value))
        case t.ArrayType() | t.MapType() | t.StructType() if isinstance(value, list):
            return _nested_value(dtype, value)
        case t.TimestampNTZType():
            return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=int(value))  # noqa: DTZ001
        case _:
            raise NotTranslatableError(f"a literal of type {dtype.simpleString()}")


def _nested_value(dtype: t.ArrayType | t.MapType | t.StructType, value: list[Any]) -> Any:
    if isinstance(dtype, t.ArrayType):
        return [python_value(dtype.elementType, element) for element in value]
    if isinstance(dtype, t.MapType):
        keys, values = value
        return [
            (python_value(dtype.keyType, key), python_value(dtype.valueType, item))
            for key, item in zip(keys, values, strict=True)
        ]
    if len(set(dtype.names)) < len(value):
        raise NotTranslatableError(f"a literal of type {dtype.simpleString()}, with two fields of one name")
    return {field.name: python_value(field.dataType, part) for field, part in zip(dtype.fields, value, strict=True)}
