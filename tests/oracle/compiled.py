"""Compiled expressions, and how functions of cells become functions of compiled operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from gpujoin.model.expressions import Call
from gpujoin.testing import Cell

Rows = tuple[Sequence[Cell], Sequence[Cell]] | tuple[Sequence[Cell], Sequence[Cell], Mapping[str, Cell]]
"""The cells of a left row and of a right row; within a lambda also the values of its variables, by name."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """An expression ready to run.

    Attributes
    ----------
    type : pyarrow.DataType
        Type of its values.
    run : callable
        From the cells of a left and of a right row to a cell.
    """

    type: pa.DataType
    run: Callable[[Rows], Cell]


Handler = Callable[[Call, list[Compiled]], Compiled]
"""From a call and its compiled operands to the compiled call."""


def strict(dtype: pa.DataType, function: Callable[..., Cell]) -> Handler:
    """A function of cells that is null wherever an operand is."""

    def handler(_node: Call, operands: list[Compiled]) -> Compiled:
        def run(rows: Rows) -> Cell:
            values = [operand.run(rows) for operand in operands]
            return None if any(v is None for v in values) else function(*values)

        return Compiled(dtype, run)

    return handler


def like_first(function: Callable[..., Cell]) -> Handler:
    """A strict function whose result has its first operand's type."""
    return lambda node, operands: strict(operands[0].type, function)(node, operands)


def of_operands(function: Callable[[Cell], Cell], dtype: pa.DataType) -> Handler:
    """A function of one operand that sees nulls too."""
    return lambda _node, operands: Compiled(dtype, lambda rows: function(operands[0].run(rows)))
