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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu import column_evaluator, make_grouper
from gpujoin.engine.keys import KeyCodec, in_common_type
from gpujoin.engine.ordering import Codes, OrderCodec
from gpujoin.errors import ExpressionEvaluationError, GpuJoinError, KeyTypeError
from gpujoin.model.backend import AnyBackend, CodedRows, Grouper, RangeBuild, RangeProbe
from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.hostgather import one_array
from gpujoin.model.jointype import Side
from gpujoin.model.ranges import Axis, Bound, Comparison, Extent, limits, reached, too_far
from gpujoin.model.types import wide_offsets

Valid = npt.NDArray[np.bool_]
_DENSE = 4
"""Group numbers below so many times the number of rows are counted in an array instead of being sorted."""


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

    @classmethod
    def coded(
        cls, axes: Sequence[Axis], build_side: Side, keys: KeyCodec, rows: pa.RecordBatch, backend: AnyBackend
    ) -> CodedRows[Any]:
        """Code the rows of a build side.

        Raises ``RangeEvaluationError`` if an operand cannot be computed for all rows.
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
            grouper = make_grouper(codes)
            points.insert(0, group_column(grouper, codes))
        fitted = cls(tuple(axes), build_side, tuple(codecs), keys, grouper, tuple(extents))
        return CodedRows(
            backend.from_arrow(code_table(points)), grouper is not None,
            lambda probe_rows: backend.from_arrow(fitted.bounds(probe_rows)),
            0.0 if grouper is None else _spread(points[0]),
        )  # fmt: skip

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
            codes_of = partial(self._codes_of, rows, axis, codec, extent)
            low, high, valid = limits(np, axis, rows.num_rows, codes_of, partial(self._distance, rows))
            columns += [code_column(low, valid), code_column(high, None)]
        return code_table(columns)

    def _codes_of(
        self, rows: pa.RecordBatch, axis: Axis, codec: OrderCodec, extent: Extent | None, bound: Bound
    ) -> tuple[Codes, Valid | None]:
        """Codes to which a bound compares."""
        values = _values(bound.probe, axis.type, rows, self.build_side.other)
        if axis.widest is not None and too_far(extent, _extent(values), axis.widest):
            raise RangeEvaluationError("some pair of rows is farther apart than the distance's type holds")
        if isinstance(bound.offset, float):
            values = _reached(values, bound.offset, bound.comparison)
        return codec.codes(values)

    def _distance(self, rows: pa.RecordBatch, node: Expression) -> tuple[Codes, Valid | None]:
        numbers = _values(node, pa.int64(), rows, self.build_side.other)
        return numbers.fill_null(0).to_numpy(), _valid_of(numbers)


@dataclass(frozen=True)
class BuiltRanges:
    """A build side searched by order."""

    code: Callable[[Any], Any]
    """Converts probe rows to the ranges that they ask for."""
    build: RangeBuild[Any, Any]

    @classmethod
    def from_rows(cls, coded: CodedRows[Any], backend: AnyBackend, *, kernels: bool) -> BuiltRanges:
        """Build an index over coded rows; ``kernels`` as in :meth:`.Backend.build_ranges`."""
        return cls(coded.code, backend.build_ranges(coded.points, grouped=coded.grouped, kernels=kernels))

    def probe(self, rows: Any) -> RangeProbe[Any]:
        """Find the matches of probe rows. Raises as the coding of build rows does."""
        return self.build.probe(self.code(rows))


def _extent(values: pa.Array) -> Extent | None:
    """Least and greatest value; ``None`` if there are no values."""
    if pat.is_date32(values.type):
        values = values.cast(pa.int32())
    ends = pc.min_max(values).as_py()
    return None if ends["min"] is None else (ends["min"], ends["max"])


def _reached(values: pa.Array, offset: float, comparison: Comparison) -> pa.Array:
    """Add an offset to float64 values, with a margin above the rounding error of differences."""
    with np.errstate(all="ignore"):
        moved = reached(np, values.fill_null(0.0).to_numpy(), offset, comparison)
    valid = _valid_of(values)
    return pa.array(moved, pa.float64(), mask=None if valid is None else ~valid)


def _valid_of(values: pa.Array) -> Valid | None:
    return None if values.null_count == 0 else pc.is_valid(values).to_numpy(zero_copy_only=False)


def _spread(groups: pa.Array) -> float:
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


def _values(expression: Expression, dtype: pa.DataType, rows: pa.RecordBatch, side: Side) -> pa.Array:
    """Compute an expression over rows of one side, in the type that orders it."""
    try:
        if isinstance(expression, ColumnRef):
            column = rows.column(expression.index)
        else:
            column = _evaluated(expression, rows, side)
        if isinstance(column, pa.ChunkedArray):
            column = one_array(column)
        return in_common_type(column, wide_offsets(dtype))
    except (ExpressionEvaluationError, KeyTypeError) as problem:
        raise RangeEvaluationError(str(problem)) from problem


def _evaluated(expression: Expression, rows: pa.RecordBatch, side: Side) -> pa.Array:
    none = pa.RecordBatch.from_arrays([], names=[])
    left, right = (rows, none) if side is Side.LEFT else (none, rows)
    return column_evaluator()(expression, left, right, rows.num_rows)


def code_column(values: Codes, valid: Valid | None) -> pa.Array:
    """Make a column of codes, null where not valid."""
    return pa.array(values, pa.int64(), mask=None if valid is None else ~valid)


def code_table(columns: Sequence[pa.Array]) -> pa.Table:
    """Make a table of columns of codes, as backends take it."""
    return pa.Table.from_arrays(list(columns), names=[str(i) for i in range(len(columns))])
