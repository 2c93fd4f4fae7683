"""Compiles residual conditions into kernels: one pass over the pairs, instead of one for each node of the condition.

Where each probe row has at most one match, no pairs are made. The kernel reads the columns of both sides in place, and
drops the matches for which the condition is not true.

Conditions over fixed-width values are translated to C++: logic, comparisons, null tests, widening casts, sums and
differences of integers, and sums, differences and products of doubles. All others, and those that fail for some pair,
are evaluated by :class:`~gpujoin.functions.evaluate_device.PipelineEvaluator`, which knows for which rows Spark
evaluates each node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array, ArrayOps
from gpujoin.errors import GpuJoinError, KernelCompileError
from gpujoin.functions.device import Source
from gpujoin.functions.evaluate_device import PipelineEvaluator, cast_fits
from gpujoin.functions.values import Value, constant, is_wide
from gpujoin.launch.device import Device
from gpujoin.launch.matches import UniqueMatches
from gpujoin.launch.residual import ConditionColumn, mask, restrict
from gpujoin.logs import log
from gpujoin.model.expressions import Call, Cast, ColumnRef, EvalMode, Expression, Function, Literal
from gpujoin.model.jointype import Side

FEWEST_PAIRS = 1 << 16
"""Least pairs for which a kernel is compiled, which may take half a second for a new condition."""

MOST_TEXT = 1 << 12
"""Most characters of a condition in C++: longer ones take seconds to compile."""

MOST_MEMBERS = 16
"""Most elements of an ``IN`` list: the compiler's time grows faster than the list."""

_INSTEAD = "a condition does not compile, so it is evaluated by array operations: %s"
_MODES = {EvalMode.LEGACY: "WRAP", EvalMode.TRY: "NULL_ON_OVERFLOW", EvalMode.ANSI: "FAIL"}


class _NotWrittenError(GpuJoinError):
    """A condition has a part that is not translated to C++."""


def evaluated(ops: ArrayOps, source: Source, condition: Expression, length: int) -> Array:
    """Mask of the pairs for which a condition is true, by a kernel if possible and useful, else by array operations.

    Raises ``ExpressionEvaluationError`` if the condition fails on a value in ANSI mode.
    """
    if ops.kernels is not None and length >= FEWEST_PAIRS:
        compiled = compiled_mask(ops.kernels, source, condition, length)
        if compiled is not None:
            return compiled
    return PipelineEvaluator(ops.xp, source).mask(condition, length)


def compiled_mask(device: Device, source: Source, condition: Expression, length: int) -> Array | None:
    """Mask of the pairs for which a condition is true, by a kernel; ``None`` if the kernel cannot tell."""
    written = write(condition)
    if written is None:
        return None
    columns = [_column(device, source, node, length, nulls=only) for node, only in written.columns]
    try:
        true_pairs, failed = mask(device, written.text, columns, length, constants=written.constants)
    except KernelCompileError as problem:
        log.warning(_INSTEAD, problem)
        return None
    return None if failed else true_pairs


def restrict_matches(
    ops: ArrayOps,
    source: Source,
    condition: Expression,
    matches: UniqueMatches,
    build_rows: int,
    probe_side: Side,
) -> UniqueMatches | None:
    """Keep the matches for which a condition is true, by a kernel.

    ``None`` if there are too few matches to compile for, if the condition cannot be compiled, or if it fails on some
    pair. Raises ``DeviceMemoryError`` if the result does not fit.
    """
    if ops.kernels is None or matches.pairs < max(1, FEWEST_PAIRS):
        return None
    written = write(condition)
    if written is None:
        return None
    rows = {probe_side: int(matches.row.shape[0]), probe_side.other: build_rows}
    columns = [_column(ops.kernels, source, node, rows[node.side], nulls=only) for node, only in written.columns]
    try:
        kept, failed = restrict(
            ops.kernels, written.text, columns, matches, build_rows, probe_is_left=probe_side is Side.LEFT,
            constants=written.constants,
        )  # fmt: skip
    except KernelCompileError as problem:
        log.warning(_INSTEAD, problem)
        return None
    return None if failed else kept


def _column(device: Device, source: Source, node: ColumnRef, rows: int, *, nulls: bool) -> ConditionColumn:
    """Column of a condition as kernels read it, or its nulls alone. A constant is repeated for each row."""
    xp = device.xp

    def whole(array: Array) -> Array:
        return xp.ascontiguousarray(xp.broadcast_to(xp.asarray(array), (rows,)))

    if nulls:
        valid = source.column_valid(node)
        return ConditionColumn(None, None if valid is None else whole(valid))
    value = source.column(node)
    assert isinstance(value, Value)
    return ConditionColumn(whole(value.data), None if value.valid is None else whole(value.valid))


@dataclass(frozen=True)
class Written:
    """A condition in C++."""

    text: str
    """Expression that uses the helpers of ``residual.cu``."""
    columns: tuple[tuple[ColumnRef, bool], ...]
    """Columns in the order in which the text numbers them, and whether only their nulls are read."""
    constants: tuple[np.generic, ...] = ()
    """Constants in the order in which the text numbers them."""


def write(condition: Expression) -> Written | None:
    """Translate a resolved condition to C++; ``None`` if a part cannot be translated, or if it would be too long."""
    writer = _Writer()
    try:
        text = writer.node(condition)
    except _NotWrittenError:
        return None
    if len(text) > MOST_TEXT:
        return None
    return Written(text, tuple((node, only) for node, only in writer.columns.values()), tuple(writer.constants))


@dataclass
class _Writer:
    columns: dict[tuple[Side, int, bool], tuple[ColumnRef, bool]] = field(default_factory=dict)
    constants: list[np.generic] = field(default_factory=list)

    def node(self, node: Expression) -> str:
        if isinstance(node, ColumnRef):
            return self._column(node)
        if isinstance(node, Literal):
            return self._literal(node)
        if isinstance(node, Cast):
            return self._cast(node)
        if isinstance(node, Call) and node.function in _CALLS:
            return _CALLS[node.function](self, node)
        raise _NotWrittenError(str(node))

    def number(self, node: ColumnRef, *, only_nulls: bool) -> int:
        key = (node.side, node.index, only_nulls)
        self.columns.setdefault(key, (node, only_nulls))
        return list(self.columns).index(key)

    def _column(self, node: ColumnRef) -> str:
        kind = _c_type(node.type)
        number = self.number(node, only_nulls=False)
        return f"{_row(node)}.truth({number})" if kind == "bool" else f"{_row(node)}.column<{kind}>({number})"

    def _literal(self, node: Literal) -> str:
        kind = _c_type(node.type)
        if node.value is None:
            return f"unknown<{kind}>()"
        value = constant(np, node.value, node.type).data[0]
        if kind == "bool":  # what a compiler can leave out
            return f"literal<bool>({'true' if value else 'false'})"
        self.constants.append(value)
        return f"constant<{kind}>(pair, {len(self.constants) - 1})"

    def _cast(self, node: Cast) -> str:
        source, target = node.child.type, node.type
        child = self.node(node.child)
        if source == target or _same_unscaled(source, target):
            return child
        plain = (pat.is_signed_integer(source) or pat.is_floating(source)) and (
            pat.is_signed_integer(target) or pat.is_floating(target)
        )
        if not (plain and cast_fits(node)):
            raise _NotWrittenError(str(node))
        return f"{child}.as<{_c_type(target)}>()"


def _same_unscaled(source: pa.DataType | None, target: pa.DataType | None) -> bool:
    """Whether a cast of a decimal keeps its unscaled integer, with one word in both types."""
    if source is None or target is None or not (pat.is_decimal128(source) and pat.is_decimal128(target)):
        return False
    return bool(source.scale == target.scale and source.precision <= target.precision and not is_wide(target))


def _row(node: ColumnRef) -> str:
    return "from_left(pair)" if node.side is Side.LEFT else "from_right(pair)"


def _c_type(dtype: pa.DataType | None) -> str:
    if dtype is None:
        raise _NotWrittenError("no type")
    if pat.is_boolean(dtype):
        return "bool"
    if pat.is_signed_integer(dtype):
        return f"i{dtype.bit_width}"
    if pat.is_float32(dtype):
        return "float"
    if pat.is_float64(dtype):
        return "double"
    if pat.is_date32(dtype):
        return "i32"
    if pat.is_timestamp(dtype) or (pat.is_decimal128(dtype) and not is_wide(dtype)):
        return "i64"
    raise _NotWrittenError(str(dtype))


def _chain(method: str) -> Callable[[_Writer, Call], str]:
    def write_chain(run: _Writer, node: Call) -> str:
        first, *others = map(run.node, node.arguments)
        return first + "".join(f".{method}({other})" for other in others)

    return write_chain


def _swapped(method: str) -> Callable[[_Writer, Call], str]:
    def write_swapped(run: _Writer, node: Call) -> str:
        left, right = map(run.node, node.arguments)
        return f"{right}.{method}({left})"

    return write_swapped


def _suffix(text: str) -> Callable[[_Writer, Call], str]:
    return lambda run, node: f"{run.node(node.arguments[0])}.{text}"


def _null_test(run: _Writer, node: Call) -> str:
    argument = node.arguments[0]
    if isinstance(argument, ColumnRef):
        test = f"{_row(argument)}.missing({run.number(argument, only_nulls=True)})"
    else:
        test = f"{run.node(argument)}.is_null()"
    return test if node.function is Function.IS_NULL else f"{test}.negated()"


def _in(run: _Writer, node: Call) -> str:
    if len(node.arguments) == 1:
        return "literal<bool>(false)"
    if len(node.arguments) > 1 + MOST_MEMBERS:
        raise _NotWrittenError(str(node.function))
    value, *others = map(run.node, node.arguments)
    first, *rest = (f"{value}.eq({other})" for other in others)
    return first + "".join(f".either({test})" for test in rest)


def _arithmetic(integers: str | None, doubles: str) -> Callable[[_Writer, Call], str]:
    def write_arithmetic(run: _Writer, node: Call) -> str:
        left, right = map(run.node, node.arguments)
        kind = _c_type(node.type)
        if pat.is_decimal(node.type):  # whose operands may have other scales
            raise _NotWrittenError(str(node))
        if kind == "double":
            return f"{left}.{doubles}({right})"
        if integers is None or kind not in ("i32", "i64"):
            raise _NotWrittenError(str(node))
        return f"{left}.{integers}({right}).checked<{_MODES[node.mode]}>(pair)"

    return write_arithmetic


_CALLS: dict[Function, Callable[[_Writer, Call], str]] = {
    Function.AND: _chain("both"),
    Function.OR: _chain("either"),
    Function.NOT: _suffix("negated()"),
    Function.EQ: _chain("eq"),
    Function.NE: _chain("ne"),
    Function.LT: _chain("lt"),
    Function.LE: _chain("le"),
    Function.GT: _swapped("lt"),
    Function.GE: _swapped("le"),
    Function.EQ_NULL_SAFE: _chain("same"),
    Function.IS_NULL: _null_test,
    Function.IS_NOT_NULL: _null_test,
    Function.IS_NAN: _suffix("is_nan()"),
    Function.IN: _in,
    Function.ADD: _arithmetic("add", "plus"),
    Function.SUBTRACT: _arithmetic("subtract", "minus"),
    Function.MULTIPLY: _arithmetic(None, "times"),
}
