"""Hashes, checksums and hexadecimal digits, of the bytes that Spark keeps values in."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.implementation import Run, rows_of
from gpujoin.functions.signatures import INT, LONG, TEXT, Parameter, takes, to, type_of
from gpujoin.functions.spec import FunctionSpec, Nulls
from gpujoin.functions.vector import Array, Vector, bytes_layout, from_arrow, per_distinct, to_arrow
from gpujoin.model.expressions import Call, EvalMode, Function
from gpujoin.model.types import LONG_DIGITS, is_bytes, is_float, is_text, is_whole, logical, wide_offsets


def _is_hashed(dtype: pa.DataType) -> bool:
    """Whether the values of a type are hashed here as in Spark."""
    if pat.is_timestamp(dtype):
        return bool(dtype.unit == "us")
    fixed = is_whole(dtype) or is_float(dtype) or pat.is_boolean(dtype) or pat.is_date(dtype)
    return bool(fixed or pat.is_decimal128(dtype) or is_text(dtype) or is_bytes(dtype))


def _to_hex(source: pa.DataType, mode: EvalMode) -> pa.DataType | None:
    if is_text(source) or is_bytes(source):
        return source
    return LONG.convert(source, mode) or TEXT.convert(source, mode)


_DIGITS = Parameter(lambda t: pat.is_int64(t) or is_text(t) or is_bytes(t), _to_hex)
_HASHED = Parameter(_is_hashed, lambda source, _mode: source if _is_hashed(logical(source)) else None)
BYTES_OF_TEXT = Parameter(is_bytes, lambda s, mode: s if is_bytes(s) else to(pa.binary(), is_text)(s, mode))
"""Bytes, or text in place of its bytes."""


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


_SEED = 42
_FEW_ROWS = 16
"""So few rows are hashed faster by Python's integers than by arrays."""
_M32, _M64 = (1 << 32) - 1, (1 << 64) - 1

Hashes: TypeAlias = npt.NDArray[Any]
"""Hashes so far, which are the seeds of the next column: uint32 or uint64."""
Bytes: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]
"""Where each row begins in the data, with the end of the last row, and the data."""


def _words(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], width: int) -> Hashes:
    """Read little-endian integers at positions."""
    kind = np.dtype(f"u{width}")
    words: Hashes = data[positions].astype(kind)
    for k in range(1, width):
        words |= np.left_shift(data[positions + k].astype(kind), kind.type(8 * k))
    return words


def _rotated(values: Any, bits: int, width: int) -> Any:
    """Rotate unsigned integers to the left: arrays, or Python integers of so many bits."""
    if isinstance(values, int):
        return (values << bits | values >> (width - bits)) & ((1 << width) - 1)
    kind = values.dtype.type
    return (values << kind(bits)) | (values >> kind(width - bits))


class _Murmur3:
    """Spark's variant of Murmur3 of 32 bits: the bytes after the last whole word are mixed in one by one, signed."""

    kind = np.uint32
    _C1, _C2 = 0xCC9E2D51, 0x1B873593

    def _mixed(self, h: Any, k: Any) -> Any:
        if isinstance(h, int):
            k = _rotated(k * self._C1 & _M32, 15, 32) * self._C2 & _M32
            return (_rotated(h ^ k, 13, 32) * 5 + 0xE6546B64) & _M32
        k = _rotated(k * np.uint32(self._C1), 15, 32) * np.uint32(self._C2)
        return _rotated(h ^ k, 13, 32) * np.uint32(5) + np.uint32(0xE6546B64)

    def _finished(self, h: Hashes, length: Any) -> Hashes:
        h = h ^ np.asarray(length).astype(np.uint32)
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return np.asarray(h ^ (h >> np.uint32(16)))

    def ints(self, values: Array, seeds: Hashes) -> Hashes:
        """Hash 32-bit integers."""
        return self._finished(self._mixed(seeds, values.astype(np.int32).view(np.uint32)), 4)

    def longs(self, values: Array, seeds: Hashes) -> Hashes:
        """Hash 64-bit integers."""
        bits = values.astype(np.int64).view(np.uint64)
        low, high = bits.astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)
        return self._finished(self._mixed(self._mixed(seeds, low), high), 8)

    def texts(self, texts: Bytes, seeds: Hashes) -> Hashes:
        """Hash byte strings."""
        offsets, data = texts
        starts, sizes = offsets[:-1], np.diff(offsets)
        counts = sizes // 4
        order = np.argsort(-counts, kind="stable")
        h = seeds[order]
        starts, sizes, counts = starts[order], sizes[order], counts[order]
        step, active = 0, int(np.count_nonzero(counts))
        while active > _FEW_ROWS:
            h[:active] = self._mixed(h[:active], _words(data, starts[:active] + 4 * step, 4))
            step += 1
            active = int(np.searchsorted(-counts, -step, side="left"))
        for row in range(active):
            start, count = int(starts[row]), int(counts[row])
            state = int(h[row])
            for word in struct.unpack(f"<{count - step}I", data[start + 4 * step : start + 4 * count].tobytes()):
                state = self._mixed(state, word)
            h[row] = state
        for k in range(3):
            rows = np.flatnonzero(sizes - 4 * counts > k)
            tail = data[starts[rows] + 4 * counts[rows] + k].view(np.int8).astype(np.int32).view(np.uint32)
            h[rows] = self._mixed(h[rows], tail)
        hashes = np.empty_like(h)
        hashes[order] = self._finished(h, sizes)
        return hashes


class _XxHash64:
    """xxHash of 64 bits."""

    kind = np.uint64
    _P1, _P2, _P3, _P4, _P5 = (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )  # fmt: skip

    def _finished(self, h: Hashes) -> Hashes:
        h = (h ^ (h >> np.uint64(33))) * np.uint64(self._P2)
        h = (h ^ (h >> np.uint64(29))) * np.uint64(self._P3)
        return np.asarray(h ^ (h >> np.uint64(32)))

    def _round(self, accumulator: Any, word: Any) -> Any:
        if isinstance(accumulator, int):
            return _rotated((accumulator + word * self._P2) & _M64, 31, 64) * self._P1 & _M64
        return _rotated(accumulator + word * np.uint64(self._P2), 31, 64) * np.uint64(self._P1)

    def _with_long(self, h: Hashes, word: Hashes) -> Hashes:
        h = h ^ self._round(np.zeros(1, np.uint64), word)
        return np.asarray(_rotated(h, 27, 64) * np.uint64(self._P1) + np.uint64(self._P4))

    def _with_int(self, h: Hashes, word: Hashes) -> Hashes:
        h = h ^ (word.astype(np.uint64) * np.uint64(self._P1))
        return np.asarray(_rotated(h, 23, 64) * np.uint64(self._P2) + np.uint64(self._P3))

    def ints(self, values: Array, seeds: Hashes) -> Hashes:
        """Hash 32-bit integers."""
        h = seeds + np.uint64((self._P5 + 4) & _M64)
        return self._finished(self._with_int(h, values.astype(np.int32).view(np.uint32)))

    def longs(self, values: Array, seeds: Hashes) -> Hashes:
        """Hash 64-bit integers."""
        h = seeds + np.uint64((self._P5 + 8) & _M64)
        return self._finished(self._with_long(h, values.astype(np.int64).view(np.uint64)))

    def texts(self, texts: Bytes, seeds: Hashes) -> Hashes:
        """Hash byte strings."""
        offsets, data = texts
        starts, sizes = offsets[:-1], np.diff(offsets)
        stripes = sizes // 32
        order = np.argsort(-stripes, kind="stable")
        starts, sizes, stripes = starts[order], sizes[order], stripes[order]
        h = self._striped(data, starts, stripes, seeds[order]) + sizes.astype(np.uint64)
        at, left = starts + 32 * stripes, sizes - 32 * stripes
        for _ in range(3):
            rows = np.flatnonzero(left >= 8)
            h[rows] = self._with_long(h[rows], _words(data, at[rows], 8))
            at[rows] += 8
            left[rows] -= 8
        rows = np.flatnonzero(left >= 4)
        h[rows] = self._with_int(h[rows], _words(data, at[rows], 4))
        at[rows] += 4
        left[rows] -= 4
        for k in range(3):
            rows = np.flatnonzero(left > k)
            mixed = h[rows] ^ (data[at[rows] + k].astype(np.uint64) * np.uint64(self._P5))
            h[rows] = _rotated(mixed, 11, 64) * np.uint64(self._P1)
        hashes = np.empty_like(h)
        hashes[order] = self._finished(h)
        return hashes

    def _striped(
        self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], stripes: npt.NDArray[np.int64], seeds: Hashes
    ) -> Hashes:
        """Mix in all whole stripes of 32 bytes: four lanes of 8 bytes each. Rows descend by stripes."""
        h = seeds + np.uint64(self._P5)
        striped = active = int(np.count_nonzero(stripes))
        if not active:
            return h
        first = seeds[:striped]
        lanes = [
            first + np.uint64((self._P1 + self._P2) & _M64),
            first + np.uint64(self._P2),
            first.copy(),
            first - np.uint64(self._P1),
        ]
        step = 0
        while active > _FEW_ROWS:
            for i, lane in enumerate(lanes):
                lane[:active] = self._round(lane[:active], _words(data, starts[:active] + 32 * step + 8 * i, 8))
            step += 1
            active = int(np.searchsorted(-stripes, -step, side="left"))
        for row in range(active):
            start, end = int(starts[row]) + 32 * step, int(starts[row]) + 32 * int(stripes[row])
            words = struct.unpack(f"<{(end - start) // 8}Q", data[start:end].tobytes())
            for i, lane in enumerate(lanes):
                state = int(lane[row])
                for word in words[i::4]:
                    state = self._round(state, word)
                lane[row] = state
        merged = sum(_rotated(lane, bits, 64) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            merged = merged ^ self._round(np.zeros(1, np.uint64), lane)
            merged = merged * np.uint64(self._P1) + np.uint64(self._P4)
        h[:striped] = merged
        return h


def _column(algorithm: _Murmur3 | _XxHash64, vector: Vector, seeds: Hashes) -> Hashes:
    """Hash a column. Hashes of null rows are arbitrary."""
    dtype, values = vector.dtype, vector.values
    if is_text(dtype) or is_bytes(dtype):
        return algorithm.texts(bytes_layout(values), seeds)
    if pat.is_decimal(dtype):
        if dtype.precision <= LONG_DIGITS:
            return algorithm.longs(values, seeds)
        return algorithm.texts(bytes_layout(_unscaled_bytes(vector)), seeds)
    if pat.is_floating(dtype):
        # All NaN are one, and so are both zeros.
        values = np.where(np.isnan(values), np.nan, np.where(values == 0, 0, values)).astype(values.dtype)
        values = values.view(np.int32 if values.itemsize == 4 else np.int64)
    return algorithm.longs(values, seeds) if values.dtype.itemsize == 8 else algorithm.ints(values, seeds)


def _unscaled_bytes(vector: Vector) -> pa.Array:
    """Decimals without their point, as the fewest big-endian bytes of the two's complement that hold them."""
    values = vector.values.tolist() if vector.valid is None else np.where(vector.valid, vector.values, 0).tolist()
    return pa.array([_fewest_bytes(int(value)) for value in values], pa.large_binary())


def _fewest_bytes(value: int) -> bytes:
    bits = (value if value >= 0 else ~value).bit_length()
    return value.to_bytes(bits // 8 + 1, "big", signed=True)


def _chained(algorithm: _Murmur3 | _XxHash64) -> Run:
    def run(node: Call, operands: list[Vector], length: int) -> Vector:
        rows = rows_of(operands, length)
        hashes = np.full(rows, _SEED, algorithm.kind)
        for operand in operands:
            column = operand.expand(rows)
            valid = column.mask()
            mixed = _column(algorithm, column, hashes)
            hashes = mixed if valid is None else np.where(valid, mixed, hashes)
        return Vector(type_of(node), hashes.view(np.int32 if hashes.itemsize == 4 else np.int64))

    return run


def _of_bytes(compute: Callable[..., Any]) -> Run:
    """Make an implementation from a function of one value's bytes, and of constants or values after it."""

    def run(node: Call, operands: list[Vector], length: int) -> Vector:
        dtype = wide_offsets(type_of(node))
        first, *others = operands
        if all(o.constant for o in others):
            constants = [to_arrow(o, o.dtype, 1)[0].as_py() for o in others]
            if None in constants:
                return from_arrow(pa.nulls(len(first.values), dtype))
            return from_arrow(per_distinct(_as_bytes(first), lambda value: compute(value, *constants), dtype))
        values = _as_bytes(first.expand(length)).to_pylist()
        columns = [to_arrow(o, o.dtype, length).to_pylist() for o in others]
        rows = zip(values, *columns, strict=True)
        return from_arrow(pa.array([None if None in row else compute(*row) for row in rows], dtype))

    return run


def _as_bytes(vector: Vector) -> pa.Array:
    return vector.values.cast(pa.large_binary())


_SHA2 = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}


def _sha2(value: bytes, bits: int) -> str | None:
    name = _SHA2.get(bits)
    return None if name is None else hashlib.new(name, value).hexdigest()


def _digits(code: str) -> Run:
    """Make the implementation that writes integers without leading zeros, negative ones as 64 bits."""

    def run(_node: Call, operands: list[Vector], _length: int) -> Vector:
        (vector,) = operands
        valid = vector.mask()
        digits = np.array([format(value & _M64, code) for value in vector.values.tolist()], object)
        return from_arrow(pa.array(digits, pa.string(), mask=None if valid is None else ~valid))

    return run


_hex_of_integers = _digits("X")
_hex_of_bytes = _of_bytes(lambda value: value.hex().upper())


def _hex(node: Call, operands: list[Vector], length: int) -> Vector:
    """Digits of an integer, or two for each byte of bytes or a text."""
    return (_hex_of_bytes if operands[0].in_arrow else _hex_of_integers)(node, operands, length)


TABLE = (
    FunctionSpec(Function.HEX, ("Hex",), takes(_DIGITS, gives=pa.string()), numpy=_hex),
    FunctionSpec(Function.BIN, ("Bin",), takes(LONG, gives=pa.string()), numpy=_digits("b")),
    FunctionSpec(
        Function.MD5, ("Md5",), takes(BYTES_OF_TEXT, gives=pa.string()),
        numpy=_of_bytes(lambda value: hashlib.md5(value, usedforsecurity=False).hexdigest()),
    ),
    FunctionSpec(
        Function.SHA1, ("Sha1",), takes(BYTES_OF_TEXT, gives=pa.string()),
        numpy=_of_bytes(lambda value: hashlib.sha1(value, usedforsecurity=False).hexdigest()),
    ),
    FunctionSpec(Function.SHA2, ("Sha2",), takes(BYTES_OF_TEXT, INT, gives=pa.string()), numpy=_of_bytes(_sha2)),
    FunctionSpec(Function.CRC32, ("Crc32",), takes(BYTES_OF_TEXT, gives=pa.int64()), numpy=_of_bytes(zlib.crc32)),
    FunctionSpec(
        Function.HASH, ("Murmur3Hash",), takes(_HASHED, gives=pa.int32(), repeated=True),
        nulls=Nulls.OWN_RULE,
        numpy=_chained(_Murmur3()),
    ),
    FunctionSpec(
        Function.XXHASH64, ("XxHash64",), takes(_HASHED, gives=pa.int64(), repeated=True),
        nulls=Nulls.OWN_RULE,
        numpy=_chained(_XxHash64()),
    ),
)  # fmt: skip
