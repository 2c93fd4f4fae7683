"""Counts, means and sums of powers of deviations from means, in doubles."""

from __future__ import annotations

from functools import reduce
from operator import and_

import polars as pl

from gpujoin.backends.cpu.pipeline.states.base import SegmentState
from gpujoin.backends.cpu.pipeline.states.segments import Segments
from gpujoin.backends.ordered import moments


class Moments(SegmentState):
    """Moments, covariances and regressions; see :mod:`gpujoin.backends.ordered.moments`."""

    @property
    def _parts(self) -> list[str]:
        return [self.name(f"s{number}") for number in range(moments.parts(self.call))]

    def nothing(self) -> list[pl.Expr]:
        return [pl.lit(0.0, pl.Float64).alias(name) for name in self._parts]

    def reduce_segments(self, segments: Segments) -> list[pl.Series]:
        arguments = [self.argument(number) for number in range(len(self.call.arguments))]
        rows = segments.grouped(reduce(and_, map(segments.present, arguments)))
        return list(
            map(pl.Series, self._parts, moments.of_rows(rows, self.call, list(map(segments.doubles, arguments))))
        )

    def merge_segments(self, segments: Segments) -> list[pl.Series]:
        states = list(map(segments.doubles, self._parts))
        rows = segments.grouped(states[0] > 0, states[0])
        return list(map(pl.Series, self._parts, moments.of_states(rows, self.call, states)))

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self._parts[number]] for number in moments.buffer_parts(self.call)]
