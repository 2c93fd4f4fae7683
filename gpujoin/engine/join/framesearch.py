"""Searches of build sides that are frames of a device: by the nearest row, and by null keys."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpujoin.engine.join.as_of import nearest_terms
from gpujoin.engine.join.layout import JoinLayout
from gpujoin.engine.join.not_in import candidates_by_null
from gpujoin.engine.join.ranges import RangeEvaluationError
from gpujoin.errors import DeviceValueError, ExpressionEvaluationError
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.backend import Build, PairSlice, Probe, RangeBuild, RangeProbe
from gpujoin.model.jointype import Side
from gpujoin.model.maps import RowMap, Span
from gpujoin.model.pipeline import AnyDevicePipeline, NearestRows, RangedRows

if TYPE_CHECKING:
    from gpujoin.engine.join.morsel import Morsel


@dataclass(frozen=True)
class FrameAsOfBuild:
    """The right side of an as-of join of frames, with a search structure; see :class:`.as_of.AsOfBuild`."""

    search: NearestRows[Any]
    order_at: int
    key_at: Sequence[int]
    """Positions of the left side's order key and equality keys."""

    @classmethod
    def of(cls, layout: JoinLayout, rows: Any, device: AnyDevicePipeline, *, kernels: bool) -> FrameAsOfBuild:
        """Build the search structure over right rows."""
        terms, dtype = layout.spec.as_of, layout.as_of_type
        assert terms is not None
        assert dtype is not None
        keys = layout.spec.keys
        search = device.as_of(
            rows, terms.right, [key.right for key in keys], layout.codec.types, nearest_terms(terms, dtype),
            kernels=kernels,
        )  # fmt: skip
        return cls(search, terms.left, [key.left for key in keys])

    @property
    def algorithm(self) -> str:
        """Name of the search."""
        return self.search.algorithm

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.search.nbytes

    def probe(self, rows: Any) -> Probe[Any]:
        """Find the nearest right row of each left row."""
        return self.search.probe(rows, self.order_at, self.key_at)


def on_device(layout: JoinLayout, device: AnyDevicePipeline) -> JoinLayout:
    """The layout of a join of frames: without ranges where the device does not search by them."""
    if layout.ranged is None or device.searches(layout.ranged.axes):
        return layout
    return dataclasses.replace(layout, ranged=None)


@dataclass(frozen=True)
class FrameRangeBuild:
    """The build side of a join of frames on ranges, with a search structure; see :class:`.ranges.BuiltRanges`."""

    search: RangedRows[Any]
    key_at: Sequence[int]
    """Positions of the probe side's equality keys."""

    @classmethod
    def of(
        cls, layout: JoinLayout, rows: Any, device: AnyDevicePipeline, least_spread: float, *, kernels: bool
    ) -> FrameRangeBuild | None:
        """Build the search structure, unless an operand has no value for some row, or few rows have equal keys."""
        codec, keys = layout.codec, layout.spec.keys
        key_at = {side: [key.of(side) for key in keys] for side in Side}
        try:
            search = device.ranges(
                rows, layout.axes, key_at[layout.build.side], codec.types, codec.null_safe, kernels=kernels
            )
        except (ExpressionEvaluationError, DeviceValueError):
            return None
        if keys and search.spread < least_spread:
            return None
        return cls(search, key_at[layout.probe.side])

    @property
    def build(self) -> RangeBuild[Any, Any]:
        """The search structure over codes."""
        return self.search.build

    def probe(self, rows: Any) -> RangeProbe[Any]:
        """Find the matches of probe rows; raises ``RangeEvaluationError`` if an operand has no value for some row."""
        try:
            return self.search.probe(rows, self.key_at)
        except (ExpressionEvaluationError, DeviceValueError) as problem:
            raise RangeEvaluationError(str(problem)) from problem


class FrameNulls:
    """The build side of a null-aware join of frames, divided by null pattern; see :class:`.not_in.NullPatterns`."""

    def __init__(
        self, layout: JoinLayout, rows: Any, device: AnyDevicePipeline, algorithm: Algorithm, *, pairs: bool
    ) -> None:
        self._device = device
        self._layout = layout
        self._algorithm = algorithm
        self._needs_pairs = pairs
        self._build = rows
        self._every = (1 << len(layout.spec.keys)) - 1
        self.rows = self._rows_by_pattern(rows, layout.build.side)
        self._searches: dict[tuple[int, int], Build[Any, Any]] = {}
        self._lock = threading.Lock()

    @property
    def searches(self) -> int:
        """Number of searches so far, besides that by all keys."""
        return len(self._searches)

    def marked(self, rows: Any, matched: Any) -> Any:
        """Mask of the probe rows with a match, given that of those with a match by equal keys."""
        backend = self._device.backend
        marks = backend.marks(backend.frame_rows(rows))
        backend.mark(marks, backend.selection(matched, True))
        for _, probe_rows, probe in self._pairs(rows):
            backend.mark(marks, probe_rows if probe is None else backend.filter_map(probe_rows, probe.matched()))
        return marks

    def candidates(self, morsel: Morsel, limit: int) -> Iterator[PairSlice]:
        """Pairs that match because of a null; their row numbers go through the host, where rounds are made of them."""
        to_host = self._device.backend.indices_to_host
        pairs = ((to_host(build), to_host(rows), probe) for build, rows, probe in self._pairs(morsel.rows))
        return candidates_by_null(morsel, limit, pairs)

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
                    search = self._search(build_pattern, common)
                    probe = search.probe(self._keys(rows, probe_rows, side, common))
                yield build_rows, probe_rows, probe

    def _search(self, pattern: int, keys: int) -> Build[Any, Any]:
        with self._lock:
            search = self._searches.get((pattern, keys))
            if search is None:
                frame = self._keys(self._build, self.rows[pattern], self._layout.build.side, keys)
                search = self._device.backend.build(frame, self._algorithm, pairs=self._needs_pairs)
                self._searches[pattern, keys] = search
            return search

    def _keys(self, frame: Any, rows: RowMap, side: Side, keys: int) -> Any:
        """Key frame of some rows, for a set of keys."""
        device, codec = self._device, self._layout.codec
        chosen = [number for number in range(len(codec.types)) if keys >> number & 1]
        columns = device.select(frame, [self._layout.spec.keys[number].of(side) for number in chosen])
        if rows != Span(0, device.backend.frame_rows(frame)):
            columns = device.backend.gather(columns, rows)
        types, null_safe = [codec.types[n] for n in chosen], [codec.null_safe[n] for n in chosen]
        return device.keys(columns, range(len(chosen)), types, null_safe)
