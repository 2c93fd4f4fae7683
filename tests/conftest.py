"""What every test shares: the printed seed, and the reason why GPU tests are left out."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import random
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpujoin.backends.registry import BackendRequest, create, unavailable
from gpujoin.model.backend import AnyBackend, BackendName
from tests import java
from tests.brief import few
from tests.disks import Mount, mounts
from tests.fallbacks import note_unexpected, watched
from tests.schedule import by_seconds
from tests.sessions import start_session
from tests.unchanged import leave_out
from tests.wording import in_words, listen

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession

_SEED_VARIABLE = "GPUJOIN_TEST_SEED"
_DEFAULT_SEED = "20260807"
_DRAWN = "random"

# A machine with a GPU may have only what the backend and pytest need.
if importlib.util.find_spec("hypothesis") is not None:
    from tests import draws

    draws.settle()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Settle the seed of the run, for Hypothesis too.

    The first process does; workers of pytest-xdist inherit its environment.
    """
    chosen = os.environ.get(_SEED_VARIABLE) or _DEFAULT_SEED
    if chosen == _DRAWN:
        chosen = str(random.SystemRandom().randrange(2**32))
    os.environ[_SEED_VARIABLE] = chosen
    listen()
    _keep_bytecode(config.rootpath)
    note_unexpected()
    if os.environ.get("LC_ALL") in {"C", "POSIX"}:
        os.environ["LC_ALL"] = "C.UTF-8"  # else Java refuses names of files beyond ASCII
    # Of this process's Spark and of those that tests start as programs.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", java.options())
    if config.getoption("--hypothesis-seed", chosen) is None:
        config.option.hypothesis_seed = chosen


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Have Java take Spark's classes from an archive, which the first run with several processes makes."""
    config = session.config
    cache = getattr(config, "cache", None)
    if hasattr(config, "workerinput") or cache is None or config.option.collectonly:
        return
    path = java.archive_path(cache.mkdir("classes"))
    if path is not None and not path.is_file() and config.getoption("numprocesses", None):
        java.make_archive(path)
    if path is not None and path.is_file() and os.environ["SPARK_SUBMIT_OPTS"] == java.options():
        os.environ["SPARK_SUBMIT_OPTS"] = f"{java.options()} {java.from_archive(path)}"


def _keep_bytecode(root: Path) -> None:
    """Where Python is told to write no bytecode, have it written outside the source tree.

    Spark's workers and the programs that tests start would compile the package anew, which takes each a second.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(root / ".pytest_cache" / "bytecode")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Keep Python's collector of cyclic garbage from the modules and the items of the tests, some million objects.

    It would go through them again and again while they are collected, and in every test that has it run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


_LEFT_OUT = pytest.StashKey[int]()
"""How many tests that need a GPU were collected and left out."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none, mark what `make test` leaves out, and put long files first."""
    few(items)
    leave_out(items, config.rootpath)
    if why_no_gpu() is not None:
        left_out = [item for item in items if item.get_closest_marker("gpu") is not None]
        config.stash[_LEFT_OUT] = len(left_out)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("gpu") is None]
    if hasattr(config, "workerinput"):
        by_seconds(items, config.rootpath)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {_SEED_VARIABLE}={os.environ[_SEED_VARIABLE]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.append(("seed", f"{_SEED_VARIABLE}={os.environ[_SEED_VARIABLE]}"))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with in_words():
        return (yield from watched(item))


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run: GPUJOIN_TEST_SEED, by default always the same, drawn anew if that is ``random``."""
    return int(os.environ[_SEED_VARIABLE])


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator that depends on the run's seed and on the test, not on the order of tests."""
    return np.random.default_rng([seed, *request.node.nodeid.encode()])


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Mount]:
    """A function that mounts a file system in memory; skips where this user may not."""
    yield from mounts(tmp_path)


@functools.cache
def why_no_gpu() -> str | None:
    """The reason why tests marked ``gpu`` cannot run here, or None when they can."""
    try:
        import pylibcudf  # noqa: F401
        from cuda.bindings import runtime
    except ImportError as problem:
        return f"no cuDF: {problem}"
    try:
        status, count = runtime.cudaGetDeviceCount()
    except RuntimeError as problem:
        return f"no CUDA driver: {problem}"
    if status != runtime.cudaError_t.cudaSuccess:
        return f"no CUDA device: {status.name}"
    return None if count else "no CUDA device"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the first process, which does not collect where pytest-xdist has workers."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = config.stash.get(_LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(f"{left_out} tests need a GPU and were left out: {why_no_gpu()}")


@pytest.fixture(
    params=[BackendName.CPU, pytest.param(BackendName.GPU, marks=pytest.mark.gpu)],
    ids=lambda name: name.value,
)
def backend(request: pytest.FixtureRequest) -> AnyBackend:
    """Each backend in turn; skips with the registry's own reason where one cannot be used."""
    reason = unavailable(request.param)
    if reason is not None:
        pytest.skip(str(reason))
    return create(request.param, BackendRequest())


@pytest.fixture
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """A private, single-threaded DuckDB."""
    duckdb = pytest.importorskip("duckdb", reason="no DuckDB: pip install duckdb")
    with duckdb.connect(config={"threads": 1}) as connection:
        # DuckDB 1.5 loses NaN keys when it filters one side by the range of the other's keys.
        connection.execute("set disabled_optimizers = 'join_filter_pushdown'")
        yield connection


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for the whole run; GPUJOIN_TEST_MASTER chooses the master. Tests take ``spark`` instead."""
    pytest.importorskip("pyspark.sql", reason="no PySpark: pip install gpujoin[spark]")
    session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def spark(spark_session: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The Spark session, with its SQL settings put back after the test.

    A parameter, given indirectly, is a dict of settings for the test, such as
    ``{"spark.sql.adaptive.enabled": "false", "spark.sql.ansi.enabled": "true"}``.
    """
    from gpujoin.report import outcomes
    from gpujoin.spark.query import refusals
    from gpujoin.spark.query.hooks import disable_sessions

    conf = spark_session._jsparkSession.sessionState().conf()
    jvm: Any = spark_session._jvm
    before = conf.getAllConfs()
    for key, value in (getattr(request, "param", None) or {}).items():
        spark_session.conf.set(key, value)
    yield spark_session
    disable_sessions()  # those that a test has made of it too
    experimental = spark_session._jsparkSession.experimental()
    if experimental.extraOptimizations().size():  # that of as-of joins stays
        getattr(experimental, "extraOptimizations_$eq")(jvm.PythonUtils.toSeq([]))
    after = conf.getAllConfs()
    # Reading the settings takes hundreds of calls to the JVM, comparing them there one.
    if not after.equals(before):
        there, wanted = _in_python(after), _in_python(before)
        for key in there.keys() - wanted.keys():
            spark_session.conf.unset(key)
        for key, value in wanted.items():
            if there.get(key) != value:
                spark_session.conf.set(key, value)
    spark_session.catalog.clearCache()
    outcomes._warned.clear()  # the next test may have the same query
    refusals._refused.clear()  # or the same tables


def _in_python(settings: Any) -> dict[str, str]:
    """A Scala map of texts."""
    entries = settings.mkString("\x00")
    return dict(entry.split(" -> ", 1) for entry in entries.split("\x00") if entry)
