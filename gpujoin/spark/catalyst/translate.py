"""Catalyst expressions as expressions of the engine.

A tree is translated only where every node is understood exactly, its types and its evaluation mode included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as t

from gpujoin.cache import cached_by_life
from gpujoin.functions import BY_CLASS
from gpujoin.functions.maths import UNINTRINSIC
from gpujoin.functions.spec import SPECS
from gpujoin.model.expressions import Call, Case, Cast, EvalMode, Expression, Function, Literal, operation_name
from gpujoin.model.types import is_float
from gpujoin.model.zones import ZoneLiteral
from gpujoin.spark.catalyst import arrays, dates, intervals, java, zones
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError, python_value
from gpujoin.spark.catalyst.traits import arrow_of

if TYPE_CHECKING:
    from gpujoin.spark.jvm.gateway import JvmNames


class ExpressionReader:
    """Translates Catalyst expressions; subclasses say what columns and subqueries are.

    A node that is not exactly understood, its types and its evaluation mode included, is not translated.
    """

    def column(self, node: Node) -> Expression:
        """Translate an attribute reference. Raises ``NotTranslatableError`` if it is unknown."""
        raise NotTranslatableError(f"{node} is no column that is known here")

    def subquery(self, node: Node) -> Expression:
        """Translate a scalar subquery, or a field of its value (:func:`subquery_in`).

        Raises ``NotTranslatableError`` if subqueries are not covered.
        """
        raise NotTranslatableError(f"{node} is not computed here")

    def zone(self, node: Node) -> ZoneLiteral | None:
        """Give the session's time zone; ``None`` if it is UTC.

        Raises ``NotTranslatableError`` if its rules are not covered.
        """
        return zones.session_zone(node)

    def zone_of_days(self, node: Node) -> ZoneLiteral | None:
        """As :meth:`zone`, for a node that adds whole days by the clock."""
        return self.zone(node)

    def __call__(self, node: Node) -> Expression:
        """Translate an expression.

        Raises ``NotTranslatableError`` if any part of it is not understood, or has no exact counterpart.
        """
        if node.name == "AttributeReference":
            return self.column(node)
        if subquery_in(node) is not None:
            return self.subquery(node)
        refuse_collation(node)
        if node.name == "Literal" and not intervals.is_interval(node):
            return _literal(node)
        operation = self._operation(node)
        refused = node.reading.refused
        if refused and not refused.isdisjoint(map(operation_name, operation.walk())):
            raise NotTranslatableError(f"{node} met a value in these tables that only Spark computes")
        return operation

    def _operation(self, node: Node) -> Expression:
        if node.name in _TRANSPARENT:
            return self(node.children[0])
        of_intervals = intervals.translation_of(node)
        if of_intervals is not None:
            return of_intervals(self, node)
        if node.name in dates.TRANSLATIONS:
            return dates.TRANSLATIONS[node.name](self, node)
        of_lists = arrays.translation_of(node)
        if of_lists is not None:
            return of_lists(self, node)
        if node.name in ("In", "InSet") and len(node.children) == 1 and not node.fields.get("@values"):
            return self._in_nothing(node)
        if node.name in _OF_THEIR_OWN:
            return _OF_THEIR_OWN[node.name](self, node)
        if node.name == "ConcatWs" and any(isinstance(child.data_type, t.ArrayType) for child in node.children):
            return self._joined(node)
        spec = BY_CLASS.get(node.name)
        if spec is None and node.name != "Cast" and node.name not in _CONDITIONALS:
            raise NotTranslatableError(f"{node} is not computed here")
        operands = [self(child) for child in node.children]
        result = arrow_of(node.data_type)
        if spec is None and node.name == "Cast":
            return self._cast(node, operands[0], result)
        if spec is None:
            return _case(node.name, operands, result)
        if node.name in _PATTERNS:
            dates.refuse_legacy_patterns(node)
        low, high = spec.signature.arity
        operands += _UNSEEN[node.name](node) if node.name in _UNSEEN else []
        if not low <= len(operands) <= high:
            raise NotTranslatableError(f"{node} is not computed here with {len(operands)} arguments")
        call = Call(function=spec.function, arguments=tuple(operands), mode=node.eval_mode, type=result)
        zone = self.zone(node) if spec.zoned and _of_timestamps(node) else None
        return call if zone is None else zones.call_in(call, zone, node.reading.gateway)

    def _cast(self, node: Node, child: Expression, result: pa.DataType) -> Expression:
        explicit = bool(node.fields.get("@explicit"))
        cast = Cast(child=child, to=result, mode=node.eval_mode, type=result, explicit=explicit)
        if not _converts_clocks(node):
            return cast
        zone = self.zone(node)
        if zone is not None and not {type(k) for k in _kinds(node)} <= _CLOCKS:
            raise NotTranslatableError(f"{node} depends on the session's time zone")
        return cast if zone is None else zones.cast_in(cast, zone)

    def _invoke(self, node: Node) -> Expression:
        """Translate a call of a static method of Java, as which Spark writes some functions."""
        if node.fields.get("functionName") == "readSidePadding" and len(node.children) == 2:
            return self._pad(node)
        function = java.function_of(node)
        if function is None:
            raise NotTranslatableError(f"{node} is not computed here")
        operands = java.without_settings(function, [self(child) for child in node.children])
        if operands is None:
            raise NotTranslatableError(f"{node} follows a setting that has an unusual value")
        return Call(function=function, arguments=tuple(operands), type=arrow_of(node.data_type))

    def _invoked_on(self, node: Node) -> Expression:
        """Translate a call of a method of an object, as which Spark writes ``parse_url`` since 4.1."""
        operands = node.children[1:]
        fails = java.fails_on_malformed_urls(node)
        if fails is None:
            raise NotTranslatableError(f"{node} is not computed here")
        arguments = tuple(map(self, operands))
        mode = EvalMode.ANSI if fails else EvalMode.LEGACY
        return Call(function=Function.PARSE_URL, arguments=arguments, mode=mode, type=arrow_of(node.data_type))

    def _size(self, node: Node) -> Expression:
        """Translate ``size``, which is -1 of null, unless a setting has it otherwise."""
        count = Call(function=Function.SIZE, arguments=(self(node.children[0]),), type=pa.int32())
        if not node.fields["legacySizeOfNull"]:
            return count
        return Call(function=Function.COALESCE, arguments=(count, Literal(value=-1, type=pa.int32())), type=pa.int32())

    def _joined(self, node: Node) -> Expression:
        """Translate ``concat_ws`` of one array, which takes null for no text."""
        separator, *arrays = node.children
        if len(arrays) != 1 or separator.name != "Literal" or separator.fields["@value"] is None:
            raise NotTranslatableError(f"{node} of several arrays is not computed here")
        operands = (self(arrays[0]), self(separator))
        joined = Call(function=Function.ARRAY_JOIN, arguments=operands, type=pa.string())
        nothing = Literal(value="", type=pa.string())
        return Call(function=Function.COALESCE, arguments=(joined, nothing), type=pa.string())

    def _pad(self, node: Node) -> Expression:
        """Translate a column of type ``CHAR``, which Spark pads with spaces when it reads it."""
        text, width = map(self, node.children)
        length = Call(function=Function.LENGTH, arguments=(text,), type=pa.int32())
        shorter = Call(function=Function.LT, arguments=(length, width), type=pa.bool_())
        space = Literal(value=" ", type=pa.string())
        filled = Call(function=Function.RPAD, arguments=(text, width, space), type=pa.string())
        return Case(conditions=(shorter,), values=(filled,), otherwise=text, type=pa.string())

    def _at_least(self, node: Node) -> Expression:
        """Translate the condition of ``dropna``: so many operands are neither null nor NaN."""
        present = [self._is_present(self(child)) for child in node.children]
        unit, nothing = (Literal(value=number, type=pa.int32()) for number in (1, 0))
        total: Expression = nothing
        for condition in present:
            counted = Case(conditions=(condition,), values=(unit,), otherwise=nothing, type=pa.int32())
            total = Call(function=Function.ADD, arguments=(total, counted), type=pa.int32())
        least = Literal(value=int(node.fields["n"]), type=pa.int32())
        return Call(function=Function.GE, arguments=(total, least), type=pa.bool_())

    def _is_present(self, value: Expression) -> Expression:
        there = Call(function=Function.IS_NOT_NULL, arguments=(value,), type=pa.bool_())
        if value.type is None or not is_float(value.type):
            return there
        no_number = Literal(value=math.nan, type=value.type)
        different = Call(function=Function.NE, arguments=(value, no_number), type=pa.bool_())
        return Call(function=Function.AND, arguments=(there, different), type=pa.bool_())

    def _in_nothing(self, node: Node) -> Expression:
        """Translate ``IN`` of no values: false; or, as settings may have it, null where the operand is null.

        The settings are those of when the query runs: Spark makes the expression anew where it binds it to columns.
        """
        nothing = Literal(value=False, type=pa.bool_())
        conf = node.reading.conf
        not_ansi = "false" if conf.get(_ANSI, "true").lower() == "true" else "true"
        if conf.get(_NULL_IN_NOTHING, not_ansi).lower() != "true":
            return nothing
        value = self(node.children[0])
        null = Call(function=Function.IS_NULL, arguments=(value,), type=pa.bool_())
        unknown = Literal(value=None, type=pa.bool_())
        return Case(conditions=(null,), values=(unknown,), otherwise=nothing, type=pa.bool_())

    def _element(self, node: Node) -> Expression:
        """Translate an element of an array or a map, and ``split_part``, which Spark writes as one of all parts."""
        array, number = node.children
        if array.name == "StringSplitSQL":
            return self._part(node)
        if node.fields.get("defaultValueOutOfBound") is not None:
            raise NotTranslatableError(f"{node} with a default is not computed here")
        function = Function.MAP_VALUE if isinstance(array.data_type, t.MapType) else Function.ELEMENT_AT
        result = arrow_of(node.data_type)
        return Call(function=function, arguments=(self(array), self(number)), mode=node.eval_mode, type=result)

    def _field(self, node: Node) -> Expression:
        """Translate a field of a struct, or of each struct in an array, which Spark takes by position.

        It gets the name that it has in the type of the translated operand.
        """
        value = self(node.children[0])
        assert value.type is not None
        struct = value.type if node.name == "GetStructField" else value.type.value_type
        name = struct.field(int(node.fields["ordinal"])).name
        if [field.name for field in struct].count(name) > 1:
            raise NotTranslatableError(f"{node}: {node.children[0]} has several fields {name!r}")
        operands = (value, Literal(value=name, type=pa.string()))
        return Call(function=BY_CLASS[node.name].function, arguments=operands, type=arrow_of(node.data_type))

    def _normalized(self, node: Node) -> Expression:
        """Translate what makes zeros one, and NaNs."""
        value = self(node.children[0])
        zero = Literal(value=0.0, type=value.type)
        return Call(function=Function.ADD, arguments=(value, zero), type=value.type)

    def _part(self, node: Node) -> Expression:
        """Translate ``split_part``."""
        array, number = node.children
        default = node.fields.get("defaultValueOutOfBound")
        outside = node.reading.tree(default) if isinstance(default, list) else None
        if array.name != "StringSplitSQL" or outside is None or outside.fields.get("@value") != "":
            raise NotTranslatableError(f"{node} is not computed here")
        operands = (*map(self, array.children), self(number))
        return Call(function=Function.SPLIT_PART, arguments=operands, type=arrow_of(node.data_type))


def _case(name: str, operands: list[Expression], result: pa.DataType) -> Expression:
    nothing = Literal(value=None, type=result)
    if name == "NullIfResult":
        return Case(conditions=(operands[0],), values=(nothing,), otherwise=operands[1], type=result)
    otherwise = operands.pop() if len(operands) % 2 else nothing
    return Case(conditions=tuple(operands[0::2]), values=tuple(operands[1::2]), otherwise=otherwise, type=result)


def _members(node: Node) -> list[Literal]:
    """The values of an ``InSet``, which are no operands of it."""
    dtype = node.children[0].data_type
    arrow = arrow_of(dtype)
    try:
        return [Literal(value=python_value(dtype, value), type=arrow) for value in node.fields["@values"]]
    except OverflowError:
        raise NotTranslatableError(f"{node} has a date before the year 1 or after 9999") from None


def _literal(node: Node) -> Literal:
    dtype = node.data_type
    try:
        return Literal(value=python_value(dtype, node.fields["@value"]), type=arrow_of(dtype))
    except OverflowError:
        raise NotTranslatableError(f"{node} has a date before the year 1 or after 9999") from None


_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def subquery_in(node: Node) -> Node | None:
    """Give the scalar subquery that a node is, or takes a field of.

    Spark makes one subquery of several over the same rows; it gives a struct with the value of each.
    """
    value = node.children[0] if node.name == "GetStructField" else node
    return value if value.name == "ScalarSubquery" else None


def refuse_replaced(value: Any) -> None:
    """Refuse a string in which invalid UTF-8 may have been replaced on its way through text.

    Raises ``NotTranslatableError`` if the string has U+FFFD, which stands for invalid bytes there, or for itself.
    """
    if isinstance(value, str) and _REPLACEMENT in value:
        raise NotTranslatableError("a string value has U+FFFD, or bytes that are not valid UTF-8")


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
        raise NotTranslatableError(f"{node} is not understood")
    return kind


def refuse_collation(node: Node) -> None:
    """Refuse a string that is not compared by bytes, by ``NotTranslatableError`` with its type."""
    if "collate" in node.type_name.lower():
        raise NotTranslatableError(f"{node} has type {node.type_name}; only strings compared by bytes are covered")


def refuse_zones(node: Node) -> None:
    """Refuse conversions between timestamps with a zone and anything else, by ``NotTranslatableError``.

    They depend on the session's time zone.
    """
    if any(isinstance(kind, t.TimestampType) for kind in _kinds(node)) and len({type(k) for k in _kinds(node)}) > 1:
        raise NotTranslatableError(f"{node} depends on the session's time zone")


def _kinds(node: Node) -> list[t.DataType]:
    return [*(child.data_type for child in node.children), node.data_type]


def _of_timestamps(node: Node) -> bool:
    return any(isinstance(kind, t.TimestampType) for kind in _kinds(node))


def _converts_clocks(cast: Node) -> bool:
    """Whether a cast goes between timestamps with a zone and local times: dates, texts, other timestamps."""
    source, target = _kinds(cast)
    if source == target:
        return False
    plain = not any(isinstance(kind, (t.StructType, t.ArrayType, t.MapType)) for kind in (source, target))
    numbers = (t.NumericType, t.BooleanType, t.NullType)
    if plain and any(isinstance(kind, numbers) for kind in (source, target)):
        return False
    return any('"timestamp"' in kind.json() for kind in (source, target))


_CLOCKS = frozenset({t.TimestampType, t.TimestampNTZType, t.DateType, t.StringType})
"""Types between which casts go by the session's clock."""
_OF_THEIR_OWN: dict[str, Callable[[ExpressionReader, Node], Expression]] = {
    "ElementAt": ExpressionReader._element,  # noqa: SLF001
    "Size": ExpressionReader._size,  # noqa: SLF001
    "NormalizeNaNAndZero": ExpressionReader._normalized,  # noqa: SLF001
    "AtLeastNNonNulls": ExpressionReader._at_least,  # noqa: SLF001
    "StaticInvoke": ExpressionReader._invoke,  # noqa: SLF001
    "Invoke": ExpressionReader._invoked_on,  # noqa: SLF001
    "GetStructField": ExpressionReader._field,  # noqa: SLF001
    "GetArrayStructFields": ExpressionReader._field,  # noqa: SLF001
}
"""Classes that are no single function here."""
_PATTERNS = frozenset({"DateFormatClass"})


def _refuse_other_seeds(node: Node) -> list[Literal]:
    if int(node.fields["seed"]) != _HASH_SEED:
        raise NotTranslatableError(f"{node} has another seed than {_HASH_SEED}")
    return []


def _refuse_languages(node: Node) -> list[Literal]:
    """Refuse to map case if the JVM's default language has mappings of its own, as Turkish has."""
    language = _language(node.reading.gateway)
    if language in _CASE_LANGUAGES:
        raise NotTranslatableError(f"{node} follows the JVM's language, {language!r}")
    return []


@cached_by_life
def _language(gateway: JvmNames) -> str:
    """Default language of the JVM."""
    return str(gateway.java.util.Locale.getDefault().getLanguage())


def _refuse_intrinsics(node: Node) -> list[Literal]:
    """Refuse functions that the JVM may compute otherwise than ``StrictMath`` does."""
    why = java.other_than_strict(node.reading.gateway)
    if why is not None:
        raise NotTranslatableError(f"{node}: {why}")
    return []


def _refuse_errors(node: Node) -> list[Literal]:
    """Refuse functions that raise errors for malformed text."""
    if node.fields.get("failOnError"):
        raise NotTranslatableError(f"{node} fails for malformed text")
    return []


_ANSI = "spark.sql.ansi.enabled"
_NULL_IN_NOTHING = "spark.sql.legacy.nullInEmptyListBehavior"
_HASH_SEED = 42
"""Seed of ``hash`` and ``xxhash64`` in SQL."""
_CASE_LANGUAGES = frozenset({"az", "el", "hy", "lt", "nl", "tr"})
"""Languages of which Java or ICU maps some characters by rules of their own."""
_TRANSPARENT = frozenset({"KnownNotNull", "KnownNullable", "KnownNotContainsNull", "KnownFloatingPointNormalized"})
_CONDITIONALS = frozenset({"CaseWhen", "If", "NullIfResult"})
_UNSEEN: dict[str, Callable[[Node], list[Literal]]] = {
    "InSet": _members,
    "Like": lambda node: [Literal(value=node.fields["escapeChar"], type=pa.string())],
    **dict.fromkeys(("Murmur3Hash", "XxHash64"), _refuse_other_seeds),
    **dict.fromkeys(("Upper", "Lower", "InitCap"), _refuse_languages),
    **{name: _refuse_intrinsics for function in UNINTRINSIC for name in SPECS[function].classes},
    **dict.fromkeys(("Unhex", "UnBase64"), _refuse_errors),
}
"""Operands that are no children of a node, by its class; or a refusal by what else the node has."""


def covered_expressions() -> tuple[str, ...]:
    """Name the classes of expressions that are covered."""
    return (
        *BY_CLASS,
        *_CONDITIONALS,
        *_TRANSPARENT,
        *(set(dates.TRANSLATIONS) - set(BY_CLASS)),
        *(set(arrays.TRANSLATIONS) - set(BY_CLASS)),
        *intervals.TRANSLATED,
        "Cast",
        *(set(_OF_THEIR_OWN) - set(BY_CLASS)),
        "LambdaFunction",
        "StringSplitSQL",
        "AttributeReference",
        "Literal",
        "ScalarSubquery",
    )
