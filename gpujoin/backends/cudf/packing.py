"""Gathers fixed-width columns from packed rows, where the planner chooses that.

Nothing here imports CuPy; see :mod:`gpujoin.backends.cudf.arrays`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpujoin.backends.cudf.rowmaps import may_miss
from gpujoin.errors import KernelArgumentError, KernelCompileError
from gpujoin.launch import rows as packed_rows
from gpujoin.launch.device import Array, Device
from gpujoin.launch.rows import FieldColumn, PackedRows, RowLayout
from gpujoin.logs import log
from gpujoin.model.gathering import ChooseGather, GatherFacts, GatherMethod
from gpujoin.model.maps import Indices, MapOrder, RowMap


@dataclass
class Packing:
    """The packed rows of a frame, and the counts that decide when they are made. May be shared by threads."""

    entries: int = 0
    """Entries of all maps so far that were not ascending."""
    packed: PackedRows | None = None
    """Fixed-width columns as packed rows, once packing pays."""
    ordered: tuple[Array, PackedRows] | None = None
    """The same rows in the order of an index's places, with the map of that order."""
    refused: bool = False
    """Whether packing failed and must not be tried again."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        ordered = 0 if self.ordered is None else self.ordered[1].nbytes
        return ordered + (0 if self.packed is None else self.packed.nbytes)

    def ordered_by(self, order: Array) -> PackedRows | None:
        """The rows in the order of a map, if they are there."""
        return self.ordered[1] if self.ordered is not None and self.ordered[0] is order else None


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


def gathered_by_rows(
    device: Device, packing: Packing, fields: Fields, rows: RowMap, choose: ChooseGather
) -> list[FieldColumn] | None:
    """Gather columns from packed rows, which are made when first needed. Values of null rows are arbitrary.

    ``None``: gather column by column, because the planner chose that, packed rows do not fit, or kernels do not
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
        choice = choose(facts)
        log.debug("gather by %s: %s", choice.method.value, choice.reason)
        if choice.method is GatherMethod.COLUMNS:
            return None
        packed = packed_once(device, packing, fields)
    if packed is None:
        return None
    misses = may_miss(rows)
    gathered = packed_rows.gather(device, packed, rows.values, may_miss=misses)
    return [
        column if nullable or misses else FieldColumn(column.values)
        for column, nullable in zip(gathered, fields.nullable, strict=True)
    ]


def packed_once(device: Device, packing: Packing, fields: Fields) -> PackedRows | None:
    """Pack the columns of a frame into rows, once. The caller holds the lock of ``packing``.

    ``None`` if the rows do not fit, or kernels do not compile, now or in an earlier call.
    """
    if packing.refused:
        return None
    if packing.packed is None:
        packing.packed = _made(device, packing, packed_rows.compile_gather, lambda: _packed(device, fields))
    return packing.packed


def ordered_once(device: Device, packing: Packing, fields: Fields, order: Array) -> PackedRows | None:
    """Pack the columns as :func:`packed_once`, but with row ``order[i]`` at place i."""
    if packing.refused:
        return None
    ordered = packing.ordered_by(order)
    if ordered is None:
        ordered = _made(
            device,
            packing,
            packed_rows.compile_runs,
            lambda: packed_rows.ordered(device, packing.packed or _packed(device, fields), order),
        )
        packing.ordered = None if ordered is None else (order, ordered)
    return ordered


def _packed(device: Device, fields: Fields) -> PackedRows:
    return packed_rows.pack(device, fields.columns())


def _made(
    device: Device, packing: Packing, compiled: Callable[[Device], None], make: Callable[[], PackedRows]
) -> PackedRows | None:
    """Make packed rows; ``None``, now and ever after, if they do not fit or kernels do not compile."""
    try:
        compiled(device)
        packed = make()
    except KernelCompileError as problem:
        log.warning("a kernel does not compile, so cuDF gathers instead: %s", problem)
    except MemoryError as problem:
        log.debug("packed rows do not fit: %s", problem)
    else:
        # Wait for the device: another thread may read the rows next, on its own stream.
        device.download(packed.layout_on_device)
        return packed
    packing.refused = True
    return None


def row_bytes(fields: Fields) -> int | None:
    """Bytes of a packed row; ``None`` if the columns cannot be packed."""
    try:
        return RowLayout.of(fields.widths, nullable=any(fields.nullable)).row_bytes
    except KernelArgumentError:
        return None
