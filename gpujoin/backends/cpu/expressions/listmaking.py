"""Lists made of lists: put together, cut, and compared as sets. All rows are made at once, of the elements of all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.backends.cpu.expressions.arrays import Lists, codes, equal_elements, is_present, listed, operands_of, spans
from gpujoin.backends.cpu.expressions.implementation import Run, fail
from gpujoin.backends.cpu.expressions.vector import Mask, Vector, from_arrow, mask_and, to_arrow
from gpujoin.model.expressions import Call, Function
from gpujoin.model.layouts import in_type

_Indices: TypeAlias = npt.NDArray[np.int64]


def _ranges(starts: _Indices, counts: _Indices) -> _Indices:
    """So many numbers from each start on, one range after the other."""
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))


def _made(
    node: Call, rows: _Indices, length: int, valid: Mask | None, elements: pa.Array, places: _Indices
) -> Vector:  # fmt: skip
    """Lists of the elements at places, given the row of each in ascending order; rows that are null have none."""
    assert node.type is not None
    if valid is not None:
        rows, places = rows[valid[rows]], places[valid[rows]]
    starts, counts = spans(rows, length)
    return Vector(node.type, listed(node.type, Lists(starts, counts, valid, elements), elements, places))


def _together(node: Call, lists: Sequence[Lists]) -> tuple[pa.Array, _Indices, _Indices]:
    """The elements of several lists of each row as one array, and row and place of each, row by row."""
    elements = _of_one_type(node, lists)
    bases = np.cumsum([0, *(len(each.elements) for each in lists)])
    rows = np.concatenate([each.rows for each in lists])
    places = np.concatenate([each.places + base for each, base in zip(lists, bases, strict=False)])
    order = np.argsort(rows, kind="stable")
    return elements, rows[order], places[order]


def _of_one_type(node: Call, lists: Sequence[Lists]) -> pa.Array:
    """The elements of several lists, one list's after the other's, in the type of those of the call's."""
    assert node.type is not None
    return pa.concat_arrays([in_type(each.elements, node.type.value_type) for each in lists])


def _concat(node: Call, operands: list[Vector], length: int) -> Vector:
    lists = [Lists.of(operand) for operand in operands_of(operands, length)]
    valid = reduce(mask_and, (each.valid for each in lists))
    elements, rows, places = _together(node, lists)
    return _made(node, rows, len(lists[0].counts), valid, elements, places)


def _flatten(node: Call, operands: list[Vector], _length: int) -> Vector:
    outer = Lists.of(operands[0])
    inner = Lists.of(from_arrow(outer.elements))
    rows, places = outer.rows, outer.places
    valid = outer.valid
    if inner.valid is not None:
        whole = np.ones(len(outer.counts), np.bool_)
        whole[rows[~inner.valid[places]]] = False
        valid = mask_and(valid, whole)
    counts = inner.counts[places]
    within = _ranges(inner.starts[places], counts)
    return _made(node, np.repeat(rows, counts), len(outer.counts), valid, inner.elements, within)


def _reverse(node: Call, operands: list[Vector], _length: int) -> Vector:
    lists = Lists.of(operands[0])
    rows = lists.rows
    mirrored = (2 * lists.starts + lists.counts - 1)[rows] - lists.places
    return _made(node, rows, len(lists.counts), lists.valid, lists.elements, mirrored)


def _slice(node: Call, operands: list[Vector], length: int) -> Vector:
    values, start, most = operands_of(operands, length)
    lists = Lists.of(values)
    valid = reduce(mask_and, (operand.mask() for operand in (values, start, most)))
    first, count = (operand.values.astype(np.int64) for operand in (start, most))
    present = is_present(valid, len(first))
    if (present & (first == 0)).any():
        fail(node, "there is no element number 0")
    if (present & (count < 0)).any():
        fail(node, "the length is negative")
    begin = np.where(first < 0, first + lists.counts, first - 1)
    inside = present & (begin >= 0) & (begin < lists.counts)
    counts = np.where(inside, np.minimum(count, lists.counts - begin), 0)
    rows = np.repeat(np.arange(len(counts)), counts)
    return _made(node, rows, len(counts), valid, lists.elements, _ranges(lists.starts + begin, counts))


def _remove(node: Call, operands: list[Vector], length: int) -> Vector:
    values, value = operands_of(operands, length)
    lists = Lists.of(values)
    kept = ~equal_elements(lists, value)[1]
    valid = mask_and(lists.valid, value.mask())
    return _made(node, lists.rows[kept], len(lists.counts), valid, lists.elements, lists.places[kept])


def _repeat(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    value, number = operands_of(operands, length)
    valid = number.mask()
    counts = np.maximum(number.values.astype(np.int64), 0)
    counts = counts if valid is None else np.where(valid, counts, 0)
    _check_count(int(counts.sum()))
    rows = np.repeat(np.arange(len(counts)), counts)
    elements = to_arrow(value, node.type.value_type, len(counts))
    return _made(node, rows, len(counts), valid, elements, rows)


def _check_count(count: int) -> None:
    if count > np.iinfo(np.int32).max:
        raise MemoryError(f"{count} values in lists of one Arrow column")


def _insert(*, last: bool) -> Run:
    """Lists with one more element, the last or the first."""

    def run(node: Call, operands: list[Vector], length: int) -> Vector:
        assert node.type is not None
        values, value = operands_of(operands, length)
        lists = Lists.of(values)
        added = to_arrow(value, node.type.value_type, len(lists.counts))
        every = np.arange(len(lists.counts))
        ones = Lists(every, np.ones(len(every), np.int64), None, added)
        elements, rows, places = _together(node, [lists, ones] if last else [ones, lists])
        return _made(node, rows, len(every), lists.valid, elements, places)

    return run


def numbered(lists: Sequence[Lists]) -> list[tuple[_Indices, _Indices]]:
    """The elements of each list as integers that are equal where elements of a row are, negative for nulls."""
    taken = [codes(each.elements.take(pa.array(each.places))) for each in lists]
    numbers = pa.concat_arrays([each.cast(taken[0].type) for each in taken]).dictionary_encode().indices
    known = np.asarray(numbers.fill_null(-1)).astype(np.int64)
    size = int(known.max(initial=-1)) + 1
    ends = np.cumsum([len(each) for each in taken])[:-1]
    parts = zip(np.split(known, ends), lists, strict=True)
    return [(np.where(part < 0, ~each.rows, each.rows * size + part), part) for part, each in parts]


def _as_sets(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    left, right = (Lists.of(operand) for operand in operands_of(operands, length))
    valid = mask_and(left.valid, right.valid)
    (left_keys, _), (right_keys, _) = numbered([left, right])
    if node.function is Function.ARRAY_UNION:
        keys = np.concatenate([left_keys, right_keys])
        rows = np.concatenate([left.rows, right.rows])
        elements = _of_one_type(node, [left, right])
        places = np.concatenate([left.places, right.places + len(left.elements)])
        kept = np.arange(len(keys))
    else:
        keys, rows, elements, places = left_keys, left.rows, left.elements, left.places
        kept = np.flatnonzero(np.isin(keys, right_keys) == (node.function is Function.ARRAY_INTERSECT))
    _, first = np.unique(keys[kept], return_index=True)
    kept = kept[np.sort(first)]
    kept = kept[np.argsort(rows[kept], kind="stable")]
    return _made(node, rows[kept], len(left.counts), valid, elements, places[kept])


def _overlap(_node: Call, operands: list[Vector], length: int) -> Vector:
    left, right = (Lists.of(operand) for operand in operands_of(operands, length))
    (left_keys, left_codes), (right_keys, right_codes) = numbered([left, right])
    common, unknown = np.zeros(len(left.counts), np.bool_), np.zeros(len(left.counts), np.bool_)
    common[left.rows[np.isin(left_keys, right_keys) & (left_codes >= 0)]] = True
    unknown[left.rows[left_codes < 0]] = True
    unknown[right.rows[right_codes < 0]] = True
    unknown &= (left.counts > 0) & (right.counts > 0)
    return Vector(pa.bool_(), common, mask_and(mask_and(left.valid, right.valid), common | ~unknown))


def zipped(lists: Sequence[Lists]) -> tuple[_Indices, Mask | None, list[pa.Array]]:
    """The row of each position that any list has, which rows are not null, and the elements there or nulls."""
    valid = reduce(mask_and, (each.valid for each in lists))
    counts = reduce(np.maximum, (each.counts for each in lists))
    if valid is not None:
        counts = np.where(valid, counts, 0)
    rows = np.repeat(np.arange(len(counts)), counts)
    positions = _ranges(np.zeros(len(counts), np.int64), counts)
    elements = []
    for each in lists:
        absent = positions >= each.counts[rows]
        places = np.where(absent, 0, each.starts[rows] + positions)
        elements.append(each.elements.take(pa.array(places, mask=absent)))
    return rows, valid, elements


def _zip(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    lists = [Lists.of(operand) for operand in operands_of(operands, length)]
    rows, valid, elements = zipped(lists)
    structs = structs_of(elements, node.type.value_type)
    return _made(node, rows, len(lists[0].counts), valid, structs, np.arange(len(rows)))


def structs_of(columns: Sequence[pa.Array], dtype: pa.DataType) -> pa.Array:
    """Structs of columns, cast to the types of the fields."""
    fields = list(dtype)
    typed = [in_type(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(typed, fields=fields)


def _sequence(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    start, stop, *steps = operands_of(operands, length)
    valid = reduce(mask_and, (operand.mask() for operand in (start, stop, *steps)))
    present = is_present(valid, len(start.values))
    first, last = (np.where(present, operand.values, 0).astype(np.int64) for operand in (start, stop))
    step = np.where(present, steps[0].values, 1).astype(np.int64) if steps else np.where(first <= last, 1, -1)
    fits = np.where(step > 0, first <= last, np.where(step < 0, first >= last, first == last))
    if not (fits | ~present).all():
        fail(node, "the step does not lead from the start to the end")
    # As unsigned integers: differences of 64-bit integers take one bit more.
    distance = np.maximum(first, last).view(np.uint64) - np.minimum(first, last).view(np.uint64)
    steps_taken = distance // np.where(step == 0, 1, np.abs(step)).view(np.uint64)
    _check_count(int(steps_taken.max(initial=0)))
    counts = np.where(present, steps_taken.astype(np.int64) + 1, 0)
    _check_count(int(counts.sum()))
    rows = np.repeat(np.arange(len(counts)), counts)
    values = first[rows] + step[rows] * _ranges(np.zeros(len(counts), np.int64), counts)
    kind = node.type.value_type
    whole = values.astype(np.int32) if kind.bit_width == 32 else values
    elements = pa.array(whole).cast(kind)
    return _made(node, rows, len(counts), valid, elements, np.arange(len(rows)))


FUNCTIONS: dict[Function, Run] = {
    Function.CONCAT_LISTS: _concat,
    Function.FLATTEN: _flatten,
    Function.REVERSE_LIST: _reverse,
    Function.SLICE: _slice,
    Function.ARRAY_REMOVE: _remove,
    Function.ARRAY_REPEAT: _repeat,
    Function.ARRAY_APPEND: _insert(last=True),
    Function.ARRAY_PREPEND: _insert(last=False),
    Function.ARRAY_UNION: _as_sets,
    Function.ARRAY_INTERSECT: _as_sets,
    Function.ARRAY_EXCEPT: _as_sets,
    Function.ARRAYS_OVERLAP: _overlap,
    Function.ARRAYS_ZIP: _zip,
    Function.SEQUENCE: _sequence,
}
