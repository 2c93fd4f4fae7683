"""The pipeline backend of the CPU, which runs relational nodes as Polars queries."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from gpujoin.backends.cpu.pipeline import joins, parquet
from gpujoin.backends.cpu.pipeline.aggregate import HASH_SEED, PolarsAggregation, key_of
from gpujoin.backends.cpu.pipeline.joins import OneRowJoin, QueryJoin
from gpujoin.backends.cpu.pipeline.latekeys import NumberedRows
from gpujoin.backends.cpu.pipeline.offers import is_late
from gpujoin.backends.cpu.pipeline.piece import Piece, compact, concat, float_key, to_batches
from gpujoin.backends.cpu.pipeline.valueranges import value_ranges
from gpujoin.backends.cpu.pipeline.windows import window
from gpujoin.functions.lower import Extent, lower
from gpujoin.functions.lowered import NotLowered, Unmeasured
from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.files import FileFormat, Floor, ValueRanges
from gpujoin.model.jointype import Side
from gpujoin.model.pipeline import FAN_OUT, PipelineMetrics, Rung
from gpujoin.model.relations import (
    FileFooter,
    Join,
    PartialAggregate,
    Scan,
    SortKey,
    Window,
)
from gpujoin.model.types import is_float, logical

_SAMPLE = 1 << 16
"""Rows of the sample in which the commonest key is counted."""


class CpuPipeline:
    """Runs relational nodes as Polars queries. The rung says how much is left to Polars."""

    def __init__(self, rung: Rung = Rung.FAST) -> None:
        self._rung = rung
        self._extent = Extent.COLUMNS if rung is Rung.CAREFUL else Extent.ALL

    @property
    def faults(self) -> tuple[type[BaseException], ...]:
        """Exceptions of Polars that are no ``Exception``: panics."""
        return (pl.exceptions.PolarsError, pl.exceptions.PanicException)

    @property
    def joins(self) -> None:
        return None

    def budget(self, host_budget: int) -> int:
        return host_budget

    def scan(self, node: Scan, piece_bytes: int, metrics: PipelineMetrics) -> Iterator[Piece]:
        return _reader(node).read(node, metrics, piece_bytes=piece_bytes, rung=self._rung)

    def footer(self, node: Scan, path: str) -> FileFooter:
        return _reader(node).footer(node, path)

    def take_in(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema, metrics: PipelineMetrics) -> Piece:
        return Piece.of_batches(batches, schema, metrics)

    def give_out(self, piece: Piece, schema: pa.Schema, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        return to_batches(piece, schema, batch_bytes)

    def filter(self, piece: Piece, condition: Expression) -> Piece:
        return piece.filter(condition, extent=self._extent)

    def project(self, piece: Piece, expressions: Sequence[Expression]) -> Piece:
        return piece.compute(expressions, extent=self._extent)

    def collect(self, piece: Piece) -> Piece:
        return piece.collect().compacted()

    def size(self, piece: Piece) -> tuple[int, int]:
        return piece.rows, piece.nbytes

    def concat(self, pieces: Sequence[Piece], schema: pa.Schema, metrics: PipelineMetrics) -> Piece:
        return concat(pieces, [logical(f.type) for f in schema], metrics)

    def aggregate(self, node: PartialAggregate, metrics: PipelineMetrics) -> PolarsAggregation:
        return PolarsAggregation(node, self._extent, metrics)

    def window(self, piece: Piece, node: Window) -> Piece:
        return window(piece, node, self._extent, piece.metrics)

    def divide(self, piece: Piece, columns: Sequence[int], division: int) -> list[Piece]:
        keys = [key_of(piece.columns[i]).alias(str(number)) for number, i in enumerate(columns)]
        hashes = piece.run(piece.frame.select(keys)).hash_rows(seed=HASH_SEED + division)
        numbers = pl.lit(hashes % FAN_OUT)
        return [piece.where(numbers == part).collect() for part in range(FAN_OUT)]

    def top(self, piece: Piece, order: Sequence[SortKey], count: int) -> Piece:
        if not order:
            return dataclasses.replace(piece, frame=piece.frame.head(count)).collect().compacted()
        own: list[Expression] = [
            ColumnRef(side=Side.LEFT, name=column.name, index=i, type=column.dtype)
            for i, column in enumerate(piece.columns)
        ]
        keyed = piece.compute([*own, *(key.expression for key in order)], extent=self._extent)
        by = [
            float_key(pl.col(column.name), column.dtype) if is_float(column.dtype) else pl.col(column.name)
            for column in keyed.columns[len(own) :]
        ]
        frame = keyed.frame.sort(
            by,
            descending=[key.descending for key in order],
            nulls_last=[not key.nulls_first for key in order],
        ).head(count)
        best = dataclasses.replace(keyed, frame=frame, columns=keyed.columns[: len(own)]).collect()
        return compact(best)

    def lookup(self, node: Join, build: Piece) -> OneRowJoin | QueryJoin | None:
        """Prepare a join within the query."""
        return (
            None
            if self._rung is Rung.CAREFUL
            else OneRowJoin.from_node(node, build) or QueryJoin.from_node(node, build)
        )

    def heaviest(self, piece: Piece, keys: Sequence[int]) -> int:
        columns = [piece.columns[i] for i in keys]
        if any(is_late(column.dtype) for column in columns):
            return 0
        names = list(dict.fromkeys(column.name for column in columns))
        ranges = [bounds[1] - bounds[0] + 1 for column in columns if (bounds := column.bounds.get()) is not None]
        rows = piece.rows - max(piece.values(column).null_count() for column in columns)
        least = rows // math.prod(ranges) if len(ranges) == len(columns) else 0
        step = max(1, piece.rows // _SAMPLE)
        sample = piece.frame.gather_every(step).select(names).drop_nulls()
        return max(least, piece.run(sample.group_by(names).len().select(pl.col("len").max())).item() or 0)

    def numbered_rows(self, piece: Piece, late: Sequence[Expression]) -> NumberedRows:
        return NumberedRows(piece, self.project(piece, late).collect())

    def value_ranges(self, piece: Piece, column: int, most: int) -> ValueRanges | None:
        return value_ranges(piece, column, most)

    def floor(self, piece: Piece) -> Floor | None:
        return piece.floor

    def proves(self, expressions: Sequence[Expression], pieces: Sequence[Piece]) -> bool:
        """Whether the known bounds prove that expressions cannot fail."""
        columns = [column for piece in pieces for column in piece.columns]
        try:
            for expression in expressions:
                lower(expression, columns, self._extent)
        except (NotLowered, Unmeasured):
            return False
        return True

    def join_schema(self, node: Join, side: Side, *, values: bool) -> pa.Schema:
        return joins.join_schema(node, side, values=values)

    def to_join(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return joins.to_join(piece, schema)

    def from_join(
        self,
        batches: Iterable[pa.RecordBatch],
        node: Join,
        sides: dict[Side, Piece | None],
        metrics: PipelineMetrics,
    ) -> Iterator[Piece]:
        return joins.from_join(batches, node, sides, metrics)


def _reader(node: Scan) -> Any:
    """The module that reads the files of a scan; few programs have ORC files."""
    if node.format is FileFormat.ORC:
        from gpujoin.backends.cpu.pipeline import orc

        return orc
    return parquet
