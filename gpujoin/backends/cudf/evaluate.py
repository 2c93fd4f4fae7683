"""Residual conditions on the device.

Fixed-width values are computed in CuPy, text by libcudf. What is offered is said in
:mod:`gpujoin.backends.cudf.offers`.

In ANSI mode an operation that fails must raise only for rows that Spark evaluates it for: the right side of ``AND``
not where the left is false, a branch of ``CASE`` only where it is chosen, a right operand not where the left is null.
So each node is given the mask of its *active* rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf import values as v
from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.offers import COMPARISONS, SEARCHES, like_parts
from gpujoin.backends.cudf.values import Value, both, without
from gpujoin.errors import ExpressionEvaluationError, GpuJoinError
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal

Active: TypeAlias = Array | None
"""Rows a node is evaluated for; ``None``: all."""


class Text(Protocol):
    """One text a row, or one for all rows, in whatever form the engine below understands."""

    @property
    def valid(self) -> Array | None:
        """False where null; ``None``: nowhere null."""
        ...

    def compare(self, function: Function, other: Any) -> Array:
        """One of ``COMPARISONS``, by bytes; arbitrary where either is null."""
        ...

    def search(self, function: Function, other: Any) -> Array:
        """One of ``SEARCHES``; arbitrary where either is null."""
        ...

    def like(self, pattern: str, escape: str) -> Array:
        """SQL's LIKE; arbitrary where null."""
        ...

    def length(self) -> Array:
        """Characters, as int32; arbitrary where null."""
        ...


class Source(Protocol):
    """What the leaves of an expression are."""

    def column(self, node: ColumnRef) -> Value | Text:
        """A column's values."""
        ...

    def text(self, value: str | None) -> Text:
        """A text constant."""
        ...

    def column_valid(self, node: ColumnRef) -> Array | None:
        """Mask of the rows at which a column of any type is not null; ``None``: all."""
        ...


# -- evaluation ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluator:
    """Evaluates what :func:`can_evaluate` offers.

    Attributes
    ----------
    xp : module
        ``cupy`` or ``numpy``.
    source : Source
        Columns and constants.
    """

    xp: Any
    source: Source

    def mask(self, condition: Expression, length: int) -> Array:
        """Mask of ``length`` rows at which a condition is true."""
        result = self.fixed(condition, None)
        true = result.data if result.valid is None else result.data & result.valid
        return self.xp.ascontiguousarray(self.xp.broadcast_to(true, (length,)))

    def fixed(self, node: Expression, active: Active) -> Value:
        """The values of a node of a fixed-width type."""
        found = self.any(node, active)
        if not isinstance(found, Value):
            raise GpuJoinError(f"{node} of type {node.type} is text where a number is needed")
        return found

    def text(self, node: Expression, active: Active) -> Text:
        """The values of a text node."""
        found = self.any(node, active)
        if isinstance(found, Value):
            raise GpuJoinError(f"{node} of type {node.type} is no text")
        return found

    def any(self, node: Expression, active: Active) -> Value | Text:
        """The values of a node."""
        if isinstance(node, ColumnRef):
            return self.source.column(node)
        if isinstance(node, Literal):
            assert node.type is not None
            return (
                self.source.text(node.value)
                if pat.is_string(node.type)
                else v.constant(self.xp, node.value, node.type)
            )
        if isinstance(node, Call):
            return RUNS[node.function](self, node, active)
        if isinstance(node, Cast):
            return self._cast(node, active)
        if isinstance(node, Case):
            return self._case(node, active)
        raise GpuJoinError(f"{node!r} cannot be evaluated on a GPU")

    def _case(self, node: Case, active: Active) -> Value:
        left = active
        branches: list[tuple[Array, Value]] = []
        for condition, branch in zip(node.conditions, node.values, strict=True):
            met = self.true(self.fixed(condition, left))
            branches.append((met, self.fixed(branch, both(left, met))))
            left = without(left, met)
        result = self.fixed(node.otherwise, left)
        for met, chosen in reversed(branches):
            result = v.choose(self.xp, met, chosen, result)
        return result

    def _cast(self, node: Cast, active: Active) -> Value:
        value, target = self.fixed(node.child, active), node.type
        assert target is not None
        if value.dtype == target:
            return value
        if pat.is_decimal(target):
            return v.scaled(value, target)
        if pat.is_timestamp(value.dtype):
            return Value(target, v.day_of_timestamp(value).astype("int32"), value.valid)
        if pat.is_float32(value.dtype):
            return Value(target, v.widened(self.xp, value.data), value.valid)
        return Value(target, value.data.astype(v.numpy_name(target)), value.valid)

    def true(self, value: Value) -> Array:
        """Where a boolean is true, null being not."""
        return value.data if value.valid is None else value.data & value.valid

    def pair(self, node: Call, active: Active) -> tuple[Value, Value, Array | None]:
        """Two operands, the second evaluated where the first is not null, and where both are not."""
        left = self.fixed(node.arguments[0], active)
        right = self.fixed(node.arguments[1], both(active, left.valid))
        return left, right, both(left.valid, right.valid)

    def checked(
        self, node: Call, result: Array, valid: Array | None, failed: Array | None, active: Active
    ) -> Value:
        """A result some rows of which may have failed: an error in ANSI mode, null in TRY mode, else as it is."""
        assert node.type is not None
        if failed is None or node.mode is EvalMode.LEGACY:
            return Value(node.type, result, valid)
        if node.mode is EvalMode.TRY:
            return Value(node.type, result, without(valid, failed))
        self.fail_if(both(both(failed, valid), active), f"{node}: overflow of {node.type}")
        return Value(node.type, result, valid)

    def fail_if(self, rows: Array | None, message: str) -> None:
        """Raise if any row of a mask is true.

        Raises
        ------
        ExpressionEvaluationError
            If one is.
        """
        if rows is not None and bool(self.xp.any(rows)):
            raise ExpressionEvaluationError(
                f"{message}; use try_ functions or spark.sql.ansi.enabled=false for null"
            )


def _and(run: Evaluator, node: Call, active: Active) -> Value:
    return _junction(run, node, active, absorbing=False)


def _or(run: Evaluator, node: Call, active: Active) -> Value:
    return _junction(run, node, active, absorbing=True)


def _junction(run: Evaluator, node: Call, active: Active, *, absorbing: bool) -> Value:
    """AND (absorbing false) or OR (absorbing true) of three-valued operands, the later ones where still undecided."""
    result: Value | None = None
    for argument in node.arguments:
        value = run.fixed(argument, active)
        decided = _is(value, absorbing)
        active = without(active, decided)
        if result is None:
            result = value
            continue
        settled = _is(result, absorbing) | decided
        valid = both(result.valid, value.valid)
        data = settled if absorbing else ~settled
        result = Value(value.dtype, data, None if valid is None else valid | settled)
    assert result is not None
    return result


def _is(value: Value, wanted: bool) -> Array:
    hit = value.data if wanted else ~value.data
    return hit if value.valid is None else hit & value.valid


def _not(run: Evaluator, node: Call, active: Active) -> Value:
    value = run.fixed(node.arguments[0], active)
    return Value(value.dtype, ~value.data, value.valid)


def _compared(run: Evaluator, function: Function, left: Value | Text, right: Value | Text) -> Array:
    if not isinstance(left, Value):
        return left.compare(function, right)
    assert isinstance(right, Value)
    match function:
        case Function.EQ:
            return v.equal(run.xp, left, right)
        case Function.NE:
            return ~v.equal(run.xp, left, right)
        case Function.LT:
            return v.less(run.xp, left, right)
        case Function.GE:
            return ~v.less(run.xp, left, right)
        case Function.GT:
            return v.less(run.xp, right, left)
        case _:
            return ~v.less(run.xp, right, left)


def _comparison(run: Evaluator, node: Call, active: Active) -> Value:
    left = run.any(node.arguments[0], active)
    right = run.any(node.arguments[1], both(active, left.valid))
    return Value(pa.bool_(), _compared(run, node.function, left, right), both(left.valid, right.valid))


def _null_safe(run: Evaluator, node: Call, active: Active) -> Value:
    left, right = (run.any(a, active) for a in node.arguments)
    same = _compared(run, Function.EQ, left, right)
    if left.valid is None and right.valid is None:
        return Value(pa.bool_(), same)
    yes = run.xp.ones(1, dtype=bool)
    one, two = (yes if side.valid is None else side.valid for side in (left, right))
    return Value(pa.bool_(), (same & one & two) | (~one & ~two))


def _in(run: Evaluator, node: Call, active: Active) -> Value:
    """True on a match, else null if anything compared was null; an empty list gives false, even for null."""
    if len(node.arguments) == 1:
        return Value(pa.bool_(), run.xp.zeros(1, dtype=bool))
    value = run.any(node.arguments[0], active)
    active = both(active, value.valid)
    found: Array = run.xp.zeros(1, dtype=bool)
    all_valid = value.valid
    for argument in node.arguments[1:]:
        other = run.any(argument, active)
        hit = _compared(run, Function.EQ, value, other)
        hit = hit if other.valid is None else hit & other.valid
        found = found | (hit if value.valid is None else hit & value.valid)
        all_valid = both(all_valid, other.valid)
        active = without(active, found)
    return Value(pa.bool_(), found, None if all_valid is None else found | all_valid)


def _null_test(run: Evaluator, node: Call, active: Active) -> Value:
    argument = node.arguments[0]
    valid = (
        run.source.column_valid(argument)
        if isinstance(argument, ColumnRef)
        else run.any(argument, active).valid
    )
    wants_null = node.function is Function.IS_NULL
    if valid is None:
        return Value(pa.bool_(), run.xp.full(1, not wants_null, dtype=bool))
    return Value(pa.bool_(), ~valid if wants_null else valid)


def _is_nan(run: Evaluator, node: Call, active: Active) -> Value:
    value = run.fixed(node.arguments[0], active)
    nan = v.equal(run.xp, value, v.constant(run.xp, float("nan"), value.dtype))
    return Value(pa.bool_(), nan if value.valid is None else nan & value.valid)


def _coalesce(run: Evaluator, node: Call, active: Active) -> Value:
    parts: list[Value] = []
    for argument in node.arguments:
        part = run.fixed(argument, active)
        parts.append(part)
        if part.valid is None:
            break
        active = both(active, ~part.valid)
    result = parts[-1]
    for part in reversed(parts[:-1]):
        assert part.valid is not None
        result = v.choose(run.xp, part.valid, part, result)
    return result


_PAIRWISE = {Function.ADD: v.add, Function.SUBTRACT: v.subtract}
_SINGLE = {Function.NEGATE: v.negate, Function.ABS: v.absolute}


def _binary(run: Evaluator, node: Call, active: Active) -> Value:
    left, right, valid = run.pair(node, active)
    if node.function is Function.MULTIPLY:
        result, failed = v.multiply(run.xp, left.data, right.data)
    else:
        result, failed = _PAIRWISE[node.function](left.data, right.data)
    return run.checked(node, result, valid, failed, active)


def _unary(run: Evaluator, node: Call, active: Active) -> Value:
    value = run.fixed(node.arguments[0], active)
    result, failed = _SINGLE[node.function](run.xp, value.data)
    return run.checked(node, result, value.valid, failed, active)


def _division(run: Evaluator, node: Call, active: Active) -> Value:
    """The divisor first, as in Spark: where it is null or zero the dividend is not evaluated."""
    assert node.type is not None
    right = run.fixed(node.arguments[1], active)
    zero = right.data == 0
    left = run.fixed(node.arguments[0], without(both(active, right.valid), zero))
    valid = both(left.valid, right.valid)
    if node.mode is EvalMode.ANSI:
        run.fail_if(both(both(zero, valid), active), f"{node}: division by zero")
    safe = run.xp.where(zero, 1, right.data).astype(right.data.dtype)
    valid = without(valid, zero)
    if node.function is Function.DIVIDE:
        return Value(node.type, left.data / safe, valid)
    if node.function is Function.REMAINDER:
        return Value(node.type, v.remainder(run.xp, left.data, safe), valid)
    result, failed = v.quotient(run.xp, left.data, safe)
    return run.checked(node, result, valid, failed, active)


def _search(run: Evaluator, node: Call, active: Active) -> Value:
    text, wanted = (run.text(a, active) for a in node.arguments)
    return Value(pa.bool_(), text.search(node.function, wanted), both(text.valid, wanted.valid))


def _like(run: Evaluator, node: Call, active: Active) -> Value:
    text = run.text(node.arguments[0], active)
    return Value(pa.bool_(), text.like(*like_parts(node)), text.valid)


def _length(run: Evaluator, node: Call, active: Active) -> Value:
    text = run.text(node.arguments[0], active)
    return Value(pa.int32(), text.length(), text.valid)


def _date_part(run: Evaluator, node: Call, active: Active) -> Value:
    value = run.fixed(node.arguments[0], active)
    return Value(pa.int32(), v.date_part(run.xp, node.function, value.data).astype("int32"), value.valid)


def _time_part(run: Evaluator, node: Call, active: Active) -> Value:
    value = run.fixed(node.arguments[0], active)
    seconds = v.second_of_day(value)
    divisor, modulus = {Function.HOUR: (3600, 24), Function.MINUTE: (60, 60), Function.SECOND: (1, 60)}[
        node.function
    ]
    return Value(pa.int32(), (seconds // divisor % modulus).astype("int32"), value.valid)


def _date_shift(run: Evaluator, node: Call, active: Active) -> Value:
    """Dates wrap around, as Spark's 32-bit days do, in every mode."""
    assert node.type is not None
    left, right, valid = run.pair(node, active)
    shift = v.add if node.function is Function.DATE_ADD else v.subtract
    return Value(node.type, shift(left.data, right.data)[0], valid)


def _date_diff(run: Evaluator, node: Call, active: Active) -> Value:
    left, right, valid = run.pair(node, active)
    return Value(pa.int32(), left.data - right.data, valid)


RUNS: dict[Function, Callable[[Evaluator, Call, Active], Value]] = {
    Function.AND: _and,
    Function.OR: _or,
    Function.NOT: _not,
    **dict.fromkeys(COMPARISONS, _comparison),
    Function.EQ_NULL_SAFE: _null_safe,
    Function.IN: _in,
    Function.IS_NULL: _null_test,
    Function.IS_NOT_NULL: _null_test,
    Function.IS_NAN: _is_nan,
    Function.COALESCE: _coalesce,
    **dict.fromkeys((*_PAIRWISE, Function.MULTIPLY), _binary),
    **dict.fromkeys(_SINGLE, _unary),
    **dict.fromkeys((Function.DIVIDE, Function.INTEGRAL_DIVIDE, Function.REMAINDER), _division),
    **dict.fromkeys(SEARCHES, _search),
    Function.LIKE: _like,
    Function.LENGTH: _length,
    **dict.fromkeys(
        (Function.YEAR, Function.QUARTER, Function.MONTH, Function.DAY, Function.DAY_OF_WEEK,
         Function.DAY_OF_YEAR),
        _date_part,
    ),
    **dict.fromkeys((Function.HOUR, Function.MINUTE, Function.SECOND), _time_part),
    **dict.fromkeys((Function.DATE_ADD, Function.DATE_SUB), _date_shift),
    Function.DATE_DIFF: _date_diff,
}  # fmt: skip
"""How each function that may be offered is computed."""
