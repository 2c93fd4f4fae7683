"""Orders the files of tests by the seconds that they took, so that no worker is left alone with a long one at the end.

``make test PYTEST_ARGS=--junit-xml=report.xml``, then ``python -m tests.schedule report.xml``, writes the seconds anew.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

SECONDS = Path(__file__).with_name("seconds.json")
_LEAST = 1.0
"""Seconds of files that are not written down."""
_NEW = {True: 10.0, False: 2.0}
"""Seconds that a file is taken to need until they are known, with Spark and without."""


def by_seconds(items: list[pytest.Item], root: Path) -> None:
    """Order tests by their files, the longest one first; tests of a file stay together and in order."""
    seconds: dict[str, float] = json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.is_file() else {}
    spark = {item.path for item in items if item.get_closest_marker("spark") is not None}
    lengths = {
        path: seconds.get(path.relative_to(root).as_posix(), _NEW[path in spark]) for path in {i.path for i in items}
    }
    items.sort(key=lambda item: (-lengths[item.path], item.path))


def seconds_of(reports: Iterable[Path]) -> dict[str, float]:
    """Seconds of files in reports of JUnit's kind, of those that took more than a second."""
    total: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest has written it
            if not case.get("classname"):  # a file that was left out as a whole
                continue
            parts = str(case.get("classname")).split(".")
            while not (path := Path(*parts).with_suffix(".py")).is_file():
                parts.pop()
            total[path.as_posix()] += float(case.get("time", 0))
    return {path: round(total[path], 1) for path in sorted(total) if total[path] >= _LEAST}


if __name__ == "__main__":
    SECONDS.write_text(json.dumps(seconds_of(map(Path, sys.argv[1:])), indent=0) + "\n", encoding="utf-8")
