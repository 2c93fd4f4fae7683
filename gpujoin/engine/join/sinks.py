r"""How rows of a join come in and go out: as Arrow batches, or as frames that stay on a backend.

The join itself (`probe`, `output`) works on key frames, masks and gather maps. What it does not know, a *sink* does:
how the keys of rows become a key frame, which columns are gathered, and what the gathered columns of both sides are
put together to.

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

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.engine.hostgather import one_batch
from gpujoin.engine.join.layout import JoinLayout, SideLayout
from gpujoin.engine.join.payload import Payload
from gpujoin.engine.keys import key_frame
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.gathering import ChooseGather
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Indices, RowMap, Span
from gpujoin.model.pipeline import AnyDevicePipeline
from gpujoin.model.types import logical, wide_offsets
from gpujoin.plan.gathering import gather_chooser


@dataclass(frozen=True)
class Mask:
    """Which rows of a side have a match.

    Attributes
    ----------
    values : Vector
        A mask of a backend, or NumPy booleans.
    backend : Backend or None
        Which; ``None``: NumPy.
    """

    values: Any
    backend: AnyBackend | None

    def on(self, backend: AnyBackend) -> Any:
        """The mask on a backend."""
        return self.values if backend is self.backend else backend.mask_from_host(self.on_host)

    @cached_property
    def on_host(self) -> npt.NDArray[np.bool_]:
        """The mask as NumPy booleans; takes no memory of a device."""
        if self.backend is None:
            return np.asarray(self.values)
        return self.backend.mask_to_host(self.values)


def on_backend(rows: RowMap, source: AnyBackend, target: AnyBackend) -> RowMap:
    """A map of one backend as a map of another; maps with structure are common to all."""
    if not isinstance(rows, Indices) or source is target:
        return rows
    return target.indices_from_host(source.indices_to_host(rows), rows.out_of_bounds)


@dataclass(frozen=True)
class FrameColumns:
    """Columns that are gathered as frames; see :class:`~gpujoin.engine.join.payload.Payload`.

    Attributes
    ----------
    frame : Frame
        The columns.
    backend : Backend
        Where they are.
    choose : callable or None
        The planner's choice between ways to gather.
    """

    frame: Any
    backend: AnyBackend
    choose: ChooseGather | None

    on_host: tuple[int, ...] = ()
    longest_value: int = 0

    @cached_property
    def row_bytes(self) -> float:
        """Mean bytes a row."""
        return self.backend.frame_bytes(self.frame) / max(1, self.backend.frame_rows(self.frame))

    def gather(self, rows: RowMap, schema: pa.Schema) -> Any:  # noqa: ARG002
        """The columns' rows by a map, as a frame."""
        return self.backend.gather(self.frame, rows, self.choose)

    def gathered_bytes(self, rows: RowMap) -> int:  # noqa: ARG002
        """Frames are not measured."""
        return 0


Columns: TypeAlias = Payload | FrameColumns
"""Some columns of one side, ready to be gathered."""


@dataclass(frozen=True)
class Sink:
    """A join, where it runs, and its rows as Arrow batches.

    Attributes
    ----------
    layout : JoinLayout
        The join.
    backend : Backend
        Where it runs.
    options : Options
        Settings.
    probe_rows : int or None
        Expected rows of the probe side; ``None``: not known.
    """

    layout: JoinLayout
    backend: AnyBackend
    options: Options
    probe_rows: int | None = None

    least_batch_rows: ClassVar[int] = 1

    @property
    def choose_gather(self) -> ChooseGather | None:
        """The planner's choice between ways to gather payload."""
        return gather_chooser(self.options.gpu_algorithm)

    @cached_property
    def evaluator(self) -> AnyBackend:
        """The backend if it can evaluate the condition and hold its columns, else the CPU backend."""
        layout, backend = self.layout, self.backend
        if layout.condition is None or backend.name is BackendName.CPU:
            return backend
        types = [part.schema.field(i).type for part in (layout.build, layout.probe) for i in part.condition]
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
        """Neighbouring rows."""
        return rows.slice(start, length)

    def no_rows(self, part: SideLayout) -> Any:
        """No rows of a side."""
        return one_batch((), part.schema)

    def keys(self, rows: Any, part: SideLayout) -> Any:
        """The keys of rows as a key frame of the backend."""
        return key_frame(self.backend, self.layout.codec, rows, part.side)

    def output(self, rows: Any, part: SideLayout) -> Columns:
        """The columns returned of a side."""
        return Payload.of(rows, part.output, self.backend, self.choose_gather)

    def condition(self, rows: Any, part: SideLayout) -> Columns:
        """The columns of a side that the residual condition reads, where it is evaluated."""
        read = pa.Table.from_batches([rows.select(list(part.condition))])
        return Payload.of_condition(read, self.evaluator, self.choose_gather)

    # -- rows out ------------------------------------------------------------------------------------------

    def gathered(self, frame: Any, rows: Span, part: SideLayout) -> Any:
        """Rows of a frame of a side's output columns, as :meth:`assemble` takes them."""
        return self.backend.to_arrow(self.backend.gather(frame, rows), part.output_schema).columns

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
        return dataclasses.replace(self, backend=create(BackendName.CPU, BackendRequest()), probe_rows=None)

    def to_host(self, rows: Any, part: SideLayout) -> pa.RecordBatch:  # noqa: ARG002
        """Rows as :meth:`on_cpu` takes them."""
        batch: pa.RecordBatch = rows
        return batch


@dataclass(frozen=True)
class FrameSink(Sink):
    """A join whose rows are frames of a device.

    Only for joins to which the device has no obstacle: with equality keys, a condition that it evaluates and columns
    that it holds.

    Attributes
    ----------
    device : DevicePipelineBackend
        Where the frames are.
    piece_bytes : int
        Size that output frames aim at.
    """

    device: AnyDevicePipeline = dataclasses.field(kw_only=True)
    piece_bytes: int = dataclasses.field(kw_only=True)

    least_batch_rows: ClassVar[int] = 1024
    """Fewer rows are not worth the launches of a device's kernels."""

    @property
    def batch_bytes(self) -> int:
        """Size that output frames aim at."""
        return self.piece_bytes

    @property
    def evaluator(self) -> AnyBackend:
        """The device."""
        return self.backend

    def candidate_pairs(self, rows_per_batch: int) -> int:
        """At least those of one output frame."""
        return max(self.options.candidate_pairs, rows_per_batch)

    def count(self, rows: Any) -> int:
        """Row count; of what was finished on the CPU too."""
        return rows.num_rows if isinstance(rows, pa.RecordBatch) else self.backend.frame_rows(rows)

    def slice(self, rows: Any, start: int, length: int) -> Any:
        """Neighbouring rows."""
        return rows if length == self.count(rows) else self.device.slice(rows, start, length)

    def no_rows(self, part: SideLayout) -> Any:
        """No rows of a side."""
        return self.device.take_in(part.schema.empty_table(), part.schema)

    def keys(self, rows: Any, part: SideLayout) -> Any:
        """The keys of rows as a key frame of the backend."""
        codec = self.layout.codec
        positions = [key.of(part.side) for key in self.layout.spec.keys]
        return self.device.keys(rows, positions, codec.types, codec.null_safe)

    def output(self, rows: Any, part: SideLayout) -> Columns:
        """The columns returned of a side."""
        return FrameColumns(self.device.select(rows, part.output), self.backend, self.choose_gather)

    def condition(self, rows: Any, part: SideLayout) -> Columns:
        """The columns of a side that the residual condition reads."""
        return FrameColumns(self.device.select(rows, part.condition), self.backend, self.choose_gather)

    def gathered(self, frame: Any, rows: Span, part: SideLayout) -> Any:  # noqa: ARG002
        """Rows of a frame."""
        return self.backend.gather(frame, rows)

    def exists_column(self, matched: Mask) -> Any:
        """The mask on the device."""
        return matched.on(self.backend)

    def assemble(self, columns: Mapping[Side, Any], exists: Any | None, length: int) -> Any:
        """A frame of the join's output."""
        frames = [columns[side] for side in Side if side in columns]
        if exists is not None:
            frames.append(self.device.mask_column(exists, length))
        return self.device.hstack(frames)

    def on_cpu(self) -> Sink:
        """The same join on the CPU, over copies of the frames."""
        layout = self.layout
        schemas = {part.side: _host_schema(part.schema) for part in (layout.build, layout.probe)}
        host = JoinLayout.of(layout.spec, schemas[Side.LEFT], schemas[Side.RIGHT], layout.build.side)
        cpu = create(BackendName.CPU, BackendRequest())
        return Sink(dataclasses.replace(host, ranged=None), cpu, self.options)

    def to_host(self, rows: Any, part: SideLayout) -> pa.RecordBatch:
        """A copy of the rows."""
        return self.from_host(self.device.give_out(rows, part.schema), part)

    def from_host(self, batch: pa.RecordBatch, part: SideLayout) -> pa.RecordBatch:
        """Rows that are on the host, as :meth:`on_cpu` takes them: text and bytes have 64-bit offsets."""
        schema = _host_schema(part.schema)
        if not len(schema):
            return batch
        arrays = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(batch.columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _host_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(wide_offsets(logical(field.type))) for field in schema])
