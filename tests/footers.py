"""Rewrites the footers of Parquet files, for tests of what a file claims about itself.

A footer is read into :class:`Fields`, whatever its fields mean, changed, and written back behind the same pages::

    with rewriting(path) as footer:
        set_facts(footer, {b"ARROW:schema": claim})
        footer[FileField.GROUPS][0][RowGroupField.SORTING] = [sorted_by(1)]

Numbers of fields are those of https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift, the
form is Thrift's compact protocol, as ``gpujoin.backends.parquet.thrift`` says.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import pyarrow as pa

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_MAGIC = b"PAR1"


class FileField(IntEnum):
    """Fields of ``FileMetaData``."""

    VERSION, SCHEMA, ROWS, GROUPS, FACTS, CREATED_BY, ORDERS = range(1, 8)


class ElementField(IntEnum):
    """Fields of ``SchemaElement``."""

    PHYSICAL, LENGTH, REPETITION, NAME, CHILDREN, CONVERTED, SCALE, PRECISION, FIELD_ID, LOGICAL = range(1, 11)


class RowGroupField(IntEnum):
    """Fields of ``RowGroup``."""

    CHUNKS, BYTES, ROWS, SORTING, OFFSET = range(1, 6)


class ChunkField(IntEnum):
    """Fields of ``ColumnChunk``."""

    PATH, OFFSET, METADATA = range(1, 4)


class MetadataField(IntEnum):
    """Fields of ``ColumnMetaData``."""

    DATA_OFFSET = 9
    STATISTICS = 12


_HEADER_V2, _HEADER_NULLS = 8, 2
"""Fields of ``PageHeader`` and of ``DataPageHeaderV2``."""


class StatisticsField(IntEnum):
    """Fields of ``Statistics``."""

    OLD_MAX, OLD_MIN, NULLS, DISTINCT, MAX, MIN, MAX_IS_EXACT, MIN_IS_EXACT = range(1, 9)


@dataclass(frozen=True)
class Whole:
    """An integer of 8, 16, 32 or 64 bits."""

    value: int
    wire: int = _I32


def long(value: int) -> Whole:
    """Make a 64-bit integer, as counts are."""
    return Whole(value, _I64)


class Fields(dict[int, Any]):
    """Fields of a struct by their numbers.

    Values are ``bool``, :class:`Whole`, ``float``, ``bytes``, :class:`Fields`, or a list of these of one kind.
    """


class _Empty(list[Any]):
    """A list without elements, which says all the same of what kind they are."""

    def __init__(self, wire: int) -> None:
        self.wire = wire


@contextmanager
def rewriting(path: str | Path) -> Iterator[Fields]:
    """Give the footer of a file, and write it back when it has been changed."""
    data = Path(path).read_bytes()
    length = struct.unpack("<I", data[-8:-4])[0]
    footer = _Reader(data[-8 - length : -8]).fields()
    yield footer
    written = _fields(footer)
    Path(path).write_bytes(data[: -8 - length] + written + struct.pack("<I", len(written)) + _MAGIC)


def facts(footer: Fields) -> dict[bytes, bytes]:
    """Read the key-value metadata."""
    return {fact[1]: fact.get(2, b"") for fact in footer.get(FileField.FACTS, [])}


def set_facts(footer: Fields, values: Mapping[bytes, bytes | None]) -> None:
    """Set, or with ``None`` remove, keys of the key-value metadata."""
    merged = {**facts(footer), **values}
    pairs = [Fields({1: key, 2: value}) for key, value in merged.items() if value is not None]
    footer.pop(FileField.FACTS, None)
    if pairs:
        footer[FileField.FACTS] = pairs


def claim_arrow_schema(path: str | Path, schema: pa.Schema | None) -> None:
    """Make a file say that it was written from an Arrow schema, whatever its Parquet schema is; ``None``: from none."""
    claim = None if schema is None else base64.b64encode(schema.serialize().to_pybytes())
    with rewriting(path) as footer:
        set_facts(footer, {b"ARROW:schema": claim})


def sorted_by(leaf: int, *, descending: bool = False, nulls_first: bool = False) -> Fields:
    """Make a ``SortingColumn``."""
    return Fields({1: Whole(leaf), 2: descending, 3: nulls_first})


def claim_sorting(path: str | Path, columns: Sequence[Fields]) -> None:
    """Make each row group of a file say that its rows are in an order."""
    with rewriting(path) as footer:
        for group in footer[FileField.GROUPS]:
            group[RowGroupField.SORTING] = list(columns)


def statistics(footer: Fields, leaf: int) -> list[Fields]:
    """Give the statistics of a leaf in each row group, empty ones where there are none, to be changed in place."""
    chunks = [group[RowGroupField.CHUNKS][leaf] for group in footer[FileField.GROUPS]]
    return [chunk[ChunkField.METADATA].setdefault(MetadataField.STATISTICS, Fields()) for chunk in chunks]


def claim_no_nulls_in_pages(path: str | Path, leaf: int) -> None:
    """Make the header of the first page of a leaf, of the second version, say that none of its values is null."""
    with rewriting(path) as footer:
        chunks = [group[RowGroupField.CHUNKS][leaf][ChunkField.METADATA] for group in footer[FileField.GROUPS]]
    data = bytearray(Path(path).read_bytes())
    for chunk in chunks:
        begin = chunk[MetadataField.DATA_OFFSET].value
        reader = _Reader(bytes(data[begin:]))
        header = reader.fields()
        header[_HEADER_V2][_HEADER_NULLS] = Whole(0)
        written = _fields(header)
        assert len(written) == reader.length, "the number of nulls takes one byte"
        data[begin : begin + reader.length] = written
    Path(path).write_bytes(data)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def length(self) -> int:
        """How many bytes were read."""
        return self._at

    def fields(self) -> Fields:
        fields, number = Fields(), 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            fields[number] = self._value(head & 15)
        return fields

    def _value(self, wire: int) -> Any:
        if wire in (_TRUE, _FALSE):
            return wire == _TRUE
        return self._element(wire)

    def _element(self, wire: int) -> Any:
        match wire:
            case 1 | 2:  # in a list a Boolean is a byte
                return self._byte() == _TRUE
            case 3:
                return Whole(struct.unpack("b", self._bytes(1))[0], wire)
            case 4 | 5 | 6:
                return Whole(self._zigzag(), wire)
            case 7:
                return struct.unpack("<d", self._bytes(8))[0]
            case 8:
                return self._bytes(self._unsigned())
            case 9 | 10:
                head = self._byte()
                size = head >> 4 if head >> 4 < 15 else self._unsigned()
                return [self._element(head & 15) for _ in range(size)] or _Empty(head & 15)
            case 12:
                return self.fields()
        raise ValueError(f"a footer has no wire type {wire}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _zigzag(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)


def _fields(fields: Fields) -> bytes:
    out, last = bytearray(), 0
    for number in sorted(fields):
        wire = _wire(fields[number])
        step = number - last
        out += bytes([step << 4 | wire]) if step < 16 else bytes([wire]) + _zigzag(number)
        if not isinstance(fields[number], bool):
            out += _element(fields[number])
        last = number
    return bytes(out) + b"\0"


def _wire(value: Any) -> int:
    match value:
        case bool():
            return _TRUE if value else _FALSE
        case Whole():
            return value.wire
        case float():
            return _DOUBLE
        case bytes():
            return _BINARY
        case Fields():
            return _STRUCT
        case list():
            return _LIST
    raise TypeError(f"a footer has no {type(value).__name__}")


def _element(value: Any) -> bytes:
    match value:
        case bool():
            return bytes([_TRUE if value else _FALSE])
        case Whole(number, 3):
            return struct.pack("b", number)
        case Whole(number):
            return _zigzag(number)
        case float():
            return struct.pack("<d", value)
        case bytes():
            return _unsigned(len(value)) + value
        case list():
            wire = _wire(value[0]) if value else getattr(value, "wire", _STRUCT)
            head = bytes([len(value) << 4 | wire]) if len(value) < 15 else bytes([0xF0 | wire]) + _unsigned(len(value))
            return head + b"".join(map(_element, value))
    return _fields(value)


def _unsigned(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _zigzag(value: int) -> bytes:
    return _unsigned((value << 1 ^ value >> 63) & ((1 << 64) - 1))
