"""Window functions: what is computed for each row of the rows around it, and of which of them.

Rows are divided into partitions, and within a partition stand in an order. Rows with equal order keys are *peers*. A
*frame* is the part of its partition that an aggregate of a row reads. Ordered by ``t``, the sum of ``v`` over the
frames ``ROWS BETWEEN 1 PRECEDING AND CURRENT ROW`` and ``RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW``::

    t   v   rank  row_number   sum over rows   sum over range
    1   10     1           1              10               10
    2   20     2           2              30               60   the two rows of t = 2 are peers,
    2   30     2           3              50               60   and are in each other's frame
    5   40     4           4              70              100
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import RelationError
from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import ColumnRef, EvalMode, Expression, Literal
from gpujoin.model.sqltext import show_type
from gpujoin.model.trees import Structural
from gpujoin.model.types import is_float, is_whole, logical


class WindowFunction(Enum):
    """Window functions that are no aggregate functions."""

    ROW_NUMBER = "row_number"
    RANK = "rank"
    DENSE_RANK = "dense_rank"
    PERCENT_RANK = "percent_rank"
    CUME_DIST = "cume_dist"
    NTILE = "ntile"
    """Number of the row's part, of ``count`` parts of a partition whose sizes differ by one at most."""
    LAG = "lag"
    LEAD = "lead"
    """Value of the row ``count`` rows before or after in the partition."""
    NTH_VALUE = "nth_value"
    """Value of the row number ``count`` of the frame."""


RANKS = {
    WindowFunction.ROW_NUMBER: pa.int32(), WindowFunction.RANK: pa.int32(), WindowFunction.DENSE_RANK: pa.int32(),
    WindowFunction.PERCENT_RANK: pa.float64(), WindowFunction.CUME_DIST: pa.float64(), WindowFunction.NTILE: pa.int32(),
}  # fmt: skip
"""Functions that number rows, and the types of their results."""
LIMITING = frozenset({WindowFunction.ROW_NUMBER, WindowFunction.RANK, WindowFunction.DENSE_RANK})
"""Ranks that are never greater among fewer rows."""
OFFSETS = frozenset({WindowFunction.LAG, WindowFunction.LEAD})
"""Functions that read another row of the partition."""
BY_ORDER_KEYS = frozenset(
    {WindowFunction.RANK, WindowFunction.DENSE_RANK, WindowFunction.PERCENT_RANK, WindowFunction.CUME_DIST}
)
"""Functions that give peers the same result."""
SLIDING = frozenset(
    {
        AggregateFunction.COUNT, AggregateFunction.SUM, AggregateFunction.AVG, AggregateFunction.MIN,
        AggregateFunction.MAX, AggregateFunction.FIRST, AggregateFunction.LAST,
    }
)  # fmt: skip
"""Aggregate functions over any frame; the others are over whole partitions and short frames."""
SHORT_FRAME = 64
"""Most rows of a frame that is aggregated row by row: as many times the rows are read."""


@dataclass(frozen=True)
class RankLimit:
    """Rows that may be left out of a window: those whose rank in their partition is above ``count``.

    A filter above the window keeps none of them, and no function of the window reads rows behind its own.
    """

    function: WindowFunction
    """``ROW_NUMBER``, ``RANK`` or ``DENSE_RANK``."""
    count: int

    def __post_init__(self) -> None:
        if self.function not in LIMITING or self.count < 0:
            raise RelationError(f"rows are not limited by {self.function.value} <= {self.count}")


class FrameType(Enum):
    """What the bounds of a frame count."""

    ROWS = "rows"
    RANGE = "range"


@dataclass(frozen=True)
class Frame:
    """The rows of a partition that an aggregate of one row reads.

    A bound is a distance from the current row, less than 0 before it; ``None``: the partition's end. For ``RANGE``, 0
    is the current row and its peers; other distances are of the only order key: in days of dates, microseconds of
    timestamps, units of the last digit of decimals. A null is a peer of nulls, whatever the distance.
    """

    type: FrameType = FrameType.ROWS
    start: float | None = None
    end: float | None = None

    @property
    def has_distance(self) -> bool:
        """Whether it is a range by distances of the order key."""
        return self.type is FrameType.RANGE and bool({self.start, self.end} - {None, 0})

    @property
    def is_short(self) -> bool:
        """Whether it has so few rows, whatever the partition, that they may be read again for each row."""
        bounded = self.type is FrameType.ROWS and self.start is not None and self.end is not None
        return bounded and (self.end or 0) - (self.start or 0) < SHORT_FRAME

    @property
    def is_partition(self) -> bool:
        """Whether it is the whole partition."""
        return self.start is None and self.end is None

    def __str__(self) -> str:
        def bound(distance: float | None, side: str) -> str:
            if distance is None:
                return f"unbounded {side}"
            if distance == 0:
                return "current row"
            return f"{abs(distance)} {'preceding' if distance < 0 else 'following'}"

        return f"{self.type.value} between {bound(self.start, 'preceding')} and {bound(self.end, 'following')}"


WHOLE_PARTITION = Frame()
_RANGED_DIGITS = 17
"""Most digits of decimals whose distances, of as many digits, cannot leave 64 bits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowCall(Structural):
    """A call of a window function that is no aggregate function."""

    function: WindowFunction
    """The function."""
    name: str
    """Name of the output column."""
    value: Expression | None = None
    """What ``LAG``, ``LEAD`` and ``NTH_VALUE`` give."""
    count: int = 1
    """Parts of ``NTILE``, distance of ``LAG`` and ``LEAD``, number of ``NTH_VALUE``."""
    default: Expression | None = None
    """What ``LAG`` and ``LEAD`` give where there is no such row: a constant or a column."""
    ignore_nulls: bool = False
    """Whether only rows count whose value is not null."""
    frame: Frame = WHOLE_PARTITION
    """For ``NTH_VALUE``."""

    def __post_init__(self) -> None:
        if (self.function in RANKS) != (self.value is None):
            raise RelationError(f"{self}: ranks take no value, other functions one")
        least = 0 if self.function in OFFSETS and not self.ignore_nulls else 1
        if self.count < least:
            raise RelationError(f"{self}: {self.count} is less than {least}")
        if not isinstance(self.default, ColumnRef | Literal | None):
            raise RelationError(f"{self}: the default {self.default} is computed for rows that do not need it")
        if self.default is not None and logical(self.default.type) != self.dtype:
            raise RelationError(f"{self}: the default is {self.default.type}")

    @property
    def dtype(self) -> pa.DataType:
        """Type of the result."""
        return RANKS[self.function] if self.value is None else logical(self.value.type)

    @property
    def outputs(self) -> tuple[pa.Field, ...]:
        """The output column."""
        return (pa.field(self.name, self.dtype, self.function not in RANKS),)

    def expressions(self) -> tuple[Expression, ...]:
        """The value and the default, as far as there are any."""
        return tuple(part for part in (self.value, self.default) if part is not None)

    def mapped(self, function: Callable[[Expression], Expression]) -> WindowCall:
        """The same call over other expressions."""
        return dataclasses.replace(
            self,
            value=None if self.value is None else function(self.value),
            default=None if self.default is None else function(self.default),
        )

    def __str__(self) -> str:
        return f"{self.function.value}({'' if self.value is None else self.value})"


@dataclass(frozen=True, eq=False)
class FramedAggregate(Structural):
    """An aggregate function over a frame: its buffer, as of a partial aggregation of the frame's rows."""

    call: AggregateCall
    """The aggregate function."""
    frame: Frame = WHOLE_PARTITION
    """The rows that it reads."""

    def __post_init__(self) -> None:
        if self.call.gives_list:
            raise RelationError(f"{self}: lists are not computed over windows")
        if self.call.function not in SLIDING and not (self.frame.is_partition or self.frame.is_short):
            raise RelationError(f"{self}: computed over whole partitions and frames of up to {SHORT_FRAME} rows only")
        if self.call.mode is EvalMode.TRY and not self.frame.is_partition:
            raise RelationError(f"{self}: computed over whole partitions only in try_ mode")
        if self.call.filter is not None and self.call.function in (AggregateFunction.FIRST, AggregateFunction.LAST):
            raise RelationError(f"{self}: a filter of the first or last value")

    @property
    def name(self) -> str:
        """Prefix of the output columns' names."""
        return self.call.name

    @property
    def outputs(self) -> tuple[pa.Field, ...]:
        """The output columns."""
        return self.call.buffer

    def expressions(self) -> tuple[Expression, ...]:
        """Arguments, then the filter if there is one."""
        return self.call.expressions()

    def mapped(self, function: Callable[[Expression], Expression]) -> FramedAggregate:
        """The same call over other expressions."""
        return FramedAggregate(self.call.mapped(function), self.frame)

    def __str__(self) -> str:
        return f"{self.call} over {self.frame}"


AnyWindowCall: TypeAlias = WindowCall | FramedAggregate


def range_obstacle(dtype: pa.DataType) -> str | None:
    """Tell why a range of distances of an order key of a type is not computed; ``None`` if it is."""
    dtype = logical(dtype)
    if is_whole(dtype) or is_float(dtype) or pat.is_date32(dtype) or pat.is_timestamp(dtype):
        return None
    if pat.is_decimal(dtype) and dtype.precision <= _RANGED_DIGITS:
        return None
    return f"ranges around {show_type(dtype)} are not computed here"


def is_by_order(call: AnyWindowCall) -> bool:
    """Tell whether a result depends on the order of rows that are peers."""
    if isinstance(call, WindowCall):
        return call.function not in BY_ORDER_KEYS
    if call.call.function in (AggregateFunction.FIRST, AggregateFunction.LAST):
        return True
    return call.frame.type is FrameType.ROWS and not call.frame.is_partition
