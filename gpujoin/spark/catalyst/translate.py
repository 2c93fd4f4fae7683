"""Catalyst expressions as expressions of the engine.

A tree is translated only where every node is understood exactly, its types and its evaluation mode included.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import types as t

from gpujoin.errors import JoinSpecError
from gpujoin.functions import BY_CLASS
from gpujoin.model.expressions import Call, Case, Cast, Expression, Function, Literal
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.catalyst.traits import eval_mode
from gpujoin.spark.compat import arrow_type

if TYPE_CHECKING:
    from gpujoin.spark.jvm.gateway import JvmNames


class NotTranslatableError(Exception):
    """A node is not understood; the message says which, and why."""


class ExpressionReader:
    """Translates Catalyst expressions; subclasses say what columns and subqueries are.

    A node that is not exactly understood, its types and its evaluation mode included, is not translated.
    """

    legacy_patterns = False
    """Whether the session writes times by the patterns and the calendar of Spark 2."""

    def column(self, node: Node) -> Expression:
        """Translate an attribute reference. Raises ``NotTranslatableError`` if it is none that is known."""
        raise NotTranslatableError(f"{node} is no column that is known here")

    def subquery(self, node: Node) -> Expression:
        """Translate a scalar subquery. Raises ``NotTranslatableError`` if subqueries are not covered."""
        raise NotTranslatableError(f"{node.name} is a subquery")

    def zones(self, node: Node) -> None:
        """Refuse what depends on the session's time zone, unless that is UTC, in which timestamps are read here."""
        if node.fields.get("timeZoneId") not in UTC_NAMES:
            refuse_zones(node)

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
        if node.name in _WITH_CONSTANTS:
            return _WITH_CONSTANTS[node.name](node, self(node.children[0]))
        if node.name == "ElementAt":
            return self._part(node)
        spec = BY_CLASS.get(node.name)
        if spec is None and node.name != "Cast" and node.name not in _CONDITIONALS:
            raise NotTranslatableError(f"{node} is not computed here")
        operands = [self(child) for child in node.children]
        result = arrow_of(node.data_type)
        if spec is None and node.name == "Cast":
            self.zones(node)
            return Cast(child=operands[0], to=result, mode=eval_mode(node), type=result)
        if spec is None:
            return _case(node.name, operands, result)
        if spec.zoned:
            self.zones(node)
        if node.name == "FromUnixTime" and node.fields.get("timeZoneId") not in UTC_NAMES:
            raise NotTranslatableError(f"{node} depends on the session's time zone")
        if node.name in _PATTERNS and self.legacy_patterns:
            raise NotTranslatableError(f"{node} follows spark.sql.legacy.timeParserPolicy=LEGACY")
        low, high = spec.signature.arity
        operands += _UNSEEN[node.name](node) if node.name in _UNSEEN else []
        if not low <= len(operands) <= high:
            raise NotTranslatableError(f"{node}: {node.name} of {len(operands)} operands is not computed here")
        return Call(function=spec.function, arguments=tuple(operands), mode=eval_mode(node), type=result)

    def _part(self, node: Node) -> Expression:
        """Translate ``split_part``, which Spark writes as an element of the array of all parts."""
        array, number = node.children
        default = node.fields.get("defaultValueOutOfBound")
        outside = node.reading.tree(default) if isinstance(default, list) else None
        if array.name != "StringSplitSQL" or outside is None or outside.fields.get("@value") != "":
            raise NotTranslatableError(f"{node} is not computed here")
        operands = (*map(self, array.children), self(number))
        return Call(function=Function.SPLIT_PART, arguments=operands, type=arrow_of(node.data_type))


def _shifted_date(node: Node, date: Expression) -> Expression:
    """Translate a date plus a constant interval of years and months."""
    interval = node.children[1]
    if interval.name != "Literal" or interval.fields["@value"] is None:
        raise NotTranslatableError(f"{interval} is no constant interval of years and months")
    months = Literal(value=int(interval.fields["@value"]), type=pa.int32())
    return Call(function=Function.ADD_MONTHS, arguments=(date, months), type=pa.date32())


def _shifted_timestamp(node: Node, moment: Expression) -> Expression:
    """Translate a timestamp plus a constant interval of days to seconds."""
    without_zone = isinstance(node.data_type, t.TimestampNTZType)
    zone = "UTC" if without_zone else str(node.fields.get("timeZoneId") or "UTC")
    return Call(
        function=Function.TIMESTAMP_ADD,
        arguments=(moment, _constant_interval(node.children[1], zone)),
        type=arrow_of(node.data_type),
    )


def _unix_timestamp(node: Node, moment: Expression) -> Expression:
    """Translate the seconds of a timestamp with a zone; its pattern is for texts."""
    if not isinstance(node.children[0].data_type, t.TimestampType):
        raise NotTranslatableError(f"{node} is not computed here")
    return Call(function=Function.UNIX_TIMESTAMP, arguments=(moment,), type=pa.int64())


def _constant_interval(node: Node, zone: str) -> Literal:
    """Translate a constant interval of days and less, which is added to a timestamp in a time zone.

    Raises ``NotTranslatableError`` if it is none, or if it has a day or more, which is not always 24 hours there.
    """
    negated = False
    while node.name == "UnaryMinus":
        node, negated = node.children[0], not negated
    if node.name != "Literal" or not isinstance(node.data_type, t.DayTimeIntervalType):
        raise NotTranslatableError(f"{node} is no constant interval of days and less")
    if node.fields["@value"] is None:
        raise NotTranslatableError(f"{node} is null")
    micros = int(node.fields["@value"])
    shift = dt.timedelta(microseconds=-micros if negated else micros)
    if abs(shift) >= _DAY and zone not in UTC_NAMES:
        raise NotTranslatableError(f"{node} is a day or more, which is not always 24 hours in {zone}")
    return Literal(value=shift, type=pa.duration("us"))


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
    return object_name(order, what) == name


def object_name(node: Node, what: str) -> str:
    """Give the class of a property that is a Scala object, such as the ``direction`` of a ``SortOrder``.

    Raises ``NotTranslatableError`` if its JSON form does not say.
    """
    property_ = node.fields[what]
    kind = str(property_["object"]).rpartition(".")[2].rstrip("$") if isinstance(property_, dict) else ""
    if not kind:
        raise NotTranslatableError(f"{node}: its {what} is not understood")
    return kind


def refuse_collation(node: Node) -> None:
    """Refuse a string that is not compared by bytes, by ``NotTranslatableError`` with its type."""
    if "collate" in node.type_name.lower():
        raise NotTranslatableError(f"{node} has type {node.type_name}; only strings compared by bytes are covered")


def refuse_zones(node: Node) -> None:
    """Refuse conversions between timestamps with a zone and anything else, by ``NotTranslatableError``.

    They depend on the session's time zone.
    """
    kinds = [child.data_type for child in node.children] + [node.data_type]
    if any(isinstance(kind, t.TimestampType) for kind in kinds) and len({type(kind) for kind in kinds}) > 1:
        raise NotTranslatableError(f"{node} depends on the session's time zone")


UTC_NAMES = frozenset({"UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "UCT", "Zulu"})
"""Names of UTC, as a session's time zone."""
_DAY = dt.timedelta(days=1)
_PATTERNS = frozenset({"DateFormatClass", "FromUnixTime"})
_WITH_CONSTANTS: dict[str, Callable[[Node, Expression], Expression]] = {
    "DateAddYMInterval": _shifted_date,
    "TimestampAddInterval": _shifted_timestamp,
    "TimeAdd": _shifted_timestamp,
    "UnixTimestamp": _unix_timestamp,
    "ToUnixTimestamp": _unix_timestamp,
}
"""Functions whose second operand is a constant of its own kind; ``TimeAdd`` is the name before Spark 4.1."""


def _refuse_other_seeds(node: Node) -> list[Literal]:
    if int(node.fields["seed"]) != _HASH_SEED:
        raise NotTranslatableError(f"{node}: a hash with another seed than {_HASH_SEED}")
    return []


def _refuse_languages(node: Node) -> list[Literal]:
    """Refuse to map case where the JVM's default language has mappings of its own: those of Turkish, for one."""
    language = _language(node.reading.gateway)
    if language in _CASE_LANGUAGES:
        raise NotTranslatableError(f"{node} follows the JVM's language, {language!r}")
    return []


def _language(gateway: JvmNames) -> str:
    """Default language of the JVM, asked for once."""
    if gateway not in _languages:
        _languages[gateway] = str(gateway.java.util.Locale.getDefault().getLanguage())
    return _languages[gateway]


_languages: WeakKeyDictionary[JvmNames, str] = WeakKeyDictionary()
CASE_MAPPINGS = ("Upper", "Lower", "InitCap")
"""Functions that Spark alone computes for characters whose case is not settled."""
_HASH_SEED = 42
"""Seed of ``hash`` and ``xxhash64`` in SQL."""
_CASE_LANGUAGES = frozenset({"az", "el", "hy", "lt", "nl", "tr"})
"""Languages of which Java or ICU maps some characters by rules of their own."""
_TRANSPARENT = frozenset({"KnownNotNull", "KnownNullable"})
_CONDITIONALS = frozenset({"CaseWhen", "If", "NullIfResult"})
_UNSEEN: dict[str, Callable[[Node], list[Literal]]] = {
    "InSet": _members,
    "GetStructField": _field_name,
    "Like": lambda node: [Literal(value=node.fields["escapeChar"], type=pa.string())],
    **dict.fromkeys(("Murmur3Hash", "XxHash64"), _refuse_other_seeds),
    **dict.fromkeys(CASE_MAPPINGS, _refuse_languages),
}
"""Operands that are no children of a node, by its class; or a refusal by what else the node has."""


def covered_expressions() -> tuple[str, ...]:
    """Name the classes of expressions that are covered."""
    return (
        *BY_CLASS,
        *_CONDITIONALS,
        *_TRANSPARENT,
        "Cast",
        "ElementAt",
        "StringSplitSQL",
        "AttributeReference",
        "Literal",
        "ScalarSubquery",
    )
