"""What the stand-ins were asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

calls: Counter[str] = Counter()
"""Calls of pylibcudf by name."""
without_stream: set[str] = set()
"""Calls that were not given the stream of the thread."""
copied: Counter[str] = Counter()
"""Bytes copied ``up`` to the device and ``down`` to the host."""
synchronized = 0
"""Times that the stream was waited for."""
freed = 0
"""Pieces of device memory that were freed, and overwritten."""


def call(name: str, stream: Any) -> None:
    """Note a call."""
    calls[name] += 1
    if type(stream).__name__ != "Stream":
        without_stream.add(name)


def reset() -> None:
    """Forget copies."""
    copied.clear()
