"""Translates functions of arrays and maps whose operands are more than values: lambdas, orders."""

from __future__ import annotations

from itertools import chain

import pyarrow as pa
from pyspark.sql import types as t

from gpujoin.functions import BY_CLASS
from gpujoin.functions.signatures import type_of
from gpujoin.model.expressions import Call, Expression, Function, Literal, Variable
from gpujoin.spark.catalyst.comparators import order_of
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError, Reader, Translation
from gpujoin.spark.catalyst.traits import arrow_of


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


def _variable(_reader: Reader, node: Node) -> Expression:
    """Translate a variable of a lambda."""
    return Variable(name=f"{node.fields['name']}#{node.expr_id}", type=arrow_of(node.data_type))


def _sorted(reader: Reader, node: Node) -> Expression:
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
    every, two = (Literal(value=number, type=pa.int32()) for number in (-1, 2))
    parts = Call(function=Function.SPLIT, arguments=(text, between_pairs, every), type=texts)
    part = Variable(name=f"part#{node.number}", type=string)
    halves = Call(function=Function.SPLIT, arguments=(part, within_pair, two), type=texts)
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


def _folded(reader: Reader, node: Node) -> Expression:
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
    """A map in which a key that is there twice is an error, or its last value counts, as the session has it."""
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
    "ArraySort": _sorted,
    "ZipWith": _zip_with,
    "MapZipWith": _zip_with,
    "StringToMap": _text_map,
    "MapFilter": _of_elements,
    "TransformValues": _of_elements,
    "ArrayAggregate": _folded,
    "ArrayInsert": _with_element,
    "Sequence": _sequence,
    "CreateMap": _map,
    "MapFromArrays": _map_from_arrays,
    "MapFromEntries": _map_from_entries,
    "MapConcat": _map_concat,
    "TransformKeys": _transform_keys,
}
"""Classes whose operands are read in a way of their own."""
