"""Parts, shifts and differences of dates and timestamps on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.expressions import values as v
from gpujoin.backends.cudf.expressions.offer import Active, Offer, types
from gpujoin.backends.cudf.expressions.values import Value
from gpujoin.model.expressions import Call, Function

if TYPE_CHECKING:
    from gpujoin.backends.cudf.expressions.evaluator import Evaluator


_UTC = (None, "UTC", "Etc/UTC", "Z", "+00:00")


def _date_part(run: Evaluator, node: Call, active: Active) -> Value:
    value = run.fixed(node.arguments[0], active)
    return Value(pa.int32(), v.date_part(run.xp, node.function, value.data).astype("int32"), value.valid)


def _time_part(run: Evaluator, node: Call, active: Active) -> Value:
    value = run.fixed(node.arguments[0], active)
    seconds = v.second_of_day(value)
    divisor, modulus = {Function.HOUR: (3600, 24), Function.MINUTE: (60, 60), Function.SECOND: (1, 60)}[
        node.function
    ]
    return Value(pa.int32(), (seconds // divisor % modulus).astype("int32"), value.valid)


def _date_shift(run: Evaluator, node: Call, active: Active) -> Value:
    """Dates wrap around, as Spark's 32-bit days do, in every mode."""
    assert node.type is not None
    left, right, valid = run.pair(node, active)
    shift = v.add if node.function is Function.DATE_ADD else v.subtract
    return Value(node.type, shift(left.data, right.data)[0], valid)


def _date_diff(run: Evaluator, node: Call, active: Active) -> Value:
    left, right, valid = run.pair(node, active)
    return Value(pa.int32(), left.data - right.data, valid)


def _date_parts(node: Call) -> bool:
    return all(map(pat.is_date32, types(node)))


def _shift_fits(node: Call) -> bool:
    date, days = types(node)
    return pat.is_date32(date) and pat.is_int32(days)


def _zone_free(node: Call) -> bool:
    return all(pat.is_timestamp(t) and t.tz in _UTC for t in types(node))


_PART = Offer(_date_parts, _date_part)
_TIME = Offer(_zone_free, _time_part)
_SHIFT = Offer(_shift_fits, _date_shift)
FUNCTIONS: dict[Function, Offer] = {
    Function.YEAR: _PART,
    Function.QUARTER: _PART,
    Function.MONTH: _PART,
    Function.DAY: _PART,
    Function.DAY_OF_WEEK: _PART,
    Function.WEEKDAY: _PART,
    Function.DAY_OF_YEAR: _PART,
    Function.HOUR: _TIME,
    Function.MINUTE: _TIME,
    Function.SECOND: _TIME,
    Function.DATE_ADD: _SHIFT,
    Function.DATE_SUB: _SHIFT,
    Function.DATE_DIFF: Offer(_date_parts, _date_diff),
}
