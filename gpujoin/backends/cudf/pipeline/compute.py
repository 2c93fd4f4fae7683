"""Filters and projects frames, and makes their key frames for joins."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.canonical import float_bits
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame
from gpujoin.backends.cudf.pipeline.offers import carried
from gpujoin.errors import GpuJoinError
from gpujoin.functions.device import Text
from gpujoin.functions.evaluate_device import DeviceEvaluator
from gpujoin.functions.signatures import type_of
from gpujoin.functions.values import Value, constant, ordered
from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.expressions import Case, ColumnRef, Expression, Literal
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Indices, MapOrder, OutOfBounds
from gpujoin.model.types import is_bytes, is_float, is_text, is_whole, logical


def evaluator(columns: Columns[Frame], frame: Frame) -> DeviceEvaluator:
    """Evaluator of expressions over a frame."""
    return DeviceEvaluator(columns.ops.xp, columns.source(frame))


def filtered(columns: Columns[Frame], frame: Frame, condition: Expression) -> Frame:
    """Keep the rows for which a condition is true."""
    backend = columns.backend
    rows = backend.frame_rows(frame)
    if rows == 0:
        return frame
    mask = mask_of(columns, frame, condition)
    return backend.gather(frame, backend.selection(mask, True))


def mask_of(columns: Columns[Frame], frame: Frame, condition: Expression) -> Array:
    """Mask of the rows for which a condition is true."""
    rows = columns.backend.frame_rows(frame)
    return columns.backend.evaluate(condition, frame, columns.select(frame, ()), rows)


def computed(columns: Columns[Frame], frame: Frame, expressions: Sequence[Expression]) -> Frame:
    """Compute one column for each expression; column references are not copied."""
    rows = columns.backend.frame_rows(frame)
    run = evaluator(columns, frame)
    values: list[Value | Text] = []
    kinds: list[pa.DataType] = []
    at: list[int] = []
    width = len(columns.types(frame))
    for node in expressions:
        if isinstance(node, ColumnRef):
            at.append(node.index)
            continue
        at.append(width + len(values))
        dtype = type_of(node)
        values.append(run.any(node, None) if rows else _nothing(columns, frame, dtype))
        kinds.append(carried(dtype))
    extended = columns.hstack([frame, columns.frame(values, kinds, rows)]) if values else frame
    return columns.select(extended, at)


def nothing(columns: Columns[Frame], types: Sequence[pa.DataType]) -> Frame:
    """Frame without rows."""
    frame = columns.frame([], [], 0)
    return columns.frame([_nothing(columns, frame, dtype) for dtype in types], list(map(carried, types)), 0)


def _nothing(columns: Columns[Frame], frame: Frame, dtype: pa.DataType) -> Value | Text:
    """Empty column of a type. Nothing is evaluated, so that nothing fails."""
    kind = logical(dtype)
    if is_text(kind) or is_bytes(kind):
        return columns.source(frame).text(None)
    return constant(columns.ops.xp, None, kind)


def values_of(columns: Columns[Frame], frame: Frame, at: int) -> Value:
    """View a fixed-width column as arrays."""
    dtype = logical(columns.types(frame)[at])
    value = columns.source(frame).column(ColumnRef(side=Side.LEFT, name="", index=at, type=dtype))
    if not isinstance(value, Value):
        raise GpuJoinError(f"column {at} of type {dtype} is text where a number is needed")
    return value


def valid_of(columns: Columns[Frame], frame: Frame, at: int) -> Array | None:
    """Mask of the rows at which a column is not null; ``None``: all."""
    dtype = logical(columns.types(frame)[at])
    return columns.source(frame).column_valid(ColumnRef(side=Side.LEFT, name="", index=at, type=dtype))


def inputs_of(call: AggregateCall) -> list[Expression]:
    """Arguments, then the filter. Arguments are evaluated, and may raise, only where the filter is true."""
    condition = call.filter
    if condition is None:
        return list(call.arguments)
    # A mere column cannot fail, and may have a type that CASE does not support.
    arguments = [a if isinstance(a, ColumnRef) else _guarded(a, condition) for a in call.arguments]
    return [*arguments, condition]


def _guarded(argument: Expression, condition: Expression) -> Expression:
    """Make an argument null if a filter is not true, without evaluating it."""
    nothing = Literal(value=None, type=argument.type)
    return Case(conditions=(condition,), values=(argument,), otherwise=nothing, type=argument.type)


def rows_at(columns: Columns[Frame], frame: Frame, index: Array, *, missing: bool = False) -> Frame:
    """Gather rows by int32 position; negative positions give null rows if ``missing``."""
    rule = OutOfBounds.NULLIFY if missing else OutOfBounds.NEVER
    rows = Indices(index.astype("int32"), int(index.shape[0]), rule, MapOrder.ANY)
    return columns.backend.gather(frame, rows)


def sortable(columns: Columns[Frame], key: Frame) -> Frame:
    """Convert a sort key, a frame of one column, so that the library's order is Spark's: NaN is the greatest float."""
    (dtype,) = columns.types(key)
    if not is_float(dtype):
        return key
    value = values_of(columns, key, 0)
    words = ordered(columns.ops.xp, value)[0]
    kind = pa.int32() if words.dtype.itemsize == 4 else pa.int64()
    return columns.frame([Value(kind, words, value.valid)], (kind,), columns.backend.frame_rows(key))


# -- keys --------------------------------------------------------------------------------------------------------


def plain_keys(columns: Columns[Frame], frame: Frame) -> Frame:
    """Convert grouping keys so that equal keys have equal bits: floats become integers."""
    types = columns.types(frame)
    if not any(map(is_float, types)):
        return frame
    rows = columns.backend.frame_rows(frame)
    xp = columns.ops.xp
    parts: list[Frame] = []
    for at, dtype in enumerate(types):
        if not is_float(dtype):
            parts.append(columns.select(frame, (at,)))
            continue
        value = values_of(columns, frame, at)
        bits = pa.int32() if pat.is_float32(dtype) else pa.int64()
        integers = Value(bits, float_bits(xp, value.data), value.valid)
        parts.append(columns.frame([integers], [bits], rows))
    return columns.hstack(parts)


def key_frame(columns: Columns[Frame], frame: Frame, types: Sequence[pa.DataType], null_safe: Sequence[bool]) -> Frame:
    """Make a key frame of the first columns, in the types that both sides share; the backend normalises them."""
    parts = [widened_key(columns, frame, position, dtype) for position, dtype in enumerate(types)]
    return columns.null_safe(columns.hstack(parts), null_safe)


def widened_key(columns: Columns[Frame], frame: Frame, at: int, common: pa.DataType) -> Frame:
    """Select a key column, in the type that both sides share."""
    kind, own = logical(common), logical(columns.types(frame)[at])
    if not is_whole(kind) or own == kind:
        return columns.select(frame, (at,))
    value = values_of(columns, frame, at)
    widened = Value(kind, value.data.astype(f"int{kind.bit_width}"), value.valid)
    return columns.frame([widened], [kind], columns.backend.frame_rows(frame))
