#!/usr/bin/env python3
"""A few large joins on the GPU, timed against cuDF's own join and the CPU backend, answers compared.

Usage: ``python scripts/gpu_smoke.py [--log-rows N] [--cpu-log-rows N]``

Data lie in device memory (for the CPU in main memory) before the clock starts; a time is that of finding the pairs and
gathering one payload column of each side. The last line is a JSON list of the results.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.backend import AnyBackend, BackendName

SEED = 20_260_702
MAX_PAIRS = 1 << 28
Keys = npt.NDArray[np.int64]
Answer = tuple[int, int, int]
"""Rows, and the sums of the two payload columns."""


@dataclass(frozen=True)
class Result:
    """One join on one engine.

    Attributes
    ----------
    workload, engine : str
        What was joined, by what.
    algorithm : str
        What the backend chose.
    build_rows, probe_rows, output_rows : int
        Sizes.
    seconds : float
        Best of three, after one run to warm up.
    """

    workload: str
    engine: str
    algorithm: str
    build_rows: int
    probe_rows: int
    output_rows: int
    seconds: float


def workloads(log_rows: int) -> dict[str, Callable[[], tuple[Keys, Keys]]]:
    """Build and probe keys, made when called."""
    rows = 1 << log_rows
    rng = np.random.default_rng(SEED)
    return {
        "unique keys": lambda: (rng.permutation(rows), rng.permutation(rows)),
        "unique sparse keys": lambda: (rng.permutation(rows) * 1_000_003, rng.permutation(rows) * 1_000_003),
        "dimension and facts": lambda: (rng.permutation(rows >> 6), rng.integers(0, rows >> 6, rows)),
        "16 matches each": lambda: (
            rng.integers(0, rows >> 8, rows >> 4),
            rng.integers(0, rows >> 8, rows >> 2),
        ),
        "half match": lambda: (rng.permutation(rows >> 2), rng.integers(0, rows >> 1, rows)),
    }


def best(run: Callable[[], Answer], repeats: int = 3) -> tuple[float, Answer]:
    """Seconds of the best of some runs, and the answer, which all must give."""
    answer = run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        again = run()
        times.append(time.perf_counter() - start)
        if again != answer:
            raise AssertionError(f"two runs of one join gave {answer} and {again}")
    return min(times), answer


def by_backend(backend: AnyBackend, build_keys: Keys, probe_keys: Keys, total: Callable[[Any], int]) -> Any:
    """A run of the join by a backend, and its algorithm, told after a run."""
    build_table, probe_table = (backend.from_arrow(pa.table({"k": keys})) for keys in (build_keys, probe_keys))
    chosen: list[str] = []

    def run() -> Answer:
        build = backend.build(build_table, Algorithm.AUTO)
        chosen[:] = [build.algorithm]
        rows = from_build = from_probe = 0
        for part in build.probe(probe_table).slices(MAX_PAIRS):
            rows += part.length
            from_build += total(backend.gather(build_table, part.build))
            from_probe += total(backend.gather(probe_table, part.probe))
        return rows, from_build, from_probe

    return run, chosen


def by_cudf(build_keys: Keys, probe_keys: Keys) -> Callable[[], Answer]:
    """A run of the join by cuDF's own join and gather."""
    import pylibcudf as plc

    from gpujoin.backends.cudf.device import STREAM
    from gpujoin.backends.cudf.frames import as_array

    build_table, probe_table = (
        plc.Table.from_arrow(pa.table({"k": keys}), stream=STREAM) for keys in (build_keys, probe_keys)
    )
    unchecked = plc.copying.OutOfBoundsPolicy.DONT_CHECK

    def run() -> Answer:
        maps = plc.join.inner_join(probe_table, build_table, plc.types.NullEquality.UNEQUAL, stream=STREAM)
        probe, build = (
            as_array(plc.copying.gather(table, rows, unchecked, stream=STREAM).columns()[0])
            for table, rows in zip((probe_table, build_table), maps, strict=True)
        )
        return int(probe.shape[0]), int(build.sum()), int(probe.sum())

    return run


def measure(log_rows: int, cpu_log_rows: int) -> list[Result]:
    """Run every workload on every engine.

    Raises
    ------
    AssertionError
        If two engines give different answers.
    """
    from gpujoin.backends.cudf.backend import CudfBackend
    from gpujoin.backends.cudf.frames import CudfFrame, as_array

    gpu = create(BackendName.GPU, BackendRequest())
    cpu = create(BackendName.CPU, BackendRequest())
    assert isinstance(gpu, CudfBackend)
    device = gpu.device

    def device_total(frame: CudfFrame) -> int:
        with device.entered():
            return int(as_array(frame.table.columns()[0]).sum())

    def host_total(frame: Any) -> int:
        return pc.sum(pa.Table.from_batches([cpu.to_arrow(frame, pa.schema([("k", pa.int64())]))])["k"]).as_py() or 0

    results: list[Result] = []
    for size in sorted({log_rows, cpu_log_rows}):
        for name, make in workloads(size).items():
            build_keys, probe_keys = make()
            answers: dict[str, Answer] = {}

            def add(engine: str, run: Callable[[], Answer], chosen: list[str]) -> None:
                seconds, answers[engine] = best(run)  # noqa: B023 - called in this turn only
                sizes = len(build_keys), len(probe_keys), answers[engine][0]  # noqa: B023
                workload = f"{name}, 2^{size}"  # noqa: B023
                results.append(Result(workload, engine, (chosen or ["hash"])[0], *sizes, seconds))
                rate = sum(sizes[:2]) / seconds / 1e6
                print(f"{workload:32} {engine:8} {seconds * 1e3:9.2f} ms {rate:9.0f} M rows/s", flush=True)

            add("gpujoin", *by_backend(gpu, build_keys, probe_keys, device_total))
            with device.entered():
                add("cuDF", by_cudf(build_keys, probe_keys), [])
            if size == cpu_log_rows:
                add("CPU", *by_backend(cpu, build_keys, probe_keys, host_total))
            if len(set(answers.values())) != 1:
                raise AssertionError(f"{name}: the engines disagree: {answers}")
    return results


def main() -> int:
    """Run; the last line is JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--log-rows", type=int, default=26, help="two to this power rows on the GPU")
    parser.add_argument("--cpu-log-rows", type=int, default=22, help="and this, on the CPU too")
    arguments = parser.parse_args()
    results = measure(arguments.log_rows, arguments.cpu_log_rows)
    print(json.dumps([asdict(result) for result in results]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
