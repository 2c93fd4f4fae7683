"""Filtering and projecting frames, and their keys as codes for joins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.expressions.evaluator import Text
from gpujoin.backends.cudf.expressions.offers import can_evaluate
from gpujoin.backends.cudf.expressions.values import Value, constant, in_words, is_wide
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame
from gpujoin.backends.cudf.pipeline.evaluate import PipelineEvaluator
from gpujoin.backends.cudf.pipeline.offers import carried
from gpujoin.errors import GpuJoinError
from gpujoin.model.expressions import Case, ColumnRef, Expression, Literal
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Indices, MapOrder, OutOfBounds
from gpujoin.model.types import is_bytes, is_float, is_text, logical


def evaluator(columns: Columns[Frame], frame: Frame) -> PipelineEvaluator:
    """What computes expressions over a frame."""
    return PipelineEvaluator(columns.ops.xp, columns.source(frame))


def filtered(columns: Columns[Frame], frame: Frame, condition: Expression) -> Frame:
    """Rows for which a condition is true."""
    backend = columns.backend
    rows = backend.frame_rows(frame)
    if rows == 0:
        return frame
    mask = mask_of(columns, frame, condition)
    return backend.gather(frame, backend.selection(mask, True))


def mask_of(columns: Columns[Frame], frame: Frame, condition: Expression) -> Array:
    """Where a condition is true."""
    rows = columns.backend.frame_rows(frame)
    if can_evaluate(condition):
        return columns.backend.evaluate(condition, frame, columns.select(frame, ()), rows)
    return evaluator(columns, frame).mask(condition, rows)


def computed(columns: Columns[Frame], frame: Frame, expressions: Sequence[Expression]) -> Frame:
    """One column per expression; those that are columns already are not copied."""
    rows = columns.backend.frame_rows(frame)
    run = evaluator(columns, frame)
    made: list[Value | Text] = []
    kinds: list[pa.DataType] = []
    at: list[int] = []
    width = len(columns.types(frame))
    for node in expressions:
        if isinstance(node, ColumnRef):
            at.append(node.index)
            continue
        at.append(width + len(made))
        dtype = _typed(node)
        made.append(run.any(node, None) if rows else _nothing(columns, frame, dtype))
        kinds.append(carried(dtype))
    whole = columns.beside([frame, columns.frame(made, kinds, rows)]) if made else frame
    return columns.select(whole, at)


def _nothing(columns: Columns[Frame], frame: Frame, dtype: pa.DataType) -> Value | Text:
    """What stands for the values of no rows: nothing is evaluated, so that nothing fails."""
    if is_text(logical(dtype)):
        return columns.source(frame).text(None)
    return constant(columns.ops.xp, None, logical(dtype))


def _typed(node: Expression) -> pa.DataType:
    if node.type is None:
        raise GpuJoinError(f"{node} is not resolved")
    return node.type


def values_of(columns: Columns[Frame], frame: Frame, at: int) -> Value:
    """A fixed-width column as arrays."""
    dtype = logical(columns.types(frame)[at])
    found = columns.source(frame).column(ColumnRef(side=Side.LEFT, name="", index=at, type=dtype))
    if not isinstance(found, Value):
        raise GpuJoinError(f"column {at} of type {dtype} is text where a number is needed")
    return found


def valid_of(columns: Columns[Frame], frame: Frame, at: int) -> Array | None:
    """Where a column of any type is not null; ``None``: everywhere."""
    dtype = logical(columns.types(frame)[at])
    return columns.source(frame).column_valid(ColumnRef(side=Side.LEFT, name="", index=at, type=dtype))


def guarded(argument: Expression, condition: Expression) -> Expression:
    """An argument that is null, and is not evaluated, where a filter is not true."""
    nothing = Literal(value=None, type=argument.type)
    return Case(conditions=(condition,), values=(argument,), otherwise=nothing, type=argument.type)


def repeated(xp: Any, array: Array, rows: int) -> Array:
    """One value for every row where there is one for all."""
    return xp.ascontiguousarray(xp.broadcast_to(array, (rows,)))


def rows_at(columns: Columns[Frame], frame: Frame, index: Array, *, missing: bool = False) -> Frame:
    """Rows by int32 position; negative ones give nulls if there may be any."""
    rule = OutOfBounds.NULLIFY if missing else OutOfBounds.NEVER
    rows = Indices(index.astype("int32"), int(index.shape[0]), rule, MapOrder.ANY)
    return columns.backend.gather(frame, rows)


# -- keys --------------------------------------------------------------------------------------------------------


def float_bits(xp: Any, value: Value) -> Array:
    """Bits of floats as integers: of one NaN, and of 0.0 in place of −0.0."""
    single = value.data.dtype.itemsize == 4
    kind = "int32" if single else "int64"
    bits = value.data.view(kind)
    magnitude = bits & (0x7FFFFFFF if single else 0x7FFFFFFFFFFFFFFF)
    infinity, nan = (0x7F800000, 0x7FC00000) if single else (0x7FF0000000000000, 0x7FF8000000000000)
    plain = xp.where(magnitude == 0, 0, bits)
    return xp.where(magnitude > infinity, nan, plain).astype(kind)


def plain_keys(columns: Columns[Frame], frame: Frame) -> Frame:
    """Grouping keys that are equal as bits if they are for Spark: floats become integers."""
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
        made = Value(bits, float_bits(xp, value), value.valid)
        parts.append(columns.frame([made], [bits], rows))
    return columns.beside(parts)


def key_codes(
    columns: Columns[Frame], frame: Frame, at: Sequence[int], wanted: Sequence[pa.DataType],
    nulls_equal: Sequence[bool],
) -> Frame:  # fmt: skip
    """Key columns as codes that are equal exactly if the keys are; see :mod:`gpujoin.model.backend`.

    Parameters
    ----------
    columns : Columns
        The library.
    frame : Frame
        The rows.
    at : sequence of int
        Key columns.
    wanted : sequence of pyarrow.DataType
        Common type of each key of both sides.
    nulls_equal : sequence of bool
        Whether nulls of each key match.
    """
    xp, rows = columns.ops.xp, columns.backend.frame_rows(frame)
    parts: list[Frame] = []
    for position, dtype, equal in zip(at, wanted, nulls_equal, strict=True):
        kind = logical(dtype)
        if is_text(kind) or is_bytes(kind):
            parts += _text_code(columns, frame, position, equal=equal)
            continue
        value = values_of(columns, frame, position)
        words, code = _code_words(xp, value, kind)
        valid = value.valid
        if equal and valid is not None:
            words = [xp.where(valid, word, 0).astype(word.dtype) for word in words]
        made = [Value(code, repeated(xp, word, rows), None if equal else valid) for word in words]
        if equal:
            made.append(_null_flag(xp, valid, rows))
        parts.append(columns.frame(made, [one.dtype for one in made], rows))
    return columns.beside(parts)


def _code_words(xp: Any, value: Value, kind: pa.DataType) -> tuple[list[Array], pa.DataType]:
    if is_float(kind):
        bits = float_bits(xp, value)
        return [bits], pa.int32() if bits.dtype.itemsize == 4 else pa.int64()
    if pat.is_decimal(kind):
        if not is_wide(kind):
            return [value.data], pa.int64()
        if value.low is None:
            value = in_words((value.data.view("uint64"), value.data >> 63), kind, value.valid)
        assert value.low is not None
        return [value.low.view("int64"), value.data], pa.int64()
    if kind.bit_width <= 32:
        return [value.data.astype("int32")], pa.int32()
    return [value.data.astype("int64")], pa.int64()


def _text_code(columns: Columns[Frame], frame: Frame, at: int, *, equal: bool) -> list[Frame]:
    """Text is its bytes; where nulls match, a flag tells them from whatever else is null."""
    code = columns.relabelled(columns.select(frame, (at,)), (pa.large_binary(),))
    if not equal:
        return [code]
    valid = valid_of(columns, frame, at)
    rows, xp = columns.backend.frame_rows(frame), columns.ops.xp
    flag = columns.frame([_null_flag(xp, valid, rows)], (pa.int32(),), rows)
    if valid is None:
        return [code, flag]
    empty = columns.frame([columns.source(frame).text("")], (pa.string(),), 1)
    filled = columns.concat([columns.relabelled(code, (pa.string(),)), empty])
    index = xp.where(valid, xp.arange(rows), rows)
    return [columns.relabelled(rows_at(columns, filled, index), (pa.large_binary(),)), flag]


def _null_flag(xp: Any, valid: Array | None, rows: int) -> Value:
    data = xp.zeros(rows, dtype="int32") if valid is None else (~repeated(xp, valid, rows)).astype("int32")
    return Value(pa.int32(), data)
