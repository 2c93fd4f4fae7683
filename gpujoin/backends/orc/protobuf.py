"""Reads Protocol Buffers, in which ORC writes what it knows of a file.

A message is a run of fields. Each begins with its number and its wire type, so that a reader takes the fields it knows
and skips the others. The format is https://protobuf.dev/programming-guides/encoding. For example ``08 07 12 02 68 69``
is a message whose field 1 is the integer 7, and whose field 2 is the two bytes ``hi``:

- ``08``: field 1, wire type 0, an integer in groups of seven bits; ``07``: 7.
- ``12``: field 2, wire type 2, bytes; ``02``: how many; ``68 69``: the bytes.

Reading any bytes ends with values or with :class:`ProtobufError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

_VARINT, _I64, _BYTES, _I32 = 0, 1, 2, 5
_FIXED = {_I64: 8, _I32: 4}
"""Bytes of values of a fixed length."""
_MOST_BITS = 64


class ProtobufError(ValueError):
    """The bytes are no message, or not the one that is read."""


class Scalar(Enum):
    """A value that is no message and no list."""

    UNSIGNED = "unsigned"
    SIGNED = "signed"
    """In zigzag form: 0, -1, 1, -2 are 0, 1, 2, 3."""
    BYTES = "bytes"


@dataclass(frozen=True)
class Message:
    """The fields of a message to read, by number; other fields are skipped."""

    fields: Mapping[int, Kind]


@dataclass(frozen=True)
class Repeated:
    """A field that may be there several times; unsigned integers may be packed into one."""

    element: Scalar | Message


Kind = Scalar | Message | Repeated


def read(data: bytes, message: Message) -> dict[int, Any]:
    """Read a message: ``int``, ``bytes``, ``dict``, or a list of these, by the numbers of the fields that are present.

    Raises ``ProtobufError`` if the bytes end early, or are no such message.
    """
    values: dict[int, Any] = {}
    for number, wire, value in _fields(data):
        kind = message.fields.get(number)
        match kind:
            case None:
                continue
            case Repeated(element=Scalar.UNSIGNED) if wire == _BYTES:
                values.setdefault(number, []).extend(_packed(value))
            case Repeated(element=element):
                values.setdefault(number, []).append(_value(element, number, wire, value))
            case _:
                values[number] = _value(kind, number, wire, value)
    return values


def _value(kind: Scalar | Message, number: int, wire: int, value: Any) -> Any:
    if isinstance(kind, Message) and wire == _BYTES:
        return read(value, kind)
    if kind is Scalar.BYTES and wire == _BYTES:
        return value
    if kind is Scalar.UNSIGNED and wire == _VARINT:
        return value
    if kind is Scalar.SIGNED and wire == _VARINT:
        return value >> 1 ^ -(value & 1)
    raise ProtobufError(f"field {number} has wire type {wire}")


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of each field."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            length, at = _varint(data, at)
        elif wire in _FIXED:
            length = _FIXED[wire]
        else:
            raise ProtobufError(f"field {number} has the unknown wire type {wire}")
        if length > len(data) - at:
            raise ProtobufError(f"field {number} is said to have {length} bytes of {len(data) - at}")
        yield number, wire, data[at : at + length]
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
