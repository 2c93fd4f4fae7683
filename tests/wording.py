"""What users read is in their own words: every reason and warning that tests bring about is read here."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpujoin.logs import log
from gpujoin.model.reasons import Reason, ReasonKind

INSIDE = {
    "a side or a number of a column": r"\b(left|right)\.\w+#|\w#\d+L?\b",
    "a column of planning's": r"\b[aikw]\d+\.\w+",
    "a column of Spark's optimizer": r"(?<![\w.])_(w\d+|we\d+|grouping\w+|gen_alias\w*)",
    "a class of ours": r"\b(partialaggregate|exchangesource|sparksource|topn)\b|\b(project|scan) (expression|column)\b",
    "a class of Java's": r"\borg\.apache|\blambdafunction|namedlambdavariable|\b(static_)?invoke\(",
    "a class of Spark's": r"Subquery\b|LogicalRDD|InMemoryRelation|EvalPython",
    "a catalog that nobody wrote": r"\bspark_catalog\.\w+\.\w+\.",
    "a type of Arrow's": r"\bu?int(8|16|32|64)\b|\bdecimal128\b|\b(list|map|struct)<\w+: "
    r"|\b(timestamp|duration|time64)\[|\blarge_(string|binary|list)\b|\bdate32\b",
    "a text of a library's": r"\bto (Polars|PyArrow)\b|\b(Compute|Schema|InvalidOperation|Arrow\w*)Error\b",
    "a class of errors": r"\bgpujoin\.errors\.",
    "an order to its reader": r"\bleave (it|the \w+|this) to Spark",
    "a word of planning's": r"\b(not|is) (covered|carried)\b|\bevaluated exactly\b",
}  # fmt: skip
"""What reasons and warnings do not say."""


_QUOTING = ("gpujoin: plan of a ", "gpujoin: a part failed ")
"""How warnings begin that quote what Spark, or a library that failed, says."""
_CHANGE = re.compile(r"\(change with [^()]*\)")
"""A setting's value may be the name of a class of Java's."""


@functools.lru_cache(maxsize=10_000)
def words_of_the_inside(text: str) -> tuple[str, ...]:
    """Find what a text says in words that are not its reader's."""
    return tuple(f"{match[0]!r} ({what})" for what, pattern in INSIDE.items() for match in re.finditer(pattern, text))


class _Heard(logging.Handler):
    """Keeps what reasons and warnings say that is not said well."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.problems: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING and not record.getMessage().startswith(_QUOTING):
            self.read(record.getMessage())

    def read(self, text: str) -> None:
        inside = words_of_the_inside(_CHANGE.sub("", text))
        if inside:
            self.problems[f"{text!r} has {', '.join(inside)}"] = None


_heard = _Heard()
_make = Reason.__init__


def _noted(reason: Reason, *arguments: Any, **named: Any) -> None:
    _make(reason, *arguments, **named)
    if reason.kind is not ReasonKind.UNEXPECTED:  # which says what went wrong inside
        _heard.read(str(reason))


def listen() -> None:
    """Read all reasons and warnings of this process from now on."""
    Reason.__init__ = _noted  # type: ignore[method-assign, assignment]
    log.logger.addHandler(_heard)


@contextmanager
def in_words() -> Iterator[None]:
    """Fail a test in which a reason or a warning is in words of the inside."""
    _heard.problems.clear()
    yield
    if _heard.problems:
        pytest.fail("not in the words of users:\n" + "\n".join(_heard.problems), pytrace=False)
