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
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.payload import one_batch
from gpujoin.engine.spill import SpillDirectory, SpillFile
from gpujoin.errors import DeviceMemoryError
from gpujoin.model.backend import AnyBackend, BackendName

FAN_OUT = 16
"""Partitions a spilled side is split into; a part still too big is split again with a fresh hash."""
_DEEPEST = 4
_TINY = 1 << 20
"""Builds of so few bytes that do not fit the device go to the CPU instead of to disk."""
_BUFFERED = 1 << 20
"""Bytes of a part gathered in memory before they are written."""


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
    directory : SpillDirectory
        Where the parts are.
    parts : tuple of SpillFile
        Its rows.
    division : Division
        How they were divided.
    depth : int
        How often the side has been divided; also the seed of the hash.
    """

    layout: JoinLayout
    backend: AnyBackend
    options: Options
    directory: SpillDirectory
    parts: tuple[SpillFile, ...]
    division: Division
    depth: int

    def close(self) -> None:
        """Remove the parts, and the directory with the outermost of them."""
        for part in self.parts:
            part.remove()
        if self.depth == 0:
            self.directory.close()


def take_in(
    layout: JoinLayout,
    backend: AnyBackend,
    options: Options,
    metrics: JoinMetrics,
    batches: Iterable[pa.RecordBatch],
    *,
    depth: int = 0,
    directory: SpillDirectory | None = None,
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
    directory : SpillDirectory or None
        Where to spill; ``None``: a new one if needed.
    stuck : bool
        Dividing by hash did not make the parts smaller: one key has too many rows. Divide by position.
    probe_rows : int or None
        Expected rows of the other side.
    """
    divisible = layout.spec.keys and not layout.spec.join_type.null_aware
    division = Division.HASH if divisible and depth < _DEEPEST and not stuck else Division.SLICES
    # Slices of the build side of an as-of join say nothing of which row is the nearest: it stays in one piece.
    whole = layout.spec.as_of is not None and division is Division.SLICES
    rows: list[pa.RecordBatch] = []
    size = 0
    source = iter(batches)
    for batch in source:
        if batch.num_rows == 0:
            continue
        rows.append(batch)
        size += own_bytes(batch)
        if size > options.memory_budget and not whole:
            break
    else:
        if whole:
            return build_surely(
                layout, backend, options, metrics, one_batch(rows, layout.build.schema), probe_rows
            )
        built = _in_memory(layout, backend, options, metrics, rows, size, probe_rows)
        if built is not None:
            return built
    directory = directory or SpillDirectory(options, metrics)
    try:
        parts = divide(
            layout, layout.build, directory, division, depth, _chain(rows, source), options.memory_budget
        )
    except BaseException:
        if depth == 0:
            directory.close()
        raise
    return Spilled(layout, backend, options, directory, parts, division, depth)


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
    except DeviceMemoryError:
        metrics.fallbacks += 1
        return BuiltSide(layout, create(BackendName.CPU, BackendRequest()), rows, options, metrics)


def divide(
    layout: JoinLayout,
    side: SideLayout,
    directory: SpillDirectory,
    division: Division,
    depth: int,
    batches: Iterable[pa.RecordBatch],
    slice_bytes: int | None = None,
) -> tuple[SpillFile, ...]:
    """Write rows to disk in parts.

    Parameters
    ----------
    layout : JoinLayout
        The join.
    side : SideLayout
        Whose rows.
    directory : SpillDirectory
        Where to.
    division : Division
        By key hash into :data:`FAN_OUT` parts, or by position.
    depth : int
        Seed of the hash.
    batches : iterable of RecordBatch
        The rows.
    slice_bytes : int or None
        By position: most bytes of a part; ``None``: one part.
    """
    if division is Division.SLICES:
        return _slices(side, directory, batches, slice_bytes)
    writers = [_Writer(directory.new_file(side.schema)) for _ in range(FAN_OUT)]
    for batch in batches:
        codes = layout.codec.codes(batch, side.side)
        ids = partition_ids(codes, FAN_OUT, seed=depth + 1)
        lost = rows_matching_nothing(codes)
        if lost is not None:  # they may go anywhere, but not all to one part
            ids[lost] = np.arange(np.count_nonzero(lost), dtype=np.int32) % FAN_OUT
        order = np.argsort(ids, kind="stable")
        bounds = np.searchsorted(ids[order], np.arange(FAN_OUT + 1))
        for part, writer in enumerate(writers):
            chosen = order[bounds[part] : bounds[part + 1]]
            if len(chosen):
                writer.add(_rows_of(batch, chosen))
    for writer in writers:
        writer.flush()
    return tuple(writer.file for writer in writers)


def _rows_of(batch: pa.RecordBatch, chosen: npt.NDArray[np.int64]) -> pa.RecordBatch:
    if not len(batch.schema):
        return batch.slice(0, len(chosen))
    rows = pa.array(chosen)
    return pa.RecordBatch.from_arrays([take(column, rows) for column in batch.columns], schema=batch.schema)


def _slices(
    side: SideLayout, directory: SpillDirectory, batches: Iterable[pa.RecordBatch], slice_bytes: int | None
) -> tuple[SpillFile, ...]:
    files = [directory.new_file(side.schema)]
    for batch in batches:
        for piece in _pieces(batch, slice_bytes):
            if slice_bytes is not None and files[-1].rows and files[-1].nbytes + piece.nbytes > slice_bytes:
                files.append(directory.new_file(side.schema))
            files[-1].append(piece)
    return tuple(files)


def _pieces(batch: pa.RecordBatch, most: int | None) -> Iterator[pa.RecordBatch]:
    size = own_bytes(batch)
    step = batch.num_rows if most is None or size <= most else int(batch.num_rows * most / size)
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
    except DeviceMemoryError:
        metrics.retries += 1
        return None


def _chain(rows: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches held, let go one by one, and those still to come."""
    rows.reverse()
    while rows:
        yield rows.pop()
    yield from rest


class _Writer:
    """Merges small batches before they are written."""

    def __init__(self, file: SpillFile) -> None:
        self.file = file
        self._rows: list[pa.RecordBatch] = []
        self._size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._rows.append(batch)
        self._size += batch.nbytes
        if self._size >= _BUFFERED:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            self.file.append(one_batch(self._rows, self.file.schema))
        self._rows, self._size = [], 0
