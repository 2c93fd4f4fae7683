"""Nearest build rows, found by array operations; see `gpujoin.engine.join.as_of` for an example.

All build rows up to a point, or from it on, lie side by side in a range index. The last or the first of them is the
nearest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from gpujoin.backends.ordered.index import Points, Range
from gpujoin.backends.ordered.ops import Array, OrderOps
from gpujoin.backends.ordered.probe import OrderedProbe
from gpujoin.backends.ordered.reductions import total
from gpujoin.model.backend import NearestTerms, PairSlice
from gpujoin.model.maps import Indices, MapOrder, OutOfBounds, RowMap, Span
from gpujoin.model.ranges import LEAST, MOST, distances
from gpujoin.model.spec import Direction


def nearest_rows(
    ops: OrderOps, find: Callable[[Range], OrderedProbe], codes: Array, points: Points, terms: NearestTerms
) -> LookupProbe:
    """Find the nearest build row of each row.

    Parameters
    ----------
    ops : OrderOps
        Arrays of the backend.
    find : callable
        Probes an index of one point a row with a range for each row.
    codes : Array
        Point of each build row.
    points : Points
        Point of each row.
    terms : NearestTerms
        Which row is wanted.
    """
    xp, own = ops.xp, points.values
    if not codes.shape[0] or not own.shape[0]:
        return LookupProbe(ops, xp.full(own.shape[0], -1, dtype=ops.index), 0)

    def distance(rows: Array) -> Array:
        return distances(xp, own, codes[xp.maximum(rows, 0)], terms.float_bytes)

    if terms.direction is Direction.BACKWARD:
        rows = _edge(xp, find, points, terms, backward=True)
    elif terms.direction is Direction.FORWARD:
        rows = _edge(xp, find, points, terms, backward=False)
    else:
        back, ahead = (_edge(xp, find, points, terms, backward=backward) for backward in (True, False))
        rows = xp.where((back < 0) | ((ahead >= 0) & (distance(ahead) < distance(back))), ahead, back)
    if terms.tolerance is not None and (terms.float_bytes or terms.tolerance < 1 << 64):
        far = distance(rows)
        rows = xp.where((rows >= 0) & ~(far <= far.dtype.type(terms.tolerance)), -1, rows)
    return LookupProbe(ops, rows.astype(ops.index), total(rows >= 0))


def _edge(
    xp: Any, find: Callable[[Range], OrderedProbe], points: Points, terms: NearestTerms, *, backward: bool
) -> Array:
    """The last build row up to each point, or the first from it on; −1 for none."""
    bound, valid = points.values, points.valid
    if not terms.allow_exact:
        inner = bound != (LEAST if backward else MOST)  # There is no code beyond the outermost one.
        valid = inner if valid is None else valid & inner
        bound = bound - inner if backward else bound + inner
    outermost = xp.full(bound.shape[0], LEAST if backward else MOST, dtype=xp.int64)
    low, high = (outermost, bound) if backward else (bound, outermost)
    return find((Points(low, valid), Points(high, None))).edge(last=backward).values


class LookupProbe:
    """A probe with known matches, at most one for each probe row: its build row, or −1."""

    def __init__(self, ops: OrderOps, build_rows: Array, pairs: int) -> None:
        self._ops = ops
        self._build_rows = build_rows
        self.rows, self.pairs = int(build_rows.shape[0]), pairs

    def matched(self) -> Array:
        """Mask of the probe rows that have a match."""
        with self._ops.entered():
            return self._build_rows >= 0

    def lookup(self) -> Indices:
        """Map from each probe row to its build row, or −1."""
        return Indices(self._build_rows, self.rows, OutOfBounds.NULLIFY)

    def slices(self, max_pairs: int) -> Iterator[PairSlice]:
        """All pairs, at most ``max_pairs`` at a time."""
        ops = self._ops
        yield from lookup_slices(ops.xp, ops.index, ops.entered, self._build_rows, self.pairs, max_pairs)

    def mark_build(self, marks: Array) -> None:
        """Set ``marks`` wherever a build row has a match."""
        with self._ops.entered():
            marks[self._build_rows[self._build_rows >= 0]] = True


def lookup_slices(
    xp: Any, index: Any, entered: Callable[[], AbstractContextManager[Any]], build_rows: Array, pairs: int,
    max_pairs: int,
) -> Iterator[PairSlice]:  # fmt: skip
    """Pairs of rows with at most one match, in slices. The device is current only while a slice is being made."""
    if not pairs:
        return
    with entered():
        all_match = pairs == int(build_rows.shape[0])
        probe = None if all_match else xp.flatnonzero(build_rows >= 0).astype(index)
        build = build_rows if probe is None else build_rows[probe]
    for start in range(0, pairs, max_pairs):
        length = min(pairs - start, max_pairs)
        of_probe: RowMap = Span(start, length)
        with entered():
            if probe is not None:
                of_probe = Indices(probe[start : start + length], length, order=MapOrder.ASCENDING)
            of_build = Indices(build[start : start + length], length)
        yield PairSlice(of_probe, of_build)
