"""Gathers rows of a frame by a map, and computes the size of the result."""

from __future__ import annotations

from collections.abc import Sequence

import cupy
import pylibcudf as plc

from gpujoin.backends.cudf import fetching, rowmaps
from gpujoin.backends.cudf.arrays import Array, ArrayOps
from gpujoin.backends.cudf.device import STREAM
from gpujoin.backends.cudf.emission import OutputColumns, OutputSide, RunsOutput, write_output
from gpujoin.backends.cudf.frames import (
    CudfFrame,
    as_array,
    as_column,
    as_field,
    from_field,
    is_fixed_width,
    null_row,
    validity,
)
from gpujoin.backends.cudf.index import EnterDevice, Index, IndexProbe, Keys
from gpujoin.backends.cudf.packing import Fields, gather_by_rows
from gpujoin.backends.ordered.reductions import total
from gpujoin.errors import GpuJoinError
from gpujoin.launch.rows import FieldColumn
from gpujoin.model.backend import JoinOutput
from gpujoin.model.maps import AllNull, Indices, RowMap, Span

_T = plc.types.TypeId


def gather(ops: ArrayOps, frame: CudfFrame, rows: RowMap, *, kernels: bool = False) -> CudfFrame:
    """Gather rows of a frame by a map; the row is null where the map has none.

    With ``kernels`` fixed-width columns may be gathered from packed rows. Raises ``DeviceMemoryError`` if the
    result does not fit, or has more rows than a device column can have.
    """
    rowmaps.check_length(rows.length)
    if not frame.table.columns():
        return frame.with_table(plc.Table([], num_rows=rows.length))
    if rows.length == 0:
        rows = Span(0, 0)
    if isinstance(rows, Span):
        if rows.length == frame.rows:
            return frame
        bounds = [rows.start, rows.start + rows.length]
        return frame.with_table(plc.copying.slice(frame.table, bounds, stream=STREAM)[0])
    if isinstance(rows, AllNull) or frame.rows == 0:
        if not rowmaps.may_miss(rows):
            raise GpuJoinError(f"{rows.length} rows cannot be gathered from a frame without any")
        return frame.with_table(_nulls(frame, rows.length))
    packed = _by_rows(ops, frame, rows) if kernels else {}
    others = [i for i in range(frame.table.num_columns()) if i not in packed]
    if not others:
        return frame.with_table(plc.Table([packed[i] for i in range(len(packed))]))
    policies = plc.copying.OutOfBoundsPolicy
    policy = policies.NULLIFY if rowmaps.may_miss(rows) else policies.DONT_CHECK
    index = as_column(rowmaps.gather_indices(ops, rows))
    if not packed:
        return frame.with_table(plc.copying.gather(frame.table, index, policy, stream=STREAM))
    source = frame.table.columns()
    rest = plc.copying.gather(plc.Table([source[i] for i in others]), index, policy, stream=STREAM)
    columns = {**packed, **dict(zip(others, rest.columns(), strict=True))}
    return frame.with_table(plc.Table([columns[i] for i in range(len(columns))]))


def _by_rows(ops: ArrayOps, frame: CudfFrame, rows: RowMap) -> dict[int, plc.Column]:
    """Gather columns from packed rows, by position, if that is faster."""
    if ops.kernels is None:
        return {}
    columns = frame.table.columns()
    packable = _fixed_width(columns)
    gathered = gather_by_rows(ops.kernels, frame.packing, _fields(frame, packable), rows)
    if gathered is None:
        return {}
    return {i: from_field(column, columns[i].type()) for i, column in zip(packable, gathered, strict=True)}


def _fixed_width(columns: Sequence[plc.Column]) -> list[int]:
    """Positions of the fixed-width columns."""
    return [i for i, column in enumerate(columns) if is_fixed_width(column)]


def _fields(frame: CudfFrame, packable: list[int]) -> Fields:
    columns = frame.table.columns()
    return Fields(
        rows=frame.rows,
        widths=tuple(plc.types.size_of(columns[i].type()) for i in packable),
        nullable=tuple(columns[i].null_count() > 0 for i in packable),
        columns=lambda: [as_field(columns[i]) for i in packable],
    )


def output_at_once(
    ops: ArrayOps, entered: EnterDevice, probe: IndexProbe, own: CudfFrame, other: CudfFrame | None, *, matched: bool
) -> JoinOutput[CudfFrame] | None:
    """Make join output without maps, as frames (:func:`gpujoin.backends.cudf.emission.write_output`).

    ``entered`` makes the device current while a slice is made.
    """
    build = None if other is None else _output_side(other)
    output = write_output(probe, _output_side(own), build, matched=matched)
    return None if output is None else _frames_of(ops, entered, own, other, output)


def output_by_keys(
    index: Index, keys: Keys, own: CudfFrame, other: CudfFrame, *, padded: bool
) -> JoinOutput[CudfFrame] | None:
    """Make join output without a probe, as frames (:func:`gpujoin.backends.cudf.fetching.output_by_keys`)."""
    output = fetching.output_by_keys(index, keys, _output_side(own), _output_side(other), padded=padded)
    return None if output is None else _frames_of(index.ops, index.entered, own, other, output)


def _frames_of(
    ops: ArrayOps, entered: EnterDevice, own: CudfFrame, other: CudfFrame | None, output: OutputColumns | RunsOutput
) -> JoinOutput[CudfFrame]:
    def frames(start: int, length: int) -> tuple[CudfFrame, CudfFrame | None]:
        with entered():
            rows = output.slice(start, length)
            if rows.probe is None:
                of_probe = gather(ops, own, Span(start, length))
            else:
                of_probe = _frame_of(own, rows.probe, length)
            return of_probe, None if other is None else _frame_of(other, rows.build, length)

    return JoinOutput(output.rows, frames)


def _output_side(frame: CudfFrame) -> OutputSide:
    packable = _fixed_width(frame.table.columns())
    return OutputSide(_fields(frame, packable), len(packable) == frame.table.num_columns(), frame.packing)


def _frame_of(like: CudfFrame, fields: tuple[FieldColumn, ...], rows: int) -> CudfFrame:
    if not fields:
        return like.with_table(plc.Table([], num_rows=rows))
    kinds = [column.type() for column in like.table.columns()]
    return like.with_table(plc.Table([from_field(f, kind) for f, kind in zip(fields, kinds, strict=True)]))


def _nulls(frame: CudfFrame, length: int) -> plc.Table:
    """Frame of null rows, by repeating one: libcudf cannot make them from a struct column without rows."""
    first = as_column(cupy.zeros(length, dtype=cupy.int32))
    return plc.copying.gather(null_row(frame.types), first, plc.copying.OutOfBoundsPolicy.DONT_CHECK, stream=STREAM)


def gathered_bytes(ops: ArrayOps, frame: CudfFrame, rows: RowMap) -> tuple[int, ...]:
    """Bytes of data of each column after :func:`gather`, without offsets; zero for fixed-width columns.

    Exact for text. For lists and structs, the bytes of all child values, with one byte for a boolean.
    """
    index: Array | None = None
    sizes: list[int] = []
    for column in frame.table.columns():
        if not variable(column) or rows.length == 0 or frame.rows == 0:
            sizes.append(0)
            continue
        each = value_bytes(ops, column)
        if isinstance(rows, Span):
            sizes.append(total(each[rows.start : rows.start + rows.length]))
            continue
        if index is None:
            index = rowmaps.indices(ops, rows)
            if isinstance(rows, Indices) and rowmaps.may_miss(rows):
                index = index[index >= 0]
        sizes.append(0 if isinstance(rows, AllNull) else total(each[index]))
    return tuple(sizes)


def variable(column: plc.Column) -> bool:
    """Whether a column, or a child of it, has variable width."""
    kind = column.type().id()
    if kind == _T.STRUCT:
        return any(variable(child) for child in column.children())
    return kind in (_T.STRING, _T.LIST)


def value_bytes(ops: ArrayOps, column: plc.Column) -> Array:
    """Bytes of each value of a column as int64, without offsets; zero for a null of variable width."""
    kind = column.type().id()
    if kind == _T.STRUCT:
        view = column.struct_view()
        fields = [view.get_sliced_child(i, stream=STREAM) for i in range(column.num_children())]
        sizes = sum((value_bytes(ops, field) for field in fields), cupy.zeros(column.size(), dtype=cupy.int64))
    elif kind in (_T.STRING, _T.LIST) and column.size():
        offsets = _offsets(column)
        if kind == _T.LIST:
            child = value_bytes(ops, column.child(1))
            before = cupy.zeros(child.shape[0] + 1, dtype=cupy.int64)
            before[1:] = cupy.cumsum(child)
            offsets = before[offsets]
        sizes = (offsets[1:] - offsets[:-1]).astype(cupy.int64)
    elif kind in (_T.STRING, _T.LIST):
        return cupy.zeros(0, dtype=cupy.int64)
    else:
        return cupy.full(column.size(), plc.types.size_of(column.type()), dtype=cupy.int64)
    valid = validity(column)
    return sizes if valid is None else cupy.where(valid, sizes, 0)


def _offsets(column: plc.Column) -> Array:
    """Offsets of a text or list column with rows: one more than these."""
    return as_array(column.child(0))[column.offset() : column.offset() + column.size() + 1]
