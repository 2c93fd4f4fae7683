"""Joins of streams in Spark: here, and by Spark's operator with both of its state stores.

python -m benchmarks.streams.spark [--batch 200000] [--kept 10] [--timed 3] [--out benchmarks/results/NAME.json]

The rows are those of `python -m benchmarks.streams`, in files, one of each side in a micro-batch. Each query runs in a
process of its own, with two partitions; the first ``kept`` micro-batches fill the state, the next are timed. The rows
of all queries of a join type are compared by counts and checksums, micro-batch by micro-batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import describe
from benchmarks.streams.__main__ import SEED, rows

WHERE = ("here", "rocksdb", "hdfs")
SHOWN = {"here": "gpujoin", "rocksdb": "Spark, RocksDB, format 4", "hdfs": "Spark, HDFS-backed, format 2"}
PARTITIONS = 2


def write(folder: Path, batch_rows: int, batches: int) -> None:
    """Write the files of both sides, Spark takes the oldest first."""
    rng = np.random.default_rng(SEED)
    for batch in range(batches):
        for side in ("l", "r"):
            (folder / side).mkdir(exist_ok=True)
            file = folder / side / f"{batch:04}.parquet"
            pq.write_table(pa.Table.from_batches([rows(rng, batch, batch_rows // 2, 0)]), file)
            os.utime(file, (1_700_000_000 + batch,) * 2)


def run(folder: Path, where: str, how: str) -> dict[str, Any]:
    """Run one query."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.streams.query", str(folder), where, how, str(PARTITIONS)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{where}, {how}: {done.stderr[-3000:]}")
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    own = ["transformWithStateInPandasExec"] if where == "here" else ["symmetricHashJoin"]
    if record["operators"] != own:
        raise SystemExit(f"{where}, {how}: the state was kept by {record['operators']}")
    return record


def compare(records: list[dict[str, Any]]) -> None:
    """Compare the rows of each micro-batch.

    Raises
    ------
    SystemExit
        If they differ.
    """
    told = [[(b["batch"], b["rows"], b["checksum"]) for b in record["batches"]] for record in records]
    if any(each != told[0] for each in told):
        raise SystemExit(f"{records[0]['how']}: the rows of micro-batches differ: {told}")


def medians(record: dict[str, Any], timed: int) -> dict[str, float]:
    """Seconds of micro-batches with a full state, and of one without rows."""
    full = [batch for batch in record["batches"] if batch["input"]][-timed:]
    empty = [batch for batch in record["batches"] if not batch["input"]]
    return {
        "seconds": statistics.median(batch["seconds"] for batch in full),
        "cpu": statistics.median(batch["cpu"] for batch in full),
        "empty": min((batch["seconds"] for batch in empty), default=float("nan")),
    }


def page(result: dict[str, Any], timed: int) -> str:
    """The page of results."""
    machine = result["machine"]
    about = (
        f"{machine['processor']}, {machine['cores']} cores; Python {machine['python']}, PySpark"
        f" {machine['versions']['pyspark']}, `local[2]`, {PARTITIONS} partitions. Medians of the last {timed}"
        f" micro-batches with rows, {result['batch_rows']:,} each; CPU seconds of all processes; *no rows*: the"
        " micro-batch that follows a new watermark. Rows of every micro-batch were compared by count and checksum."
    )
    lines = [
        "# Joins of two streams in Spark", "",
        f"`{' '.join(['python -m benchmarks.streams.spark', *sys.argv[1:]])}` at {machine['revision']}", "", about, "",
        "| join | where | rows kept | seconds | ratio | CPU s | ratio | no rows, s | checkpoint's state, MB |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for how, records in result["cases"].items():
        own = medians(records[0], timed)
        for record in records:
            m = medians(record, timed)
            lines.append(
                f"| {how} | {SHOWN[record['where']]} | {records[0]['state_rows']:,} | {m['seconds']:.2f} |"
                f" {m['seconds'] / own['seconds']:.1f} | {m['cpu']:.2f} | {m['cpu'] / own['cpu']:.1f} |"
                f" {m['empty']:.2f} | {record['state_bytes'] / 1e6:.0f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams.spark")
    parser.add_argument("--batch", type=int, default=200_000, help="rows of a batch, both sides together")
    parser.add_argument("--kept", type=int, default=10, help="batches that are kept")
    parser.add_argument("--timed", type=int, default=3, help="further batches, which are timed")
    parser.add_argument("--how", nargs="+", default=["inner", "left"])
    parser.add_argument("--where", nargs="+", default=list(WHERE))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    batches = given.kept + given.timed
    result: dict[str, Any] = {"machine": describe(), "batch_rows": given.batch, "cases": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, given.batch, batches)
        for how in given.how:
            records = [run(folder, where, how) for where in given.where]
            compare(records)
            result["cases"][how] = records
            print(
                json.dumps({r["where"]: medians(r, given.timed) for r in records}),
                file=sys.stderr,
                flush=True,
            )
    text = page(result, given.timed)
    print(text)
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
        given.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
