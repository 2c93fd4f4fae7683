"""Files that are not what they were, or never were Parquet: named, and nothing partial is returned."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from gpujoin import accelerate, disable, enable
from gpujoin.spark.query.accelerate import rewrite

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "silent"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]


@pytest.fixture
def table(tables: SparkSession, tmp_path: Path) -> tuple[DataFrame, Path]:
    """A query over one file, and the file."""
    path = tmp_path / "table"
    tables.table("sales").coalesce(1).write.parquet(str(path))
    (file,) = (one for one in path.iterdir() if one.suffix == ".parquet")
    return tables.read.parquet(str(path)).groupBy("k").sum("price"), file


def test_a_file_that_changes_after_planning(table: tuple[DataFrame, Path]) -> None:
    frame, file = table
    planned = accelerate(frame)
    assert planned is not frame
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(Exception, match=re.escape(file.name)):
        planned.collect()


def test_the_log_says_in_a_line_which_file_has_changed(
    tables: SparkSession, table: tuple[DataFrame, Path], caplog: pytest.LogCaptureFixture
) -> None:
    frame, file = table
    tables.conf.set("spark.gpujoin.fallback", "warn")
    enable(tables)
    assert frame.collect()
    file.with_name("new").write_bytes(file.read_bytes())
    file.with_name("new").replace(file)
    assert frame.collect()
    (warning,) = (record for record in caplog.records if "Spark runs the query itself" in record.message)
    assert re.search(rf"itself: \S+{re.escape(file.name)}: has changed", warning.message)
    assert warning.exc_info is None
    disable(tables)


def test_a_frame_whose_files_are_gone_fails_as_in_spark(tables: SparkSession, table: tuple[DataFrame, Path]) -> None:
    frame, file = table
    in_spark = frame.select("*")
    enable(tables)
    assert frame.collect()
    disable(tables)
    file.unlink()
    with pytest.raises(Exception, match=re.escape(file.name)) as expected:
        in_spark.collect()
    enable(tables)
    with pytest.raises(Exception, match=r"FAILED_READ_FILE\.FILE_NOT_EXIST") as problem:
        frame.collect()
    disable(tables)
    assert type(problem.value) is type(expected.value)
    assert "ScanError" not in str(problem.value)


def test_another_schema_after_planning(tables: SparkSession, table: tuple[DataFrame, Path], tmp_path: Path) -> None:
    frame, file = table
    planned = accelerate(frame)
    tables.sql("select 'a' as k, 'b' as price").coalesce(1).write.parquet(str(tmp_path / "other"))
    (other,) = (one for one in (tmp_path / "other").iterdir() if one.suffix == ".parquet")
    file.write_bytes(other.read_bytes())
    with pytest.raises(Exception, match=re.escape(file.name)):
        planned.collect()


@pytest.mark.extra
def test_damage_that_neither_size_nor_time_show(table: tuple[DataFrame, Path]) -> None:
    frame, file = table
    planned, before = accelerate(frame), file.stat()
    data = file.read_bytes()
    footer = 8 + int.from_bytes(data[-8:-4], "little")
    file.write_bytes(data[:4] + b"\xff" * (len(data) - footer - 4) + data[-footer:])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    with pytest.raises(Exception, match=re.escape(file.name)):
        planned.collect()


def test_a_truncated_file_is_left_to_spark_which_names_it(table: tuple[DataFrame, Path]) -> None:
    frame, file = table
    file.write_bytes(file.read_bytes()[:100])
    found = rewrite(frame)
    assert not found.changed
    assert file.name in str(found.explanation)
    with pytest.raises(Exception, match=re.escape(file.name)):
        frame.collect()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(table: tuple[DataFrame, Path]) -> None:
    frame, file = table
    planned = accelerate(frame)
    file.chmod(0)
    with pytest.raises(Exception, match=re.escape(file.name)):
        planned.collect()
