"""What a Python worker sets for its tasks: options of connections, what the collector of garbage looks at."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import gpujoin
from gpujoin.spark.worker.task import acknowledge_at_once


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the option")
def test_connections_send_and_acknowledge_at_once(tmp_path: Path) -> None:
    file = (tmp_path / "file").open("w+")
    local, _ = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server, file, local:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            acknowledge_at_once()
            for connection in (client, accepted):
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
            accepted.sendall(b"still open")
            assert client.recv(10) == b"still open"
        file.write("still open")


def test_the_collector_of_a_worker_spares_what_its_first_tasks_leave(spark: SparkSession, tmp_path: Path) -> None:
    here = gc.get_freeze_count()
    spark.range(100).write.parquet(str(tmp_path / "numbers"))
    query = spark.read.parquet(str(tmp_path / "numbers")).groupBy(sf.col("id") % 7).count()

    def spared(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"worker": [os.getpid()], "spared": [gc.get_freeze_count()]})

    spark.conf.set("spark.gpujoin.backend", "cpu")
    seen: dict[int, int] = {}
    for _ in range(8):  # as many workers take turns as there are cores
        accelerated = gpujoin.accelerate(query)
        assert len(accelerated.collect()) == 7
        assert gpujoin.metrics(accelerated)
        rows = spark.range(0, 1, 1, 1).mapInArrow(spared, "worker long, spared long").collect()
        seen |= {row.worker: row.spared for row in rows}
    assert max(seen.values()) > 10_000
    assert gc.get_freeze_count() == here, "this is not a worker"
