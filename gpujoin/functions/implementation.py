"""Building blocks of function implementations: errors, and wrappers of functions over arrays and over texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa

from gpujoin.errors import ExpressionEvaluationError
from gpujoin.functions.rows import Rows
from gpujoin.functions.signatures import type_of
from gpujoin.functions.utf8 import check_utf8
from gpujoin.functions.vector import (
    Array,
    Mask,
    Vector,
    from_arrow,
    mask_and,
    mask_and_not,
    nulls,
    numpy_type,
    per_distinct,
    to_arrow,
)
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression
from gpujoin.model.types import is_bytes, is_text, wide_offsets

Evaluate: TypeAlias = Callable[[Expression, Rows], Vector]
"""Evaluates an operand on some rows."""


@dataclass(frozen=True)
class Lazy:
    """A function that evaluates its operands itself, on some of the rows."""

    run: Callable[[Call, Rows, Evaluate], Vector]
    """Computes a call."""


Run: TypeAlias = Callable[[Call, list[Vector], int], Vector]
"""Computes a call from its operands; the last argument is the number of rows."""


def fail(node: Expression, why: str) -> NoReturn:
    """Raise the error of a node."""
    raise ExpressionEvaluationError(
        f"{node}: {why}; filter out such rows, use a wider type, or set spark.sql.ansi.enabled to false"
    )


def null_or_raise(node: Call | Cast, bad: Mask, valid: Mask | None, why: str) -> Mask | None:
    """Make the ``bad`` rows, those without a result, null, or raise in ANSI mode; give the validity of the result.

    Rows with a null operand are null in any case and never raise.
    """
    if not bad.any():
        return valid
    if node.mode is EvalMode.ANSI and (bad if valid is None else bad & valid).any():
        fail(node, why)
    return mask_and_not(valid, bad)


def rows_of(operands: list[Vector], length: int) -> int:
    """Number of rows of a call's result: one if all operands are constant."""
    return 1 if all(operand.constant for operand in operands) else length


def operands_of(operands: list[Vector], length: int) -> list[Vector]:
    """Operands of as many rows as the call is computed for."""
    rows = rows_of(operands, length)
    return [operand.expand(rows) for operand in operands]


def of_arrays(compute: Callable[..., Array]) -> Run:
    """Make an implementation from a function of NumPy values. The result is null where an operand is null.

    Values are arbitrary where null.
    """

    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        with np.errstate(all="ignore"):
            values = np.asarray(compute(*(o.values for o in operands)))
        dtype, valid = type_of(node), reduce(mask_and, (o.mask() for o in operands))
        return Vector(dtype, values.astype(numpy_type(dtype), copy=False), valid)

    return run


def of_arrow(compute: Callable[..., pa.Array]) -> Run:
    """Make an implementation from a function of Arrow arrays, which handles nulls, and text as bytes."""

    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        array = compute(*(o.values for o in operands))
        return from_arrow(array if is_text(array.type) or is_bytes(array.type) else array.cast(type_of(node)))

    return run


def of_characters(compute: Callable[..., pa.Array]) -> Run:
    """Like :func:`of_arrow`, for a function that reads characters: raises for text that is no UTF-8."""
    return _checked(of_arrow(compute))


def of_python(compute: Callable[..., Any]) -> Run:
    """Make an implementation from a Python function of one row. The result is null where an operand is null.

    Where all operands but the first are constants, there is one call for each distinct value.
    """

    def run(node: Call, operands: list[Vector], length: int) -> Vector:
        dtype = wide_offsets(type_of(node))
        first, *others = operands
        if first.in_arrow and not first.constant and all(o.constant for o in others):
            constants = [to_arrow(o, o.dtype, 1)[0].as_py() for o in others]
            if None in constants:
                return nulls(type_of(node))
            return from_arrow(per_distinct(first.values, lambda value: compute(value, *constants), dtype))
        rows = rows_of(operands, length)
        columns = [to_arrow(o, o.dtype, rows).to_pylist() for o in operands]
        values = [None if None in row else compute(*row) for row in zip(*columns, strict=True)]
        return from_arrow(pa.array(values, dtype))

    return _checked(run)


def _checked(run: Run) -> Run:
    def checked(node: Call, operands: list[Vector], length: int) -> Vector:
        for operand in operands:
            if operand.in_arrow:
                check_utf8(operand.values, node)
        return run(node, operands, length)

    return checked
