"""Computes the calls of a window over a piece that has all rows of its partitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from gpujoin.backends.cpu.pipeline.aggregate import PolarsAggregation, guarded
from gpujoin.backends.cpu.pipeline.columns import Column, as_text, column_of, is_wide, polars_type
from gpujoin.backends.cpu.pipeline.lowering import Extent
from gpujoin.backends.cpu.pipeline.piece import Piece, fresh
from gpujoin.backends.cpu.pipeline.windows.frames import Span, Values, framed, nth
from gpujoin.backends.cpu.pipeline.windows.ordering import Integers, Mask, SortedRows, codes_of, sort_rows
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import ExchangeSource, Output, PartialAggregate, Window
from gpujoin.model.types import is_text, logical
from gpujoin.model.windows import FramedAggregate, WindowCall, WindowFunction

_PARTITION = "partition"
_BY_PLACE = frozenset({AggregateFunction.COUNT, AggregateFunction.FIRST, AggregateFunction.LAST})
"""Aggregate functions that are found by place, also over whole partitions."""


def window(piece: Piece, node: Window, extent: Extent, metrics: PipelineMetrics) -> Piece:
    """Compute window functions; rows come out by partition, in order."""
    own: list[Expression] = [_column(column, i) for i, column in enumerate(piece.columns)]
    arguments = [expression for call in node.calls for expression in _arguments(call)]
    computed = piece.compute([*own, *(key.expression for key in node.order), *arguments], extent=extent).collect()
    frame = computed.run(computed.frame)
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
    if rows.permutation is not None:
        needed = dict.fromkeys(column.name for column in (*columns[: len(own)], *values))
        places = pl.Series(rows.permutation, dtype=pl.UInt32)
        frame = frame.select(pl.col(name).gather(places) for name in needed)
    results = _Calls(frame, rows, extent, metrics).results(node.calls, values)
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
    return dataclasses.replace(piece, frame=whole.lazy(), columns=(*own, *described), rows=whole.height)


class _Calls:
    """Computes calls over rows in order."""

    def __init__(self, frame: pl.DataFrame, rows: SortedRows, extent: Extent, metrics: PipelineMetrics) -> None:
        self._frame = frame
        self._rows = rows
        self._extent = extent
        self._metrics = metrics
        self._span = cache(lambda frame: Span.of(frame, rows))

    def results(self, calls: Sequence[WindowCall | FramedAggregate], columns: Sequence[Column]) -> list[pl.Series]:
        """The columns of all calls, given those of their arguments."""
        rest = iter(columns)
        results: list[list[pl.Series]] = []
        aggregated: list[tuple[int, FramedAggregate, list[Column]]] = []
        for number, call in enumerate(calls):
            taken = [next(rest) for _ in _arguments(call)]
            if isinstance(call, WindowCall):
                results.append([self._function(call, taken)])
            elif call.frame.is_partition and call.call.function not in _BY_PLACE:
                results.append([])
                aggregated.append((number, call, taken))
            else:
                results.append(self._framed(call, taken))
        for number, series in self._of_partitions(aggregated):
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

    def _of_partitions(
        self, calls: Sequence[tuple[int, FramedAggregate, list[Column]]]
    ) -> Iterator[tuple[int, pl.Series]]:
        """Aggregates of whole partitions, as an aggregation computes them."""
        if not calls:
            return
        rows = self._rows
        columns = {column.name: column for _, _, taken in calls for column in taken}.values()
        numbered = self._frame.with_columns(pl.Series(_PARTITION, rows.partition))
        key = column_of(_PARTITION, numbered[_PARTITION], pa.int64())
        piece = Piece(numbered.lazy(), (*columns, key), rows.rows, metrics=self._metrics)
        refs = {column.name: _column(column, i) for i, column in enumerate(piece.columns)}
        source = ExchangeSource(0, pa.schema([(column.name, column.dtype) for column in piece.columns]))
        renamed = []
        for number, call, taken in calls:
            rest = iter(taken)
            moved = call.mapped(lambda _, rest=rest: refs[next(rest).name])  # type: ignore[misc]
            renamed.append(dataclasses.replace(moved.call, name=f"a{number}"))
        node = PartialAggregate(source, (Output(_PARTITION, refs[_PARTITION]),), tuple(renamed), once=True)
        aggregation = PolarsAggregation(node, self._extent, self._metrics)
        whole = aggregation.finish(aggregation.merge(aggregation.reduce(piece)))
        assert isinstance(whole, Piece)
        results = whole.run(whole.frame).sort(whole.columns[0].name)
        names = iter(column.name for column in whole.columns[1:])
        places = pl.Series(rows.partition)
        for number, call, _ in calls:
            for _ in call.outputs:
                yield number, results[next(names)].gather(places)


def _tile(places: Integers, sizes: Integers, parts: int) -> Integers:
    """Number the parts of partitions: the first ones have a row more if the rows cannot be divided evenly."""
    least, larger = sizes // parts, sizes % parts
    of_larger = larger * (least + 1)
    return np.where(
        places < of_larger, places // (least + 1), larger + (places - of_larger) // np.maximum(least, 1)
    ) + 1  # fmt: skip
