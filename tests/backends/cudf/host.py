"""The device backend's own code over NumPy and PyArrow: what it does with CuPy, without a device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cudf import canonical, residual, rowmaps
from gpujoin.backends.cudf.arrays import ArrayOps, pack
from gpujoin.backends.cudf.emission import OutputColumns, OutputSide, RunsOutput, write_output
from gpujoin.backends.cudf.fetching import output_by_keys
from gpujoin.backends.cudf.index import Index, IndexProbe
from gpujoin.backends.cudf.packing import Fields, Packing, gather_by_rows
from gpujoin.backends.cudf.pipeline.backend import DevicePipeline
from gpujoin.backends.cudf.ranges import DeviceRangeBuild
from gpujoin.backends.cudf.storage import restore, storage_type, store
from gpujoin.backends.cudf.utf8 import is_ascii, is_utf8
from gpujoin.backends.ordered.index import Points
from gpujoin.backends.ordered.nearest import LookupProbe
from gpujoin.backends.ordered.probe import OrderedProbe
from gpujoin.functions.device import Text
from gpujoin.functions.evaluate_device import DeviceEvaluator
from gpujoin.functions.support import device_obstacle
from gpujoin.functions.values import Value, in_words
from gpujoin.launch.device import Device
from gpujoin.launch.keys import KeyCodes
from gpujoin.launch.normalise import KeyColumn, Kind
from gpujoin.launch.rows import FieldColumn
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.backend import BackendName, JoinOutput, NearestTerms
from gpujoin.model.expressions import ColumnRef, Expression, Function
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Indices, OutOfBounds, RowMap
from gpujoin.model.types import logical
from gpujoin.testing import cells


def take(column: Any, rows: pa.Array) -> Any:
    """Some rows of an array of any type; PyArrow cannot do views."""
    large = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(column.type)
    return column.take(rows) if large is None else column.cast(large).take(rows).cast(column.type)


def _stable_argsort(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    return np.argsort(values, kind="stable").astype(np.int32)


HOST = ArrayOps(np, _stable_argsort)


def emulated_ops(device: Device) -> ArrayOps:
    """The arrays of an emulated device, on which gpujoin's own kernels run."""

    def order(values: Any) -> Any:
        return device.xp.argsort(values, kind="stable").astype(np.int32)

    return ArrayOps(device.xp, order, device)


def on_host(array: Any) -> npt.NDArray[Any]:
    """An array of either kind as NumPy's own."""
    return np.asarray(array).view(np.ndarray)


def device_arrays() -> ArrayOps:
    """The same on CuPy, with CuPy's own sort.

    Raises
    ------
    RuntimeError
        If CuPy is missing or there is no device.
    """
    try:
        import cupy

        cupy.zeros(1)
    except Exception as problem:
        raise RuntimeError(f"no device for CuPy: {problem}") from problem

    def order(values: Any) -> Any:
        return cupy.argsort(values, kind="stable").astype(cupy.int32)

    return ArrayOps(cupy, order)


def entered() -> AbstractContextManager[None]:
    return nullcontext()


NULL_SAFE = b"null safe"
"""Where a table of keys says for each of its columns whether null equals null, as bytes of 0 and 1."""


@dataclass(frozen=True)
class HostKeys:
    """Key columns in Arrow; hashes of ``bits`` bits, so that few bits force collisions."""

    table: pa.Table
    bits: int = 63
    colliding_seeds: int = 0
    ops: ArrayOps = HOST

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes)

    def columns(self) -> tuple[KeyColumn, ...]:
        return self._columns

    @cached_property
    def _columns(self) -> tuple[KeyColumn, ...]:
        return tuple(map(self._key_column, self.table.columns, self._null_safe))

    @property
    def _null_safe(self) -> tuple[bool, ...]:
        given = (self.table.schema.metadata or {}).get(NULL_SAFE)
        return (False,) * self.table.num_columns if given is None else tuple(map(bool, given))

    def _key_column(self, column: pa.ChunkedArray, null_safe: bool) -> KeyColumn:
        """As `gpujoin.backends.cudf.keys` makes it of a column on the device."""
        asarray, array = self.ops.xp.asarray, store(_one_chunk(column))
        valid = None if array.null_count == 0 else asarray(_bools(array.is_valid()))
        if pat.is_large_string(array.type):
            texts = [v or b"" for v in array.cast(pa.large_binary()).to_pylist()]
            offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
            data = np.frombuffer(b"".join(texts) or b"\0", np.uint8).copy()
            return KeyColumn(Kind.TEXT, asarray(data), valid, asarray(offsets), null_safe)
        if pat.is_decimal(array.type):
            flat = np.frombuffer(array.buffers()[1] or b"", np.uint64, 2 * len(array), 16 * array.offset)
            words = flat.reshape(-1, 2).copy()
            return KeyColumn(Kind.DECIMAL, asarray(words), valid, null_safe=null_safe, digits=column.type.precision)
        if pat.is_boolean(array.type):
            array = array.cast(pa.int8())
        kind = np.dtype(array.type.to_pandas_dtype())
        values = np.frombuffer(array.buffers()[1] or b"", kind, len(array), array.offset * kind.itemsize).copy()
        if kind.kind == "f":
            return KeyColumn(Kind.FLOAT, asarray(values), valid, null_safe=null_safe)
        return KeyColumn(Kind.INTEGER, asarray(values.view(f"int{8 * kind.itemsize}")), valid, null_safe=null_safe)

    @cached_property
    def exact(self) -> bool:
        kinds = [word.dtype for word in self._words]
        texts = any(c.kind is Kind.TEXT for c in self._columns)
        return not texts and kinds in ([np.int32], [np.int64], [np.int32, np.int32])

    @cached_property
    def _words(self) -> list[Any]:
        key_words = []
        for column in self._columns:
            if column.kind is not Kind.TEXT:
                key_words += canonical.words(self.ops.xp, column)
            elif column.null_safe:
                key_words.append(canonical.null_flag(self.ops.xp, column))
        return key_words

    @cached_property
    def rows(self) -> list[tuple[Any, ...]]:
        """Words and texts of each row; nothing but ``None`` of one that matches nothing."""
        texts = [
            column.cast(pa.large_binary()).to_pylist()
            for column in self.table.columns
            if pat.is_large_binary(column.type) or pat.is_large_string(column.type)
        ]
        columns = [on_host(word).tolist() for word in self._words] + texts
        valid = canonical.may_match(self._columns)
        there = np.ones(len(self), bool) if valid is None else on_host(valid)
        return [row if ok else (None,) for row, ok in zip(zip(*columns, strict=True), there, strict=True)]

    def coded(self, seed: int) -> KeyCodes:
        if not self.exact:
            return self._given(np.array([self._hash(row, seed) for row in self.rows], dtype=np.int64))
        result = [on_host(word) for word in self._words]
        return self._given(result[0] if len(result) == 1 else pack(HOST, *result))

    def _given(self, codes: npt.NDArray[Any]) -> KeyCodes:
        return KeyCodes(self.ops.xp.asarray(codes), canonical.may_match(self._columns))

    def _hash(self, row: tuple[Any, ...], seed: int) -> int:
        if seed < self.colliding_seeds:
            return 7
        digest = hashlib.blake2b(repr((seed, row)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> (64 - self.bits)

    def same(self, rows: Any, other: HostKeys, other_rows: Any) -> Any:
        pairs = zip(rows.tolist(), other_rows.tolist(), strict=True)
        same = np.array([self.rows[i] == other.rows[j] for i, j in pairs], dtype=bool)
        return self.ops.xp.asarray(same)


@dataclass(frozen=True, eq=False)
class HostText:
    """Text in PyArrow; see `gpujoin.functions.device.Text`."""

    content: pa.Array | str | None

    @property
    def valid(self) -> npt.NDArray[np.bool_] | None:
        if isinstance(self.content, pa.Array):
            return None if self.content.null_count == 0 else _bools(self.content.is_valid())
        return np.zeros(1, dtype=bool) if self.content is None else None

    def strings(self) -> list[str]:
        values = self.content.to_pylist() if isinstance(self.content, pa.Array) else [self.content]
        return [value or "" for value in values]

    def _with(self, other: HostText, test: Any) -> npt.NDArray[np.bool_]:
        length = max((len(t.content) for t in (self, other) if isinstance(t.content, pa.Array)), default=1)
        lefts, rights = (
            t.strings() if isinstance(t.content, pa.Array) else t.strings() * length for t in (self, other)
        )
        return np.array([test(a, b) for a, b in zip(lefts, rights, strict=True)], dtype=bool)

    def compare(self, function: Function, other: HostText) -> npt.NDArray[np.bool_]:
        tests = {
            Function.EQ: lambda a, b: a == b, Function.NE: lambda a, b: a != b, Function.LT: lambda a, b: a < b,
            Function.LE: lambda a, b: a <= b, Function.GT: lambda a, b: a > b, Function.GE: lambda a, b: a >= b,
        }  # fmt: skip
        return self._with(other, lambda a, b: tests[function](a.encode(), b.encode()))

    def search(self, function: Function, other: HostText) -> npt.NDArray[np.bool_]:
        tests = {
            Function.STARTS_WITH: str.startswith, Function.ENDS_WITH: str.endswith,
            Function.CONTAINS: lambda a, b: b in a,
        }  # fmt: skip
        return self._with(other, tests[function])

    def like(self, pattern: str, escape: str) -> npt.NDArray[np.bool_]:
        from tests.backends.cudf.libraries.texts import like

        return np.array([like(text, pattern, escape) for text in self.strings()], dtype=bool)

    def length(self) -> npt.NDArray[np.int32]:
        return np.array([len(text) for text in self.strings()], dtype=np.int32)

    def bytes_length(self) -> npt.NDArray[np.int32]:
        return np.array([len(text.encode()) for text in self.strings()], dtype=np.int32)

    def concatenated(self, others: Sequence[HostText]) -> HostText:
        texts = [self, *others]
        if any(text.content is None for text in texts):
            return HostText(None)
        columns = [text.content for text in texts if isinstance(text.content, pa.Array)]
        if not columns:
            return HostText("".join(text.strings()[0] for text in texts))
        parts = [
            text.content if isinstance(text.content, pa.Array) else pa.repeat(text.content, len(columns[0]))
            for text in texts
        ]
        wide = [part.cast(pa.large_string()) for part in parts]
        return HostText(pc.binary_join_element_wise(*wide, pa.scalar("", pa.large_string())))

    def _mapped(self, change: Callable[[str], str]) -> HostText:
        if not isinstance(self.content, pa.Array):
            return HostText(None if self.content is None else change(self.content))
        made = [None if text is None else change(text) for text in self.content.to_pylist()]
        return HostText(pa.array(made, self.content.type))

    def substring(self, start: int, stop: int) -> HostText:
        return self._mapped(lambda text: text[start:stop])

    def stripped(self, function: Function) -> HostText:
        strip = {
            Function.TRIM: str.strip, Function.TRIM_LEFT: str.lstrip, Function.TRIM_RIGHT: str.rstrip,
        }[function]  # fmt: skip
        return self._mapped(lambda text: strip(text, " "))

    def cased(self, function: Function) -> HostText:
        return self._mapped(str.upper if function is Function.UPPER else str.lower)

    def where(self, mask: Any, other: HostText) -> HostText:
        chosen, texts = on_host(mask), (self.content, other.content)
        rows = max((len(text) for text in texts if isinstance(text, pa.Array)), default=len(chosen))
        if rows == 1 == len(chosen) and not any(isinstance(text, pa.Array) for text in texts):
            return HostText(texts[0] if chosen[0] else texts[1])
        columns = [text if isinstance(text, pa.Array) else pa.array([text] * rows, pa.string()) for text in texts]
        return HostText(pc.if_else(pa.array(np.broadcast_to(chosen, (rows,))), *columns))

    def _bytes(self) -> tuple[Any, Any]:
        """Offsets of the texts and their bytes, as on the device."""
        column = self.content if isinstance(self.content, pa.Array) else pa.array([self.content], pa.string())
        texts = column.cast(pa.large_binary())
        offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
        data = texts.buffers()[2]
        return offsets, np.frombuffer(b"" if data is None else data, np.uint8)

    def is_ascii(self) -> bool:
        return is_ascii(*self._bytes())

    def is_utf8(self) -> bool:
        return is_utf8(np, *self._bytes())


@dataclass(frozen=True)
class HostSource:
    """Columns of two tables; see `gpujoin.functions.device.Source`."""

    tables: dict[Side, pa.Table]
    ops: ArrayOps = HOST

    def text(self, value: str | None) -> HostText:
        return HostText(value)

    def _array(self, node: ColumnRef) -> pa.Array:
        column = self.tables[node.side].column(node.index)
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)

    def column_valid(self, node: ColumnRef) -> npt.NDArray[np.bool_] | None:
        array = self._array(node)
        if pat.is_null(array.type):  # one for all rows, as on the device
            return self.ops.xp.zeros(1, dtype=bool)
        return None if array.null_count == 0 else self.ops.xp.asarray(_bools(array.is_valid()))

    def column(self, node: ColumnRef) -> Value | Text:
        array = self._array(node)
        if pat.is_dictionary(array.type):
            array = array.dictionary_decode()
        wanted = logical(array.type)
        if pat.is_string(wanted):
            return HostText(array.cast(pa.string()))
        asarray = self.ops.xp.asarray
        valid = None if array.null_count == 0 else asarray(_bools(array.is_valid()))
        stored = store(array)
        if pat.is_boolean(wanted):
            return Value(wanted, asarray(_bools(pc.fill_null(stored, False))), valid)
        data = stored.buffers()[1]
        kind = np.dtype("int64") if pat.is_decimal(stored.type) else np.dtype(stored.type.to_pandas_dtype())
        words = 2 if pat.is_decimal(stored.type) else 1
        flat = np.frombuffer(data or b"", kind, words * len(stored), stored.offset * words * kind.itemsize)
        if words == 2:
            return in_words((asarray(flat[::2].view(np.uint64)), asarray(flat[1::2])), wanted, valid)
        return Value(wanted, asarray(flat), valid)


def _text_bytes(cell: Any) -> int:
    """Bytes of the texts and byte strings in a cell, at any depth."""
    if isinstance(cell, tuple):
        return sum(map(_text_bytes, cell))
    if isinstance(cell, str):
        return len(cell.encode())
    return len(cell) if isinstance(cell, bytes) else 0


def _width(kind: pa.DataType) -> int:
    """Bytes of a value in libcudf; 0 for types without one width."""
    if pat.is_boolean(kind):
        return 1
    fixed = pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind)
    return int(kind.bit_width // 8) if fixed else 0


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _from_field(given: FieldColumn, like: pa.ChunkedArray) -> pa.Array:
    """What kernels made of a field, as a column of the type that it had."""
    values = np.ascontiguousarray(on_host(given.values))
    kind = storage_type(like.type)
    if pat.is_boolean(kind):
        values = np.packbits(values.astype(bool), bitorder="little")
    mask = None
    if given.valid is not None:
        mask = pa.py_buffer(np.packbits(on_host(given.valid), bitorder="little"))
    stored = pa.Array.from_buffers(kind, given.rows, [mask, pa.py_buffer(values)])
    dictionary = _one_chunk(like).dictionary if pat.is_dictionary(like.type) else None
    return restore(stored, like.type, dictionary)


def _table_of(like: pa.Table, fields: tuple[FieldColumn, ...], rows: int) -> pa.Table:
    if not fields:
        return pa.table({"rows": pa.nulls(rows)}).select([])
    columns = [_from_field(field, column) for field, column in zip(fields, like.columns, strict=True)]
    return pa.table(columns, schema=like.schema)


def _frames_of(own: pa.Table, other: pa.Table | None, made: OutputColumns | RunsOutput) -> JoinOutput[pa.Table]:
    def frames(start: int, length: int) -> tuple[pa.Table, pa.Table | None]:
        rows = made.slice(start, length)
        of_probe = own.slice(start, length) if rows.probe is None else _table_of(own, rows.probe, length)
        return of_probe, None if other is None else _table_of(other, rows.build, length)

    return JoinOutput(made.rows, frames)


def _bools(array: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=bool)


class HostBuild(Index):
    bits = 63

    def probe(self, keys: pa.Table) -> IndexProbe:
        return IndexProbe(self, HostKeys(keys, self.bits, ops=self.ops))


class HostRangeBuild(DeviceRangeBuild):
    def probe(self, bounds: pa.Table) -> OrderedProbe:
        return self.probe_columns(_points(self._ops, bounds))

    def nearest(self, points: pa.Table, codes: pa.Table, terms: NearestTerms) -> LookupProbe:
        return self.nearest_columns(_points(self._ops, points), _points(self._ops, codes)[0].values, terms)


def _points(ops: ArrayOps, table: pa.Table) -> list[Points]:
    columns = []
    for column in table.columns:
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        valid = ops.xp.array(_bools(array.is_valid())) if array.null_count else None
        columns.append(Points(ops.xp.array(array.fill_null(-7).to_numpy()), valid))
    return columns


@dataclass
class HostBackend:
    """A whole backend: indices, maps and conditions by the device backend's code, storage types and all."""

    bits: int = 63
    morsel_rows: int = 1 << 20
    threads: int = 1
    name: BackendName = BackendName.GPU
    evaluated: list[str] = field(default_factory=list)
    ops: ArrayOps = HOST
    packings: dict[int, tuple[pa.Table, Packing]] = field(default_factory=dict)

    @property
    def pipeline(self) -> DevicePipeline[pa.Table]:
        from tests.backends.cudf.pipeline import host_pipeline

        return host_pipeline(self)

    def can_gather(self, type: pa.DataType) -> bool:  # noqa: A002
        return storage_type(type) is not None

    def can_evaluate(self, condition: Expression) -> bool:
        return device_obstacle(condition) is None

    def from_arrow(self, table: pa.Table) -> pa.Table:
        return table

    def assemble(self, columns: Sequence[tuple[pa.Table, int]]) -> pa.Table:
        return pa.table([frame.column(at) for frame, at in columns], names=[str(i) for i in range(len(columns))])

    def to_arrow(self, frame: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
        if not len(schema):
            return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), frame.num_rows, [None]))
        arrays = []
        for column, wanted in zip(frame.columns, schema, strict=True):
            array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
            dictionary = array.dictionary if pat.is_dictionary(array.type) else None
            arrays.append(restore(store(array), wanted.type, dictionary))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def frame_rows(self, frame: pa.Table) -> int:
        return int(frame.num_rows)

    def frame_bytes(self, frame: pa.Table) -> int:
        return int(frame.nbytes)

    def build(self, keys: pa.Table, algorithm: Algorithm = Algorithm.CUDF, *, pairs: bool = True) -> HostBuild:
        codes = HostKeys(keys, self.bits, ops=self.ops)
        build = HostBuild(self.ops, codes, entered, algorithm, pairs=pairs)
        build.bits = self.bits
        return build

    def build_ranges(self, points: pa.Table, *, grouped: bool, kernels: bool = True) -> HostRangeBuild:
        ops = self.ops if kernels else replace(self.ops, kernels=None)
        return HostRangeBuild(ops, entered, _points(ops, points), grouped=grouped)

    def gather(self, frame: pa.Table, rows: RowMap, *, kernels: bool = False) -> pa.Table:
        indices = on_host(rowmaps.gather_indices(self.ops, rows))
        missing = indices == rowmaps.OUT_OF_BOUNDS
        assert indices.size == 0 or indices.min() >= 0
        if not frame.num_columns:
            return pa.table({"rows": pa.nulls(rows.length)}).select([])
        wanted = pa.array(indices, mask=missing)
        packed = self._by_rows(frame, rows) if kernels and self.ops.kernels is not None else {}
        columns = [packed[i] if i in packed else take(c, wanted) for i, c in enumerate(frame.columns)]
        return pa.table(columns, schema=frame.schema)

    def _by_rows(self, frame: pa.Table, rows: RowMap) -> dict[int, pa.Array]:
        """The columns that come from packed rows; see `gpujoin.backends.cudf.gathering`."""
        assert self.ops.kernels is not None
        packable, fields = self._fields(frame)
        gathered = gather_by_rows(self.ops.kernels, self._packing(frame), fields, rows)
        if gathered is None:
            return {}
        return {i: _from_field(column, frame.column(i)) for i, column in zip(packable, gathered, strict=True)}

    def _fields(self, frame: pa.Table) -> tuple[list[int], Fields]:
        kinds = [storage_type(column.type) for column in frame.columns]
        widths = [0 if kind is None else _width(kind) for kind in kinds]
        packable = [i for i, width in enumerate(widths) if width]
        return packable, Fields(
            rows=frame.num_rows,
            widths=tuple(widths[i] for i in packable),
            nullable=tuple(frame.column(i).null_count > 0 for i in packable),
            columns=lambda: [self._field(frame.column(i)) for i in packable],
        )

    def _packing(self, frame: pa.Table) -> Packing:
        return self.packings.setdefault(id(frame), (frame, Packing()))[1]

    def emit(
        self, probe: IndexProbe, own: pa.Table, other: pa.Table | None, *, matched: bool = True
    ) -> JoinOutput[pa.Table] | None:
        """See `gpujoin.backends.cudf.gathering.output_at_once`."""
        build = None if other is None else self._output_side(other)
        made = write_output(probe, self._output_side(own), build, matched=matched)
        return None if made is None else _frames_of(own, other, made)

    def fetch(
        self, build: HostBuild, keys: pa.Table, own: pa.Table, other: pa.Table, *, padded: bool
    ) -> JoinOutput[pa.Table] | None:
        """See `gpujoin.backends.cudf.gathering.output_by_keys`."""
        coded, probe_side, build_side = HostKeys(keys, self.bits, ops=self.ops), *map(self._output_side, (own, other))
        made = output_by_keys(build, coded, probe_side, build_side, padded=padded)
        return None if made is None else _frames_of(own, other, made)

    def _output_side(self, frame: pa.Table) -> OutputSide:
        packable, fields = self._fields(frame)
        return OutputSide(fields, len(packable) == frame.num_columns, self._packing(frame))

    def _field(self, column: pa.ChunkedArray) -> FieldColumn:
        upload = self.ops.xp.asarray
        array = store(_one_chunk(column))
        valid = None if array.null_count == 0 else upload(_bools(array.is_valid()))
        if pat.is_boolean(array.type):
            return FieldColumn(upload(_bools(pc.fill_null(array, False))), valid)
        words = 2 if pat.is_decimal(array.type) else 1
        kind = np.dtype("int64") if words == 2 else np.dtype(array.type.to_pandas_dtype())
        data = array.buffers()[1] or b""
        flat = np.frombuffer(data, kind, words * len(array), words * array.offset * kind.itemsize)
        return FieldColumn(upload(flat.reshape(-1, 2) if words == 2 else flat.copy()), valid)

    def gathered_bytes(self, frame: pa.Table, rows: RowMap) -> tuple[int, ...]:
        gathered = self.gather(frame, rows)
        return tuple(sum(map(_text_bytes, cells(column))) for column in gathered.columns)

    def evaluate(self, condition: Expression, left: pa.Table, right: pa.Table, length: int) -> Any:
        self.evaluated.append(str(condition))
        source = HostSource({Side.LEFT: left, Side.RIGHT: right})
        if self.ops.kernels is not None and length >= residual.FEWEST_PAIRS:
            mask = residual.compiled_mask(self.ops.kernels, source, condition, length)
            if mask is not None:
                return mask
        return self.ops.xp.asarray(DeviceEvaluator(np, source).mask(condition, length))

    def restrict(
        self, probe: IndexProbe, condition: Expression, own: pa.Table, other: pa.Table, probe_side: Side
    ) -> IndexProbe | None:
        """See `gpujoin.backends.cudf.text.restrict`."""
        matches = probe.single()
        if matches is None:
            return None
        source = HostSource({probe_side: own, probe_side.other: other})
        kept = residual.restrict_matches(self.ops, source, condition, matches, probe.build_rows, probe_side)
        return None if kept is None else probe.restricted_to(kept)

    def filter_map(self, rows: RowMap, mask: Any) -> RowMap:
        return rowmaps.filtered(self.ops, rows, mask)

    def selection(self, mask: Any, value: bool) -> RowMap:
        return rowmaps.selected(self.ops, mask, value)

    def marks(self, length: int) -> Any:
        return self.ops.xp.zeros(length, dtype=bool)

    def mark(self, marks: Any, rows: RowMap) -> None:
        rowmaps.set_marks(self.ops, marks, rows)

    def indices_to_host(self, rows: RowMap) -> npt.NDArray[np.int64]:
        return on_host(rowmaps.indices(self.ops, rows)).astype(np.int64)

    def indices_from_host(self, indices: npt.NDArray[np.int64], out_of_bounds: OutOfBounds) -> Indices:
        return Indices(self.ops.xp.asarray(indices.astype(np.int32)), len(indices), out_of_bounds)

    def mask_to_host(self, mask: Any) -> npt.NDArray[np.bool_]:
        return on_host(mask).astype(bool)

    def mask_from_host(self, mask: npt.NDArray[np.bool_]) -> Any:
        return self.ops.xp.array(mask)
