"""Order and exact arithmetic of the plain Python values that `gpujoin.testing.cells` gives."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from typing import Any

from gpujoin.testing import Cell

EXACT = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP)
"""A decimal context in which nothing that 38-digit operands give is rounded."""


def sort_key(value: Cell) -> Any:
    """Map a cell that is not null to a Python value that orders and equals as Spark's value does.

    NaN equals NaN and is above every number, -0.0 equals 0.0, false is below true, text and bytes order by bytes,
    structs by their fields, in which null equals null and is below all.
    """
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    if isinstance(value, (bool, int, Decimal)):
        return (0, value)
    if isinstance(value, tuple):
        return tuple((0,) if item is None else (1, sort_key(item)) for item in value)
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    return value
