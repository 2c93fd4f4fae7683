"""Gather maps as a public value, and the gathering of tables by them, on the host or on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import BackendChoice, Options
from gpujoin.engine.arguments import backend_choice, named_apart, options_of, table_of
from gpujoin.engine.devicetables import DeviceTable, adopt_both, open_table
from gpujoin.engine.join.payload import Payload
from gpujoin.engine.morsels import halved
from gpujoin.errors import GpuJoinError, JoinSpecError, type_name
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Indices, OutOfBounds, RowMap, slice_map
from gpujoin.plan.asof import check_result_names, check_suffixes


@dataclass(frozen=True, slots=True)
class GatherMaps:
    """The left and right row of every output row of a join.

    Attributes
    ----------
    left, right : RowMap or None
        Maps of equal length; ``None`` where the output takes no columns of that side (semi, anti).
    backend : Backend or None
        Backend of a GPU on which the indices lie, as CuPy arrays of int32; ``None``: they are NumPy arrays of int64.
    rows : (int, int) or None
        Rows of the left and of the right side for which the maps were made; ``None``: not known.

    Raises
    ------
    GpuJoinError
        If both are absent or the lengths differ.
    """

    left: RowMap | None
    right: RowMap | None
    backend: AnyBackend | None = field(default=None, repr=False, compare=False)
    rows: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        lengths = {m.length for m in (self.left, self.right) if m is not None}
        if len(lengths) != 1:
            raise GpuJoinError(f"gather maps need one common length, got {sorted(lengths)}")

    @property
    def length(self) -> int:
        """Number of output rows."""
        present = self.left if self.left is not None else self.right
        assert present is not None
        return present.length

    def to_host(self) -> GatherMaps:
        """Copy the maps to the host, as NumPy arrays. Maps that are on the host are returned as they are."""
        if self.backend is None:
            return self
        left, right = (None if rows is None else _on_host(rows, self.backend) for rows in (self.left, self.right))
        return GatherMaps(left, right, rows=self.rows)

    def apply(self, left: Any, right: Any = None, *, suffixes: tuple[str, str] = ("", "_right")) -> Any:
        """Make the output of the join: the columns of the left table, then those of the right one.

        Parameters
        ----------
        left, right : table
            Tables as for :func:`gpujoin.join_tables`, with the rows that the maps were made for: on the host if the
            maps are there, on their GPU if they are on one. A table that is ``None`` gives no columns; there is no
            ``right`` where its map is ``None``.
        suffixes : (str, str)
            Added to the names of columns that both sides have.

        Returns
        -------
        Table
            Of the kind of the table given; see :func:`gpujoin.join_tables`.

        Raises
        ------
        JoinSpecError
            If a table is not where the maps are, has too few rows, or is given without a map for it; if two columns
            would have one name.
        """
        maps = {Side.LEFT: self.left, Side.RIGHT: self.right}
        inputs = {side: data for side, data in ((Side.LEFT, left), (Side.RIGHT, right)) if data is not None}
        check_suffixes(suffixes)
        if not inputs or any(maps[side] is None for side in inputs):
            raise JoinSpecError("give tables for which there is a map; semi and anti joins have no right one")
        opened = {side: open_table(data) for side, data in inputs.items()}
        if any((table is None) != (self.backend is None) for table in opened.values()):
            where = "host" if self.backend is None else "GPU"
            raise JoinSpecError(f"the maps are on the {where}; give tables that are there too")
        there = {side: table for side, table in opened.items() if table is not None}
        if there:
            tables: Mapping[Side, Any] = adopt_both(there, self.backend or BackendChoice.AUTO)
        else:
            tables = {side: table_of(data, side) for side, data in inputs.items()}
        self._check_rows(tables)
        names = {side: table.column_names for side, table in tables.items()}
        renamed = named_apart(names.get(Side.LEFT, []), names.get(Side.RIGHT, []), suffixes)
        check_result_names(renamed)
        gathered = [gather(tables[side], maps[side]) for side in inputs]
        if not there:
            return pa.table([column for table in gathered for column in table.columns], names=renamed)
        device = gathered[0].device
        frame = device.hstack([table.frame for table in gathered])
        schema = pa.schema(
            [f.with_name(n) for f, n in zip([f for t in gathered for f in t.schema], renamed, strict=True)]
        )
        return next(iter(there.values())).to_same_kind(DeviceTable(schema, frame, device))

    def _check_rows(self, tables: Mapping[Side, Any]) -> None:
        counts = {} if self.rows is None else dict(zip(Side, self.rows, strict=True))
        for side, table in tables.items():
            if counts.get(side, table.num_rows) != table.num_rows:
                raise JoinSpecError(
                    f"the maps were made for {counts[side]} rows of the {side.value} side, got {table.num_rows}"
                )


def gather(
    table: Any, rows: RowMap | None, *, backend: AnyBackend | BackendChoice | str = "auto",
    options: Options | None = None,
) -> Any:  # fmt: skip
    """Gather rows of a table by a map; rows for which the map has none are null.

    Parameters
    ----------
    table : table
        A table as for :func:`gpujoin.join_tables`, on the host or on a GPU.
    rows : RowMap
        One side of :class:`gpujoin.GatherMaps`. Its indices lie where the table does.
    backend : {"auto", "gpu"} or Backend
        For tables on a GPU, as for :func:`gpujoin.join_tables`.
    options : Options, optional
        Size of the batches of a result on the host.

    Returns
    -------
    Table
        A PyArrow table, or a table on the GPU of the kind of the one given.

    Raises
    ------
    JoinSpecError
        If the map and the table lie in different places, or the map goes beyond the table's rows.
    """
    if rows is None:
        raise JoinSpecError("there is no map for this side; semi and anti joins return left rows only")
    if not isinstance(rows, RowMap):
        raise JoinSpecError(f"rows must be one side of GatherMaps, such as maps.left, got {type_name(rows)}")
    options, backend = options_of(options), backend_choice(backend)
    opened = open_table(table)
    if opened is not None:
        adopted = opened.adopt(backend)
        if isinstance(rows, Indices) and rows.values.dtype != np.int32:
            raise JoinSpecError("the map is on the host, the table on a GPU; give one of gather_maps(device tables)")
        frame = adopted.device.backend.gather(adopted.frame, rows)
        return opened.to_same_kind(dataclasses.replace(adopted, frame=frame))
    if isinstance(rows, Indices) and not isinstance(rows.values, np.ndarray):
        raise JoinSpecError("the map is on a GPU, the table on the host; use GatherMaps.to_host()")
    return _gathered_on_host(table_of(table), rows, options)


def _gathered_on_host(table: pa.Table, rows: RowMap, options: Options) -> pa.Table:
    if isinstance(rows, Indices) and rows.length and int(rows.values.max()) >= table.num_rows:
        raise JoinSpecError(f"the map has row {int(rows.values.max())}, the table has {table.num_rows}")
    if isinstance(rows, Indices) and rows.out_of_bounds is OutOfBounds.NEVER and rows.length and rows.values.min() < 0:
        rows = dataclasses.replace(rows, out_of_bounds=OutOfBounds.NULLIFY)
    if not table.num_columns:
        return pa.table({"rows": pa.nulls(rows.length)}).select([])
    payload = Payload(table.combine_chunks(), create(BackendName.CPU, BackendRequest()))
    schema = pa.schema([f.with_nullable(True) for f in table.schema], table.schema.metadata)
    batches = [
        pa.RecordBatch.from_arrays(payload.gather(part, schema), schema=schema)
        for part in _fitting(payload, rows, options)
    ]
    return pa.Table.from_batches(batches, schema)


def _fitting(payload: Payload, rows: RowMap, options: Options) -> Iterator[RowMap]:
    """Cut a map so that no column of a part exceeds its limit."""
    most = max(1, int(options.batch_bytes / max(1.0, payload.row_bytes)))
    limit = options.max_column_bytes

    def is_too_long(start: int, length: int) -> bool:
        is_long = payload.longest_value * length > limit
        return is_long and payload.gathered_bytes(slice_map(rows, start, length)) > limit

    for start in range(0, rows.length, most):
        for place, length in halved(start, min(most, rows.length - start), is_too_long):
            yield slice_map(rows, place, length)


def _on_host(rows: RowMap, backend: AnyBackend) -> RowMap:
    if not isinstance(rows, Indices):
        return rows
    return dataclasses.replace(rows, values=backend.indices_to_host(rows))


def device_maps(joined: DeviceTable, rows: tuple[int, int]) -> GatherMaps:
    """Make maps of the row numbers that a join on a GPU has gathered, in one column for each side.

    Parameters
    ----------
    joined : DeviceTable
        The row numbers.
    rows : (int, int)
        Rows of the sides.
    """
    device = joined.device
    sides = [device.positions(joined.frame, at) for at in range(joined.num_columns)]
    maps = [Indices(values, int(values.shape[0]), OutOfBounds.NULLIFY) for values in sides]
    return GatherMaps(maps[0], maps[1] if len(maps) > 1 else None, device.backend, rows)
