"""The device pipeline's own code over NumPy and PyArrow: all of it but its calls into pylibcudf."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import ArrayOps
from gpujoin.backends.cudf.pipeline.backend import DevicePipeline
from gpujoin.backends.cudf.pipeline.columns import FilterTerm, Reduce, Reduced, Reduction
from gpujoin.backends.cudf.storage import restore, storage_type, store
from gpujoin.errors import DecodeError, DeviceMemoryError
from gpujoin.functions.device import Text
from gpujoin.functions.values import Value
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Span
from gpujoin.model.types import is_bytes, is_text, logical
from tests.backends.cudf.host import NULL_SAFE, HostBackend, HostSource, HostText, on_host

_COMPARISONS = {
    "=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


def _one(column: Any) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _rows_only(rows: int) -> pa.Table:
    return pa.table({"rows": pa.nulls(rows)}).select([])


def _table(arrays: Sequence[Any], rows: int) -> pa.Table:
    if not arrays:
        return _rows_only(rows)
    assert all(len(array) == rows for array in arrays), [len(array) for array in arrays]
    return pa.table(list(arrays), names=[f"c{i}" for i in range(len(arrays))])


def _validity(valid: Any, rows: int) -> pa.Buffer | None:
    if valid is None:
        return None
    return pa.py_buffer(np.packbits(np.broadcast_to(on_host(valid), (rows,)), bitorder="little"))


def _arrow(value: Value, dtype: pa.DataType, rows: int) -> pa.Array:
    """What the device makes of a value, checked to be of the type that is claimed for it."""
    kind = storage_type(dtype)
    assert kind is not None
    mask = _validity(value.valid, rows)
    if value.low is not None:
        pairs = np.empty((rows, 2), np.int64)
        pairs[:, 0] = on_host(value.low).view(np.int64)
        pairs[:, 1] = on_host(value.data)
        assert kind == pa.decimal128(38, 0), dtype
        return restore(pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(pairs)]), dtype)
    data = np.ascontiguousarray(np.broadcast_to(on_host(value.data), (rows,)))
    assert data.dtype == np.dtype(kind.to_pandas_dtype()), (data.dtype, dtype)
    if pat.is_boolean(kind):
        data = np.packbits(data, bitorder="little")
    return restore(pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(data)]), dtype)


class HostColumns:
    """See `gpujoin.backends.cudf.pipeline.columns.Columns`."""

    def __init__(self, backend: HostBackend) -> None:
        self.backend = backend
        self.ops: ArrayOps = backend.ops

    def memory_errors(self) -> AbstractContextManager[None]:
        return nullcontext()

    def types(self, frame: pa.Table) -> tuple[pa.DataType, ...]:
        return tuple(frame.schema.types)

    def source(self, frame: pa.Table) -> HostSource:
        return HostSource({Side.LEFT: frame}, self.ops)

    def select(self, frame: pa.Table, positions: Sequence[int]) -> pa.Table:
        return _table([frame.column(i) for i in positions], frame.num_rows)

    def hstack(self, frames: Sequence[pa.Table]) -> pa.Table:
        return _table([column for frame in frames for column in frame.columns], frames[0].num_rows)

    def frame(self, columns: Sequence[Value | Text], types: Sequence[pa.DataType], rows: int) -> pa.Table:
        return _table([self._column(c, t, rows) for c, t in zip(columns, types, strict=True)], rows)

    @staticmethod
    def _column(value: Value | Text, dtype: pa.DataType, rows: int) -> pa.Array:
        if isinstance(value, Value):
            return _arrow(value, dtype, rows)
        assert isinstance(value, HostText)
        if isinstance(value.content, pa.Array):
            assert len(value.content) == rows
            return value.content
        return pa.array([value.content] * rows, dtype)

    def relabelled(self, frame: pa.Table, types: Sequence[pa.DataType]) -> pa.Table:
        arrays = []
        for column, dtype in zip(frame.columns, types, strict=True):
            assert storage_type(column.type) == storage_type(dtype) or is_text(dtype) or is_bytes(dtype)
            arrays.append(restore(store(_one(column)), dtype))
        return _table(arrays, frame.num_rows)

    def null_safe(self, keys: pa.Table, null_safe: Sequence[bool]) -> pa.Table:
        large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
        keys = keys.cast(pa.schema([f.with_type(large.get(f.type, f.type)) for f in keys.schema]))
        return keys.replace_schema_metadata({NULL_SAFE: bytes(null_safe)})

    def concat(self, frames: Sequence[pa.Table]) -> pa.Table:
        rows = sum(frame.num_rows for frame in frames)
        if not frames[0].num_columns:
            return _rows_only(rows)
        assert len({self.types(frame) for frame in frames}) == 1, [self.types(frame) for frame in frames]
        named = [frame.rename_columns([f"c{i}" for i in range(frame.num_columns)]) for frame in frames]
        return pa.concat_tables(named).combine_chunks()

    def order(self, frame: pa.Table, descending: Sequence[bool], nulls_first: Sequence[bool]) -> Any:
        index = list(range(frame.num_rows))
        for at in reversed(range(frame.num_columns)):
            assert not pat.is_floating(frame.column(at).type)
            values = self._plain(frame.column(at))
            present = [i for i in index if values[i] is not None]
            absent = [i for i in index if values[i] is None]
            keyed = [(values[i], i) for i in present]
            keyed.sort(key=itemgetter(0), reverse=descending[at])
            present = [i for _, i in keyed]
            index = [*absent, *present] if nulls_first[at] else [*present, *absent]
        return self.ops.xp.asarray(np.array(index, np.int32))

    @staticmethod
    def _plain(column: Any) -> list[Any]:
        """Values as Python orders them: text by bytes, decimals as their integers."""
        array = store(_one(column))
        if is_text(array.type):
            array = array.cast(pa.large_string()).view(pa.large_binary())
        return array.to_pylist()

    def codes(self, keys: pa.Table) -> tuple[pa.Table, Any]:
        rows = list(zip(*map(self._plain, keys.columns), strict=True))
        numbers: dict[Any, int] = {}
        ids = np.array([numbers.setdefault(row, len(numbers)) for row in rows], np.int32)
        first = [rows.index(row) for row in numbers]
        return _table([c.take(pa.array(first, pa.int64())) for c in keys.columns], len(first)), self.ops.xp.asarray(ids)

    def grouped(self, keys: pa.Table, reductions: Sequence[Reduction]) -> tuple[pa.Table, list[Reduced]]:
        assert not any(map(pat.is_floating, keys.schema.types))
        names = [f"k{i}" for i in range(keys.num_columns)]
        stored = [store(_one(column)) for column in keys.columns]
        values = []
        for reduction in reductions:
            data = on_host(reduction.data)
            assert data.dtype in (np.int64, np.float64)
            assert data.shape == (keys.num_rows,)
            assert reduction.valid is None or reduction.valid.shape == data.shape
            mask = None if reduction.valid is None else ~on_host(reduction.valid)
            values.append(pa.array(data, mask=mask, from_pandas=False))
        table = pa.table(stored + values, names=[*names, *(f"v{i}" for i in range(len(values)))])
        asked = [
            (f"v{i}", r.kind.value, pc.CountOptions(mode="only_valid") if r.kind is Reduce.COUNT else None)
            for i, r in enumerate(reductions)
        ]
        grouped = table.group_by(names, use_threads=False).aggregate(asked)
        restored = [restore(_one(grouped.column(name)), t) for name, t in zip(names, keys.schema.types, strict=True)]
        reduced = []
        for i, reduction in enumerate(reductions):
            column = _one(grouped.column(f"v{i}_{reduction.kind.value}"))
            valid = None if column.null_count == 0 else np.asarray(column.is_valid())
            reduced.append(Reduced(np.asarray(column.fill_null(0)), valid))
        return _table(restored, grouped.num_rows), reduced

    def partition(self, frame: pa.Table, keys: int, parts: int) -> list[pa.Table]:
        rows = list(zip(*(self._plain(frame.column(i)) for i in range(keys)), strict=True))
        numbers = np.array([hash(row) % parts for row in rows], np.int64)
        return [frame.filter(pa.array(numbers == part)) for part in range(parts)]

    def read(
        self, path: str, names: Sequence[str], types: Sequence[pa.DataType], row_groups: Sequence[int],
        terms: Sequence[FilterTerm],
    ) -> pa.Table:  # fmt: skip
        del types
        try:
            with pq.ParquetFile(path) as file:
                table = file.read_row_groups(list(row_groups), columns=list(names), use_threads=False)
        except (OSError, pa.ArrowException) as problem:
            raise DecodeError(f"{path}: corrupt: {problem}") from problem
        for term in terms:
            table = table.filter(_COMPARISONS[term.operator](table.column(term.column), term.value))
        arrays = [self._decoded(table.column(name)) for name in names]
        return _table(arrays, table.num_rows)

    @staticmethod
    def _decoded(column: pa.ChunkedArray) -> pa.Array:
        """The types in which libcudf decodes: no dictionaries, no views, narrow decimals in 64 bits."""
        array = _one(column)
        if pat.is_dictionary(array.type):
            array = array.dictionary_decode()
        kind = logical(array.type)
        if pat.is_decimal(kind) and kind.precision <= 18:
            kind = pa.decimal64(kind.precision, kind.scale)
        return array if array.type == kind else array.cast(kind)


class ShortBackend(HostBackend):
    """A device on which an operation fails when its turn has come."""

    def __init__(self, fail: Sequence[int], floor: int = 0) -> None:
        super().__init__()
        self.fail = set(fail)
        self.floor = floor
        self.calls = 0

    def gather(self, frame: pa.Table, rows: Any, *, kernels: bool = False) -> pa.Table:
        if isinstance(rows, Span):  # a slice takes no memory
            return super().gather(frame, rows, kernels=kernels)
        self.calls += 1
        if self.calls in self.fail or (self.floor and rows.length > self.floor):
            raise DeviceMemoryError(f"gather {self.calls} fails on purpose")
        return super().gather(frame, rows, kernels=kernels)


def host_pipeline(backend: HostBackend | None = None, memory: int = 8 << 30) -> DevicePipeline[pa.Table]:
    """The device pipeline without a device."""
    return DevicePipeline(HostColumns(backend or HostBackend()), nullcontext, memory)
