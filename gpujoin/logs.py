"""The log of gpujoin: the logger ``gpujoin``, in the driver and in workers.

Its messages name their sender. Where a program has set up no logging, Python prints the message of a warning and
nothing else.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class _Named(_Adapter):
    """Begins every message with the name of the package."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        return f"gpujoin: {msg}", kwargs


log = _Named(logging.getLogger("gpujoin"))
"""Takes all messages of the package."""

_MOST_MESSAGES = 256


@functools.lru_cache(_MOST_MESSAGES)
def warn_once(message: str) -> None:
    """Log a warning, once a process for each message."""
    log.warning("%s", message)
