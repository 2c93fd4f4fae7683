"""Rows of a build side by number: grouping keys that are gathered for groups alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from gpujoin.backends.cpu.pipeline.aggregate import key_of
from gpujoin.backends.cpu.pipeline.columns import Column, as_lazy
from gpujoin.backends.cpu.pipeline.piece import Piece, fresh

_ROW = "row"


@dataclass(frozen=True)
class NumberedRows:
    """Rows of a collected piece by number; see :class:`gpujoin.model.pipeline.NumberedRows`."""

    piece: Piece
    late: Piece
    """The late keys of its rows."""
    codes: pl.Series | None = None
    """Code of each row; ``None``: its number."""
    first: pl.Series | None = None
    """A row of each code; ``None``: that of the number."""

    @property
    def rows(self) -> int:
        return self.piece.rows

    def kept(self, columns: Sequence[int]) -> Piece:
        name = fresh()
        number = Column(name, pa.int64(), as_lazy((0, max(0, self.rows - 1)), pa.int64()))
        frame = self.piece.frame.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(name))
        return dataclasses.replace(self.piece, frame=frame, columns=(*(self.piece.columns[n] for n in columns), number))

    def coded(self) -> NumberedRows:
        columns = {str(n): column for n, column in enumerate(self.late.columns)}
        keys = self.late.frame.select(key_of(column).alias(name) for name, column in columns.items())
        rows = keys.with_row_index(_ROW).collect()
        groups = rows.group_by(list(columns)).agg(pl.col(_ROW))
        groups = groups.filter(~pl.all_horizontal(pl.col(list(columns)).is_null()))
        lengths = groups[_ROW].list.len().to_numpy()
        codes = np.full(self.rows, -1, np.int64)
        codes[groups[_ROW].explode(empty_as_null=False).to_numpy()] = np.repeat(np.arange(groups.height), lengths)
        coded = pl.Series(codes)
        coded = pl.select(pl.when(coded >= 0).then(coded)).to_series()
        return dataclasses.replace(self, codes=coded, first=groups[_ROW].list.first())

    def recoded(self, piece: Piece) -> Piece:
        """Put codes in place of the numbers, which are a piece's last column."""
        assert self.codes is not None
        taken = piece.collect()
        frame = taken.run(taken.frame)
        *others, number = taken.columns
        code = dataclasses.replace(number, name=fresh())
        codes = self.codes.gather(frame[number.name]).alias(code.name)
        return dataclasses.replace(taken, frame=frame.with_columns(codes).lazy(), columns=(*others, code))

    def appended(self, piece: Piece, position: int) -> Piece:
        taken = piece.collect()
        frame = taken.run(taken.frame)
        numbers = frame[taken.columns[position].name]
        if self.first is not None:
            numbers = self.first.gather(numbers)
        renamed = [dataclasses.replace(column, name=fresh()) for column in self.late.columns]
        values = self.late.frame.select(
            pl.col(old.name).alias(new.name) for old, new in zip(self.late.columns, renamed, strict=True)
        ).collect()
        return dataclasses.replace(
            taken, frame=frame.with_columns(values[numbers].get_columns()).lazy(), columns=(*taken.columns, *renamed)
        )
