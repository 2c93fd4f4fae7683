"""Runs the tests of kernels over broken kernels, each in a process of its own, forked with everything imported."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from gpujoin.errors import KernelCompileError
from gpujoin.launch import source
from gpujoin.launch.device import ModuleSpec
from tests.kernels.emulator import EmulatedDevice, EmulationError
from tests.kernels.emulator.device import CACHE_VARIABLE, STEPS_VARIABLE, EmulatedKernel
from tests.kernels.mutation.operators import PRELUDE, Mutant

ROOT = Path(__file__).resolve().parents[3]
TESTS = "tests/kernels"
_IGNORED = ("test_emulator_checks.py", "test_emulator.py", "test_mutation.py")
_PYTEST = (
    "-q",
    "-x",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "--rootdir",
    str(ROOT),
    "-m",
    "not slow and not gpu",
)
_LEAST_SECONDS = 30.0
_WAITING = 100
"""Times as long as its processor time a test may take by the clock: for what waits and never computes. A machine that
other processes keep busy makes nothing late."""
_SEED = "20261121"
_STEPS = "20000000"
"""More than the right kernels take in any test, and soon reached by an endless loop."""


@dataclass(frozen=True)
class Outcome:
    """What the tests said.

    Attributes
    ----------
    verdict : str
        ``caught``, ``survived``, ``untested`` (no test launches it) or ``invalid`` (it does not compile).
    how : str
        Kind of the emulator's error, ``wrong answer``, another exception's name, or ``time``.
    test : str
        The test that failed.
    """

    verdict: str
    how: str = ""
    test: str = ""


@dataclass(frozen=True)
class Coverage:
    """Kernels that each test launches, and its seconds of processor time."""

    kernels: dict[str, frozenset[tuple[str, str]]]
    seconds: dict[str, float]

    def tests_of(self, mutant: Mutant, includes: dict[str, set[str]]) -> list[str]:
        """Tests that run the broken function, quickest first.

        Parameters
        ----------
        mutant : Mutant
            The broken source.
        includes : dict of str to set of str
            Sources that each file is part of, itself among them.
        """
        own = (mutant.file, mutant.function)
        launched = {kernel for kernels in self.kernels.values() for kernel in kernels}
        concerned = {own} if own in launched else {k for k in launched if k[0] in includes[mutant.file]}
        tests = [test for test, kernels in self.kernels.items() if kernels & concerned]
        return sorted(tests, key=lambda test: self.seconds[test])


class _Watch:
    """A pytest plugin: which kernels a test launches, and how the first failure came about."""

    def __init__(self) -> None:
        self.current = ""
        self.kernels: dict[str, set[tuple[str, str]]] = {}
        self.seconds: dict[str, float] = {}
        self.failure: Outcome | None = None
        self._find = EmulatedDevice.kernel
        self._before = 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.current = nodeid
        self._before = processor_seconds()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] = processor_seconds() - self._before

    def pytest_exception_interact(self, node: Any, call: pytest.CallInfo[Any]) -> None:
        if self.failure is not None or call.excinfo is None:
            return
        problem = call.excinfo.value
        name = getattr(node, "nodeid", "")
        if _refused(problem):
            self.failure = Outcome("invalid", str(problem)[:500], name)
        elif isinstance(problem, EmulationError):
            self.failure = Outcome("caught", problem.kind, name)
        else:
            wrong = isinstance(problem, AssertionError | pytest.fail.Exception)
            self.failure = Outcome("caught", "wrong answer" if wrong else type(problem).__name__, name)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        find = self._find

        def kernel(device: EmulatedDevice, module: ModuleSpec, name: str) -> EmulatedKernel:
            self.kernels.setdefault(self.current, set()).add((module.source, name))
            return find(device, module, name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EmulatedDevice, "kernel", kernel)
            yield


def processor_seconds() -> float:
    """Of this process and of those that it started and that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _refused(problem: BaseException | None) -> bool:
    while problem is not None:
        if isinstance(problem, KernelCompileError) and "does not compile" in str(problem):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


def _run_pytest(arguments: Sequence[str]) -> tuple[int, _Watch]:
    watch = _Watch()
    with watch.watching():
        status = pytest.main([*_PYTEST, *arguments], plugins=[watch])
    return int(status), watch


def _measure() -> dict[str, Any]:
    ignored = [f"--ignore={TESTS}/{name}" for name in _IGNORED]
    status, watch = _run_pytest([TESTS, *ignored])
    kernels = {test: sorted(launched) for test, launched in watch.kernels.items()}
    failure = None if watch.failure is None else asdict(watch.failure)
    return {"status": status, "kernels": kernels, "seconds": watch.seconds, "failure": failure}


def _judge(tests: Sequence[str]) -> dict[str, Any]:
    status, watch = _run_pytest(tests)
    if watch.failure is not None:
        return asdict(watch.failure)
    return asdict(Outcome("survived") if status == 0 else Outcome("caught", f"pytest ended with {status}"))


@dataclass
class _Child:
    pid: int
    deadline: float
    answer: Path


class Runner:
    """Forks a process for each broken source.

    Parameters
    ----------
    scratch : Path
        An empty folder.
    patience : float
        How many times as much processor time as over the right sources the tests of a mutant may take, beyond half a
        minute; a mutant that takes more counts as caught.
    """

    def __init__(self, scratch: Path, patience: float) -> None:
        self._scratch = scratch
        self._patience = patience
        self._seconds: dict[str, float] = {}
        self._cache = scratch / "cache"
        self._cache.mkdir()
        self._count = 0
        os.environ["GPUJOIN_TEST_SEED"] = _SEED
        os.environ[STEPS_VARIABLE] = _STEPS
        self.kernels = Path(str(source.kernel_directory()))

    def measure(self) -> Coverage:
        """Run all tests over the right sources, and see which kernels they launch.

        Raises
        ------
        RuntimeError
            They do not pass.
        """
        child = self._fork(_measure, self.kernels, self._cache, limit=3600)
        while (answer := self._poll(child)) is None:
            time.sleep(0.05)
        if answer.get("status") != 0:
            problem = answer.get("failure") or f"pytest ended with {answer.get('status', answer)}"
            raise RuntimeError(f"the tests of the kernels do not pass over the right sources: {problem}")
        self._seconds = answer["seconds"]
        kernels = {test: frozenset(map(tuple, launched)) for test, launched in answer["kernels"].items()}
        return Coverage(kernels, self._seconds)

    def judge(self, mutants: Sequence[tuple[Mutant, list[str]]], workers: int) -> Iterator[tuple[Mutant, Outcome]]:
        """Verdicts in the order in which they come, from so many processes at a time."""
        waiting = list(reversed(mutants))
        running: list[tuple[Mutant, _Child]] = []
        while waiting or running:
            while waiting and len(running) < workers:
                mutant, tests = waiting.pop()
                if tests:
                    running.append((mutant, self._start(mutant, tests)))
                else:
                    yield mutant, Outcome("untested")
            for mutant, child in list(running):
                answer = self._poll(child)
                if answer is not None:
                    running.remove((mutant, child))
                    shutil.rmtree(child.answer.parent)
                    yield mutant, Outcome(**answer)
            time.sleep(0.02)

    def _start(self, mutant: Mutant, tests: list[str]) -> _Child:
        self._count += 1
        home = self._scratch / f"mutant-{self._count}"
        shutil.copytree(self.kernels, home / "kernels")
        (home / "kernels" / mutant.file).write_text(f'{PRELUDE}#line 1 "{mutant.file}"\n{mutant.text}')
        shutil.copytree(self._cache, home / "cache", copy_function=os.link)
        limit = _LEAST_SECONDS + self._patience * sum(self._seconds[test] for test in tests)
        return self._fork(lambda: _judge(tests), home / "kernels", home / "cache", limit=limit)

    def _fork(self, work: Any, kernels: Path, cache: Path, *, limit: float) -> _Child:
        home = cache.parent
        answer = home / "answer.json"
        pid = os.fork()
        if pid:
            return _Child(pid, time.monotonic() + _WAITING * limit, answer)
        try:
            os.setsid()
            seconds = math.ceil(limit)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
            os.chdir(ROOT)
            os.environ[CACHE_VARIABLE] = str(cache)
            log = os.open(home / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            source.kernel_directory = lambda: kernels
            told = json.dumps(work())
            (home / "answer.tmp").write_text(told)
            (home / "answer.tmp").replace(answer)
        finally:
            sys.stdout.flush()
            os._exit(0)

    def _poll(self, child: _Child) -> dict[str, Any] | None:
        ended, status = os.waitpid(child.pid, os.WNOHANG)
        if ended:
            if child.answer.is_file():
                return json.loads(child.answer.read_text())
            late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
            return asdict(Outcome("caught", "time" if late else "crash"))
        if time.monotonic() < child.deadline:
            return None
        os.killpg(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        return asdict(Outcome("caught", "time"))


def includers(kernels: Path) -> dict[str, set[str]]:
    """Sources that each file of the kernel folder is part of, itself among them."""
    includers: dict[str, set[str]] = {}
    for file in sorted(kernels.glob("*.cu")):
        text = source.kernel_source(file.name)
        for part in {
            file.name,
            *(line.split('"')[1] for line in text.splitlines() if line.startswith('#line 1 "')),
        }:
            includers.setdefault(part, set()).add(file.name)
    for header in kernels.glob("*.cuh"):
        includers.setdefault(header.name, set())
    return includers
