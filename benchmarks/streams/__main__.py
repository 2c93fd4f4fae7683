"""Run the benchmark: micro-batches of a join of two streams in one partition, the state in this process.

python -m benchmarks.streams [--batch 200000] [--kept 10] [--out benchmarks/results/streams-cpu.json]

Rows are `k bigint, t timestamp, a bigint, c double`, half of a batch on each side. A batch is ten seconds; the
watermark follows 50 seconds behind, and rows match within 50 seconds, so that ten batches are kept. All that a stream
returns is compared with one join of all its rows in DuckDB. About a minute on one core.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.machine import describe
from gpujoin import JoinMetrics
from gpujoin.model.expressions import left, right
from gpujoin.model.jointype import JoinType
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve
from gpujoin.streams.format import MemoryStore
from gpujoin.streams.join import StreamJoin
from gpujoin.streams.symmetric import SymmetricJoin

SECOND = 1_000_000
BATCH_SECONDS, REACH, DELAY = 10, 50, 50
"""Seconds of a batch, within which rows match, and by which the watermark is behind."""
TIME = pa.timestamp("us", "UTC")
COLUMNS = pa.schema([("k", pa.int64()), ("t", TIME), ("a", pa.int64()), ("c", pa.float64())])
SEED = 20261123
KINDS = (JoinType.INNER, JoinType.LEFT, JoinType.FULL, JoinType.LEFT_SEMI)


def rows(rng: np.random.Generator, batch: int, count: int, late: int) -> pa.RecordBatch:
    """Rows of one side: times of the batch, up to ``late`` seconds late, in no order; one match a row on average."""
    start = (1000 + batch * BATCH_SECONDS) * SECOND
    times = start + rng.integers(0, BATCH_SECONDS * SECOND, count) - rng.integers(0, late * SECOND + 1, count)
    keys = rng.integers(0, 2 * REACH // BATCH_SECONDS * count, count)
    arrays = [keys, pa.array(times).cast(TIME), rng.integers(0, 1 << 40, count), rng.random(count)]
    return pa.RecordBatch.from_arrays(list(map(pa.array, arrays)), schema=COLUMNS)


def stream_join(kind: JoinType) -> StreamJoin:
    """The join ``l.k = r.k and r.t between l.t - 50 s and l.t + 50 s``."""
    reach = dt.timedelta(seconds=REACH)
    condition = resolve(right("t").between(left("t") - reach, left("t") + reach), COLUMNS, COLUMNS)
    spec = JoinSpec(kind, (KeyPair(0, 0),), condition, (0, 1, 2, 3), () if kind is JoinType.LEFT_SEMI else (1, 2, 3))
    return StreamJoin(spec, COLUMNS, COLUMNS, (1,), (1,))


def case(kind: JoinType, late: int, batch_rows: int, kept: int) -> dict[str, Any]:
    """Run a stream for twice the batches that are kept; the second half is timed."""
    rng = np.random.default_rng(SEED)
    sides: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
    metrics = JoinMetrics()
    store = MemoryStore()
    join = SymmetricJoin(stream_join(kind), store, metrics=metrics)
    returned: list[pa.RecordBatch] = []
    timed: list[dict[str, float]] = []
    for batch in range(2 * kept):
        for side in sides:
            side.append(rows(rng, batch, batch_rows // 2, late))
        watermark = (1000 + batch * BATCH_SECONDS - DELAY) * 1000
        written, before = join.metrics.bytes_written, (time.perf_counter(), time.process_time())
        # Each micro-batch starts from what is saved, as in a worker that has the chunks of its host in memory.
        saved = join.manifest.to_bytes()
        counters = join.metrics
        join = SymmetricJoin(join.plan.join, store, saved, metrics=metrics)
        join.metrics = counters
        returned += join.push([sides[0][-1]], [sides[1][-1]], watermark)
        if batch >= kept:
            timed.append({
                "seconds": time.perf_counter() - before[0], "cpu": time.process_time() - before[1],
                "written": join.metrics.bytes_written - written,
            })  # fmt: skip
    manifest = join.manifest
    state = {
        "state_rows": manifest.rows, "state_bytes": manifest.stored, "chunks": len(manifest.chunks),
        "arrow_bytes": round(manifest.rows * sides[0][0].nbytes / sides[0][0].num_rows),
        "marks_bytes": sum(map(len, store.bits.values())), "manifest_bytes": len(manifest.to_bytes()),
    }  # fmt: skip
    returned += join.push([], [], 10**12)
    check(kind, sides, pa.Table.from_batches(returned, join.output_schema))
    return {
        "kind": kind.value, "late": late, "batch_rows": batch_rows, **state,
        "seconds": statistics.median(each["seconds"] for each in timed),
        "cpu_seconds": statistics.median(each["cpu"] for each in timed),
        "written": statistics.median(each["written"] for each in timed),
        "excluded": join.metrics.chunks_excluded / max(1, join.metrics.chunks_excluded + join.metrics.chunks_read),
        "output_rows": sum(batch.num_rows for batch in returned),
    }  # fmt: skip


def check(kind: JoinType, sides: tuple[list[pa.RecordBatch], list[pa.RecordBatch]], result: pa.Table) -> None:
    """Compare what a stream has returned with one join of all its rows.

    Raises
    ------
    SystemExit
        If they differ.
    """
    connection = duckdb.connect()
    connection.register("l", pa.Table.from_batches(sides[0]))
    connection.register("r", pa.Table.from_batches(sides[1]))
    connection.register("got", result.rename_columns([f"c{i}" for i in range(result.num_columns)]))
    word = {JoinType.LEFT_SEMI: "semi"}.get(kind, kind.value)
    columns = "l.k, l.t, l.a, l.c" + ("" if kind is JoinType.LEFT_SEMI else ", r.t, r.a, r.c")
    reach = f"interval {REACH} second"
    joined = f"select {columns} from l {word} join r on l.k = r.k and r.t between l.t - {reach} and l.t + {reach}"
    names = ", ".join(f"c{i}" for i in range(result.num_columns))
    want = connection.sql(f"select count(*), sum(hash({names})) from ({joined}) j({names})").fetchone()
    got = connection.sql(f"select count(*), sum(hash({names})) from got").fetchone()
    if got != want:
        raise SystemExit(f"{kind.value}: rows and checksum are {got}, DuckDB's {want}")


def page(record: dict[str, Any]) -> str:
    """The page of results."""
    machine = record["machine"]
    about = (
        f"{machine['processor']}, {machine['cores']} cores, one of them used; Python {machine['python']}. Medians of"
        " the second half of the micro-batches; the state is in the memory of the process. *late*: rows come up to so"
        " many seconds late. *excluded*: chunks that were not looked at because of their times. All rows were compared"
        " with one join in DuckDB."
    )
    names = (
        "join", "late", "rows a batch", "rows kept", "seconds", "CPU s", "rows returned", "state as stored, MB",
        "as Arrow, MB", "chunks", "excluded", "written a batch, MB", "marks, kB", "manifest, kB",
    )  # fmt: skip
    lines = [
        "# Joins of two streams in the engine", "",
        f"`{' '.join(['python -m benchmarks.streams', *sys.argv[1:]])}` at {machine['revision']}", "", about, "",
        f"| {' | '.join(names)} |", "|---|" + "---:|" * (len(names) - 1),
    ]  # fmt: skip
    for c in record["cases"]:
        values = (
            c["kind"], c["late"], f"{c['batch_rows']:,}", f"{c['state_rows']:,}", f"{c['seconds']:.3f}",
            f"{c['cpu_seconds']:.3f}", f"{c['output_rows']:,}", f"{c['state_bytes'] / 1e6:.1f}",
            f"{c['arrow_bytes'] / 1e6:.1f}", c["chunks"], f"{c['excluded']:.0%}", f"{c['written'] / 1e6:.2f}",
            f"{c['marks_bytes'] / 1e3:.1f}", f"{c['manifest_bytes'] / 1e3:.1f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, values))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams")
    parser.add_argument("--batch", type=int, default=200_000, help="rows of a batch, both sides together")
    parser.add_argument("--kept", type=int, default=10, help="batches that are kept")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    cases = []
    for kind in KINDS:
        for late in (0, 40):
            cases.append(case(kind, late, given.batch, given.kept))
            print(json.dumps(cases[-1]), file=sys.stderr, flush=True)
    small = max(2, given.batch // 100)
    cases.append(case(JoinType.LEFT, 40, small, given.kept))
    record = {"machine": describe(), "cases": cases}
    text = page(record)
    print(text)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n")
        given.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
