"""Parts, shifts and differences of dates and timestamps on the device."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.expressions import values as v
from gpujoin.backends.cudf.expressions.offer import Offer, accepted, strict, types
from gpujoin.backends.cudf.expressions.operands import Active, Operands
from gpujoin.backends.cudf.expressions.values import Value, mask_and
from gpujoin.functions.dates import DATE_UNITS, DAYS_OF_WEEK, TIME_UNITS, constant_word, shifts_little
from gpujoin.model.expressions import Call, Function, Literal

_SECOND_MICROS = 1_000_000
_DAY_MICROS = 86_400 * _SECOND_MICROS
_UTC = (None, "UTC", "Etc/UTC", "Z", "+00:00")


def _days(date: Value) -> Array:
    return date.data.astype("int64")


def _last_day(xp: Any, date: Value) -> Array:
    year, month, day = v.civil(xp, date.data)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    return _days(date) - day + xp.where(month == 2, 28 + leap, 30 + (month + month // 8) % 2)


def _time_part(divisor: int, modulus: int) -> Offer:
    return strict(lambda _, time: v.second_of_day(time) // divisor % modulus, _zone_free)


def _is_local(dtype: pa.DataType) -> bool:
    return bool(pat.is_timestamp(dtype) and dtype.tz in _UTC and dtype.unit == "us")


def _zone_free(node: Call) -> bool:
    return all(pat.is_timestamp(t) and t.tz in _UTC for t in types(node))


def _weekday(days: Array) -> Array:
    return (days + 3) % 7


def _week_of_year(xp: Any, date: Value) -> Array:
    """ISO week: it belongs to the year of its Thursday."""
    days = _days(date)
    thursday = days + 3 - _weekday(days)
    return (thursday - v.days_before_year(v.civil(xp, thursday)[0])) // 7 + 1


def _first_day(xp: Any, days: Array, unit: str) -> Array:
    """First day of the week, month, quarter or year of each day, as int64."""
    if unit == "week":
        return days - _weekday(days)
    months, _ = v.months_since_1970(xp, days)
    return v.first_of_month(months - months % {"month": 1, "quarter": 3, "year": 12}[unit])


def _trunc(operands: Operands, node: Call, active: Active) -> Value:
    date = operands.fixed(node.arguments[0], active)
    first = _first_day(operands.xp, _days(date), DATE_UNITS[constant_word(node.arguments[1])])
    return Value(pa.date32(), first.astype("int32"), date.valid)


def _date_trunc(operands: Operands, node: Call, active: Active) -> Value:
    moment, word = operands.fixed(node.arguments[1], active), constant_word(node.arguments[0])
    assert node.type is not None
    micros = TIME_UNITS.get(word)
    if micros is not None:
        return Value(node.type, moment.data - moment.data % micros, moment.valid)
    first = _first_day(operands.xp, moment.data // _DAY_MICROS, DATE_UNITS[word])
    return Value(node.type, first * _DAY_MICROS, moment.valid)


def _next_day(operands: Operands, node: Call, active: Active) -> Value:
    date = operands.fixed(node.arguments[0], active)
    days, wanted = _days(date), DAYS_OF_WEEK[constant_word(node.arguments[1])]
    later = days + 1 + (wanted - _weekday(days) - 1) % 7
    return Value(pa.date32(), later.astype("int32"), date.valid)


def _add_months(operands: Operands, node: Call, active: Active) -> Value:
    """Keep the day of the month, or take the last one of a shorter month."""
    date, shift, valid = operands.pair(node, active)
    months, day = v.months_since_1970(operands.xp, date.data)
    months = months + shift.data.astype("int64")
    first = v.first_of_month(months)
    days = first + operands.xp.minimum(day, v.first_of_month(months + 1) - first) - 1
    narrow = days.astype("int32")
    operands.fail_if(mask_and(mask_and(narrow != days, valid), active), f"{node}: the date does not fit 32 bits")
    return Value(pa.date32(), narrow, valid)


def _has_little_shift(node: Call) -> bool:
    months = node.arguments[1]
    return accepted(node) and (not isinstance(months, Literal) or (months.value is not None and shifts_little(node)))


def _of_micros(node: Call) -> bool:
    return accepted(node) and all(pat.is_timestamp(t) and t.unit == "us" for t in types(node))


def _since_epoch(unit: int) -> Offer:
    return strict(lambda _, moment: moment.data // unit, _of_micros)


def _unix_timestamp(_: Any, moment: Value) -> Array:
    """Whole seconds since 1970, rounded towards zero."""
    seconds = moment.data // _SECOND_MICROS
    return seconds + ((moment.data < 0) & (moment.data % _SECOND_MICROS != 0))


def _from_epoch(unit: int) -> Offer:
    """Make timestamps of seconds, or other units, since 1970; raises in every mode if one does not fit 64 bits."""

    def evaluate(operands: Operands, node: Call, active: Active) -> Value:
        count = operands.fixed(node.arguments[0], active)
        assert node.type is not None
        number, most = count.data.astype("int64"), ((1 << 63) - 1) // unit
        if unit > 1:
            outside = (number > most) | (number < -most)
            operands.fail_if(mask_and(mask_and(outside, count.valid), active), f"{node}: the timestamp overflows")
        return Value(node.type, number * unit, count.valid)

    return Offer(accepted, evaluate)


# Day numbers wrap at 32 bits, as in Java.
FUNCTIONS: dict[Function, Offer] = {
    Function.YEAR: strict(lambda xp, date: v.civil(xp, date.data)[0]),
    Function.QUARTER: strict(lambda xp, date: (v.civil(xp, date.data)[1] - 1) // 3 + 1),
    Function.MONTH: strict(lambda xp, date: v.civil(xp, date.data)[1]),
    Function.DAY: strict(lambda xp, date: v.civil(xp, date.data)[2]),
    Function.DAY_OF_WEEK: strict(lambda _, date: (_days(date) + 4) % 7 + 1),
    Function.WEEKDAY: strict(lambda _, date: (_days(date) + 3) % 7),
    Function.DAY_OF_YEAR: strict(lambda xp, date: _days(date) - v.days_before_year(v.civil(xp, date.data)[0]) + 1),
    Function.WEEK_OF_YEAR: strict(_week_of_year),
    Function.LAST_DAY: strict(_last_day),
    Function.NEXT_DAY: Offer(lambda node: constant_word(node.arguments[1]) in DAYS_OF_WEEK, _next_day),
    Function.TRUNC: Offer(lambda node: constant_word(node.arguments[1]) in DATE_UNITS, _trunc),
    Function.DATE_TRUNC: Offer(
        lambda node: constant_word(node.arguments[0]) in {*DATE_UNITS, *TIME_UNITS} and _is_local(types(node)[1]),
        _date_trunc,
    ),
    Function.ADD_MONTHS: Offer(_has_little_shift, _add_months),
    Function.UNIX_DATE: strict(lambda _, date: date.data),
    Function.DATE_FROM_UNIX_DATE: strict(lambda _, days: days.data),
    Function.UNIX_TIMESTAMP: strict(_unix_timestamp, _of_micros),
    Function.UNIX_SECONDS: _since_epoch(_SECOND_MICROS),
    Function.UNIX_MILLIS: _since_epoch(1_000),
    Function.UNIX_MICROS: _since_epoch(1),
    Function.TIMESTAMP_SECONDS: _from_epoch(_SECOND_MICROS),
    Function.TIMESTAMP_MILLIS: _from_epoch(1_000),
    Function.TIMESTAMP_MICROS: _from_epoch(1),
    Function.HOUR: _time_part(3600, 24),
    Function.MINUTE: _time_part(60, 60),
    Function.SECOND: _time_part(1, 60),
    Function.DATE_ADD: strict(lambda _, date, days: date.data + days.data.astype("int32")),
    Function.DATE_SUB: strict(lambda _, date, days: date.data - days.data.astype("int32")),
    Function.DATE_DIFF: strict(lambda _, end, start: end.data - start.data),
}
