"""States of one value of a group: an extreme, a row's, or a combination of all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from gpujoin.backends.cpu.pipeline.states.base import State, null_of, one_width
from gpujoin.functions.lowered import Column
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.types import is_float


def _extreme(value: pl.Expr, dtype: pa.DataType, *, least: bool) -> pl.Expr:
    """Least or greatest value. NaN is the greatest, so the least is a number if there is one."""
    if least:
        return value.min()
    return value.nan_max() if is_float(dtype) else value.max()


class _Combined(State):
    """One value that combines those of a group, or those of its parts."""

    @abstractmethod
    def _combine(self, value: pl.Expr) -> pl.Expr:
        """Combine the values of a group."""

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        return [self._combine(one_width(self.value, self.call.dtype)).alias(self.name("v"))]

    def merge(self) -> list[pl.Expr]:
        return [self._combine(self.column("v"))]

    def nothing(self) -> list[pl.Expr]:
        return [null_of(self.call.dtype).alias(self.name("v"))]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name("v")]]


class Extreme(_Combined):
    """``min`` and ``max``."""

    def _combine(self, value: pl.Expr) -> pl.Expr:
        return _extreme(value, self.call.dtype, least=self.call.function is AggregateFunction.MIN)


class Bitwise(_Combined):
    """``bit_and``, ``bit_or``, ``bit_xor``."""

    def _combine(self, value: pl.Expr) -> pl.Expr:
        match self.call.function:
            case AggregateFunction.BIT_AND:
                return value.bitwise_and()
            case AggregateFunction.BIT_OR:
                return value.bitwise_or()
            case _:
                return value.bitwise_xor()


class ExtremeBy(State):
    """``min_by`` and ``max_by``: the value of the last row that has the least or greatest ordering of the group."""

    def _picked(self, value: pl.Expr, ordering: pl.Expr) -> list[pl.Expr]:
        least = self.call.function is AggregateFunction.MIN_BY
        best = _extreme(ordering, self.call.ordering_type, least=least)
        # Of a sorted group the last value, which takes a sixth of what comparing orderings with the best one does.
        last = value.sort_by(ordering, descending=least, nulls_last=False, maintain_order=True).last()
        return [pl.when(best.is_not_null()).then(last).alias(self.name("v")), best.alias(self.name("o"))]

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        value = one_width(self.value, self.call.dtype)
        return self._picked(value, one_width(self.column("x1"), self.call.ordering_type))

    def merge(self) -> list[pl.Expr]:
        return self._picked(self.column("v"), self.column("o"))

    def nothing(self) -> list[pl.Expr]:
        return [null_of(self.call.dtype).alias(self.name("v")), null_of(self.call.ordering_type).alias(self.name("o"))]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name("v")], state[self.name("o")]]


class Edge(State):
    """``first`` and ``last``: the group's first or last row that counts."""

    def _pick(self, value: pl.Expr) -> pl.Expr:
        return value.first() if self.call.function is AggregateFunction.FIRST else value.last()

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        value = one_width(self.value, self.call.dtype)
        taking = self._taking(value)
        if taking is None:
            return [self._pick(value).alias(self.name("v")), (pl.len() > 0).alias(self.name("set"))]
        return [self._pick(value.filter(taking)).alias(self.name("v")), taking.any().alias(self.name("set"))]

    def _taking(self, value: pl.Expr) -> pl.Expr | None:
        """Mask of the rows that count; ``None`` if all do."""
        mask = None if self.call.filter is None else self.column("m")
        if self.call.ignore_nulls:
            return value.is_not_null()  # null where the filter leaves a row out
        return mask

    def merge(self) -> list[pl.Expr]:
        value = self._pick(self.column("v").filter(self.column("set")))
        return [value, self.column("set").any()]

    def nothing(self) -> list[pl.Expr]:
        return [null_of(self.call.dtype).alias(self.name("v")), pl.lit(value=False).alias(self.name("set"))]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name("v")], state[self.name("set")]]
