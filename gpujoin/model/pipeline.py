"""What a backend offers to run relational nodes over pieces, and what is counted while it does.

A *piece* is some rows of a relation in the backend's own form. It may be a query not yet run: filters and projections
on it cost nothing until the rows are asked for, so that a backend can fuse them with the scan below or the aggregation
above.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side
from gpujoin.model.reasons import Reason
from gpujoin.model.relations import Constant, FileFooter, Join, PartialAggregate, Relation, Scan, SortKey

Piece = TypeVar("Piece")


@dataclass(slots=True)
class PipelineMetrics:
    """Counters of pipelines in one task; :meth:`merge` adds up tasks.

    Attributes
    ----------
    files : int
        File slices read.
    row_groups, skipped_row_groups : int
        Row groups read, and those left out by their statistics.
    scanned_rows, fed_rows, output_rows, output_batches : int
        Rows of the row groups read, of feeds, and of the result.
    evaluated : int
        Expressions computed outside the backend's query, once for each piece.
    query_joins, gather_joins : int
        Pieces joined within the query, and by the gather-map engine.
    groups : int
        Groups that partial aggregations gave out.
    early_groups : int
        Of these, before all input was seen.
    """

    files: int = 0
    row_groups: int = 0
    skipped_row_groups: int = 0
    scanned_rows: int = 0
    fed_rows: int = 0
    output_rows: int = 0
    output_batches: int = 0
    evaluated: int = 0
    query_joins: int = 0
    gather_joins: int = 0
    groups: int = 0
    early_groups: int = 0

    def merge(self, other: PipelineMetrics) -> None:
        """Add another task's counters to this one's."""
        for item in dataclasses.fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


class Aggregation(Protocol[Piece]):
    """A partial aggregation in progress."""

    def add(self, piece: Piece) -> Iterator[Piece]:
        """Take rows in; give out groups where there are too many to hold."""
        ...

    def finish(self) -> Iterator[Piece]:
        """Give out the rest."""
        ...


class Lookup(Protocol[Piece]):
    """A join whose build side is ready, run within the backend's query."""

    def join(self, piece: Piece) -> Piece:
        """Join rows of the stream side; output as the join's schema says."""
        ...


class PipelineBackend(Protocol[Piece]):
    """Relational nodes over pieces."""

    def obstacles(self, node: Relation) -> tuple[Reason, ...]:
        """Tell why one node, its inputs aside, cannot be run exactly as Spark would."""
        ...

    def scan(self, node: Scan, piece_bytes: int, metrics: PipelineMetrics) -> Iterator[Piece]:
        """Read Parquet. Raises :class:`~gpujoin.errors.ScanError`."""
        ...

    def footer(self, node: Scan, path: str, constants: tuple[Constant, ...]) -> FileFooter:
        """Read what planning needs to know of a file. Raises :class:`~gpujoin.errors.ScanError`."""
        ...

    def take_in(
        self, batches: Sequence[pa.RecordBatch], schema: pa.Schema, metrics: PipelineMetrics
    ) -> Piece:
        """Make a piece of Arrow batches, in any layout of the schema's values."""
        ...

    def give_out(self, piece: Piece, schema: pa.Schema, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """Give rows as batches of exactly a schema, none empty."""
        ...

    def filter(self, piece: Piece, condition: Expression) -> Piece:
        """Keep the rows for which a condition is true."""
        ...

    def project(self, piece: Piece, expressions: Sequence[Expression]) -> Piece:
        """Give one column per expression."""
        ...

    def collect(self, piece: Piece) -> Piece:
        """Run what has been put off."""
        ...

    def size(self, piece: Piece) -> tuple[int, int]:
        """Rows and bytes of a collected piece."""
        ...

    def concat(self, pieces: Sequence[Piece], schema: pa.Schema, metrics: PipelineMetrics) -> Piece:
        """Put pieces together, collected."""
        ...

    def aggregation(
        self,
        node: PartialAggregate,
        memory_budget: int,
        metrics: PipelineMetrics,
        spill_directory: Callable[[], Path],
    ) -> Aggregation[Piece]:
        """Start a partial aggregation; it calls ``spill_directory`` for an empty directory if it must spill."""
        ...

    def top(self, piece: Piece, order: Sequence[SortKey], count: int) -> Piece:
        """Give the first rows in an order, collected."""
        ...

    def head(self, piece: Piece, count: int) -> Piece:
        """Give some rows, collected."""
        ...

    def lookup(self, node: Join, build: Piece) -> Lookup[Piece] | None:
        """Prepare to join within the query; ``None`` where that would not be exact, or not wise."""
        ...

    def join_schema(self, node: Join, side: Side) -> pa.Schema:
        """The layout in which one side's rows go to the gather-map engine."""
        ...

    def to_join(self, piece: Piece, node: Join, side: Side) -> pa.RecordBatch:
        """Rows for the gather-map engine, in that layout."""
        ...

    def from_join(
        self,
        batches: Iterable[pa.RecordBatch],
        node: Join,
        sides: dict[Side, Piece | None],
        metrics: PipelineMetrics,
    ) -> Iterator[Piece]:
        """Rows from the gather-map engine; what is known of the sides' columns is known of theirs."""
        ...


AnyPipelineBackend: TypeAlias = PipelineBackend[Any]
