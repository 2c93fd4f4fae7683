"""Elements of arrays and maps."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.comparison import alike, comparable
from gpujoin.functions.signatures import INT, MANY, PATTERN, TEXT, Signature, cast_to, takes, type_of, typed, types_of
from gpujoin.functions.spec import ON_CPU, FunctionSpec, Nulls, Raises
from gpujoin.model.expressions import Call, Function, Literal, Variable
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
    return _is_list(dtype) and comparable(logical(dtype.value_type)) and alike([logical(dtype.value_type), value])


def _sized(node: Call) -> Call | None:
    return typed(node, pa.int32()) if _is_listed(node) else None


def _part_of_map(node: Call) -> Call | None:
    dtype = type_of(node.arguments[0])
    if not pat.is_map(dtype):
        return None
    return typed(node, pa.list_(dtype.key_type if node.function is Function.MAP_KEYS else dtype.item_type))


def _listed(node: Call) -> Call | None:
    types = [type_of(argument) for argument in node.arguments]
    return typed(node, pa.list_(types[0])) if len(set(types)) == 1 else None


def _accepts_elements(node: Call) -> bool:
    assert node.type is not None
    return bool(node.arguments) and all(
        pat.is_null(dtype) or dtype == logical(node.type.value_type) for dtype in types_of(node)
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
    return len(node.arguments) == 2 * node.type.num_fields and values == [logical(field.type) for field in node.type]


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


def is_written(dtype: pa.DataType, *, compared: bool = False) -> bool:
    """Whether values of a type, nested or not, are written as bytes; ``compared``: as bytes of the same order."""
    dtype = logical(dtype)
    if pat.is_map(dtype):
        return not compared and all(is_written(part) for part in (dtype.key_type, dtype.item_type))
    if pat.is_struct(dtype) or _is_list(dtype):
        return all(is_written(dtype.field(i).type, compared=compared) for i in range(dtype.num_fields))
    return comparable(dtype) or pat.is_null(dtype)


def has_floats(dtype: pa.DataType) -> bool:
    """Whether there is a floating-point number anywhere in values of a type."""
    if pat.is_nested(dtype):
        return any(has_floats(dtype.field(i).type) for i in range(dtype.num_fields))
    return is_float(dtype)


def _as_bytes(node: Call) -> Call | None:
    return typed(node, pa.binary()) if _accepts_written(node) else None


def _accepts_written(node: Call) -> bool:
    dtype = type_of(node.arguments[0])
    return pat.is_nested(dtype) and is_written(dtype, compared=node.function is Function.ORDER_BYTES)


def _accepts_bytes(node: Call) -> bool:
    return is_bytes(types_of(node)[0]) and node.type is not None and is_written(node.type)


_F = Function
_X = Variable(name="x", type=pa.int32())
_ELEMENTS = Signature(_of_elements, _accepts_lambda, (3, 4), (None, True, _X))
_QUANTIFIED = Signature(_of_elements, _accepts_lambda, (3, 3), (None, True, _X))
_MAP_PART = Signature(_part_of_map, lambda node: pat.is_map(types_of(node)[0]), (1, 1), (None,))
_EXTREME = Signature(_element, _accepts_ordered, (1, 1), (None,))
_BYTES = Signature(_as_bytes, _accepts_written, (1, 1), (None,))
_SEARCH = Signature(_searched, _accepts_value)

TABLE = (
    FunctionSpec(
        _F.GET_ITEM, ("GetArrayItem",), Signature(_indexed, _accepts_index, examples=(None, 0)),
        raises=Raises.ANSI, lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.ELEMENT_AT, (), Signature(_indexed, _accepts_index, examples=(None, 1)), raises=Raises.ALWAYS, lacks=ON_CPU
    ),
    FunctionSpec(_F.MAP_VALUE, ("GetMapValue",), Signature(_of_key, _accepts_key), lacks=ON_CPU),
    FunctionSpec(_F.SIZE, (), Signature(_sized, _is_listed, (1, 1), (None,)), lacks=ON_CPU),
    FunctionSpec(
        _F.ARRAY, ("CreateArray",), Signature(_listed, _accepts_elements, (1, MANY)), nulls=Nulls.READ, lacks=ON_CPU
    ),
    FunctionSpec(_F.ARRAY_CONTAINS, ("ArrayContains",), _SEARCH, lacks=ON_CPU),
    FunctionSpec(_F.ARRAY_POSITION, ("ArrayPosition",), _SEARCH, lacks=ON_CPU),
    FunctionSpec(
        _F.SORT_ARRAY, ("SortArray",), Signature(_same_list, _accepts_told_apart, (1, 2), (None,)), lacks=ON_CPU
    ),
    FunctionSpec(_F.ARRAY_SORT, ("ArraySort",), Signature(_same_list, _accepts_ordered, (1, 1), (None,)), lacks=ON_CPU),
    FunctionSpec(_F.ARRAY_MIN, ("ArrayMin",), _EXTREME, lacks=ON_CPU),
    FunctionSpec(_F.ARRAY_MAX, ("ArrayMax",), _EXTREME, lacks=ON_CPU),
    FunctionSpec(
        _F.ARRAY_DISTINCT, ("ArrayDistinct",), Signature(_same_list, _accepts_told_apart, (1, 1), (None,)),
        lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.ARRAY_JOIN, ("ArrayJoin",), Signature(_joined, _accepts_texts, (2, 3), (None, ",")), lacks=ON_CPU
    ),
    FunctionSpec(
        _F.NAMED_STRUCT, ("CreateNamedStruct",), Signature(_struct, _accepts_fields, (2, MANY), ("a", None)),
        nulls=Nulls.READ, lacks=ON_CPU,
    ),
    FunctionSpec(_F.ORDER_BYTES, (), _BYTES, lacks=ON_CPU),
    FunctionSpec(_F.VALUE_BYTES, (), _BYTES, lacks=ON_CPU),
    FunctionSpec(_F.OF_BYTES, (), Signature(lambda _: None, _accepts_bytes, (1, 1), (None,)), lacks=ON_CPU),
    FunctionSpec(_F.TRANSFORM, ("ArrayTransform",), _ELEMENTS, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.FILTER, ("ArrayFilter",), _ELEMENTS, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.EXISTS, ("ArrayExists",), _QUANTIFIED, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.FORALL, ("ArrayForAll",), _QUANTIFIED, nulls=Nulls.READ, lacks=ON_CPU),
    FunctionSpec(_F.MAP_KEYS, ("MapKeys",), _MAP_PART, lacks=ON_CPU),
    FunctionSpec(_F.MAP_VALUES, ("MapValues",), _MAP_PART, lacks=ON_CPU),
    FunctionSpec(
        _F.GET_FIELDS, ("GetArrayStructFields",), Signature(_field_of_each, _accepts_structs, examples=(None, "a")),
        lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.SPLIT, ("StringSplit",), takes(TEXT, PATTERN, INT, gives=pa.list_(pa.string()), optional=1), lacks=ON_CPU
    ),
)  # fmt: skip
