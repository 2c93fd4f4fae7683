"""Narrow whole numbers in blobs: what comes back is what was given, and takes no more room than its values need."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.errors import CorruptBlobError
from gpujoin.spark.shuffle.blobrows import narrowed, widened

EDGES = [0, -1, 127, 128, -128, -129, 1 << 15, -(1 << 15), (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -(1 << 63)]


def back(batch: pa.RecordBatch) -> pa.RecordBatch:
    found = widened(narrowed(batch), batch.schema, "blob")
    found.validate(full=True)
    return found


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("absent", [[], [None]], ids=["full", "null"])
def test_the_narrowest_type_that_holds_the_values(edge: int, absent: list[None]) -> None:
    values = [*absent, edge, 0]
    wide = pa.decimal128(38, 2)
    batch = pa.record_batch(
        {
            "long": pa.array(values, pa.int64()),
            "moment": pa.array(values, pa.timestamp("us", "UTC")),
            "decimal": pa.array([None if one is None else Decimal(one).scaleb(-2) for one in values], wide),
            "text": pa.array(["" for _ in values]),
        }
    )
    bits = next(bits for bits in (8, 16, 32, 64) if -(1 << (bits - 1)) <= edge < 1 << (bits - 1))
    found = narrowed(batch)
    assert found.column("decimal").type == pa.int64() if bits == 64 else found.column(0).type.bit_width == bits
    assert found.column("long").type == (pa.int64() if bits == 64 else found.column("decimal").type)
    assert found.column("text").type == pa.string()
    assert back(batch).equals(batch)


def test_decimals_of_more_than_64_bits_stay_as_they_are() -> None:
    values = [Decimal(1 << 63), Decimal(-(1 << 63) - 1), None, Decimal(10) ** 37]
    batch = pa.record_batch({"d": pa.array(values, pa.decimal128(38, 0))})
    assert narrowed(batch).schema.types == [pa.decimal128(38, 0)]
    assert back(batch).equals(batch)
    assert narrowed(batch.slice(2, 1)).schema.types == [pa.int8()]


def test_slices_dates_and_columns_of_nulls(seed: int) -> None:
    rng = np.random.default_rng(seed)
    days = rng.integers(-800_000, 3_000_000, 100).astype(np.int32)
    batch = pa.record_batch(
        {
            "day": pa.array(days, pa.int32(), mask=rng.random(100) < 0.3).cast(pa.date32()),
            "small": pa.array(rng.integers(-100, 100, 100)),
            "price": pa.array([Decimal(int(one)).scaleb(-2) for one in days], pa.decimal128(15, 2)),
            "nothing": pa.nulls(100, pa.int64()),
            "void": pa.nulls(100),
            "float": pa.array(rng.random(100)),
            "list": pa.array([[1, None]] * 100),
        }
    )
    for start, count in ((0, 100), (13, 50), (99, 1), (5, 0)):
        some = batch.slice(start, count)
        assert back(some).equals(some)
    assert narrowed(batch).schema.field("small").type == pa.int8()
    assert narrowed(batch).schema.field("nothing").type == pa.int8()
    assert narrowed(batch).schema.field("float").type == pa.float64()


def test_columns_of_another_kind_are_refused() -> None:
    schema = pa.schema({"a": pa.int64()})
    for values in (pa.array(["x"]), pa.array([1.5]), pa.array([1], pa.uint8())):
        with pytest.raises(CorruptBlobError, match="blob: a column is"):
            widened(pa.record_batch({"a": values}), schema, "blob")
    with pytest.raises(CorruptBlobError, match="holds 2 columns, not 1"):
        widened(pa.record_batch({"a": pa.array([1]), "b": pa.array([1])}), schema, "blob")


def test_batches_of_a_feed_have_one_schema() -> None:
    schema = pa.schema([pa.field("a", pa.float64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
    batches = [pa.record_batch([pa.array([1.5]), pa.array([n])], schema=schema) for n in (1, 1 << 40)]
    assert [widened(narrowed(one), schema, "blob").schema for one in batches] == [schema, schema]


def test_rows_without_columns_are_counted() -> None:
    batch = pa.record_batch({"a": [1, 2, 3]}).select([])
    assert narrowed(batch).num_rows == widened(batch, batch.schema, "blob").num_rows == 3
