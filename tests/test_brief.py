"""What is left out of `make test` is chosen as it says."""

from __future__ import annotations

import doctest

import pytest

from tests import brief as module
from tests.brief import brief, each_once


def test_the_example() -> None:
    assert doctest.testmod(module) == (0, 2)


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
