"""Run the TPC-H queries over Spark Connect, by Spark itself and accelerated, taking turns in one session of a client.

python -m benchmarks.tpch.connect [--sf 1] [--queries 1,3,5] [--repeats 3] [--master 'local[*]']

Starts ``gpujoin connect-server`` and is its client. Both answers of a query are compared; `metrics` says what ran here.
The exit status is 1 if any differs. The same queries in a classic session are those of ``python -m benchmarks.tpch``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.answers import TOLERANCE, difference
from benchmarks.data import TABLES, tpch_directory
from benchmarks.spark.processes import cpu_seconds
from benchmarks.tpch.answers import SUITE
from gpujoin import metrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.gpujoin.costs": "start=0",  # each query is timed after a run of its own
}


@contextmanager
def _client(master: str) -> Iterator[SparkSession]:
    """Give a session of a server in a process of its own."""
    from pyspark.sql import SparkSession

    command = [sys.executable, "-m", "gpujoin", "connect-server", "--host=127.0.0.1", "--port=0", f"--master={master}"]
    command += [f"--conf={name}={value}" for name, value in _SETTINGS.items()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            spark = SparkSession.builder.remote(server.stdout.readline().split()[-1]).getOrCreate()
            yield spark
            spark.stop()
        finally:
            server.terminate()


def _timed(
    spark: SparkSession, text: str, *, enabled: bool
) -> tuple[float, float, DataFrame, list[tuple[object, ...]]]:
    """Give the seconds of a query and those of the processor, the query, and its rows."""
    spark.conf.set("spark.gpujoin.enabled", str(enabled).lower())
    began, used = time.perf_counter(), cpu_seconds()
    frame = spark.sql(text)
    rows = [tuple(row) for row in frame.collect()]
    return time.perf_counter() - began, cpu_seconds() - used, frame, rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpch.connect", description=__doc__.splitlines()[0])
    parser.add_argument("--sf", type=float, default=1.0, metavar="SF", help="TPC-H scale factor (default: 1)")
    parser.add_argument("--queries", default=",".join(map(str, SUITE.numbers)), metavar="1,3,5", help="only these")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each way, after one of each (default: 3)")
    parser.add_argument("--master", default="local[*]", help="Spark master (default: local[*])")
    arguments = parser.parse_args(argv)
    data = tpch_directory(arguments.sf)
    with SUITE.connect(data) as connection:
        texts = SUITE.texts(connection)
    wrong, totals = 0, {True: 0.0, False: 0.0}
    with _client(arguments.master) as spark:
        for table in TABLES:
            spark.read.parquet(str(data / f"{table}.parquet")).createOrReplaceTempView(table)
        for number in map(int, arguments.queries.split(",")):
            _, _, frame, rows = _timed(spark, texts[number], enabled=True)
            islands = len(metrics(frame).report.operations)
            _, _, _, expected = _timed(spark, texts[number], enabled=False)
            differs = difference(rows, expected, TOLERANCE)
            wrong += differs is not None
            runs = {
                enabled: [_timed(spark, texts[number], enabled=enabled)[:2] for _ in range(arguments.repeats)]
                for enabled in (False, True)
            }
            seconds = {way: statistics.median([run[0] for run in each] or [0.0]) for way, each in runs.items()}
            processor = {way: statistics.median([run[1] for run in each] or [0.0]) for way, each in runs.items()}
            totals = {way: total + seconds[way] for way, total in totals.items()}
            print(
                f"query {number:2}: {len(rows):6} rows {'equal' if differs is None else f'WRONG: {differs}'}, "
                f"{islands} islands and joins, Spark {seconds[False]:6.2f} s, here {seconds[True]:6.2f} s; "
                f"of the processor {processor[False]:6.2f} and {processor[True]:6.2f}",
                flush=True,
            )
    print(f"in all: Spark {totals[False]:.1f} s, here {totals[True]:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
