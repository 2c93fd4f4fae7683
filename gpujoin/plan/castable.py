"""Which casts Spark allows at all."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.expressions import EvalMode
from gpujoin.model.types import is_bytes, is_numeric, is_text


def can_cast(source: pa.DataType, target: pa.DataType, mode: EvalMode) -> bool:
    """Tell whether Spark accepts a cast between two types; whether a value survives is another question.

    Parameters
    ----------
    source, target : pyarrow.DataType
        Types as expressions see them.
    mode : EvalMode
        ANSI (and try) casts are fewer.
    """
    if source == target or pat.is_null(source):
        return True
    if pat.is_struct(source) and pat.is_struct(target):
        return source.num_fields == target.num_fields and all(
            can_cast(mine.type, theirs.type, mode) for mine, theirs in zip(source, target, strict=True)
        )
    legacy = mode is EvalMode.LEGACY
    if is_text(target):
        return True
    if is_text(source):
        return not pat.is_nested(target)
    if is_bytes(target):
        return is_bytes(source) or (pat.is_signed_integer(source))
    if is_numeric(target):
        return is_numeric(source) or pat.is_boolean(source) or _zoned(source) or (legacy and _instant(source))
    if pat.is_boolean(target):
        return is_numeric(source) or (legacy and _instant(source))
    if pat.is_date(target):
        return pat.is_date(source) or pat.is_timestamp(source)
    if pat.is_timestamp(target):
        if pat.is_timestamp(source) or pat.is_date(source):
            return True
        return _zoned(target) and (is_numeric(source) or (legacy and pat.is_boolean(source)))
    return False


def _zoned(dtype: pa.DataType) -> bool:
    return pat.is_timestamp(dtype) and dtype.tz is not None


def _instant(dtype: pa.DataType) -> bool:
    return pat.is_date(dtype) or _zoned(dtype)
