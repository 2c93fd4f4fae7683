"""Long files of tests come first, and the seconds of files are read of reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import schedule

ROOT = Path(__file__).parents[1]


@dataclass
class Item:
    """A test, as far as it is looked at."""

    path: Path
    spark: bool = False

    def get_closest_marker(self, name: str) -> object:
        return (self.spark and name == "spark") or None


def test_long_files_come_first_and_tests_of_a_file_stay_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = tmp_path / "seconds.json"
    seconds.write_text('{"tests/a.py": 3.0, "tests/b.py": 30.0}')
    monkeypatch.setattr(schedule, "SECONDS", seconds)
    names = ["a", "new", "b", "a", "spark", "b"]
    items: list[Any] = [Item(tmp_path / "tests" / f"{name}.py", name == "spark") for name in names]
    schedule.by_seconds(items, tmp_path)
    assert [item.path.stem for item in items] == ["b", "b", "spark", "a", "a", "new"]


def test_seconds_of_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.test_schedule" name="x" time="1.25"/>'
        '<testcase classname="tests.test_schedule.TestIn" name="y" time="0.5"/>'
        '<testcase classname="tests.test_brief" name="z" time="0.1"/></testsuite></testsuites>'
    )
    assert schedule.seconds_of([report]) == {"tests/test_schedule.py": 1.8}
