"""Joins of streams in Spark: here, and by Spark's operator with both of its state stores.

python -m benchmarks.streams.spark [--batch 200000] [--out benchmarks/results/NAME.json]
python -m benchmarks.streams.spark --sizes 200000 2000000 20000000 --how inner --out …

The rows are those of `python -m benchmarks.streams`, in files, one of each side in a micro-batch. Each query runs in a
process of its own, with two partitions: many small micro-batches first, since the JVM compiles what plans a micro-batch
for a minute; then those that fill the state; then those that are timed. Without `--sizes` the state holds ten
micro-batches, and old rows leave in each; with it the state is filled to these sizes, and no rows leave. The rows of
all queries of a join type are compared by counts and sums of their integers, micro-batch by micro-batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import describe
from benchmarks.streams.__main__ import SEED, rows
from benchmarks.streams.running import compare, in_own_process, report

WHERE = ("here", "rocksdb", "hdfs")
SHOWN = {"here": "gpujoin", "rocksdb": "Spark, RocksDB, format 4", "hdfs": "Spark, HDFS-backed, format 2"}
PARTITIONS = 2
WARM_ROWS = 2_000
"""Rows of the small micro-batches before the others."""
KEPT = 10
"""Micro-batches whose rows are in the state at once, and by which it is filled to a size."""


@dataclass(frozen=True)
class Stream:
    """The micro-batches of a query.

    Attributes
    ----------
    batches : tuple of (int, int)
        Span of ten seconds that a micro-batch's rows are of, and their number, both sides together.
    timed : int
        How many of the last are timed.
    """

    batches: tuple[tuple[int, int], ...]
    timed: int

    @classmethod
    def steady(cls, batch_rows: int, timed: int, warm: int) -> Stream:
        """Old rows leave in each micro-batch that is timed."""
        spans = range(warm, warm + KEPT + 3 + timed)
        return cls(_small(warm) + tuple((span, batch_rows) for span in spans), timed)

    @classmethod
    def filled(cls, state_rows: int, batch_rows: int, timed: int, warm: int) -> Stream:
        """No rows leave once the state is filled."""
        filling = ((warm + 1, state_rows // KEPT),) * KEPT
        return cls(_small(warm) + filling + tuple((warm + 2 + i, batch_rows) for i in range(timed)), timed)

    def write(self, folder: Path) -> None:
        """Write the files of both sides; Spark takes the oldest first."""
        rng = np.random.default_rng(SEED)
        for number, (span, count) in enumerate(self.batches):
            for side in ("l", "r"):
                (folder / side).mkdir(exist_ok=True)
                file = folder / side / f"{number:04}.parquet"
                pq.write_table(pa.Table.from_batches([rows(rng, span, count // 2, 0)]), file)
                os.utime(file, (1_700_000_000 + number,) * 2)


def _small(warm: int) -> tuple[tuple[int, int], ...]:
    return tuple((span, WARM_ROWS) for span in range(warm))


def run(folder: Path, where: str, how: str, memory: str) -> dict[str, Any]:
    """Run one query."""
    record = in_own_process("query", str(folder), where, how, str(PARTITIONS), memory)
    own = ["transformWithStateInPandasExec"] if where == "here" else ["symmetricHashJoin"]
    if record["operators"] != own:
        raise SystemExit(f"{where}, {how}: the state was kept by {record['operators']}")
    return record


def means(record: dict[str, Any], timed: int) -> dict[str, float]:
    """Means of the timed micro-batches, and the seconds of the one without rows after them."""
    full = [batch for batch in record["batches"] if batch["input"]][-timed:]
    empty = [batch for batch in record["batches"] if not batch["input"]]
    return {
        "seconds": statistics.mean(batch["seconds"] for batch in full),
        "cpu": statistics.mean(batch["cpu"] for batch in full),
        "empty": empty[-1]["seconds"] if empty else float("nan"),
        "worker_mb": full[-1]["worker_bytes"] / 1e6,
    }


def page(result: dict[str, Any]) -> str:
    """The page of results."""
    machine = result["machine"]
    about = (
        f"{machine['processor']}, {machine['cores']} cores; Python {machine['python']}, PySpark"
        f" {machine['versions']['pyspark']}, `local[2]`, {PARTITIONS} partitions, after {result['warm']} small"
        f" micro-batches. Means of {result['timed']} micro-batches with {result['batch_rows']:,} rows each; CPU seconds"
        " of all processes; *no rows*: the micro-batch that follows a new watermark; *workers*: their memory, mapped"
        " state included; *state*: its files in the checkpoint, all versions that Spark retains. Rows of every"
        " micro-batch were compared by count and sums of their integers."
    )
    lines = [
        "# Joins of two streams in Spark", "",
        f"`{' '.join(['python -m benchmarks.streams.spark', *sys.argv[1:]])}` at {machine['revision']}", "", about, "",
        "| join | rows kept | where | seconds | ratio | CPU s | ratio | no rows, s | workers, MB | state, MB |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for case in result["cases"]:
        own = case["records"][0]["means"]
        for record in case["records"]:
            m = record["means"]
            lines.append(
                f"| {case['how']} | {case['state_rows']:,} | {SHOWN[record['where']]} | {m['seconds']:.2f} |"
                f" {m['seconds'] / own['seconds']:.1f} | {m['cpu']:.2f} | {m['cpu'] / own['cpu']:.1f} |"
                f" {m['empty']:.2f} | {m['worker_mb']:.0f} | {record['state_bytes'] / 1e6:.0f} |"
            )
    if "plot" in result:
        lines += ["", f"![processor seconds over rows kept]({result['plot']})"]
    return "\n".join(lines) + "\n"


def plot(cases: list[dict[str, Any]], path: Path) -> None:
    """Processor seconds of a micro-batch over the rows of the state, as PNG and SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for where, shown in SHOWN.items():
        points = [
            (case["state_rows"], record["means"]["cpu"])
            for case in cases
            for record in case["records"]
            if record["where"] == where
        ]
        if points:
            axes.plot(*zip(*sorted(points), strict=True), marker="o", label=shown)
    axes.set(xscale="log", yscale="log", xlabel="rows kept", ylabel="CPU seconds of a micro-batch")
    axes.legend()
    for ending in (".png", ".svg"):
        figure.savefig(path.with_suffix(ending), dpi=120)
    plt.close(figure)


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams.spark")
    parser.add_argument("--batch", type=int, default=200_000, help="rows of a batch, both sides together")
    parser.add_argument("--timed", type=int, default=8, help="batches that are timed")
    parser.add_argument("--warm", type=int, default=60, help="small batches before the others")
    parser.add_argument("--sizes", type=int, nargs="+", default=[], help="rows that fill the state")
    parser.add_argument("--how", nargs="+", default=["inner", "left"])
    parser.add_argument("--where", nargs="+", default=list(WHERE))
    parser.add_argument("--memory", default="6g", help="the JVM's heap")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    streams = [Stream.filled(size, given.batch, given.timed, given.warm) for size in given.sizes]
    result: dict[str, Any] = {
        "machine": describe(), "batch_rows": given.batch, "timed": given.timed, "warm": given.warm, "cases": [],
    }  # fmt: skip
    for stream in streams or [Stream.steady(given.batch, given.timed, given.warm)]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            stream.write(folder)
            for how in given.how:
                records = [run(folder, where, how, given.memory) for where in given.where]
                compare(how, records)
                for record in records:
                    record["means"] = means(record, stream.timed)
                kept = [b["state_rows"] for b in records[0]["batches"] if b["input"]][-1]
                result["cases"].append({"how": how, "state_rows": kept, "records": records})
                told = {record["where"]: record["means"] for record in records}
                print(json.dumps({"how": how, "kept": kept, **told}), file=sys.stderr, flush=True)
    if given.out is not None and given.sizes:
        plot(result["cases"], given.out)
        result["plot"] = given.out.with_suffix(".svg").name
    report(result, page(result), given.out)


if __name__ == "__main__":
    main()
