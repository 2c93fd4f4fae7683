"""What gpujoin changes in a Python worker of PySpark's: only what is PySpark's own, and gpujoin's."""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import gpujoin
from gpujoin.spark.worker import process

DAEMON = """
def manager(sock, tasks):
    for task in tasks:
        code = worker(sock, task)

def worker(sock, task):
    task()
"""
"""The functions of PySpark's daemon, as far as they are looked at."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the option")


def run_in_daemon(connection: socket.socket | None, *tasks: Callable[[], object]) -> None:
    functions: dict[str, Any] = {}
    exec(compile(DAEMON, "/lib/pyspark/daemon.py", "exec"), functions)  # noqa: S102
    functions["manager"](connection, tasks)


def is_without_delay(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


@linux
def test_the_connection_of_the_worker_sends_and_acknowledges_at_once_and_no_other_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            run_in_daemon(client, process.acknowledge_at_once)
            assert is_without_delay(client)
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
            assert not is_without_delay(accepted)
            accepted.sendall(b"still open")
            assert client.recv(10) == b"still open"


def test_other_connections_of_workers_stay_as_they_are() -> None:
    local, other = socket.socketpair()
    with local, other:
        run_in_daemon(local, process.acknowledge_at_once)
    run_in_daemon(local, process.acknowledge_at_once)  # it is closed
    run_in_daemon(None, process.acknowledge_at_once)
    process.acknowledge_at_once()  # this is no worker


def test_a_process_is_new_in_its_first_task() -> None:
    seen: list[bool] = []
    run_in_daemon(None, *[lambda: seen.append(process.is_new())] * 3)
    assert seen == [True, False, False]
    assert not process.is_new(), "this is no worker"


def test_archives_of_spark_are_not_read_anew_for_each_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / "pyspark.zip", tmp_path / "users.zip"]
    for number, path in enumerate(paths):
        with zipfile.ZipFile(path, "w") as archive:
            for name in ("one", "two"):
                archive.writestr(f"{name}_in_{number}/__init__.py", f"from {name}_in_{number} import inner")
                archive.writestr(f"{name}_in_{number}/inner.py", "")
        monkeypatch.syspath_prepend(path)
        importlib.import_module(f"one_in_{number}")
    places = {str(path): [place for place in sys.path_importer_cache if place.startswith(str(path))] for path in paths}
    assert all(len(each) == 2 for each in places.values()), "of the archive, and of the package within"
    process.forget_archives()
    of_spark, of_user = ([place in sys.path_importer_cache for place in each] for each in places.values())
    assert not any(of_spark)
    assert all(of_user)
    paths[1].unlink()
    importlib.invalidate_caches()
    assert importlib.import_module("two_in_0").inner
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("two_in_1")


Row = tuple[int, bool, bool, int]
"""A worker: its process; whether PySpark's connection, and one of the user's, send at once; objects never collected."""


def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    frame = process._daemon_frame("worker")
    assert frame is not None, "PySpark's daemon has no function of that name any more"
    opened: list[socket.socket] = getattr(sys, "opened_by_the_user", [])
    for _ in batches:
        yield pa.RecordBatch.from_pydict(
            {
                "worker": [os.getpid()],
                "own": [is_without_delay(frame.f_locals["sock"])],
                "users": [any(map(is_without_delay, opened))],
                "frozen": [gc.get_freeze_count()],
            }
        )
        time.sleep(0.3)  # so that each task has a worker of its own


def open_connection(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    sys.opened_by_the_user = [client, server.accept()[0]]  # type: ignore[attr-defined]
    yield from look(batches)


def in_each_worker(spark: SparkSession, function: Any) -> set[Row]:
    tasks = spark.sparkContext.defaultParallelism
    rows = spark.range(0, tasks, 1, tasks).mapInArrow(function, "worker long, own boolean, users boolean, frozen long")
    return {tuple(row) for row in rows.collect()}


@pytest.fixture
def new_workers(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with workers of their own: those with other variables of the environment are other ones."""
    environment = spark.sparkContext.environment
    environment["GPUJOIN_TEST_WORKERS"] = str(time.monotonic_ns())
    yield spark
    del environment["GPUJOIN_TEST_WORKERS"]


def run_here(spark: SparkSession, folder: Path) -> None:
    spark.range(100).write.mode("overwrite").parquet(str(folder / "numbers"))
    spark.conf.set("spark.gpujoin.backend", "cpu")
    for _ in range(3):
        query = spark.read.parquet(str(folder / "numbers")).groupBy(sf.col("id") % 7).count()
        accelerated = gpujoin.accelerate(query)
        assert len(accelerated.collect()) == 7
        assert gpujoin.metrics(accelerated)


@linux
@pytest.mark.spark
def test_a_worker_that_the_users_code_runs_in_keeps_the_users_connections_and_objects_as_they_are(
    new_workers: SparkSession, tmp_path: Path
) -> None:
    before = in_each_worker(new_workers, open_connection)
    assert not any(own or users or frozen for _, own, users, frozen in before)
    run_here(new_workers, tmp_path)
    after = in_each_worker(new_workers, look)
    assert {worker for worker, *_ in after} <= {worker for worker, *_ in before}
    assert any(own for _, own, _, _ in after), "no worker ran a task of gpujoin's"
    assert not any(users for _, _, users, _ in after)
    assert not any(frozen for *_, frozen in after)


@pytest.mark.extra
@pytest.mark.spark
def test_the_libraries_of_a_worker_that_began_with_a_task_of_gpujoin_are_collected_no_more(
    new_workers: SparkSession, tmp_path: Path
) -> None:
    here = gc.get_freeze_count()
    run_here(new_workers, tmp_path)
    frozen = [number for *_, number in in_each_worker(new_workers, look)]
    assert max(frozen) > 10_000
    run_here(new_workers, tmp_path)
    assert max(number for *_, number in in_each_worker(new_workers, look)) == max(frozen), "once in a process"
    assert gc.get_freeze_count() == here, "this is not a worker"
