"""Elements of arrays and maps."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.comparison import alike, comparable, fits_as_bytes, has_floats, is_alike, is_written
from gpujoin.functions.signatures import (
    INT,
    MANY,
    TEXT,
    Signature,
    cast_to,
    over,
    takes,
    type_of,
    typed,
    types_of,
)
from gpujoin.functions.spec import ON_CPU, FunctionSpec, Nulls, Order, Raises
from gpujoin.functions.widening import tightest, wider_of
from gpujoin.model.expressions import Call, EvalMode, Function, Literal, Variable
from gpujoin.model.types import is_bytes, is_float, is_text, is_whole, logical


def _is_list(dtype: pa.DataType) -> bool:
    return bool(pat.is_list(dtype) or pat.is_large_list(dtype))


def _is_listed(node: Call) -> bool:
    return _is_list(types_of(node)[0]) or pat.is_map(types_of(node)[0])


def _indexed(node: Call) -> Call | None:
    values, number = node.arguments
    dtype = type_of(values)
    return typed(node, dtype.value_type) if _is_list(dtype) and is_whole(type_of(number)) else None


def _accepts_index(node: Call) -> bool:
    return _is_list(types_of(node)[0]) and INT.accepts(types_of(node)[1])


def _of_key(node: Call) -> Call | None:
    values, key = node.arguments
    dtype = type_of(values)
    if not pat.is_map(dtype):
        return None
    return typed(node, dtype.item_type, values, cast_to(key, dtype.key_type, node.mode))


def _accepts_key(node: Call) -> bool:
    dtype, key = types_of(node)
    return pat.is_map(dtype) and comparable(logical(dtype.key_type)) and alike([logical(dtype.key_type), key])


def _searched(node: Call) -> Call | None:
    values, value = node.arguments
    dtype = type_of(values)
    if not _is_list(dtype):
        return None
    result = pa.bool_() if node.function is Function.ARRAY_CONTAINS else pa.int64()
    return typed(node, result, values, cast_to(value, dtype.value_type, node.mode))


def _accepts_value(node: Call) -> bool:
    dtype, value = types_of(node)
    if not _is_list(dtype):
        return False
    element = logical(dtype.value_type)
    return fits_as_bytes([element, value]) or (comparable(element) and alike([element, value]))


def _sized(node: Call) -> Call | None:
    return typed(node, pa.int32()) if _is_listed(node) else None


def _part_of_map(node: Call) -> Call | None:
    dtype = type_of(node.arguments[0])
    if not pat.is_map(dtype):
        return None
    return typed(node, pa.list_(dtype.key_type if node.function is Function.MAP_KEYS else dtype.item_type))


def _listed(node: Call) -> Call | None:
    common = _united([type_of(argument) for argument in node.arguments], node.mode)
    return None if common is None else over(node, common, pa.list_(common))


def _united(types: Sequence[pa.DataType], mode: EvalMode) -> pa.DataType | None:
    """The type of values of types that differ in where there may be nulls, and in the case of fields' names."""
    common = wider_of(types, mode, tightest)
    return common if common is not None and all(is_alike(common, dtype) for dtype in types) else None


def _accepts_elements(node: Call) -> bool:
    assert node.type is not None
    return bool(node.arguments) and all(
        pat.is_null(dtype) or is_alike(dtype, logical(node.type.value_type)) for dtype in types_of(node)
    )


def _field_of_each(node: Call) -> Call | None:
    values, name = node.arguments
    dtype = type_of(values)
    if not _is_list(dtype) or not pat.is_struct(dtype.value_type) or not isinstance(name, Literal):
        return None
    return typed(node, pa.list_(dtype.value_type.field(name.value).type))


def _accepts_structs(node: Call) -> bool:
    dtype = types_of(node)[0]
    return _is_list(dtype) and pat.is_struct(dtype.value_type)


def _same_list(node: Call) -> Call | None:
    dtype = type_of(node.arguments[0])
    return typed(node, dtype) if _is_list(dtype) else None


def _joined_list(node: Call) -> Call | None:
    types = [type_of(argument) for argument in node.arguments]
    common = _united(types, node.mode) if all(map(_is_list, types)) else None
    return over(node, common)


def _one_more(node: Call) -> Call | None:
    values, value = map(type_of, node.arguments)
    element = _united([values.value_type, value], node.mode) if _is_list(values) else None
    return None if element is None else typed(node, pa.list_(element))


def _element(node: Call) -> Call | None:
    dtype = type_of(node.arguments[0])
    return typed(node, dtype.value_type) if _is_list(dtype) else None


def _accepts_ordered(node: Call) -> bool:
    dtype = types_of(node)[0]
    constants = all(isinstance(argument, Literal) and argument.value is not None for argument in node.arguments[1:])
    return _is_list(dtype) and is_written(dtype.value_type, compared=True) and constants


def _accepts_told_apart(node: Call) -> bool:
    """As :func:`_accepts_ordered`, without floats: of zeros and NaNs Spark makes more than one thing."""
    dtype = types_of(node)[0]
    floats = has_floats if node.function is Function.ARRAY_DISTINCT else is_float
    return _accepts_ordered(node) and not floats(dtype.value_type)


def _joined(node: Call) -> Call | None:
    return typed(node, pa.string()) if _accepts_texts(node) else None


def _accepts_texts(node: Call) -> bool:
    dtype, *others = types_of(node)
    return _is_list(dtype) and is_text(dtype.value_type) and all(map(is_text, others))


def _struct(node: Call) -> Call | None:
    names = [argument.value if isinstance(argument, Literal) else None for argument in node.arguments[::2]]
    if not all(isinstance(name, str) for name in names) or len(names) != len(node.arguments[1::2]):
        return None
    fields = zip(names, map(type_of, node.arguments[1::2]), strict=True)
    return typed(node, pa.struct(list(fields)))


def _accepts_fields(node: Call) -> bool:
    values = [logical(type_of(argument)) for argument in node.arguments[1::2]]
    assert node.type is not None
    fields = [logical(field.type) for field in node.type]
    return len(node.arguments) == 2 * len(fields) and all(map(is_alike, values, fields))


def _of_elements(node: Call) -> Call | None:
    array, body = map(type_of, node.arguments[:2])
    if not _is_list(array):
        return None
    match node.function:
        case Function.TRANSFORM:
            return typed(node, pa.list_(body))
        case Function.FILTER:
            return typed(node, array)
    return typed(node, pa.bool_())


def _accepts_lambda(node: Call) -> bool:
    array, body = types_of(node)[:2]
    named = all(isinstance(argument, Variable) for argument in node.arguments[2:])
    return _is_list(array) and named and (node.function is Function.TRANSFORM or pat.is_boolean(body))


def _as_bytes(node: Call) -> Call | None:
    return typed(node, pa.binary()) if _accepts_written(node) else None


def _accepts_written(node: Call) -> bool:
    dtype = type_of(node.arguments[0])
    return pat.is_nested(dtype) and is_written(dtype, compared=node.function is not Function.VALUE_BYTES)


def _accepts_bytes(node: Call) -> bool:
    return is_bytes(types_of(node)[0]) and node.type is not None and is_written(node.type)


def _accepts_lists(node: Call) -> bool:
    types = types_of(node)
    return bool(types) and _is_list(types[0]) and all(is_alike(types[0], dtype) for dtype in types)


def _accepts_sets(node: Call) -> bool:
    dtype = types_of(node)[0]
    return _accepts_lists(node) and is_written(dtype.value_type, compared=True) and not has_floats(dtype)


def _overlaps(node: Call) -> Call | None:
    return typed(node, pa.bool_()) if _is_list(types_of(node)[0]) else None


def _flattened(node: Call) -> Call | None:
    dtype = types_of(node)[0]
    return typed(node, dtype.value_type) if _is_list(dtype) and _is_list(dtype.value_type) else None


def _accepts_lists_of_lists(node: Call) -> bool:
    dtype = types_of(node)[0]
    return _is_list(dtype) and _is_list(dtype.value_type)


def _accepts_slice(node: Call) -> bool:
    dtype, *numbers = types_of(node)
    return _is_list(dtype) and all(map(pat.is_int32, numbers))


def _never_fails(node: Call) -> bool:
    """Whether ``slice`` has constants of which it takes a part."""
    start, length = (a.value if isinstance(a, Literal) else None for a in node.arguments[1:])
    return isinstance(start, int) and isinstance(length, int) and start != 0 and length >= 0


def _accepts_element(node: Call) -> bool:
    dtype, value = types_of(node)
    return _is_list(dtype) and is_alike(dtype.value_type, value)


def _repeated(node: Call) -> Call | None:
    value, number = node.arguments
    return typed(node, pa.list_(type_of(value))) if is_whole(type_of(number)) else None


def _accepts_number(node: Call) -> bool:
    return pat.is_int32(types_of(node)[1])


def _zipped(node: Call) -> Call | None:
    types = types_of(node)
    if not all(map(_is_list, types)):
        return None
    return typed(node, pa.list_(pa.struct([(str(n), dtype.value_type) for n, dtype in enumerate(types)])))


def _accepts_zipped(node: Call) -> bool:
    return all(map(_is_list, types_of(node)))


def _entries(node: Call) -> Call | None:
    dtype = types_of(node)[0]
    if not pat.is_map(dtype):
        return None
    return typed(node, pa.list_(pa.struct([("key", dtype.key_type), ("value", dtype.item_type)])))


def _map_of_lists(node: Call) -> Call | None:
    keys, values = types_of(node)[:2]
    return typed(node, pa.map_(keys.value_type, values.value_type)) if _is_list(keys) and _is_list(values) else None


def _accepts_keys_and_values(node: Call) -> bool:
    keys, values = types_of(node)[:2]
    return _is_list(keys) and _is_list(values) and _is_made(node, keys.value_type, values.value_type)


def _map_of_structs(node: Call) -> Call | None:
    pair = _pair_type(node)
    return typed(node, pa.map_(*pair)) if len(pair) == 2 else None


def _pair_type(node: Call) -> tuple[pa.DataType, ...]:
    """Types of the fields of the structs in a list; none if it is none."""
    dtype = types_of(node)[0]
    is_listed = _is_list(dtype) and pat.is_struct(dtype.value_type)
    return tuple(field.type for field in dtype.value_type) if is_listed else ()


def _accepts_pairs(node: Call) -> bool:
    pair = _pair_type(node)
    return len(pair) == 2 and _is_made(node, *pair)


def _is_made(node: Call, key: pa.DataType, value: pa.DataType) -> bool:
    """Whether a map of such keys and values is made here. Of keys with floats Spark makes others: zeros are one."""
    made = node.type
    fits = made is None or (pat.is_map(made) and is_alike(made.key_type, key) and is_alike(made.item_type, value))
    told_apart = is_written(key, compared=True) and not has_floats(key) and not pat.is_null(key)
    chosen = node.arguments[-1]
    return fits and told_apart and isinstance(chosen, Literal) and isinstance(chosen.value, bool)


def _has_different_keys(node: Call) -> bool:
    """Whether the keys are a list of constants of which no two are equal."""
    keys = node.arguments[0]
    if not isinstance(keys, Call) or keys.function is not Function.ARRAY:
        return False
    values = [key.value for key in keys.arguments if isinstance(key, Literal) and key.value is not None]
    texts_or_numbers = all(isinstance(value, str | int) for value in values)
    return len(values) == len(keys.arguments) and texts_or_numbers and len(set(values)) == len(values)


def _ranged(node: Call) -> Call | None:
    dtype = types_of(node)[0]
    return typed(node, pa.list_(dtype)) if is_whole(dtype) or pat.is_date32(dtype) else None


def _accepts_range(node: Call) -> bool:
    first, last, *steps = types_of(node)
    if pat.is_date32(first):
        return first == last and all(map(pat.is_int32, steps))
    return is_whole(first) and all(dtype == first for dtype in (last, *steps))


def _accepts_zip(node: Call) -> bool:
    named = all(isinstance(argument, Variable) for argument in node.arguments[3:])
    return all(map(_is_list, types_of(node)[:2])) and named


def _zip_of(node: Call) -> Call | None:
    types = types_of(node)
    return typed(node, pa.list_(types[2])) if all(map(_is_list, types[:2])) else None


def _map_zip_of(node: Call) -> Call | None:
    first, second, body = types_of(node)[:3]
    return typed(node, pa.map_(first.key_type, body)) if pat.is_map(first) and pat.is_map(second) else None


def _accepts_map_zip(node: Call) -> bool:
    first, second = types_of(node)[:2]
    named = all(isinstance(argument, Variable) for argument in node.arguments[3:])
    if not named or not pat.is_map(first) or not pat.is_map(second):
        return False
    key = first.key_type
    return is_alike(key, second.key_type) and is_written(key, compared=True) and not has_floats(key)


def _accepts_sort_key(node: Call) -> bool:
    array, key, *_ = types_of(node)
    element, *options = node.arguments[2:]
    constants = all(isinstance(option, Literal) for option in options)
    return _is_list(array) and isinstance(element, Variable) and constants and is_written(key, compared=True)


def _of_map_entries(node: Call) -> Call | None:
    dtype, body = types_of(node)[:2]
    if not pat.is_map(dtype):
        return None
    filtered = node.function is Function.MAP_FILTER
    return typed(node, dtype if filtered else pa.map_(dtype.key_type, body))


def _accepts_map_lambda(node: Call) -> bool:
    dtype, body = types_of(node)[:2]
    named = all(isinstance(argument, Variable) for argument in node.arguments[2:])
    return pat.is_map(dtype) and named and (node.function is Function.TRANSFORM_VALUES or pat.is_boolean(body))


def _folded(node: Call) -> Call | None:
    types = types_of(node)
    return typed(node, types[5]) if _is_list(types[0]) else None


def _accepts_fold(node: Call) -> bool:
    types = types_of(node)
    variables = (node.arguments[3], node.arguments[4], node.arguments[6])
    named = all(isinstance(variable, Variable) for variable in variables)
    return _is_list(types[0]) and is_alike(types[1], types[2]) and named


_F = Function
_ELEMENTS = Signature(_of_elements, _accepts_lambda, (3, 4))
_QUANTIFIED = Signature(_of_elements, _accepts_lambda, (3, 3))
_MAP_PART = Signature(_part_of_map, lambda node: pat.is_map(types_of(node)[0]), (1, 1))
_EXTREME = Signature(_element, _accepts_ordered, (1, 1))
_BYTES = Signature(_as_bytes, _accepts_written, (1, 1))
_JOINED_LISTS = Signature(_joined_list, _accepts_lists, (1, MANY))
_SETS = Signature(_joined_list, _accepts_sets)
_ADDED = Signature(_one_more, _accepts_element)
_MAPPED = Signature(_of_map_entries, _accepts_map_lambda, (4, 4))
_SORTED_BY = Signature(_same_list, _accepts_sort_key, (5, 5))
_MAP_ZIP = Signature(_map_zip_of, _accepts_map_zip, (6, 6))
_SEARCH = Signature(_searched, _accepts_value)

TABLE = (
    FunctionSpec(
        _F.GET_ITEM, ("GetArrayItem",), Signature(_indexed, _accepts_index),
        raises=Raises.ANSI, lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.ELEMENT_AT, (), Signature(_indexed, _accepts_index), raises=Raises.ALWAYS, lacks=ON_CPU
    ),
    FunctionSpec(_F.MAP_VALUE, ("GetMapValue",), Signature(_of_key, _accepts_key), lacks=ON_CPU),
    FunctionSpec(_F.SIZE, (), Signature(_sized, _is_listed, (1, 1)), lacks=ON_CPU),
    FunctionSpec(
        _F.ARRAY, ("CreateArray",), Signature(_listed, _accepts_elements, (1, MANY)), nulls=Nulls.READ, lacks=ON_CPU
    ),
    FunctionSpec(_F.ARRAY_CONTAINS, ("ArrayContains",), _SEARCH, lacks=ON_CPU),
    FunctionSpec(_F.ARRAY_POSITION, ("ArrayPosition",), _SEARCH, lacks=ON_CPU),
    FunctionSpec(
        _F.SORT_ARRAY, ("SortArray",), Signature(_same_list, _accepts_told_apart, (1, 2)), lacks=ON_CPU
    ),
    FunctionSpec(_F.ARRAY_SORT, ("ArraySort",), Signature(_same_list, _accepts_ordered, (1, 1)), lacks=ON_CPU),
    FunctionSpec(_F.ARRAY_SORT_BY, (), _SORTED_BY, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.ARRAY_MIN, ("ArrayMin",), _EXTREME, lacks=ON_CPU),
    FunctionSpec(_F.ARRAY_MAX, ("ArrayMax",), _EXTREME, lacks=ON_CPU),
    FunctionSpec(
        _F.ARRAY_DISTINCT, ("ArrayDistinct",), Signature(_same_list, _accepts_told_apart, (1, 1)),
        lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.ARRAY_JOIN, ("ArrayJoin",), Signature(_joined, _accepts_texts, (2, 3)), lacks=ON_CPU
    ),
    FunctionSpec(
        _F.NAMED_STRUCT, ("CreateNamedStruct",), Signature(_struct, _accepts_fields, (2, MANY)),
        nulls=Nulls.READ, lacks=ON_CPU,
    ),
    FunctionSpec(_F.CONCAT_LISTS, (), _JOINED_LISTS, order=Order.ALL, lacks=ON_CPU),
    FunctionSpec(
        _F.FLATTEN, ("Flatten",), Signature(_flattened, _accepts_lists_of_lists, (1, 1)), lacks=ON_CPU
    ),
    FunctionSpec(_F.REVERSE_LIST, (), Signature(_same_list, _accepts_lists, (1, 1)), lacks=ON_CPU),
    FunctionSpec(
        _F.SLICE, ("Slice",), Signature(_same_list, _accepts_slice, (3, 3)),
        raises=Raises.ALWAYS, safe=_never_fails, lacks=ON_CPU,
    ),
    FunctionSpec(_F.ARRAY_REMOVE, ("ArrayRemove",), Signature(_same_list, _accepts_value), lacks=ON_CPU),
    FunctionSpec(
        _F.ARRAY_REPEAT, ("ArrayRepeat",), Signature(_repeated, _accepts_number),
        nulls=Nulls.READ, lacks=ON_CPU,
    ),
    FunctionSpec(_F.ARRAY_APPEND, (), _ADDED, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.ARRAY_PREPEND, (), _ADDED, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.ARRAY_UNION, ("ArrayUnion",), _SETS, lacks=ON_CPU),
    FunctionSpec(_F.ARRAY_INTERSECT, ("ArrayIntersect",), _SETS, lacks=ON_CPU),
    FunctionSpec(_F.ARRAY_EXCEPT, ("ArrayExcept",), _SETS, lacks=ON_CPU),
    FunctionSpec(_F.ARRAYS_OVERLAP, ("ArraysOverlap",), Signature(_overlaps, _accepts_sets), lacks=ON_CPU),
    FunctionSpec(
        _F.ARRAYS_ZIP, ("ArraysZip",), Signature(_zipped, _accepts_zipped, (1, MANY)), order=Order.ALL, lacks=ON_CPU
    ),
    FunctionSpec(
        _F.MAP_ENTRIES, ("MapEntries",),
        Signature(_entries, lambda node: pat.is_map(types_of(node)[0]), (1, 1)), lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.MAP_FROM_ARRAYS, (),
        Signature(_map_of_lists, _accepts_keys_and_values, (3, 3)),
        raises=Raises.ALWAYS, safe=_has_different_keys, lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.MAP_FROM_ENTRIES, (), Signature(_map_of_structs, _accepts_pairs, (2, 2)),
        raises=Raises.ALWAYS, lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.SEQUENCE, ("Sequence",), Signature(_ranged, _accepts_range, (2, 3)), raises=Raises.ALWAYS, lacks=ON_CPU
    ),
    FunctionSpec(
        _F.ZIP_WITH, ("ZipWith",), Signature(_zip_of, _accepts_zip, (5, 5)),
        nulls=Nulls.READ, lacks=ON_CPU,
    ),
    FunctionSpec(_F.MAP_ZIP_WITH, ("MapZipWith",), _MAP_ZIP, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.MAP_FILTER, ("MapFilter",), _MAPPED, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.TRANSFORM_VALUES, ("TransformValues",), _MAPPED, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(
        _F.AGGREGATE, ("ArrayAggregate",), Signature(_folded, _accepts_fold, (7, 7)),
        nulls=Nulls.READ, lacks=ON_CPU,
    ),
    FunctionSpec(_F.ORDER_BYTES, (), _BYTES, lacks=ON_CPU),
    FunctionSpec(_F.VALUE_BYTES, (), _BYTES, lacks=ON_CPU),
    FunctionSpec(_F.RANKED_BYTES, (), _BYTES, lacks=ON_CPU),
    FunctionSpec(_F.OF_BYTES, (), Signature(lambda _: None, _accepts_bytes, (1, 1)), lacks=ON_CPU),
    FunctionSpec(_F.TRANSFORM, ("ArrayTransform",), _ELEMENTS, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.FILTER, ("ArrayFilter",), _ELEMENTS, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.EXISTS, ("ArrayExists",), _QUANTIFIED, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.FORALL, ("ArrayForAll",), _QUANTIFIED, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.MAP_KEYS, ("MapKeys",), _MAP_PART, lacks=ON_CPU),
    FunctionSpec(_F.MAP_VALUES, ("MapValues",), _MAP_PART, lacks=ON_CPU),
    FunctionSpec(
        _F.GET_FIELDS, ("GetArrayStructFields",), Signature(_field_of_each, _accepts_structs),
        lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.SPLIT, ("StringSplit",), takes(TEXT, TEXT, INT, gives=pa.list_(pa.string()), optional=1), lacks=ON_CPU
    ),
)  # fmt: skip
