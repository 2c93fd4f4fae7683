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
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
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


def table(judged: Judged, explained: list[Explanation]) -> list[str]:
    """Counts of each source, as a Markdown table."""
    lines = ["| source | mutants | caught | explained | survived |", "|---|---|---|---|---|"]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, outcome in judged:
        if outcome.verdict == "invalid":
            continue
        known = any(e.covers(mutant) for e in explained)
        verdict = "caught" if outcome.verdict == "caught" else "explained" if known else "survived"
        counts[mutant.file][verdict] += 1
    total: Counter[str] = Counter()
    for file in sorted(counts):
        total += counts[file]
        lines.append(_row(f"`{file}`", counts[file]))
    lines.append(_row("all", total))
    return lines


def _row(name: str, counts: Counter[str]) -> str:
    numbers = [counts.total(), counts["caught"], counts["explained"], counts["survived"]]
    return f"| {name} | {' | '.join(map(str, numbers))} |"


def ways(judged: Judged) -> str:
    """By what mutants were caught."""
    found = Counter(outcome.how for _, outcome in judged if outcome.verdict == "caught")
    return ", ".join(f"{how} {count}" for how, count in found.most_common())


def told(mutant: Mutant, outcome: Outcome) -> str:
    """A mutant in one line."""
    where = f"{mutant.file}:{mutant.line} {mutant.function}"
    return f"{outcome.verdict}: {where}: {mutant.operator}: {mutant.before} -> {mutant.after}"


def page(judged: Judged, explained: list[Explanation], seconds: float) -> str:
    """The report as a page of the documentation."""
    kinds = len({mutant.operator for mutant, _ in judged})
    lines = [
        "# Mutation check of the kernels",
        "",
        f"Written by `make mutation` in {seconds:.0f} s. Each source is broken in {kinds} kinds of ways, one edit at a",
        "time; the emulated tests that run the broken function are to fail. What survives is explained in",
        "`tests/kernels/mutation/survivors.toml`: edits that change nothing a kernel promises.",
        "",
        *table(judged, explained),
        "",
        f"Caught by: {ways(judged)}.",
    ]
    return "\n".join(lines) + "\n"


def judge(files: Sequence[str], most: int | None, workers: int, limit: float) -> Judged:
    """Break the sources, and run their tests."""
    judged: Judged = []
    with tempfile.TemporaryDirectory(prefix="gpujoin-mutation-") as scratch:
        runner = Runner(Path(scratch), limit)
        names = files or sorted(
            path.name for path in runner.kernels.iterdir() if path.suffix in (".cu", ".cuh")
        )
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
    parser.add_argument("--seconds", type=float, default=40, help="most time for one mutant (default 40)")
    parser.add_argument("--report", type=Path, help="write a page of Markdown here")
    arguments = parser.parse_args()
    reason = why_no_compiler()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    started = time.monotonic()
    most = None if arguments.all else arguments.per_function
    judged = judge(arguments.file, most, arguments.workers, arguments.seconds)
    explained = explanations()
    print("\n".join(["", *table(judged, explained), "", f"caught by: {ways(judged)}"]))
    invalid = sum(outcome.verdict == "invalid" for _, outcome in judged)
    print(f"{invalid} edits did not compile and count for nothing; {time.monotonic() - started:.0f} s")
    if arguments.report:
        arguments.report.write_text(page(judged, explained, time.monotonic() - started), encoding="utf-8")
    survivors = [(m, o) for m, o in judged if o.verdict in ("survived", "untested")]
    open_ones = [pair for pair in survivors if not any(e.covers(pair[0]) for e in explained)]
    stale = [
        e
        for e in explained
        if any(e.covers(m) for m, _ in judged) and not any(e.covers(m) for m, _ in survivors)
    ]
    for mutant, outcome in open_ones:
        print(told(mutant, outcome))
    for explanation in stale:
        print(f"explained, but caught: {explanation.file} {explanation.function}: {explanation.before}")
    return 1 if open_ones or stale else 0


if __name__ == "__main__":
    sys.exit(main())
