"""What :func:`gpujoin.profile` gives: the times of a query both ways, as text, HTML, a picture and for programs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from html import escape
from pathlib import Path
from typing import Any

from gpujoin.report.amounts import show_rows, show_seconds
from gpujoin.report.operations import QueryReport
from gpujoin.report.picture import profile_svg

FORMAT = 1
"""Version of the form of :meth:`QueryProfile.to_dict`."""
_BAR = 30


class Activity(Enum):
    """What the time of a query goes to."""

    PLANNING = "planning"
    """Spark's planning, with gpujoin's part of it."""
    READING = "reading"
    """Reading and decoding files."""
    COMPUTING = "computing"
    """Filters, projections, windows, sorts and limits."""
    JOINING = "joining"
    AGGREGATING = "aggregating"
    WAITING = "waiting for rows"
    """Taking in rows from Spark or from an exchange, and waiting for a GPU."""
    TRANSFER = "transfer to Spark"
    """Giving rows to Spark or to an exchange."""
    SPARK = "Spark"
    """The rest: starting tasks, Spark's own operators, exchanges, and fetching the result to the driver."""


class Equality(Enum):
    """How the rows of both ways compare."""

    EQUAL = "equal"
    NEARLY = "equal but for the last digits of floating-point numbers"
    """Sums of floats depend on the order of the rows, in Spark alone too."""
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProfile:
    """Where the time of a query goes, with gpujoin and without.

    ``str()`` is text, notebooks show it as HTML, :meth:`to_svg` is a picture, and :meth:`to_dict` is for programs.

    Attributes
    ----------
    rows : int
        Rows of the result.
    equality : Equality
        How the rows of both ways compare.
    difference : str or None
        The first rows that differ, if some do.
    gpujoin_seconds, spark_seconds : tuple of float
        Seconds of each run, in order, with gpujoin and by Spark alone.
    activities : mapping of Activity to float
        Where the seconds of the quickest run with gpujoin went.
    report : QueryReport
        The operations of that run, with what was predicted and measured.
    """

    rows: int
    equality: Equality
    gpujoin_seconds: tuple[float, ...]
    spark_seconds: tuple[float, ...]
    activities: Mapping[Activity, float]
    report: QueryReport
    difference: str | None = None

    @property
    def speedup(self) -> float:
        """How many times as fast the query is with gpujoin: by the medians of the runs."""
        return statistics.median(self.spark_seconds) / statistics.median(self.gpujoin_seconds)

    @property
    def ran_here(self) -> bool:
        """Whether gpujoin ran any part of the query."""
        return self.report.has_run

    @property
    def verdict(self) -> str:
        """Say in a sentence what came of it."""
        here, spark = statistics.median(self.gpujoin_seconds), statistics.median(self.spark_seconds)
        times = f"{show_seconds(here)} s with gpujoin, {show_seconds(spark)} s by Spark alone"
        runs = len(self.spark_seconds)
        median = f" (medians of {runs} runs)" if runs > 1 else ""
        if not self.ran_here:
            return f"{times}{median}: gpujoin ran nothing of it"
        factor = self.speedup
        how = f"{factor:.1f} times as fast" if factor >= 1 else f"{1 / factor:.1f} times as slow"
        return f"{times}{median}: {how}"

    def __str__(self) -> str:
        result = "1 row" if self.rows == 1 else f"{show_rows(self.rows)} rows"
        lines = [self.verdict, f"rows: {result}, {self.equality.value}"]
        if self.difference is not None:
            lines += [f"  {line}" for line in self.difference.splitlines()]
        lines += ["", "seconds with gpujoin, of its quickest run", *self._bars(), "", str(self.report)]
        return "\n".join(lines)

    def _bars(self) -> list[str]:
        whole = sum(self.activities.values()) or 1.0
        shown = {activity: seconds for activity, seconds in self.activities.items() if seconds > 0}
        width = max((len(activity.value) for activity in shown), default=0)
        return [
            f"{activity.value.ljust(width)}  {show_seconds(seconds).rjust(6)}  {'█' * round(_BAR * seconds / whole)}"
            for activity, seconds in shown.items()
        ]

    def _repr_html_(self) -> str:
        warning = "" if self.difference is None else f"<pre>{escape(self.difference)}</pre>"
        return (
            f"<p>{escape(self.verdict)}<br>{show_rows(self.rows)} rows, {escape(self.equality.value)}</p>{warning}"
            f"{self.to_svg()}{self.report._repr_html_()}"
        )

    def to_svg(self) -> str:
        """Draw the seconds of both ways, as an SVG picture."""
        return profile_svg(
            min(self.spark_seconds), {activity.value: seconds for activity, seconds in self.activities.items()}
        )

    def save_svg(self, path: str | Path) -> None:
        """Write the picture to a file."""
        Path(path).write_text(self.to_svg(), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """Give the profile as dictionaries, lists, texts and numbers, as the guide describes them."""
        return {
            "format": FORMAT,
            "rows": self.rows,
            "equality": self.equality.value,
            "difference": self.difference,
            "gpujoin_seconds": list(self.gpujoin_seconds),
            "spark_seconds": list(self.spark_seconds),
            "speedup": self.speedup,
            "activities": {activity.value: seconds for activity, seconds in self.activities.items()},
            "report": self.report.to_dict(),
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Give :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)
