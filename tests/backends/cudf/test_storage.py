"""Every Arrow type to its device form and back, sliced and not, and as libcudf alters it on the way."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pat
import pytest

from gpujoin.backends.cudf.storage import copyable, restore, storage_type, store
from gpujoin.testing import cells
from tests.backends.cudf.libraries import uploads
from tests.generate import SPARK_TYPES, Generator

BEYOND_SPARK: dict[str, pa.Array] = {
    "uint64": pa.array([2**64 - 1, None], pa.uint64()),
    "date64": pa.array([86_400_000, None], pa.int64()).cast(pa.date64()),
    "timestamp_ns": pa.array([1, None, -5], pa.timestamp("ns", "Europe/Paris")),
    "duration_s": pa.array([1, None], pa.duration("s")),
    "time32": pa.array([1, None], pa.time32("ms")),
    "decimal32": pa.array([Decimal("1.2"), None], pa.decimal32(4, 1)),
    "decimal64": pa.array([Decimal("-1.2"), None], pa.decimal64(14, 1)),
    "string_view": pa.array(["a", None, "a text longer than twelve bytes"], pa.string_view()),
    "binary_view": pa.array([b"\xff", None, b""], pa.binary_view()),
    "large_list": pa.array([[1, 2], None, [None]], pa.large_list(pa.int32())),
    "large_list_of_dates": pa.array([[dt.date(2020, 1, 1)], None], pa.large_list(pa.date32())),
    "fixed_16": pa.array([b"x" * 16, None], pa.binary(16)),
    "fixed_4": pa.array([b"abcd", None], pa.binary(4)),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"y" * 16, None], pa.binary(16))),
}
NEVER = (
    pa.decimal256(40, 0), pa.binary(3), pa.list_(pa.int32(), 2), pa.struct([]), pa.list_view(pa.int32()),
    pa.run_end_encoded(pa.int32(), pa.int64()), pa.dense_union([pa.field("a", pa.int32())]),
    pa.list_(pa.dictionary(pa.int32(), pa.string())), pa.struct([("a", pa.decimal256(50, 1))]),
    pa.list_(pa.string_view()), pa.map_(pa.string(), pa.struct([])),
)  # fmt: skip


def as_libcudf_returns(array: pa.Array) -> pa.Array:
    """The storage array as it would come back: no names, offsets of any width, parents' nulls pushed to children."""
    dtype = array.type
    if pat.is_struct(dtype):
        children = []
        for i in range(dtype.num_fields):
            child = as_libcudf_returns(array.field(i))
            if array.null_count:
                child = pa.compute.if_else(array.is_valid(), child, None)
            children.append(child)
        fields = [pa.field("", child.type) for child in children]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pat.is_list(dtype):
        child = as_libcudf_returns(array.flatten())
        offsets, total = [0], 0
        for length in pa.compute.list_value_length(array).to_pylist():
            total += length or 0
            offsets.append(total)
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()),
            child,
            pa.list_(pa.field("element", child.type)),
            mask=array.is_null(),
        )
    if pat.is_string(dtype):
        return array.cast(pa.large_string())
    if pat.is_large_string(dtype):
        return array.cast(pa.string())
    return array


def round_trip(array: pa.Array, *, altered: bool) -> pa.Array:
    stored = store(array)
    assert stored.type == storage_type(array.type)
    if altered:
        stored = as_libcudf_returns(stored)
    dictionary = array.dictionary if pat.is_dictionary(array.type) else None
    return restore(stored, array.type, dictionary)


def check(array: pa.Array) -> None:
    for part in (array, array.slice(1), array.slice(1, 1), array.slice(0, 0)):
        for altered in (False, True):
            back = round_trip(part, altered=altered)
            back.validate(full=True)
            assert back.type == part.type
            assert cells(back) == cells(part) or str(back) == str(part)


@pytest.mark.parametrize("name", sorted(set(SPARK_TYPES) - {"empty_struct"}))
def test_every_type_of_spark(name: str, seed: int) -> None:
    dtype = SPARK_TYPES[name]
    assert storage_type(dtype) is not None
    check(Generator(seed).array(dtype, 40))
    check(pa.nulls(3, dtype))


def test_a_struct_without_fields_stays_on_the_host() -> None:
    assert storage_type(SPARK_TYPES["empty_struct"]) is None


@pytest.mark.parametrize("name", sorted(BEYOND_SPARK))
def test_types_beyond_spark(name: str) -> None:
    check(BEYOND_SPARK[name])


@pytest.mark.parametrize("dtype", NEVER, ids=str)
def test_types_left_on_the_host(dtype: pa.DataType) -> None:
    assert storage_type(dtype) is None


def test_storage_types_are_ones_that_libcudf_reads() -> None:
    def leaves(dtype: pa.DataType) -> list[pa.DataType]:
        if pat.is_list(dtype):
            return leaves(dtype.value_type)
        return [leaf for f in dtype for leaf in leaves(f.type)] if pat.is_struct(dtype) else [dtype]

    readable: set[Any] = {
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.decimal128(38, 0),
    }  # fmt: skip
    for dtype in [*SPARK_TYPES.values(), *(a.type for a in BEYOND_SPARK.values())]:
        stored = storage_type(dtype)
        if stored is not None:
            assert set(leaves(stored)) <= readable, dtype


BITS: dict[str, pa.Array] = {
    "bool": pa.array([True, False, True] * 400),
    "bool with nulls": pa.array([True, None, False] * 400),
    "number with nulls": pa.array([1, None, 3] * 400),
    "text with nulls": pa.array(["a", None, ""] * 400),
    "list of bools": pa.array([[True], [], [False, None, True]] * 400),
    "struct of bools": pa.array([{"b": True}, None, {"b": None}] * 400),
}


@pytest.mark.parametrize("name", BITS)
def test_slices_that_begin_within_a_byte_are_copied_to_the_device(name: str) -> None:
    refused = 0
    for start in range(10):
        for rows in (1, 8, 26, 30, 32, 33, 64, 505, 511, 512, 513):
            array = BITS[name].slice(start, rows)
            chunks = pa.chunked_array([array.slice(0, rows // 3), array.slice(rows // 3)])
            for table in (pa.table({"x": array}), pa.table({"x": array, "y": chunks})):
                try:
                    uploads.check(table)
                except RuntimeError:
                    refused += 1
                given = copyable(table)
                uploads.check(given)
                assert given.equals(table)
    assert refused > 5
    empty = pa.table({"x": BITS[name].slice(3, 0)})
    assert copyable(empty).equals(empty)
    first = copyable(pa.table({"x": BITS[name]}))["x"].chunk(0)
    assert [None if b is None else b.address for b in first.buffers()] == [
        None if b is None else b.address for b in BITS[name].buffers()
    ], "an array that can be copied as it is, was copied"


def test_fields_that_cannot_be_null_stay_so_below_null_structs() -> None:
    dtype = pa.struct([pa.field("v", pa.binary(), nullable=False), pa.field("n", pa.int32(), nullable=False)])
    array = pa.StructArray.from_arrays(
        [pa.array([b"1", b"2", b""]), pa.array([1, 2, 3], pa.int32())],
        fields=list(dtype),
        mask=pa.array([False, True, False]),
    )
    back = round_trip(array, altered=True)
    assert back.type == dtype
    assert back.to_pylist() == array.to_pylist()
    assert back.field(0).null_count == back.field(1).null_count == 0


def test_nothing_is_copied_for_flat_types() -> None:
    array = pa.array([1, 2, None], pa.timestamp("us", "UTC"))
    text = pa.array([b"a", b"b"])
    assert store(array).buffers()[1].address == array.buffers()[1].address
    assert store(text).buffers()[2].address == text.buffers()[2].address
