"""The tail of an ORC file: its columns, its stripes, and their statistics.

Numbers of fields and kinds of types are those of
https://github.com/apache/orc-format/blob/main/src/main/proto/orc/proto/orc_proto.proto. PyArrow decompresses the tail.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyarrow as pa

from gpujoin.backends.orc.protobuf import Message, ProtobufError, Repeated, Scalar, read
from gpujoin.backends.parquet.pruning import Statistics
from gpujoin.errors import ScanError

_MOST_PRECISION = 38
_EPOCH = dt.date(1970, 1, 1)


class _Kind(IntEnum):
    """``Type.Kind`` of the format; those that are not named are not read here."""

    BOOLEAN = 0
    BYTE = 1
    SHORT = 2
    INT = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    STRING = 7
    BINARY = 8
    STRUCT = 12
    DECIMAL = 14
    DATE = 15


_ARROW = {
    _Kind.BOOLEAN: pa.bool_(), _Kind.BYTE: pa.int8(), _Kind.SHORT: pa.int16(), _Kind.INT: pa.int32(),
    _Kind.LONG: pa.int64(), _Kind.FLOAT: pa.float32(), _Kind.DOUBLE: pa.float64(), _Kind.STRING: pa.string(),
    _Kind.BINARY: pa.binary(), _Kind.DATE: pa.date32(),
}  # fmt: skip
_UNSIGNED, _BYTES = Scalar.UNSIGNED, Scalar.BYTES
_BOUNDS = Message({1: Scalar.SIGNED, 2: Scalar.SIGNED})
_FOOTER = Message({
    3: Repeated(Message({1: _UNSIGNED, 2: _UNSIGNED, 3: _UNSIGNED, 4: _UNSIGNED, 5: _UNSIGNED})),
    4: Repeated(Message({1: _UNSIGNED, 2: Repeated(_UNSIGNED), 3: Repeated(_BYTES), 5: _UNSIGNED, 6: _UNSIGNED})),
    5: Repeated(Message({1: _BYTES})), 6: _UNSIGNED,
    7: Repeated(Message({1: _UNSIGNED, 2: _BOUNDS, 7: _BOUNDS, 11: _UNSIGNED})), 10: Message({}),
})  # fmt: skip
_TAIL = Message({2: _FOOTER})


@dataclass(frozen=True)
class OrcColumn:
    """A column of a file."""

    name: str
    arrow: pa.DataType | None
    """Its type; ``None`` if it is of none that is read here."""
    kind: int
    """Number of the type in the format."""
    statistics: Statistics | None
    """Least and greatest value, nulls and rows of the whole file; ``None`` if it does not say."""
    nbytes: int | None
    """Compressed bytes in the file, if it says so."""


@dataclass(frozen=True)
class Stripe:
    """Some rows of a file, of all columns."""

    start: int
    nbytes: int
    """First byte, and how many there are."""
    rows: int


@dataclass(frozen=True)
class OrcTail:
    """What an ORC file says of itself."""

    path: str
    """The file, for messages."""
    columns: tuple[OrcColumn, ...]
    stripes: tuple[Stripe, ...]
    facts: frozenset[bytes]
    """Names of what its writer has noted."""
    is_encrypted: bool

    @property
    def rows(self) -> int:
        """Rows of all stripes."""
        return sum(stripe.rows for stripe in self.stripes)


def read_tail(path: str, data: bytes, size: int) -> OrcTail:
    """Read the decompressed tail of a file of ``size`` bytes; the path is for messages.

    Raises ``ScanError`` if it contradicts itself or the file.
    """
    try:
        return _tail(path, read(data, _TAIL).get(2, {}), size)
    except ProtobufError as problem:
        raise ScanError(f"{path}: no readable ORC file, truncated or corrupt: {problem}") from problem


def _tail(path: str, footer: Mapping[int, Any], size: int) -> OrcTail:
    types = footer.get(4, [])
    if not types or types[0].get(1, 0) != _Kind.STRUCT:
        raise ProtobufError("its rows are no structs")
    places, names = types[0].get(2, []), types[0].get(3, [])
    if len(places) != len(names) or not all(0 < place < len(types) for place in places):
        raise ProtobufError("its schema contradicts itself")
    rows = footer.get(6, 0)
    statistics = footer.get(7, [])
    columns = tuple(
        _column(name.decode("utf-8", "replace"), types[place], _at(statistics, place), rows)
        for place, name in zip(places, names, strict=True)
    )
    stripes = tuple(
        Stripe(each.get(1, 0), sum(each.get(n, 0) for n in (2, 3, 4)), each.get(5, 0)) for each in footer.get(3, [])
    )
    if sum(stripe.rows for stripe in stripes) != rows:
        raise ProtobufError(f"its stripes have {sum(stripe.rows for stripe in stripes)} rows, the file {rows}")
    if any(stripe.start + stripe.nbytes > size for stripe in stripes):
        raise ProtobufError(f"a stripe is said to end behind the {size} bytes of the file")
    facts = frozenset(entry.get(1, b"") for entry in footer.get(5, []))
    return OrcTail(path, columns, stripes, facts, 10 in footer)


def _at(statistics: Sequence[Mapping[int, Any]], place: int) -> Mapping[int, Any]:
    return statistics[place] if place < len(statistics) else {}


def _column(name: str, about: Mapping[int, Any], statistics: Mapping[int, Any], rows: int) -> OrcColumn:
    kind = about.get(1, 0)
    arrow = _ARROW.get(kind)
    precision, scale = about.get(5, 0), about.get(6, 0)
    if kind == _Kind.DECIMAL and 0 < precision <= _MOST_PRECISION and scale <= precision:
        arrow = pa.decimal128(precision, scale)
    return OrcColumn(name, arrow, kind, _statistics(arrow, statistics, rows), statistics.get(11))


def _statistics(arrow: pa.DataType | None, statistics: Mapping[int, Any], rows: int) -> Statistics | None:
    """Nulls, and bounds of whole numbers and dates."""
    values = statistics.get(1)
    if arrow is None or values is None or values > rows:
        return None
    bounds = statistics.get(7 if arrow == pa.date32() else 2, {})
    low, high = bounds.get(1), bounds.get(2)
    if low is None or high is None:
        return Statistics(None, None, rows - values, rows)
    if arrow == pa.date32():
        try:
            low, high = (_EPOCH + dt.timedelta(days=days) for days in (low, high))
        except OverflowError:
            return Statistics(None, None, rows - values, rows)
    return Statistics(low, high, rows - values, rows)
