"""Elements of arrays and maps: where the elements of each row begin, and the elements of all rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions.compare import compare
from gpujoin.backends.cpu.expressions.implementation import Run, fail, null_or_raise
from gpujoin.backends.cpu.expressions.nestedbytes import to_bytes
from gpujoin.backends.cpu.expressions.regex import Groups, UnsupportedPatternError, java_to_groups, reads_alike
from gpujoin.backends.cpu.expressions.vector import Mask, Vector, from_arrow, mask_and, to_arrow
from gpujoin.backends.cpu.utf8 import check_utf8
from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.signatures import type_of
from gpujoin.functions.structs import field_position
from gpujoin.model.expressions import Call, Function, Literal
from gpujoin.model.layouts import in_type

_Indices = npt.NDArray[np.int64]
_MARKS = "\x00\x01\x02\x1e\x1f"
"""Characters by which matches are marked, the first that no text has."""
_MOST_GROUPS = 9
"""RE2's replacements name groups by one digit."""


@dataclass(frozen=True)
class Lists:
    """Lists, or one part of the entries of maps."""

    starts: _Indices
    """Index in ``elements`` of the first element of each row."""
    counts: _Indices
    """How many elements a row has: none where it is null."""
    valid: Mask | None
    elements: pa.Array
    """Elements of all rows, one row after the other."""

    @classmethod
    def of(cls, vector: Vector, *, items: bool = False) -> Lists:
        values = vector.values
        offsets = values.offsets.to_numpy().astype(np.int64)
        valid = vector.mask()
        counts = np.diff(offsets)
        if valid is not None:
            counts = np.where(valid, counts, 0)
        if pat.is_map(values.type):
            return cls(offsets[:-1], counts, valid, values.items if items else values.keys)
        return cls(offsets[:-1], counts, valid, values.values)

    @property
    def rows(self) -> _Indices:
        """The row of each element."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def places(self) -> _Indices:
        """Index in ``elements`` of each element that belongs to a row that is not null."""
        return np.repeat(self.starts - (np.cumsum(self.counts) - self.counts), self.counts) + np.arange(
            int(self.counts.sum())
        )

    def taken(self, positions: _Indices, present: Mask) -> Vector:
        """The element at a position of each row, from 0 on; null where there is none."""
        places = np.where(present, self.starts + positions, 0)
        return from_arrow(self.elements.take(pa.array(places, mask=~present)))


def operands_of(operands: list[Vector], length: int) -> list[Vector]:
    """Operands of as many rows; constants alone have one."""
    if all(operand.constant for operand in operands):
        return [Vector(o.dtype, o.values, o.valid) for o in operands]
    return [operand.expand(length) for operand in operands]


def is_present(mask: Mask | None, length: int) -> Mask:
    """Rows that are not null, as a mask in any case."""
    return np.ones(length, np.bool_) if mask is None else mask


def _get_item(node: Call, operands: list[Vector], length: int) -> Vector:
    values, numbers = operands_of(operands, length)
    lists, positions = Lists.of(values), numbers.values.astype(np.int64)
    return _taken(node, lists, positions, mask_and(lists.valid, numbers.mask()))


def _element_at(node: Call, operands: list[Vector], length: int) -> Vector:
    values, numbers = operands_of(operands, length)
    lists, positions = Lists.of(values), numbers.values.astype(np.int64)
    valid = mask_and(lists.valid, numbers.mask())
    # Elements of the array that no position reaches are looked for before the position is.
    reached = np.abs(positions) <= lists.counts
    if (is_present(valid, len(positions)) & reached & (positions == 0)).any():
        fail(node, "there is no element number 0")
    return _taken(node, lists, np.where(positions > 0, positions - 1, lists.counts + positions), valid)


def _taken(node: Call, lists: Lists, positions: _Indices, valid: Mask | None) -> Vector:
    outside = (positions < 0) | (positions >= lists.counts)
    present = is_present(null_or_raise(node, outside, valid, "there is no such element"), len(positions))
    return lists.taken(positions, present)


def equal_elements(lists: Lists, value: Vector) -> tuple[Vector, Mask]:
    """Give the elements of all rows, and which of them equal the value of their row."""
    rows = lists.rows
    elements = from_arrow(lists.elements.take(pa.array(lists.places)))
    equal = compare(Function.EQ, elements, value.take(rows))
    return elements, equal.values & is_present(equal.mask(), len(rows))


def _first_equal(lists: Lists, value: Vector) -> tuple[_Indices, Mask]:
    """Position of each row's first element that is equal to its value, or -1; and which rows have a null element."""
    rows, places = lists.rows, lists.places
    elements, matches = equal_elements(lists, value)
    positions = np.full(len(lists.counts), -1)
    matched = np.flatnonzero(matches)[::-1]
    positions[rows[matched]] = places[matched] - lists.starts[rows[matched]]
    has_null = np.zeros(len(lists.counts), np.bool_)
    has_null[rows[~is_present(elements.mask(), len(rows))]] = True
    return positions, has_null


def _contains(_node: Call, operands: list[Vector], length: int) -> Vector:
    values, value = operands_of(operands, length)
    lists = Lists.of(values)
    positions, has_null = _first_equal(lists, value)
    known = (positions >= 0) | ~has_null
    return Vector(pa.bool_(), positions >= 0, mask_and(mask_and(lists.valid, value.mask()), known))


def _position(_node: Call, operands: list[Vector], length: int) -> Vector:
    values, value = operands_of(operands, length)
    lists = Lists.of(values)
    return Vector(pa.int64(), _first_equal(lists, value)[0] + 1, mask_and(lists.valid, value.mask()))


def _map_value(_node: Call, operands: list[Vector], length: int) -> Vector:
    maps, key = operands_of(operands, length)
    positions, _ = _first_equal(Lists.of(maps), key)
    valid = is_present(mask_and(maps.mask(), key.mask()), len(positions))
    return Lists.of(maps, items=True).taken(positions, valid & (positions >= 0))


def _size(_node: Call, operands: list[Vector], _length: int) -> Vector:
    lists = Lists.of(operands[0])
    return Vector(pa.int32(), lists.counts.astype(np.int32), lists.valid)


def _array(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    rows = 1 if all(operand.constant for operand in operands) else length
    count, element = len(operands), node.type.value_type
    columns = pa.concat_arrays([to_arrow(operand, element, rows) for operand in operands])
    order = np.arange(rows * count).reshape(count, rows).T.ravel()
    offsets = pa.array(np.arange(0, rows * count + 1, count), pa.int32())
    return Vector(node.type, pa.ListArray.from_arrays(offsets, columns.take(pa.array(order)), node.type))


def _map_part(*, items: bool) -> Run:
    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        assert node.type is not None
        lists = Lists.of(operands[0], items=items)
        return Vector(node.type, listed(node.type, lists, lists.elements))

    return run


def _fields(node: Call, operands: list[Vector], _length: int) -> Vector:
    assert node.type is not None
    lists = Lists.of(operands[0])
    position = field_position(node, type_of(node.arguments[0]).value_type)
    return Vector(node.type, listed(node.type, lists, pc.struct_field(lists.elements, [position])))


def listed(dtype: pa.DataType, lists: Lists, elements: pa.Array, places: _Indices | None = None) -> pa.Array:
    """Lists of other elements in the same places, or in others."""
    offsets = np.concatenate([[0], np.cumsum(lists.counts)]).astype(np.int32)
    absent = None if lists.valid is None else pa.array(~lists.valid)
    taken = in_type(elements.take(pa.array(lists.places if places is None else places)), dtype.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets), taken, dtype, mask=absent)


def _sort_array(node: Call, operands: list[Vector], _length: int) -> Vector:
    assert node.type is not None
    values, ascending = operands[0], _constant(node, 1, default=True)
    lists = Lists.of(values)
    order = ordered_places(lists, ascending=ascending, nulls_first=ascending)
    return Vector(node.type, listed(node.type, lists, lists.elements, order))


def _array_sort(node: Call, operands: list[Vector], _length: int) -> Vector:
    assert node.type is not None
    lists = Lists.of(operands[0])
    order = ordered_places(lists, ascending=True, nulls_first=False)
    return Vector(node.type, listed(node.type, lists, lists.elements, order))


def ordered_places(lists: Lists, *, ascending: bool, nulls_first: bool) -> _Indices:
    """Places of the elements, row by row in order; equal ones stay as they are."""
    rows, places = lists.rows, lists.places
    elements = codes(lists.elements.take(pa.array(places)))
    present = np.asarray(elements.is_valid()) == nulls_first
    table = pa.table({"row": rows, "present": pa.array(present), "value": elements})
    way = "ascending" if ascending else "descending"
    order = pc.sort_indices(table, sort_keys=[("row", "ascending"), ("present", "ascending"), ("value", way)])
    return np.asarray(places[order.to_numpy().astype(np.int64)])


def codes(elements: pa.Array) -> pa.Array:
    """Elements as values that Arrow tells apart and orders as Spark does: nested ones and floats as their bytes."""
    if pat.is_nested(elements.type) or pat.is_floating(elements.type):
        return to_bytes(elements, compared=True)
    return elements.cast(pa.int8()) if pat.is_null(elements.type) else elements


def _extreme(*, greatest: bool) -> Run:
    def run(_node: Call, operands: list[Vector], _length: int) -> Vector:
        lists = Lists.of(operands[0])
        rows, places = lists.rows, lists.places
        present = is_present(from_arrow(lists.elements.take(pa.array(places))).mask(), len(rows))
        starts, counts = spans(rows[present], len(lists.counts))
        values = Lists(starts, counts, lists.valid, lists.elements.take(pa.array(places[present])))
        order = ordered_places(values, ascending=not greatest, nulls_first=True)
        ordered = Lists(starts, counts, lists.valid, values.elements.take(pa.array(order)))
        return ordered.taken(np.zeros(len(counts), np.int64), counts > 0)

    return run


def spans(rows: _Indices, length: int) -> tuple[_Indices, _Indices]:
    """First index and number of the elements of each row, from the row of each element in ascending order."""
    counts = np.bincount(rows, minlength=length).astype(np.int64)
    return np.cumsum(counts) - counts, counts


def _distinct(node: Call, operands: list[Vector], _length: int) -> Vector:
    assert node.type is not None
    lists = Lists.of(operands[0])
    rows, places = lists.rows, lists.places
    elements = codes(lists.elements.take(pa.array(places)))
    numbers = pc.fill_null(elements.dictionary_encode().indices, -1).to_numpy()
    _, first = np.unique(np.stack([rows, numbers.astype(np.int64)]), axis=1, return_index=True)
    first.sort()
    starts, counts = spans(rows[first], len(lists.counts))
    kept = Lists(starts, counts, lists.valid, lists.elements.take(pa.array(places[first])))
    return Vector(node.type, listed(node.type, kept, kept.elements))


def _join(_node: Call, operands: list[Vector], length: int) -> Vector:
    values, separator, *replacement = operands_of(operands, length)
    lists = Lists.of(values)
    rows, places = lists.rows, lists.places
    elements = lists.elements.take(pa.array(places))
    if replacement:
        elements = pc.coalesce(elements, replacement[0].values.take(pa.array(rows)))
    present = is_present(from_arrow(elements).mask(), len(rows))
    starts, counts = spans(rows[present], len(lists.counts))
    offsets = pa.array(np.concatenate([starts, [int(counts.sum())]]).astype(np.int32))
    texts = pa.ListArray.from_arrays(offsets, elements.filter(pa.array(present)).cast(pa.string()))
    joined = pc.binary_join(texts, separator.values.cast(pa.string()))
    valid = is_present(reduce(mask_and, (operand.mask() for operand in (values, separator, *replacement))), len(texts))
    return from_arrow(pc.if_else(pa.array(valid), joined, pa.scalar(None, pa.string())))


def _struct(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    fields = list(node.type)
    rows = 1 if all(operand.constant for operand in operands) else length
    columns = [to_arrow(value, field.type, rows) for value, field in zip(operands[1::2], fields, strict=True)]
    return Vector(node.type, pa.StructArray.from_arrays(columns, fields=fields))


def _constant(node: Call, position: int, *, default: bool) -> bool:
    operand = node.arguments[position] if position < len(node.arguments) else Literal(value=default)
    assert isinstance(operand, Literal)
    return bool(operand.value)


def _split(node: Call, operands: list[Vector], _length: int) -> Vector:
    assert node.type is not None
    regex, most = _separator(node)
    text = operands[0].values
    check_utf8(text, node)
    splits = most - 1 if most > 0 else None
    parts = pc.split_pattern_regex(text, regex, max_splits=splits)
    return Vector(node.type, parts.cast(node.type), constant=operands[0].constant)


def _separator(node: Call) -> tuple[str, int]:
    """RE2's pattern of a ``split``, and how many parts there are at most.

    Raises ``UnsupportedPatternError`` if they are no constants, or mean something else in Java.
    """
    pattern, most = (*node.arguments[1:], Literal(value=-1))[:2]
    if not isinstance(pattern, Literal) or not isinstance(most, Literal):
        raise UnsupportedPatternError(f"{pattern}: no constant")
    if not isinstance(pattern.value, str) or not isinstance(most.value, int):
        raise UnsupportedPatternError(f"{pattern}: no constant")
    groups = java_to_groups(pattern.value)
    if groups.least_width == 0 or groups.at_line_end:
        raise UnsupportedPatternError(f"{pattern}: a separator that may be empty")
    return groups.unnamed, most.value


def _extract_all(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Give a group of each match: all matches are marked, and the texts divided at the marks.

    An example, ``regexp_extract_all('a1 b22', '([a-z])([0-9]+)', 2)`` with the mark ``|``::

        a1 b22      |1| |22|      "" 1 " " 22 ""      [1, 22]
    """
    assert node.type is not None
    pattern, group = _pattern_and_group(node)
    text = operands[0].values
    check_utf8(text, node)
    mark = _unused(text, node)
    marked = pc.replace_substring_regex(text, pattern.unnamed, rf"{mark}\{group}{mark}")
    parts = Lists.of(from_arrow(pc.split_pattern(marked, mark)))
    matches = Lists(parts.starts, parts.counts // 2, parts.valid, parts.elements)
    within = matches.places - matches.starts[matches.rows]
    places = matches.starts[matches.rows] + 2 * within + 1
    return Vector(node.type, listed(node.type, matches, parts.elements, places), constant=operands[0].constant)


def _unused(text: pa.Array, node: Call) -> str:
    """A character that is in none of some texts."""
    for mark in _MARKS:
        if not pc.any(pc.match_substring(text, mark)).as_py():
            return mark
    raise UnsupportedValueError(f"{node}: texts with control characters are left to Spark")


def _pattern_and_group(node: Call) -> tuple[Groups, int]:
    """The pattern of a ``regexp_extract_all``, and the group that is wanted.

    Raises ``UnsupportedPatternError`` if they are no constants, mean something else in Java, or may match nothing.
    """
    pattern, group = (*node.arguments[1:], Literal(value=1))[:2]
    values = [operand.value if isinstance(operand, Literal) else None for operand in (pattern, group)]
    if not isinstance(values[0], str) or not isinstance(values[1], int):
        raise UnsupportedPatternError(f"{pattern}: no constant")
    groups = java_to_groups(values[0])
    if groups.least_width == 0 or groups.at_line_end or not 0 <= values[1] <= min(groups.count, _MOST_GROUPS):
        raise UnsupportedPatternError(f"{pattern}: a match that may be empty, or a group that there is not")
    return groups, values[1]


FUNCTIONS: dict[Function, Run] = {
    Function.GET_ITEM: _get_item,
    Function.ELEMENT_AT: _element_at,
    Function.MAP_VALUE: _map_value,
    Function.SIZE: _size,
    Function.ARRAY: _array,
    Function.ARRAY_CONTAINS: _contains,
    Function.ARRAY_POSITION: _position,
    Function.MAP_KEYS: _map_part(items=False),
    Function.MAP_VALUES: _map_part(items=True),
    Function.GET_FIELDS: _fields,
    Function.SPLIT: _split,
    Function.REGEXP_EXTRACT_ALL: _extract_all,
    Function.SORT_ARRAY: _sort_array,
    Function.ARRAY_SORT: _array_sort,
    Function.ARRAY_MIN: _extreme(greatest=False),
    Function.ARRAY_MAX: _extreme(greatest=True),
    Function.ARRAY_DISTINCT: _distinct,
    Function.ARRAY_JOIN: _join,
    Function.NAMED_STRUCT: _struct,
}


exact_separator = reads_alike(_separator)
"""Whether ``split`` has constants that mean the same in Java and RE2, and no empty separator."""
exact_matches = reads_alike(_pattern_and_group)
"""Whether ``regexp_extract_all`` has constants that mean the same in Java and RE2, and no empty match."""
