"""States of moments and covariances: means, and sums of products of deviations from them, in doubles.

The sums of a group about its means follow from those of its parts about theirs: see P. Pébay, "Formulas for robust,
one-pass parallel computation of covariances and arbitrary-order statistical moments", SAND2008-6212. The group's first
value is subtracted from each before, so that deviations of a constant are exactly 0, as Spark finds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame, Reduce, Reduction
from gpujoin.backends.cudf.pipeline.states import Reducer, State
from gpujoin.backends.ordered.moments import replay_rows, replay_states
from gpujoin.functions.values import Value
from gpujoin.functions.vector import mask_and
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


class DeviationState(State[Frame]):
    """Count, mean of each argument, and sums of products of deviations."""

    two_passes = True

    def __init__(self, call: AggregateCall) -> None:
        super().__init__(call)
        self._sums = _SUMS[call.function]
        self._arguments = len(call.arguments)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (pa.float64(),) * (1 + self._arguments + len(self._sums))

    def reduce(self, rows: Reducer[Frame], at: Sequence[int], mask: Array | None) -> Callable[[], Frame]:
        values = [rows.value(position) for position in at]
        valid = mask
        for value in values:
            valid = mask_and(valid, value.valid)
        ones = rows.xp.ones(rows.rows, dtype="float64")
        data = [value.data for value in values]

        def replayed(parts: list[Array], ids: Array) -> list[Array]:
            return replay_rows(rows.xp, self.call, parts, ids, data, valid)

        return self._summed(rows, ones, data, {}, valid, replayed)

    def merge(self, rows: Reducer[Frame], at: Sequence[int]) -> Callable[[], Frame]:
        states = [rows.value(position).data for position in at]
        count, *parts = states
        means, sums = parts[: self._arguments], parts[self._arguments :]

        def replayed(merged: list[Array], ids: Array) -> list[Array]:
            return replay_states(rows.xp, self.call, merged, ids, states)

        return self._summed(rows, count, means, dict(zip(self._sums, sums, strict=True)), count > 0, replayed)

    def _summed(
        self, rows: Reducer[Frame], weight: Array, means: Sequence[Array], sums: Mapping[_Powers, Array],
        valid: Array | None, replayed: Callable[[list[Array], Array], list[Array]],
    ) -> Callable[[], Frame]:  # fmt: skip
        """Sum over rows that stand for ``weight`` values each, of these means and sums.

        ``replayed`` gives the parts as they are in Spark's way, given them and the group of each row.
        """
        count = rows.ask(Reduce.SUM, weight, valid)
        first = rows.ask(Reduce.MIN, rows.xp.arange(rows.rows, dtype="int64"), valid)

        def made() -> Frame:
            xp, ids = rows.xp, rows.ids
            assert ids is not None
            counts, row = rows.of(count), rows.of(first)
            bases = [mean[row] for mean in means]
            offsets = [mean - base[ids] for mean, base in zip(means, bases, strict=True)]
            shifts = [
                shift / xp.where(counts > 0, counts, 1.0)
                for shift in _reduced(rows, [weight * offset for offset in offsets], valid)
            ]
            deviations = [offset - shift[ids] for offset, shift in zip(offsets, shifts, strict=True)]
            products = [_about(wanted, weight, deviations, sums) for wanted in self._sums]
            own_means = [xp.where(counts > 0, base + shift, 0.0) for base, shift in zip(bases, shifts, strict=True)]
            parts = replayed([counts, *own_means, *_reduced(rows, products, valid)], ids)
            return rows.columns.frame([Value(pa.float64(), part) for part in parts], self.types, counts.shape[0])

        return made

    def finish(self, columns: Columns[Frame], frame: Frame, at: Sequence[int]) -> Frame:
        if self.call.function not in REGRESSIONS:
            return columns.select(frame, at)
        # Covariance of the pairs, and variance of their x, which is the second argument.
        count, y, x, xy, _, xx = at
        return columns.select(frame, (count, x, y, xy, count, x, xx))


def _reduced(rows: Reducer[Frame], values: Sequence[Array], valid: Array | None) -> list[Array]:
    """Sums of each group, 0 where no row counts."""
    sums = rows.reduce([Reduction(Reduce.SUM, value, valid) for value in values])
    return [each.data if each.valid is None else rows.xp.where(each.valid, each.data, 0.0) for each in sums]


def _about(wanted: _Powers, weight: Array, deviations: Sequence[Array], sums: Mapping[_Powers, Array]) -> Array:
    """Each row's part in a sum of products about the group's means, by the binomial theorem."""
    total = weight
    for power, deviation in zip(wanted, deviations, strict=True):
        for _ in range(power):
            total = total * deviation
    for given, part in sums.items():
        rest = [want - have for want, have in zip(wanted, given, strict=True)]
        if min(rest) < 0:
            continue
        term = part * float(math.prod(math.comb(want, have) for want, have in zip(wanted, given, strict=True)))
        for power, deviation in zip(rest, deviations, strict=True):
            for _ in range(power):
                term = term * deviation
        total = total + term
    return total
