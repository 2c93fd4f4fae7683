"""Translates functions of arrays and maps whose operands are more than values: lambdas, orders.

Of a comparator of ``array_sort`` it is read by what it orders elements, in which direction, and where nulls go. Such a
comparator is any expression of two elements. One that says no more than an order compares a key of both::

    (l, r) -> case when length(l) > length(r) then -1 when length(l) < length(r) then 1 else 0 end

Each such expression is followed for the six ways in which two keys may be to one another. Here it is negative where the
left key is greater, positive where it is less, and 0 where both are equal or one is null: longest first, and nothing is
said of nulls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import chain

import pyarrow as pa
from pyspark.sql import types as t

from gpujoin.functions import BY_CLASS
from gpujoin.functions.signatures import type_of
from gpujoin.model.expressions import Call, Case, EvalMode, Expression, Function, Literal, Variable
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError, Reader, Translation
from gpujoin.spark.catalyst.traits import MayFail, arrow_of, may_fail


def _of_elements(reader: Reader, node: Node) -> Expression:
    """Translate a function that evaluates a lambda for each element of an array."""
    array, function = node.children
    body, *variables = _lambda(reader, node, function)
    if not node.fields.get("followThreeValuedLogic", True):
        false = Literal(value=False, type=pa.bool_())
        body = Call(function=Function.COALESCE, arguments=(body, false), type=pa.bool_())
    return _call(node, reader(array), body, *variables)


def _lambda(reader: Reader, node: Node, function: Node) -> list[Expression]:
    """The body of a lambda, and its variables."""
    if function.name != "LambdaFunction" or any(v.name != "NamedLambdaVariable" for v in function.children[1:]):
        raise NotTranslatableError(f"{node} is not computed here")
    return [reader(child) for child in function.children]


def _call(node: Node, *arguments: Expression) -> Call:
    return Call(function=BY_CLASS[node.name].function, arguments=arguments, type=arrow_of(node.data_type))


def _elt(reader: Reader, node: Node) -> Expression:
    """Translate ``elt``: the value of a number; where there is none, null or an error."""
    number, *values = map(reader, node.children)
    dtype = arrow_of(node.data_type)
    nothing: Expression = Literal(value=None, type=dtype)
    conditions = [
        Call(function=Function.EQ, arguments=(number, Literal(value=n, type=pa.int32())), type=pa.bool_())
        for n in range(1, len(values) + 1)
    ]
    if not node.fields["failOnError"]:
        return Case(conditions=tuple(conditions), values=tuple(values), otherwise=nothing, type=dtype)
    null = Call(function=Function.IS_NULL, arguments=(number,), type=pa.bool_())
    none = Call(function=Function.ARRAY, arguments=(nothing,), type=pa.list_(dtype))
    outside = Literal(value=-1, type=pa.int32())
    failing = Call(function=Function.GET_ITEM, arguments=(none, outside), mode=EvalMode.ANSI, type=dtype)
    return Case(conditions=(null, *conditions), values=(nothing, *values), otherwise=failing, type=dtype)


def _variable(_reader: Reader, node: Node) -> Expression:
    """Translate a variable of a lambda."""
    return Variable(name=f"{node.fields['name']}#{node.expr_id}", type=arrow_of(node.data_type))


def _sort(reader: Reader, node: Node) -> Expression:
    """Translate ``array_sort``, without a comparator of the query's own or with one that orders by a key."""
    array, function = node.children
    order, dtype = order_of(function, reader), array.data_type
    assert isinstance(dtype, t.ArrayType)
    nulls_last = order.nulls_first is False or not dtype.containsNull
    if order.key.same_as(order.element) and not order.descending and nulls_last:
        return _call(node, reader(array))
    nulls = None if order.nulls_first is None else "first" if order.nulls_first else "last"
    options = Literal(value=order.descending, type=pa.bool_()), Literal(value=nulls, type=pa.string())
    arguments = (reader(array), order.key, order.element, *options)
    return Call(function=Function.ARRAY_SORT_BY, arguments=arguments, type=arrow_of(node.data_type))


def _zip_with(reader: Reader, node: Node) -> Expression:
    first, second, function = node.children
    return _call(node, reader(first), reader(second), *_lambda(reader, node, function))


def _text_map(reader: Reader, node: Node) -> Expression:
    """Translate ``str_to_map``: a map of the halves of the parts of a text."""
    text, between_pairs, within_pair = map(reader, node.children)
    string, texts = pa.string(), pa.list_(pa.string())
    every, at_most_two = (Literal(value=number, type=pa.int32()) for number in (-1, 2))
    parts = Call(function=Function.SPLIT, arguments=(text, between_pairs, every), type=texts)
    part = Variable(name=f"part#{node.number}", type=string)
    halves = Call(function=Function.SPLIT, arguments=(part, within_pair, at_most_two), type=texts)
    pair = pa.struct([("key", string), ("value", string)])
    fields = [
        (
            Literal(value=field.name, type=string),
            Call(function=Function.GET_ITEM, arguments=(halves, Literal(value=n, type=pa.int32())), type=string),
        )
        for n, field in enumerate(pair)
    ]
    struct = Call(function=Function.NAMED_STRUCT, arguments=tuple(chain.from_iterable(fields)), type=pair)
    entries = Call(function=Function.TRANSFORM, arguments=(parts, struct, part), type=pa.list_(pair))
    return _made_map(node, Function.MAP_FROM_ENTRIES, entries)


def _fold(reader: Reader, node: Node) -> Expression:
    """Translate ``aggregate``."""
    array, zero, merge, finish = node.children
    merged, finished = (_lambda(reader, node, function) for function in (merge, finish))
    return _call(node, reader(array), reader(zero), *merged, *finished)


def _with_element(reader: Reader, node: Node) -> Expression:
    """Translate ``array_append`` and ``array_prepend``, which Spark writes as ``array_insert``."""
    array, position, value = node.children
    place = position.fields.get("@value") if position.name == "Literal" else None
    if place not in (1, -1) or (place == -1 and node.fields.get("legacyNegativeIndex")):
        raise NotTranslatableError(f"{node} is not computed here: it inserts neither first nor last")
    function = Function.ARRAY_APPEND if place == -1 else Function.ARRAY_PREPEND
    return Call(function=function, arguments=(reader(array), reader(value)), type=arrow_of(node.data_type))


def _sequence(reader: Reader, node: Node) -> Expression:
    """Translate ``sequence``; a step of dates is a constant interval of whole days."""
    start, stop, *steps = node.children
    operands = [reader(start), reader(stop)]
    if steps and isinstance(start.data_type, t.DateType):
        operands.append(_whole_days(steps[0]))
    else:
        operands += map(reader, steps)
    return _call(node, *operands)


def _whole_days(interval: Node) -> Literal:
    if not isinstance(interval.data_type, t.DayTimeIntervalType) or interval.name != "Literal":
        raise NotTranslatableError(f"{interval} is no constant interval of days")
    micros = interval.fields["@value"]
    if micros is None or int(micros) % _DAY:
        raise NotTranslatableError(f"{interval} is no interval of whole days")
    return Literal(value=int(micros) // _DAY, type=pa.int32())


def _map(reader: Reader, node: Node) -> Expression:
    """Translate ``map``: a list of keys and one of values."""
    dtype, operands = arrow_of(node.data_type), list(map(reader, node.children))
    keys, values = (
        Call(function=Function.ARRAY, arguments=tuple(operands[first::2]), type=pa.list_(part))
        for first, part in enumerate((dtype.key_type, dtype.item_type))
    )
    return _made_map(node, Function.MAP_FROM_ARRAYS, keys, values)


def _map_from_arrays(reader: Reader, node: Node) -> Expression:
    return _made_map(node, Function.MAP_FROM_ARRAYS, *map(reader, node.children))


def _map_from_entries(reader: Reader, node: Node) -> Expression:
    return _made_map(node, Function.MAP_FROM_ENTRIES, reader(node.children[0]))


def _map_concat(reader: Reader, node: Node) -> Expression:
    """Translate ``map_concat``: a map of the entries of all."""
    entries = [_entries(reader(child)) for child in node.children]
    together = Call(function=Function.CONCAT_LISTS, arguments=tuple(entries), type=entries[0].type)
    return _made_map(node, Function.MAP_FROM_ENTRIES, together)


def _entries(maps: Expression) -> Expression:
    dtype = type_of(maps)
    pair = pa.struct([("key", dtype.key_type), ("value", dtype.item_type)])
    return Call(function=Function.MAP_ENTRIES, arguments=(maps,), type=pa.list_(pair))


def _transform_keys(reader: Reader, node: Node) -> Expression:
    """Translate ``transform_keys``: a map of new keys, made of the old ones and the values, to the values."""
    source, function = node.children
    body, *variables = _lambda(reader, node, function)
    maps = reader(source)
    old, values = (
        Call(function=part, arguments=(maps,), type=pa.list_(dtype))
        for part, dtype in (
            (Function.MAP_KEYS, type_of(maps).key_type), (Function.MAP_VALUES, type_of(maps).item_type),
        )
    )  # fmt: skip
    arguments = (old, values, body, *variables)
    keys = Call(function=Function.ZIP_WITH, arguments=arguments, type=pa.list_(type_of(body)))
    return _made_map(node, Function.MAP_FROM_ARRAYS, keys, values)


def _made_map(node: Node, function: Function, *operands: Expression) -> Call:
    """Make a map in which a repeated key is an error, or its last value counts, as the session says."""
    last_counts = node.reading.conf.get(_DEDUP_POLICY, "EXCEPTION").upper() == "LAST_WIN"
    arguments = (*operands, Literal(value=last_counts, type=pa.bool_()))
    return Call(function=function, arguments=arguments, type=arrow_of(node.data_type))


def _of_lists(function: Function) -> Translation:
    """A function of texts and of lists, of lists."""

    def translated(reader: Reader, node: Node) -> Expression:
        return Call(function=function, arguments=tuple(map(reader, node.children)), type=arrow_of(node.data_type))

    return translated


_DAY = 86_400_000_000
"""Microseconds."""
_DEDUP_POLICY = "spark.sql.mapKeyDedupPolicy"
_OF_LISTS: dict[str, Translation] = {
    "Concat": _of_lists(Function.CONCAT_LISTS),
    "Reverse": _of_lists(Function.REVERSE_LIST),
}
"""Classes that are other functions of texts."""


def translation_of(node: Node) -> Translation | None:
    """How a node is translated, if it is in a way of its own."""
    if node.name in _OF_LISTS and isinstance(node.data_type, t.ArrayType):
        return _OF_LISTS[node.name]
    return TRANSLATIONS.get(node.name)


TRANSLATIONS: dict[str, Translation] = {
    "ArrayTransform": _of_elements,
    "ArrayFilter": _of_elements,
    "ArrayExists": _of_elements,
    "ArrayForAll": _of_elements,
    "NamedLambdaVariable": _variable,
    "ArraySort": _sort,
    "ZipWith": _zip_with,
    "MapZipWith": _zip_with,
    "StringToMap": _text_map,
    "MapFilter": _of_elements,
    "TransformValues": _of_elements,
    "ArrayAggregate": _fold,
    "ArrayInsert": _with_element,
    "Sequence": _sequence,
    "CreateMap": _map,
    "MapFromArrays": _map_from_arrays,
    "MapFromEntries": _map_from_entries,
    "MapConcat": _map_concat,
    "TransformKeys": _transform_keys,
    "Elt": _elt,
}
"""Classes whose operands are read in a way of their own."""


class _Relation(Enum):
    """How the key of the left element is to that of the right one."""

    LESS = "less"
    EQUAL = "equal"
    GREATER = "greater"
    LEFT_NULL = "left null"
    RIGHT_NULL = "right null"
    BOTH_NULL = "both null"


_NULL = frozenset({_Relation.LEFT_NULL, _Relation.RIGHT_NULL, _Relation.BOTH_NULL})
_TRUE_FOR = {
    "LessThan": frozenset({_Relation.LESS}),
    "LessThanOrEqual": frozenset({_Relation.LESS, _Relation.EQUAL}),
    "EqualTo": frozenset({_Relation.EQUAL}),
    "GreaterThanOrEqual": frozenset({_Relation.GREATER, _Relation.EQUAL}),
    "GreaterThan": frozenset({_Relation.GREATER}),
}
_MIRRORED = {
    _Relation.LESS: _Relation.GREATER,
    _Relation.GREATER: _Relation.LESS,
}


@dataclass(frozen=True)
class Order:
    """What a comparator of ``array_sort`` orders elements by."""

    key: Expression
    """The sort key, computed of :attr:`element`."""
    element: Variable
    descending: bool
    nulls_first: bool | None
    """Whether elements whose key is null come first; ``None``: the comparator does not say."""


def order_of(function: Node, reader: Callable[[Node], Expression]) -> Order:
    """Give the order of a comparator.

    Raises ``NotTranslatableError`` if it says more than the order of one key.
    """
    body, *variables = function.children
    if function.name != "LambdaFunction" or len(variables) != 2:
        raise NotTranslatableError(f"the comparator {function} is not computed here")
    comparator = _Comparator(function, body, variables, reader)
    less, equal, greater = (comparator.result(way) for way in (_Relation.LESS, _Relation.EQUAL, _Relation.GREATER))
    if (less, greater) not in {(-1, 1), (1, -1)} or equal != 0:
        raise NotTranslatableError(f"the comparator {function} gives no order")
    nulls = tuple(map(comparator.result, (_Relation.BOTH_NULL, _Relation.LEFT_NULL, _Relation.RIGHT_NULL)))
    nulls_first = True if nulls == (0, -1, 1) else False if nulls == (0, 1, -1) else None
    return Order(comparator.key, comparator.element, less == 1, nulls_first)


class _Comparator:
    """A comparator, followed for one relation of the keys after another."""

    def __init__(self, function: Node, body: Node, variables: list[Node], reader: Callable[[Node], Expression]) -> None:
        self._function = function
        self._body = body
        self._reader = reader
        left, right = (reader(variable) for variable in variables)
        assert isinstance(left, Variable)
        assert isinstance(right, Variable)
        self.element = left
        self._other = right.name
        self._ids = {variable.expr_id: place for place, variable in enumerate(variables)}
        self._keys: dict[object, Expression] = {}
        self._places: dict[int, int] = {}

    @property
    def key(self) -> Expression:
        """What is compared of the elements."""
        if len(self._keys) != 1:
            raise NotTranslatableError(f"the comparator {self._function} compares by more than one key")
        return next(iter(self._keys.values()))

    def result(self, relation: _Relation) -> int | None:
        """The sign of what the comparator gives for two elements; ``None`` for null."""
        return self._value(self._body, relation)

    def _value(self, node: Node, relation: _Relation) -> int | None:
        if node.name == "Literal":
            value = node.fields["@value"]
            return None if value is None else (int(value) > 0) - (int(value) < 0)
        if node.name not in ("If", "CaseWhen"):
            raise NotTranslatableError(f"the comparator {self._function} computes {node}")
        operands = list(node.children)
        otherwise = operands.pop() if len(operands) % 2 else None
        for condition, value in zip(operands[0::2], operands[1::2], strict=True):
            if self._truth(condition, relation):
                return self._value(value, relation)
        return None if otherwise is None else self._value(otherwise, relation)

    def _truth(self, node: Node, relation: _Relation) -> bool | None:
        """Evaluate a condition to true or false, or to ``None`` for null."""
        match node.name:
            case "And" | "Or":
                deciding = node.name == "Or"
                truths = [self._truth(child, relation) for child in node.children]
                return deciding if deciding in truths else None if None in truths else not deciding
            case "Not":
                truth = self._truth(node.children[0], relation)
                return None if truth is None else not truth
            case "IsNull" | "IsNotNull":
                place = self._place(node.children[0])
                null = relation in (_Relation.BOTH_NULL, (_Relation.LEFT_NULL, _Relation.RIGHT_NULL)[place])
                return null == (node.name == "IsNull")
        if node.name not in _TRUE_FOR:
            raise NotTranslatableError(f"the comparator {self._function} asks {node}")
        places = tuple(map(self._place, node.children))
        if len(set(places)) < 2:
            raise NotTranslatableError(f"the comparator {self._function} asks {node}")
        if relation in _NULL:
            return None
        return (relation if places == (0, 1) else _MIRRORED.get(relation, relation)) in _TRUE_FOR[node.name]

    def _place(self, operand: Node) -> int:
        """Give the element that an operand reads, and note the operand as a key."""
        if operand.number not in self._places:
            self._places[operand.number] = self._add_key(operand)
        return self._places[operand.number]

    def _add_key(self, operand: Node) -> int:
        variables = {self._ids.get(part.expr_id) for part in operand.walk() if part.name == "NamedLambdaVariable"}
        places = variables - {None}
        if len(places) != 1 or may_fail(operand) is not MayFail.NEVER:
            raise NotTranslatableError(f"the comparator {self._function} asks for {operand}")
        key = self._of_element(self._reader(operand))
        self._keys[key.structure] = key
        return next(place for place in places if place is not None)

    def _of_element(self, node: Expression) -> Expression:
        if isinstance(node, Variable):
            return self.element if node.name == self._other else node
        children = [self._of_element(child) for child in node.children]
        return node.with_children(children) if children else node
