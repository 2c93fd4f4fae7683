"""Launches ``rows.cu``: packs columns into rows, gathers rows into columns, and writes join output in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpujoin.errors import KernelArgumentError
from gpujoin.launch.device import Array, Device, ModuleSpec, PointerTable, check_room, memory_errors
from gpujoin.launch.expand import OUTPUT_TILE
from gpujoin.launch.keys import BLOCK_THREADS, check_column, check_contiguous, check_rows, grid_of
from gpujoin.launch.matches import Ranges, UniqueMatches

SPECIALISATIONS: tuple[ModuleSpec, ...] = (ModuleSpec("rows.cu"),)

MAX_FIELDS = 32
"""Most fields of a packed row: a 32-bit word has one bit for each, which says whether it is null."""

MAX_ROW_BYTES = 256
WIDTHS = (1, 2, 4, 8, 16)
_FLAG_BYTES = 4
_SECTOR_PARTS = (8, 16, 32)
_NO_FLAGS = 0xFFFFFFFF


@dataclass(frozen=True)
class FieldColumn:
    """A fixed-width column."""

    values: Array
    """Values of any type, of 1, 2, 4, 8 or 16 bytes; further dimensions belong to the value."""
    valid: Array | None = None
    """False where null; ``None``: nowhere."""

    @property
    def rows(self) -> int:
        """Row count."""
        return int(self.values.shape[0])

    @property
    def width(self) -> int:
        """Bytes of a value."""
        return int(self.values.dtype.itemsize * np.prod(self.values.shape[1:], dtype=int))

    @property
    def bytes(self) -> Array:
        """The values as bytes."""
        flat = self.values.reshape(-1)
        return flat.view(np.uint8)


@dataclass(frozen=True)
class RowLayout:
    """Positions of the fields in a packed row."""

    offsets: tuple[int, ...]
    widths: tuple[int, ...]
    """Offset and width of each field, in bytes."""
    row_bytes: int
    """Bytes of a row, padding included."""
    flags_at: int | None
    """Offset of the word that says which fields are not null; ``None``: no field is ever null."""

    @classmethod
    def from_widths(cls, widths: Sequence[int], *, nullable: bool) -> RowLayout:
        """Make a layout with fields in descending width, so that none needs padding. Rows fill whole 8-byte words.

        Rows of up to 32 bytes are padded to 8, 16 or 32 bytes, so that no row crosses a 32-byte sector. Raises
        ``KernelArgumentError`` if there are no fields, or too many, or fields of other widths than kernels copy.
        """
        if not 1 <= len(widths) <= MAX_FIELDS:
            raise KernelArgumentError(f"a packed row has 1 to {MAX_FIELDS} fields, not {len(widths)}")
        wrong = [width for width in widths if width not in WIDTHS]
        if wrong:
            raise KernelArgumentError(f"fields of {wrong[0]} bytes cannot be packed; widths are {WIDTHS}")
        offsets = [0] * len(widths)
        at = 0
        for field in sorted(range(len(widths)), key=lambda f: -widths[f]):
            offsets[field] = at
            at += widths[field]
        flags_at = None
        if nullable:
            flags_at = -(-at // _FLAG_BYTES) * _FLAG_BYTES
            at = flags_at + _FLAG_BYTES
        row_bytes = next((size for size in _SECTOR_PARTS if size >= at), -(-at // 16) * 16)
        if row_bytes > MAX_ROW_BYTES:
            raise KernelArgumentError(f"packed rows of {row_bytes} bytes are over the {MAX_ROW_BYTES} allowed")
        return cls(tuple(offsets), tuple(widths), row_bytes, flags_at)

    def on(self, device: Device) -> Array:
        """The layout as kernels read it."""
        packed = [offset | width << 16 for offset, width in zip(self.offsets, self.widths, strict=True)]
        return device.upload(np.array(packed, np.uint32))

    @property
    def flags(self) -> np.uint32:
        """``flags_at`` as the kernel's parameter."""
        return np.uint32(_NO_FLAGS if self.flags_at is None else self.flags_at)


@dataclass(frozen=True)
class PackedRows:
    """Columns packed into rows."""

    rows: int
    layout: RowLayout
    """Positions of the fields."""
    layout_on_device: Array
    """The layout as kernels read it; it may have fields more."""
    memory: Array
    """The packed rows."""
    like: tuple[tuple[Any, tuple[int, ...]], ...]
    """Type of each column, and shape of one value."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.memory.nbytes)

    @property
    def fields(self) -> int:
        """Number of fields."""
        return len(self.layout.widths)

    def without_last(self) -> PackedRows:
        """The same rows, of which the last field is of no interest."""
        layout = replace(self.layout, offsets=self.layout.offsets[:-1], widths=self.layout.widths[:-1])
        return replace(self, layout=layout, like=self.like[:-1])

    def arguments(self) -> list[Any]:
        """Row width, flags, layout and number of fields, in the order of the kernel's parameters."""
        return [
            np.uint32(self.layout.row_bytes), self.layout.flags, self.layout_on_device, np.uint32(self.fields)
        ]  # fmt: skip


def pack(device: Device, columns: Sequence[FieldColumn]) -> PackedRows:
    """Pack columns of equal length into rows."""
    rows = check_columns(columns)
    like = tuple((c.values.dtype, tuple(c.values.shape[1:])) for c in columns)
    if len(columns) == 1 and columns[0].valid is None:
        # One column without nulls is packed as it is: the rows share its memory.
        layout = RowLayout((0,), (columns[0].width,), columns[0].width, None)
        return PackedRows(rows, layout, layout.on(device), columns[0].bytes, like)
    layout = layout_of(columns)
    on_device = layout.on(device)
    check_room(device, rows * layout.row_bytes, f"packing {rows} rows")
    # Rows are never copied whole, so padding stays uninitialised.
    memory = device.empty(rows * layout.row_bytes, np.uint8)
    if rows:
        arguments = [
            device.pointers([c.bytes for c in columns]), device.pointers([c.valid for c in columns]), on_device,
            np.uint32(len(columns)), np.uint64(rows), np.uint32(layout.row_bytes), layout.flags, memory,
        ]  # fmt: skip
        device.launch(_kernel(device, "pack_rows"), grid_of(device, rows), BLOCK_THREADS, arguments)
    return PackedRows(rows, layout, on_device, memory, like)


def reorder(device: Device, packed: PackedRows, rows: Array) -> PackedRows:
    """Packed rows in another order: row ``rows[i]`` at place i, by an int32 map."""
    check_column("the order of packed rows", rows, np.int32)
    length, row_bytes = int(rows.shape[0]), packed.layout.row_bytes
    what = f"packed rows at {length} places"
    check_room(device, length * row_bytes, what)
    word = next(width for width in (8, 4, 2, 1) if row_bytes % width == 0)
    with memory_errors(what):
        words = packed.memory.view(f"u{word}").reshape(packed.rows, row_bytes // word)
        memory = words[rows].reshape(-1).view(np.uint8)
    return replace(packed, rows=length, memory=memory)


def layout_of(columns: Sequence[FieldColumn]) -> RowLayout:
    """Layout of packed rows of these columns."""
    return RowLayout.from_widths([c.width for c in columns], nullable=any(c.valid is not None for c in columns))


def compile_runs(device: Device) -> None:
    """Compile the kernels of :func:`pack` and :func:`emit_ranges`."""
    for name in ("pack_rows", "emit_ranges"):
        _kernel(device, name)


def compile_gather(device: Device) -> None:
    """Compile the kernels of :func:`pack` and :func:`gather`."""
    for name in ("pack_rows", "gather_rows"):
        _kernel(device, name)


def gather(device: Device, packed: PackedRows, rows: Array, *, may_miss: bool) -> list[FieldColumn]:
    """Gather packed rows by an int32 map, into columns; with ``may_miss``, negative numbers give null rows."""
    check_column("the map", rows, np.int32)
    length = int(rows.shape[0])
    check_rows(length)
    check_room(device, length * _output_bytes(packed, nullable=may_miss), f"gathering {length} rows")
    out = empty_columns(device, packed, length, nullable=may_miss)
    if length:
        arguments = [packed.memory, *packed.arguments(), rows, np.uint64(length), *pointers(device, out)]
        device.launch(_kernel(device, "gather_rows"), grid_of(device, length), BLOCK_THREADS, arguments)
    return out


def emit(
    device: Device,
    matches: UniqueMatches,
    probe: Sequence[FieldColumn],
    packed: PackedRows | None,
    *,
    matched: bool = True,
) -> tuple[list[FieldColumn], list[FieldColumn]]:
    """Write the output of a join with at most one match a probe row, in one pass over the matches.

    Each probe column becomes an output column; ``packed`` is the build side's payload. With ``matched``, probe rows
    with a match are written (inner, semi), else those without (anti), with no build columns. Gives probe and build
    columns, in the order of the probe rows. Where all probe rows are output, their columns are given as they are.
    """
    rows = int(matches.row.shape[0])
    check_column("matched build rows", matches.row, np.int32)
    if probe and check_columns(probe) != rows:
        raise KernelArgumentError(f"{check_columns(probe)} probe rows, but matches of {rows}; pass both of one side")
    if packed is not None and not matched:
        raise KernelArgumentError("rows without a match have no build columns; pass packed=None")
    length = matches.pairs if matched else rows - matches.pairs
    if length == rows:
        return list(probe), [] if packed is None else gather(device, packed, matches.row, may_miss=False)
    flat = _flat(probe)
    each = sum(c.width for c in flat) + (0 if packed is None else _output_bytes(packed, nullable=False))
    check_room(device, length * each, f"a join's {length} output rows")
    moved = _moved(device, flat, length)
    build = [] if packed is None else empty_columns(device, packed, length)
    if rows and length:
        offsets = _tile_offsets(device, matches, matched=matched)
        arguments = [
            matches.row, np.uint64(rows), np.uint32(matched), offsets, *_emission(device, flat, moved, packed, build)
        ]  # fmt: skip
        device.launch(_kernel(device, "emit_matches"), grid_of(device, rows), BLOCK_THREADS, arguments)
    return _restored(probe, moved), build


def emit_ranges(
    device: Device,
    ranges: Ranges,
    running: Array,
    probe: Sequence[FieldColumn],
    packed: PackedRows | None,
    begin: int,
    length: int,
) -> tuple[list[FieldColumn], list[FieldColumn]]:
    """Write ``length`` rows from ``begin`` on of the output of a join with any number of matches a probe row.

    ``packed`` is the build side's payload, the matches of a probe row side by side at its ``ranges``, and ``running``
    the running count of these (:func:`gpujoin.launch.expand.running_counts`). Gives probe and build columns, ascending
    by probe row and place.
    """
    rows = int(ranges.count.shape[0])
    check_rows(max(rows, length))
    check_column("running counts", running, np.int64, rows)
    check_column("first places", ranges.start, np.int32, rows)
    if probe and check_columns(probe) != rows:
        raise KernelArgumentError(f"{check_columns(probe)} probe rows, but matches of {rows}; pass both of one side")
    if not 0 <= begin <= begin + length <= ranges.pairs:
        raise KernelArgumentError(f"output rows {begin} … {begin + length - 1} of {ranges.pairs} do not exist")
    flat = _flat(probe)
    each = sum(c.width for c in flat) + (0 if packed is None else _output_bytes(packed, nullable=False))
    check_room(device, length * each, f"a join's {length} output rows")
    moved = _moved(device, flat, length)
    build = [] if packed is None else empty_columns(device, packed, length)
    if length and (flat or build):
        arguments = [
            running, np.uint64(rows), ranges.start, np.uint64(begin), np.uint64(length),
            *_emission(device, flat, moved, packed, build),
        ]  # fmt: skip
        grid = grid_of(device, length, OUTPUT_TILE)
        device.launch(_kernel(device, "emit_ranges"), grid, BLOCK_THREADS, arguments)
    return _restored(probe, moved), build


def _flat(columns: Sequence[FieldColumn]) -> list[FieldColumn]:
    """The columns, and behind each its validity, where it has one, as a column of its own."""
    flat: list[FieldColumn] = []
    for column in columns:
        flat.append(FieldColumn(column.values))
        if column.valid is not None:
            flat.append(FieldColumn(column.valid))
    return flat


def _moved(device: Device, flat: Sequence[FieldColumn], length: int) -> list[FieldColumn]:
    """Columns like those of :func:`_flat`, of another length."""
    return [FieldColumn(device.empty((length, *c.values.shape[1:]), c.values.dtype)) for c in flat]


def _restored(columns: Sequence[FieldColumn], moved: Sequence[FieldColumn]) -> list[FieldColumn]:
    """The columns of which :func:`_moved` has values and validity."""
    arrays = iter(moved)
    out: list[FieldColumn] = []
    for column in columns:
        values = next(arrays).values
        out.append(FieldColumn(values, None if column.valid is None else next(arrays).values))
    return out


def _emission(
    device: Device,
    flat: Sequence[FieldColumn],
    moved: Sequence[FieldColumn],
    packed: PackedRows | None,
    build: Sequence[FieldColumn],
) -> list[Any]:
    """Columns of both sides and of the output, in the order of the kernels' parameters."""
    widths = device.upload(np.array([c.width for c in flat], np.uint32))
    of_build: list[Any] = [None, np.uint32(0), np.uint32(_NO_FLAGS), None, np.uint32(0)]
    if packed is not None:
        of_build = [packed.memory, *packed.arguments()]
    return [
        device.pointers([c.bytes for c in flat]), device.pointers([c.bytes for c in moved]), widths,
        np.uint32(len(flat)), *of_build, *pointers(device, build),
    ]  # fmt: skip


def check_columns(columns: Sequence[FieldColumn]) -> int:
    """Check columns, and return their common length."""
    lengths = {column.rows for column in columns}
    if len(lengths) != 1:
        raise KernelArgumentError(f"columns have {sorted(lengths)} rows; pass one or more of equal length")
    rows = lengths.pop()
    check_rows(rows)
    for number, column in enumerate(columns):
        check_contiguous(f"column {number}", column.values)
        if column.width not in WIDTHS:
            raise KernelArgumentError(f"column {number} has values of {column.width} bytes; widths are {WIDTHS}")
        if column.valid is not None:
            check_column(f"the validity of column {number}", column.valid, np.bool_, rows)
    return rows


def _tile_offsets(device: Device, matches: UniqueMatches, *, matched: bool) -> Array:
    """First output row of each tile of probe rows."""
    rows = int(matches.row.shape[0])
    tiles = -(-rows // BLOCK_THREADS)
    counts = device.empty(tiles, np.int64)
    arguments = [matches.row, np.uint64(rows), np.uint32(matched), counts]
    device.launch(_kernel(device, "count_tiles"), grid_of(device, rows), BLOCK_THREADS, arguments)
    with memory_errors("the places of the output"):
        return device.xp.cumsum(counts, dtype=np.int64) - counts


def _output_bytes(packed: PackedRows, *, nullable: bool) -> int:
    """Bytes of a row of :func:`empty_columns`."""
    nullable = nullable or packed.layout.flags_at is not None
    return sum(packed.layout.widths) + packed.fields * nullable


def empty_columns(device: Device, packed: PackedRows, length: int, *, nullable: bool = False) -> list[FieldColumn]:
    """Columns for rows of packed ones, not set; with ``nullable`` they have validity even if no field has nulls."""
    nullable = nullable or packed.layout.flags_at is not None
    return [
        FieldColumn(device.empty((length, *shape), dtype), device.empty(length, np.bool_) if nullable else None)
        for dtype, shape in packed.like
    ]


def unset_columns(device: Device, packed: PackedRows, length: int) -> list[FieldColumn]:
    """Columns for rows of packed ones, values not set, and null as far as they have validity."""
    check_room(device, length * _output_bytes(packed, nullable=False), f"the columns of {length} rows")
    nullable = packed.layout.flags_at is not None
    return [
        FieldColumn(device.empty((length, *shape), dtype), device.zeros(length, np.bool_) if nullable else None)
        for dtype, shape in packed.like
    ]


def pointers(device: Device, columns: Sequence[FieldColumn]) -> tuple[PointerTable, PointerTable]:
    """Tables of the addresses of values and of validity."""
    return device.pointers([c.bytes for c in columns]), device.pointers([c.valid for c in columns])


def _kernel(device: Device, name: str) -> Any:
    return device.kernel(SPECIALISATIONS[0], name)
