"""Window functions a row at a time: what pipelines are checked against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.relations import SortKey, Window
from gpujoin.model.types import is_float
from gpujoin.model.windows import Frame, FramedAggregate, FrameType, WindowCall, WindowFunction
from gpujoin.testing import Cell, cells
from tests.oracle.aggregates import direct, final, group_key, rank_of
from tests.oracle.interpreter import compile_expression

Rows = list[tuple[Cell, ...]]


def windowed(node: Window, child: pa.Table) -> Rows:
    """The results of all calls, to the final values, for each row of the input; peers stand in the input's order."""
    rows: Rows = list(zip(*(cells(column) for column in child.columns), strict=True))
    schema = child.schema
    partitions: dict[Any, list[int]] = {}
    for number, row in enumerate(rows):
        partitions.setdefault(tuple(group_key(row[i]) for i in node.partition), []).append(number)
    results: Rows = [()] * len(rows)
    for members in partitions.values():
        for key in reversed(node.order):
            members.sort(key=lambda number, key=key: _place(key, schema, rows[number]))  # type: ignore[misc]
        ordered = [rows[number] for number in members]
        peers = [tuple(_place(key, schema, row) for key in node.order) for row in ordered]
        computed = [_computed(call, schema, ordered, peers) for call in node.calls]
        for place, number in enumerate(members):
            results[number] = tuple(values[place] for values in computed)
    return results


def finals(node: Window, table: pa.Table) -> Rows:
    """The same of a window's output, whose aggregates are buffers."""
    columns = [cells(column) for column in table.columns]
    results: Rows = []
    for row in range(table.num_rows):
        values, at = [], len(node.child.schema)
        for call in node.calls:
            parts = tuple(columns[at + i][row] for i in range(len(call.outputs)))
            at += len(parts)
            values.append(final(call.call, [parts]) if isinstance(call, FramedAggregate) else parts[0])
        results.append(tuple(values))
    return results


def _place(key: SortKey, schema: pa.Schema, row: tuple[Cell, ...]) -> Any:
    value = compile_expression(key.expression, schema, schema).run((row, ()))
    if value is None:
        return (0 if key.nulls_first else 2,)
    ranked = rank_of(value)
    return 1, _Descending(ranked) if key.descending else ranked


class _Descending:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


def _frame(frame: Frame, place: int, peers: Sequence[Any]) -> range:
    assert not frame.has_distance, "compared with Spark"
    low, high = 0, len(peers)
    if frame.type is FrameType.RANGE:
        if frame.start is not None:
            low = peers.index(peers[place])
        if frame.end is not None:
            high = len(peers) - peers[::-1].index(peers[place])
        return range(low, high)
    if frame.start is not None:
        low = min(max(place + int(frame.start), 0), len(peers))
    if frame.end is not None:
        high = max(low, min(place + int(frame.end) + 1, len(peers)))
    return range(low, high)


def _computed(call: WindowCall | FramedAggregate, schema: pa.Schema, rows: Rows, peers: Sequence[Any]) -> list[Cell]:
    if isinstance(call, FramedAggregate):
        frames = (_frame(call.frame, place, peers) for place in range(len(rows)))
        return [_aggregate(call.call, schema, [rows[i] for i in frame]) for frame in frames]
    if call.value is not None:
        return [_other_row(call, schema, rows, place, peers) for place in range(len(rows))]
    return [_rank(call, place, peers) for place in range(len(rows))]


def _aggregate(call: AggregateCall, schema: pa.Schema, rows: Rows) -> Cell:
    """As an aggregation of the rows, but sums of floats one after the other, as Spark adds them."""
    if call.function not in (AggregateFunction.SUM, AggregateFunction.AVG) or not is_float(call.buffer[0].type):
        return direct(call, schema, rows)
    value = compile_expression(call.arguments[0], schema, schema)
    keep = None if call.filter is None else compile_expression(call.filter, schema, schema)
    total, count = 0.0, 0
    for row in rows:
        number = value.run((row, ())) if keep is None or keep.run((row, ())) is True else None
        if number is not None:
            total, count = total + float(number), count + 1
    if not count:
        return None
    return total / count if call.function is AggregateFunction.AVG else total


def _rank(call: WindowCall, place: int, peers: Sequence[Any]) -> Cell:
    count, first = len(peers), peers.index(peers[place])
    match call.function:
        case WindowFunction.ROW_NUMBER:
            return place + 1
        case WindowFunction.RANK:
            return first + 1
        case WindowFunction.DENSE_RANK:
            return 1 + sum(peers[i] != peers[i - 1] for i in range(1, place + 1))
        case WindowFunction.PERCENT_RANK:
            return first / (count - 1) if count > 1 else 0.0
        case WindowFunction.CUME_DIST:
            return (count - peers[::-1].index(peers[place])) / count
        case _:
            parts = [count // call.count + (i < count % call.count) for i in range(call.count)]
            return next(i + 1 for i in range(call.count) if place < sum(parts[: i + 1]))


def _other_row(call: WindowCall, schema: pa.Schema, rows: Rows, place: int, peers: Sequence[Any]) -> Cell:
    assert call.value is not None
    value = compile_expression(call.value, schema, schema)
    values = [value.run((row, ())) for row in rows]
    match call.function:
        case WindowFunction.NTH_VALUE:
            places = list(_frame(call.frame, place, peers))
        case WindowFunction.LAG:
            places = [*reversed(range(place)), *[-1] * call.count] if call.count else [place]
        case _:
            places = list(range(place + 1, len(rows))) if call.count else [place]
    counted = [i for i in places if i >= 0 and (values[i] is not None or not call.ignore_nulls)]
    number = max(call.count, 1)
    if number <= len(counted):
        return values[counted[number - 1]]
    if call.default is None:
        return None
    return compile_expression(call.default, schema, schema).run((rows[place], ()))
