"""Reads Thrift's compact protocol, in which Parquet writes its footers.

A struct is a run of fields up to a zero byte. Each field says its number and its wire type, so that a reader takes the
fields it knows and skips the others. The format is
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md. For example ``15 0e 18 02 68 69 00``
is a struct whose field 1 is the integer 7 and whose field 2 is the two bytes ``hi``:

- ``15``: the number is 1 greater than the last (0), the wire type 5, a 32-bit integer; ``0e``: 7, in zigzag form.
- ``18``: the number is 1 greater, the wire type 8, bytes; ``02``: how many; ``68 69``: the bytes.
- ``00``: the end.

Reading any bytes ends with values or with :class:`ThriftError`: every length is checked, and structs may be nested no
deeper than :data:`MOST_DEEP`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

MOST_DEEP = 32
"""Most levels of nested structs; Parquet's own have six."""

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)
_INTEGERS = (_I16, _I32, _I64)
_LONG_LIST = 15
"""Value in place of a list's length which says that the length follows."""
_DOUBLE_BYTES = 8
_UUID_BYTES = 16
_MOST_BITS = 70
"""Most bits of an integer: ten bytes of seven bits."""


class ThriftError(ValueError):
    """The bytes are not valid in the compact protocol, or in the struct that is read."""


class Scalar(Enum):
    """A value that is no struct and no list."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    BYTES = "bytes"


@dataclass(frozen=True)
class Struct:
    """The fields of a struct to read, by number; other fields are skipped."""

    fields: Mapping[int, Kind]


@dataclass(frozen=True)
class ListOf:
    """A list of elements of the same kind."""

    element: Scalar | Struct


@dataclass(frozen=True)
class Positions:
    """A list of structs that are read later; only their offsets are returned."""


@dataclass(frozen=True)
class Spanned:
    """A value that is read together with the offsets of its first byte and of the byte after its last."""

    value: Scalar | Struct | ListOf


EMPTY_LIST = bytes([_STRUCT])
"""A list of structs without elements."""

Kind = Scalar | Struct | ListOf | Positions | Spanned


def read(data: bytes, at: int, struct: Struct) -> dict[int, Any]:
    """Read a struct that starts at the offset ``at``; other bytes may follow.

    Gives the values of the fields that are present, by number: ``bool``, ``int``, ``bytes``, ``dict``, or a list of
    these; a list of :class:`Positions` gives integers, a value that is :class:`Spanned` a tuple of it and both offsets.
    Raises ``ThriftError`` if the bytes end early, or are no such struct.
    """
    try:
        return _struct(data, at, struct.fields, 0)[0]
    except IndexError:
        raise ThriftError("it ends within a value") from None


def read_list(data: bytes, at: int, kind: ListOf | Positions) -> list[Any]:
    """Read a list that starts at the offset ``at``, as :func:`read` does."""
    try:
        return _list(data, at, kind, 0)[0]
    except IndexError:
        raise ThriftError("it ends within a value") from None


def _struct(data: bytes, at: int, fields: Mapping[int, Kind], depth: int) -> tuple[dict[int, Any], int]:
    values: dict[int, Any] = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        if not head:
            return values, at
        wire = head & 15
        if head > 15:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        kind = fields.get(number)
        if kind is None:
            at = _skip(data, at, wire, depth)
        elif wire in _INTEGERS and kind is Scalar.INTEGER:
            byte = data[at]
            at += 1
            if byte < 128:
                values[number] = byte >> 1 ^ -(byte & 1)
            else:
                values[number], at = _integer(data, at - 1)
        elif wire == _BINARY and kind is Scalar.BYTES:
            values[number], at = _bytes(data, at)
        elif wire == _STRUCT and isinstance(kind, Struct):
            if depth >= MOST_DEEP:
                raise ThriftError(f"its structs are more than {MOST_DEEP} deep")
            values[number], at = _struct(data, at, kind.fields, depth + 1)
        elif wire == _LIST and isinstance(kind, ListOf | Positions):
            values[number], at = _list(data, at, kind, depth)
        elif isinstance(kind, Spanned):
            begin = at
            value, at = _spanned(data, at, wire, kind.value, depth)
            values[number] = value, begin, at
        elif wire in (_TRUE, _FALSE) and kind is Scalar.BOOLEAN:
            values[number] = wire == _TRUE
        elif wire == _BYTE and kind is Scalar.INTEGER:
            values[number] = data[at] - 256 if data[at] > 127 else data[at]
            at += 1
        else:
            raise ThriftError(f"field {number} has wire type {wire}")


def _spanned(data: bytes, at: int, wire: int, kind: Scalar | Struct | ListOf, depth: int) -> tuple[Any, int]:
    if wire == _LIST and isinstance(kind, ListOf):
        return _list(data, at, kind, depth)
    if wire == _STRUCT and isinstance(kind, Struct) and depth < MOST_DEEP:
        return _struct(data, at, kind.fields, depth + 1)
    if wire in _INTEGERS and kind is Scalar.INTEGER:
        return _integer(data, at)
    raise ThriftError(f"a value has wire type {wire}")


def _list(data: bytes, at: int, kind: ListOf | Positions, depth: int) -> tuple[list[Any], int]:
    wire, size, at = _list_head(data, at)
    values: list[Any] = []
    if isinstance(kind, Positions):
        if wire != _STRUCT and size:
            raise ThriftError(f"a list of structs has elements of wire type {wire}")
        for _ in range(size):
            values.append(at)
            at = _skip_struct(data, at, depth + 1)
        return values, at
    element = kind.element
    if isinstance(element, Struct) and (wire == _STRUCT or not size):
        for _ in range(size):
            value, at = _struct(data, at, element.fields, depth + 1)
            values.append(value)
    elif element is Scalar.BYTES and (wire == _BINARY or not size):
        for _ in range(size):
            text, at = _bytes(data, at)
            values.append(text)
    elif element is Scalar.INTEGER and (wire in _INTEGERS or not size):
        for _ in range(size):
            whole, at = _integer(data, at)
            values.append(whole)
    else:
        raise ThriftError(f"a list has elements of wire type {wire}")
    return values, at


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """Wire type and number of the elements, and the offset of the first; each takes at least one byte."""
    head = data[at]
    size, at = (head >> 4, at + 1) if head >> 4 != _LONG_LIST else _unsigned(data, at + 1)
    if size > len(data) - at:
        raise ThriftError(f"a list of {size} elements is said to be in {len(data) - at} bytes")
    return head & 15, size, at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Read an integer of seven bits a byte, lowest first; the top bit says that another byte follows."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift >= _MOST_BITS:
            raise ThriftError("an integer has more than 64 bits")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Read a signed integer in zigzag form: 0, -1, 1, -2, … are written as 0, 1, 2, 3 and so on."""
    value, at = _unsigned(data, at)
    return value >> 1 ^ -(value & 1), at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _unsigned(data, at)
    end = at + size
    if end > len(data):
        raise ThriftError(f"{size} bytes are said to be in {len(data) - at}")
    return data[at:end], end


def _skip_struct(data: bytes, at: int, depth: int) -> int:
    """Find the end of a struct. Most of the time for a file of many columns goes here."""
    if depth > MOST_DEEP:
        raise ThriftError(f"its structs are more than {MOST_DEEP} deep")
    while True:
        head = data[at]
        at += 1
        if not head:
            return at
        if head < 16:
            while data[at] > 127:
                at += 1
            at += 1
        wire = head & 15
        if 4 <= wire <= 6:
            while data[at] > 127:
                at += 1
            at += 1
        elif wire == _BINARY:
            size = data[at]
            if size < 128:
                at += 1 + size
            else:
                size, at = _unsigned(data, at)
                at += size
        elif wire == _STRUCT:
            at = _skip_struct(data, at, depth + 1)
        elif wire > _FALSE:
            at = _skip(data, at, wire, depth)


def _skip(data: bytes, at: int, wire: int, depth: int) -> int:
    """Find the end of a field's value. A Boolean is part of the wire type and has no bytes of its own."""
    if wire in (_TRUE, _FALSE):
        return at
    if wire in (_LIST, _SET):
        wire, size, at = _list_head(data, at)
        if wire == _BYTE or wire in (_TRUE, _FALSE):
            return at + size
        for _ in range(size):
            at = _skip_one(data, at, wire, depth)
        return at
    if wire == _MAP:
        size, at = _unsigned(data, at)
        if not size:
            return at
        wires = data[at]
        at += 1
        if size > len(data) - at:
            raise ThriftError(f"a map of {size} entries is said to be in {len(data) - at} bytes")
        for _ in range(size):
            at = _skip_element(data, at, wires >> 4, depth)
            at = _skip_element(data, at, wires & 15, depth)
        return at
    return _skip_one(data, at, wire, depth)


def _skip_element(data: bytes, at: int, wire: int, depth: int) -> int:
    return at + 1 if wire in (_TRUE, _FALSE) else _skip_one(data, at, wire, depth)


def _skip_one(data: bytes, at: int, wire: int, depth: int) -> int:
    if wire in _INTEGERS:
        while data[at] > 127:
            at += 1
        return at + 1
    if wire == _BINARY:
        size, at = _unsigned(data, at)
        return at + size
    if wire == _STRUCT:
        return _skip_struct(data, at, depth + 1)
    if wire in (_LIST, _SET, _MAP):
        if depth >= MOST_DEEP:
            raise ThriftError(f"its lists are more than {MOST_DEEP} deep")
        return _skip(data, at, wire, depth + 1)
    if wire == _BYTE:
        return at + 1
    if wire == _DOUBLE:
        return at + _DOUBLE_BYTES
    if wire == _UUID:
        return at + _UUID_BYTES
    raise ThriftError(f"there is no wire type {wire}")
