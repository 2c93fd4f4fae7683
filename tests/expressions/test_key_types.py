"""The common type of two join keys."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gpujoin.errors import KeyTypeError
from gpujoin.model.sqltext import show_type
from gpujoin.plan.key_types import key_type

COMMON = [
    (pa.int8(), pa.int64(), pa.int64()),
    (pa.uint8(), pa.int8(), pa.int16()),
    (pa.uint8(), pa.int32(), pa.int32()),
    (pa.uint64(), pa.int8(), pa.decimal128(20, 0)),
    (pa.uint32(), pa.uint64(), pa.uint64()),
    (pa.int64(), pa.float32(), pa.float64()),
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.float32(), pa.float32(), pa.float32()),
    (pa.int64(), pa.decimal128(9, 2), pa.decimal128(22, 2)),
    (pa.decimal128(38, 38), pa.decimal128(38, 0), pa.decimal256(76, 38)),
    (pa.decimal128(9, 2), pa.decimal128(18, 6), pa.decimal128(18, 6)),
    (pa.date32(), pa.date64(), pa.date32()),
    (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ns")),
    (pa.timestamp("us", "UTC"), pa.timestamp("ms", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
    (pa.string(), pa.string(), pa.string()),
    (pa.string(), pa.string_view(), pa.large_string()),
    (pa.binary(), pa.binary(4), pa.large_binary()),
    (pa.null(), pa.string(), pa.string()),
    (pa.int32(), pa.null(), pa.int32()),
    (pa.null(), pa.null(), pa.null()),
    (pa.dictionary(pa.int8(), pa.int16()), pa.int32(), pa.int32()),
    (pa.run_end_encoded(pa.int32(), pa.string()), pa.string(), pa.string()),
    (
        pa.struct([("a", pa.int8()), ("b", pa.dictionary(pa.int8(), pa.string()))]),
        pa.struct([("x", pa.int16()), ("b", pa.null())]),
        pa.struct([("a", pa.int16()), ("b", pa.string())]),
    ),
]


@pytest.mark.parametrize(("one", "two", "expected"), COMMON, ids=str)
def test_common_type(one: pa.DataType, two: pa.DataType, expected: pa.DataType) -> None:
    assert key_type(one, two) == expected
    mirrored = key_type(two, one)
    if pa.types.is_timestamp(expected):
        assert mirrored.unit == expected.unit
    elif not pa.types.is_struct(expected):
        assert mirrored == expected


INCOMPARABLE = [
    (pa.string(), pa.int32(), "cast one side"),
    (pa.string(), pa.binary(), "cast one side"),
    (pa.bool_(), pa.int8(), "cast one side"),
    (pa.date32(), pa.timestamp("us"), "cast one side"),
    (pa.decimal128(9, 2), pa.float64(), "cast one side"),
    (pa.decimal256(76, 0), pa.decimal128(3, 3), "cast one side"),
    (pa.timestamp("us"), pa.timestamp("us", "UTC"), "time zone"),
    (pa.list_(pa.int8()), pa.list_(pa.int8()), "cannot be joined on"),
    (pa.map_(pa.string(), pa.int8()), pa.null(), "cannot be joined on"),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8()), ("b", pa.int8())]), "cast one side"),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())]), "cast one side"),
]


@pytest.mark.parametrize(("one", "two", "why"), INCOMPARABLE, ids=str)
def test_incomparable_types(one: pa.DataType, two: pa.DataType, why: str) -> None:
    for a, b in ((one, two), (two, one)):
        with pytest.raises(KeyTypeError, match=why) as caught:
            key_type(a, b)
        assert any(show_type(dtype) in str(caught.value) for dtype in (one, two))
