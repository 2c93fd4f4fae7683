"""Tables that lie on a GPU: which objects are such tables, and how they are taken in and given out without a copy."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from typing import Any

import pyarrow as pa

from gpujoin.backends.cudf import adopt, device_capsules, device_pipeline, export_arrow, to_library_table
from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import BackendChoice
from gpujoin.errors import ConfigurationError, JoinSpecError
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.jointype import Side
from gpujoin.model.pipeline import AnyDevicePipeline


class TableKind(Enum):
    """Kinds of tables on a GPU. The result of a join has that of its left input."""

    OWN = "gpujoin.DeviceTable"
    PYLIBCUDF = "pylibcudf.Table"
    CUDF = "cudf.DataFrame"


@dataclass(frozen=True, eq=False)
class DeviceTable:
    """A table in the memory of a GPU, with the names and types of its columns.

    Joins take and give it without a copy to the host, and so do ``pylibcudf.Table`` and ``cudf.DataFrame``. It has the
    Arrow C device interface. Memory is freed with the last table that refers to it.

    Attributes
    ----------
    schema : pyarrow.Schema
        Names and types.
    frame : object
        The columns, in the form of the backend.
    device : object
        The GPU's pipelines, by which tables are joined.
    """

    schema: pa.Schema
    frame: Any = field(repr=False)
    device: AnyDevicePipeline = field(repr=False)

    @classmethod
    def of(
        cls, data: Any, names: Sequence[str] | None = None, *, backend: str | BackendChoice | AnyBackend = "auto"
    ) -> DeviceTable:
        """View a table that lies on a GPU.

        Parameters
        ----------
        data : cudf.DataFrame, pylibcudf.Table, or any object with the Arrow C device interface
            The table; no rows are copied.
        names : sequence of str, optional
            Names of the columns. Those of a ``pylibcudf.Table``, which has none, are ``"0"``, ``"1"``, ….
        backend : {"auto", "gpu"} or Backend
            As for :func:`gpujoin.join_tables`.

        Raises
        ------
        JoinSpecError
            If the table is not on a GPU, or a column has a type that is not held there.
        BackendUnavailableError
            If the GPU cannot be used.
        """
        opened = open_table(data)
        if opened is None:
            raise JoinSpecError(
                f"a {type(data).__name__} does not lie on a GPU; DeviceTable.from_arrow copies it there"
            )
        table = opened.adopt(backend)
        return table if names is None else table.rename_columns(names)

    @classmethod
    def from_arrow(cls, data: Any, *, backend: str | BackendChoice | AnyBackend = "gpu") -> DeviceTable:
        """Copy a table from the host to the GPU.

        Parameters
        ----------
        data : Table, RecordBatch, or any object with ``__arrow_c_stream__``
            The rows. Dictionaries are decoded.
        backend : {"auto", "gpu"} or Backend
            As for :func:`gpujoin.join_tables`.

        Raises
        ------
        DeviceMemoryError
            If it does not fit.
        """
        table = data if isinstance(data, pa.Table) else pa.table(data)
        device = device_of(backend)
        for column in table.schema:
            if not device.backend.can_gather(column.type):
                raise JoinSpecError(f"column {column.name!r} of type {column.type} is not held on a GPU; leave it out")
        schema = pa.schema([f.with_type(_decoded(f.type)) for f in table.schema])
        return cls(schema, device.take_in(table, schema), device)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.device.backend.frame_rows(self.frame))

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self.schema)

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    @property
    def nbytes(self) -> int:
        """Device memory of the rows, also if shared with other tables."""
        return int(self.device.backend.frame_bytes(self.frame))

    def select(self, names: Sequence[str]) -> DeviceTable:
        """Some of the columns, in the given order."""
        at = [self.schema.get_field_index(name) for name in names]
        if -1 in at:
            raise JoinSpecError(f"there is no column {names[at.index(-1)]!r} among {self.column_names}")
        return self.at(at)

    def numbered(self) -> DeviceTable:
        """The table with the number of each row as last column, ``row``."""
        frame = self.device.hstack([self.frame, self.device.row_numbers(self.num_rows)])
        return replace(self, schema=self.schema.append(pa.field("row", pa.int32())), frame=frame)

    def at(self, positions: Sequence[int]) -> DeviceTable:
        """Some of the columns, by position."""
        schema = pa.schema([self.schema.field(i) for i in positions])
        return replace(self, schema=schema, frame=self.device.select(self.frame, positions))

    def rename_columns(self, names: Sequence[str]) -> DeviceTable:
        """The same table with other names."""
        if len(names) != len(self.schema):
            raise JoinSpecError(f"{len(names)} names do not fit {len(self.schema)} columns: {list(names)}")
        return replace(self, schema=pa.schema([f.with_name(n) for f, n in zip(self.schema, names, strict=True)]))

    def to_arrow(self) -> pa.Table:
        """Copy the table to the host."""
        batch = self.device.give_out(self.frame, self.schema)
        if not len(self.schema):
            return pa.Table.from_batches([batch])
        return pa.Table.from_batches([batch]).cast(self.schema)

    def to_pylibcudf(self) -> Any:
        """View the table as a ``pylibcudf.Table``.

        Raises
        ------
        JoinSpecError
            If libcudf has no type for a column.
        """
        return to_library_table(self.device.backend, self.frame)

    def __arrow_c_device_array__(self, requested_schema: Any = None, **kwargs: Any) -> tuple[Any, Any]:
        del requested_schema, kwargs
        return export_arrow(self.device.backend, self.frame, self.schema)


@dataclass(frozen=True)
class OpenedTable:
    """A table on a GPU, before it is adopted."""

    kind: TableKind
    data: Any
    """The table, or what its Arrow interface has given out."""

    def adopt(self, backend: str | BackendChoice | AnyBackend) -> DeviceTable:
        """View it as a :class:`DeviceTable`. Raises ``JoinSpecError`` for types that are not held on a GPU."""
        if isinstance(self.data, DeviceTable):
            return self.data
        device, data, names = device_of(backend), self.data, None
        if self.kind is TableKind.CUDF:
            names = [str(name) for name in data.columns]
            data, _ = data.to_pylibcudf()
        frame, schema = adopt(device.backend, data)
        table = DeviceTable(schema, frame, device)
        return table if names is None else table.at(range(len(names))).rename_columns(names)

    def to_same_kind(self, table: DeviceTable) -> Any:
        """Convert a result to the kind of this table."""
        if self.kind is TableKind.OWN:
            return table
        if self.kind is TableKind.PYLIBCUDF:
            return table.to_pylibcudf()
        return sys.modules["cudf"].DataFrame.from_pylibcudf(table.to_pylibcudf(), {"columns": table.column_names})


def open_table(data: Any) -> OpenedTable | None:
    """Look whether a table lies on a GPU; ``None``: it does not. Imports no library."""
    if isinstance(data, DeviceTable):
        return OpenedTable(TableKind.OWN, data)
    for kind, module, name in (
        (TableKind.PYLIBCUDF, "pylibcudf", "Table"),
        (TableKind.CUDF, "cudf", "DataFrame"),
    ):
        if isinstance(data, getattr(sys.modules.get(module), name, ())):
            return OpenedTable(kind, data)
    if getattr(data, "is_cpu", False) is True:  # a DataFrame of Spark Connect has any attribute: a Column
        return None
    capsules = device_capsules(data)
    return None if capsules is None else OpenedTable(TableKind.OWN, capsules)


def open_keys(data: Any) -> OpenedTable | None:
    """Look whether key columns lie on a GPU: a table, or a single column; ``None``: they do not."""
    column: Any = data
    if isinstance(data, getattr(sys.modules.get("cudf"), "Series", ())):
        column, _ = column.to_pylibcudf()
    is_column = isinstance(column, getattr(sys.modules.get("pylibcudf"), "Column", ()))
    if is_column or hasattr(type(data), "__cuda_array_interface__"):
        return OpenedTable(TableKind.OWN, column)
    return open_table(data)


def open_tables(
    left: Any, right: Any, open_one: Callable[[Any], OpenedTable | None] = open_table
) -> dict[Side, OpenedTable] | None:
    """Look whether both tables of a join lie on a GPU; ``None``: both are on the host.

    Raises ``JoinSpecError`` if one is here and the other there.
    """
    opened = {Side.LEFT: open_one(left), Side.RIGHT: open_one(right)}
    on_gpu = {side: table for side, table in opened.items() if table is not None}
    if len(on_gpu) == 1:
        (side,) = on_gpu
        raise JoinSpecError(
            f"the {side.value} input lies on a GPU ({on_gpu[side].kind.value}), the {side.other.value} one on the host;"
            " copy one of them: DeviceTable.from_arrow(host_table), or device_table.to_arrow()"
        )
    return on_gpu or None


def open_batches(batches: Any) -> tuple[OpenedTable | None, Any]:
    """Look whether the batches of a join lie on a GPU: a table, or several, by the first of them.

    Returns that table, ``None`` if it is on the host or there is none, and the batches to read from now on.
    """
    opened = open_table(batches)
    if opened is not None:
        return opened, (batches,)
    if isinstance(batches, (list, tuple)):
        return (open_table(batches[0]) if batches else None), batches
    if not isinstance(batches, Iterator):
        return None, batches
    first = next(batches, None)
    return (None, ()) if first is None else (open_table(first), chain((first,), batches))


def adopt_each(
    opened: OpenedTable, batches: Iterable[Any], backend: str | BackendChoice | AnyBackend
) -> Iterator[tuple[OpenedTable, DeviceTable]]:
    """View tables on a GPU as :class:`DeviceTable`; the first of them was opened already.

    Raises ``JoinSpecError`` if one of them is on the host.
    """
    check_backend(backend)
    for position, batch in enumerate(batches):
        table = open_table(batch) if position else opened
        if table is None:
            raise JoinSpecError(f"batch {position} of a side is on the host, the first one on a GPU; copy one of them")
        yield table, table.adopt(backend)


def check_backend(backend: str | BackendChoice | AnyBackend) -> None:
    """Raise ``ConfigurationError`` for tables on a GPU that are not to be joined there."""
    if backend in ("cpu", BackendChoice.CPU) or getattr(backend, "name", None) is BackendName.CPU:
        raise ConfigurationError("tables on a GPU are joined there; for backend='cpu' copy them with to_arrow()")


def adopt_both(
    opened: Mapping[Side, OpenedTable], backend: str | BackendChoice | AnyBackend
) -> dict[Side, DeviceTable]:
    """View both tables of a join as :class:`DeviceTable`.

    Raises ``ConfigurationError`` if they are not to be joined on a GPU, ``JoinSpecError`` if they lie on two.
    """
    check_backend(backend)
    tables = {side: table.adopt(backend) for side, table in opened.items()}
    if len({id(table.device.backend) for table in tables.values()}) > 1:
        raise JoinSpecError("the tables belong to two backends; take both in with the same backend=")
    return tables


def device_of(backend: str | BackendChoice | AnyBackend) -> AnyDevicePipeline:
    """Pipelines of a backend's GPU, or of the first GPU if no backend is given; the latter are made once."""
    check_backend(backend)
    if isinstance(backend, (str, BackendChoice)):
        return _first_device()
    return device_pipeline(backend)


@functools.cache
def _first_device() -> AnyDevicePipeline:
    return device_pipeline(create(BackendName.GPU, BackendRequest()))


def _decoded(dtype: pa.DataType) -> pa.DataType:
    """Type of a column after dictionaries and run-end encoding were decoded."""
    encoded = pa.types.is_dictionary(dtype) or pa.types.is_run_end_encoded(dtype)
    return dtype.value_type if encoded else dtype


def concat(tables: Iterable[DeviceTable], schema: pa.Schema, device: AnyDevicePipeline) -> DeviceTable:
    """Put tables of one schema together; a single one is not copied."""
    frames = [table.frame for table in tables]
    if not frames:
        return DeviceTable(schema, device.take_in(schema.empty_table(), schema), device)
    return DeviceTable(schema, frames[0] if len(frames) == 1 else device.concat(frames), device)
