"""Maps made of lists and of structs, and their entries."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.functions.implementation import fail
from gpujoin.functions.kinds import has_floats, is_alike, is_written
from gpujoin.functions.lists import Lists, codes, is_list, is_present, listed, operands_of, spans, structs_of
from gpujoin.functions.signatures import Signature, typed, types_of
from gpujoin.functions.spec import FunctionSpec, Raises
from gpujoin.functions.vector import Mask, Vector, mask_and
from gpujoin.model.expressions import Call, Function, Literal
from gpujoin.model.layouts import in_type


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
    return is_list(keys) and is_list(values) and _is_made(node, keys.value_type, values.value_type)


def _map_of_structs(node: Call) -> Call | None:
    pair = _pair_type(node)
    return typed(node, pa.map_(*pair)) if len(pair) == 2 else None


def _pair_type(node: Call) -> tuple[pa.DataType, ...]:
    """Types of the fields of the structs in a list; none if it is none."""
    dtype = types_of(node)[0]
    is_listed = is_list(dtype) and pat.is_struct(dtype.value_type)
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


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


_Indices: TypeAlias = npt.NDArray[np.int64]


def maps_of(
    dtype: pa.DataType, rows: _Indices, length: int, valid: Mask | None, keys: pa.Array, items: pa.Array
) -> Vector:  # fmt: skip
    """Maps of entries, given the row of each in ascending order; rows that are null have none."""
    _, counts = spans(rows, length)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    absent = None if valid is None else pa.array(~valid)
    parts = in_type(keys, dtype.key_type), in_type(items, dtype.item_type)
    return Vector(dtype, pa.MapArray.from_arrays(offsets, *parts, dtype, mask=absent))


def _of_arrays(node: Call, operands: list[Vector], length: int) -> Vector:
    keys, items = (Lists.of(operand) for operand in operands_of(operands[:2], length))
    valid = mask_and(keys.valid, items.valid)
    present = is_present(valid, len(keys.counts))
    if (present & (keys.counts != items.counts)).any():
        fail(node, "there are not as many values as keys")
    rows = keys.rows
    taken = keys.elements.take(_places(keys, present)), items.elements.take(_places(items, present))
    return _told_apart(node, rows[present[rows]], len(present), valid, *taken)


def _places(lists: Lists, present: Mask) -> pa.Array:
    return pa.array(lists.places[present[lists.rows]])


def _of_entries(node: Call, operands: list[Vector], _length: int) -> Vector:
    lists = Lists.of(operands[0])
    rows, structs = lists.rows, lists.elements.take(pa.array(lists.places))
    valid, present = lists.valid, np.ones(len(rows), np.bool_)
    if structs.null_count:
        whole = np.ones(len(lists.counts), np.bool_)
        whole[rows[np.asarray(structs.is_null())]] = False
        valid, present = mask_and(valid, whole), whole[rows]
    taken = structs.filter(pa.array(present))
    keys, items = (pc.struct_field(taken, [place]) for place in (0, 1))
    return _told_apart(node, rows[present], len(lists.counts), valid, keys, items)


def _told_apart(
    node: Call, rows: _Indices, length: int, valid: Mask | None, keys: pa.Array, items: pa.Array
) -> Vector:  # fmt: skip
    """Maps of entries, with one of each key."""
    assert node.type is not None
    last_counts = node.arguments[-1]
    assert isinstance(last_counts, Literal)
    if keys.null_count:
        fail(node, "a key is null")
    numbers = codes(keys).dictionary_encode().indices.to_numpy().astype(np.int64)
    of_rows = rows * (int(numbers.max(initial=0)) + 1) + numbers
    distinct, first, places = np.unique(of_rows, return_index=True, return_inverse=True)
    if len(distinct) < len(rows):
        if not last_counts.value:
            fail(node, "a key is there twice")
        last = np.zeros(len(distinct), np.int64)
        np.maximum.at(last, places, np.arange(len(rows)))
        order = np.argsort(first)
        rows, keys, items = rows[first[order]], keys.take(pa.array(first[order])), items.take(pa.array(last[order]))
    return maps_of(node.type, rows, length, valid, keys, items)


def _entries(node: Call, operands: list[Vector], _length: int) -> Vector:
    assert node.type is not None
    keys, items = (Lists.of(operands[0], items=items) for items in (False, True))
    structs = structs_of((keys.elements, items.elements), node.type.value_type)
    return Vector(node.type, listed(node.type, keys, structs))


_F = Function

TABLE = (
    FunctionSpec(
        _F.MAP_ENTRIES, ("MapEntries",),
        Signature(_resolve_entries, lambda node: pat.is_map(types_of(node)[0]), (1, 1)),
        numpy=_entries,
    ),
    FunctionSpec(
        _F.MAP_FROM_ARRAYS, (), Signature(_map_of_lists, _accepts_keys_and_values, (3, 3)),
        raises=Raises.ALWAYS, safe=_has_different_keys,
        numpy=_of_arrays,
    ),
    FunctionSpec(
        _F.MAP_FROM_ENTRIES, (), Signature(_map_of_structs, _accepts_pairs, (2, 2)),
        raises=Raises.ALWAYS,
        numpy=_of_entries,
    ),
)  # fmt: skip
