"""What implementations of functions are made of: values without a result, functions of plain arrays and of texts."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NoReturn, TypeAlias

import numpy as np
import pyarrow as pa

from gpujoin.backends.cpu.expressions.vector import (
    Array,
    Mask,
    Vector,
    both,
    numpy_type,
    without,
)
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression

Run: TypeAlias = Callable[[Call, list[Vector], int], Vector]
"""Computes a call from its operands; the last argument is the number of rows."""


def fail(node: Expression, why: str) -> NoReturn:
    """Raise the error of a node."""
    raise ExpressionEvaluationError(
        f"{node}: {why}; filter out such rows, use a wider type, or set spark.sql.ansi.enabled to false"
    )


def settle(node: Call | Cast, bad: Mask, valid: Mask | None, why: str) -> Mask | None:
    """Deal with rows without a result.

    Parameters
    ----------
    node : Call or Cast
        Whose mode decides: ``ANSI`` raises, the others give null.
    bad : numpy.ndarray
        Rows without a result; a null row never counts.
    valid : numpy.ndarray or None
        Validity of the operands.
    why : str
        What to say.

    Returns
    -------
    numpy.ndarray or None
        Validity of the result.

    Raises
    ------
    ExpressionEvaluationError
        In ANSI mode, if a row that is not null is bad.
    """
    if not bad.any():
        return valid
    if node.mode is EvalMode.ANSI and (bad if valid is None else bad & valid).any():
        fail(node, why)
    return without(valid, bad)


def of_arrays(compute: Callable[..., Array], dtype: pa.DataType | None = None) -> Run:
    """Make an implementation of a function of NumPy values: null where an operand is.

    Parameters
    ----------
    compute : callable
        From the values of the operands, arbitrary where these are null, to those of the result.
    dtype : pyarrow.DataType or None
        The type of the result; ``None``: the call's.
    """

    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        result = dtype or node.type
        assert result is not None
        with np.errstate(all="ignore"):
            values = np.asarray(compute(*(o.values for o in operands)))
        return Vector(
            result, values.astype(numpy_type(result), copy=False), reduce(both, (o.mask() for o in operands))
        )

    return run


def of_text(compute: Callable[[pa.Array], pa.Array]) -> Run:
    """Make an implementation of a function from Arrow's text or bytes to the same type, which handles nulls itself."""
    return lambda _node, operands, _length: Vector(operands[0].dtype, compute(operands[0].values))
