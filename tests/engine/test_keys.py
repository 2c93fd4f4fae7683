"""Key codes: equal exactly when Spark says the keys are equal."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.engine.keys import KeyCodec, rows_matching_nothing
from gpujoin.errors import JoinSpecError, KeyTypeError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality

ALLOWED = {pa.int32(), pa.int64(), pa.large_binary()}


def codes(left: pa.Array, right: pa.Array, nulls: NullEquality) -> tuple[list[Any], list[Any]]:
    tables = pa.table({"k": left}), pa.table({"k": right})
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0, nulls),))
    codec = KeyCodec.from_spec(spec, tables[0].schema, tables[1].schema)
    coded = [codec.codes(table, side) for table, side in zip(tables, Side, strict=True)]
    assert coded[0].schema.types == coded[1].schema.types
    assert set(coded[0].schema.types) <= ALLOWED
    return tuple(list(zip(*(c.to_pylist() for c in t.columns), strict=True)) for t in coded)  # type: ignore[return-value]


def equal(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return None not in a and None not in b and a == b


def quiet_nan(payload: int) -> float:
    return float(np.array([0x7FF8000000000000 | payload], np.uint64).view(np.float64)[0])


SAME = [
    (pa.array([-0.0, 0.0]), pa.array([0.0, -0.0])),
    (pa.array([float("nan"), quiet_nan(7)]), pa.array([quiet_nan(99), float("-nan")])),
    (pa.array([-0.0, float("nan")], pa.float32()), pa.array([0.0, float("nan")], pa.float64())),
    (pa.array([1, -1, 127], pa.int8()), pa.array([1, -1, 127], pa.int64())),
    (pa.array([2**63, 2**64 - 1], pa.uint64()), pa.array([2**63, 2**64 - 1], pa.uint64())),
    (pa.array([Decimal("1.50"), Decimal("-3.00")], pa.decimal128(5, 2)), pa.array([Decimal("1.5"), Decimal(-3)])),
    (pa.array([Decimal("9" * 38)], pa.decimal128(38, 0)), pa.array([Decimal("9" * 38)], pa.decimal128(38, 0))),
    (pa.array([12, -7], pa.int32()), pa.array([Decimal("12.00"), Decimal("-7.00")], pa.decimal128(10, 2))),
    (pa.array(["a", "", "é"]), pa.array(["a", "", "é"], pa.large_string())),
    (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "b"], pa.string_view())),
    (pa.array([b"\0", b""], pa.binary()), pa.array([b"\0", b""], pa.large_binary())),
    (pa.array([True, False]), pa.array([True, False])),
    (pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]), pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)])),
    (pa.array([1_000_000], pa.timestamp("us", "UTC")), pa.array([1_000_000_000], pa.timestamp("ns", "Asia/Tokyo"))),
    (pa.array([{"x": 1, "y": None}]), pa.array([{"x": 1, "y": None}])),
    (pa.array([{"f": -0.0}, {"f": float("nan")}]), pa.array([{"f": 0.0}, {"f": quiet_nan(3)}])),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), SAME, ids=lambda a: str(a.type))
@pytest.mark.parametrize("nulls", NullEquality, ids=lambda n: n.value)
def test_equal_keys_have_equal_codes(left: pa.Array, right: pa.Array, nulls: NullEquality) -> None:
    lefts, rights = codes(left, right, nulls)
    assert len(lefts) == len(left) > 0
    assert all(equal(a, b) for a, b in zip(lefts, rights, strict=True))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([None, 0, 1], pa.int32()),
        pa.array([None, 0, -1], pa.int64()),
        pa.array([None, 0.0, 1.0]),
        pa.array([None, "", "x"]),
        pa.array([None, Decimal(0), Decimal(1)], pa.decimal128(38, 0)),
        pa.array([None, False, True]),
        pa.array([None, {"x": None}, {"x": 0}]),
        pa.array([None, dt.date(1970, 1, 1), dt.date(1970, 1, 2)]),
    ],
    ids=lambda a: str(a.type),
)
def test_null_is_nothing_or_itself(values: pa.Array) -> None:
    lefts, rights = codes(values, values, NullEquality.UNEQUAL)
    assert [equal(lefts[0], other) for other in rights] == [False, False, False]
    lefts, rights = codes(values, values, NullEquality.EQUAL)
    result = [[equal(a, b) for b in rights] for a in lefts]
    assert result == np.eye(3, dtype=bool).tolist()


def test_the_null_type_is_all_null() -> None:
    nothing = pa.nulls(2)
    lefts, _ = codes(nothing, pa.array([1, 2]), NullEquality.UNEQUAL)
    assert all(None in code for code in lefts)
    lefts, rights = codes(nothing, pa.array([None, 0], pa.int64()), NullEquality.EQUAL)
    assert equal(lefts[0], rights[0])
    assert not equal(lefts[0], rights[1])


def test_values_below_a_null_struct_do_not_count() -> None:
    fields = [pa.array([1, 2, 1])]
    structs = pa.StructArray.from_arrays(fields, ["x"], mask=pa.array([True, True, False]))
    lefts, rights = codes(structs, structs, NullEquality.EQUAL)
    assert equal(lefts[0], rights[1])
    assert not equal(lefts[0], rights[2])


def test_slices_are_coded_as_what_they_show() -> None:
    for values in (
        pa.array([None, 1.5, None, -0.0]),
        pa.array([None, Decimal(5), None, Decimal(7)]),
        pa.array(["a", None, "b", "c"]),
    ):
        whole, _ = codes(values, values, NullEquality.EQUAL)
        for start in range(4):
            part, _ = codes(values.slice(start), values, NullEquality.EQUAL)
            assert part == whole[start:]


def test_many_chunks_become_one_code_column() -> None:
    table = pa.table({"k": pa.chunked_array([["a"], [], ["b", None]], pa.string())})
    codec = KeyCodec.from_spec(JoinSpec(JoinType.INNER, (KeyPair(0, 0),)), table.schema, table.schema)
    assert codec.codes(table, Side.LEFT).column(0).to_pylist() == [b"a", b"b", None]
    mask = codec.null_mask(table, Side.LEFT)
    assert mask is not None
    assert mask.tolist() == [False, False, True]
    nothing = rows_matching_nothing(codec.codes(table, Side.LEFT))
    assert nothing is not None
    assert nothing.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("wide", "common"), [(pa.large_string(), pa.string()), (pa.large_binary(), pa.binary())], ids=str
)
def test_more_than_two_gibibytes_of_text_are_coded(wide: pa.DataType, common: pa.DataType) -> None:
    """As frames come back to the host; the zeros of this text are never touched."""
    offsets = pa.py_buffer(np.array([1 << 31, (1 << 31) + 2], np.int64))
    texts = pa.Array.from_buffers(wide, 1, [None, offsets, pa.py_buffer(np.zeros((1 << 31) + 2, np.uint8))])
    codec = KeyCodec(((0, 0),), (common,), (NullEquality.UNEQUAL,))
    assert codec.codes(pa.table({"k": texts}), Side.LEFT).column(0).to_pylist() == [b"\0\0"]


def test_incomparable_keys_are_refused_by_name() -> None:
    left, right = pa.schema([("a", pa.string())]), pa.schema([("b", pa.int32())])
    with pytest.raises(KeyTypeError, match=r"key 1, left 'a' and right 'b'"):
        KeyCodec.from_spec(JoinSpec(JoinType.INNER, (KeyPair(0, 0),)), left, right)


def test_key_positions_outside_the_schema_are_refused() -> None:
    schema = pa.schema([("a", pa.int32())])
    with pytest.raises(JoinSpecError, match="right column 3 of 1 does not exist"):
        KeyCodec.from_spec(JoinSpec(JoinType.INNER, (KeyPair(0, 3),)), schema, schema)
