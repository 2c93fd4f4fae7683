"""Explains what was decided about each join of a query, and why: what the report of a query is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpujoin.config import Strategy
from gpujoin.model.jointype import Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.report.amounts import show_bytes, show_seconds
from gpujoin.report.notes import Note, NoteKind
from gpujoin.report.operations import (
    UNKNOWN_AMOUNTS,
    Amounts,
    OperationKind,
    OperationReport,
    QueryReport,
    Runner,
    numbered,
)
from gpujoin.report.text import PREDICTED


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of the operations and islands of a query when it ran.

    Attributes
    ----------
    operations : mapping of (str, str) to Amounts
        By the name of the stage and that of the operation in it.
    notes : mapping of (str, str) to str
        What else is to be said of an operation.
    islands : mapping of str to Amounts
        By the name of the island; those that have not run are missing.
    island_notes : mapping of str to tuple of str
        What else is to be said of an island.
    """

    operations: Mapping[tuple[str, str], Amounts] = field(default_factory=dict)
    notes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    islands: Mapping[str, Amounts] = field(default_factory=dict)
    island_notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


NOT_MEASURED = Measured()
"""What is known of a query that has not run: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of an island, with those below it."""

    kind: OperationKind
    text: str
    """What it does, in the words of SQL."""
    predicted: Amounts = UNKNOWN_AMOUNTS
    measured_as: tuple[tuple[str, str], ...] = ()
    """Stages and names under which it is measured: rows and bytes under the first, seconds under all."""
    brief: str = ""
    """The same in two words, for Spark's progress; empty where it is not worth naming there."""
    inputs: tuple[Operation, ...] = ()

    def lines(self, indent: str = "") -> Iterator[str]:
        """Give the texts of the operation and of all below it, indented."""
        yield indent + self.text
        for each in self.inputs:
            yield from each.lines(indent + "  ")

    def report(self, backend: str, measured: Measured, *, has_run: bool) -> OperationReport:
        """Report the operation and all below it."""
        notes = [measured.notes[key] for key in self.measured_as if key in measured.notes]
        return OperationReport(
            number=0,
            kind=self.kind,
            operation=self.text,
            runs_in=Runner.SPARK if self.kind is OperationKind.SPARK_ROWS else Runner.GPUJOIN,
            backend=None if self.kind is OperationKind.SPARK_ROWS else backend,
            predicted=self.predicted,
            measured=self._amounts(measured) if has_run else None,
            notes=tuple(Note(kind=NoteKind.MEASURED, text=note) for note in notes),
            inputs=tuple(each.report(backend, measured, has_run=has_run) for each in self.inputs),
        )

    def _amounts(self, measured: Measured) -> Amounts:
        parts = [measured.operations.get(key, Amounts()) for key in self.measured_as] or [Amounts()]
        seconds = [part.seconds for part in parts if part.seconds is not None]
        return Amounts(rows=parts[0].rows, bytes=parts[0].bytes, seconds=sum(seconds) if seconds else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinExplanation:
    """The decision about one join."""

    join_type: str
    """``"inner"``, ``"left"``, ``"left_semi"``, …"""
    strategy: Strategy
    """``BROADCAST``, ``SHUFFLE``, ``NESTED_LOOP``, or ``SPARK``."""
    backend: str
    """``"gpu"``, ``"cpu"`` or ``"spark"``. Under ``auto`` each worker decides for itself; this is then what the
    driver expects, and ``notes`` say so."""
    shape: str | None = None
    """How matches are found, with the cost; ``None`` where Spark runs the join."""
    build_side: Side | None = None
    """The side that is built; ``None`` where Spark runs the join."""
    keys: tuple[str, ...] = ()
    """Equality keys."""
    condition: str | None = None
    """Residual condition."""
    left_bytes: int | None = None
    right_bytes: int | None = None
    """Estimated sizes of the inputs; ``None`` where nothing is known."""
    reasons: tuple[Reason, ...] = ()
    """Why the join is left to Spark."""
    notes: tuple[str, ...] = ()
    """What decided, in sentences for the user."""
    warnings: tuple[str, ...] = ()
    """What may make it slow, wherever it runs."""
    join_id: str | None = None
    """Name of the join's metrics; ``None`` for a join that gpujoin never ran."""
    inputs: tuple[JoinExplanation, ...] = ()
    """Joins below this one."""
    by_gpu_join: bool = False
    """Whether it was written as ``gpu_join``, if Spark runs it."""

    @property
    def accelerated(self) -> bool:
        """Whether gpujoin runs this join."""
        return self.strategy is not Strategy.SPARK

    def walk(self) -> Iterator[JoinExplanation]:
        """Yield this join and all below it, parents first."""
        yield self
        for below in self.inputs:
            yield from below.walk()

    def report(self, measured: Measured = NOT_MEASURED) -> OperationReport:
        """Report this join and those below it."""
        by = f"{self.strategy.value} on {self.backend}" if self.accelerated else "left to Spark"
        terms = (*self.keys, *([self.condition] if self.condition else []))
        on = f" on {' and '.join(terms)}" if terms else ""
        return OperationReport(
            number=0,
            kind=OperationKind.JOIN,
            operation=f"{self.join_type} join{on}: {by}",
            runs_in=Runner.GPUJOIN if self.accelerated else Runner.SPARK,
            backend=self.backend if self.accelerated else None,
            name=self.join_id,
            notes=tuple(self._notes()),
            inputs=tuple(below.report(measured) for below in self.inputs),
        )

    def _notes(self) -> Iterator[Note]:
        if self.shape:
            yield Note(kind=NoteKind.DECISION, text=self.shape)
        if self.left_bytes is not None or self.right_bytes is not None:
            sizes = f"estimated sizes: left {show_bytes(self.left_bytes)}, right {show_bytes(self.right_bytes)}"
            yield Note(kind=NoteKind.DECISION, text=sizes)
        if self.build_side is not None:
            yield Note(kind=NoteKind.DECISION, text=f"build side: {self.build_side.value}")
        yield from (Note(kind=NoteKind.WARNING, text=warning) for warning in self.warnings)
        yield from (Note(kind=NoteKind.DECISION, text=note) for note in self.notes)
        yield from map(left_to_spark, self.reasons)


def left_to_spark(reason: Reason) -> Note:
    """Note why something is left to Spark."""
    by_cost = reason.kind is ReasonKind.SLOWER and reason.what == "cost"
    what = "it is predicted to be faster there" if by_cost else reason.what
    return Note(kind=NoteKind.LEFT_TO_SPARK, text=f"{what}: {reason.why}", change=reason.setting)


@dataclass(frozen=True, slots=True)
class Operations:
    """Numbers of operations of a plan."""

    joins: int = 0
    aggregations: int = 0
    windows: int = 0

    def __add__(self, other: Operations) -> Operations:
        return Operations(
            self.joins + other.joins, self.aggregations + other.aggregations, self.windows + other.windows
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandExplanation:
    """An island: a part of a query that runs in Python workers."""

    island_id: str
    """Name of the island's metrics, and of its stage in the Spark UI."""
    backend: str
    """``"cpu"`` or ``"gpu"``."""
    tasks: int
    threads: int
    """Number of tasks, and of threads in each."""
    operation: Operation
    """Topmost operation; scans name their files, columns and filters."""
    input_bytes: int | None = None
    """Size of the files and rows that are read; ``None`` where nothing is known."""
    more_inputs: bool = False
    """Whether rows are read besides whose number nobody knows."""
    joins: tuple[JoinExplanation, ...] = ()
    """Joins of the island, parents first."""
    operations: Operations = Operations()
    """Operations of the query's plan that it computes; an aggregation that Spark finishes is one."""
    notes: tuple[str, ...] = ()
    """What decided, in sentences for the user."""
    warnings: tuple[str, ...] = ()
    """What may make it slow, wherever it runs."""
    predicted_seconds: float | None = None
    predicted_spark_seconds: float | None = None
    """What the cost rule expects it to take, here and in Spark."""

    @property
    def accelerated(self) -> bool:
        """Whether gpujoin runs it."""
        return True

    @property
    def tree(self) -> tuple[str, ...]:
        """The operations as lines of text, indented."""
        return tuple(self.operation.lines())

    def walk(self) -> Iterator[JoinExplanation]:
        """Yield the joins of the island."""
        yield from self.joins

    def report(self, measured: Measured = NOT_MEASURED) -> OperationReport:
        """Report the island and its operations."""
        has_run = self.island_id in measured.islands
        told = [(NoteKind.WARNING, self.warnings), (NoteKind.DECISION, self.notes)]
        told.append((NoteKind.MEASURED, measured.island_notes.get(self.island_id, ())))
        rows = self.operation.predicted
        return OperationReport(
            number=0,
            kind=OperationKind.ISLAND,
            operation=f"island: {self._summary()}",
            runs_in=Runner.GPUJOIN,
            backend=self.backend,
            name=self.island_id,
            predicted=Amounts(rows=rows.rows, bytes=rows.bytes, seconds=self.predicted_seconds),
            measured=measured.islands.get(self.island_id),
            predicted_spark_seconds=self.predicted_spark_seconds,
            notes=tuple(Note(kind=kind, text=text) for kind, texts in told for text in texts),
            inputs=(self.operation.report(self.backend, measured, has_run=has_run),),
        )

    def _summary(self) -> str:
        tasks = f"{self.tasks} task{'s' if self.tasks > 1 else ''}"
        threads = f" of {self.threads} threads" if self.threads > 1 else ""
        inputs = [] if self.input_bytes is None else [show_bytes(self.input_bytes)]
        inputs += ["rows of unknown size"] if self.more_inputs else []
        reading = f" reading {' and '.join(inputs)}" if inputs else ""
        spark = self.predicted_spark_seconds
        instead = "" if spark is None else f", {PREDICTED}{show_seconds(spark)} s in Spark"
        return f"{tasks}{threads} on {self.backend}{reading}{instead} [{self.island_id}]"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decisions about all joins of a query; ``str()`` and notebooks show its :attr:`report`.

    Attributes
    ----------
    roots : tuple of JoinExplanation or IslandExplanation
        Topmost joins and islands.
    reasons : tuple of Reason
        Why the query, or a part of it, is left to Spark.
    decisions : tuple of str
        What else was decided, in sentences for the user.
    """

    roots: tuple[JoinExplanation | IslandExplanation, ...] = field(default=())
    reasons: tuple[Reason, ...] = field(default=())
    decisions: tuple[str, ...] = field(default=())

    @property
    def joins(self) -> tuple[JoinExplanation, ...]:
        """All joins, parents first."""
        return tuple(join for root in self.roots for join in root.walk())

    @property
    def islands(self) -> tuple[IslandExplanation, ...]:
        """The islands of the query: the parts that run in Python workers, from the files on."""
        return tuple(root for root in self.roots if isinstance(root, IslandExplanation))

    @property
    def accelerated(self) -> bool:
        """Whether gpujoin runs any part of the query."""
        return bool(self.islands) or any(join.accelerated for join in self.joins)

    @property
    def report(self) -> QueryReport:
        """The report of the query before it runs."""
        return self.reported(NOT_MEASURED)

    def reported(self, measured: Measured) -> QueryReport:
        """Report the query, with what was measured."""
        operations = numbered([root.report(measured) for root in self.roots])
        said = {note for root in operations for each in root.walk() for note in each.notes}
        decided = [Note(kind=NoteKind.DECISION, text=text) for text in self.decisions]
        notes = dict.fromkeys([*decided, *map(left_to_spark, self.reasons)])
        return QueryReport(operations=operations, notes=tuple(note for note in notes if note not in said))

    def __str__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """Give the report as dictionaries and lists; see :meth:`QueryReport.to_dict`."""
        return self.report.to_dict()

    def to_json(self, *, indent: int | None = None) -> str:
        """Give the report as JSON; see :meth:`QueryReport.to_json`."""
        return self.report.to_json(indent=indent)
