"""What ``gpujoin doctor`` looks at: software, GPUs, and the host's limits. Each probe yields :class:`Check` rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec

from gpujoin.errors import BackendUnavailableError


class Status(Enum):
    """How a thing stands."""

    OK = "ok"
    WARNING = "warning"
    """It works, with something to know."""
    MISSING = "missing"
    """It cannot be used."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the report."""

    name: str
    status: Status
    finding: str
    """The finding, on one line."""
    advice: str = ""
    """The remedy; empty if there is nothing to do."""


def require(*checks: Check) -> None:
    """Raise ``BackendUnavailableError`` with all that is missing and the advice, if anything is."""
    missing = [check for check in checks if check.status is Status.MISSING]
    if missing:
        raise BackendUnavailableError("; ".join(f"{check.name}: {check.finding}. {check.advice}" for check in missing))


# Not every module carries its version; its distribution may be named otherwise (pylibcudf-cu13).
_PRINT_VERSION = """
import importlib.metadata as metadata, {module} as module
print(getattr(module, "__version__", None) or metadata.version(metadata.packages_distributions()["{module}"][0]))
"""

Probe = Callable[[], Iterable[Check]]


def version_tuple(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``(4, 3, 0)`` for ``"4.3.0.dev1"``; empty where it starts with no number."""
    numbers = []
    for part in text.strip().split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def run_python(code: str, *, timeout: float = 60.0) -> tuple[bool, str]:
    """Run code in a Python of its own, so that a crash of a native library is only a finding.

    Gives whether it succeeded, and the last line it printed, or on failure the last line of its error.
    """
    try:
        process = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"no answer within {timeout:g} s"
    if process.returncode < 0:
        return False, f"killed by signal {-process.returncode}"
    lines = (process.stdout if process.returncode == 0 else process.stderr).strip().splitlines()
    return process.returncode == 0, lines[-1].strip() if lines else ""


def import_check(module: str, *, minimum: str, below: str | None, advice: str) -> Check:
    """Whether a module imports in a fresh Python, and its version is at least ``minimum`` and below ``below``."""
    if find_spec(module) is None:
        return Check(module, Status.MISSING, "not installed", advice)
    works, said = run_python(_PRINT_VERSION.format(module=module))
    if not works:
        return Check(module, Status.MISSING, f"installed, but cannot be imported: {said}", advice)
    version = version_tuple(said)
    if version < version_tuple(minimum) or (below is not None and version >= version_tuple(below)):
        requirement = f"{minimum} or newer" + (f", below {below}" if below else "")
        return Check(module, Status.MISSING, f"{said}; gpujoin needs {requirement}", advice)
    return Check(module, Status.OK, said)
