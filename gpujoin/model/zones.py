"""Time zones as tables of their changes of offset.

The JVM says once when a zone changes its offset from UTC, and to what; the table travels with the expressions that
read clocks in that zone, so that a worker needs no time zone database of its own, which might be of another year.

Europe/Berlin around 2024, in hours from the beginning of a day::

    transitions   2024-03-31 01:00 UTC   2024-10-27 01:00 UTC
    offsets    +1          |          +2          |          +1

    00:59 UTC is 01:59 on the clock, 01:00 UTC is 03:00: no instant has 02:30 in March, two have it in October
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import pyarrow as pa

from gpujoin.model.expressions import Literal

GREGORIAN_CYCLE = 146_097 * 86_400
"""Seconds after which the Gregorian calendar repeats, days of the week included: 400 years."""
_MARGIN = 2 * 86_400
"""Seconds around the beginning of the repetition without a change: no offset is as large."""


@dataclass(frozen=True)
class ZoneRules:
    """When a time zone changes its offset from UTC, and to what.

    Parameters
    ----------
    transitions : tuple of int
        Instants of the changes, in seconds since 1970, ascending.
    offsets : tuple of int
        Seconds that the clock is ahead of UTC: before the first change, and after each.
    repeats_from : int, optional
        Instant from which on the changes repeat every 400 years: the last that are listed are those of the 400 years
        after it. ``None``: there is none after those that are listed.
    """

    transitions: tuple[int, ...]
    _: KW_ONLY
    offsets: tuple[int, ...]
    repeats_from: int | None = None

    def __post_init__(self) -> None:
        assert len(self.offsets) == len(self.transitions) + 1, "an offset before the first change and after each"

    @property
    def ordered(self) -> bool:
        """Whether each change of the clock is over before the next begins, so that a clock's time is searched once."""
        changes = list(zip(self.transitions, self.offsets, self.offsets[1:], strict=False))
        starts = [t + min(before, after) for t, before, after in changes]
        ends = [t + max(before, after) for t, before, after in changes]
        apart = all(end < start for end, start in zip(ends, starts[1:], strict=False))
        start = self.repeats_from
        if start is None:
            return apart
        edges = (start, start + GREGORIAN_CYCLE)
        return apart and all(abs(t - edge) > _MARGIN for t in self.transitions for edge in edges)

    @property
    def is_utc(self) -> bool:
        """Whether the clock always shows UTC."""
        return self.offsets == (0,)


@dataclass(frozen=True, eq=False, kw_only=True)
class ZoneLiteral(Literal):
    """A time zone by its name, with its rules; the operand of functions that read a clock."""

    rules: ZoneRules

    def __str__(self) -> str:
        return str(self.value)


def zone_literal(name: str, rules: ZoneRules) -> ZoneLiteral:
    """Make the constant of a zone."""
    return ZoneLiteral(value=name, rules=rules, type=pa.string())
