"""``NOT IN`` over any number of columns: which rows an equality cannot tell from their match, since a key is null.

A row of either side has a *null pattern*, the set of its keys that are null. A left row is dropped if some right row
agrees with it on all keys that are null in neither; what an equality with a null says is unknown, and unknown is enough
to drop. So for each pair of patterns one search by the keys that both have decides; no key in common, and every such
pair of rows matches. Rows without nulls on either side are the join's ordinary search by all keys. Only patterns that
occur cost anything, and the build side is never multiplied: each search holds the rows of one pattern.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.firstmatch import Matching, Rows, paired, product_rounds, rounds_of
from gpujoin.engine.keys import KeyCodec
from gpujoin.model.backend import AnyBackend, Build, PairSlice, Probe
from gpujoin.model.jointype import Side
from gpujoin.model.keyfacts import Choose, Wanted

Patterns = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyedRows:
    """Rows of one side with their patterns.

    Attributes
    ----------
    codes : tuple of Table
        Codes of each key.
    patterns : ndarray of int64, shape (rows,)
        Bit ``i`` is set where key ``i`` is null; a null-safe key never is.
    """

    codes: tuple[pa.Table, ...]
    patterns: Patterns

    @classmethod
    def of(cls, codec: KeyCodec, rows: pa.RecordBatch, side: Side) -> KeyedRows:
        """Take the keys of a batch apart."""
        patterns = np.zeros(rows.num_rows, np.int64)
        codes = []
        for number, single in enumerate(codec.each()):
            codes.append(single.codes(rows, side))
            nulls = single.null_mask(rows, side)
            if nulls is not None:
                patterns |= nulls.astype(np.int64) << number
        return cls(tuple(codes), patterns)

    def rows_by_pattern(self) -> dict[int, Rows]:
        """The rows of each pattern that occurs, ascending."""
        return {int(p): np.flatnonzero(self.patterns == p) for p in np.unique(self.patterns)}

    def taken(self, rows: Rows, keys: int) -> pa.Table:
        """Codes of some rows for a set of keys."""
        columns: list[Any] = []
        for number, table in enumerate(self.codes):
            if keys >> number & 1:
                some = table if len(rows) == table.num_rows else table.take(pa.array(rows))
                columns += [column.combine_chunks() for column in some.columns]
        return pa.table(columns, names=[f"k{i}" for i in range(len(columns))])


class NullPatterns:
    """The build side of a null-aware anti join, by pattern.

    Parameters
    ----------
    codec : KeyCodec
        Of the join's keys.
    backend : Backend
        Where it is searched.
    rows : RecordBatch
        All build rows.
    side : Side
        Which side they are.
    choose : callable or None
        The planner's choice of an algorithm, for a backend that has several.
    wanted : Wanted
        What searches will be asked for: marks where there is no further condition.
    """

    def __init__(
        self,
        codec: KeyCodec,
        backend: AnyBackend,
        rows: pa.RecordBatch,
        side: Side,
        choose: Choose | None = None,
        wanted: Wanted = Wanted.PAIRS,
    ) -> None:
        self._choose = choose
        self._wanted = wanted
        self._codec = codec
        self._backend = backend
        self._keyed = KeyedRows.of(codec, rows, side)
        self._side = side
        self._every = (1 << len(codec.columns)) - 1
        self.rows = self._keyed.rows_by_pattern()
        self._searches: dict[tuple[int, int], Build[Any, Any]] = {}
        self._lock = threading.Lock()

    @property
    def searches(self) -> int:
        """How many searches besides that by all keys were made so far."""
        return len(self._searches)

    def matched(self, rows: pa.RecordBatch, mask: npt.NDArray[np.bool_]) -> None:
        """Mark the probe rows that match by a null, in place.

        Parameters
        ----------
        rows : RecordBatch
            Probe rows.
        mask : ndarray of bool
            Those that match by all keys; rows marked are not looked at again.
        """
        for _, of_probe, _, probe in self._pairs(rows, lambda: mask):
            if probe is None:
                mask[of_probe] = True
            else:
                mask[of_probe[self._backend.mask_to_host(probe.matched())]] = True

    def candidates(self, morsel: Matching, most: int) -> Iterator[PairSlice]:
        """Pairs that match by a null, of probe rows that are not yet marked; marks are read between slices."""
        backend, done = self._backend, morsel.marked
        for build_rows, of_probe, _, probe in self._pairs(morsel.rows, done):
            if probe is None:
                for some, others in product_rounds(of_probe, len(build_rows), most, done):
                    yield paired(backend, some, build_rows[others])
                continue
            for part in rounds_of(morsel, probe, len(of_probe), lambda rows=of_probe: done()[rows], most):  # type: ignore[misc]
                mine, theirs = (backend.indices_to_host(m) for m in (part.probe, part.build))
                yield paired(backend, of_probe[mine], build_rows[theirs])

    def _pairs(self, rows: pa.RecordBatch, done: Any) -> Iterator[tuple[Rows, Rows, int, Probe[Any] | None]]:
        """Build rows, probe rows not yet done, common keys, and their search (``None``: all match), by pattern pair."""
        keyed = KeyedRows.of(self._codec, rows, self._side.other)
        for mine, of_probe in keyed.rows_by_pattern().items():
            for theirs in sorted(self.rows, reverse=True):
                if not mine and not theirs:
                    continue
                waiting = of_probe[~done()[of_probe]]
                if not len(waiting):
                    break
                common = self._every & ~(mine | theirs)
                probe = None
                if common:
                    search = self._search(theirs, common)
                    probe = search.probe(self._backend.from_arrow(keyed.taken(waiting, common)))
                yield self.rows[theirs], waiting, common, probe

    def _search(self, pattern: int, keys: int) -> Build[Any, Any]:
        with self._lock:
            found = self._searches.get((pattern, keys))
            if found is None:
                codes = self._keyed.taken(self.rows[pattern], keys)
                frame = self._backend.from_arrow(codes)
                found = self._backend.build(frame, self._choose, self._wanted)
                self._searches[pattern, keys] = found
            return found
