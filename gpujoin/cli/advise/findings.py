"""The advice on a program: its queries, where each would run, and the most useful changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpujoin.report.amounts import align, show_seconds
from gpujoin.report.explanation import NOTHING, Explanation
from gpujoin.report.operations import Note, NoteKind, OperationKind

_NOTHING = Note(kind=NoteKind.LEFT_TO_SPARK, text=NOTHING)

FORMAT = 1
"""Version of the form of :meth:`Advice.to_dict`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query of a program."""

    number: int
    action: str
    """The method that would have run it: ``collect``, ``saveAsTable``, …"""
    place: str
    """File and line of the call."""
    explanation: Explanation
    """The planner's decisions."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Predicted seconds of its islands, here and in Spark."""
        islands = self.explanation.islands
        here = sum(island.predicted.seconds or 0.0 for island in islands)
        return here, sum(island.predicted_spark_seconds or 0.0 for island in islands)

    @property
    def gain(self) -> float:
        """Predicted seconds that gpujoin saves."""
        here, spark = self.seconds
        return spark - here

    @property
    def joins_left(self) -> int:
        """How many of its joins Spark would run."""
        return sum(not join.accelerated for join in self.explanation.joins)

    def obstacles(self) -> Iterator[tuple[Note, int, int]]:
        """Yield why parts are left to Spark, with the joins that it concerns and the known bytes of their inputs."""
        counted: dict[Note, tuple[int, int]] = {}
        joins = {id(join): join for join in self.explanation.joins if not join.accelerated}
        for join in joins.values():
            for note in (note for note in join.notes if note.kind is NoteKind.LEFT_TO_SPARK):
                number, nbytes = counted.get(note, (0, 0))
                counted[note] = number + 1, nbytes + (join.left_bytes or 0) + (join.right_bytes or 0)
        for note in (note for note in self.explanation.notes if note.kind is NoteKind.LEFT_TO_SPARK):
            counted.setdefault(note, (0, 0))
        if not self.explanation.operations and not counted:
            counted[_NOTHING] = 0, 0
        yield from ((note, *amounts) for note, amounts in counted.items())

    def to_dict(self) -> dict[str, Any]:
        """Give the query for programs."""
        here, spark = self.seconds
        return {
            "number": self.number,
            "action": self.action,
            "place": self.place,
            "predicted_seconds": here,
            "predicted_spark_seconds": spark,
            "joins": len(self.explanation.joins),
            "joins_left_to_spark": self.joins_left,
            "report": self.explanation.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why parts of the queries are left to Spark."""

    note: Note
    queries: tuple[int, ...]
    """Numbers of the queries."""
    joins: int
    """How many joins it concerns."""
    input_bytes: int
    """Known bytes of these joins' inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What is known of the queries of a program; ``str()`` is for people.

    Attributes
    ----------
    program : str
        The program's path.
    queries : tuple of Query
        Its queries, in the order in which they would have run.
    skipped : tuple of str
        Commands and actions that were not run and are no queries.
    stopped : str or None
        Why the program ended before its end, if it did.
    start_seconds : float
        Seconds in which the first workers start. A program spends them once, and no query's prediction has them.
    spark_start_seconds : float
        The same of Spark: its first query loads classes, and compiles the first generated code.
    """

    program: str
    queries: tuple[Query, ...]
    skipped: tuple[str, ...] = ()
    stopped: str | None = None
    start_seconds: float = 0.0
    spark_start_seconds: float = 0.0

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """Why parts are left to Spark: first what would help most if it were changed.

        That is what concerns most bytes, then most joins. What cannot be changed comes last: that there is nothing to
        run here, and that Spark is predicted to be faster.
        """
        concerned: dict[Note, list[tuple[int, int, int]]] = {}
        for query in self.queries:
            for note, joins, nbytes in query.obstacles():
                concerned.setdefault(_without_numbers(note), []).append((query.number, joins, nbytes))
        obstacles = [
            Obstacle(
                note=note, queries=tuple(number for number, _, _ in each),
                joins=sum(joins for _, joins, _ in each), input_bytes=sum(nbytes for _, _, nbytes in each),
            )
            for note, each in concerned.items()
        ]  # fmt: skip
        return tuple(sorted(obstacles, key=lambda o: (_is_final(o.note), -o.input_bytes, -o.joins)))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.program}: {_count(len(self.queries), 'query', 'queries')}; nothing was read or written"
        if self.queries:
            yield ""
            yield from _table(self.queries)
            total = sum(query.gain for query in self.queries)
            yield f"predicted to be saved: {show_seconds(total)} s in all"
            if total:
                yield from self._once_lines()
        yield from self._obstacle_lines()
        if self.skipped:
            yield ""
            yield "not run, and no queries: " + "; ".join(self.skipped)
        if self.stopped:
            yield ""
            yield f"the program stopped, so queries after that are not here: {self.stopped}"

    def _once_lines(self) -> Iterator[str]:
        here, spark = show_seconds(self.start_seconds), show_seconds(self.spark_start_seconds)
        yield f"not in these seconds, once in a program: {here} s here to start workers,"
        yield f"  {spark} s in Spark to compile its first code, so small first queries stay in Spark"

    def _obstacle_lines(self) -> Iterator[str]:
        obstacles = self.obstacles
        if not obstacles:
            return
        yield ""
        yield "left to Spark, first what would help most if it were changed"
        for obstacle in obstacles:
            queries = "query" if len(obstacle.queries) == 1 else "queries"
            joins = f", {_count(obstacle.joins, 'join', 'joins')}" if obstacle.joins else ""
            change = f" (change with {obstacle.note.change})" if obstacle.note.change else ""
            yield f"  {queries} {', '.join(map(str, obstacle.queries))}{joins}: {obstacle.note.text}{change}"

    def to_dict(self) -> dict[str, Any]:
        """Give the advice for programs, as the page of the command describes it."""
        return {
            "format": FORMAT,
            "program": self.program,
            "start_seconds": self.start_seconds,
            "spark_start_seconds": self.spark_start_seconds,
            "stopped": self.stopped,
            "skipped": list(self.skipped),
            "queries": [query.to_dict() for query in self.queries],
            "obstacles": [
                {
                    "text": obstacle.note.text,
                    "change": obstacle.note.change,
                    "queries": list(obstacle.queries),
                    "joins": obstacle.joins,
                    "input_bytes": obstacle.input_bytes,
                }
                for obstacle in self.obstacles
            ],
        }


def _table(queries: tuple[Query, ...]) -> Iterator[str]:
    headings = ("#", "~s here", "~s in Spark", "runs", "query")
    yield from align([headings, *map(_row, queries)], numbers=3)


def _row(query: Query) -> tuple[str, str, str, str, str]:
    here, spark = query.seconds
    islands = query.explanation.islands
    seconds = (show_seconds(here), show_seconds(spark)) if islands else ("", "")
    if not islands:
        runs = "in Spark"
    elif query.joins_left or query.explanation.reasons or _has_spark_rows(query.explanation):
        runs = "here in part"
    else:
        runs = "here"
    return str(query.number), *seconds, runs, f"{query.action} at {query.place}"


def _has_spark_rows(explanation: Explanation) -> bool:
    return any(each.kind is OperationKind.SPARK_ROWS for each in explanation.walk())


def _is_final(note: Note) -> bool:
    return note == _NOTHING or _is_prediction(note)


def _is_prediction(note: Note) -> bool:
    return note.text.startswith("it is predicted to be faster there")


def _without_numbers(note: Note) -> Note:
    """Give one note to all predictions, whose numbers differ."""
    if not _is_prediction(note):
        return note
    return Note(kind=note.kind, text="it is predicted to be faster there", change=note.change)


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"
