"""Spark's hash functions, one value at a time, over the bytes of a cell."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Sequence
from decimal import Decimal, localcontext

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.testing import Cell

M32, M64 = 2**32 - 1, 2**64 - 1


def _left(value: int, places: int, width: int) -> int:
    bits = f"{value:0{width}b}"
    return int(bits[places:] + bits[:places], 2)


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


def murmur3(data: bytes, seed: int) -> int:
    """Murmur3 of 32 bits, but for the tail: each byte is sign-extended and mixed in as a word."""
    words = [data[i : i + 4] for i in range(0, len(data) - 3, 4)]
    blocks = [int.from_bytes(word, "little") for word in words]
    blocks += [int.from_bytes(bytes([byte]), "little", signed=True) & M32 for byte in data[4 * len(words) :]]
    h = seed
    for block in blocks:
        h ^= (_left((block * 0xCC9E2D51) & M32, 15, 32) * 0x1B873593) & M32
        h = (_left(h, 13, 32) * 5 + 0xE6546B64) & M32
    h ^= len(data)
    h = ((h ^ h >> 16) * 0x85EBCA6B) & M32
    h = ((h ^ h >> 13) * 0xC2B2AE35) & M32
    return h ^ h >> 16


P = (11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261)


def xxhash64(data: bytes, seed: int) -> int:
    """xxHash of 64 bits, as its specification has it."""

    def stirred(accumulator: int, lane: int) -> int:
        return (_left((accumulator + lane * P[1]) & M64, 31, 64) * P[0]) & M64

    rest = data
    if len(data) >= 32:
        lanes = [(seed + P[0] + P[1]) & M64, (seed + P[1]) & M64, seed, (seed - P[0]) & M64]
        while len(rest) >= 32:
            lanes = [stirred(a, w) for a, w in zip(lanes, struct.unpack("<4Q", rest[:32]), strict=True)]
            rest = rest[32:]
        h = sum(_left(a, n, 64) for a, n in zip(lanes, (1, 7, 12, 18), strict=True)) & M64
        for lane in lanes:
            h = ((h ^ stirred(0, lane)) * P[0] + P[3]) & M64
    else:
        h = (seed + P[4]) & M64
    h = (h + len(data)) & M64
    while len(rest) >= 8:
        h = (_left(h ^ stirred(0, int.from_bytes(rest[:8], "little")), 27, 64) * P[0] + P[3]) & M64
        rest = rest[8:]
    if len(rest) >= 4:
        h = (_left(h ^ (int.from_bytes(rest[:4], "little") * P[0]) & M64, 23, 64) * P[1] + P[2]) & M64
        rest = rest[4:]
    for byte in rest:
        h = (_left(h ^ (byte * P[4]) & M64, 11, 64) * P[0]) & M64
    h = ((h ^ h >> 33) * P[1]) & M64
    h = ((h ^ h >> 29) * P[2]) & M64
    return h ^ h >> 32


def hashed_bytes(value: Cell, dtype: pa.DataType) -> bytes:
    """The bytes that are hashed of a value: 4 or 8 of a number, little-endian."""
    match value:
        case str():
            return value.encode(errors="surrogateescape")
        case bytes():
            return value
        case Decimal():
            with localcontext(prec=dtype.precision + 1):
                unscaled = int(value.scaleb(dtype.scale))
            if dtype.precision <= 18:
                return unscaled.to_bytes(8, "little", signed=True)
            size = 1
            while not -(1 << (8 * size - 1)) <= unscaled < 1 << (8 * size - 1):
                size += 1
            return unscaled.to_bytes(size, "big", signed=True)
        case float():
            code = "<f" if pat.is_float32(dtype) else "<d"
            return struct.pack(code, math.nan if math.isnan(value) else value + 0.0)
        case dt.date():
            raise TypeError(f"the oracle keeps dates as numbers, not as {value!r}")
    wide = pat.is_int64(dtype) or pat.is_timestamp(dtype)
    return int(value).to_bytes(8 if wide else 4, "little", signed=True)


def chained(values: Sequence[Cell], types: Sequence[pa.DataType], *, wide: bool) -> int:
    """Hash several values: the hash of those before is the seed of the next; nulls do not count."""
    h = 42
    for value, dtype in zip(values, types, strict=True):
        if value is not None:
            data = hashed_bytes(value, dtype)
            h = xxhash64(data, h) if wide else murmur3(data, h)
    return _signed(h, 64 if wide else 32)
