"""A task that Spark tries again computes its part with care from the start."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark.sql", reason="no PySpark: pip install gpujoin[spark]")

from gpujoin.config import BackendChoice, Options
from gpujoin.model.expressions import left
from gpujoin.model.pipeline import Rung
from gpujoin.spark.worker.record import IslandMetrics, TaskRecord
from gpujoin.spark.worker.stage import RunStage
from gpujoin.spark.worker.task import Task
from gpujoin.spark.worker.taskreads import TaskReads
from tests.trees import Tree, count, file_slice, total


@pytest.mark.parametrize("retry", [0, 1])
def test_a_task_that_is_tried_again_is_careful(retry: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"k": [i % 3 for i in range(30)], "n": range(30)}), path)
    tree = Tree.scan(path).group("k", n=total(left("n") * 2), rows=count()).relation
    stage = RunStage(
        tree, TaskReads.from_reads([{0: (file_slice(path),)}]), (), (), (), None, Options(backend=BackendChoice.CPU),
        "island"
    )  # fmt: skip
    records: list[TaskRecord] = []
    (batch,) = stage.run([pa.record_batch({"id": [0]})], Task(report=records.append, retry=retry))
    groups = [tuple(row.values()) for row in batch.to_pylist()]
    assert sorted(groups) == [(0, 270, 10), (1, 290, 10), (2, 310, 10)]
    (record,) = records
    assert isinstance(record.measured, IslandMetrics)
    assert bool(record.measured.pipeline.evaluated) is bool(retry)
    assert record.notes == ((f"{Rung.CAREFUL.value}: Spark has tried the task before",) if retry else ())
