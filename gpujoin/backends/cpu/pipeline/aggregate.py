"""Aggregates with Polars into states that can be merged exactly.

A *state* is a frame with one row per group: the keys, then the columns of each call's
:class:`~gpujoin.backends.cpu.pipeline.states.base.State`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import as_text, column_of, is_wide
from gpujoin.backends.cpu.pipeline.late import late_from_arrow
from gpujoin.backends.cpu.pipeline.piece import Piece, float_key, fresh, to_batches
from gpujoin.backends.cpu.pipeline.states import ExactSum, Segments, SegmentState, one_width, state_of
from gpujoin.functions.lower import Extent
from gpujoin.functions.lowered import Column
from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.expressions import Case, ColumnRef, Expression, Literal
from gpujoin.model.pipeline import FAN_OUT, PipelineMetrics
from gpujoin.model.relations import PartialAggregate
from gpujoin.model.types import is_float, is_text, logical

HASH_SEED = 0x5EED
"""Seed of the first division of states on disk; each further division takes the next one."""
_WORD = 1 << 64
_DIGITS = pl.Decimal(38, 0)
_ROWS = "rows"
"""Column with the numbers of a group's rows."""
_RUN = "run"
"""Column with the numbers of runs of equal keys."""
_SLICE_BYTES = 1 << 23
"""A state is copied to be divided, and converted to Arrow, in slices of about so many bytes."""
_SAMPLE = 1_000
"""Rows of a sample whose order is tested before that of all rows."""
_ORDERED = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Date, pl.Datetime("us"))
_LOW = "_low"
"""Suffix of the column with the low half of a 128-bit integer on disk: Arrow has no such integers."""


class PolarsAggregation:
    """Aggregation in Polars; see :class:`gpujoin.model.pipeline.AggregateState`."""

    merged_rows = 1 << 17

    def __init__(self, node: PartialAggregate, extent: Extent, metrics: PipelineMetrics) -> None:
        self._node = node
        self._extent = extent
        self._metrics = metrics
        self._keys = [f"k{i}" for i in range(len(node.keys))]
        self._states = [state_of(call, f"a{i}") for i, call in enumerate(node.aggregates)]
        self._segment_states = [state for state in self._states if isinstance(state, SegmentState)]
        self._values = self.nothing().columns

    def nothing(self) -> pl.DataFrame:
        return pl.select([expr for state in self._states for expr in state.nothing()])

    def size(self, state: pl.DataFrame) -> tuple[int, int]:
        # A list's values are there once more while states are merged.
        return state.height, int(sum(each.estimated_size() * (1 + (each.dtype == pl.List)) for each in state))

    def slices(self, state: pl.DataFrame) -> Iterator[pl.DataFrame]:
        count = 1 + int(state.estimated_size()) // _SLICE_BYTES
        return state.iter_slices(max(1, -(-state.height // count)))

    def divide(self, state: pl.DataFrame, division: int) -> list[pa.Table]:
        """Divide a state by the hash of its keys. Text and bytes are copied: views would refer to data of all rows."""
        numbers = (state.select(self._keys).hash_rows(seed=HASH_SEED + division) % FAN_OUT).alias("part")
        stored = _for_spill(state)
        parts = stored.with_columns(numbers).partition_by("part", as_dict=True, include_key=False)
        oldest = pl.CompatLevel.oldest()
        return [parts.get((i,), stored.clear()).to_arrow(compat_level=oldest) for i in range(FAN_OUT)]

    def restore(self, batch: pa.RecordBatch) -> pl.DataFrame:
        return _from_spill(batch)

    def reduce(self, piece: Piece) -> list[pl.DataFrame]:
        expressions = [key.expression for key in self._node.keys]
        for call in self._node.aggregates:
            expressions += guarded(call)
        inputs = piece.compute(expressions, extent=self._extent)
        if not all(column.bounds.measured for column in inputs.columns) and any(
            isinstance(state, ExactSum) for state in self._states
        ):
            inputs = inputs.collect()
        columns = iter(inputs.columns)
        keys = [key_of(next(columns)).alias(name) for name in self._keys]
        prepared: list[pl.Expr] = []
        added: list[pl.Expr] = []
        for state in self._states:
            arguments = [next(columns) for _ in state.call.arguments]
            mask = None if state.call.filter is None else pl.col(next(columns).name).fill_null(value=False)
            for i, argument in enumerate(arguments):
                prepared.append(pl.col(argument.name).alias(state.argument(i)))
            if mask is not None:
                prepared.append(mask.alias(f"{state.prefix}_m"))
            added += state.reduce(arguments, inputs.rows)
        rows = [] if keys or prepared else [pl.first().is_null().alias("row")]
        frame = inputs.frame.select([*keys, *prepared, *rows])
        runs = None if self._segment_states else self._runs(piece)
        if runs is not None:
            self._metrics.count("ordered_pieces")
            # Of rows in memory alone Polars knows that they are sorted by a column.
            grouped = inputs.run(frame).with_columns(runs).lazy().group_by(_RUN)
            return [self._normalised(grouped.agg(pl.col(self._keys).first(), *added).drop(_RUN)).collect()]
        return [self._grouped(frame, self._keys, added, inputs.run, lambda state, rows: state.reduce_segments(rows))]

    def _runs(self, piece: Piece) -> pl.Series | None:
        """Numbers of the runs of equal keys, if a piece in memory has its rows in the order of the keys."""
        keys = [key.expression for key in self._node.keys]
        columns = [piece.columns[key.index] for key in keys if isinstance(key, ColumnRef)]
        if piece.in_memory is None or not columns or len(columns) < len(keys):
            return None
        values = [piece.values(column) for column in columns]
        sample = [series.head(_SAMPLE) for series in values]
        return None if _runs_of(sample) is None else _runs_of(values)

    def _grouped(
        self,
        frame: pl.LazyFrame,
        keys: Sequence[str],
        simple: Sequence[pl.Expr],
        run: Callable[[pl.LazyFrame], pl.DataFrame],
        of_segments: Callable[[SegmentState, Segments], list[pl.Series]],
    ) -> pl.DataFrame:
        """Aggregate rows by all keys, or some: by expressions, and by segments for states that need them."""
        if not self._segment_states:
            grouped = frame.group_by(keys).agg(simple) if keys else frame.select(simple)
            return run(self._normalised(grouped))
        rows = run(frame)
        if keys:
            state = rows.lazy().with_row_index(_ROWS).group_by(keys).agg(*simple, pl.col(_ROWS)).collect()
            segments = Segments.from_lists(rows, state[_ROWS])
        elif rows.height:
            state, segments = rows.select(*simple, pl.len().alias(_ROWS)), Segments.from_frame(rows)
        else:
            return self.nothing()
        columns = [series for each in self._segment_states for series in of_segments(each, segments)]
        return self._normalised(state.lazy().with_columns(columns).select(*keys, *self._values)).collect()

    def _normalised(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """Bring the columns of a state into their normal form, by :meth:`State.normalise` of each call."""
        casts = [expr for state in self._states for expr in state.normalise()]
        return frame.with_columns(casts) if casts else frame

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return self._merged(pl.concat(states), self._keys)

    def below(self, state: pl.DataFrame, key: int, floor: Any) -> tuple[pl.DataFrame, pl.DataFrame]:
        bound = floor.replace(tzinfo=None) if isinstance(floor, dt.datetime) else floor
        is_below = (state[self._keys[key]] < bound).fill_null(value=False)
        return state.filter(is_below), state.filter(~is_below)

    def merge_ascending(self, states: Sequence[pl.DataFrame], key: int) -> list[pl.DataFrame]:
        *earlier, last = states
        if not earlier:
            return [last]
        keys = pl.col(self._keys[key]).to_physical()  # Python has no date before the year 1
        edge = pl.lit(max(state.select(keys.max()).item() for state in earlier))
        merged = self.merge([*earlier, last.filter(keys <= edge)])
        return [state for state in (merged, last.filter(keys > edge)) if state.height]

    def regroup(self, state: pl.DataFrame, keys: Sequence[int], numbers: pl.Series | None = None) -> pl.DataFrame:
        if not state.height:
            return state
        if numbers is not None:
            first = self._keys[0]
            state = state.with_columns(numbers.gather(state[first]).alias(first))
        merged = self._merged(state, [self._keys[n] for n in keys])
        nulls = [pl.lit(None, dtype).alias(name) for name, dtype in state.schema.items() if name not in merged.columns]
        return merged.with_columns(nulls).select(state.columns)

    def _merged(self, state: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        merged = [expr for each in self._states for expr in each.merge()]
        run = pl.LazyFrame.collect
        return self._grouped(state.lazy(), keys, merged, run, lambda each, rows: each.merge_segments(rows))

    def finish(self, state: pl.DataFrame) -> Piece:
        """Convert a state to the keys and Spark's aggregation buffers."""
        out = [state[name] for name in self._keys]
        for each in self._states:
            out += each.finish(state)
        types = (logical(field.type) for field in self._node.schema)
        return Piece.of_columns(list(map(self._column, out, types)), self._metrics)

    def _column(self, series: pl.Series, dtype: pa.DataType) -> tuple[pl.Series, Column]:
        name = fresh()
        if pat.is_list(dtype):
            return late_from_arrow(name, self._lists(series, dtype), dtype)
        series = (as_text(series) if is_text(dtype) else series).alias(name)
        return series, column_of(name, series, dtype, wide=is_wide(series, dtype))

    def _arrow(self, series: pl.Series, dtype: pa.DataType) -> pa.ChunkedArray:
        schema = pa.schema([("v", dtype)])
        piece = Piece.of_columns([self._column(series, dtype)], self._metrics)
        return pa.Table.from_batches(to_batches(piece, schema, _WORD), schema).column(0)

    def _lists(self, series: pl.Series, dtype: pa.DataType) -> pa.Array:
        ends = np.cumsum(series.list.len().fill_null(0).to_numpy(), dtype=np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), ends])
        if offsets[-1] > np.iinfo(np.int32).max:
            raise MemoryError(f"{offsets[-1]} values in lists of one Arrow column")
        values = self._arrow(series.explode().drop_nulls(), dtype.value_type).combine_chunks()
        nulls = pa.array(series.is_null().to_numpy()) if series.null_count() else None
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=dtype, mask=nulls)


def _for_spill(state: pl.DataFrame) -> pl.DataFrame:
    """Replace 128-bit integers by a high half of the same name, rounded down, and a low half that is not negative.

    In lists they become decimals: those are values, of up to 38 digits, and no sums.
    """
    halves = []
    for name, dtype in state.schema.items():
        if dtype == pl.Int128:
            high = pl.col(name) // pl.lit(_WORD, pl.Int128)
            low = pl.col(name) - high * pl.lit(_WORD, pl.Int128)
            halves += [high.cast(pl.Int64).alias(name), low.cast(pl.UInt64).alias(name + _LOW)]
        elif dtype == pl.List(pl.Int128):
            halves.append(pl.col(name).cast(pl.List(_DIGITS)))
    return state.with_columns(halves)


def _from_spill(batch: pa.RecordBatch) -> pl.DataFrame:
    """Undo :func:`_for_spill`."""
    frame = pl.DataFrame(batch)
    names = [name for name in frame.columns if not name.endswith(_LOW)]
    whole = []
    for name in names:
        if name + _LOW in frame.columns:
            high, low = pl.col(name).cast(pl.Int128), pl.col(name + _LOW).cast(pl.Int128)
            whole.append((high * pl.lit(_WORD, pl.Int128) + low).alias(name))
        elif frame.schema[name] == pl.List(_DIGITS):
            whole.append(pl.col(name).cast(pl.List(pl.Int128)))
    return frame.with_columns(whole).select(names)


def guarded(call: AggregateCall) -> list[Expression]:
    """Arguments, then the filter. Arguments are evaluated, and may raise, only where the filter is true."""
    if call.filter is None:
        return list(call.arguments)
    guarded: list[Expression] = [
        Case(
            conditions=(call.filter,), values=(argument,), otherwise=Literal(value=None, type=argument.type),
            type=argument.type,
        )
        for argument in call.arguments
    ]  # fmt: skip
    return [*guarded, call.filter]


def _runs_of(keys: Sequence[pl.Series]) -> pl.Series | None:
    """Number the runs of rows with equal keys; ``None`` unless rows ascend by them, so that each run is a group.

    Only whole numbers, dates and timestamps without nulls are looked at.
    """
    equal = np.ones(max(0, len(keys[0]) - 1), np.bool_)
    """For each row whether it has the keys of the row before it, as far as keys were compared."""
    for series in keys:
        if series.dtype not in _ORDERED or series.null_count():
            return None
        values = series.to_physical().to_numpy()
        before, after = values[:-1], values[1:]
        if not (~equal | (before <= after)).all():
            return None
        equal &= before == after
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(~equal)])[: len(keys[0])]
    return pl.Series(_RUN, begins).set_sorted()


def key_of(column: Column) -> pl.Expr:
    """A key in the form that is the same in all pieces: equal keys have equal values."""
    expression = pl.col(column.name)
    if is_float(column.dtype):
        return float_key(expression, column.dtype)
    return one_width(expression, column.dtype)
