"""Counts what becomes of injected faults: recovered, or refused in clear words; never wrong rows, never lost ones."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa
from pyspark.sql import SparkSession

from gpujoin.errors import GpuJoinError
from gpujoin.testing import Zeros, row_counts

_OURS = re.compile(r"gpujoin\.errors\.(\w+): \S")
"""An error of this package within the message of Spark's error for a failed task."""
_SPARKS = re.compile(r"\[[A-Z][A-Z0-9_.]{6,}\]")
"""The name of a condition of Spark's own, such as ``[FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER]``."""


class Outcome(Enum):
    """What became of a fault."""

    RECOVERED = "recovered"
    """The rows are right."""
    REFUSED = "refused"
    """An error that says what was wrong."""


@dataclass
class Outcomes:
    """Counts over the faults of a test or of a run.

    Attributes
    ----------
    tried, recovered, refused : int
        Faults injected; of these, such that the rows were right, and such that the error was clear.
    wrong_rows, lost_rows : int
        Rows returned that should not be there, and rows that are missing.
    problems : list of str
        What was neither recovered nor refused clearly, with what to repeat it by.
    """

    tried: int = 0
    recovered: int = 0
    refused: int = 0
    wrong_rows: int = 0
    lost_rows: int = 0
    problems: list[str] = field(default_factory=list)

    def judge(
        self, run: Callable[[], pa.Table], expected: pa.Table, context: str, zeros: Zeros = Zeros.SAME
    ) -> Outcome | None:
        """Run something under a fault and count what becomes of it.

        Parameters
        ----------
        run : callable
            Gives the rows, or raises.
        expected : pyarrow.Table
            The right rows, in any order.
        context : str
            The fault, and the seed.
        zeros : Zeros
            Whether the two zeros are the same.

        Returns
        -------
        Outcome or None
            ``None`` for what :meth:`check` fails for.
        """
        self.tried += 1
        try:
            actual = run()
        except Exception as problem:  # noqa: BLE001 - whatever is raised is judged
            if is_clear(problem):
                self.refused += 1
                return Outcome.REFUSED
            self.problems.append(f"{context}: unclear {type(problem).__name__}: {str(problem)[:2000]}")
            return None
        actual_counts, expected_counts = row_counts(actual, zeros=zeros), row_counts(expected, zeros=zeros)
        wrong = (actual_counts - expected_counts).total()
        lost = (expected_counts - actual_counts).total()
        return self.note(wrong, lost, context)

    def judge_query(self, session: SparkSession, text: str, expected: pa.Table, context: str) -> Outcome | None:
        """Run a query under a fault and count what becomes of it; see :meth:`judge`."""
        return self.judge(lambda: session.sql(text).toArrow(), expected, context)

    def note(self, wrong: int, lost: int, context: str) -> Outcome | None:
        """Count a fault that was tried, after which rows came."""
        if wrong or lost:
            self.wrong_rows += wrong
            self.lost_rows += lost
            self.problems.append(f"{context}: {wrong} wrong rows, {lost} lost rows")
            return None
        self.recovered += 1
        return Outcome.RECOVERED

    def add(self, other: Outcomes) -> None:
        """Add another count."""
        for column in dataclasses.fields(self):
            setattr(self, column.name, getattr(self, column.name) + getattr(other, column.name))

    def check(self) -> None:
        """Fail if a fault was neither recovered nor refused clearly, or if there were none.

        Raises
        ------
        AssertionError
            With all of them.
        """
        assert self.tried, "no fault was injected"
        assert not self.problems, f"{len(self.problems)} of {self.tried} faults:\n" + "\n".join(self.problems[:12])

    def __str__(self) -> str:
        return (
            f"{self.tried} faults tried, {self.recovered} recovered, {self.refused} refused clearly, "
            f"{self.wrong_rows} wrong rows, {self.lost_rows} lost rows"
        )


def is_clear(problem: BaseException) -> bool:
    """Whether an error says what was wrong: an error of this package or a named condition of Spark's, with a text."""
    text = str(problem)
    if isinstance(problem, GpuJoinError):
        return len(text) > 10
    return bool(_OURS.search(text) or _SPARKS.search(text))
