"""The tail of an ORC file: its columns, its stripes, and their statistics.

Numbers of fields and kinds of types are those of
https://github.com/apache/orc-format/blob/main/src/main/proto/orc/proto/orc_proto.proto. PyArrow decompresses the tail.

The tail is written in Protocol Buffers. A message is a run of fields. Each begins with its number and its wire type, so
that a reader takes the fields it knows and skips the others. The format is
https://protobuf.dev/programming-guides/encoding. For example ``08 07 12 02 68 69`` is a message whose field 1 is the
integer 7, and whose field 2 is the two bytes ``hi``:

- ``08``: field 1, wire type 0, an integer in groups of seven bits; ``07``: 7.
- ``12``: field 2, wire type 2, bytes; ``02``: how many; ``68 69``: the bytes.

Reading any bytes ends with values or with :class:`ProtobufError`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

from gpujoin.backends.parquet.pruning import Statistics
from gpujoin.errors import ScanError

_VARINT, _I64, _BYTES, _I32 = 0, 1, 2, 5
_FIXED = {_I64: 8, _I32: 4}
"""Bytes of values of a fixed length, which are not read."""
_MOST_BITS = 64


class ProtobufError(ValueError):
    """The bytes are no message, or not the one that is read."""


class Message:
    """The fields of a message, by number; a field that is read must have the wire type it is read as."""

    def __init__(self, data: bytes) -> None:
        self._values: dict[int, list[int | bytes | None]] = {}
        for number, value in _fields(data):
            self._values.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._values

    def integer(self, number: int, default: int = 0) -> int:
        """Read an unsigned integer; the last one counts."""
        value = self._single(number)
        return default if value is None else value

    def signed(self, number: int) -> int | None:
        """Read an integer in zigzag form, which stores 0, -1, 1, -2 as 0, 1, 2, 3; ``None`` if it is absent."""
        value = self._single(number)
        return None if value is None else value >> 1 ^ -(value & 1)

    def _single(self, number: int) -> int | None:
        """Read the last value of a field whose values are all integers, not packed into bytes."""
        integers = [value for value in self._values.get(number, ()) if isinstance(value, int)]
        if len(integers) < len(self._values.get(number, ())):
            raise ProtobufError(f"field {number} is no integer")
        return integers[-1] if integers else None

    def integers(self, number: int) -> list[int]:
        """Read unsigned integers; several may be packed into bytes."""
        integers: list[int] = []
        for value in self._values.get(number, ()):
            match value:
                case int():
                    integers.append(value)
                case bytes():
                    integers += _packed(value)
                case _:
                    raise ProtobufError(f"field {number} is no integer")
        return integers

    def texts(self, number: int) -> list[bytes]:
        """Read bytes that may be there several times."""
        values = self._values.get(number, [])
        texts = [value for value in values if isinstance(value, bytes)]
        if len(texts) < len(values):
            raise ProtobufError(f"field {number} has no bytes")
        return texts

    def messages(self, number: int) -> list[Message]:
        """Read messages that may be there several times."""
        return [Message(text) for text in self.texts(number)]

    def message(self, number: int) -> Message:
        """Read a message, one without fields if it is not there; the last one counts."""
        return Message((self.texts(number) or [b""])[-1])


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes | None]]:
    """Yield the number and the value of each field; values of a fixed length are ``None``."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == _BYTES:
            length, at = _varint(data, at)
        elif wire in _FIXED:
            length = _FIXED[wire]
        else:
            raise ProtobufError(f"field {number} has the unknown wire type {wire}")
        if length > len(data) - at:
            raise ProtobufError(f"field {number} is said to have {length} bytes of {len(data) - at}")
        yield number, data[at : at + length] if wire == _BYTES else None
        at += length


def _packed(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _MOST_BITS:
        if at >= len(data):
            raise ProtobufError("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:  # the highest bit says that more follow
            return value & (1 << _MOST_BITS) - 1, at
        shift += 7
    raise ProtobufError("a number has more than 64 bits")


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
