"""Launches ``residual.cu``: evaluates residual conditions over pairs of rows, compiled into kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpujoin.errors import KernelArgumentError
from gpujoin.launch.device import Array, Device, ModuleSpec, PointerTable, check_room
from gpujoin.launch.keys import (
    BLOCK_THREADS,
    ROW_NUMBER_BYTES,
    check_column,
    check_contiguous,
    check_rows,
    grid_of,
    total,
    value_of,
)
from gpujoin.launch.matches import UniqueMatches

_NUMBER = "from_left(pair).column<i64>(0)"
SPECIALISATIONS: tuple[ModuleSpec, ...] = tuple(
    ModuleSpec("residual.cu", (("RESIDUAL", text),))
    for text in (
        f"{_NUMBER}.add(from_right(pair).column<i64>(1)).checked<FAIL>(pair).lt(constant<i64>(pair, 0))",
        f"{_NUMBER}.as<double>().times(from_right(pair).column<double>(1)).eq(constant<double>(pair, 0))",
        "from_left(pair).missing(2).either(from_right(pair).truth(3).negated())",
    )
)
"""Conditions that are checked ahead; those of users are compiled when they are met."""


@dataclass(frozen=True)
class ConditionColumn:
    """A column that a condition reads."""

    values: Array | None
    """Value of each row; ``None`` where only nulls are read."""
    valid: Array | None
    """False where null; ``None``: nowhere."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Lengths of the arrays, which must be equal."""
        return tuple(int(array.shape[0]) for array in (self.values, self.valid) if array is not None)


def mask(
    device: Device,
    text: str,
    columns: Sequence[ConditionColumn],
    pairs: int,
    left_row: Array | None = None,
    right_row: Array | None = None,
    constants: Sequence[np.generic] = (),
) -> tuple[Array, bool]:
    """Evaluate a condition, written by :mod:`gpujoin.backends.cudf.residual`, on pairs of rows.

    Columns and constants come in the order in which the text numbers them. Without row numbers, the columns of a side
    have one row for each pair. Gives the mask of the pairs for which the condition is true, and whether an operation
    failed in ANSI mode on any pair, maybe on one for which Spark does not evaluate it; the mask must not be used then.
    """
    check_rows(pairs)
    for name, rows in (("left rows", left_row), ("right rows", right_row)):
        if rows is not None:
            check_column(name, rows, np.int32, pairs)
    if left_row is None and right_row is None:
        _check_lengths(columns, {pairs})
    out = device.empty(pairs, np.bool_)
    failed = device.zeros(1, np.uint32)
    if pairs:
        kernel = device.kernel(_module(text), "residual_mask")
        words = _words(device, constants)
        arguments = [*_pointers(device, columns), words, left_row, right_row, np.uint64(pairs), out, failed]
        device.launch(kernel, grid_of(device, pairs), BLOCK_THREADS, arguments)
    return out, bool(value_of(device, failed))


def restrict(
    device: Device,
    text: str,
    columns: Sequence[ConditionColumn],
    matches: UniqueMatches,
    build_rows: int,
    *,
    probe_is_left: bool,
    constants: Sequence[np.generic] = (),
) -> tuple[UniqueMatches, bool]:
    """Keep the matches with a true condition, of probe rows with at most one match each.

    As for :func:`mask`, but the columns are those of the whole sides. The matches given are not changed. Also gives
    whether an operation failed.
    """
    check_column("matched build rows", matches.row, np.int32)
    rows = int(matches.row.shape[0])
    check_rows(rows)
    _check_lengths(columns, {rows, build_rows})
    check_room(device, ROW_NUMBER_BYTES * rows, f"what is left of {rows} rows under a condition")
    matched = device.empty(rows, np.int32)
    kept_count, failed = total(device), device.zeros(1, np.uint32)
    if rows:
        kernel = device.kernel(_module(text), "residual_found")
        arguments = [
            *_pointers(device, columns), _words(device, constants), matches.row, np.uint64(rows),
            np.uint32(not probe_is_left), matched, kept_count, failed,
        ]  # fmt: skip
        device.launch(kernel, grid_of(device, rows), BLOCK_THREADS, arguments)
    return UniqueMatches(matched, value_of(device, kept_count)), bool(value_of(device, failed))


def _check_lengths(columns: Sequence[ConditionColumn], lengths: set[int]) -> None:
    for number, column in enumerate(columns):
        if len(set(column.rows)) > 1 or not lengths.issuperset(column.rows):
            requirement = " or ".join(map(str, sorted(lengths)))
            raise KernelArgumentError(f"column {number} has {column.rows} rows; pass {requirement}")


def _pointers(device: Device, columns: Sequence[ConditionColumn]) -> tuple[PointerTable, PointerTable]:
    for number, column in enumerate(columns):
        if column.values is not None:
            check_contiguous(f"column {number}", column.values)
        if column.valid is not None:
            check_column(f"the validity of column {number}", column.valid, np.bool_)
        if column.values is not None and column.values.ndim != 1:
            raise KernelArgumentError(f"column {number} has shape {column.values.shape}; pass one dimension")
    values = [c.values if c.values is None else c.values.view(np.uint8) for c in columns]
    # A condition may read no columns, but a pointer table must not be empty.
    return device.pointers(values or [None]), device.pointers([c.valid for c in columns] or [None])


def _words(device: Device, constants: Sequence[np.generic]) -> Array:
    """The bits of constants, in one word of 8 bytes each."""
    words = np.zeros(max(1, len(constants)), np.uint64)
    for number, value in enumerate(constants):
        words[number : number + 1].view(value.dtype)[0] = value
    return device.upload(words)


def _module(text: str) -> ModuleSpec:
    return ModuleSpec("residual.cu", (("RESIDUAL", text),))
