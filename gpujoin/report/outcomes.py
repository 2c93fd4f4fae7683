"""What became of each join: told to the user as settings say, and kept for :func:`gpujoin.explain`."""

from __future__ import annotations

import re
import uuid
from enum import Enum
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gpujoin.cache import Cache, object_bytes
from gpujoin.config import ExplainMode, FallbackMode
from gpujoin.errors import FallbackError, RequirementError
from gpujoin.logs import log
from gpujoin.model.reasons import ReasonKind
from gpujoin.report.explanation import Explanation
from gpujoin.report.summary import tally_of
from gpujoin.spark.compat import is_connect
from gpujoin.spark.failures import task_error, telling_line
from gpujoin.spark.jvm.gateway import analyzed_plan, plan_text, session_id
from gpujoin.spark.jvm.rewrite import MARK, name_of_query
from gpujoin.spark.query.footers import note_scan_error
from gpujoin.spark.query.refusals import note_refusal
from gpujoin.spark.query.requirements import unmet_requirement
from gpujoin.spark.settings import join_options, session_conf
from gpujoin.spark.worker.python import DRIVER, WORKERS, note_failure, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from gpujoin.config import Options
    from gpujoin.model.reasons import Reason
    from gpujoin.report.operations import JoinOperation


class Scope(Enum):
    """Which queries of a session are planned here."""

    EVERY_QUERY = "every query"
    GPU_JOINS = "queries with joins that gpu_join made"


_MOST_BYTES = 32 << 20
"""Most bytes of stored explanations: some thousands, each of which takes 2 to 20 KB."""
_MOST_WARNINGS = 10_000
_IDS = re.compile(r"#\d+L?|(?<=\brand\()-?\d+|(?<=\brandn\()-?\d+|(?<=\buuid\(Some\()-?\d+")
"""Numbers that differ each time a text is analyzed: ids of columns, and seeds."""
_NUMBERS = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")
_explanations: Cache[str, Explanation] = Cache(_MOST_BYTES, object_bytes)
_warned: Cache[int, bool] = Cache(_MOST_WARNINGS)
_latest: WeakKeyDictionary[DataFrame, tuple[str, ...]] = WeakKeyDictionary()


def new_join_id() -> str:
    """Make an id that no other join has; it is a Python identifier."""
    return MARK + uuid.uuid4().hex[:12]


def _list(reasons: Iterable[Reason]) -> str:
    return "; ".join(dict.fromkeys(map(str, reasons)))


def _warn(message: str, query: Callable[[], str]) -> None:
    """Warn of a query, unless the same has been said of it; numbers, such as of predicted seconds, are left aside."""
    said = hash((_NUMBERS.sub("", message), query()))
    if not _warned.get(said):
        _warned.put(said, True)
        log.warning("%s", message)


def text_of(frame: DataFrame) -> str:
    """Give :func:`query_text` of a DataFrame, of Spark Connect too."""
    spark: Any = frame.sparkSession
    if is_connect(spark):
        return query_text(str(spark.session_id), plan_text(frame))
    return query_text(session_id(spark), str(analyzed_plan(frame).toString()))


def query_text(session: str, plan: str) -> str:
    """Tell queries of sessions apart by the text of their plans; that of one text is the same each time."""
    return f"{session} {_IDS.sub('', plan)}"


def _refusals(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Choose the reasons that are neither settings nor a prediction that Spark is faster."""
    return tuple(reason for reason in reasons if reason.kind not in (ReasonKind.CONFIGURED, ReasonKind.SLOWER))


def keep(name: str, explanation: Explanation) -> None:
    """Keep the explanation of a query, or of a join of Spark Connect's, for later; the oldest are forgotten."""
    _explanations.put(name, explanation)


def explanation_named(name: str) -> Explanation | None:
    """Give the explanation that was kept under a name."""
    return _explanations.get(name)


def note_query(frame: DataFrame, names: Sequence[str]) -> None:
    """Note of a query under which names the explanations of its latest run are kept; it may have run in parts."""
    if names:
        _latest[frame] = tuple(names)
    else:
        _latest.pop(frame, None)


def _message(error: str | None) -> str | None:
    """Give what an error says, without its class."""
    return None if error is None else error.partition(": ")[2]


def explanation_of(frame: DataFrame) -> Explanation | None:
    """Give what was decided about a result of ``accelerate``; ``None`` for any other DataFrame."""
    name = name_of_query(frame)
    return None if name is None else explanation_named(name)


def explanation_of_latest(frame: DataFrame) -> Explanation | None:
    """Give the decisions about a query when it last ran; ``None`` if there are none."""
    return explanation_of_parts(_latest.get(frame, ()))


def explanation_of_parts(names: Iterable[str]) -> Explanation | None:
    """Give the decisions about a query that was planned in parts of some names; ``None`` if none is kept."""
    explanations = [each for each in map(explanation_named, names) if each is not None]
    if not explanations:
        return None
    return Explanation(
        tuple(dict.fromkeys(operation for each in explanations for operation in each.operations)),
        tuple(dict.fromkeys(note for each in explanations for note in each.notes)),
        tuple(dict.fromkeys(reason for each in explanations for reason in each.reasons)),
    )


def tell_query(
    explanation: Explanation, options: Options, query: Callable[[], str], scope: Scope = Scope.EVERY_QUERY
) -> None:
    """Tell what was decided about a query.

    That Spark was asked for is neither an error nor news to be warned of; that it is predicted to be faster is warned
    of where a join was written as ``gpu_join``, and is no error. With ``GPU_JOINS``, nobody asked for the rest of the
    query to run here, and nothing is told of it. Of one ``query``, of which that gives the text, nothing is warned of
    twice. Raises ``FallbackError`` if a join, or the query, is left to Spark
    for another reason and ``spark.gpujoin.fallback`` is ``raise``.
    """
    joins = _joins_of(explanation, scope)
    reasons = reasons_of(explanation, scope)
    fallback = [reason for reason in reasons if reason.kind is not ReasonKind.CONFIGURED]
    refused = _refusals(reasons)
    if refused and options.fallback is FallbackMode.RAISE:
        raise FallbackError("a part of the query is left to Spark", refused)
    if options.explain is ExplainMode.ALL or (fallback and options.explain is ExplainMode.FALLBACK):
        log.warning("plan of a query:\n%s", explanation)
        return
    if explanation.accelerated:  # that Spark reads a source is no news where the rest runs here all the same
        refused = tuple(reason for reason in refused if reason.kind is not ReasonKind.UNREAD)
    if refused and options.fallback is FallbackMode.WARN:
        _warn_of_workers(refused)
        of_query = [reason for reason in refused if not _is_of_workers(reason)]
        if of_query:
            _warn(f"a part of the query is left to Spark: {_list(of_query)}", query)
    slower = [
        reason for join in joins if join.by_gpu_join for reason in join.reasons if reason.kind is ReasonKind.SLOWER
    ]
    if slower and options.fallback is not FallbackMode.SILENT:
        _warn(f"a gpu_join is left to Spark: {_list(slower)}", query)
    for warning in (warning for operation in explanation.walk() for warning in operation.warnings):
        _warn(f"a join of the query: {warning}", query)


def _joins_of(explanation: Explanation, scope: Scope) -> list[JoinOperation]:
    return [join for join in explanation.joins if scope is Scope.EVERY_QUERY or join.by_gpu_join]


def reasons_of(explanation: Explanation, scope: Scope) -> list[Reason]:
    """Give the reasons why what was to be planned of a query is left to Spark."""
    of_query = (
        reason for reason in explanation.reasons if scope is Scope.EVERY_QUERY or reason.kind is ReasonKind.UNEXPECTED
    )
    return [*of_query, *(reason for join in _joins_of(explanation, scope) for reason in join.reasons)]


def _is_of_workers(reason: Reason) -> bool:
    """Whether no query of the application can run here."""
    return reason.kind is ReasonKind.UNAVAILABLE and reason.what in (WORKERS, DRIVER)


def _warn_of_workers(reasons: Iterable[Reason]) -> None:
    """Warn once of a reason that leaves all queries to Spark."""
    concerned = [reason for reason in reasons if _is_of_workers(reason)]
    if concerned:
        _warn(f"queries are left to Spark: {_list(concerned)}", str)


def give_back(spark: SparkSession, problem: Exception, query: Callable[[], str]) -> None:
    """Report that Spark runs a query whose part in gpujoin's workers failed, or raise the problem.

    ``spark.gpujoin.fallback`` says which. Of one ``query``, of which that gives the text, nothing is warned of twice.
    Raises ``RequirementError`` where no query can run here, and ``spark.gpujoin.require`` is true.
    """
    tally_of(spark.sparkContext).gave_back()
    note_failure(spark.sparkContext, problem)
    note_refusal(problem)
    conf = session_conf(spark)
    options = join_options(conf, None, None)
    unmet = unmet_requirement(spark.sparkContext, conf, problem) if options.require else None
    if unmet is not None:
        raise RequirementError(unmet) from problem
    if options.fallback is FallbackMode.RAISE:
        raise problem
    error = task_error(problem)
    if error is not None:
        note_scan_error(error)
    message = (
        f"a task of the query failed here; Spark runs the query itself: {_message(error) or telling_line(problem)}"
    )
    of_workers = refusal(spark.sparkContext, conf)
    if options.fallback is not FallbackMode.WARN:
        log.debug("%s", message)
    elif of_workers is not None:
        _warn_of_workers((of_workers,))
    else:
        _warn(message, query)
    log.debug("the task's error", exc_info=problem)
