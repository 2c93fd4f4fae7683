"""A plugin of pytest that writes down which functions of the package each test calls, and how long the test takes.

Tests that `make test` leaves out are not watched.

``python -m pytest -p tests.mutants.calls`` writes to the folder that ``GPUJOIN_TEST_CALLS`` names, by default one in
pytest's cache: one file for each process and file of tests, so that a part can be written anew. What workers of Spark
call is not seen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import gpujoin

VARIABLE = "GPUJOIN_TEST_CALLS"
LEFT_OUT = {"slow", "extra", "program", "spark40", "chaos"}
"""Markers of tests that `make test` leaves out."""
_PACKAGE = Path(gpujoin.__file__).parent


@dataclass
class Record:
    """What a test took and called.

    Attributes
    ----------
    seconds : float
        Of the clock, fixtures of the test included.
    calls : frozenset of (str, int)
        Functions, by the path of their file in the package and their first line.
    spark : bool
        Whether the test starts a Spark session.
    """

    seconds: float = 0.0
    calls: frozenset[tuple[str, int]] = frozenset()
    spark: bool = False


@dataclass
class _Recorder:
    """Notes each function once in a test."""

    records: dict[str, Record] = field(default_factory=dict)
    called: dict[int, CodeType] = field(default_factory=dict)

    def __call__(self, frame: FrameType, _event: str, _argument: Any) -> None:
        code = frame.f_code
        if id(code) not in self.called:
            self.called[id(code)] = code

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if {mark.name for mark in item.iter_markers()} & LEFT_OUT:
            return (yield)
        self.called.clear()
        before = sys.gettrace()
        started = time.monotonic()
        sys.settrace(self)
        threading.settrace(self)
        try:
            return (yield)
        finally:
            sys.settrace(before)
            threading.settrace(before)
            spark = item.get_closest_marker("spark") is not None
            self.records[item.nodeid] = Record(time.monotonic() - started, frozenset(self._functions()), spark)

    def _functions(self) -> Iterator[tuple[str, int]]:
        for code in [*self.called.values()]:  # threads go on
            path = Path(code.co_filename)
            if path.is_relative_to(_PACKAGE):
                yield str(path.relative_to(_PACKAGE)), code.co_firstlineno

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.records:
            write(self.records, folder_of(session.config))


def pytest_configure(config: pytest.Config) -> None:
    """Record, but in the first process of several."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(_Recorder(), "calls")


def folder_of(config: pytest.Config) -> Path:
    """The folder of the records."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else config.rootpath / ".pytest_cache" / "calls"


def write(records: dict[str, Record], folder: Path) -> None:
    """Write records, those of each file of tests in place of the file's earlier ones."""
    folder.mkdir(parents=True, exist_ok=True)
    by_file: dict[str, dict[str, Record]] = {}
    for test, record in records.items():
        by_file.setdefault(test.partition("::")[0], {})[test] = record
    for file, own in by_file.items():
        functions = sorted(set[tuple[str, int]]().union(*(record.calls for record in own.values())))
        numbers = {function: number for number, function in enumerate(functions)}
        tests = {
            test: [round(record.seconds, 4), record.spark, sorted(numbers[call] for call in record.calls)]
            for test, record in own.items()
        }
        text = json.dumps({"functions": functions, "tests": tests}, separators=(",", ":"))
        (folder / f"{file.replace('/', '.')}.json").write_text(text, encoding="utf-8")


def read(folder: Path) -> dict[str, Record]:
    """Records of all files of tests in a folder."""
    records = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        functions: list[tuple[str, int]] = [(file, line) for file, line in content["functions"]]
        for test, (seconds, spark, numbers) in content["tests"].items():
            records[test] = Record(seconds, frozenset(functions[number] for number in numbers), spark)
    return records


def callers_of(records: dict[str, Record], functions: Iterable[tuple[str, int]], seconds: float) -> list[str]:
    """Tests that call one of some functions, as many as take some seconds.

    Those without Spark come first, and of those the quickest. The first case of each test comes before all second
    ones, so that a test of hundreds of cases leaves room for others.
    """
    wanted = frozenset(functions)
    calling = sorted(
        (test for test, record in records.items() if record.calls & wanted), key=lambda test: records[test].seconds
    )
    cases: dict[str, int] = {}
    ranked = []
    for test in calling:
        name = test.partition("[")[0]
        ranked.append((records[test].spark, cases.get(name, 0), records[test].seconds, test))
        cases[name] = cases.get(name, 0) + 1
    chosen: list[str] = []
    taken = {True: 0.0, False: 0.0}
    for spark, _, length, test in sorted(ranked):
        if not taken[spark] or taken[spark] + length <= seconds:
            chosen.append(test)
            taken[spark] += length
    return chosen
