"""Hashes, checksums and hexadecimal digits, of the bytes that Spark keeps values in."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.signatures import INT, LONG, TEXT, Parameter, takes, to
from gpujoin.functions.spec import ON_CPU, FunctionSpec, Nulls
from gpujoin.model.expressions import EvalMode, Function
from gpujoin.model.types import is_bytes, is_float, is_text, is_whole, logical


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
"""Bytes; those of a text if one is given."""
_F = Function

TABLE = (
    FunctionSpec(_F.HEX, ("Hex",), takes(_DIGITS, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(_F.BIN, ("Bin",), takes(LONG, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(_F.MD5, ("Md5",), takes(BYTES_OF_TEXT, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(_F.SHA1, ("Sha1",), takes(BYTES_OF_TEXT, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(_F.SHA2, ("Sha2",), takes(BYTES_OF_TEXT, INT, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(_F.CRC32, ("Crc32",), takes(BYTES_OF_TEXT, gives=pa.int64()), lacks=ON_CPU),
    FunctionSpec(
        _F.HASH, ("Murmur3Hash",), takes(_HASHED, gives=pa.int32(), repeated=True), nulls=Nulls.READ, lacks=ON_CPU
    ),
    FunctionSpec(
        _F.XXHASH64, ("XxHash64",), takes(_HASHED, gives=pa.int64(), repeated=True), nulls=Nulls.READ, lacks=ON_CPU
    ),
)
