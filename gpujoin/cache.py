"""Caches: values within a limit, and values of objects as long as these live."""

from __future__ import annotations

import functools
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Arguments = TypeVarTuple("Arguments")

_TIMES_PICKLED = 5
"""Bytes that a value of small Python objects takes for each byte of its pickle: 4.6 for the explanation of an island,
by ``tracemalloc``."""


def cached_by_life(function: Callable[[K, *Arguments], V]) -> Callable[[K, *Arguments], V]:
    """Have a function of an object, and of hashable values, computed once for each, and forgotten with the object."""
    values: WeakKeyDictionary[K, dict[tuple[*Arguments], V]] = WeakKeyDictionary()

    @functools.wraps(function)
    def cached(owner: K, *arguments: *Arguments) -> V:
        results = values.setdefault(owner, {})
        if arguments not in results:
            results[arguments] = function(owner, *arguments)
        return results[arguments]

    return cached


def object_bytes(value: object) -> int:
    """Estimate the bytes of a value of small Python objects, with all that it refers to."""
    return _TIMES_PICKLED * len(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


class Cache(Generic[K, V]):
    """Values by key, within a limit; the least recently used are forgotten first.

    The value that was put last stays, whatever its size, and so do values of size 0. Threads may share a cache.

    Parameters
    ----------
    limit : float
        Most that the sizes of all values may add up to.
    size : callable or None
        Size of a value, asked for once; ``None``: each counts as one, so that the limit is a number of values.
    """

    def __init__(self, limit: float, size: Callable[[V], int] | None = None) -> None:
        self.limit = limit
        self._size = size
        self._lock = threading.RLock()
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._total = 0

    @property
    def total(self) -> int:
        """Size of all values."""
        return self._total

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> list[tuple[K, V]]:
        """Keys with their values, those used least lately first."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._values.items()]

    def get(self, key: K) -> V | None:
        """Give the value under a key; ``None`` if there is none, or it was forgotten."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: K, value: V) -> None:
        """Keep a value under a key, in the place of the one that is there."""
        size = 1 if self._size is None else self._size(value)
        with self._lock:
            self.pop(key)
            self.fit(self.limit - size)
            self._values[key] = value, size
            self._total += size

    def pop(self, key: K) -> V | None:
        """Forget the value under a key, and give it; ``None`` if there is none."""
        with self._lock:
            value, size = self._values.pop(key, (None, 0))
            self._total -= size
            return value

    def fit(self, limit: float | None = None) -> None:
        """Forget values until the others are within a limit, the cache's by default."""
        with self._lock:
            limit = max(0.0, self.limit if limit is None else limit)
            while self._total > limit:
                self.pop(next(key for key, (_, size) in self._values.items() if size))

    def drop(self) -> bool:
        """Forget the least recently used value; ``False`` if there is none."""
        with self._lock:
            if not self._values:
                return False
            self.pop(next(iter(self._values)))
            return True

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()
            self._total = 0
