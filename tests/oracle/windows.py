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
from tests.oracle.aggregates import arguments, direct, final, group_key, rank_of
from tests.oracle.values import values

Rows = list[tuple[Cell, ...]]


def windowed(node: Window, child: pa.Table) -> Rows:
    """The results of all calls, to the final values, for each row of the input; peers stand in the input's order."""
    columns = [cells(column) for column in child.columns]
    order = [[_place(key, value) for value in values(key.expression, child)] for key in node.order]
    read = [_read(call, child) for call in node.calls]
    partitions: dict[Any, list[int]] = {}
    for number in range(child.num_rows):
        partitions.setdefault(tuple(group_key(columns[i][number]) for i in node.partition), []).append(number)
    results: Rows = [()] * child.num_rows
    for members in partitions.values():
        for places in reversed(order):
            members.sort(key=lambda number, places=places: places[number])  # type: ignore[misc]
        peers = [tuple(places[number] for places in order) for number in members]
        computed = [
            _computed(call, [[column[number] for number in members] for column in own], peers)
            for call, own in zip(node.calls, read, strict=True)
        ]
        for place, number in enumerate(members):
            results[number] = tuple(column[place] for column in computed)
    return results


def _read(call: WindowCall | FramedAggregate, child: pa.Table) -> list[list[Any]]:
    """What a call takes of each row: the arguments of an aggregate, or the value and the default."""
    if isinstance(call, FramedAggregate):
        return [arguments(call.call, child)]
    parts = (call.value, call.default)
    return [[None] * child.num_rows if part is None else values(part, child) for part in parts]


def finals(node: Window, table: pa.Table) -> Rows:
    """The same of a window's output, whose aggregates are buffers."""
    columns = [cells(column) for column in table.columns]
    results: Rows = []
    for row in range(table.num_rows):
        finished, at = [], len(node.child.schema)
        for call in node.calls:
            parts = tuple(columns[at + i][row] for i in range(len(call.outputs)))
            at += len(parts)
            finished.append(final(call.call, [parts]) if isinstance(call, FramedAggregate) else parts[0])
        results.append(tuple(finished))
    return results


def _place(key: SortKey, value: Cell) -> Any:
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


def _computed(call: WindowCall | FramedAggregate, read: list[list[Any]], peers: Sequence[Any]) -> list[Cell]:
    places = range(len(peers))
    if isinstance(call, FramedAggregate):
        (rows,) = read
        return [_aggregate(call.call, [rows[i] for i in _frame(call.frame, place, peers)]) for place in places]
    if call.value is not None:
        return [_other_row(call, read[0], read[1], place, peers) for place in places]
    return [_rank(call, place, peers) for place in places]


def _aggregate(call: AggregateCall, rows: list[tuple[Cell, ...] | None]) -> Cell:
    """As an aggregation of the rows, but sums of floats one after the other, as Spark adds them."""
    if call.function not in (AggregateFunction.SUM, AggregateFunction.AVG) or not is_float(call.buffer[0].type):
        return direct(call, rows)
    total, count = 0.0, 0
    for row in rows:
        if row is not None and row[0] is not None:
            total, count = total + float(row[0]), count + 1
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


def _other_row(call: WindowCall, read: list[Cell], defaults: list[Cell], place: int, peers: Sequence[Any]) -> Cell:
    match call.function:
        case WindowFunction.NTH_VALUE:
            places = list(_frame(call.frame, place, peers))
        case WindowFunction.LAG:
            places = [*reversed(range(place)), *[-1] * call.count] if call.count else [place]
        case _:
            places = list(range(place + 1, len(peers))) if call.count else [place]
    counted = [i for i in places if i >= 0 and (read[i] is not None or not call.ignore_nulls)]
    number = max(call.count, 1)
    if number <= len(counted):
        return read[counted[number - 1]]
    return None if call.default is None else defaults[place]
