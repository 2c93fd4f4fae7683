"""What became of each join: told to the user as settings say, and kept for :func:`gpujoin.explain`."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING

from gpujoin.config import ExplainMode, FallbackMode
from gpujoin.errors import FallbackError
from gpujoin.model.reasons import ReasonKind
from gpujoin.spark.rewrite import MARK

if TYPE_CHECKING:
    from gpujoin.config import Options
    from gpujoin.plan.explain import JoinExplanation

log = logging.getLogger("gpujoin")

_KEPT = 20_000
_lock = threading.Lock()
_explanations: OrderedDict[str, JoinExplanation] = OrderedDict()


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
