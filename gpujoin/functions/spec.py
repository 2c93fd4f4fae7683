"""Describes a function: operands, result type, errors, nulls, and its implementations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.device import Offer
from gpujoin.functions.implementation import Lazy, Run
from gpujoin.functions.kinds import is_lossless
from gpujoin.functions.lowered import Rule
from gpujoin.functions.signatures import Signature, types_of
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression, Function
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
    OWN_RULE = "by its own rule"


class Order(Enum):
    """Order in which Spark evaluates operands, each on the rows where earlier ones are not null."""

    LEFT_FIRST = "left first"
    RIGHT_FIRST = "right first"
    ALL = "all, whatever is null"


class Evaluator(Enum):
    """The libraries that compute expressions."""

    NUMPY = "CPU"
    """NumPy and Arrow over batches: the reference, and what the others fall back to."""
    POLARS = "CPU, fused by Polars"
    """Expressions of one lazy Polars query, used where the bounds of the columns prove that nothing raises."""
    CUDF = "GPU"
    """CuPy and libcudf."""


@dataclass(frozen=True)
class Missing:
    """The reason why a function has no implementation by some library."""

    why: str
    """What keeps the library from computing the function."""


NOT_FUSED = Missing("computed by NumPy and Arrow between Polars' steps")
NOT_ON_GPU = Missing("not written; the node is computed on the CPU")


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
    exact: Callable[[Call], bool] | None = None
    """Whether a call has Spark's result for all data; ``None``: every call that the signature accepts has."""
    partial: bool = False
    """Whether some values, which only a task sees, are left to Spark by ``UnsupportedValueError``."""
    numpy: Run | Lazy
    """Computes a call over NumPy and Arrow arrays."""
    polars: Rule | Missing = NOT_FUSED
    """Translates a call to a Polars expression."""
    device: Offer | Missing = NOT_ON_GPU
    """Computes a call on the device, if its operands fit."""

    def missing(self, evaluator: Evaluator) -> Missing | None:
        """Why an evaluator does not compute the function; ``None`` if it does."""
        implementations = {Evaluator.NUMPY: self.numpy, Evaluator.POLARS: self.polars, Evaluator.CUDF: self.device}
        implementation = implementations[evaluator]
        return implementation if isinstance(implementation, Missing) else None

    def supports(self, node: Call) -> bool:
        """Whether a typed call has Spark's result for all data."""
        return self.signature.accepts(node) and (self.exact is None or self.exact(node))

    def runs_on_device(self, node: Call) -> bool:
        """Whether a typed call has Spark's result on the device."""
        offer = self.device
        return isinstance(offer, Offer) and self.supports(node) and (offer.fits is None or offer.fits(node))


SPECS: dict[Function, FunctionSpec] = {}
"""The row of each function. The package fills it with those of its families."""


@dataclass(frozen=True)
class SparkOnly:
    """Functions that Spark computes; their results may be operands of functions that are computed here."""

    classes: tuple[str, ...]
    """Spark's expression classes."""
    why: str = "not written yet"
    """What keeps them from being computed here."""
    raises: Raises = Raises.NEVER
    """When they may raise."""


def can_raise(tree: Expression) -> bool:
    """Whether evaluating a typed tree might raise, so that it must not be evaluated for more rows than in Spark."""
    return any(_may_raise(node) for node in tree.walk())


def _may_raise(node: Expression) -> bool:
    if isinstance(node, Cast):
        source = node.child.type
        return node.mode is EvalMode.ANSI and source is not None and not is_lossless(source, node.to)
    if not isinstance(node, Call):
        return False
    spec = SPECS[node.function]
    operand = types_of(node)[0] if node.arguments else None
    return spec.raises.may(node.mode, operand) and not (spec.safe is not None and spec.safe(node))
