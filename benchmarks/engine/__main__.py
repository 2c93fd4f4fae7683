"""Run the benchmark: every case in a fresh process per thread count, all engines in it, runs interleaved."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.engine.cases import CASES
from benchmarks.engine.engines import ENGINES
from benchmarks.engine.measure import Request
from benchmarks.engine.report import table
from benchmarks.machine import describe


def main() -> None:
    arguments = _arguments()
    cases = [case for case in CASES if re.search(arguments.cases, case.name)]
    if not cases:
        raise SystemExit(f"no case matches {arguments.cases!r}; there are {', '.join(case.name for case in CASES)}")
    results = []
    for threads in arguments.threads:
        for payload in arguments.payload:
            for case in cases:
                request = Request(
                    case.name,
                    arguments.rows,
                    payload,
                    threads,
                    arguments.repeats,
                    arguments.engines,
                    memory=False,
                )
                print(f"{case.name}, payload {payload}, threads {threads}", file=sys.stderr, flush=True)
                result = _run(request)
                result["memory_ratio"] = {
                    engine: _memory(request, engine)["memory_ratio"] for engine in arguments.memory
                }
                results.append(result)
    text = table(results)
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": describe(), "results": results}, indent=1) + "\n")
        arguments.out.with_suffix(".md").write_text(_page(text))


def _memory(request: Request, engine: str) -> dict[str, Any]:
    return _run(dataclasses.replace(request, engines=[engine], memory=True))


def _run(request: Request) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.engine.measure", json.dumps(dataclasses.asdict(request))],
        env={**os.environ, **request.environment},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{request.case}: the measuring process failed with status {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _page(text: str) -> str:
    machine = describe()
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        "# The engine on the CPU\n\n"
        f"`{' '.join(['python -m benchmarks.engine', *sys.argv[1:]])}` at {machine['revision']}\n\n"
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory']};"
        f" Python {machine['python']}, {versions}.\n\n"
        "Medians in seconds. *wall ×* and *CPU ×*: the best other engine's time over ours, by the clock and by\n"
        "processor time. *memory ×*: peak resident memory over the size of inputs and output.\n\n"
        f"{text}\n"
    )


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the larger side")
    parser.add_argument("--threads", type=_numbers, default=[1, os.cpu_count() or 1], help="for example 1,2")
    parser.add_argument("--payload", type=_numbers, default=[1, 8], help="payload columns of each side")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each engine")
    parser.add_argument("--cases", default="", help="regular expression on the names of cases")
    parser.add_argument(
        "--engines", type=_names, default=list(ENGINES), help="who is timed, for example gpujoin,polars"
    )
    parser.add_argument(
        "--memory", type=_names, default=["gpujoin"], help="whose peak memory is measured; may be empty"
    )
    parser.add_argument("--out", type=Path, help="JSON file; a Markdown page is written beside it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
