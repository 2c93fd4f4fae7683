"""Nested values as bytes, one value at a time."""

from __future__ import annotations

import math
import struct
from decimal import Context, Decimal

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.types import is_bytes, is_text
from gpujoin.testing import Cell

_EXACT = Context(prec=60)


def written(value: Cell, dtype: pa.DataType, *, compared: bool) -> bytes:
    """The bytes of a value; of a null those of an empty one."""
    if pat.is_null(dtype):
        return b""
    if pat.is_struct(dtype):
        values = [None] * dtype.num_fields if value is None else value
        return b"".join(part(v, field.type, compared=compared) for v, field in zip(values, dtype, strict=True))
    if pat.is_list(dtype) or pat.is_map(dtype):
        return b"".join(part(v, _element(dtype), compared=compared) for v in value or ()) + b"\0"
    if is_text(dtype) or is_bytes(dtype):
        text = value or b""
        data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        return data.replace(b"\0", b"\0\xff") + b"\0"
    size = _size(dtype)
    return bytes(size) if value is None else _number(value, dtype, size, compared=compared)


def part(value: Cell, dtype: pa.DataType, *, compared: bool) -> bytes:
    """A part of a value, after a mark that tells whether it is null."""
    return (b"\1" if value is None else b"\2") + written(value, dtype, compared=compared)


def read(data: bytes, dtype: pa.DataType, start: int = 0) -> tuple[Cell, int]:
    """The value whose bytes begin at a place, and where they end."""
    if pat.is_null(dtype):
        return None, start
    if pat.is_struct(dtype):
        values = []
        for field in dtype:
            value, start = _read_part(data, field.type, start)
            values.append(value)
        return tuple(values), start
    if pat.is_list(dtype) or pat.is_map(dtype):
        values = []
        while data[start]:
            value, start = _read_part(data, _element(dtype), start)
            values.append(value)
        return tuple(values), start + 1
    if is_text(dtype) or is_bytes(dtype):
        text = bytearray()
        while data[start] or data[start + 1 : start + 2] == b"\xff":
            text.append(data[start])
            start += 1 if data[start] else 2
        return (text.decode(errors="surrogateescape") if is_text(dtype) else bytes(text)), start + 1
    size = _size(dtype)
    number = int.from_bytes(data[start : start + size], "big") - (1 << (8 * size - 1))
    if pat.is_floating(dtype):
        bits = number if number >= 0 else number ^ ((1 << (8 * size - 1)) - 1)
        (number,) = struct.unpack(">d" if size == 8 else ">f", bits.to_bytes(size, "big", signed=True))
    elif pat.is_boolean(dtype):
        number = bool(number)
    elif pat.is_decimal(dtype):
        return _EXACT.scaleb(Decimal(number), -dtype.scale), start + size
    return number, start + size


def _read_part(data: bytes, dtype: pa.DataType, start: int) -> tuple[Cell, int]:
    value, end = read(data, dtype, start + 1)
    return (None if data[start] == 1 else value), end


def _element(dtype: pa.DataType) -> pa.DataType:
    return pa.struct([dtype.key_field, dtype.item_field]) if pat.is_map(dtype) else dtype.value_type


def _size(dtype: pa.DataType) -> int:
    if pat.is_decimal(dtype):
        return 8 if dtype.precision <= 18 else 16
    return max(1, int(dtype.bit_width) // 8)


def _number(value: Cell, dtype: pa.DataType, size: int, *, compared: bool) -> bytes:
    if pat.is_floating(dtype):
        if compared:
            value = math.nan if math.isnan(value) else value + 0.0
        bits = int.from_bytes(struct.pack(">d" if size == 8 else ">f", value), "big", signed=True)
        value = bits if bits >= 0 else bits ^ ((1 << (8 * size - 1)) - 1)
    elif pat.is_decimal(dtype):
        value = int(_EXACT.scaleb(value, dtype.scale))
    return (int(value) + (1 << (8 * size - 1))).to_bytes(size, "big")
