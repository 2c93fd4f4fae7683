"""What became of each join: told to the user as settings say, and kept for :func:`gpujoin.explain`."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from gpujoin.config import ExplainMode, FallbackMode
from gpujoin.errors import FallbackError
from gpujoin.model.reasons import ReasonKind
from gpujoin.spark.gateway import analyzed_plan, gateway_of
from gpujoin.spark.rewrite import MARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gpujoin.config import Options
    from gpujoin.plan.explain import Explanation, JoinExplanation

log = logging.getLogger("gpujoin")

_KEPT = 20_000
_lock = threading.Lock()
_explanations: OrderedDict[str, JoinExplanation] = OrderedDict()
_queries: OrderedDict[str, Explanation] = OrderedDict()


def new_join_id() -> str:
    """Make an id that no other join has; it is a Python identifier."""
    return MARK + uuid.uuid4().hex[:12]


def keep(join_id: str, explanation: JoinExplanation) -> None:
    """Keep an explanation for later; the oldest are forgotten."""
    with _lock:
        _explanations[join_id] = explanation
        while len(_explanations) > _KEPT:
            _explanations.popitem(last=False)


def kept(join_id: str) -> JoinExplanation | None:
    """Give the explanation kept under an id."""
    with _lock:
        return _explanations.get(join_id)


def tell(explanation: JoinExplanation, options: Options) -> None:
    """Tell what was decided, as ``spark.gpujoin.fallback`` and ``spark.gpujoin.explain`` say.

    A join that Spark runs because settings say so is not a fallback: nothing is raised or warned of.

    Raises
    ------
    FallbackError
        If the join is left to Spark and ``spark.gpujoin.fallback`` is ``raise``.
    """
    fallback = any(reason.kind is not ReasonKind.CONFIGURED for reason in explanation.reasons)
    message = f"the {explanation.join_type} join is left to Spark"
    if fallback and options.fallback is FallbackMode.RAISE:
        raise FallbackError(message, explanation.reasons)
    if options.explain is ExplainMode.ALL or (fallback and options.explain is ExplainMode.FALLBACK):
        log.warning("plan of a join:\n%s", "\n".join(explanation.lines()))
    elif fallback and options.fallback is FallbackMode.WARN:
        log.warning("%s: %s", message, "; ".join(str(reason) for reason in explanation.reasons))


def keep_query(name: str, explanation: Explanation) -> None:
    """Keep the explanation of a query for later; the oldest are forgotten."""
    with _lock:
        _queries[name] = explanation
        while len(_queries) > _KEPT:
            _queries.popitem(last=False)


def kept_query(name: str) -> Explanation | None:
    """Give the explanation of a query kept under a name."""
    with _lock:
        return _queries.get(name)


def note_query(frame: DataFrame, name: str) -> None:
    """Note on a query under which name the explanation of its latest rewriting is kept."""
    plan = analyzed_plan(frame)
    plan.setTagValue(_latest_tag(frame), name)


def parts_of_latest(frame: DataFrame) -> tuple[str, ...]:
    """Give the ids of the joins and islands that a query became when it last ran."""
    found = analyzed_plan(frame).getTagValue(_latest_tag(frame))
    explanation = kept_query(str(found.get())) if found.isDefined() else None
    if explanation is None:
        return ()
    joins = [join.join_id for join in explanation.joins if join.join_id is not None]
    return (*joins, *(island.island_id for island in explanation.islands))


def _latest_tag(frame: DataFrame) -> Any:
    return gateway_of(frame.sparkSession).org.apache.spark.sql.catalyst.trees.TreeNodeTag("gpujoin.latest")


def tell_query(explanation: Explanation, options: Options) -> None:
    """Tell what was decided about a query that was not written for gpujoin.

    That Spark is predicted to be faster, or was asked for, is no news to be warned of.

    Raises
    ------
    FallbackError
        If a join, or the query, is left to Spark against the settings and ``spark.gpujoin.fallback`` is ``raise``.
    """
    reasons = [*explanation.reasons, *(reason for join in explanation.joins for reason in join.reasons)]
    fallback = [reason for reason in reasons if reason.kind is not ReasonKind.CONFIGURED]
    if fallback and options.fallback is FallbackMode.RAISE:
        raise FallbackError("a part of the query is left to Spark", tuple(fallback))
    if options.explain is ExplainMode.ALL or (fallback and options.explain is ExplainMode.FALLBACK):
        log.warning("plan of a query:\n%s", explanation)
        return
    news = [str(reason) for reason in fallback if reason.kind is not ReasonKind.SLOWER]
    if news and options.fallback is FallbackMode.WARN:
        log.warning("a part of the query is left to Spark: %s", "; ".join(dict.fromkeys(news)))
