"""Converts between instants and the times of a clock in a time zone, by a table of the zone's changes.

Both directions are a search in sorted bounds. Of a clock's time the bound of a change is the later of what the clock
shows before and after it. Below the bound the offset before the change holds, which is Java's rule for both oddities.
Europe/Berlin in 2024::

    clock             offset   instant (UTC)
    03-31 01:59       +1       00:59
    03-31 02:30       +1       01:30, at which the clock shows 03:30: skipped times are moved forward
    03-31 03:00       +2       01:00, the bound of the change
    10-27 02:30       +2       00:30, the earlier of the two
    10-27 03:00       +1       02:00, the bound of the change

Times are microseconds since 1970; those of a clock are as if it showed UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.implementation import Run
from gpujoin.functions.signatures import INSTANT, TEXT, first, takes
from gpujoin.functions.spec import FunctionSpec
from gpujoin.functions.vector import Array, Mask, Vector, mask_and
from gpujoin.model.expressions import Call, Function
from gpujoin.model.types import MICROS
from gpujoin.model.zones import GREGORIAN_CYCLE, ZoneLiteral, ZoneRules

_CYCLE = GREGORIAN_CYCLE * MICROS
_FAR = (1 << 63) - 2 * 86_400 * MICROS
"""Times before this one, and after its negative, do not overflow by an offset, which is 18 hours at most."""


@dataclass(frozen=True, eq=False)
class _Table:
    """The rules of a zone in microseconds."""

    transitions: Array
    offsets: Array
    bounds: Array
    """By each change: the first time of the clock for which the offset after it holds."""
    repeats_from: int | None

    def offset_at(self, instants: Array) -> Array:
        """Offsets at instants; a single one if all have the same."""
        return self._search(self.transitions, instants)

    def offset_of(self, clock: Array) -> Array:
        """Offsets before the changes, for times that a clock skips or shows twice; a single one if all are the same."""
        return self._search(self.bounds, clock)

    def folded(self, times: Array) -> Array:
        """Move times after the changes that are listed back by whole repetitions."""
        start = self.repeats_from
        if start is None or int(times.max()) - start < _CYCLE:
            return times
        return np.where(times >= start, start + (times - start) % _CYCLE, times)

    def _search(self, bounds: Array, values: Array) -> Array:
        if len(values) == 0 or len(bounds) == 0:
            return self.offsets[:1]
        values = self.folded(values)
        # Usual data touches few of the changes.
        first, last = np.searchsorted(bounds, [values.min(), values.max()], "right")
        if first == last:
            return self.offsets[first : first + 1]
        return self.offsets[first:][np.searchsorted(bounds[first:last], values, "right")]


@lru_cache(maxsize=64)
def _table(rules: ZoneRules) -> _Table:
    transitions, offsets = (np.array(values, np.int64) * MICROS for values in (rules.transitions, rules.offsets))
    bounds = transitions + np.maximum(offsets[:-1], offsets[1:])
    start = rules.repeats_from
    return _Table(transitions, offsets, bounds, None if start is None else start * MICROS)


def clock(values: Array, valid: Mask | None, rules: ZoneRules) -> Array:
    """What a clock shows at instants. Raises ``UnsupportedValueError`` beyond 64 bits."""
    return _shifted(values, _table(rules).offset_at(values), valid)


def instants(local: Array, valid: Mask | None, rules: ZoneRules) -> Array:
    """Instants at which a clock shows times: the earlier of two; for skipped times, one as much after the change.

    Raises ``UnsupportedValueError`` beyond 64 bits.
    """
    return _shifted(local, -_table(rules).offset_of(local), valid)


def near(others: Array, local: Array, otherwise: Array, valid: Mask | None, rules: ZoneRules) -> Array:
    """Instants of a clock's times by the offsets at other instants, or ``otherwise`` where those do not hold."""
    table = _table(rules)
    offsets = table.offset_at(others)
    candidate = _shifted(local, -offsets, valid)
    return np.where(table.offset_at(candidate) == offsets, candidate, otherwise)


def starts_of_day(midnights: Array, valid: Mask | None, rules: ZoneRules) -> Array:
    """The first instants of days, given as midnights: the change itself where it skips midnight."""
    table = _table(rules)
    offsets = table.offset_of(midnights)
    begin = _shifted(midnights, -offsets, valid)
    after = table.offset_at(begin)
    # A skipped midnight is as far after the change as midnight is after what the clock showed before it.
    skipped = after > offsets
    if not skipped.any():
        return begin
    folded = table.folded(begin)
    change = table.transitions[np.maximum(np.searchsorted(table.transitions, folded, "right") - 1, 0)]
    return np.where(skipped, begin - (folded - change), begin)


def _shifted(values: Array, shift: Array, valid: Mask | None) -> Array:
    with np.errstate(over="ignore"):
        moved = np.asarray(values + shift)
    if len(values) == 0 or (values.max() < _FAR and values.min() > -_FAR):
        return moved
    overflows = ((values ^ moved) & (shift ^ moved)) < 0
    if overflows.any() and (overflows if valid is None else overflows & valid).any():
        raise UnsupportedValueError("a timestamp at the end of its range, in a time zone, is left to Spark")
    return moved


def rules_in(node: Call) -> ZoneRules:
    """The rules of the zone of a call, its second argument."""
    zone = node.arguments[1]
    assert isinstance(zone, ZoneLiteral)
    return zone.rules


def has_rules(node: Call) -> bool:
    """Whether the rules of a call's zone are known."""
    return isinstance(node.arguments[1], ZoneLiteral)


def _from_utc(node: Call, operands: list[Vector], _length: int) -> Vector:
    moment = operands[0]
    return Vector(moment.dtype, clock(moment.values, moment.valid, rules_in(node)), moment.valid)


def _to_instants(make: Callable[[Array, Mask | None, ZoneRules], Array]) -> Run:
    """Make a function from times of a clock to instants."""

    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        local, _, *others = operands
        rules = rules_in(node)
        results = make(local.values, local.valid, rules)
        if not others:
            return Vector(local.dtype, results, local.valid)
        valid = mask_and(local.valid, others[0].valid)
        return Vector(local.dtype, near(others[0].values, local.values, results, valid, rules), valid)

    return run


TABLE = (
    FunctionSpec(
        Function.FROM_UTC_TIMESTAMP, ("FromUTCTimestamp",), takes(INSTANT, TEXT, gives=first),
        exact=has_rules, numpy=_from_utc,
    ),
    FunctionSpec(
        Function.TO_UTC_TIMESTAMP, ("ToUTCTimestamp",), takes(INSTANT, TEXT, INSTANT, gives=first, optional=1),
        exact=has_rules, numpy=_to_instants(instants),
    ),
    FunctionSpec(
        Function.START_OF_DAY, (), takes(INSTANT, TEXT, INSTANT, gives=first, optional=1),
        exact=has_rules, numpy=_to_instants(starts_of_day),
    ),
)  # fmt: skip
