"""The tail of an ORC file: its columns, its stripes, and their statistics.

Numbers of fields and kinds of types are those of
https://github.com/apache/orc-format/blob/main/src/main/proto/orc/proto/orc_proto.proto. PyArrow decompresses the tail.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

from gpujoin.backends.orc.protobuf import Message, ProtobufError
from gpujoin.backends.parquet.pruning import Statistics
from gpujoin.errors import ScanError

_MOST_PRECISION = 38
_EPOCH = dt.date(1970, 1, 1)


class _Kind(IntEnum):
    """``Type.Kind`` of the format, without the kinds that are not read here."""

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


_ARROW: Mapping[int, pa.DataType] = {
    _Kind.BOOLEAN: pa.bool_(), _Kind.BYTE: pa.int8(), _Kind.SHORT: pa.int16(), _Kind.INT: pa.int32(),
    _Kind.LONG: pa.int64(), _Kind.FLOAT: pa.float32(), _Kind.DOUBLE: pa.float64(), _Kind.STRING: pa.string(),
    _Kind.BINARY: pa.binary(), _Kind.DATE: pa.date32(),
}  # fmt: skip


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
        return _tail(path, Message(data).message(2), size)
    except ProtobufError as problem:
        raise ScanError(f"{path}: no readable ORC file, truncated or corrupt: {problem}") from problem


def _tail(path: str, footer: Message, size: int) -> OrcTail:
    types = footer.messages(4)
    if not types or types[0].integer(1) != _Kind.STRUCT:
        raise ProtobufError("its rows are no structs")
    places, names = types[0].integers(2), types[0].texts(3)
    if len(places) != len(names) or not all(0 < place < len(types) for place in places):
        raise ProtobufError("its schema contradicts itself")
    rows, statistics = footer.integer(6), footer.messages(7)
    columns = tuple(
        _column(
            name.decode("utf-8", "replace"), types[place],
            statistics[place] if place < len(statistics) else Message(b""), rows,
        )
        for place, name in zip(places, names, strict=True)
    )  # fmt: skip
    stripes = tuple(
        Stripe(each.integer(1), sum(map(each.integer, (2, 3, 4))), each.integer(5)) for each in footer.messages(3)
    )
    if sum(stripe.rows for stripe in stripes) != rows:
        raise ProtobufError(f"its stripes have {sum(stripe.rows for stripe in stripes)} rows, the file {rows}")
    if any(stripe.start + stripe.nbytes > size for stripe in stripes):
        raise ProtobufError(f"a stripe is said to end behind the {size} bytes of the file")
    facts = frozenset(name for entry in footer.messages(5) for name in entry.texts(1)[-1:])
    return OrcTail(path, columns, stripes, facts, 10 in footer)


def _column(name: str, about: Message, statistics: Message, rows: int) -> OrcColumn:
    kind = about.integer(1)
    arrow = _ARROW.get(kind)
    precision, scale = about.integer(5), about.integer(6)
    if kind == _Kind.DECIMAL and 0 < precision <= _MOST_PRECISION and scale <= precision:
        arrow = pa.decimal128(precision, scale)
    nbytes = statistics.integer(11) if 11 in statistics else None
    return OrcColumn(name, arrow, kind, _statistics(arrow, statistics, rows), nbytes)


def _statistics(arrow: pa.DataType | None, statistics: Message, rows: int) -> Statistics | None:
    """Nulls, and bounds of whole numbers and dates."""
    values = statistics.integer(1, rows + 1)
    if arrow is None or values > rows:
        return None
    bounds = statistics.message(7 if arrow == pa.date32() else 2)
    low, high = bounds.signed(1), bounds.signed(2)
    if low is None or high is None:
        return Statistics(None, None, rows - values, rows)
    if arrow != pa.date32():
        return Statistics(low, high, rows - values, rows)
    try:
        days = (_EPOCH + dt.timedelta(days=low), _EPOCH + dt.timedelta(days=high))
    except OverflowError:
        return Statistics(None, None, rows - values, rows)
    return Statistics(*days, rows - values, rows)
