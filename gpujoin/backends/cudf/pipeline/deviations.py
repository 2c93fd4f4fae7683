"""States of moments, covariances and regressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame, Reduce, Reduction
from gpujoin.backends.cudf.pipeline.states import Reducer, State
from gpujoin.backends.ordered import moments
from gpujoin.functions.values import Value
from gpujoin.functions.vector import mask_and


class DeviationState(State[Frame]):
    """Count, mean of each argument, and sums of products of deviations; see :mod:`gpujoin.backends.ordered.moments`."""

    two_passes = True

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (pa.float64(),) * moments.parts(self.call)

    def reduce(self, rows: Reducer[Frame], at: Sequence[int], mask: Array | None) -> Callable[[], Frame]:
        values = [rows.value(position) for position in at]
        valid = mask
        for value in values:
            valid = mask_and(valid, value.valid)
        data = [value.data for value in values]
        ones = rows.xp.ones(rows.rows, dtype="float64")
        return self._deferred_state(rows, ones, valid, lambda grouped: moments.of_rows(grouped, self.call, data))

    def merge(self, rows: Reducer[Frame], at: Sequence[int]) -> Callable[[], Frame]:
        states = [rows.value(position).data for position in at]
        return self._deferred_state(
            rows, states[0], states[0] > 0, lambda grouped: moments.of_states(grouped, self.call, states)
        )

    def _deferred_state(
        self, rows: Reducer[Frame], counts: Array, valid: Array | None,
        compute: Callable[[moments.GroupedRows], list[Array]],
    ) -> Callable[[], Frame]:  # fmt: skip
        """Compute states of rows that stand for so many values each, once the first reductions are computed."""
        count = rows.ask(Reduce.SUM, counts, valid)
        first = rows.ask(Reduce.MIN, rows.xp.arange(rows.rows, dtype="int64"), valid)

        def totals(columns: Sequence[Array]) -> list[Array]:
            sums = rows.reduce([Reduction(Reduce.SUM, values, valid) for values in columns])
            return [each.data if each.valid is None else rows.xp.where(each.valid, each.data, 0.0) for each in sums]

        def state() -> Frame:
            assert rows.ids is not None
            of_groups = rows.of(count)
            grouped = moments.GroupedRows(rows.xp, rows.ids, valid, of_groups, rows.of(first), totals)
            values = [Value(pa.float64(), part) for part in compute(grouped)]
            return rows.columns.frame(values, self.types, of_groups.shape[0])

        return state

    def finish(self, columns: Columns[Frame], frame: Frame, at: Sequence[int]) -> Frame:
        return columns.select(frame, [at[number] for number in moments.buffer_parts(self.call)])
