"""Rows of small tables that a worker keeps are not those of a file that has changed since."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark.sql", reason="no PySpark: pip install gpujoin[spark]")

from gpujoin.config import BackendChoice, Options
from gpujoin.engine.pipeline.tables import TABLES
from gpujoin.errors import ScanError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Join, Scan
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.spark.worker.record import IslandMetrics, TaskRecord
from gpujoin.spark.worker.stage import RunStage
from gpujoin.spark.worker.task import Task
from gpujoin.spark.worker.taskreads import TaskReads
from tests.trees import file_slice


@pytest.fixture(autouse=True)
def no_tables() -> Iterator[None]:
    """Keep nothing before and after a test."""
    TABLES.clear()
    yield
    TABLES.clear()


@pytest.mark.parametrize("change", ["another time", "removed"])
def test_kept_rows_of_a_file_are_not_taken_once_it_has_changed(change: str, tmp_path: Path) -> None:
    large, small = tmp_path / "large.parquet", tmp_path / "small.parquet"
    rows = pa.table({"k": pa.array([1, 2, 2], pa.int64())})
    pq.write_table(rows, large)
    pq.write_table(pa.table({"j": pa.array([2], pa.int64()), "v": pa.array([7], pa.int64())}), small)
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0,), right_output=(1,))
    table = Scan(pa.schema([("j", pa.int64()), ("v", pa.int64())]), index=1)
    stage = RunStage(
        Join(Scan(rows.schema), table, spec, Side.RIGHT),
        TaskReads.from_reads([{0: (file_slice(large),), 1: (file_slice(small),)}]),
        (), (), (), None, Options(backend=BackendChoice.CPU), "island", whole=frozenset({1}),
    )  # fmt: skip

    def tables_kept() -> int:
        records: list[TaskRecord] = []
        (batch,) = stage.run([pa.record_batch({"id": [0]})], Task(report=records.append))
        assert batch.to_pydict() == {"k": [2, 2], "v": [7, 7]}
        assert isinstance(records[0].measured, IslandMetrics)
        return records[0].measured.pipeline.tables_kept

    assert [tables_kept(), tables_kept()] == [0, 1]
    if change == "removed":
        small.unlink()
    else:
        os.utime(small, (1, 1))
    with pytest.raises(ScanError, match=r"small\.parquet: "):
        tables_kept()
