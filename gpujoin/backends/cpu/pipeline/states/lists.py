"""States that keep all values of a group, as a list."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.backends.cpu.pipeline.piece import float_key
from gpujoin.backends.cpu.pipeline.states.base import State, null_of, one_width
from gpujoin.functions.lowered import Column
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.types import is_float, logical


class _Values(State):
    """The values of a group as a list."""

    def _members(self, values: pl.Expr) -> pl.Expr:
        return values

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        values = one_width(self.value, self.call.dtype).drop_nulls()
        return [self._members(values).implode().alias(self.name("v"))]

    def merge(self) -> list[pl.Expr]:
        return [self._members(self.column("v").explode().drop_nulls()).implode().alias(self.name("v"))]

    def nothing(self) -> list[pl.Expr]:
        kind = pl.select(null_of(self.call.dtype)).to_series().dtype
        return [pl.lit(pl.Series([[]], dtype=pl.List(kind))).alias(self.name("v"))]


class Collected(_Values):
    """``collect_list`` and ``collect_set``."""

    def _members(self, values: pl.Expr) -> pl.Expr:
        return values if self.call.function is AggregateFunction.COLLECT_LIST else values.unique(maintain_order=True)

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        return [state[self.name("v")]]


class Percentile(_Values):
    """``percentile`` and ``percentile_disc``."""

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        percentage = self.call.percentage
        assert percentage is not None
        ordered = self.column("v").list.sort(descending=self.call.descending)
        at = self._interpolated if self.call.function is AggregateFunction.PERCENTILE else self._discrete
        if not isinstance(percentage, tuple):
            return [state.select(at(ordered, percentage)).to_series()]
        values = pl.concat_list([at(ordered, each) for each in percentage])
        return [state.select(pl.when(ordered.list.len() > 0).then(values)).to_series()]

    def _interpolated(self, ordered: pl.Expr, percentage: float) -> pl.Expr:
        """Interpolate as Spark's `Percentile` does, in the same steps."""
        position = (ordered.list.len().cast(pl.Int64) - 1).cast(pl.Float64) * percentage
        lower, higher = position.floor(), position.ceil()
        places = (place.cast(pl.Int64) for place in (lower, higher))
        below, above = (ordered.list.get(place, null_on_oob=True) for place in places)
        low, high = below.cast(pl.Float64), above.cast(pl.Float64)
        between = low + (position - lower) * (high - low)
        return pl.when(below == above).then(low).otherwise(between)

    def _discrete(self, ordered: pl.Expr, percentage: float) -> pl.Expr:
        rank = (ordered.list.len().cast(pl.Float64) * percentage).ceil().cast(pl.Int64)
        place = pl.max_horizontal(rank - 1, pl.lit(0, pl.Int64))
        return ordered.list.get(place, null_on_oob=True).cast(pl.Float64)


class Mode(_Values):
    """``mode``: values are kept, and counted in the end."""

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        name = self.name("v")
        values = state.select(pl.col(name)).with_row_index("group").explode(name).drop_nulls(name)
        counted = values.group_by("group", name).len()
        ordered = counted.sort("group", "len", name, descending=[False, True, self.call.descending])
        modes = ordered.group_by("group", maintain_order=True).first()
        return [state.select(pl.row_index("group")).join(modes, on="group", how="left", maintain_order="left")[name]]


class ListAgg(State):
    """``listagg``: lists of the texts, and of what they are ordered by."""

    @property
    def _parts(self) -> list[str]:
        return ["v", *(f"o{n}" for n in range(len(self.call.directions)))]

    def reduce(self, arguments: Sequence[Column], rows: int) -> list[pl.Expr]:
        del arguments, rows
        present = self.value.is_not_null()
        return [
            one_width(self.column(f"x{n}"), logical(argument.type)).filter(present).implode().alias(self.name(part))
            for n, (part, argument) in enumerate(zip(self._parts, self.call.arguments, strict=True))
        ]

    def merge(self) -> list[pl.Expr]:
        # An empty list gives a null, which is no text; an ordering may well be null.
        texts = self.column("v").explode()
        return [
            self.column(part).explode().filter(texts.is_not_null()).implode().alias(self.name(part))
            for part in self._parts
        ]

    def nothing(self) -> list[pl.Expr]:
        kinds = [pl.select(null_of(logical(argument.type))).to_series().dtype for argument in self.call.arguments]
        return [
            pl.lit(pl.Series([[]], dtype=pl.List(kind))).alias(self.name(part))
            for part, kind in zip(self._parts, kinds, strict=True)
        ]

    def finish(self, state: pl.DataFrame) -> list[pl.Series]:
        assert self.call.delimiter is not None
        lists = state.select(self.name(part) for part in self._parts)
        if self.call.directions:
            lists = self._ordered(lists)
        texts = lists[self.name("v")].cast(pl.List(pl.Binary)).to_arrow(compat_level=pl.CompatLevel.oldest())
        joined = pl.Series(pc.binary_join(texts, pa.scalar(self.call.delimiter, texts.type.value_type)))
        return [pl.select(pl.when(lists[self.name("v")].list.len() > 0).then(joined)).to_series()]

    def _ordered(self, lists: pl.DataFrame) -> pl.DataFrame:
        names = [self.name(part) for part in self._parts]
        rows = lists.with_row_index("group").explode(names).filter(pl.col(names[0]).is_not_null())
        keys: list[pl.Expr] = []
        for name, argument in zip(names[1:], self.call.arguments[1:], strict=True):
            dtype = logical(argument.type)
            keys.append(float_key(pl.col(name), dtype) if is_float(dtype) else pl.col(name))
        directions = self.call.directions
        ordered = rows.sort(
            "group", *keys, maintain_order=True, descending=[False, *(descending for descending, _ in directions)],
            nulls_last=[False, *(not nulls_first for _, nulls_first in directions)],
        )  # fmt: skip
        groups = ordered.group_by("group", maintain_order=True).agg(pl.col(names[0]))
        joined = lists.select(pl.row_index("group")).join(groups, on="group", how="left", maintain_order="left")
        return joined.select(pl.col(names[0]).fill_null([]))
