"""ORC files that the pipeline reads: stripes, ranges of bytes, statistics, damage."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from gpujoin.engine.pipeline import run
from gpujoin.engine.pipeline.support import read_footers
from gpujoin.errors import GpuJoinError, ScanError
from gpujoin.model.expressions import Call, Function, Literal
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import FileFormat, FileSlice, Scan, column
from gpujoin.testing import assert_same_rows

ROWS = 5_000
TABLE = pa.table({
    "id": pa.array(range(ROWS), pa.int64()),
    "s": pa.array([None if n % 7 == 0 else f"text {n * 7919 % ROWS} ü" for n in range(ROWS)]),
    "day": pa.array([None if n % 5 == 0 else dt.date(2024, 1, 1) + dt.timedelta(n) for n in range(ROWS)]),
    "price": pa.array([Decimal(n).scaleb(-2) for n in range(ROWS)], pa.decimal128(9, 2)),
    "x": pa.array([float("nan") if n % 3 == 0 else -0.0 for n in range(ROWS)], pa.float64()),
})  # fmt: skip
SCAN = Scan(TABLE.schema, format=FileFormat.ORC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of several stripes."""
    path = tmp_path / "rows.orc"
    orc.write_table(TABLE, path, stripe_size=1024, batch_size=100, compression="uncompressed")
    return path


def whole(path: Path) -> FileSlice:
    return FileSlice(str(path), path.stat().st_size, path.stat().st_mtime_ns // 1_000_000)


def rows_of(scan: Scan, *parts: FileSlice, metrics: PipelineMetrics | None = None, **named: int) -> pa.Table:
    batches = run(scan, None, {0: parts}, metrics=metrics, **named)  # type: ignore[arg-type]
    return pa.Table.from_batches(batches, scan.schema)


def test_a_file_is_read_in_pieces(path: Path) -> None:
    assert_same_rows(rows_of(SCAN, whole(path)), TABLE)
    assert_same_rows(rows_of(SCAN, whole(path), piece_bytes=1000), TABLE)


def test_each_stripe_is_read_by_one_task(path: Path) -> None:
    (footer,) = read_footers(SCAN, [str(path)])
    assert len(footer.rows) > 5
    assert sum(footer.rows) == ROWS
    file = whole(path)
    stripes = [FileSlice(file.path, file.size, file.modified_ms, (n,)) for n in range(len(footer.rows))]
    assert [rows_of(SCAN, stripe).num_rows for stripe in stripes] == list(footer.rows)
    cuts = [0, 100, file.size // 3, file.size // 2, file.size]
    ranges = [FileSlice(file.path, file.size, None, None, cut) for cut in itertools.pairwise(cuts)]
    assert_same_rows(pa.concat_tables([rows_of(SCAN, part) for part in ranges]), TABLE)


def test_files_without_rows_for_a_filter_are_not_decoded(path: Path) -> None:
    over = Call(
        function=Function.GT, arguments=(column(TABLE.schema, "id"), Literal(value=ROWS, type=pa.int64())),
        type=pa.bool_(),
    )  # fmt: skip
    metrics = PipelineMetrics()
    assert (
        rows_of(Scan(TABLE.schema, filters=(over,), format=FileFormat.ORC), whole(path), metrics=metrics).num_rows == 0
    )
    assert (metrics.scanned_rows, metrics.row_groups) == (0, 0)
    assert metrics.skipped_row_groups > 5


def test_statistics_bound_whole_numbers_and_days(path: Path) -> None:
    (footer,) = read_footers(SCAN, [str(path)])
    days = TABLE["day"].drop_null().to_pylist()
    assert footer.bounds == ((0, ROWS - 1), None, (min(days), max(days)), None, None)


def test_rows_without_columns_and_columns_that_are_not_there(path: Path) -> None:
    none = Scan(pa.schema([]), format=FileFormat.ORC)
    assert sum(batch.num_rows for batch in run(none, None, {0: [whole(path)]})) == ROWS
    more = Scan(pa.schema([("S", pa.string()), ("gone", pa.int64()), ("part", pa.date32())]), 1, format=FileFormat.ORC)
    file = whole(path)
    part = FileSlice(file.path, file.size, file.modified_ms, constants=(dt.date(2024, 2, 29),))
    rows = rows_of(more, part)
    assert rows["S"].to_pylist() == TABLE["s"].to_pylist()
    assert set(rows["gone"].to_pylist()) == {None}
    assert set(rows["part"].to_pylist()) == {dt.date(2024, 2, 29)}


def test_an_early_date_that_statistics_do_not_tell_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "early.orc"
    orc.write_table(pa.table({"day": [dt.date(1582, 10, 14)]}), path)
    scan = Scan(pa.schema([("day", pa.date32())]), format=FileFormat.ORC)
    (footer,) = read_footers(scan, [str(path)])
    assert "two calendars" in footer.obstacles[0]
    monkeypatch.setattr("gpujoin.backends.orc.tail._statistics", lambda *_: None)
    with pytest.raises(ScanError, match="two calendars"):
        rows_of(scan, whole(path))


def test_a_file_that_has_changed_is_refused(path: Path) -> None:
    file = whole(path)
    os.utime(path, (1, 1))
    with pytest.raises(ScanError, match="has changed"):
        rows_of(SCAN, file)


def test_a_damaged_tail_is_an_error_or_gives_the_rows(path: Path, seed: int) -> None:
    dice, good = random.Random(seed), path.read_bytes()
    wrong = 0
    for attempt in range(120):
        if attempt % 4 == 0:
            data = good[: dice.randrange(len(good))]
        else:
            place = len(good) - 1 - dice.randrange(min(len(good), 1500))
            data = good[:place] + bytes([dice.randrange(256)]) + good[place + 1 :]
        path.write_bytes(data)
        try:
            rows = rows_of(SCAN, whole(path))
        except GpuJoinError:
            continue
        wrong += rows.num_rows != ROWS
    assert wrong == 0
