"""What the demo shows while it works, and the tables at its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one join or query."""

    labels: tuple[str, ...]
    """The first cells of its row; its title comes first."""
    rows: int
    seconds: float
    spark_seconds: float
    """Time here and in Spark."""
    differences: tuple[str, ...]
    """What differs from Spark or DuckDB; empty when all are equal."""
    reasons: tuple[str, ...] = ()
    """Why it was left to Spark, if it was."""


def failed(labels: tuple[str, ...], problem: Exception) -> Outcome:
    """What is told of a join that an exception has ended."""
    lines = [line for line in str(problem).splitlines() if line.strip()] or [""]
    # What a Python worker says ends with its exception; what the JVM says begins with it.
    telling = lines[-1] if any(line.startswith("Traceback") for line in lines) else lines[0]
    return Outcome(labels, 0, 0.0, 0.0, (f"failed with {type(problem).__name__}: {telling}",))


class Progress:
    """Tells a person how far the work is: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, steps: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            total=steps,
            file=sys.stderr,
            leave=False,
            disable=None,
            bar_format="{l_bar}{bar}| {elapsed} {desc}",
        )
        self._begun = False

    def __enter__(self) -> Self:
        """Start showing."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the bar."""
        self._bar.close()

    def step(self, text: str) -> None:
        """Begin the next step; the one before it is done."""
        if self._begun:
            self._bar.update()
        self._begun = True
        self._bar.set_description_str(text)

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self._bar.write(text, file=sys.stderr)

    def outcome(self, number: str, title: str, outcome: Outcome) -> None:
        """Print what came of a join or query."""
        verdict = "NOT EQUAL" if outcome.differences else "equal"
        self.line(f"[{number}] {title}: {outcome.rows:,} rows, {verdict}")
        for difference in outcome.differences:
            self.line(f"    {difference}")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Rows of cells under their headings, aligned; the columns ``right`` on the right, as numbers are."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    lines = []
    for row in (header, rule, *rows):
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def report(about: str, labels: tuple[str, ...], outcomes: Sequence[Outcome], what: str) -> str:
    """The table of the outcomes, for people."""
    rows = [
        (
            *outcome.labels,
            f"{outcome.rows:,}",
            f"{outcome.seconds:.2f}",
            f"{outcome.spark_seconds:.2f}",
            f"{outcome.spark_seconds / outcome.seconds:.1f}" if outcome.seconds else "-",
            "NO" if outcome.differences else "yes",
        )
        for outcome in outcomes
    ]
    header = (*labels, "rows", "seconds here", "seconds in Spark", "times faster", "result equal")
    equal = sum(not outcome.differences for outcome in outcomes)
    numbers = range(len(labels), len(labels) + 4)
    left = [f"{this.labels[0]} was left to Spark: {reason}" for this in outcomes for reason in this.reasons]
    return "\n".join(
        [
            f"\n{about}\n",
            table(header, rows, right=numbers),
            "",
            *left,
            f"{equal} of {len(outcomes)} {what} equal",
        ]
    )
