"""Text values and columns of expressions, with libcudf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import cupy
import pyarrow as pa
import pyarrow.types as pat
import pylibcudf as plc

from gpujoin.backends.cudf.arrays import Array, ArrayOps
from gpujoin.backends.cudf.device import STREAM
from gpujoin.backends.cudf.frames import (
    CudfFrame,
    as_array,
    as_column,
    decimal_words,
    null_row,
    text_parts,
    upload,
    validity,
)
from gpujoin.backends.cudf.index import IndexProbe
from gpujoin.backends.cudf.residual import evaluated, restrict_matches
from gpujoin.backends.cudf.utf8 import is_ascii, is_utf8
from gpujoin.functions.device import Text
from gpujoin.functions.values import Value, in_words
from gpujoin.model.expressions import ColumnRef, Expression, Function
from gpujoin.model.jointype import Side
from gpujoin.model.types import logical

_BOOL = plc.DataType(plc.types.TypeId.BOOL8)
_INT32 = plc.DataType(plc.types.TypeId.INT32)
_MILLISECONDS_OF_A_DAY = 86_400_000
_OPERATORS = {
    Function.EQ: plc.binaryop.BinaryOperator.EQUAL,
    Function.NE: plc.binaryop.BinaryOperator.NOT_EQUAL,
    Function.LT: plc.binaryop.BinaryOperator.LESS,
    Function.LE: plc.binaryop.BinaryOperator.LESS_EQUAL,
    Function.GT: plc.binaryop.BinaryOperator.GREATER,
    Function.GE: plc.binaryop.BinaryOperator.GREATER_EQUAL,
}
_SIDES = {
    Function.TRIM: plc.strings.SideType.BOTH,
    Function.TRIM_LEFT: plc.strings.SideType.LEFT,
    Function.TRIM_RIGHT: plc.strings.SideType.RIGHT,
}
_CASES = {Function.LOWER: plc.strings.case.to_lower, Function.UPPER: plc.strings.case.to_upper}
_SEARCHES = {
    Function.STARTS_WITH: plc.strings.find.starts_with,
    Function.ENDS_WITH: plc.strings.find.ends_with,
    Function.CONTAINS: plc.strings.find.contains,
}


def evaluate(ops: ArrayOps, condition: Expression, left: CudfFrame, right: CudfFrame, length: int) -> Array:
    """Mask of the candidate pairs for which a condition is true.

    Raises ``ExpressionEvaluationError`` if the condition fails on a value in ANSI mode.
    """
    return evaluated(ops, FrameSource({Side.LEFT: left, Side.RIGHT: right}, length), condition, length)


def restrict(
    ops: ArrayOps, condition: Expression, probe: IndexProbe, frames: dict[Side, CudfFrame], probe_side: Side
) -> IndexProbe | None:
    """Drop the matches of a probe for which a condition is not true (:func:`.residual.restrict_matches`)."""
    matches = probe.single()
    if matches is None:
        return None
    source = FrameSource(frames, probe.rows)
    restricted = restrict_matches(ops, source, condition, matches, probe.build_rows, probe_side)
    return None if restricted is None else probe.restricted_to(restricted)


@dataclass(frozen=True, eq=False)
class CudfText:
    """A text column, or a constant for ``length`` rows."""

    content: plc.Column | str | None
    length_: int

    @cached_property
    def column(self) -> plc.Column:
        """Column with a text for each row. A null constant becomes empty text, since its results are masked."""
        if isinstance(self.content, plc.Column):
            return self.content
        return plc.Column.from_scalar(self._scalar, self.length_, stream=STREAM)

    @cached_property
    def _scalar(self) -> plc.Scalar:
        assert not isinstance(self.content, plc.Column)
        return plc.Scalar.from_py(self.content or "", stream=STREAM)

    @property
    def scalar(self) -> plc.Scalar:
        """The constant; a null one is null."""
        if self.content is not None:
            return self._scalar
        return null_row((pa.string(),)).columns()[0].to_scalar(stream=STREAM)

    @property
    def operand(self) -> plc.Column | plc.Scalar:
        """The text as second operand of libcudf's functions."""
        return self.content if isinstance(self.content, plc.Column) else self._scalar

    @property
    def valid(self) -> Array | None:
        if isinstance(self.content, plc.Column):
            return validity(self.content)
        return cupy.zeros(1, dtype=bool) if self.content is None else None

    def compare(self, function: Function, other: CudfText) -> Array:
        return as_array(
            plc.binaryop.binary_operation(self.column, other.operand, _OPERATORS[function], _BOOL, stream=STREAM)
        )

    def search(self, function: Function, other: CudfText) -> Array:
        return as_array(_SEARCHES[function](self.column, other.operand, stream=STREAM))

    def like(self, pattern: str, escape: str) -> Array:
        return as_array(plc.strings.contains.like(self.column, pattern, escape, stream=STREAM))

    def length(self) -> Array:
        return as_array(plc.strings.attributes.count_characters(self.column, stream=STREAM))

    def bytes_length(self) -> Array:
        return as_array(plc.strings.attributes.count_bytes(self.column, stream=STREAM))

    def concatenated(self, others: Sequence[CudfText]) -> CudfText:
        texts = [self, *others]
        if any(text.content is None for text in texts):
            return CudfText(None, self.length_)
        table = plc.Table([text.column for text in texts])
        nothing = plc.Scalar.from_py("", stream=STREAM)
        # Unless it is told to put a null in the place of a null, libcudf takes that for empty text.
        null = CudfText(None, 1).scalar
        return CudfText(plc.strings.combine.concatenate(table, nothing, null, stream=STREAM), self.length_)

    def substring(self, start: int, stop: int) -> CudfText:
        # libcudf reads 32 bits of either scalar, whatever its type.
        first, end = (plc.Scalar.from_py(n, _INT32, stream=STREAM) for n in (start, stop))
        return CudfText(plc.strings.slice.slice_strings(self.column, first, end, stream=STREAM), self.length_)

    def stripped(self, function: Function) -> CudfText:
        space = plc.Scalar.from_py(" ", stream=STREAM)
        return CudfText(plc.strings.strip.strip(self.column, _SIDES[function], space, stream=STREAM), self.length_)

    def cased(self, function: Function) -> CudfText:
        if self.content is None:
            return self
        return CudfText(_CASES[function](self.column, stream=STREAM), self.length_)

    def where(self, mask: Array, other: CudfText) -> CudfText:
        own, instead = (t.content if isinstance(t.content, plc.Column) else t.scalar for t in (self, other))
        rows = as_column(cupy.ascontiguousarray(cupy.broadcast_to(mask, (self.length_,))))
        return CudfText(plc.copying.copy_if_else(own, instead, rows, stream=STREAM), self.length_)

    def is_ascii(self) -> bool:
        if isinstance(self.content, plc.Column):
            return is_ascii(*text_parts(self.content))
        return self.content is None or self.content.isascii()

    def is_utf8(self) -> bool:
        return not isinstance(self.content, plc.Column) or is_utf8(cupy, *text_parts(self.content))


@dataclass(frozen=True)
class FrameSource:
    """The columns of two frames of candidate pairs, as leaves of expressions."""

    frames: dict[Side, CudfFrame]
    length: int

    def text(self, value: str | None) -> CudfText:
        return CudfText(value, self.length)

    def column_valid(self, node: ColumnRef) -> Array | None:
        column, _ = self._plain(node)
        return cupy.zeros(1, dtype=bool) if pat.is_null(self._type(node)) else validity(column)

    def column(self, node: ColumnRef) -> Value | Text:
        column, stored = self._plain(node)
        dtype = logical(stored)
        if pat.is_string(dtype):
            return CudfText(column, self.length)
        valid = validity(column)
        if pat.is_decimal128(stored):
            return in_words(decimal_words(column), dtype, valid)
        data = as_array(column)
        if pat.is_decimal(stored):
            return Value(dtype, data.astype(cupy.int64), valid)
        if pat.is_date64(stored):
            return Value(dtype, (data // _MILLISECONDS_OF_A_DAY).astype(cupy.int32), valid)
        return Value(dtype, data, valid)

    def _type(self, node: ColumnRef) -> pa.DataType:
        return self.frames[node.side].types[node.index]

    def _plain(self, node: ColumnRef) -> tuple[plc.Column, pa.DataType]:
        """Column of values and its type; a dictionary is decoded."""
        frame, dtype = self.frames[node.side], self._type(node)
        column = frame.table.columns()[node.index]
        while isinstance(dtype, pa.BaseExtensionType):
            dtype = dtype.storage_type
        if not pat.is_dictionary(dtype):
            return column, dtype
        values = upload(pa.table({"values": frame.dictionaries[node.index]}))
        if values.rows == 0:
            return plc.Column.all_null_like(values.table.columns()[0], column.size(), stream=STREAM), dtype.value_type
        codes, valid = as_array(column), validity(column)
        if valid is not None:
            codes = cupy.where(valid, codes, -(1 << 31)).astype(cupy.int32)
        looked_up = plc.copying.gather(
            values.table, as_column(codes), plc.copying.OutOfBoundsPolicy.NULLIFY, stream=STREAM
        )
        return looked_up.columns()[0], dtype.value_type
