"""Parts, shifts and differences of dates and timestamps on the device."""

from __future__ import annotations

from typing import Any

import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.expressions import values as v
from gpujoin.backends.cudf.expressions.offer import Offer, strict, types
from gpujoin.backends.cudf.expressions.values import Value
from gpujoin.model.expressions import Call, Function

_UTC = (None, "UTC", "Etc/UTC", "Z", "+00:00")


def _days(date: Value) -> Array:
    return date.data.astype("int64")


def _last_day(xp: Any, date: Value) -> Array:
    year, month, day = v.civil(xp, date.data)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    return _days(date) - day + xp.where(month == 2, 28 + leap, 30 + (month + month // 8) % 2)


def _time_part(divisor: int, modulus: int) -> Offer:
    return strict(lambda _, time: v.second_of_day(time) // divisor % modulus, _zone_free)


def _zone_free(node: Call) -> bool:
    return all(pat.is_timestamp(t) and t.tz in _UTC for t in types(node))


# Day numbers wrap at 32 bits, as in Java.
FUNCTIONS: dict[Function, Offer] = {
    Function.YEAR: strict(lambda xp, date: v.civil(xp, date.data)[0]),
    Function.QUARTER: strict(lambda xp, date: (v.civil(xp, date.data)[1] - 1) // 3 + 1),
    Function.MONTH: strict(lambda xp, date: v.civil(xp, date.data)[1]),
    Function.DAY: strict(lambda xp, date: v.civil(xp, date.data)[2]),
    Function.DAY_OF_WEEK: strict(lambda _, date: (_days(date) + 4) % 7 + 1),
    Function.WEEKDAY: strict(lambda _, date: (_days(date) + 3) % 7),
    Function.DAY_OF_YEAR: strict(lambda xp, date: _days(date) - v.days_before_year(v.civil(xp, date.data)[0]) + 1),
    Function.LAST_DAY: strict(_last_day),
    Function.HOUR: _time_part(3600, 24),
    Function.MINUTE: _time_part(60, 60),
    Function.SECOND: _time_part(1, 60),
    Function.DATE_ADD: strict(lambda _, date, days: date.data + days.data.astype("int32")),
    Function.DATE_SUB: strict(lambda _, date, days: date.data - days.data.astype("int32")),
    Function.DATE_DIFF: strict(lambda _, end, start: end.data - start.data),
}
