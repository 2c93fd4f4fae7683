"""The state of a join of streams during one micro-batch: live rows of chunks, marks, eviction, merging.

Nothing is written before :meth:`State.commit`. Three kinds of rows of a chunk are dead, though they are stored: those
whose time has passed the threshold of an earlier micro-batch, left rows of a semi join that have matched, and all rows
of a chunk that is about to be removed.

Small chunks are merged, so that their number stays logarithmic: sizes fall into tiers, each ``fan_in`` times smaller
than the next, and as many chunks of a tier become one, ordered by time and cut where it would be too large::

    tier 2   a b c d        four micro-batches of 1 MiB each, fan_in 4
    tier 1   abcd  e f g    the next three
    tier 1   abcd efgh      eight micro-batches are two chunks

Dead rows are left out of merged chunks.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.errors import ConfigurationError, StreamStateError
from gpujoin.model.hostgather import one_batch, own_bytes, take_rows
from gpujoin.model.jointype import Side
from gpujoin.model.layouts import in_type
from gpujoin.streams.format import (
    ChunkStore,
    Manifest,
    Marks,
    StateChunk,
    encode,
    identifier,
    pack,
    storage_schema,
    unpack,
)
from gpujoin.streams.join import TimeColumn
from gpujoin.streams.plan import StreamPlan

Micros = npt.NDArray[np.int64]
Span = tuple[int, int]

_TIERS = 3
"""Tiers of small chunks. In the last one are all that are smaller still, whose rows weigh less than their schema."""


@dataclass(frozen=True, slots=True)
class StateOptions:
    """How a state is cut into chunks."""

    chunk_bytes: int = 2 << 20
    """Size in memory that chunks aim at. Those of half of it and more are not merged."""
    fan_in: int = 8
    """Chunks of similar size that are merged into one."""

    def __post_init__(self) -> None:
        if self.chunk_bytes < 1 or self.fan_in < 2:
            raise ConfigurationError(f"chunks take at least 1 byte and are merged at least 2 at a time, got {self}")


@dataclass(slots=True)
class StreamMetrics:
    """Counters of micro-batches, which add up."""

    late_rows: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    """Rows dropped since they came after the watermark."""
    new_rows: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    """Rows that were joined."""
    padded_rows: int = 0
    """Rows returned with nulls in place of the other side."""
    chunks_read: int = 0
    chunks_excluded: int = 0
    """Chunks whose rows were joined with new rows, and those that were left out because of their times."""
    chunks_written: int = 0
    chunks_merged: int = 0
    chunks_removed: int = 0
    """Chunks written, and of these such as were made of others; chunks removed, the merged ones included."""
    bytes_written: int = 0
    """Bytes of the chunks written, as stored."""


@dataclass(frozen=True, slots=True)
class LiveRows:
    """Rows of one side that may match."""

    rows: pa.RecordBatch
    """The rows."""
    marks: Marks | None
    """Marks to be set where rows match, of these rows or of more; ``None``: matches are not counted."""
    positions: Micros | None = None
    """Places of the rows in ``marks``; ``None``: those of all."""
    chunk: StateChunk | None = None
    """Chunk that they are of; ``None``: they are new."""

    def mark(self, matched: Marks) -> None:
        """Set the marks of rows that have matched."""
        if self.marks is not None:
            self.marks[matched if self.positions is None else self.positions[matched]] = True


@dataclass(slots=True)
class _Pending:
    """Rows that will be written as one chunk."""

    rows: pa.RecordBatch
    matched: Marks
    span: Span | None
    nbytes: int
    merged: bool


class State:
    """The state during one micro-batch: what ``manifest`` names of ``store``, changed in memory until the commit."""

    def __init__(
        self,
        plan: StreamPlan,
        manifest: Manifest,
        store: ChunkStore,
        options: StateOptions,
        metrics: StreamMetrics,
    ) -> None:
        self._plan = plan
        self._manifest = manifest
        self._store = store
        self._options = options
        self._metrics = metrics
        self._chunks = {side: list(manifest.of(side)) for side in Side}
        self._pending: dict[Side, list[_Pending]] = {side: [] for side in Side}
        self._evicted = dict(manifest.evicted)
        self._marks: dict[str, Marks] = {}
        self._removed: list[StateChunk] = []

    # -- reading -------------------------------------------------------------------------------------------

    def live(self, side: Side, others: Span | None) -> Iterator[LiveRows]:
        """Give the rows of a side that may match new rows of the other side, whose event times are within ``others``.

        ``None``: the new rows have no times.
        """
        band = self._plan.band
        for chunk in self._chunks[side]:
            if band is not None and band.excludes(side, chunk.span, others):
                self._metrics.chunks_excluded += 1
                continue
            self._metrics.chunks_read += 1
            live = self._live(chunk)
            if live.rows.num_rows:
                yield live

    def rows(self, side: Side) -> Iterator[pa.RecordBatch]:
        """All live rows of a side."""
        for chunk in self._chunks[side]:
            yield self._live(chunk).rows

    def _live(self, chunk: StateChunk) -> LiveRows:
        """Live rows of a chunk."""
        side = chunk.side
        schema = self._plan.join.schema(side)
        stored = self._store.get(chunk, storage_schema(schema))
        rows = pa.RecordBatch.from_arrays(stored.columns, schema=schema)
        marks = self._marks_of(chunk) if self._plan.marks(side) else None
        dead: Marks | None = None
        evicted = self._evicted[side]
        if evicted is not None and chunk.low is not None and chunk.low <= evicted:
            dead = up_to(rows, self._plan.times[side], evicted)
        if self._plan.ends_at_match and marks is not None and marks.any():
            dead = marks if dead is None else dead | marks
        if dead is None or not dead.any():
            return LiveRows(rows, marks, None, chunk)
        positions = np.flatnonzero(~dead)
        return LiveRows(rows_at(rows, positions), marks, positions, chunk)

    def _marks_of(self, chunk: StateChunk) -> Marks:
        marks = self._marks.get(chunk.id)
        if marks is None:
            stored = self._store.get_marks(chunk) if chunk.matched else None
            if chunk.matched and stored is None:
                raise StreamStateError(f"the state lacks the marks of chunk {chunk.id}")
            marks = self._marks[chunk.id] = unpack(stored, chunk.rows)
        return marks

    def _matched(self, chunk: StateChunk) -> int:
        """Rows of a chunk that have matched."""
        marks = self._marks.get(chunk.id)
        return chunk.matched if marks is None else int(np.count_nonzero(marks))

    # -- changing ------------------------------------------------------------------------------------------

    def evict(self, side: Side, threshold: int | None) -> Iterator[pa.RecordBatch]:
        """Let go of the rows whose time is at or before a threshold.

        Chunks leave as a whole once all their rows are gone, and unread if none of their rows is to be returned.

        Yields
        ------
        RecordBatch
            Rows that go and have never matched, of a side for which the join returns them.
        """
        before = self._evicted[side]
        if threshold is None or (before is not None and threshold <= before):
            return
        rest = []
        for chunk in self._chunks[side]:
            if chunk.low is None or chunk.low > threshold:
                rest.append(chunk)
                continue
            if self._plan.padded(side) and self._matched(chunk) < chunk.rows:
                unmatched = self._unmatched(chunk, threshold)
                if unmatched.num_rows:
                    yield unmatched
            if chunk.high is not None and chunk.high <= threshold:
                self._removed.append(chunk)
            else:
                rest.append(chunk)
        self._chunks[side] = rest
        self._evicted[side] = threshold

    def _unmatched(self, chunk: StateChunk, threshold: int) -> pa.RecordBatch:
        """Live rows of a chunk that are at or before a threshold and have not matched."""
        live = self._live(chunk)
        assert live.marks is not None
        marks = live.marks if live.positions is None else live.marks[live.positions]
        return rows_at(live.rows, up_to(live.rows, self._plan.times[chunk.side], threshold) & ~marks)

    def add(self, side: Side, rows: pa.RecordBatch, matched: Marks) -> None:
        """Store new rows, whose times must be beyond the threshold."""
        self._pending[side] += self._cut(side, rows, matched, merged=False)

    def _cut(self, side: Side, rows: pa.RecordBatch, matched: Marks, *, merged: bool) -> Iterator[_Pending]:
        """Cut rows into chunks of the size that is aimed at, ordered by time; rows without a time apart."""
        time = self._plan.times[side]
        if time is None:
            yield from self._even(rows, matched, None, merged=merged)
            return
        micros, valid = event_times(rows, time)
        if valid is not None:
            yield from self._even(rows_at(rows, ~valid), matched[~valid], None, merged=merged)
            rows, matched, micros = rows_at(rows, valid), matched[valid], micros[valid]
        yield from self._even(rows, matched, micros, merged=merged)

    def _even(self, rows: pa.RecordBatch, matched: Marks, micros: Micros | None, *, merged: bool) -> Iterator[_Pending]:
        if not rows.num_rows:
            return
        nbytes = own_bytes(rows)
        pieces = min(rows.num_rows, -(-nbytes // self._options.chunk_bytes)) or 1
        if pieces > 1 and micros is not None and (np.diff(micros) < 0).any():
            order = np.argsort(micros, kind="stable")
            rows, matched, micros = rows_at(rows, order), matched[order], micros[order]
        ends = [rows.num_rows * piece // pieces for piece in range(pieces + 1)]
        for start, end in itertools.pairwise(ends):
            span = None if micros is None else (int(micros[start:end].min()), int(micros[start:end].max()))
            piece = rows.slice(start, end - start)
            yield _Pending(piece, matched[start:end], span, nbytes // pieces, merged)

    def merge(self, side: Side) -> None:
        """Merge chunks of a side while many of them are small."""
        while (group := self._crowded(side)) is not None:
            parts: list[tuple[pa.RecordBatch, Marks]] = []
            for member in group:
                if isinstance(member, _Pending):
                    parts.append((member.rows, member.matched))
                    self._pending[side] = [item for item in self._pending[side] if item is not member]
                    continue
                live = self._live(member)
                marks = np.zeros(member.rows, np.bool_) if live.marks is None else live.marks
                parts.append((live.rows, marks if live.positions is None else marks[live.positions]))
                self._chunks[side] = [item for item in self._chunks[side] if item is not member]
                self._removed.append(member)
            rows = one_batch([rows for rows, _ in parts], self._plan.join.schema(side))
            matched = np.concatenate([matched for _, matched in parts])
            self._pending[side] += self._cut(side, rows, matched, merged=True)

    def _crowded(self, side: Side) -> list[StateChunk | _Pending] | None:
        """Small chunks of similar size that are to be merged."""
        tiers: dict[tuple[bool, int], list[StateChunk | _Pending]] = {}
        members: list[StateChunk | _Pending] = [*self._chunks[side], *self._pending[side]]
        for member in members:
            share = 1.0
            if isinstance(member, StateChunk) and self._plan.ends_at_match:
                share -= self._matched(member) / member.rows
            size = max(1.0, member.nbytes * share)
            if 2 * size < self._options.chunk_bytes:
                tier = min(_TIERS, int(math.log(self._options.chunk_bytes / size, self._options.fan_in)))
                tiers.setdefault((member.span is None, tier), []).append(member)
        crowded = (group for group in tiers.values() if len(group) >= self._options.fan_in)
        return next(crowded, None)

    # -- writing -------------------------------------------------------------------------------------------

    def commit(self, watermark_ms: int) -> Manifest:
        """Write new chunks and changed marks, remove chunks, and return the manifest of the rest."""
        manifest = self._manifest
        chunks: list[StateChunk] = []
        for side in Side:
            for chunk in self._chunks[side]:
                chunks += self._rewritten(chunk)
        number = 0
        for side in Side:
            for pending in self._pending[side]:
                chunks.append(self._written(side, pending, manifest.pushes, number))
                number += 1
        for chunk in self._removed:
            self._store.remove(chunk)
        self._metrics.chunks_removed += len(self._removed)
        return Manifest(manifest.fingerprint, watermark_ms, manifest.pushes + 1, dict(self._evicted), tuple(chunks))

    def _rewritten(self, chunk: StateChunk) -> list[StateChunk]:
        """Write the changed marks of a chunk that stays; nothing if all its rows are dead."""
        matched = self._matched(chunk)
        if self._plan.ends_at_match and matched == chunk.rows:
            self._removed.append(chunk)
            return []
        if matched != chunk.matched:
            self._store.put_marks(chunk, pack(self._marks[chunk.id]))
        return [dataclasses.replace(chunk, matched=matched)]

    def _written(self, side: Side, pending: _Pending, push: int, number: int) -> StateChunk:
        rows = _of_schema(pending.rows, storage_schema(self._plan.join.schema(side)))
        data = encode(rows)
        low, high = pending.span or (None, None)
        matched = int(np.count_nonzero(pending.matched))
        chunk = StateChunk(
            identifier(data, push, number),
            side,
            rows.num_rows,
            own_bytes(rows),
            data.size,
            low,
            high,
            matched,
        )
        self._store.put(chunk, data, rows)
        if matched:
            self._store.put_marks(chunk, pack(pending.matched))
        self._metrics.chunks_written += 1
        self._metrics.chunks_merged += pending.merged
        self._metrics.bytes_written += chunk.stored
        return chunk


def event_times(rows: pa.RecordBatch, time: TimeColumn) -> tuple[Micros, Marks | None]:
    """Event times in microseconds, and the mask of the rows that have one; ``None``: all have."""
    column = rows.column(time.column)
    if time.field is not None:
        column = pc.struct_field(column, [time.field])
    micros = column.view(pa.int64())
    if not column.null_count:
        return micros.to_numpy(), None
    return pc.fill_null(micros, 0).to_numpy(), pc.is_valid(column).to_numpy(zero_copy_only=False)


def up_to(rows: pa.RecordBatch, time: TimeColumn | None, threshold: int | None) -> Marks:
    """Mask of the rows whose event time is at or before a threshold; of none without a time or a threshold."""
    if time is None or threshold is None or not rows.num_rows:
        return np.zeros(rows.num_rows, np.bool_)
    micros, valid = event_times(rows, time)
    before = micros <= threshold
    return before if valid is None else before & valid


def span(rows: pa.RecordBatch, time: TimeColumn | None) -> Span | None:
    """Least and greatest event time of rows; ``None``: no row has one."""
    if time is None or not rows.num_rows:
        return None
    micros, valid = event_times(rows, time)
    micros = micros if valid is None else micros[valid]
    return (int(micros.min()), int(micros.max())) if len(micros) else None


def rows_at(rows: pa.RecordBatch, which: Marks | Micros) -> pa.RecordBatch:
    """Rows by a mask or by positions, of columns of any type."""
    positions = np.flatnonzero(which) if which.dtype == np.bool_ else which
    if len(positions) == rows.num_rows and which.dtype == np.bool_:
        return rows
    return take_rows(rows, pa.array(positions))


def _of_schema(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows in the layouts of a schema, which concatenation may have widened."""
    columns = [
        column if column.type == field.type else in_type(column, field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
