"""Searches of build sides that are frames of a device: by the nearest row, and by null keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpujoin.engine.join.as_of import nearest_terms
from gpujoin.engine.join.layout import JoinLayout
from gpujoin.model.backend import AnyBackend, Probe
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Span
from gpujoin.model.pipeline import AnyDevicePipeline, NearestRows
from gpujoin.model.spec import KeyPair, NullEquality


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


@dataclass(frozen=True)
class FrameNulls:
    """Matches because of a null in a ``NOT IN`` over one column of a frame.

    The general case, of several columns and with a residual condition, is :mod:`.not_in`. Here a row without a key
    matches every build row, and every row matches a build row without a key.
    """

    device: AnyDevicePipeline
    key: KeyPair
    """The join's only key."""
    probe_side: Side
    build_rows: int
    build_nulls: int
    """Build rows, and those of them without a key."""

    @classmethod
    def of(cls, layout: JoinLayout, rows: Any, device: AnyDevicePipeline) -> FrameNulls:
        """Count the build rows without a key."""
        (key,) = layout.spec.keys
        nulls = 0 if key.nulls is NullEquality.EQUAL else device.null_rows(rows, key.of(layout.build.side)).length
        return cls(device, key, layout.probe.side, device.backend.frame_rows(rows), nulls)

    def marked(self, rows: Any, matched: Any) -> Any:
        """Mask of the probe rows with a match, given that of those with a match by equal keys."""
        if not self.build_rows or self.key.nulls is NullEquality.EQUAL:
            return matched
        backend: AnyBackend = self.device.backend
        count = backend.frame_rows(rows)
        marks = backend.marks(count)
        if self.build_nulls:
            backend.mark(marks, Span(0, count))
            return marks
        backend.mark(marks, backend.selection(matched, True))
        backend.mark(marks, self.device.null_rows(rows, self.key.of(self.probe_side)))
        return marks
