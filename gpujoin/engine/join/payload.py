"""Gathers columns of one side from host memory: by a backend if it can hold them, else by Arrow.

Rows that follow one another are slices of the columns on the host, which need not be on the backend for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.errors import ConditionError
from gpujoin.model.backend import AnyBackend
from gpujoin.model.hostgather import Sizes, buffer_bytes, one_array, own_bytes, row_bytes, take
from gpujoin.model.layouts import in_known_layout, in_type, nulls
from gpujoin.model.maps import AllNull, Indices, RowMap, Span


@dataclass(frozen=True)
class Payload:
    """Columns of one side that are to be gathered."""

    table: pa.Table
    """The columns, in order, each of one chunk."""
    backend: AnyBackend
    """Backend that gathers the columns that it can hold."""
    kernels: bool = False
    """Whether a device may gather by gpujoin's own kernels."""
    upload: Callable[[], Any] | None = None
    """Makes the frame of columns that are all on a device; ``None`` if the frame is made of the table."""

    @classmethod
    def from_batch(cls, rows: pa.RecordBatch, positions: tuple[int, ...], backend: AnyBackend) -> Payload:
        """Select columns of a batch by position."""
        return cls(pa.Table.from_batches([rows.select(list(positions))]), backend)

    @classmethod
    def for_condition(cls, rows: pa.RecordBatch, positions: tuple[int, ...], backend: AnyBackend) -> Payload:
        """Select the columns of a condition, converted to layouts that the backend can hold.

        Raises ``ConditionError`` if the backend can hold a column in no layout.
        """
        table = pa.Table.from_batches([rows.select(list(positions))])
        for i, field in enumerate(table.schema):
            if backend.can_gather(field.type):
                continue
            array = in_known_layout(one_array(table.column(i)))
            if not backend.can_gather(array.type):
                raise ConditionError(
                    f"the condition reads column {field.name!r} of type {field.type}, of which no pairs can be made;"
                    " compute what it asks as a column before the join"
                )
            table = table.set_column(i, field.with_type(array.type), array)
        return cls(table, backend)

    @cached_property
    def rows(self) -> int:
        """Row count."""
        return int(self.table.num_rows)

    @cached_property
    def by_backend(self) -> tuple[int, ...]:
        """Positions of the columns that the backend holds."""
        return tuple(i for i, f in enumerate(self.table.schema) if self.backend.can_gather(f.type))

    @cached_property
    def by_arrow(self) -> tuple[int, ...]:
        """Positions of the other columns."""
        return tuple(i for i in range(self.table.num_columns) if i not in self.by_backend)

    @cached_property
    def frame(self) -> Any:
        """The columns that the backend holds."""
        if self.upload is not None:
            return self.upload()
        return self.backend.from_arrow(self.table.select(list(self.by_backend)))

    @cached_property
    def row_bytes(self) -> float:
        """Mean bytes of a row."""
        return own_bytes(self.table) / max(1, self.rows)

    @cached_property
    def longest_value(self) -> int:
        """Bytes of the longest value of any variable-width column; for nested columns a bound."""
        return max((_longest(column) for column in self.table.columns), default=0)

    @cached_property
    def _arrow_sizes(self) -> tuple[Sizes, ...]:
        """Variable-width bytes of each row, for each column that Arrow gathers and that has any."""
        each = (row_bytes(one_array(self.table.column(i))) for i in self.by_arrow)
        return tuple(sizes for sizes in each if sizes is not None)

    def gather(self, rows: RowMap, schema: pa.Schema) -> list[pa.Array]:
        """Gather rows of the columns by a map, as Arrow arrays of a schema's types."""
        if isinstance(rows, AllNull):
            return [nulls(rows.length, f.type) for f in schema]
        if isinstance(rows, Span):
            return [in_type(self._slice(i, rows), field.type) for i, field in enumerate(schema)]
        arrays: list[pa.Array] = [None] * self.table.num_columns
        if self.by_backend:
            fields = pa.schema([schema.field(i) for i in self.by_backend])
            batch = self.backend.to_arrow(self.backend.gather(self.frame, rows, kernels=self.kernels), fields)
            for position, array in zip(self.by_backend, batch.columns, strict=True):
                arrays[position] = array
        if self.by_arrow:
            self._gather_by_arrow(rows, schema, arrays)
        return arrays

    def gathered_bytes(self, rows: RowMap) -> int:
        """Exact bytes of the largest variable-width column after :meth:`gather`."""
        if isinstance(rows, AllNull):
            return 0
        if isinstance(rows, Span):
            each = (row_bytes(self._slice(i, rows)) for i in range(self.table.num_columns))
            return max((int(sizes_of_rows.sum()) for sizes_of_rows in each if sizes_of_rows is not None), default=0)
        sizes = self.backend.gathered_bytes(self.frame, rows) if self.by_backend else ()
        widest = max(sizes, default=0)
        if self.by_arrow:
            indices = self.backend.indices_to_host(rows)
            present = indices[indices >= 0]
            for sizes_of_column in self._arrow_sizes:
                widest = max(widest, int(sizes_of_column[present].sum()))
        return widest

    def _slice(self, position: int, rows: Span) -> pa.Array:
        return one_array(self.table.column(position).slice(rows.start, rows.length))

    def _gather_by_arrow(self, rows: RowMap, schema: pa.Schema, arrays: list[pa.Array]) -> None:
        indices = self.backend.indices_to_host(rows)
        nulls = indices < 0 if isinstance(rows, Indices) else None
        row_numbers = pa.array(indices, mask=nulls if nulls is not None and nulls.any() else None)
        for i in self.by_arrow:
            arrays[i] = in_type(take(one_array(self.table.column(i)), row_numbers), schema.field(i).type)


def _variable(dtype: pa.DataType) -> bool:
    try:
        return dtype.bit_width < 0
    except ValueError:
        return not pat.is_null(dtype)


def _longest(column: pa.ChunkedArray) -> int:
    dtype = column.type
    if not _variable(dtype) or len(column) == 0:
        return 0
    if pat.is_string(dtype) or pat.is_large_string(dtype) or pat.is_binary(dtype) or pat.is_large_binary(dtype):
        return int(pc.max(pc.binary_length(column)).as_py() or 0)
    return buffer_bytes(column)
