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
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpujoin.engine.join.layout import SideLayout
from gpujoin.engine.join.marks import Mask
from gpujoin.engine.join.rounds import Matched, RowNumbers, pairs_of, probe_rounds, product_rounds
from gpujoin.engine.join.sinks import Sink
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.backend import Build, PairSlice, Probe
from gpujoin.model.maps import RowMap

PatternPair: TypeAlias = tuple[RowMap, RowMap, Probe[Any] | None]
"""Build rows of one null pattern, probe rows of another one, and their search by the keys that are null in neither.
The search is ``None`` if there are no such keys, so that all pairs match."""


class NullPatterns:
    """The build side of a null-aware join, divided by null pattern.

    Searches are used for marks where there is no residual condition.
    """

    def __init__(self, sink: Sink, rows: Any, *, pairs: bool) -> None:
        self._sink = sink
        self._build = rows
        self._pairs = pairs
        self.rows = self._by_pattern(rows, sink.layout.build, None)
        self.searches: dict[tuple[int, int], Build[Any, Any]] = {}
        """Searches among the build rows of a pattern, by some of the keys; each is made when it is first needed."""
        self._lock = threading.Lock()

    def with_matches(self, rows: Any, matched: Mask) -> Mask:
        """Add the probe rows with a match because of a null to those with a match by equal keys."""
        backend = self._sink.backend
        marks = backend.marks(rows.num_rows)
        backend.mark(marks, backend.selection(matched.on(backend), True))
        for _, probe_rows, probe in self._pattern_pairs(rows, matched, every=False):
            backend.mark(marks, probe_rows if probe is None else backend.filter_map(probe_rows, probe.matched()))
        return Mask(marks, backend)

    def candidates(
        self, rows: Any, tested: Mask, matched: Matched, limit: int, metrics: JoinMetrics
    ) -> Iterator[PairSlice]:
        """Pairs that match because of a null, of probe rows without a match.

        ``tested`` marks the rows that match by equal keys, ``matched`` those that match so far. Row numbers go through
        the host, where rounds are made of them.
        """
        backend = self._sink.backend
        for build_map, probe_map, probe in self._pattern_pairs(rows, tested, every=True):
            build_rows, probe_rows = backend.indices_to_host(build_map), backend.indices_to_host(probe_map)
            if probe is None:
                waiting = probe_rows[~matched()[probe_rows]]
                for numbers, others in product_rounds(waiting, len(build_rows), limit, matched):
                    yield pairs_of(backend, numbers, build_rows[others])
                continue
            of_rows = partial(_at, matched, probe_rows)
            for pairs in probe_rounds(backend, probe, len(probe_rows), of_rows, limit, metrics):
                probe_at, build_at = (backend.indices_to_host(numbers) for numbers in (pairs.probe, pairs.build))
                yield pairs_of(backend, probe_rows[probe_at], build_rows[build_at])

    def _pattern_pairs(self, rows: Any, matched: Mask, *, every: bool) -> Iterator[PatternPair]:
        """For each pair of patterns: build rows, probe rows without a match by equal keys, and their search.

        Unless ``every`` pair is asked for, none follows after one of which all rows match.
        """
        layout = self._sink.layout.probe
        keys = (1 << len(self._sink.layout.spec.keys)) - 1
        for probe_pattern, probe_rows in self._by_pattern(rows, layout, matched).items():
            for build_pattern, build_rows in self.rows.items():
                if not probe_pattern and not build_pattern:
                    continue
                common = keys & ~(probe_pattern | build_pattern)
                if common:
                    frame = self._sink.keys_of(rows, probe_rows, layout, _numbers(common))
                    yield build_rows, probe_rows, self._search(build_pattern, common).probe(frame)
                    continue
                yield build_rows, probe_rows, None
                if not every:
                    break

    def _by_pattern(self, rows: Any, layout: SideLayout, but: Mask | None) -> dict[int, RowMap]:
        """Rows by null pattern; patterns of most nulls, which match most rows, come first."""
        return dict(sorted(self._sink.rows_by_nulls(rows, layout, but).items(), reverse=True))

    def _search(self, pattern: int, keys: int) -> Build[Any, Any]:
        """Give the search among the build rows of a pattern by a set of keys; these are copied to a device for it."""
        sink = self._sink
        with self._lock:
            if (pattern, keys) not in self.searches:
                try:
                    frame = sink.keys_of(self._build, self.rows[pattern], sink.layout.build, _numbers(keys))
                    search = sink.backend.build(frame, sink.options.gpu_algorithm, pairs=self._pairs)
                finally:
                    sink.release(self._build)
                self.searches[pattern, keys] = search
            return self.searches[pattern, keys]


def _numbers(keys: int) -> list[int]:
    return [number for number in range(keys.bit_length()) if keys >> number & 1]


def _at(matched: Matched, rows: RowNumbers) -> npt.NDArray[np.bool_]:
    return matched()[rows]
