"""Keeps the latest values by key, as many as fit into so many bytes."""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_TIMES_PICKLED = 5
"""Bytes that a value of small Python objects takes for each byte of its pickle: 4.6 for the explanation of an island,
by ``tracemalloc``."""


class Latest(Generic[K, V]):
    """Values by key, of which those that were put or asked for least lately are forgotten.

    Each value is counted with all that it refers to. The latest one stays, whatever its size. Threads may share one.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that the values take, as estimated."""
        return self._nbytes

    def put(self, key: K, value: V) -> None:
        """Keep a value under a key, in the place of the one that is there."""
        size = _TIMES_PICKLED * len(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = (value, size)
            self._nbytes += size - before
            while self._nbytes > self._most_bytes and len(self._values) > 1:
                _, (_, oldest) = self._values.popitem(last=False)
                self._nbytes -= oldest

    def get(self, key: K) -> V | None:
        """Give the value under a key; ``None`` where there is none, or it was forgotten."""
        with self._lock:
            entry = self._values.get(key)
            if entry is None:
                return None
            self._values.move_to_end(key)
            return entry[0]
