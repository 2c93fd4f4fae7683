"""Run the benchmark: what an exchanged byte costs from worker to worker, and where that goes.

python -m benchmarks.exchange [--mib 512] [--repeats 3] [--out benchmarks/results/exchange-cpu.json]

Two tasks send blobs, five tasks take them, by each transport. Processor time of all processes together; of warm runs
the least. The rows that arrive are counted.
"""

# ruff: noqa: SLF001

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.serializers import CloudPickleSerializer, NoOpSerializer
from pyspark.sql import SparkSession

from benchmarks.exchange.works import FORM, Send, Take, rows_of
from benchmarks.machine import describe
from benchmarks.spark.processes import cpu_seconds_by_process, is_java
from gpujoin.config import Transport
from gpujoin.spark.jvm.compiled import byte_exchange
from gpujoin.spark.jvm.gateway import dataframe_of, gateway_of
from gpujoin.spark.shuffle.blobrows import BLOB_DDL
from gpujoin.spark.shuffle.labels import repartition_by_label
from gpujoin.spark.worker.functions import packet_function, stage_function

ROOT = Path(__file__).parents[2]
SENDERS, PARTITIONS = 2, 5
SIZES = (256 << 10, 4 << 20)
COUNT = '{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}'


@dataclass(frozen=True)
class Times:
    """Processor seconds."""

    java: float
    python: float
    wall: float = 0.0

    @property
    def total(self) -> float:
        return self.java + self.python


def timed(action: Callable[[], int], expected: int, repeats: int) -> Times:
    """The least of some runs after one that warms up."""
    runs = []
    for _ in range(repeats + 1):
        before, start = cpu_seconds_by_process(), time.perf_counter()
        count = action()
        after = cpu_seconds_by_process()
        if count != expected:
            raise SystemExit(f"{count} rows arrived, {expected} were sent")
        taken = {True: 0.0, False: 0.0}
        for process, seconds in after.items():  # workers that end in between are those of earlier runs
            taken[is_java(process)] += seconds - before.get(process, 0.0)
        runs.append(Times(taken[True], taken[False], time.perf_counter() - start))
    return min(runs[1:], key=lambda run: run.total)


def in_process(action: Callable[[], Any], times: int) -> float:
    """Processor seconds of a call that is repeated in this process."""
    action()
    start = time.process_time()
    for _ in range(times):
        action()
    return time.process_time() - start


class Exchange:
    """Both transports between the same tasks."""

    def __init__(self, session: SparkSession, size: int, blobs: int) -> None:
        self._session = session
        self._size = size
        self._blobs = blobs // SENDERS

    def _send(self, transport: Transport) -> Any:
        return stage_function(Send(transport, self._size, self._blobs, PARTITIONS), "send")

    def whole(self, transport: Transport) -> int:
        """Send and take; how many rows arrived."""
        if transport is Transport.ROWS:
            sent = self._session.range(0, SENDERS, 1, SENDERS).mapInArrow(self._send(transport), BLOB_DDL)
            moved = repartition_by_label(sent, PARTITIONS, "p").sortWithinPartitions("p", "side")
            frame = moved.mapInArrow(stage_function(Take(transport), "take"), "n long")
        else:
            frame = self._by_bytes()
        return sum(row.n for row in frame.collect())

    def handed_over(self, transport: Transport) -> int:
        """Only hand the blobs to Spark, which drops them."""
        if transport is Transport.ROWS:
            sent = self._session.range(0, SENDERS, 1, SENDERS).mapInArrow(self._send(transport), BLOB_DDL)
            sent.write.format("noop").mode("append").save()
            return 0
        given = self._session.sparkContext.parallelize(range(SENDERS), SENDERS)
        function: Any = packet_function(self._send(transport))
        packets: Any = given.mapPartitionsWithIndex(function)
        packets._bypass_serializer = True
        assert packets._jrdd.count() == 2 * SENDERS * self._blobs
        return 0

    def _by_bytes(self) -> Any:
        context = self._session.sparkContext
        serializer: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
        pickled = [
            serializer.dumps((packet_function(function), None, NoOpSerializer(), NoOpSerializer()))
            for function in (self._send(Transport.BYTES), stage_function(Take(Transport.BYTES), "take"))
        ]
        first = len(pickled[0])
        described = {
            "stage": {
                "name": "take", "schema": COUNT, "tasks": PARTITIONS, "command": [first, first + len(pickled[1])],
                "inputs": [{"name": "send", "tasks": SENDERS, "inputs": [], "command": [0, first]}],
            },
            "python": {
                "environment": context.environment, "includes": context._python_includes,
                "executable": context.pythonExec, "version": context.pythonVer,
            },
        }  # fmt: skip
        exchange = byte_exchange(gateway_of(self._session))
        plan = exchange.rows(
            self._session._jsparkSession, json.dumps(described), b"".join(pickled), context._javaAccumulator, None
        )
        return dataframe_of(self._session, plan).toDF("n")


def measure(session: SparkSession, size: int, nbytes: int, repeats: int) -> dict[str, Any]:
    """Nanoseconds a byte of blobs of one size, by step."""
    blobs = nbytes // size // SENDERS * SENDERS
    rows = rows_of(size)
    blob = FORM.encode(rows, 0)
    per_byte = 1e9 / (blobs * blob.size)
    runs = max(1, blobs // 4)
    encode = in_process(lambda: FORM.encode(rows, 0), runs) * 1e9 / (runs * blob.size)
    decode = in_process(lambda: FORM.decode(blob, 0), runs) * 1e9 / (runs * blob.size)
    exchange = Exchange(session, size, blobs)
    costs: dict[str, Any] = {"blob_bytes": blob.size, "blobs": blobs, "encode": encode, "decode": decode}
    for transport in Transport:
        handed = timed(partial(exchange.handed_over, transport), 0, repeats)
        whole = timed(partial(exchange.whole, transport), blobs * rows.num_rows, repeats)
        costs[transport.value] = {
            "hand over": handed.total * per_byte - encode,
            "rest": (whole.total - handed.total) * per_byte - decode,
            "whole": whole.total * per_byte,
            "java": whole.java * per_byte,
            "python": whole.python * per_byte,
            "seconds": whole.wall,
        }
    return costs


def page(results: list[dict[str, Any]]) -> str:
    """The table of results."""
    columns = [(result, transport.value) for result in results for transport in (Transport.ROWS, Transport.BYTES)]
    heads = [f"{result['blob_bytes'] >> 10:,} KiB, {name}" for result, name in columns]
    lines = [f"| nanoseconds a byte | {' | '.join(heads)} |", "|---|" + "---:|" * len(columns)]
    steps: list[tuple[str, Callable[[dict[str, Any], str], float]]] = [
        ("writing a blob, with its checksum", lambda result, _: result["encode"]),
        ("from the worker to Spark", lambda result, name: result[name]["hand over"]),
        ("Spark's shuffle, and from Spark to the worker", lambda result, name: result[name]["rest"]),
        ("checking and reading a blob", lambda result, _: result["decode"]),
        ("**in all**", lambda result, name: result[name]["whole"]),
        ("of which in the JVM", lambda result, name: result[name]["java"]),
        ("of which in Python", lambda result, name: result[name]["python"]),
    ]
    for step, value in steps:
        lines.append(f"| {step} | {' | '.join(f'{value(result, name):.1f}' for result, name in columns)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchange", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=512, help="how much is exchanged in a run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark's")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    least = SENDERS * max(SIZES) >> 20
    if arguments.mib < least:
        parser.error(f"--mib {arguments.mib} is too little for a blob of each task; give {least} or more")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.master("local[2]")
        for key, value in {
            "spark.driver.memory": "3g",
            "spark.local.dir": folder,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            **dict(given.split("=", 1) for given in arguments.conf),
        }.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        results = [measure(session, size, arguments.mib << 20, arguments.repeats) for size in SIZES]
        session.stop()
    shown = page(results)
    print(shown)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": describe(), "results": results}, indent=1) + "\n")
        run = (
            f"`python -m benchmarks.exchange`, {arguments.mib} MiB from {SENDERS} tasks to {PARTITIONS}, local[2]; "
            f"processor time of all processes, the least of {arguments.repeats} warm runs"
        )
        arguments.out.with_suffix(".md").write_text(f"# What an exchanged byte costs\n\n{run}\n\n{shown}\n")


if __name__ == "__main__":
    main()
