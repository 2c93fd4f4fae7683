"""Moments of groups that infinities or overflow make other than numbers, as Spark computes them: row by row.

Backends compute a group's means first, then sums of products of deviations from them. Of finite values both ways give
the same up to rounding. Where a value is infinite they do not: for the rows ``(x, y)`` = (1, 1), (inf, 2), deviations
from the mean of ``x`` are -inf and NaN, and so is their sum of products. Spark adds the second row to what it knows of
the first: ``x`` less the mean so far, inf, times ``y`` less the new mean, 0.5, which is inf. Rows of such groups are
therefore added again, in their order. Where a value is NaN, every way gives NaN, and nothing is added again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from gpujoin.backends.ordered.ops import Array
from gpujoin.backends.ordered.reductions import any_true
from gpujoin.model.aggregates import REGRESSIONS, AggregateCall

_State: TypeAlias = list[float]
"""Count, means of the arguments, sums of products of deviations: of one argument ``d²``, ``d³`` and ``d⁴``, of two
``xy``, ``x²`` and ``y²``."""
_Add: TypeAlias = Callable[[_State, Sequence[float]], None]
_OTHER_WAY = (0, 2, 1, 3, 5, 4)
"""The parts of a state of two arguments, if these are exchanged."""
_ONE, _TWO = 5, 6
"""Length of a state of one argument, and of two."""


def replay_rows(
    xp: Any, call: AggregateCall, parts: Sequence[Array], groups: Array, values: Sequence[Array], counted: Array | None
) -> list[Array]:
    """Give the parts of states, with those that are no numbers computed row by row.

    ``parts`` are of each group; ``groups``, ``values``, an array for each argument, and ``counted`` of each row, in the
    order in which Spark reads the rows of a group.
    """
    if len(values) == 1:
        return _replayed(xp, parts, groups, values, counted, [~xp.isfinite(values[0])], _add_one)
    aimless = [xp.isnan(value) for value in values]
    pairs = _exchanged(call, values, (1, 0))
    parts = _replayed(xp, _exchanged(call, parts, _OTHER_WAY), groups, pairs, counted, aimless, _add_pair)
    return _exchanged(call, parts, _OTHER_WAY)


def replay_states(
    xp: Any, call: AggregateCall, parts: Sequence[Array], groups: Array, states: Sequence[Array]
) -> list[Array]:  # fmt: skip
    """Give the parts of merged states, with those that are no numbers merged one state after the other."""
    count = states[0]
    if len(call.arguments) == 1:
        aimless = [~xp.isfinite(part) for part in states[1:]]
        return _replayed(xp, parts, groups, states, count > 0, aimless, _merge_one)
    # What a single row adds follows from the row.
    single = count == 1.0
    aimless = [(xp.isnan(states[1]) | xp.isnan(states[2])) & single, xp.isnan(states[3]) & ~single]
    states = _exchanged(call, states, _OTHER_WAY)
    parts = _replayed(xp, _exchanged(call, parts, _OTHER_WAY), groups, states, count > 0, aimless, _merge_pair)
    return _exchanged(call, parts, _OTHER_WAY)


def _exchanged(call: AggregateCall, arrays: Sequence[Array], order: Sequence[int]) -> list[Array]:
    """Arrays of y and x, which are the arguments of a slope, as of x and y, of which Spark has the covariance."""
    return [arrays[n] for n in order] if call.function in REGRESSIONS else list(arrays)


def _replayed(
    xp: Any, parts: Sequence[Array], groups: Array, rows: Sequence[Array], counted: Array | None,
    aimless: Sequence[Array], add: _Add,
) -> list[Array]:  # fmt: skip
    """Add the rows of groups in turn; ``aimless`` rows are those after which a group is what it is in any way."""
    wanted = xp.zeros(parts[0].shape[0], dtype=bool)
    for part in parts[1:]:
        wanted |= ~xp.isfinite(part)
    if not any_true(wanted):
        return list(parts)
    for mask in aimless:
        wanted[groups[mask if counted is None else mask & counted]] = False
    taking = xp.flatnonzero(wanted[groups] if counted is None else wanted[groups] & counted)
    states: dict[int, _State] = {}
    columns = [row[taking].tolist() for row in rows]
    for group, *row in zip(groups[taking].tolist(), *columns, strict=True):
        state = states.get(group)
        if state is None:
            state = states[group] = [0.0] * (_ONE if add in (_add_one, _merge_one) else _TWO)
        add(state, row)
    if not states:
        return list(parts)
    at = xp.asarray(list(states))
    return [_mended(xp, part, at, [state[n] for state in states.values()]) for n, part in enumerate(parts)]


def _mended(xp: Any, part: Array, at: Array, values: Sequence[float]) -> Array:
    known = part[at]
    part = part.copy()
    part[at] = xp.where(xp.isfinite(known), known, xp.asarray(values, dtype="float64"))
    return part


def _add_one(state: _State, row: Sequence[float]) -> None:
    """Add a value, as Spark's ``CentralMomentAgg`` does."""
    n, mean, m2, m3, m4 = state
    n += 1.0
    delta = row[0] - mean
    step = delta / n
    m2 += delta * (delta - step)
    m3 += -3.0 * step * m2 + delta * (delta * delta - step * step)
    m4 += -4.0 * step * m3 - 6.0 * step * step * m2 + delta * (delta * delta * delta - step * step * step)
    state[:] = n, mean + step, m2, m3, m4


def _add_pair(state: _State, row: Sequence[float]) -> None:
    """Add a pair, as Spark's ``Covariance`` and ``PearsonCorrelation`` do."""
    n, x_mean, y_mean, xy, xx, yy = state
    x, y = row
    n += 1.0
    dx, dy = x - x_mean, y - y_mean
    x_mean += dx / n
    y_mean += dy / n
    state[:] = n, x_mean, y_mean, xy + dx * (y - y_mean), xx + dx * (x - x_mean), yy + dy * (y - y_mean)


def _merge_one(state: _State, other: Sequence[float]) -> None:
    n, mean, m2, m3, m4 = state
    count, other_mean, *sums = other
    if count == 1.0:
        _add_one(state, (other_mean,))
        return
    n2, n3, n4 = (*sums, 0.0, 0.0)[:3]
    if not n:
        state[:] = count, other_mean, n2, n3, n4
        return
    total = n + count
    delta = other_mean - mean
    step = delta / total
    state[:] = (
        total,
        mean + step * count,
        m2 + n2 + delta * step * n * count,
        m3 + n3 + step * step * delta * n * count * (n - count) + 3.0 * step * (n * n2 - count * m2),
        m4 + n4 + step * step * step * delta * n * count * (n * n - n * count + count * count)
        + 6.0 * step * step * (n * n * n2 + count * count * m2) + 4.0 * step * (n * n3 - count * m3),
    )  # fmt: skip


def _merge_pair(state: _State, other: Sequence[float]) -> None:
    n, x_mean, y_mean, xy, xx, yy = state
    count, x, y, *sums = other
    if count == 1.0:
        _add_pair(state, (x, y))
        return
    others = (*sums, 0.0, 0.0)[:3]
    if not n:
        state[:] = count, x, y, *others
        return
    total = n + count
    dx, dy = x - x_mean, y - y_mean
    state[:] = (
        total,
        x_mean + dx / total * count,
        y_mean + dy / total * count,
        xy + others[0] + dx * (dy / total) * n * count,
        xx + others[1] + dx * (dx / total) * n * count,
        yy + others[2] + dy * (dy / total) * n * count,
    )
