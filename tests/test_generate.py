"""Generated data is repeatable, valid, and full of what it promises."""

from __future__ import annotations

import math
from collections import Counter

import pyarrow as pa
import pytest

from gpujoin.testing import assert_same_rows, cells, float_bits
from tests.cells import sort_key
from tests.generate import KEY_TYPES, SPARK_TYPES, Generator, KeyShape, Mix, from_cells


@pytest.mark.parametrize("dtype", SPARK_TYPES.values(), ids=SPARK_TYPES)
def test_arrays_are_valid_repeatable_and_mixed(dtype: pa.DataType, seed: int) -> None:
    array = Generator(seed).array(dtype, 300)
    array.validate(full=True)
    assert array.type == dtype
    assert len(array) == 300
    again = Generator(seed).array(dtype, 300)
    assert [repr(c) for c in cells(again)] == [repr(c) for c in cells(array)]
    if pa.types.is_null(dtype):
        return
    assert 0 < array.null_count < 300
    assert len({repr(c) for c in cells(array)}) > 1


@pytest.mark.parametrize("dtype", SPARK_TYPES.values(), ids=SPARK_TYPES)
def test_cells_and_back(dtype: pa.DataType, seed: int) -> None:
    array = Generator(seed).array(dtype, 100)
    assert_same_rows(pa.table({"v": from_cells(cells(array), dtype)}), pa.table({"v": array}), context=f"seed {seed}")


def test_cells_of_slices_and_chunks(seed: int) -> None:
    for name, dtype in SPARK_TYPES.items():
        array = Generator(seed).array(dtype, 40)
        expected = [repr(c) for c in cells(array)]
        assert [repr(c) for c in cells(array.slice(7, 20))] == expected[7:27], name
        assert [repr(c) for c in cells(pa.chunked_array([array.slice(0, 9), array.slice(9)]))] == expected, name


def test_cells_of_encoded_columns() -> None:
    runs = pa.RunEndEncodedArray.from_arrays([2, 5], ["a", None])
    assert cells(runs) == ["a", "a", None, None, None]
    assert cells(runs.slice(1, 3)) == ["a", None, None]
    assert cells(pa.array(["a", None, "b"], pa.string_view())) == ["a", None, "b"]


def test_floats_hold_every_special_value(seed: int) -> None:
    values = cells(Generator(seed).array(pa.float64(), 2000, nullable=False))
    assert {0.0, math.inf, -math.inf} <= set(values)
    assert {math.copysign(1, v) for v in values if v == 0} == {1.0, -1.0}
    assert len({float_bits(v) for v in values if math.isnan(v)}) > 1


def test_texts_hold_every_special_value(seed: int) -> None:
    values = set(cells(Generator(seed).array(pa.string(), 3000)))
    assert {None, "", "\x00", "a\u0308", "\U0001f600"} <= values
    assert max(len(v) for v in values if v) >= 300


def test_nullability_of_fields_is_heeded(seed: int) -> None:
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int32())])
    table = Generator(seed, Mix(nulls=0.5)).table(schema, 100)
    assert table["a"].null_count == 0
    assert table["b"].null_count > 0


def _keys(array: pa.Array) -> list[str]:
    return [repr(sort_key(c)) for c in cells(array) if c is not None]


@pytest.mark.few
@pytest.mark.parametrize("dtype", KEY_TYPES.values(), ids=KEY_TYPES)
@pytest.mark.parametrize("shape", KeyShape, ids=lambda s: s.value)
def test_keys_have_their_shape(dtype: pa.DataType, shape: KeyShape, seed: int) -> None:
    left, right = Generator(seed).keys(dtype, 90, shape, nulls=0.1)
    left.validate(full=True)
    right.validate(full=True)
    assert left.type == right.type == dtype
    mine, theirs = _keys(left), _keys(right)
    if shape is KeyShape.ALL_NULL or pa.types.is_null(dtype):
        assert mine == theirs == []
        return
    if shape is KeyShape.DISJOINT:
        assert mine
        assert theirs
        assert not set(mine) & set(theirs)
    else:
        assert set(mine) & set(theirs)
    if shape is KeyShape.UNIQUE:
        assert max(Counter(mine).values()) == 1
    if shape is KeyShape.HOT:
        assert max(Counter(mine).values()) > 0.6 * len(mine)
