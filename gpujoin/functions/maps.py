"""Maps made of lists and of structs, and their entries."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.functions.elements import Lists, check_count, equality_codes
from gpujoin.functions.implementation import fail, operands_of
from gpujoin.functions.kinds import has_floats, is_alike, is_written
from gpujoin.functions.signatures import Signature, type_of, typed, types_of
from gpujoin.functions.spec import FunctionSpec, Raises
from gpujoin.functions.structs import structs_of
from gpujoin.functions.vector import Vector, mask_and
from gpujoin.model.expressions import Call, Function, Literal
from gpujoin.model.layouts import in_type
from gpujoin.model.types import is_list


def _resolve_entries(node: Call) -> Call | None:
    dtype = types_of(node)[0]
    if not pat.is_map(dtype):
        return None
    return typed(node, pa.list_(pa.struct([("key", dtype.key_type), ("value", dtype.item_type)])))


def _map_of_lists(node: Call) -> Call | None:
    keys, values = types_of(node)[:2]
    return typed(node, pa.map_(keys.value_type, values.value_type)) if is_list(keys) and is_list(values) else None


def _accepts_keys_and_values(node: Call) -> bool:
    keys, values = types_of(node)[:2]
    return is_list(keys) and is_list(values) and _makes_maps(node, keys.value_type, values.value_type)


def _map_of_structs(node: Call) -> Call | None:
    pair = _pair_type(node)
    return typed(node, pa.map_(*pair)) if len(pair) == 2 else None


def _pair_type(node: Call) -> tuple[pa.DataType, ...]:
    """Types of both fields of the structs in a list; none for other types."""
    dtype = types_of(node)[0]
    is_listed = is_list(dtype) and pat.is_struct(dtype.value_type)
    return tuple(field.type for field in dtype.value_type) if is_listed else ()


def _accepts_pairs(node: Call) -> bool:
    pair = _pair_type(node)
    return len(pair) == 2 and _makes_maps(node, *pair)


def _makes_maps(node: Call, key: pa.DataType, value: pa.DataType) -> bool:
    """Whether a map of such keys and values is made here. Of keys with floats Spark makes others: zeros are one."""
    dtype = node.type
    fits = dtype is None or (pat.is_map(dtype) and is_alike(dtype.key_type, key) and is_alike(dtype.item_type, value))
    told_apart = is_written(key, compared=True) and not has_floats(key) and not pat.is_null(key)
    last_wins = node.arguments[-1]
    return fits and told_apart and isinstance(last_wins, Literal) and isinstance(last_wins.value, bool)


def _has_different_keys(node: Call) -> bool:
    """Whether the keys are a list of distinct constants."""
    keys = node.arguments[0]
    if not isinstance(keys, Call) or keys.function is not Function.ARRAY:
        return False
    values = [key.value for key in keys.arguments if isinstance(key, Literal) and key.value is not None]
    texts_or_numbers = all(isinstance(value, str | int) for value in values)
    return len(values) == len(keys.arguments) and texts_or_numbers and len(set(values)) == len(values)


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


def maps_of(dtype: pa.DataType, keys: Lists, items: pa.Array) -> Vector:
    """Maps of the keys of each row, and of the values beside them."""
    check_count(len(keys.elements))
    offsets = pa.array(keys.offsets.astype(np.int32))
    absent = None if keys.valid is None else pa.array(~keys.valid)
    parts = in_type(keys.elements, dtype.key_type), in_type(items, dtype.item_type)
    return Vector(dtype, pa.MapArray.from_arrays(offsets, *parts, dtype, mask=absent))


def _of_arrays(node: Call, operands: list[Vector], length: int) -> Vector:
    keys, items = (Lists.from_vector(operand) for operand in operands_of(operands[:2], length))
    valid = mask_and(keys.valid, items.valid)
    keys, items = keys.where_valid(valid), items.where_valid(valid)
    if (keys.counts != items.counts).any():
        fail(node, "there are not as many values as keys")
    return _with_different_keys(node, keys, items.elements)


def _of_entries(node: Call, operands: list[Vector], _length: int) -> Vector:
    entries = Lists.from_vector(operands[0])
    if entries.present is not None:
        entries = entries.where_valid(~entries.has(~entries.present))
    keys, items = (pc.struct_field(entries.elements, [place]) for place in (0, 1))
    return _with_different_keys(node, Lists(entries.offsets, entries.valid, keys), items)


def _with_different_keys(node: Call, keys: Lists, items: pa.Array) -> Vector:
    """Make maps. A repeated key is an error, or has its last value in its first place."""
    last_counts = node.arguments[-1]
    assert isinstance(last_counts, Literal)
    if keys.elements.null_count:
        fail(node, "a key is null")
    first, places = keys.first_equal(equality_codes(keys.elements)), np.arange(len(items))
    if (first != places).any():
        if not last_counts.value:
            fail(node, "a key is there twice")
        last = np.zeros(len(items), np.int64)
        np.maximum.at(last, first, places)
        keys, items = keys.where(first == places), items.take(pa.array(last[first == places]))
    return maps_of(type_of(node), keys, items)


def _entries(node: Call, operands: list[Vector], _length: int) -> Vector:
    keys, items = (Lists.from_vector(operands[0], items=items) for items in (False, True))
    structs = structs_of((keys.elements, items.elements), type_of(node).value_type)
    return Lists(keys.offsets, keys.valid, structs).to_vector(type_of(node))


TABLE = (
    FunctionSpec(
        Function.MAP_ENTRIES, ("MapEntries",),
        Signature(_resolve_entries, lambda node: pat.is_map(types_of(node)[0]), (1, 1)),
        numpy=_entries,
    ),
    FunctionSpec(
        Function.MAP_FROM_ARRAYS, (), Signature(_map_of_lists, _accepts_keys_and_values, (3, 3)),
        raises=Raises.ALWAYS, safe=_has_different_keys,
        numpy=_of_arrays,
    ),
    FunctionSpec(
        Function.MAP_FROM_ENTRIES, (), Signature(_map_of_structs, _accepts_pairs, (2, 2)),
        raises=Raises.ALWAYS,
        numpy=_of_entries,
    ),
)  # fmt: skip
