"""Compiles residual conditions into kernels: one pass over the pairs, instead of one for each node of the condition.

Where each probe row has at most one match, no pairs are made. The kernel reads the columns of both sides in place, and
drops the matches for which the condition is not true.

Conditions over fixed-width values are translated to C++: logic, comparisons, null tests, widening casts, sums and
differences of integers, and sums, differences and products of doubles. All others, and those that fail for some pair,
are evaluated by :class:`~gpujoin.functions.evaluate_device.DeviceEvaluator`, which knows for which rows Spark
evaluates each node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array, ArrayOps
from gpujoin.errors import GpuJoinError, KernelCompileError
from gpujoin.functions.casts import is_widening
from gpujoin.functions.device import Offer, Source
from gpujoin.functions.evaluate_device import DeviceEvaluator
from gpujoin.functions.spec import SPECS
from gpujoin.functions.values import Value, constant
from gpujoin.launch.device import Device
from gpujoin.launch.matches import UniqueMatches
from gpujoin.launch.residual import ConditionColumn, mask, restrict
from gpujoin.logs import log
from gpujoin.model.expressions import Call, Cast, ColumnRef, Expression, Literal
from gpujoin.model.jointype import Side
from gpujoin.model.types import is_wide_decimal

FEWEST_PAIRS = 1 << 16
"""Least pairs that a kernel is compiled for: a new condition may take half a second."""

MOST_TEXT = 1 << 12
"""Most characters of a condition in C++: longer ones take seconds to compile."""

_INSTEAD = "a condition does not compile, so it is evaluated by array operations: %s"


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
    return DeviceEvaluator(ops.xp, source).mask(condition, length)


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
        restricted, failed = restrict(
            ops.kernels, written.text, columns, matches, build_rows, probe_is_left=probe_side is Side.LEFT,
            constants=written.constants,
        )  # fmt: skip
    except KernelCompileError as problem:
        log.warning(_INSTEAD, problem)
        return None
    return None if failed else restricted


def _column(device: Device, source: Source, node: ColumnRef, rows: int, *, nulls: bool) -> ConditionColumn:
    """Column of a condition as kernels read it, or its nulls alone. A constant is repeated for each row."""
    xp = device.xp

    def expanded(array: Array) -> Array:
        return xp.ascontiguousarray(xp.broadcast_to(xp.asarray(array), (rows,)))

    if nulls:
        valid = source.column_valid(node)
        return ConditionColumn(None, None if valid is None else expanded(valid))
    value = source.column(node)
    assert isinstance(value, Value)
    return ConditionColumn(expanded(value.data), None if value.valid is None else expanded(value.valid))


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
        offer = SPECS[node.function].device if isinstance(node, Call) else None
        if isinstance(node, Call) and isinstance(offer, Offer) and offer.kernel is not None:
            text = offer.kernel(self, node)
            if text is not None:
                return text
        raise _NotWrittenError(str(node))

    def missing(self, node: ColumnRef) -> str:
        """Write the test whether a column is null."""
        return f"{_row(node)}.missing({self.number(node, only_nulls=True)})"

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
        if not (plain and is_widening(source, target)):
            raise _NotWrittenError(str(node))
        return f"{child}.as<{_c_type(target)}>()"


def _same_unscaled(source: pa.DataType | None, target: pa.DataType | None) -> bool:
    """Whether a cast of a decimal keeps its unscaled integer, with one word in both types."""
    if source is None or target is None or not (pat.is_decimal128(source) and pat.is_decimal128(target)):
        return False
    return bool(source.scale == target.scale and source.precision <= target.precision and not is_wide_decimal(target))


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
    if pat.is_timestamp(dtype) or (pat.is_decimal128(dtype) and not is_wide_decimal(dtype)):
        return "i64"
    raise _NotWrittenError(str(dtype))
