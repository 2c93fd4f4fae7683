"""Pieces on the CPU: rows of a relation as a lazy Polars query, with bounds of the columns."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import arrow_of, column_of, is_wide, remeasured
from gpujoin.backends.cpu.pipeline.late import (
    MOST_TOGETHER,
    NUMBER,
    LateColumn,
    compacted,
    from_arrow,
    late_column,
    late_from_arrow,
    over_numbers,
    portions,
    reads_late,
)
from gpujoin.backends.cpu.pipeline.offers import is_late, passes_on
from gpujoin.errors import DecodeError
from gpujoin.functions.evaluate import evaluate, evaluate_column
from gpujoin.functions.lower import Extent, lower
from gpujoin.functions.lowered import Column, Lowered, NotLowered, Unmeasured, as_column, as_lazy, polars_type
from gpujoin.model.expressions import ColumnRef, Expression, conjuncts
from gpujoin.model.files import Floor
from gpujoin.model.jointype import Side
from gpujoin.model.layouts import nulls
from gpujoin.model.pipeline import PIECE_BYTES, PipelineMetrics
from gpujoin.model.types import logical

ROW = "row"
"""Name of the column that keeps the number of rows of a frame without columns, which Polars would lose."""

_names = itertools.count()


def fresh() -> str:
    """A new column name, unique in this process."""
    return f"c{next(_names)}"


@dataclass(frozen=True)
class Piece:
    """Rows of a relation, as a lazy query."""

    frame: pl.LazyFrame
    """Query that computes the rows."""
    columns: tuple[Column, ...]
    """Columns of the relation, in order. The frame may have others, and a column of it may occur several times."""
    rows: int
    """Most rows that the query returns."""
    files: tuple[str, ...] = ()
    """Files that are read when the query runs."""
    metrics: PipelineMetrics = field(default_factory=PipelineMetrics, compare=False, repr=False)
    """Counters to add to."""
    floor: Floor | None = None
    """What is known of the rows that come after, if these are rows of a scan, filtered or projected."""
    _collected: tuple[pl.LazyFrame, pl.DataFrame] | None = field(default=None, compare=False, repr=False)
    """A query that has run, and its rows: those of the piece while its query is still that one."""

    # -- in and out ----------------------------------------------------------------------------------------

    @classmethod
    def of_columns(cls, columns: Sequence[tuple[pl.Series, Column]], metrics: PipelineMetrics) -> Piece:
        """Make a piece of columns in memory."""
        frame = pl.DataFrame([series for series, _ in columns])
        query = frame.lazy()
        described = tuple(column for _, column in columns)
        return cls(query, described, frame.height, metrics=metrics, _collected=(query, frame))

    @classmethod
    def of_batches(cls, batches: Sequence[pa.RecordBatch], schema: pa.Schema, metrics: PipelineMetrics) -> Piece:
        """Make a piece of Arrow data, in any layout of the schema's values."""
        if not len(schema):
            return without_columns(sum(batch.num_rows for batch in batches), metrics)
        if not batches:
            return empty([logical(f.type) for f in schema], metrics)
        columns = []
        for i, target in enumerate(schema):
            batch_type = batches[0].schema.field(i).type
            values = pa.chunked_array([batch.column(i) for batch in batches], batch_type)
            columns.append(from_arrow(fresh(), values, target.type))
        return cls.of_columns(columns, metrics)

    def collect(self) -> Piece:
        """Run the query. The values of the result are in memory, so their bounds can be computed."""
        expressions = self._column_expressions()
        frame = self.in_memory
        if frame is None or frame.width > len(expressions):
            frame = self.run(self.frame.select(expressions))
        columns = tuple(
            column if column.bounds.measured else remeasured(column, frame[column.name]) for column in self.columns
        )
        return dataclasses.replace(self.with_rows(frame, columns), floor=self.floor)

    def with_rows(self, frame: pl.DataFrame, columns: Sequence[Column] | None = None) -> Piece:
        """A piece of rows in memory, with the columns of this one or others, that needs nothing of this one's query."""
        query = frame.lazy()
        described = self.columns if columns is None else tuple(columns)
        return Piece(query, described, frame.height, metrics=self.metrics, _collected=(query, frame))

    def compacted(self) -> Piece:
        """Hold no more values of late columns in memory than the rows of a collected piece need, about."""
        late = {column.name: column for column in self.columns if isinstance(column, LateColumn)}
        if not late:
            return self
        frame = self.rows_of_query()
        pairs = {name: pair for name, each in late.items() if (pair := compacted(each, frame[name])) is not None}
        if not pairs:
            return self
        columns = [pairs[column.name][1] if column.name in pairs else column for column in self.columns]
        whole = frame.with_columns(series for series, _ in pairs.values())
        return dataclasses.replace(self.with_rows(whole, columns), floor=self.floor)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows; the query runs if it has not."""
        late = (column.nbytes(self.rows) for column in self.columns if isinstance(column, LateColumn))
        return int(self.rows_of_query().estimated_size()) + sum(late)

    @property
    def in_memory(self) -> pl.DataFrame | None:
        """The rows, if the query has run."""
        return self._collected[1] if self._collected is not None and self._collected[0] is self.frame else None

    def rows_of_query(self) -> pl.DataFrame:
        """The rows, with all columns of the query, which runs if it has not."""
        frame = self.in_memory
        return self.run(self.frame) if frame is None else frame

    def values(self, column: Column) -> pl.Series:
        """The values of a column; the query runs if it has not."""
        frame = self.in_memory
        return self.run(self.frame.select(column.name)).to_series() if frame is None else frame[column.name]

    def run(self, query: pl.LazyFrame) -> pl.DataFrame:
        """Run a query that starts from the piece's query.

        Raises ``DecodeError`` if Polars cannot read a file, because it is corrupt, was removed, or has text that is
        no UTF-8.
        """
        if not self.files:
            return query.collect()
        try:
            return query.collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as problem:
            raise DecodeError(f"{', '.join(self.files)}: cannot be read; truncated or corrupt? {problem}") from problem

    def _column_expressions(self) -> list[pl.Expr]:
        names = list(dict.fromkeys(column.name for column in self.columns))
        return [pl.col(name) for name in names] if names else [pl.first()]

    def eager(self) -> pl.DataFrame:
        """The columns of the relation as a frame, named by position."""
        if not self.columns:
            height = self.run(self.frame.select(pl.len())).item()
            return pl.DataFrame({ROW: pl.zeros(height, pl.Int8, eager=True)})
        frame = self.in_memory
        if frame is not None:
            return pl.DataFrame([frame[column.name].alias(str(i)) for i, column in enumerate(self.columns)])
        return self.run(self.frame.select([pl.col(column.name).alias(str(i)) for i, column in enumerate(self.columns)]))

    # -- operators -----------------------------------------------------------------------------------------

    def filter(self, condition: Expression, *, split: bool = True, extent: Extent = Extent.ALL) -> Piece:
        """Keep the rows for which a condition is true.

        With ``split``, conjuncts are applied one after the other, as in Spark's filters: each sees only rows for
        which those before it are true.
        """
        piece = self
        for part in conjuncts(condition) if split else (condition,):
            piece, (lowered,) = piece.lowered([part], extent)
            if lowered is not None:
                piece = piece.where(lowered.expr)
            else:
                piece = piece.collect()
                piece.metrics.count("evaluated")
                mask = np.concatenate([evaluate(part, batch, _NO_COLUMNS, rows) for batch, rows in piece.batches(part)])
                piece = piece.where(pl.lit(pl.Series(mask)), rows=int(np.count_nonzero(mask)))
                piece = piece.collect()
        return piece

    def where(self, mask: pl.Expr, rows: int | None = None) -> Piece:
        """Keep the rows at which a mask is true."""
        return dataclasses.replace(self, frame=self.frame.filter(mask), rows=self.rows if rows is None else rows)

    def compute(self, expressions: Sequence[Expression], *, extent: Extent = Extent.ALL) -> Piece:
        """Compute one column for each expression; ``extent`` says which become part of the query."""
        if not expressions:
            return dataclasses.replace(self, columns=())
        piece, lowered = self.lowered(expressions, extent)
        if not all(lowered):
            piece = piece.collect()
        added: list[pl.Expr] = []
        columns: list[Column] = []
        for expression, value in zip(expressions, lowered, strict=True):
            if value is None:
                series, described = piece.evaluated(expression)
                added.append(pl.lit(series).alias(described.name))
                columns.append(described)
            elif isinstance(expression, ColumnRef):
                columns.append(dataclasses.replace(piece.columns[expression.index], dtype=logical(expression.type)))
            else:
                name = fresh()
                any_column = pl.col(piece.columns[0].name) if piece.columns else pl.first()
                added.append(as_column(value, any_column).alias(name))
                described = Column(name, value.dtype, as_lazy(value.bounds, value.dtype), value.wide, value.constant)
                columns.append(piece.passed_on(expression, name) if passes_on(expression) else described)
        frame = piece.frame.with_columns(added) if added else piece.frame
        result = dataclasses.replace(piece, frame=frame, columns=tuple(columns))
        # A column that was computed outside the query must not be moved past a filter within it.
        return result if all(lowered) else result.collect()

    def lowered(
        self, expressions: Sequence[Expression], extent: Extent = Extent.ALL
    ) -> tuple[Piece, list[Lowered | None]]:
        """Translate expressions to Polars expressions; ``None`` for those that must be evaluated.

        Where a proof needs the bounds of columns that are not read yet, the query runs first. The expressions refer to
        the piece that is returned.
        """
        try:
            return self, [_lowered(expression, self.columns, extent) for expression in expressions]
        except Unmeasured:
            piece = self.collect()
            return piece, [_lowered(expression, piece.columns, extent) for expression in expressions]

    def passed_on(self, expression: Expression, name: str) -> LateColumn:
        """Describe the numbers that an expression gives that passes late values on."""
        assert expression.type is not None
        columns = (self.columns[ref.index] for ref in expression.columns())
        arrays = {n: each for column in columns if isinstance(column, LateColumn) for n, each in column.arrays.items()}
        return late_column(name, expression.type, arrays)

    def evaluated(self, expression: Expression) -> tuple[pl.Series, Column]:
        """Compute a column by the expression evaluator; the piece must have been collected."""
        self.metrics.count("evaluated")
        name, node = fresh(), over_numbers(expression, len(self.columns))
        assert node.type is not None
        parts = [evaluate_column(node, batch, _NO_COLUMNS, rows) for batch, rows in self.batches(node)]
        series, column = from_arrow(name, pa.chunked_array(parts), node.type)
        return series, self.passed_on(expression, name) if passes_on(expression) else column

    def batches(self, node: Expression) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The columns that an expression reads, as Arrow, and how many rows; the other columns are placeholders.

        Rows whose late values are many come in several batches.
        """
        assert all(ref.side is Side.LEFT for ref in node.columns()), node
        columns, width = _with_numbers(self.columns), len(self.columns)
        indices = {ref.index for ref in node.columns()}
        frame = self.in_memory
        if frame is None and indices:
            frame = self.frame.select(list(dict.fromkeys(columns[i].name for i in indices))).collect()
        if frame is None:
            frame = pl.DataFrame({ROW: pl.zeros(self.rows, pl.Int8, eager=True)})
        late = {i: column for i, column in enumerate(self.columns) if i in indices and isinstance(column, LateColumn)}
        for part in portions(frame, {column.name: column for column in late.values()}, PIECE_BYTES):
            arrays = [
                pa.nulls(part.height) if i not in indices
                else late[i].gather(part[column.name]) if i in late
                else arrow_of(part[column.name], column.dtype if i < width else NUMBER)
                for i, column in enumerate(columns)
            ]  # fmt: skip
            yield pa.RecordBatch.from_arrays(arrays, names=[str(i) for i in range(len(arrays))]), part.height

    def slice(self, start: int, length: int) -> Piece:
        """Rows ``start`` to ``start + length - 1`` of a collected piece."""
        return dataclasses.replace(
            self, frame=self.frame.slice(start, length), rows=max(0, min(length, self.rows - start))
        )


_NO_COLUMNS = pa.RecordBatch.from_arrays([], names=[])


def _lowered(expression: Expression, columns: Sequence[Column], extent: Extent) -> Lowered | None:
    node = over_numbers(expression, len(columns))
    try:
        return None if reads_late(node) else lower(node, _with_numbers(columns), extent)
    except NotLowered:
        return None


def _with_numbers(columns: Sequence[Column]) -> Sequence[Column]:
    """The columns of a piece; where some of them are late, then all once more, as their numbers."""
    return [*columns, *columns] if any(isinstance(column, LateColumn) for column in columns) else columns


def concat(pieces: Sequence[Piece], dtypes: Sequence[pa.DataType], metrics: PipelineMetrics) -> Piece:
    """Concatenate pieces of a relation, collected."""
    frames = [piece.eager() for piece in pieces]
    if not dtypes:
        return without_columns(sum(frame.height for frame in frames), metrics)
    if not frames:
        return empty(dtypes, metrics)
    wide = [any(is_wide(frame.get_columns()[i], logical(dtype)) for frame in frames) for i, dtype in enumerate(dtypes)]
    widened = [
        frame.with_columns(
            pl.col(str(i)).cast(polars_type(dtype, wide=True)) for i, dtype in enumerate(dtypes) if wide[i]
        )
        for frame in frames
    ]
    whole = pl.concat(widened, rechunk=True)
    pairs = list(zip(pieces, frames, strict=True))
    columns: list[tuple[pl.Series, Column]] = []
    for i, (series, dtype) in enumerate(zip(whole.get_columns(), dtypes, strict=True)):
        name = fresh()
        if is_late(dtype):
            columns.append(_together([(piece.columns[i], frame.to_series(i)) for piece, frame in pairs], name, dtype))
        else:
            columns.append((series.alias(name), column_of(name, series, dtype, wide=is_wide(series, logical(dtype)))))
    return Piece.of_columns(columns, metrics)


def _together(
    columns: Sequence[tuple[Column, pl.Series]], name: str, dtype: pa.DataType
) -> tuple[pl.Series, LateColumn]:
    """Put late columns of pieces, with their numbers, together; a value that rows of one piece share stays one."""
    arrays: list[pa.Array] = []
    places: list[npt.NDArray[np.int64]] = []
    values, is_shared = 0, False
    for column, numbers in columns:
        assert isinstance(column, LateColumn)
        parts, own = column.distinct(numbers, dtype, copy=False)
        is_shared = is_shared or own is not None
        places.append(values + (np.arange(len(numbers)) if own is None else own))
        values += sum(map(len, parts))
        arrays += parts
    whole = np.concatenate(places) if is_shared else None
    return late_from_arrow(name, pa.chunked_array(arrays, dtype), dtype, MOST_TOGETHER, whole)


def compact(piece: Piece) -> Piece:
    """Copy the texts of a collected piece, whose views otherwise keep the texts of all rows they were taken from."""
    piece = piece.compacted()
    texts = [name for name, dtype in piece.frame.collect_schema().items() if dtype in (pl.String, pl.Binary)]
    if not texts:
        return piece
    frame = piece.rows_of_query()
    copied = [pl.Series(name, frame[name].to_arrow(compat_level=pl.CompatLevel.oldest())) for name in texts]
    return piece.with_rows(frame.with_columns(copied))


def empty(dtypes: Sequence[pa.DataType], metrics: PipelineMetrics) -> Piece:
    """A piece without rows."""
    return Piece.of_columns([from_arrow(fresh(), nulls(0, dtype), dtype) for dtype in dtypes], metrics)


def without_columns(rows: int, metrics: PipelineMetrics) -> Piece:
    """A piece of rows without columns."""
    frame = pl.DataFrame({ROW: pl.zeros(rows, pl.Int8, eager=True)})
    return Piece(frame.lazy(), (), rows, metrics=metrics)


def to_batches(piece: Piece, schema: pa.Schema, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Convert a piece to Arrow batches of exactly a schema.

    Batches are near ``batch_bytes``, not empty, and small enough for 32-bit offsets. Late values that are much larger
    than most make a batch larger: to twice as many bytes, or to ``PIECE_BYTES``.
    """
    frame = piece.eager()
    if frame.height == 0:
        return
    if not len(schema):
        yield pa.RecordBatch.from_arrays([pa.nulls(frame.height)], names=[ROW]).select([])
        return
    late = {str(i): column for i, column in enumerate(piece.columns) if isinstance(column, LateColumn)}
    size = max(1, int(frame.estimated_size()) + sum(column.nbytes(frame.height) for column in late.values()))
    step = max(1, min(frame.height, int(frame.height * batch_bytes / size)))
    most = min(_MOST_TEXT, max(PIECE_BYTES, 2 * batch_bytes))
    for start in range(0, frame.height, step):
        for part in portions(frame.slice(start, step), late, most):
            yield from _batches(part, late, schema)


_MOST_TEXT = (1 << 31) - 1


def _batches(frame: pl.DataFrame, late: Mapping[str, LateColumn], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for series, column in zip(frame.get_columns(), schema, strict=True):
        if series.dtype in (pl.String, pl.Binary) and frame.height > 1:
            sizes = series.str.len_bytes() if series.dtype == pl.String else series.bin.size()
            if int(sizes.cast(pl.Int64).sum()) > _MOST_TEXT:
                half = frame.height // 2
                yield from _batches(frame.slice(0, half), late, schema)
                yield from _batches(frame.slice(half), late, schema)
                return
        if not column.nullable and series.null_count():
            raise AssertionError(f"column {column.name!r} is declared without nulls, but has {series.null_count()}")
    arrays = [
        late[series.name].gather(series, field.type) if series.name in late else arrow_of(series, field.type)
        for series, field in zip(frame.get_columns(), schema, strict=True)
    ]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def float_key(expression: pl.Expr, dtype: pa.DataType) -> pl.Expr:
    """Make equal floats identical: a single NaN, and no negative zero.

    Adding a constant zero does not work: Polars skips it, so -0.0 would remain.
    """
    kind = pl.Float32 if pat.is_float32(dtype) else pl.Float64
    return (
        pl.when(expression.is_nan())
        .then(pl.lit(float("nan"), kind))
        .when(expression == 0)
        .then(pl.lit(0.0, kind))
        .otherwise(expression)
    )
