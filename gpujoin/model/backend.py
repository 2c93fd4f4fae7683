"""The protocol of a backend: builds, probes, gathers and evaluates conditions on one kind of hardware.

Backends know nothing of Spark, of join types beyond pairs and marks, or of batching.

A backend gives *inner pairs and match marks*; the engine derives every join type from them in one place
(`gpujoin.engine.join.derive`). The two type parameters are the backend's own table (``Frame``) and its own
one-dimensional array (``Vector``), which holds booleans (a *mask*) or row indices.

Contracts that hold for every method:

- A frame or vector, once made, is not changed, except by :meth:`Backend.mark` and :meth:`Probe.mark_build`.
- Every method may be called from several threads at once.
- When memory runs out a method raises :class:`~gpujoin.errors.DeviceMemoryError` and leaves no trace but marks.
- *Key frames* of the CPU have been normalised by `gpujoin.engine.keys`: each column is int32, int64 or large_binary;
  equal keys have equal values; a null in any column means that the row matches nothing. A device normalises its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.model.algorithm import Algorithm
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Indices, OutOfBounds, RowMap
from gpujoin.model.spec import Direction

Frame = TypeVar("Frame")
KeyFrame = TypeVar("KeyFrame", contravariant=True)
Vector = TypeVar("Vector")


class BackendName(Enum):
    """Names of the backends."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class PairSlice:
    """A slice of the matching pairs of a probe."""

    probe: RowMap
    build: RowMap
    """Row of the probe frame and row of the build frame, for each pair; equal lengths, never out of bounds. Over all
    slices of a probe the pairs ascend by probe row. The matches of one probe row may be cut between slices."""

    @property
    def length(self) -> int:
        """Number of pairs."""
        return self.probe.length


class Probe(Protocol[Vector]):
    """The matches of a key frame in a build: the number of pairs is known, the pairs are made on demand."""

    @property
    def rows(self) -> int:
        """Rows of the probed key frame."""

    @property
    def pairs(self) -> int:
        """Exact number of matching pairs, in 64 bits."""

    def matched(self) -> Vector:
        """Mask of the probe rows that have a match."""

    def lookup(self) -> Indices:
        """Map from each probe row to its build row, −1 where it has none (``NULLIFY``). Only if the build is unique."""

    def slices(self, max_pairs: int) -> Iterator[PairSlice]:
        """All pairs, at most ``max_pairs`` at a time."""

    def mark_build(self, marks: Vector) -> None:
        """Set ``marks`` (a mask over build rows) wherever a build row has a match, without making pairs."""


class Build(Protocol[KeyFrame, Vector]):
    """A searchable build side; immutable, shared by all probes."""

    @property
    def rows(self) -> int:
        """Rows of the key frame it was built from, those that match nothing included."""

    @property
    def unique(self) -> bool:
        """Whether no two build rows are known to have equal keys."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm that was chosen, such as ``direct``; shown in metrics and explanations."""

    @property
    def reason(self) -> str | None:
        """Why that algorithm was chosen; ``None``: there is nothing to say."""

    @property
    def nbytes(self) -> int:
        """Memory held."""

    def probe(self, keys: KeyFrame) -> Probe[Vector]:
        """Find the matches of each row of a key frame with the same column types."""


@runtime_checkable
class Resumable(Protocol):
    """A probe that can return the pairs of any rows, from any position on.

    Joins that stop at the first true pair (`gpujoin.engine.join.rounds`) look at a few candidates of each row, then
    at more of the rows that are still without a match.
    """

    @property
    def resumable(self) -> bool:
        """Whether :meth:`pairs_at` is possible."""

    @property
    def counts(self) -> Any:
        """Number of pairs of each probe row, as the backend's integer vector."""

    def pairs_at(self, rows: npt.NDArray[np.int64], offset: int, limit: int) -> PairSlice:
        """The pairs ``offset`` to ``offset + limit - 1`` of each given probe row, or fewer if it has fewer."""


class RangeProbe(Probe[Vector], Resumable, Protocol[Vector]):
    """The matches of some rows against a :class:`RangeBuild`."""

    def edge(self, *, last: bool) -> Indices:
        """Map from each probe row to its match with the least or greatest point, −1 where it has none (``NULLIFY``).

        Where several matches have that point, the first or the last row is taken. Only for builds of one point a row.
        """


@dataclass(frozen=True)
class NearestTerms:
    """Terms of a search for the nearest row: direction, exactness and tolerance."""

    direction: Direction
    """Whether to look backward, forward or both ways."""
    allow_exact: bool
    """Whether a row at the point itself counts."""
    float_bytes: int
    """4 or 8: points are codes of floats of that size, and distances are those of the floats. 0: points are values."""
    tolerance: int | float | None
    """Largest distance; ``None``: any."""


class RangeBuild(Protocol[KeyFrame, Vector]):
    """A build side searched by order: each row has one or two *points*, integers, and may belong to a group.

    A probe row brings a range for each point and matches the rows of its group whose points lie in the ranges.
    """

    @property
    def algorithm(self) -> str:
        """Name of the algorithm that was chosen, such as ``range``; shown in metrics and explanations."""

    @property
    def nbytes(self) -> int:
        """Memory held."""

    def probe(self, bounds: KeyFrame) -> RangeProbe[Vector]:
        """Find the matches of each row.

        Parameters
        ----------
        bounds : Frame
            int64 columns: the group, if the build has any, and for each point the lowest and the highest that match,
            both included. A null in any means that the row matches nothing.
        """

    def nearest(self, points: KeyFrame, codes: KeyFrame, terms: NearestTerms) -> Probe[Vector]:
        """Find the nearest row for each row. Only for builds of one point a row.

        Ties are broken the same way everywhere. Of two rows at the same distance the earlier one is taken. Of several
        rows at the same point the last one is taken when looking backward or both ways, and the first one when looking
        forward. Looking both ways, a row at the point itself counts as before it.

        Parameters
        ----------
        points : Frame
            int64 columns: the group, if the build has any, and the point. A null means that the row matches nothing.
        codes : Frame
            One int64 column: the point of each build row.
        terms : NearestTerms
            Which row is wanted.
        """


@dataclass(frozen=True, slots=True)
class CodedRows(Generic[Frame]):
    """Rows of a build side as they are searched by order, and how those of the other side become what they ask for."""

    points: Frame
    """int64 columns: the group if there are equality keys, then each point; null where a row matches nothing."""
    grouped: bool
    """Whether there are equality keys."""
    code: Callable[[Any], Frame]
    """Converts probe rows to the ranges, or points, that they ask for, as :class:`RangeBuild` takes them."""
    spread: float = 0.0
    """Average number of rows in the group of a row; rows without a group do not count."""


@dataclass(frozen=True, slots=True)
class JoinOutput(Generic[Frame]):
    """Output of a join that a backend makes without gather maps."""

    rows: int
    """Rows of the output."""
    slice: Callable[[int, int], tuple[Frame, Frame | None]]
    """Makes the columns of the probe side and of the build side, if it has any, for a number of rows from a row on.

    Raises ``DeviceMemoryError`` if they do not fit, and leaves no trace then.
    """


class Grouper(Protocol):
    """Numbers rows by key, on the host, so that rows with equal keys have equal numbers."""

    def groups(self, codes: pa.Table) -> npt.NDArray[np.int64]:
        """Number of each row of a table of key codes; negative where no row of the first table has its key."""


class Backend(Protocol[Frame, Vector]):
    """Executes joins on one kind of hardware."""

    @property
    def name(self) -> BackendName:
        """Name of the backend."""

    @property
    def threads(self) -> int:
        """Number of probes that the engine should run at once."""

    @property
    def pipeline(self) -> Any | None:
        """The :class:`~gpujoin.model.pipeline.DevicePipelineBackend` over its frames; ``None`` on the CPU."""

    @property
    def morsel_rows(self) -> int:
        """Number of probe rows that suits this backend at a time: it fits the caches, or fills the device."""

    # -- what it can do ------------------------------------------------------------------------------------

    def can_gather(self, dtype: pa.DataType) -> bool:
        """Whether columns of this type may be put into frames; others are gathered on the host."""

    def can_evaluate(self, condition: Expression) -> bool:
        """Whether a resolved condition evaluates here exactly as Spark would; otherwise the CPU backend does it."""

    # -- tables --------------------------------------------------------------------------------------------

    def from_arrow(self, table: pa.Table) -> Frame:
        """Convert a table to a frame. Zero-copy where possible: columns may share memory with the table."""

    def assemble(self, columns: Sequence[tuple[Frame, int]]) -> Frame:
        """Make a frame of columns of frames of one length, each by its frame and position; copies nothing."""

    def to_arrow(self, frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
        """Convert a frame to one batch of exactly this schema."""

    def frame_rows(self, frame: Frame) -> int:
        """Number of rows, also of a frame without columns."""

    def frame_bytes(self, frame: Frame) -> int:
        """Memory a frame holds."""

    # -- joining -------------------------------------------------------------------------------------------

    def build(self, keys: Frame, algorithm: Algorithm = Algorithm.CUDF, *, pairs: bool = True) -> Build[Frame, Vector]:
        """Build a search structure over a key frame.

        Parameters
        ----------
        keys : Frame
            Key codes, or a frame of :meth:`gpujoin.model.pipeline.DevicePipelineBackend.keys`.
        algorithm : Algorithm
            Algorithm of a device, by default without gpujoin's own kernels; the CPU has its own.
        pairs : bool
            Whether pairs are asked for. If not, only :meth:`Probe.matched` will be called, so the build may keep less,
            and ``unique`` means nothing.
        """

    def build_ranges(self, points: Frame, *, grouped: bool, kernels: bool = True) -> RangeBuild[Frame, Vector]:
        """Build a search structure over ordered points, for range and as-of joins.

        Parameters
        ----------
        points : Frame
            int64 columns: the group if ``grouped``, not negative, and one or two points. A null in any means that
            the row matches nothing.
        grouped : bool
            Whether there is a column of groups.
        kernels : bool
            Whether a device may search by gpujoin's own kernels, and not by array operations alone.
        """

    def gather(self, frame: Frame, rows: RowMap, *, kernels: bool = False) -> Frame:
        """Gather rows of a frame by a map; the row is null where the map has no row.

        With ``kernels`` a device may gather by gpujoin's own kernels, from packed rows that it keeps with the frame.
        """

    def gathered_bytes(self, frame: Frame, rows: RowMap) -> tuple[int, ...]:
        """Exact bytes of data, offsets excluded, that each variable-width column would hold after :meth:`gather`.

        Zero for fixed-width columns. Cheap relative to gathering.
        """

    def evaluate(self, condition: Expression, left: Frame, right: Frame, length: int) -> Vector:
        """Mask of the candidate pairs for which a resolved condition is true; a null result counts as false.

        Column references index into ``left`` and ``right``, which hold only the columns the condition needs.

        Raises
        ------
        ExpressionEvaluationError
            If the expression fails on a value in ANSI mode.
        """

    # -- vectors -------------------------------------------------------------------------------------------

    def filter_map(self, rows: RowMap, mask: Vector) -> RowMap:
        """Keep the entries of a map at which a mask is true."""

    def selection(self, mask: Vector, value: bool) -> RowMap:
        """Positions at which a mask has a value, ascending."""

    def marks(self, length: int) -> Vector:
        """A new mask, all false."""

    def mark(self, marks: Vector, rows: RowMap) -> None:
        """Set a mask to true at the rows of a map that is never out of bounds."""

    def indices_to_host(self, rows: RowMap) -> npt.NDArray[np.int64]:
        """Copy a map to the host, as NumPy indices that are negative where there is no row."""

    def indices_from_host(self, indices: npt.NDArray[np.int64], out_of_bounds: OutOfBounds) -> Indices:
        """Copy NumPy indices to a map of this backend."""

    def mask_to_host(self, mask: Vector) -> npt.NDArray[np.bool_]:
        """Copy a mask to the host."""

    def mask_from_host(self, mask: npt.NDArray[np.bool_]) -> Vector:
        """Copy a mask from the host."""


ColumnEvaluator: TypeAlias = Callable[[Expression, pa.RecordBatch, pa.RecordBatch, int], pa.Array]
"""Computes a resolved expression over pairs of left and right rows on the host; the last argument is their number."""

AnyBackend: TypeAlias = Backend[Any, Any]
"""A backend whose frame and vector types do not matter to the caller."""


class DeviceBackend(Backend[Frame, Vector], Protocol[Frame, Vector]):
    """Executes joins on a device, by kernels that need no gather maps where that is faster."""

    def emit(self, probe: Any, own: Frame, other: Frame | None, *, matched: bool = True) -> JoinOutput[Frame] | None:
        """Make the output of a join without gather maps.

        Parameters
        ----------
        probe : Probe
            Probe of a build of this backend.
        own : Frame
            Output columns of the probed rows.
        other : Frame or None
            Output columns of the build rows, with which each match of a probe row is returned. ``None``: there are
            none, and each probe row is returned at most once.
        matched : bool
            Whether probe rows with a match are returned, or those without one.

        Returns
        -------
        JoinOutput or None
            The output rows. ``None``: gather maps must be used, because they are faster or because the backend cannot
            do without, out of memory included.
        """

    def fetch(self, build: Any, keys: Frame, own: Frame, other: Frame, *, padded: bool) -> JoinOutput[Frame] | None:
        """Make the output of an inner or left join by unique keys without a probe.

        Parameters
        ----------
        build : Build
            Unique build of this backend.
        keys : Frame
            Key frame of the probe rows.
        own, other : Frame
            Output columns of the probe rows and of the build rows.
        padded : bool
            Whether probe rows without a match are returned, with nulls.

        Returns
        -------
        JoinOutput or None
            The output rows. ``None``: the build must be probed, because that is faster or because the backend cannot do
            without.
        """

    def restrict(
        self, probe: Any, condition: Expression, own: Frame, other: Frame, probe_side: Side
    ) -> Probe[Vector] | None:
        """Drop the matches of a probe for which a resolved condition is not true.

        Parameters
        ----------
        probe : Probe
            Probe of a unique build of this backend; not changed.
        condition : Expression
            Its column references index into ``own`` and ``other``, which hold only the columns the condition needs.
        own, other : Frame
            Rows of the probe side and of the build side.
        probe_side : Side
            Which side of the condition the probe side is.

        Returns
        -------
        Probe or None
            Probe of the same rows with fewer matches. ``None``: use :meth:`evaluate` on the pairs instead.
        """


AnyDeviceBackend: TypeAlias = DeviceBackend[Any, Any]
"""A device's backend whose frame and vector types do not matter to the caller."""


class KeptTables(Protocol):
    """Tables that a process keeps on a device from task to task, while nothing else needs the memory."""

    @property
    def nbytes(self) -> int:
        """Memory held."""

    def drop(self) -> bool:
        """Let go of the table that was not used for the longest; ``False`` if there is none."""

    def clear(self) -> None:
        """Let go of all tables."""
