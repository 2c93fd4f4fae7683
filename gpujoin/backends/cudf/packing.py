"""Gathers fixed-width columns from packed rows, if that is faster.

Nothing here imports CuPy; see :mod:`gpujoin.backends.cudf.arrays`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from gpujoin.backends.cudf.choices import GatherFacts, packs_rows
from gpujoin.backends.cudf.rowmaps import may_miss
from gpujoin.errors import KernelArgumentError, KernelCompileError
from gpujoin.launch import direct, unique
from gpujoin.launch import rows as packed_rows
from gpujoin.launch.device import Array, Device
from gpujoin.launch.rows import FieldColumn, PackedRows, RowLayout
from gpujoin.logs import log
from gpujoin.model.maps import Indices, MapOrder, RowMap

Result = TypeVar("Result")

FetchingTable: TypeAlias = direct.PayloadTable | unique.PayloadTable
"""A table of unique keys that has the payload of its rows."""


@dataclass
class Packing:
    """The packed rows of a frame, and the counts that decide when they are made. May be shared by threads."""

    entries: int = 0
    """Number of entries of all maps so far that were not ascending."""
    packed: PackedRows | None = None
    """Fixed-width columns as packed rows, once packing pays."""
    ordered: tuple[Array, PackedRows] | None = None
    """The same rows in the order of an index's places, with the map of that order."""
    fetching: tuple[object, FetchingTable] | None = None
    """A table with the payload of unique keys, and the table of row numbers that it was made of."""
    probed: int = 0
    """Number of probe rows so far that such a table could have served."""
    refused: bool = False
    """Whether packing failed and must not be tried again."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        ordered = None if self.ordered is None else self.ordered[1]
        fetching = None if self.fetching is None else self.fetching[1].packed
        return sum(packed.nbytes for packed in (self.packed, ordered, fetching) if packed is not None)

    def ordered_by(self, order: Array) -> PackedRows | None:
        """The packed rows in the order of a map, if they were made."""
        return self.ordered[1] if self.ordered is not None and self.ordered[0] is order else None

    def fetching_of(self, numbers: object) -> FetchingTable | None:
        """The table with payload that was made of a table of row numbers, if there is one."""
        return self.fetching[1] if self.fetching is not None and self.fetching[0] is numbers else None


@dataclass(frozen=True)
class Fields:
    """The fixed-width columns of a frame."""

    rows: int
    widths: tuple[int, ...]
    """Bytes of a value of each column."""
    nullable: tuple[bool, ...]
    """Whether each column has nulls."""
    columns: Callable[[], Sequence[FieldColumn]]
    """Returns the columns."""


def gather_by_rows(device: Device, packing: Packing, fields: Fields, rows: RowMap) -> list[FieldColumn] | None:
    """Gather columns from packed rows, which are made when first needed. Values of null rows are arbitrary.

    ``None``: gather column by column, because that is faster, packed rows do not fit, or kernels do not
    compile. Raises ``DeviceMemoryError`` if the gathered columns do not fit.
    """
    if not isinstance(rows, Indices) or not fields.widths or not fields.rows or not rows.length:
        return None
    with packing.lock:
        if packing.refused:
            return None
        ascending = rows.order is MapOrder.ASCENDING
        if not ascending:
            packing.entries += rows.length
        facts = GatherFacts(
            rows=fields.rows,
            widths=fields.widths,
            row_bytes=row_bytes(fields),
            entries=packing.entries,
            ascending=ascending,
            packed=packing.packed is not None,
            l2_bytes=device.properties.l2_bytes,
        )
        by_rows = packs_rows(facts)
        log.debug("gather by %s: %s", "rows" if by_rows.yes else "columns", by_rows.reason)
        if not by_rows.yes:
            return None
        packed = pack_once(device, packing, fields)
    if packed is None:
        return None
    misses = may_miss(rows)
    gathered = packed_rows.gather(device, packed, rows.values, may_miss=misses)
    return [
        column if nullable or misses else FieldColumn(column.values)
        for column, nullable in zip(gathered, fields.nullable, strict=True)
    ]


def pack_once(device: Device, packing: Packing, fields: Fields) -> PackedRows | None:
    """Pack the columns of a frame into rows, once. The caller holds the lock of ``packing``.

    ``None`` if the rows do not fit, or kernels do not compile, now or in an earlier call.
    """

    def make() -> PackedRows:
        packed_rows.compile_gather(device)
        return wait_for(device, packed_rows.pack(device, fields.columns()))

    if packing.packed is None:
        packing.packed = make_once(packing, make)
    return packing.packed


def order_once(device: Device, packing: Packing, fields: Fields, order: Array) -> PackedRows | None:
    """Pack the columns as :func:`pack_once`, but with row ``order[i]`` at place i."""

    def make() -> PackedRows:
        packed_rows.compile_runs(device)
        packed = packing.packed or packed_rows.pack(device, fields.columns())
        return wait_for(device, packed_rows.reorder(device, packed, order))

    ordered = packing.ordered_by(order)
    if ordered is None:
        ordered = make_once(packing, make)
        packing.ordered = None if ordered is None else (order, ordered)
    return ordered


def make_once(packing: Packing, make: Callable[[], Result]) -> Result | None:
    """Make a packed form of the columns; ``None``, from then on, if it does not fit or kernels do not compile."""
    if packing.refused:
        return None
    try:
        return make()
    except KernelCompileError as problem:
        log.warning("a kernel does not compile, so cuDF gathers instead: %s", problem)
    except MemoryError as problem:
        log.debug("packed rows do not fit: %s", problem)
    packing.refused = True
    return None


def wait_for(device: Device, packed: PackedRows) -> PackedRows:
    """Wait for packed rows: another thread may read them next, on its own stream."""
    device.download(packed.layout_on_device)
    return packed


def row_bytes(fields: Fields) -> int | None:
    """Bytes of a packed row; ``None`` if the columns cannot be packed."""
    try:
        return RowLayout.from_widths(fields.widths, nullable=any(fields.nullable)).row_bytes
    except KernelArgumentError:
        return None
