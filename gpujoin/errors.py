"""The exceptions gpujoin raises; every one derives from :class:`GpuJoinError`.

The type is the contract. The message says what was wrong, names the value, and says what to do.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpujoin.model.reasons import Reason


class GpuJoinError(Exception):
    """Base class of all errors raised by gpujoin."""


class ConfigurationError(GpuJoinError, ValueError):
    """A setting or option has an unknown name or an absurd value."""


class JoinSpecError(GpuJoinError, ValueError):
    """A join was requested that has no meaning: an unknown type, missing keys, bad columns."""


class KeyTypeError(JoinSpecError, TypeError):
    """The two sides of a join key cannot be compared, or a key's type cannot be joined on."""


class ConditionError(GpuJoinError, ValueError):
    """A residual condition names unknown columns, mixes incomparable types, or is not boolean."""


class RelationError(GpuJoinError, ValueError):
    """A pipeline's tree contradicts itself: unknown columns, wrong types, wrong number of arguments."""


class ScanError(GpuJoinError, OSError):
    """A file of a scan cannot be read as planned: missing, changed, truncated, corrupt, or of another schema."""


class DecodeError(ScanError):
    """The pages of a file could not be decoded by a library; another one may read them: text that is no UTF-8."""


class InvalidTextError(GpuJoinError, ValueError):
    """A function of characters met text that is not UTF-8; Spark, which takes it as data, computes it."""


class UnsupportedValueError(GpuJoinError, ValueError):
    """A function met a value for which only Spark knows the result; Spark, given the query, computes it."""


OPERATION_NOTE, STAGE_NOTE = "while computing ", "in stage "
"""How the notes begin that say where an ``UnsupportedValueError`` or ``InvalidTextError`` of a worker arose."""


class DeviceValueError(GpuJoinError, ValueError):
    """A device's result for a value may differ from Spark's; the CPU computes those rows."""


class ExpressionEvaluationError(GpuJoinError, ArithmeticError):
    """An expression failed on data, as Spark's ANSI mode demands: overflow, division by zero, bad cast."""


FUNCTIONS_FILE = "python functions of the query"
"""What stands for a file in a traceback, where a worker of gpujoin's has called a Python function of the query."""


class PythonFunctionError(GpuJoinError):
    """A Python function of the query failed, or gave what Spark does not take.

    Attributes
    ----------
    problem : BaseException
        The error, as Spark's own task would have met it.
    simplified : bool
        Whether PySpark is to leave its own frames out of the traceback.
    """

    def __init__(self, problem: BaseException, *, simplified: bool = True) -> None:
        super().__init__(f"{type(problem).__name__}: {problem}")
        self.problem = problem
        self.simplified = simplified


class ProductSizeError(GpuJoinError, RuntimeError):
    """A join without keys or ranges would look at more pairs of rows than ``spark.gpujoin.maxProductRows``."""


class BackendUnavailableError(GpuJoinError, RuntimeError):
    """A backend was asked for that is not installed or has no device."""


class RequirementError(GpuJoinError, RuntimeError):
    """Nothing of an application can run here, and ``spark.gpujoin.require`` is true.

    Attributes
    ----------
    reason : Reason
        Why.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(f"spark.gpujoin.require is true, and nothing can run here: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[type[RequirementError], tuple[Reason]]:
        return (type(self), (self.reason,))


class OutOfMemoryError(GpuJoinError, MemoryError):
    """Memory ran out. The engine catches this and climbs down its out-of-memory ladder."""


class DeviceMemoryError(OutOfMemoryError):
    """Memory of a device ran out."""


class DeviceLostError(DeviceMemoryError):
    """A device failed, and this process cannot use it or its memory any more.

    The engine goes on on the CPU, as where the device's memory is too small.
    """


class HostMemoryError(OutOfMemoryError):
    """Memory of a worker ran out, or a limit of the system was so near that it would have been ended."""


class KernelError(GpuJoinError, RuntimeError):
    """Something went wrong with one of gpujoin's own CUDA kernels."""


class KernelCompileError(KernelError):
    """A kernel does not compile, or its source has no kernel of that name."""


class KernelArgumentError(KernelError, ValueError):
    """A kernel was to be launched with an argument, grid or block that it cannot take; nothing was launched."""


class KernelLaunchError(KernelError):
    """The device refused the launch of a kernel."""


class CorruptBlobError(GpuJoinError, OSError):
    """A spilled file or an exchanged blob is truncated, altered, or not one of ours."""


class StreamStateError(GpuJoinError, ValueError):
    """The saved state of a join of streams is of another query, another format, or incomplete."""


class SpillError(GpuJoinError, OSError):
    """Rows over their memory budget cannot go to disk: no directory takes them, or they cannot be encrypted."""


class FallbackError(GpuJoinError, RuntimeError):
    """A join would have been left to Spark while ``spark.gpujoin.fallback`` is ``raise``.

    Not for joins that settings leave to Spark, nor for those that Spark is predicted to run faster.

    Attributes
    ----------
    reasons : tuple of Reason
        Every reason that was found, not only the first.
    """

    def __init__(self, message: str, reasons: Sequence[Reason] = ()) -> None:
        self.reasons = tuple(reasons)
        lines = [message, *(f"  - {reason}" for reason in self.reasons)]
        super().__init__("\n".join(lines))
        self._message = message

    def __reduce__(self) -> tuple[type[FallbackError], tuple[str, tuple[Reason, ...]]]:
        return (type(self), (self._message, self.reasons))


def did_you_mean(name: str, candidates: Iterable[str], *, prefix: str = "") -> str:
    """A trailing sentence with the nearest known names, or all of them when they are few; empty without any.

    ``prefix`` is what all names begin with; it makes no two names alike.
    """
    names = list(dict.fromkeys(candidates))
    bare: dict[str, list[str]] = {}
    for n in names:
        bare.setdefault(n.removeprefix(prefix).lower(), []).append(n)
    near = difflib.get_close_matches(name.removeprefix(prefix).lower(), bare, n=3, cutoff=0.6)
    if near:
        return " Did you mean " + " or ".join(repr(n) for key in near for n in bare[key]) + "?"
    if names:
        first = ", ".join(repr(n) for n in names[:12])
        return f" Known: {first}{', …' if len(names) > 12 else ''}."
    return ""


@functools.cache
def pip_install(extra: str) -> str:
    """Give the command that installs an extra of gpujoin, for messages.

    The packages are named one by one, as the metadata of the installed gpujoin lists them, so that no package index
    needs to have gpujoin. Without metadata, as on a path of source files, the extra is installed from a checkout.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("gpujoin") or []
    except PackageNotFoundError:
        lines = []
    marker = re.compile(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]")
    packages = [line.partition(";")[0].strip() for line in lines if marker.search(line)]
    quoted = " ".join(f'"{package}"' for package in packages)
    return f"pip install {quoted}" if quoted else f'pip install ".[{extra}]" in a checkout of gpujoin'


def type_name(value: object) -> str:
    """Name the type of an argument that is refused, with the package it comes from: ``"pandas.DataFrame"``."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"
