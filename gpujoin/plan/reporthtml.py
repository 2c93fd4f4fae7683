"""Renders a report as HTML for notebooks: a tree whose parts fold, without scripts and without anything loaded."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gpujoin.plan.reporttext import LEGEND, NOTHING, PREDICTED, Column, columns_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpujoin.plan.report import Note, OperationReport, QueryReport

_STYLE = """
.gpujoin-report{font:13px/1.5 system-ui,sans-serif;overflow-x:auto}
.gpujoin-report details details,.gpujoin-report details .leaf{margin-left:0}
.gpujoin-report .row{display:flex;gap:.8em;padding:.1em .3em;border-bottom:1px solid rgba(128,128,128,.2)}
.gpujoin-report .row:hover{background:rgba(128,128,128,.12)}
.gpujoin-report summary{cursor:pointer;list-style:none}
.gpujoin-report summary::-webkit-details-marker{display:none}
.gpujoin-report summary .fold::before{content:"\\25B8"}
.gpujoin-report details[open]>summary .fold::before{content:"\\25BE"}
.gpujoin-report .fold{display:inline-block;width:1.1em;opacity:.6}
.gpujoin-report .n{flex:0 0 2.5em;text-align:right;opacity:.6}
.gpujoin-report .v{flex:0 0 6.5em;text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.gpujoin-report .p{opacity:.65}
.gpujoin-report .o{flex:1 1 30em;font-family:ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
.gpujoin-report .spark .o{opacity:.75;font-style:italic}
.gpujoin-report .head{font-weight:600}
.gpujoin-report .note{margin:0 0 0 3.3em;opacity:.8}
.gpujoin-report .note.warning,.gpujoin-report .note.left{opacity:1;color:#b35900}
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
    parts += _notes(report.notes)
    if not report.operations and not report.notes:
        parts.append(NOTHING)
    return f'<div class="gpujoin-report">{"".join(parts)}</div>'


def _operation(each: OperationReport, columns: Sequence[Column], depth: int) -> str:
    inner = "".join([*_notes(each.notes), *(_operation(below, columns, depth + 1) for below in each.inputs)])
    fold = '<span class="fold"></span>'
    cells = "".join(
        f'<span class="v{" p" if heading.startswith(PREDICTED) else ""}">{escape(show(each))}</span>'
        for heading, show in columns
    )
    text = f'<span class="o" style="padding-left:{1.2 * depth:g}em">{fold}{escape(each.operation)}</span>'
    row = f'<span class="n">{each.number}</span>{cells}{text}'
    place = f" {escape(each.runs_in.value)}"
    if not inner:
        return f'<div class="row leaf{place}">{row}</div>'
    return f'<details open><summary class="row{place}">{row}</summary>{inner}</details>'


def _notes(notes: Iterable[Note]) -> list[str]:
    return [f'<div class="note {escape(note.kind.value.split()[0])}">{escape(str(note))}</div>' for note in notes]
