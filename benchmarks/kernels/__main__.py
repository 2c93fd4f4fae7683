"""Run the benchmark of the kernels on one GPU, check the answers, and write JSON, a page and a plot.

A process of its own measures, and keeps what it has found on disk, one line after the other. Where it dies, hangs or
loses the device, what it was at counts as failed, and another process goes on with the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.kernels.engines import CudfEngine, Engine, engines
from benchmarks.kernels.machine import Constants, constants
from benchmarks.kernels.measure import DeviceLostError, Measured, Meter, Result, compare
from benchmarks.kernels.ordered import CudfOrderEngine, OrderedWorkload, ordered_engines, ordered_workloads
from benchmarks.kernels.progress import Progress
from benchmarks.kernels.report import page, plot
from benchmarks.kernels.workloads import SMALLER, Workload, named, sweeps
from benchmarks.machine import versions
from gpujoin.errors import KernelCompileError
from gpujoin.launch.device import Device

MOST_PROCESSES = 12
"""Processes that may be lost before the rest is given up."""

_PATIENCE = 60.0
"""Seconds without a result after which a process counts as hung: compiling takes less, and every run does."""

_GRACE = 5.0
_DEVICE_LOST = 3


@dataclass(frozen=True)
class Selection:
    """Workloads and engines that take part.

    Attributes
    ----------
    workloads : frozenset of str
        Labels of workloads, as :func:`label` gives them; empty: all.
    engines : frozenset of str
        Names of engines; empty: all.
    """

    workloads: frozenset[str] = frozenset()
    engines: frozenset[str] = frozenset()

    @classmethod
    def of_arguments(cls, given: argparse.Namespace) -> Selection:
        """Read the arguments of the program, lists of names with commas."""
        parts = ({name.strip() for name in text.split(",")} - {""} for text in (given.workloads, given.engines))
        return cls(*map(frozenset, parts))

    def has_workload(self, workload: Workload | OrderedWorkload) -> bool:
        """Whether a workload takes part."""
        return not self.workloads or label(workload) in self.workloads

    def has_engine(self, name: str) -> bool:
        """Whether an engine takes part."""
        return not self.engines or name in self.engines

    def unknown_workloads(self) -> frozenset[str]:
        """Labels that no workload has."""
        return self.workloads - {label(workload) for workload in all_workloads()}


EVERYTHING = Selection()


def label(workload: Workload | OrderedWorkload) -> str:
    """The name of a workload up to the colon, such as ``iii'``."""
    return workload.name.partition(":")[0]


def all_workloads() -> Iterator[Workload | OrderedWorkload]:
    """Those of the goal first, then joins by order, then the sweeps."""
    yield from named()
    yield from ordered_workloads()
    yield from sweeps()


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
    progress: Progress | None = None,
    selection: Selection = EVERYTHING,
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
    progress : Progress or None
        Keeps what is found; what it has already is not measured again.
    selection : Selection
        Workloads and engines that take part.

    Returns
    -------
    constants, results, skipped : Constants, list of Result, list of str
        The names of workloads for which time ran out are skipped.

    Raises
    ------
    DeviceLostError
        If an engine has left the device unusable for this process.
    """
    deadline = time.monotonic() + seconds
    log = progress or Progress()
    rates = log.constants
    if rates is None:
        rates = constants(device, meter, log_words, repeats)
        log.constants = rates
        log.tell(constants=asdict(rates))
    copy_rate = rates.copy_bytes
    skipped: list[str] = []
    latest = [""]

    def chosen(name: str) -> None:
        latest[0] = name

    def run(workload: Measured, own: Iterator[Engine], rest: Iterator[Engine]) -> None:
        taking_part = [*(engine for engine in rest if engine.can(workload)), *own]
        taking_part = [engine for engine in taking_part if selection.has_engine(engine.name)]
        for result in compare(
            device.xp, workload, taking_part, meter, copy_rate=copy_rate, repeats=repeats, chosen=lambda: latest[0],
            deadline=deadline, log=log,
        ):  # fmt: skip
            told = result.problem if result.seconds is None else f"{result.seconds * 1e3:9.2f} ms"
            print(f"{result.workload:28} {result.engine:12} {told}", flush=True)

    for workload in filter(selection.has_workload, all_workloads()):
        if time.monotonic() > deadline:
            skipped.append(workload.name)
        elif isinstance(workload, OrderedWorkload):
            few = workload.smaller(smaller)
            latest[0] = "kernels"
            run(few, ordered_engines(device, few), (other(few) for other in others_ordered))
        else:
            fewer = workload.smaller(smaller)
            run(fewer, engines(device, fewer, chosen), (other(fewer) for other in others))
    log.skipped = skipped
    log.tell(skipped=skipped)
    return rates, log.results, skipped


def machine() -> dict[str, Any]:
    """What the GPU and the libraries are."""
    import cupy

    from gpujoin._version import __version__

    installed = versions()
    facts = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    return {
        "GPU": facts["name"].decode(),
        "memory": f"{facts['totalGlobalMem'] / 1e9:.0f} GB",
        "L2": f"{facts['l2CacheSize'] / 1e6:.0f} MB",
        "CUDA driver": cupy.cuda.runtime.driverGetVersion(),
        "pylibcudf": next((told for name, told in installed.items() if name.startswith("pylibcudf")), "unknown"),
        "CuPy": cupy.__version__,
        "gpujoin": __version__,
    }


def work(given: argparse.Namespace) -> int:
    """Measure in this process; what an earlier one has found is not measured again."""
    from benchmarks.kernels.measure import DeviceMeter
    from gpujoin.launch.cuda import CudaDevice
    from scripts.check_kernels import specialisations

    logging.basicConfig(level=logging.WARNING)
    meter = DeviceMeter()
    device = CudaDevice(lambda: meter.free_bytes)
    progress = Progress.read(given.progress)
    progress.tell(machine=machine())
    with contextlib.suppress(KernelCompileError):  # told by the engine that needs it
        device.compile(specialisations(), os.cpu_count() or 1)
    try:
        measure(
            device, meter, smaller=given.smaller, log_words=max(10, 28 - given.smaller), repeats=given.repeats,
            seconds=given.until - time.monotonic(), progress=progress, selection=Selection.of_arguments(given),
        )  # fmt: skip
    except DeviceLostError as problem:
        print(f"the device is lost to this process: {problem}", flush=True)
        return _DEVICE_LOST
    return 0


def supervise(command: Sequence[str], progress: Path, seconds: float, patience: float = _PATIENCE) -> bool:
    """Run a process that measures, and another one after each that is lost.

    Parameters
    ----------
    command : sequence of str
        The process; ``--until`` is added, the reading of the clock at which it is to start nothing more.
    progress : Path
        The file that it appends to.
    seconds : float
        For all processes together.
    patience : float
        Seconds without a new line after which a process is ended.

    Returns
    -------
    bool
        Whether the last process came to its end by itself.
    """
    end = time.monotonic() + seconds
    for _ in range(MOST_PROCESSES):
        if time.monotonic() > end:
            return False
        before = progress.stat().st_size if progress.exists() else 0
        status = _one(command, progress, end, patience)
        if status == 0:
            return True
        print(f"a process that measured ended with status {status}; another one goes on", flush=True)
        if progress.exists() and progress.stat().st_size > before:
            continue
        return False
    return False


def _one(command: Sequence[str], progress: Path, end: float, patience: float) -> int | None:
    """Exit status; ``None`` for a process that had to be ended."""
    size, since = -1, time.monotonic()
    with subprocess.Popen([*command, "--until", str(end)]) as child:
        while child.poll() is None:
            now = progress.stat().st_size if progress.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            if time.monotonic() > min(end + _GRACE, since + patience):
                child.kill()
                child.wait()
                return None
            time.sleep(0.1)
        return child.returncode


def write(progress: Progress, out: Path) -> dict[str, Any]:
    """Write JSON, a page and a plot of what there is."""
    record = {
        "machine": progress.machine,
        "constants": None if progress.constants is None else asdict(progress.constants),
        "results": [asdict(result) for result in progress.results],
        "skipped": progress.skipped,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if progress.constants is not None:
        goal = [workload.name for workload in named()]
        told = page(progress.results, progress.constants, progress.machine, goal)
        out.with_suffix(".md").write_text(told, encoding="utf-8")
    if not plot(progress.results, out.with_suffix(".svg")):
        print("no plot: matplotlib is missing; the extra `bench` has it")
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on the current GPU; the last line is JSON. Exit status 1: something failed, 2: there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernels-gpu.json"))
    parser.add_argument("--smaller", type=int, default=SMALLER, help="workloads with rows fewer by two to this power")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=420, help="no engine is started after so many")
    parser.add_argument("--workloads", default="", metavar="i,ii,…", help="beginnings of names, up to the colon")
    parser.add_argument("--engines", default="", metavar="auto,cuDF,…", help="names of engines (default: all)")
    parser.add_argument("--progress", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    unknown = Selection.of_arguments(given).unknown_workloads()
    if unknown:
        names = ", ".join(dict.fromkeys(label(workload) for workload in all_workloads()))
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {names}")
    if given.progress is not None:
        return work(given)

    from gpujoin.backends.cudf import unavailable

    reason = unavailable()
    if reason is not None:
        print(f"benchmarks.kernels: nothing to measure here: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "progress.jsonl"
        command = [
            sys.executable, "-m", "benchmarks.kernels", "--smaller", str(given.smaller), "--repeats",
            str(given.repeats), "--progress", str(lines),
            *(part for name in ("workloads", "engines") if getattr(given, name)
              for part in (f"--{name}", getattr(given, name))),
        ]  # fmt: skip
        try:
            ended = supervise(command, lines, given.seconds)
        except KeyboardInterrupt:
            ended = False
        progress = Progress.read(lines)
    record = write(progress, given.out)
    print(json.dumps(record))
    return 0 if ended and not any(result.failed for result in progress.results) else 1


if __name__ == "__main__":
    sys.exit(main())
