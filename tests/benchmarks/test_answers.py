"""When two answers are the same."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from benchmarks.answers import TOLERANCE, difference

D = Decimal
ROWS = [
    ("a", 1, D("2.50"), dt.date(1998, 9, 2)),
    ("b", None, None, None),
    ("a", 1, D("2.50"), dt.date(1998, 9, 2)),
]


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (ROWS, ROWS[::-1]),
        ([("a", D("2.5"))], [("a", D("2.500"))]),
        ([("a", D("2.333333"))], [("a", 2.3333333333)]),
        ([(1e12,)], [(1e12 * (1 + 1e-9),)]),
        ([(D("3.14"), 7, dt.date(1998, 9, 2), "x")], [["3.14", "7", "1998-09-02", "x"]]),
        ([], []),
    ],
    ids=["order", "scale", "average", "large", "text", "empty"],
)
def test_equal_answers(actual: list[Any], expected: list[Any]) -> None:
    assert difference(actual, expected, TOLERANCE) is None
    assert difference(actual, [list(row) for row in expected], TOLERANCE) is None


@pytest.mark.parametrize(
    ("actual", "expected", "said"),
    [
        (ROWS, ROWS[:2], "3 rows instead of 2"),
        ([ROWS[0], ROWS[0], ROWS[1]], [ROWS[0], ROWS[1], ROWS[1]], "instead of"),
        ([(1, 2)], [(1,)], "2 columns instead of 1"),
        ([("a", D("2.50"))], [("a", D("2.51"))], "2.51"),
        ([("a", 1)], [("a", None)], "None"),
        ([("a", D("1"))], [("a", 1.00001)], "1.00001"),
        ([(None,)], [(0.0,)], "0.0"),
        ([(1, "x"), (2, "y")], [(1, "y"), (2, "x")], "instead of"),
        ([(7,)], [["8"]], "8"),
    ],
    ids=["count", "multiplicity", "columns", "decimal", "null", "average", "null-average", "pairing", "text"],
)
def test_any_difference_is_found(actual: list[Any], expected: list[Any], said: str) -> None:
    told = difference(actual, expected, TOLERANCE)
    assert told is not None
    assert said in told
