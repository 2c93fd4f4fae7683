"""Which cases of a test `make test` runs; the others are marked ``extra``, which `make test-all` runs too."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def brief(cases: Iterable[str], *names: str) -> list[Any]:
    """All cases, as parameters; those that are not named are extra."""
    listed = list(cases)
    unknown = set(names) - set(listed)
    assert names, "name a case that stays"
    assert not unknown, f"no cases of these names: {sorted(unknown)}"
    return [pytest.param(case, marks=[] if case in names else pytest.mark.extra) for case in listed]


def each_once(*axes: Iterable[str], extra: Iterable[str] = ()) -> list[Any]:
    """All combinations, as parameters of several names; those with a value of ``extra`` are extra.

    Combinations that are not extra hold each value at least once, and are as few as the longest axis has values:

    >>> [case.values for case in each_once("abc", "xy") if not case.marks]
    [('a', 'x'), ('b', 'y'), ('c', 'x')]
    >>> [case.values for case in each_once("abc", "xy", extra="b") if not case.marks]
    [('a', 'x'), ('c', 'y')]
    """
    listed = [list(axis) for axis in axes]
    rare = set(extra)
    unknown = rare - {value for axis in listed for value in axis}
    assert not unknown, f"no values of these names: {sorted(unknown)}"
    brief = [[value for value in axis if value not in rare] for axis in listed]
    chosen = {tuple(axis[turn % len(axis)] for axis in brief) for turn in range(max(map(len, brief)))}
    return [
        pytest.param(*case, id="-".join(case), marks=[] if case in chosen else pytest.mark.extra)
        for case in product(*listed)
    ]
