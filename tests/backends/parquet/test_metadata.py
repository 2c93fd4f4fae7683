"""Footers as they are read here, compared with what PyArrow reads of the same files."""

from __future__ import annotations

import base64
import datetime as dt
import itertools
import os
import shutil
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from gpujoin.backends.parquet import footers, thrift
from gpujoin.backends.parquet.footers import Source, footer_of, statistics_of
from gpujoin.backends.parquet.metadata import Leaf, ParquetFooter, Physical
from gpujoin.backends.parquet.statistics import decoded
from gpujoin.backends.parquet.thrift import ListOf, Scalar, Struct, ThriftError
from gpujoin.cache import Cache
from gpujoin.engine.pipeline.support import read_footers
from gpujoin.errors import ScanError
from gpujoin.model.relations import FileSlice, Scan
from gpujoin.model.types import plain
from tests.engine.pipeline.damage import sound_tables, write_files
from tests.expressions.values import VALUES

REPEATS = 40


def read(path: Path) -> ParquetFooter:
    return footer_of(str(path), path.stat().st_size)


def _comparable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def assert_as_pyarrow_reads_it(path: Path) -> None:
    """Compare everything that both know of a file."""
    footer = read(path)
    with pq.ParquetFile(path) as file:
        metadata, schema, arrow = file.metadata, file.schema, file.schema_arrow
        assert footer.rows == metadata.num_rows
        assert len(footer.groups) == metadata.num_row_groups
        assert dict(footer.facts) == (metadata.metadata or {})
        assert [column.name for column in footer.columns] == arrow.names
        assert [".".join(leaf.path) for leaf in footer.leaves] == [schema.column(i).path for i in range(len(schema))]
        assert [leaf.physical.name for leaf in footer.leaves] == [
            schema.column(i).physical_type for i in range(len(schema))
        ]
        for g in range(metadata.num_row_groups):
            assert footer.groups[g].rows == metadata.row_group(g).num_rows
            for i in range(len(schema)):
                chunk, other = footer.chunk(g, i), metadata.row_group(g).column(i)
                assert (chunk.values, chunk.compressed, chunk.uncompressed) == (
                    other.num_values, other.total_compressed_size, other.total_uncompressed_size
                )  # fmt: skip
                statistics, leaf = other.statistics, footer.leaves[i]
                known = statistics_of(Source(".".join(leaf.path), i, leaf.arrow), footer, g)
                if not leaf.flat or statistics is None or known is None or known.low is None:
                    continue
                assert known.nulls == (statistics.null_count if statistics.has_null_count else None)
                assert (known.low, known.high) == (_comparable(statistics.min), _comparable(statistics.max))


@pytest.mark.parametrize(
    "options",
    [{}, {"version": "1.0", "use_dictionary": False}, {"compression": "zstd", "row_group_size": 7},
     {"store_decimal_as_integer": True, "store_schema": False}, {"write_page_index": True, "write_statistics": False}],
    ids=["default", "plain", "small groups", "decimals as integers", "no statistics"],
)  # fmt: skip
@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind != "struct"])
def test_columns_of_every_type(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    dtype, values = VALUES[kind]
    table = pa.table({"c": pa.array(list(values) * REPEATS, dtype), "n": range(len(values) * REPEATS)})
    path = tmp_path / "data.parquet"
    pq.write_table(table, path, coerce_timestamps="us", **options)
    assert_as_pyarrow_reads_it(path)
    bare = tmp_path / "bare.parquet"  # without Arrow's own schema, as PyArrow derives types
    pq.write_table(table, bare, coerce_timestamps="us", **{**options, "store_schema": False})
    with pq.ParquetFile(bare) as file:
        assert read(bare).leaves[0].arrow == plain(file.schema_arrow.field(0).type)


def test_statistics_are_there_to_compare(tmp_path: Path) -> None:
    """The comparison above leaves out what is not known: of these columns it is."""
    table = sound_tables()["default"][0].select(["i", "j", "k", "s", "b", "d", "m", "n", "t", "o"])
    for name, options in {"a": {}, "b": {"store_decimal_as_integer": True}}.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table, path, **options)
        footer = read(path)
        for i, leaf in enumerate(footer.leaves):
            known = statistics_of(Source(leaf.path[0], i, leaf.arrow), footer, 0)
            assert known is not None, leaf
            assert known.low < known.high, leaf


def test_files_of_other_writers(tmp_path: Path) -> None:
    write_files(tmp_path)
    table = sound_tables()["default"][0]
    pl.DataFrame(table).write_parquet(tmp_path / "polars.parquet", row_group_size=17)
    with duckdb.connect() as connection:
        connection.register("sound", table)
        connection.execute(f"copy (select * from sound) to '{tmp_path / 'duckdb.parquet'}' (format parquet)")
    nested = pa.table({
        "deep": pa.array([[{"x": 1, "y": [("k", b"v")]}], None, []],
                         pa.list_(pa.struct([("x", pa.int32()), ("y", pa.map_(pa.string(), pa.binary()))]))),
        "last": [1.5, None, -0.0],
    })  # fmt: skip
    pq.write_table(nested, tmp_path / "nested types.parquet")
    pq.write_table(nested.slice(0, 0), tmp_path / "no rows.parquet")
    pq.write_table(pa.table({f"c{i}": [i] for i in range(3000)}), tmp_path / "wide.parquet")
    paths = sorted(tmp_path.glob("*.parquet"))
    assert len(paths) > 12
    for path in paths:
        assert_as_pyarrow_reads_it(path)


class _Keys(pe.KmsClient):  # type: ignore[misc]
    """Wraps keys by encoding them: enough for files that nobody here decrypts."""

    def __init__(self, config: pe.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("plain_footer", [True, False], ids=["plain footer", "encrypted footer"])
def test_encrypted_files_are_left_to_spark(plain_footer: bool, tmp_path: Path) -> None:
    table = pa.table({"open": [1, 2, 3], "secret": [4, 5, 6]})
    factory = pe.CryptoFactory(_Keys)
    config = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["secret"]}, plaintext_footer=plain_footer)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    path = tmp_path / "encrypted.parquet"
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    if not plain_footer:
        with pytest.raises(ScanError, match=r"encrypted\.parquet: its footer is encrypted"):
            read_footers(Scan(table.schema), [str(path)])
        return
    [footer] = read_footers(Scan(table.schema), [str(path)])
    assert footer.obstacles[0].startswith(f"{path}: column 'secret' of row group 0 is encrypted")


def test_structs_are_read_and_skipped() -> None:
    data = bytes.fromhex("150e18026869 19 25 02 04 11 00".replace(" ", ""))
    fields = Struct({1: Scalar.INTEGER, 2: Scalar.BYTES, 3: ListOf(Scalar.INTEGER), 4: Scalar.BOOLEAN})
    assert thrift.read(data, 0, fields) == {1: 7, 2: b"hi", 3: [1, 2], 4: True}
    assert thrift.read(data, 0, Struct({4: Scalar.BOOLEAN})) == {4: True}


@pytest.mark.parametrize(
    "data",
    [b"", b"\x15", b"\x15" + b"\xff" * 1000, b"\x18\xff\xff\xff\xff\x0f", b"\x19\xf5\xff\xff\xff\xff\x0f",
     b"\x1c" * 1000, b"\x2c" * 1000, b"\x29\x19" * 1000, b"\x2b\xff\xff\xff\xff\x0f\x55", b"\x2f", b"\x25",
     b"\x15\x02"],
    ids=["empty", "cut", "long integer", "long bytes", "long list", "deep", "deep and skipped", "deep lists",
         "long map", "no type", "cut and skipped", "no end"],
)  # fmt: skip
def test_whatever_the_bytes_are_reading_ends(data: bytes) -> None:
    inner = Struct({1: Struct({})})
    for kind in (Scalar.INTEGER, Scalar.BYTES, ListOf(Scalar.INTEGER), inner):
        with pytest.raises(ThriftError):
            thrift.read(data, 0, Struct({1: kind}))


WHOLE = Leaf(("x",), Physical.INT32, 0, True, pa.int32(), True)
DECIMAL = Leaf(("x",), Physical.FIXED_LEN_BYTE_ARRAY, 4, True, pa.decimal128(3, 1), True)
TEXT = Leaf(("x",), Physical.BYTE_ARRAY, 0, True, pa.string(), True)


def _int32(value: int) -> bytes:
    return struct.pack("<i", value)


@pytest.mark.parametrize(
    ("leaf", "fields", "low", "high"),
    [
        (WHOLE, {3: 0, 5: _int32(9), 6: _int32(-9)}, -9, 9),
        (WHOLE, {3: 0, 1: _int32(9), 2: _int32(-9)}, -9, 9),
        (TEXT, {3: 0, 1: b"z", 2: b"a"}, None, None),
        (TEXT, {3: 0, 5: b"\xff", 6: b"a"}, b"a", b"\xff"),
        (WHOLE, {3: 0, 5: _int32(9)}, None, None),
        (WHOLE, {3: 0, 5: b"\x01", 6: b"\x00"}, None, None),
        (DECIMAL, {3: 1, 5: (999).to_bytes(4, "big"), 6: (-15).to_bytes(4, "big", signed=True)},
         Decimal("-1.5"), Decimal("99.9")),
        (DECIMAL, {3: 1, 5: (1000).to_bytes(4, "big"), 6: bytes(4)}, None, None),
    ],
)  # fmt: skip
def test_statistics_that_can_be_believed(leaf: Leaf, fields: dict[int, Any], low: Any, high: Any) -> None:
    known = decoded(leaf, fields, 10)
    assert known is not None
    assert (known.low, known.high, known.nulls) == (low, high, fields[3])


@pytest.mark.parametrize(
    "fields",
    [{3: -1}, {3: 11}, {3: 0, 5: _int32(-1), 6: _int32(1)}, {3: 10, 5: _int32(1), 6: _int32(1)}],
    ids=["negative", "more nulls than rows", "least beyond greatest", "bounds of nulls"],
)
def test_statistics_that_contradict_themselves_tell_nothing(fields: dict[int, Any]) -> None:
    assert decoded(WHOLE, fields, 10) is None


def test_dates_of_statistics_that_python_cannot_say() -> None:
    leaf = Leaf(("x",), Physical.INT32, 0, True, pa.date32(), True)
    known = decoded(leaf, {3: 0, 5: _int32(3_000_000), 6: _int32(0)}, 10)
    assert known is not None
    assert known.low is None
    known = decoded(leaf, {3: 0, 5: _int32(1), 6: _int32(0)}, 10)
    assert known is not None
    assert (known.low, known.high) == (dt.date(1970, 1, 1), dt.date(1970, 1, 2))


@pytest.mark.skipif(shutil.which("tpchgen-cli") is None, reason="tpchgen-cli is not on the path")
@pytest.mark.slow
def test_files_of_tpch(tmp_path: Path) -> None:
    import subprocess

    subprocess.run(["tpchgen-cli", "parquet", "--scale-factor", "0.1", "--output-dir", str(tmp_path)], check=True)
    paths = sorted(tmp_path.glob("*.parquet"))
    assert len(paths) == 8
    for path in paths:
        assert_as_pyarrow_reads_it(path)


def test_footers_are_kept_while_their_files_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"x": [1, 2]}), path)
    pq.write_table(pa.table({"x": [3, 4]}), other)
    assert path.stat().st_size == other.stat().st_size
    assert read(path) is not read(path), "a file that has just been written may be written again"
    monkeypatch.setattr(footers, "_SETTLED_NS", 0)
    kept = read(path)
    assert read(path) is kept
    assert read(path).chunk(0, 0) is kept.chunk(0, 0)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(other.read_bytes())
    os.utime(path, ns=times)
    assert read(path) is not kept, "its content was replaced, its size and modification time are as before"
    assert read(path).chunk(0, 0).statistics != kept.chunk(0, 0).statistics


def test_kept_footers_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{n}.parquet" for n in range(8)]
    for path in paths:
        pq.write_table(pa.table({"x": [1]}), path)
    monkeypatch.setattr(footers, "_SETTLED_NS", 0)
    limit = 3 * read(paths[0]).nbytes
    monkeypatch.setattr(footers, "_footers", Cache(limit, lambda footer: footer.nbytes))
    first = read(paths[0])
    for path in paths[1:3]:
        read(path)
    assert read(paths[0]) is first
    for path in paths[1:]:
        read(path)
    assert read(paths[0]) is not first


# -- ranges of bytes ---------------------------------------------------------------------------------------------


def test_each_row_group_is_in_one_range_wherever_its_file_says_that_it_is(tmp_path: Path) -> None:
    path = tmp_path / "groups.parquet"
    pq.write_table(pa.table({"n": range(1000)}), path, row_group_size=90)
    parquet, size = read(path), path.stat().st_size
    for said in (size, size // 3, 5):  # of a shorter file the last groups end beyond its end
        cuts = [said * n // 5 for n in range(6)]
        parts = [FileSlice(str(path), said, byte_range=pair) for pair in itertools.pairwise(cuts)]
        assert sorted(g for part in parts for g in footers.row_groups(part, parquet)) == list(range(12))


@pytest.mark.parametrize("count", [1, 2, 7, 150, 2_000])
@pytest.mark.parametrize("kind", ["text", "long text", "whole", "decimal", "nulls"])
def test_dictionaries_tell_about_how_many_values_there_are(count: int, kind: str, tmp_path: Path) -> None:
    numbers = [n * 7919 % 1_000_003 for n in range(count)]
    kinds: dict[str, list[Any]] = {
        "text": [f"{number:06}" for number in numbers],
        "long text": [f"a name of some length {number:06}" for number in numbers],
        "whole": numbers,
        "decimal": [Decimal(number).scaleb(-2) for number in numbers],
        "nulls": [None if n % 5 == 4 else f"{number:06}" for n, number in enumerate(numbers)],
    }
    values = kinds[kind]
    table = pa.table({"x": pa.array(values * (20_000 // count))})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=8_000)
    (footer,) = read_footers(Scan(table.schema), [str(tmp_path / "x.parquet")])
    (told,) = footer.different
    if count == 2_000 and kind in ("whole", "decimal"):
        assert told is None, "a range of numbers tells as much"
    else:
        assert told is not None
        assert count / 5 <= told <= 2 * count


def test_columns_without_a_dictionary_tell_of_no_number_of_values(tmp_path: Path) -> None:
    table = pa.table({"x": ["a", "b"] * 500, "n": pa.array([None] * 1000, pa.string())})
    pq.write_table(table, tmp_path / "x.parquet", use_dictionary=False)
    (footer,) = read_footers(Scan(table.schema), [str(tmp_path / "x.parquet")])
    assert footer.different == (None, None)
    unique = pa.table({"x": [f"{n:07}" for n in range(50_000)]})
    pq.write_table(unique, tmp_path / "unique.parquet")
    (footer,) = read_footers(Scan(unique.schema), [str(tmp_path / "unique.parquet")])
    assert footer.different == (None,), "there are too many"
