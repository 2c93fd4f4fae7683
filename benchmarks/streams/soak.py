"""A join of two streams with bounded state for a long time: whether memory, files and threads stay as they are.

python -m benchmarks.streams.soak [--minutes 30] [--out benchmarks/results/streams-soak.json]

Two sources give 5,000 numbered rows a micro-batch each; the row of the right one that matches comes five micro-batches
later, so that every match is with rows of the state. Each left row must be returned once, with its match: what the
query returns is counted and summed in every micro-batch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import gpujoin
from benchmarks.machine import describe
from benchmarks.spark.processes import descendants, is_java, proportional_bytes
from benchmarks.streams.query import PROVIDER
from benchmarks.streams.running import report, session

ROWS, BEHIND = 5_000, 5
"""Rows a micro-batch, and micro-batches until a row's match comes."""
PARTITIONS = 2
EVERY = 10.0
"""Seconds between samples."""
SHOWN = {
    "state_rows": "rows kept", "java_mb": "JVM, MB", "workers_mb": "Python workers, MB", "descriptors": "open files",
    "threads": "threads", "chunk_files": "files of chunks", "chunk_mb": "chunks, MB",
    "checkpoint_files": "files of the checkpoint", "checkpoint_mb": "checkpoint, MB", "processes": "processes",
}  # fmt: skip


def sample(local: Path, checkpoint: Path) -> dict[str, float]:
    """What the processes and folders take."""
    shares = {"java_mb": 0.0, "workers_mb": 0.0}
    counts = {"descriptors": 0, "threads": 0}
    processes = descendants(os.getpid())
    for process in processes:
        shares["java_mb" if is_java(process) else "workers_mb"] += proportional_bytes(process) / 1e6
        for counted, folder in (("descriptors", "fd"), ("threads", "task")):
            with suppress(OSError):  # it has ended
                counts[counted] += len(list(Path(f"/proc/{process}/{folder}").iterdir()))
    chunks = sizes(local, "gpujoin-streams/*/*/*")
    kept = sizes(checkpoint, "**/*")
    return {
        **shares, **counts, "processes": len(processes),
        "chunk_files": len(chunks), "chunk_mb": sum(chunks) / 1e6, "checkpoint_files": len(kept),
        "checkpoint_mb": sum(kept) / 1e6,
    }  # fmt: skip


def sizes(folder: Path, pattern: str) -> list[int]:
    """Bytes of files, of those that are there to the end."""
    found = []
    for path in folder.glob(pattern if "**" in pattern else f"**/{pattern}"):
        try:
            if path.is_file():
                found.append(path.stat().st_size)
        except OSError:
            continue
    return found


def run(folder: Path, minutes: float) -> dict[str, Any]:
    """Run the query; gives samples and what was returned."""
    local, checkpoint = folder / "local", folder / "checkpoint"
    spark = session(
        "2g",
        PARTITIONS,
        {
            "spark.local.dir": str(local),
            "spark.sql.streaming.stateStore.providerClass": PROVIDER["here"],
            "spark.sql.streaming.minBatchesToRetain": "20",
        },
    )
    gpujoin.enable(spark)

    def source(side: str, behind: int) -> DataFrame:
        read = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
        rows = read.option("advanceMillisPerBatch", 1000).option("startTimestamp", 1_700_000_000_000).load()
        named = rows.selectExpr(f"value - {behind * ROWS} as {side}k", f"timestamp as {side}t")
        return named.withWatermark(f"{side}t", "10 seconds")

    within = "lk = rk and rt >= lt - interval 20 seconds and rt <= lt + interval 20 seconds"
    joined = source("l", 0).join(source("r", BEHIND), f.expr(within))
    summed = joined.observe("returned", f.count(f.lit(1)).alias("rows"), f.sum("lk").alias("sum"))
    query = (
        summed.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )
    samples: list[dict[str, float]] = []
    returned = {"batches": 0, "rows": 0, "sum": 0}
    seconds: list[float] = []
    last, state_rows = -1, 0
    started = time.monotonic()
    due = started
    while time.monotonic() < started + 60 * minutes:
        time.sleep(0.5)
        problem = query.exception()
        if problem is not None:
            raise SystemExit(str(problem))
        for step in query.recentProgress:
            if step["batchId"] <= last or "returned" not in step["observedMetrics"]:
                continue
            last = step["batchId"]
            told, counted = (step["observedMetrics"][name] for name in ("returned", "gpujoin"))
            rows, total = told["rows"], told["sum"] or 0
            check(last, rows, total)
            returned["batches"] += 1
            returned["rows"] += rows
            returned["sum"] += total
            seconds.append(step["durationMs"]["triggerExecution"] / 1000)
            state_rows = counted["state_rows"]
        if time.monotonic() >= due and last >= 0:
            due += EVERY
            samples.append(
                {"second": time.monotonic() - started, "batch": last, "state_rows": state_rows}
                | sample(local, checkpoint)
            )
    query.stop()
    spark.stop()
    return {"samples": samples, "returned": returned, "seconds": statistics.median(seconds)}


def check(batch: int, rows: int, total: int) -> None:
    """Tell whether a micro-batch returned the rows that it must.

    Raises
    ------
    SystemExit
        If it did not.
    """
    first = (batch - BEHIND) * ROWS
    expected = (ROWS, sum(range(first, first + ROWS))) if batch >= BEHIND else (0, 0)
    if (rows, total) != expected:
        raise SystemExit(f"micro-batch {batch} returned {rows} rows of sum {total}, not {expected}")


def growth(taken: list[dict[str, float]], name: str) -> tuple[float, float]:
    """Medians of the second and of the last fifth of the samples: what is flat is equal in both."""
    values = [sample[name] for sample in taken]
    fifth = max(1, len(values) // 5)
    return statistics.median(values[fifth : 2 * fifth]), statistics.median(values[-fifth:])


def page(result: dict[str, Any]) -> str:
    """The page of results."""
    machine, samples, returned = result["machine"], result["samples"], result["returned"]
    about = (
        f"{machine['processor']}, {machine['cores']} cores; Python {machine['python']}, PySpark"
        f" {machine['versions']['pyspark']}, `local[2]`, {PARTITIONS} partitions, RocksDB, 20 micro-batches retained."
        f" {returned['batches']:,} micro-batches of {2 * ROWS:,} rows in {samples[-1]['second'] / 60:.0f} minutes, half"
        f" of them in less than {result['seconds']:.2f} s; {returned['rows']:,} rows were returned, each micro-batch's"
        " by count and sum as they must be."
    )
    lines = [
        "# A join of two streams for a long time", "",
        f"`python -m benchmarks.streams.soak --minutes {result['minutes']:g}` at {machine['revision']}", "", about, "",
        f"![memory and files over time]({result['plot']})", "",
        "| | second fifth of the time | last fifth |", "|---|---:|---:|",
    ]  # fmt: skip
    for name, shown in SHOWN.items():
        before, after = growth(samples, name)
        lines.append(f"| {shown} | {before:,.0f} | {after:,.0f} |")
    return "\n".join(lines) + "\n"


def plot(taken: list[dict[str, float]], path: Path) -> None:
    """Memory and files over minutes, as PNG and SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, both = plt.subplots(2, 1, figsize=(7, 6), layout="constrained", sharex=True)
    minutes = [sample["second"] / 60 for sample in taken]
    for axes, names in zip(
        both,
        (
            ("java_mb", "workers_mb", "checkpoint_mb", "chunk_mb"),
            ("descriptors", "threads", "chunk_files", "checkpoint_files"),
        ),
        strict=True,
    ):
        for name in names:
            axes.plot(minutes, [sample[name] for sample in taken], label=SHOWN[name])
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower right", fontsize="small")
    both[1].set_xlabel("minutes")
    for ending in (".png", ".svg"):
        figure.savefig(path.with_suffix(ending), dpi=120)
    plt.close(figure)


def main() -> None:
    """Run and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams.soak")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--out", type=Path, default=Path("streams-soak.json"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        result = {"machine": describe(), "minutes": given.minutes, **run(Path(name), given.minutes)}
    result["plot"] = given.out.with_suffix(".svg").name
    plot(result["samples"], given.out)
    report(result, page(result), given.out)


if __name__ == "__main__":
    main()
