"""Spark's own cases of joins of streams, in Spark and here: rows and watermark of every micro-batch, and who joins."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from tests.oracle.streams import rows_of
from tests.spark.streams.cases import CASES, Add, Case, Feed, Where
from tests.spark.streams.queries import Output, assert_equal
from tests.streams.streams import counted

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("input", pa.int32()), ("n", pa.int32()), ("second", pa.int64()), ("text", pa.string())])
COLUMNS = "input int, n int, second long, text string"


@pytest.mark.extra
@pytest.mark.parametrize("name", CASES)
def test_cases_of_sparks_suites(streaming: SparkSession, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    for key, value in case.settings.items():
        streaming.conf.set(key, value)
    if case.where is Where.REFUSED:
        for engine in ("spark", "here"):
            with pytest.raises((AnalysisException, StreamingQueryException), match=case.why):
                Running(case, streaming, tmp_path / engine).run()
            gpujoin.enable(streaming)
        return
    spark = Running(case, streaming, tmp_path / "spark")
    spark.run()
    assert spark.given == [step.gives for step in case.steps if isinstance(step, Add)], "another case than Spark's"
    gpujoin.enable(streaming)
    here = Running(case, streaming, tmp_path / "here")
    here.run()
    if case.where is Where.SPARK:
        assert case.why in str(gpujoin.explain(here.query()))
        assert here.output.operators == spark.output.operators
        assert here.output.rows == spark.output.rows
        assert here.output.watermarks() == spark.output.watermarks()
    else:
        assert_equal(here.output, spark.output, name)


class Running:
    """A case that is run: a query that goes on while rows are added to its source."""

    def __init__(self, case: Case, spark: SparkSession, folder: Path) -> None:
        self._case = case
        self._spark = spark
        self._folder = folder
        self._runs = 0
        self.output = Output()
        self.given: list[int] = []
        (folder / "source").mkdir(parents=True)

    def query(self) -> DataFrame:
        """Make the query."""
        rows = self._spark.readStream.schema(COLUMNS).parquet(str(self._folder / "source"))
        return self._case.query(Feed(rows, self._runs))

    def run(self) -> None:
        """Take the steps."""
        steps = iter(self._case.steps)
        while self._run_until_restart(steps):
            self._runs += 1

    def _run_until_restart(self, steps: Iterable[object]) -> bool:
        writer = self.query().writeStream.foreachBatch(self._collect)
        query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()
        try:
            for step in steps:
                if not isinstance(step, Add):
                    return True
                before = self.output.total
                self._add(step)
                query.processAllAvailable()
                self.given.append(self.output.total - before)
            return False
        finally:
            query.stop()
            ran = (dict(step) for step in query.recentProgress if "addBatch" in step["durationMs"])
            self.output.progress += ran

    def _collect(self, frame: DataFrame, batch: int) -> None:
        table = frame.toArrow()
        self.output.rows[batch] = counted(rows_of(table.to_batches(), table.schema))

    def _add(self, step: Add) -> None:
        rows = [(number, *row, f"text {row[0]}") for number, rows in enumerate(step.inputs) for row in rows]
        made = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
        name = f"{len(self.given)}.parquet"
        pq.write_table(made, self._folder / f"_{name}")
        (self._folder / f"_{name}").rename(self._folder / "source" / name)


def test_the_page_of_cases_names_them_all() -> None:
    page = (Path(__file__).parents[3] / "docs" / "streaming-cases.md").read_text()
    how = {Where.HERE: "joined", Where.SPARK: "left to Spark", Where.REFUSED: "refused"}
    listed, suite = {}, ""
    for line in page.splitlines():
        if line.startswith("## "):
            suite = line.removeprefix("## ")
        elif suite and line.startswith("| ") and "internal:" not in line and "| here |" not in line:
            name, here, _ = (cell.strip() for cell in line.strip("|").split("|"))
            listed[f"{suite}: {name}"] = here.split(":")[0]
    assert listed == {name: how[case.where] for name, case in CASES.items()}
