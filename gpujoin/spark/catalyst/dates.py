"""Translates functions of dates and timestamps whose operands are more than columns: constants, units, zones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import types as t

from gpujoin.functions import BY_CLASS
from gpujoin.functions.dates import DIFFERENCE_MONTHS, TIME_UNITS
from gpujoin.functions.signatures import type_of
from gpujoin.model.expressions import Call, Case, Cast, EvalMode, Expression, Function, Literal
from gpujoin.model.zones import ZoneLiteral
from gpujoin.spark.catalyst import intervals, zones
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError, Reader, Translation
from gpujoin.spark.catalyst.traits import MayFail, may_fail

_NO_TIME = dt.timedelta()
_DAY = dt.timedelta(days=1)
_MICROSECOND = dt.timedelta(microseconds=1)
_LOCAL = pa.timestamp("us")
_PARSER_POLICY = "spark.sql.legacy.timeParserPolicy"
_UNITS = {"DAYOFYEAR": "DAY"}
"""Other names of units of ``timestampadd``."""
_DAYS = {"DAY": 1, "WEEK": 7}
"""Days of the units of ``timestampadd`` that go by the clock."""


# -- shifts --------------------------------------------------------------------------------------------------------


def _shifted_date(reader: Reader, node: Node) -> Expression:
    """Translate a date plus a constant interval of years and months."""
    return _call(Function.ADD_MONTHS, pa.date32(), reader(node.children[0]), _constant_months(node.children[1]))


def _constant_months(interval: Node) -> Literal:
    if interval.name != "Literal" or interval.fields["@value"] is None:
        raise NotTranslatableError(f"{interval} is no constant interval of years and months")
    return Literal(value=int(interval.fields["@value"]), type=pa.int32())


def _shift_by_months(reader: Reader, node: Node) -> Expression:
    """Translate a timestamp plus a constant interval of years and months."""
    months, moment = _constant_months(node.children[1]), reader(node.children[0])
    return _by_clock(reader, node, moment, lambda local: _plus_months(local, months))


def _shifted_timestamp(reader: Reader, node: Node) -> Expression:
    """Translate a timestamp plus an interval of days to seconds: whole days by the clock."""
    moment, interval = node.children
    return _Shift(reader, node, reader(moment)).by(interval, 1)


@dataclass(frozen=True)
class _Shift:
    """A timestamp that is shifted by an interval."""

    reader: Reader
    node: Node
    """The whole expression."""
    moment: Expression

    def by(self, interval: Node, sign: int) -> Expression:
        """Add a constant interval, one of several constants, or a number of constants; or subtract it."""
        match interval.name:
            case "UnaryMinus":
                return self.by(interval.children[0], -sign)
            case "If" | "CaseWhen" if may_fail(interval) is MayFail.NEVER:
                return self._by_cases(interval, sign)
            case "MultiplyDTInterval" if interval.children[0].name == "Literal":
                return self._by_product(interval, sign)
        if intervals.is_interval(interval) and interval.name != "Literal":
            micros = intervals.micros_of(self.reader(interval))
            return self._by_micros(micros if sign > 0 else _checked(Function.NEGATE, micros))
        days, rest = (sign * part for part in _constant_interval(interval))
        zone = self._zone if days else None
        if zone is None:
            return _plus(self.moment, days + rest)
        moved = zones.instant(_plus(zones.clock(self.moment, zone), days), zone, self.moment)
        return _plus(moved, rest) if rest else moved

    @property
    def _zone(self) -> ZoneLiteral | None:
        return self.reader.zone_of_days(self.node) if _is_zoned(self.node) else None

    def _by_cases(self, interval: Node, sign: int) -> Expression:
        """Add ``CASE WHEN … THEN interval …``: ``CASE WHEN … THEN timestamp + interval …``."""
        dtype, operands = type_of(self.moment), list(interval.children)
        nothing: Expression = Literal(value=None, type=dtype)

        def shifted(value: Node) -> Expression:
            is_null = value.name == "Literal" and value.fields["@value"] is None
            return nothing if is_null else self.by(value, sign)

        otherwise = shifted(operands.pop()) if len(operands) % 2 else nothing
        conditions, values = tuple(map(self.reader, operands[0::2])), tuple(map(shifted, operands[1::2]))
        return Case(conditions=conditions, values=values, otherwise=otherwise, type=dtype)

    def _by_product(self, product: Node, sign: int) -> Expression:
        """Add a whole number of constant intervals, of which the sum is taken apart in days and the rest."""
        constant, number = product.children
        if not isinstance(number.data_type, t.IntegralType):
            raise NotTranslatableError(f"{product} is not computed here: the number is not whole")
        node, quantity = self.node, self.reader(number)
        unit = sign * sum(_constant_interval(constant), _NO_TIME) // _MICROSECOND
        if self._zone is None:
            return _plus_units(node, self.moment, quantity, unit)
        return self._by_micros(
            _checked(Function.MULTIPLY, _to(quantity, pa.int64()), Literal(value=unit, type=pa.int64()))
        )

    def _by_micros(self, micros: Expression) -> Expression:
        """Add a number of microseconds: whole days by the clock, and the rest."""
        node = self.node
        if self._zone is None:
            return _plus_units(node, self.moment, micros, 1)
        day = Literal(value=TIME_UNITS["DAY"], type=pa.int64())
        days, rest = (_checked(function, micros, day) for function in (Function.INTEGRAL_DIVIDE, Function.REMAINDER))
        moved = _by_clock(
            self.reader, node, self.moment, lambda local: _plus_units(node, local, days, TIME_UNITS["DAY"])
        )
        return _plus_units(node, moved, rest, 1)


def _constant_interval(node: Node) -> tuple[dt.timedelta, dt.timedelta]:
    """Read a constant interval of days and less: its whole days, and the rest.

    Raises ``NotTranslatableError`` if it is none.
    """
    value = node.fields["@value"] if node.name == "Literal" else None
    if isinstance(node.data_type, t.DayTimeIntervalType) and value is not None:
        shift = dt.timedelta(microseconds=int(value))
        days = abs(shift) // _DAY * (_DAY if shift > _NO_TIME else -_DAY)
        return days, shift - days
    if isinstance(value, dict) and value.get("months") == 0:  # an interval of Spark 2, which has days of its own
        return value["days"] * _DAY, dt.timedelta(microseconds=value["microseconds"])
    raise NotTranslatableError(f"{node} is no constant interval of days and less")


def _timestampadd(reader: Reader, node: Node) -> Expression:
    """Translate ``timestampadd``: months, days and weeks by the clock, other units by instants."""
    unit, quantity, moment = _unit(node), reader(node.children[0]), reader(node.children[1])
    if unit in DIFFERENCE_MONTHS:
        months = _months(node, quantity, DIFFERENCE_MONTHS[unit])
        return _by_clock(reader, node, moment, lambda local: _plus_months(local, months))
    if unit in _DAYS:
        micros = _DAYS[unit] * TIME_UNITS["DAY"]
        return _by_clock(reader, node, moment, lambda local: _plus_units(node, local, quantity, micros))
    if unit not in TIME_UNITS:
        raise NotTranslatableError(f"{node} is not computed here in the unit {unit}")
    return _plus_units(node, moment, quantity, TIME_UNITS[unit])


def _unit(node: Node) -> str:
    name = str(node.fields.get("unit")).upper()
    return _UNITS.get(name, name)


def _months(node: Node, quantity: Expression, unit: int) -> Expression:
    """A number of units of some months; numbers beyond 32 bits are an error in every mode."""
    if isinstance(quantity, Literal):
        value = None if quantity.value is None else int(quantity.value) * unit
        if value is not None and abs(value) >= 1 << 31:
            raise NotTranslatableError(f"{node} overflows")
        return Literal(value=value, type=pa.int32())
    number = Cast(child=quantity, to=pa.int32(), mode=EvalMode.ANSI, type=pa.int32())
    return _checked(Function.MULTIPLY, number, Literal(value=unit, type=pa.int32())) if unit > 1 else number


def _plus_months(moment: Expression, months: Expression) -> Expression:
    return _call(Function.TIMESTAMP_ADD_MONTHS, type_of(moment), moment, months)


def _plus_units(node: Node, moment: Expression, quantity: Expression, unit: int) -> Expression:
    """A timestamp plus a number of units of one length; an overflow is an error in every mode."""
    if isinstance(quantity, Literal) and quantity.value is not None:
        try:
            return _plus(moment, dt.timedelta(microseconds=int(quantity.value) * unit))
        except OverflowError:
            raise NotTranslatableError(f"{node} overflows") from None
    shift = _to(quantity, pa.int64())
    if unit != 1:
        shift = _checked(Function.MULTIPLY, shift, Literal(value=unit, type=pa.int64()))
    micros = _checked(Function.ADD, _call(Function.UNIX_MICROS, pa.int64(), _to(moment, zones.INSTANT)), shift)
    return _to(_call(Function.TIMESTAMP_MICROS, zones.INSTANT, micros), type_of(moment))


def _plus(moment: Expression, shift: dt.timedelta) -> Expression:
    interval = Literal(value=shift, type=pa.duration("us"))
    return _call(Function.TIMESTAMP_ADD, type_of(moment), moment, interval)


def _by_clock(reader: Reader, node: Node, moment: Expression, shift: Callable[[Expression], Expression]) -> Expression:
    """Shift the local time of the session's zone, with the same offset if possible."""
    zone = reader.zone_of_days(node) if _is_zoned(node) else None
    return shift(moment) if zone is None else zones.instant(shift(zones.clock(moment, zone)), zone, moment)


# -- differences and parts -----------------------------------------------------------------------------------------


def _timestampdiff(reader: Reader, node: Node) -> Expression:
    """Translate ``timestampdiff``, which goes by the clock for every unit."""
    zone, moments = reader.zone(node), list(map(reader, node.children))
    if zone is not None:
        moments = [zones.clock(moment, zone) for moment in moments]
    unit = Literal(value=str(node.fields.get("unit")), type=pa.string())
    return _call(Function.TIMESTAMP_DIFF, pa.int64(), unit, *moments)


def _unix_timestamp(reader: Reader, node: Node) -> Expression:
    """Translate the seconds of a date or timestamp, or of a text by its pattern."""
    kind = node.children[0].data_type
    if isinstance(kind, t.StringType):
        moment = _parse(reader, node)
    else:
        moment = reader(node.children[0])
        if isinstance(kind, t.DateType):
            zone, moment = reader.zone(node), _to(moment, zones.INSTANT)
            moment = moment if zone is None else zones.start_of_day(moment, zone)
    return _call(Function.UNIX_TIMESTAMP, pa.int64(), _to(moment, zones.INSTANT))


def _from_unixtime(reader: Reader, node: Node) -> Expression:
    """Translate ``from_unixtime``: seconds since 1970 as text, too large ones wrapped to a timestamp."""
    refuse_legacy_patterns(node)
    zone, seconds, pattern = reader.zone(node), reader(node.children[0]), reader(node.children[1])
    if zone is None:
        return _call(Function.FROM_UNIXTIME, pa.string(), seconds, pattern)
    micros = _call(Function.MULTIPLY, pa.int64(), seconds, Literal(value=10**6, type=pa.int64()))
    moment = _call(Function.TIMESTAMP_MICROS, zones.INSTANT, micros)
    return _call(Function.DATE_FORMAT, pa.string(), zones.clock(moment, zone), pattern)


def _precise_conversion(reader: Reader, node: Node) -> Expression:
    """Translate a timestamp to its microseconds, or back: what ``window`` computes with."""
    value = reader(node.children[0])
    if isinstance(node.data_type, t.LongType):
        return _call(Function.UNIX_MICROS, pa.int64(), _to(value, zones.INSTANT))
    moment = _call(Function.TIMESTAMP_MICROS, zones.INSTANT, value)
    return _to(moment, zones.INSTANT if _is_zoned(node) else _LOCAL)


# -- texts and parts -----------------------------------------------------------------------------------------------


def _get_timestamp(reader: Reader, node: Node) -> Expression:
    """Translate ``to_timestamp`` of a text by a pattern."""
    if not isinstance(node.children[0].data_type, t.StringType):
        raise NotTranslatableError(f"{node} is not computed here")
    moment = _parse(reader, node)
    return moment if _is_zoned(node) else _to(moment, _LOCAL)


def _parse(reader: Reader, node: Node) -> Expression:
    """A timestamp of a text by a pattern, by the session's clock if it is one with a zone."""
    refuse_legacy_patterns(node)
    zone = None if isinstance(node.data_type, t.TimestampNTZType) else reader.zone(node)
    text, pattern = map(reader, node.children[:2])
    local = Call(function=Function.PARSE_TIMESTAMP, arguments=(text, pattern), mode=node.eval_mode, type=zones.INSTANT)
    return local if zone is None else zones.instant(local, zone)


def refuse_legacy_patterns(node: Node) -> None:
    """Refuse what writes or reads times by the patterns and the calendar of Spark 2.

    Raises ``NotTranslatableError`` if the session has such.
    """
    if node.reading.conf.get(_PARSER_POLICY, "CORRECTED").upper() != "CORRECTED":
        raise NotTranslatableError(f"{node} follows {_PARSER_POLICY}, which is not CORRECTED")


def _make_timestamp(reader: Reader, node: Node) -> Expression:
    """Translate a timestamp of its parts, by the clock of a constant zone or of the session."""
    parts = node.children[:6]
    if len(node.children) > 6:
        zone: ZoneLiteral | None = _constant_zone(node, node.children[6])
    else:
        zone = reader.zone(node) if _is_zoned(node) else None
    local = Call(
        function=Function.MAKE_TIMESTAMP,
        arguments=tuple(map(reader, parts)),
        mode=node.eval_mode,
        type=zones.INSTANT,
    )
    if not _is_zoned(node):
        return _to(local, _LOCAL)
    return local if zone is None else zones.instant(local, zone)


# -- zones ---------------------------------------------------------------------------------------------------------


def _moved_timestamp(reader: Reader, node: Node) -> Expression:
    """Translate ``from_utc_timestamp`` and ``to_utc_timestamp``, of a constant zone."""
    if not isinstance(node.children[0].data_type, t.TimestampType):
        raise NotTranslatableError(f"{node} is not computed here")
    zone = _constant_zone(node, node.children[1])
    return _call(BY_CLASS[node.name].function, zones.INSTANT, reader(node.children[0]), zone)


def _convert_timezone(reader: Reader, node: Node) -> Expression:
    """Translate a timestamp without a zone, from one clock to another."""
    source, target = (_constant_zone(node, name) for name in node.children[:2])
    moment = zones.instant(_to(reader(node.children[2]), zones.INSTANT), source)
    return _to(zones.clock(moment, target), _LOCAL)


def _constant_zone(node: Node, name: Node) -> ZoneLiteral:
    value = name.fields["@value"] if name.name == "Literal" else None
    if not isinstance(value, str):
        raise NotTranslatableError(f"{node} is not computed here: the zone is no constant")
    return zones.named_zone(node, value)


def _is_zoned(node: Node) -> bool:
    return isinstance(node.data_type, t.TimestampType)


def _to(value: Expression, dtype: pa.DataType) -> Expression:
    """The same clock or number in another type."""
    return value if value.type == dtype else Cast(child=value, to=dtype, type=dtype)


def _call(function: Function, dtype: pa.DataType, *arguments: Expression) -> Call:
    return Call(function=function, arguments=arguments, type=dtype)


def _checked(function: Function, *arguments: Expression) -> Call:
    return Call(function=function, arguments=arguments, mode=EvalMode.ANSI, type=arguments[0].type)


TRANSLATIONS: dict[str, Translation] = {
    "DateAddYMInterval": _shifted_date,
    "TimestampAddInterval": _shifted_timestamp,
    "TimeAdd": _shifted_timestamp,
    "TimestampAddYMInterval": _shift_by_months,
    "TimestampAdd": _timestampadd,
    "TimestampDiff": _timestampdiff,
    "UnixTimestamp": _unix_timestamp,
    "ToUnixTimestamp": _unix_timestamp,
    "FromUnixTime": _from_unixtime,
    "PreciseTimestampConversion": _precise_conversion,
    "GetTimestamp": _get_timestamp,
    "MakeTimestamp": _make_timestamp,
    "FromUTCTimestamp": _moved_timestamp,
    "ToUTCTimestamp": _moved_timestamp,
    "ConvertTimezone": _convert_timezone,
}
"""Translations by the classes of Spark's expressions; ``TimeAdd`` is the name before Spark 4.1."""
