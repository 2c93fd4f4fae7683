"""Finds the places of each row's frame.

The bound of a range by distance is a value, and is searched among the keys of the row's partition that are not null.
For the keys 10, 20, 50 and a null of a partition, nulls first, and ``RANGE BETWEEN 15 PRECEDING AND CURRENT ROW``::

    place  key    lower bound   frame
        0  null   null          0 to 0    a null is within any distance of nulls, and of nothing else
        1  10     -5            1 to 1
        2  20     5             1 to 2
        3  50     35            3 to 3
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from gpujoin.backends.ordered.ops import Array
from gpujoin.backends.ordered.reductions import any_true
from gpujoin.backends.ordered.windows.rows import RowOps, SortedRows
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.windows import Frame, FrameType


@dataclass(frozen=True)
class Presence:
    """Which rows of a column, in the window's order, are not null."""

    ops: RowOps
    mask: Array | None
    """False where null; ``None``: nowhere."""

    @cached_property
    def before(self) -> Array:
        """How many values are not null before each place, and at the end."""
        assert self.mask is not None
        return running(self.ops, self.mask)

    @cached_property
    def places(self) -> Array:
        """Places of the values that are not null."""
        return self.ops.xp.flatnonzero(self.mask)

    def counts(self, span: Span) -> Array:
        """How many values of each frame are not null."""
        if self.mask is None:
            return span.sizes
        return span.total(self.before)

    def nth(self, numbers: Array, valid: Array) -> Array:
        """Give the places of values by number, not counting nulls; arbitrary where not valid."""
        places, xp = self.places, self.ops.xp
        if places.shape[0] == 0:
            return xp.zeros(numbers.shape[0], dtype="int64")
        return places[xp.where(valid, numbers, 0)]


def running(ops: RowOps, values: Array) -> Array:
    """Sums of the values before each place, and of all, as int64, which wraps around."""
    before = ops.xp.zeros(values.shape[0] + 1, dtype="int64")
    before[1:] = ops.xp.cumsum(values, dtype="int64")
    return before


@dataclass(frozen=True)
class RangeKey:
    """The order key of a window whose ranges are bounded by distances, in the window's order."""

    values: Array
    """Numbers; those of nulls mean nothing."""
    present: Presence
    words: Callable[[Array], Array]
    """Integers in the order of such numbers: of floats NaN is the greatest, and both zeros are equal."""
    type: str
    """Spark's type, for messages."""
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Span:
    """The places that the frame of each row has."""

    lows: Array
    highs: Array
    """From ``lows`` to before ``highs``; ``highs`` is not less."""
    from_start: bool
    """Whether frames begin with their partition."""
    longest: int | None
    """Most places of a frame, where the frame says so."""

    @classmethod
    def from_frame(cls, frame: Frame, rows: SortedRows, key: RangeKey | None = None) -> Span:
        """Find the places of each row's frame. Distances are those of the order key.

        Raises ``ExpressionEvaluationError`` if a bound is outside of the key's type.
        """
        xp = rows.ops.xp
        if frame.has_distance:
            assert key is not None
            lows, highs = _ranged(frame, rows, key)
            return cls(lows, xp.maximum(highs, lows), frame.start is None, None)
        by_range = frame.type is FrameType.RANGE
        start, end = (None if bound is None else int(bound) for bound in (frame.start, frame.end))
        lows, highs = rows.first, rows.end
        if start is not None:
            lows = rows.first_peer if by_range else xp.clip(rows.places + start, rows.first, rows.end)
        if end is not None:
            highs = rows.peer_end if by_range else xp.clip(rows.places + (end + 1), rows.first, rows.end)
            highs = xp.maximum(highs, lows)
        longest = None
        if not by_range and start is not None and end is not None:
            longest = max(0, end - start + 1)
        return cls(lows, highs, start is None, longest)

    @cached_property
    def sizes(self) -> Array:
        """Places of each frame."""
        return self.highs - self.lows

    def total(self, before: Array) -> Array:
        """Sum over each frame, given the sums before each place (:func:`running`)."""
        return before[self.highs] - before[self.lows]

    @cached_property
    def last(self) -> Array:
        """Last place of each frame; arbitrary for an empty one."""
        return (self.highs - 1).clip(0)


def _ranged(frame: Frame, rows: SortedRows, key: RangeKey) -> tuple[Array, Array]:
    """Give the first places of frames, and the places after their last, which may be less."""
    low, high, present = rows.first, rows.end, key.present.mask
    if present is not None:
        nulls = (high - low) - (key.present.before[high] - key.present.before[low])
        low, high = (low + nulls, high) if key.nulls_first else (low, high - nulls)
    ordered = key.words(key.values)
    if key.descending:
        ordered = ~ordered

    def searched(distance: float, peers: Array, *, after: bool) -> Array:
        bound = key.words(_moved(rows.ops, key, distance))
        places = _edge(rows, ordered, ~bound if key.descending else bound, low, high, after=after)
        return places if present is None else rows.ops.xp.where(present, places, peers)

    lows, highs = rows.first, rows.end
    if frame.start is not None:
        lows = searched(frame.start, rows.first_peer, after=False) if frame.start else rows.first_peer
    if frame.end is not None:
        highs = searched(frame.end, rows.peer_end, after=True) if frame.end else rows.peer_end
    return lows, highs


def _moved(ops: RowOps, key: RangeKey, distance: float) -> Array:
    """Values at a distance: in a descending order greater ones come before."""
    values, present = key.values, key.present.mask
    distance = -distance if key.descending else distance
    if values.dtype.kind == "f":
        return values + values.dtype.type(distance)
    info = ops.xp.iinfo(values.dtype)
    distance = int(distance)
    if not int(info.min) <= distance <= int(info.max):
        raise ExpressionEvaluationError(f"{distance}, a distance of a range frame, is none of {key.type}")
    leaves = values > info.max - distance if distance > 0 else values < info.min - distance
    if any_true(leaves if present is None else leaves & present):
        raise ExpressionEvaluationError(f"a bound of a range frame, {distance} from its row, leaves {key.type}")
    return values + values.dtype.type(distance)  # what stands for nulls may wrap


def _edge(rows: SortedRows, ordered: Array, bounds: Array, low: Array, high: Array, *, after: bool) -> Array:
    """Search, for each row, the first place from ``low`` to before ``high`` whose word is not less than its bound.

    ``after``: whose word is greater. There is ``high`` where there is none. Words ascend from ``low`` to ``high``.
    """
    xp = rows.ops.xp
    for _ in range(rows.longest.bit_length()):
        middle = (low + high) >> 1
        word = ordered[xp.minimum(middle, rows.rows - 1)]
        below = ((word <= bounds) if after else (word < bounds)) & (low < high)
        low, high = xp.where(below, middle + 1, low), xp.where(below, high, middle)
    return low


@dataclass(frozen=True)
class Members:
    """The rows of frames, one frame after the other; frames without rows are left out, and the others numbered."""

    places: Array
    """Place of each row."""
    groups: Array
    """Number of the frame that each belongs to."""
    number: Array
    """Number of each frame; that of empty ones is how many are not empty."""

    @classmethod
    def from_sizes(cls, ops: RowOps, lows: Array, sizes: Array) -> Members:
        """List the rows of frames, given their first places and how many they have."""
        filled = sizes > 0
        before = running(ops, filled)
        number = ops.xp.where(filled, before[:-1], before[-1])
        lows, sizes = lows[filled], sizes[filled]
        ends = ops.xp.cumsum(sizes, dtype="int64")
        total = int(ends[-1]) if ends.shape[0] else 0
        groups = ops.owners(sizes, total)
        return cls(ops.xp.arange(total, dtype="int64") + (lows - (ends - sizes))[groups], groups, number)
