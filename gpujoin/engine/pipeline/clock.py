"""Measures the seconds of each operation of a pipeline, without those of its inputs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from gpujoin.model.relations import Relation

T = TypeVar("T")

OUTPUT = "output"
"""Name of the operation that returns a run's rows."""


def operation_names(tree: Relation) -> dict[Relation, str]:
    """Name the operations of a tree: their kind, numbered from the top down where there are several."""
    names: dict[Relation, str] = {}
    total = Counter(type(node).__name__ for node in tree.walk())
    numbers: Counter[str] = Counter()
    for node in tree.walk():
        kind = type(node).__name__
        numbers[kind] += 1
        names.setdefault(node, f"{kind} {numbers[kind]}" if total[kind] > 1 else kind)
    return names


class OperationClock:
    """Times the operations of one run of a tree; adds to the seconds by operation."""

    def __init__(self, tree: Relation, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._inside: list[float] = []
        self._names = operation_names(tree)

    def name(self, node: Relation) -> str:
        """Name of an operation; its kind, if the tree does not have it."""
        return self._names.get(node, type(node).__name__)

    def timed(self, name: str, source: Iterator[T]) -> Iterator[T]:
        """Pass on the pieces of an operation, and add the time spent inside it."""
        end = object()
        while True:
            start = time.perf_counter()
            self._inside.append(0.0)
            try:
                item = next(source, end)
            finally:
                took = time.perf_counter() - start
                own = took - self._inside.pop()
                self._seconds[name] = self._seconds.get(name, 0.0) + own
                if self._inside:
                    self._inside[-1] += took
            if item is end:
                return
            yield item  # type: ignore[misc]  # not the end
