"""Renders a report as HTML for notebooks: a tree whose parts fold, without scripts and without anything loaded."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gpujoin.report.notes import Note, NoteKind
from gpujoin.report.text import LEGEND, NOTHING, PREDICTED, Column, columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpujoin.report.operations import OperationReport, QueryReport

_STYLE = """
.gpujoin-report{font:13px/1.5 system-ui,sans-serif;overflow-x:auto}
.gpujoin-report .row{display:flex;gap:.8em;padding:.1em .3em;border-bottom:1px solid rgba(128,128,128,.2)}
.gpujoin-report .row:hover{background:rgba(128,128,128,.12)}
.gpujoin-report summary{cursor:pointer;list-style:none}
.gpujoin-report summary::-webkit-details-marker{display:none}
.gpujoin-report summary .fold::before{content:"\\25B8"}
.gpujoin-report details[open]>summary .fold::before{content:"\\25BE"}
.gpujoin-report .fold,.gpujoin-report .leaf{display:inline-block;width:1.1em;opacity:.6}
.gpujoin-report .n{flex:0 0 2.5em;text-align:right;opacity:.6}
.gpujoin-report .v{flex:0 0 6.5em;text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.gpujoin-report .p{opacity:.65}
.gpujoin-report .o{flex:1 1 30em;font-family:ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
.gpujoin-report .spark .o{opacity:.75;font-style:italic}
.gpujoin-report .head{font-weight:600}
.gpujoin-report .note .o{font-family:inherit;opacity:.7}
.gpujoin-report .note.seen .o{opacity:1;color:#b35900}
"""


def report_html(report: QueryReport) -> str:
    """Render a report as HTML."""
    columns = columns_of(report)
    head = "".join(f'<span class="v">{escape(heading)}</span>' for heading, _ in columns)
    legend = f" ({LEGEND})" if any(heading.startswith(PREDICTED) for heading, _ in columns) else ""
    parts = [f"<style>{_STYLE}</style>"]
    if report.operations:
        parts.append(f'<div class="row head"><span class="n">#</span>{head}<span class="o">plan{legend}</span></div>')
        parts += (_operation(each, columns, 0) for each in report.operations)
    parts += _note_rows(report.notes, columns if report.operations else (), 0)
    if not report.operations and not report.notes:
        parts.append(NOTHING)
    return f'<div class="gpujoin-report">{"".join(parts)}</div>'


def _operation(each: OperationReport, columns: Sequence[Column], depth: int) -> str:
    inner = [*_note_rows(each.notes, columns, depth + 1)]
    inner += (_operation(below, columns, depth + 1) for below in each.inputs)
    cells = "".join(
        f'<span class="v{" p" if heading.startswith(PREDICTED) else ""}">{escape(show(each))}</span>'
        for heading, show in columns
    )
    row = f'<span class="n">{each.number}</span>{cells}{_text(escape(each.operation), depth, folds=bool(inner))}'
    kind = f"row {escape(each.runs_in.value)}"
    if not inner:
        return f'<div class="{kind}">{row}</div>'
    return f'<details open><summary class="{kind}">{row}</summary>{"".join(inner)}</details>'


def _note_rows(notes: Sequence[Note], columns: Sequence[Column], depth: int) -> Iterator[str]:
    """Render notes beside the plan: what stays in Spark, and warnings, in sight, the others folded."""
    seen = [note for note in notes if note.kind in (NoteKind.LEFT_TO_SPARK, NoteKind.WARNING)]
    folded = [note for note in notes if note not in seen]
    before = '<span class="n"></span>' + '<span class="v"></span>' * len(columns)
    for note in seen:
        yield f'<div class="row note seen">{before}{_text(escape(str(note)), depth)}</div>'
    if folded:
        lines = "".join(f'<div class="row note">{before}{_text(escape(str(note)), depth + 1)}</div>' for note in folded)
        count = f"{len(folded)} note{'' if len(folded) == 1 else 's'}"
        summary = f'<summary class="row note">{before}{_text(count, depth, folds=True)}</summary>'
        yield f"<details>{summary}{lines}</details>"


def _text(text: str, depth: int, *, folds: bool = False) -> str:
    """Render escaped text in the column of the plan."""
    fold = f'<span class="{"fold" if folds else "leaf"}"></span>'
    return f'<span class="o" style="padding-left:{1.2 * depth:g}em">{fold}{text}</span>'
