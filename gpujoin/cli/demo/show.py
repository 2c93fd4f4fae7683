"""What the demo shows while it works, and the table at its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self


class Progress(Protocol):
    """Tells a person how far the work is."""

    def __enter__(self) -> Self:
        """Start showing."""

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""

    def step(self, text: str) -> None:
        """Begin the next step."""

    def line(self, text: str) -> None:
        """Print a line that stays."""


class Bar:
    """A progress bar, for terminals."""

    def __init__(self, steps: int) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            total=steps, file=sys.stderr, leave=False, bar_format="{l_bar}{bar}| {elapsed} {desc}"
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
        """Show the step under way; the one before it is done."""
        if self._begun:
            self._bar.update()
        self._begun = True
        self._bar.set_description_str(text)

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.write(text, file=sys.stderr)


class Plain:
    """Lines only, for pipes and logs."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def __enter__(self) -> Self:
        """Nothing to start."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to stop."""

    def step(self, text: str) -> None:
        """Steps are too small for lines of their own."""

    def line(self, text: str) -> None:
        """Print a line."""
        print(text, file=sys.stderr, flush=True)


def progress(steps: int) -> Progress:
    """A bar on a terminal, plain lines elsewhere."""
    return Bar(steps) if sys.stderr.isatty() else Plain(steps)


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
