"""The report of a query: its operations, numbered from the top down, and notes about them, as text and as JSON.

`explain` makes it before a run and `metrics` after one, with the same operations under the same numbers::

    #   ~rows   rows     ~s      s  plan (~ predicted)
    1      25     25    1.3   0.52  island: 1 task on cpu …
    2      25     25  0.045  0.031    aggregate count(*) by name
    notes
    1  backend cpu was asked for

Every report and every operation has the same fields in JSON; what is not known is null.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

from gpujoin.errors import GpuJoinError
from gpujoin.model.reasons import Reason
from gpujoin.report.amounts import PREDICTED, align, show_bytes, show_rows, show_seconds
from gpujoin.report.operations import (
    SPARK,
    Amounts,
    IslandOperation,
    JoinOperation,
    Measurements,
    Note,
    NoteKind,
    Operation,
    OperationKind,
    note_of,
)

FORMAT = 1
"""Version of the form of :meth:`QueryReport.to_dict`."""
_Column: TypeAlias = tuple[str, Callable[[Operation], str]]
"""Heading and cells of a column of numbers."""
_QUANTITIES: tuple[tuple[str, Callable[[Amounts], str]], ...] = (
    ("rows", lambda amounts: "" if amounts.rows is None else show_rows(amounts.rows)),
    ("size", lambda amounts: "" if amounts.bytes is None else show_bytes(amounts.bytes)),
    ("s", lambda amounts: "" if amounts.seconds is None else show_seconds(amounts.seconds)),
)


def html_page(text: object) -> str:
    """Give a text as notebooks show it."""
    return f"<pre>{escape(str(text))}</pre>"


@dataclass(frozen=True, slots=True)
class QueryReport:
    """The decisions about a query, and its measurements.

    ``str()`` is text, notebooks show the same, and :meth:`to_dict` and :meth:`to_json` are for programs.

    Attributes
    ----------
    operations : tuple of Operation
        Topmost operations: islands, and joins that Spark runs, each with those below it.
    notes : tuple of Note
        What is to be said of the query, and of no operation: why it, or a part without a join, is left to Spark.
    """

    operations: tuple[Operation, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def has_run(self) -> bool:
        """Whether anything was measured."""
        return any(each.measured is not None for each in self.walk())

    def walk(self) -> Iterator[Operation]:
        """Yield all operations, in the order of their numbers, which begin at 1."""
        for each in self.operations:
            yield from each.walk()

    def __str__(self) -> str:
        lines, notes = list(self._table()), list(self._note_lines())
        return "\n".join([*lines, *["notes"] * bool(lines and notes), *notes]) or f"nothing to run here: {NOTHING}"

    def _repr_html_(self) -> str:
        return html_page(self)

    def _table(self) -> Iterator[str]:
        """Yield a line of numbers for each operation, below headings; of each quantity first the predicted ones."""
        operations = [each for root in self.operations for each in root.levels()]
        if not operations:
            return
        columns: list[_Column] = []
        for heading, show in _QUANTITIES:
            both = (PREDICTED + heading, _predicted(show)), (heading, _measured(show))
            columns += [column for column in both if any(column[1](each) for each, _ in operations)]
        headings = [heading for heading, _ in columns]
        legend = f" ({PREDICTED} predicted)" if any(heading.startswith(PREDICTED) for heading in headings) else ""
        rows = [["#", *headings, f"plan{legend}"]]
        for number, (each, depth) in enumerate(operations, 1):
            rows.append([str(number), *(show(each) for _, show in columns), "  " * depth + each.operation])
        yield from align(rows, numbers=1 + len(columns))

    def _note_lines(self) -> Iterator[str]:
        """Yield each note once, after the numbers of its operations; those of the whole query last."""
        numbers: dict[Note, list[str]] = {}
        for number, each in enumerate(self.walk(), 1):
            for note in dict.fromkeys(each.notes):
                numbers.setdefault(note, []).append(str(number))
        lines = [(", ".join(numbers.get(note, ())), note) for note in dict.fromkeys((*numbers, *self.notes))]
        width = max((len(operations) for operations, _ in lines), default=0)
        for operations, note in lines:
            yield f"{operations.rjust(width)}  {note}" if width else str(note)

    def to_dict(self) -> dict[str, Any]:
        """Give the report as dictionaries and lists of texts and numbers, as the guide describes them."""
        numbers = itertools.count(1)
        return {
            "format": FORMAT,
            "operations": [_operation_dict(each, numbers) for each in self.operations],
            "notes": [_note_dict(note) for note in self.notes],
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Give :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @staticmethod
    def from_dict(form: Mapping[str, Any]) -> QueryReport:
        """Read what :meth:`to_dict` gave.

        Raises
        ------
        GpuJoinError
            If it has another format, or lacks a field.
        """
        if form.get("format") != FORMAT:
            raise GpuJoinError(f"reports of format {FORMAT} are read, got {form.get('format')!r}")
        try:
            return QueryReport(tuple(map(_operation_in, form["operations"])), tuple(map(_note_in, form["notes"])))
        except (KeyError, TypeError, ValueError) as problem:
            raise GpuJoinError(f"this is no report: {problem!r}") from problem

    @staticmethod
    def from_json(text: str) -> QueryReport:
        """Read what :meth:`to_json` gave; raises :class:`~gpujoin.errors.GpuJoinError` if it is something else."""
        try:
            form = json.loads(text)
        except ValueError as problem:
            raise GpuJoinError(f"this is no report: {problem}") from problem
        if not isinstance(form, dict):
            raise GpuJoinError("this is no report: a JSON object is expected")
        return QueryReport.from_dict(form)


NOTHING = "neither a join nor an aggregation, nor first rows in an order"
"""What is said of a query that has nothing to run here."""


@dataclass(frozen=True, slots=True)
class Explanation(QueryReport):
    """The report of a query, with what programs ask of its islands, its joins and the reasons.

    Attributes
    ----------
    operations, notes
        As those of a :class:`QueryReport`.
    reasons : tuple of Reason
        Why the query, or a part of it, is left to Spark.
    """

    reasons: tuple[Reason, ...] = ()

    def __post_init__(self) -> None:
        """Note the reasons that no note of an operation has."""
        said = {note for each in self.walk() for note in each.notes}
        notes = dict.fromkeys((*self.notes, *map(note_of, self.reasons)))
        object.__setattr__(self, "notes", tuple(note for note in notes if note not in said))

    @property
    def report(self) -> QueryReport:
        """The report of the query: this."""
        return self

    @property
    def joins(self) -> tuple[JoinOperation, ...]:
        """All joins, parents first."""
        return tuple(each for each in self.walk() if isinstance(each, JoinOperation))

    @property
    def islands(self) -> tuple[IslandOperation, ...]:
        """The islands of the query: the parts that run in Python workers, from the files on."""
        return tuple(each for each in self.operations if isinstance(each, IslandOperation))

    @property
    def accelerated(self) -> bool:
        """Whether gpujoin runs any part of the query."""
        return any(each.accelerated for each in self.walk())

    def with_measurements(self, measurements: Measurements) -> Explanation:
        """Give the same with what was measured."""
        operations = tuple(each.with_measurements(measurements) for each in self.operations)
        return dataclasses.replace(self, operations=operations)


def _predicted(show: Callable[[Amounts], str]) -> Callable[[Operation], str]:
    return lambda each: show(each.predicted)


def _measured(show: Callable[[Amounts], str]) -> Callable[[Operation], str]:
    return lambda each: "" if each.measured is None else show(each.measured)


def _operation_dict(operation: Operation, numbers: Iterator[int]) -> dict[str, Any]:
    return {
        "number": next(numbers),
        "kind": operation.kind.value,
        "operation": operation.operation,
        "runs_in": "gpujoin" if operation.accelerated else SPARK,
        "backend": operation.backend if operation.accelerated else None,
        "name": operation.name,
        "predicted": dataclasses.asdict(operation.predicted),
        "measured": None if operation.measured is None else dataclasses.asdict(operation.measured),
        "predicted_spark_seconds": operation.predicted_spark_seconds,
        "notes": [_note_dict(note) for note in operation.notes],
        "inputs": [_operation_dict(each, numbers) for each in operation.inputs],
    }


def _operation_in(form: Mapping[str, Any]) -> Operation:
    measured = form["measured"]
    return Operation(
        kind=OperationKind(form["kind"]),
        operation=form["operation"],
        backend=form["backend"] or SPARK,
        name=form["name"],
        predicted=Amounts(**form["predicted"]),
        measured=None if measured is None else Amounts(**measured),
        predicted_spark_seconds=form["predicted_spark_seconds"],
        notes=tuple(map(_note_in, form["notes"])),
        inputs=tuple(map(_operation_in, form["inputs"])),
    )


def _note_dict(note: Note) -> dict[str, str | None]:
    return {"kind": note.kind.value, "text": note.text, "change": note.change}


def _note_in(form: Mapping[str, Any]) -> Note:
    return Note(kind=NoteKind(form["kind"]), text=form["text"], change=form["change"])
