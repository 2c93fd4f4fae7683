"""Reads Protocol Buffers, the format of ORC's metadata.

A message is a run of fields. Each begins with its number and its wire type, so that a reader takes the fields it knows
and skips the others. The format is https://protobuf.dev/programming-guides/encoding. For example ``08 07 12 02 68 69``
is a message whose field 1 is the integer 7, and whose field 2 is the two bytes ``hi``:

- ``08``: field 1, wire type 0, an integer in groups of seven bits; ``07``: 7.
- ``12``: field 2, wire type 2, bytes; ``02``: how many; ``68 69``: the bytes.

Reading any bytes ends with values or with :class:`ProtobufError`.
"""

from __future__ import annotations

from collections.abc import Iterator

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
