"""The operations of a query as a tree: what each does, its prediction and its measurement.

`explain` makes the tree before a run, and `metrics` adds what was measured in one::

    island: 1 task on cpu …          predicted: 25 rows, 1.3 s      measured: 25 rows, 0.52 s
      aggregate count(*) by name     predicted: 25 rows, 0.045 s    measured: 25 rows, 0.031 s
        scan names.parquet …

What is not known is ``None``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Self

from gpujoin.config import Strategy
from gpujoin.model.jointype import Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.report.amounts import show_bytes

SPARK = "spark"
"""Backend of an operation that Spark runs."""


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
    PYTHON = "Python function"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Rows, bytes and seconds of an operation; ``None`` where they are not known."""

    rows: float | None = None
    """Rows that it gives."""
    bytes: float | None = None
    """Their bytes, as Arrow data."""
    seconds: float | None = None
    """Seconds that it takes, without its inputs; of an island from its first task's start to its last task's end."""


class NoteKind(Enum):
    """What a note tells."""

    DECISION = "decision"
    """A fact that decided how an operation runs."""
    LEFT_TO_SPARK = "left to Spark"
    """Why Spark runs it."""
    WARNING = "warning"
    """What may make it slow, wherever it runs."""
    MEASURED = "measured"
    """An event of its run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence about an operation, or about a query."""

    kind: NoteKind
    text: str
    change: str | None = None
    """The setting, argument or rewriting that changes it, if there is one."""

    def __str__(self) -> str:
        kind = f"{self.kind.value}: " if self.kind in (NoteKind.LEFT_TO_SPARK, NoteKind.WARNING) else ""
        return f"{kind}{self.text}{f' (change with {self.change})' if self.change else ''}"


def notes_of(kind: NoteKind, *texts: str) -> tuple[Note, ...]:
    """Make notes of one kind."""
    return tuple(Note(kind=kind, text=text) for text in texts)


def note_of(reason: Reason) -> Note:
    """Note why something is left to Spark."""
    by_cost = reason.kind is ReasonKind.SLOWER and reason.what == "cost"
    what = "it is predicted to be faster there" if by_cost else reason.what
    return Note(kind=NoteKind.LEFT_TO_SPARK, text=f"{what}: {reason.why}", change=reason.setting)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured under one name, and a sentence about it."""

    amounts: Amounts = Amounts()
    note: str | None = None


Measurements = Mapping[tuple[str, str], Measurement]
"""Measurements by the name of a stage and that of an operation in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of a query, and the operations that feed it."""

    kind: OperationKind
    operation: str
    """Its action, in the words of SQL."""
    backend: str = SPARK
    """``"cpu"``, ``"gpu"`` or ``"spark"``. Under ``auto`` each worker decides; this is then what the driver expects."""
    name: str | None = None
    """Name of an island in Spark's plans and in Spark's UI."""
    predicted: Amounts = Amounts()
    measured: Amounts | None = None
    """``None``: it has not run, or Spark ran it."""
    predicted_spark_seconds: float | None = None
    """Seconds predicted for an island in Spark."""
    notes: tuple[Note, ...] = ()
    inputs: tuple[Operation, ...] = ()
    measured_as: tuple[tuple[str, str], ...] = ()
    """Names under which it is measured: rows and bytes under the first, seconds under all."""
    progress: str = ""
    """Its name in Spark's progress; empty where it has none there."""

    @property
    def accelerated(self) -> bool:
        """Whether gpujoin runs it."""
        return self.backend != SPARK

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may make it slow, wherever it runs."""
        return tuple(note.text for note in self.notes if note.kind is NoteKind.WARNING)

    def levels(self, depth: int = 0) -> Iterator[tuple[Operation, int]]:
        """Yield the operation and all below it, each before its inputs, with its depth."""
        yield self, depth
        for each in self.inputs:
            yield from each.levels(depth + 1)

    def walk(self) -> Iterator[Operation]:
        """Yield the operation and all below it, each before its inputs."""
        return (each for each, _ in self.levels())

    def lines(self) -> Iterator[str]:
        """Yield the texts of the operation and of all below it, indented."""
        return ("  " * depth + each.operation for each, depth in self.levels())

    def with_measurements(self, measurements: Measurements, *, has_run: bool = False) -> Self:
        """Give the operation, and all below it, with what was measured.

        In an island that has run, every operation has run, whether it was measured or not.
        """
        parts = [measurements[key] for key in self.measured_as if key in measurements]
        has_run = has_run or (self.kind is OperationKind.ISLAND and bool(parts))
        first = measurements.get(self.measured_as[0], Measurement()).amounts if self.measured_as else Amounts()
        seconds = [part.amounts.seconds for part in parts if part.amounts.seconds is not None]
        return dataclasses.replace(
            self,
            measured=dataclasses.replace(first, seconds=sum(seconds) if seconds else None) if has_run else None,
            notes=(*self.notes, *notes_of(NoteKind.MEASURED, *(part.note for part in parts if part.note))),
            inputs=tuple(each.with_measurements(measurements, has_run=has_run) for each in self.inputs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOperation(Operation):
    """A join, and what was decided about it."""

    kind: OperationKind = OperationKind.JOIN
    join_type: str
    """``"inner"``, ``"left"``, ``"left_semi"``, …"""
    strategy: Strategy = Strategy.SPARK
    """``BROADCAST``, ``SHUFFLE``, ``NESTED_LOOP``, or ``SPARK``."""
    shape: str | None = None
    """How matches are found; ``None`` where Spark runs the join."""
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
    by_gpu_join: bool = False
    """Whether it was written as ``gpu_join``, if Spark runs it."""


def spark_join(
    join_type: str,
    *reasons: Reason,
    condition: str | None = None,
    left_bytes: int | None = None,
    right_bytes: int | None = None,
    inputs: tuple[Operation, ...] = (),
    by_gpu_join: bool = False,
    keys: tuple[str, ...] = (),
    notes: tuple[Note, ...] = (),
) -> JoinOperation:
    """Describe a join that Spark runs, with those of its inputs that Spark runs too."""
    sizes = f"estimated sizes: left {show_bytes(left_bytes)}, right {show_bytes(right_bytes)}"
    has_sizes = left_bytes is not None or right_bytes is not None
    return JoinOperation(
        operation=f"{join_words(join_type, keys, condition)}: left to Spark", join_type=join_type, keys=keys,
        condition=condition, left_bytes=left_bytes, right_bytes=right_bytes, reasons=reasons,
        notes=(*notes_of(NoteKind.DECISION, *[sizes] * has_sizes), *notes, *map(note_of, reasons)),
        inputs=tuple(each for each in inputs if isinstance(each, JoinOperation)), by_gpu_join=by_gpu_join,
    )  # fmt: skip


def join_words(join_type: str, keys: tuple[str, ...], condition: str | None) -> str:
    """Name a join by its type and by what it asks for."""
    terms = " and ".join(filter(None, (*keys, condition)))
    return f"{join_type} join{f' on {terms}' if terms else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandOperation(Operation):
    """An island: a part of a query that runs in Python workers. It has one input, its topmost operation."""

    kind: OperationKind = OperationKind.ISLAND
    tasks: int
    """Number of tasks of its last stage."""

    @property
    def tree(self) -> tuple[str, ...]:
        """Its operations as lines of text, indented."""
        return tuple(self.inputs[0].lines())

    @property
    def joins(self) -> tuple[JoinOperation, ...]:
        """Its joins, parents first."""
        return tuple(each for each in self.walk() if isinstance(each, JoinOperation))
