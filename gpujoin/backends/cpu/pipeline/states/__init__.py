"""States of aggregate functions in Polars: how they are reduced from rows, merged, and converted to Spark's buffers.

A state has a row for each group.
"""

from __future__ import annotations

import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.states.base import SegmentState, State, one_width
from gpujoin.backends.cpu.pipeline.states.lists import Collected, ListAgg, Mode, Percentile
from gpujoin.backends.cpu.pipeline.states.moments import Moments
from gpujoin.backends.cpu.pipeline.states.segments import Segments
from gpujoin.backends.cpu.pipeline.states.sums import Count, ExactSum, FloatSum, TrySum
from gpujoin.backends.cpu.pipeline.states.values import Bitwise, Edge, Extreme, ExtremeBy
from gpujoin.model.aggregates import (
    BITWISE,
    EXTREMES_BY,
    LISTS,
    MOMENTS,
    PERCENTILES,
    AggregateCall,
    AggregateFunction,
)
from gpujoin.model.expressions import EvalMode
from gpujoin.model.types import is_float

__all__ = ["ExactSum", "SegmentState", "Segments", "State", "one_width", "state_of"]


_STATES: dict[AggregateFunction, type[State]] = {
    AggregateFunction.COUNT: Count,
    **dict.fromkeys((AggregateFunction.MIN, AggregateFunction.MAX), Extreme),
    **dict.fromkeys((AggregateFunction.FIRST, AggregateFunction.LAST), Edge),
    **dict.fromkeys(EXTREMES_BY, ExtremeBy),
    **dict.fromkeys(BITWISE, Bitwise),
    **dict.fromkeys(PERCENTILES, Percentile),
    **dict.fromkeys(LISTS, Collected),
    AggregateFunction.MODE: Mode,
    AggregateFunction.LISTAGG: ListAgg,
    **dict.fromkeys(MOMENTS, Moments),
}


def state_of(call: AggregateCall, prefix: str) -> State:
    """Make the state of a call; the prefix distinguishes its columns from those of other calls."""
    if call.mode is EvalMode.TRY:
        return TrySum(call, prefix)
    if call.function in (AggregateFunction.SUM, AggregateFunction.AVG):
        whole = call.function is AggregateFunction.SUM and not is_float(call.dtype)
        return (ExactSum if whole or pat.is_decimal(call.dtype) else FloatSum)(call, prefix)
    return _STATES[call.function](call, prefix)
