"""Aggregation a row at a time, and the merging of partial results: what pipelines are checked against."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.aggregates import (
    BITWISE,
    COMOMENTS,
    EXTREMES_BY,
    FINAL_ONLY,
    REGRESSIONS,
    AggregateCall,
    AggregateFunction,
)
from gpujoin.model.expressions import EvalMode
from gpujoin.model.relations import PartialAggregate
from gpujoin.model.types import is_float
from gpujoin.testing import Cell, cells
from tests.cells import EXACT
from tests.oracle.values import values, values_of_pairs

Finals = dict[tuple[Cell, ...], tuple[Cell, ...]]
"""Final value of each call by group."""


def aggregated(node: PartialAggregate, child: pa.Table) -> Finals:
    """Aggregate a table a row at a time, to the final values.

    Parameters
    ----------
    node : PartialAggregate
        Its child is not looked at.
    child : pyarrow.Table
        Rows of the child.
    """
    keys = [values(key.expression, child) for key in node.keys]
    groups: dict[tuple[Cell, ...], list[int]] = {}
    for row in range(child.num_rows):
        groups.setdefault(tuple(group_key(key[row]) for key in keys), []).append(row)
    if not node.keys:
        groups.setdefault((), [])
    read = [(call, arguments(call, child)) for call in node.aggregates]
    return {
        group: tuple(direct(call, [rows[row] for row in members]) for call, rows in read)
        for group, members in groups.items()
    }


def merged(node: PartialAggregate, partial: pa.Table) -> Finals:
    """Merge partial results as Spark's final aggregation does, to the final values.

    Parameters
    ----------
    node : PartialAggregate
        What was computed.
    partial : pyarrow.Table
        Rows of its schema; a group may occur more than once.
    """
    columns = [cells(column) for column in partial.columns]
    count = len(node.keys)
    groups: dict[tuple[Cell, ...], list[int]] = {}
    for row in range(partial.num_rows):
        groups.setdefault(tuple(group_key(columns[k][row]) for k in range(count)), []).append(row)
    buffers: list[list[tuple[Cell, ...]]] = []
    at = count
    for call in node.aggregates:
        width = len(call.buffer)
        buffers.append(list(zip(*columns[at : at + width], strict=True)))
        at += width
    calls = list(zip(node.aggregates, buffers, strict=True))
    return {
        group: tuple(final(call, [parts[row] for row in rows]) for call, parts in calls)
        for group, rows in groups.items()
    }


def assert_same_groups(actual: Finals, expected: Finals, context: str = "") -> None:
    """Check final values, floats up to rounding: their sums depend on the order of rows, in Spark too.

    Raises
    ------
    AssertionError
        With the groups that differ.
    """
    wrong = [
        f"{group}: {actual.get(group)}, expected {expected.get(group)}"
        for group in sorted({*actual, *expected}, key=repr)
        if group not in actual or group not in expected or not _same(actual[group], expected[group])
    ]
    if wrong:
        shown = "\n".join(wrong[:8])
        raise AssertionError(f"{context}\n{len(wrong)} of {len(expected)} groups differ:\n{shown}")


def group_key(value: Cell) -> Cell:
    """One value for all that are one group."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def _same(left: Sequence[Cell], right: Sequence[Cell]) -> bool:
    return all(
        (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
        if isinstance(a, float) and isinstance(b, float)
        else type(a) is type(b) and a == b
        for a, b in zip(left, right, strict=True)
    )


def arguments(call: AggregateCall, table: pa.Table) -> list[tuple[Cell, ...] | None]:
    """What a call takes of each row of a table; None of a row that its filter drops."""
    rows: Sequence[int] = range(table.num_rows)
    if call.filter is not None:
        rows = [row for row, keep in zip(rows, values(call.filter, table), strict=True) if keep is True]
    pairs = [(row, row) for row in rows]
    columns = [values_of_pairs(argument, table, table, pairs) for argument in call.arguments]
    taken: list[tuple[Cell, ...] | None] = [None] * table.num_rows
    for row, *arguments in zip(rows, *columns, strict=True):
        taken[row] = tuple(arguments)
    return taken


def direct(call: AggregateCall, rows: Iterable[tuple[Cell, ...] | None]) -> Cell:
    """Aggregate what a call takes of some rows to its final value."""
    taken = [row for row in rows if row is not None]
    if call.function is AggregateFunction.COUNT:
        return sum(all(v is not None for v in values) for values in taken)
    if call.function in (AggregateFunction.FIRST, AggregateFunction.LAST):
        values = [v for (v,) in taken if v is not None or not call.ignore_nulls]
        return _edge(call, values)
    if call.function in EXTREMES_BY:
        return _by_ordering(call, taken)
    if call.function in COMOMENTS:
        return _comoment(call.function, [pair for pair in taken if None not in pair])
    if call.function in REGRESSIONS:
        return _regression(call.function, [pair for pair in taken if None not in pair])
    if call.function is AggregateFunction.LISTAGG:
        return _joined(call, taken)
    return _over_values(call, [v for (v,) in taken if v is not None])


def _edge(call: AggregateCall, values: list[Cell]) -> Cell:
    if not values:
        return None
    return values[0] if call.function is AggregateFunction.FIRST else values[-1]


def _by_ordering(call: AggregateCall, pairs: Iterable[tuple[Cell, ...]]) -> Cell:
    """Value of the row whose ordering is the extreme; the last of several."""
    least = call.function is AggregateFunction.MIN_BY
    best: tuple[Cell, Cell] | None = None
    for value, ordering in pairs:
        if ordering is None:
            continue
        rank = rank_of(ordering)
        if best is None or not (rank > best[1] if least else rank < best[1]):
            best = (value, rank)
    return None if best is None else best[0]


def rank_of(value: Cell) -> Cell:
    """A value that Python orders as Spark orders the given one."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def _joined(call: AggregateCall, rows: list[tuple[Cell, ...]]) -> Cell:
    assert call.delimiter is not None
    ordered = [row for row in rows if row[0] is not None]
    for place, (descending, nulls_first) in reversed(list(enumerate(call.directions, 1))):
        _sort(ordered, place, descending=descending, nulls_first=nulls_first)
    if not ordered:
        return None
    texts = [value.encode() if isinstance(value, str) else value for value, *_ in ordered]
    joined = call.delimiter.join(texts)
    return joined.decode() if pat.is_string(call.dtype) else joined


def _sort(rows: list[tuple[Cell, ...]], place: int, *, descending: bool, nulls_first: bool) -> None:
    nulls = [row for row in rows if row[place] is None]
    others = [row for row in rows if row[place] is not None]
    others.sort(key=lambda row: rank_of(row[place]), reverse=descending)
    rows[:] = [*nulls, *others] if nulls_first else [*others, *nulls]


def _mode(call: AggregateCall, values: list[Cell]) -> Cell:
    if not values:
        return None
    counted = Counter(values)
    most = max(counted.values())
    pick: Callable[..., Any] = max if call.descending else min
    return pick((value for value, count in counted.items() if count == most), key=rank_of)


def _percentile(call: AggregateCall, values: list[Cell]) -> Cell:
    assert call.percentage is not None
    if not values:
        return None
    ordered = sorted(values, key=rank_of, reverse=call.descending)
    at = _interpolated if call.function is AggregateFunction.PERCENTILE else _discrete
    if isinstance(call.percentage, tuple):
        return tuple(at(ordered, percentage) for percentage in call.percentage)
    return at(ordered, call.percentage)


def _discrete(ordered: list[Cell], percentage: float) -> float:
    return float(ordered[max(math.ceil(len(ordered) * percentage), 1) - 1])


def _interpolated(ordered: list[Cell], percentage: float) -> float:
    position = (len(ordered) - 1) * percentage
    lower, higher = math.floor(position), math.ceil(position)
    low, high = float(ordered[lower]), float(ordered[higher])
    if ordered[lower] == ordered[higher]:
        return low
    return low + (position - lower) * (high - low)


_BITS: dict[AggregateFunction, Callable[[int, int], int]] = {
    AggregateFunction.BIT_AND: operator.and_, AggregateFunction.BIT_OR: operator.or_,
    AggregateFunction.BIT_XOR: operator.xor,
}  # fmt: skip


def _over_values(call: AggregateCall, values: list[Cell]) -> Cell:
    dtype = call.dtype
    match call.function:
        case AggregateFunction.MIN | AggregateFunction.MAX:
            return _extreme(call, values)
        case function if function in BITWISE:
            return reduce(_BITS[function], values) if values else None
        case AggregateFunction.MODE:
            return _mode(call, values)
        case AggregateFunction.PERCENTILE | AggregateFunction.PERCENTILE_DISC:
            return _percentile(call, values)
        case AggregateFunction.COLLECT_LIST:
            return tuple(values)
        case AggregateFunction.COLLECT_SET:
            return tuple(dict.fromkeys(values))
        case AggregateFunction.SUM | AggregateFunction.AVG if pat.is_decimal(dtype):
            return _decimal_result(call, sum_exactly(values), len(values))
        case AggregateFunction.SUM if not is_float(dtype):
            total = sum(values) if values else None
            lost = call.mode is EvalMode.TRY and total is not None and not -(1 << 63) <= total < 1 << 63
            return None if lost else total
        case AggregateFunction.SUM:
            return math.fsum(values) if _finite(values) else _float_sum(values) if values else None
        case AggregateFunction.AVG:
            if not values:
                return None
            whole = math.fsum(values) if _finite(values) else _float_sum([float(v) for v in values])
            return whole / len(values)
    n = len(values)
    if not _finite(values):
        return math.nan if n else None
    mean = math.fsum(values) / n if n else 0.0
    m2, m3, m4 = (math.fsum((v - mean) ** power for v in values) for power in (2, 3, 4))
    if len({*values}) == 1:
        m2 = m3 = m4 = 0.0
    return _moment(call.function, float(n), m2, m3, m4)


def _finite(values: Sequence[Cell]) -> bool:
    return bool(values) and all(math.isfinite(v) for v in values)


def _float_sum(values: Sequence[Cell]) -> float:
    result = 0.0
    for value in values:
        result += value
    return result


def sum_exactly(values: Iterable[Decimal]) -> Decimal:
    """Add decimals without rounding."""
    result = Decimal(0)
    for value in values:
        result = EXACT.add(result, value)
    return result


def _extreme(call: AggregateCall, values: list[Cell]) -> Cell:
    if not values:
        return None
    pick: Callable[..., Any] = min if call.function is AggregateFunction.MIN else max
    return group_value(pick(values, key=rank_of))


def group_value(value: Cell) -> Cell:
    """Drop the sign of zero: which zero is the extreme is not said."""
    return value + 0.0 if isinstance(value, float) else value


def _decimal_result(call: AggregateCall, value: Decimal | None, count: int) -> Cell:
    """A decimal sum, or for an average the sum and the count, from which the result follows."""
    limit = Decimal(10) ** (call.buffer[0].type.precision - call.dtype.scale)
    if call.function is AggregateFunction.SUM and count == 0:
        return None
    if value is None or abs(value) >= limit:
        return "overflow"
    exact = EXACT.quantize(value, Decimal(1).scaleb(-call.dtype.scale))
    return exact if call.function is AggregateFunction.SUM else (exact, count)


def _comoment(function: AggregateFunction, pairs: list[tuple[Cell, ...]]) -> Cell:
    if not pairs:
        return None
    sides = list(zip(*pairs, strict=True))
    if not all(map(_finite, sides)):
        return math.nan
    deviations = [[value - math.fsum(side) / len(side) for value in side] for side in sides]
    xy, xx, yy = (math.fsum(map(operator.mul, deviations[a], deviations[b])) for a, b in ((0, 1), (0, 0), (1, 1)))
    return _related(function, float(len(pairs)), xy, xx, yy)


def _regression(function: AggregateFunction, pairs: list[tuple[Cell, ...]]) -> Cell:
    """Of y over x."""
    if len({x for _, x in pairs}) < 2:
        return None
    y_mean, x_mean = (math.fsum(side) / len(pairs) for side in zip(*pairs, strict=True))
    squares = math.fsum((x - x_mean) ** 2 for _, x in pairs)
    slope = math.fsum((x - x_mean) * (y - y_mean) for y, x in pairs) / squares
    return slope if function is AggregateFunction.REGR_SLOPE else y_mean - slope * x_mean


def _related(function: AggregateFunction, n: float, xy: float, xx: float, yy: float) -> Cell:
    if n == 0:
        return None
    if function is AggregateFunction.REGR_SXY:
        return xy
    if function is AggregateFunction.REGR_R2:
        return None if xx == 0 else 1.0 if yy == 0 else xy * xy / (xx * yy)
    if n == 1 and function is not AggregateFunction.COVAR_POP:
        return None
    match function:
        case AggregateFunction.COVAR_POP:
            return xy / n
        case AggregateFunction.COVAR_SAMP:
            return xy / (n - 1)
        case _:
            return xy / math.sqrt(xx * yy)


def _moment(function: AggregateFunction, n: float, m2: float, m3: float, m4: float) -> Cell:
    if function in (AggregateFunction.SKEWNESS, AggregateFunction.KURTOSIS):
        if n == 0 or m2 == 0:
            return None
        return math.sqrt(n) * m3 / m2**1.5 if function is AggregateFunction.SKEWNESS else n * m4 / m2**2 - 3.0
    sample = function in (AggregateFunction.STDDEV_SAMP, AggregateFunction.VAR_SAMP)
    if n == 0:
        return None
    if sample and n == 1:
        return None
    if function is AggregateFunction.REGR_SQUARES:
        return m2
    variance = m2 / (n - 1 if sample else n)
    rooted = function in (AggregateFunction.STDDEV_SAMP, AggregateFunction.STDDEV_POP)
    return math.sqrt(variance) if rooted else variance


def final(call: AggregateCall, buffers: list[tuple[Cell, ...]]) -> Cell:
    """Merge buffers of a call to its final value."""
    match call.function:
        case AggregateFunction.COUNT:
            return sum(n for (n,) in buffers)
        case AggregateFunction.MIN | AggregateFunction.MAX:
            return _extreme(call, [v for (v,) in buffers if v is not None])
        case AggregateFunction.FIRST | AggregateFunction.LAST:
            return _edge(call, [value for value, is_set in buffers if is_set])
        case function if function in EXTREMES_BY:
            return _by_ordering(call, buffers)
        case function if function in FINAL_ONLY:
            ((value,),) = buffers
            return value
        case function if function in BITWISE:
            return _over_values(call, [v for (v,) in buffers if v is not None])
        case AggregateFunction.SUM if pat.is_decimal(call.dtype):
            lost = any(value is None and not empty for value, empty in buffers)
            known = [value for value, empty in buffers if not empty]
            return _decimal_result(call, None if lost else sum_exactly(known), len(known))
        case AggregateFunction.SUM:
            known = [buffer[0] for buffer in buffers if buffer[0] is not None]
            if call.mode is EvalMode.TRY and any(value is None and not empty for value, empty in buffers):
                return None
            return _over_values(call, known)
        case AggregateFunction.AVG:
            count = sum(n for _, n in buffers)
            if pat.is_decimal(call.dtype):
                lost = any(value is None for value, _ in buffers)
                return _decimal_result(call, None if lost else sum_exactly(v for v, _ in buffers), count)
            return sum(v for v, _ in buffers) / count if count else None
    return _merged_moments(call, buffers)


def _merged_moments(call: AggregateCall, buffers: list[tuple[Cell, ...]]) -> Cell:
    if call.function in COMOMENTS:
        return _merged_comoments(call, buffers)
    if call.function in REGRESSIONS:
        return _merged_regression(call, buffers)
    n, mean, m2, m3, m4 = 0.0, 0.0, 0.0, 0.0, 0.0
    for part_n, part_mean, part_m2, *higher in buffers:
        if part_n == 0:
            continue
        part_m3, part_m4 = [*higher, 0.0, 0.0][:2]
        whole = n + part_n
        delta = part_mean - mean
        m4 += part_m4 + delta**4 * n * part_n * (n * n - n * part_n + part_n * part_n) / whole**3
        m4 += 6 * delta**2 * (n * n * part_m2 + part_n * part_n * m2) / whole**2
        m4 += 4 * delta * (n * part_m3 - part_n * m3) / whole
        m3 += part_m3 + delta**3 * n * part_n * (n - part_n) / whole**2
        m3 += 3 * delta * (n * part_m2 - part_n * m2) / whole
        m2 += part_m2 + delta * delta * n * part_n / whole
        mean += delta * part_n / whole
        n = whole
    return _moment(call.function, n, m2, m3, m4)


def _merged_regression(call: AggregateCall, buffers: list[tuple[Cell, ...]]) -> Cell:
    n, x, y, xy, xx = 0.0, 0.0, 0.0, 0.0, 0.0
    for part_n, part_x, part_y, part_xy, _, _, part_xx in buffers:
        if part_n == 0:
            continue
        whole = n + part_n
        dx, dy, weight = part_x - x, part_y - y, n * part_n / whole
        xy, xx = xy + part_xy + dx * dy * weight, xx + part_xx + dx * dx * weight
        x, y, n = x + dx * part_n / whole, y + dy * part_n / whole, whole
    if xx == 0:
        return None
    slope = xy / xx
    return slope if call.function is AggregateFunction.REGR_SLOPE else y - slope * x


def _merged_comoments(call: AggregateCall, buffers: list[tuple[Cell, ...]]) -> Cell:
    n, x, y, sums = 0.0, 0.0, 0.0, [0.0, 0.0, 0.0]
    for part_n, part_x, part_y, *part_sums in buffers:
        if part_n == 0:
            continue
        whole = n + part_n
        dx, dy = part_x - x, part_y - y
        weight = n * part_n / whole
        added = (dx * dy, dx * dx, dy * dy)
        sums = [a + b + weight * d for a, b, d in zip(sums, [*part_sums, 0.0, 0.0][:3], added, strict=True)]
        x, y, n = x + dx * part_n / whole, y + dy * part_n / whole, whole
    return _related(call.function, n, *sums)
