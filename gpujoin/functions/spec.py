"""Describes a function: operands, result type, errors, nulls, and which evaluators lack it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.signatures import Signature
from gpujoin.model.expressions import Call, EvalMode, Function
from gpujoin.model.types import is_float


class Raises(Enum):
    """When a function raises an error instead of returning a result."""

    NEVER = "never"
    OVERFLOW = "in ANSI mode, floats never"
    ANSI = "in ANSI mode"
    ANSI_OR_DECIMAL = "in ANSI mode; decimals in any mode"
    PATTERN = "if a pattern is malformed"
    VARIABLE = "in any mode, if the second operand is no constant"
    ALWAYS = "in any mode"

    def may(self, mode: EvalMode, operand: pa.DataType | None) -> bool:
        """Whether a call in a mode may raise, from the type of its first operand (``None``: no Arrow type)."""
        match self:
            case Raises.NEVER:
                return False
            case Raises.PATTERN | Raises.VARIABLE | Raises.ALWAYS:
                return True
            case Raises.OVERFLOW if operand is not None and is_float(operand):
                return False
            case Raises.ANSI_OR_DECIMAL if operand is not None and pat.is_decimal(operand):
                return True
        return mode is EvalMode.ANSI


class Nulls(Enum):
    """How a function treats null operands."""

    PROPAGATE = "null if an operand is"
    READ = "by its own rule"


class Order(Enum):
    """Order in which Spark evaluates operands, each only on the rows where those before it are not null."""

    LEFT_FIRST = "left first"
    RIGHT_FIRST = "right first"
    ALL = "all, whatever is null"


class Evaluator(Enum):
    """The libraries that compute expressions. Each has its own table of implementations, keyed by function."""

    NUMPY = "CPU"
    """NumPy and Arrow over batches: the reference, and what the others fall back to."""
    POLARS = "CPU, fused by Polars"
    """Expressions of one lazy Polars query, where the bounds of the columns prove that nothing raises."""
    CUDF = "GPU"
    """CuPy and libcudf."""


@dataclass(frozen=True)
class FunctionSpec:
    """Everything that is known of one function."""

    function: Function
    classes: tuple[str, ...]
    """Spark's expression classes that are translated to the function."""
    signature: Signature
    """Operand types, implicit casts and result type."""
    _: KW_ONLY
    raises: Raises = Raises.NEVER
    """When a call may raise."""
    safe: Callable[[Call], bool] | None = None
    """Whether a given call never raises although the function may."""
    nulls: Nulls = Nulls.PROPAGATE
    """How the function treats null operands."""
    order: Order = Order.LEFT_FIRST
    """Which operand is evaluated first. A function that reads nulls evaluates all, or decides itself."""
    zoned: bool = False
    """Whether the result depends on the session's time zone if an operand is a timestamp with one."""
    selectivity: float | None = None
    """Estimated share of rows that a predicate keeps."""
    lacks: Mapping[Evaluator, str] = field(default_factory=dict)
    """Reason for each evaluator that does not compute the function."""


@dataclass(frozen=True)
class SparkOnly:
    """Functions that Spark computes; their results may be operands of functions that are computed here."""

    classes: tuple[str, ...]
    """Spark's expression classes."""
    why: str = "not written yet"
    """What keeps them from being computed here."""
    raises: Raises = Raises.NEVER
    """When they may raise."""


def lacking(why: str, *evaluators: Evaluator) -> dict[Evaluator, str]:
    """Reason shared by several evaluators that lack a function."""
    return dict.fromkeys(evaluators, why)


NOT_FUSED = lacking("computed by NumPy and Arrow between Polars' steps", Evaluator.POLARS)
NOT_ON_GPU = lacking("not written; the node is computed on the CPU", Evaluator.CUDF)
ON_CPU = NOT_FUSED | NOT_ON_GPU
