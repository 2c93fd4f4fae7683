"""Nested values as bytes: made values again, and ordered as the values are."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
import pytest

from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.nestedbytes import from_bytes, to_bytes
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import Call, Expression, Function, call, left
from gpujoin.plan.resolve import resolve_value
from gpujoin.testing import Cell, cells
from tests.cells import sort_key

ROWS = 3_000
LEAVES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [None, False, True],
    pa.int8(): [None, -128, -1, 0, 127],
    pa.int16(): [None, -(2**15), 0, 255, 256],
    pa.int32(): [None, -(2**31), -1, 0, 2**31 - 1],
    pa.int64(): [None, -(2**63), -256, 0, 255, 2**63 - 1],
    pa.float32(): [None, -math.inf, -0.0, 0.0, 1.5, math.nan],
    pa.float64(): [None, -math.inf, -1.5, -0.0, 0.0, 5e-324, math.inf, math.nan],
    pa.decimal128(9, 2): [None, "-9999999.99", "0.00", "1.10"],
    pa.decimal128(38, 4): [None, "-" + "9" * 34 + ".9999", "-0.0001", "0.0001", "9" * 34 + ".9999"],
    pa.string(): [None, "", "\0", "\0\0", "a", "a\0", "a\0b", "aa", "ü", "x" * 300],
    pa.binary(): [None, b"", b"\0", b"\0\xff", b"\xff", b"\xff\xff", b"a\0", b"\1", b"\2"],
    pa.date32(): [None, -(2**31), 0, 2**31 - 1],
    pa.timestamp("us", "UTC"): [None, -(2**63), -1, 0, 2**63 - 1],
    pa.null(): [None],
}


def leaf(dtype: pa.DataType, length: int, rng: np.random.Generator) -> pa.Array:
    values = LEAVES[dtype]
    if pat.is_decimal(dtype):
        made = pa.array(values).cast(dtype)
    elif pat.is_temporal(dtype):
        made = pa.array(values, pa.int32() if pat.is_date32(dtype) else pa.int64()).cast(dtype)
    else:
        made = pa.array(values, dtype)
    return made.take(pa.array(rng.integers(0, len(made), length)))


def values(dtype: pa.DataType, length: int, rng: np.random.Generator) -> pa.Array:
    """Values of a type, with nulls at every depth, and elements and fields under nulls."""
    mask = pa.array(rng.random(length) < 0.15)
    if pat.is_struct(dtype):
        return pa.StructArray.from_arrays([values(f.type, length, rng) for f in dtype], fields=list(dtype), mask=mask)
    if pat.is_list(dtype) or pat.is_map(dtype):
        offsets = pa.array([0, *np.cumsum(rng.choice([0, 0, 1, 2, 3, 9], length))], pa.int32())
        total = offsets[-1].as_py()
        if pat.is_map(dtype):
            keys = values(dtype.key_type, total, rng).drop_null()
            keys = keys.take(pa.array(rng.integers(0, len(keys), total)))
            return pa.MapArray.from_arrays(offsets, keys, values(dtype.item_type, total, rng), dtype, mask=mask)
        return pa.ListArray.from_arrays(offsets, values(dtype.value_type, total, rng), dtype, mask=mask)
    return leaf(dtype, length, rng)


def struct(*types: pa.DataType) -> pa.DataType:
    return pa.struct([(f"f{n}", dtype) for n, dtype in enumerate(types)])


_PAIR = struct(pa.timestamp("us", "UTC"), pa.float64())
TYPES = {
    "fixed": _PAIR,
    "every type": struct(*LEAVES),
    "texts": struct(pa.string(), pa.binary(), pa.string()),
    "text between": struct(pa.int32(), pa.string(), pa.decimal128(38, 4)),
    "nested": struct(pa.int8(), struct(pa.float64(), struct(pa.string(), pa.bool_()))),
    "lists": pa.list_(pa.float64()),
    "lists of texts": pa.list_(pa.string()),
    "lists of structs": pa.list_(struct(pa.int32(), pa.string())),
    "lists of fixed structs": pa.list_(struct(pa.int32(), pa.bool_())),
    "lists of lists": pa.list_(pa.list_(pa.int32())),
    "lists of lists of texts": pa.list_(pa.list_(pa.string())),
    "lists in structs": struct(pa.list_(pa.int64()), pa.string(), pa.list_(struct(pa.list_(pa.string()), pa.date32()))),
    "lists of nulls": pa.list_(pa.null()),
    "maps": pa.map_(pa.string(), pa.float64()),
    "maps of structs": pa.map_(pa.int32(), struct(pa.string(), pa.map_(pa.string(), pa.list_(pa.int32())))),
}
COMPARED = [name for name in TYPES if "map" not in name]


def _written(array: pa.Array, function: Function) -> pa.Array:
    batch = pa.RecordBatch.from_arrays([array], ["x"])
    node = resolve_value(call(function, left("x")), batch.schema, pa.schema([]))
    assert is_supported(node)
    return evaluate_column(node, batch, pa.record_batch([], pa.schema([])), batch.num_rows)


@pytest.mark.parametrize("name", TYPES)
def test_values_are_made_again(name: str, seed: int) -> None:
    array = values(TYPES[name], ROWS, np.random.default_rng(seed)).slice(11)
    written = _written(array, Function.VALUE_BYTES)
    again = from_bytes(written.cast(pa.large_binary()), array.type)
    again.validate(full=True)
    assert again.type == array.type
    assert list(map(repr, cells(again))) == list(map(repr, cells(array)))


@pytest.mark.parametrize("name", COMPARED)
def test_values_are_made_of_bytes_that_are_ordered(name: str, seed: int) -> None:
    array = values(TYPES[name], ROWS, np.random.default_rng(seed)).slice(11)
    written = _written(array, Function.RANKED_BYTES)
    again = from_bytes(written.cast(pa.large_binary()), array.type)
    again.validate(full=True)
    assert list(map(repr, cells(again))) == list(map(repr, cells(array)))
    ordered = sorted(zip(written.drop_null().to_pylist(), map(sort_key, cells(array.drop_null())), strict=True))
    assert all(key <= above for (_, key), (_, above) in itertools.pairwise(ordered))


@pytest.mark.parametrize("name", COMPARED)
def test_bytes_have_the_order_of_the_values(name: str, seed: int) -> None:
    array = values(TYPES[name], ROWS, np.random.default_rng(seed)).slice(5).drop_null()
    written = _written(array, Function.ORDER_BYTES)
    keys = list(map(sort_key, cells(array)))
    ordered = sorted(zip(written.to_pylist(), keys, strict=True), key=lambda pair: pair[0])
    for (data, key), (after, above) in itertools.pairwise(ordered):
        assert (data == after) == (key == above)
        assert key <= above


def _same(node: Expression, batch: pa.RecordBatch) -> list[Cell]:
    return cells(evaluate_column(node, batch, pa.record_batch([], pa.schema([])), batch.num_rows))


def test_texts_that_are_no_utf8() -> None:
    texts = pa.array([b"\xff", b"a\xff\0", b"\xc3"]).view(pa.string())
    array = pa.StructArray.from_arrays([texts, pa.array([1, 2, 3])], ["s", "i"])
    again = from_bytes(to_bytes(array, compared=True), array.type)
    assert cells(again) == cells(array)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([200, 3, None], pa.uint8()), pa.array([1 << 63, 3, 0], pa.uint64()),
        pa.array(["b", "a", None]).dictionary_encode(), pa.array([1.5, -2.0, None], pa.float16()),
        pa.array(["1.5", "-2.0", None]).cast(pa.decimal64(5, 1)), pa.array(["b", "a", None], pa.string_view()),
        pa.array([b"b", b"a", None], pa.binary(1)),
    ],
    ids=lambda array: str(array.type),
)  # fmt: skip
def test_other_layouts_are_ordered(array: pa.Array) -> None:
    structs = pa.StructArray.from_arrays([array], ["x"])
    first, second, third = to_bytes(structs, compared=True).to_pylist()
    assert third < second < first


@pytest.mark.parametrize("length", [1, 70_000])
@pytest.mark.parametrize("dtype", [pa.int32(), pa.string()], ids=str)
def test_long_lists(dtype: pa.DataType, length: int) -> None:
    count = min(length, 3_000) if pat.is_string(dtype) else length
    array = pa.array([list(range(count)), [], None, [None] * count, [7]], pa.list_(pa.int32())).cast(pa.list_(dtype))
    again = from_bytes(to_bytes(array, compared=False), array.type)
    assert again.equals(array)


@pytest.mark.parametrize("name", TYPES)
def test_no_rows_and_nulls_alone(name: str) -> None:
    for array in (pa.array([], TYPES[name]), pa.array([None, None], TYPES[name])):
        written = to_bytes(array, compared=False)
        assert from_bytes(written, array.type).equals(array)


def test_a_call_gives_back_values_of_its_type(seed: int) -> None:
    array = values(_PAIR, 100, np.random.default_rng(seed))
    batch = pa.RecordBatch.from_arrays([to_bytes(array, compared=False).cast(pa.binary())], ["x"])
    column = resolve_value(left("x"), batch.schema, pa.schema([]))
    node = Call(function=Function.OF_BYTES, arguments=(column,), type=_PAIR)
    assert is_supported(node)
    assert list(map(repr, _same(node, batch))) == list(map(repr, cells(array)))
