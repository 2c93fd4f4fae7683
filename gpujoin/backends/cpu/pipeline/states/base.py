"""The interface of states of aggregate functions, and the form of the values in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.states.segments import Segments
from gpujoin.functions.lowered import Column, polars_type
from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.types import is_text

LIMB_DIGITS = 18
"""Most digits of decimals that are kept in 64 bits."""


def one_width(expression: pl.Expr, dtype: pa.DataType) -> pl.Expr:
    """Cast values to the form that is the same in all pieces: text as bytes, decimals in 128 bits."""
    if is_text(dtype):
        return expression.cast(pl.Binary)
    if not pat.is_decimal(dtype):
        return expression
    return expression.cast(polars_type(dtype, wide=dtype.precision > LIMB_DIGITS))


class State(ABC):
    """The state columns of one call: how they are computed from rows, merged, and converted to Spark's buffer."""

    def __init__(self, call: AggregateCall, prefix: str) -> None:
        self.call = call
        self.prefix = prefix

    def name(self, part: str) -> str:
        return f"{self.prefix}_{part}"

    def column(self, part: str) -> pl.Expr:
        return pl.col(self.name(part))

    def argument(self, position: int) -> str:
        """Name of the column with an argument; null in rows that the filter excludes."""
        return self.name(f"x{position}")

    @property
    def value(self) -> pl.Expr:
        """The first argument."""
        return pl.col(self.argument(0))

    @abstractmethod
    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        """State columns, computed from a group's rows."""

    @abstractmethod
    def merge(self) -> list[pl.Expr]:
        """State columns, merged from those of several states."""

    @abstractmethod
    def nothing(self) -> list[pl.Expr]:
        """State columns of an aggregation over no rows."""

    def normalise(self) -> list[pl.Expr]:
        """Replacements for state columns, applied after each step; none unless overridden."""
        return []

    @abstractmethod
    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        """Columns of Spark's buffer."""


class SegmentState(State):
    """A state that compares rows with values of their group, and is computed of rows in the order of their groups."""

    @abstractmethod
    def reduce_segments(self, segments: Segments) -> list[pl.Series]:
        """State columns, computed from the rows of groups."""

    @abstractmethod
    def merge_segments(self, segments: Segments) -> list[pl.Series]:
        """State columns, merged from those of several states."""

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        return []

    def merge(self) -> list[pl.Expr]:
        return []


def null_of(dtype: pa.DataType) -> pl.Expr:
    """A null in the form of :func:`one_width`."""
    wide = is_text(dtype) or (pat.is_decimal(dtype) and dtype.precision > LIMB_DIGITS)
    return pl.lit(None, polars_type(dtype, wide=wide))
