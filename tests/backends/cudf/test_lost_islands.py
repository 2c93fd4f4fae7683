"""Islands of a real Spark session whose tasks fail because of a GPU.

Under the stand-ins workers lose it whenever one has copied :data:`PIECES` pieces to the host, which is later than the
rows of the first ones have gone out. Nothing computed there can be begun again then, so the task fails. It fails too
where importing the libraries kills the worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpujoin.backends.cudf import discovery
from tests.backends.cudf.test_old_driver import make_driver
from tests.kernels.conftest import emulator_cache
from tests.kernels.emulator.device import CACHE_VARIABLE

__all__ = ["emulator_cache"]

for library in ("pylibcudf", "cupy", "rmm", "pyspark"):
    pytest.importorskip(library, reason='no GPU libraries or PySpark: pip install ".[spark,cu13]"')

pytestmark = [pytest.mark.extra, pytest.mark.spark, pytest.mark.usefixtures("emulator_cache")]

ROOT = Path(__file__).parents[3]
PIECES = 25
LOST = "this process has lost GPU 0"

STARTED = f"""
from tests.backends.cudf.libraries.plugin import install
install()
from gpujoin.backends.cudf.pipeline.backend import DevicePipeline
from tests.backends.cudf.libraries import record

copy, copied = DevicePipeline.give_out, []

def give_out(self, frame, schema):
    copied.append(frame)
    if len(copied) > {PIECES}:
        record.lost_at = 1
    return copy(self, frame, schema)

DevicePipeline.give_out = give_out
"""
"""Run by every Python of the session when it starts."""

KILLING = """
import os, signal, sys
from importlib.machinery import ModuleSpec

class Killing:
    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        print("killed by an import", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return ModuleSpec(name, cls) if name == "pylibcudf" else None

sys.meta_path.insert(0, Killing)
"""
"""The same, where a library does not fit the machine."""

PROGRAM = """
import json, logging, sys
import pyarrow as pa
import pyarrow.parquet as pq
from pathlib import Path
from pyspark.sql import SparkSession
import gpujoin
from gpujoin.testing import assert_same_rows

warned = []
class Kept(logging.Handler):
    def emit(self, entry): warned.append(entry.getMessage())
logging.getLogger("gpujoin").addHandler(Kept(logging.WARNING))

folder, master = Path(sys.argv[1]), sys.argv[2]
(folder / "sales").mkdir()
for number in range(80):
    rows = pa.table({"k": [(7 * i + number) % 50 for i in range(100)], "v": [100 * number + i for i in range(100)]})
    pq.write_table(rows, folder / "sales" / f"{number:02}.parquet")
pq.write_table(pa.table({"k": list(range(0, 50, 2)), "w": list(range(0, 7500, 300))}), folder / "items.parquet")
spark = (
    SparkSession.builder.master(master).config("spark.ui.enabled", False).config("spark.gpujoin.strategy", "broadcast")
    .config("spark.log.level", "ERROR").getOrCreate()
)
for name in ("sales", "items.parquet"):
    spark.read.parquet(str(folder / name)).createOrReplaceTempView(name.partition(".")[0])
TEXT = "select s.k, s.v, i.w from sales s join items i on s.k = i.k and s.v > i.w"
wanted = spark.sql(TEXT).toArrow()
gpujoin.enable(spark)
told = []
for _ in range(2):
    frame = spark.sql(TEXT)
    assert_same_rows(frame.toArrow(), wanted)
    (report,) = gpujoin.metrics(frame) or [None]
    told.append(None if report is None else [dict(report.metrics.joins.backends), dict(report.notes)])
print(json.dumps({"told": told, "warned": warned}))
"""


def session(tmp_path: Path, emulator_cache: Path, master: str, started: str, failed: str) -> Any:
    """What the program tells of the island, and the warnings of its driver; workers have said ``failed``."""
    (tmp_path / "sitecustomize.py").write_text(started)
    environment = {
        **os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", CACHE_VARIABLE: str(emulator_cache),
        "CUDA_VISIBLE_DEVICES": "0", "PYSPARK_PYTHON": sys.executable, "GPUJOIN_SLOT_DIR": str(tmp_path / "slots"),
        "LD_LIBRARY_PATH": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), master], cwd=tmp_path, env=environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert failed in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("why", ["lost", "killed by an import"])
def test_the_task_is_tried_again_on_the_cpu(tmp_path: Path, emulator_cache: Path, why: str) -> None:
    """By a process that does not try the GPU: it would fail there again."""
    if why == "lost":
        told = session(tmp_path, emulator_cache, "local[1,4]", STARTED, LOST)
    elif discovery.why_unavailable() is None:
        pytest.skip("this machine has a GPU")
    else:
        make_driver(tmp_path, 99990)
        told = session(tmp_path, emulator_cache, "local[1,4]", KILLING, why)
    note = "in small pieces, each expression and join by itself: Spark has tried the task before"
    for backends, notes in told["told"]:
        assert backends.keys() == {"cpu"}
        assert notes == {note: backends["cpu"]}
    assert told["warned"] == [], "the query is the island's"


def test_where_spark_tries_nothing_again_it_runs_the_query(tmp_path: Path, emulator_cache: Path) -> None:
    """With one warning, which says why."""
    told = session(tmp_path, emulator_cache, "local[1]", STARTED, LOST)
    assert told["told"] == [[{}, {}]] * 2, "no task of the island came to its end"
    (warning,) = told["warned"]
    assert warning.startswith("gpujoin: a task of the query failed here; Spark runs the query itself: ")
    assert "DeviceLostError: this process has lost GPU 0: CUDA error" in warning
