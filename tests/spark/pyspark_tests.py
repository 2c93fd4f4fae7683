"""Run PySpark's own tests of Python functions with gpujoin, and count what ran here.

PySpark's packages have no tests; those of a checkout of Spark are run with the PySpark that is installed::

    python -m tests.spark.pyspark_tests ../spark/python/pyspark/sql/tests pandas/test_pandas_udf_scalar.py test_udf.py

Each test is run twice: as it is, and with every query planned by gpujoin. For that a query needs neither a join nor an
aggregation, unlike in a session that is enabled, and nothing is left to Spark since it is faster there. A test that
passes alone and fails with gpujoin is named, and makes the program fail.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import types
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql.classic.dataframe import DataFrame
from pyspark.testing import sqlutils, utils

from gpujoin.report.explanation import Explanation
from gpujoin.report.operations import OperationKind
from gpujoin.spark.failures import Failure, failure_of
from gpujoin.spark.query import island
from gpujoin.spark.query.accelerate import rewrite
from gpujoin.spark.query.plans import PlanNode

ACTIONS = ("collect", "count", "toPandas", "toArrow", "show", "first", "head", "take")
_OF_PYTHON = ("EvalPython", "AggregatePython", "WindowPython", "InPandas", "InArrow")
"""In the names of the physical plan's nodes of functions."""
_OUTCOMES = ("failed", "skipped", "ran here", "fell back", "left to Spark", "without functions")


class Planned:
    """What became of the queries of one test."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self._inside = False

    def action(self, original: Callable[..., Any], frame: DataFrame, *arguments: Any, **named: Any) -> Any:
        """Run an action of a query as gpujoin plans it, and as it is if a task of gpujoin fails."""
        if self._inside:
            return original(frame, *arguments, **named)
        self._inside = True
        try:
            return self._planned(original, frame, *arguments, **named)
        finally:
            self._inside = False

    def _planned(self, original: Callable[..., Any], frame: DataFrame, *arguments: Any, **named: Any) -> Any:
        found = rewrite(frame)
        here = any(each.kind is OperationKind.PYTHON for each in found.explanation.walk())
        if not here:
            self._note_left(frame, found.explanation)
            return original(frame, *arguments, **named)
        self.outcomes["ran here"] += 1
        try:
            return original(found.frame, *arguments, **named)
        except Exception as problem:
            if failure_of(problem) is not Failure.OURS:
                raise
            self.outcomes["fell back"] += 1
            return original(frame, *arguments, **named)

    def _note_left(self, frame: DataFrame, explanation: Explanation) -> None:
        plan: Any = frame
        if any(name in plan._jdf.queryExecution().sparkPlan().toString() for name in _OF_PYTHON):
            self.outcomes["left to Spark"] += 1
            self.reasons.update(str(reason) for reason in explanation.reasons)


@contextmanager
def planning_everything(planned: Planned) -> Iterator[None]:
    """Have all actions of DataFrames planned by gpujoin, whatever their queries are."""
    with ExitStack() as stack:
        for name in ACTIONS:
            if hasattr(DataFrame, name):
                hook = _hook(planned, getattr(DataFrame, name))
                stack.enter_context(mock.patch.object(DataFrame, name, hook))
        stack.enter_context(mock.patch.object(island, "may_top", _may_top))
        stack.enter_context(mock.patch.object(island, "_pays", return_value=True))
        yield


def _may_top(node: PlanNode) -> bool:
    return not node.streaming and (node.class_name == island.AGGREGATE or node.name in island._ROWS_FROM)


def _hook(planned: Planned, original: Callable[..., Any]) -> Callable[..., Any]:
    def action(frame: DataFrame, *arguments: Any, **named: Any) -> Any:
        return planned.action(original, frame, *arguments, **named)

    return action


def load(folder: Path, names: list[str]) -> list[unittest.TestCase]:
    """Load the tests of files in a folder that stands for ``pyspark.sql.tests``."""
    for package, path in {"pyspark.sql.tests": folder, **_packages(folder)}.items():
        module = types.ModuleType(package)
        module.__path__ = [str(path)]
        sys.modules[package] = module
    for name, value in vars(utils).items():  # which has moved there since an older checkout
        if not name.startswith("_") and not hasattr(sqlutils, name):
            setattr(sqlutils, name, value)
    modules = ["pyspark.sql.tests." + name.removesuffix(".py").replace("/", ".") for name in names]
    loader = unittest.TestLoader()
    return [test for name in modules for test in _flat(loader.loadTestsFromModule(importlib.import_module(name)))]


def _packages(folder: Path) -> dict[str, Path]:
    return {f"pyspark.sql.tests.{path.name}": path for path in folder.iterdir() if path.is_dir()}


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from _flat(part)
        else:
            yield part


def run(tests: list[unittest.TestCase], *, planned: bool) -> dict[str, tuple[str, Planned, str]]:
    """Run tests, those of a class together; gives what became of each, of its queries, and its error."""
    outcomes: dict[str, tuple[str, Planned, str]] = {}
    kinds: Any = dict.fromkeys(map(type, tests))
    for kind in kinds:
        try:
            kind.setUpClass()
        except unittest.SkipTest:
            continue
        session = getattr(kind, "spark", None)
        if session is not None:
            session.conf.set("spark.gpujoin.backend", "cpu")
            session.conf.set("spark.gpujoin.fallback", "silent")
        for test in (each for each in tests if type(each) is kind):
            seen, result = Planned(), unittest.TestResult()
            if planned:
                with planning_everything(seen):
                    test.run(result)
            else:
                test.run(result)
            errors = [text for _, text in (*result.failures, *result.errors)]
            outcomes[test.id()] = _outcome(result, seen), seen, "".join(errors)
            print(f"{outcomes[test.id()][0]:18} {test.id().removeprefix('pyspark.sql.tests.')}", flush=True)
        kind.tearDownClass()
    return outcomes


def _outcome(result: unittest.TestResult, seen: Planned) -> str:
    if not result.wasSuccessful():
        return "failed"
    if result.skipped:
        return "skipped"
    return next((name for name in _OUTCOMES[2:] if seen.outcomes[name]), "without functions")


def main() -> int:
    """Run the tests and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="pyspark/sql/tests of a checkout of Spark")
    parser.add_argument("files", nargs="+", help="files in it")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    tests = load(arguments.folder.resolve(), arguments.files)
    alone = run(tests, planned=False)
    tests = load(arguments.folder.resolve(), arguments.files)
    here = run(tests, planned=True)
    counts = Counter(outcome for outcome, _, _ in here.values())
    print("\nalone:", dict(Counter(outcome for outcome, _, _ in alone.values())))
    print("with gpujoin:", dict(counts))
    reasons: Counter[str] = sum((seen.reasons for _, seen, _ in here.values()), Counter())
    for reason, count in reasons.most_common():
        print(f"{count:5} {reason}")
    broken = [name for name, (outcome, _, _) in here.items() if outcome == "failed" and alone[name][0] != "failed"]
    for name in broken:
        print(f"\nfails with gpujoin alone: {name}\n{here[name][2]}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
