"""What happens to values that have no result: an error or a null, by the mode of the node."""

from __future__ import annotations

from typing import NoReturn

import pyarrow.types as pat

from gpujoin.backends.cpu.evaluate_regex import LikePatternError, like_parts
from gpujoin.backends.cpu.evaluate_vector import Mask, without
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression, Function, Literal
from gpujoin.model.types import is_float, is_numeric, is_text, is_whole


def fail(node: Expression, why: str) -> NoReturn:
    """Raise the error of a node."""
    raise ExpressionEvaluationError(
        f"{node}: {why}; filter out such rows, use a wider type, or set spark.sql.ansi.enabled to false"
    )


def settle(node: Call | Cast, bad: Mask, valid: Mask | None, why: str) -> Mask | None:
    """Deal with rows without a result.

    Parameters
    ----------
    node : Call or Cast
        Whose mode decides: ``ANSI`` raises, the others give null.
    bad : numpy.ndarray
        Rows without a result; a null row never counts.
    valid : numpy.ndarray or None
        Validity of the operands.
    why : str
        What to say.

    Returns
    -------
    numpy.ndarray or None
        Validity of the result.

    Raises
    ------
    ExpressionEvaluationError
        In ANSI mode, if a row that is not null is bad.
    """
    if not bad.any():
        return valid
    if node.mode is EvalMode.ANSI and (bad if valid is None else bad & valid).any():
        fail(node, why)
    return without(valid, bad)


_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_FALLIBLE = frozenset(
    {
        Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.DIVIDE, Function.INTEGRAL_DIVIDE,
        Function.REMAINDER, Function.PMOD, Function.NEGATE, Function.ABS, Function.CEIL, Function.FLOOR,
    }
)  # fmt: skip

# On decimals these raise in every mode.
_ALWAYS_FALLIBLE = frozenset({Function.REMAINDER, Function.PMOD, Function.NEGATE, Function.ABS})


def can_raise(node: Expression) -> bool:
    """Tell whether evaluating a tree might raise, so that it must not see rows that Spark would not evaluate."""
    return any(_may_raise(n) for n in node.walk())


def _may_raise(node: Expression) -> bool:
    if isinstance(node, Call):
        if node.function in _FALLIBLE:
            return node.mode is EvalMode.ANSI or node.function in _ALWAYS_FALLIBLE
        return node.function is Function.LIKE and not _well_formed(node.arguments)
    return isinstance(node, Cast) and node.mode is EvalMode.ANSI and not _lossless(node)


def _well_formed(arguments: tuple[Expression, ...]) -> bool:
    """Tell whether a LIKE pattern is constant and known to be good."""
    pattern, escape = arguments[1], arguments[2] if len(arguments) > 2 else None
    if not isinstance(pattern, Literal) or not (escape is None or isinstance(escape, Literal)):
        return False
    try:
        like_parts(pattern.value or "", "\\" if escape is None else escape.value)
    except LikePatternError:
        return False
    return True


def _lossless(node: Cast) -> bool:
    """Tell whether a cast certainly succeeds: those that Spark adds to bring operands to one type, mostly."""
    source, target = node.child.type, node.to
    if source is None or pat.is_null(source) or is_text(target):
        return True
    if is_whole(source) and is_whole(target):
        return bool(source.bit_width <= target.bit_width)
    if pat.is_decimal(target) and (is_whole(source) or pat.is_decimal(source)):
        whole = (
            source.precision - source.scale if pat.is_decimal(source) else _INTEGER_DIGITS[source.bit_width]
        )
        kept = not pat.is_decimal(source) or source.scale <= target.scale
        return bool(target.precision - target.scale >= whole and kept)
    return is_float(target) and is_numeric(source)
