"""Files of many writers, old and new: the columns that are read here have the values that PyArrow finds in them.

PyArrow reads a copy without the Arrow schema that the writer may have stored. ``tests/sweep/test_writers.py`` compares
the same files with Spark.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat
import pytest

from gpujoin.backends.parquet.footers import footer_of
from gpujoin.backends.parquet.metadata import FileColumn, ParquetFooter
from gpujoin.engine.pipeline.support import read_footers
from gpujoin.errors import ScanError
from gpujoin.model.relations import Scan
from gpujoin.model.types import logical
from gpujoin.testing import assert_same_rows
from tests.engine.pipeline.places import run
from tests.footers import claim_arrow_schema
from tests.trees import file_slice

SAMPLES = sorted((Path(__file__).parents[2] / "data" / "parquet").glob("*.parquet"))
WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
PACKED = {"i8", "i32", "ints", "point", "pair", "props"}
REFUSED = {
    "encrypted-footer": {"(file)"},
    "encrypted-column": {"text"},
    "duckdb-1.5.5-lz4_raw": PACKED,
    "duckdb-2.0.0-lz4_raw": PACKED,
}
"""Columns of a type that is read here, in pages that are not: encrypted, or packed by DuckDB."""
CORRUPT = {"polars-0.20.31-sorted": {"pair"}, "polars-0.20.31-zstd": {"pair"}}
"""Columns whose levels contradict each other: lists of fixed length that are null."""


def planned(dtype: pa.DataType) -> pa.DataType:
    """The type that Spark gives to a type of files."""
    if pat.is_timestamp(dtype):
        return pa.timestamp("us", dtype.tz and "UTC")
    if pat.is_fixed_size_binary(dtype):
        return pa.binary()
    if pat.is_struct(dtype):
        return pa.struct([field.with_type(planned(field.type)) for field in dtype])
    if pat.is_map(dtype):
        return pa.map_(planned(dtype.key_type), planned(dtype.item_type))
    if pat.is_list(dtype):
        return pa.list_(planned(dtype.value_type))
    return WIDER.get(dtype, logical(dtype))


def type_of(parquet: ParquetFooter, column: FileColumn) -> pa.DataType | None:
    leaf = parquet.leaves[column.first]
    return column.nested or (leaf.arrow if leaf.flat else None)


def known_columns(parquet: ParquetFooter) -> dict[str, pa.DataType]:
    """Columns whose types Spark has, and whose nanoseconds and unit it takes."""
    types = {column.name: type_of(parquet, column) for column in parquet.columns}
    known = {name: dtype for name, dtype in types.items() if dtype is not None and not pat.is_time(dtype)}
    return {name: planned(dtype) for name, dtype in known.items() if getattr(dtype, "unit", "") != "ns"}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_columns_of_a_writer_have_the_values_that_pyarrow_finds(path: Path, tmp_path: Path) -> None:
    if "(file)" in REFUSED.get(path.stem, ()):
        with pytest.raises(ScanError, match="encrypted"):
            footer_of(str(path), path.stat().st_size)
        return
    known = known_columns(footer_of(str(path), path.stat().st_size))
    schema = pa.schema(known.items())
    refused = {name for name in known if obstacles(path, schema.field(name))}
    assert refused == REFUSED.get(path.stem, set()) & known.keys()
    rest = [field for field in schema if field.name not in refused | CORRUPT.get(path.stem, set())]
    assert rest, "a column is read"
    scan = Scan(pa.schema(rest), slices=(file_slice(path),))
    actual = pa.Table.from_batches(run(scan), scan.schema)
    if "encrypted" in path.stem and int(pa.__version__.split(".")[0]) < 26:
        pytest.skip(f"PyArrow {pa.__version__} reads nothing of a file with an encrypted column")
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(path.read_bytes())
    claim_arrow_schema(copy, None)
    with pq.ParquetFile(copy, coerce_int96_timestamp_unit="us") as file:
        expected = file.read([field.name for field in rest]).select(scan.schema.names)
    assert_same_rows(actual, expected.cast(scan.schema))


def obstacles(path: Path, field: pa.Field) -> tuple[str, ...]:
    scan = Scan(pa.schema([field]), slices=(file_slice(path),))
    (footer,) = read_footers(scan, [str(path)])
    return footer.obstacles


def test_polars_is_not_asked_of_a_file_at_which_it_panics(capfd: pytest.CaptureFixture[str]) -> None:
    """What a Rust library prints in a panic cannot be caught."""
    for name in ("duckdb-1.5.5-zstd", "parquet-mr-1.17.0-converted"):
        path = SAMPLES[0].with_name(f"{name}.parquet")
        scan = Scan(pa.schema([("id", pa.int64())]), slices=(file_slice(path),))
        assert sum(batch.num_rows for batch in run(scan)) == 24
    assert "panicked" not in capfd.readouterr().err
