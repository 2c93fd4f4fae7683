"""Null-aware joins: ``NOT IN`` over any number of columns.

``(a, b) NOT IN (SELECT x, y …)`` keeps a left row only if it certainly equals no right row. Where a key is null,
equality is unknown, and an unknown match drops the row too. So a left row is dropped if some right row agrees with it
on all keys that are null on neither side. An example with four left rows, of which one is kept::

    right   x y          left   a    b
            1 2                 1    2      equals (1, 2): dropped
            1 null              1    7      agrees with (1, null) on a, b is unknown: dropped
                                3    null   no right row has x = 3: kept
                                null 2      agrees with (1, 2) on b, a is unknown: dropped

The set of keys that are null in a row is its *null pattern*. For each pair of a left and a right pattern, one search by
the keys that are null in neither finds the matches; if there are no such keys, every pair of rows matches. In the
example the right rows have the patterns {} and {y}, the left rows {}, {b} and {a}: the row (1, 7) is searched by both
keys among right rows without nulls, and by ``a`` alone among right rows with the pattern {y}.

Rows without nulls on both sides are the join's ordinary search by all keys. Only patterns that occur cost anything, and
the build side is not multiplied: each search structure holds the rows of one pattern.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.join.layout import JoinLayout
from gpujoin.engine.join.marks import Mask
from gpujoin.engine.join.rounds import Matched, RowNumbers, pairs_of, probe_rounds, product_rounds
from gpujoin.engine.keys import KeyCodec
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.backend import AnyBackend, Build, PairSlice, Probe
from gpujoin.model.jointype import Side
from gpujoin.model.maps import RowMap, Span
from gpujoin.model.pipeline import AnyDevicePipeline

Patterns = npt.NDArray[np.int64]
PatternPair: TypeAlias = tuple[RowNumbers, RowNumbers, Probe[Any] | None]
"""Build rows of one null pattern, probe rows of another one, and their search by the keys that are null in neither;
``None``: there are no such keys, so that all pairs match."""


@dataclass(frozen=True)
class KeyedRows:
    """The keys of one side's rows, with their null patterns."""

    codes: tuple[pa.Table, ...]
    """Codes of each key column."""
    patterns: Patterns
    """Bit ``i`` is set where key ``i`` is null; a null-safe key never is."""

    @classmethod
    def of(cls, codec: KeyCodec, rows: pa.RecordBatch, side: Side) -> KeyedRows:
        """Compute codes and null patterns of a batch."""
        patterns = np.zeros(rows.num_rows, np.int64)
        codes = []
        for number, single in enumerate(codec.each()):
            codes.append(single.codes(rows, side))
            nulls = single.null_mask(rows, side)
            if nulls is not None:
                patterns |= nulls.astype(np.int64) << number
        return cls(tuple(codes), patterns)

    def rows_by_pattern(self) -> dict[int, RowNumbers]:
        """Row numbers by null pattern, ascending."""
        return {int(p): np.flatnonzero(self.patterns == p) for p in np.unique(self.patterns)}

    def taken(self, rows: RowNumbers, keys: int) -> pa.Table:
        """Codes of given rows, for a set of keys."""
        columns: list[Any] = []
        for number, table in enumerate(self.codes):
            if keys >> number & 1:
                chosen = table if len(rows) == table.num_rows else table.take(pa.array(rows))
                columns += [column.combine_chunks() for column in chosen.columns]
        return pa.table(columns, names=[f"k{i}" for i in range(len(columns))])


class NullSearches:
    """Searches among the build rows of each null pattern, by some of the keys; each is made when it is first needed."""

    def __init__(
        self, backend: AnyBackend, algorithm: Algorithm, frame: Callable[[int, int], Any], *, pairs: bool
    ) -> None:
        self._backend = backend
        self._algorithm = algorithm
        self._frame = frame
        self._pairs = pairs
        self._by_pattern: dict[tuple[int, int], Build[Any, Any]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_pattern)

    def of(self, pattern: int, keys: int) -> Build[Any, Any]:
        """Give the search among the rows of a pattern by a set of keys."""
        with self._lock:
            if (pattern, keys) not in self._by_pattern:
                frame = self._frame(pattern, keys)
                self._by_pattern[pattern, keys] = self._backend.build(frame, self._algorithm, pairs=self._pairs)
            return self._by_pattern[pattern, keys]


class NullPatterns:
    """The build side of a null-aware join, divided by null pattern.

    Searches are used for marks where there is no residual condition.
    """

    def __init__(
        self,
        codec: KeyCodec,
        backend: AnyBackend,
        rows: pa.RecordBatch,
        side: Side,
        algorithm: Algorithm = Algorithm.CUDF,
        *,
        pairs: bool = True,
    ) -> None:
        self._codec = codec
        self._backend = backend
        self._keyed = KeyedRows.of(codec, rows, side)
        self._side = side
        self._every = (1 << len(codec.columns)) - 1
        self.rows = self._keyed.rows_by_pattern()
        self.searches = NullSearches(backend, algorithm, self._frame, pairs=pairs)
        """Those besides the search by all keys."""

    def with_matches(self, rows: pa.RecordBatch, matched: Mask) -> Mask:
        """Add the probe rows that match because of a null to those that match by equal keys."""
        mask = matched.on_host.copy()
        for _, probe_rows, probe in self._pairs(rows, lambda: mask):
            if probe is None:
                mask[probe_rows] = True
            else:
                mask[probe_rows[self._backend.mask_to_host(probe.matched())]] = True
        return Mask(mask, None)

    def candidates(
        self, rows: pa.RecordBatch, matched: Matched, limit: int, metrics: JoinMetrics
    ) -> Iterator[PairSlice]:
        """Pairs that match because of a null, of probe rows without a match."""
        return candidates_by_null(self._backend, self._pairs(rows, matched), matched, limit, metrics)

    def _pairs(self, rows: pa.RecordBatch, matched: Matched) -> Iterator[PatternPair]:
        """For each pair of patterns: build rows, probe rows without a match, and their search (``None``: all match)."""
        keyed = KeyedRows.of(self._codec, rows, self._side.other)
        for probe_pattern, probe_rows in keyed.rows_by_pattern().items():
            for build_pattern in sorted(self.rows, reverse=True):
                if not probe_pattern and not build_pattern:
                    continue
                waiting = probe_rows[~matched()[probe_rows]]
                if not len(waiting):
                    break
                common = self._every & ~(probe_pattern | build_pattern)
                probe = None
                if common:
                    frame = self._backend.from_arrow(keyed.taken(waiting, common))
                    probe = self.searches.of(build_pattern, common).probe(frame)
                yield self.rows[build_pattern], waiting, probe

    def _frame(self, pattern: int, keys: int) -> Any:
        return self._backend.from_arrow(self._keyed.taken(self.rows[pattern], keys))


class FrameNulls:
    """The build side of a null-aware join of frames, divided by null pattern; see :class:`NullPatterns`."""

    def __init__(
        self, layout: JoinLayout, rows: Any, device: AnyDevicePipeline, algorithm: Algorithm, *, pairs: bool
    ) -> None:
        self._device = device
        self._layout = layout
        self._build = rows
        self._every = (1 << len(layout.spec.keys)) - 1
        self.rows = self._rows_by_pattern(rows, layout.build.side)
        self.searches = NullSearches(device.backend, algorithm, self._frame, pairs=pairs)
        """Those besides the search by all keys."""

    def with_matches(self, rows: Any, matched: Mask) -> Mask:
        """Add the probe rows that match because of a null to those that match by equal keys."""
        backend = self._device.backend
        marks = backend.marks(backend.frame_rows(rows))
        backend.mark(marks, backend.selection(matched.on(backend), True))
        for _, probe_rows, probe in self._pairs(rows):
            backend.mark(marks, probe_rows if probe is None else backend.filter_map(probe_rows, probe.matched()))
        return Mask(marks, backend)

    def candidates(self, rows: Any, matched: Matched, limit: int, metrics: JoinMetrics) -> Iterator[PairSlice]:
        """Pairs that match because of a null; their row numbers go through the host, where rounds are made of them."""
        backend = self._device.backend
        to_host = backend.indices_to_host
        pairs = ((to_host(build), to_host(probed), probe) for build, probed, probe in self._pairs(rows))
        return candidates_by_null(backend, pairs, matched, limit, metrics)

    def _rows_by_pattern(self, rows: Any, side: Side) -> dict[int, RowMap]:
        positions = [key.of(side) for key in self._layout.spec.keys]
        return self._device.rows_by_nulls(rows, positions, self._layout.codec.null_safe)

    def _pairs(self, rows: Any) -> Iterator[tuple[RowMap, RowMap, Probe[Any] | None]]:
        """For each pair of patterns: build rows, probe rows, and their search (``None``: all match)."""
        side = self._layout.probe.side
        for probe_pattern, probe_rows in self._rows_by_pattern(rows, side).items():
            for build_pattern, build_rows in self.rows.items():
                if not probe_pattern and not build_pattern:
                    continue
                common = self._every & ~(probe_pattern | build_pattern)
                probe = None
                if common:
                    frame = self._keys(rows, probe_rows, side, common)
                    probe = self.searches.of(build_pattern, common).probe(frame)
                yield build_rows, probe_rows, probe

    def _frame(self, pattern: int, keys: int) -> Any:
        return self._keys(self._build, self.rows[pattern], self._layout.build.side, keys)

    def _keys(self, frame: Any, rows: RowMap, side: Side, keys: int) -> Any:
        """Key frame of some rows, for a set of keys."""
        device, codec = self._device, self._layout.codec
        chosen = [number for number in range(len(codec.types)) if keys >> number & 1]
        columns = device.select(frame, [self._layout.spec.keys[number].of(side) for number in chosen])
        if rows != Span(0, device.backend.frame_rows(frame)):
            columns = device.backend.gather(columns, rows)
        types, null_safe = [codec.types[n] for n in chosen], [codec.null_safe[n] for n in chosen]
        return device.keys(columns, range(len(chosen)), types, null_safe)


def candidates_by_null(
    backend: AnyBackend, pairs: Iterable[PatternPair], matched: Matched, limit: int, metrics: JoinMetrics
) -> Iterator[PairSlice]:
    """Pairs of rows by pairs of patterns, of probe rows without a match."""
    for build_rows, probe_rows, probe in pairs:
        if probe is None:
            for rows, others in product_rounds(probe_rows, len(build_rows), limit, matched):
                yield pairs_of(backend, rows, build_rows[others])
            continue
        of_rows = partial(_of, matched, probe_rows)
        for candidates in probe_rounds(backend, probe, len(probe_rows), of_rows, limit, metrics):
            probe_at, build_at = (backend.indices_to_host(rows) for rows in (candidates.probe, candidates.build))
            yield pairs_of(backend, probe_rows[probe_at], build_rows[build_at])


def _of(matched: Matched, rows: RowNumbers) -> npt.NDArray[np.bool_]:
    return matched()[rows]
