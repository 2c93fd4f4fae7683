"""What a backend must offer. Backends know nothing of Spark, of join types beyond pairs and marks, or of batching.

A backend gives *inner pairs and match marks*; the engine derives every join type from them in one place
(`gpujoin.engine.join.derive`). The two type parameters are the backend's own table (``Frame``) and its own
one-dimensional array (``Vector``), which holds booleans (a *mask*) or row indices.

Contracts that hold for every method:

- A frame or vector, once made, is not changed, except by :meth:`Backend.mark` and :meth:`Probe.mark_build`.
- Every method may be called from several threads at once.
- When memory runs out a method raises :class:`~gpujoin.errors.DeviceMemoryError` and leaves no trace.
  Copies to the host (``indices_to_host``, ``mask_to_host``) take no device memory: they are the way off a full device.
- *Key frames* have been normalised by `gpujoin.engine.keys`: each column is int32, int64 or large_binary; equal keys
  have equal values; a null in any column means that the row matches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.model.expressions import Expression
from gpujoin.model.gathering import ChooseEmission, ChooseGather
from gpujoin.model.jointype import Side
from gpujoin.model.keyfacts import Choose, Wanted
from gpujoin.model.maps import Indices, OutOfBounds, RowMap
from gpujoin.model.spec import Direction

Frame = TypeVar("Frame")
KeyFrame = TypeVar("KeyFrame", contravariant=True)
Vector = TypeVar("Vector")


class BackendName(Enum):
    """The backends there are."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class PairSlice:
    """Some of the matching pairs of a probe.

    Attributes
    ----------
    probe, build : RowMap
        Row of the probe frame and row of the build frame, for each pair; equal lengths, never out of bounds. Over all
        slices of a probe the pairs ascend by probe row, then by build row (in a :class:`RangeBuild` by point, then
        build row), so that another backend can go on where one ran out of memory. The matches of one probe row may be
        cut between slices.
    """

    probe: RowMap
    build: RowMap

    @property
    def length(self) -> int:
        """Number of pairs."""
        return self.probe.length


class Probe(Protocol[Vector]):
    """The matches of one key frame against a build; sizes are known, pairs are made on demand."""

    @property
    def rows(self) -> int:
        """Rows of the probed key frame."""
        ...

    @property
    def pairs(self) -> int:
        """Exact number of matching pairs, in 64 bits."""
        ...

    def matched(self) -> Vector:
        """Mask over probe rows: has at least one match."""
        ...

    def lookup(self) -> Indices:
        """For each probe row its build row or −1 (``NULLIFY``). Only if the build is unique."""
        ...

    def slices(self, max_pairs: int) -> Iterator[PairSlice]:
        """All pairs, at most ``max_pairs`` at a time."""
        ...

    def mark_build(self, marks: Vector) -> None:
        """Set ``marks`` (a mask over build rows) wherever a build row has a match, without making pairs."""
        ...


class Build(Protocol[KeyFrame, Vector]):
    """A searchable build side; immutable, shared by all probes."""

    @property
    def rows(self) -> int:
        """Rows of the key frame it was built from, those that match nothing included."""
        ...

    @property
    def unique(self) -> bool:
        """Whether it is known that no two build rows have equal keys."""
        ...

    @property
    def algorithm(self) -> str:
        """What was chosen, for metrics and explanations, such as ``direct``."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory held."""
        ...

    def probe(self, keys: KeyFrame) -> Probe[Vector]:
        """Find the matches of each row of a key frame with the same column types."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A probe whose rows need not be finished one after the other: for joins that stop at the first true pair."""

    @property
    def resumable(self) -> bool:
        """Whether :meth:`pairs_at` is possible."""
        ...

    @property
    def counts(self) -> Any:
        """Number of pairs of each probe row, as the backend's integer vector."""
        ...

    def pairs_at(self, rows: npt.NDArray[np.int64], offset: int, limit: int) -> PairSlice:
        """Up to ``limit`` pairs of each of some probe rows, after the first ``offset`` of each."""
        ...


class RangeProbe(Probe[Vector], Resumable, Protocol[Vector]):
    """The matches of some rows against a :class:`RangeBuild`."""

    def edge(self, *, last: bool) -> Indices:
        """For each probe row the match with the least or greatest point, or −1 (``NULLIFY``).

        Of several such the first or last row. Only for builds of one point a row.
        """
        ...


class RangeBuild(Protocol[KeyFrame, Vector]):
    """A build side searched by order: each row has one or two *points*, integers, and may belong to a group.

    A probe row brings a range for each point and matches the rows of its group whose points lie in the ranges. Its
    pairs ascend by point, then row, in an order that is the same on all backends, as is what they decide from counts.
    """

    @property
    def algorithm(self) -> str:
        """What was chosen, for metrics and explanations, such as ``range``."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory held."""
        ...

    def probe(self, bounds: KeyFrame) -> RangeProbe[Vector]:
        """Find the matches of each row.

        Parameters
        ----------
        bounds : Frame
            int64 columns: the group, if the build has any, and for each point the lowest and the highest that match,
            both included. A null in any means that the row matches nothing.
        """
        ...


@dataclass(frozen=True)
class NearestTerms:
    """Which row of a :class:`NearestBuild` is wanted.

    Attributes
    ----------
    direction : Direction
        Where to look.
    allow_exact : bool
        Whether a row at the point itself will do.
    float_bytes : int
        Points are the codes of floats of so many bytes, 4 or 8, and distances are theirs; 0: those of the points.
    tolerance : int, float or None
        Largest distance; ``None``: any.
    """

    direction: Direction
    allow_exact: bool
    float_bytes: int
    tolerance: int | float | None


@runtime_checkable
class NearestBuild(Protocol[KeyFrame, Vector]):
    """A :class:`RangeBuild` of one point a row that may find the nearest rows by itself."""

    @property
    def finds_nearest(self) -> bool:
        """Whether :meth:`nearest` is possible."""
        ...

    def nearest(self, points: KeyFrame, terms: NearestTerms) -> Probe[Vector]:
        """Find the nearest row for each row.

        Of two as near it is the one before, and of several of one point the last where rows before the point or on
        both sides are wanted and the first where rows after it are; on both sides a row at the point counts as before.

        Parameters
        ----------
        points : Frame
            int64 columns: the group, if the build has any, and the point. A null means that the row matches nothing.
        terms : NearestTerms
            Which row is wanted.
        """
        ...


class Grouper(Protocol):
    """Numbers rows by key, on the host: rows with equal keys have equal numbers."""

    def groups(self, codes: pa.Table) -> npt.NDArray[np.int64]:
        """Number of each row of a table of key codes; negative where no row of the first table has its key."""
        ...


class Backend(Protocol[Frame, Vector]):
    """One way to execute joins."""

    @property
    def name(self) -> BackendName:
        """Which backend this is."""
        ...

    @property
    def threads(self) -> int:
        """How many probes the engine should run at once on this backend."""
        ...

    @property
    def morsel_rows(self) -> int:
        """How many probe rows at a time suit this backend: what fits its caches, or fills its device."""
        ...

    # -- what it can do ------------------------------------------------------------------------------------

    def can_gather(self, dtype: pa.DataType) -> bool:
        """Whether columns of this type may be put into frames; others are gathered on the host."""
        ...

    def can_evaluate(self, condition: Expression) -> bool:
        """Whether a resolved condition evaluates here exactly as Spark would; otherwise the CPU backend does it."""
        ...

    # -- tables --------------------------------------------------------------------------------------------

    def from_arrow(self, table: pa.Table) -> Frame:
        """Take a table in. Zero-copy where possible; columns may share memory with the table."""
        ...

    def to_arrow(self, frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
        """Give a frame out as one batch of exactly this schema."""
        ...

    def frame_rows(self, frame: Frame) -> int:
        """Row count; known also of a frame without columns."""
        ...

    def frame_bytes(self, frame: Frame) -> int:
        """Memory a frame holds."""
        ...

    # -- joining -------------------------------------------------------------------------------------------

    def takes_key(self, dtype: pa.DataType) -> bool:
        """Whether :meth:`key_frame` takes key columns of this type; if not of all, keys come as codes."""
        ...

    def key_frame(self, keys: pa.Table, null_safe: Sequence[bool]) -> Frame:
        """Take key columns in as they are, to be normalised by the backend.

        Equal as in Spark: NaN is NaN, −0.0 is 0.0, text and bytes by bytes. What is built from and what is probed must
        have the same types and null safety.

        Parameters
        ----------
        keys : Table
            Columns of types that :meth:`takes_key` admits.
        null_safe : sequence of bool
            For each column whether null equals null; otherwise a row with a null matches nothing.
        """
        ...

    def build(
        self, keys: Frame, choose: Choose | None = None, wanted: Wanted = Wanted.PAIRS
    ) -> Build[Frame, Vector]:
        """Make a key frame searchable. The algorithm is chosen from the facts of the keys.

        Parameters
        ----------
        keys : Frame
            Key codes, or what :meth:`key_frame` gave.
        choose : callable or None
            What the planner chooses for given facts; ``None``: the backend's own choice. A backend with one way only
            need not ask.
        wanted : Wanted
            ``MARKS``: of a probe only ``matched`` will be asked for, so the build may hold less, and ``unique`` means
            nothing.
        """
        ...

    def build_ranges(
        self, points: Frame, *, grouped: bool, kernels: bool = True
    ) -> RangeBuild[Frame, Vector]:
        """Make rows searchable by order.

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
        ...

    def gather(self, frame: Frame, rows: RowMap, choose: ChooseGather | None = None) -> Frame:
        """Rows of a frame by a map; a null row where the map says so.

        A backend with more than one way to do it asks ``choose``; without it, columns are gathered one by one.
        """
        ...

    def emit(
        self,
        probe: Any,
        own: Frame,
        other: Frame | None,
        choose: ChooseEmission,
        *,
        matched: bool = True,
    ) -> tuple[Frame, Frame | None] | None:
        """The output of a join whose probe rows have at most one match each, without maps.

        Parameters
        ----------
        probe : Probe
            Of a build of this backend.
        own : Frame
            Output columns of the probed rows.
        other : Frame or None
            Output columns of the build rows; ``None``: none, and then any number of matches will do.
        choose : callable
            What the planner chooses for given facts.
        matched : bool
            Which of the probed rows: those with a match, or those without one.

        Returns
        -------
        own, other : Frame
            The output rows of either side, in the order of the probed rows. ``None``: the output is to be made by
            maps, by the planner's choice or since the backend cannot do it otherwise, out of memory included.
        """
        ...

    def gathered_bytes(self, frame: Frame, rows: RowMap) -> tuple[int, ...]:
        """Exact bytes of data, offsets excluded, that each variable-width column would hold after :meth:`gather`.

        Zero for fixed-width columns. Cheap relative to gathering.
        """
        ...

    def evaluate(self, condition: Expression, left: Frame, right: Frame, length: int) -> Vector:
        """Mask of ``length`` candidate pairs for which a resolved condition is true (false where it is null).

        Column references index into ``left`` and ``right``, which hold only the columns the condition needs.

        Raises
        ------
        ExpressionEvaluationError
            If the expression fails on a value in ANSI mode.
        """
        ...

    def restrict(
        self, probe: Any, condition: Expression, own: Frame, other: Frame, probe_side: Side
    ) -> Probe[Vector] | None:
        """A probe of the same rows that has only those matches for which a resolved condition is true.

        Parameters
        ----------
        probe : Probe
            Of a build of this backend that is unique; stays as it is.
        condition : Expression
            Its column references index into ``own`` and ``other``, which hold only the columns the condition needs.
        own, other : Frame
            Rows of the probe side and of the build side.
        probe_side : Side
            Which side of the condition the probe side is.

        Returns
        -------
        Probe or None
            ``None``: it is to be evaluated on pairs, by :meth:`evaluate`.
        """
        ...

    # -- vectors -------------------------------------------------------------------------------------------

    def filter_map(self, rows: RowMap, mask: Vector) -> RowMap:
        """The entries of a map where a mask of its length is true."""
        ...

    def selection(self, mask: Vector, value: bool) -> RowMap:
        """Ascending positions at which a mask has a value."""
        ...

    def marks(self, length: int) -> Vector:
        """A fresh mask, all false."""
        ...

    def mark(self, marks: Vector, rows: RowMap) -> None:
        """Set a mask at the rows of a map that is never out of bounds."""
        ...

    def indices_to_host(self, rows: RowMap) -> npt.NDArray[np.int64]:
        """A map as NumPy indices, negative where there is no row: for gathering on the host."""
        ...

    def indices_from_host(self, indices: npt.NDArray[np.int64], out_of_bounds: OutOfBounds) -> Indices:
        """NumPy indices as a map of this backend."""
        ...

    def mask_to_host(self, mask: Vector) -> npt.NDArray[np.bool_]:
        """A mask as NumPy booleans."""
        ...

    def mask_from_host(self, mask: npt.NDArray[np.bool_]) -> Vector:
        """NumPy booleans as a mask."""
        ...


ColumnEvaluator: TypeAlias = Callable[[Expression, pa.RecordBatch, pa.RecordBatch, int], pa.Array]
"""Computes a resolved expression over so many pairs of left and right rows, on the host."""

AnyBackend: TypeAlias = Backend[Any, Any]
"""A backend whose frame and vector types do not matter to the caller."""
