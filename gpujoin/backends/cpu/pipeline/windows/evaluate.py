"""Computes the calls of a window over a piece that has all rows of its partitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from gpujoin.backends.cpu.pipeline.aggregate import PolarsAggregation, guarded
from gpujoin.backends.cpu.pipeline.columns import as_text, column_of, is_wide
from gpujoin.backends.cpu.pipeline.piece import Piece, fresh
from gpujoin.backends.cpu.pipeline.windows.arguments import Integers, SeriesArgument, range_key, series_of_numbers
from gpujoin.backends.cpu.pipeline.windows.ordering import OPS, series_codes
from gpujoin.backends.ordered.windows.calls import Places, Result, computed, is_framed
from gpujoin.backends.ordered.windows.rows import SortedRows, sort_rows
from gpujoin.backends.ordered.windows.spans import Members, RangeKey, Span
from gpujoin.functions.lower import Extent
from gpujoin.functions.lowered import Column, polars_type
from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import ExchangeSource, Output, PartialAggregate, Window
from gpujoin.model.types import is_text, logical
from gpujoin.model.windows import Frame, FramedAggregate, WindowCall

_GROUP = "group"
_FRAMED_ROWS = 1 << 20
"""Rows of frames that are aggregated at a time."""


def window(piece: Piece, node: Window, extent: Extent, metrics: PipelineMetrics) -> Piece:
    """Compute window functions; rows come out by partition, in order."""
    own: list[Expression] = [_column(column, i) for i, column in enumerate(piece.columns)]
    arguments = [expression for call in node.calls for expression in _arguments(call)]
    inputs = piece.compute([*own, *(key.expression for key in node.order), *arguments], extent=extent).collect()
    frame = inputs.rows_of_query()
    columns = inputs.columns
    if not frame.height:
        nothing = [pl.Series([], dtype=polars_type(field.type)) for call in node.calls for field in call.outputs]
        return _with(inputs, frame, columns[: len(own)], nothing, node)
    keys, values = columns[len(own) : len(own) + len(node.order)], columns[len(own) + len(node.order) :]
    rows = sort_rows(
        OPS,
        [series_codes(frame[columns[i].name], columns[i].dtype) for i in dict.fromkeys(node.partition)],
        [
            series_codes(frame[column.name], column.dtype, descending=key.descending, nulls_first=key.nulls_first)
            for key, column in zip(node.order, keys, strict=True)
        ],
        frame.height,
    )
    by_distance = any(call.frame.has_distance for call in node.calls)
    if rows.permutation is not None:
        names = dict.fromkeys(column.name for column in (*columns[: len(own)], *values, *(keys if by_distance else ())))
        places = pl.Series(rows.permutation, dtype=pl.UInt32)
        frame = frame.select(pl.col(name).gather(places) for name in names)
    ranged = None
    if by_distance:
        key, column = node.order[0], keys[0]
        ranged = range_key(frame[column.name], column.dtype, descending=key.descending, nulls_first=key.nulls_first)
    results = _Calls(frame, rows, ranged, extent, metrics).results(node.calls, values)
    return _with(inputs, frame, columns[: len(own)], results, node)


def _column(column: Column, index: int) -> ColumnRef:
    return ColumnRef(side=Side.LEFT, name=column.name, index=index, type=column.dtype)


def _arguments(call: WindowCall | FramedAggregate) -> Sequence[Expression]:
    return guarded(call.call) if isinstance(call, FramedAggregate) else call.expressions()


def _with(
    piece: Piece, frame: pl.DataFrame, own: Sequence[Column], results: Sequence[pl.Series], node: Window
) -> Piece:
    """The input's columns and results."""
    types = [logical(field.type) for call in node.calls for field in call.outputs]
    named = [
        (as_text(series) if is_text(dtype) else series).alias(fresh())
        for series, dtype in zip(results, types, strict=True)
    ]
    described = [
        column_of(series.name, series, dtype, wide=is_wide(series, dtype))
        for series, dtype in zip(named, types, strict=True)
    ]
    names = list(dict.fromkeys(column.name for column in own))
    extended = frame.select(names).hstack(named) if names else pl.DataFrame(named)
    return piece.with_rows(extended, (*own, *described))


_Numbered: TypeAlias = tuple[int, FramedAggregate, list[Column]]
"""The place of a call among those of the window, the call, and its arguments."""


class _Calls:
    """Computes calls over rows in order."""

    def __init__(
        self,
        frame: pl.DataFrame,
        rows: SortedRows,
        ranged: RangeKey | None,
        extent: Extent,
        metrics: PipelineMetrics,
    ) -> None:
        self._frame = frame
        self._rows = rows
        self._extent = extent
        self._metrics = metrics
        self._span = cache(lambda frame: Span.from_frame(frame, rows, ranged))

    def results(self, calls: Sequence[WindowCall | FramedAggregate], columns: Sequence[Column]) -> list[pl.Series]:
        """The columns of all calls, given those of their arguments."""
        rest = iter(columns)
        results: list[list[pl.Series]] = []
        aggregated: dict[Frame, list[_Numbered]] = {}
        with np.errstate(invalid="ignore", over="ignore"):
            for number, call in enumerate(calls):
                inputs = [next(rest) for _ in _arguments(call)]
                results.append(self._computed(call, inputs) if is_framed(call) else [])
                if not is_framed(call):
                    assert isinstance(call, FramedAggregate)
                    aggregated.setdefault(call.frame, []).append((number, call, inputs))
        for frame, of_frame in aggregated.items():
            columns_of = self._of_partitions if frame.is_partition else self._of_frames
            for number, series in columns_of(of_frame):
                results[number].append(series)
        return [series for each in results for series in each]

    def _computed(self, call: WindowCall | FramedAggregate, columns: Sequence[Column]) -> list[pl.Series]:
        count, condition = len(columns), None
        if isinstance(call, FramedAggregate) and call.call.filter is not None:
            count, condition = count - 1, self._frame[columns[-1].name].fill_null(value=False).to_numpy()
        arguments = [SeriesArgument(self._frame[column.name], column) for column in columns[:count]]
        results = computed(call, arguments, condition, self._rows, self._span)
        return [self._series(call, result, arguments) for result in results]

    def _series(
        self, call: WindowCall | FramedAggregate, result: Result, arguments: Sequence[SeriesArgument]
    ) -> pl.Series:
        if not isinstance(result, Places):
            return series_of_numbers(result)
        series = arguments[0].values_at(result)
        if not isinstance(call, WindowCall) or call.default is None or result.valid.all():
            return series
        default = arguments[1].series
        if default.dtype != series.dtype:  # one of them is in the wider form
            wide = pl.Binary if is_text(call.dtype) else pl.Int128
            default, series = default.cast(wide), series.cast(wide)
        return pl.select(pl.when(pl.Series(result.valid)).then(series).otherwise(default)).to_series()

    # -- aggregates by the rows of their frames ------------------------------------------------------------

    def _of_partitions(self, calls: Sequence[_Numbered]) -> Iterator[tuple[int, pl.Series]]:
        """Aggregates of whole partitions, as an aggregation computes them."""
        places = pl.Series(self._rows.partition)
        results = iter(self._aggregated(calls, self._frame, self._rows.partition))
        for number, call, _ in calls:
            for _ in call.outputs:
                yield number, next(results).gather(places)

    def _of_frames(self, calls: Sequence[_Numbered]) -> Iterator[tuple[int, pl.Series]]:
        """Aggregates of short frames: the rows of each frame are a group, some frames at a time."""
        span = self._span(calls[0][1].frame)
        step = max(1, _FRAMED_ROWS // max(1, int(span.sizes.max(initial=1))))
        empty = self._aggregated(calls, self._frame.clear(), None)
        parts: list[list[pl.Series]] = []
        for start in range(0, self._rows.rows, step):
            lows, sizes = span.lows[start : start + step], span.sizes[start : start + step]
            rows = Members.from_sizes(OPS, lows, sizes)
            results = self._aggregated(calls, self._frame[pl.Series(rows.places, dtype=pl.UInt32)], rows.groups)
            parts.append([_stacked(pair).gather(rows.number) for pair in zip(results, empty, strict=True)])
        columns = iter([_stacked(pieces) for pieces in zip(*parts, strict=True)])
        for number, call, _ in calls:
            for _ in call.outputs:
                yield number, next(columns)

    def _aggregated(self, calls: Sequence[_Numbered], frame: pl.DataFrame, groups: Integers | None) -> list[pl.Series]:
        """Aggregate rows by the number of their group, to columns with a row for each; ``None``: all rows."""
        columns = {column.name: column for _, _, inputs in calls for column in inputs}.values()
        key = []
        if groups is not None:
            frame = frame.with_columns(pl.Series(_GROUP, groups, dtype=pl.Int64))
            key = [column_of(_GROUP, frame[_GROUP], pa.int64())]
        piece = Piece(frame.lazy(), (*columns, *key), frame.height, metrics=self._metrics)
        refs = {column.name: _column(column, i) for i, column in enumerate(piece.columns)}
        source = ExchangeSource(0, pa.schema([(column.name, column.dtype) for column in piece.columns]))
        renamed = []
        for number, call, inputs in calls:
            rest = iter(inputs)
            moved = call.mapped(lambda _, rest=rest: refs[next(rest).name])  # type: ignore[misc]
            renamed.append(dataclasses.replace(moved.call, name=f"a{number}"))
        keys = tuple(Output(column.name, refs[column.name]) for column in key)
        aggregation = PolarsAggregation(
            PartialAggregate(source, keys, tuple(renamed), final=True), self._extent, self._metrics
        )
        state = aggregation.merge(aggregation.reduce(piece)) if groups is not None else aggregation.nothing()
        whole = aggregation.finish(state)
        results = whole.run(whole.frame)
        if groups is not None:
            results = results.sort(whole.columns[0].name)
        return [results[column.name] for column in whole.columns[len(key) :]]


def _stacked(pieces: Sequence[pl.Series]) -> pl.Series:
    """Concatenate columns. If their forms differ, the wider one is used: bytes for text, 128 bits for integers."""
    kinds = {piece.dtype for piece in pieces}
    if len(kinds) == 1:
        return pl.concat(pieces)
    wide = next(kind for kind in (pl.Binary(), pl.Int128()) if kind in kinds)
    return pl.concat([piece.cast(wide) for piece in pieces])
