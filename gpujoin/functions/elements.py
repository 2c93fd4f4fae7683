"""Lists as arrays of elements, which functions of lists compare, choose and move all at once.

A column of lists is one array of the elements of all rows, with the offsets that tell rows apart. Elements are compared
by codes: 64-bit integers that are equal, or ordered, as the elements are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.functions.nestedbytes import to_bytes
from gpujoin.functions.values import Value
from gpujoin.functions.values import ordered as ordered_words
from gpujoin.functions.vector import Mask, Vector, from_arrow, mask_and
from gpujoin.model.layouts import in_type
from gpujoin.model.types import is_float

Integers: TypeAlias = npt.NDArray[np.int64]

FIRST_CODE, LAST_CODE = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_FEW = 16
"""If at most one element in so many is needed, its row is searched for among the offsets."""
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

    offsets: Integers
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
    def from_counts(cls, counts: Integers, valid: Mask | None, elements: pa.Array) -> Lists:
        """Divide elements into lists of the given lengths."""
        return cls(np.concatenate([[0], np.cumsum(counts)]), valid, elements)

    def to_vector(self, dtype: pa.DataType, valid: Mask | None = None) -> Vector:
        """Make lists of a type, null where ``valid`` is false as well."""
        check_count(len(self.elements))
        valid = mask_and(self.valid, valid)
        absent = None if valid is None else pa.array(np.resize(~valid, len(self.counts)))
        offsets, elements = pa.array(self.offsets.astype(np.int32)), in_type(self.elements, dtype.value_type)
        return Vector(dtype, pa.ListArray.from_arrays(offsets, elements, dtype, mask=absent))

    @cached_property
    def counts(self) -> Integers:
        """Number of elements of each row."""
        return np.diff(self.offsets)

    @cached_property
    def rows(self) -> Integers:
        """The row of each element."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def positions(self) -> Integers:
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
        """Mask of the rows with an element in a mask."""
        return mask_at(self._rows_at(np.flatnonzero(mask)), len(self.counts))

    def first(self, mask: Mask) -> Integers:
        """Position in each row of its first element in a mask; -1 where there is none."""
        places = np.flatnonzero(mask)[::-1]
        rows = self._rows_at(places)
        positions = np.full(len(self.counts), -1)
        positions[rows] = places - self.offsets[rows]
        return positions

    def _rows_at(self, places: Integers) -> Integers:
        """The rows of the elements at some places, by search where they are few."""
        if len(places) < len(self.elements) // _FEW:
            return np.searchsorted(self.offsets, places, side="right") - 1
        return self.rows[places]

    # -- elements at places --

    def at(self, positions: Integers, present: Mask) -> Vector:
        """The element at a position of each row; null where ``present`` is false."""
        places = np.where(present, self.offsets[:-1] + positions, 0)
        elements = from_arrow(self.elements)
        if elements.in_arrow or not len(self.elements):
            return from_arrow(self.elements.take(pa.array(places, mask=~present)))
        values = elements.take(places)
        return values.with_valid(mask_and(values.valid, present))

    def take(self, order: Integers) -> Lists:
        """The same lists with elements from other places."""
        return Lists(self.offsets, self.valid, self.elements.take(pa.array(order)))

    # -- elements compared with others of their row --

    def order(self, codes: Integers) -> Integers:
        """Places of the elements, row by row in the order of their codes; of equal ones the first comes first.

        The rank of an element is the number of elements that come before it. Those of short lists are counted by
        comparing all elements with the next ones, then with those after the next, and so on.
        """
        ranks = np.zeros(len(codes), np.int8)
        for distance, same_row in self._distances():
            after = (codes[:-distance] <= codes[distance:]) & same_row
            ranks[distance:] += after
            ranks[:-distance] += same_row & ~after
        order = np.empty(len(codes), np.int64)
        numbers = np.arange(len(codes))
        order[numbers - self.positions + ranks] = numbers
        places, sorted_places = self._long_lists(codes)
        order[places] = sorted_places
        return order

    def first_equal(self, codes: Integers) -> Integers:
        """For each element the place of the first element of its row with the same code."""
        first = np.arange(len(codes))
        for distance, same_row in self._distances():
            equal = np.flatnonzero((codes[:-distance] == codes[distance:]) & same_row)
            first[equal + distance] = equal
        places, order = self._long_lists(codes)
        begins = np.ones(len(order), np.bool_)
        begins[1:] = codes[order[1:]] != codes[order[:-1]]
        begins |= self.positions[places] == 0
        first[order] = order[begins][np.cumsum(begins) - 1]
        return first

    def _distances(self) -> Iterator[tuple[int, Mask]]:
        """Distances within short lists, each with the mask of the pairs of elements at that distance within one row."""
        before = np.minimum(self.positions, _SHORT).astype(np.int8)
        for distance in range(1, min(int(self.counts.max(initial=0)), _SHORT)):
            yield distance, before[distance:] >= distance

    def _long_lists(self, codes: Integers) -> tuple[Integers, Integers]:
        """Places of the elements of lists that are not short, and the same as by :meth:`order`."""
        if self.counts.max(initial=0) <= _SHORT:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        places = np.flatnonzero(np.repeat(self.counts > _SHORT, self.counts))
        return places, places[np.lexsort((codes[places], self.rows[places]))]


def ranges(starts: Integers, counts: Integers) -> Integers:
    """Concatenate ranges of numbers, given their starts and lengths."""
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))


def mask_at(places: Integers, length: int) -> Mask:
    """A mask that is true at some places."""
    mask = np.zeros(length, np.bool_)
    mask[places] = True
    return mask


def equality_codes(elements: pa.Array) -> Integers:
    """Integers that are equal where elements are, nulls included."""
    return _with_nulls(element_codes(elements, ordered=False), elements, FIRST_CODE)


def order_codes(elements: pa.Array, *, ascending: bool, nulls_first: bool) -> Integers:
    """Integers in the order of elements, with nulls at either end."""
    codes = element_codes(elements, ordered=True)
    return _with_nulls(codes if ascending else ~codes, elements, FIRST_CODE if nulls_first else LAST_CODE)


def _with_nulls(codes: Integers, elements: pa.Array, null: int) -> Integers:
    present = from_arrow(elements).mask()
    if present is None:
        return codes
    if (present & (codes == null)).any():
        codes = np.unique(codes, return_inverse=True)[1]
    return np.where(present, codes, null)


def element_codes(elements: pa.Array, *, ordered: bool) -> Integers:
    """Integers that are equal, or ``ordered``, as elements are. Those of nulls are arbitrary."""
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
    """Concatenate several lists of each row, with elements of one type."""
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
    """Raise ``MemoryError`` for more elements than the offsets of lists reach to."""
    if count > np.iinfo(np.int32).max:
        raise MemoryError(f"{count} values in lists of one Arrow column")


def zipped(lists: Sequence[Lists]) -> tuple[Lists, list[pa.Array]]:
    """Lists as long as the longest list of each row, and the elements of each input, with nulls beyond its end."""
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
