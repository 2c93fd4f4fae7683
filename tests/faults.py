"""Backends that run out of memory when told to, to prove that joins survive it."""

from __future__ import annotations

import copy
import importlib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.backends.registry import BackendRequest
from gpujoin.errors import DeviceMemoryError, DeviceValueError, HostMemoryError, OutOfMemoryError
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.backend import (
    AnyBackend,
    AnyDeviceBackend,
    BackendName,
    Build,
    JoinOutput,
    NearestTerms,
    PairSlice,
    Probe,
    RangeBuild,
    Resumable,
)
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Indices, OutOfBounds, RowMap
from gpujoin.model.pipeline import AnyDevicePipeline

ALLOCATING = frozenset(
    {
        "from_arrow", "to_arrow", "build", "probe", "matched", "lookup", "slices", "mark_build", "gather",
        "emit", "gathered_bytes", "evaluate", "restrict", "filter_map", "selection", "marks", "mark",
        "indices_from_host", "mask_from_host",
    }
)  # fmt: skip
"""The operations that may take memory, and hence run out of it: all but those that copy to the host."""

_CPU = "gpujoin.backends.cpu"


class FaultyBackend:
    """A backend that works, except that chosen operations raise :class:`~gpujoin.errors.DeviceMemoryError`.

    An operation fails before it does anything, so it leaves no trace, as the protocol demands. Calls are counted from
    1 over all threads, those of builds and probes made by this backend included.

    Parameters
    ----------
    inner : Backend
        What does the work.
    at : collection of int
        Numbers of the calls that fail.
    every : int, optional
        Each call whose number this divides fails.
    after : int, optional
        All calls past this number fail: a device that stays full.
    max_rows : int, optional
        Gathering, evaluating or building more rows than this fails.
    max_bytes : int, optional
        Taking in or gathering more bytes than this fails.
    operations : collection of str
        Which operations count; see :data:`ALLOCATING`.
    error : type
        What is raised.

    Attributes
    ----------
    calls : collections.Counter
        How often each operation was called.
    faults : int
        How many calls failed.
    """

    def __init__(
        self,
        inner: AnyBackend,
        *,
        at: Collection[int] = (),
        every: int | None = None,
        after: int | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        operations: Collection[str] = ALLOCATING,
        error: type[OutOfMemoryError | DeviceValueError] = DeviceMemoryError,
    ) -> None:
        self.error = error
        self.inner = inner
        self.at = frozenset(at)
        self.every = every
        self.after = after
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.operations = frozenset(operations)
        self.calls: Counter[str] = Counter()
        self.faults = 0
        self._lock = threading.Lock()

    @property
    def total_calls(self) -> int:
        """How many counted operations were called."""
        return self.calls.total()

    def check(self, operation: str, rows: int = 0, nbytes: Callable[[], int] | None = None) -> None:
        """Count a call, and fail it if it is its turn.

        Raises
        ------
        OutOfMemoryError
            If a fault is due.
        """
        if operation not in self.operations:
            return
        over = (self.max_rows is not None and rows > self.max_rows) or (
            self.max_bytes is not None and nbytes is not None and nbytes() > self.max_bytes
        )
        with self._lock:
            self.calls[operation] += 1
            number = self.calls.total()
            due = (
                over
                or number in self.at
                or (self.every is not None and number % self.every == 0)
                or (self.after is not None and number > self.after)
            )
            self.faults += due
        if due:
            raise self.error(f"injected at call {number}: {operation} of {rows} rows")

    # -- the protocol ----------------------------------------------------------------------------------------

    @property
    def name(self) -> BackendName:
        """A GPU's, since it fails as one; the inner backend's where the host's memory runs out."""
        return self.inner.name if issubclass(self.error, HostMemoryError) else BackendName.GPU

    @property
    def threads(self) -> int:
        """The inner backend's."""
        return self.inner.threads

    @property
    def morsel_rows(self) -> int:
        """The inner backend's."""
        return self.inner.morsel_rows

    @property
    def ops(self) -> Any:
        """The arrays of the inner backend, which is one of a device."""
        inner: Any = self.inner
        return inner.ops

    @property
    def _device(self) -> AnyDeviceBackend:
        return cast("AnyDeviceBackend", self.inner)

    @property
    def pipeline(self) -> AnyDevicePipeline | None:
        """The inner backend's, which calls this one; ``None`` if that has no device."""
        inner: Any = self.inner.pipeline
        if inner is None:
            return None
        made = copy.copy(inner)
        made.columns = type(inner.columns)(self)
        return made

    def can_gather(self, dtype: pa.DataType) -> bool:
        """As the inner backend."""
        return self.inner.can_gather(dtype)

    def can_evaluate(self, condition: Expression) -> bool:
        """As the inner backend."""
        return self.inner.can_evaluate(condition)

    def frame_rows(self, frame: Any) -> int:
        """As the inner backend."""
        return self.inner.frame_rows(frame)

    def frame_bytes(self, frame: Any) -> int:
        """As the inner backend."""
        return self.inner.frame_bytes(frame)

    def from_arrow(self, table: pa.Table) -> Any:
        """As the inner backend, or a fault."""
        self.check("from_arrow", table.num_rows, lambda: table.nbytes)
        return self.inner.from_arrow(table)

    def assemble(self, columns: Sequence[tuple[Any, int]]) -> Any:
        """As the inner backend."""
        return self.inner.assemble(columns)

    def to_arrow(self, frame: Any, schema: pa.Schema) -> pa.RecordBatch:
        """As the inner backend, or a fault."""
        self.check("to_arrow")
        return self.inner.to_arrow(frame, schema)

    def build(self, keys: Any, algorithm: Algorithm = Algorithm.CUDF, *, pairs: bool = True) -> Build[Any, Any]:
        """As the inner backend, or a fault."""
        self.check("build", self.inner.frame_rows(keys), lambda: self.inner.frame_bytes(keys))
        return _FaultyBuild(self.inner.build(keys, algorithm, pairs=pairs), self)

    def build_ranges(self, points: Any, *, grouped: bool, kernels: bool = True) -> RangeBuild[Any, Any]:
        """As the inner backend, or a fault; counted as ``build``."""
        self.check("build", self.inner.frame_rows(points), lambda: self.inner.frame_bytes(points))
        return _FaultyRangeBuild(self.inner.build_ranges(points, grouped=grouped, kernels=kernels), self)

    def gather(self, frame: Any, rows: RowMap, *, kernels: bool = False) -> Any:
        """As the inner backend, or a fault."""
        self.check("gather", rows.length, lambda: self._gathered(frame, rows))
        return self.inner.gather(frame, rows, kernels=kernels)

    def _gathered(self, frame: Any, rows: RowMap) -> int:
        frame_rows = max(self.inner.frame_rows(frame), 1)
        return max(
            sum(self.inner.gathered_bytes(frame, rows)),
            self.inner.frame_bytes(frame) * rows.length // frame_rows,
        )

    def emit(self, probe: Any, own: Any, other: Any | None, *, matched: bool = True) -> JoinOutput[Any] | None:
        """As the inner backend, or a fault, now or where a slice is made."""
        self.check("emit", probe.rows)
        return self._faulty(self._device.emit(probe.inner, own, other, matched=matched))

    def fetch(self, build: Any, keys: Any, own: Any, other: Any, *, padded: bool) -> JoinOutput[Any] | None:
        """As the inner backend, or a fault, now or where a slice is made; counted as ``emit``."""
        self.check("emit", self.inner.frame_rows(own))
        return self._faulty(self._device.fetch(build.inner, keys, own, other, padded=padded))

    def _faulty(self, made: JoinOutput[Any] | None) -> JoinOutput[Any] | None:
        if made is None:
            return None

        def sliced(start: int, length: int) -> tuple[Any, Any | None]:
            self.check("emit", length)
            return made.slice(start, length)

        return JoinOutput(made.rows, sliced)

    def gathered_bytes(self, frame: Any, rows: RowMap) -> tuple[int, ...]:
        """As the inner backend, or a fault."""
        self.check("gathered_bytes")
        return self.inner.gathered_bytes(frame, rows)

    def evaluate(self, condition: Expression, left: Any, right: Any, length: int) -> Any:
        """As the inner backend, or a fault."""
        self.check("evaluate", length)
        return self.inner.evaluate(condition, left, right, length)

    def restrict(self, probe: Any, condition: Expression, own: Any, other: Any, probe_side: Side) -> Probe[Any] | None:
        """As the inner backend, or a fault."""
        self.check("restrict", probe.rows)
        restricted = self._device.restrict(probe.inner, condition, own, other, probe_side)
        return None if restricted is None else _FaultyProbe(restricted, self)

    def filter_map(self, rows: RowMap, mask: Any) -> RowMap:
        """As the inner backend, or a fault."""
        self.check("filter_map")
        return self.inner.filter_map(rows, mask)

    def selection(self, mask: Any, value: bool) -> RowMap:
        """As the inner backend, or a fault."""
        self.check("selection")
        return self.inner.selection(mask, value)

    def marks(self, length: int) -> Any:
        """As the inner backend, or a fault."""
        self.check("marks", length)
        return self.inner.marks(length)

    def mark(self, marks: Any, rows: RowMap) -> None:
        """As the inner backend, or a fault."""
        self.check("mark")
        self.inner.mark(marks, rows)

    def indices_to_host(self, rows: RowMap) -> npt.NDArray[np.int64]:
        """As the inner backend, or a fault."""
        self.check("indices_to_host")
        return self.inner.indices_to_host(rows)

    def indices_from_host(self, indices: npt.NDArray[np.int64], out_of_bounds: OutOfBounds) -> Indices:
        """As the inner backend, or a fault."""
        self.check("indices_from_host", len(indices))
        return self.inner.indices_from_host(indices, out_of_bounds)

    def mask_to_host(self, mask: Any) -> npt.NDArray[np.bool_]:
        """As the inner backend, or a fault."""
        self.check("mask_to_host")
        return self.inner.mask_to_host(mask)

    def mask_from_host(self, mask: npt.NDArray[np.bool_]) -> Any:
        """As the inner backend, or a fault."""
        self.check("mask_from_host", len(mask))
        return self.inner.mask_from_host(mask)


@contextmanager
def failing_cpu(**faults: Any) -> Iterator[FaultyBackend]:
    """Let every CPU backend that is made run out of memory when told to, that of the last resort included.

    Parameters
    ----------
    **faults
        As of :class:`FaultyBackend`. Calls are counted over all backends that are made meanwhile.

    Yields
    ------
    FaultyBackend
        Whose counters tell what happened.
    """
    module = importlib.import_module(_CPU)
    make = module.create
    counting = FaultyBackend(make(BackendRequest()), error=HostMemoryError, **faults)

    def create(request: BackendRequest) -> FaultyBackend:
        made = copy.copy(counting)
        made.inner, made.check = make(request), counting.check  # type: ignore[method-assign]
        return made

    module.create = create  # type: ignore[attr-defined]
    try:
        yield counting
    finally:
        module.create = make  # type: ignore[attr-defined]


class _FaultySearch:
    """The inner backend's build of either kind, whose probes can fail."""

    def __init__(self, inner: Any, owner: FaultyBackend) -> None:
        self._inner = inner
        self._owner = owner

    @property
    def algorithm(self) -> str:
        return str(self._inner.algorithm)

    @property
    def nbytes(self) -> int:
        return int(self._inner.nbytes)

    def probe(self, keys: Any) -> _FaultyProbe:
        self._owner.check("probe", self._owner.inner.frame_rows(keys))
        return _FaultyProbe(self._inner.probe(keys), self._owner)


class _FaultyBuild(_FaultySearch):
    """The inner backend's build by key."""

    @property
    def inner(self) -> Any:
        """The build that this stands for."""
        return self._inner

    @property
    def rows(self) -> int:
        return int(self._inner.rows)

    @property
    def unique(self) -> bool:
        return bool(self._inner.unique)

    @property
    def reason(self) -> str | None:
        reason: str | None = self._inner.reason
        return reason


class _FaultyProbe:
    """The inner backend's probe, whose operations can fail."""

    def __init__(self, inner: Probe[Any], owner: FaultyBackend) -> None:
        self._inner = inner
        self._owner = owner

    @property
    def inner(self) -> Probe[Any]:
        """The probe that this stands for."""
        return self._inner

    @property
    def rows(self) -> int:
        return self._inner.rows

    @property
    def pairs(self) -> int:
        return self._inner.pairs

    def matched(self) -> Any:
        self._owner.check("matched", self._inner.rows)
        return self._inner.matched()

    def lookup(self) -> Indices:
        self._owner.check("lookup", self._inner.rows)
        return self._inner.lookup()

    def slices(self, max_pairs: int) -> Iterator[PairSlice]:
        for part in self._inner.slices(max_pairs):
            self._owner.check("slices", part.length)
            yield part

    def mark_build(self, marks: Any) -> None:
        self._owner.check("mark_build")
        self._inner.mark_build(marks)

    @property
    def resumable(self) -> bool:
        return isinstance(self._inner, Resumable) and self._inner.resumable

    @property
    def counts(self) -> Any:
        return self._inner.counts  # type: ignore[attr-defined]

    def pairs_at(self, rows: npt.NDArray[np.int64], offset: int, limit: int) -> PairSlice:
        self._owner.check("slices", len(rows))
        part: PairSlice = self._inner.pairs_at(rows, offset, limit)  # type: ignore[attr-defined]
        return part

    def edge(self, *, last: bool) -> Indices:
        self._owner.check("lookup", self._inner.rows)
        edge: Indices = self._inner.edge(last=last)  # type: ignore[attr-defined]
        return edge


class _FaultyRangeBuild(_FaultySearch):
    """The inner backend's build by order."""

    def nearest(self, points: Any, codes: Any, terms: NearestTerms) -> Probe[Any]:
        self._owner.check("probe", self._owner.inner.frame_rows(points))
        return _FaultyProbe(self._inner.nearest(points, codes, terms), self._owner)
