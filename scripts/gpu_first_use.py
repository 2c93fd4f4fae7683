#!/usr/bin/env python3
"""Time what a process pays for the first use of a GPU: libraries, context, kernels that are compiled.

Usage: ``python scripts/gpu_first_use.py [--rows N] [--seconds N]``. Prints one JSON document. A process of its own
imports the libraries, makes the context, joins by every join type three times, and runs an island over a small Parquet
file three times. It does so with no compiled kernels on disk; with all of them; and with gpujoin's own alone, as a new
machine has them that installed the wheel. Each step tells its seconds, and how many kernels CuPy and gpujoin have
compiled in it: the files that are new in ``CUPY_CACHE_DIR`` and ``GPUJOIN_KERNEL_CACHE_DIR``.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CUPY, OWN = "CUPY_CACHE_DIR", "GPUJOIN_KERNEL_CACHE_DIR"
JOINS = ("inner", "left", "right", "full", "left_semi", "left_anti", "existence", "null_aware_anti")
REPEATS = 3
TOP = 25
"""Functions that are told of a profile."""


class Steps:
    """Runs steps, and prints each as a line of JSON when it is done."""

    def __init__(self) -> None:
        self._seen = self._compiled()

    def run(self, name: str, step: Callable[[], Any], *, profiled: bool = False) -> Any:
        """Time a step; profiled ones tell their most expensive functions, too, and take somewhat longer."""
        profile = cProfile.Profile()
        start = time.perf_counter()
        result = profile.runcall(step) if profiled else step()
        told: dict[str, Any] = {"step": name, "seconds": round(time.perf_counter() - start, 4)}
        compiled = self._compiled()
        told |= {"cupy_kernels": compiled[0] - self._seen[0], "own_modules": compiled[1] - self._seen[1]}
        self._seen = compiled
        if profiled:
            told["profile"] = most_expensive(profile, CUMULATIVE)
        print(json.dumps(told), flush=True)
        return result

    @staticmethod
    def _compiled() -> tuple[int, int]:
        cupy, own = (sum(path.is_file() for path in Path(os.environ[name]).rglob("*")) for name in (CUPY, OWN))
        return cupy, own


OWN_SECONDS, CUMULATIVE = 2, 3
"""Seconds of a function without and with its callees, by their places in the rows of ``pstats``."""


def most_expensive(profile: cProfile.Profile, by: int) -> list[dict[str, Any]]:
    """Functions of a profile with the most seconds, their own or with their callees."""
    # The stubs of pstats leave this member out.
    rows = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    ranked = sorted(rows.items(), key=lambda row: -row[1][by])[:TOP]
    return [
        {"function": f"{'/'.join(Path(file).parts[-3:])}:{line} {name}", "calls": calls, "own": round(own, 4),
         "cumulative": round(cumulative, 4)}
        for (file, line, name), (_, calls, own, cumulative, _) in ranked
    ]  # fmt: skip


def child(rows: int, folder: Path) -> None:
    """Take all steps in this process."""
    steps = Steps()
    for what, modules in {
        "CuPy, pylibcudf and RMM": ("cupy", "pylibcudf", "rmm"),
        "gpujoin": ("gpujoin.engine.tables", "gpujoin.engine.pipeline.run", "gpujoin.backends.cudf.pipeline"),
    }.items():
        steps.run(f"import of {what}", lambda modules=modules: list(map(import_module, modules)))  # type: ignore[misc]
    from gpujoin.backends.registry import BackendRequest, create
    from gpujoin.model.backend import BackendName

    backend = steps.run("context", lambda: create(BackendName.GPU, BackendRequest()))
    left, right = _tables(rows)
    for how in JOINS:
        for turn in range(1, REPEATS + 1):
            profiled = (how, turn) in ((JOINS[0], 2), (JOINS[1], 1))  # the same again, and the second join of all
            steps.run(
                f"{how} join, {turn}",
                lambda how=how: _join(left, right, how, backend),  # type: ignore[misc]
                profiled=profiled,
            )
    for turn in range(1, REPEATS + 1):
        steps.run(f"island, {turn}", lambda: _island(folder, backend), profiled=turn == 2)


def _tables(rows: int) -> tuple[Any, Any]:
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(20_261_127)
    few = rows * 3 // 10
    left = pa.table({"k": rng.integers(0, few * 3 // 2, rows), "v": rng.random(rows)})
    return left, pa.table({"k": rng.permutation(few), "w": rng.random(few)})


def _join(left: Any, right: Any, how: Any, backend: Any) -> None:
    from gpujoin import JoinMetrics, join_tables

    metrics = JoinMetrics()
    join_tables(left, right, on="k", how=how, backend=backend, metrics=metrics)
    assert not metrics.fallback_reasons, metrics.fallback_reasons


def _island(folder: Path, backend: Any) -> int:
    """Scan, filter, join and aggregate; gives the number of groups."""
    from gpujoin import left, lit
    from gpujoin.backends.cudf import device_pipeline
    from gpujoin.engine.pipeline import run
    from gpujoin.model.pipeline import PipelineMetrics
    from tests.trees import Tree, count, total

    prices = Tree.scan(folder / "prices.parquet", index=1)
    sales = Tree.scan(folder / "sales.parquet", where=left("v") > lit(0.25))
    tree = sales.join(prices, on={"k": "k"}).group("g", rows=count(), value=total(left("v")))
    metrics = PipelineMetrics()
    groups = sum(batch.num_rows for batch in run(tree.relation, device=device_pipeline(backend), metrics=metrics))
    assert not metrics.recovered, metrics.recovered
    return groups


def write_files(folder: Path, rows: int) -> None:
    """Write the Parquet files of the island."""
    import numpy as np
    import pyarrow.parquet as pq

    left, right = _tables(rows)
    pq.write_table(left, folder / "sales.parquet")
    groups = np.arange(right.num_rows) % 100
    pq.write_table(right.append_column("g", [groups]), folder / "prices.parquet")


def measured(name: str, caches: dict[str, Path], folder: Path, rows: int, limit: float) -> dict[str, Any]:
    """Take all steps in a process of its own, which ends after so many seconds."""
    for cache in caches.values():
        cache.mkdir(exist_ok=True)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **{variable: str(path) for variable, path in caches.items()}}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, __file__, "--rows", str(rows), "--child", str(folder)]
    start = time.perf_counter()
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=limit, check=False)
        printed, problem = done.stdout, done.stderr.decode()[-2000:] if done.returncode else ""
    except subprocess.TimeoutExpired as late:
        printed, problem = late.stdout or b"", "took too long"
    seconds = round(time.perf_counter() - start, 3)
    lines = printed.decode().splitlines(keepends=True)
    steps = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
    return {"caches": name, "seconds": seconds, "problem": problem, "steps": steps}


def main() -> int:
    """Measure with each state of the caches, while there is time, and print all that was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="of the larger side")
    parser.add_argument("--seconds", type=float, default=38.0, help="after which all ends")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.rows, arguments.child)
        return 0
    end = time.monotonic() + arguments.seconds
    runs = []
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        write_files(folder, arguments.rows)
        own, cupy, empty = folder / "own", folder / "cupy", folder / "empty"
        for name, caches in {
            "empty": {CUPY: cupy, OWN: own},
            "full": {CUPY: cupy, OWN: own},
            "gpujoin's own full": {CUPY: empty, OWN: own},
        }.items():
            left_over = end - time.monotonic()
            if left_over > 1.0:
                runs.append(measured(name, caches, folder, arguments.rows, left_over))
    print(json.dumps({"rows": arguments.rows, "runs": runs}, indent=1))
    return 1 if any(run["problem"] for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
