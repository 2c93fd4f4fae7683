"""Whole queries over tables in HDFS, compared with Spark: where Hadoop's library is, and where it is missing.

Neither side is Hadoop: Spark lists and reads a folder by a class with the name of Hadoop's client, workers read the
same folder by PyArrow and a stand-in for ``libhdfs.so``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from gpujoin.spark.query.stores import CLIENT
from tests.hdfs import FOLDER_VARIABLE, Hdfs, library_folder
from tests.spark.clients import compile_clients, environment_of, write_core_site

APP = Path(__file__).with_name("hdfs_app.py")
TABLE = pa.table({"n": range(400), "s": [f"text {n % 7}" for n in range(400)]})

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def run(mode: str, folder: Path) -> tuple[dict[str, Any], str, Hdfs]:
    """Run the application; give what it told, its log, and the stand-in."""
    root, clients = folder / "hdfs", folder / "clients"
    for made in (root, clients):
        made.mkdir()
    library = library_folder(folder)
    compile_clients([CLIENT], clients)
    write_core_site(clients, {"fs.defaultFS": "hdfs://nn:8020", "fs.hdfs.impl": CLIENT, "dfs.some.setting": "7"})
    tables = root / "nn" / "tables"
    for name in ("a/1.parquet", "a/2 b.parquet", "b/k.parquet", "p/k=0/x.parquet", "p/k=1/x.parquet", "o/x.orc"):
        file = tables / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".orc":
            orc.write_table(TABLE, file)
        else:
            pq.write_table(TABLE, file, row_group_size=90)
    environment = environment_of(root, [clients], {"spark.sql.warehouse.dir": (folder / "warehouse").as_uri()})
    done = subprocess.run(
        [sys.executable, str(APP), mode], capture_output=True, text=True, check=False, timeout=600,
        env={**environment, "ARROW_LIBHDFS_DIR": str(library), FOLDER_VARIABLE: str(root)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    lines = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return {line["name"]: line["value"] for line in lines}, done.stderr, Hdfs(root)


def test_workers_read_hdfs_and_faults_are_sparks_to_repair(tmp_path: Path) -> None:
    told, log, hdfs = run("everywhere", tmp_path)
    assert told["spark"]
    assert told["here"] == told["spark"]
    assert told["others"] == told["others of spark"]
    for text in (told["explain"], *told["explain others"].values()):
        assert "scan " in text
        assert "rows from Spark" not in text
    assert all("dfs.some.setting=7" in line for line in hdfs.connections)
    assert {line.split()[0] for line in hdfs.connections} == {"hdfs://nn:8020"}
    assert ".parquet: " in told["a fault that ends the query"]
    assert "Input/output error" in told["a fault that ends the query"]
    assert told["a fault"] == told["spark"]
    assert told["after it"] == told["spark"]
    assert told["changed"] == told["changed of spark"] != told["spark"]
    assert "2 b.parquet: has changed since the query was planned" in log


def test_without_the_library_on_workers_spark_runs_the_query(tmp_path: Path) -> None:
    told, log, hdfs = run("driver", tmp_path)
    assert "scan " in told["explain"], "it is planned for workers"
    assert told["here"] == told["spark"]
    assert hdfs.connections, "the driver has read footers"
    assert "libhdfs.so was not loaded" in log
    assert "ARROW_LIBHDFS_DIR" in log


def test_without_the_library_on_the_driver_rows_come_from_spark(tmp_path: Path) -> None:
    told, _, hdfs = run("nowhere", tmp_path)
    assert told["here"] == told["spark"]
    assert "libhdfs.so was not loaded; set HADOOP_HOME" in told["explain"]
    assert "scan " not in told["explain"]
    assert not hdfs.connections
