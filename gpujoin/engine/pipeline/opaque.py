"""Runs nodes over rows with *opaque* columns: of types that no pipeline backend holds, as arrays, maps and intervals.

Opaque columns only ride: no expression reads them, except keys and conditions of joins, which the gather-map engine
evaluates over Arrow data. A piece with such a column is an Arrow table; all other pieces are the backend's own. So rows
change their form from node to node. An example is ``select tags, v + 1 from l join r using (k)``, where ``tags`` is an
array::

    Project  tags, v + 1     table: tags is picked; the backend computes v + 1, which is put beside it
      Join   k = k           by the gather-map engine: batches of l as they are, of r as the backend gives them out
        Source l (k, tags)   table
        Source r (k, v)      piece of the backend
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.engine.pipeline.explode import exploded
from gpujoin.engine.pipeline.placement import MixedPipeline
from gpujoin.model.backend import AnyBackend
from gpujoin.model.expressions import Case, ColumnRef, Expression, Literal
from gpujoin.model.files import ValueRanges
from gpujoin.model.hostgather import own_bytes, take
from gpujoin.model.jointype import Side
from gpujoin.model.layouts import in_type
from gpujoin.model.pipeline import AnyPipelineBackend, Lookup, PipelineMetrics
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import (
    ExchangeSource,
    Explode,
    Join,
    Output,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    SortKey,
    TopN,
    Window,
    column,
    operation_name,
)
from gpujoin.model.sqltext import value_name
from gpujoin.plan.remap import remapped

_Inner: TypeAlias = Any
_Piece: TypeAlias = "pa.Table | _Inner"


def opaque_obstacles(node: Relation, backend: AnyPipelineBackend) -> tuple[Reason, ...]:
    """Reasons why a node, without its inputs, cannot be run because of opaque columns."""

    def reasons(fields: Iterable[pa.Field], why: str) -> tuple[Reason, ...]:
        return tuple(
            Reason(ReasonKind.UNSUPPORTED, operation_name(node), f"{value_name(field)} {why}")
            for field in fields
            if not backend.carries(pa.schema([field]))
        )

    match node:
        case Scan():
            readable = (pat.is_null(f.type) or _is_readable(f.type, backend) for f in node.schema)
            others = [f for f, is_read in zip(node.schema, readable, strict=True) if not is_read]
            return reasons(others, "is not read from files here")
        case PartialAggregate():
            lists = {field.name for call in node.aggregates if call.gives_list for field in call.buffer}
            aggregated = [field for field in node.schema if field.name not in lists]
            return reasons([*node.child.schema, *aggregated], "is not aggregated here")
        case Window():
            keyed = {*node.partition, *(ref.index for e in node.expressions() for ref in e.columns())}
            return reasons([node.schema.field(i) for i in sorted(keyed)], "is passed on only, not computed with")
        case TopN():
            schema = node.children[0].schema
            keys = [key.index for key in node.expressions() if isinstance(key, ColumnRef)]
            return reasons([schema.field(i) for i in keys], "is passed on only, not computed with")
    return ()


def _is_readable(dtype: pa.DataType, backend: AnyPipelineBackend) -> bool:
    """Whether a nested type is read from files: one of types that the backend carries."""
    if pat.is_list(dtype) or pat.is_map(dtype) or pat.is_struct(dtype):
        fields = [dtype.field(i) for i in range(dtype.num_fields)]
        return bool(fields) and all(_is_readable(field.type, backend) for field in fields)
    return backend.carries(pa.schema([pa.field("c", dtype)]))


def computed_part(node: Relation, backend: AnyPipelineBackend) -> Relation:
    """What a backend has to compute of a node: of opaque columns that a projection passes on, where they are null."""
    if not isinstance(node, Project):
        return node

    def computed(output: Output) -> Output:
        riding = None if backend.carries(pa.schema([output.field])) else _riding(output.expression)
        if riding is None or riding.condition is None:
            return output
        return Output(output.name, riding.condition)

    outputs = tuple(map(computed, node.outputs))
    return node if all(map(operator.is_, outputs, node.outputs)) else dataclasses.replace(node, outputs=outputs)


def renamed(piece: _Piece, schema: pa.Schema) -> _Piece:
    """Give a piece the names of a schema with the same types. Only tables have names."""
    return piece.rename_columns(schema.names) if isinstance(piece, pa.Table) else piece


@dataclass(frozen=True)
class _Riding:
    """A column that is passed on, under a condition or always; it is null elsewhere."""

    column: ColumnRef
    condition: Expression | None = None


def _riding(node: Expression) -> _Riding | None:
    match node:
        case ColumnRef():
            return _Riding(node)
        case Case(conditions=(condition,), values=(ColumnRef() as value,), otherwise=Literal(value=None)):
            return _Riding(value, condition)
    return None


class OpaquePipeline:
    """Runs nodes as a :class:`~gpujoin.model.pipeline.PipelineBackend` does, opaque columns included.

    The inner pipeline runs all nodes without opaque columns, and evaluates expressions. ``batch_bytes`` is the size
    of the batches in which its rows go to joins.
    """

    def __init__(self, inner: AnyPipelineBackend | MixedPipeline, metrics: PipelineMetrics, batch_bytes: int) -> None:
        self.inner = inner
        self._metrics = metrics
        self._batch_bytes = batch_bytes

    @property
    def joins(self) -> AnyBackend | None:
        """Backend for joins by the gather-map engine."""
        return self.inner.joins

    def budget(self, asked: int) -> int:
        """Bytes that a build side may take."""
        return self.inner.budget(asked)

    # -- sources -------------------------------------------------------------------------------------------

    def scan(self, node: Scan, piece_bytes: int, metrics: PipelineMetrics) -> Iterator[_Piece]:
        """Read files."""
        if self.inner.carries(node.schema):
            yield from self.inner.scan(node, piece_bytes, metrics)
            return
        for table in self.inner.scan_tables(node, piece_bytes, metrics):
            yield functools.reduce(self.filter, node.filters, table)

    def take_in(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema, metrics: PipelineMetrics) -> _Piece:
        """Convert Arrow batches to a piece."""
        if self.inner.carries(schema):
            return self.inner.take_in(batches, schema, metrics)
        return pa.Table.from_batches([_in_schema(batch, schema) for batch in batches], schema)

    def give_out(self, piece: _Piece, schema: pa.Schema, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """Convert a piece to batches of exactly a schema, none of them empty."""
        if not isinstance(piece, pa.Table):
            yield from self.inner.give_out(piece, schema, batch_bytes)
            return
        rows, size = self.size(piece)
        step = max(1, min(rows, int(rows * batch_bytes / max(1, size))))
        for batch in piece.to_batches(max_chunksize=step):
            if batch.num_rows:
                yield _in_schema(batch, schema)

    # -- nodes ---------------------------------------------------------------------------------------------

    def filter(self, piece: _Piece, condition: Expression) -> _Piece:
        """Keep the rows for which a condition is true."""
        if not isinstance(piece, pa.Table):
            return self.inner.filter(piece, condition)
        return self._chosen(piece, [condition], lambda rows, read: self.inner.filter(rows, read[0]))

    def project(self, piece: _Piece, expressions: Sequence[Expression]) -> _Piece:
        """Compute one column for each expression."""
        schema = _schema_of(expressions)
        if not isinstance(piece, pa.Table):
            if self.inner.carries(schema):
                return self.inner.project(piece, expressions)
            piece, expressions = self._columns_read(piece, expressions)
        if self.inner.carries(schema):
            return self.inner.project(*self._read(piece, expressions))
        piece, expressions = self._evaluated(piece, expressions)
        riding = [self._rides(node) for node in expressions]
        needed = [node if ride is None else ride.condition for node, ride in zip(expressions, riding, strict=True)]
        computed = {node.structure: node for node in needed if node is not None}
        values: dict[Any, pa.ChunkedArray] = {}
        if computed:
            results = self._out(self.inner.project(*self._read(piece, [*computed.values()])), [*computed.values()])
            values = dict(zip(computed, results.columns, strict=True))
        columns = [
            _passed_on(
                None if ride is None else piece.column(ride.column.index),
                None if node is None else values[node.structure],
            )
            for node, ride in zip(needed, riding, strict=True)
        ]
        projected = pa.Table.from_arrays(columns, names=schema.names)
        return pa.Table.from_batches([_in_schema(batch, schema) for batch in projected.to_batches()], schema)

    def collect(self, piece: _Piece) -> _Piece:
        """Run the query of a piece that is not computed yet."""
        return piece if isinstance(piece, pa.Table) else self.inner.collect(piece)

    def size(self, piece: _Piece) -> tuple[int, int]:
        """Rows and bytes of a collected piece."""
        if isinstance(piece, pa.Table):
            return piece.num_rows, own_bytes(piece)
        return self.inner.size(piece)

    def concat(self, pieces: Sequence[_Piece], schema: pa.Schema, metrics: PipelineMetrics) -> _Piece:
        """Put pieces together, collected."""
        if self.inner.carries(schema):
            return self.inner.concat(pieces, schema, metrics)
        return pa.concat_tables(pieces) if pieces else schema.empty_table()

    def explode(self, piece: _Piece, node: Explode) -> Iterator[_Piece]:
        """Make rows of the elements of lists or maps."""
        schema = node.child.schema
        table = piece if isinstance(piece, pa.Table) else self._out(piece, _all_columns(schema))
        for batch in table.to_batches():
            for made in exploded(batch, node):
                yield self.take_in([made], node.schema, self._metrics)

    def window(self, piece: _Piece, node: Window) -> _Piece:
        """Compute window functions."""
        if not isinstance(piece, pa.Table):
            return self.inner.window(piece, node)
        keys = [column(piece.schema, i) for i in node.partition]
        rows, number = self._numbered(piece, [*keys, *node.expressions()])
        source = ExchangeSource(0, _schema_of([*keys, *node.expressions(), number]))
        columns = iter([column(source.schema, i) for i in range(len(source.schema))])
        partition = tuple(next(columns).index for _ in keys)
        order = tuple(dataclasses.replace(key, expression=next(columns)) for key in node.order)
        moved = Window(source, partition, order, tuple(call.mapped(lambda _: next(columns)) for call in node.calls))
        computed = self.inner.window(self.inner.collect(rows), moved)
        last = len(source.schema) - 1
        results = [column(moved.schema, i) for i in range(last, len(moved.schema))]
        numbers, *values = self._out(self.inner.project(computed, results), results).columns
        passed = [take(values.combine_chunks(), numbers.combine_chunks()) for values in piece.columns]
        whole = pa.Table.from_arrays([*passed, *values], names=node.schema.names)
        return pa.Table.from_batches([_in_schema(batch, node.schema) for batch in whole.to_batches()], node.schema)

    def divide(self, piece: _Piece, columns: Sequence[int], division: int) -> Sequence[_Piece]:
        """Divide a piece by the hash of columns."""
        if not isinstance(piece, pa.Table):
            return self.inner.divide(piece, columns, division)
        rows, number = self._numbered(piece, [column(piece.schema, i) for i in columns])
        parts = self.inner.divide(self.inner.collect(rows), range(len(columns)), division)
        masks = np.zeros((len(parts), piece.num_rows), np.bool_)
        for mask, part in zip(masks, parts, strict=True):
            kept = self._out(self.inner.project(part, [number]), [number])
            mask[kept.column(0).to_numpy()] = True
        return [pa.Table.from_batches(_masked(piece, mask), piece.schema) for mask in masks]

    def top(self, piece: _Piece, order: Sequence[SortKey], count: int) -> _Piece:
        """The first rows in an order, collected."""
        if not isinstance(piece, pa.Table):
            return self.inner.top(piece, order, count)

        def first(rows: _Inner, keys: Sequence[Expression]) -> _Inner:
            moved = [dataclasses.replace(key, expression=e) for key, e in zip(order, keys, strict=True)]
            return self.inner.top(rows, moved, count)

        return self._chosen(piece, [key.expression for key in order], first)

    def head(self, piece: _Piece, count: int) -> _Piece:
        """Any ``count`` rows, collected."""
        return piece.slice(0, count) if isinstance(piece, pa.Table) else self.inner.head(piece, count)

    def heaviest(self, piece: _Piece, keys: Sequence[int]) -> int:
        """Number of rows of the commonest key in a sample; 0 for tables, which are not aggregated first."""
        return 0 if isinstance(piece, pa.Table) else self.inner.heaviest(piece, keys)

    def value_ranges(self, piece: _Piece, column: int, most: int) -> ValueRanges | None:
        """Ranges that hold a column's values."""
        if isinstance(piece, pa.Table):
            values = piece.select([column])
            if not self.inner.carries(values.schema):
                return None
            piece, column = self.inner.take_in(values.to_batches(), values.schema, self._metrics), 0
        return self.inner.value_ranges(piece, column, most)

    def proves(self, expressions: Sequence[Expression], pieces: Sequence[_Piece]) -> bool:
        """Whether expressions over two pieces cannot fail; of the values of tables no bounds are known."""
        if any(isinstance(piece, pa.Table) for piece in pieces):
            return False
        return self.inner.proves(expressions, pieces)

    # -- joins ---------------------------------------------------------------------------------------------

    def lookup(self, node: Join, build: _Piece) -> Lookup[Any] | None:
        """Prepare a join within the backend's query; ``None``: the join goes through Arrow."""
        return None if self._has_opaque(node) else self.inner.lookup(node, build)

    def join_schema(self, node: Join, side: Side) -> pa.Schema:
        """The layout in which one side's rows go to the gather-map engine."""
        return node.side(side).schema if self._has_opaque(node) else self.inner.join_schema(node, side)

    def to_join(self, piece: _Piece, node: Join, side: Side) -> Iterator[pa.RecordBatch]:
        """Rows for the gather-map engine, in that layout."""
        if self._has_opaque(node):
            return self.give_out(piece, node.side(side).schema, self._batch_bytes)
        return self.inner.to_join(piece, node, side)

    def from_join(
        self, batches: Iterable[pa.RecordBatch], node: Join, sides: dict[Side, _Piece | None],
        metrics: PipelineMetrics,
    ) -> Iterator[_Piece]:  # fmt: skip
        """Rows from the gather-map engine."""
        if not self._has_opaque(node):
            yield from self.inner.from_join(batches, node, sides, metrics)
            return
        for batch in batches:
            yield self.take_in([batch], node.schema, metrics)

    def _has_opaque(self, node: Join) -> bool:
        return not all(self.inner.carries(child.schema) for child in node.children)

    # -- between tables and pieces of the backend ----------------------------------------------------------

    def _read(self, table: pa.Table, expressions: Sequence[Expression]) -> tuple[_Inner, list[Expression]]:
        """The columns that expressions read as a piece, and the expressions over it."""
        table, expressions = self._evaluated(table, expressions)
        read = sorted({ref.index for node in expressions for ref in node.columns()})
        columns = table.select(read)
        batches = columns.to_batches()
        if not read:
            batches = [pa.record_batch({"rows": pa.nulls(table.num_rows)}).select([])]
        piece = self.inner.take_in(batches, columns.schema, self._metrics)
        positions = {index: position for position, index in enumerate(read)}
        return piece, [remapped(node, positions) for node in expressions]

    def _columns_read(self, piece: _Inner, expressions: Sequence[Expression]) -> tuple[pa.Table, list[Expression]]:
        """The columns of a piece that expressions read as a table, and the expressions over it."""
        refs = {ref.index: ref for node in expressions for ref in node.columns()}
        positions = {index: place for place, index in enumerate(refs)}
        read: list[Expression] = [*refs.values()] or [Literal(value=True, type=pa.bool_())]
        table = self._out(self.inner.project(piece, read), read)
        return table, [remapped(node, positions) for node in expressions]

    def _evaluated(self, table: pa.Table, expressions: Sequence[Expression]) -> tuple[pa.Table, list[Expression]]:
        """A table with columns for what reads opaque columns or gives one, and expressions that refer to these."""
        opaque = {i for i, field in enumerate(table.schema) if not self.inner.carries(pa.schema([field]))}
        evaluated: dict[Any, ColumnRef] = {}
        computed: list[Expression] = []
        result: list[Expression] = []
        for node in expressions:
            reads = any(ref.index in opaque for ref in node.columns())
            gives = not self.inner.carries(_schema_of([node]))
            if isinstance(node, ColumnRef) or not (reads or gives) or self._rides(node) is not None:
                result.append(node)
                continue
            if node.structure not in evaluated:
                place = table.num_columns + len(computed)
                evaluated[node.structure] = ColumnRef(side=Side.LEFT, name="computed", index=place, type=node.type)
                computed.append(node)
            result.append(evaluated[node.structure])
        for values in self.inner.evaluate(computed, table) if computed else ():
            table = table.append_column("computed", values)
        return table, result

    def _rides(self, node: Expression) -> _Riding | None:
        return _riding(node) if not self.inner.carries(_schema_of([node])) or isinstance(node, ColumnRef) else None

    def _out(self, piece: _Inner, expressions: Sequence[Expression]) -> pa.Table:
        """The columns of a piece, one for each expression, as a table."""
        schema = _schema_of(expressions)
        return pa.Table.from_batches(self.inner.give_out(piece, schema, self._batch_bytes), schema)

    def _numbered(self, table: pa.Table, expressions: Sequence[Expression]) -> tuple[_Inner, ColumnRef]:
        """What expressions give as a piece, then the rows' numbers, and a reference to those."""
        numbered = table.append_column("row", pa.array(np.arange(table.num_rows)))
        rows, read = self._read(numbered, [*expressions, column(numbered.schema, table.num_columns)])
        return self.inner.project(rows, read), column(_schema_of(read), len(expressions))

    def _chosen(
        self, table: pa.Table, expressions: Sequence[Expression],
        choose: Callable[[_Inner, Sequence[Expression]], _Inner],
    ) -> pa.Table:  # fmt: skip
        """The rows that the backend chooses, given the columns that its expressions read and the rows' numbers."""
        numbered = table.append_column("row", pa.array(np.arange(table.num_rows)))
        last = column(numbered.schema, table.num_columns)
        rows, (*read, number) = self._read(numbered, [*expressions, last])
        kept = self._out(self.inner.project(choose(rows, read), [number]), [number])
        mask = np.zeros(table.num_rows, np.bool_)
        mask[kept.column(0).to_numpy()] = True
        return pa.Table.from_batches(_masked(table, mask), table.schema)


def _passed_on(column: pa.ChunkedArray | None, computed: pa.ChunkedArray | None) -> pa.ChunkedArray:
    """What was computed, or a column, null where a computed condition is not true."""
    if column is None or computed is None:
        return computed if column is None else column
    mask = computed.fill_null(False).to_numpy()
    parts, start = [], 0
    for chunk in column.chunks:
        absent = ~mask[start : start + len(chunk)]
        start += len(chunk)
        parts.append(take(chunk, pa.array(np.arange(len(chunk)), mask=absent)))
    return pa.chunked_array(parts, column.type)


def _masked(table: pa.Table, mask: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in table.to_batches():
        part = mask[start : start + batch.num_rows]
        start += batch.num_rows
        if part.all():
            yield batch
        elif part.any():
            rows = pa.array(np.flatnonzero(part))
            yield pa.RecordBatch.from_arrays([take(c, rows) for c in batch.columns], schema=batch.schema)


def _all_columns(schema: pa.Schema) -> list[Expression]:
    return [column(schema, i) for i in range(len(schema))]


def _schema_of(expressions: Sequence[Expression]) -> pa.Schema:
    return pa.schema([(f"c{i}", expression.type) for i, expression in enumerate(expressions)])


def _in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch in exactly a schema, given one in any layout of the same values."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = [in_type(values, field.type) for values, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
