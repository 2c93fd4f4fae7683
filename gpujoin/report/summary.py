"""Sums up an application: how many queries ran here, what that saved by prediction, and what stayed in Spark and why.

It is logged when the application ends, at the level ``INFO``, where Spark's own messages are::

    gpujoin: 9 queries: 6 ran here, 1 in part, 2 in Spark; some 31 s saved by prediction (7.2 s here, 38 s in Spark);
    left to Spark: 2 × the sort: gpujoin has nothing that computes it, 1 × it is predicted to be faster there

A query is counted when it is planned, one that runs here when its first task reports.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import logging
import os
import threading
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gpujoin.cache import Cache
from gpujoin.errors import GpuJoinError, type_name
from gpujoin.logs import log
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.report.amounts import show_seconds
from gpujoin.report.explanation import Explanation, html_page
from gpujoin.report.operations import note_of
from gpujoin.spark.compat import check_running, is_connect
from gpujoin.spark.jvm.gateway import at_stop, log_in_spark

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_MOST_PLANNED = 10_000
_MOST_REASONS = 1_000
_MOST_IN_LINE = 3
"""Reasons in a line of the log."""
_FASTER = "it is predicted to be faster there"
_FURTHER = "further reasons"


class _Part(Enum):
    """How much of a planned query runs here."""

    ALL = "all"
    SOME = "some"


@dataclass(frozen=True, slots=True)
class _Planned:
    """A query with islands, none of which is known to have run."""

    names: tuple[str, ...]
    part: _Part
    here: float
    spark: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationSummary:
    """What became of the queries of an application, as far as they were planned here.

    Those without a join, an aggregation, a window, a Python function or a limit of an order are not. ``str()`` is text,
    notebooks show the same.
    """

    here: int = 0
    """Queries all of which ran here, but for what Spark always does, such as sorting."""
    in_part: int = 0
    """Queries a part of which ran here."""
    in_spark: int = 0
    """Queries that were left to Spark."""
    given_back: int = 0
    """Queries that Spark ran since a task of gpujoin failed; they are counted above too."""
    predicted_seconds: float = 0.0
    """Predicted seconds of the islands that ran."""
    predicted_spark_seconds: float = 0.0
    """Predicted seconds of the same in Spark."""
    reasons: tuple[tuple[str, int], ...] = ()
    """Why queries, or parts of them, were left to Spark, and how often; the most frequent first."""

    @property
    def queries(self) -> int:
        """All queries."""
        return self.here + self.in_part + self.in_spark

    @property
    def saved_seconds(self) -> float:
        """Seconds saved by prediction; less than 0 where queries were forced to run here."""
        return self.predicted_spark_seconds - self.predicted_seconds

    def __str__(self) -> str:
        counts = [f"{self.here} ran here", f"{self.in_part} in part", f"{self.in_spark} in Spark"]
        lines = [f"{self.queries} {'query' if self.queries == 1 else 'queries'}: {', '.join(counts)}"]
        if self.here or self.in_part:
            here, spark = show_seconds(self.predicted_seconds), show_seconds(self.predicted_spark_seconds)
            saved = self.saved_seconds
            word = f"{show_seconds(saved)} s saved" if saved >= 0 else f"{show_seconds(-saved)} s lost"
            lines.append(f"some {word} by prediction ({here} s here, {spark} s in Spark)")
        if self.given_back:
            lines.append(f"{self.given_back} begun here, failed, and run by Spark")
        if self.reasons:
            lines.append("left to Spark:")
            lines += [f"{count} × {text}" for text, count in self.reasons]
        return "\n".join([lines[0], *(f"  {line}" for line in lines[1:])])

    @property
    def line(self) -> str:
        """The same in one line, with the most frequent reasons."""
        short = dataclasses.replace(self, reasons=())
        parts = [each.strip() for each in str(short).splitlines()]
        if self.reasons:
            reasons = ", ".join(f"{count} × {text}" for text, count in self.reasons[:_MOST_IN_LINE])
            more = len(self.reasons) - _MOST_IN_LINE
            parts.append(f"left to Spark: {reasons}{f', and {more} more reasons' if more > 0 else ''}")
        return "; ".join(parts)

    def _repr_html_(self) -> str:
        return html_page(self)

    def to_dict(self) -> dict[str, Any]:
        """Give the fields, for programs."""
        return {**dataclasses.asdict(self), "reasons": [list(each) for each in self.reasons]}


class ApplicationTally:
    """Counts the queries of an application."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._summary = ApplicationSummary()
        self._reasons: Counter[str] = Counter()
        self._planned: Cache[str, _Planned] = Cache(_MOST_PLANNED)
        """Planned queries, by the name of each island."""
        self._is_told = False

    def planned(self, explanation: Explanation, reasons: Iterable[Reason]) -> None:
        """Count a query that was planned to run; ``reasons`` say what of it is left to Spark."""
        texts = dict.fromkeys(map(_text, reasons))
        islands = explanation.islands
        with self._lock:
            for text in texts:
                self._reasons[text if text in self._reasons or len(self._reasons) < _MOST_REASONS else _FURTHER] += 1
            if not islands:
                self._add(in_spark=int(bool(texts)))
                return
            query = _Planned(
                tuple(str(island.name) for island in islands),
                _Part.SOME if texts else _Part.ALL,
                sum(island.predicted.seconds or 0.0 for island in islands),
                sum(island.predicted_spark_seconds or 0.0 for island in islands),
            )
            for name in query.names:
                self._planned.put(name, query)

    def ran(self, island: str) -> None:
        """Note that a task of an island has reported."""
        with self._lock:
            query = self._planned.get(island)
            if query is None:
                return
            for name in query.names:
                self._planned.pop(name)
            here = query.part is _Part.ALL
            self._add(here=int(here), in_part=int(not here), predicted_seconds=query.here,
                      predicted_spark_seconds=query.spark)  # fmt: skip

    def gave_back(self) -> None:
        """Count a query that Spark ran since a task failed here."""
        with self._lock:
            self._add(given_back=1)

    def summary(self) -> ApplicationSummary:
        """Give what was counted."""
        with self._lock:
            return dataclasses.replace(self._summary, reasons=tuple(self._reasons.most_common()))

    def tell(self, context: SparkContext) -> None:
        """Log the summary, once, if any query was planned."""
        summary = self.summary()
        if self._is_told or not summary.queries:
            return
        self._is_told = True
        if log.isEnabledFor(logging.INFO):
            log.info("%s", summary.line)
        else:  # the program has set up no logging: Spark's log tells, if it tells what Spark itself says at this level
            log_in_spark(context, summary.line)

    def _add(self, **counts: float) -> None:
        changes: dict[str, Any] = {name: getattr(self._summary, name) + count for name, count in counts.items()}
        self._summary = dataclasses.replace(self._summary, **changes)


_lock = threading.Lock()
_tallies: WeakKeyDictionary[SparkContext, ApplicationTally] = WeakKeyDictionary()


def tally_of(context: SparkContext) -> ApplicationTally:
    """Give the tally of an application, which is told when the application ends."""
    with _lock:
        tally = _tallies.get(context)
        if tally is None:
            tally = _tallies[context] = ApplicationTally()
            at_stop(context, functools.partial(tally.tell, context))
            if len(_tallies) == 1:
                atexit.unregister(_tell_all)
                atexit.register(_tell_all, os.getpid())
        return tally


def _tell_all(process: int) -> None:
    """Tell of applications that the program leaves to end with it; processes that it has forked have none."""
    if os.getpid() == process:
        for context, tally in list(_tallies.items()):
            tally.tell(context)


def summary(spark: SparkSession | None = None) -> ApplicationSummary:
    """Sum up what became of an application's queries so far, in all its sessions.

    Parameters
    ----------
    spark : SparkSession, optional
        A classic session of the application; by default the active one.

    Returns
    -------
    ApplicationSummary
        Its text is logged too when the application ends, in one line, at the level ``INFO``: by the logger
        ``gpujoin`` where the program has set up Python's logging for that level, and else where Spark logs.

    Raises
    ------
    GpuJoinError
        If what is given is no session, or one that has been stopped, or is of Spark Connect; or none is active.
    """
    from pyspark.sql import SparkSession as Session

    session = Session.getActiveSession() if spark is None else spark
    if session is None or is_connect(session) or not isinstance(session, Session):
        what = "no Spark session is active" if session is None else f"got {type_name(session)}"
        raise GpuJoinError(f"summary() takes a classic SparkSession, {what}")
    check_running(session, "summary()")
    return tally_of(session.sparkContext).summary()


def _text(reason: Reason) -> str:
    return _FASTER if reason.kind is ReasonKind.SLOWER else note_of(reason).text
