"""Wavelet matrix: counts and finds the values of a range within any stretch of a sequence of integers.

For each bit of the values, from the highest on, the sequence is divided stably into zeros and ones, and the number of
zeros before each position is stored. A search follows the bits, and a stretch of the sequence stays a stretch at each
level (F. Claude, G. Navarro, A. Ordóñez, The wavelet matrix, Information Systems 47, 2015). An example with values of
two bits, where the values less than 2 among positions 1 to 3 are counted::

    values    3 0 2 1      high bits  1 0 1 0      zeros before each position  0 0 1 1 2
    search    positions 1 to 3 hold 0 2 1: two of their high bits are zero, so two values are less than 2

A range index uses it for the second points, in the order of the first ones. The matches of two ranges are then a
stretch and a range of values: they are counted, and the k-th of them is found, in as many steps as the values have
bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpujoin.backends.ordered.ops import Array, OrderOps

_BLOCK_BITS = 8
"""Bits of a block: zeros are counted from the start for every 256th position, and from there in one byte."""


@dataclass(frozen=True)
class _Level:
    """The zeros before each position, for one bit."""

    bit: int
    """Number of the bit, counted from the lowest."""
    blocks: Array
    """Number of zeros before every 256th position."""
    within: Array
    """Number of zeros since then, for each of ``length + 1`` positions."""
    zeros: int
    """Number of zeros in all, the first position of the ones at the next level."""

    def zeros_before(self, positions: Array) -> Array:
        return self.blocks[positions >> _BLOCK_BITS] + self.within[positions]


class WaveletMatrix:
    """A wavelet matrix over a sequence of non-negative integers below ``limit``."""

    def __init__(self, ops: OrderOps, values: Array, limit: int) -> None:
        xp = self._xp = ops.xp
        places = xp.arange(values.shape[0], dtype=xp.int64)
        levels = []
        for bit in reversed(range(max(1, int(limit).bit_length()))):
            zero = (values >> bit) & 1 == 0
            before = xp.zeros(values.shape[0] + 1, dtype=xp.int64)
            before[1:] = xp.cumsum(zero, dtype=xp.int64)
            blocks = before[:: 1 << _BLOCK_BITS]
            start = blocks[xp.arange(before.shape[0], dtype=xp.int64) >> _BLOCK_BITS]
            levels.append(_Level(bit, blocks.copy(), (before - start).astype(xp.uint8), int(before[-1])))
            values = xp.concatenate([values[zero], values[~zero]])
            places = xp.concatenate([places[zero], places[~zero]])
        self._levels = tuple(levels)
        self._places = places
        self._block = ops.block

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self._places.nbytes + sum(level.blocks.nbytes + level.within.nbytes for level in self._levels))

    @property
    def depth(self) -> int:
        """Steps of a search."""
        return len(self._levels)

    def count_below(self, begin: Array, end: Array, bound: Array) -> Array:
        """Count the values less than ``bound``, from 0 to ``limit``, at positions ``begin … end - 1``, row by row."""
        return self._in_blocks(self._count_below, begin, end, bound)

    def select(self, begin: Array, end: Array, number: Array) -> Array:
        """Position of the ``number``-th value, from 0, among those at ``begin … end - 1``, by value, then position."""
        return self._in_blocks(self._select, begin, end, number)

    def _in_blocks(self, ask: Callable[[Array, Array, Array], Array], begin: Array, end: Array, other: Array) -> Array:
        rows = int(begin.shape[0])
        if rows <= self._block:
            return ask(begin, end, other)
        parts = [slice(start, start + self._block) for start in range(0, rows, self._block)]
        return self._xp.concatenate([ask(begin[part], end[part], other[part]) for part in parts])

    def _count_below(self, begin: Array, end: Array, bound: Array) -> Array:
        xp = self._xp
        count = xp.zeros(begin.shape[0], dtype=xp.int64)
        for level in self._levels:
            low, high = level.zeros_before(begin), level.zeros_before(end)
            is_one = (bound >> level.bit) & 1 == 1
            count += xp.where(is_one, high - low, 0)
            begin = xp.where(is_one, level.zeros + begin - low, low)
            end = xp.where(is_one, level.zeros + end - high, high)
        return count

    def _select(self, begin: Array, end: Array, number: Array) -> Array:
        xp = self._xp
        for level in self._levels:
            low, high = level.zeros_before(begin), level.zeros_before(end)
            zeros = high - low
            is_one = number >= zeros
            number = xp.where(is_one, number - zeros, number)
            begin = xp.where(is_one, level.zeros + begin - low, low)
            end = xp.where(is_one, level.zeros + end - high, high)
        return self._places[begin + number]
