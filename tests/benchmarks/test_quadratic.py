"""The benchmark of quadratic joins: its cases check their answers, its page says what was missed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.quadratic.engine_cases import (
    as_of_case,
    kept_by_definition,
    not_in_case,
    not_in_tables,
    overlap_case,
    range_case,
)
from benchmarks.quadratic.report import goal, page, plot


def test_cases_check_their_answers() -> None:
    cases = [
        range_case(2000, "inner", 1), range_case(2000, "full", 1), overlap_case(20_000, 1),
        not_in_case(3000, 2000, 2, 1), not_in_case(3000, 2000, 3, 1), as_of_case(3000, 50, 1),
    ]  # fmt: skip
    assert all(case["out"] > 0 and case["seconds"] > 0 for case in cases)


def test_the_definition_of_not_in_sees_a_changed_row() -> None:
    one, two = not_in_tables(2000, 500, 2)
    kept = kept_by_definition(one, two)
    assert 0 < kept < one.num_rows
    assert kept_by_definition(one, two.slice(0, 0)) == one.num_rows
    few = two.take(np.flatnonzero(~two["x"].is_null().to_numpy())[:3].tolist())
    assert kept_by_definition(one, few) > kept


def test_goals_that_are_missed_are_said() -> None:
    case = {
        "case": "c",
        "rows": 10,
        "other_rows": 5,
        "out": 3,
        "seconds": 2.0,
        "other_engine": "o",
        "other_seconds": 5.0,
    }
    assert goal(case) == ""
    assert goal(case | {"goal": 2}) == "ratio 2"
    assert goal(case | {"goal": 3, "goal_seconds": 1}) == "1 s **missed**, ratio 3 **missed**"
    machine = {"processor": "p", "cores": 2, "python": "3", "revision": "r"}
    text = page({"version": "1", "machine": machine, "note": "n", "cases": [case | {"goal": 3}]}, plotted=True)
    assert "ratio 3 **missed**" in text
    assert "| 2.5 |" in text


def test_the_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is in the bench extra")
    cases = [{"case": "range, inner", "rows": n, "seconds": n / 10} for n in (1, 2)]
    assert plot(cases, tmp_path / "p.json")
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".svg"}
