"""Tables of more files than the driver opens: planned by a sample, and checked by the workers that read them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from gpujoin import accelerate, disable, enable
from gpujoin.backends.cpu.pipeline import parquet
from gpujoin.backends.cpu.pipeline.parquet import footer
from gpujoin.config import Options
from gpujoin.model.relations import FileFooter, Scan
from gpujoin.spark.query import running
from gpujoin.spark.query.accelerate import PlannedQuery, Purpose, rewrite
from gpujoin.spark.worker.functions import stage_function
from gpujoin.spark.worker.stage import RunStage
from gpujoin.testing import assert_same_rows
from tests.brief import each_once
from tests.spark.query.queries import EXCHANGED, FORCED, check

SAMPLED = {"spark.gpujoin.scan.footers": "3"}
IN_ONE_TASK = FORCED | SAMPLED
IN_TASKS = EXCHANGED | SAMPLED
SILENT = {**FORCED, **SAMPLED, "spark.gpujoin.fallback": "silent"}
FILES = 9
MIDDLE = 3
"""A file that is not in a sample of three: the first, the last and the largest."""

pytestmark = pytest.mark.spark


def rows(number: int) -> pa.Table:
    """The rows of one file; the last file is the largest."""
    count = 120 if number == FILES - 1 else 40
    values = range(number * 1000, number * 1000 + count)
    days = pa.array([n % 20_000 for n in values], pa.int32()).cast(pa.date32())
    return pa.table({
        "k": pa.array([n % 7 for n in values], pa.int64()), "v": pa.array([n % 11 or None for n in values], pa.int32()),
        "day": days, "s": [f"s{n % 5}" for n in values],
    })  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of several row groups each."""
    for number in range(FILES):
        pq.write_table(rows(number), path_of(tmp_path, number), row_group_size=25)
    return tmp_path


def path_of(folder: Path, number: int) -> Path:
    return folder / f"part-{number}.parquet"


def query(spark: SparkSession, folder: Path, schema: str = "k long, v int, day date, s string") -> DataFrame:
    frame = spark.read.schema(schema).parquet(str(folder))
    other = frame.where("v = 3").selectExpr("k", "v w")
    return frame.join(other, "k").groupBy("s").agg({"v": "sum", "w": "count", "day": "max"})


@pytest.mark.parametrize("spark", [IN_ONE_TASK, IN_TASKS], indirect=True, ids=["one task", "tasks"])
def test_answers_are_sparks_and_the_plan_says_what_it_guesses(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works: list[RunStage] = []

    def noted(work: RunStage, name: str, **named: Any) -> Any:
        works.append(work)
        return stage_function(work, name, **named)

    monkeypatch.setattr(running, "stage_function", noted)
    explanation = check(query(spark, folder))
    assert explanation.islands
    assert f"({FILES} files, about " in str(explanation)
    slices = [
        part for work in works for n in range(len(work.reads)) for read in work.reads[n].values() for part in read
    ]
    assert {part.path for part in slices} == {str(path_of(folder, number)) for number in range(FILES)}
    assert all(part.row_groups is None for part in slices)
    assert any(part.byte_range for part in slices) == (spark.conf.get("spark.gpujoin.scan.taskBytes", "") == "1")


@pytest.mark.parametrize("spark", [IN_TASKS], indirect=True, ids=["tasks"])
def test_files_with_columns_added_dropped_reordered_and_in_another_case(spark: SparkSession, folder: Path) -> None:
    pq.write_table(rows(MIDDLE).select(["s", "day", "k"]), path_of(folder, MIDDLE))
    renamed = rows(MIDDLE + 1).rename_columns(["K", "v", "DAY", "s"])
    pq.write_table(renamed.append_column("more", pa.array([1.5] * 40)), path_of(folder, MIDDLE + 1))
    narrow = rows(MIDDLE + 2).set_column(1, "v", rows(MIDDLE + 2)["v"].cast(pa.int8()))
    pq.write_table(narrow, path_of(folder, MIDDLE + 2))
    assert check(query(spark, folder)).islands


def _another_type(folder: Path) -> None:
    table = rows(MIDDLE)
    pq.write_table(table.set_column(1, "v", table["v"].cast(pa.int64())), path_of(folder, MIDDLE))


def _same_names(folder: Path) -> None:
    pq.write_table(rows(MIDDLE).append_column("K", pa.array(range(40))), path_of(folder, MIDDLE))


def _old_calendar(folder: Path) -> None:
    marks = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}
    pq.write_table(rows(MIDDLE).replace_schema_metadata(marks), path_of(folder, MIDDLE))


def _encoding(folder: Path) -> None:
    table = rows(MIDDLE)
    text = pa.array([b"s\xff"] * table.num_rows, pa.binary())
    pq.write_table(table.set_column(3, "s", text), path_of(folder, MIDDLE))


def _damaged(folder: Path) -> None:
    path = path_of(folder, MIDDLE)
    path.write_bytes(path.read_bytes()[:-100])


ODD = {"another type": _another_type, "same names": _same_names, "old calendar": _old_calendar,
       "bytes for text": _encoding, "damaged": _damaged}  # fmt: skip


@pytest.fixture
def watched(spark: SparkSession, planned: list[PlannedQuery]) -> Iterator[list[PlannedQuery]]:
    """An enabled session, and what became of each query."""
    enable(spark)
    yield planned
    disable(spark)


@pytest.mark.parametrize("spark", [SILENT], indirect=True, ids=["one task"])
def test_a_column_that_only_an_unsampled_file_has_and_polars_takes_for_a_pattern(
    spark: SparkSession, folder: Path, watched: list[PlannedQuery]
) -> None:
    table = rows(MIDDLE)
    pq.write_table(table.append_column("^v$", pa.array(range(100, 140))), path_of(folder, MIDDLE))
    read = spark.read.schema("k long, v int, `^v$` long").parquet(str(folder)).groupBy("k")
    assert sum(row[1] or 0 for row in read.agg({"`^v$`": "sum"}).collect()) == sum(range(100, 140))
    assert watched[0].changed


def outcome(frame: DataFrame) -> pa.Table | type[Exception]:
    """The rows of a query, or what it fails with."""
    try:
        return frame.toArrow()
    except Exception as problem:  # noqa: BLE001
        return type(problem)


@pytest.mark.parametrize("spark", [SILENT], indirect=True, ids=["one task"])
@pytest.mark.parametrize("name", each_once(ODD, extra=["same names", "old calendar", "bytes for text", "damaged"]))
def test_a_file_that_is_not_as_the_sample_gives_the_query_back(
    spark: SparkSession, folder: Path, watched: list[PlannedQuery], name: str
) -> None:
    ODD[name](folder)
    actual = outcome(query(spark, folder))
    refused = path_of(folder, MIDDLE).name
    assert "scan " in str(watched[0].explanation), "it was planned here, by the sample"
    assert refused not in str(watched[0].explanation)
    again = outcome(query(spark, folder))
    assert refused in str(watched[1].explanation), "the file that a worker refused is looked at first"
    disable(spark)
    expected = outcome(query(spark, folder))
    for result in (actual, again):
        if isinstance(expected, pa.Table):
            assert isinstance(result, pa.Table)
            assert_same_rows(result, expected)
        else:
            assert result is expected


@pytest.mark.slow
@pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])
def test_100_000_files_are_planned_by_the_footers_of_a_sample(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other footer is read before tasks read the files; all files are read."""
    opened: list[str] = []

    def noted(scan: Scan, path: str) -> FileFooter:
        opened.append(path)
        return footer(scan, path)

    monkeypatch.setattr(parquet, "footer", noted)
    table, files = tmp_path / "table", 100_000
    table.mkdir()
    whole = tmp_path / "0.parquet"
    for number in range(files):
        if number % 10_000 == 0:  # a file system has a limit of links to a file
            whole = tmp_path / f"{number}.parquet"
            pq.write_table(rows(0), whole)
        os.link(whole, table / f"part-{number:06}.parquet")

    def totals(path: Path) -> DataFrame:
        return spark.read.schema("k long, v int, day date, s string").parquet(str(path)).groupBy("s").agg(
            sf.count("*").alias("rows"), sf.sum("v").alias("v"), sf.max("day").alias("day")
        )  # fmt: skip

    frame = totals(table)
    explanation = rewrite(frame, Purpose.EXPLAIN).explanation
    assert f"({files} files, about " in str(explanation)
    assert 0 < len(set(opened)) <= Options().scan_footers
    expected = {row.s: (files * row.rows, files * row.v, row.day) for row in totals(whole).collect()}
    assert {row.s: (row.rows, row.v, row.day) for row in accelerate(frame).collect()} == expected
