"""Joins of a stream with tables in Spark: here, and by Spark itself.

python -m benchmarks.streams.tables [--batches 10] [--timed 4] [--scale 1.0] [--out benchmarks/results/NAME.json]

One file of the stream is a micro-batch; the tables are Parquet files that stay the same. Each query runs in a process
of its own; the last ``timed`` micro-batches are shown. Rows are compared by counts and sums of their integers,
micro-batch by micro-batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import gpujoin
from benchmarks.machine import describe
from benchmarks.streams.running import compare, in_own_process, report, session, to_the_end

SEED = 20261123
SPAN = 1_000_000
"""Values of the stream are below."""
KEYS = 2_000_000
SYMBOLS = 500
WHERE = ("here", "spark")
SHOWN = {"here": "gpujoin", "spark": "Spark"}
ISLAND = "GpuJoinIsland island_"


@dataclass(frozen=True)
class Case:
    """A query.

    Attributes
    ----------
    shown : str
        What it is, for the page.
    rows : int
        Rows of a micro-batch.
    query : callable
        Makes it of the stream and of what reads a table by its name.
    """

    shown: str
    rows: int
    query: Callable[[DataFrame, Callable[[str], DataFrame]], DataFrame]


def _bands(stream: DataFrame, table: Callable[[str], DataFrame]) -> DataFrame:
    return stream.join(table("bands"), f.expr("v between lo and hi"), "left")


def _accounts(stream: DataFrame, table: Callable[[str], DataFrame]) -> DataFrame:
    return stream.join(table("accounts"), f.expr("k = account"), "left")


def _both(stream: DataFrame, table: Callable[[str], DataFrame]) -> DataFrame:
    return _bands(_accounts(stream, table), table)


def _quotes(stream: DataFrame, table: Callable[[str], DataFrame]) -> DataFrame:
    return gpujoin.gpu_asof_join(stream, table("quotes"), left_on="v", right_on="at", left_by="symbol", right_by="of")


CASES = {
    "range": Case("range, left, 10,000 bands", 20_000, _bands),
    "equality": Case("equality, left, 5 M accounts", 100_000, _accounts),
    "both": Case("both tables", 20_000, _both),
    "as-of": Case("as-of by symbol, 1 M quotes", 100_000, _quotes),
}


def write(folder: Path, rows: int, batches: int, scale: float) -> None:
    """Write the stream's files, Spark takes the oldest first, and the tables."""
    rng = np.random.default_rng(SEED)
    for name in ("stream", "bands", "accounts", "quotes"):
        (folder / name).mkdir()
    for batch in range(batches):
        file = folder / "stream" / f"{batch:04}.parquet"
        table = pa.table({
            "k": rng.integers(0, KEYS, rows), "v": rng.integers(0, SPAN, rows),
            "symbol": rng.integers(0, SYMBOLS, rows).astype(np.int32), "amount": rng.random(rows),
        })  # fmt: skip
        pq.write_table(table, file)
        os.utime(file, (1_700_000_000 + batch,) * 2)
    count = int(10_000 * scale)
    low = np.sort(rng.choice(SPAN, count, replace=False))
    bands = {"lo": low, "hi": low + rng.integers(0, 2 * SPAN // count, count), "band": np.arange(count)}
    pq.write_table(pa.table(bands), folder / "bands" / "0.parquet")
    count = int(5_000_000 * scale)
    accounts = {"account": rng.permutation(count), "limit": rng.random(count)}
    pq.write_table(pa.table(accounts), folder / "accounts" / "0.parquet")
    count = int(1_000_000 * scale)
    quotes = {
        "of": rng.integers(0, SYMBOLS, count).astype(np.int32),
        "at": rng.choice(SPAN * 4, count, replace=False) - SPAN, "price": rng.random(count),
    }  # fmt: skip
    pq.write_table(pa.table(quotes), folder / "quotes" / "0.parquet")


def run(folder: Path, case: str, where: str) -> None:
    """Run one query to the end of its files in this process; prints JSON."""
    spark = session("4g", 2, {"spark.gpujoin.disable": "" if where == "here" else "streams"})
    if where == "here":
        gpujoin.enable(spark)
    reader = spark.readStream.schema("k bigint, v bigint, symbol int, amount double")
    stream = reader.option("maxFilesPerTrigger", 1).parquet(str(folder / "stream"))
    joined = CASES[case].query(stream, lambda name: spark.read.parquet(str(folder / name)))
    started = time.perf_counter()
    query, batches = to_the_end(joined, folder / f"log-{case}-{where}")
    plan = str(query._jsq.explainInternal(False))  # noqa: SLF001
    seconds = time.perf_counter() - started
    print(json.dumps({"where": where, "here": ISLAND in plan, "batches": batches, "seconds": seconds}))
    spark.stop()


def measured(folder: Path, case: str, where: str) -> dict[str, Any]:
    """Run one query in a process of its own.

    Raises
    ------
    SystemExit
        If it fails, or was not run where it should be.
    """
    record = in_own_process("tables", "--run", str(folder), case, where)
    if record["here"] is not (where == "here"):
        raise SystemExit(f"{case}, {where}: the last micro-batch was {'' if record['here'] else 'not '}run here")
    return record


def page(result: dict[str, Any], timed: int) -> str:
    """The page of results."""
    machine = result["machine"]
    about = (
        f"{machine['processor']}, {machine['cores']} cores; Python {machine['python']}, PySpark"
        f" {machine['versions']['pyspark']}, `local[2]`, 2 partitions. Medians of the last {timed} micro-batches; CPU"
        " seconds of all processes; *first*: seconds of the first micro-batch. The tables are Parquet files. Rows of"
        " every micro-batch were compared by count and sums of their integers. Spark's as-of join is a window over both"
        " inputs."
    )
    lines = [
        "# Joins of a stream with tables in Spark", "",
        f"`{' '.join(['python -m benchmarks.streams.tables', *sys.argv[1:]])}` at {machine['revision']}", "", about, "",
        "| join | rows a batch | rows returned | where | seconds | ratio | CPU s | ratio | first |",
        "|---|---:|---:|---|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for name, records in result["cases"].items():
        shown = [medians(record, timed) for record in records]
        for record, m in zip(records, shown, strict=True):
            lines.append(
                f"| {CASES[name].shown} | {CASES[name].rows:,} | {record['batches'][-1]['rows']:,} |"
                f" {SHOWN[record['where']]} | {m['seconds']:.2f} | {m['seconds'] / shown[0]['seconds']:.1f} |"
                f" {m['cpu']:.2f} | {m['cpu'] / shown[0]['cpu']:.1f} | {record['batches'][0]['seconds']:.1f} |"
            )
    return "\n".join(lines) + "\n"


def medians(record: dict[str, Any], timed: int) -> dict[str, float]:
    """Seconds of the last micro-batches."""
    last = record["batches"][-timed:]
    return {name: statistics.median(batch[name] for batch in last) for name in ("seconds", "cpu")}


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams.tables")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--timed", type=int, default=4, help="how many of the last batches are shown")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the tables")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run is not None:
        folder, case, where = given.run
        run(Path(folder), case, where)
        return
    result: dict[str, Any] = {"machine": describe(), "cases": {}}
    for case in given.cases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(folder, CASES[case].rows, given.batches, given.scale)
            records = [measured(folder, case, where) for where in WHERE]
        compare(case, records)
        result["cases"][case] = records
        shown = {record["where"]: medians(record, given.timed) for record in records}
        print(json.dumps({case: shown}), file=sys.stderr, flush=True)
    report(result, page(result, given.timed), given.out)


if __name__ == "__main__":
    main()
