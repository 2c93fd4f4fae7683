"""Moments, covariances and regressions of groups: means, and sums of products of deviations from them, in doubles.

The sums of a group about its means follow from those of its parts about theirs: see P. Pébay, "Formulas for robust,
one-pass parallel computation of covariances and arbitrary-order statistical moments", SAND2008-6212. The group's first
value is subtracted from each before, so that deviations of a constant are exactly 0, as Spark finds them.

Of finite values that gives what Spark's way gives, row by row, up to rounding. Where a value is infinite, or overflows,
it does not: for the rows ``(x, y)`` = (1, 1), (inf, 2), deviations from the mean of ``x`` are -inf and NaN, and so is
their sum of products. Spark adds the second row to what it knows of the first: ``x`` less the mean so far, inf, times
``y`` less the new mean, 0.5, which is inf. Rows of such groups are therefore added again, in their order. Where a value
is NaN, every way gives NaN, and nothing is added again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any, TypeAlias

from gpujoin.backends.ordered.ops import Array
from gpujoin.backends.ordered.reductions import any_true
from gpujoin.model.aggregates import CENTRAL_MOMENTS, REGRESSIONS, AggregateCall, AggregateFunction

_Powers: TypeAlias = tuple[int, ...]
"""Exponent of each argument's deviation in a product."""
_SQUARES: tuple[_Powers, ...] = ((1, 1), (2, 0), (0, 2))
_SUMS: dict[AggregateFunction, tuple[_Powers, ...]] = {
    **dict.fromkeys(CENTRAL_MOMENTS, ((2,),)),
    AggregateFunction.SKEWNESS: ((2,), (3,)),
    AggregateFunction.KURTOSIS: ((2,), (3,), (4,)),
    **dict.fromkeys((AggregateFunction.COVAR_POP, AggregateFunction.COVAR_SAMP, AggregateFunction.REGR_SXY), ((1, 1),)),
    **dict.fromkeys((AggregateFunction.CORR, AggregateFunction.REGR_R2, *REGRESSIONS), _SQUARES),
}
"""The products that are summed."""
_OF_PAIRS = (0, 2, 1, 3, 0, 2, 5)
"""The parts of the state of y and x that Spark's regressions have: of the covariance, then of the variance of x."""
_State: TypeAlias = list[float]
"""Count, means of the arguments, sums of products of deviations: of one argument ``d²``, ``d³`` and ``d⁴``, of two
``xy``, ``x²`` and ``y²``."""
_Add: TypeAlias = Callable[[_State, Sequence[float]], None]
_OTHER_WAY = (0, 2, 1, 3, 5, 4)
"""The parts of a state of two arguments, if these are exchanged."""
_ONE, _TWO = 5, 6
"""Length of a state of one argument, and of two."""


@dataclass(frozen=True)
class GroupedRows:
    """Rows by group, as a backend has them."""

    xp: Any
    """``numpy`` or ``cupy``."""
    groups: Array
    """Group of each row; the rows of a group in the order in which Spark reads them."""
    counted: Array | None
    """Which rows count; ``None``: all."""
    counts: Array
    """How many values each group's rows stand for, as doubles."""
    first: Array
    """The first row of each group that counts; any row if none does."""
    totals: Callable[[Sequence[Array]], list[Array]]
    """Sums over the rows of each group that count, 0 if none does."""


def parts(call: AggregateCall) -> int:
    """Number of the columns of a state: count, mean of each argument, and sums of products of deviations."""
    return 1 + len(call.arguments) + len(_SUMS[call.function])


def buffer_parts(call: AggregateCall) -> Sequence[int]:
    """Positions of the state's columns that make up Spark's buffer."""
    return _OF_PAIRS if call.function in REGRESSIONS else range(parts(call))


def of_rows(rows: GroupedRows, call: AggregateCall, values: Sequence[Array]) -> list[Array]:
    """States of groups of rows, of which ``values`` are an array for each argument."""
    xp, states = rows.xp, _about_means(rows, call, None, values, {})
    if len(values) == 1:
        return _replayed(rows, states, values, [~xp.isfinite(values[0])], _add_one)
    aimless = [xp.isnan(value) for value in values]
    of_pairs = _exchanged(call, states, _OTHER_WAY)
    return _exchanged(call, _replayed(rows, of_pairs, _exchanged(call, values, (1, 0)), aimless, _add_pair), _OTHER_WAY)


def of_states(rows: GroupedRows, call: AggregateCall, states: Sequence[Array]) -> list[Array]:
    """Merge states by group, given their columns."""
    xp, (count, *rest) = rows.xp, states
    means, sums = rest[: len(call.arguments)], rest[len(call.arguments) :]
    merged = _about_means(rows, call, count, means, dict(zip(_SUMS[call.function], sums, strict=True)))
    if len(call.arguments) == 1:
        return _replayed(rows, merged, states, [~xp.isfinite(part) for part in rest], _merge_one)
    # What a single row adds follows from the row.
    single = count == 1.0
    aimless = [(xp.isnan(states[1]) | xp.isnan(states[2])) & single, xp.isnan(states[3]) & ~single]
    states, merged = _exchanged(call, states, _OTHER_WAY), _exchanged(call, merged, _OTHER_WAY)
    return _exchanged(call, _replayed(rows, merged, states, aimless, _merge_pair), _OTHER_WAY)


def _about_means(
    rows: GroupedRows, call: AggregateCall, weight: Array | None, means: Sequence[Array], sums: Mapping[_Powers, Array]
) -> list[Array]:
    """Count, means and sums by group of rows that stand for ``weight`` values each, with their own means and sums."""
    xp, groups, counts = rows.xp, rows.groups, rows.counts
    bases = [mean[rows.first] for mean in means]
    offsets = [mean - base[groups] for mean, base in zip(means, bases, strict=True)]
    weighted = offsets if weight is None else [weight * offset for offset in offsets]
    shifts = [total / xp.where(counts > 0, counts, 1.0) for total in rows.totals(weighted)]
    deviations = [offset - shift[groups] for offset, shift in zip(offsets, shifts, strict=True)]
    products = [_product(powers, weight, deviations, sums) for powers in _SUMS[call.function]]
    own_means = [xp.where(counts > 0, base + shift, 0.0) for base, shift in zip(bases, shifts, strict=True)]
    return [counts, *own_means, *rows.totals(products)]


def _product(
    powers: _Powers, weight: Array | None, deviations: Sequence[Array], sums: Mapping[_Powers, Array]
) -> Array:
    """Each row's part in a sum of products about the group's means, by the binomial theorem."""

    def times(powers: _Powers, *factors: Array) -> Array:
        repeated = (itertools.repeat(each, power) for power, each in zip(powers, deviations, strict=True))
        return reduce(mul, itertools.chain(factors, *repeated))

    total = times(powers, *(() if weight is None else (weight,)))
    for own, values in sums.items():
        rest = tuple(power - less for power, less in zip(powers, own, strict=True))
        if min(rest) >= 0:
            factor = math.prod(math.comb(power, less) for power, less in zip(powers, own, strict=True))
            total = total + times(rest, values * float(factor))
    return total


def _exchanged(call: AggregateCall, arrays: Sequence[Array], order: Sequence[int]) -> list[Array]:
    """Arrays of y and x, which are the arguments of a slope, as of x and y, of which Spark has the covariance."""
    return [arrays[n] for n in order] if call.function in REGRESSIONS else list(arrays)


def _replayed(
    rows: GroupedRows, states: Sequence[Array], values: Sequence[Array], aimless: Sequence[Array], add: _Add
) -> list[Array]:
    """Replace NaN and infinities in states by the results of adding the rows of a group in turn.

    ``values`` are of each row. ``aimless`` rows are those after which a group is what it is in any way.
    """
    xp, groups, counted = rows.xp, rows.groups, rows.counted
    needs_replay = xp.zeros(states[0].shape[0], dtype=bool)
    for part in states[1:]:
        needs_replay |= ~xp.isfinite(part)
    if not any_true(needs_replay):
        return list(states)
    for mask in aimless:
        needs_replay[groups[mask if counted is None else mask & counted]] = False
    taking = xp.flatnonzero(needs_replay[groups] if counted is None else needs_replay[groups] & counted)
    replayed: dict[int, _State] = {}
    columns = [each[taking].tolist() for each in values]
    for group, *row in zip(groups[taking].tolist(), *columns, strict=True):
        state = replayed.get(group)
        if state is None:
            state = replayed[group] = [0.0] * (_ONE if add in (_add_one, _merge_one) else _TWO)
        add(state, row)
    if not replayed:
        return list(states)
    at = xp.asarray(list(replayed))
    return [_mended(xp, part, at, [state[n] for state in replayed.values()]) for n, part in enumerate(states)]


def _mended(xp: Any, part: Array, at: Array, values: Sequence[float]) -> Array:
    values_at = part[at]
    part = part.copy()
    part[at] = xp.where(xp.isfinite(values_at), values_at, xp.asarray(values, dtype="float64"))
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
