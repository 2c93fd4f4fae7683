"""Arrow values as plain Python values, exactly: what tables are compared by and generated from.

PyArrow's own ``to_pylist`` cannot say a timestamp in the year 200000, a nanosecond, or the bits of a NaN.
"""

from __future__ import annotations

import decimal
import itertools
import math
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

Cell = Any
"""``None``, bool, int, float, Decimal, str, bytes, or a tuple of cells.

Bytes of a text that are not valid UTF-8 are lone surrogates: ``b"a\\xff"`` is ``"a\\udcff"``, as Python's error handler
``surrogateescape`` has it. Different bytes are different cells.
"""


def cells(values: pa.Array[Any] | pa.ChunkedArray[Any]) -> list[Cell]:
    """Convert a column to plain, hashable Python values, one a row.

    Dates become days, times, timestamps and durations become integers in the unit of their type, month-day-nano
    intervals triples, lists and structs tuples of cells, maps tuples of ``(key, value)`` pairs in stored order.
    Dictionary-encoded, run-end encoded and extension columns count as their values.
    """
    if isinstance(values, pa.ChunkedArray):
        return [cell for chunk in values.chunks for cell in cells(chunk)]
    return _reader(values.type)(values)


def float_bits(value: float) -> int:
    """Give the 64 bits of a double: what tells NaNs and zeros apart."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


def sort_key(value: Cell) -> Any:
    """Map a cell that is not null to a Python value that orders and equals as Spark's value does.

    NaN equals NaN and is above every number, -0.0 equals 0.0, false is below true, text and bytes order by bytes,
    structs by their fields, in which null equals null and is below all.
    """
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    if isinstance(value, (bool, int, Decimal)):
        return (0, value)
    if isinstance(value, tuple):
        return tuple((0,) if item is None else (1, sort_key(item)) for item in value)
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    return value


def _reader(dtype: pa.DataType) -> Callable[[Any], list[Cell]]:
    for test, reader in _READERS:
        if test(dtype):
            return reader
    raise NotImplementedError(f"no plain Python values for columns of type {dtype}")


def _plain(values: Any) -> list[Cell]:
    listed: list[Cell] = values.to_pylist()
    return listed


def _text(values: Any) -> list[Cell]:
    """Text; bytes that are no UTF-8 as the surrogates by which Python escapes them."""
    try:
        return _plain(values)
    except UnicodeDecodeError:
        binary = values.cast(pa.large_binary()).to_pylist()
        return [None if v is None else v.decode(errors="surrogateescape") for v in binary]


def _storage(values: Any) -> list[Cell]:
    return cells(values.storage)


def _decoded(values: Any) -> list[Cell]:
    vocabulary = cells(values.dictionary)
    return [None if i is None else vocabulary[i] for i in values.indices.to_pylist()]


def _run_ends(values: Any) -> list[Cell]:
    runs = cells(values.values)
    return [runs[values.find_physical_offset() + i] for i in _physical(values)]


def _physical(values: Any) -> list[int]:
    ends = values.run_ends.to_pylist()[values.find_physical_offset() :]
    where: list[int] = []
    run = 0
    for row in range(values.offset, values.offset + len(values)):
        while ends[run] <= row:
            run += 1
        where.append(run)
    return where


def _whole_32(values: Any) -> list[Cell]:
    return _plain(values.view(pa.int32()))


def _whole_64(values: Any) -> list[Cell]:
    return _plain(values.view(pa.int64()))


def _interval(values: Any) -> list[Cell]:
    return [None if v is None else (v.months, v.days, v.nanoseconds) for v in values.to_pylist()]


def _struct(values: Any) -> list[Cell]:
    fields = [cells(values.field(i)) for i in range(values.type.num_fields)]
    rows = zip(*fields, strict=True) if fields else itertools.repeat((), len(values))
    return [row if ok else None for ok, row in zip(values.is_valid().to_pylist(), rows, strict=True)]


def _list(values: Any) -> list[Cell]:
    spans = _spans(values)
    items = _between(values.values, spans)
    return [None if span is None else tuple(items(*span)) for span in spans]


def _map(values: Any) -> list[Cell]:
    spans = _spans(values)
    pairs = values.values
    keys, mapped = _between(pairs.field(0), spans), _between(pairs.field(1), spans)
    return [None if s is None else tuple(zip(keys(*s), mapped(*s), strict=True)) for s in spans]


def _spans(values: Any) -> list[tuple[int, int] | None]:
    """Where each row's items begin and end among those of all rows; None for a null row."""
    if pat.is_fixed_size_list(values.type):
        size = values.type.list_size
        starts: list[int] = [size * row for row in range(values.offset, values.offset + len(values))]
        ends = [start + size for start in starts]
    elif pat.is_list_view(values.type) or pat.is_large_list_view(values.type):
        starts = values.offsets.to_pylist()
        ends = [start + size for start, size in zip(starts, values.sizes.to_pylist(), strict=True)]
    else:
        offsets = values.offsets.to_pylist()
        starts, ends = offsets[:-1], offsets[1:]
    valid = values.is_valid().to_pylist()
    return [(start, end) if ok else None for ok, start, end in zip(valid, starts, ends, strict=True)]


def _between(items: Any, spans: Sequence[tuple[int, int] | None]) -> Callable[[int, int], list[Cell]]:
    """Give the function from a span to its cells; all that spans need are converted at once."""
    used = [span for span in spans if span is not None]
    first = min((start for start, _ in used), default=0)
    converted = cells(items.slice(first, max((end for _, end in used), default=0) - first))
    return lambda start, end: converted[start - first : end - first]


_Test = Callable[[pa.DataType], bool]


def _any(*tests: _Test) -> _Test:
    return lambda dtype: any(test(dtype) for test in tests)


_READERS: Sequence[tuple[_Test, Callable[[Any], list[Cell]]]] = (
    (lambda dtype: isinstance(dtype, pa.BaseExtensionType), _storage),
    (pat.is_dictionary, _decoded),
    (pat.is_run_end_encoded, _run_ends),
    (_any(pat.is_null, pat.is_boolean, pat.is_integer, pat.is_floating), _plain),
    (_any(pat.is_string, pat.is_large_string, pat.is_string_view), _text),
    (_any(pat.is_binary, pat.is_large_binary, pat.is_binary_view, pat.is_fixed_size_binary), _plain),
    (pat.is_decimal, _plain),
    (_any(pat.is_date32, pat.is_time32), _whole_32),
    (_any(pat.is_date64, pat.is_time64, pat.is_timestamp, pat.is_duration), _whole_64),
    (pat.is_interval, _interval),
    (pat.is_struct, _struct),
    (pat.is_map, _map),
    (
        _any(
            pat.is_list,
            pat.is_large_list,
            pat.is_fixed_size_list,
            pat.is_list_view,
            pat.is_large_list_view,
        ),
        _list,
    ),
)

EXACT = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP)
"""A decimal context in which nothing that 38-digit operands give is rounded."""
