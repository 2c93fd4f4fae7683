"""Lists: their elements, and lists made of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.comparison import compare
from gpujoin.functions.implementation import Run, fail, null_or_raise, operands_of, rows_of
from gpujoin.functions.kinds import alike, comparable, fits_as_bytes, has_floats, is_alike, is_written
from gpujoin.functions.logic import is_true
from gpujoin.functions.nestedbytes import to_bytes
from gpujoin.functions.regex import Groups, UnsupportedPatternError, java_to_groups, only_text, reads_alike
from gpujoin.functions.signatures import INT, MANY, TEXT, Signature, cast_to, over, takes, type_of, typed, types_of
from gpujoin.functions.spec import FunctionSpec, Nulls, Order, Raises
from gpujoin.functions.structs import field_position, structs_of
from gpujoin.functions.text import has_constants
from gpujoin.functions.utf8 import check_utf8
from gpujoin.functions.values import Value
from gpujoin.functions.values import ordered as ordered_words
from gpujoin.functions.vector import Mask, Vector, from_arrow, is_present, mask_and, mask_and_not, to_arrow
from gpujoin.functions.widening import tightest, wider_of
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.layouts import in_type
from gpujoin.model.types import is_float, is_text, is_whole, logical


def is_list(dtype: pa.DataType) -> bool:
    """Whether values of a type are lists."""
    return bool(pat.is_list(dtype) or pat.is_large_list(dtype))


Gives: TypeAlias = Callable[..., pa.DataType | None]
"""The result type by those of the operands; ``None`` where a function does not take them."""


def of_types(gives: Gives) -> Callable[[Call], Call | None]:
    """Type a call by the types of its operands, which are taken as they are; ``None`` where there is no such call."""

    def resolve(node: Call) -> Call | None:
        dtype = gives(*map(type_of, node.arguments))
        return None if dtype is None else typed(node, dtype)

    return resolve


def _signature(gives: Gives, accepts: Callable[..., bool], arity: tuple[int, int] = (2, 2)) -> Signature:
    """The signature of a function by the types of its operands alone."""
    return Signature(of_types(gives), lambda node: accepts(*types_of(node)), arity)


def _same(dtype: pa.DataType, *_: pa.DataType) -> pa.DataType | None:
    return dtype if is_list(dtype) else None


same_list = of_types(_same)
"""Types a function of a list that gives a list of the same type."""


def _has_elements(dtype: pa.DataType) -> bool:
    return is_list(dtype) or pat.is_map(dtype)


def _of_key(node: Call) -> Call | None:
    values, key = node.arguments
    dtype = type_of(values)
    if not pat.is_map(dtype):
        return None
    return typed(node, dtype.item_type, values, cast_to(key, dtype.key_type, node.mode))


def _accepts_key(dtype: pa.DataType, key: pa.DataType) -> bool:
    return pat.is_map(dtype) and comparable(logical(dtype.key_type)) and alike([logical(dtype.key_type), key])


def _resolve_search(node: Call) -> Call | None:
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


def _resolve_array(node: Call) -> Call | None:
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


def _is_list_of_structs(dtype: pa.DataType, *_: pa.DataType) -> bool:
    return is_list(dtype) and pat.is_struct(dtype.value_type)


def _field_of_each(node: Call) -> Call | None:
    values, name = node.arguments
    dtype = type_of(values)
    if not _is_list_of_structs(dtype) or not isinstance(name, Literal):
        return None
    return typed(node, pa.list_(dtype.value_type.field(name.value).type))


def _resolve_concat(node: Call) -> Call | None:
    types = [type_of(argument) for argument in node.arguments]
    common = _united(types, node.mode) if all(map(is_list, types)) else None
    return over(node, common)


def _with_element(node: Call) -> Call | None:
    values, value = map(type_of, node.arguments)
    element = _united([values.value_type, value], node.mode) if is_list(values) else None
    return None if element is None else typed(node, pa.list_(element))


def _accepts_element(dtype: pa.DataType, value: pa.DataType) -> bool:
    return is_list(dtype) and is_alike(dtype.value_type, value)


def _accepts_ordered(node: Call) -> bool:
    dtype = types_of(node)[0]
    constants = all(isinstance(argument, Literal) and argument.value is not None for argument in node.arguments[1:])
    return is_list(dtype) and is_written(dtype.value_type, compared=True) and constants


def _accepts_told_apart(node: Call) -> bool:
    """As :func:`_accepts_ordered`, without floats: of zeros and NaNs Spark makes more than one thing."""
    dtype = types_of(node)[0]
    floats = has_floats if node.function is Function.ARRAY_DISTINCT else is_float
    return _accepts_ordered(node) and not floats(dtype.value_type)


def _accepts_texts(dtype: pa.DataType, *others: pa.DataType) -> bool:
    return is_list(dtype) and is_text(dtype.value_type) and all(map(is_text, others))


def _accepts_lists(dtype: pa.DataType, *others: pa.DataType) -> bool:
    return is_list(dtype) and all(is_alike(dtype, other) for other in others)


def _accepts_sets(node: Call) -> bool:
    dtype, other = types_of(node)
    return _accepts_lists(dtype, other) and is_written(dtype.value_type, compared=True) and not has_floats(dtype)


def _is_list_of_lists(dtype: pa.DataType) -> bool:
    return is_list(dtype) and is_list(dtype.value_type)


def _never_fails(node: Call) -> bool:
    """Whether ``slice`` has constants of which it takes a part."""
    start, length = (a.value if isinstance(a, Literal) else None for a in node.arguments[1:])
    return isinstance(start, int) and isinstance(length, int) and start != 0 and length >= 0


def _are_lists(*types: pa.DataType) -> bool:
    return all(map(is_list, types))


def _zip_of(*types: pa.DataType) -> pa.DataType | None:
    if not _are_lists(*types):
        return None
    return pa.list_(pa.struct([(str(n), dtype.value_type) for n, dtype in enumerate(types)]))


def _accepts_range(first: pa.DataType, last: pa.DataType, *steps: pa.DataType) -> bool:
    if pat.is_date32(first):
        return first == last and all(map(pat.is_int32, steps))
    return is_whole(first) and all(dtype == first for dtype in (last, *steps))


_NUMBERED = _signature(
    lambda values, number: values.value_type if is_list(values) and is_whole(number) else None,
    lambda values, number: is_list(values) and INT.accepts(number),
)
_OF_KEY = Signature(_of_key, lambda node: _accepts_key(*types_of(node)))
_SEARCH = Signature(_resolve_search, _accepts_value)
_SIZE = _signature(lambda dtype: pa.int32() if _has_elements(dtype) else None, _has_elements, (1, 1))
_KEYS = _signature(lambda dtype: pa.list_(dtype.key_type) if pat.is_map(dtype) else None, pat.is_map, (1, 1))
_VALUES = _signature(lambda dtype: pa.list_(dtype.item_type) if pat.is_map(dtype) else None, pat.is_map, (1, 1))
_FIELDS = Signature(_field_of_each, lambda node: _is_list_of_structs(*types_of(node)))
_LEAST_OR_GREATEST = Signature(
    of_types(lambda dtype: dtype.value_type if is_list(dtype) else None), _accepts_ordered, (1, 1)
)
_JOIN = _signature(
    lambda dtype, *others: pa.string() if _accepts_texts(dtype, *others) else None, _accepts_texts, (2, 3)
)
_CONCAT = Signature(_resolve_concat, lambda node: _accepts_lists(*types_of(node)), (1, MANY))
_SETS = Signature(_resolve_concat, _accepts_sets)
_OVERLAP = Signature(of_types(lambda dtype, _: pa.bool_() if is_list(dtype) else None), _accepts_sets)
_FLATTEN = _signature(lambda dtype: dtype.value_type if _is_list_of_lists(dtype) else None, _is_list_of_lists, (1, 1))
_REVERSE = _signature(_same, is_list, (1, 1))
_SLICE = _signature(_same, lambda dtype, *numbers: is_list(dtype) and all(map(pat.is_int32, numbers)), (3, 3))
_REPEAT = _signature(
    lambda value, number: pa.list_(value) if is_whole(number) else None, lambda _, number: pat.is_int32(number)
)
_INSERT = Signature(_with_element, lambda node: _accepts_element(*types_of(node)))
_ZIP = _signature(_zip_of, _are_lists, (1, MANY))
_SEQUENCE = _signature(
    lambda dtype, *_: pa.list_(dtype) if is_whole(dtype) or pat.is_date32(dtype) else None, _accepts_range, (2, 3)
)


# -- lists as arrays of elements ---------------------------------------------------------------------------------------


Indices: TypeAlias = npt.NDArray[np.int64]

_FIRST_WORD, _LAST_WORD = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_FEW = 16
"""An element in so many is looked for among the offsets as fast as the rows of all elements are written down."""
_SHORT = 16
"""Elements of a list up to which all pairs of them are compared; a sort takes as long as some 20 comparisons."""


@dataclass(frozen=True, eq=False)
class Lists:
    """Lists, or the keys or values of maps: the elements of all rows in one array, without gaps.

    An example, ``[7, null]``, null, ``[]`` and ``[8]``::

        offsets     0, 2, 2, 2, 3
        valid       true, false, true, true
        elements    7, null, 8
    """

    offsets: Indices
    """Index in ``elements`` of the first element of each row, and the number of all."""
    valid: Mask | None
    """Rows that are not null; ``None``: no row is."""
    elements: pa.Array

    @classmethod
    def from_vector(cls, vector: Vector, *, items: bool = False) -> Lists:
        """Read lists, or the keys of maps, or their values with ``items``. Rows that are null have no elements."""
        values, valid = vector.values, vector.mask()
        elements = values.values if not pat.is_map(values.type) else values.items if items else values.keys
        offsets = values.offsets.to_numpy().astype(np.int64) if len(values) else np.zeros(1, np.int64)
        counts = np.diff(offsets)
        if valid is not None and counts[~valid].any():
            counts = np.where(valid, counts, 0)
            return cls.from_counts(counts, valid, elements.take(pa.array(ranges(offsets[:-1], counts))))
        first = int(offsets[0])
        return cls(offsets - first, valid, elements.slice(first, int(offsets[-1]) - first))

    @classmethod
    def from_counts(cls, counts: Indices, valid: Mask | None, elements: pa.Array) -> Lists:
        """Divide elements into lists of so many."""
        return cls(np.concatenate([[0], np.cumsum(counts)]), valid, elements)

    def to_vector(self, dtype: pa.DataType, valid: Mask | None = None) -> Vector:
        """Make lists of a type, null where ``valid`` is false as well."""
        check_count(len(self.elements))
        valid = mask_and(self.valid, valid)
        absent = None if valid is None else pa.array(np.resize(~valid, len(self.counts)))
        offsets, elements = pa.array(self.offsets.astype(np.int32)), in_type(self.elements, dtype.value_type)
        return Vector(dtype, pa.ListArray.from_arrays(offsets, elements, dtype, mask=absent))

    @cached_property
    def counts(self) -> Indices:
        """How many elements each row has."""
        return np.diff(self.offsets)

    @cached_property
    def rows(self) -> Indices:
        """The row of each element."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def positions(self) -> Indices:
        """Position of each element in its row, from 0 on."""
        return np.arange(len(self.elements)) - np.repeat(self.offsets[:-1], self.counts)

    @cached_property
    def present(self) -> Mask | None:
        """Elements that are not null; ``None``: no element is."""
        return from_arrow(self.elements).mask()

    # -- elements in a mask --

    def where(self, mask: Mask) -> Lists:
        """Lists of the elements in a mask alone."""
        before = np.zeros(len(mask) + 1, np.int64)
        np.cumsum(mask, out=before[1:])
        return Lists(before[self.offsets], self.valid, self.elements.filter(pa.array(np.ascontiguousarray(mask))))

    def where_valid(self, valid: Mask | None) -> Lists:
        """Lists that are null, and without elements, where a mask of rows is false."""
        if valid is None:
            return self
        lists = self.where(np.repeat(valid, self.counts))
        return Lists(lists.offsets, mask_and(self.valid, valid), lists.elements)

    def has(self, mask: Mask) -> Mask:
        """Rows of which an element is in a mask."""
        return mask_at(self._rows_at(np.flatnonzero(mask)), len(self.counts))

    def first(self, mask: Mask) -> Indices:
        """Position in each row of its first element in a mask; -1 where there is none."""
        places = np.flatnonzero(mask)[::-1]
        rows = self._rows_at(places)
        positions = np.full(len(self.counts), -1)
        positions[rows] = places - self.offsets[rows]
        return positions

    def _rows_at(self, places: Indices) -> Indices:
        """The rows of the elements at some places, by search where they are few."""
        if len(places) < len(self.elements) // _FEW:
            return np.searchsorted(self.offsets, places, side="right") - 1
        return self.rows[places]

    # -- elements at places --

    def at(self, positions: Indices, present: Mask) -> Vector:
        """The element at a position of each row; null where ``present`` is false."""
        places = np.where(present, self.offsets[:-1] + positions, 0)
        elements = from_arrow(self.elements)
        if elements.in_arrow or not len(self.elements):
            return from_arrow(self.elements.take(pa.array(places, mask=~present)))
        values = elements.take(places)
        return values.with_valid(mask_and(values.valid, present))

    def take(self, order: Indices) -> Lists:
        """Lists of as many elements each, taken from other places."""
        return Lists(self.offsets, self.valid, self.elements.take(pa.array(order)))

    # -- elements compared with others of their row --

    def order(self, words: Indices) -> Indices:
        """Places of the elements, row by row in the order of their words; of equal ones the first comes first.

        The rank of an element is the number of elements that come before it. Those of short lists are counted by
        comparing all elements with the next ones, then with those after the next, and so on.
        """
        ranks = np.zeros(len(words), np.int8)
        for distance, same_row in self._distances():
            after = (words[:-distance] <= words[distance:]) & same_row
            ranks[distance:] += after
            ranks[:-distance] += same_row & ~after
        order = np.empty(len(words), np.int64)
        numbers = np.arange(len(words))
        order[numbers - self.positions + ranks] = numbers
        places, sorted_places = self._long_lists(words)
        order[places] = sorted_places
        return order

    def first_equal(self, words: Indices) -> Indices:
        """Place of the first element of the same row whose word is equal, for each element."""
        first = np.arange(len(words))
        for distance, same_row in self._distances():
            equal = np.flatnonzero((words[:-distance] == words[distance:]) & same_row)
            first[equal + distance] = equal
        places, order = self._long_lists(words)
        begins = np.ones(len(order), np.bool_)
        begins[1:] = words[order[1:]] != words[order[:-1]]
        begins |= self.positions[places] == 0
        first[order] = order[begins][np.cumsum(begins) - 1]
        return first

    def _distances(self) -> Iterator[tuple[int, Mask]]:
        """Distances of two elements of a short list, and which elements have one of their row at that distance."""
        before = np.minimum(self.positions, _SHORT).astype(np.int8)
        for distance in range(1, min(int(self.counts.max(initial=0)), _SHORT)):
            yield distance, before[distance:] >= distance

    def _long_lists(self, words: Indices) -> tuple[Indices, Indices]:
        """Places of the elements of lists that are not short, and the same as by :meth:`order`."""
        if self.counts.max(initial=0) <= _SHORT:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        places = np.flatnonzero(np.repeat(self.counts > _SHORT, self.counts))
        return places, places[np.lexsort((words[places], self.rows[places]))]


def ranges(starts: Indices, counts: Indices) -> Indices:
    """So many numbers from each start on, one range after the other."""
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))


def mask_at(places: Indices, length: int) -> Mask:
    """A mask that is true at some places."""
    mask = np.zeros(length, np.bool_)
    mask[places] = True
    return mask


def equality_words(elements: pa.Array) -> Indices:
    """Integers that are equal where elements are, nulls included."""
    return _with_nulls(_words(elements, ordered=False), elements, _FIRST_WORD)


def order_words(elements: pa.Array, *, ascending: bool, nulls_first: bool) -> Indices:
    """Integers in the order of elements, with nulls at either end."""
    words = _words(elements, ordered=True)
    return _with_nulls(words if ascending else ~words, elements, _FIRST_WORD if nulls_first else _LAST_WORD)


def _with_nulls(words: Indices, elements: pa.Array, null: int) -> Indices:
    present = from_arrow(elements).mask()
    if present is None:
        return words
    if (present & (words == null)).any():
        words = np.unique(words, return_inverse=True)[1]
    return np.where(present, words, null)


def _words(elements: pa.Array, *, ordered: bool) -> Indices:
    """Integers that are equal as elements are, and ordered as they are if ``ordered``; any integers for nulls."""
    vector = from_arrow(elements)
    if pat.is_null(vector.dtype):
        return np.zeros(len(elements), np.int64)
    if not vector.in_arrow and vector.values.dtype.kind in "bi":
        return vector.values.astype(np.int64, copy=False)
    if is_float(vector.dtype):
        return ordered_words(np, Value(vector.dtype, vector.values))[0].astype(np.int64, copy=False)
    values = vector.values if vector.in_arrow else elements
    encoded = (to_bytes(values, compared=True) if pat.is_nested(vector.dtype) else values).dictionary_encode()
    indices = encoded.indices.fill_null(0).to_numpy().astype(np.int64)
    if not ordered:
        return indices
    ranks = np.zeros(max(1, len(encoded.dictionary)), np.int64)
    ranks[pc.array_sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(encoded.dictionary))
    return ranks[indices]


def concatenated(lists: Sequence[Lists], element: pa.DataType) -> Lists:
    """The elements of several lists of each row, one list's after the other's, as elements of a type."""
    elements = pa.concat_arrays([in_type(each.elements, element) for each in lists])
    counts = reduce(np.add, (each.counts for each in lists))
    together = Lists.from_counts(counts, reduce(mask_and, (each.valid for each in lists)), elements)
    order, begins, first = np.empty(len(elements), np.int64), together.offsets[:-1], 0
    for each in lists:
        numbers = np.arange(len(each.elements))
        order[np.repeat(begins - each.offsets[:-1], each.counts) + numbers] = first + numbers
        begins, first = begins + each.counts, first + len(numbers)
    return together.take(order)


def check_count(count: int) -> None:
    """Raise ``MemoryError`` if the offsets of lists do not reach to so many elements."""
    if count > np.iinfo(np.int32).max:
        raise MemoryError(f"{count} values in lists of one Arrow column")


# -- values of elements ------------------------------------------------------------------------------------------------


def _get_item(node: Call, operands: list[Vector], length: int) -> Vector:
    values, numbers = operands_of(operands, length)
    lists = Lists.from_vector(values)
    return _element(node, lists, numbers.values.astype(np.int64), mask_and(lists.valid, numbers.mask()))


def _element_at(node: Call, operands: list[Vector], length: int) -> Vector:
    values, numbers = operands_of(operands, length)
    lists, positions = Lists.from_vector(values), numbers.values.astype(np.int64)
    valid = mask_and(lists.valid, numbers.mask())
    # Elements of the array that no position reaches are looked for before the position is.
    reached = np.abs(positions) <= lists.counts
    if (is_present(valid, len(positions)) & reached & (positions == 0)).any():
        fail(node, "there is no element number 0")
    return _element(node, lists, np.where(positions > 0, positions - 1, lists.counts + positions), valid)


def _element(node: Call, lists: Lists, positions: Indices, valid: Mask | None) -> Vector:
    outside = (positions < 0) | (positions >= lists.counts)
    return lists.at(
        positions, is_present(null_or_raise(node, outside, valid, "there is no such element"), len(outside))
    )


def _equal_elements(lists: Lists, value: Vector) -> Mask:
    """Elements that equal the value of their row."""
    if not len(lists.elements):
        return np.zeros(0, np.bool_)
    of_rows = value if value.constant else value.take(lists.rows)
    return is_true(compare(Function.EQ, from_arrow(lists.elements), of_rows))


def _contains(_node: Call, operands: list[Vector], length: int) -> Vector:
    values, value = operands
    lists = Lists.from_vector(values.expand(rows_of(operands, length)))
    contained = lists.has(_equal_elements(lists, value))
    valid = mask_and(lists.valid, value.mask())
    if lists.present is not None:
        valid = mask_and(valid, contained | ~lists.has(~lists.present))
    return Vector(pa.bool_(), contained, valid)


def _position(_node: Call, operands: list[Vector], length: int) -> Vector:
    values, value = operands
    lists = Lists.from_vector(values.expand(rows_of(operands, length)))
    return Vector(pa.int64(), lists.first(_equal_elements(lists, value)) + 1, mask_and(lists.valid, value.mask()))


def _map_value(_node: Call, operands: list[Vector], length: int) -> Vector:
    values, key = operands
    maps = values.expand(rows_of(operands, length))
    keys = Lists.from_vector(maps)
    positions = keys.first(_equal_elements(keys, key))
    return Lists.from_vector(maps, items=True).at(positions, positions >= 0)


def _size(_node: Call, operands: list[Vector], _length: int) -> Vector:
    values = operands[0].values
    return Vector(pa.int32(), np.diff(values.offsets.to_numpy()).astype(np.int32), operands[0].mask())


def _least_or_greatest(extreme: np.ufunc, last: int) -> Run:
    def run(_node: Call, operands: list[Vector], _length: int) -> Vector:
        lists = Lists.from_vector(operands[0])
        rows, words = np.flatnonzero(lists.counts), _words(lists.elements, ordered=True)
        if lists.present is not None:
            words = np.where(lists.present, words, last)
        extremes = extreme.reduceat(words, lists.offsets[rows]) if len(rows) else words
        extremal = words == np.repeat(extremes, lists.counts[rows])
        positions = lists.first(extremal if lists.present is None else extremal & lists.present)
        return lists.at(positions, positions >= 0)

    return run


def _join(_node: Call, operands: list[Vector], length: int) -> Vector:
    values, separator, *replacement = operands_of(operands, length)
    lists = Lists.from_vector(values)
    if replacement and lists.present is not None:
        texts = replacement[0].values.take(pa.array(lists.rows))
        lists = Lists(lists.offsets, lists.valid, pc.coalesce(lists.elements, texts))
    if lists.present is not None:
        lists = lists.where(lists.present)
    valid = reduce(mask_and, (operand.mask() for operand in (separator, *replacement)))
    texts = lists.to_vector(pa.list_(pa.string()), valid)
    return from_arrow(pc.binary_join(texts.values, separator.values.cast(pa.string())))


# -- lists of texts ----------------------------------------------------------------------------------------------------


_MARKS = "\x00\x01\x02\x1e\x1f"
"""Characters by which matches are marked, the first that no text has."""
_MOST_GROUPS = 9
"""RE2's replacements name groups by one digit."""


def _split(node: Call, operands: list[Vector], _length: int) -> Vector:
    assert node.type is not None
    regex, most = _separator(node)
    text = operands[0].values
    check_utf8(text, node)
    literal = only_text(node.arguments[1].value) if isinstance(node.arguments[1], Literal) else None
    splits = most - 1 if most > 0 else None
    if literal is None:
        parts = pc.split_pattern_regex(text, regex, max_splits=splits)
    else:
        parts = pc.split_pattern(text, literal, max_splits=splits)
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
    parts = Lists.from_vector(from_arrow(pc.split_pattern(marked, mark)))
    matches = parts.where(parts.positions % 2 == 1).to_vector(node.type)
    return Vector(node.type, matches.values, constant=operands[0].constant)


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


# -- lists of others ---------------------------------------------------------------------------------------------------


def _array(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    rows, count = rows_of(operands, length), len(operands)
    columns = pa.concat_arrays([to_arrow(operand, node.type.value_type, rows) for operand in operands])
    order = np.arange(rows * count).reshape(count, rows).T.ravel()
    return Lists.from_counts(np.full(rows, count), None, columns.take(pa.array(order))).to_vector(node.type)


def _map_part(*, items: bool) -> Run:
    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        assert node.type is not None
        return Lists.from_vector(operands[0], items=items).to_vector(node.type)

    return run


def _fields(node: Call, operands: list[Vector], _length: int) -> Vector:
    assert node.type is not None
    lists = Lists.from_vector(operands[0])
    position = field_position(node, type_of(node.arguments[0]).value_type)
    return Lists(lists.offsets, lists.valid, pc.struct_field(lists.elements, [position])).to_vector(node.type)


def _sort_array(node: Call, operands: list[Vector], _length: int) -> Vector:
    ascending = node.arguments[1] if len(node.arguments) > 1 else Literal(value=True)
    assert isinstance(ascending, Literal)
    return _sorted(node, operands[0], ascending=bool(ascending.value), nulls_first=bool(ascending.value))


def _array_sort(node: Call, operands: list[Vector], _length: int) -> Vector:
    return _sorted(node, operands[0], ascending=True, nulls_first=False)


def _sorted(node: Call, values: Vector, *, ascending: bool, nulls_first: bool) -> Vector:
    assert node.type is not None
    lists = Lists.from_vector(values)
    order = lists.order(order_words(lists.elements, ascending=ascending, nulls_first=nulls_first))
    return lists.take(order).to_vector(node.type)


def _distinct(node: Call, operands: list[Vector], _length: int) -> Vector:
    assert node.type is not None
    lists = Lists.from_vector(operands[0])
    first = lists.first_equal(equality_words(lists.elements))
    return lists.where(first == np.arange(len(first))).to_vector(node.type)


def _concat(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    lists = [Lists.from_vector(operand) for operand in operands_of(operands, length)]
    return concatenated(lists, node.type.value_type).to_vector(node.type)


def _flatten(node: Call, operands: list[Vector], _length: int) -> Vector:
    assert node.type is not None
    outer = Lists.from_vector(operands[0])
    inner = Lists.from_vector(from_arrow(outer.elements))
    valid = outer.valid if inner.valid is None else mask_and_not(outer.valid, outer.has(~inner.valid))
    return Lists(inner.offsets[outer.offsets], valid, inner.elements).to_vector(node.type)


def _reverse(node: Call, operands: list[Vector], _length: int) -> Vector:
    assert node.type is not None
    lists = Lists.from_vector(operands[0])
    mirrored = np.repeat(lists.offsets[:-1] + lists.offsets[1:] - 1, lists.counts) - np.arange(len(lists.elements))
    return lists.take(mirrored).to_vector(node.type)


def _slice(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    values, start, most = operands_of(operands, length)
    lists = Lists.from_vector(values)
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
    elements = lists.elements.take(pa.array(ranges(lists.offsets[:-1] + begin, counts)))
    return Lists.from_counts(counts, valid, elements).to_vector(node.type)


def _remove(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    values, value = operands
    lists = Lists.from_vector(values.expand(rows_of(operands, length)))
    return lists.where(~_equal_elements(lists, value)).to_vector(node.type, value.mask())


def _repeat(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    value, number = operands_of(operands, length)
    valid = number.mask()
    counts = np.maximum(number.values.astype(np.int64), 0)
    counts = counts if valid is None else np.where(valid, counts, 0)
    check_count(int(counts.sum()))
    rows = np.repeat(np.arange(len(counts)), counts)
    elements = to_arrow(value, node.type.value_type, len(counts)).take(pa.array(rows))
    return Lists.from_counts(counts, valid, elements).to_vector(node.type)


def _insert(*, last: bool) -> Run:
    """Lists with one more element, the last or the first."""

    def run(node: Call, operands: list[Vector], length: int) -> Vector:
        assert node.type is not None
        values, value = operands_of(operands, length)
        lists, element = Lists.from_vector(values), node.type.value_type
        rows = len(lists.counts)
        added = Lists.from_counts(np.ones(rows, np.int64), None, to_arrow(value, element, rows))
        return concatenated([lists, added] if last else [added, lists], element).to_vector(node.type)

    return run


def _set_operation(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    left, right = (Lists.from_vector(operand) for operand in operands_of(operands, length))
    both, members, in_right = _members(left, right, node.type.value_type)
    match node.function:
        case Function.ARRAY_INTERSECT:
            members = members & in_right & (both.positions < np.repeat(left.counts, both.counts))
        case Function.ARRAY_EXCEPT:
            members = members & ~in_right
    return both.where(members).to_vector(node.type)


def _members(left: Lists, right: Lists, element: pa.DataType) -> tuple[Lists, Mask, Mask]:
    """Elements of two sets of each row, the first of all that are equal, and those that the right one has too."""
    both = concatenated([left, right], element)
    first = both.first_equal(equality_words(both.elements))
    of_right = both.positions >= np.repeat(left.counts, both.counts)
    return both, first == np.arange(len(first)), mask_at(first[of_right], len(first))


def _overlap(_node: Call, operands: list[Vector], length: int) -> Vector:
    left, right = (Lists.from_vector(operand) for operand in operands_of(operands, length))
    both, _, in_right = _members(left, right, left.elements.type)
    shared = in_right & (both.positions < np.repeat(left.counts, both.counts))
    if both.present is None:
        return Vector(pa.bool_(), both.has(shared), both.valid)
    overlap = both.has(shared & both.present)
    unknown = both.has(~both.present) & (left.counts > 0) & (right.counts > 0)
    return Vector(pa.bool_(), overlap, mask_and(both.valid, overlap | ~unknown))


def zipped(lists: Sequence[Lists]) -> tuple[Lists, list[pa.Array]]:
    """Lists of every position that any list of a row has, and the elements there of each, or nulls."""
    valid = reduce(mask_and, (each.valid for each in lists))
    counts = reduce(np.maximum, (each.counts for each in lists))
    counts = counts if valid is None else np.where(valid, counts, 0)
    together = Lists.from_counts(counts, valid, pa.nulls(int(counts.sum())))
    rows, positions = together.rows, together.positions
    elements = []
    for each in lists:
        if np.array_equal(each.counts, counts):
            elements.append(each.elements)
            continue
        absent = positions >= each.counts[rows]
        places = np.where(absent, 0, each.offsets[rows] + positions)
        elements.append(each.elements.take(pa.array(places, mask=absent)))
    return together, elements


def _zip(node: Call, operands: list[Vector], length: int) -> Vector:
    assert node.type is not None
    together, elements = zipped([Lists.from_vector(operand) for operand in operands_of(operands, length)])
    structs = structs_of(elements, node.type.value_type)
    return Lists(together.offsets, together.valid, structs).to_vector(node.type)


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
    check_count(int(steps_taken.max(initial=0)))
    counts = np.where(present, steps_taken.astype(np.int64) + 1, 0)
    check_count(int(counts.sum()))
    rows = np.repeat(np.arange(len(counts)), counts)
    values = first[rows] + step[rows] * ranges(np.zeros(len(counts), np.int64), counts)
    kind = node.type.value_type
    whole = values.astype(np.int32) if kind.bit_width == 32 else values
    return Lists.from_counts(counts, valid, pa.array(whole).cast(kind)).to_vector(node.type)


_F = Function

TABLE = (
    FunctionSpec(
        _F.REGEXP_EXTRACT_ALL, ("RegExpExtractAll",), takes(TEXT, TEXT, INT, gives=pa.list_(pa.string()), optional=1),
        raises=Raises.ALWAYS, safe=has_constants,
        exact=exact_matches, partial=True, numpy=_extract_all,
    ),
    FunctionSpec(
        _F.GET_ITEM, ("GetArrayItem",), _NUMBERED,
        raises=Raises.ANSI,
        numpy=_get_item,
    ),
    FunctionSpec(
        _F.ELEMENT_AT, (), _NUMBERED,
        raises=Raises.ALWAYS,
        numpy=_element_at,
    ),
    FunctionSpec(_F.MAP_VALUE, ("GetMapValue",), _OF_KEY, numpy=_map_value),
    FunctionSpec(_F.SIZE, (), _SIZE, numpy=_size),
    FunctionSpec(
        _F.ARRAY, ("CreateArray",), Signature(_resolve_array, _accepts_elements, (1, MANY)),
        nulls=Nulls.OWN_RULE,
        numpy=_array,
    ),
    FunctionSpec(_F.ARRAY_CONTAINS, ("ArrayContains",), _SEARCH, numpy=_contains),
    FunctionSpec(_F.ARRAY_POSITION, ("ArrayPosition",), _SEARCH, numpy=_position),
    FunctionSpec(_F.SORT_ARRAY, ("SortArray",), Signature(same_list, _accepts_told_apart, (1, 2)), numpy=_sort_array),
    FunctionSpec(_F.ARRAY_SORT, ("ArraySort",), Signature(same_list, _accepts_ordered, (1, 1)), numpy=_array_sort),
    FunctionSpec(_F.ARRAY_MIN, ("ArrayMin",), _LEAST_OR_GREATEST, numpy=_least_or_greatest(np.minimum, _LAST_WORD)),
    FunctionSpec(_F.ARRAY_MAX, ("ArrayMax",), _LEAST_OR_GREATEST, numpy=_least_or_greatest(np.maximum, _FIRST_WORD)),
    FunctionSpec(
        _F.ARRAY_DISTINCT, ("ArrayDistinct",), Signature(same_list, _accepts_told_apart, (1, 1)),
        numpy=_distinct,
    ),
    FunctionSpec(_F.ARRAY_JOIN, ("ArrayJoin",), _JOIN, numpy=_join),
    FunctionSpec(_F.CONCAT_LISTS, (), _CONCAT, order=Order.ALL, numpy=_concat),
    FunctionSpec(_F.FLATTEN, ("Flatten",), _FLATTEN, numpy=_flatten),
    FunctionSpec(_F.REVERSE_LIST, (), _REVERSE, numpy=_reverse),
    FunctionSpec(
        _F.SLICE, ("Slice",), _SLICE,
        raises=Raises.ALWAYS, safe=_never_fails,
        numpy=_slice,
    ),
    FunctionSpec(_F.ARRAY_REMOVE, ("ArrayRemove",), Signature(same_list, _accepts_value), numpy=_remove),
    FunctionSpec(
        _F.ARRAY_REPEAT, ("ArrayRepeat",), _REPEAT,
        nulls=Nulls.OWN_RULE,
        numpy=_repeat,
    ),
    FunctionSpec(_F.ARRAY_APPEND, (), _INSERT, nulls=Nulls.OWN_RULE, numpy=_insert(last=True)),
    FunctionSpec(_F.ARRAY_PREPEND, (), _INSERT, nulls=Nulls.OWN_RULE, numpy=_insert(last=False)),
    FunctionSpec(_F.ARRAY_UNION, ("ArrayUnion",), _SETS, numpy=_set_operation),
    FunctionSpec(_F.ARRAY_INTERSECT, ("ArrayIntersect",), _SETS, numpy=_set_operation),
    FunctionSpec(_F.ARRAY_EXCEPT, ("ArrayExcept",), _SETS, numpy=_set_operation),
    FunctionSpec(_F.ARRAYS_OVERLAP, ("ArraysOverlap",), _OVERLAP, numpy=_overlap),
    FunctionSpec(
        _F.ARRAYS_ZIP, ("ArraysZip",), _ZIP,
        order=Order.ALL,
        numpy=_zip,
    ),
    FunctionSpec(
        _F.SEQUENCE, ("Sequence",), _SEQUENCE,
        raises=Raises.ALWAYS,
        numpy=_sequence,
    ),
    FunctionSpec(_F.MAP_KEYS, ("MapKeys",), _KEYS, numpy=_map_part(items=False)),
    FunctionSpec(_F.MAP_VALUES, ("MapValues",), _VALUES, numpy=_map_part(items=True)),
    FunctionSpec(_F.GET_FIELDS, ("GetArrayStructFields",), _FIELDS, numpy=_fields),
    FunctionSpec(
        _F.SPLIT, ("StringSplit",), takes(TEXT, TEXT, INT, gives=pa.list_(pa.string()), optional=1),
        exact=exact_separator, numpy=_split,
    ),
)  # fmt: skip
