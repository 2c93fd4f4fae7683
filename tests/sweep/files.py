"""Generates Parquet files of any writer's kind: random schemas, encodings and special values, and false claims.

A *claim* is what a file says of itself beyond its pages and its Parquet schema: in which order its rows are, from which
Arrow types it was written, how many nulls and different values a column has. Spark looks at none of the first two, and
a claim must change no result. Everything depends on a seed and a number, so a table is made again from these.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat
from pyspark.sql import SparkSession

from tests.footers import (
    Fields,
    FileField,
    RowGroupField,
    StatisticsField,
    claim_sorting,
    long,
    rewriting,
    set_facts,
    sorted_by,
    statistics,
)
from tests.sweep.operations import EXCHANGED, ID, READING, Table

Rng = np.random.Generator

MOST_ROWS = 300
FOLDERS = (
    "plain", "data [v1]", "50%", "a b", "ü", "x{1,2}", "what?", "star*", "#1", "a=b", "q'q", "semi;colon", "p+q",
    "100%25",
)  # fmt: skip
NAMES = (
    "v", "A", "ü", "a b", "a.b", "", "*", "^v$", "select", "x'y", 'x"y', "tick`", "data [v1]", "%", "#", "a,b",
    "{n}", "e\\",
    "id2", "列", "=", "(x)", "__index_level_0__", "long" * 30, ".", "..", "/", "$1", "-", "0",
)  # fmt: skip
"""Names of folders and of columns, most of which mean something to some library."""


# -- values ------------------------------------------------------------------------------------------------------

_MICROS_OF_YEAR_1, _MICROS_OF_YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_MOMENTS = (0, -1, 1, 999, -999, 1_700_000_000_000_000, -14_182_940_000_000_000, _MICROS_OF_YEAR_1,
            _MICROS_OF_YEAR_10000 - 1, 1_700_000_000_123_456, 2**33, -(2**33))  # fmt: skip
_TEXTS = (
    "", "a", "A", "ab", "ü", "z" * 40, "\x00", "a\x00", " a", "a ", "%", "_", "\u2028", "😀", "名", "null", "NaN", "-0",
    "2024-01-31", "\ufeff", "é", "e\u0301", "x" * 300,
)  # fmt: skip
_EXACT = Context(prec=80)
_FLOATS = (0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), -float("inf"), 5e-324, 1.5, 2.0**53, 1e300, -1e-300, 0.1)


def _mixed(rng: Rng, count: int, special: Sequence[Any], usual: Callable[[], Any]) -> list[Any]:
    """Values, special and usual ones, often equal to one another."""
    pool = [
        special[int(rng.integers(len(special)))] if rng.random() < 0.6 else usual() for _ in range(rng.integers(1, 30))
    ]
    return [pool[n] for n in rng.integers(0, len(pool), count)]


def _nulled(rng: Rng, values: list[Any]) -> list[Any]:
    share = rng.choice([0.0, 0.1, 0.5, 1.0], p=[0.3, 0.4, 0.25, 0.05])
    return [None if rng.random() < share else value for value in values]


def _whole(rng: Rng, count: int, dtype: pa.DataType) -> list[Any]:
    low, high = (0, 2**dtype.bit_width - 1)
    if pat.is_signed_integer(dtype):
        low, high = -(2 ** (dtype.bit_width - 1)), 2 ** (dtype.bit_width - 1) - 1
    special = [v for v in (0, 1, -1, 2, 3, low, high, high - 1, 7, 1_700_000_000, 86_400_000) if low <= v <= high]
    return _mixed(rng, count, special, lambda: int(rng.integers(max(low, -99), min(high, 99))))


def _decimals(rng: Rng, count: int, dtype: pa.DataType) -> list[Any]:
    most = 10**dtype.precision - 1
    special = [0, 1, -1, most, -most, most // 10]

    def usual() -> int:
        return int(rng.integers(-(10 ** min(6, dtype.precision)) + 1, 10 ** min(6, dtype.precision)))

    return [Decimal(v).scaleb(-dtype.scale, _EXACT) for v in _mixed(rng, count, special, usual)]


def _moments(rng: Rng, count: int, dtype: pa.DataType) -> list[Any]:
    """Counts of a unit since 1970."""
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[dtype.unit]
    special = [v * per_second // 1_000_000 for v in _MOMENTS]
    special = [v for v in special if -(2**63) <= v < 2**63]
    return _mixed(rng, count, special, lambda: int(rng.integers(-(10**6), 10**6)))


def _times(rng: Rng, count: int, dtype: pa.DataType) -> list[Any]:
    day = 86_400 * {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[dtype.unit]
    return _mixed(rng, count, [0, 1, day - 1, day // 2], lambda: int(rng.integers(0, day)))


def values_of(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    """An array of a type, with nulls and special values."""
    make = next((make for test, make in _MAKERS if test(dtype)), None)
    if make is None:
        raise NotImplementedError(dtype)
    return make(rng, count, dtype)


def _of_booleans(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    return pa.array(_nulled(rng, [bool(value) for value in rng.integers(0, 2, count)]), dtype)


def _of_integers(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    return pa.array(_nulled(rng, _whole(rng, count, dtype)), dtype)


def _of_floats(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    values = _nulled(rng, _mixed(rng, count, _FLOATS, lambda: float(rng.normal())))
    with np.errstate(over="ignore"):
        return pa.array([None if value is None else dtype.to_pandas_dtype()(value) for value in values], dtype)


def _of_decimals(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    return pa.array(_nulled(rng, _decimals(rng, count, dtype)), dtype)


def _of_days(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    days = _mixed(rng, count, (0, -1, 1, -719_162, 2_932_896, -165_000, 19_753), lambda: int(rng.integers(-999, 999)))
    return pa.array(_nulled(rng, days), pa.int32()).cast(pa.date32()).cast(dtype)


def _of_moments(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    return pa.array(_nulled(rng, _moments(rng, count, dtype)), pa.int64()).cast(dtype)


def _of_times(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    stored = pa.int32() if pat.is_time32(dtype) else pa.int64()
    return pa.array(_nulled(rng, _times(rng, count, dtype)), stored).cast(dtype)


def _of_texts(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    return pa.array(_nulled(rng, _mixed(rng, count, _TEXTS, lambda: f"t{rng.integers(99)}")), dtype)


def _of_fixed_bytes(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    width = dtype.byte_width
    special = (b"\0" * width, b"\xff" * width, b"\x80" + b"\0" * (width - 1))
    return pa.array(_nulled(rng, _mixed(rng, count, special, lambda: rng.bytes(width))), dtype)


def _of_bytes(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    special = (b"", b"\0", b"\xff\xfe", b"a", b"\x80" * 20)
    return pa.array(_nulled(rng, _mixed(rng, count, special, lambda: rng.bytes(3))), dtype)


def _of_structs(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    fields = [values_of(rng, count, field.type) for field in dtype]
    return pa.StructArray.from_arrays(fields, fields=list(dtype), mask=_mask(rng, count))


def _of_fixed_lists(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    inner = values_of(rng, count * dtype.list_size, dtype.value_type)
    return pa.FixedSizeListArray.from_arrays(inner, type=dtype, mask=_mask(rng, count))


def _of_maps(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    offsets = _offsets(rng, count)
    keys = pa.array([f"k{n}" for n in range(offsets[-1].as_py())], dtype.key_type)
    items = values_of(rng, len(keys), dtype.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items, dtype, mask=_mask(rng, count))


def _of_lists(rng: Rng, count: int, dtype: pa.DataType) -> pa.Array:
    offsets = _offsets(rng, count)
    inner = values_of(rng, offsets[-1].as_py(), dtype.value_type)
    if pat.is_large_list(dtype):
        return pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), inner, dtype, mask=_mask(rng, count))
    return pa.ListArray.from_arrays(offsets, inner, dtype, mask=_mask(rng, count))


def _is_any_of(*tests: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda dtype: any(test(dtype) for test in tests)


_is_text = _is_any_of(pat.is_string, pat.is_large_string, pat.is_string_view)
_is_bytes = _is_any_of(pat.is_binary, pat.is_large_binary, pat.is_binary_view)
_MAKERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Rng, int, pa.DataType], pa.Array]], ...] = (
    (pat.is_null, lambda _rng, count, _dtype: pa.nulls(count)),
    (pat.is_dictionary, lambda rng, count, dtype: values_of(rng, count, dtype.value_type).dictionary_encode()),
    (pat.is_boolean, _of_booleans), (pat.is_integer, _of_integers), (pat.is_floating, _of_floats),
    (pat.is_decimal, _of_decimals), (pat.is_date, _of_days), (_is_any_of(pat.is_timestamp, pat.is_duration),
    _of_moments),
    (pat.is_time, _of_times), (_is_text, _of_texts), (pat.is_fixed_size_binary, _of_fixed_bytes), (_is_bytes,
    _of_bytes),
    (pat.is_struct, _of_structs), (pat.is_fixed_size_list, _of_fixed_lists), (pat.is_map, _of_maps),
    (_is_any_of(pat.is_list, pat.is_large_list), _of_lists),
)  # fmt: skip


def _offsets(rng: Rng, count: int) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(rng.integers(0, 3, count))]), pa.int32())


def _mask(rng: Rng, count: int) -> pa.Array:
    return pa.array(rng.random(count) < rng.choice([0.0, 0.2]))


PLAIN = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float32(), pa.float64(), pa.decimal128(4, 2), pa.decimal128(9, 0), pa.decimal128(18, 4), pa.decimal128(30, 10),
    pa.decimal128(38, 0), pa.date32(), pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us"),
    pa.timestamp("ms"),
    pa.timestamp("us", "+05:30"), pa.timestamp("us", "Europe/Berlin"), pa.string(), pa.binary(), pa.binary(2),
    pa.binary(16),
)  # fmt: skip
"""Arrow types of columns that Spark reads."""
CLAIMED_ONLY = (
    pa.timestamp("s"), pa.timestamp("s", "UTC"), pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.duration("s"),
    pa.duration("ms"),
    pa.duration("us"), pa.duration("ns"), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
    pa.date64(), pa.float16(),
    pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view(), pa.decimal256(40, 2), pa.null(),
    pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.timestamp("s")), pa.dictionary(pa.int32(),
    pa.binary()),
    pa.dictionary(pa.int32(), pa.int64()), pa.list_(pa.int64()), pa.struct([("a", pa.int64())]),
    pa.month_day_nano_interval(),
)  # fmt: skip
"""Further Arrow types that a file may claim its columns to be of."""
RARE = (
    pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.timestamp("s"), pa.timestamp("s", "UTC"), pa.duration("us"),
    pa.duration("s"),
    pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.date64(), pa.float16(), pa.large_string(),
    pa.large_binary(),
    pa.null(), pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int32(), pa.int64()),
    pa.dictionary(pa.int8(), pa.date32()),
)  # fmt: skip
"""Further types of columns, some of which Spark does not read."""
NESTED = (
    pa.list_(pa.int32()), pa.list_(pa.string()), pa.list_(pa.float32(), 3), pa.list_(pa.int64(), 2),
    pa.large_list(pa.float64()),
    pa.struct([("a", pa.int32()), ("B", pa.string())]), pa.list_(pa.struct([("x", pa.float64()), ("y", pa.date32())])),
    pa.map_(pa.string(), pa.int64()), pa.struct([("in", pa.struct([("t", pa.timestamp("us", "UTC"))])), ("l",
    pa.list_(pa.bool_()))]),
    pa.struct([("e", pa.list_(pa.float64(), 2)), ("f", pa.float32())]), pa.list_(pa.list_(pa.int16())),
    pa.list_(pa.timestamp("us")),
    pa.list_(pa.dictionary(pa.int32(), pa.string())), pa.struct([("s", pa.timestamp("s")), ("u", pa.uint32())]),
)  # fmt: skip


def table_of(rng: Rng, columns: int) -> pa.Table:
    """A table with a column ``id`` that numbers its rows."""
    rows = int(rng.choice([0, 1, 9, 60, MOST_ROWS], p=[0.03, 0.05, 0.22, 0.4, 0.3]))
    names = [ID]
    for name in rng.permutation(NAMES):
        if name.lower() not in {each.lower() for each in names}:
            names.append(str(name) if rng.random() < 0.5 else f"x{len(names)}")
    arrays = [pa.array(rng.permutation(rows), pa.int64())]
    for _ in range(columns):
        kinds = (PLAIN, tuple(MISLEADING), RARE, NESTED)[rng.choice(4, p=[0.45, 0.25, 0.12, 0.18])]
        arrays.append(values_of(rng, rows, kinds[rng.integers(len(kinds))]))
    return pa.Table.from_arrays(arrays, names[: len(arrays)])


# -- writers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writer:
    """A library that writes Parquet."""

    name: str
    write: Callable[[pa.Table, Path, Rng, SparkSession], str]
    """Writes a table to a file, in an encoding of its own choice, and tells which."""


def _one_of(rng: Rng, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


def _encodings(rng: Rng, schema: pa.Schema) -> dict[str, str]:
    """An encoding for some of the flat columns, which their types have."""
    chosen = {}
    for field in schema:
        dtype = field.type
        options = ["PLAIN"]
        if pat.is_integer(dtype) or pat.is_temporal(dtype):
            options += ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
        elif pat.is_float32(dtype) or pat.is_float64(dtype):
            options += ["BYTE_STREAM_SPLIT"]
        elif _is_text(dtype) or _is_bytes(dtype):
            options += ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
        elif pat.is_boolean(dtype):
            options += ["RLE"]
        elif pat.is_decimal128(dtype) or pat.is_fixed_size_binary(dtype):
            options += ["BYTE_STREAM_SPLIT", "DELTA_BYTE_ARRAY"]
        if not (pat.is_nested(dtype) or pat.is_dictionary(dtype) or pat.is_null(dtype)) and "." not in field.name:
            chosen[field.name] = _one_of(rng, options)
    return chosen


def _by_pyarrow(table: pa.Table, path: Path, rng: Rng, _: SparkSession) -> str:
    options: dict[str, Any] = {
        "version": _one_of(rng, ["1.0", "2.4", "2.6"]),
        "data_page_version": _one_of(rng, ["1.0", "2.0"]),
        "compression": _one_of(rng, ["none", "snappy", "gzip", "zstd", "lz4"]),
        "row_group_size": _one_of(rng, [7, 40, 10_000]),
        "data_page_size": _one_of(rng, [32, 1 << 20]),
        "write_batch_size": _one_of(rng, [5, 1024]),
        "dictionary_pagesize_limit": _one_of(rng, [64, 1 << 20]),
        "write_statistics": bool(rng.random() < 0.8),
        "store_schema": bool(rng.random() < 0.7),
        "use_compliant_nested_type": bool(rng.random() < 0.7),
        "write_page_index": bool(rng.random() < 0.3),
        "write_page_checksum": bool(rng.random() < 0.3),
        "store_decimal_as_integer": bool(rng.random() < 0.4),
        "use_deprecated_int96_timestamps": bool(rng.random() < 0.15),
    }
    if rng.random() < 0.4:
        options |= {"use_dictionary": False, "column_encoding": _encodings(rng, table.schema)}
    try:
        pq.write_table(table, path, **options)
    except (pa.ArrowException, OSError, ValueError):  # an encoding that it has not for a type
        options |= {"use_dictionary": True, "column_encoding": None, "version": "2.6"}
        options |= {"use_deprecated_int96_timestamps": False, "store_decimal_as_integer": False}
        pq.write_table(table, path, **options)
    return json.dumps(options)


def _by_polars(table: pa.Table, path: Path, rng: Rng, _: SparkSession) -> str:
    import polars as pl

    frame = pl.from_arrow(_known_to_polars(table))
    assert isinstance(frame, pl.DataFrame)
    options: dict[str, Any] = {
        "compression": _one_of(rng, ["uncompressed", "snappy", "gzip", "zstd", "lz4"]),
        "statistics": bool(rng.random() < 0.7),
        "row_group_size": _one_of(rng, [9, 100_000]),
        "data_page_size": _one_of(rng, [64, 1 << 20]),
    }
    if rng.random() < 0.4:  # Polars writes down that a sorted column is
        frame = frame.sort(frame.columns[-1], nulls_last=bool(rng.random() < 0.5), descending=bool(rng.random() < 0.5))
    frame.write_parquet(path, **options)
    return json.dumps(options)


def _known_to_polars(table: pa.Table) -> pa.Table:
    unknown = [
        field.name
        for field in table.schema
        if pat.is_map(field.type)
        or pat.is_decimal256(field.type)
        or pat.is_time32(field.type)
        or field.type == pa.timestamp("us", "+05:30")
    ]
    return table.drop_columns(unknown)


def _by_duckdb(table: pa.Table, path: Path, rng: Rng, _: SparkSession) -> str:
    import duckdb

    options = [
        "format parquet", f"compression {_one_of(rng, ['uncompressed', 'snappy', 'gzip', 'zstd', 'lz4_raw'])}",
        f"row_group_size {_one_of(rng, [2048, 122880])}", f"parquet_version {_one_of(rng, ['v1', 'v2'])}",
        f"dictionary_size_limit {_one_of(rng, [1, 1000])}",
    ]  # fmt: skip
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("rows", _known_to_duckdb(table))
        quoted = str(path).replace("'", "''")
        try:
            connection.execute(f"copy (from rows) to '{quoted}' ({', '.join(options)})")
        except duckdb.InternalException:  # a table that it does not write, by a mistake of its own
            pq.write_table(table, path)
            return "as PyArrow does by default"
    return ", ".join(options)


def _known_to_duckdb(table: pa.Table) -> pa.Table:
    unknown = [
        field.name
        for field in table.schema
        if pat.is_float16(field.type) or pat.is_duration(field.type) or not field.name or pat.is_null(field.type)
        or (pat.is_dictionary(field.type) and not pat.is_string(field.type.value_type))
    ]  # fmt: skip
    return table.drop_columns(unknown)


def _by_spark(table: pa.Table, path: Path, rng: Rng, spark: SparkSession) -> str:
    keys = {
        "spark.sql.parquet.writeLegacyFormat": _one_of(rng, ["true", "false"]),
        "spark.sql.parquet.outputTimestampType": _one_of(rng, ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"]),
        "spark.sql.parquet.compression.codec": _one_of(rng, ["none", "snappy", "gzip", "zstd", "lz4_raw"]),
    }
    options = {
        "parquet.writer.version": _one_of(rng, ["PARQUET_1_0", "PARQUET_2_0"]),
        "parquet.enable.dictionary": _one_of(rng, ["true", "false"]),
        "parquet.page.size": _one_of(rng, ["64", "1048576"]),
        "parquet.dictionary.page.size": _one_of(rng, ["64", "1048576"]),
        "parquet.page.row.count.limit": _one_of(rng, ["7", "20000"]),
        "parquet.block.size": _one_of(rng, ["512", "134217728"]),
        "parquet.bloom.filter.enabled": _one_of(rng, ["true", "false"]),
    }
    session = spark.newSession()
    for key, value in keys.items():
        session.conf.set(key, value)
    folder = path.with_suffix(".folder")
    session.createDataFrame(_known_to_spark(table)).coalesce(1).write.options(**options).parquet(str(folder))
    written = next(each for each in folder.iterdir() if each.suffix == ".parquet")
    path.write_bytes(written.read_bytes())
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()
    uncompressed = keys["spark.sql.parquet.compression.codec"] == "none"
    misread = uncompressed and options["parquet.writer.version"] == "PARQUET_2_0"
    return json.dumps(keys | options) + (f" ({MISREAD})" if misread else "")


def _known_to_spark(table: pa.Table) -> pa.Table:
    unknown = [
        field.name for field in table.schema if not _is_known_to_spark(field.type) or field.name.strip() in ("", ".")
    ]
    return table.drop_columns(unknown)


def _is_known_to_spark(dtype: pa.DataType) -> bool:
    if pat.is_nested(dtype):
        return not pat.is_fixed_size_list(dtype) and all(
            _is_known_to_spark(dtype.field(i).type) for i in range(dtype.num_fields)
        )
    return (
        dtype in PLAIN and not pat.is_unsigned_integer(dtype) and not (pat.is_fixed_size_binary(dtype))
    ) or pat.is_null(dtype)


MISREAD = "Spark's vectorized reader reads such pages of texts four bytes too early"
WRITERS = (
    Writer("pyarrow", _by_pyarrow), Writer("polars", _by_polars), Writer("duckdb", _by_duckdb), Writer("spark",
    _by_spark),
)  # fmt: skip
_SHARES = (0.55, 0.2, 0.1, 0.15)


# -- claims ------------------------------------------------------------------------------------------------------


def claim(path: Path, rng: Rng, claims: Collection[str]) -> str:
    """Let a file claim some things that are not so, of those named, and tell which."""
    said = [make(path, rng) for name, make in CLAIMS.items() if rng.random() < 0.4 and name in claims]
    return "; ".join(filter(None, said)) or "as written"


def _leaves(footer: Fields) -> int:
    """How many column chunks each row group has."""
    return max((len(group[RowGroupField.CHUNKS]) for group in footer[FileField.GROUPS]), default=0)


def _claim_sorting(path: Path, rng: Rng) -> str:
    with rewriting(path) as footer:
        leaves = _leaves(footer)
    # Not the first, which numbers the rows: few operations are about its order.
    chosen = [int(leaf) for leaf in rng.permutation(np.arange(min(1, leaves - 1), leaves))[: rng.integers(1, 3)]]
    descending, nulls_first = bool(rng.random() < 0.4), bool(rng.random() < 0.5)
    claim_sorting(path, [sorted_by(leaf, descending=descending, nulls_first=nulls_first) for leaf in chosen])
    return f"sorted by {chosen} {descending=} {nulls_first=}"


def _claim_arrow(path: Path, rng: Rng) -> str:
    """A schema of other types, in another order, with other names, with fewer or more fields, or none at all."""
    kind = rng.integers(8)
    if kind == 0:
        schema = None if rng.random() < 0.5 else b"no schema"
        with rewriting(path) as footer:
            set_facts(footer, {b"ARROW:schema": schema})
        return f"ARROW:schema {schema!r}"
    try:
        fields = list(pq.read_schema(path).remove_metadata())
    except (pa.ArrowException, OSError):
        return ""
    share = _one_of(rng, [0.15, 0.5])  # a claim that a library refuses hides the others
    for n, field in enumerate(fields):
        if rng.random() < share and field.name != ID:
            fields[n] = field.with_type(_other_type(field.type, rng))
    if kind == 1:
        fields = [fields[n] for n in rng.permutation(len(fields))]
    elif kind == 2:
        fields = fields[: rng.integers(len(fields) + 1)]
    elif kind == 3:
        fields = [*fields, pa.field("more", pa.int64())]
    elif kind == 4:
        fields = [field.with_name(f"y{n}") for n, field in enumerate(fields)]
    elif kind == 5:
        fields = [field.with_nullable(not field.nullable) for field in fields]
    raw = pa.schema(fields).serialize().to_pybytes()
    with rewriting(path) as footer:
        set_facts(footer, {b"ARROW:schema": base64.b64encode(raw)})
    return f"ARROW:schema {pa.schema(fields)}".replace("\n", ", ")


MISLEADING: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int64(): (
        pa.timestamp("s"), pa.timestamp("s", "UTC"), pa.duration("s"), pa.dictionary(pa.int32(), pa.timestamp("s")),
    ),
    pa.int32(): (pa.time32("s"), pa.date32()), pa.date32(): (pa.date64(), pa.int32()),
    pa.binary(2): (pa.float16(),), pa.string(): (pa.binary(),), pa.binary(): (pa.string(), pa.large_string()),
}  # fmt: skip
"""Types of Arrow that some library has decoded a stored type to, by other values."""


def _other_type(dtype: pa.DataType, rng: Rng) -> pa.DataType:
    """Another type, mostly such as is stored in the same way."""
    if dtype in MISLEADING and rng.random() < 0.5:
        return _one_of(rng, MISLEADING[dtype])
    if rng.random() < 0.3:
        return _one_of(rng, (*PLAIN, *CLAIMED_ONLY, *NESTED))
    if pat.is_list(dtype) or pat.is_large_list(dtype):
        inner = _other_type(dtype.value_type, rng)
        return _one_of(rng, [pa.list_(inner), pa.large_list(inner), pa.list_(inner, 2)])
    if pat.is_struct(dtype):
        return pa.struct([field.with_type(_other_type(field.type, rng)) for field in dtype])
    if pat.is_boolean(dtype) or pat.is_nested(dtype):
        return dtype
    if _is_text(dtype) or _is_bytes(dtype):
        return _one_of(rng, [t for t in (*PLAIN, *CLAIMED_ONLY) if "string" in str(t) or "binary" in str(t)])
    if pat.is_fixed_size_binary(dtype):
        return _one_of(rng, [pa.float16(), pa.binary(dtype.byte_width), pa.uuid().storage_type, pa.string()])
    width = _width(dtype)
    fitting = [t for t in (*PLAIN, *CLAIMED_ONLY) if not pat.is_nested(t) and _width(t) == width]
    fitting += [pa.dictionary(pa.int32(), t) for t in fitting if not pat.is_dictionary(t)]
    return _one_of(rng, fitting or [dtype])


def _width(dtype: pa.DataType) -> int:
    try:
        return int(dtype.bit_width)
    except ValueError:
        return 0


def _claim_statistics(path: Path, rng: Rng) -> str:
    """Counts of different values that are not so, bounds said to be exact or not, counts of nulls that are not
    told or not so."""
    with rewriting(path) as footer:
        for leaf in range(1, _leaves(footer)):
            for about in statistics(footer, leaf):
                if rng.random() < 0.5:
                    about[StatisticsField.DISTINCT] = long(int(rng.integers(0, 5)))
                if rng.random() < 0.4:
                    about.pop(StatisticsField.NULLS, None)
                elif rng.random() < 0.2:
                    about[StatisticsField.NULLS] = long(int(rng.integers(0, 9)))
                if rng.random() < 0.4:
                    about[StatisticsField.MAX_IS_EXACT] = about[StatisticsField.MIN_IS_EXACT] = bool(rng.random() < 0.5)
    return "other statistics"


def _claim_writer(path: Path, rng: Rng) -> str:
    """Another writer, or metadata of pandas."""
    with rewriting(path) as footer:
        if rng.random() < 0.5:
            pandas = {
                "index_columns": ["id"],
                "columns": [{"name": "id", "numpy_type": "datetime64[ns]"}],
                "pandas_version": "0.1",
            }
            set_facts(footer, {b"pandas": json.dumps(pandas).encode()})
            return "pandas' metadata"
        # Not parquet-cpp of before Arrow 4: what its pages of version 2 say of their compression is not so.
        name = _one_of(rng, [
            b"parquet-mr version 1.2.4 (build 0)", b"parquet-mr", b"impala version 1.0", b"", b"Polars", b"\xff",
            b"parquet-cpp-arrow version 4.0.0", b"fastparquet-python version 0.1.0 (build 0)",
        ])  # fmt: skip
        footer[FileField.CREATED_BY] = name
        return f"written by {name!r}"


CLAIMS: dict[str, Callable[[Path, Rng], str]] = {
    "sorting": _claim_sorting, "statistics": _claim_statistics, "writer": _claim_writer, "arrow": _claim_arrow,
}  # fmt: skip


# -- tables ------------------------------------------------------------------------------------------------------


def write_table(
    folder: Path,
    seed: int,
    number: int,
    spark: SparkSession,
    columns: int = 8,
    claims: Collection[str] = tuple(CLAIMS),
) -> Table:
    """Write the table of a number as one file or several in a folder of some name, and tell in its context how."""
    rng = np.random.default_rng([seed, 42, number])
    home = folder / str(number) / _one_of(rng, FOLDERS)
    home.mkdir(parents=True)
    table = table_of(rng, columns)
    told = [
        f"table {number} of seed {seed} in {home.name!r}: {', '.join(f'{f.name!r} {f.type}' for f in table.schema)}"
    ]
    for part in range(_one_of(rng, [1, 1, 2])):
        writer = WRITERS[rng.choice(len(WRITERS), p=_SHARES)]
        path = home / f"part {part}.parquet"
        rows = table if not part else table.take(pa.array(rng.permutation(len(table))))
        if part and rng.random() < 0.5:
            rows = rows.select([0, *(1 + int(n) for n in rng.permutation(rows.num_columns - 1))])
        said = writer.write(rows, path, rng, spark)
        told.append(f"{writer.name}: {said}; {claim(path, rng, claims)}")
    settings = dict(EXCHANGED) if rng.random() < 0.3 else {}
    if rng.random() < 0.15:
        settings |= _one_of(rng, READING)
    context = "\n".join([*told, f"settings {settings}"])
    return Table(str(home), context=context, misread=MISREAD in context, settings=settings)
