"""Rows of a build side by number: grouping keys that are gathered for groups alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl
import pyarrow as pa

from gpujoin.backends.cpu.pipeline.aggregate import key_of
from gpujoin.backends.cpu.pipeline.piece import Piece, float_key, fresh
from gpujoin.functions.lowered import Column, as_lazy
from gpujoin.model.types import is_float

_ROW = "row"
_SAMPLE = 2_000
"""Rows of a sample that is searched for equal values first."""


@dataclass(frozen=True)
class NumberedRows:
    """Rows of a collected piece by number; see :class:`gpujoin.model.pipeline.NumberedRows`."""

    piece: Piece
    late: Piece
    """The late keys of its rows."""

    @property
    def rows(self) -> int:
        return self.piece.rows

    def numbered(self, columns: Sequence[int]) -> Piece:
        name = fresh()
        number = Column(name, pa.int64(), as_lazy((0, max(0, self.rows - 1)), pa.int64()))
        frame = self.piece.frame.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(name))
        return dataclasses.replace(self.piece, frame=frame, columns=(*(self.piece.columns[n] for n in columns), number))

    def alike(self, late: Sequence[int]) -> pl.Series:
        columns = {str(n): self.late.columns[n] for n in late}
        keys = self.late.frame.select(key_of(column).alias(name) for name, column in columns.items()).collect()
        numbers = pl.int_range(keys.height, dtype=pl.Int64, eager=True).alias(_ROW)
        if any(map(_is_key, keys.get_columns())):
            return numbers
        first = pl.col(_ROW).first().over(list(columns))
        is_known = ~pl.all_horizontal(pl.col(list(columns)).is_null())
        return keys.with_columns(numbers).select(pl.when(is_known).then(first)).to_series()

    def renumbered(self, piece: Piece, numbers: pl.Series) -> Piece:
        rows = piece.collect()
        frame = rows.rows_of_query()
        *others, old = rows.columns
        new = dataclasses.replace(old, name=fresh())
        replaced = numbers.gather(frame[old.name]).alias(new.name)
        return rows.with_rows(frame.with_columns(replaced), (*others, new))

    def appended(self, piece: Piece, position: int) -> Piece:
        """Append late columns within the piece's query, so that only rows and columns that are needed are gathered."""
        number = pl.col(piece.columns[position].name)
        renamed = [dataclasses.replace(column, name=fresh()) for column in self.late.columns]
        values = [self._values[column.name] for column in self.late.columns]
        gathered = [
            number.map_batches(series.gather, series.dtype, is_elementwise=True).alias(column.name)
            for series, column in zip(values, renamed, strict=True)
        ]
        return dataclasses.replace(piece, frame=piece.frame.with_columns(gathered), columns=(*piece.columns, *renamed))

    @cached_property
    def _values(self) -> pl.DataFrame:
        """The late keys in one chunk each: gathering from many chunks takes several times as long.

        Floats are as keys of groups are: without negative zeros.
        """
        floats = [column for column in self.late.columns if is_float(column.dtype)]
        keys = [float_key(pl.col(column.name), column.dtype).alias(column.name) for column in floats]
        return self.late.frame.with_columns(keys).collect().rechunk()


def _is_key(values: pl.Series) -> bool:
    """Whether values are distinct and none is null. For most columns a sample shows that two are equal."""
    sample = values.head(_SAMPLE)
    return sample.n_unique() == len(sample) and not values.null_count() and values.n_unique() == len(values)
