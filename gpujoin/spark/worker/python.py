"""Checks the Python of the driver, and of workers on this machine, for the modules that joins need.

PySpark does not start workers with the driver's interpreter: unless ``PYSPARK_PYTHON`` is set, it takes the first
``python3`` on ``PATH``, which is another one wherever a virtual environment is used without being activated.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpujoin.cache import cached_by_life
from gpujoin.errors import pip_install
from gpujoin.model.reasons import Reason, ReasonKind

if TYPE_CHECKING:
    from pyspark import SparkContext

    from gpujoin.spark.failures import WorkerObstacle

_VARIABLE = "PYSPARK_PYTHON"
_SETTING = "spark.pyspark.python"
DEFAULT_COMMAND = "python3"
"""The command of PySpark without ``PYSPARK_PYTHON``."""

DRIVER, WORKERS = "driver", "workers"
"""Subjects of reasons that concern all queries of an application."""
REQUIRED_MODULES = ("numpy", "polars", "pyarrow")
"""Libraries that a worker imports besides gpujoin; being compiled, they cannot be shipped in a zip."""

_TIMEOUT = 30.0
_PROBE = """
import importlib.util, sys
def lacks(name):
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return True
    return spec is None or spec.origin is None and "." not in name  # a mere folder
print("%d.%d" % sys.version_info[:2], *filter(lacks, sys.argv[1:]))
"""


def driver_advice() -> str:
    """Give the advice for a driver that lacks a library."""
    return f"{pip_install('spark')} in the environment of the driver"


@dataclass(frozen=True, slots=True)
class WorkerPython:
    """What workers would run."""

    command: str
    """The command or path, as PySpark has it."""
    path: str | None
    """The path of the command on this machine; ``None``: not found."""
    obstacle: str = ""
    """Why it cannot join, for a sentence that begins with it; empty if it can, or if that could not be found out."""

    def __str__(self) -> str:
        return self.command if self.path in (None, self.command) else f"{self.command} ({self.path})"


def worker_python(command: str, modules: tuple[str, ...]) -> WorkerPython:
    """Find out which Python a command is on this machine, and which modules it lacks."""
    path = shutil.which(command)
    if path is None or _is_this_one(path):
        return WorkerPython(command, path)
    return WorkerPython(command, path, _obstacle(path, modules))


def advice() -> str:
    """The environment variable that gives workers this process's Python."""
    return f"PYSPARK_PYTHON={sys.executable}"


def refusal(context: SparkContext, conf: Mapping[str, str], further: tuple[str, ...] = ()) -> Reason | None:
    """Tell why the workers of a session cannot run gpujoin; ``further`` names more modules of a work.

    The Python of workers on this machine is asked. Of a cluster's, whose machines the driver does not see, is known
    what failed queries have told (:func:`note_failure`). Nothing is said of commands that are not found here:
    archives are unpacked where only workers look.
    """
    obstacle = driver_obstacle() or _missing(further)
    if obstacle:
        return Reason(ReasonKind.UNAVAILABLE, DRIVER, obstacle, driver_advice())
    noted = _noted_of(context)
    if noted is not None:
        why = f"one that Spark started with {context.pythonExec} has failed: {noted.text}"
        change = _CHOOSE if noted.shadow is None else f"another name for {noted.shadow}"
        return Reason(ReasonKind.UNAVAILABLE, WORKERS, why, change)
    if not conf.get("spark.master", "").startswith("local"):
        return None
    shipped = bool(_shipped_files(context))
    modules = (*REQUIRED_MODULES, *further)
    python = worker_python(context.pythonExec, modules if shipped else ("gpujoin", *modules))
    if not python.obstacle:
        return None
    return Reason(
        ReasonKind.UNAVAILABLE,
        WORKERS,
        f"Spark starts them with {python}, which {python.obstacle}",
        f"{advice()} in the environment before the session starts",
    )


def note_failure(context: SparkContext, problem: BaseException) -> None:
    """Note an error by which a context's workers cannot run gpujoin; :func:`refusal` then gives it."""
    from gpujoin.spark.failures import worker_obstacle

    obstacle = worker_obstacle(problem)
    if obstacle is not None:
        _noted[_workers_of(context)] = obstacle


def _noted_of(context: SparkContext) -> WorkerObstacle | None:
    """Give the noted error of a context's workers, unless the file in their way has gone since."""
    key = _workers_of(context)
    noted = _noted.get(key)
    shadow = None if noted is None else noted.shadow
    if shadow is not None and str(context.master).startswith("local") and not Path(shadow).exists():
        del _noted[key]
        return None
    return noted


def use_this_python(context: SparkContext) -> None:
    """Have the workers of a context on this machine run this process's Python, where nobody chose one.

    Functions that it makes from now on are concerned.
    """
    is_configured = (
        _VARIABLE in os.environ or context.pythonExec != DEFAULT_COMMAND or context.getConf().contains(_SETTING)
    )
    if not is_configured and sys.executable and str(context.master).startswith("local"):
        context.pythonExec = sys.executable


_CHOOSE = "a PYSPARK_PYTHON that has gpujoin and its dependencies on every host, or spark.archives"
_noted: dict[tuple[str, str, int], WorkerObstacle] = {}


def _workers_of(context: SparkContext) -> tuple[str, str, int]:
    """Give what identifies a context's workers; files shipped later make other ones of them."""
    return _application(context), str(context.pythonExec), len(_shipped_files(context))


def _shipped_files(context: SparkContext) -> list[str]:
    from gpujoin.spark.jvm.gateway import shipped_files  # imports PySpark, which the doctor of a bare Python lacks

    return shipped_files(context)


@cached_by_life
def _application(context: SparkContext) -> str:
    """Id of a context's application, which the JVM has."""
    return str(context.applicationId)


@functools.lru_cache(maxsize=1)
def driver_obstacle() -> str:
    """Tell why this process cannot plan joins: a library of gpujoin's, or one of ``mapInArrow``; empty if it can."""
    missing = _missing(REQUIRED_MODULES)
    if missing:
        return missing
    from pyspark.sql.pandas.utils import require_minimum_pandas_version, require_minimum_pyarrow_version

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of versions that PySpark takes but has not been tested with
            require_minimum_pandas_version()
            require_minimum_pyarrow_version()
    except ImportError as problem:
        return f"PySpark's mapInArrow needs another library: {problem}"
    return ""


def _missing(names: tuple[str, ...]) -> str:
    """Which modules this process lacks, in words."""
    missing = [name for name in names if not _is_there(name)]
    return f"the driver's Python lacks {', '.join(missing)}" if missing else ""


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what it is in is missing
        return False


def _is_this_one(path: str) -> bool:
    """Whether a path is this interpreter in its environment; those of several venvs may link to one file."""
    here = Path(sys.executable)
    try:
        return Path(path).parent.samefile(here.parent) and Path(path).samefile(here)
    except OSError:
        return False


@functools.lru_cache(maxsize=16)
def _obstacle(path: str, modules: tuple[str, ...]) -> str:
    try:
        process = subprocess.run(
            [path, "-c", _PROBE, *modules],
            capture_output=True, text=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    except OSError as problem:
        return f"cannot be run: {problem}"
    version, *missing = process.stdout.split() or [""]
    if process.returncode != 0 or not version:
        said = (process.stderr.strip().splitlines() or ["no message"])[-1]
        return f"cannot be run: {said}"
    own = "{}.{}".format(*sys.version_info[:2])
    if version != own:
        return f"is Python {version}, not {own} as here"
    return f"lacks {', '.join(missing)}" if missing else ""
