"""Choosing between columns row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.backends.cpu.evaluate_vector import Mask, Vector
from gpujoin.model.types import is_bytes, is_text


def choose(mask: Mask, one: Vector, two: Vector) -> Vector:
    """Take ``one`` where the mask is true, ``two`` elsewhere.

    Parameters
    ----------
    mask : numpy.ndarray
        One entry a row, or a single one.
    one, two : Vector
        Of one type.
    """
    length = max(len(mask), len(one.values), len(two.values))
    constant = one.constant and two.constant and len(mask) == 1
    if one.in_arrow:
        return Vector(
            one.dtype, _choose_arrow(np.broadcast_to(mask, length), one, two, length), constant=constant
        )
    if one.values.dtype != two.values.dtype:
        one, two = (Vector(v.dtype, v.values.astype(object), v.valid, v.constant) for v in (one, two))
    values = np.where(mask, one.values, two.values)
    if one.valid is None and two.valid is None:
        return Vector(one.dtype, values, constant=constant)
    mine = np.ones(1, np.bool_) if one.valid is None else one.valid
    theirs = np.ones(1, np.bool_) if two.valid is None else two.valid
    return Vector(one.dtype, values, np.broadcast_to(np.where(mask, mine, theirs), len(values)), constant)


def _choose_arrow(mask: Mask, one: Vector, two: Vector, length: int) -> pa.Array:
    first, second = one.expand(length).values, two.expand(length).values
    if first.type != second.type:
        wide = (
            pa.large_string()
            if is_text(one.dtype)
            else pa.large_binary()
            if is_bytes(one.dtype)
            else one.dtype
        )
        first, second = first.cast(wide), second.cast(wide)
    return pc.if_else(pa.array(mask), first, second)
