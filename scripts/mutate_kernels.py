#!/usr/bin/env python3
"""Break the CUDA kernels in many ways and see whether their emulated tests notice.

Usage: ``python scripts/mutate_kernels.py [--file direct.cu] [--per-function 12 | --all] [--report PAGE]``, with
the extra ``test`` and g++. Of each function some edits are tried, those of barriers and atomics always. Mutants that
survive are listed; those that change nothing a kernel promises are explained in
``tests/kernels/mutation/survivors.toml``. Exit status 1: a mutant survived without an explanation, or an explanation is
of no use any more; 2: there is no g++.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import duckdb  # noqa: E402, F401  (imported once, before the processes are forked)
import hypothesis  # noqa: E402, F401

from tests.kernels.emulator import why_no_compiler  # noqa: E402
from tests.kernels.mutation.operators import Mutant, mutants, sample  # noqa: E402
from tests.kernels.mutation.runner import Outcome, Runner, includers  # noqa: E402
from tests.kernels.mutation.survivors import Explanation, explanations  # noqa: E402

Judged = list[tuple[Mutant, Outcome]]


@dataclass(frozen=True)
class Row:
    """What became of the mutants of one source."""

    file: str
    mutants: int
    caught: int
    explained: int
    survived: int
    ways: str

    def __str__(self) -> str:
        cells = [f"`{self.file}`", self.mutants, self.caught, self.explained, self.survived, self.ways]
        return f"| {' | '.join(map(str, cells))} |"


def rows_of(judged: Judged, explained: list[Explanation]) -> dict[str, Row]:
    """A row for each source; edits that do not compile are left out."""
    found: dict[str, Row] = {}
    for file in sorted({mutant.file for mutant, _ in judged}):
        own = [(m, o) for m, o in judged if m.file == file and o.verdict != "invalid"]
        caught = Counter(o.how for _, o in own if o.verdict == "caught")
        known = sum(o.verdict != "caught" and any(e.covers(m) for e in explained) for m, o in own)
        ways = ", ".join(f"{how} {count}" for how, count in caught.most_common())
        left = len(own) - caught.total() - known
        found[file] = Row(file, len(own), caught.total(), known, left, ways)
    return found


def table(rows: dict[str, Row]) -> list[str]:
    """Rows and their sum, as a Markdown table."""
    lines = ["| source | mutants | caught | explained | survived | caught by |", "|---|---|---|---|---|---|"]
    lines += [str(rows[file]) for file in sorted(rows)]
    sums = [sum(getattr(row, name) for row in rows.values()) for name in ("mutants", "caught", "explained", "survived")]
    return [*lines, f"| all | {' | '.join(map(str, sums))} | |"]


def told(mutant: Mutant, outcome: Outcome) -> str:
    """A mutant in one line."""
    where = f"{mutant.file}:{mutant.line} {mutant.function}"
    return f"{outcome.verdict}: {where}: {mutant.operator}: {mutant.before} -> {mutant.after}"


def page(rows: dict[str, Row]) -> str:
    """The report as a page of the documentation; it names the sources that were not tried."""
    sources = {path.name for path in (ROOT / "kernels").iterdir() if path.suffix in (".cu", ".cuh")}
    missing = ", ".join(f"`{file}`" for file in sorted(sources - rows.keys()))
    lines = [
        "# Mutation check of the kernels",
        "",
        "Written by `make mutation`. Each function of each source is broken in a dozen ways or more, one edit at a",
        "time; the emulated tests that run it are to fail. What survives is explained in",
        "`tests/kernels/mutation/survivors.toml`: edits that change nothing a kernel promises. Edits that do not",
        "compile are not counted.",
        "",
        *table(rows),
        *(["", f"Not tried, or not to the end: {missing}."] if missing else []),
    ]
    return "\n".join(lines) + "\n"


def rows_on(path: Path) -> dict[str, Row]:
    """The rows of a page that was written before, of sources that are still there."""
    if not path.is_file():
        return {}
    pattern = r"^\| `([^`]+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (.*) \|$"
    found = re.findall(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    rows = (
        Row(file, int(all_), int(caught), int(known), int(left), ways)
        for file, all_, caught, known, left, ways in found
    )
    return {row.file: row for row in rows if (ROOT / "kernels" / row.file).is_file()}


def judge(files: Sequence[str], most: int | None, workers: int, patience: float) -> Judged:
    """Break the sources, and run their tests."""
    judged: Judged = []
    with tempfile.TemporaryDirectory(prefix="gpujoin-mutation-") as scratch:
        runner = Runner(Path(scratch), patience)
        names = files or sorted(path.name for path in runner.kernels.iterdir() if path.suffix in (".cu", ".cuh"))
        chosen: list[Mutant] = []
        for name in names:
            found = list(mutants(name, (runner.kernels / name).read_text(encoding="utf-8")))
            chosen += found if most is None else sample(found, most)
        coverage, parts = runner.measure(), includers(runner.kernels)
        print(f"{len(chosen)} mutants, {len(coverage.kernels)} tests that launch kernels", flush=True)
        work = [(mutant, coverage.tests_of(mutant, parts)) for mutant in chosen]
        for mutant, outcome in runner.judge(work, workers):
            judged.append((mutant, outcome))
            if outcome.verdict in ("survived", "untested"):
                print(told(mutant, outcome), flush=True)
            if len(judged) % 50 == 0:
                print(f"{len(judged)} of {len(work)}", flush=True)
    return judged


def main() -> int:
    """Judge, print, and compare with the explanations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--file", action="append", default=[], help="only this source, such as direct.cu")
    parser.add_argument("--per-function", type=int, default=12, help="edits of each function (default 12)")
    parser.add_argument("--all", action="store_true", help="every edit of every function")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--patience",
        type=float,
        default=5,
        help="times the processor time of right kernels that a broken one may take (default 5)",
    )
    parser.add_argument("--report", type=Path, help="write a page here; rows of other sources stay")
    arguments = parser.parse_args()
    reason = why_no_compiler()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    started = time.monotonic()
    most = None if arguments.all else arguments.per_function
    judged = judge(arguments.file, most, arguments.workers, arguments.patience)
    explained = explanations()
    rows = rows_of(judged, explained)
    print("\n".join(["", *table(rows), ""]))
    invalid = sum(outcome.verdict == "invalid" for _, outcome in judged)
    print(f"{invalid} edits did not compile and count for nothing; {time.monotonic() - started:.0f} s")
    if arguments.report:
        arguments.report.write_text(page({**rows_on(arguments.report), **rows}), encoding="utf-8")
    survivors = [(m, o) for m, o in judged if o.verdict in ("survived", "untested")]
    open_ones = [pair for pair in survivors if not any(e.covers(pair[0]) for e in explained)]
    stale = [e for e in explained if any(e.covers(m) for m, _ in judged) and not any(e.covers(m) for m, _ in survivors)]
    for mutant, outcome in open_ones:
        print(told(mutant, outcome))
    for explanation in stale:
        print(f"explained, but caught: {explanation.file} {explanation.function}: {explanation.before}")
    return 1 if open_ones or stale else 0


if __name__ == "__main__":
    sys.exit(main())
