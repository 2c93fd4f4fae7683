"""What a Parquet file says of itself, beside its Parquet schema, changes no value that is read of it."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.backends.cpu.pipeline.decoding import polars_decodes
from gpujoin.backends.parquet.footers import footer_of, sources_of
from gpujoin.engine.pipeline.support import read_footers
from gpujoin.model.aggregates import AggregateFunction as Agg
from gpujoin.model.expressions import EvalMode, left
from gpujoin.model.pipeline import Rung
from gpujoin.model.relations import Scan
from gpujoin.model.types import logical
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.engine.pipeline.places import everywhere, run
from tests.footers import (
    ElementField,
    Fields,
    FileField,
    StatisticsField,
    claim_arrow_schema,
    claim_no_nulls_in_pages,
    claim_sorting,
    long,
    rewriting,
    set_facts,
    sorted_by,
    statistics,
)
from tests.trees import Aggregate, Tree, file_slice

STORED: dict[str, tuple[pa.DataType, list[Any], dict[str, Any]]] = {
    "bool": (pa.bool_(), [True, False], {}),
    "int8": (pa.int8(), [1, -2], {}),
    "int16": (pa.int16(), [1, -2], {}),
    "int32": (pa.int32(), [1, -2], {}),
    "int64": (pa.int64(), [1_700_000_000, -2], {}),
    "uint8": (pa.uint8(), [1, 200], {}),
    "uint32": (pa.uint32(), [1, 4_000_000_000], {}),
    "float": (pa.float32(), [1.5, -2.0], {}),
    "double": (pa.float64(), [1.5, -2.0], {}),
    "string": (pa.string(), ["a", "bb"], {}),
    "binary": (pa.binary(), [b"a", b"bb"], {}),
    "no text": (pa.binary(), [b"a", b"\xff"], {}),
    "two bytes": (pa.binary(2), [b"ab", b"\xff1"], {}),
    "date": (pa.date32(), [1, -20_000], {}),
    "milliseconds": (pa.timestamp("ms"), [1_700_000_000_123, -2], {}),
    "microseconds": (pa.timestamp("us"), [1_700_000_000_123_456, -2], {}),
    "milliseconds of UTC": (pa.timestamp("ms", "UTC"), [1_700_000_000_123, -2], {}),
    "microseconds of UTC": (pa.timestamp("us", "UTC"), [1_700_000_000_123_456, -2], {}),
    "int96": (pa.timestamp("us", "UTC"), [1_700_000_000_123_456, -2], {"use_deprecated_int96_timestamps": True}),
    "decimal": (pa.decimal128(5, 2), [Decimal("1.25"), Decimal("-2.50")], {}),
    "decimal of int32": (pa.decimal128(5, 2), [Decimal("1.25"), Decimal("-2.50")], {"store_decimal_as_integer": True}),
    "decimal of int64": (pa.decimal128(15, 2), [Decimal("1.25"), Decimal("-2.50")], {"store_decimal_as_integer": True}),
    "wide decimal": (pa.decimal128(30, 2), [Decimal("1.25"), Decimal("-2.50")], {}),
    "list": (pa.list_(pa.int64()), [[1, 2], [3, 4]], {}),
    "struct": (pa.struct([("x", pa.int64()), ("s", pa.string())]), [{"x": 1, "s": "a"}, {"x": None, "s": "b"}], {}),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], []], {}),
}  # fmt: skip
"""Columns by what they are in the Parquet schema: type, values, and how they are written."""

CLAIMS = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.string_view(), pa.binary(),
    pa.large_binary(), pa.binary_view(), pa.binary(2), pa.binary(16), pa.date32(), pa.date64(), pa.timestamp("s"),
    pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "UTC"),
    pa.timestamp("ms", "+05:30"), pa.timestamp("us", "Europe/Berlin"), pa.time32("s"), pa.time32("ms"), pa.time64("us"),
    pa.time64("ns"), pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns"),
    pa.month_day_nano_interval(), pa.decimal32(5, 2), pa.decimal64(15, 2), pa.decimal128(5, 2), pa.decimal128(7, 3),
    pa.decimal256(30, 2), pa.null(), pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.uint8(), pa.binary()),
    pa.dictionary(pa.int32(), pa.int64()), pa.dictionary(pa.int32(), pa.timestamp("s")),
    pa.dictionary(pa.int32(), pa.float16()), pa.list_(pa.int64()), pa.list_(pa.int64(), 2), pa.large_list(pa.int64()),
    pa.list_(pa.timestamp("s")), pa.struct([("x", pa.duration("s"))]), pa.map_(pa.string(), pa.duration("s")),
    pa.run_end_encoded(pa.int32(), pa.int64()), pa.uuid(), pa.json_(),
]  # fmt: skip


def column(name: str) -> pa.Array:
    dtype, values, _ = STORED[name]
    if pa.types.is_date(dtype) or pa.types.is_timestamp(dtype):
        whole = pa.array([*values, None], pa.int32() if pa.types.is_date(dtype) else pa.int64())
        return whole.cast(dtype)
    return pa.array([*values, None], dtype)


def written_plainly(folder: Path) -> list[tuple[Path, pa.Table]]:
    """Files with all of these columns, without an Arrow schema, one for each way to write; and their rows."""
    files = []
    ways = sorted(STORED, key=lambda name: str(STORED[name][2]))
    for n, (_, names) in enumerate(itertools.groupby(ways, key=lambda name: str(STORED[name][2]))):
        table = pa.table({name: column(name) for name in names})
        path = folder / f"{n}.parquet"
        pq.write_table(table, path, store_schema=False, **STORED[table.column_names[0]][2])
        files.append((path, table.cast(pa.schema([(f.name, planned(f.type)) for f in table.schema]))))
    return files


def planned(dtype: pa.DataType) -> pa.DataType:
    """The type that Spark gives to a type of files."""
    wider = {pa.uint8(): pa.int16(), pa.uint32(): pa.int64(), pa.timestamp("ms"): pa.timestamp("us")}
    zoned = pa.types.is_timestamp(dtype) and dtype.tz is not None
    return pa.timestamp("us", "UTC") if zoned else wider.get(dtype, logical(dtype))


def read(path: Path, schema: pa.Schema, rung: Rung | None = None) -> pa.Table:
    scan = Scan(schema, slices=(file_slice(path),))
    (footer,) = read_footers(scan, [str(path)])
    assert footer.obstacles == ()
    return pa.Table.from_batches(run(scan, rung=rung), schema)


on_the_cpu_first = pytest.mark.parametrize(
    "place",
    ["cpu", pytest.param("twin", marks=pytest.mark.extra), pytest.param("gpu", marks=pytest.mark.gpu)],
    indirect=True,
)


@on_the_cpu_first
def test_an_arrow_schema_in_a_file_changes_no_value(tmp_path: Path) -> None:
    """Each type that may be claimed, of each column that may be stored."""
    for path, table in written_plainly(tmp_path):
        for claim in [None, *CLAIMS]:
            claimed = None if claim is None else pa.schema([(name, claim) for name in table.column_names])
            claim_arrow_schema(path, claimed)
            assert_same_rows(read(path, table.schema), table)


@pytest.mark.parametrize("rung", [Rung.FAST, Rung.ARROW_SCANS, Rung.CAREFUL], ids=str)
def test_an_arrow_schema_of_other_columns_changes_no_value(rung: Rung, tmp_path: Path) -> None:
    path, seconds = tmp_path / "f.parquet", pa.duration("s")
    table = pa.table({"a": [1, 2], "b": [3, 4], "s": ["x", "y"], "l": pa.array([[1, 2], [3, 4]])})
    pq.write_table(table, path, store_schema=False)
    columns = {"a": pa.int64(), "b": pa.int64(), "s": pa.string(), "l": pa.list_(pa.int64())}
    claims = {
        "other order": {"l": pa.list_(pa.int64(), 2), "s": pa.binary(), "b": seconds, "a": seconds},
        "fewer": {"b": seconds},
        "none": {},
        "more": {"z": seconds, **columns, "b": seconds},
        "other names": {"A": seconds, "B": seconds, "S": pa.binary(), "l": pa.list_(pa.int64())},
    }
    for claim in claims.values():
        claim_arrow_schema(path, pa.schema(list(claim.items())))
        assert_same_rows(read(path, table.schema, rung), table)
    same_name = pa.schema([("a", seconds), ("a", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int64()))])
    claim_arrow_schema(path, same_name)
    assert_same_rows(read(path, table.schema, rung), table)
    for damaged in (b"", b"AAAA", b"no base64!", b"/////w==", base64.b64encode(b"\xff" * 64)):
        with rewriting(path) as footer:
            set_facts(footer, {b"ARROW:schema": damaged})
        assert_same_rows(read(path, table.schema, rung), table)


def test_categories_that_a_file_claims_make_no_text_null(tmp_path: Path) -> None:
    """Polars keeps the values of an ``Enum`` in the Arrow schema, and reads a text that is not among them as null."""
    path = tmp_path / "f.parquet"
    table = pa.table({"s": pa.array(["x", "y", None, "x"]).dictionary_encode()})
    pq.write_table(table, path)
    claim = pa.dictionary(pa.uint8(), pa.large_string(), ordered=True)
    claim_arrow_schema(path, pa.schema([pa.field("s", claim, metadata={"_PL_ENUM_VALUES2": "1;q1;x"})]))
    assert pl.read_parquet(path)["s"].to_list() == ["x", None, None, "x"]
    assert read(path, pa.schema([("s", pa.string())]))["s"].to_pylist() == ["x", "y", None, "x"]


def by_polars(path: Path) -> None:
    columns = {
        "n": pl.Series([1, 2], dtype=pl.Int16), "s": pl.Series(["a", "b"]), "b": pl.Series([b"a", b"b"]),
        "c": pl.Series(["a", "b"], dtype=pl.Categorical), "t": pl.Series([1, 2]).cast(pl.Datetime("us")),
        "d": pl.Series([1, 2], dtype=pl.Int32).cast(pl.Date), "p": pl.Series([1, 2]).cast(pl.Decimal(9, 2)),
    }  # fmt: skip
    pl.DataFrame(columns).write_parquet(path)


def by_pyarrow(path: Path) -> None:
    columns = {
        "n": pa.array([1, 2], pa.int16()), "s": pa.array(["a", "b"], pa.large_string()),
        "b": pa.array([b"a", b"b"], pa.binary_view()), "c": pa.array(["a", "b"]).dictionary_encode(),
        "t": pa.array([1, 2], pa.timestamp("s", "Europe/Paris")), "d": pa.array([1, 2], pa.int32()).cast(pa.date32()),
        "p": pa.array([Decimal(1), Decimal(2)], pa.decimal128(9, 2)),
    }  # fmt: skip
    pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize("write", [by_polars, by_pyarrow])
def test_polars_decodes_ordinary_files(write: Callable[[Path], None], tmp_path: Path) -> None:
    """Those whose Arrow schema only says in other words what the Parquet schema says."""
    path = tmp_path / "f.parquet"
    write(path)
    parquet = footer_of(str(path), path.stat().st_size)
    schema = pa.schema([(leaf.path[0], planned(leaf.arrow)) for leaf in parquet.leaves])
    assert polars_decodes(parquet, sources_of(Scan(schema, slices=()), parquet))


ROWS = pa.table({"a": [1, 2, 3, 4, 5, 6], "b": [2, 1, 2, 1, 3, 2], "s": list("babaca")})


@everywhere
@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_an_order_that_a_file_claims_is_not_believed(descending: bool, tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(ROWS, path)
    claim_sorting(path, [sorted_by(leaf, descending=descending) for leaf in (1, 2, 0)])
    assert pl.read_parquet(path)["b"].max() == 2 or pl.read_parquet(path)["b"].min() == 2, "Polars believes it"
    schema = ROWS.schema
    scan = Scan(schema, slices=(file_slice(path),))
    calls = {f"{f.value} {c}": Aggregate(f, (left(c),)) for f in (Agg.MIN, Agg.MAX) for c in ("a", "b", "s")}
    extremes = Tree(scan).group(**calls)
    (row,) = pa.Table.from_batches(run(extremes.relation), extremes.schema).to_pylist()
    assert list(row.values()) == [1, 1, "a", 6, 3, "c"]
    for condition, rows in ((left("b") == 3, [5]), (left("b") >= 2, [1, 3, 5, 6]), (left("s") < "b", [2, 4, 6])):
        filtered = Scan(schema, filters=(resolve(condition, schema, schema, mode=EvalMode.ANSI),), slices=scan.slices)
        assert sorted(pa.Table.from_batches(run(filtered), schema)["a"].to_pylist()) == rows


@everywhere
def test_numbers_of_nulls_and_values_that_a_file_claims_change_no_row(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, None, 3, None], pa.int64()), "s": ["a", None, "b", None], "r": range(4)})
    path = tmp_path / "f.parquet"
    for nulls in (None, 0, 4, 2):
        pq.write_table(table, path)
        with rewriting(path) as footer:
            for claim in (*statistics(footer, 0), *statistics(footer, 1)):
                claim[StatisticsField.DISTINCT] = long(1)
                claim[StatisticsField.MAX_IS_EXACT] = claim[StatisticsField.MIN_IS_EXACT] = True
                if nulls is None:
                    del claim[StatisticsField.NULLS]
                else:
                    claim[StatisticsField.NULLS] = long(nulls)
        assert_same_rows(read(path, table.schema), table)


@pytest.mark.parametrize("rung", [Rung.FAST, Rung.CAREFUL], ids=str)
@pytest.mark.parametrize("physical", [pa.bool_(), pa.int32(), pa.string()], ids=str)
def test_a_void_column_is_null_and_the_others_are_read(physical: pa.DataType, rung: Rung, tmp_path: Path) -> None:
    """Spark 4.3 marks a column of BOOLEAN as ``UNKNOWN``, PyArrow one of INT32; Polars opens the latter only."""
    table = pa.table({"v": pa.nulls(3, physical), "n": [1, 2, 3], "l": pa.array([[1], None, []], pa.list_(pa.int64()))})
    path = tmp_path / "f.parquet"
    pq.write_table(table, path, store_schema=False)
    with rewriting(path) as footer:
        element = footer[FileField.SCHEMA][1]
        element.pop(ElementField.CONVERTED, None)
        element[ElementField.LOGICAL] = Fields({11: Fields()})
    void = table.set_column(0, "v", pa.nulls(3))
    for names in (["n"], ["v"], ["n", "v"], ["v", "l"], ["l", "n"]):
        expected = void.select(names)
        assert read(path, expected.schema, rung).to_pylist() == expected.to_pylist()


def test_statistics_are_used_only_where_they_may_be(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2, 3]})
    path = tmp_path / "f.parquet"
    pq.write_table(table, path)
    with rewriting(path) as footer:
        for claim in statistics(footer, 0):
            for number in (StatisticsField.OLD_MIN, StatisticsField.MIN, StatisticsField.OLD_MAX, StatisticsField.MAX):
                claim[number] = (9).to_bytes(8, "little")
    schema = table.schema
    above = resolve(left("n") > 1, schema, schema, mode=EvalMode.ANSI)
    below = resolve(left("n") < 3, schema, schema, mode=EvalMode.ANSI)
    for by_statistics, rows in ((True, []), (False, [2])):
        scan = Scan(schema, filters=(above, below), slices=(file_slice(path),), by_statistics=by_statistics)
        assert pa.Table.from_batches(run(scan), schema)["n"].to_pylist() == rows


NAMES = [
    "",
    "*",
    "^a.*$",
    "a.b",
    "a",
    "`x`",
    "a b",
    "é",
    "日本",
    "a\nb",
    '"',
    "[0]",
    "%41",
    "#",
    "~",
    "\\",
    "a/b",
    "len",
    "c0",
    "row",
]


@everywhere
def test_columns_of_any_name_in_a_file_of_any_name(tmp_path: Path) -> None:
    path = tmp_path / "data [v1] {x}*%20?#~ é" / "f [1].parquet"
    path.parent.mkdir()
    columns: dict[str, Any] = {name: [n, None, n + 1] for n, name in enumerate(NAMES)}
    pq.write_table(pa.table({**columns, "a": pa.array([{"b": 1}, None, {"b": 2}])}), path)
    expected = pa.table({name: values for name, values in columns.items() if name != "a"})
    assert_same_rows(read(path, expected.schema), expected)
    for name in expected.column_names:
        assert_same_rows(read(path, expected.select([name]).schema), expected.select([name]))


@everywhere
def test_numbers_of_nulls_in_headers_of_pages_are_not_believed(tmp_path: Path) -> None:
    """Old PyArrow states 0 of dictionaries with nulls in pages of the second version."""
    path = tmp_path / "f.parquet"
    table = pa.table({"s": ["red", None, "green", "red", None, "blue", "red", None], "r": range(8)})
    pq.write_table(table, path, data_page_version="2.0")
    claim_no_nulls_in_pages(path, 0)
    assert pl.read_parquet(path)["s"].null_count() == 0, "Polars believes it"
    assert_same_rows(read(path, table.schema), table)
