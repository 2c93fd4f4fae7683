"""Range joins: converts both sides of a range condition to integer codes that a backend searches by order.

Each build row has a *point*, the code of its value. Each probe row asks for the points from a lowest to a highest one.
An example, ``l JOIN r ON r.c > l.a AND r.c <= l.b``, right side built, three build rows and two probe rows::

    r   row  c      sorted   point  10 20 40      l   a   b    lowest  highest
        0    40              row     1  2  0          10  30       11       30    row 2 matches
        1    10                                       50  60       51       60    no row matches
        2    20

The codes of integers are the integers themselves, so ``c > 10`` becomes ``11`` and above. Other types have codes that
keep their order (`gpujoin.engine.ordering`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.registry import host_evaluator, host_grouper
from gpujoin.engine.hostgather import one_array
from gpujoin.engine.keys import KeyCodec, in_common_type
from gpujoin.engine.ordering import LEAST, MOST, Codes, OrderCodec
from gpujoin.errors import ExpressionEvaluationError, GpuJoinError, KeyTypeError
from gpujoin.model.backend import Grouper
from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.plan.ranges import Axis, Bound, Comparison

Mask = npt.NDArray[np.bool_]
_ROUNDING, _SMALLEST = 2.0**-22, 2.0**-148
"""Rounding error of a difference in single precision: relative to it, and at least."""
_DENSE = 4
"""Group numbers below so many times the number of rows are counted in an array instead of being sorted."""
Extent: TypeAlias = tuple[int, int]


class RangeEvaluationError(GpuJoinError):
    """An operand of a range raises for some row. Whether the join must fail is known only pair by pair."""


@dataclass(frozen=True)
class RangeCodec:
    """Converts rows of either side to codes of the ranges."""

    axes: tuple[Axis, ...]
    """Ranges of the condition, one or two."""
    build_side: Side
    """Side whose rows are sorted."""
    codecs: tuple[OrderCodec, ...]
    keys: KeyCodec
    grouper: Grouper | None
    """Numbers the equality keys; ``None``: there are none."""
    extents: tuple[Extent | None, ...]
    """Least and greatest build-side value of each axis that is compared by distance; ``None``: there is none."""

    @property
    def grouped(self) -> bool:
        """Whether there are equality keys."""
        return self.grouper is not None

    @classmethod
    def fit(
        cls, axes: Sequence[Axis], build_side: Side, keys: KeyCodec, rows: pa.RecordBatch
    ) -> tuple[RangeCodec, pa.Table]:
        """Make the codec of a build side, and compute its points.

        These are int64 columns: the group if there are keys, then each axis; null where a row matches nothing. Raises
        ``RangeEvaluationError`` if an operand cannot be computed for all rows.
        """
        codecs, points, extents = [], [], []
        for axis in axes:
            values = _values(axis.build, axis.type, rows, build_side)
            codec = OrderCodec.fit(values)
            codecs.append(codec)
            points.append(code_column(*codec.codes(values)))
            extents.append(None if axis.widest is None else _extent(values))
        grouper = None
        if keys.columns:
            codes = keys.codes(rows, build_side)
            grouper = host_grouper(codes)
            points.insert(0, group_column(grouper, codes))
        return cls(tuple(axes), build_side, tuple(codecs), keys, grouper, tuple(extents)), code_table(points)

    def bounds(self, rows: pa.RecordBatch) -> pa.Table:
        """Compute the ranges that probe rows ask for.

        These are int64 columns: the group if there are keys, then the lowest and the highest matching code of each
        axis, both included; null where a row matches nothing. Raises ``RangeEvaluationError`` if an operand cannot be
        computed for all rows.
        """
        columns: list[pa.Array] = []
        if self.grouper is not None:
            columns.append(group_column(self.grouper, self.keys.codes(rows, self.build_side.other)))
        for axis, codec, extent in zip(self.axes, self.codecs, self.extents, strict=True):
            low, high = np.full(rows.num_rows, LEAST, np.int64), np.full(rows.num_rows, MOST, np.int64)
            valid: Mask | None = None
            for bound in axis.bounds:
                values = _values(bound.probe, axis.type, rows, self.build_side.other)
                if axis.widest is not None and extent is not None:
                    _check_distances(extent, _extent(values), axis.widest)
                if isinstance(bound.offset, float):
                    values = _reached(values, bound.offset, bound.comparison)
                codes, there = codec.codes(values)
                if bound.reach is None:
                    codes = _shifted(codes, _units(bound, axis.type))
                else:
                    reach = _values(bound.reach, pa.int64(), rows, self.build_side.other)
                    codes, within = _outward(codes, reach, bound)
                    valid = _both(valid, within)
                valid = _both(valid, there)
                valid = _both(valid, _narrow(low, high, bound.comparison, codes))
            columns += [code_column(low, valid), code_column(high, None)]
        return code_table(columns)


def _extent(values: pa.Array) -> Extent | None:
    """Least and greatest value; ``None`` if there are no values."""
    if pat.is_date32(values.type):
        values = values.cast(pa.int32())
    ends = pc.min_max(values).as_py()
    return None if ends["min"] is None else (ends["min"], ends["max"])


def _check_distances(first: Extent, second: Extent | None, widest: int) -> None:
    if second is not None and max(first[1] - second[0], second[1] - first[0]) > widest:
        raise RangeEvaluationError("some pair of rows is farther apart than the distance's type holds")


def _units(bound: Bound, dtype: pa.DataType) -> int:
    """Offset of a bound, in units of codes."""
    if isinstance(bound.offset, Decimal):
        return int(bound.offset.scaleb(dtype.scale))
    return 0 if isinstance(bound.offset, float) else bound.offset


def _reached(values: pa.Array, offset: float, comparison: Comparison) -> pa.Array:
    """Add an offset to float64 values, with a margin above the rounding error of differences."""
    outward = np.inf if comparison in (Comparison.LESS, Comparison.AT_MOST) else -np.inf
    room = abs(offset) * _ROUNDING + _SMALLEST
    numbers = values.fill_null(0.0).to_numpy()
    with np.errstate(all="ignore"):
        moved = numbers + np.nextafter(offset + np.copysign(room, outward), outward)
        moved = np.nextafter(np.nextafter(moved, outward), outward)
    mask = None if values.null_count == 0 else pc.is_null(values).to_numpy(zero_copy_only=False)
    return pa.array(moved, pa.float64(), mask=mask)


def _shifted(codes: Codes, offset: int) -> Codes:
    """Add a number to codes, clamped to the limits of their type."""
    if not offset:
        return codes
    if offset > 0:
        return np.where(codes > MOST - offset, MOST, codes + min(offset, MOST))
    return np.where(codes < LEAST - offset, LEAST, codes + max(offset, LEAST))


def _outward(codes: Codes, reach: pa.Array, bound: Bound) -> tuple[Codes, Mask | None]:
    """Add each row's distance to codes, clamped to the limits of their type; also the mask of rows with a distance."""
    valid = None if reach.null_count == 0 else pc.is_valid(reach).to_numpy(zero_copy_only=False)
    assert isinstance(bound.offset, int)
    by = _shifted(np.maximum(reach.fill_null(0).to_numpy(), LEAST + 1), bound.offset)
    if bound.comparison is Comparison.AT_LEAST:
        by = -np.maximum(by, LEAST + 1)
    with np.errstate(over="ignore"):
        moved = codes + by
    moved = np.where((by > 0) & (moved < codes), MOST, moved)
    return np.where((by < 0) & (moved > codes), LEAST, moved), valid


def spread(groups: pa.Array) -> float:
    """Average number of rows in the group of a row; rows without a group do not count."""
    present = groups.drop_null().to_numpy()
    if not len(present):
        return 0.0
    dense = int(present.max()) < _DENSE * len(present)
    sizes = np.bincount(present) if dense else np.unique(present, return_counts=True)[1]
    sizes = sizes.astype(np.float64)
    return float(np.square(sizes).sum() / len(present))


def group_column(grouper: Grouper, codes: pa.Table) -> pa.Array:
    """Group number of each row; null where there is none."""
    groups = grouper.groups(codes)
    valid = groups >= 0
    return code_column(groups, None if valid.all() else valid)


def _narrow(low: Codes, high: Codes, comparison: Comparison, codes: Codes) -> Mask | None:
    """Narrow ranges by a comparison, in place. False where nothing can match, since no code is left."""
    match comparison:
        case Comparison.AT_LEAST | Comparison.EQUAL:
            np.maximum(low, codes, out=low)
        case Comparison.GREATER:
            top = codes == MOST
            np.maximum(low, codes + ~top, out=low)
            if top.any():
                return ~top
    match comparison:
        case Comparison.AT_MOST | Comparison.EQUAL:
            np.minimum(high, codes, out=high)
        case Comparison.LESS:
            bottom = codes == LEAST
            np.minimum(high, codes - ~bottom, out=high)
            if bottom.any():
                return ~bottom
    return None


def _values(expression: Expression, wanted: pa.DataType, rows: pa.RecordBatch, side: Side) -> pa.Array:
    """Compute an expression over rows of one side, in the type in which it is ordered."""
    try:
        if isinstance(expression, ColumnRef):
            column = rows.column(expression.index)
        else:
            column = _evaluated(expression, rows, side)
        if isinstance(column, pa.ChunkedArray):
            column = one_array(column)
        return in_common_type(column, wanted)
    except (ExpressionEvaluationError, KeyTypeError) as problem:
        raise RangeEvaluationError(str(problem)) from problem


def _evaluated(expression: Expression, rows: pa.RecordBatch, side: Side) -> pa.Array:
    none = pa.RecordBatch.from_arrays([], names=[])
    left, right = (rows, none) if side is Side.LEFT else (none, rows)
    return host_evaluator()(expression, left, right, rows.num_rows)


def _both(first: Mask | None, second: Mask | None) -> Mask | None:
    if first is None or second is None:
        return first if second is None else second
    return first & second


def code_column(values: Codes, valid: Mask | None) -> pa.Array:
    """Make a column of codes, null where not valid."""
    return pa.array(values, pa.int64(), mask=None if valid is None else ~valid)


def code_table(columns: Sequence[pa.Array]) -> pa.Table:
    """Make a table of columns of codes, as backends take it."""
    return pa.Table.from_arrays(list(columns), names=[str(i) for i in range(len(columns))])
