"""Calls into Polars that fail when told to, to prove that pipelines survive a library's faults."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, Self

import polars as pl

_CALLS: dict[str, tuple[Any, str]] = {
    **{f"LazyFrame.{name}": (pl.LazyFrame, name)
       for name in ("collect", "select", "with_columns", "filter", "join", "group_by", "sort", "slice", "head")},
    **{f"DataFrame.{name}": (pl.DataFrame, name)
       for name in ("select", "with_columns", "lazy", "slice", "estimated_size", "get_columns", "rename")},
    **{f"Series.{name}": (pl.Series, name) for name in ("to_arrow", "cast", "alias", "rechunk")},
    **{name: (pl, name) for name in ("scan_parquet", "from_arrow", "concat", "select", "zeros")},
}  # fmt: skip

POLARS_CALLS = frozenset(_CALLS)
"""The calls that can be made to fail."""


def panic(message: str) -> BaseException:
    """What a bug in Polars raises: no ``Exception``."""
    return pl.exceptions.PanicException(message)


class FaultyPolars:
    """While entered, chosen calls into Polars raise instead of doing anything.

    Calls are counted from 1 over all threads. A call that Polars makes itself, within another, does not count.

    Parameters
    ----------
    error : callable (str) -> BaseException
        Makes what is raised: ``MemoryError``, ``polars.exceptions.ComputeError``, :func:`panic`.
    at : int, optional
        Number of the call that fails.
    always : bool
        Every call fails.
    calls : collection of str
        Which calls count; see :data:`POLARS_CALLS`.

    Attributes
    ----------
    counts : collections.Counter
        How often each call was made.
    faults : int
        How many failed.
    """

    def __init__(
        self, error: Callable[[str], BaseException] = MemoryError, at: int | None = None, *,
        always: bool = False, calls: Collection[str] = POLARS_CALLS,
    ) -> None:  # fmt: skip
        self.counts: Counter[str] = Counter()
        self.faults = 0
        self._error = error
        self._at = at
        self._always = always
        self._calls = calls
        self._originals: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    def __enter__(self) -> Self:
        """Put the faulty calls in place."""
        for call in self._calls:
            owner, name = _CALLS[call]
            self._originals[call] = getattr(owner, name)
            setattr(owner, name, self._faulty(call, self._originals[call]))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put Polars' own calls back."""
        for call, original in self._originals.items():
            owner, name = _CALLS[call]
            setattr(owner, name, original)

    def _faulty(self, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if getattr(self._local, "inside", False):
                return original(*arguments, **named)
            with self._lock:
                self.counts[call] += 1
                number = self.counts.total()
                due = self._always or number == self._at
                self.faults += due
            if due:
                raise self._error(f"injected at call {number}: {call}")
            self._local.inside = True
            try:
                return original(*arguments, **named)
            finally:
                self._local.inside = False

        return wrapped
