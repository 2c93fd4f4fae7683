"""As-of joins: each row matches the nearest row of the other side, before, after, or either way, within equal keys.

The build side is sorted by time and searched (:class:`gpujoin.model.backend.RangeBuild`). All build rows up to a point,
or from it on, lie side by side in that order; the last or the first of them is the nearest one. An example with two
left rows and four right rows, looking backward::

    right   row  t      sorted by t   t    1 4 4 9      left   t = 5   up to 5: rows 1 0 3, the last is row 3
            0    4                    row  1 0 3 2             t = 0   up to 0: none, returned with nulls
            1    1
            2    9
            3    4

Looking forward, ``t = 5`` matches row 2 and ``t = 0`` row 1. Looking both ways, ``t = 5`` matches row 3, at a distance
of 1, and not row 2, at a distance of 4. A tolerance is checked last: if the nearest row is too far, all others are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu import make_grouper
from gpujoin.engine.join.ranges import code_column, code_table, group_column
from gpujoin.engine.join.rounds import RowNumbers
from gpujoin.engine.keys import KeyCodec, in_common_type
from gpujoin.engine.ordering import Codes, OrderCodec
from gpujoin.model.backend import AnyBackend, CodedRows, NearestTerms, Probe, RangeBuild
from gpujoin.model.hostgather import one_array
from gpujoin.model.jointype import Side
from gpujoin.model.ranges import distances
from gpujoin.model.spec import AsOf, Direction
from gpujoin.model.types import wide_offsets
from gpujoin.plan.asof import tolerance_in


def coded_as_of(
    terms: AsOf, keys: KeyCodec, dtype: pa.DataType, rows: pa.RecordBatch, backend: AnyBackend
) -> CodedRows[Any]:
    """Code right rows; order keys are compared in a type."""
    values = _order_values(rows, terms.right, dtype)
    codec = OrderCodec.fit(values)
    key_codes = keys.codes(rows, Side.RIGHT) if keys.columns else None
    grouper = None if key_codes is None else make_grouper(key_codes)

    def points(values: pa.Array, key_codes: pa.Table | None) -> Any:
        column = code_column(*codec.codes(values))
        groups = [] if grouper is None or key_codes is None else [group_column(grouper, key_codes)]
        return backend.from_arrow(code_table([*groups, column]))

    def code(probe_rows: pa.RecordBatch) -> Any:
        return points(
            _order_values(probe_rows, terms.left, dtype), keys.codes(probe_rows, Side.LEFT) if keys.columns else None
        )

    return CodedRows(points(values, key_codes), grouper is not None, code)


@dataclass(frozen=True)
class AsOfBuild:
    """The right side of an as-of join, with a search structure."""

    terms: NearestTerms
    code: Callable[[Any], Any]
    """Converts left rows to the points that they ask for."""
    points: Any
    """Frame of the point of each right row."""
    point_at: int
    """Position of the point in a coded row, after the group."""
    search: RangeBuild[Any, Any]
    """Right rows, searchable by order."""
    backend: AnyBackend
    """Backend that searches them."""

    @classmethod
    def from_rows(cls, coded: CodedRows[Any], terms: NearestTerms, backend: AnyBackend, *, kernels: bool) -> AsOfBuild:
        """Build an index over coded rows; ``kernels`` as in :meth:`.Backend.build_ranges`."""
        search = backend.build_ranges(coded.points, grouped=coded.grouped, kernels=kernels)
        point_at = int(coded.grouped)
        return cls(terms, coded.code, backend.assemble([(coded.points, point_at)]), point_at, search, backend)

    @property
    def algorithm(self) -> str:
        """Name of the search; it starts with ``cudf`` where a device searches without gpujoin's kernels."""
        return "cudf as_of" if self.search.algorithm.startswith("cudf ") else "as_of"

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.search.nbytes + self.backend.frame_bytes(self.points)

    def probe(self, rows: Any) -> Probe[Any]:
        """Find the nearest right row of each left row."""
        return self.search.nearest(self.code(rows), self.points, self.terms)

    def ranked(self, rows: Any) -> RankedRows:
        """Find the nearest right row of each left row, with its distance."""
        points = self.code(rows)
        nearest = self.search.nearest(points, self.points, self.terms)
        build_rows = self.backend.indices_to_host(nearest.lookup())
        codes = self._on_host(points, self.point_at)
        their_codes = self._on_host(self.points, 0)[np.maximum(build_rows, 0)]
        match self.terms.direction:
            case Direction.BACKWARD:
                return RankedRows(build_rows, ~their_codes, np.zeros(len(codes), np.bool_))
            case Direction.FORWARD:
                return RankedRows(build_rows, their_codes, np.ones(len(codes), np.bool_))
        distance = distances(np, codes, their_codes, self.terms.float_bytes)
        return RankedRows(build_rows, distance, their_codes > codes)

    def _on_host(self, frame: Any, position: int) -> Codes:
        """Copy the codes of a column to the host; 0 in place of nulls."""
        schema = pa.schema([("code", pa.int64())])
        batch = self.backend.to_arrow(self.backend.assemble([(frame, position)]), schema)
        codes: Codes = batch.column(0).fill_null(0).to_numpy()
        return codes


def nearest_terms(terms: AsOf, dtype: pa.DataType) -> NearestTerms:
    """Terms of a search by codes of a type."""
    width = 0
    if pat.is_floating(dtype):
        width = 8 if pat.is_float64(dtype) else 4
    most = None if terms.tolerance is None else tolerance_in(dtype, terms.tolerance)
    return NearestTerms(terms.direction, terms.allow_exact, width, most)


@dataclass(frozen=True)
class RankedRows:
    """The nearest build row of each probe row, with its distance."""

    build_rows: RowNumbers
    """Build row of each probe row, or −1."""
    rank: npt.NDArray[Any]
    """Rank of each candidate; the least is the nearest."""
    after: npt.NDArray[np.bool_]
    """Whether the build row is after the probe row; of two equally near rows the one before is taken."""


class NearestOfSlices:
    """The nearest right row of each left row, where right rows come in slices."""

    def __init__(self, rows: int) -> None:
        self.slices = np.full(rows, -1, np.int32)
        self.build_rows = np.full(rows, -1, np.int64)
        self._ranks: npt.NDArray[Any] | None = None
        self._after = np.zeros(rows, np.bool_)

    def offer(self, number: int, start: int, ranked: RankedRows) -> None:
        """Compare the nearest rows of a slice with those of earlier slices, for left rows from ``start`` on."""
        if self._ranks is None:
            self._ranks = np.zeros(len(self.slices), ranked.rank.dtype)
        here = slice(start, start + len(ranked.rank))
        ranks, after = self._ranks[here], self._after[here]
        # Of several rows with one order key the last is taken looking backward, the first looking forward.
        tie = (ranked.rank == ranks) & ~ranked.after
        nearer = (self.slices[here] < 0) | (ranked.rank < ranks) | tie
        nearer &= ranked.build_rows >= 0
        self.slices[here][nearer] = number
        self.build_rows[here][nearer] = ranked.build_rows[nearer]
        ranks[nearer], after[nearer] = ranked.rank[nearer], ranked.after[nearer]

    def of(self, number: int, start: int, rows: int) -> tuple[RowNumbers, RowNumbers]:
        """Left rows from position ``start`` on whose nearest row is in a slice, and those rows."""
        probe_rows = np.flatnonzero(self.slices[start : start + rows] == number)
        return probe_rows, self.build_rows[start : start + rows][probe_rows]


def _order_values(rows: pa.RecordBatch, position: int, dtype: pa.DataType) -> pa.Array:
    """Order key in its common type; NaN becomes null, which matches nothing."""
    column = rows.column(position)
    values = in_common_type(one_array(column) if isinstance(column, pa.ChunkedArray) else column, wide_offsets(dtype))
    if pat.is_floating(dtype):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, dtype), values)
    return values
