"""Renders a report as text: a table with a line for each operation, and the notes below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gpujoin.report.amounts import aligned, show_bytes, show_rows, show_seconds

if TYPE_CHECKING:
    from gpujoin.report.notes import Note
    from gpujoin.report.operations import Amounts, OperationReport, QueryReport

Column = tuple[str, "Callable[[OperationReport], str]"]
"""Heading and cells of a column of numbers."""

_QUANTITIES: tuple[tuple[str, Callable[[Amounts], str]], ...] = (
    ("rows", lambda amounts: "" if amounts.rows is None else show_rows(amounts.rows)),
    ("size", lambda amounts: "" if amounts.bytes is None else show_bytes(amounts.bytes)),
    ("s", lambda amounts: "" if amounts.seconds is None else show_seconds(amounts.seconds)),
)
PREDICTED = "~"
"""What marks columns of predicted numbers."""
LEGEND = f"{PREDICTED} predicted"
NOTHING = "no joins"


def report_text(report: QueryReport) -> str:
    """Render a report as text."""
    lines = list(_table(report))
    notes = list(_notes(report))
    if lines and notes:
        lines.append("notes")
    lines += notes
    return "\n".join(lines) or NOTHING


def columns_of(report: QueryReport) -> list[Column]:
    """Choose the columns of numbers that a report has: of each quantity the predicted and the measured ones."""
    columns: list[Column] = []
    operations = list(report.walk())
    for heading, show in _QUANTITIES:
        both = (PREDICTED + heading, _predicted(show)), (heading, _measured(show))
        columns += [column for column in both if any(column[1](each) for each in operations)]
    return columns


def _predicted(show: Callable[[Amounts], str]) -> Callable[[OperationReport], str]:
    return lambda each: show(each.predicted)


def _measured(show: Callable[[Amounts], str]) -> Callable[[OperationReport], str]:
    return lambda each: "" if each.measured is None else show(each.measured)


def note_lines(report: QueryReport) -> list[tuple[str, Note]]:
    """Give each note once, with the numbers of its operations: ``2, 5``; those of the whole query last, without one."""
    numbers: dict[Note, list[int]] = {}
    for each in report.walk():
        for note in each.notes:
            numbers.setdefault(note, []).append(each.number)
    lines = [(", ".join(map(str, dict.fromkeys(given))), note) for note, given in numbers.items()]
    return lines + [("", note) for note in report.notes if note not in numbers]


def _table(report: QueryReport) -> Iterator[str]:
    operations = [(each, depth) for root in report.operations for each, depth in _with_depth(root)]
    if not operations:
        return
    columns: list[Column] = [("#", lambda each: str(each.number)), *columns_of(report)]
    headings = [heading for heading, _ in columns]
    legend = f" ({LEGEND})" if any(heading.startswith(PREDICTED) for heading in headings) else ""
    rows = [[*headings, f"plan{legend}"]]
    rows += [[*(show(each) for _, show in columns), "  " * depth + each.operation] for each, depth in operations]
    yield from aligned(rows, numbers=len(columns))


def _with_depth(operation: OperationReport, depth: int = 0) -> Iterator[tuple[OperationReport, int]]:
    yield operation, depth
    for each in operation.inputs:
        yield from _with_depth(each, depth + 1)


def _notes(report: QueryReport) -> Iterator[str]:
    lines = note_lines(report)
    width = max((len(numbers) for numbers, _ in lines), default=0)
    for numbers, note in lines:
        yield f"{numbers.rjust(width)}  {note}" if width else str(note)
