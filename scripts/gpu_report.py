#!/usr/bin/env python3
"""Run the tests marked ``gpu`` and write a report: machine, versions, what passed, failed and was skipped.

Usage: ``python scripts/gpu_report.py [--out DIRECTORY] [--seconds N] [pytest arguments ...]``. After so many seconds
no test is begun.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.machine import versions  # noqa: E402 - it lies beside the package
from gpujoin.cli.doctor import examine  # noqa: E402
from gpujoin.errors import BackendUnavailableError  # noqa: E402
from gpujoin.spark.discovery import list_gpus  # noqa: E402


@dataclass(frozen=True, slots=True)
class Test:
    """One test of the run: its name, ``passed``, ``failed`` or ``skipped``, its seconds, and a line about it."""

    name: str
    outcome: str
    seconds: float
    message: str


def run_tests(results: Path, arguments: list[str], seconds: float) -> tuple[int, list[Test]]:
    """Run pytest in a process of its own; gives its exit status and every test, also if it was interrupted."""
    results.unlink(missing_ok=True)
    command = [
        sys.executable, "scripts/gpu_within.py", f"{seconds}", "-m", "gpu", "--continue-on-collection-errors",
        f"--junit-xml={results}", *arguments,
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT) as child:
        try:
            status = child.wait()
        except KeyboardInterrupt:
            # Pytest has been interrupted, too, and writes what there is.
            status = child.wait()
    return status, read_results(results) if results.exists() else []


def read_results(results: Path) -> list[Test]:
    """The tests of a JUnit file that pytest wrote."""
    tests = []
    for case in ElementTree.parse(results).getroot().iter("testcase"):  # noqa: S314  # our own file
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if bad is None else "skipped" if bad.tag == "skipped" else "failed"
        message = "" if bad is None else (bad.get("message") or "").partition("\n")[0]
        name = f"{case.get('classname')}::{case.get('name')}"
        tests.append(Test(name, outcome, float(case.get("time") or 0), message))
    return tests


def revision() -> str:
    """The commit that was checked, with a mark if files differ from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown (not a git checkout)"


def passed(status: int, tests: list[Test]) -> bool:
    """Whether pytest was content and at least one test ran."""
    return status == 0 and any(test.outcome == "passed" for test in tests)


def render(facts: dict[str, str], machine: list[str], tests: list[Test], *, good: bool) -> str:
    """The report as Markdown."""
    counts = Counter(test.outcome for test in tests)
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
    lines = [
        "# GPU check",
        "",
        f"**{'Passed' if good else 'FAILED'}**: {told}, in {sum(test.seconds for test in tests):.0f} s of tests.",
        "",
        *(f"- {line}" for line in machine),
        "",
        "| package | version |",
        "|---|---|",
        *(f"| {name} | {found} |" for name, found in facts.items()),
        "",
    ]
    failed = [test for test in tests if test.outcome == "failed"]
    if failed:
        lines += ["## Failed", "", *(f"- `{t.name}`: {t.message}" for t in failed), ""]
    skipped = Counter(test.message for test in tests if test.outcome == "skipped")
    if skipped:
        lines += ["## Skipped", "", *(f"- {count}: {why}" for why, count in skipped.most_common()), ""]
    slowest = sorted(tests, key=lambda test: -test.seconds)[:10]
    if slowest:
        lines += ["## Slowest", "", *(f"- {t.seconds:.1f} s `{t.name}`" for t in slowest), ""]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Check for a GPU, run the tests, write ``report.md`` and ``report.json``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-check", help="folder of the report")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no test is begun")
    arguments, pytest_arguments = parser.parse_known_args(argv)
    try:
        gpus = list_gpus()
    except BackendUnavailableError as problem:
        print(f"gpu-check: {problem}", file=sys.stderr)
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    doctor = examine().as_json()
    machine = [
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, revision {revision()}",
        f"{platform.platform()}, {platform.machine()}",
        *(
            f"GPU {gpu.index}: {gpu.name}, {gpu.memory_total >> 20} MiB, compute capability {gpu.compute_capability}, "
            f"driver {gpu.driver_version}"
            for gpu in gpus
        ),
    ]
    facts = {"python": platform.python_version(), **versions()}
    # Last, so that little is left to do where this is interrupted.
    status, tests = run_tests(arguments.out / "junit.xml", pytest_arguments, arguments.seconds)
    good = passed(status, tests)
    (arguments.out / "report.md").write_text(render(facts, machine, tests, good=good), encoding="utf-8")
    record = {
        "passed": good,
        "machine": machine,
        "versions": facts,
        "doctor": doctor,
        "tests": [asdict(test) for test in tests],
    }
    (arguments.out / "report.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {arguments.out / 'report.md'}")
    if not any(test.outcome == "passed" for test in tests):
        print("gpu-check: no test ran on the GPU; see the reasons in the report.", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
