#!/usr/bin/env python3
"""Break the package in random places and see whether its tests notice.

Usage: ``python -m pytest -p tests.mutants.calls …``, which writes down what each test calls (``make test-all`` does),
then ``python scripts/mutate_package.py [--count 200] [--seed 1] [--room plan …]``. Of random lines of rooms of the
package one edit each is made, and tests that call the broken function run until one fails. A mutant has ``--seconds``
of tests as they were recorded, with Spark and without, and three times as long by the clock. What survives is listed;
the exit status is 1 if fewer than ``--least`` of a hundred mutants are caught.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.mutants.calls import Record, callers_of, read  # noqa: E402
from tests.mutants.edits import Mutant, mutants, sample  # noqa: E402
from tests.mutants.runner import Copy, Outcome  # noqa: E402

ROOMS = ("plan", "engine", "functions")
START = 60.0
"""Seconds by the clock that imports and a Spark session may take."""


def edits(rooms: list[str]) -> list[Mutant]:
    """Every mutant of some rooms."""
    package = ROOT / "gpujoin"
    paths = sorted(path for room in rooms for path in (package / room).rglob("*.py"))
    return [
        mutant for path in paths for mutant in mutants(str(path.relative_to(package)), path.read_text(encoding="utf-8"))
    ]


def judge(
    chosen: list[Mutant], records: dict[str, Record], seconds: float, workers: int
) -> Iterator[tuple[Mutant, Outcome]]:
    """Run the tests of each mutant, several mutants at a time."""
    with tempfile.TemporaryDirectory(prefix="gpujoin-mutants-") as scratch, ThreadPoolExecutor(workers) as pool:
        copies: Queue[Copy] = Queue()
        for number in range(workers):
            copies.put(Copy(Path(scratch) / str(number)))

        def run(mutant: Mutant) -> tuple[Mutant, Outcome]:
            copy = copies.get()
            try:
                functions = [(mutant.file, line) for line in mutant.first_lines[:1]]
                tests = callers_of(records, functions, seconds)
                return mutant, copy.judge(mutant, tests, START + 3 * seconds)
            finally:
                copies.put(copy)

        yield from pool.map(run, chosen)


def main() -> int:
    """Judge, and print what survives."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=8, help="lines that are broken (default 8)")
    parser.add_argument("--seed", type=int, default=1, help="which lines (default 1)")
    parser.add_argument("--room", action="append", default=[], help=f"of the package (default {', '.join(ROOMS)})")
    parser.add_argument("--seconds", type=float, default=30, help="of tests for each mutant (default 30)")
    parser.add_argument("--least", type=float, default=0, help="percentage to be caught (default 0)")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--calls", type=Path, default=ROOT / ".pytest_cache" / "calls", help="records of the tests")
    arguments = parser.parse_args()
    records = read(arguments.calls)
    if not records:
        print("first run the tests with -p tests.mutants.calls, which writes down what each calls", file=sys.stderr)
        return 2
    started = time.monotonic()
    every = edits(arguments.room or list(ROOMS))
    chosen = sample(every, arguments.count, arguments.seed)
    print(f"{len(chosen)} of {len(every)} mutants, {len(records)} tests", flush=True)
    verdicts: Counter[str] = Counter()
    for mutant, outcome in judge(chosen, records, arguments.seconds, arguments.workers):
        verdicts[outcome.verdict] += 1
        print(f"{outcome.verdict} ({outcome.seconds:.0f} s, {outcome.by or '-'}): {mutant}", flush=True)
    caught = 100 * verdicts["caught"] / max(1, len(chosen))
    listed = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    print(f"{listed}: {caught:.0f} % caught; {time.monotonic() - started:.0f} s")
    return 1 if caught < arguments.least else 0


if __name__ == "__main__":
    sys.exit(main())
