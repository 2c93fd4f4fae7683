"""Python, the engine's libraries, PySpark and Java."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from gpujoin.cli.checks import Check, Status, import_check, run_python
from gpujoin.errors import pip_install
from gpujoin.spark.resources import starved
from gpujoin.spark.worker.python import DEFAULT_COMMAND, REQUIRED_MODULES, advice, driver_advice, worker_python

JAVA_MINIMUM = 17
_JAVA_ADVICE = "apt-get install openjdk-17-jre-headless, or set JAVA_HOME to a Java 17 or newer"

_SETTING = re.compile(r"(?P<key>[^#\s=:]+)\s*[=:\s]\s*(?P<value>.*)")

ENGINE_LIBRARIES = (("numpy", "2.0", "3"), ("polars", "2.1", "3"), ("pyarrow", "24", None))
"""Module, oldest version, first version that is too new."""


def _install(*libraries: tuple[str, str, str | None]) -> str:
    requirements = (f'"{name}>={oldest}{f",<{below}" if below else ""}"' for name, oldest, below in libraries)
    return f"pip install --force-reinstall {' '.join(requirements)}"


_SELF_TEST = """
import pyarrow as pa, gpujoin
left = pa.table({"k": [1, 2, None], "x": ["a", "b", "c"]})
right = pa.table({"k": [2, 2, None], "y": [1.0, 2.0, 3.0]})
rows = gpujoin.join_tables(left, right, on="k", how="left", backend="cpu").num_rows
assert rows == 4, f"a join of 3 x 3 rows gave {rows} rows instead of 4"
print("a join of 3 x 3 rows is right")
"""


_DRIVER = "from gpujoin.spark.worker.python import driver_obstacle; print(driver_obstacle())"


def engine() -> Iterator[Check]:
    """Everything without which gpujoin cannot run at all: Python, its libraries, and a small join."""
    yield system()
    version = platform.python_version()
    if sys.version_info >= (3, 11):  # noqa: UP036  # a checkout may be run with any Python
        yield Check("python", Status.OK, f"{version} ({sys.executable})")
    else:
        yield Check("python", Status.MISSING, f"{version}; gpujoin needs 3.11 or newer", "Install a newer Python.")
    for module, minimum, below in ENGINE_LIBRARIES:
        yield import_check(module, minimum=minimum, below=below, advice=_install((module, minimum, below)))
    works, said = run_python(_SELF_TEST)
    yield Check(
        "self test",
        Status.OK if works else Status.MISSING,
        said,
        "" if works else _install(*ENGINE_LIBRARIES),
    )


def system() -> Check:
    """Whether the operating system is the one that is tested."""
    name = platform.system()
    if name == "Linux":
        return Check("system", Status.OK, f"Linux {platform.release()}, {platform.machine()}")
    return Check("system", Status.WARNING, f"{name}; gpujoin is tested on Linux alone", "Use Linux, or a container.")


def spark() -> Iterator[Check]:
    """PySpark and what it would run with."""
    pyspark = import_check(
        "pyspark",
        minimum="4.0",
        below="5",
        advice=_pyspark_advice(),
    )
    yield pyspark
    home = os.environ.get("SPARK_HOME")
    if home:
        yield _spark_home(Path(home), pyspark)
    if pyspark.status is Status.OK:
        yield driver()
    yield workers()
    java_check = java()
    yield java_check
    if Status.MISSING not in (pyspark.status, java_check.status):
        yield spark_submit()
    yield from defaults()


def driver() -> Check:
    """Check the modules that ``mapInArrow`` and gpujoin import in a driver with this Python."""
    works, said = run_python(_DRIVER)
    if works and not said:
        return Check("driver's libraries", Status.OK, "numpy, pandas, polars and pyarrow, as PySpark asks for them")
    return Check("driver's libraries", Status.MISSING, said, driver_advice())


def default_settings() -> tuple[Path | None, Mapping[str, str]]:
    """Read ``spark-defaults.conf``; without a path where there is none."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    path = None if folder is None else Path(folder) / "spark-defaults.conf"
    if path is None or not path.is_file():
        return None, {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    matches = [_SETTING.match(line.strip()) for line in lines]
    return path, {match["key"]: match["value"] for match in matches if match is not None}


def defaults() -> Iterator[Check]:
    """Check that ``spark-defaults.conf`` lets a local session start tasks."""
    path, settings = default_settings()
    if path is None:
        return
    problem = starved({"spark.master": "local[*]", **settings})
    if problem is None:
        yield Check("spark defaults", Status.OK, str(path))
        return
    what, _, advice = problem.partition(". ")
    yield Check("spark defaults", Status.WARNING, f"{path}: {what}", advice)


def workers() -> Check:
    """Check the Python of a local session's workers: ``PYSPARK_PYTHON`` if set, else ``python3``."""
    command = os.environ.get("PYSPARK_PYTHON")
    python = worker_python(command or DEFAULT_COMMAND, ("gpujoin", *REQUIRED_MODULES))
    said = f"{python}, by PYSPARK_PYTHON" if command else f"{python}, PYSPARK_PYTHON being unset"
    if python.path is None:
        # spark-submit starts programs with it too.
        return Check("workers' python", Status.MISSING, f"{said}: not found on this machine", _workers_advice(command))
    if python.obstacle:
        said = f"{said}: it {python.obstacle}"
        return Check("workers' python", Status.WARNING, said, _workers_advice(command))
    return Check("workers' python", Status.OK, said)


def _pyspark_advice() -> str:
    return f"{pip_install('spark')}, or run this with the PySpark of your cluster on PYTHONPATH"


def spark_submit() -> Check:
    """Whether the ``spark-submit`` of ``SPARK_HOME``, or of the installed PySpark, starts and tells its version."""
    home = os.environ.get("SPARK_HOME")
    spec = find_spec("pyspark")
    installed = "" if spec is None or spec.origin is None else str(Path(spec.origin).parent)
    command = str(Path(home or installed) / "bin" / "spark-submit")
    advice = (
        "Set SPARK_HOME to a Spark installation, or unset it to run that of PySpark." if home else _pyspark_advice()
    )
    try:
        process = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Check("spark-submit", Status.MISSING, f"{command} cannot be run: {problem}", advice)
    said = process.stderr + process.stdout
    match = re.search(r"version (\d\S*)", said)
    if process.returncode != 0 or match is None:
        message = " ".join(said.split())[-200:] or "no message"
        return Check("spark-submit", Status.MISSING, f"{command} does not work: {message}", advice)
    return Check("spark-submit", Status.OK, f"Spark {match[1]} ({command})")


def _workers_advice(command: str | None) -> str:
    # Where nobody chose a Python, the local session that is enabled takes the program's own.
    unless = "" if command else " (not needed where gpujoin.enable or a setting enables them)"
    return f"export {advice()} before local sessions start{unless}; on clusters set spark.pyspark.python."


def _spark_home(home: Path, pyspark: Check) -> Check:
    version_file = home / "python" / "pyspark" / "version.py"
    if not version_file.is_file():
        # A pip-installed PySpark is its own SPARK_HOME.
        version_file = home / "version.py"
    if not version_file.is_file():
        advice = "Unset SPARK_HOME, or set it to a Spark installation."
        return Check("SPARK_HOME", Status.WARNING, f"{home} holds no PySpark", advice)
    version = version_in(version_file)
    if pyspark.status is Status.OK and version != pyspark.finding:
        advice = "Install the PySpark of that very version, or unset SPARK_HOME."
        return Check("SPARK_HOME", Status.WARNING, f"{home} is Spark {version}, PySpark is {pyspark.finding}", advice)
    return Check("SPARK_HOME", Status.OK, f"{home} (Spark {version})")


def version_in(file: Path) -> str:
    """Read the version that a module ``version.py`` has."""
    match = re.search(r'__version__[^"\']*["\']([^"\']+)', file.read_text(encoding="utf-8"))
    return match[1] if match else "unknown"


def java() -> Check:
    """Check the Java that Spark would start: that of ``JAVA_HOME`` if set, else of ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if command is None:
        return Check("java", Status.MISSING, "JAVA_HOME is not set, and java is not on PATH", _JAVA_ADVICE)
    try:
        process = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Check("java", Status.MISSING, f"{command} cannot be run: {problem}", _JAVA_ADVICE)
    match = re.search(r'version "(?:1\.)?(\d+)[^"]*"', process.stderr + process.stdout)
    if process.returncode != 0 or match is None:
        said = " ".join((process.stderr + process.stdout).split())[:200]
        return Check("java", Status.MISSING, f"{command} does not work: {said or 'no message'}", _JAVA_ADVICE)
    version = f"{match[0].removeprefix('version ').strip(chr(34))} ({command})"
    if int(match[1]) < JAVA_MINIMUM:
        return Check("java", Status.MISSING, f"{version}; Spark 4 needs {JAVA_MINIMUM} or newer", _JAVA_ADVICE)
    modules = subprocess.run([command, "--list-modules"], capture_output=True, text=True, timeout=60, check=False)
    if modules.returncode == 0 and "jdk.incubator.vector" not in modules.stdout:
        return Check("java", Status.MISSING, f"{version} lacks the module jdk.incubator.vector", _JAVA_ADVICE)
    return Check("java", Status.OK, version)
