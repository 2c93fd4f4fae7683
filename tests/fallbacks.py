"""Tests fail where what they test has silently been done in another way.

A test of a GPU fails if the CPU took over, and any test if planning met an error that it does not understand: Spark's
rows are right all the same, so that nothing else would tell.
"""

from __future__ import annotations

import functools
import logging
import sys
import traceback
from collections.abc import Generator
from typing import Any

import pytest

from gpujoin.logs import log
from gpujoin.model.reasons import Reason, ReasonKind

_SIGNS = ("failed on the GPU", "does not compile", "do not compile")
_problems: list[str] = []
"""What planning did not understand, by all threads, since a test was last asked for it."""


class _Heard(logging.Handler):
    """Keeps warnings that a GPU's work was done otherwise."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if any(sign in message for sign in _SIGNS):
            self.messages.append(message)


def note_unexpected() -> None:
    """Have every reason that says that planning did not understand something noted, with the error's traceback."""
    plain = Reason.__init__

    @functools.wraps(plain)
    def noted(self: Reason, kind: ReasonKind, *arguments: Any, **named: Any) -> None:
        plain(self, kind, *arguments, **named)
        if kind is ReasonKind.UNEXPECTED:
            problem = sys.exception()
            lines = [] if problem is None else traceback.format_exception(problem)
            _problems.append("".join([*lines, str(self)]))

    Reason.__init__ = noted  # type: ignore[method-assign]


def watched(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test, and fail it for what was silently done otherwise, unless its marker says that it has that done.

    ``falls_back``: the GPU of a test marked ``gpu`` does not do its work; ``plans_badly``: planning meets an error.
    """
    heard = _Heard()
    log.logger.addHandler(heard)
    try:
        result = yield
    finally:
        log.logger.removeHandler(heard)
        problems = [*_problems]
        _problems.clear()
    if problems and item.get_closest_marker("plans_badly") is None:
        pytest.fail("planning did not understand this:\n" + "\n".join(dict.fromkeys(problems)), pytrace=False)
    on_gpu = item.get_closest_marker("gpu") is not None and item.get_closest_marker("falls_back") is None
    if heard.messages and on_gpu:
        pytest.fail("the GPU did not do this: " + "; ".join(dict.fromkeys(heard.messages)), pytrace=False)
    return result
