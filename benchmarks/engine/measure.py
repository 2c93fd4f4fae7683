"""Measuring in a process of its own: ``python -m benchmarks.engine.measure`` reads a request and prints a result."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.engine.cases import CASES, Case
from benchmarks.engine.engines import ENGINES, as_arrow, fingerprint


@dataclass(frozen=True)
class Request:
    """What one process measures.

    Attributes
    ----------
    case : str
        Name of the case.
    rows, payload, threads, repeats : int
        Left rows, payload columns per side, threads, timed runs of each engine.
    engines : list of str
        Which engines.
    memory : bool
        Peak memory of the one engine given, instead of times.
    """

    case: str
    rows: int
    payload: int
    threads: int
    repeats: int
    engines: list[str]
    memory: bool

    @property
    def environment(self) -> dict[str, str]:
        """Variables that hold the libraries to the number of threads; they are read at import."""
        names = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        return {name: str(self.threads) for name in names}


def main() -> None:
    request = Request(**json.loads(sys.argv[1]))
    pa.set_cpu_count(request.threads)
    case = next(case for case in CASES if case.name == request.case)
    result = _memory(request, case) if request.memory else _times(request, case)
    print(json.dumps({**dataclasses.asdict(request), **result}))


def _times(request: Request, case: Case) -> dict[str, Any]:
    left, right = case.tables(request.rows, request.payload)
    on = [name for name in left.column_names if name.startswith("k")]
    joins = {name: ENGINES[name](left, right, on, case.how, request.threads) for name in request.engines}
    answers = {name: fingerprint(join()) for name, join in joins.items()}
    if len(set(answers.values())) != 1:
        raise SystemExit(f"{case.name}: the engines disagree (rows, checksum): {answers}")
    wall: dict[str, list[float]] = {name: [] for name in joins}
    cpu: dict[str, list[float]] = {name: [] for name in joins}
    for repeat in range(request.repeats):
        order = list(joins)[repeat % len(joins) :] + list(joins)[: repeat % len(joins)]
        for name in order:
            gc.collect()
            start, start_cpu = time.perf_counter(), time.process_time()
            result = joins[name]()
            wall[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - start_cpu)
            del result
    return {
        "how": case.how,
        "goal": case.goal,
        "output_rows": next(iter(answers.values()))[0],
        "algorithm": _algorithm(left, right, on, case.how),
        "load": os.getloadavg()[0],
        "seconds": {name: statistics.median(runs) for name, runs in wall.items()},
        "best_seconds": {name: min(runs) for name, runs in wall.items()},
        "cpu_seconds": {name: statistics.median(runs) for name, runs in cpu.items()},
        "all_seconds": wall,
    }


def _algorithm(left: pa.Table, right: pa.Table, on: list[str], how: Any) -> str:
    from gpujoin import join_tables
    from gpujoin.engine.metrics import JoinMetrics

    metrics = JoinMetrics()
    join_tables(left, right, on=on, how=how, backend="cpu", metrics=metrics)
    return "+".join(metrics.algorithms)


def _memory(request: Request, case: Case) -> dict[str, Any]:
    """Growth of the resident set from before the inputs are made to the highest point of the join."""
    (engine,) = request.engines
    small_left, small_right = case.tables(1000, request.payload)
    on = [name for name in small_left.column_names if name.startswith("k")]
    ENGINES[engine](small_left, small_right, on, case.how, request.threads)()  # imports and pools
    before = _resident("VmRSS")
    left, right = _trimmed(*case.tables(request.rows, request.payload))
    join = ENGINES[engine](left, right, on, case.how, request.threads)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    result = join()
    peak = _resident("VmHWM")
    output = as_arrow(result).nbytes
    needed = left.nbytes + right.nbytes + output
    return {"peak_bytes": peak - before, "needed_bytes": needed, "memory_ratio": (peak - before) / needed}


def _trimmed(*tables: pa.Table) -> tuple[pa.Table, ...]:
    """Tables without anything left behind of the making of them."""
    import ctypes

    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return tables


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    main()
