"""Spark Connect: whole queries that the server plans, and joins of gpu_join that a client runs itself."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.spark.processes import descendants, is_java
from tests.brief import brief, each_once
from tests.spark.connect_server import HANGS

pytest.importorskip("grpc", reason="no Spark Connect client: pip install gpujoin[connect]")

pytestmark = pytest.mark.spark


# The types of join are those of test_frames, which has the same DataFrames in a classic session.
JOINS = each_once(
    ("inner", "cross", "left", "right", "full", "left_semi", "left_anti"), ("shuffle", "broadcast"),
    extra=("cross", "left", "right", "full", "left_semi"),
)  # fmt: skip
AS_OF = brief(("shuffle", "broadcast"), "broadcast")
SERVED = {
    "test_queries_run_here": "queries",
    "test_actions_run_here": "actions",
    "test_writes_run_here": "writes",
    "test_settings_are_those_of_a_session": "settings",
    "test_failed_queries_are_given_back": "failing",
    "test_what_is_observed": "observed",
    "test_interrupted_operations_end": "interrupted",
    "test_clients_at_once": "together",
    "test_sessions_that_end_leave_nothing": "ended",
    "test_cached_queries_are_sparks": "cached",
    "test_python_functions_of_clients": "functions",
    "test_artifacts_of_clients": "artifacts",
    "test_gpu_join_is_planned_by_the_server": "gpu_joins",
}
"""What the program of clients is to find for each test."""
SETTINGS = {
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_PROGRAMS = Path(__file__).parent
_SESSION = "org.apache.spark.sql.classic.SparkSession"


class Server:
    """A server that plans the queries of its clients, in another process: this one has a classic session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fault = folder / "fault"
        self._log = (folder / "server.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAMS / "connect_server.py"), str(self.fault), "--host=127.0.0.1", "--port=0",
             "--master=local[2]", *(f"--conf={name}={value}" for name, value in SETTINGS.items())],
            stdout=subprocess.PIPE, stderr=self._log, text=True, env=self.environment, cwd=folder,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("Spark "), f"the server did not start: {line}{self.log}"
        self.address = line.split()[-1]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the server and of its clients."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_PROGRAMS.parents[1]), os.environ.get("PYTHONPATH", "")]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    @property
    def log(self) -> str:
        """What the server has written to standard error."""
        return (self.folder / "server.log").read_text()[-4000:]

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def run(self, program: str, *arguments: str) -> dict[str, Any]:
        """Give what a program of clients has found."""
        run = subprocess.run(
            [sys.executable, str(_PROGRAMS / program), self.address, *arguments],
            capture_output=True, text=True, timeout=1200, env=self.environment, cwd=self.folder,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr[-4000:] + self.log
        result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        return result

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal the server, and give its exit status."""
        self._process.send_signal(number)
        try:
            return self._process.wait(timeout=60)
        finally:
            self._process.kill()
            self._log.close()
            assert self._process.stdout is not None
            self._process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("connect"))
    yield running
    assert running.end() == 0, running.log


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, server: Server) -> dict[str, Any]:
    """What a client found of joins of ``gpu_join``."""
    return server.run("connect_program.py", *_asked(request.session.items))


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, server: Server) -> dict[str, Any]:
    """What clients found of queries that the server plans: as much as this run asks for."""
    tables = server.folder / "tables"
    tables.mkdir()
    _write_tables(tables)
    tests = {item.name.partition("[")[0] for item in request.session.items if item.path == Path(__file__)}
    names = [name for test, name in SERVED.items() if test in tests]
    return server.run("connect_clients.py", str(tables), str(server.fault), *names)


def _write_tables(folder: Path) -> None:
    generator, rows = np.random.default_rng(48), 20_000
    money = pa.decimal128(9, 2)
    sales = {
        "sale": pa.array(range(rows)),
        "store": pa.array(generator.integers(0, 60, rows), mask=generator.random(rows) < 0.01),
        "price": pa.array([Decimal(int(cents)) / 100 for cents in generator.integers(0, 10_000, rows)], money),
        "weight": generator.choice([0.0, -0.0, float("nan"), 1.5, 2.5], rows),
    }
    stores = {"store": range(50), "city": [None if n % 17 == 0 else f"city {n % 9}" for n in range(50)]}
    bands = {
        "label": [f"band {n}" for n in range(20)],
        "low": pa.array([Decimal(5 * n) for n in range(20)], money),
        "high": pa.array([Decimal(5 * n + 7) for n in range(20)], money),
    }
    for name, columns in {"sales": sales, "stores": stores, "bands": bands}.items():
        pq.write_table(pa.table({key: pa.array(values) for key, values in columns.items()}), folder / f"{name}.parquet")


def _asked(items: list[pytest.Item]) -> list[str]:
    """Names of the joins of this run; of all, if it asks for none."""
    ids = {item.name.partition("[")[2].rstrip("]") for item in items if item.path == Path(__file__)}
    names = {case.id: " ".join(map(str, case.values)) for case in JOINS}
    names |= {str(case.values[0]): f"as-of {case.values[0]}" for case in AS_OF}
    return [name for case, name in names.items() if case in ids] or list(names.values())


@pytest.mark.parametrize(("how", "strategy"), JOINS)
def test_equals_sparks_join(found: dict[str, Any], how: str, strategy: str) -> None:
    if how == "full" and strategy == "broadcast":
        pytest.skip("no side of a full outer join may be broadcast")
    result = found["joins"][f"{how} {strategy}"]
    assert result["error"] is None
    assert result["strategy"] == [strategy]


def test_rows_were_compared(found: dict[str, Any]) -> None:
    assert sum(result["rows"] for result in found["joins"].values()) > 5


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("condition", "column names"),
        ("product", "column names"),
        ("types", "types differ"),
    ],
)
def test_refused(found: dict[str, Any], case: str, why: str) -> None:
    assert why in found["refused"][case]
    assert found["reasons"][case]


def test_a_join_without_a_strategy_is_the_servers(found: dict[str, Any]) -> None:
    assert found["refused"]["auto"] == "not refused"
    assert "all rows are part of the query" in found["reasons"]["auto"][0]


def test_sparks_own_errors(found: dict[str, Any]) -> None:
    assert found["unknown column"] == "UNRESOLVED_USING_COLUMN_FOR_JOIN"


def test_explain_of_a_tree(found: dict[str, Any]) -> None:
    assert found["tree"] == [["inner", "spark"], ["inner", "shuffle"], ["full", "shuffle"]]


def test_nothing_runs_when_a_join_is_made(found: dict[str, Any]) -> None:
    assert found["lazy"] == ["K", "s", "d", "payload", "rid"]


def test_profiles_are_refused(found: dict[str, Any]) -> None:
    assert "classic session" in found["profile"]


def test_frames_are_joined_in_the_client(found: dict[str, Any]) -> None:
    assert found["in the client"] == 4


def test_switched_off(found: dict[str, Any]) -> None:
    assert found["off"] == ["spark"]


@pytest.mark.parametrize("strategy", AS_OF)
def test_an_as_of_join(found: dict[str, Any], strategy: str) -> None:
    assert found["as-of"][strategy] == [
        ["trade", "s", "t", "quote"],
        [[2, None], [3, 30], [4, None]],
        [strategy],
    ]


# -- queries that the server plans -------------------------------------------------------------------------------------


def test_queries_run_here(served: dict[str, Any]) -> None:
    for name, query in served["queries"].items():
        assert query["error"] is None, name
        assert query["rows"], name
        assert query["explained"], name
        assert query["tasks"], name
        assert all(query["measured"]), name


@pytest.mark.extra
def test_actions_run_here(served: dict[str, Any]) -> None:
    assert served["actions"] == {action: [True, True] for action in served["actions"]}
    assert len(served["actions"]) == 7


@pytest.mark.extra
def test_writes_run_here(served: dict[str, Any]) -> None:
    assert served["writes"] == {"ran": True}


def test_settings_are_those_of_a_session(served: dict[str, Any]) -> None:
    settings = served["settings"]
    assert settings["off"] == [False, 0]
    assert settings["on"] == [True, 1]
    assert settings["again"] is False
    assert "ConfigurationError: unknown setting 'spark.gpujoin.fallbak'. Did you mean" in settings["told"]


def test_failed_queries_are_given_back(served: dict[str, Any]) -> None:
    failing = served["failing"]
    assert failing["given back"]
    assert "Python worker exited unexpectedly" in failing["raised"]
    assert failing["own error"] == "DIVIDE_BY_ZERO"


@pytest.mark.extra
def test_what_is_observed(served: dict[str, Any]) -> None:
    assert served["observed"] == {"above": True, "ran": True, "below": 20_000}


def test_interrupted_operations_end(served: dict[str, Any]) -> None:
    for way, (operations, cancelled, seconds) in served["interrupted"].items():
        assert operations == 1, way
        assert cancelled, way
        assert seconds < HANGS / 3, way


@pytest.mark.extra
def test_clients_at_once(served: dict[str, Any]) -> None:
    assert served["together"]["outcomes"] == ['["false", false]'] * 9 + ['["true", true]'] * 9


@pytest.mark.extra
def test_sessions_that_end_leave_nothing(server: Server, served: dict[str, Any]) -> None:
    jcmd = Path(os.environ["JAVA_HOME"]) / "bin" / "jcmd"
    if not jcmd.exists():
        pytest.skip("no jcmd: this is a JRE")
    (java,) = [process for process in descendants(server.pid) if is_java(process)]
    deadline, sessions = time.monotonic() + 30.0, math.inf
    while sessions >= served["ended"]["count"] and time.monotonic() < deadline:
        subprocess.run([jcmd, str(java), "GC.run"], check=True, capture_output=True)
        counts = subprocess.run(
            [jcmd, str(java), "GC.class_histogram"], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        sessions = sum(int(line.split()[1]) for line in counts if line.split()[3:4] == [_SESSION])
    assert 0 < sessions < served["ended"]["count"]


@pytest.mark.extra
def test_cached_queries_are_sparks(served: dict[str, Any]) -> None:
    assert served["cached"] == {"plan": True, "island in cache": False, "rows": 10}


@pytest.mark.extra
def test_python_functions_of_clients(served: dict[str, Any]) -> None:
    assert served["functions"]["rows"] == 10
    assert served["functions"]["ran"]
    assert "left to Spark" not in served["functions"]["explained"]


@pytest.mark.extra
def test_artifacts_of_clients(served: dict[str, Any]) -> None:
    read, imported = served["artifacts"]["read"], served["artifacts"]["imported"]
    assert [read["least"], read["ran"], imported["least"], imported["ran"]] == [7, True, 1000, True]
    assert "left to Spark" not in read["explained"]
    assert "imported was made with files that are not shipped" in imported["explained"]


@pytest.mark.extra
def test_gpu_join_is_planned_by_the_server(served: dict[str, Any]) -> None:
    assert served["gpu_joins"] == {
        "plain": ["broadcast"], "condition": True, "named": ["broadcast"], "accelerate": True,
    }  # fmt: skip


# -- servers -----------------------------------------------------------------------------------------------------------


_PLAIN = """
import json, logging, sys
import gpujoin
from gpujoin import gpu_join
from pyspark.sql import SparkSession

heard = []
handler = logging.Handler()
handler.emit = lambda record: heard.append(record.getMessage())
logging.getLogger("gpujoin").addHandler(handler)
spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
left, right = (spark.createDataFrame([(1, 2)], ["k", name]) for name in "ab")
frame = left.join(right, "k").groupBy("k").count()
rows = frame.collect()
gpujoin.enable(spark)
same = gpujoin.accelerate(frame) is frame and frame.collect() == rows
try:
    gpujoin.metrics(frame)
except gpujoin.GpuJoinError as problem:
    told = str(problem)
joins = [[join.join_type, join.backend] for join in gpujoin.explain(frame).joins]
spark.conf.set("spark.gpujoin.fallback", "silent")
unknown = str(gpujoin.explain(gpu_join(left, right, "k")).joins[0].reasons[0])
gpujoin.disable(spark)
spark.stop()
print(json.dumps({"heard": heard, "same": same, "metrics": told, "joins": joins, "auto": unknown}))
"""


@pytest.mark.extra
def test_a_server_without_gpujoin(tmp_path: Path) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
    run = subprocess.run(
        [sys.executable, "-c", _PLAIN], capture_output=True, text=True, timeout=600, cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(_PROGRAMS.parents[1])},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["same"]
    assert any("gpujoin connect-server" in message for message in found["heard"])
    assert "gpujoin connect-server" in found["metrics"]
    assert found["joins"] == [["inner", "spark"]]
    assert "sizes are unknown" in found["auto"]


@pytest.mark.extra
def test_a_port_that_is_taken(server: Server) -> None:
    port = server.address.rpartition(":")[2]
    run = subprocess.run(
        [sys.executable, "-m", "gpujoin", "connect-server", "--host=127.0.0.1", f"--port={port}", "--master=local[1]"],
        capture_output=True, text=True, timeout=600, env=server.environment, cwd=server.folder,
    )  # fmt: skip
    assert run.returncode == 1
    assert "gpujoin: Spark does not start with master 'local[1]': " in run.stderr
