"""Counts, means and sums of powers of deviations from means, in doubles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import polars as pl

from gpujoin.backends.cpu.pipeline.states.base import SegmentState
from gpujoin.backends.cpu.pipeline.states.segments import Doubles, Segments, named
from gpujoin.backends.ordered.moments import replay_rows, replay_states


def _mean_of_means(segments: Segments, n: Doubles, avg: Doubles) -> tuple[Doubles, Doubles]:
    """Mean of a group from those of its parts, and how far each part's is from it; of equal ones exactly 0."""
    base = segments.first(avg, n > 0)
    offset = np.where(n > 0, avg - segments.spread(base), 0.0)
    total = segments.sum(n)
    shift = np.where(total > 0, segments.sum(n * offset) / np.maximum(total, 1.0), 0.0)
    return base + shift, np.where(n > 0, offset - segments.spread(shift), 0.0)


def _deviations(segments: Segments, values: Doubles, taking: npt.NDArray[np.bool_]) -> tuple[Doubles, Doubles]:
    """Mean of each group over the rows of a mask, and deviations of these rows from it; elsewhere 0.

    The group's first value is subtracted before, so that deviations of a constant are exactly 0, as Spark finds them.
    """
    first = segments.first(values, taking)
    shifted = np.where(taking, values - segments.spread(first), 0.0)
    count = segments.sum(taking)
    shift = np.where(count > 0, segments.sum(shifted) / np.maximum(count, 1.0), 0.0)
    return first + shift, np.where(taking, shifted - segments.spread(shift), 0.0)


class _Deviations(SegmentState):
    """Sums over deviations from means; of the state columns a call has as many as its buffer, the first ones."""

    _parts: ClassVar[tuple[str, ...]]

    @property
    def _own(self) -> list[str]:
        return [self.name(part) for part in self._parts[: len(self.call.buffer)]]

    def nothing(self) -> list[pl.Expr]:
        return [pl.lit(0.0, pl.Float64).alias(name) for name in self._own]

    def _reduced(
        self, segments: Segments, parts: Sequence[Doubles], values: Sequence[Doubles], taking: npt.NDArray[np.bool_]
    ) -> list[pl.Series]:
        """State columns of rows, of which Spark's way gives those that are no numbers."""
        own = parts[: len(self._own)]
        return named(self._own, replay_rows(np, self.call, own, segments.groups, values, taking))

    def _merged(self, segments: Segments, parts: Sequence[Doubles], states: Sequence[Doubles]) -> list[pl.Series]:
        return named(self._own, replay_states(np, self.call, parts, segments.groups, states))

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[name] for name in self._own]


class Moments(_Deviations):
    """Count, mean, and sums of powers of deviations from the mean.

    The sums of a group about its mean follow from those of its parts about theirs: see P. Pébay, "Formulas for robust,
    one-pass parallel computation of covariances and arbitrary-order statistical moments", SAND2008-6212.
    """

    _parts = ("n", "avg", "m2", "m3", "m4")

    def reduce_segments(self, segments: Segments) -> list[pl.Series]:
        value = self.argument(0)
        taking = segments.present(value)
        values = segments.doubles(value)
        mean, d = _deviations(segments, values, taking)
        powers = (segments.sum(d**power) for power in range(2, len(self._own)))
        return self._reduced(segments, [segments.sum(taking), mean, *powers], [values], taking)

    def merge_segments(self, segments: Segments) -> list[pl.Series]:
        states = [segments.doubles(name) for name in self._own]
        n, avg, m2, *higher = states
        mean, d = _mean_of_means(segments, n, avg)
        sums = [segments.sum(n), mean, segments.sum(m2 + n * d**2)]
        if higher:
            m3, *fourth = higher
            sums.append(segments.sum(m3 + 3 * d * m2 + n * d**3))
            sums += [segments.sum(m4 + 4 * d * m3 + 6 * d**2 * m2 + n * d**4) for m4 in fourth]
        return self._merged(segments, sums, states)


class Comoments(_Deviations):
    """Count of pairs, both means, and sums of products of deviations; see :class:`Moments`."""

    _parts = ("n", "x", "y", "xy", "xx", "yy")

    def reduce_segments(self, segments: Segments) -> list[pl.Series]:
        arguments = (self.argument(0), self.argument(1))
        taking = segments.present(arguments[0]) & segments.present(arguments[1])
        values = [segments.doubles(name) for name in arguments]
        (x_mean, x), (y_mean, y) = (_deviations(segments, each, taking) for each in values)
        products = [segments.sum(product) for product in (x * y, x * x, y * y)]
        return self._reduced(segments, [segments.sum(taking), x_mean, y_mean, *products], values, taking)

    def merge_segments(self, segments: Segments) -> list[pl.Series]:
        states = [segments.doubles(name) for name in self._own]
        n, x_avg, y_avg, xy, *squares = states
        x_mean, x = _mean_of_means(segments, n, x_avg)
        y_mean, y = _mean_of_means(segments, n, y_avg)
        sums = [segments.sum(xy + n * x * y)]
        sums += [segments.sum(square + n * d * d) for square, d in zip(squares, (x, y), strict=False)]
        return self._merged(segments, [segments.sum(n), x_mean, y_mean, *sums], states)


class Regression(Comoments):
    """``regr_slope`` and ``regr_intercept`` of y and x: covariance of the pairs, and variance of their x."""

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        n, y, x, xy, _, xx = (state[name] for name in self._own)
        return [n, x, y, xy, n, x, xx]
