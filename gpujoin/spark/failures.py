"""Tells whose failure an error of a Spark action, or of planning one, is.

A query that gpujoin has rewritten can fail for three reasons, and each wants another answer::

    [SPARK_JOB_CANCELLED] Job 7 cancelled …            somebody ended it: it ends, and nothing runs in its place
    … Python worker exited unexpectedly (crashed) …    gpujoin's part failed: Spark can still run the query
    [DIVIDE_BY_ZERO] Division by zero …                the query itself is wrong: Spark would say so too

What is known of an error by its class or condition is read from there; texts are read only where Spark gives nothing
else. The answer holds for queries that were rewritten: in such a query a Python worker that dies is taken for one of
gpujoin's, since nobody can tell it from one that runs the user's functions. Spark then runs the query again, and tells
the user's own failure itself.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException, PythonException

from gpujoin.errors import FUNCTIONS_FILE, CorruptBlobError, GpuJoinError, ProductSizeError
from gpujoin.model.reasons import Reason, ReasonKind


class Failure(Enum):
    """Whose failure an error is."""

    CANCELLED = "cancelled"
    """Somebody ended the query, its job or the application: nothing may run in its place."""
    OURS = "ours"
    """A task of gpujoin failed, a worker or executor died that ran one, or a disk of Spark's was full, as it may be of
    what gpujoin exchanges: Spark may run the query itself."""
    SPARKS = "sparks"
    """Everything else: the query fails without gpujoin too."""


_CANCELLED_CONDITIONS = frozenset({"SPARK_JOB_CANCELLED", "OPERATION_CANCELED"})
_CANCELLED_CLASSES = frozenset(
    {
        "java.lang.InterruptedException",
        "java.nio.channels.ClosedByInterruptException",
        "java.util.concurrent.CancellationException",
        "org.apache.spark.TaskKilledException",
    }
)
_STOPPED = re.compile(r"cancelled because SparkContext was shut down|Cannot call methods on a stopped SparkContext")
"""Spark 4.0 to 4.3 give these errors no condition (``DAGScheduler``, ``SparkContext.assertNotStopped``)."""

_PYTHON_EXCEPTION = "org.apache.spark.api.python.PythonException"
"""The exception of a worker's error; its message holds the traceback."""
_FRAME = re.compile(r'^ *File "([^"]*)", line \d+', re.MULTILINE)
_OUR_FILES = re.compile(r"gpujoin[/\\]spark[/\\]worker[/\\](functions|task)\.py$")
"""Every task of gpujoin enters by these."""
_PYSPARK_FILES = re.compile(r"[/\\](pyspark|pyspark\.zip[/\\]pyspark)[/\\]|<frozen |[/\\]runpy\.py$")

_BOUNDARY = re.compile(
    r"^org\.apache\.(spark\.api\.python\.|spark\.sql\.execution\.python\.|spark\.sql\.vectorized\.Arrow|arrow\.)"
)
_BOUNDARY_FRAMES = 4
"""Frames that are looked at. An error of the rows that are sent to a worker has more frames of generated code above
those of the boundary."""
_WORKERS = re.compile(r"^org\.apache\.spark\.api\.python\.")
"""Frames of Spark that start and end workers, below any number of a library's frames."""
_DISKS = re.compile(r"^org\.apache\.spark\.(shuffle|storage|util\.Utils\$\.copyFileStreamNIO)")
"""Frames of Spark that write and read its own files: those of exchanges, of sorts, and of blocks."""
_DISK_CLASSES = re.compile(r"^java\.(io|nio\.file)\.\w+$")
_LIBRARIES = re.compile(
    r"^(java|jdk|sun|net\.jpountz|com\.github\.luben|com\.ning|org\.xerial|org\.apache\.commons\.crypto)\."
    r"|^org\.apache\.spark\.(security\.CryptoStreamUtils|io\.)"
)
"""Whose frames are above those that tell who has called: the JDK, and what compresses and encrypts Spark's files."""
_DISCONNECTED = re.compile(r"SocketException$|EOFException$|ClosedChannelException$")
_LOST_CLASSES = re.compile(r"OutOfMemoryError$|FetchFailed")
_LOSS = re.compile(r"ExecutorLostFailure|FetchFailed|OutOfMemoryError|has failed the maximum allowable number of times")
"""Words of a job's failure without a cause, since no task lived to tell one."""
_JOB_ABORTED = "Job aborted due to stage failure"

_OBSTACLE = re.compile(
    r"^.*(?:No module named '(?:gpujoin|numpy|pandas|polars|pyarrow)\b|cannot be imported by Spark's Python worker"
    r"|the driver has gpujoin |\[(?:PYTHON_VERSION_MISMATCH|PACKAGE_NOT_INSTALLED|UNSUPPORTED_PACKAGE_VERSION)\]).*$",
    re.MULTILINE,
)
"""What a worker says that lacks what it needs: Python's words, gpujoin's (``worker/``), PySpark's."""
_FINAL = {kind.__name__: kind for kind in (ProductSizeError, CorruptBlobError)}
"""Errors of tasks with which a query ends, by name: what nobody could compute, and damage, of which Spark's own files
may have some that nothing checks."""
_ERROR_OF_TASK = re.compile(r"^gpujoin\.errors\.(\w+): (.*)$", re.MULTILINE)
"""How the text of a worker's traceback ends where gpujoin itself raised the error."""
_NO_PROGRAM = "Cannot run program"
_OF_DAEMON = re.compile(r"Error from python worker:\n(.*?)^PYTHONPATH was:", re.DOTALL | re.MULTILINE)
"""What Spark tells of a daemon that could not start: what it wrote to standard error."""
_FILE = re.compile(r"""["'(]((?:/|[A-Za-z]:\\)[^"'()\n]*?([^/\\"'()\n]+)\.py)["')]""")
"""A path of a Python file, and its name."""
_INSTALLED = re.compile(r"[/\\](lib[/\\]python3|Lib[/\\]|site-packages[/\\]|dist-packages[/\\]|python[/\\]pyspark)")
_IMPORTED = frozenset({"gpujoin", "numpy", "pandas", "polars", "py4j", "pyarrow", "pyspark"})
"""Modules that a worker imports besides Python's own."""
_LONGEST_CHAIN = 20
"""Causes that are looked at; a longer chain is a circle."""


@dataclass(frozen=True)
class _Link:
    """One exception of a Java cause chain."""

    class_name: str
    """Java class of the exception."""
    condition: str
    """Spark's error condition; empty if it has none."""
    message: str
    """Its own message."""
    frames: tuple[str, ...]
    """The topmost frames of its stack."""
    caller: str
    """The topmost frame that is neither the JDK's nor that of a library of streams."""

    @property
    def at_boundary(self) -> bool:
        """Whether it was raised where Spark starts Python workers or exchanges Arrow data with them."""
        return any(_BOUNDARY.match(frame) for frame in self.frames) or _WORKERS.match(self.caller) is not None

    @property
    def at_disks(self) -> bool:
        """Whether a system call failed by which Spark writes or reads its own files."""
        return _DISK_CLASSES.match(self.class_name) is not None and _DISKS.match(self.caller) is not None


def failure_of(problem: BaseException) -> Failure:
    """Tell whose failure an error of a rewritten query, or of its planning, is.

    ``SPARKS`` where nothing tells otherwise.
    """
    if _ends_the_program(problem):
        return Failure.CANCELLED
    try:
        links = list(_links(problem))
    except Py4JNetworkError:
        return Failure.CANCELLED
    if any(_is_cancellation(link) for link in links):
        return Failure.CANCELLED
    if isinstance(problem, GpuJoinError) or any(_is_ours(link) for link in links):
        return Failure.OURS
    return Failure.SPARKS


def final_error(problem: BaseException) -> GpuJoinError | None:
    """Give the error of a task that ends the action, so that Spark does not run its own query.

    ``None`` for any other.
    """
    name, text = _last_error(problem) or ("", "")
    return _FINAL[name](text) if name in _FINAL else None


def task_error(problem: BaseException) -> str | None:
    """Give the error that a task of gpujoin raised itself; ``None`` for any other, and for crashes."""
    error = _last_error(problem)
    return None if error is None else f"gpujoin.errors.{error[0]}: {error[1]}"


def _last_error(problem: BaseException) -> tuple[str, str] | None:
    """Give name and message of the last error of gpujoin's in a worker's traceback."""
    errors: list[tuple[str, str]] = _ERROR_OF_TASK.findall(str(problem))
    return errors[-1] if errors else None


def is_survivable(problem: BaseException) -> bool:
    """Tell whether planning may go on after an error, with Spark's own plan or without a sample.

    Not where somebody ended the query, or damage was found. A panic of a Rust library, which is no ``Exception``, is an
    error like others.
    """
    if not isinstance(problem, Exception) and not _is_panic(problem):
        return False
    if isinstance(problem, CorruptBlobError) or isinstance(final_error(problem), CorruptBlobError):
        return False
    return failure_of(problem) is not Failure.CANCELLED


def unexpected(problem: BaseException) -> Reason:
    """Make a reason of an error met while planning."""
    return Reason(ReasonKind.UNEXPECTED, "plan", f"{type(problem).__name__}: {first_line(problem)}")


def first_line(problem: BaseException) -> str:
    """Give the first line of an error's message: of a Java exception's own, which py4j puts below one of its own."""
    text = str(problem)
    if isinstance(problem, Py4JJavaError):
        with contextlib.suppress(Py4JError):
            text = str(problem.java_exception)
    return next(iter(text.strip().splitlines()), "no message")


def telling_line(problem: BaseException) -> str:
    """Give the line that explains the failure of a task of gpujoin.

    It is what gpujoin raised there; else what the innermost of the Java exceptions says that are of its part::

        An error occurred while calling o4143.count.                        py4j
        Job aborted due to stage failure: Task 0 in stage 7.0 failed …      the job's
        Python worker exited unexpectedly (crashed)                         the task's: this one
    """
    error = task_error(problem)
    if error is not None:
        return error
    lines = [_telling_line(link) for link in _links(problem) if _is_ours(link)]
    return next((line for line in reversed(lines) if line), None) or first_line(problem)


def _telling_line(link: _Link) -> str | None:
    """Give the most telling line of an exception's message; none for a connection that has ended."""
    if link.class_name == _PYTHON_EXCEPTION:
        return raised_in(link.message)
    if _DISCONNECTED.search(link.class_name):
        return None
    return next((line for line in map(str.strip, link.message.splitlines()) if line), None)


def raised_in(traceback: str) -> str | None:
    """Give the line of a traceback with the exception: the last one that is not indented."""
    lines = traceback.splitlines()
    raised = [line for above, line in itertools.pairwise(lines) if above[:1] == " " and line[:1] not in ("", " ")]
    return raised[-1] if raised else None


@dataclass(frozen=True)
class WorkerObstacle:
    """Why workers cannot run gpujoin's code at all."""

    text: str
    """A worker's own words."""
    shadow: str | None = None
    """A file that stands where a module of Python's is looked for, such as the program's own ``calendar.py``."""


def worker_obstacle(problem: BaseException) -> WorkerObstacle | None:
    """Tell why workers cannot run gpujoin at all, if that ended a query.

    A worker that lacks a library, or has another version of Python or of gpujoin, or finds a file of the program's in
    the place of a module, fails every query alike.
    """
    for link in _links(problem):
        lines = _OBSTACLE.findall(link.message) if link.class_name == _PYTHON_EXCEPTION else []
        if lines:
            return WorkerObstacle(str(lines[-1]), _shadow_in(link.message))
        if not link.at_boundary:
            continue
        if link.message.startswith(_NO_PROGRAM):
            return WorkerObstacle(link.message)
        report = _OF_DAEMON.search(link.message)
        if report is not None:
            lines = [line for line in map(str.strip, report[1].splitlines()) if line]
            return WorkerObstacle(lines[-1] if lines else "it told nothing", _shadow_in(link.message))
    return None


def _shadow_in(text: str) -> str | None:
    """Find the path in a traceback of a file that is named as a module of Python's, and is none."""
    named = (match for match in _FILE.finditer(text) if match[2] in sys.stdlib_module_names or match[2] in _IMPORTED)
    return next((match[1] for match in named if not _INSTALLED.search(match[1])), None)


def _ends_the_program(problem: BaseException) -> bool:
    if isinstance(problem, (Py4JNetworkError, ConnectionError)):
        return True
    return not isinstance(problem, Exception) and not _is_panic(problem)


def _is_panic(problem: BaseException) -> bool:
    """Whether an exception is a Rust panic; each library built with PyO3 has a class of its own for them."""
    kind = type(problem)
    return (kind.__module__, kind.__name__) == ("pyo3_runtime", "PanicException")


def _is_cancellation(link: _Link) -> bool:
    return (
        link.condition in _CANCELLED_CONDITIONS
        or link.class_name in _CANCELLED_CLASSES
        or _STOPPED.search(link.message) is not None
    )


def _is_ours(link: _Link) -> bool:
    if link.class_name == _PYTHON_EXCEPTION:
        return _is_our_traceback(link.message)
    if _LOST_CLASSES.search(link.class_name):
        return True
    if link.message.startswith(_JOB_ABORTED) and _LOSS.search(link.message.partition("\n")[0]):
        return True
    return link.at_boundary or link.at_disks


def _is_our_traceback(text: str) -> bool:
    """Whether the traceback of a worker is of gpujoin's code, or of PySpark's before it has called anybody's.

    One that settings hide may be anybody's: Spark then runs the query, and tells if it was the user's. What a Python
    function of the query raises in a worker of gpujoin's is the query's own, also where PySpark refuses its result.
    """
    files = _FRAME.findall(text)
    if any(_OUR_FILES.search(file) for file in files):
        return True
    if any(file.endswith(FUNCTIONS_FILE) for file in files):  # in every traceback, but alone in those of functions
        return False
    return all(_PYSPARK_FILES.search(file) for file in files)


def _links(problem: BaseException) -> Iterator[_Link]:
    """Give the Java exceptions behind a Python one, outermost first; over Spark Connect what the server has told."""
    python: BaseException | None = problem
    for _ in range(_LONGEST_CHAIN):
        if python is None:
            return
        java = _java_exception(python)
        if java is not None:
            yield from _java_links(java)
        elif isinstance(python, PySparkException):
            # Of a worker's error PySpark 4.1 keeps only the message, and Spark Connect sends no more.
            name = _PYTHON_EXCEPTION if isinstance(python, PythonException) else type(python).__name__
            yield _Link(name, python.getCondition() or "", str(python), (), "")
        python = python.__cause__


def _java_exception(problem: BaseException) -> Any:
    if isinstance(problem, Py4JJavaError):
        return problem.java_exception
    # What PySpark makes of a Java exception; of one that it does not know it keeps the cause only.
    return getattr(problem, "_origin", None) or getattr(getattr(problem, "_cause", None), "_origin", None)


def _java_links(java: Any) -> Iterator[_Link]:
    for _ in range(_LONGEST_CHAIN):
        if java is None:
            return
        stack = list(java.getStackTrace())
        frames = tuple(str(frame) for frame in stack[:_BOUNDARY_FRAMES])
        caller = next((frame for frame in map(str, stack) if not _LIBRARIES.match(frame)), "")
        yield _Link(str(java.getClass().getName()), _condition(java), str(java.getMessage() or ""), frames, caller)
        java = java.getCause()


def _condition(java: Any) -> str:
    """Give the error condition of a Java exception; only Spark's own have one."""
    try:
        return str(java.getCondition() or "")
    except Py4JNetworkError:
        raise
    except Py4JError:
        return ""
