"""Tables of other libraries as frames: the same memory, the same types; real pylibcudf, without a device."""

from __future__ import annotations

import ctypes
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from gpujoin.backends.cudf.arrowdevice import (
    CUDA,
    StreamCapsule,
    TableCapsules,
    _GetInto,
    _GetText,
    _Release,
    _Stream,
    capsules_of,
)
from gpujoin.engine.devicetables import TableKind, open_keys, open_table
from gpujoin.errors import JoinSpecError

BATCH = pa.record_batch({"a": [1, 2, None], "s": ["x", None, "z"]})
_api = ctypes.pythonapi


# -- the Arrow C device interface ------------------------------------------------------------------------------


class Elsewhere:
    """A batch that says that it lies on a GPU."""

    def __init__(self, batch: pa.RecordBatch, device_type: int = CUDA) -> None:
        self.batch, self.device_type = batch, device_type

    def __arrow_c_device_array__(self, requested_schema: Any = None, **kwargs: Any) -> tuple[Any, Any]:
        schema, array = self.batch.__arrow_c_device_array__()
        address = _api.PyCapsule_GetPointer(array, b"arrow_device_array")
        ctypes.c_int32.from_address(address + 88).value = self.device_type
        return schema, array


class Streamed:
    """Batches as a device stream, which fails after the last one if that is asked for."""

    def __init__(self, batches: list[pa.RecordBatch], problem: bytes | None = None) -> None:
        self.waiting, self.problem = list(batches), problem
        self.told = ctypes.create_string_buffer(problem or b"")
        get = _GetInto(self._schema), _GetInto(self._next), _GetText(lambda _: ctypes.addressof(self.told))
        self.stream = _Stream(1, *get, _Release(lambda _: None), None)

    def _schema(self, _: Any, into: int) -> int:
        BATCH.schema._export_to_c(into)
        return 0

    def _next(self, _: Any, into: int) -> int:
        if self.waiting:
            self.waiting.pop(0)._export_to_c_device(into)
            return 0
        return 0 if self.problem is None else 5

    def __arrow_c_device_stream__(self, requested_schema: Any = None, **kwargs: Any) -> Any:
        return _api.PyCapsule_New(ctypes.addressof(self.stream), b"arrow_device_array_stream", None)


def test_where_a_table_lies_is_seen_before_it_is_read() -> None:
    there = open_table(Elsewhere(BATCH))
    assert there is not None
    assert there.kind is TableKind.OWN
    assert isinstance(there.data, TableCapsules)
    assert there.data.device_type == CUDA
    assert pa.schema(there.data.description()) == BATCH.schema
    assert open_table(Elsewhere(BATCH, device_type=1)) is None
    for on_host in (BATCH, pa.Table.from_batches([BATCH]), BATCH.column(0), {"a": [1]}, None, 5):
        assert open_table(on_host) is None
    assert open_keys(BATCH.column(0).to_numpy(zero_copy_only=False)) is None


def test_the_parts_of_a_stream() -> None:
    source = Streamed([BATCH, BATCH.slice(1)])  # owns what the capsule calls
    capsules = capsules_of(source)
    assert isinstance(capsules, StreamCapsule)
    assert capsules.device_type == 1
    assert pa.schema(capsules.description()) == BATCH.schema
    parts = [pa.RecordBatch._import_from_c_device_capsule(part.schema, part.array) for part in capsules.parts()]
    assert parts == [BATCH, BATCH.slice(1)]
    nothing = Streamed([])
    empty = capsules_of(nothing)
    assert isinstance(empty, StreamCapsule)
    assert list(empty.parts()) == []


def test_a_stream_that_fails() -> None:
    source = Streamed([BATCH], b"the device is gone")
    capsules = capsules_of(source)
    assert isinstance(capsules, StreamCapsule)
    with pytest.raises(JoinSpecError, match="fails with status 5: the device is gone"):
        list(capsules.parts())


# -- pylibcudf -------------------------------------------------------------------------------------------------

plc = pytest.importorskip("pylibcudf", reason='no cuDF: pip install ".[cu13]"')
pytest.importorskip("cupy", reason='no CuPy: pip install ".[cu13]"')
pytest.importorskip("rmm", reason='no RMM: pip install ".[cu13]"')

T = plc.types.TypeId
TYPES: dict[str, tuple[Any, pa.DataType]] = {
    "bool": (plc.DataType(T.BOOL8), pa.bool_()),
    "int64": (plc.DataType(T.INT64), pa.int64()),
    "uint8": (plc.DataType(T.UINT8), pa.uint8()),
    "float32": (plc.DataType(T.FLOAT32), pa.float32()),
    "date": (plc.DataType(T.TIMESTAMP_DAYS), pa.date32()),
    "milliseconds": (plc.DataType(T.TIMESTAMP_MILLISECONDS), pa.timestamp("ms")),
    "duration": (plc.DataType(T.DURATION_NANOSECONDS), pa.duration("ns")),
    "decimal32": (plc.DataType(T.DECIMAL32, -2), pa.decimal32(9, 2)),
    "decimal64": (plc.DataType(T.DECIMAL64, -3), pa.decimal64(18, 3)),
    "decimal128": (plc.DataType(T.DECIMAL128, -4), pa.decimal128(38, 4)),
    "text": (plc.DataType(T.STRING), pa.string()),
}


class Memory:
    """Device memory that is not there: only its address is looked at."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3, "strides": None,
        }  # fmt: skip


def column(kind: Any, rows: int = 4, address: int = 1 << 20, children: tuple[Any, ...] = ()) -> Any:
    owner = Memory(address, rows * 16)
    data = None if children else plc.gpumemoryview(owner)
    return plc.Column(kind, rows, data, None, 0, 0, list(children))


def address_of(column: Any) -> int:
    return int(column.data().ptr)


def offsets(rows: int = 4) -> Any:
    return column(plc.DataType(T.INT32), rows + 1)


@pytest.mark.parametrize("name", TYPES)
def test_a_column_is_viewed_and_given_back(name: str) -> None:
    from gpujoin.backends.cudf import adoption

    kind, dtype = TYPES[name]
    given = column(kind)
    frame = adoption.view_table(plc.Table([given]))
    assert frame.types == (dtype,)
    (stored,) = frame.table.columns()
    assert address_of(stored) == address_of(given)
    (back,) = adoption.to_library_table(frame).columns()
    assert (back.type(), back.size(), address_of(back)) == (kind, 4, address_of(given))


def test_nested_columns() -> None:
    from gpujoin.backends.cudf import adoption

    stamps = column(plc.DataType(T.TIMESTAMP_SECONDS), 9)
    lists = plc.Column(plc.DataType(T.LIST), 4, None, None, 0, 0, [offsets(), stamps])
    pairs = plc.Column(plc.DataType(T.STRUCT), 4, None, None, 0, 0, [column(plc.DataType(T.INT8)), lists])
    frame = adoption.view_table(plc.Table([pairs]))
    assert frame.types == (pa.struct([("0", pa.int8()), ("1", pa.list_(pa.timestamp("s")))]),)
    inner = frame.table.columns()[0].child(1).child(1)
    assert inner.type() == plc.DataType(T.INT64)
    back = adoption.to_library_table(frame).columns()[0]
    assert back.child(1).child(1).type() == plc.DataType(T.TIMESTAMP_SECONDS)
    assert address_of(back.child(1).child(1)) == address_of(stamps)


def test_what_is_not_held_is_named() -> None:
    from gpujoin.backends.cudf import adoption
    from gpujoin.backends.cudf.frames import CudfFrame

    codes = plc.Column(plc.DataType(T.DICTIONARY32), 4, None, None, 0, 0, [offsets(3), column(plc.DataType(T.INT64))])
    with pytest.raises(JoinSpecError, match=r"column 1 .* DICTIONARY32"):
        adoption.view_table(plc.Table([column(plc.DataType(T.INT64)), codes]))
    frame = CudfFrame(plc.Table([column(plc.DataType(T.STRING))]), (pa.binary(),))
    with pytest.raises(JoinSpecError, match="binary, for which libcudf has no type"):
        adoption.to_library_table(frame)


def backend() -> Any:
    return SimpleNamespace(device=SimpleNamespace(entered=nullcontext))


def test_tables_and_columns_of_pylibcudf() -> None:
    from gpujoin.backends.cudf import adopt

    keys = column(plc.DataType(T.INT64))
    opened = open_table(plc.Table([keys, column(plc.DataType(T.INT8))]))
    assert opened is not None
    assert opened.kind is TableKind.PYLIBCUDF
    frame, schema = adopt(backend(), opened.data)
    assert schema == pa.schema([("0", pa.int64()), ("1", pa.int8())])
    assert frame.rows == 4
    opened = open_keys(keys)
    assert opened is not None
    frame, schema = adopt(backend(), opened.data)
    assert (schema, frame.rows) == (pa.schema([("0", pa.int64())]), 4)
    assert address_of(frame.table.columns()[0]) == 1 << 20
    assert open_keys(Memory(1 << 20, 32)) is not None


def test_data_frames_of_cudf(monkeypatch: pytest.MonkeyPatch) -> None:
    """As cuDF's documentation says: it is not installed here, and needs a device to be imported."""

    class DataFrame:
        def __init__(self, table: Any, columns: list[str]) -> None:
            self.table, self.columns = table, columns

        def to_pylibcudf(self) -> tuple[Any, dict[str, Any]]:
            return self.table, {"columns": self.columns}

        @classmethod
        def from_pylibcudf(cls, table: Any, metadata: dict[str, Any]) -> Any:
            return cls(table, metadata["columns"])

    from gpujoin.engine import devicetables

    monkeypatch.setitem(sys.modules, "cudf", SimpleNamespace(DataFrame=DataFrame))
    frame = DataFrame(plc.Table([column(plc.DataType(T.INT64)), column(plc.DataType(T.TIMESTAMP_DAYS))]), ["k", "day"])
    device = SimpleNamespace(backend=SimpleNamespace(device=SimpleNamespace(entered=nullcontext)), select=select)
    monkeypatch.setattr(devicetables, "device_of", lambda backend: device)
    opened = open_table(frame)
    assert opened is not None
    assert opened.kind is TableKind.CUDF
    table = opened.adopt("auto")
    assert table.schema == pa.schema([("k", pa.int64()), ("day", pa.date32())])
    back = opened.to_same_kind(table)
    assert isinstance(back, DataFrame)
    assert back.columns == ["k", "day"]
    assert [c.type() for c in back.table.columns()] == [c.type() for c in frame.table.columns()]


def select(frame: Any, positions: Any) -> Any:
    return frame
