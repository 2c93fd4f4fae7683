"""Computes the calls of a window over a piece that has all rows of its partitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from gpujoin.backends.cpu.pipeline.aggregate import PolarsAggregation, guarded
from gpujoin.backends.cpu.pipeline.columns import Column, as_text, column_of, is_wide, polars_type
from gpujoin.backends.cpu.pipeline.lowering import Extent
from gpujoin.backends.cpu.pipeline.piece import Piece, fresh
from gpujoin.backends.cpu.pipeline.windows.distances import RangeKey
from gpujoin.backends.cpu.pipeline.windows.frames import Span, Values, framed, nth
from gpujoin.backends.cpu.pipeline.windows.ordering import Integers, Mask, SortedRows, codes_of, sort_rows
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import ExchangeSource, Output, PartialAggregate, Window
from gpujoin.model.types import is_text, logical
from gpujoin.model.windows import SLIDING, Frame, FramedAggregate, WindowCall, WindowFunction

_GROUP = "group"
_FRAMED_ROWS = 1 << 20
"""Rows of frames that are aggregated at a time."""
_BY_PLACE = frozenset({AggregateFunction.COUNT, AggregateFunction.FIRST, AggregateFunction.LAST})
"""Aggregate functions that are found by place, also over whole partitions."""


def window(piece: Piece, node: Window, extent: Extent, metrics: PipelineMetrics) -> Piece:
    """Compute window functions; rows come out by partition, in order."""
    own: list[Expression] = [_column(column, i) for i, column in enumerate(piece.columns)]
    arguments = [expression for call in node.calls for expression in _arguments(call)]
    computed = piece.compute([*own, *(key.expression for key in node.order), *arguments], extent=extent).collect()
    frame = computed.rows_of_query()
    columns = computed.columns
    if not frame.height:
        nothing = [pl.Series([], dtype=polars_type(field.type)) for call in node.calls for field in call.outputs]
        return _with(computed, frame, columns[: len(own)], nothing, node)
    keys, values = columns[len(own) : len(own) + len(node.order)], columns[len(own) + len(node.order) :]
    rows = sort_rows(
        [codes_of(frame[columns[i].name], columns[i].dtype) for i in dict.fromkeys(node.partition)],
        [
            codes_of(frame[column.name], column.dtype, descending=key.descending, nulls_first=key.nulls_first)
            for key, column in zip(node.order, keys, strict=True)
        ],
        frame.height,
    )
    by_distance = any(call.frame.has_distance for call in node.calls)
    if rows.permutation is not None:
        needed = dict.fromkeys(
            column.name for column in (*columns[: len(own)], *values, *(keys if by_distance else ()))
        )
        places = pl.Series(rows.permutation, dtype=pl.UInt32)
        frame = frame.select(pl.col(name).gather(places) for name in needed)
    range_key = None
    if by_distance:
        key, column = node.order[0], keys[0]
        range_key = RangeKey(frame[column.name], column.dtype, key.descending, key.nulls_first)
    results = _Calls(frame, rows, range_key, extent, metrics).results(node.calls, values)
    return _with(computed, frame, columns[: len(own)], results, node)


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
    whole = frame.select(names).hstack(named) if names else pl.DataFrame(named)
    return piece.with_rows(whole, (*own, *described))


_Numbered: TypeAlias = tuple[int, FramedAggregate, list[Column]]
"""The place of a call among those of the window, the call, and its arguments."""


class _Calls:
    """Computes calls over rows in order."""

    def __init__(
        self,
        frame: pl.DataFrame,
        rows: SortedRows,
        range_key: RangeKey | None,
        extent: Extent,
        metrics: PipelineMetrics,
    ) -> None:
        self._frame = frame
        self._rows = rows
        self._extent = extent
        self._metrics = metrics
        self._span = cache(lambda frame: Span.of(frame, rows, range_key))

    def results(self, calls: Sequence[WindowCall | FramedAggregate], columns: Sequence[Column]) -> list[pl.Series]:
        """The columns of all calls, given those of their arguments."""
        rest = iter(columns)
        results: list[list[pl.Series]] = []
        aggregated: dict[Frame, list[_Numbered]] = {}
        for number, call in enumerate(calls):
            taken = [next(rest) for _ in _arguments(call)]
            if isinstance(call, WindowCall):
                results.append([self._function(call, taken)])
            elif call.call.function not in (_BY_PLACE if call.frame.is_partition else SLIDING):
                results.append([])
                aggregated.setdefault(call.frame, []).append((number, call, taken))
            else:
                results.append(self._framed(call, taken))
        for frame, of_frame in aggregated.items():
            columns_of = self._of_partitions if frame.is_partition else self._of_frames
            for number, series in columns_of(of_frame):
                results[number].append(series)
        return [series for each in results for series in each]

    def _values(self, column: Column) -> Values:
        return Values.of(self._frame[column.name], column)

    # -- ranks and other rows ------------------------------------------------------------------------------

    def _function(self, call: WindowCall, columns: Sequence[Column]) -> pl.Series:
        match call.function:
            case WindowFunction.LAG | WindowFunction.LEAD:
                return self._offset(call, columns)
            case WindowFunction.NTH_VALUE:
                span = self._span(call.frame)
                return nth(self._values(columns[0]), call.count, span, ignore_nulls=call.ignore_nulls)
            case _:
                return pl.Series(self._rank(call).astype(np.float64 if call.dtype == pa.float64() else np.int32))

    def _rank(self, call: WindowCall) -> npt.NDArray[Any]:
        rows = self._rows
        sizes = rows.end - rows.first
        match call.function:
            case WindowFunction.ROW_NUMBER:
                return rows.places - rows.first + 1
            case WindowFunction.RANK:
                return rows.first_peer - rows.first + 1
            case WindowFunction.DENSE_RANK:
                peers: Integers = np.cumsum(rows.begins_peers)
                return peers - peers[rows.first] + 1
            case WindowFunction.PERCENT_RANK:
                return (rows.first_peer - rows.first) / np.maximum(sizes - 1, 1)
            case WindowFunction.CUME_DIST:
                return (rows.peer_end - rows.first) / sizes
            case _:
                assert call.function is WindowFunction.NTILE, call
                return _tile(rows.places - rows.first, sizes, call.count)

    def _offset(self, call: WindowCall, columns: Sequence[Column]) -> pl.Series:
        """Values of other rows of the partition, or the default."""
        rows, values = self._rows, self._values(columns[0])
        distance = call.count if call.function is WindowFunction.LEAD else -call.count
        if not call.ignore_nulls or values.present is None:
            places = rows.places + distance
            valid = (places >= rows.first) & (places < rows.end)
        else:
            before = values.present_before
            # Of the values that are not null: the first one after the row, or the last one before it, and so on.
            number = before[rows.places + 1] + distance - 1 if distance > 0 else before[rows.places] + distance
            valid = (number >= before[rows.first]) & (number < before[rows.end])
            known = values.present_places if len(values.present_places) else np.zeros(1, np.int64)
            places = known[np.where(valid, number, 0)]
        result = values.taken(places, valid)
        if call.default is None or valid.all():
            return result
        default = self._frame[columns[1].name]
        if default.dtype != result.dtype:  # one of them is in the wider form
            wide = pl.Binary if is_text(call.dtype) else pl.Int128
            default, result = default.cast(wide), result.cast(wide)
        return pl.select(pl.when(pl.Series(valid)).then(result).otherwise(default)).to_series()

    # -- aggregates ----------------------------------------------------------------------------------------

    def _framed(self, call: FramedAggregate, columns: Sequence[Column]) -> list[pl.Series]:
        arguments = len(call.call.arguments)
        values = self._values(columns[0]) if arguments else None
        counted: Mask | None = None
        if call.call.function is AggregateFunction.COUNT:
            masks = [self._frame[column.name].is_not_null().to_numpy() for column in columns[:arguments]]
            masks += [self._frame[column.name].fill_null(value=False).to_numpy() for column in columns[arguments:]]
            counted = np.logical_and.reduce(masks) if masks else None
        with np.errstate(invalid="ignore", over="ignore"):
            return framed(call.call, values, counted, self._span(call.frame), self._rows)

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
        parts: list[list[pl.Series]] = []
        for start in range(0, self._rows.rows, step):
            lows, sizes = span.lows[start : start + step], span.sizes[start : start + step]
            groups = np.repeat(np.arange(len(sizes)), sizes)
            members = np.arange(len(groups)) + np.repeat(lows - (np.cumsum(sizes) - sizes), sizes)
            results = self._aggregated(calls, self._frame[pl.Series(members, dtype=pl.UInt32)], groups)
            empty = self._aggregated(calls, self._frame.clear(), None)
            filled = np.flatnonzero(sizes)
            places = np.full(len(sizes), len(filled))
            places[filled] = np.arange(len(filled))
            parts.append([_stacked(pair).gather(places) for pair in zip(results, empty, strict=True)])
        columns = iter([_stacked(pieces) for pieces in zip(*parts, strict=True)])
        for number, call, _ in calls:
            for _ in call.outputs:
                yield number, next(columns)

    def _aggregated(self, calls: Sequence[_Numbered], frame: pl.DataFrame, groups: Integers | None) -> list[pl.Series]:
        """Aggregate rows by the number of their group, to columns with a row for each; ``None``: all rows."""
        columns = {column.name: column for _, _, taken in calls for column in taken}.values()
        key = []
        if groups is not None:
            frame = frame.with_columns(pl.Series(_GROUP, groups, dtype=pl.Int64))
            key = [column_of(_GROUP, frame[_GROUP], pa.int64())]
        piece = Piece(frame.lazy(), (*columns, *key), frame.height, metrics=self._metrics)
        refs = {column.name: _column(column, i) for i, column in enumerate(piece.columns)}
        source = ExchangeSource(0, pa.schema([(column.name, column.dtype) for column in piece.columns]))
        renamed = []
        for number, call, taken in calls:
            rest = iter(taken)
            moved = call.mapped(lambda _, rest=rest: refs[next(rest).name])  # type: ignore[misc]
            renamed.append(dataclasses.replace(moved.call, name=f"a{number}"))
        keys = tuple(Output(column.name, refs[column.name]) for column in key)
        aggregation = PolarsAggregation(
            PartialAggregate(source, keys, tuple(renamed), once=True), self._extent, self._metrics
        )
        state = aggregation.merge(aggregation.reduce(piece)) if groups is not None else aggregation.nothing()
        whole = aggregation.finish(state)
        assert isinstance(whole, Piece)
        results = whole.run(whole.frame)
        if groups is not None:
            results = results.sort(whole.columns[0].name)
        return [results[column.name] for column in whole.columns[len(key) :]]


def _stacked(pieces: Sequence[pl.Series]) -> pl.Series:
    """One column of several, in the wider form where they differ: bytes for text, 128 bits for integers."""
    kinds = {piece.dtype for piece in pieces}
    if len(kinds) == 1:
        return pl.concat(pieces)
    wide = next(kind for kind in (pl.Binary(), pl.Int128()) if kind in kinds)
    return pl.concat([piece.cast(wide) for piece in pieces])


def _tile(places: Integers, sizes: Integers, parts: int) -> Integers:
    """Number the parts of partitions: the first ones have a row more if the rows cannot be divided evenly."""
    least, larger = sizes // parts, sizes % parts
    of_larger = larger * (least + 1)
    return np.where(
        places < of_larger, places // (least + 1), larger + (places - of_larger) // np.maximum(least, 1)
    ) + 1  # fmt: skip
