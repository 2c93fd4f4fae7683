"""Joins by way of the disk, for build sides beyond their share of memory: rows are divided into parts, joined in turn.

*By hash* (:attr:`Division.HASH`): both sides are divided by their keys, and parts of the same number are joined one
after the other. A part that is still too large is divided again, with a fresh hash. With a fan-out of 2::

    build  k = 1 2 3 4 2    probe  k = 2 3 5      part 0   build 1 3      probe 3 5
                                                  part 1   build 2 4 2    probe 2

Part 0 returns the pair (3, 3), part 1 the pairs (2, 2) and (2, 2). Equal keys are in the same part, so no pair is lost.

*By position* (:attr:`Division.SLICES`), where hashing cannot make parts smaller: one key has more rows than fit, there
are no keys, or nulls may match anything. Every slice of the build side is joined with all probe rows. Marks of probe
rows with a match are kept from slice to slice, since the rest of an outer join is known only after the last one::

    build  k = 7 7 | 7 8    probe  k = 7 9      slice 0   7 matches rows 0 and 1   9 no match yet
                                                slice 1   7 matches row 2          9 no match: returned with nulls
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.hashing import partition_ids
from gpujoin.engine.join.as_of import AsOfBuild, NearestOfSlices
from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.derive import Rest
from gpujoin.engine.join.layout import JoinLayout, SideLayout
from gpujoin.engine.join.marks import Mask
from gpujoin.engine.join.output import Emitter
from gpujoin.engine.join.passes import Pass
from gpujoin.engine.join.probe import join_morsel
from gpujoin.engine.join.sinks import Sink
from gpujoin.engine.keys import rows_matching_nothing
from gpujoin.engine.memory import HostMemory
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import drain, morsels
from gpujoin.engine.ordering import by_rank
from gpujoin.engine.spill import SpillPart, SpillStore, divisible, part_by_part
from gpujoin.errors import DeviceLostError, DeviceValueError, JoinSpecError, OutOfMemoryError
from gpujoin.model.hostgather import buffer_bytes, compact, one_batch, own_bytes, take
from gpujoin.model.maps import Indices
from gpujoin.model.pipeline import FAN_OUT

_TINY = 1 << 20
"""A build side of fewer bytes that does not fit the device is built on the CPU, not spilled to disk."""


class Division(Enum):
    """Ways to divide a spilled side into parts."""

    HASH = "hash"
    SLICES = "slices"


@dataclass(frozen=True)
class Spilled:
    """A build side on disk."""

    sink: Sink
    store: SpillStore
    """Store of the parts."""
    parts: tuple[SpillPart, ...]
    """Parts on disk."""
    division: Division
    """Whether the rows were divided by hash or by position."""
    depth: int
    """Number of divisions so far; also the seed of the hash."""

    @property
    def num_rows(self) -> int:
        """Row count."""
        return sum(part.rows for part in self.parts)

    def close(self) -> None:
        """Free the space of the parts."""
        self.store.close()


def take_in(
    sink: Sink,
    batches: Iterable[pa.RecordBatch],
    metrics: JoinMetrics,
    *,
    depth: int = 0,
    stuck: bool = False,
) -> BuiltSide | Spilled:
    """Read a build side into memory while it fits its budget, else to disk in parts.

    ``depth`` counts the divisions so far. ``stuck``: the last division by hash did not make the parts smaller; then
    rows are divided by position.
    """
    layout, options = sink.layout, sink.options
    by_hash = layout.spec.keys and not layout.spec.join_type.null_aware and divisible(depth, stuck=stuck)
    division = Division.HASH if by_hash else Division.SLICES
    # Distances across slices are those of codes. Codes of long keys are ranks within a slice, so they do not compare.
    needs_whole_build = layout.as_of_type is not None and by_rank(layout.as_of_type) and division is Division.SLICES
    rows: list[pa.RecordBatch] = []
    size = 0
    limit = HostMemory(options.memory_budget).build_bytes
    source = iter(batches)
    for batch in source:
        if batch.num_rows == 0:
            continue
        rows.append(batch)
        size += own_bytes(batch)
        if size > limit and not needs_whole_build:
            break
    else:
        together = one_batch(rows, layout.build.schema)
        if needs_whole_build or size <= _TINY:
            return BuiltSide.with_fallback(sink, together, metrics)
        try:
            return BuiltSide(sink, together, metrics)
        except (DeviceLostError, DeviceValueError) as problem:
            return BuiltSide.after(problem, sink, together, metrics)
        except OutOfMemoryError:
            metrics.retries += 1
        del together
    store = SpillStore(options, metrics)
    try:
        left = chain(drain(rows), source)
        if division is Division.HASH:
            parts = store.new_parts(layout.build.schema, FAN_OUT)
            scatter(layout, layout.build, parts, depth, left)
        else:
            parts = _sliced(store, layout.build.schema, left, limit)
        for part in parts:
            part.flush()
    except BaseException:
        store.close()
        raise
    return Spilled(sink, store, parts, division, depth)


def scatter(
    layout: JoinLayout,
    side: SideLayout,
    parts: Sequence[SpillPart],
    depth: int,
    batches: Iterable[pa.RecordBatch],
) -> None:
    """Append rows to parts by the hash of their keys, with ``depth`` as the seed; to a single part without hashing."""
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
            positions = pa.array(order[bounds[number] : bounds[number + 1]])
            if not len(positions):
                continue
            if len(batch.schema):
                columns = [take(column, positions) for column in batch.columns]
                part.append(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
            else:
                part.append(batch.slice(0, len(positions)))


def _sliced(
    store: SpillStore, schema: pa.Schema, batches: Iterable[pa.RecordBatch], limit: int
) -> tuple[SpillPart, ...]:
    """Divide rows by position into parts of at most ``limit`` bytes."""
    parts = store.new_parts(schema, 1)
    for batch in batches:
        size = own_bytes(batch)
        step = max(1, batch.num_rows if size <= limit else int(batch.num_rows * limit / size))
        for start in range(0, batch.num_rows, step):
            piece = compact(batch.slice(start, step))
            if parts[-1].rows and parts[-1].nbytes + buffer_bytes(piece) > limit:
                parts[-1].flush()
                parts += store.new_parts(schema, 1)
            parts[-1].append(piece)
    return parts


class SpilledRun:
    """One pass over a spilled build side: probe rows are spilled too, and joined part by part."""

    def __init__(self, spilled: Spilled, metrics: JoinMetrics) -> None:
        self.spilled = spilled
        self.metrics = metrics
        self._layout = spilled.sink.layout
        self._store = SpillStore(spilled.sink.options, metrics)
        count = FAN_OUT if spilled.division is Division.HASH else 1
        self._parts = self._store.new_parts(self._layout.probe.schema, count)
        self._finished = False

    def take(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Spill probe rows; their output comes from :meth:`finish`."""
        self._check_unfinished()
        scatter(self._layout, self._layout.probe, self._parts, self.spilled.depth, batches)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Join the parts and return all output. May be called once."""
        self._check_unfinished()
        self._finished = True
        if self.spilled.division is Division.HASH:
            return part_by_part((self.spilled.parts, self._parts), self._joined)
        return self._by_slices()

    def _check_unfinished(self) -> None:
        if self._finished:
            raise JoinSpecError(
                "finish() was called before, and the build side is on disk: nothing is left of that pass; begin another"
                " one with HashJoin.start()"
            )

    def close(self) -> None:
        """Free the space of the spilled probe rows."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _joined(self, parts: Sequence[SpillPart], stuck: bool) -> Iterator[pa.RecordBatch]:
        """Join two parts of one number. If the build side still does not fit, both are divided again."""
        build, probe = parts
        sink, depth = self.spilled.sink, self.spilled.depth + 1
        built = take_in(sink, build.read(), self.metrics, depth=depth, stuck=stuck)
        if isinstance(built, BuiltSide):
            probing = Pass(built, self.metrics)
            yield from probing.probe(probe.read())
            yield from probing.rest()
            return
        try:
            with SpilledRun(built, self.metrics) as deeper:
                deeper.take(probe.read())
                yield from deeper.finish()
        finally:
            built.close()

    def _by_slices(self) -> Iterator[pa.RecordBatch]:
        layout = self._layout
        sink = self.spilled.sink
        matched = np.zeros(self._parts[0].rows, np.bool_)
        if layout.spec.as_of is not None:
            yield from self._nearest(sink, matched)
        for part in () if layout.spec.as_of is not None else self.spilled.parts:
            rows = one_batch(list(part.read()), layout.build.schema)
            built = BuiltSide.with_fallback(sink, rows, self.metrics)
            probing, size = Pass(built, self.metrics), built.backend.morsel_rows
            if probing.early_stop is not None:
                yield from probing.probe(morsel for _, morsel in self._probe_rows(size))
            else:
                for start, morsel in self._probe_rows(size):
                    yield from join_morsel(probing.run, morsel, matched[start : start + morsel.num_rows])
            yield from probing.rest()
        kind = layout.derivation.probe_rest
        if kind is Rest.NOTHING:
            return
        cpu = sink.on_cpu()
        none = BuiltSide(cpu, cpu.no_rows(layout.build), self.metrics)
        for start, morsel in self._probe_rows(cpu.backend.morsel_rows):
            of_morsel = Mask(matched[start : start + morsel.num_rows], None)
            yield from Emitter(none, morsel, self.metrics).rest(layout.probe.side, kind, of_morsel)

    def _nearest(self, sink: Sink, matched: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        """Pairs of an as-of join, on the CPU: one pass over the slices finds the nearest rows, another gathers them."""
        schema, cpu, nearest = self._layout.build.schema, sink.on_cpu(), NearestOfSlices(len(matched))
        for number, part in enumerate(self.spilled.parts):
            search = BuiltSide(cpu, one_batch(list(part.read()), schema), self.metrics).as_of
            assert isinstance(search, AsOfBuild)
            for start, morsel in self._probe_rows(cpu.backend.morsel_rows):
                nearest.offer(number, start, search.ranked(morsel))
        matched |= nearest.slices >= 0
        for number, part in enumerate(self.spilled.parts):
            built = BuiltSide(cpu, one_batch(list(part.read()), schema), JoinMetrics())
            for start, morsel in self._probe_rows(cpu.backend.morsel_rows):
                maps = (Indices(rows, len(rows)) for rows in nearest.of(number, start, morsel.num_rows))
                yield from Emitter(built, morsel, self.metrics).pairs(*maps)

    def _probe_rows(self, size: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All probe rows in morsels, with the position of each morsel among them."""
        start = 0
        for morsel in morsels(self._parts[0].read(), self._layout.probe.schema, size):
            yield start, morsel
            start += morsel.num_rows
