r"""The two forms of a join's input and output: record batches on the CPU, frames on a device.

The join itself (`probe`, `output`) works on key frames, masks and gather maps only. A *sink* does the rest: it makes
key frames of rows, selects the columns to gather, and assembles the gathered columns of both sides to output rows. An
example: ``l LEFT JOIN r ON l.k = r.k``, whose probe has found rows 1 and 0 of the right side for rows 0 and 2 of the
left side::

    l  k v      r  k w      gather maps   left   0  1  2       output   k v w
       1 a         3 x                    right  1 -1  0                1 a y
       2 b         1 y                                                  2 b null
       3 c                                                              3 c x

Maps and marks are the same for both forms.

============  ======================  =========================================================
\             :class:`HostSink`       :class:`DeviceSink`
============  ======================  =========================================================
rows          record batches          frames, or batches whose columns are copied when they are
                                      first asked for (:mod:`.devicerows`)
keys          codes                   normalised on the device
output        record batches          frames of frames, batches of batches
on the CPU    the same batches        copies of frames, as batches; batches as they are
============  ======================  =========================================================

A join of which the device lacks a part (:func:`.checks.device_obstacle`) is one of the CPU as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.engine.join.as_of import coded_as_of
from gpujoin.engine.join.checks import device_obstacle, unsearched
from gpujoin.engine.join.devicerows import DeviceColumns, DeviceRows, ResidentRows, UploadedRows
from gpujoin.engine.join.layout import JoinLayout, SideLayout
from gpujoin.engine.join.marks import Mask
from gpujoin.engine.join.payload import Payload
from gpujoin.engine.join.ranges import RangeCodec, RangeEvaluationError
from gpujoin.errors import DeviceValueError, ExpressionEvaluationError
from gpujoin.model.backend import AnyBackend, AnyDeviceBackend, BackendName, CodedRows
from gpujoin.model.hostgather import one_batch, own_bytes, take
from gpujoin.model.jointype import Side
from gpujoin.model.maps import OutOfBounds, RowMap, Span
from gpujoin.model.pipeline import AnyDevicePipeline
from gpujoin.model.types import logical

Columns: TypeAlias = Payload | DeviceColumns
"""Columns of one side that will be gathered."""


@dataclass(frozen=True)
class OutputSizes:
    """Sizes of output batches or frames."""

    batch_bytes: int
    """Size that batches aim at."""
    least_rows: int = 1
    """Least rows of a batch."""
    held_batches: int = 8
    """Batches that are held back until the morsel of a device is complete: 256 MiB on the host."""


@dataclass(frozen=True)
class HostSink:
    """A join of record batches on the CPU."""

    layout: JoinLayout
    """Columns, keys and condition of the join."""
    backend: AnyBackend
    options: Options
    reason: str | None = None
    """Why a GPU does not compute the join; ``None``: it was not asked to."""

    kernels: ClassVar[bool] = False
    """Whether gpujoin's own kernels may be used on a device."""
    resident: ClassVar[bool] = False
    """Whether rows lie on a device, and output stays there."""

    @property
    def sizes(self) -> OutputSizes:
        """Sizes of output batches or frames."""
        return OutputSizes(self.options.batch_bytes)

    # -- rows in -------------------------------------------------------------------------------------------

    def take_in(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows to the form that is joined."""
        return rows

    def nbytes(self, rows: pa.RecordBatch) -> int:
        """Memory of rows."""
        return own_bytes(rows)

    def no_rows(self, side_layout: SideLayout) -> pa.RecordBatch:
        """An empty input of a side."""
        return one_batch((), side_layout.schema)

    def release(self, rows: pa.RecordBatch) -> None:
        """Nothing was copied."""

    def keys(self, rows: pa.RecordBatch, side_layout: SideLayout) -> Any:
        """Key frame of rows."""
        return self.backend.from_arrow(self.layout.codec.codes(rows, side_layout.side))

    def as_of(self, rows: pa.RecordBatch) -> CodedRows[Any]:
        """Code right rows for a search of the nearest."""
        layout, terms, dtype = self.layout, self.layout.spec.as_of, self.layout.as_of_type
        assert terms is not None
        assert dtype is not None
        return coded_as_of(terms, layout.codec, dtype, rows, self.backend)

    def ranges(self, rows: pa.RecordBatch, layout: JoinLayout) -> CodedRows[Any] | None:
        """Code build rows for a search by the ranges of a layout; ``None`` where an operand has no value for some."""
        try:
            return RangeCodec.coded(layout.axes, layout.build.side, layout.codec, rows, self.backend)
        except RangeEvaluationError:
            return None

    def rows_by_nulls(self, rows: pa.RecordBatch, side_layout: SideLayout, but: Mask | None) -> dict[int, RowMap]:
        """Divide rows by null pattern, a number whose bit ``i`` is set if key ``i`` is null.

        A null-safe key never is. Rows that are marked in ``but`` are left out.
        """
        patterns = np.zeros(rows.num_rows, np.int64)
        for number, single in enumerate(self.layout.codec.each()):
            nulls = single.null_mask(rows, side_layout.side)
            if nulls is not None:
                patterns |= nulls.astype(np.int64) << number
        if but is not None:
            patterns[but.on_host] = -1
        from_host = self.backend.indices_from_host
        return {
            int(pattern): from_host(np.flatnonzero(patterns == pattern), OutOfBounds.NEVER)
            for pattern in np.unique(patterns)
            if pattern >= 0
        }

    def keys_of(self, rows: pa.RecordBatch, row_map: RowMap, side_layout: SideLayout, numbers: Sequence[int]) -> Any:
        """Key frame of chosen rows, by some of the keys."""
        codec, indices = self.layout.codec.some(numbers), self.backend.indices_to_host(row_map)
        if len(indices) < rows.num_rows:
            columns = [take(rows.column(at), pa.array(indices)) for at in codec.positions(side_layout.side)]
            rows, codec = pa.RecordBatch.from_arrays(columns, [str(at) for at in range(len(columns))]), codec.alone()
        return self.backend.from_arrow(codec.codes(rows, side_layout.side))

    def output(self, rows: pa.RecordBatch, side_layout: SideLayout) -> Payload:
        """The columns that the join returns of a side."""
        return Payload.from_batch(rows, side_layout.output, self.backend)

    def condition(self, rows: pa.RecordBatch, side_layout: SideLayout) -> Payload:
        """The columns of a side that the residual condition reads."""
        return Payload.for_condition(rows, side_layout.condition, self.backend)

    # -- rows out ------------------------------------------------------------------------------------------

    def assemble(self, columns: Mapping[Side, Any], exists: Mask | None, length: int) -> pa.RecordBatch:
        """Put result rows together from the gathered columns of each side and the column of an existence join."""
        return _batch(self.layout, columns, exists, length)

    def count(self, output: pa.RecordBatch) -> int:
        """Row count of output."""
        return int(output.num_rows)

    # -- on the CPU ----------------------------------------------------------------------------------------

    def on_cpu(self) -> HostSink:
        """The same join on the CPU."""
        return dataclasses.replace(self, backend=_cpu())

    def to_host(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows to the form of the join that :meth:`on_cpu` returns."""
        return rows


@dataclass(frozen=True)
class DeviceSink:
    """A join on a device, of rows that lie there, or of rows in host memory.

    Only for joins that the device supports fully: keys and order keys that it compares, a condition that it evaluates,
    and columns that it can hold.
    """

    layout: JoinLayout
    """Columns, keys and condition of the join."""
    device: AnyDevicePipeline
    """Pipeline of the device that joins."""
    options: Options
    piece_bytes: int | None = None
    """Size that output frames aim at; ``None``: rows are batches in host memory, and so is output."""

    reason: ClassVar[str | None] = None
    """``None``: a GPU computes the join."""

    @classmethod
    def for_frames(
        cls, layout: JoinLayout, device: AnyDevicePipeline, options: Options, piece_bytes: int
    ) -> DeviceSink:
        """Make the sink of a join of frames: without ranges where the device does not search by them."""
        if layout.ranged is not None and not device.searches(layout.ranged.axes):
            layout = dataclasses.replace(layout, ranged=None)
        return cls(layout, device, options, piece_bytes)

    @property
    def backend(self) -> AnyDeviceBackend:
        """Backend of the device."""
        return self.device.backend

    @property
    def kernels(self) -> bool:
        """Whether gpujoin's own kernels may be used."""
        return self.options.gpu_algorithm.uses_kernels

    @property
    def resident(self) -> bool:
        """Whether rows lie on the device, and output stays there."""
        return self.piece_bytes is not None

    @property
    def fetches(self) -> bool:
        """Whether payload may be read with the keys, without a probe.

        Only by gpujoin's own kernels, and not of rows in host memory: a probe tells first whether all of them are
        output, and then none of their columns but the keys has to be copied.
        """
        return self.kernels and self.resident

    @property
    def sizes(self) -> OutputSizes:
        """Sizes of output batches or frames.

        Frames of few rows are not worth the kernel launches. A piece gives one or two, unless keys are repeated.
        """
        if self.piece_bytes is None:
            return OutputSizes(self.options.batch_bytes)
        return OutputSizes(self.piece_bytes, least_rows=1024, held_batches=2)

    # -- rows in -------------------------------------------------------------------------------------------

    def take_in(self, rows: pa.RecordBatch | DeviceRows) -> DeviceRows:
        """Convert rows to the form that is joined."""
        return UploadedRows(self.device, rows) if isinstance(rows, pa.RecordBatch) else rows

    def nbytes(self, rows: DeviceRows) -> int:
        """Memory of rows."""
        return rows.nbytes

    def no_rows(self, side_layout: SideLayout) -> DeviceRows:
        """An empty input of a side."""
        schema = side_layout.schema
        if not self.resident:
            return UploadedRows(self.device, one_batch((), schema))
        return ResidentRows(self.device, schema, self.device.take_in(schema.empty_table(), schema))

    def release(self, rows: DeviceRows) -> None:
        """Keep no copied column of rows alive any longer."""
        rows.release()

    def keys(self, rows: DeviceRows, side_layout: SideLayout) -> Any:
        """Key frame of rows."""
        codec = self.layout.codec
        frame = rows.operands(codec.positions(side_layout.side), codec.types)
        return self.device.keys(frame, codec.types, codec.null_safe)

    def as_of(self, rows: DeviceRows) -> CodedRows[Any]:
        """Code right rows for a search of the nearest."""
        layout, codec = self.layout, self.layout.codec
        frame = self._searched(rows, layout, layout.build)
        return self._coded(self.device.as_of(frame, codec.types, codec.null_safe), layout)

    def ranges(self, rows: DeviceRows, layout: JoinLayout) -> CodedRows[Any] | None:
        """Code build rows for a search by the ranges of a layout; ``None`` where an operand has no value for some.

        Raises ``DeviceValueError`` where the device does not search rows in host memory by the ranges, or does not
        compute an operand of some row there.
        """
        codec = layout.codec
        if not self.device.searches(layout.axes):
            raise DeviceValueError(unsearched(layout))
        try:
            frame = self._searched(rows, layout, layout.build)
            coded = self.device.ranges(frame, layout.axes_of_operands, codec.types, codec.null_safe)
        except ExpressionEvaluationError:
            return None
        except DeviceValueError:
            if not self.resident:
                raise
            return None
        return self._coded(coded, layout)

    def _coded(self, coded: CodedRows[Any], layout: JoinLayout) -> CodedRows[Any]:
        """Take rows in place of frames; what codes them does not keep the coded build rows alive."""
        code_frame = coded.code

        def code(rows: DeviceRows) -> Any:
            return code_frame(self._searched(rows, layout, layout.probe))

        return dataclasses.replace(coded, code=code)

    def _searched(self, rows: DeviceRows, layout: JoinLayout, side_layout: SideLayout) -> Any:
        """Frame of the equality keys of rows, and of the columns of their ranges or order."""
        side, codec, operands = side_layout.side, layout.codec, layout.operands[side_layout.side]
        types = [logical(side_layout.schema.field(at).type) for at in operands]
        if layout.as_of_type is not None:
            types = [layout.as_of_type]
        return rows.operands([*codec.positions(side), *operands], [*codec.types, *types])

    def rows_by_nulls(self, rows: DeviceRows, side_layout: SideLayout, but: Mask | None) -> dict[int, RowMap]:
        """Divide rows by null pattern, as :meth:`HostSink.rows_by_nulls` does."""
        codec = self.layout.codec
        frame = rows.operands(codec.positions(side_layout.side), codec.types)
        return self.device.rows_by_nulls(frame, codec.null_safe, None if but is None else but.on(self.backend))

    def keys_of(self, rows: DeviceRows, row_map: RowMap, side_layout: SideLayout, numbers: Sequence[int]) -> Any:
        """Key frame of chosen rows, by some of the keys."""
        codec = self.layout.codec.some(numbers)
        frame = rows.operands(codec.positions(side_layout.side), codec.types)
        if row_map != Span(0, rows.num_rows):
            frame = self.backend.gather(frame, row_map)
        return self.device.keys(frame, codec.types, codec.null_safe)

    def output(self, rows: DeviceRows, side_layout: SideLayout) -> Columns:
        """The columns that the join returns of a side."""
        return rows.payload(side_layout.output, kernels=self.kernels)

    def condition(self, rows: DeviceRows, side_layout: SideLayout) -> Columns:
        """The columns of a side that the residual condition reads."""
        return rows.payload(side_layout.condition, kernels=self.kernels)

    # -- rows out ------------------------------------------------------------------------------------------

    def assemble(self, columns: Mapping[Side, Any], exists: Mask | None, length: int) -> Any:
        """Put result rows together from the gathered columns of each side and the column of an existence join."""
        if not self.resident:
            arrays = {side: self._arrays(gathered, side) for side, gathered in columns.items()}
            return _batch(self.layout, arrays, exists, length)
        frames = [columns[side] for side in Side if side in columns]
        if exists is not None:
            frames.append(self.device.mask_column(exists.on(self.backend), length))
        return self.device.hstack(frames)

    def count(self, output: Any) -> int:
        """Row count of output, which the CPU may have made."""
        return int(output.num_rows) if isinstance(output, pa.RecordBatch) else self.backend.frame_rows(output)

    def _arrays(self, gathered: Any, side: Side) -> list[pa.Array]:
        if isinstance(gathered, list):
            return gathered
        return list(self.backend.to_arrow(gathered, self.layout.side(side).output_schema).columns)

    # -- on the CPU ----------------------------------------------------------------------------------------

    def on_cpu(self) -> HostSink:
        """The same join on the CPU, with ranges if its condition has any."""
        return HostSink(self.layout.derived_anew(), _cpu(), self.options)

    def to_host(self, rows: pa.RecordBatch | DeviceRows) -> pa.RecordBatch:
        """Convert rows to the form of the join that :meth:`on_cpu` returns."""
        return rows if isinstance(rows, pa.RecordBatch) else rows.to_host()


Sink: TypeAlias = HostSink | DeviceSink
"""The form of a join's input and output."""


def sink_of_batches(layout: JoinLayout, backend: AnyBackend, options: Options) -> Sink:
    """Choose how record batches are joined: on the device of a backend if that computes all of the join."""
    device: AnyDevicePipeline | None = backend.pipeline
    if device is None:
        return HostSink(layout, backend, options)
    obstacle = device_obstacle(layout, device, options)
    if obstacle is None:
        return DeviceSink(layout, device, options)
    return HostSink(layout, _cpu(options.cpu_threads or 1), options, obstacle)


def _cpu(threads: int = 1) -> AnyBackend:
    return create(BackendName.CPU, BackendRequest(threads=threads))


def _batch(
    layout: JoinLayout, columns: Mapping[Side, Sequence[pa.Array]], exists: Mask | None, length: int
) -> pa.RecordBatch:
    """Make a batch of the join's output."""
    if not layout.output_schema:
        return pa.record_batch({"rows": pa.nulls(length)}).select([])
    arrays = [*columns.get(Side.LEFT, ()), *columns.get(Side.RIGHT, ())]
    if exists is not None:
        arrays.append(pa.array(exists.on_host))
    return pa.RecordBatch.from_arrays(arrays, schema=layout.output_schema)
