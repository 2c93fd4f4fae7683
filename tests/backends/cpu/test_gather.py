"""Gathering of every Arrow type, by every kind of row map, against plain Python."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
import pytest

from gpujoin.backends.cpu import rowstore
from gpujoin.backends.cpu.bits import fixed_width
from gpujoin.backends.cpu.frame import Frame
from gpujoin.model.maps import AllNull, Indices, OutOfBounds, Repeat, RowMap, Span, Tile
from tests.backends.cpu.support import BACKEND

D = decimal.Decimal
NAN = float("nan")

COLUMNS: dict[str, pa.Array] = {
    "null": pa.nulls(5),
    "bool": pa.array([True, None, False, True, False]),
    "bool_full": pa.array([True, True, False, True, False]),
    "int8": pa.array([1, None, -128, 127, 0], pa.int8()),
    "uint16": pa.array([1, None, 65535, 0, 5], pa.uint16()),
    "int32": pa.array([1, None, -(2**31), 2**31 - 1, 0], pa.int32()),
    "int64_full": pa.array([1, 2, -(2**63), 2**63 - 1, 0], pa.int64()),
    "uint64": pa.array([1, None, 2**64 - 1, 0, 3], pa.uint64()),
    "float16": pa.array(np.array([1, -0.0, np.inf, 2, 3], np.float16)),
    "float32": pa.array([1.5, None, -0.0, float("inf"), 3], pa.float32()),
    "float64": pa.array([1.5, None, -0.0, float("-inf"), 3]),
    "decimal32": pa.array([D("1.5"), None, D("-9.9"), D(0), D(3)], pa.decimal32(5, 2)),
    "decimal64": pa.array([D("1.5"), None, D("-9.9"), D(0), D(3)], pa.decimal64(12, 2)),
    "decimal128": pa.array([D("1.5"), None, D("-9.9"), D(10) ** 35, D(3)], pa.decimal128(38, 2)),
    "decimal256": pa.array([D("1.5"), None, D("-9.9"), D(10) ** 60, D(3)], pa.decimal256(70, 2)),
    "date32": pa.array([dt.date(1970, 1, 2), None, dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2020, 2, 29)]),
    "date64": pa.array([0, None, 86_400_000, -86_400_000, 0], pa.date64()),
    "time64": pa.array([0, None, 1, 2, 3], pa.time64("us")),
    "timestamp": pa.array([0, None, -1, 2**45, 3], pa.timestamp("us", "UTC")),
    "duration": pa.array([0, None, -1, 2**40, 3], pa.duration("us")),
    "month_day_nano": pa.array([pa.MonthDayNano([1, -2, 3]), None, *[pa.MonthDayNano([0, 0, i]) for i in range(3)]]),
    "string": pa.array(["a", None, "", "ßßß🎉", "x" * 50]),
    "large_string": pa.array(["a", None, "", "ßßß🎉", "x" * 50], pa.large_string()),
    "string_view": pa.array(["a", None, "", "ßßß🎉", "x" * 50], pa.string_view()),
    "binary": pa.array([b"a", None, b"", b"\0", b"\xff" * 20]),
    "binary_view": pa.array([b"a", None, b"", b"\0", b"\xff" * 20], pa.binary_view()),
    "fixed_binary_3": pa.array([b"abc", None, b"\0\0\0", b"xyz", b"123"], pa.binary(3)),
    "fixed_binary_16": pa.array([b"a" * 16, None, b"\0" * 16, b"x" * 16, b"1" * 16], pa.binary(16)),
    "fixed_binary_0": pa.array([b"", None, b"", b"", b""], pa.binary(0)),
    "list": pa.array([[1, None], None, [], [3], [4, 5, 6]]),
    "large_list": pa.array([[1, None], None, [], [3], [4, 5, 6]], pa.large_list(pa.int16())),
    "list_view": pa.array([[1, None], None, [], [3], [4, 5, 6]], pa.list_view(pa.int32())),
    "list_of_string": pa.array([["a", None], None, [], ["ß"], ["", "xx"]]),
    "fixed_size_list": pa.array([[1, 2], None, [3, None], [5, 6], [7, 8]], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": ""}, {"a": 3, "b": None}, {"a": 4, "b": "yy"}]),
    "struct_no_fields": pa.array([{}, None, {}, {}, {}], pa.struct([])),
    "map": pa.array([[("a", 1)], None, [], [("b", None)], [("c", 2), ("d", 3)]], pa.map_(pa.string(), pa.int32())),
    "nested": pa.array(
        [[{"m": [("k", [1])]}], None, [], [None], [{"m": None}]],
        pa.list_(pa.struct({"m": pa.map_(pa.string(), pa.list_(pa.int64()))})),
    ),
    "dictionary": pa.array(["a", None, "b", "a", "ccc"]).dictionary_encode(),
    "sparse_union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1, 0], pa.int8()), [pa.array([1, 2, 3, 4, 5]), pa.array(list("abcde"))]
    ),
    "uuid": pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([b"a" * 16, None, b"\0" * 16, b"x" * 16, b"1" * 16], pa.binary(16))
    ),
    "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None, "[]", "1", '{"a": 1}'])),
}  # fmt: skip

MAPS: dict[str, RowMap] = {
    "all": Span(0, 5),
    "span": Span(1, 3),
    "empty_span": Span(2, 0),
    "int64": Indices(np.array([4, 0, 0, 1, 2, 3, 1]), 7),
    "int32": Indices(np.array([4, 0, 0, 1, 2, 3, 1, 1, 4], np.int32), 9),
    "nullify": Indices(np.array([4, -1, 0, 1, -1, 3, 2], np.int32), 7, OutOfBounds.NULLIFY),
    "nullify_64": Indices(np.array([-1, 2, 1, -1]), 4, OutOfBounds.NULLIFY),
    "nullify_none": Indices(np.array([3, 2, 1]), 3, OutOfBounds.NULLIFY),
    "only_nulls": Indices(np.array([-1, -1], np.int32), 2, OutOfBounds.NULLIFY),
    "strided": Indices(np.arange(10, dtype=np.int32)[::2] // 2, 5),
    "no_indices": Indices(np.array([], np.int32), 0),
    "repeat": Repeat(2, 11, 3),
    "repeat_once": Repeat(0, 5, 1),
    "tile": Tile(3, 14, 5),
    "tile_part": Tile(1, 3, 5),
    "tile_smaller": Tile(7, 9, 2),
    "tile_long": Tile(1, 700, 5),
    "all_null": AllNull(4),
}


def expected_rows(rows: RowMap) -> list[int]:
    match rows:
        case Span(start, length):
            return list(range(start, start + length))
        case Repeat(start, length, times):
            return [(start + i) // times for i in range(length)]
        case Tile(start, length, period):
            return [(start + i) % period for i in range(length)]
        case AllNull(length):
            return [-1] * length
        case Indices(values, _, _):
            return [int(v) for v in values]


def expected_values(column: pa.Array, rows: RowMap) -> list[Any]:
    values = column.to_pylist()
    return [values[row] if row >= 0 else None for row in expected_rows(rows)]


def gathered(column: pa.Array, rows: RowMap) -> pa.Array:
    frame = BACKEND.from_arrow(pa.table({"c": column}))
    result = BACKEND.gather(frame, rows)
    assert BACKEND.frame_rows(result) == rows.length
    (array,) = result.columns
    array.validate(full=True)
    assert array.type == column.type
    return array


def sliced(column: pa.Array) -> pa.Array:
    """The same values at an offset within longer buffers."""
    padding = column.slice(1, 3)
    if pat.is_union(column.type) or isinstance(column, pa.ExtensionArray):
        return column
    return pa.concat_arrays([padding, column, padding]).slice(3, len(column))


@pytest.mark.parametrize("rows", MAPS.values(), ids=MAPS)
@pytest.mark.parametrize("name", COLUMNS)
def test_gather(name: str, rows: RowMap) -> None:
    column = COLUMNS[name]
    assert BACKEND.can_gather(column.type)
    if pat.is_union(column.type) and any(row < 0 for row in expected_rows(rows)):
        pytest.skip("a union cannot be null")
    for source in (column, sliced(column)):
        assert gathered(source, rows).to_pylist() == expected_values(column, rows)


@pytest.mark.parametrize("name", COLUMNS)
def test_empty_source(name: str) -> None:
    column = COLUMNS[name].slice(0, 0)
    assert gathered(column, Span(0, 0)).to_pylist() == []
    assert gathered(column, Indices(np.array([], np.int64), 0)).to_pylist() == []
    if not pat.is_union(column.type):
        nothing = Indices(np.array([-1, -1], np.int32), 2, OutOfBounds.NULLIFY)
        assert gathered(column, nothing).to_pylist() == [None, None]


def test_nan_bits_are_kept() -> None:
    bits = np.array([0x7FF8000000000001, 0xFFF0000000000001], np.uint64)
    taken = gathered(pa.array(bits.view(np.float64)), Indices(np.array([1, 0]), 2))
    assert taken.to_numpy().view(np.uint64).tolist() == bits[::-1].tolist()


@pytest.mark.parametrize(
    "dtype",
    [
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.list_(pa.string_view()),
        pa.struct({"v": pa.binary_view()}),
    ],
    ids=str,
)
def test_types_left_to_the_host(dtype: pa.DataType) -> None:
    assert not BACKEND.can_gather(dtype)


def test_frames_without_columns_know_their_rows() -> None:
    frame = BACKEND.from_arrow(pa.table({"a": range(7)}).select([]))
    assert BACKEND.frame_rows(frame) == 7
    assert BACKEND.frame_rows(BACKEND.gather(frame, Repeat(0, 21, 3))) == 21
    batch = BACKEND.to_arrow(frame, pa.schema([]))
    assert batch.num_rows == 7


@pytest.mark.parametrize("rows", MAPS.values(), ids=MAPS)
@pytest.mark.parametrize("name", ["string", "large_string", "string_view", "binary"])
def test_gathered_bytes_of_text(name: str, rows: RowMap) -> None:
    column = COLUMNS[name]
    frame = BACKEND.from_arrow(pa.table({"text": sliced(column), "n": np.arange(5)}))
    values = [v for v in expected_values(column, rows) if v is not None]
    size = sum(len(v.encode() if isinstance(v, str) else v) for v in values)
    assert BACKEND.gathered_bytes(frame, rows) == (size, 0)


def test_gathered_bytes_of_nested_columns() -> None:
    table = pa.table({name: COLUMNS[name] for name in ("list_of_string", "struct", "fixed_size_list", "dictionary")})
    frame = BACKEND.from_arrow(table)
    rows = Indices(np.array([4, 3, -1, 0, 4]), 5, OutOfBounds.NULLIFY)
    texts = len("xx") * 2 + len("ß".encode()) + len("a")
    structs = 8 * 4 + len("yy") * 2 + len("x")
    assert BACKEND.gathered_bytes(frame, rows) == (texts, structs, 0, 0)
    every = BACKEND.from_arrow(pa.table(COLUMNS))
    for wanted in MAPS.values():
        sizes = BACKEND.gathered_bytes(every, wanted)
        assert len(sizes) == len(COLUMNS)
        for size, column in zip(sizes, COLUMNS.values(), strict=True):
            if fixed_width(column.type) is not None:
                assert size == 0
            assert size >= 0


def test_null_rows_with_data_beneath_them_count_nothing() -> None:
    full = pa.array(["aaaa", "bb"])
    hidden = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x02"), *full.buffers()[1:]])
    frame = BACKEND.from_arrow(pa.table({"t": hidden}))
    assert BACKEND.gathered_bytes(frame, Indices(np.array([0, 1, 0]), 3)) == (2,)


@pytest.mark.parametrize("nullify", [False, True], ids=["never", "nullify"])
def test_wide_rows_through_a_row_store(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, nullify: bool
) -> None:
    monkeypatch.setattr(rowstore, "FEWEST_BYTES", 1)
    rows = 3000
    table = pa.table(
        {
            "a": pa.array(rng.integers(0, 100, rows), mask=rng.random(rows) < 0.1),
            "b": rng.integers(-128, 127, rows).astype(np.int8),
            "s": [f"text {i}" for i in range(rows)],
            "c": pa.array([D(int(v)) for v in rng.integers(0, 10**12, rows)], pa.decimal128(20, 0)),
            "d": rng.random(rows).astype(np.float32),
            "e": rng.random(rows) < 0.5,
            "f": pa.array([b"%03d" % (i % 1000) for i in range(rows)], pa.binary(3)),
        }
    )
    frame = BACKEND.from_arrow(table)
    used = []
    for _ in range(4):
        indices = rng.integers(-1 if nullify else 0, rows, 2000)
        rule = OutOfBounds.NULLIFY if nullify else OutOfBounds.NEVER
        result = BACKEND.to_arrow(BACKEND.gather(frame, Indices(indices, len(indices), rule)), table.schema)
        result.validate(full=True)
        wanted = table.take(pa.array(indices, mask=indices < 0))
        assert pa.Table.from_batches([result]).equals(wanted)
        used.append(frame.store._store is not None)
    assert used == [False, False, True, True]


def test_chunks_and_unaligned_buffers() -> None:
    chunked = pa.table({"a": pa.chunked_array([[1, None], [], [3]]), "s": pa.chunked_array([["x"], [], ["y", None]])})
    frame = BACKEND.from_arrow(chunked)
    assert BACKEND.to_arrow(frame, chunked.schema).to_pylist() == chunked.to_pylist()

    shifted = np.zeros(8 * 4 + 1, np.uint8)
    shifted[1:].view("V32")[0] = np.arange(4).tobytes()
    odd = pa.Array.from_buffers(pa.int64(), 4, [None, pa.py_buffer(shifted).slice(1)])
    frame = BACKEND.from_arrow(pa.table({"a": odd}))
    assert frame.columns[0].buffers()[1].address % 8 == 0
    assert BACKEND.gather(frame, Indices(np.array([3, 0]), 2)).columns[0].to_pylist() == [3, 0]


def test_dictionaries_of_several_chunks_are_unified() -> None:
    chunks = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "a"]).dictionary_encode()]
    frame = BACKEND.from_arrow(pa.table({"d": pa.chunked_array(chunks)}))
    assert BACKEND.gather(frame, Indices(np.array([3, 2, 1]), 3)).columns[0].to_pylist() == ["a", "c", "b"]


def test_to_arrow_gives_the_schema_asked_for() -> None:
    frame = Frame((pa.array(["x"], pa.large_string()), pa.array(["y"]).dictionary_encode(), pa.array([1])), 1)
    schema = pa.schema(
        [pa.field("s", pa.string(), nullable=False), pa.field("d", pa.string()), pa.field("n", pa.int64())],
        metadata={"k": "v"},
    )
    batch = BACKEND.to_arrow(frame, schema)
    assert batch.schema.equals(schema, check_metadata=True)
    assert batch.to_pylist() == [{"s": "x", "d": "y", "n": 1}]
