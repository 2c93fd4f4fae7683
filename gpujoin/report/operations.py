"""The report of a query: a tree of numbered operations with what was predicted, and after a run what was measured.

``explain`` makes it before a run and ``metrics`` after one, with the same operations under the same numbers::

    #   ~rows   rows     ~s      s  plan
    1      25     25    1.3   0.52  island: 1 task on cpu …
    2      25     25  0.045  0.031    aggregate count(*) by name

Numbers are given from the top down, an operation before its inputs. Every report and every operation has the same
fields; what is not known is ``None``.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gpujoin.errors import GpuJoinError
from gpujoin.report.html import report_html
from gpujoin.report.notes import Note, NoteKind
from gpujoin.report.text import report_text

FORMAT = 1
"""Version of the form of :meth:`QueryReport.to_dict`."""


class OperationKind(Enum):
    """What an operation is."""

    ISLAND = "island"
    SCAN = "scan"
    SPARK_ROWS = "rows from Spark"
    CONSTANTS = "rows of the query"
    EXCHANGE = "exchange"
    FILTER = "filter"
    PROJECTION = "projection"
    JOIN = "join"
    AGGREGATION = "aggregation"
    WINDOW = "window"
    LIMIT = "limit"
    UNION = "union"
    EXPANSION = "expansion"


class Runner(Enum):
    """Who runs an operation."""

    GPUJOIN = "gpujoin"
    SPARK = "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Rows, bytes and seconds of an operation; ``None`` where they are not known."""

    rows: float | None = None
    """Rows that it gives."""
    bytes: float | None = None
    """Their bytes, as Arrow data."""
    seconds: float | None = None
    """Seconds that it takes, without its inputs; of an island from its first task's start to its last task's end."""


UNKNOWN_AMOUNTS = Amounts()
"""Amounts of an operation of which nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationReport:
    """One operation of a query."""

    number: int
    """Its number in the report, from 1."""
    kind: OperationKind
    operation: str
    """What it does, in the words of SQL."""
    runs_in: Runner
    backend: str | None = None
    """``"cpu"`` or ``"gpu"``; ``None`` where Spark runs it."""
    name: str | None = None
    """Name of an island in Spark's plans and in Spark's UI."""
    predicted: Amounts = UNKNOWN_AMOUNTS
    measured: Amounts | None = None
    """``None``: it has not run, or Spark ran it."""
    predicted_spark_seconds: float | None = None
    """What an island was predicted to take in Spark."""
    notes: tuple[Note, ...] = ()
    inputs: tuple[OperationReport, ...] = ()

    def walk(self) -> Iterator[OperationReport]:
        """Yield the operation and all below it, in the order of their numbers."""
        yield self
        for each in self.inputs:
            yield from each.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryReport:
    """What was decided of a query, and what came of it.

    ``str()`` is text, notebooks show it as HTML, and :meth:`to_dict` and :meth:`to_json` are for programs.

    Attributes
    ----------
    operations : tuple of OperationReport
        Topmost operations: islands, and joins that Spark runs, each with those below it.
    notes : tuple of Note
        Why the query, or a part of it that has no join, is left to Spark.
    """

    operations: tuple[OperationReport, ...] = ()
    notes: tuple[Note, ...] = field(default=())

    @property
    def has_run(self) -> bool:
        """Whether anything was measured."""
        return any(each.measured is not None for each in self.walk())

    def walk(self) -> Iterator[OperationReport]:
        """Yield all operations, in the order of their numbers."""
        for each in self.operations:
            yield from each.walk()

    def __str__(self) -> str:
        return report_text(self)

    def _repr_html_(self) -> str:
        return report_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Give the report as dictionaries and lists of texts and numbers, as the guide describes them."""
        return {
            "format": FORMAT,
            "operations": [_operation_dict(each) for each in self.operations],
            "notes": [_note_dict(note) for note in self.notes],
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Give :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> QueryReport:
        """Read what :meth:`to_dict` gave.

        Raises
        ------
        GpuJoinError
            If it has another format, or lacks a field.
        """
        if given.get("format") != FORMAT:
            raise GpuJoinError(f"reports of format {FORMAT} are read, got {given.get('format')!r}")
        try:
            return cls(
                operations=tuple(map(_operation_of, given["operations"])), notes=tuple(map(_note_of, given["notes"]))
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise GpuJoinError(f"this is no report: {problem!r}") from problem

    @classmethod
    def from_json(cls, text: str) -> QueryReport:
        """Read what :meth:`to_json` gave; raises :class:`~gpujoin.errors.GpuJoinError` if it is something else."""
        try:
            given = json.loads(text)
        except ValueError as problem:
            raise GpuJoinError(f"this is no report: {problem}") from problem
        if not isinstance(given, dict):
            raise GpuJoinError("this is no report: a JSON object is expected")
        return cls.from_dict(given)


def numbered(operations: Sequence[OperationReport]) -> tuple[OperationReport, ...]:
    """Number operations and all below them from the top down, from 1, an operation before its inputs."""
    numbers = itertools.count(1)

    def visit(operation: OperationReport) -> OperationReport:
        number = next(numbers)
        return dataclasses.replace(operation, number=number, inputs=tuple(map(visit, operation.inputs)))

    return tuple(map(visit, operations))


def _operation_dict(operation: OperationReport) -> dict[str, Any]:
    return {
        "number": operation.number,
        "kind": operation.kind.value,
        "operation": operation.operation,
        "runs_in": operation.runs_in.value,
        "backend": operation.backend,
        "name": operation.name,
        "predicted": _amounts_dict(operation.predicted),
        "measured": None if operation.measured is None else _amounts_dict(operation.measured),
        "predicted_spark_seconds": operation.predicted_spark_seconds,
        "notes": [_note_dict(note) for note in operation.notes],
        "inputs": [_operation_dict(each) for each in operation.inputs],
    }


def _operation_of(given: Mapping[str, Any]) -> OperationReport:
    measured = given["measured"]
    return OperationReport(
        number=given["number"],
        kind=OperationKind(given["kind"]),
        operation=given["operation"],
        runs_in=Runner(given["runs_in"]),
        backend=given["backend"],
        name=given["name"],
        predicted=Amounts(**given["predicted"]),
        measured=None if measured is None else Amounts(**measured),
        predicted_spark_seconds=given["predicted_spark_seconds"],
        notes=tuple(map(_note_of, given["notes"])),
        inputs=tuple(map(_operation_of, given["inputs"])),
    )


def _amounts_dict(amounts: Amounts) -> dict[str, float | None]:
    return {"rows": amounts.rows, "bytes": amounts.bytes, "seconds": amounts.seconds}


def _note_dict(note: Note) -> dict[str, str | None]:
    return {"kind": note.kind.value, "text": note.text, "change": note.change}


def _note_of(given: Mapping[str, Any]) -> Note:
    return Note(kind=NoteKind(given["kind"]), text=given["text"], change=given["change"])
