"""Scans of Parquet files: types, pruning, splits, and files that are not as planned."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from gpujoin.engine.pipeline.support import read_footers
from gpujoin.errors import ScanError
from gpujoin.model.expressions import EvalMode, Expression, left
from gpujoin.model.jointype import JoinType
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import ExchangeSource, FileSlice, Filter, Join, Limit, Relation, Scan
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve
from gpujoin.plan.scanned import plan_splits
from gpujoin.testing import assert_same_rows
from tests.engine.pipeline.places import everywhere, run, whole
from tests.expressions.values import VALUES
from tests.trees import file_slice

D = Decimal
NUMBERS = pa.table({"i": pa.array(range(1000)), "s": [f"row {i:04d}" for i in range(1000)]})


def written(folder: Path, table: pa.Table, name: str = "data.parquet", **options: Any) -> Path:
    path = folder / name
    pq.write_table(table, path, **options)
    return path


def scanned(tree: Relation, metrics: PipelineMetrics | None = None, **options: Any) -> pa.Table:
    return pa.Table.from_batches(run(tree, metrics=metrics, **options), tree.schema)


def scan_of(path: Path, schema: pa.Schema, where: Expression | None = None, **parts: Any) -> Scan:
    filters = () if where is None else (resolve(where, schema, schema, mode=EvalMode.ANSI),)
    return Scan(schema, filters=filters, slices=(file_slice(path, **parts),))


@everywhere
@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_columns_of_files_may_have_any_names(how: str, tmp_path: Path) -> None:
    """Pieces name columns by themselves: c0, c1, … are names of columns in many files."""
    count = 3
    wide = pa.table({"k": range(count), **{f"c{i}": pa.array(range(i, i + count), pa.int64()) for i in range(300)}})
    other = pa.table({"k": range(count), "w": [-1, -2, -3]})
    stream, build = written(tmp_path, wide, "wide.parquet"), written(tmp_path, other, "other.parquet")
    spec = JoinSpec(JoinType(how), (KeyPair(0, 0),), left_output=(1, 2), right_output=(1,))
    selected = scan_of(stream, pa.schema([wide.schema.field(name) for name in ("k", "c7", "c250")]))
    tree = Join(selected, dataclasses.replace(scan_of(build, other.schema), index=1), spec)
    assert sorted(scanned(tree).to_pylist(), key=lambda row: row["c7"]) == [
        {"c7": 7 + n, "c250": 250 + n, "w": -1 - n} for n in range(count)
    ]


KINDS = [kind for kind in VALUES if kind not in ("struct", "odd_str", "num_str", "word", "date_str")]


@pytest.mark.few(2)
@everywhere
@pytest.mark.parametrize(
    "options",
    [{}, {"use_dictionary": False, "version": "1.0"}, {"store_decimal_as_integer": True}, {"compression": "zstd"},
     {"data_page_version": "2.0", "write_statistics": False}, {"row_group_size": 3}],
    ids=["default", "plain", "decimals as integers", "zstd", "no statistics", "small groups"],
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_type(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    dtype, values = VALUES[kind]
    table = pa.table({"c": pa.array(values, dtype), "n": pa.array(range(len(values)), pa.int32())})
    path = written(tmp_path, table, coerce_timestamps="us", **options)
    assert_same_rows(scanned(scan_of(path, table.schema)), table)


@everywhere
def test_int96_timestamps(tmp_path: Path) -> None:
    stamps = [
        None,
        dt.datetime(1900, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2200, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    ]
    table = pa.table({"t": pa.array(stamps, pa.timestamp("us", "UTC")), "n": [1, 2, 3]})
    path = written(tmp_path, table, use_deprecated_int96_timestamps=True)
    assert pq.ParquetFile(path).schema.column(0).physical_type == "INT96"
    wanted = pa.schema([("t", pa.timestamp("us", "Europe/Berlin")), ("n", pa.int64())])
    result = scanned(scan_of(path, wanted))
    assert result.schema == wanted
    assert result["t"].cast(pa.int64()).to_pylist() == table["t"].cast(pa.int64()).to_pylist()


def test_int96_timestamps_before_the_first_julian_day_are_refused(tmp_path: Path) -> None:
    """PyArrow takes the day for one in the far future."""
    day = 86_400_000_000
    old, first = -300_000_000_000_000_000, -2_440_587 * day
    for micros, refused in ((old, True), (first - day - 1, True), (first, False)):
        table = pa.table({"t": pa.array([0, micros, None]).cast(pa.timestamp("us", "UTC"))})
        path = written(tmp_path, table, use_deprecated_int96_timestamps=True)
        if refused:
            with pytest.raises(ScanError, match=r"data\.parquet: column 't' has a timestamp before"):
                scanned(scan_of(path, table.schema))
        else:
            assert scanned(scan_of(path, table.schema))["t"].cast(pa.int64()).to_pylist() == [0, micros, None]


def nested_stamps(micros: list[int | None]) -> pa.Table:
    """Columns of lists, structs and maps with these timestamps, and one of whole days; all but the days with nulls."""
    stamps = pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC"))
    places = pa.array(range(len(micros)), pa.int32())
    offsets = pa.array([*range(len(micros)), len(micros)], pa.int32())
    missing = pa.array([n % 5 == 4 for n in range(len(micros))], pa.bool_())
    structs = pa.StructArray.from_arrays([places, stamps], ["n", "t"], mask=missing)
    return pa.table({
        "s": structs, "l": pa.ListArray.from_arrays(offsets, stamps), "ls": pa.ListArray.from_arrays(offsets, structs),
        "m": pa.MapArray.from_arrays(offsets, places, stamps), "k": places,
    })  # fmt: skip


@everywhere
def test_nested_int96_timestamps(tmp_path: Path, rng: np.random.Generator) -> None:
    """Also out of the range of nanoseconds, within which PyArrow keeps these timestamps by default."""
    first = -2_440_587 * 86_400_000_000
    late, near = rng.integers(first, 1 << 62, 30).tolist(), rng.integers(-(1 << 53), 1 << 53, 30).tolist()
    table = nested_stamps([None, 0, -1, 1, first, *late, *near])
    path = written(tmp_path, table, use_deprecated_int96_timestamps=True, row_group_size=40)
    physical = [pq.ParquetFile(path).schema.column(n).physical_type for n in range(7)]
    assert physical.count("INT96") == 4
    scan = scan_of(path, table.schema)
    [footer] = read_footers(scan, [str(path)])
    assert footer.obstacles == ()
    result = scanned(scan)
    assert result.schema == table.schema
    assert result.equals(table)


@pytest.mark.parametrize("column", ["s", "l", "ls", "m"])
def test_nested_int96_timestamps_before_the_first_julian_day_are_refused(column: str, tmp_path: Path) -> None:
    path = written(tmp_path, nested_stamps([0, None, -300_000_000_000_000_000]), use_deprecated_int96_timestamps=True)
    schema = pq.read_schema(path)
    with pytest.raises(ScanError, match=f"column '{column}' has a timestamp before the year -4712"):
        scanned(scan_of(path, pa.schema([nested_stamps([]).schema.field(column)])))
    assert scanned(scan_of(path, pa.schema([schema.field("k")]))).num_rows == 3


@everywhere
def test_unsigned_numbers_bytes_of_one_length_and_floats_as_doubles(tmp_path: Path) -> None:
    unsigned = {
        f"u{bits}": pa.array([0, (1 << bits) - 1, None], getattr(pa, f"uint{bits}")()) for bits in (8, 16, 32, 64)
    }
    table = pa.table({
        **unsigned,
        "b": pa.array([b"abc", None, b"a\xff\0"], pa.binary(3)),
        "f": pa.array([0.1, None, -0.0], pa.float32()),
    })  # fmt: skip
    types = [pa.int16(), pa.int32(), pa.int64(), pa.decimal128(20, 0), pa.binary(), pa.float64()]
    wanted = pa.schema(list(zip(table.column_names, types, strict=True)))
    assert_same_rows(scanned(scan_of(written(tmp_path, table), wanted)), table.cast(wanted))


@everywhere
def test_milliseconds_and_narrow_integers(tmp_path: Path) -> None:
    table = pa.table({
        "t": pa.array([1, -1, None], pa.timestamp("ms")), "i": pa.array([1, None, -(1 << 31)], pa.int32()),
        "d": pa.array([D("1.25"), None, D("-9.99")], pa.decimal128(3, 2)),
    })  # fmt: skip
    wanted = pa.schema([("t", pa.timestamp("us")), ("i", pa.int64()), ("d", pa.decimal128(20, 2))])
    result = scanned(scan_of(written(tmp_path, table), wanted))
    assert_same_rows(result, table.cast(wanted))


@everywhere
@pytest.mark.parametrize("sign", [1, -1])
def test_milliseconds_that_overflow_in_microseconds_are_an_error(sign: int, tmp_path: Path) -> None:
    most = ((1 << 63) - 1) // 1000
    wanted = pa.schema([("t", pa.timestamp("us", "UTC"))])
    table = pa.table({"t": pa.array([sign * most, None, 0], pa.timestamp("ms", "UTC"))})
    assert_same_rows(scanned(scan_of(written(tmp_path, table), wanted)), table.cast(wanted))
    table = pa.table({"t": pa.array([sign * (most + 1), None, 0], pa.timestamp("ms", "UTC"))})
    with pytest.raises(ScanError, match=r"data\.parquet: .*(conversion|overflows)"):
        scanned(scan_of(written(tmp_path, table), wanted))


@everywhere
def test_views_and_dictionaries(tmp_path: Path) -> None:
    texts = ["a", None, "long enough to be out of line", ""]
    layouts = {"v": pa.string_view(), "d": pa.dictionary(pa.int32(), pa.string()), "l": pa.large_string()}
    table = pa.table({name: pa.array(texts).cast(layout) for name, layout in layouts.items()})
    wanted = pa.schema([(name, pa.string()) for name in table.column_names])
    result = scanned(scan_of(written(tmp_path, table), wanted))
    assert result.schema == wanted
    assert all(result[name].to_pylist() == texts for name in result.column_names)


@everywhere
def test_names_match_without_case_and_absent_columns_are_null(tmp_path: Path) -> None:
    path = written(tmp_path, pa.table({"Key": [1, 2]}))
    wanted = pa.schema([("KEY", pa.int64()), ("other", pa.decimal128(10, 2))])
    assert scanned(scan_of(path, wanted)).to_pydict() == {"KEY": [1, 2], "other": [None, None]}
    exact = Scan(wanted, slices=(file_slice(path),), case_sensitive=True)
    assert scanned(exact).to_pydict() == {"KEY": [None, None], "other": [None, None]}
    twice = written(tmp_path, pa.table([[1], [2]], names=["a", "A"]), "twice.parquet")
    with pytest.raises(ScanError, match=r"twice\.parquet: columns \['a', 'A'\] all fit"):
        scanned(scan_of(twice, pa.schema([("a", pa.int64())])))


def test_names_of_nested_fields_match_without_case_but_where_case_counts(tmp_path: Path) -> None:
    rows = [{"s": {"A": 1, "b": [{"C": 5}]}}, {"s": {"A": None, "b": None}}, {"s": None}]
    path = written(tmp_path, pa.Table.from_pylist(rows))

    def planned(case: str) -> pa.Schema:
        inner = pa.list_(pa.struct([(case, pa.int64())]))
        return pa.schema([("s", pa.struct([("b", inner), ("A" if case == "C" else "a", pa.int64())]))])

    expected = [{"b": [{"c": 5}], "a": 1}, {"b": None, "a": None}, None]
    assert scanned(scan_of(path, planned("c")))["s"].to_pylist() == expected
    exact = Scan(planned("C"), slices=(file_slice(path),), case_sensitive=True)
    assert scanned(exact)["s"].to_pylist()[0] == {"b": [{"C": 5}], "A": 1}
    with pytest.raises(ScanError, match=r"data\.parquet: column 's' is struct<A"):
        scanned(Scan(planned("c"), slices=(file_slice(path),), case_sensitive=True))
    twice = written(tmp_path, pa.Table.from_pylist([{"s": {"a": 1, "A": 2}}]), "twice.parquet")
    both = pa.schema([("s", pa.struct([("A", pa.int64()), ("a", pa.int64())]))])
    exact = Scan(both, slices=(file_slice(twice),), case_sensitive=True)
    assert scanned(exact)["s"].to_pylist() == [{"A": 2, "a": 1}]
    with pytest.raises(ScanError, match=r"twice\.parquet: column 's' is struct<a"):
        scanned(scan_of(twice, both))


@everywhere
def test_partition_columns_are_constants_of_the_file(tmp_path: Path) -> None:
    first_file, second_file = (written(tmp_path, NUMBERS.slice(10 * i, 10), f"{i}.parquet") for i in range(2))
    schema = pa.schema([("i", pa.int64()), ("day", pa.date32()), ("p", pa.string()), ("d", pa.decimal128(9, 2))])
    slices = (
        file_slice(first_file, constants=(dt.date(2024, 1, 2), "x", D("1.50"))),
        file_slice(second_file, constants=(None, None, None)),
    )  # fmt: skip
    result = scanned(Scan(schema, partition_columns=3, slices=slices))
    assert result.schema == schema
    assert result.to_pylist()[0] == {"i": 0, "day": dt.date(2024, 1, 2), "p": "x", "d": D("1.50")}
    assert result.to_pylist()[-1] == {"i": 19, "day": None, "p": None, "d": None}
    metrics = PipelineMetrics()
    where = resolve(left("p") == "y", schema, schema, mode=EvalMode.ANSI)
    assert scanned(Scan(schema, partition_columns=3, slices=slices, filters=(where,)), metrics).num_rows == 0
    assert metrics.row_groups == 0, "a file was read whose constants already exclude it"
    only = Scan(
        pa.schema([("p", pa.string())]),
        partition_columns=1,
        slices=(file_slice(first_file, constants=("x",)),),
    )
    assert scanned(only).to_pydict() == {"p": ["x"] * 10}


@everywhere
def test_no_columns_are_rows_all_the_same(tmp_path: Path) -> None:
    path = written(tmp_path, NUMBERS)
    assert sum(b.num_rows for b in run(scan_of(path, pa.schema([])))) == 1000
    tree = Limit(scan_of(path, pa.schema([])), 7)
    assert sum(b.num_rows for b in run(tree)) == 7


FILTERS: list[tuple[Expression, int]] = [
    (left("i") == 250, 1), (left("i") < 100, 1), (left("i") <= 100, 2), (left("i") > 899, 1), (left("i") >= 899, 2),
    (left("i").is_in([5, 995]), 2), (left("s") == "row 0555", 1), (left("s") >= "row 0950", 1),
    (left("i").is_null(), 0), (left("i").is_not_null(), 10), ((left("i") < 50) | (left("s") > "row 0949"), 2),
    ((left("i") > 250) & (left("i") < 260), 1), (left("i") == None, 0),  # noqa: E711
    (left("i") % 2 == 0, 10), (left("s").like("%5"), 10),
]  # fmt: skip


@everywhere
@pytest.mark.parametrize(("where", "groups"), FILTERS, ids=str)
def test_row_groups_are_skipped_by_statistics(where: Expression, groups: int, tmp_path: Path) -> None:
    path = written(tmp_path, NUMBERS, row_group_size=100)
    metrics = PipelineMetrics()
    tree = scan_of(path, NUMBERS.schema, where)
    result = scanned(tree, metrics)
    assert (metrics.row_groups, metrics.skipped_row_groups) == (groups, 10 - groups)
    bare = scanned(scan_of(path, NUMBERS.schema))
    other = scanned(Filter(ExchangeSource(0, NUMBERS.schema), tree.filters[0]), inputs={0: bare})
    assert_same_rows(result, other, allow_empty=True)


@everywhere
def test_nan_is_beyond_all_statistics(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([1.0, float("nan"), 2.0])})
    path = written(tmp_path, table)
    result = scanned(scan_of(path, table.schema, left("x") > 5.0))
    assert result.num_rows == 1


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("piece_bytes", [pytest.param(1, marks=pytest.mark.extra), 1 << 13, 1 << 30])
def test_slices_of_a_file_make_up_the_file(piece_bytes: int, tmp_path: Path) -> None:
    path = written(tmp_path, NUMBERS, row_group_size=90)
    size = path.stat().st_size
    scan = scan_of(path, NUMBERS.schema)
    for tasks in (1, 3, 5, 50) if piece_bytes > 1 else (3,):  # a piece of each row takes its time
        [footer] = read_footers(scan, [str(path)])
        assert sum(footer.rows) == 1000
        splits = plan_splits([whole(footer)], [footer], tasks, 1 << 30)
        parts = [scanned(scan, slices={0: split}, piece_bytes=piece_bytes) for split in splits]
        assert_same_rows(pa.concat_tables(parts), NUMBERS)
        cuts = [size * i // tasks for i in range(tasks + 1)]
        ranges = [file_slice(path, byte_range=pair) for pair in itertools.pairwise(cuts)]
        parts = [scanned(scan, slices={0: [part]}, piece_bytes=piece_bytes) for part in ranges]
        assert_same_rows(pa.concat_tables(parts), NUMBERS)
    slices = scanned(scan_of(path, NUMBERS.schema, row_groups=(0, 2, 3)), piece_bytes=piece_bytes)
    assert slices["i"].to_pylist() == [*range(90), *range(180, 360)]


def _truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def _damage(path: Path) -> None:
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * 64)


def _no_parquet(path: Path) -> None:
    path.write_bytes(b"not a Parquet file at all" * 10)


@everywhere
@pytest.mark.parametrize(
    "damage", [_truncate, pytest.param(_damage, marks=pytest.mark.falls_back), _no_parquet],
    ids=["truncated", "corrupt", "other"],
)  # fmt: skip
def test_damaged_files_are_named(damage: Callable[[Path], None], tmp_path: Path) -> None:
    good, bad = written(tmp_path, NUMBERS, "good.parquet"), written(tmp_path, NUMBERS, "bad.parquet")
    damage(bad)
    tree = Scan(NUMBERS.schema, slices=(file_slice(bad), file_slice(good)))
    with pytest.raises(ScanError, match=r"bad\.parquet: "):
        list(run(tree))


@everywhere
def test_files_that_are_not_as_planned_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, NUMBERS)
    planned = file_slice(path)
    tree = Scan(NUMBERS.schema, slices=(planned,))
    os.utime(path, (1, 1))
    with pytest.raises(ScanError, match=r"data\.parquet: has changed since the query was planned"):
        list(run(tree))
    other = FileSlice(planned.path, planned.size + 1)
    with pytest.raises(ScanError, match="has changed"):
        list(run(Scan(NUMBERS.schema, slices=(other,))))
    path.unlink()
    with pytest.raises(ScanError, match=r"data\.parquet: No such file"):
        list(run(tree))
    with pytest.raises(ScanError, match=r"data\.parquet: No such file"):
        read_footers(tree, [str(path)])


@everywhere
def test_a_file_changed_while_it_was_read_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, NUMBERS, row_group_size=10)
    batches = run(scan_of(path, NUMBERS.schema), piece_bytes=1)
    next(batches)
    os.utime(path, (1, 1))
    with pytest.raises(ScanError, match="has changed"):
        list(batches)


@everywhere
@pytest.mark.parametrize(
    ("file_type", "wanted"),
    [
        (pa.int64(), pa.int32()), (pa.string(), pa.int64()), (pa.decimal128(9, 3), pa.decimal128(9, 2)),
        (pa.decimal128(10, 2), pa.decimal128(9, 2)), (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ns"), pa.timestamp("us")), (pa.binary(), pa.string()), (pa.uint32(), pa.int32()),
        (pa.list_(pa.int64()), pa.int64()), (pa.float64(), pa.float32()),
    ],
    ids=str,
)  # fmt: skip
def test_other_types_than_planned_are_refused(file_type: pa.DataType, wanted: pa.DataType, tmp_path: Path) -> None:
    path = written(tmp_path, pa.table({"c": pa.nulls(3, file_type)}))
    scan = scan_of(path, pa.schema([("c", wanted)]))
    with pytest.raises(ScanError, match=r"data\.parquet: column 'c' is .*planned as"):
        list(run(scan))
    [footer] = read_footers(scan, [str(path)])
    assert len(footer.obstacles) == 1


def nested_table(rng: np.random.Generator, rows: int = 300) -> pa.Table:
    """Nested columns, a flat one, and structs of which a table reads fewer fields, in another spelling."""

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.2 else value

    def many(make: Callable[[], Any]) -> Any:
        return maybe([make() for _ in range(rng.integers(4))])

    def struct() -> Any:
        return maybe({"a": maybe(int(rng.integers(9))), "B": many(lambda: maybe("ü")), "c": maybe(1.5)})

    whole = pa.struct([("a", pa.int32()), ("B", pa.list_(pa.string())), ("c", pa.float64())])
    return pa.table({
        "k": pa.array([maybe(n) for n in range(rows)], pa.int64()),
        "l": pa.array([many(lambda: maybe(7)) for _ in range(rows)], pa.list_(pa.int32())),
        "s": pa.array([struct() for _ in range(rows)], whole),
        "ls": pa.array([many(struct) for _ in range(rows)], pa.list_(whole)),
        "m": pa.array([maybe([(str(n), struct())]) for n in range(rows)], pa.map_(pa.string(), whole)),
    })  # fmt: skip


@everywhere
def test_nested_columns(tmp_path: Path, rng: np.random.Generator) -> None:
    table = nested_table(rng)
    path = written(tmp_path, table, row_group_size=64)
    less = pa.struct([("b", pa.list_(pa.string())), ("A", pa.int32())])
    wanted = pa.schema([
        ("M", pa.map_(pa.string(), less)), table.schema.field("k"), ("S", less), ("ls", pa.list_(less)),
        table.schema.field("l"), ("gone", pa.list_(pa.int8())),
    ])  # fmt: skip

    def narrowed(value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else {"b": value["B"], "A": value["a"]}

    expected = [
        {
            "M": None if row["m"] is None else [(key, narrowed(value)) for key, value in row["m"]],
            "k": row["k"], "S": narrowed(row["s"]),
            "ls": None if row["ls"] is None else [narrowed(value) for value in row["ls"]],
            "l": row["l"], "gone": None,
        }
        for row in table.to_pylist()
    ]  # fmt: skip
    scan = scan_of(path, wanted)
    [footer] = read_footers(scan, [str(path)])
    assert footer.obstacles == ()
    assert pa.Table.from_batches(run(scan), wanted).to_pylist() == expected
    late = dataclasses.replace(scan, filters=(resolve(left("k") >= 250, wanted, wanted),))
    metrics = PipelineMetrics()
    rows = pa.Table.from_batches(run(late, metrics=metrics), wanted).to_pylist()
    assert rows == [row for row in expected if row["k"] is not None and row["k"] >= 250]
    assert metrics.skipped_row_groups == 3


NESTED_OTHERWISE = {
    "another element": (pa.list_(pa.int64()), pa.list_(pa.int32())),
    "a field that is not there": (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())])),
    "milliseconds": (pa.list_(pa.timestamp("ms")), pa.list_(pa.timestamp("us"))),
    "INT96 without a zone": (pa.list_(pa.timestamp("ns")), pa.list_(pa.timestamp("us"))),
    "a struct for a list": (pa.struct([("a", pa.int32())]), pa.list_(pa.int32())),
    "a number for a list": (pa.int32(), pa.list_(pa.int32())),
}


@pytest.mark.parametrize("case", NESTED_OTHERWISE)
def test_nested_columns_of_other_types_are_refused(case: str, tmp_path: Path) -> None:
    file_type, wanted = NESTED_OTHERWISE[case]
    old = case.startswith("INT96")
    path = written(tmp_path, pa.table({"c": pa.nulls(3, file_type)}), use_deprecated_int96_timestamps=old)
    [footer] = read_footers(scan_of(path, pa.schema([("c", wanted)])), [str(path)])
    assert "planned as" in str(footer.obstacles)


@everywhere
def test_dates_in_the_old_calendar_are_refused(tmp_path: Path) -> None:
    table = pa.table({"d": pa.array([dt.date(1500, 1, 1)]), "i": [1]})
    old = table.replace_schema_metadata({"org.apache.spark.version": "2.4.8"})
    path = written(tmp_path, old)
    with pytest.raises(ScanError, match="old calendar"):
        list(run(scan_of(path, table.schema)))
    [footer] = read_footers(scan_of(path, table.schema), [str(path)])
    assert "old calendar" in footer.obstacles[0]
    assert scanned(scan_of(path, pa.schema([("i", pa.int64())]))).num_rows == 1


@everywhere
def test_filters_see_special_values(tmp_path: Path, rng: np.random.Generator) -> None:
    dtype, values = VALUES["d18_6"]
    table = pa.table({"d": pa.array([values[i] for i in rng.integers(0, len(values), 500)], dtype)})
    path = written(tmp_path, table, row_group_size=50)
    result = scanned(scan_of(path, table.schema, left("d") > D("0.3")))
    expected = table.filter(pc.greater(table["d"], pa.scalar(D("0.3"), pa.decimal128(18, 6))))
    assert_same_rows(result, expected)


@everywhere
def test_dates_that_python_cannot_say(tmp_path: Path) -> None:
    """Statistics of the year 10000 and beyond must not stop the scan."""
    days = pa.array([3_000_000, 0, -800_000], pa.int32()).cast(pa.date32())
    table = pa.table({"d": days})
    path = written(tmp_path, table)
    assert scanned(scan_of(path, table.schema))["d"].cast(pa.int32()).to_pylist() == [3_000_000, 0, -800_000]
    result = scanned(scan_of(path, table.schema, left("d") > dt.date(9999, 1, 1)))
    assert result["d"].cast(pa.int32()).to_pylist() == [3_000_000]
