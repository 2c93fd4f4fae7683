r"""The forms in which rows of a join come in and go out: Arrow batches, or frames that stay on a device.

The join itself (`probe`, `output`) works on key frames, masks and gather maps only. A *sink* does the rest: it makes
key frames of rows, selects the columns to gather, and assembles the gathered columns of both sides to output rows. An
example: ``l LEFT JOIN r ON l.k = r.k``, whose probe has found rows 1 and 0 of the right side for rows 0 and 2 of the
left side::

    l  k v      r  k w      gather maps   left   0  1  2       output   k v w
       1 a         3 x                    right  1 -1  0                1 a y
       2 b         1 y                                                  2 b null
       3 c                                                              3 c x

Maps and marks are the same for both forms. :class:`Sink` gathers ``v`` and ``w`` into a record batch, and
:class:`FrameSink` into a frame of the device.

============  ================================  =================================
\             :class:`Sink`                     :class:`FrameSink`
============  ================================  =================================
rows          record batches                    frames of the device
keys          codes, or typed columns, copied   normalised on the device
payload       columns that a backend lacks      on the device
              are gathered on the host
output        record batches                    frames
on the CPU    the same batches                  copies of the frames, as batches
============  ================================  =================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.engine.join.as_of import AsOfBuild, nearest_terms
from gpujoin.engine.join.layout import JoinLayout, SideLayout
from gpujoin.engine.join.marks import Mask
from gpujoin.engine.join.not_in import FrameNulls, NullPatterns
from gpujoin.engine.join.payload import Payload
from gpujoin.engine.join.ranges import BuiltRanges
from gpujoin.engine.join.uploads import Uploads
from gpujoin.engine.keys import key_frame, takes_typed
from gpujoin.errors import DeviceValueError, ExpressionEvaluationError
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.hostgather import one_batch, own_bytes
from gpujoin.model.jointype import Side
from gpujoin.model.layouts import in_type
from gpujoin.model.maps import RowMap, Span
from gpujoin.model.pipeline import AnyDevicePipeline, NearestRows, RangedRows
from gpujoin.model.types import logical, wide_offsets


@dataclass(frozen=True)
class FrameColumns:
    """Columns of one side on a device, gathered as frames. The counterpart of :class:`.payload.Payload`."""

    frame: Any
    backend: AnyBackend
    kernels: bool
    """Whether they may be gathered by gpujoin's own kernels."""

    on_host: tuple[int, ...] = ()
    longest_value: int = 0

    @cached_property
    def row_bytes(self) -> float:
        """Mean bytes of a row."""
        return self.backend.frame_bytes(self.frame) / max(1, self.backend.frame_rows(self.frame))

    def gather(self, rows: RowMap, schema: pa.Schema) -> Any:  # noqa: ARG002
        """Gather rows of the columns by a map, as a frame."""
        return self.backend.gather(self.frame, rows, kernels=self.kernels)

    def gathered_bytes(self, rows: RowMap) -> int:  # noqa: ARG002
        """0: the size of frames is not limited."""
        return 0


Columns: TypeAlias = Payload | FrameColumns
"""Columns of one side that will be gathered."""


@dataclass(frozen=True)
class Sink:
    """A join on a backend whose rows come in and go out as Arrow batches."""

    layout: JoinLayout
    """Columns, keys and condition of the join."""
    backend: AnyBackend
    options: Options

    least_batch_rows: ClassVar[int] = 1
    held_batches: ClassVar[int] = 8
    """Batches of output that are held back on the host until the morsel of a device is complete: 256 MiB."""

    @property
    def kernels(self) -> bool:
        """Whether gpujoin's own kernels may be used on a device."""
        return self.options.gpu_algorithm.uses_kernels

    @cached_property
    def evaluator(self) -> AnyBackend:
        """The backend if it can evaluate the condition and hold its columns, else the CPU backend."""
        layout, backend = self.layout, self.backend
        if layout.condition is None or backend.name is BackendName.CPU:
            return backend
        types = [
            side_layout.schema.field(i).type
            for side_layout in (layout.build, layout.probe)
            for i in side_layout.condition
        ]
        if backend.can_evaluate(layout.condition) and all(map(backend.can_gather, types)):
            return backend
        return create(BackendName.CPU, BackendRequest())

    @property
    def batch_bytes(self) -> int:
        """Size that output batches aim at."""
        return self.options.batch_bytes

    def candidate_pairs(self, rows_per_batch: int) -> int:  # noqa: ARG002
        """Pairs on which a condition is evaluated at a time."""
        return self.options.candidate_pairs

    # -- rows in -------------------------------------------------------------------------------------------

    def count(self, rows: Any) -> int:
        """Row count."""
        return int(rows.num_rows)

    def slice(self, rows: Any, start: int, length: int) -> Any:
        """Rows ``start`` to ``start + length - 1``."""
        return rows.slice(start, length)

    def nbytes(self, rows: Any) -> int:
        """Memory of rows."""
        return own_bytes(rows)

    def no_rows(self, side_layout: SideLayout) -> Any:
        """An empty input of a side."""
        return one_batch((), side_layout.schema)

    @property
    def marks_on(self) -> AnyBackend | None:
        """Device on which build rows are marked; ``None``: the host, which has the rows too."""
        return None

    @property
    def copies_rows(self) -> bool:
        """Whether rows in host memory are copied to a device."""
        return self.backend.name is BackendName.GPU

    @property
    def fetches(self) -> bool:
        """Whether a device may read payload with the keys, without a probe.

        Only by gpujoin's own kernels, and not of rows in host memory: a probe tells first whether all of them are
        output, and then none of their columns but the keys has to be copied.
        """
        return self.kernels and not self.copies_rows

    def uploads(self, rows: Any) -> Uploads | None:
        """Make the record of the columns of rows that are copied to the device; ``None`` on the CPU: none are."""
        return Uploads(self.backend, rows.schema.types) if self.copies_rows else None

    def keys(self, rows: Any, side_layout: SideLayout, uploads: Uploads | None = None) -> Any:
        """Key frame of rows, on the backend."""
        codec, side = self.layout.codec, side_layout.side
        if uploads is not None and uploads.keys is not None:
            frame, uploads.keys = uploads.keys, None
            return frame
        frame = key_frame(self.backend, codec, rows, side)
        if uploads is not None and takes_typed(self.backend, codec):
            uploads.note([key.of(side) for key in self.layout.spec.keys], codec.types, frame)
        return frame

    def as_of(self, rows: Any) -> AsOfBuild | NearestRows[Any]:
        """Build the search for the nearest of right rows."""
        terms, layout = self.layout.spec.as_of, self.layout
        assert terms is not None
        return AsOfBuild.of(terms, layout.codec, layout.probe.schema, rows, self.backend, kernels=self.kernels)

    def ranges(self, rows: Any, layout: JoinLayout, least_spread: float) -> BuiltRanges | RangedRows[Any] | None:
        """Build the search of build rows by the ranges of a layout; ``None`` where it is not possible or not useful.

        ``least_spread`` is the least average number of rows of a key for which it is.
        """
        side, codec = layout.build.side, layout.codec
        return BuiltRanges.of(layout.axes, side, codec, rows, self.backend, least_spread, kernels=self.kernels)

    def null_patterns(self, rows: Any, *, pairs: bool) -> NullPatterns | FrameNulls:
        """Search of build rows of a null-aware join by null keys."""
        algorithm = self.options.gpu_algorithm
        return NullPatterns(self.layout.codec, self.backend, rows, self.layout.build.side, algorithm, pairs=pairs)

    def output(self, rows: Any, side_layout: SideLayout, uploads: Uploads | None = None) -> Columns:
        """The columns that the join returns of a side."""
        return Payload.of(rows, side_layout.output, self.backend, uploads, kernels=self.kernels)

    def condition(self, rows: Any, side_layout: SideLayout, uploads: Uploads | None = None) -> Columns:
        """The columns of a side that the residual condition reads, on the backend that evaluates it."""
        shared = uploads if self.evaluator is self.backend else None
        return Payload.of_condition(rows, side_layout.condition, self.evaluator, shared, kernels=self.kernels)

    # -- rows out ------------------------------------------------------------------------------------------

    def gathered(self, frame: Any, rows: Span, side_layout: SideLayout) -> Any:
        """Take rows of a frame of output columns, in the form that :meth:`assemble` accepts."""
        return self.backend.to_arrow(self.backend.gather(frame, rows), side_layout.output_schema).columns

    def exists_column(self, matched: Mask) -> Any:
        """The column of an existence join, which says whether each row has a match, as :meth:`assemble` takes it."""
        return matched.on_host

    def assemble(self, columns: Mapping[Side, Any], exists: Any | None, length: int) -> Any:
        """Put result rows together from the gathered columns of each side and the column of an existence join."""
        schema = self.layout.output_schema
        if not schema:
            return pa.record_batch({"rows": pa.nulls(length)}).select([])
        arrays = [*columns.get(Side.LEFT, ()), *columns.get(Side.RIGHT, ())]
        if exists is not None:
            arrays.append(pa.array(exists))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    # -- on the CPU ----------------------------------------------------------------------------------------

    def on_cpu(self) -> Sink:
        """The same join on the CPU."""
        return dataclasses.replace(self, backend=create(BackendName.CPU, BackendRequest()))

    def to_host(self, rows: Any, side_layout: SideLayout) -> pa.RecordBatch:  # noqa: ARG002
        """Convert rows to the form of the join that :meth:`on_cpu` returns."""
        batch: pa.RecordBatch = rows
        return batch


@dataclass(frozen=True)
class FrameSink(Sink):
    """A join whose rows come in and go out as frames of a device.

    Only for joins that the device supports fully: keys and order keys that it compares, a condition that it evaluates,
    and columns that it can hold.
    """

    device: AnyDevicePipeline = dataclasses.field(kw_only=True)
    """Pipeline of the device that holds the frames."""
    piece_bytes: int = dataclasses.field(kw_only=True)
    """Size that output frames aim at."""

    least_batch_rows: ClassVar[int] = 1024
    """Least rows of a batch: fewer are not worth the kernel launches."""
    held_batches: ClassVar[int] = 2
    """Frames of output that are held back on the device: a piece gives one or two, unless keys are repeated."""

    @classmethod
    def on_device(cls, layout: JoinLayout, device: AnyDevicePipeline, options: Options, piece_bytes: int) -> FrameSink:
        """Make the sink of a join: without ranges where the device does not search by them."""
        if layout.ranged is not None and not device.searches(layout.ranged.axes):
            layout = dataclasses.replace(layout, ranged=None)
        return cls(layout, device.backend, options, device=device, piece_bytes=piece_bytes)

    @property
    def batch_bytes(self) -> int:
        """Size that output frames aim at."""
        return self.piece_bytes

    @property
    def evaluator(self) -> AnyBackend:
        """The device."""
        return self.backend

    def candidate_pairs(self, rows_per_batch: int) -> int:
        """Pairs on which a condition is evaluated at a time: at least as many as an output frame has rows."""
        return max(self.options.candidate_pairs, rows_per_batch)

    def count(self, rows: Any) -> int:
        """Row count, also of record batches that were finished on the CPU."""
        return rows.num_rows if isinstance(rows, pa.RecordBatch) else self.backend.frame_rows(rows)

    def slice(self, rows: Any, start: int, length: int) -> Any:
        """Rows ``start`` to ``start + length - 1``."""
        return rows if length == self.count(rows) else self.device.slice(rows, start, length)

    def nbytes(self, rows: Any) -> int:
        """Memory of rows."""
        return self.backend.frame_bytes(rows)

    def no_rows(self, side_layout: SideLayout) -> Any:
        """An empty input of a side."""
        return self.device.take_in(side_layout.schema.empty_table(), side_layout.schema)

    @property
    def marks_on(self) -> AnyBackend:
        """The device."""
        return self.backend

    @property
    def copies_rows(self) -> bool:
        """``False``: the rows are on the device."""
        return False

    def uploads(self, rows: Any) -> None:  # noqa: ARG002
        """``None``: nothing is copied, the rows are on the device."""
        return

    def keys(self, rows: Any, side_layout: SideLayout, uploads: Uploads | None = None) -> Any:  # noqa: ARG002
        """Key frame of rows, on the backend."""
        codec = self.layout.codec
        positions = [key.of(side_layout.side) for key in self.layout.spec.keys]
        return self.device.keys(rows, positions, codec.types, codec.null_safe)

    def as_of(self, rows: Any) -> NearestRows[Any]:
        """Build the search for the nearest of right rows."""
        layout, order, dtype = self.layout, self.layout.spec.as_of, self.layout.as_of_type
        assert order is not None
        assert dtype is not None
        terms = nearest_terms(order, dtype)
        return self.device.as_of(rows, order, layout.spec.keys, layout.codec.types, terms, kernels=self.kernels)

    def ranges(self, rows: Any, layout: JoinLayout, least_spread: float) -> RangedRows[Any] | None:
        """Build the search of build rows by the ranges of a layout; ``None`` where it is not possible or not useful."""
        side, keys = layout.build.side, layout.spec.keys
        try:
            search = self.device.ranges(rows, side, layout.axes, keys, layout.codec.types, kernels=self.kernels)
        except (ExpressionEvaluationError, DeviceValueError):
            return None
        return None if keys and search.spread < least_spread else search

    def null_patterns(self, rows: Any, *, pairs: bool) -> FrameNulls:
        """Search of build rows of a null-aware join by null keys."""
        return FrameNulls(self.layout, rows, self.device, self.options.gpu_algorithm, pairs=pairs)

    def output(self, rows: Any, side_layout: SideLayout, uploads: Uploads | None = None) -> Columns:  # noqa: ARG002
        """The columns that the join returns of a side."""
        return FrameColumns(self.device.select(rows, side_layout.output), self.backend, self.kernels)

    def condition(self, rows: Any, side_layout: SideLayout, uploads: Uploads | None = None) -> Columns:  # noqa: ARG002
        """The columns of a side that the residual condition reads."""
        return FrameColumns(self.device.select(rows, side_layout.condition), self.backend, self.kernels)

    def gathered(self, frame: Any, rows: Span, side_layout: SideLayout) -> Any:  # noqa: ARG002
        """Take rows of a frame."""
        return self.backend.gather(frame, rows)

    def exists_column(self, matched: Mask) -> Any:
        """The column of an existence join, on the device."""
        return matched.on(self.backend)

    def assemble(self, columns: Mapping[Side, Any], exists: Any | None, length: int) -> Any:
        """Put the gathered columns side by side to a frame of the join's output."""
        frames = [columns[side] for side in Side if side in columns]
        if exists is not None:
            frames.append(self.device.mask_column(exists, length))
        return self.device.hstack(frames)

    def on_cpu(self) -> Sink:
        """The same join on the CPU, over copies of the frames."""
        layout = self.layout
        schemas = {side_layout.side: _host_schema(side_layout.schema) for side_layout in (layout.build, layout.probe)}
        host = JoinLayout.of(layout.spec, schemas[Side.LEFT], schemas[Side.RIGHT], layout.build.side)
        return Sink(host, create(BackendName.CPU, BackendRequest()), self.options)

    def to_host(self, rows: Any, side_layout: SideLayout) -> pa.RecordBatch:
        """Copy rows to the host, in the form of the join that :meth:`on_cpu` returns."""
        return self.from_host(self.device.give_out(rows, side_layout.schema), side_layout)

    def from_host(self, batch: pa.RecordBatch, side_layout: SideLayout) -> pa.RecordBatch:
        """Convert rows on the host to the form that :meth:`on_cpu` joins: text and bytes get 64-bit offsets."""
        schema = _host_schema(side_layout.schema)
        if not len(schema):
            return batch
        arrays = [in_type(array, field.type) for array, field in zip(batch.columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _host_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(wide_offsets(logical(field.type))) for field in schema])
