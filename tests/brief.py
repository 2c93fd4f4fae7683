"""Which cases of a test `make test` runs; the others are marked ``extra``, which `make test-all` runs too."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from itertools import combinations, product
from operator import itemgetter
from typing import Any

import pytest


def brief(cases: Iterable[str | None], *names: str | None) -> list[Any]:
    """All cases, as parameters; those that are not named are extra."""
    listed = list(cases)
    unknown = set(names) - set(listed)
    assert names, "name a case that stays"
    assert not unknown, f"no cases of these names: {sorted(map(str, unknown))}"
    return [pytest.param(case, marks=[] if case in names else pytest.mark.extra) for case in listed]


def together(cases: Iterable[str], *names: str, most: int = 16) -> list[Any]:
    """Cases that one test takes at once, as parameters that are tuples: the named ones, and, extra, all others.

    >>> [case.values for case in together("abcde", "d", "b", most=2)]
    [(('d', 'b'),), (('a', 'c'),), (('e',),)]
    """
    brief(cases := list(cases), *names)
    others = [case for case in cases if case not in names]
    groups = [others[first : first + most] for first in range(0, len(others), most)]
    extra = [pytest.param(tuple(group), id=f"{group[0]} and on", marks=pytest.mark.extra) for group in groups]
    return [pytest.param(names, id="several"), *extra]


def shared_out(cases: Iterable[str], names: Sequence[str], ways: Iterable[str], rare: Container[str] = ()) -> list[Any]:
    """Cases that one test takes at once one way, as parameters: of each way its share of the named; extra, all others.

    >>> [(case.values, bool(case.marks)) for case in shared_out("abcd", "bac", "xyz", rare="z")]
    ... # doctest: +NORMALIZE_WHITESPACE
    [(('x', ('b', 'c')), False), (('y', ('a',)), False),
     (('x', ('a', 'd')), True), (('y', ('b', 'c', 'd')), True), (('z', ('a', 'b', 'c', 'd')), True)]
    """
    listed, all_ways = list(cases), list(ways)
    brief(listed, *names)
    quick = [way for way in all_ways if way not in rare]
    shares = {way: tuple(names[number :: len(quick)]) for number, way in enumerate(quick)}
    parameters = [pytest.param(way, share, id=f"{way}-several") for way, share in shares.items()]
    for way in all_ways:
        others = tuple(case for case in listed if case not in shares.get(way, ()))
        parameters.append(pytest.param(way, others, id=f"{way}-others", marks=pytest.mark.extra))
    return parameters


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


_APART = {"gpu", "spark40", "slow", "extra", "chaos"}


def few(items: Iterable[pytest.Item]) -> None:
    """Mark as extra what tests marked ``few`` need not run to have each value of each parameter once.

    ``few(2)`` asks for each pair of values of two parameters, and so on. Names that one ``parametrize`` lists are one
    parameter, parameters of fixtures count. Cases of the other markers of long or rare tests stay what they are.
    """
    tests: defaultdict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        marked = {mark.name for mark in item.iter_markers()}
        if isinstance(item, pytest.Function) and "few" in marked and not marked & _APART:
            tests[str(item.parent and item.parent.nodeid), item.originalname].append(item)
    for cases in tests.values():
        marker = cases[0].get_closest_marker("few")
        chosen = covering([_values(case) for case in cases], marker.args[0] if marker and marker.args else 1)
        for number, case in enumerate(cases):
            if number not in chosen:
                case.add_marker(pytest.mark.extra)


def _values(case: pytest.Function) -> dict[str, Hashable]:
    """What tells values of each parameter of a case from the others, which need not be hashable themselves."""
    values = {name: id(value) for name, value in case.callspec.params.items()}
    axes: dict[str, Hashable] = dict(values)
    for marker in case.iter_markers("parametrize"):
        names = marker.args[0]
        listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        axes[",".join(listed)] = tuple(values[name] for name in listed)
        if len(listed) > 1:
            axes = {axis: value for axis, value in axes.items() if axis not in listed}
    return axes


def covering(cases: Sequence[Mapping[str, Hashable]], ways: int) -> set[int]:
    """Choose a few cases, by number, that hold each combination of so many parameters' values that any case holds.

    Values that must come again come in turn.

    >>> sorted(covering([{"a": a, "b": b} for a in range(4) for b in range(2)], 1))
    [0, 3, 4, 7]
    """
    held = [set(combinations(sorted(case.items(), key=itemgetter(0)), min(ways, len(case)))) for case in cases]
    missing = set[Hashable]().union(*held)
    uses: Counter[Hashable] = Counter()
    chosen: set[int] = set()

    def gain(number: int) -> tuple[int, int]:
        return len(held[number] & missing), -sum(uses[combination] for combination in held[number])

    while missing:
        best = max(range(len(held)), key=gain)
        chosen.add(best)
        missing -= held[best]
        uses.update(held[best])
    return chosen
