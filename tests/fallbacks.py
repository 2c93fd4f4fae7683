"""Tests of a GPU fail where what they test has silently been computed in another way."""

from __future__ import annotations

import logging
from collections.abc import Generator

import pytest

from gpujoin.logs import log

_SIGNS = ("failed on the GPU", "does not compile", "do not compile")


class _Heard(logging.Handler):
    """Keeps warnings that a GPU's work was done otherwise."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if any(sign in message for sign in _SIGNS):
            self.messages.append(message)


def watched(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test; one marked ``gpu``, and not ``falls_back``, fails if the GPU did not do its work."""
    if item.get_closest_marker("gpu") is None or item.get_closest_marker("falls_back") is not None:
        return (yield)
    heard = _Heard()
    log.logger.addHandler(heard)
    try:
        result = yield
    finally:
        log.logger.removeHandler(heard)
    if heard.messages:
        pytest.fail("the GPU did not do this: " + "; ".join(dict.fromkeys(heard.messages)), pytrace=False)
    return result
