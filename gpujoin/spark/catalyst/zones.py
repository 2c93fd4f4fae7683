"""Functions that read a clock in a session's time zone, as functions of UTC.

A timestamp is replaced by the one at which a clock in UTC shows what the session's clock does; what is exact in UTC
then gives the parts, the text or the date. A result that is a timestamp is taken back to the session's zone::

    hour(t)                    hour(from_utc_timestamp(t, zone))
    cast(d as timestamp)       start_of_day(cast(d as timestamp), zone)
    date_trunc('hour', t)      to_utc_timestamp(date_trunc('hour', from_utc_timestamp(t, zone)), zone, t)

The zone is a table of the JVM's own rules (:mod:`gpujoin.model.zones`), so no other time zone data is involved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat
from py4j.protocol import Py4JJavaError

from gpujoin.cache import cached_by_life
from gpujoin.functions.dates import DATE_UNITS, TIME_UNITS, constant_word
from gpujoin.functions.signatures import type_of
from gpujoin.model.expressions import Call, Cast, Expression, Function
from gpujoin.model.types import is_text
from gpujoin.model.zones import ZoneLiteral, ZoneRules, zone_literal
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.jvm.compiled import shared_instance
from gpujoin.spark.jvm.gateway import unpacked

if TYPE_CHECKING:
    from gpujoin.spark.jvm.gateway import JvmNames

INSTANT = pa.timestamp("us", "UTC")
"""The type of timestamps with a zone; their own is always UTC here, whatever the session's is."""
UTC_NAMES = frozenset({"UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "UCT", "Zulu"})
"""Names of UTC, as a session's time zone."""


@cached_by_life
def rules_of(gateway: JvmNames, name: str) -> ZoneRules | None:
    """Ask the JVM for the rules of a zone; ``None`` if a clock's time is not found by one search in them."""
    content = unpacked(shared_instance(gateway, "ZoneReader").rules(name))
    rules = ZoneRules(
        tuple(content["transitions"]), offsets=tuple(content["offsets"]), repeats_from=content["repeats_from"]
    )
    return rules if rules.ordered else None


def session_zone(node: Node) -> ZoneLiteral | None:
    """Give the session's time zone, as a node has it; ``None`` if it is UTC.

    Raises ``NotTranslatableError`` if its rules are not covered.
    """
    name = node.fields.get("timeZoneId")
    if name in UTC_NAMES:
        return None
    if not isinstance(name, str):
        raise NotTranslatableError(f"{node} depends on the session's time zone")
    zone = named_zone(node, name)
    return None if zone.rules.is_utc else zone


def named_zone(node: Node, name: str) -> ZoneLiteral:
    """Give the zone that a node names. Raises ``NotTranslatableError`` if its rules are not covered."""
    try:
        rules = rules_of(node.reading.gateway, name)
    except Py4JJavaError:
        raise NotTranslatableError(f"{node}: there is no time zone {name!r}") from None
    if rules is None:
        raise NotTranslatableError(f"{node}: the clock of {name} is set again before a change is over")
    return zone_literal(name, rules)


def is_instant(dtype: pa.DataType) -> bool:
    """Whether a type is a timestamp with a zone."""
    return bool(pat.is_timestamp(dtype) and dtype.tz is not None)


def clock(moment: Expression, zone: ZoneLiteral) -> Expression:
    """What a clock shows at an instant."""
    return Call(function=Function.FROM_UTC_TIMESTAMP, arguments=(moment, zone), type=INSTANT)


def instant(local: Expression, zone: ZoneLiteral, near: Expression | None = None) -> Expression:
    """Convert a local time to an instant, with the offset at another instant if possible."""
    others = () if near is None else (near,)
    return Call(function=Function.TO_UTC_TIMESTAMP, arguments=(local, zone, *others), type=INSTANT)


def start_of_day(midnight: Expression, zone: ZoneLiteral, near: Expression | None = None) -> Expression:
    """Convert a day to the instant at which it begins, with the offset at another instant if possible."""
    others = () if near is None else (near,)
    return Call(function=Function.START_OF_DAY, arguments=(midnight, zone, *others), type=INSTANT)


def cast_in(cast: Cast, zone: ZoneLiteral) -> Expression:
    """Convert between timestamps with a zone and dates, texts or timestamps without one."""
    if is_text(type_of(cast.child)):
        return Call(function=Function.CAST_TIMESTAMP, arguments=(cast.child, zone), mode=cast.mode, type=INSTANT)
    if is_instant(type_of(cast.child)):
        return cast.with_children([clock(cast.child, zone)])
    return start_of_day(cast, zone) if pat.is_date(type_of(cast.child)) else instant(cast, zone)


def call_in(call: Call, zone: ZoneLiteral, gateway: JvmNames) -> Expression:
    """Make a call of a zone's local times from one that computes in UTC."""
    if call.function is Function.MONTHS_BETWEEN:
        return call.with_children([*call.arguments, zone])
    local_call = call.with_children([clock(a, zone) if is_instant(type_of(a)) else a for a in call.arguments])
    if call.function is not Function.DATE_TRUNC:
        return local_call if not is_instant(type_of(call)) else instant(local_call, zone)
    moment, unit = call.arguments[1], constant_word(call.arguments[0])
    if unit in DATE_UNITS:
        return start_of_day(local_call, zone, moment if _truncation_keeps_offset(gateway) else None)
    # Offsets are whole seconds.
    return call if TIME_UNITS.get(unit, 0) <= TIME_UNITS["SECOND"] else instant(local_call, zone, moment)


@cached_by_life
def _truncation_keeps_offset(gateway: JvmNames) -> bool:
    """Whether ``date_trunc`` to days and more keeps the offset on days with two midnights."""
    return bool(shared_instance(gateway, "ZoneReader").truncationKeepsOffset())
