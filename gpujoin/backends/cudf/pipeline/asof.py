"""Finds the nearest row of a frame for each row of another: as-of joins whose tables stay on the device.

The codes of order keys, and the distances of floats, are those of :mod:`gpujoin.engine.ordering`. Bytes and wide
decimals are coded by their ranks (:mod:`.ordercodes`), and have no distances. Equality keys are numbered by the
distinct keys of the build side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame
from gpujoin.backends.cudf.pipeline.compute import key_frame, plain_keys, valid_of, values_of
from gpujoin.backends.cudf.pipeline.ordercodes import RankCodes, is_ranked
from gpujoin.functions.values import Value
from gpujoin.functions.vector import mask_and
from gpujoin.model.backend import Build, CodedRows
from gpujoin.model.ranges import LEAST

_INFINITY = {4: 0x7F800000, 8: 0x7FF0000000000000}


@dataclass(frozen=True)
class FrameGroups(Generic[Frame]):
    """Numbers the equality keys of frames, as the distinct keys of the build side are numbered."""

    columns: Columns[Frame]
    types: tuple[pa.DataType, ...]
    """Common type of each key."""
    null_safe: tuple[bool, ...]
    """For each key whether null equals null."""
    distinct: Build[Frame, Any]
    """The distinct keys."""

    @classmethod
    def from_build(
        cls, columns: Columns[Frame], frame: Frame, types: Sequence[pa.DataType], null_safe: Sequence[bool]
    ) -> tuple[FrameGroups[Frame], Value]:
        """Number the keys of a build side. Also returns the number of each row, null where a key matches nothing."""
        keys = _plain(columns, frame, types)
        rows = columns.backend.frame_rows(frame)
        if rows == 0:
            distinct, codes = keys, columns.ops.xp.zeros(0, dtype="int64")
        else:
            distinct, codes = columns.codes(keys)
        build = columns.backend.build(columns.null_safe(distinct, null_safe))
        valid: Array | None = None
        for position in range(len(types) if rows else 0):
            if not null_safe[position]:
                valid = mask_and(valid, valid_of(columns, keys, position))
        return cls(columns, tuple(types), tuple(null_safe), build), Value(pa.int64(), codes.astype("int64"), valid)

    def numbers(self, frame: Frame) -> Value:
        """Number of each row's key, null where the build side has none."""
        keys = _plain(self.columns, frame, self.types)
        probe = self.distinct.probe(self.columns.null_safe(keys, self.null_safe))
        number = probe.lookup().values
        return Value(pa.int64(), number.astype("int64"), number >= 0)


def coded_as_of(
    columns: Columns[Frame], entered: Callable[[], AbstractContextManager[None]], frame: Frame,
    key_types: Sequence[pa.DataType], null_safe: Sequence[bool],
) -> CodedRows[Frame]:  # fmt: skip
    """Code right rows of an as-of join: their equality keys, then their order key."""
    order_at = len(key_types)
    ranks: RankCodes[Frame] | None = None
    if is_ranked(columns.types(frame)[order_at]):
        ranks, order = RankCodes.from_build(columns, columns.select(frame, (order_at,)))
    else:
        order = order_codes(columns, frame, order_at)
    groups, numbers = None, None
    if key_types:
        groups, numbers = FrameGroups.from_build(columns, frame, key_types, null_safe)

    def code(rows: Frame) -> Frame:
        with entered():
            if ranks is None:
                point = order_codes(columns, rows, order_at)
            else:
                point = ranks.codes(columns.select(rows, (order_at,)))
            return code_frame(columns, rows, [point] if groups is None else [groups.numbers(rows), point])

    points = code_frame(columns, frame, [order] if numbers is None else [numbers, order])
    return CodedRows(points, groups is not None, code)


def order_codes(columns: Columns[Frame], frame: Frame, at: int) -> Value:
    """Convert an order key to int64 codes that keep its order; NaN becomes null."""
    xp = columns.ops.xp
    if columns.backend.frame_rows(frame) == 0:
        return Value(pa.int64(), xp.zeros(0, dtype="int64"))
    value = values_of(columns, frame, at)
    if pat.is_unsigned_integer(value.dtype) and value.data.dtype.itemsize == 8:
        return Value(pa.int64(), value.data.view("int64") ^ LEAST, value.valid)
    if not pat.is_floating(value.dtype):
        return Value(pa.int64(), value.data.astype("int64"), value.valid)
    width = value.data.dtype.itemsize
    bits = value.data.view(f"int{8 * width}")
    magnitude = bits & bits.dtype.type((1 << (8 * width - 1)) - 1)
    code = xp.where((bits < 0) & (magnitude != 0), ~magnitude, magnitude)
    valid = magnitude <= _INFINITY[width]
    return Value(pa.int64(), code.astype("int64"), mask_and(value.valid, valid))


def _plain(columns: Columns[Frame], frame: Frame, types: Sequence[pa.DataType]) -> Frame:
    return plain_keys(columns, key_frame(columns, frame, types, (False,) * len(types)))


def code_frame(columns: Columns[Frame], frame: Frame, values: Sequence[Value]) -> Frame:
    """Frame of int64 columns, as long as another one."""
    return columns.frame(values, (pa.int64(),) * len(values), columns.backend.frame_rows(frame))
