"""Sorts rows by partition and order, and finds where partitions and peers begin.

Each column becomes unsigned integers in its order, as small as its values allow: numbers less the least one, floats by
their bits, text by the place among its different values. The integers of all columns and the row's number are packed
into words of 64 bits, so that sorting words sorts rows. For partition ``p`` and order ``t``, of 4 rows::

    p    t          codes p t   word = p t row      sorted     row   partition   peers
    b  105            1   5       1 5 00            0 0 10       2   begins      begin
    b  100            1   0       1 0 01            0 0 11       3
    a  100            0   0       0 0 10            1 0 01       1   begins      begin
    a  100            0   0       0 0 11            1 5 00       0               begin

Where they do not fit into one word, rows are sorted several times, by the last bits first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpujoin.backends.ordered.ops import Array
from gpujoin.backends.ordered.reductions import all_true, any_true

_WORD_BITS = 64
_LARGEST_WORD = (1 << _WORD_BITS) - 1
SIGN = 1 << (_WORD_BITS - 1)
"""Turns the order of signed words into that of unsigned ones, and back."""
_ROUND_SAMPLE = 1024


@dataclass(frozen=True)
class RowOps:
    """An array module, with operations on rows of windows that a backend does better."""

    xp: Any
    """``numpy`` or ``cupy``."""
    sort: Callable[[Array], Array]
    """Ascending order of unsigned integers of 64 bits."""
    owners: Callable[[Array, int], Array]
    """``[0] * sizes[0] + [1] * sizes[1] + …`` as int64, given the sizes and their sum; none is 0."""
    running_least: Callable[[Array], Array]
    """Least of the int64 values up to and including each place."""
    running_sum: Callable[[Array, SortedRows], Array]
    """Sums of doubles from the start of each row's partition to the row, added one after the other."""


@dataclass(frozen=True)
class Codes:
    """A column as unsigned integers of 64 bits in its order."""

    values: Array
    bits: int
    """Bits of the greatest one."""


@dataclass(frozen=True)
class SortedRows:
    """Rows in the order of a window. All positions are places in this order; there is at least one row."""

    ops: RowOps
    rows: int
    permutation: Array | None
    """Number of the row at each place; ``None``: rows were in order."""
    begins_partition: Array
    begins_peers: Array
    """Whether the first row of a partition, or of peers, is at a place."""

    def in_order(self, values: Array) -> Array:
        """Values of rows in the window's order."""
        return _permuted(values, self.permutation)

    def numbers_at(self, places: Array) -> Array:
        """Numbers of the rows at places."""
        return places if self.permutation is None else self.permutation[places]

    @cached_property
    def starts(self) -> Array:
        """First places of the partitions."""
        return self.ops.xp.flatnonzero(self.begins_partition)

    @cached_property
    def sizes(self) -> Array:
        """Rows of the partitions."""
        return self._sizes(self.starts)

    def _sizes(self, starts: Array) -> Array:
        xp = self.ops.xp
        return xp.concatenate([starts[1:], xp.full(1, self.rows, dtype="int64")]) - starts

    @cached_property
    def longest(self) -> int:
        """Rows of the largest partition."""
        return int(self.sizes.max())

    @cached_property
    def places(self) -> Array:
        """All places, in order."""
        return self.ops.xp.arange(self.rows, dtype="int64")

    @cached_property
    def partition(self) -> Array:
        """Number of each row's partition."""
        return self.ops.owners(self.sizes, self.rows)

    @cached_property
    def first(self) -> Array:
        """First place of each row's partition."""
        return self.starts[self.partition]

    @cached_property
    def end(self) -> Array:
        """Place after the last of each row's partition."""
        return (self.starts + self.sizes)[self.partition]

    @cached_property
    def _peer_starts(self) -> Array:
        return self.ops.xp.flatnonzero(self.begins_peers)

    @cached_property
    def _peer_sizes(self) -> Array:
        return self._sizes(self._peer_starts)

    @cached_property
    def peers(self) -> Array:
        """Number of each row's peers, counted from the first partition's on."""
        return self.ops.owners(self._peer_sizes, self.rows)

    @cached_property
    def first_peer(self) -> Array:
        """First place of each row's peers."""
        return self._peer_starts[self.peers]

    @cached_property
    def peer_end(self) -> Array:
        """Place after the last of each row's peers."""
        return (self._peer_starts + self._peer_sizes)[self.peers]


def sort_rows(ops: RowOps, partition: Sequence[Codes], order: Sequence[Codes], rows: int) -> SortedRows:
    """Sort rows, at least one, by partition, then by order; equal ones stay in their order."""
    row_bits = max(1, (rows - 1).bit_length())
    fields = [part for codes in (*partition, *order) for part in _split(codes, _WORD_BITS - row_bits)]
    permutation: Array | None = None
    while fields:
        word_fields, bits = [], row_bits
        while fields and bits + fields[-1].bits <= _WORD_BITS:
            word_fields.append(fields.pop())
            bits += word_fields[-1].bits
        permutation = _sorted_by(ops, word_fields[::-1], permutation, row_bits, rows)
    begins = ops.xp.zeros(rows, dtype=bool)
    begins[0] = True
    for codes in partition:
        begins[1:] |= _changes(codes, permutation)
    peers = begins.copy()
    for codes in order:
        peers[1:] |= _changes(codes, permutation)
    return SortedRows(ops, rows, permutation, begins, peers)


def _split(codes: Codes, most: int) -> list[Codes]:
    """Codes of so many bits at most, the first bits first; none of a constant."""
    word = codes.values.dtype.type
    parts = []
    for low in range(0, codes.bits, most):
        values = codes.values if low == 0 else codes.values >> word(low)
        bits = min(most, codes.bits - low)
        parts.append(Codes(values if low + bits == codes.bits else values & word((1 << bits) - 1), bits))
    return parts[::-1]


def _sorted_by(
    ops: RowOps, fields: Sequence[Codes], permutation: Array | None, row_bits: int, rows: int
) -> Array | None:
    words = ops.xp.zeros(rows, dtype="uint64")
    word = words.dtype.type
    for field in fields:
        words <<= word(field.bits)
        words |= _permuted(field.values, permutation)
    if all_true(words[1:] >= words[:-1]):
        return permutation
    words <<= word(row_bits)
    words |= ops.xp.arange(rows, dtype="uint64")
    places = (ops.sort(words) & word((1 << row_bits) - 1)).view("int64")
    return places if permutation is None else permutation[places]


def _permuted(values: Array, permutation: Array | None) -> Array:
    return values if permutation is None else values[permutation]


def _changes(codes: Codes, permutation: Array | None) -> Array:
    values = _permuted(codes.values, permutation)
    return values[1:] != values[:-1]


def codes_of(
    ops: RowOps, words: Array, present: Array | None, *, descending: bool = False, nulls_first: bool = True,
    units: Sequence[int] = (),
) -> Codes:  # fmt: skip
    """Make codes of as few bits as the values allow of unsigned words in a column's order; equal values have one word.

    Words of nulls mean nothing; ``present``: which are no nulls, ``None``: all. ``units``: numbers of which all
    differences may be multiples.
    """
    xp, word = ops.xp, words.dtype.type
    none = Codes(xp.zeros(words.shape[0], dtype="uint64"), 0)
    if not words.size:
        return none
    lowest, highest = words, words
    if present is not None:
        lowest, highest = xp.where(present, words, word(_LARGEST_WORD)), xp.where(present, words, word(0))
    least, most = int(lowest.min()), int(highest.max())
    if least > most:  # all are null
        return none
    span = most - least
    if present is not None and span == _LARGEST_WORD:  # there is no code left for nulls
        distinct = xp.unique(words[present])
        words, least, most = xp.searchsorted(distinct, words).astype("uint64"), 0, int(distinct.shape[0]) - 1
        span = most
    values = word(most) - words if descending else words - word(least)
    values, span = _rounded(xp, values, span, present, units)
    if present is None:
        return Codes(values, span.bit_length())
    if nulls_first:
        return Codes(xp.where(present, values + word(1), word(0)), (span + 1).bit_length())
    return Codes(xp.where(present, values, word(span + 1)), (span + 1).bit_length())


def _rounded(xp: Any, values: Array, span: int, present: Array | None, units: Sequence[int]) -> tuple[Array, int]:
    for number in units:
        unit = values.dtype.type(number)
        counted = values if present is None else xp.where(present, values, values.dtype.type(0))
        if not any_true(counted[:_ROUND_SAMPLE] % unit != 0) and not any_true(counted % unit != 0):
            return values // unit, span // number
    return values, span


def dense(ops: RowOps, codes: Codes, most: int) -> Codes:
    """The same with as few bits as there are different values, unless they have at most so many."""
    if codes.bits <= most:
        return codes
    distinct, numbers = ops.xp.unique(codes.values, return_inverse=True)
    return Codes(numbers.astype("uint64"), max(1, (int(distinct.shape[0]) - 1).bit_length()))
