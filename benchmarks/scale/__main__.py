"""Plan a join with a table of a million files, from a synthetic listing, and measure each step of the driver's.

python -m benchmarks.scale [--files 1000000] [--file-bytes 10m] [--cores 1600] [--out benchmarks/results/scale-cpu.md]

There are no files: the listing is the text that ``PlanReader.java`` would write of them, and the footers of the sample
are made up. What the driver does with them is what it does with a real table. Not in it: Spark's own listing, the
JVM's part of writing the text, and opening the files of the sample.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pickle
import resource
import statistics
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from benchmarks.machine import describe
from gpujoin.config import Options, parse_bytes
from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.files import Store, StoreKind
from gpujoin.model.jointype import JoinType
from gpujoin.model.relations import FileFooter, FileSlice, Join, Output, PartialAggregate, Scan, column
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.stages import Stage
from gpujoin.plan.parts import ScanFacts, StageLimits
from gpujoin.plan.scanned import ScannedFiles, sample_of
from gpujoin.plan.stages import plan_stages
from gpujoin.spark.worker.taskreads import TaskReads
from gpujoin.storage.locations import comparable_ms, in_store

FACTS = pa.schema([("item", pa.int64()), ("price", pa.float64()), ("day", pa.date32())])
ITEMS = pa.schema([("item", pa.int64()), ("tier", pa.int64())])
ROWS_PER_BYTE = 0.01
COLUMN_SHARE = 0.3
ROW_GROUP_BYTES = 128 << 20
ITEM_ROWS, ITEM_BYTES = 2e9, 20 << 30


class Steps:
    """Seconds and memory of the steps of planning."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step: processor seconds, and how much more memory the process has had at most."""
        before, start = _peak(), time.process_time()
        yield
        self.rows.append((name, time.process_time() - start, (_peak() - before) / (1 << 20)))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def listing(files: int, file_bytes: int) -> bytes:
    """Write the files of a table in a store as ``PlanReader.java`` does."""
    parts = [
        f'["s3a://warehouse/sales/day=2024-{n % 12 + 1:02d}-{n % 28 + 1:02d}/part-{n:07d}-c000.snappy.parquet",false,'
        f"{file_bytes + n % 1000},1700000000000]"
        for n in range(files)
    ]
    return zlib.compress(f'{{"index":"","files":[{",".join(parts)}]}}'.encode(), 1)


def footer_of(file: FileSlice) -> FileFooter:
    """Make up a footer."""
    groups = max(1, file.size // ROW_GROUP_BYTES)
    rows, read = int(file.size * ROWS_PER_BYTE), int(file.size * COLUMN_SHARE)
    return FileFooter(
        file.path, file.size, file.modified_ms or 0, (rows // groups,) * groups, (read // groups,) * groups
    )


def tree() -> PartialAggregate:
    """``select tier, sum(price) from sales join items using (item) group by tier``."""
    sides = Scan(FACTS, index=0), Scan(ITEMS, index=1)
    keys = (KeyPair(0, 0, NullEquality.UNEQUAL),)
    join = Join(*sides, JoinSpec(JoinType.INNER, keys, left_output=(1,), right_output=(1,)))
    call = AggregateCall(function=AggregateFunction.COUNT, name="n")
    return PartialAggregate(join, (Output("tier", column(join.schema, 1)),), (call,))


def plan(files: int, file_bytes: int, options: Options, cores: int) -> tuple[Steps, dict[str, str]]:
    """Plan, and tell what the plan is like."""
    steps, packed = Steps(), listing(files, file_bytes)
    with steps.step("unpack and parse the listing"):
        listed = json.loads(zlib.decompress(packed))["files"]
    with steps.step("name the files as workers open them"):
        store = Store(StoreKind.S3)
        slices = tuple(
            FileSlice(path := in_store(store, uri[len("s3a://") :]), size, comparable_ms(path, modified))
            for uri, _, size, modified in listed
        )
    with steps.step("choose the sample"):
        sample = sample_of(slices, options.scan_footers)
    scanned = ScannedFiles(slices, tuple(footer_of(slices[n]) for n in sample))
    with steps.step("estimate rows and bytes"):
        facts = {0: ScanFacts(scanned.rows, scanned.work_bytes), 1: ScanFacts(ITEM_ROWS, ITEM_BYTES)}
    limits = StageLimits(
        cores, options.scan_task_bytes, options.broadcast_threshold, partitions=options.exchange_partitions
    )
    with steps.step("plan the stages"):
        last = plan_stages(tree(), facts, limits)
    assert last is not None
    with steps.step("divide the files among tasks"):
        splits = scanned.splits(cores, options.scan_task_bytes)
    with steps.step("pack what each task reads"):
        work = pickle.dumps(TaskReads.from_reads([{0: split} for split in splits]))
    unpacked = _unpacking(work)
    return steps, _described(last, scanned, splits, work, unpacked)


def _unpacking(work: bytes) -> float:
    """Seconds in which a task finds out what it reads."""
    seconds = []
    for task in range(5):
        start = time.process_time()
        reads = pickle.loads(work)  # noqa: S301
        assert reads[task * len(reads) // 5]
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def _described(
    last: Stage, scanned: ScannedFiles, splits: list[tuple[FileSlice, ...]], work: bytes, unpacked: float
) -> dict[str, str]:
    stages = list(last.walk())
    exchanges = [exchange for stage in stages for exchange in stage.inputs if exchange.columns]
    partitions = max(stage.partitions for stage in stages)
    sent = sum(exchange.nbytes for exchange in exchanges)
    return {
        "files": f"{len(scanned.files):,}",
        "bytes of the table; of the columns read": f"{sum(f.size for f in scanned.files):,}; {scanned.nbytes:,}",
        "rows, estimated": f"{scanned.rows:,.0f}",
        "tasks that read the table": f"{len(splits):,}",
        "stages": f"{len(stages)}",
        "exchanged bytes, estimated": f"{sent:,.0f}",
        "partitions of the join": f"{partitions:,}",
        "blobs of the table, at least": f"{len(splits) * partitions:,}",
        "bytes of a blob, on average": f"{sent / max(1, len(splits) * partitions):,.0f}",
        "bytes of the stage that is sent to each executor": f"{len(work):,}",
        "seconds in which a task unpacks it": f"{unpacked:.3f}",
    }


def report(steps: Steps | None, plan: dict[str, str], settings: str) -> str:
    """Render one plan, with its steps if they are given."""
    lines = [f"## {settings}", ""]
    if steps is not None:
        lines += ["| step of the driver | processor seconds | more memory at most, MiB |", "|---|--:|--:|"]
        lines += [f"| {name} | {seconds:.2f} | {memory:,.0f} |" for name, seconds, memory in steps.rows]
        total, memory = sum(row[1] for row in steps.rows), sum(row[2] for row in steps.rows)
        lines += [f"| together | {total:.2f} | {memory:,.0f} |", ""]
    lines += ["| the plan | |", "|---|--:|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in plan.items()), ""])


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--file-bytes", type=parse_bytes, default=10 << 20)
    parser.add_argument("--cores", type=int, default=1600)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    defaults = Options()
    larger = dataclasses.replace(defaults, scan_task_bytes=1 << 30, exchange_partitions=2 * arguments.cores)
    parts: list[str] = []
    for name, options in {
        "Defaults": defaults,
        f"`scan.taskBytes=1g`, `exchange.partitions={larger.exchange_partitions}`": larger,
    }.items():
        steps, described = plan(arguments.files, arguments.file_bytes, options, arguments.cores)
        # The second plan takes as long, in memory that the first one has left.
        parts.append(report(None if parts else steps, described, name))
        print(parts[-1], flush=True)
    if arguments.out is not None:
        machine = "\n".join(f"- {key}: {value}" for key, value in describe().items())
        text = f"# Planning over {arguments.files:,} files\n\n`python -m benchmarks.scale`\n\n{machine}\n\n"
        arguments.out.write_text(text + "\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
