"""Rows of one side of a join on a device. Columns in host memory are copied there when they are first asked for.

An example: ``l JOIN r ON l.k = r.k AND l.v < r.w`` returns ``k``, ``v`` and ``u``. The keys of the left side are copied
to find the matches, then ``v`` for the condition. Output is put together of both, and of ``u``, which is copied only if
the matches leave out rows or repeat them. Otherwise all three are slices of the caller's own::

    use         columns    copied
    key         k          k
    condition   v          v
    output      k v u      u, or nothing

A column of fixed width is copied once, whatever its uses. Texts and decimals change their layout as keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.engine.join.payload import Payload
from gpujoin.engine.keys import in_common_type
from gpujoin.model.backend import AnyBackend
from gpujoin.model.hostgather import own_bytes
from gpujoin.model.layouts import in_type
from gpujoin.model.maps import RowMap
from gpujoin.model.pipeline import AnyDevicePipeline
from gpujoin.model.types import logical, wide_offsets


@dataclass(frozen=True)
class DeviceColumns:
    """Columns of one side that lie on a device, and are gathered as frames."""

    frame: Any
    backend: AnyBackend
    kernels: bool
    """Whether they may be gathered by gpujoin's own kernels."""

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


@dataclass(frozen=True)
class ResidentRows:
    """Rows that lie on a device, as a frame."""

    device: AnyDevicePipeline
    schema: pa.Schema
    frame: Any

    @property
    def num_rows(self) -> int:
        """Row count."""
        return self.device.backend.frame_rows(self.frame)

    @property
    def nbytes(self) -> int:
        """Memory of the rows."""
        return self.device.backend.frame_bytes(self.frame)

    def slice(self, start: int, length: int) -> ResidentRows:
        """Rows ``start`` to ``start + length - 1``."""
        return self if length == self.num_rows else replace(self, frame=self.device.slice(self.frame, start, length))

    def columns(self, positions: Sequence[int]) -> Any:
        """Frame of columns."""
        return self.device.select(self.frame, positions)

    def operands(self, positions: Sequence[int], types: Sequence[pa.DataType]) -> Any:  # noqa: ARG002
        """Frame of columns to compute with."""
        return self.columns(positions)

    def payload(self, positions: Sequence[int], *, kernels: bool) -> DeviceColumns:
        """Columns that will be gathered."""
        return DeviceColumns(self.columns(positions), self.device.backend, kernels)

    def to_host(self) -> pa.RecordBatch:
        """Copy the rows to the host; text and bytes have 64-bit offsets."""
        batch = self.device.give_out(self.frame, self.schema)
        if not len(self.schema):
            return batch
        schema = pa.schema([field.with_type(wide_offsets(field.type)) for field in self.schema])
        arrays = [in_type(array, field.type) for array, field in zip(batch.columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def release(self) -> None:
        """Nothing was copied."""


@dataclass(frozen=True)
class UploadedRows:
    """Rows in host memory, whose columns are copied to a device when they are first asked for."""

    device: AnyDevicePipeline
    batch: pa.RecordBatch
    _own: dict[int, tuple[Any, int]] = field(default_factory=dict)
    """Frame of each column that was copied without conversion, and its position there."""
    _converted: dict[tuple[int, pa.DataType], tuple[Any, int]] = field(default_factory=dict)
    """The same for columns that were converted to another type, by that type."""

    @property
    def num_rows(self) -> int:
        """Row count."""
        return int(self.batch.num_rows)

    @property
    def nbytes(self) -> int:
        """Memory of the rows on the host."""
        return own_bytes(self.batch)

    @property
    def copied(self) -> bool:
        """Whether columns were copied."""
        return bool(self._own or self._converted)

    def slice(self, start: int, length: int) -> UploadedRows:
        """Rows ``start`` to ``start + length - 1``. Nothing is copied before it is needed."""
        return UploadedRows(self.device, self.batch.slice(start, length))

    def columns(self, positions: Sequence[int]) -> Any:
        """Frame of columns as they are."""
        missing = [position for position in dict.fromkeys(positions) if position not in self._own]
        if missing or not positions:
            frame = self.device.backend.from_arrow(pa.Table.from_batches([self.batch.select(missing)]))
            self._own.update({position: (frame, at) for at, position in enumerate(missing)})
            if missing == list(positions):
                return frame
        return self.device.backend.assemble([self._own[position] for position in positions])

    def operands(self, positions: Sequence[int], types: Sequence[pa.DataType]) -> Any:
        """Frame of columns to compute with, converted to types in which both sides are compared.

        Raises ``KeyTypeError`` if a value does not fit its type.
        """
        requests = list(zip(positions, types, strict=True))
        own = [position for position, dtype in requests if self._is_plain(position, dtype)]
        if len(own) == len(requests):
            return self.columns(own)
        if own:
            self.columns(own)
        converted = [column for column in dict.fromkeys(requests) if not self._is_plain(*column)]
        missing = [column for column in converted if column not in self._converted]
        if missing:
            schema = pa.schema([(str(number), logical(dtype)) for number, (_, dtype) in enumerate(missing)])
            arrays = [
                in_common_type(self.batch.column(at), wide_offsets(field.type))
                for field, (at, _) in zip(schema, missing, strict=True)
            ]
            frame = self.device.take_in(pa.table(arrays, names=schema.names), schema)
            self._converted.update({column: (frame, at) for at, column in enumerate(missing)})
        columns = [self._converted[column] if column in converted else self._own[column[0]] for column in requests]
        return self.device.backend.assemble(columns)

    def _is_plain(self, position: int, dtype: pa.DataType) -> bool:
        """Whether a column on the device needs no conversion."""
        own = self.batch.schema.field(position).type
        return bool(own == dtype == logical(own) and pat.is_primitive(own))

    def payload(self, positions: Sequence[int], *, kernels: bool) -> Payload:
        """Columns that will be gathered; they are copied then."""
        table = pa.Table.from_batches([self.batch.select(list(positions))])
        return Payload(table, self.device.backend, kernels, partial(self.columns, tuple(positions)))

    def to_host(self) -> pa.RecordBatch:
        """Give the rows as they are in host memory."""
        return self.batch

    def release(self) -> None:
        """Keep no copied column alive any longer, but for those that other frames have."""
        self._own.clear()
        self._converted.clear()


DeviceRows: TypeAlias = ResidentRows | UploadedRows
"""Rows of one side of a join, as a device joins them."""
