"""Run the benchmark of the kernels on one GPU, check the answers, and write JSON, a page and a plot."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.kernels.engines import CudfEngine, Engine, engines
from benchmarks.kernels.machine import Constants, constants
from benchmarks.kernels.measure import Measured, Meter, Result, compare
from benchmarks.kernels.ordered import CudfOrderEngine, OrderedWorkload, ordered_engines, ordered_workloads
from benchmarks.kernels.report import page, plot
from benchmarks.kernels.workloads import Workload, named, sweeps
from gpujoin.launch.device import Device


def measure(
    device: Device,
    meter: Meter,
    *,
    smaller: int,
    log_words: int,
    repeats: int,
    seconds: float,
    others: Sequence[Callable[[Workload], Engine]] = (CudfEngine,),
    others_ordered: Sequence[Callable[[OrderedWorkload], Engine]] = (CudfOrderEngine,),
) -> tuple[Constants, list[Result], list[str]]:
    """Measure the machine, then every workload on every engine.

    Parameters
    ----------
    device : Device
        Where.
    meter : Meter
        What measures.
    smaller : int
        Powers of two by which workloads have fewer rows.
    log_words : int
        For :func:`constants`.
    repeats : int
        Timed runs of each engine.
    seconds : float
        After which no engine is started.
    others : sequence of callable
        What to compare with: each makes an engine for a workload.
    others_ordered : sequence of callable
        The same for joins by order.

    Returns
    -------
    constants, results, skipped : Constants, list of Result, list of str
        The names of workloads for which time ran out are skipped.
    """
    deadline = time.monotonic() + seconds
    rates = constants(device, meter, log_words, repeats)
    results: list[Result] = []
    skipped: list[str] = []
    latest = [""]

    def chosen(name: str) -> None:
        latest[0] = name

    def run(workload: Measured, own: Iterator[Engine], rest: Iterator[Engine]) -> None:
        taking_part = [*(engine for engine in rest if engine.can(workload)), *own]
        results.extend(_measured(device, meter, workload, taking_part, rates, repeats, deadline, lambda: latest[0]))

    every: list[Workload | OrderedWorkload] = [*named(), *ordered_workloads(), *sweeps()]
    for workload in every:
        if time.monotonic() > deadline:
            skipped.append(workload.name)
        elif isinstance(workload, OrderedWorkload):
            few = workload.smaller(smaller)
            latest[0] = "kernels"
            run(few, ordered_engines(device, few), (other(few) for other in others_ordered))
        else:
            fewer = workload.smaller(smaller)
            run(fewer, engines(device, fewer, chosen), (other(fewer) for other in others))
    return rates, results, skipped


def _measured(
    device: Device,
    meter: Meter,
    workload: Measured,
    taking_part: Sequence[Engine],
    rates: Constants,
    repeats: int,
    deadline: float,
    chosen: Callable[[], str],
) -> list[Result]:
    found = []
    for result in compare(
        device.xp, workload, taking_part, meter, copy_rate=rates.copy_bytes, repeats=repeats, chosen=chosen,
        deadline=deadline,
    ):  # fmt: skip
        told = "did not run" if result.seconds is None else f"{result.seconds * 1e3:9.2f} ms"
        print(f"{result.workload:28} {result.engine:12} {told}", flush=True)
        found.append(result)
    return found


def machine() -> dict[str, Any]:
    """What the GPU and the libraries are."""
    import cupy
    import pylibcudf

    from gpujoin._version import __version__

    facts = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    return {
        "GPU": facts["name"].decode(),
        "memory": f"{facts['totalGlobalMem'] / 1e9:.0f} GB",
        "L2": f"{facts['l2CacheSize'] / 1e6:.0f} MB",
        "CUDA driver": cupy.cuda.runtime.driverGetVersion(),
        "pylibcudf": str(getattr(pylibcudf, "__version__", "unknown")),
        "CuPy": cupy.__version__,
        "gpujoin": __version__,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on the current GPU; the last line is JSON. Exit status 2: there is none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernels-gpu.json"))
    parser.add_argument(
        "--smaller", type=int, default=0, help="workloads with rows fewer by two to this power"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=420, help="no engine is started after so many")
    given = parser.parse_args(arguments)

    from gpujoin.backends.cudf import unavailable

    reason = unavailable()
    if reason is not None:
        print(f"benchmarks.kernels: nothing to measure here: {reason}", file=sys.stderr)
        return 2
    from benchmarks.kernels.measure import DeviceMeter
    from gpujoin.launch.cuda import CudaDevice

    meter = DeviceMeter()
    rates, results, skipped = measure(
        CudaDevice(), meter, smaller=given.smaller, log_words=max(10, 28 - given.smaller), repeats=given.repeats,
        seconds=given.seconds,
    )  # fmt: skip
    facts = machine()
    record = {
        "machine": facts,
        "constants": asdict(rates),
        "results": [asdict(result) for result in results],
        "skipped": skipped,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    goal = [workload.name for workload in named()]
    given.out.with_suffix(".md").write_text(page(results, rates, facts, goal), encoding="utf-8")
    if not plot(results, given.out.with_suffix(".svg")):
        print("no plot: matplotlib is missing; the extra `bench` has it")
    print(json.dumps(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
