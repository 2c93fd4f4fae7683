"""Maps made of lists of keys and values, and lists of the entries of maps. All rows are made at once.

A key that is there twice is an error, or its last value counts, in the place of the first::

    keys          values       the last value counts
    [a, b, a]     [1, 2, 3]    {a: 3, b: 2}
    [a]           [null]       {a: null}
    null          [1]          null
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.backends.cpu.expressions.arrays import Lists, codes, is_present, listed, operands_of, spans
from gpujoin.backends.cpu.expressions.implementation import Run, fail
from gpujoin.backends.cpu.expressions.listmaking import structs_of
from gpujoin.backends.cpu.expressions.vector import Mask, Vector, mask_and
from gpujoin.model.expressions import Call, Function, Literal
from gpujoin.model.layouts import in_type

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


FUNCTIONS: dict[Function, Run] = {
    Function.MAP_FROM_ARRAYS: _of_arrays,
    Function.MAP_FROM_ENTRIES: _of_entries,
    Function.MAP_ENTRIES: _entries,
}
