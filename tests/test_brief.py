"""What is left out of `make test` is chosen as it says."""

from __future__ import annotations

import doctest
import itertools
from collections.abc import Iterable

import pytest

from tests import brief as module
from tests.brief import brief, covering, each_once, few

pytest_plugins = ["pytester"]


def test_the_examples() -> None:
    assert doctest.testmod(module) == (0, 5)


@pytest.mark.parametrize("lengths", [(3, 3), (2, 7), (7, 2), (4, 2, 3), (1, 5)], ids=str)
def test_each_value_stays_and_each_combination_is_there_once(lengths: tuple[int, ...]) -> None:
    axes = [[f"{letter}{n}" for n in range(length)] for letter, length in zip("abc", lengths, strict=False)]
    cases = each_once(*axes)
    assert len({case.values for case in cases}) == len(cases)
    stays = [case.values for case in cases if not case.marks]
    assert len(stays) == max(lengths)
    assert [sorted({values[n] for values in stays}) for n in range(len(axes))] == axes
    assert {mark.name for case in cases for mark in case.marks} <= {"extra"}


def test_a_value_that_is_extra_is_in_no_case_that_stays() -> None:
    cases = each_once(("a", "b", "c"), ("x", "y"), extra=("c",))
    assert [case.values for case in cases if not case.marks] == [("a", "x"), ("b", "y")]
    assert len(cases) == 6


def test_a_name_that_is_no_case_is_an_error() -> None:
    with pytest.raises(AssertionError, match="three"):
        each_once(("one", "two"), extra=("three",))
    assert [bool(case.marks) for case in brief(("one", "two"), "two")] == [True, False]
    with pytest.raises(AssertionError, match="three"):
        brief(("one", "two"), "two", "three")
    with pytest.raises(AssertionError, match="stays"):
        brief(("one", "two"))


@pytest.mark.parametrize("ways", [1, 2, 3])
@pytest.mark.parametrize("lengths", [(3, 3), (7, 2), (4, 2, 3), (5,)], ids=str)
def test_few_cases_hold_each_combination(lengths: tuple[int, ...], ways: int) -> None:
    cases = [dict(zip("abc", values, strict=False)) for values in itertools.product(*map(range, lengths))]
    cases = [case for case in cases if case.get("c") != case["a"]]  # not all combinations exist

    def held(numbers: Iterable[int]) -> set[tuple[tuple[str, int], ...]]:
        size = min(ways, len(lengths))
        return {some for number in numbers for some in itertools.combinations(cases[number].items(), size)}

    chosen = covering(cases, ways)
    assert held(chosen) == held(range(len(cases)))
    if ways == 1:
        assert len(chosen) == max(lengths)


def test_what_is_marked_few_runs_each_value_of_each_parameter(pytester: pytest.Pytester) -> None:
    """Names that come together are one parameter; GPUs and cases that are slow take no part."""
    items, _ = pytester.inline_genitems(
        pytester.makepyfile("""
            import pytest

            @pytest.mark.few
            @pytest.mark.parametrize("place", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
            @pytest.mark.parametrize(("a", "b"), [([1], 1), ([1], 2), ([2], 2)], ids=["x", "y", "z"])
            @pytest.mark.parametrize("c", [{}, {0: 0}, pytest.param({1: 1}, marks=pytest.mark.slow)], ids=[*"uvw"])
            def test(place, a, b, c):
                pass
        """),
        "-Wignore::pytest.PytestUnknownMarkWarning",
    )
    few(items)
    marks = {item.name: {mark.name for mark in item.iter_markers()} & {"gpu", "slow", "extra"} for item in items}
    assert len(marks) == 18
    assert sorted(name for name, marked in marks.items() if not marked) == [
        "test[u-x-cpu]",
        "test[u-z-cpu]",
        "test[v-y-cpu]",
    ]
    assert sum(marked == {"extra"} for marked in marks.values()) == 3
