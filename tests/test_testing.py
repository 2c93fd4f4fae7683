"""The comparison must fail on every corruption, and on nothing else."""

from __future__ import annotations

import doctest
import math
import random
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

import gpujoin.testing
from gpujoin.testing import Zeros, assert_same_rows
from tests.generate import SPARK_TYPES, Generator, from_cells

TABLE = pa.table(
    {
        "i": pa.array([1, 2, 3, 3, None], pa.int32()),
        "j": pa.array([10, 20, 30, 30, 50], pa.int32()),
        "f": [0.0, math.nan, 1.5, 1.5, None],
        "s": ["", "a", None, None, "ä"],
        "l": pa.array([[], [None], None, None, [1]], pa.list_(pa.int64())),
        "t": pa.array([{"x": None}, None, {"x": 1}, {"x": 1}, {"x": 2}], pa.struct([("x", pa.int8())])),
    }
)


def replaced(column: str, row: int, value: object) -> pa.Table:
    values = TABLE.column(column).to_pylist()
    values[row] = value
    index = TABLE.schema.get_field_index(column)
    return TABLE.set_column(index, TABLE.schema.field(index), [pa.array(values, TABLE.schema.field(index).type)])


CORRUPTIONS: dict[str, Callable[[], pa.Table]] = {
    "drop the first row": lambda: TABLE.slice(1),
    "drop the last row": lambda: TABLE.slice(0, 4),
    "drop one of two equal rows": lambda: TABLE.take([0, 1, 2, 4]),
    "duplicate a row": lambda: TABLE.take([0, 0, 1, 2, 3, 4]),
    "duplicate one row in place of another": lambda: TABLE.take([0, 0, 2, 3, 4]),
    "equal rows in other numbers": lambda: TABLE.take([0, 1, 1, 3, 4]),
    "empty": lambda: TABLE.slice(0, 0),
    "change an integer": lambda: replaced("i", 0, 7),
    "change a text": lambda: replaced("s", 1, "b"),
    "null for a value": lambda: replaced("i", 1, None),
    "a value for null": lambda: replaced("i", 4, 0),
    "empty text for null": lambda: replaced("s", 2, ""),
    "null for an empty text": lambda: replaced("s", 0, None),
    "a number for NaN": lambda: replaced("f", 1, 0.0),
    "null for NaN": lambda: replaced("f", 1, None),
    "NaN for null": lambda: replaced("f", 4, math.nan),
    "negative zero": lambda: replaced("f", 0, -0.0),
    "null for an empty list": lambda: replaced("l", 0, None),
    "an empty list for one of null": lambda: replaced("l", 1, []),
    "null for a struct of null": lambda: replaced("t", 0, None),
    "a struct of null for null": lambda: replaced("t", 1, {"x": None}),
    "decomposed unicode": lambda: replaced("s", 4, "a\u0308"),
    "swap the values of two columns": lambda: pa.table(
        {n: TABLE.column({"i": "j", "j": "i"}.get(n, n)) for n in TABLE.schema.names}
    ),
    "swap two columns": lambda: TABLE.select(["j", "i", "f", "s", "l", "t"]),
    "rename a column": lambda: TABLE.rename_columns(["i", "J", "f", "s", "l", "t"]),
    "lose a column": lambda: TABLE.drop_columns(["t"]),
    "another integer width": lambda: TABLE.set_column(0, "i", TABLE.column("i").cast(pa.int64())),
    "values moved between rows": lambda: TABLE.set_column(0, "i", [pa.array([2, 1, 3, 3, None], pa.int32())]),
}


@pytest.mark.parametrize("corruption", CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_every_corruption_is_found_both_ways(corruption: Callable[[], pa.Table]) -> None:
    bad = corruption()
    with pytest.raises(AssertionError):
        assert_same_rows(bad, TABLE)
    with pytest.raises(AssertionError):
        assert_same_rows(TABLE, bad)


def test_order_and_chunks_do_not_matter() -> None:
    assert_same_rows(TABLE.take([4, 2, 0, 3, 1]), TABLE)
    assert_same_rows(pa.concat_tables([TABLE.slice(3), TABLE.slice(0, 3)]), TABLE)
    assert_same_rows(TABLE, TABLE)


@pytest.mark.parametrize("dtype", SPARK_TYPES.values(), ids=SPARK_TYPES)
def test_each_type_equals_itself_and_nothing_else(dtype: pa.DataType, seed: int) -> None:
    generator = Generator(seed)
    table = pa.table({"row": range(60), "v": generator.array(dtype, 60)})
    shuffled = table.take(random.Random(seed).sample(range(60), 60)) if _takes(dtype) else table
    assert_same_rows(shuffled, table, context=f"seed {seed}")
    if pa.types.is_null(dtype):
        return
    moved = pa.table({"row": range(60), "v": pa.concat_arrays([table["v"].chunk(0).slice(1), pa.nulls(1, dtype)])})
    with pytest.raises(AssertionError, match=r"different rows"):
        assert_same_rows(moved, table)


def _takes(dtype: pa.DataType) -> bool:
    return not (pa.types.is_struct(dtype) and dtype.num_fields == 0)


def test_nan_equals_nan_whatever_its_bits() -> None:
    bits = [0x7FF8000000000000, 0x7FF8000000000001, -1]
    nans = pa.array(bits, pa.int64()).view(pa.float64())
    assert_same_rows(pa.table({"f": nans}), pa.table({"f": [math.nan] * 3}))


def test_zeros_are_told_apart_only_if_asked() -> None:
    plus, minus = pa.table({"f": [[0.0]]}), pa.table({"f": [[-0.0]]})
    assert_same_rows(minus, plus, zeros=Zeros.SAME)
    with pytest.raises(AssertionError):
        assert_same_rows(minus, plus)


def test_two_empty_tables_fail_unless_allowed() -> None:
    nothing = TABLE.slice(0, 0)
    with pytest.raises(AssertionError, match="both tables are empty"):
        assert_same_rows(nothing, nothing)
    assert_same_rows(nothing, nothing, allow_empty=True)
    with pytest.raises(AssertionError, match="has type"):
        assert_same_rows(
            pa.table({"a": pa.array([], pa.int32())}),
            pa.table({"a": pa.array([], pa.int8())}),
            allow_empty=True,
        )


def test_without_columns_rows_are_counted() -> None:
    two, three = TABLE.slice(0, 2).select([]), TABLE.slice(0, 3).select([])
    assert_same_rows(two, two)
    with pytest.raises(AssertionError, match=r"2 rows of no columns, expected 3"):
        assert_same_rows(two, three)
    with pytest.raises(AssertionError, match="empty"):
        assert_same_rows(TABLE.slice(0, 0).select([]), TABLE.slice(0, 0).select([]))


def test_types_may_be_ignored_but_values_may_not() -> None:
    narrow, wide = pa.table({"i": pa.array([1, 2], pa.int8())}), pa.table({"i": [2, 1]})
    assert_same_rows(narrow, wide, check_types=False)
    with pytest.raises(AssertionError):
        assert_same_rows(narrow, pa.table({"i": [1, 3]}), check_types=False)
    scaled = pa.table({"d": pa.array([Decimal("1.50")], pa.decimal128(5, 2))})
    assert_same_rows(scaled, pa.table({"d": pa.array([Decimal("1.5")], pa.decimal128(5, 1))}), check_types=False)


def test_floats_are_no_integers_even_if_types_are_ignored() -> None:
    with pytest.raises(AssertionError, match="different rows"):
        assert_same_rows(pa.table({"n": [1.0, 0.0]}), pa.table({"n": [1, 0]}), check_types=False)


@pytest.mark.parametrize("nested", [[0.0], {"x": 0.0}], ids=["list", "struct"])
def test_zeros_are_told_apart_at_any_depth(nested: object) -> None:
    plus = pa.table({"v": [nested, nested]})
    minus = pa.table({"v": [nested, [-0.0] if isinstance(nested, list) else {"x": -0.0}]})
    assert_same_rows(minus, plus, zeros=Zeros.SAME)
    with pytest.raises(AssertionError, match=r"-0\.0"):
        assert_same_rows(minus, plus)


def test_text_that_is_no_utf8_is_compared_by_its_bytes() -> None:
    first, second = (
        pa.table({"s": pa.array([b"a", text], pa.binary()).view(pa.string())}) for text in (b"\xff", b"\xfe")
    )
    assert_same_rows(first, first)
    with pytest.raises(AssertionError, match="udcff"):
        assert_same_rows(first, second)


def test_nullability_is_compared_if_asked() -> None:
    nullable = pa.table({"i": [1]})
    strict = nullable.cast(pa.schema([pa.field("i", pa.int64(), nullable=False)]))
    assert_same_rows(nullable, strict)
    with pytest.raises(AssertionError, match="nullable=True, expected False"):
        assert_same_rows(nullable, strict, check_nullability=True)


def test_a_failure_tells_counts_rows_and_context() -> None:
    with pytest.raises(AssertionError) as failure:
        assert_same_rows(TABLE.take([0, 0, 2, 3]), TABLE, context="seed 12")
    text = str(failure.value)
    assert text.startswith("seed 12\n")
    assert "4 actual, 5 expected" in text
    assert "missing: 2 rows" in text
    assert "unexpected: 1 row\n" in text
    assert "1 × (2, 20, nan, 'a', (None,), None)" in text


def test_dictionary_columns_compare_by_value() -> None:
    plain = from_cells(["b", "a", None, "b"], pa.string())
    encoded = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1]), ["a", "b"])
    assert_same_rows(pa.table({"s": encoded}), pa.table({"s": plain}), check_types=False)


def test_the_example_in_the_documentation_runs() -> None:
    results = doctest.testmod(gpujoin.testing)
    assert results.attempted >= 6
    assert results.failed == 0
