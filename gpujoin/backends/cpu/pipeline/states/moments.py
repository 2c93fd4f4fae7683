"""Counts, means and sums of powers of deviations from means, in doubles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import polars as pl

from gpujoin.backends.cpu.pipeline.columns import Column
from gpujoin.backends.cpu.pipeline.states.base import State


def _first(value: pl.Expr) -> pl.Expr:
    return value.filter(value.is_not_null()).first()


def _mean_of_means(n: pl.Expr, avg: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Mean of a group from those of its parts, and how far each part's is from it; of equal ones exactly 0."""
    base = avg.filter(n > 0).first()
    offset = pl.when(n > 0).then(avg - base).otherwise(0.0)
    shift = (n * offset).sum() / n.sum()
    mean = (base + shift).fill_null(0.0)
    return mean, pl.when(n > 0).then(offset - shift).otherwise(0.0)


class _Deviations(State):
    """Sums over deviations from means; of the state columns a call has as many as its buffer, the first ones."""

    _parts: ClassVar[tuple[str, ...]]

    @property
    def _own(self) -> tuple[str, ...]:
        return self._parts[: len(self.call.buffer)]

    def _named(self, values: Sequence[pl.Expr]) -> list[pl.Expr]:
        return [value.alias(self.name(part)) for value, part in zip(values, self._own, strict=False)]

    def nothing(self) -> list[pl.Expr]:
        return self._named([pl.lit(0.0, pl.Float64)] * len(self._own))

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name(part)] for part in self._own]


class Moments(_Deviations):
    """Count, mean, and sums of powers of deviations from the mean.

    Deviations are of values from which the group's first one is subtracted, so that those of a constant are exactly 0,
    as Spark finds them. The sums of a group about its mean follow from those of its parts about theirs: see
    P. Pébay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical
    moments", SAND2008-6212.
    """

    _parts = ("n", "avg", "m2", "m3", "m4")

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        first = _first(self.value)
        shifted = self.value - first
        deviation = shifted - shifted.mean()
        count = self.value.count().cast(pl.Float64)
        mean = (first + shifted.mean()).fill_null(0.0)
        return self._named([count, mean, *(deviation.pow(power).sum() for power in (2, 3, 4))])

    def merge(self) -> list[pl.Expr]:
        n = self.column("n")
        mean, d = _mean_of_means(n, self.column("avg"))
        m2, m3, m4 = (self.column(part) for part in self._parts[2:])
        return self._named(
            [
                n.sum(), mean, (m2 + n * d**2).sum(), (m3 + 3 * d * m2 + n * d**3).sum(),
                (m4 + 4 * d * m3 + 6 * d**2 * m2 + n * d**4).sum(),
            ]
        )  # fmt: skip


class Comoments(_Deviations):
    """Count of pairs, both means, and sums of products of deviations; see :class:`Moments`."""

    _parts = ("n", "x", "y", "xy", "xx", "yy")

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        whole = self.value.is_not_null() & self.column("x1").is_not_null()
        means, deviations = [], []
        for value in (self.value, self.column("x1")):
            paired = pl.when(whole).then(value)
            first = _first(paired)
            shifted = paired - first
            means.append((first + shifted.mean()).fill_null(0.0))
            deviations.append(shifted - shifted.mean())
        x, y = deviations
        return self._named([whole.sum().cast(pl.Float64), *means, (x * y).sum(), (x * x).sum(), (y * y).sum()])

    def merge(self) -> list[pl.Expr]:
        n, xy, xx, yy = (self.column(part) for part in ("n", "xy", "xx", "yy"))
        x_mean, x = _mean_of_means(n, self.column("x"))
        y_mean, y = _mean_of_means(n, self.column("y"))
        sums = [(xy + n * x * y).sum(), (xx + n * x * x).sum(), (yy + n * y * y).sum()]
        return self._named([n.sum(), x_mean, y_mean, *sums])


class Regression(Comoments):
    """``regr_slope`` and ``regr_intercept`` of y and x: covariance of the pairs, and variance of their x."""

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        n, y, x, xy, _, xx = (state[self.name(part)] for part in self._parts)
        return [n, x, y, xy, n, x, xx]
