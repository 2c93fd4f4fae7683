"""Catalyst expressions as expressions of the engine.

A tree is translated only where every node is understood exactly, its types and its evaluation mode included.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from gpujoin.errors import JoinSpecError
from gpujoin.functions import BY_CLASS
from gpujoin.model.expressions import Call, Case, Cast, Expression, Literal
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.catalyst.traits import eval_mode
from gpujoin.spark.compat import arrow_type


class NotTranslatableError(Exception):
    """A node is not understood; the message says which, and why."""


class ExpressionReader:
    """Translates Catalyst expressions; subclasses say what columns and subqueries are.

    A node that is not exactly understood, its types and its evaluation mode included, is not translated.
    """

    def column(self, node: Node) -> Expression:
        """Translate an attribute reference. Raises ``NotTranslatableError`` if it is none that is known."""
        raise NotTranslatableError(f"{node} is no column that is known here")

    def subquery(self, node: Node) -> Expression:
        """Translate a scalar subquery. Raises ``NotTranslatableError`` if subqueries are not covered."""
        raise NotTranslatableError(f"{node.name} is a subquery")

    def __call__(self, node: Node) -> Expression:
        """Translate an expression.

        Raises ``NotTranslatableError`` if any part of it is not understood, or has no exact counterpart.
        """
        if node.name == "AttributeReference":
            return self.column(node)
        if node.name == "ScalarSubquery":
            return self.subquery(node)
        refuse_collation(node)
        if node.name == "Literal":
            return _literal(node)
        return self._operation(node)

    def _operation(self, node: Node) -> Expression:
        if node.name in _TRANSPARENT:
            return self(node.children[0])
        spec = BY_CLASS.get(node.name)
        if spec is None and node.name != "Cast" and node.name not in _CONDITIONALS:
            raise NotTranslatableError(f"{node} is not computed here")
        operands = [self(child) for child in node.children]
        result = arrow_of(node.data_type)
        if spec is None and node.name == "Cast":
            _refuse_zones(node)
            return Cast(child=operands[0], to=result, mode=eval_mode(node), type=result)
        if spec is None:
            return _case(node.name, operands, result)
        if spec.zoned:
            _refuse_zones(node)
        low, high = spec.signature.arity
        operands += _UNSEEN[node.name](node) if node.name in _UNSEEN else []
        if not low <= len(operands) <= high:
            raise NotTranslatableError(f"{node}: {node.name} of {len(operands)} operands is not computed here")
        return Call(function=spec.function, arguments=tuple(operands), mode=eval_mode(node), type=result)


def _case(name: str, operands: list[Expression], result: pa.DataType) -> Expression:
    nothing = Literal(value=None, type=result)
    if name == "NullIfResult":
        return Case(conditions=(operands[0],), values=(nothing,), otherwise=operands[1], type=result)
    otherwise = operands.pop() if len(operands) % 2 else nothing
    return Case(conditions=tuple(operands[0::2]), values=tuple(operands[1::2]), otherwise=otherwise, type=result)


def _field_name(node: Node) -> list[Literal]:
    struct = node.children[0].data_type
    assert isinstance(struct, t.StructType)
    name = struct.names[int(node.fields["ordinal"])]
    if struct.names.count(name) > 1:
        raise NotTranslatableError(f"{node}: the struct has several fields {name!r}")
    return [Literal(value=name, type=pa.string())]


def _members(node: Node) -> list[Literal]:
    """The values of an ``InSet``, which are no operands of it."""
    dtype = node.children[0].data_type
    arrow = arrow_of(dtype)
    try:
        return [Literal(value=python_value(dtype, value), type=arrow) for value in node.fields["@values"]]
    except OverflowError:
        raise NotTranslatableError(f"{node} is outside of what Python's dates hold") from None


def _literal(node: Node) -> Literal:
    dtype = node.data_type
    try:
        return Literal(value=python_value(dtype, node.fields["@value"]), type=arrow_of(dtype))
    except OverflowError:
        raise NotTranslatableError(f"{node} is outside of what Python's dates hold") from None


_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


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
        case t.TimestampNTZType():
            return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=int(value))  # noqa: DTZ001
        case _:
            raise NotTranslatableError(f"a literal of type {dtype.simpleString()}")


def refuse_replaced(value: Any) -> None:
    """Refuse a string that came through text in which invalid UTF-8 is replaced, if that may have happened.

    Raises ``NotTranslatableError`` if the string has U+FFFD, which stands for invalid bytes there, or for itself.
    """
    if isinstance(value, str) and _REPLACEMENT in value:
        raise NotTranslatableError("a string value has U+FFFD, or bytes that are not valid UTF-8")


def arrow_of(dtype: t.DataType) -> pa.DataType:
    """Give the Arrow form of a Spark type. Raises ``NotTranslatableError`` if there is none."""
    try:
        return arrow_type(dtype)
    except JoinSpecError as problem:
        raise NotTranslatableError(str(problem)) from None


def ordered_by(order: Node, what: str, name: str) -> bool:
    """Tell whether ``direction`` or ``nullOrdering`` of a ``SortOrder`` is of a class, such as ``NullsFirst``.

    Raises ``NotTranslatableError`` if its JSON form does not say.
    """
    property_ = order.fields[what]
    kind = str(property_["object"]).rpartition(".")[2].rstrip("$") if isinstance(property_, dict) else ""
    if not kind:
        raise NotTranslatableError(f"{order}: its {what} is not understood")
    return kind == name


def refuse_collation(node: Node) -> None:
    """Refuse a string that is not compared by bytes, by ``NotTranslatableError`` with its type."""
    if "collate" in node.type_name.lower():
        raise NotTranslatableError(f"{node} has type {node.type_name}; only strings compared by bytes are covered")


def _refuse_zones(node: Node) -> None:
    """Conversions between timestamps with a zone and anything else depend on the session's zone: Spark's business."""
    kinds = [child.data_type for child in node.children] + [node.data_type]
    if any(isinstance(kind, t.TimestampType) for kind in kinds) and len({type(kind) for kind in kinds}) > 1:
        raise NotTranslatableError(f"{node} depends on the session's time zone")


_TRANSPARENT = frozenset({"KnownNotNull", "KnownNullable"})
_CONDITIONALS = frozenset({"CaseWhen", "If", "NullIfResult"})
_UNSEEN: dict[str, Callable[[Node], list[Literal]]] = {
    "InSet": _members,
    "GetStructField": _field_name,
    "Like": lambda node: [Literal(value=node.fields["escapeChar"], type=pa.string())],
}
"""Operands that are no children of a node, by its class."""


def covered_expressions() -> tuple[str, ...]:
    """Name the classes of expressions that are covered."""
    return (
        *BY_CLASS,
        *_CONDITIONALS,
        *_TRANSPARENT,
        "Cast",
        "AttributeReference",
        "Literal",
        "ScalarSubquery",
    )
