#!/usr/bin/env python3
"""Run everything that needs a GPU, in three commands of at most ten minutes each, and write reports.

Usage: ``python scripts/gpu_check.py [kernels] [table] [engine] [first] [pytest arguments ...]``, from an environment
with gpujoin's GPU extra; ``make gpu-check`` makes one. Without a name the first three run; ``first`` begins with the
test files that ``$GPU_CHECK_FIRST`` names (``scripts/gpu_first.py``). Parts for which a package is missing
are skipped, or say so. Writes ``gpu-check-NAME.md`` and ``gpu-check-NAME.tar.gz``, with all results, into
``$GPU_CHECK_OUT``, by default ``benchmarks/results``, after every part anew. ``$GPU_CHECK_SECONDS`` shortens each
command; ``$GPU_CHECK_TPCH`` and ``$GPU_CHECK_TPCH_10`` are folders with the tables of TPC-H at scale 1 and 10. Exit
status: 0 if all passed, 1 if anything failed, 2 if there is no GPU to check.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUDGET_SECONDS = 560.0
"""Seconds of a command: under ten minutes, with what starting and packing the results take."""

LIMITS = {
    "kernels": {"kernel_tests": 420, "kernels_memcheck": 70, "kernels_racecheck": 70},
    "table": {"kernels": 560},
    "first": {"changed_tests": 120, "kernel_tests": 30, "kernels_memcheck": 40},
    "engine": {"tests": 170, "faults": 50, "memcheck": 50, "smoke": 50, "queries": 120, "large_queries": 120},
}  # fmt: skip
"""Seconds of each part of each command within the budget, in the order in which they run. What a part leaves over is
divided among those after it."""

COMMANDS = ("kernels", "table", "engine")
"""Those that run if none is named. ``first`` is for a machine that is at hand for minutes."""

LEAST = {
    "changed_tests": 100, "kernel_tests": 50, "kernels_memcheck": 40, "kernels_racecheck": 40, "kernels": 60,
    "tests": 60, "faults": 15, "smoke": 20, "queries": 100,
}  # fmt: skip
"""Seconds that a part keeps where the budget is short, as far as it reaches. On an H200 with 16 cores the tests of the
kernels took 13 s, the table 42, TPC-H at scale 1 74, and 393 tests of the engine 67."""

LARGE_QUERIES = "1,3,5,6,9,12,18"
"""Queries of TPC-H at scale 10: scans with aggregates, joins of two to six tables, a group for each order."""

GRACE_SECONDS = 20.0
"""From the interrupt to the end of a part that takes too long: pytest writes its report, the benchmark its table."""

_TAIL = 30
_NAMED = 5
_LEAST_SECONDS = 45.0
_SHORTEST = 5.0
"""Seconds in which no part can do anything."""
_NO_TIME = "the other parts took all the time"
_MOST_PROCESSES = 8
_KERNELS = ["tests/kernels"]
_ENGINE = ["tests/backends", "tests/engine"]
_SPARK = ["tests/spark/query/test_gpu.py", "tests/spark/test_devices.py"]
_STARTING = 20.0
"""Seconds of a run of tests before its first test and after its last one, sanitized or on several processes."""


@dataclass(frozen=True)
class Phase:
    """What one part of the check found.

    Attributes
    ----------
    name : str
        Which part.
    outcome : str
        ``passed``, ``failed`` or ``skipped``.
    seconds : float
        How long it took.
    summary : str
        One line.
    details : object
        Anything JSON can say.
    output : list of str
        The last lines it printed, if it failed.
    """

    name: str
    outcome: str
    seconds: float
    summary: str
    details: Any = None
    output: list[str] = field(default_factory=list)


def run(command: list[str], limit: float) -> tuple[int | None, list[str]]:
    """Run a command in the checkout; gives its exit status, or None if it took too long, and its lines."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            child = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as problem:
            return 127, [str(problem)]
        status: int | None = None
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            # The whole session of processes that the command started, Spark's workers included.
            os.killpg(child.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_SECONDS)
        finally:
            if status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        output.seek(0)
        return status, output.read().splitlines()


def kernel_tests(limit: float, out: Path, arguments: list[str]) -> Phase:
    """The tests of the kernels."""
    return reported("kernel tests", _KERNELS, limit, out, arguments)


def changed_tests(limit: float, out: Path, arguments: list[str]) -> Phase:
    """The tests of the files in ``GPU_CHECK_FIRST``: those about what no GPU has run yet."""
    files = os.environ.get("GPU_CHECK_FIRST", "").split()
    if not files:
        return Phase("changed tests", "skipped", 0.0, "GPU_CHECK_FIRST names no files")
    return reported("changed tests", files, limit, out, arguments)


def tests(limit: float, out: Path, arguments: list[str]) -> Phase:
    """The tests of backend, engine and pipelines, and those of Spark's islands where Spark is installed."""
    folders = _ENGINE if without_spark() else [*_ENGINE, *_SPARK]
    return reported("tests", folders, limit, out, arguments)


def reported(name: str, folders: list[str], limit: float, out: Path, arguments: list[str]) -> Phase:
    """The tests marked ``gpu`` in some folders."""
    work = out / name.replace(" ", "-")
    command = [
        sys.executable, "scripts/gpu_report.py", "--out", str(work), "--seconds", str(max(1.0, limit - _STARTING)),
        "-q", "--tb=short", "-p", "no:cacheprovider", *processes(), *arguments, *folders,
    ]  # fmt: skip
    status, lines = run(command, limit)
    report = work / "report.json"
    details = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
    found = [test["outcome"] for test in details["tests"]] if details else []
    told = ", ".join(f"{found.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped"))
    return judged(name, status, lines, told if details else "no report was written", details)


def processes() -> list[str]:
    """Arguments by which pytest takes several processes, if it can."""
    if importlib.util.find_spec("xdist") is None:
        return []
    return ["-n", str(min(_MOST_PROCESSES, os.cpu_count() or 1))]


def without_spark() -> str | None:
    """Why nothing can be run in Spark here."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed"
    return None if "JAVA_HOME" in os.environ else "Java is not installed"


def kernels(limit: float, out: Path) -> Phase:
    """Own kernels against cuDF, workload by workload; writes its own page, plot and JSON beside the report."""
    command = [
        sys.executable, "-m", "benchmarks.kernels", "--out", str(out / "kernels-gpu.json"), "--repeats", "2",
        "--seconds", str(int(limit * 0.9)),
    ]  # fmt: skip
    status, lines = run(command, limit)
    details = last_json(lines)
    return judged("kernels", status, lines, speedups(details) if details else "did not finish", details)


def speedups(details: dict[str, Any]) -> str:
    """How many times as fast as cuDF gpujoin's own choice is, over the workloads that both ran."""
    seconds = {(r["workload"], r["engine"]): r["seconds"] for r in details["results"]}
    found = [
        seconds[workload, "cuDF"] / mine
        for (workload, engine), mine in seconds.items()
        if engine == "auto" and mine and seconds.get((workload, "cuDF"))
    ]
    failed = sum(result.get("failed", False) for result in details["results"])
    skipped = f"; no time for {len(details['skipped'])}" if details["skipped"] else ""
    skipped += f"; {failed} failed" if failed else ""
    if not found:
        return "nothing to compare" + skipped
    mean = math.exp(sum(map(math.log, found)) / len(found))
    return f"{mean:.2f}x cuDF over {len(found)} workloads, worst {min(found):.2f}x{skipped}"


def queries(limit: float, out: Path) -> Phase:
    """TPC-H at scale 1 by Spark and by the GPU's pipelines, every answer checked; writes its own table and plots."""
    return tpch(limit, out, 1, os.environ.get("GPU_CHECK_TPCH"))


def large_queries(limit: float, out: Path) -> Phase:
    """Some queries of TPC-H at scale 10, likewise."""
    return tpch(limit, out, 10, os.environ.get("GPU_CHECK_TPCH_10"), LARGE_QUERIES)


def tpch(limit: float, out: Path, scale: int, data: str | None, only: str | None = None) -> Phase:
    """TPC-H at a scale, over the tables in a folder or generated ones; all queries, or those named."""
    name = "TPC-H" if scale == 1 else f"TPC-H at scale {scale}"
    missing = without_spark()
    if missing is None and importlib.util.find_spec("duckdb_extension_tpch") is None:
        missing = "DuckDB's extension tpch, which has the queries, is not installed"
    if missing is None and data is None and not has_generator():
        missing = "tpchgen-cli is not installed, and GPU_CHECK_TPCH names no tables"
    if missing is not None:
        return Phase(name, "skipped", 0.0, missing)
    if limit < _LEAST_SECONDS:
        return Phase(name, "skipped", 0.0, _NO_TIME)
    file = "tpch-gpu" if scale == 1 else f"tpch-gpu-{scale}"
    command = [
        sys.executable, "-m", "benchmarks.tpch", "--sf", str(scale), "--repeats", "0", "--out", str(out), "--name",
        file, "--conf", "spark.gpujoin.backend=gpu", "--conf", "spark.gpujoin.gpu.concurrentTasks=1",
        *([] if data is None else ["--data", data]), *([] if only is None else ["--queries", only]),
        *([] if scale == 1 else ["--conf", "spark.driver.memory=16g"]),
    ]  # fmt: skip
    status, lines = run(command, limit)
    record = out / f"{file}.json"
    details = json.loads(record.read_text(encoding="utf-8")) if status == 0 and record.exists() else None
    return judged(name, status, lines, lines[-1] if lines else "did not finish", details)


def has_generator() -> bool:
    """Whether the program that writes TPC-H's tables is there."""
    return Path(sys.executable).with_name("tpchgen-cli").is_file() or shutil.which("tpchgen-cli") is not None


def faults(limit: float) -> Phase:
    """Each allocation failing in turn."""
    command = [sys.executable, "scripts/gpu_faults.py", "--seconds", str(int(limit * 0.7))]
    status, lines = run(command, limit)
    details = last_json(lines)
    told = ", ".join(f"{n}: {d['faults']} of {d['allocations']}" for n, d in (details or {}).items())
    return judged("memory faults", status, lines, told or "did not finish", details)


def smoke(limit: float) -> Phase:
    """Large joins, timed, answers compared."""
    status, lines = run([sys.executable, "scripts/gpu_smoke.py", "--log-rows", "24"], limit)
    details = last_json(lines)
    return judged("smoke benchmark", status, lines, ratios(details) if details else "did not finish", details)


def memcheck(limit: float) -> Phase:
    """Every operation of the backend under compute-sanitizer."""
    return sanitized("memcheck", "memcheck", ["scripts/gpu_faults.py", "--memcheck"], limit)


def kernels_memcheck(limit: float) -> Phase:
    """The tests of the kernels under compute-sanitizer; every array is an allocation of its own there."""
    return sanitized("memcheck of kernels", "memcheck", _kernel_tests(limit), limit)


def kernels_racecheck(limit: float) -> Phase:
    """The tests of the kernels under the sanitizer of shared memory."""
    return sanitized("racecheck of kernels", "racecheck", _kernel_tests(limit), limit)


def _kernel_tests(limit: float) -> list[str]:
    """As many as there is time for; at least one of each function, or nearly so."""
    return [
        "scripts/gpu_within.py", str(max(1.0, limit - _STARTING)), "-q", "-x", "-p", "no:cacheprovider", "-m",
        "gpu and not slow", "--continue-on-collection-errors", *_KERNELS,
    ]  # fmt: skip


def sanitized(name: str, tool: str, program: list[str], limit: float) -> Phase:
    """A Python program under a tool of compute-sanitizer, where that is there and takes the device."""
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if found is None:
        return Phase(name, "skipped", 0.0, "compute-sanitizer is not installed")
    command = [found, "--tool", tool, "--error-exitcode", "9", sys.executable, *program]
    status, lines = run(command, limit)
    if status and any("Device not supported" in line for line in lines):
        return Phase(name, "skipped", 0.0, "compute-sanitizer refuses this device")
    summary = next((line.strip("= ") for line in reversed(lines) if "SUMMARY" in line), "no summary")
    ran = next((line for line in reversed(lines) if line.endswith("tests ran in time")), "")
    summary = "; ".join(filter(None, [summary, ran]))
    return judged(name, status, lines, summary, None)


def judged(name: str, status: int | None, lines: list[str], summary: str, details: Any) -> Phase:
    """A finished part; without an exit status of zero it failed."""
    if status == 0:
        return Phase(name, "passed", 0.0, summary, details)
    why = "took too long" if status is None else f"exit status {status}"
    return Phase(name, "failed", 0.0, f"{why}; {summary}", details, lines[-_TAIL:])


def last_json(lines: list[str]) -> Any:
    """What the last line says in JSON, or None."""
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return None


def ratios(results: list[dict[str, Any]]) -> str:
    """How many times as fast as each other engine, as geometric means over the workloads both ran."""
    seconds = {(r["workload"], r["engine"]): r["seconds"] for r in results}
    told = []
    for engine in ("cuDF", "CPU"):
        product, count = 1.0, 0
        for (workload, other), time_taken in seconds.items():
            if other == engine:
                product *= time_taken / seconds[workload, "gpujoin"]
                count += 1
        if count:
            told.append(f"{product ** (1 / count):.2f}x {engine} over {count} workloads")
    return "answers agree; " + ", ".join(told)


def render(phases: list[Phase]) -> str:
    """The report as Markdown."""
    good = all(phase.outcome != "failed" for phase in phases)
    lines = ["# GPU check", "", f"**{'Passed' if good else 'FAILED'}**", ""]
    suite = next(
        (p.details for p in phases if p.name in ("tests", "kernel tests", "changed tests") and p.details), None
    )
    if suite:
        lines += [*(f"- {line}" for line in suite["machine"]), ""]
        lines += [
            "| package | version |",
            "|---|---|",
            *(f"| {k} | {v} |" for k, v in suite["versions"].items()),
            "",
        ]
    lines += ["| part | outcome | seconds | |", "|---|---|---|---|"]
    lines += [f"| {p.name} | {p.outcome} | {p.seconds:.0f} | {p.summary} |" for p in phases]
    timed: list[dict[str, Any]] = next((p.details for p in phases if p.name == "smoke benchmark" and p.details), [])
    if timed:
        lines += ["", "| workload | engine | algorithm | output rows | ms |", "|---|---|---|---|---|"]
        lines += [
            f"| {r['workload']} | {r['engine']} | {r['algorithm']} | {r['output_rows']} | {r['seconds'] * 1e3:.2f} |"
            for r in timed
        ]
    if suite:
        lines += ["", *failures([t for t in suite["tests"] if t["outcome"] == "failed"])]
    for phase in phases:
        if phase.output:
            lines += ["", f"## {phase.name}", "", "```", *phase.output, "```"]
    return "\n".join(lines).rstrip() + "\n"


def failures(tests: list[dict[str, Any]]) -> list[str]:
    """A line for each message of failed tests, with the first of them that have it."""
    by_message: dict[str, list[str]] = {}
    for test in tests:
        by_message.setdefault(test["message"], []).append(f"`{test['name']}`")
    return [
        f"- {', '.join(names[:_NAMED])}{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''}: {message}"
        for message, names in by_message.items()
    ]


def why_not() -> str | None:
    """Why nothing can be checked here."""
    sys.path.insert(0, str(ROOT))
    from gpujoin.backends.cudf import unavailable

    reason = unavailable()
    return None if reason is None else str(reason)


@dataclass(frozen=True)
class Results:
    """Writes the results of a command: its report, and one archive of everything.

    Attributes
    ----------
    command : str
        Name of the command.
    work : Path
        Folder that the parts write to.
    out : Path
        Folder of the report and the archive.
    """

    command: str
    work: Path
    out: Path

    def write(self, phases: list[Phase]) -> None:
        """Write both anew, with what there is."""
        record = {
            "passed": passed(phases),
            "seconds": sum(phase.seconds for phase in phases),
            "phases": [asdict(phase) for phase in phases],
        }
        report = self.out / f"gpu-check-{self.command}.md"
        report.write_text(render(phases), encoding="utf-8")
        (self.work / "report.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        (self.work / "report.md").write_text(render(phases), encoding="utf-8")
        archive = self.out / f"gpu-check-{self.command}.tar.gz"
        partial = archive.with_suffix(".partial")
        with tarfile.open(partial, "w:gz") as packed:
            packed.add(self.work, f"gpu-check-{self.command}")
        partial.replace(archive)


def passed(phases: list[Phase]) -> bool:
    """Whether no part failed."""
    return all(phase.outcome != "failed" for phase in phases)


def share_of(name: str, limits: dict[str, int], left_over: float) -> float:
    """Seconds of a part: its share of what is left over, no less than its least where those after it keep theirs."""
    names = list(limits)
    later = names[names.index(name) + 1 :]
    least, kept = LEAST.get(name, 0), sum(LEAST.get(part, 0) for part in later)
    if left_over < least + kept:
        return max(0.0, left_over) * least / (least + kept)
    share = left_over * limits[name] / (limits[name] + sum(limits[part] for part in later))
    return min(max(share, least), left_over - kept)


def checked(results: Results, budget: float, arguments: list[str]) -> list[Phase]:
    """Run the parts of a command one after another; each has its share of the budget."""
    out = results.work
    parts: dict[str, Callable[[float], Phase]] = {
        "changed_tests": lambda limit: changed_tests(limit, out, arguments),
        "kernel_tests": lambda limit: kernel_tests(limit, out, arguments),
        "kernels_memcheck": kernels_memcheck,
        "kernels_racecheck": kernels_racecheck,
        "kernels": lambda limit: kernels(limit, out),
        "tests": lambda limit: tests(limit, out, arguments),
        "faults": faults,
        "memcheck": memcheck,
        "smoke": smoke,
        "queries": lambda limit: queries(limit, out),
        "large_queries": lambda limit: large_queries(limit, out),
    }
    start = time.monotonic()
    limits = LIMITS[results.command]
    phases: list[Phase] = []
    for name in limits:
        began = time.monotonic()
        share = share_of(name, limits, budget - (began - start))
        limit = share - min(GRACE_SECONDS, share / 4)
        phase = parts[name](limit) if limit > _SHORTEST else Phase(name, "skipped", 0.0, _NO_TIME)
        phase = replace(phase, seconds=time.monotonic() - began)
        phases.append(phase)
        results.write(phases)
        told = f"gpu-check {results.command}: {phase.name}: {phase.outcome}, {phase.seconds:.0f} s: {phase.summary}"
        print(told, flush=True)
    return phases


def main(arguments: list[str]) -> int:
    """Run commands one after another, and write their reports."""
    reason = why_not()
    if reason is not None:
        print(f"gpu-check: nothing to check here: {reason}", file=sys.stderr)
        return 2
    # A shell that runs this in the background has interrupts ignored, which the parts would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    commands = [argument for argument in arguments if argument in LIMITS]
    pytest_arguments = [argument for argument in arguments if argument not in LIMITS]
    out = Path(os.environ.get("GPU_CHECK_OUT") or ROOT / "benchmarks" / "results")
    out.mkdir(parents=True, exist_ok=True)
    budget = float(os.environ.get("GPU_CHECK_SECONDS") or BUDGET_SECONDS)
    good = True
    for command in commands or COMMANDS:
        with tempfile.TemporaryDirectory() as work:
            results = Results(command, Path(work), out)
            good &= passed(checked(results, budget, pytest_arguments))
        print(f"gpu-check: wrote {out / f'gpu-check-{command}.md'} and .tar.gz")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
