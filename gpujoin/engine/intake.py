"""Taking in a build side: into memory while it fits its budget, else to disk in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.engine.built import BuiltSide
from gpujoin.engine.hashing import partition_ids
from gpujoin.engine.hostgather import compact, own_bytes, take
from gpujoin.engine.keys import rows_matching_nothing
from gpujoin.engine.layout import JoinLayout, SideLayout
from gpujoin.engine.memory import HostMemory
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.payload import one_batch
from gpujoin.engine.spill import SpillPart, SpillStore
from gpujoin.errors import OutOfMemoryError
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.spilling import FAN_OUT, MAX_DIVISIONS

_TINY = 1 << 20
"""Builds of so few bytes that do not fit the device go to the CPU instead of to disk."""


class Division(Enum):
    """How a spilled side is divided into parts."""

    HASH = "hash"
    """By key: matching rows are in parts of the same number."""
    SLICES = "slices"
    """By position, each part within the budget: every probe row has to meet every part."""


@dataclass(frozen=True)
class Spilled:
    """A build side on disk.

    Attributes
    ----------
    layout, backend, options
        Of the join.
    store : SpillStore
        Where the parts are.
    parts : tuple of SpillPart
        Its rows.
    division : Division
        How they were divided.
    depth : int
        How often the side has been divided; also the seed of the hash.
    """

    layout: JoinLayout
    backend: AnyBackend
    options: Options
    store: SpillStore
    parts: tuple[SpillPart, ...]
    division: Division
    depth: int

    def close(self) -> None:
        """Free the space of the parts."""
        self.store.close()


def take_in(
    layout: JoinLayout,
    backend: AnyBackend,
    options: Options,
    metrics: JoinMetrics,
    batches: Iterable[pa.RecordBatch],
    *,
    depth: int = 0,
    stuck: bool = False,
    probe_rows: int | None = None,
) -> BuiltSide | Spilled:
    """Take in a build side.

    Parameters
    ----------
    layout, backend, options, metrics
        Of the join.
    batches : iterable of RecordBatch
        The rows.
    depth : int
        How often they have been divided already.
    stuck : bool
        Dividing by hash did not make the parts smaller: one key has too many rows. Divide by position.
    probe_rows : int or None
        Expected rows of the other side.
    """
    divisible = layout.spec.keys and not layout.spec.join_type.null_aware
    division = Division.HASH if divisible and depth < MAX_DIVISIONS and not stuck else Division.SLICES
    # Slices of the build side of an as-of join say nothing of which row is the nearest: it stays in one piece.
    whole = layout.spec.as_of is not None and division is Division.SLICES
    rows: list[pa.RecordBatch] = []
    size = 0
    most = HostMemory(options.memory_budget).build_bytes
    source = iter(batches)
    for batch in source:
        if batch.num_rows == 0:
            continue
        rows.append(batch)
        size += own_bytes(batch)
        if size > most and not whole:
            break
    else:
        if whole:
            return build_surely(
                layout, backend, options, metrics, one_batch(rows, layout.build.schema), probe_rows
            )
        built = _in_memory(layout, backend, options, metrics, rows, size, probe_rows)
        if built is not None:
            return built
    store = SpillStore(options, metrics)
    try:
        parts = _divided(layout, store, division, depth, _chain(rows, source), most)
    except BaseException:
        store.close()
        raise
    return Spilled(layout, backend, options, store, parts, division, depth)


def build_surely(
    layout: JoinLayout,
    backend: AnyBackend,
    options: Options,
    metrics: JoinMetrics,
    rows: pa.RecordBatch,
    probe_rows: int | None = None,
) -> BuiltSide:
    """Build on the backend, or on the CPU if it does not fit there."""
    try:
        return BuiltSide(layout, backend, rows, options, metrics, probe_rows)
    except OutOfMemoryError:
        metrics.fallbacks += 1
        return BuiltSide(layout, create(BackendName.CPU, BackendRequest()), rows, options, metrics)


def _divided(
    layout: JoinLayout,
    store: SpillStore,
    division: Division,
    depth: int,
    batches: Iterable[pa.RecordBatch],
    slice_bytes: int,
) -> tuple[SpillPart, ...]:
    """Write the rows of a build side to disk in parts.

    Parameters
    ----------
    layout : JoinLayout
        The join.
    store : SpillStore
        Where to.
    division : Division
        By key hash into :data:`FAN_OUT` parts, or by position.
    depth : int
        Seed of the hash.
    batches : iterable of RecordBatch
        The rows.
    slice_bytes : int
        By position: most bytes of a part.
    """
    side = layout.build
    if division is Division.HASH:
        parts = store.new_parts(side.schema, FAN_OUT)
        scatter(layout, side, parts, depth, batches)
    else:
        parts = store.new_parts(side.schema, 1)
        for batch in batches:
            for piece in _pieces(batch, slice_bytes):
                if parts[-1].rows and parts[-1].nbytes + piece.nbytes > slice_bytes:
                    parts[-1].flush()
                    parts += store.new_parts(side.schema, 1)
                parts[-1].append(piece)
    for part in parts:
        part.flush()
    return parts


def scatter(
    layout: JoinLayout,
    side: SideLayout,
    parts: Sequence[SpillPart],
    depth: int,
    batches: Iterable[pa.RecordBatch],
) -> None:
    """Append rows to parts by the hash of their keys; all rows where there is one part.

    Parameters
    ----------
    layout : JoinLayout
        The join.
    side : SideLayout
        Whose rows.
    parts : sequence of SpillPart
        Where to.
    depth : int
        Seed of the hash.
    batches : iterable of RecordBatch
        The rows.
    """
    count = len(parts)
    for batch in batches:
        if count == 1:
            parts[0].append(compact(batch))
            continue
        codes = layout.codec.codes(batch, side.side)
        ids = partition_ids(codes, count, seed=depth + 1)
        unmatchable = rows_matching_nothing(codes)
        if unmatchable is not None:  # they may go anywhere, but not all to one part
            ids[unmatchable] = np.arange(np.count_nonzero(unmatchable), dtype=np.int32) % count
        order = np.argsort(ids, kind="stable")
        bounds = np.searchsorted(ids[order], np.arange(count + 1))
        for number, part in enumerate(parts):
            chosen = order[bounds[number] : bounds[number + 1]]
            if len(chosen):
                part.append(_rows_of(batch, chosen))


def _rows_of(batch: pa.RecordBatch, chosen: npt.NDArray[np.int64]) -> pa.RecordBatch:
    if not len(batch.schema):
        return batch.slice(0, len(chosen))
    rows = pa.array(chosen)
    return pa.RecordBatch.from_arrays([take(column, rows) for column in batch.columns], schema=batch.schema)


def _pieces(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    size = own_bytes(batch)
    step = batch.num_rows if size <= most else int(batch.num_rows * most / size)
    step = max(1, step)
    for start in range(0, batch.num_rows, step):
        yield compact(batch.slice(start, step))


def _in_memory(
    layout: JoinLayout,
    backend: AnyBackend,
    options: Options,
    metrics: JoinMetrics,
    rows: Sequence[pa.RecordBatch],
    size: int,
    probe_rows: int | None,
) -> BuiltSide | None:
    whole = one_batch(rows, layout.build.schema)
    if size <= _TINY:
        return build_surely(layout, backend, options, metrics, whole, probe_rows)
    try:
        return BuiltSide(layout, backend, whole, options, metrics, probe_rows)
    except OutOfMemoryError:
        metrics.retries += 1
        return None


def _chain(rows: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches held, let go one by one, and those still to come."""
    rows.reverse()
    while rows:
        yield rows.pop()
    yield from rest
