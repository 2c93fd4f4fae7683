#!/usr/bin/env python3
"""Profile islands of TPC-H on a GPU without Spark, by the size of pieces and the threads that read.

Usage: ``python scripts/gpu_profile.py --data FOLDER [--queries q1,q3,q5,q6] [--piece-mb 512,4096] [--threads 4,16]``.
Each number of threads is a process of its own, since KvikIO reads ``KVIKIO_NTHREADS`` when it is loaded. An island
runs once unmeasured, twice measured, and once under cProfile. A line of JSON for each island and size is printed and
appended to ``--out`` as soon as it is known.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.gpu_first_use import OWN_SECONDS, most_expensive  # noqa: E402 - it lies beside the package

QUERIES = ("q1", "q3", "q5", "q6")


def measure(name: str, folder: Path, piece_mb: int) -> dict[str, Any]:
    """Run an island on the GPU; its seconds, what was done where, and where the time of the host goes."""
    from benchmarks.pipeline.tpch import QUERIES as TREES
    from gpujoin.engine.devicetables import device_of
    from gpujoin.engine.metrics import JoinMetrics
    from gpujoin.engine.pipeline import run
    from gpujoin.model.pipeline import PipelineMetrics

    tree = TREES[name].tree(folder).relation
    device = device_of("gpu")

    def once(metrics: PipelineMetrics) -> int:
        batches = run(tree, metrics=metrics, join_metrics=JoinMetrics(), device=device, piece_bytes=piece_mb << 20)
        return sum(batch.num_rows for batch in batches)

    groups = once(PipelineMetrics())
    seconds, metrics = [], PipelineMetrics()
    for _ in range(2):
        metrics, start = PipelineMetrics(), time.perf_counter()
        assert once(metrics) == groups
        seconds.append(time.perf_counter() - start)
    profile = cProfile.Profile()
    profile.runcall(once, PipelineMetrics())
    return {
        "query": name, "piece_mb": piece_mb, "threads": os.environ.get("KVIKIO_NTHREADS"), "seconds": seconds,
        "rows": metrics.scanned_rows, "groups": groups, "device_steps": metrics.device_steps,
        "host_steps": metrics.host_steps, "recovered": metrics.recovered,
        "profile": most_expensive(profile, OWN_SECONDS),
    }  # fmt: skip


def child(options: argparse.Namespace) -> int:
    """Measure all islands and sizes in this process."""
    for name in options.queries:
        for piece_mb in options.piece_mb:
            line = json.dumps(measure(name, options.data, piece_mb))
            print(line, flush=True)
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a process for each number of threads. Exit status 2: there is no GPU."""
    parser = argparse.ArgumentParser(prog="gpu_profile.py", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="tables, as <table>.parquet")
    parser.add_argument("--queries", type=lambda text: text.split(","), default=list(QUERIES), metavar="q1,q6")
    parser.add_argument("--piece-mb", type=_numbers, default=[512, 4096], metavar="512,4096", help="MiB of a piece")
    parser.add_argument("--threads", type=_numbers, default=[4, 16], metavar="4,16", help="threads of KvikIO")
    parser.add_argument("--out", type=Path, metavar="FILE", help="lines of JSON are appended to it")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    if options.child:
        return child(options)
    from gpujoin.backends import cudf

    reason = cudf.unavailable()
    if reason is not None:
        print(f"gpu_profile: nothing to profile here: {reason}", file=sys.stderr)
        return 2
    status = 0
    for threads in options.threads:
        command = [sys.executable, str(Path(__file__).resolve()), *given, "--child"]
        environment = {**os.environ, "KVIKIO_NTHREADS": str(threads)}
        status |= subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    return int(status != 0)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
