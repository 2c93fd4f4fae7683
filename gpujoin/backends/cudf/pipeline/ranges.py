"""Searches frames by ranges: joins on order whose tables stay on the device.

Operands are evaluated over frames, and become codes of 64 bits that order as in Spark; the arithmetic of bounds is that
of :mod:`gpujoin.model.ranges`. Texts, bytes and wide decimals are coded by their ranks (:mod:`.ordercodes`). Equality
keys are numbered by the distinct keys of the build side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Generic

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.pipeline.asof import FrameGroups, code_frame
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame
from gpujoin.backends.cudf.pipeline.compute import computed, evaluator
from gpujoin.backends.cudf.pipeline.offers import carried
from gpujoin.backends.cudf.pipeline.ordercodes import RankCodes, is_ranked
from gpujoin.backends.ordered.reductions import total
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.functions import values as v
from gpujoin.functions.support import is_device_supported
from gpujoin.functions.values import Value
from gpujoin.model.backend import CodedRows
from gpujoin.model.expressions import Cast, ColumnRef, EvalMode, Expression
from gpujoin.model.jointype import Side
from gpujoin.model.ranges import LEAST, MOST, Axis, Bound, Extent, limits, reached, too_far
from gpujoin.model.types import is_whole, logical


def can_search(axes: Sequence[Axis]) -> bool:
    """Whether the operands of ranges are computed on the device."""
    return all(
        _computes(axis.build, axis.type)
        and all(_computes(bound.probe, axis.type) for bound in axis.bounds)
        and all(bound.reach is None or _computes(bound.reach, pa.int64()) for bound in axis.bounds)
        for axis in axes
    )


def _computes(node: Expression, order_type: pa.DataType) -> bool:
    """Whether the device computes a value, and converts it to the type of its order without loss."""
    if node.type is None or not is_device_supported(node):
        return False
    own, order_type = logical(node.type), logical(order_type)
    if is_whole(own) and is_whole(order_type):
        return bool(own.bit_width <= order_type.bit_width)
    if pat.is_decimal(own) and pat.is_decimal(order_type):
        return bool(
            own.scale <= order_type.scale and own.precision - own.scale <= order_type.precision - order_type.scale
        )
    return own == order_type or bool(pat.is_float32(own) and pat.is_float64(order_type))


@dataclass(frozen=True)
class FrameRanges(Generic[Frame]):
    """Converts rows of frames to codes of ranges."""

    columns: Columns[Frame]
    entered: Callable[[], AbstractContextManager[None]]
    axes: tuple[Axis, ...]
    """Ranges of the condition, one or two."""
    groups: FrameGroups[Frame] | None
    """Numbers the equality keys; ``None``: there are none."""
    orders: tuple[RankCodes[Frame] | None, ...]
    """How values of each axis are coded; ``None``: by themselves."""
    extents: tuple[Extent | None, ...]
    """Least and greatest build-side value of each axis that is compared by distance; ``None``: there is none."""

    @classmethod
    def coded(
        cls, columns: Columns[Frame], entered: Callable[[], AbstractContextManager[None]], frame: Frame,
        axes: Sequence[Axis], key_types: Sequence[pa.DataType], null_safe: Sequence[bool],
    ) -> CodedRows[Frame]:  # fmt: skip
        """Code the rows of a build side.

        Raises ``ExpressionEvaluationError`` if an operand has no value for some row, ``DeviceValueError`` if the device
        does not compute it.
        """
        orders: list[RankCodes[Frame] | None] = []
        points: list[Value] = []
        extents: list[Extent | None] = []
        for axis in axes:
            if is_ranked(axis.type):
                order, codes = RankCodes.from_build(columns, _operand_column(columns, frame, axis.build, axis.type))
                orders.append(order)
                points.append(codes)
                extents.append(None)
                continue
            value = _operand(columns, frame, axis.build, axis.type)
            orders.append(None)
            points.append(_codes(columns, value))
            extents.append(None if axis.widest is None else _extent(columns, value))
        groups, numbers = None, None
        if key_types:
            groups, numbers = FrameGroups.from_build(columns, frame, key_types, null_safe)
        whole = code_frame(columns, frame, points if numbers is None else [numbers, *points])
        codec = cls(columns, entered, tuple(axes), groups, tuple(orders), tuple(extents))
        return CodedRows(whole, groups is not None, codec.bounds, 0.0 if numbers is None else _spread(columns, numbers))

    def bounds(self, frame: Frame) -> Frame:
        """Code the ranges that probe rows ask for. Raises as :meth:`coded`."""
        with self.entered():
            numbers = [] if self.groups is None else [self.groups.numbers(frame)]
            sought = zip(self.axes, self.orders, self.extents, strict=True)
            ends = [end for axis, order, extent in sought for end in self._bounds(frame, axis, order, extent)]
            return code_frame(self.columns, frame, [*numbers, *ends])

    def _bounds(
        self, frame: Frame, axis: Axis, order: RankCodes[Frame] | None, extent: Extent | None
    ) -> tuple[Value, Value]:
        """Lowest and highest matching code of each row, both included."""
        columns = self.columns

        def codes_of(bound: Bound) -> tuple[Array, Array | None]:
            if order is not None:
                value = order.codes(_operand_column(columns, frame, bound.probe, axis.type))
                return value.data, value.valid
            value = _operand(columns, frame, bound.probe, axis.type)
            if axis.widest is not None and too_far(extent, _extent(columns, value), axis.widest):
                raise ExpressionEvaluationError("some pair of rows is farther apart than the distance's type holds")
            if isinstance(bound.offset, float):
                value = replace(value, data=reached(columns.ops.xp, value.data, bound.offset, bound.comparison))
            return _codes(columns, value).data, value.valid

        def distance(node: Expression) -> tuple[Array, Array | None]:
            value = _operand(columns, frame, node, pa.int64())
            return value.data, value.valid

        low, high, valid = limits(columns.ops.xp, axis, 1, codes_of, distance)
        return Value(pa.int64(), low, valid), Value(pa.int64(), high)


def _operand(columns: Columns[Frame], frame: Frame, node: Expression, order_type: pa.DataType) -> Value:
    """Compute an expression over the rows of one side, in the type of its order."""
    xp, kind = columns.ops.xp, logical(order_type)
    if columns.backend.frame_rows(frame) == 0:
        return Value(kind, xp.zeros(0, dtype=v.numpy_name(kind)))
    value = evaluator(columns, frame).fixed(_on_left(node), None)
    if value.dtype == kind:
        return value
    if pat.is_decimal(kind):
        return v.scaled(value, kind)
    if pat.is_float64(kind):
        return Value(kind, v.widened(xp, value.data), value.valid)
    return Value(kind, value.data.astype(v.numpy_name(kind)), value.valid)


def _operand_column(columns: Columns[Frame], frame: Frame, node: Expression, order_type: pa.DataType) -> Frame:
    """The same as a frame of one column."""
    node, kind = _on_left(node), logical(order_type)
    if logical(node.type) != kind:
        node = Cast(child=node, to=kind, mode=EvalMode.LEGACY, type=kind)
    return columns.relabelled(computed(columns, frame, [node]), (carried(kind),))


def _on_left(node: Expression) -> Expression:
    """The expression with all its columns on the left side, on which a frame's columns are."""
    if isinstance(node, ColumnRef):
        return replace(node, side=Side.LEFT)
    return node.with_children([_on_left(child) for child in node.children]) if node.children else node


def _codes(columns: Columns[Frame], value: Value) -> Value:
    return Value(pa.int64(), v.ordered(columns.ops.xp, value)[0].astype("int64"), value.valid)


def _extent(columns: Columns[Frame], value: Value) -> Extent | None:
    """Least and greatest value; ``None`` if there are no values."""
    xp = columns.ops.xp
    codes = value.data.astype("int64")
    if not codes.size:
        return None
    least, greatest = codes, codes
    if value.valid is not None:
        least, greatest = xp.where(value.valid, codes, MOST), xp.where(value.valid, codes, LEAST)
    ends = int(least.min()), int(greatest.max())
    return ends if ends[0] <= ends[1] else None


def _spread(columns: Columns[Frame], numbers: Value) -> float:
    xp = columns.ops.xp
    valid = xp.ones(numbers.data.shape[0], dtype=bool) if numbers.valid is None else numbers.valid
    rows = total(valid)
    if not rows:
        return 0.0
    # Rows without a group are counted in the first place, which is left out.
    sizes = xp.bincount(xp.where(valid, numbers.data + 1, 0))[1:].astype("float64")
    return float((sizes * sizes).sum()) / rows
