"""Lists: their elements, and lists made of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.comparison import compare
from gpujoin.functions.implementation import Run, fail, null_or_raise
from gpujoin.functions.kinds import alike, comparable, fits_as_bytes, has_floats, is_alike, is_written
from gpujoin.functions.nestedbytes import to_bytes
from gpujoin.functions.regex import Groups, UnsupportedPatternError, java_to_groups, reads_alike
from gpujoin.functions.signatures import INT, MANY, TEXT, Signature, cast_to, over, takes, type_of, typed, types_of
from gpujoin.functions.spec import FunctionSpec, Nulls, Order, Raises
from gpujoin.functions.structs import field_position
from gpujoin.functions.text import has_constants
from gpujoin.functions.utf8 import check_utf8
from gpujoin.functions.vector import Mask, Vector, from_arrow, mask_and, to_arrow
from gpujoin.functions.widening import tightest, wider_of
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.layouts import in_type
from gpujoin.model.types import is_float, is_text, is_whole, logical


def is_list(dtype: pa.DataType) -> bool:
    """Whether values of a type are lists."""
    return bool(pat.is_list(dtype) or pat.is_large_list(dtype))


def _is_listed(node: Call) -> bool:
    return is_list(types_of(node)[0]) or pat.is_map(types_of(node)[0])


def _resolve_indexed(node: Call) -> Call | None:
    values, number = node.arguments
    dtype = type_of(values)
    return typed(node, dtype.value_type) if is_list(dtype) and is_whole(type_of(number)) else None


def _accepts_index(node: Call) -> bool:
    return is_list(types_of(node)[0]) and INT.accepts(types_of(node)[1])


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
    if not is_list(dtype):
        return None
    result = pa.bool_() if node.function is Function.ARRAY_CONTAINS else pa.int64()
    return typed(node, result, values, cast_to(value, dtype.value_type, node.mode))


def _accepts_value(node: Call) -> bool:
    dtype, value = types_of(node)
    if not is_list(dtype):
        return False
    element = logical(dtype.value_type)
    return fits_as_bytes([element, value]) or (comparable(element) and alike([element, value]))


def _resolve_sized(node: Call) -> Call | None:
    return typed(node, pa.int32()) if _is_listed(node) else None


def _part_of_map(node: Call) -> Call | None:
    dtype = type_of(node.arguments[0])
    if not pat.is_map(dtype):
        return None
    return typed(node, pa.list_(dtype.key_type if node.function is Function.MAP_KEYS else dtype.item_type))


def _resolve_listed(node: Call) -> Call | None:
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
    if not is_list(dtype) or not pat.is_struct(dtype.value_type) or not isinstance(name, Literal):
        return None
    return typed(node, pa.list_(dtype.value_type.field(name.value).type))


def _accepts_structs(node: Call) -> bool:
    dtype = types_of(node)[0]
    return is_list(dtype) and pat.is_struct(dtype.value_type)


def same_list(node: Call) -> Call | None:
    """Type a function of a list that gives a list of the same type."""
    dtype = type_of(node.arguments[0])
    return typed(node, dtype) if is_list(dtype) else None


def _joined_list(node: Call) -> Call | None:
    types = [type_of(argument) for argument in node.arguments]
    common = _united(types, node.mode) if all(map(is_list, types)) else None
    return over(node, common)


def _one_more(node: Call) -> Call | None:
    values, value = map(type_of, node.arguments)
    element = _united([values.value_type, value], node.mode) if is_list(values) else None
    return None if element is None else typed(node, pa.list_(element))


def _resolve_element(node: Call) -> Call | None:
    dtype = type_of(node.arguments[0])
    return typed(node, dtype.value_type) if is_list(dtype) else None


def _accepts_ordered(node: Call) -> bool:
    dtype = types_of(node)[0]
    constants = all(isinstance(argument, Literal) and argument.value is not None for argument in node.arguments[1:])
    return is_list(dtype) and is_written(dtype.value_type, compared=True) and constants


def _accepts_told_apart(node: Call) -> bool:
    """As :func:`_accepts_ordered`, without floats: of zeros and NaNs Spark makes more than one thing."""
    dtype = types_of(node)[0]
    floats = has_floats if node.function is Function.ARRAY_DISTINCT else is_float
    return _accepts_ordered(node) and not floats(dtype.value_type)


def _resolve_joined(node: Call) -> Call | None:
    return typed(node, pa.string()) if _accepts_texts(node) else None


def _accepts_texts(node: Call) -> bool:
    dtype, *others = types_of(node)
    return is_list(dtype) and is_text(dtype.value_type) and all(map(is_text, others))


def _resolve_struct(node: Call) -> Call | None:
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


def _accepts_lists(node: Call) -> bool:
    types = types_of(node)
    return bool(types) and is_list(types[0]) and all(is_alike(types[0], dtype) for dtype in types)


def _accepts_sets(node: Call) -> bool:
    dtype = types_of(node)[0]
    return _accepts_lists(node) and is_written(dtype.value_type, compared=True) and not has_floats(dtype)


def _overlaps(node: Call) -> Call | None:
    return typed(node, pa.bool_()) if is_list(types_of(node)[0]) else None


def _flattened(node: Call) -> Call | None:
    dtype = types_of(node)[0]
    return typed(node, dtype.value_type) if is_list(dtype) and is_list(dtype.value_type) else None


def _accepts_lists_of_lists(node: Call) -> bool:
    dtype = types_of(node)[0]
    return is_list(dtype) and is_list(dtype.value_type)


def _accepts_slice(node: Call) -> bool:
    dtype, *numbers = types_of(node)
    return is_list(dtype) and all(map(pat.is_int32, numbers))


def _never_fails(node: Call) -> bool:
    """Whether ``slice`` has constants of which it takes a part."""
    start, length = (a.value if isinstance(a, Literal) else None for a in node.arguments[1:])
    return isinstance(start, int) and isinstance(length, int) and start != 0 and length >= 0


def _accepts_element(node: Call) -> bool:
    dtype, value = types_of(node)
    return is_list(dtype) and is_alike(dtype.value_type, value)


def _resolve_repeated(node: Call) -> Call | None:
    value, number = node.arguments
    return typed(node, pa.list_(type_of(value))) if is_whole(type_of(number)) else None


def _accepts_number(node: Call) -> bool:
    return pat.is_int32(types_of(node)[1])


def _resolve_zipped(node: Call) -> Call | None:
    types = types_of(node)
    if not all(map(is_list, types)):
        return None
    return typed(node, pa.list_(pa.struct([(str(n), dtype.value_type) for n, dtype in enumerate(types)])))


def _accepts_zipped(node: Call) -> bool:
    return all(map(is_list, types_of(node)))


def _ranged(node: Call) -> Call | None:
    dtype = types_of(node)[0]
    return typed(node, pa.list_(dtype)) if is_whole(dtype) or pat.is_date32(dtype) else None


def _accepts_range(node: Call) -> bool:
    first, last, *steps = types_of(node)
    if pat.is_date32(first):
        return first == last and all(map(pat.is_int32, steps))
    return is_whole(first) and all(dtype == first for dtype in (last, *steps))


_MAP_PART = Signature(_part_of_map, lambda node: pat.is_map(types_of(node)[0]), (1, 1))
_LEAST_OR_GREATEST = Signature(_resolve_element, _accepts_ordered, (1, 1))
_JOINED_LISTS = Signature(_joined_list, _accepts_lists, (1, MANY))
_SETS = Signature(_joined_list, _accepts_sets)
_ADDED = Signature(_one_more, _accepts_element)
_SEARCH = Signature(_searched, _accepts_value)


# -- elements ---------------------------------------------------------------------------------------------------------


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
        """Read lists, or the keys of maps, or their values with ``items``."""
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


def _least_or_greatest(*, greatest: bool) -> Run:
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


exact_separator = reads_alike(_separator)
"""Whether ``split`` has constants that mean the same in Java and RE2, and no empty separator."""
exact_matches = reads_alike(_pattern_and_group)
"""Whether ``regexp_extract_all`` has constants that mean the same in Java and RE2, and no empty match."""


# -- lists of others --------------------------------------------------------------------------------------------------


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


_F = Function

TABLE = (
    FunctionSpec(
        _F.REGEXP_EXTRACT_ALL, ("RegExpExtractAll",), takes(TEXT, TEXT, INT, gives=pa.list_(pa.string()), optional=1),
        raises=Raises.ALWAYS, safe=has_constants,
        exact=exact_matches, partial=True, numpy=_extract_all,
    ),
    FunctionSpec(
        _F.GET_ITEM, ("GetArrayItem",), Signature(_resolve_indexed, _accepts_index),
        raises=Raises.ANSI,
        numpy=_get_item,
    ),
    FunctionSpec(
        _F.ELEMENT_AT, (), Signature(_resolve_indexed, _accepts_index),
        raises=Raises.ALWAYS,
        numpy=_element_at,
    ),
    FunctionSpec(_F.MAP_VALUE, ("GetMapValue",), Signature(_of_key, _accepts_key), numpy=_map_value),
    FunctionSpec(_F.SIZE, (), Signature(_resolve_sized, _is_listed, (1, 1)), numpy=_size),
    FunctionSpec(
        _F.ARRAY, ("CreateArray",), Signature(_resolve_listed, _accepts_elements, (1, MANY)),
        nulls=Nulls.READ,
        numpy=_array,
    ),
    FunctionSpec(_F.ARRAY_CONTAINS, ("ArrayContains",), _SEARCH, numpy=_contains),
    FunctionSpec(_F.ARRAY_POSITION, ("ArrayPosition",), _SEARCH, numpy=_position),
    FunctionSpec(_F.SORT_ARRAY, ("SortArray",), Signature(same_list, _accepts_told_apart, (1, 2)), numpy=_sort_array),
    FunctionSpec(_F.ARRAY_SORT, ("ArraySort",), Signature(same_list, _accepts_ordered, (1, 1)), numpy=_array_sort),
    FunctionSpec(_F.ARRAY_MIN, ("ArrayMin",), _LEAST_OR_GREATEST, numpy=_least_or_greatest(greatest=False)),
    FunctionSpec(_F.ARRAY_MAX, ("ArrayMax",), _LEAST_OR_GREATEST, numpy=_least_or_greatest(greatest=True)),
    FunctionSpec(
        _F.ARRAY_DISTINCT, ("ArrayDistinct",), Signature(same_list, _accepts_told_apart, (1, 1)),
        numpy=_distinct,
    ),
    FunctionSpec(_F.ARRAY_JOIN, ("ArrayJoin",), Signature(_resolve_joined, _accepts_texts, (2, 3)), numpy=_join),
    FunctionSpec(
        _F.NAMED_STRUCT, ("CreateNamedStruct",), Signature(_resolve_struct, _accepts_fields, (2, MANY)),
        nulls=Nulls.READ,
        numpy=_struct,
    ),
    FunctionSpec(_F.CONCAT_LISTS, (), _JOINED_LISTS, order=Order.ALL, numpy=_concat),
    FunctionSpec(_F.FLATTEN, ("Flatten",), Signature(_flattened, _accepts_lists_of_lists, (1, 1)), numpy=_flatten),
    FunctionSpec(_F.REVERSE_LIST, (), Signature(same_list, _accepts_lists, (1, 1)), numpy=_reverse),
    FunctionSpec(
        _F.SLICE, ("Slice",), Signature(same_list, _accepts_slice, (3, 3)),
        raises=Raises.ALWAYS, safe=_never_fails,
        numpy=_slice,
    ),
    FunctionSpec(_F.ARRAY_REMOVE, ("ArrayRemove",), Signature(same_list, _accepts_value), numpy=_remove),
    FunctionSpec(
        _F.ARRAY_REPEAT, ("ArrayRepeat",), Signature(_resolve_repeated, _accepts_number),
        nulls=Nulls.READ,
        numpy=_repeat,
    ),
    FunctionSpec(_F.ARRAY_APPEND, (), _ADDED, nulls=Nulls.READ, numpy=_insert(last=True)),
    FunctionSpec(_F.ARRAY_PREPEND, (), _ADDED, nulls=Nulls.READ, numpy=_insert(last=False)),
    FunctionSpec(_F.ARRAY_UNION, ("ArrayUnion",), _SETS, numpy=_as_sets),
    FunctionSpec(_F.ARRAY_INTERSECT, ("ArrayIntersect",), _SETS, numpy=_as_sets),
    FunctionSpec(_F.ARRAY_EXCEPT, ("ArrayExcept",), _SETS, numpy=_as_sets),
    FunctionSpec(_F.ARRAYS_OVERLAP, ("ArraysOverlap",), Signature(_overlaps, _accepts_sets), numpy=_overlap),
    FunctionSpec(
        _F.ARRAYS_ZIP, ("ArraysZip",), Signature(_resolve_zipped, _accepts_zipped, (1, MANY)),
        order=Order.ALL,
        numpy=_zip,
    ),
    FunctionSpec(
        _F.SEQUENCE, ("Sequence",), Signature(_ranged, _accepts_range, (2, 3)),
        raises=Raises.ALWAYS,
        numpy=_sequence,
    ),
    FunctionSpec(_F.MAP_KEYS, ("MapKeys",), _MAP_PART, numpy=_map_part(items=False)),
    FunctionSpec(_F.MAP_VALUES, ("MapValues",), _MAP_PART, numpy=_map_part(items=True)),
    FunctionSpec(_F.GET_FIELDS, ("GetArrayStructFields",), Signature(_field_of_each, _accepts_structs), numpy=_fields),
    FunctionSpec(
        _F.SPLIT, ("StringSplit",), takes(TEXT, TEXT, INT, gives=pa.list_(pa.string()), optional=1),
        exact=exact_separator, numpy=_split,
    ),
)  # fmt: skip
