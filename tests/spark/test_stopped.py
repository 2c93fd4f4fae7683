"""After ``spark.stop()``: every public function says so in a sentence, and a session that is made later works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from gpujoin.errors import GpuJoinError
from gpujoin.spark.query import hooks

pytestmark = pytest.mark.spark

CALLS: dict[str, Callable[[SparkSession, DataFrame], Any]] = {
    "enable": lambda spark, frame: gpujoin.enable(spark),
    "explain": lambda spark, frame: gpujoin.explain(frame),
    "metrics": lambda spark, frame: gpujoin.metrics(frame),
    "summary": lambda spark, frame: gpujoin.summary(spark),
    "profile": lambda spark, frame: gpujoin.profile(frame),
    "accelerate": lambda spark, frame: gpujoin.accelerate(frame),
    "gpu_join": lambda spark, frame: gpujoin.gpu_join(frame, frame, "id"),
    "gpu_asof_join": lambda spark, frame: gpujoin.gpu_asof_join(frame, frame, "id"),
}


@pytest.fixture
def stopped(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SparkSession, DataFrame]]:
    """A session as ``stop()`` leaves its Python side, and a query of it."""
    gpujoin.enable(spark)
    frame = spark.range(3)
    with monkeypatch.context() as patch:
        patch.setattr(spark.sparkContext, "_jsc", None)
        yield spark, frame
    gpujoin.disable(spark)
    assert spark.range(3).count() == 3


@pytest.mark.parametrize("name", CALLS)
def test_a_function_that_is_given_a_stopped_session_says_so(stopped: tuple[SparkSession, DataFrame], name: str) -> None:
    with pytest.raises(GpuJoinError, match=rf"^{name}\(\): the Spark session has been stopped\.") as caught:
        CALLS[name](*stopped)
    assert "\n" not in str(caught.value)
    assert type(caught.value) is GpuJoinError


def test_every_public_function_of_dataframes_and_sessions_is_looked_at() -> None:
    functions = [value for value in (getattr(gpujoin, name) for name in gpujoin.__all__) if isfunction(value)]
    homes = ("gpujoin.spark.", "gpujoin.report.")
    of_spark = {value.__name__ for value in functions if value.__module__.startswith(homes)}
    # To switch off what has ended is no error; extensions of IPython enable sessions that are active, or made later.
    no_error = {"disable", "load_ipython_extension", "unload_ipython_extension"}
    assert of_spark == CALLS.keys() | no_error


def test_to_disable_a_stopped_session_is_no_error(stopped: tuple[SparkSession, DataFrame]) -> None:
    session, _ = stopped
    gpujoin.disable(session)
    assert not hooks._rules
    assert not hooks._originals


PROGRAM = """
import sys
from pyspark.sql import SparkSession
import gpujoin
from tests.spark.test_stopped import CALLS

def session():
    return (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "700m").config("spark.gpujoin.backend", "cpu")
        .config("spark.gpujoin.fallback", "raise").getOrCreate())

def query(spark):
    return spark.read.parquet(sys.argv[1]).groupBy("k").count()

def ran_here(spark):
    gpujoin.enable(spark)
    frame = query(spark)
    assert len(frame.collect()) == 3
    assert gpujoin.metrics(frame)[0].runs == 1
    return frame

spark = session()
spark.range(30).selectExpr("id % 3 as k").write.parquet(sys.argv[1])
frame = ran_here(spark)
held = gpujoin.metrics(frame), gpujoin.explain(frame)
spark.stop()
for name, call in CALLS.items():
    try:
        call(spark, frame)
    except gpujoin.GpuJoinError as problem:
        assert "has been stopped" in str(problem), problem
for action in (frame.count, frame.collect, frame.toArrow, lambda: frame.write.parquet(sys.argv[1] + "2")):
    try:
        action()
    except Exception as problem:
        assert "stopped SparkContext" in str(problem), repr(problem)
for each in held:
    assert str(each) and each._repr_html_()
gpujoin.disable(spark)
again = session()
ran_here(again)
joined = gpujoin.gpu_join(query(again), query(again), "k")
assert joined.count() == 3
again._jsc.sc().stop()
try:
    gpujoin.explain(joined)
except gpujoin.GpuJoinError as problem:
    assert "has been stopped" in str(problem), problem
again.stop()
print("right")
"""


@pytest.mark.slow
def test_a_session_that_is_made_after_a_stop_works(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "rows")], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2], env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.stdout.strip() == "right", done.stderr[-3000:]
