"""Joins within a Polars query, and conversion of rows for the gather-map engine and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.pipeline.columns import arrow_of, ascends, column_of
from gpujoin.backends.cpu.pipeline.late import NUMBER, LateColumn, from_arrow, late_column, portions
from gpujoin.backends.cpu.pipeline.offers import is_late
from gpujoin.backends.cpu.pipeline.piece import ROW, Piece, fresh, without_columns
from gpujoin.functions.lowered import Column, polars_type
from gpujoin.functions.utf8 import as_characters
from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.layouts import in_type
from gpujoin.model.pipeline import PIECE_BYTES, PipelineMetrics
from gpujoin.model.relations import Join
from gpujoin.model.spec import JoinSpec, NullEquality
from gpujoin.model.types import LONG_DIGITS, is_bytes, is_float, is_text, logical

_MOST_BUILD_ROWS = 1 << 18
"""Most build rows of a join in Polars, which hashes them again for each piece (`benchmarks/pipeline/README.md`)."""
_MOST_MATCHES = 4
"""Most build rows of a key of a join in Polars: with more, an output piece may become too large."""


@dataclass(frozen=True)
class QueryJoin:
    """A join that becomes part of the stream side's Polars query."""

    node: Join
    build: Piece
    matches: int
    """Most build rows of one key."""

    @classmethod
    def from_node(cls, node: Join, build: Piece) -> QueryJoin | None:
        """Prepare a join; ``None`` if Polars would not be exact, or if the gather-map engine is faster."""
        spec, side = node.spec, node.build_side
        stream = side.other
        plain = {
            Side.RIGHT: (JoinType.INNER, JoinType.LEFT, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI),
            Side.LEFT: (JoinType.INNER, JoinType.RIGHT),
        }[side]
        if spec.join_type not in plain or not spec.keys or build.rows > _MOST_BUILD_ROWS:
            return None
        if spec.as_of is not None or (spec.condition is not None and spec.join_type is not JoinType.INNER):
            return None
        for key in spec.keys:
            build_type = logical(node.side(side).schema.field(key.of(side)).type)
            stream_type = logical(node.side(stream).schema.field(key.of(stream)).type)
            if key.nulls is not NullEquality.UNEQUAL or build_type != stream_type:
                return None
            if is_float(build_type) or is_late(build_type):
                return None
        matches = 1
        if not spec.join_type.left_rows_only and build.rows:
            matches = _most_matches(build, [build.columns[key.of(side)] for key in spec.keys])
            if matches > _MOST_MATCHES:
                return None
        return cls(node, build, max(1, matches))

    def join(self, piece: Piece) -> Iterator[Piece]:
        """Join rows of the stream side."""
        yield self._joined(piece)

    def finish(self) -> Iterator[Piece]:
        """No rows: the join types of this class return no build rows by themselves."""
        return iter(())

    def _joined(self, piece: Piece) -> Piece:
        spec, side = self.node.spec, self.node.build_side
        streamed, built = list(piece.columns), list(self.build.columns)
        left_keys: list[str] = []
        right_keys: list[str] = []
        extra: list[pl.Expr] = []
        extra_build: list[pl.Expr] = []
        for key in spec.keys:
            stream_column, build_column = streamed[key.of(side.other)], built[key.of(side)]
            pair = []
            for column, added in ((stream_column, extra), (build_column, extra_build)):
                name = fresh()
                wide = stream_column.wide or build_column.wide
                expression = pl.col(column.name)
                added.append(
                    (
                        expression.cast(polars_type(column.dtype, wide=True))
                        if wide and not column.wide
                        else expression
                    ).alias(name)
                )
                pair.append(name)
            left_keys.append(pair[0])
            right_keys.append(pair[1])
        how = {
            JoinType.INNER: "inner", JoinType.LEFT: "left", JoinType.RIGHT: "left",
            JoinType.LEFT_SEMI: "semi", JoinType.LEFT_ANTI: "anti",
        }[spec.join_type]  # fmt: skip
        output = spec.output_of(side)
        columns_read = set(output) | _read(spec.condition, side)
        # The same build relation may be joined several times, so its columns get new names each time.
        renamed = {i: dataclasses.replace(built[i], name=fresh()) for i in columns_read}
        build = self.build.frame.select(
            [*extra_build, *(pl.col(built[i].name).alias(column.name) for i, column in renamed.items())]
        )
        joined = piece.frame.with_columns(extra).join(
            build, left_on=left_keys, right_on=right_keys, how=how, coalesce=True,  # type: ignore[arg-type]
            nulls_equal=False, maintain_order="none",
        )  # fmt: skip
        sides: dict[Side, dict[int, Column]] = {side.other: dict(enumerate(streamed)), side: renamed}
        rows = piece.rows * self.matches
        return _output(dataclasses.replace(piece, frame=joined, rows=rows), spec, sides)


@dataclass(frozen=True)
class OneRowJoin:
    """A join without keys with a single row, whose values become constants of the stream side's Polars query."""

    node: Join
    build: Piece

    @classmethod
    def from_node(cls, node: Join, build: Piece) -> OneRowJoin | None:
        """Prepare a join; ``None`` if there are keys, not one row, or rows are returned without a match."""
        spec = node.spec
        fits = spec.join_type in (JoinType.INNER, JoinType.CROSS) and not spec.keys
        return cls(node, build) if fits and build.rows == 1 else None

    def join(self, piece: Piece) -> Iterator[Piece]:
        """Join rows of the stream side."""
        spec, side = self.node.spec, self.node.build_side
        constants: dict[int, Column] = {}
        added: list[pl.Expr] = []
        for i in sorted(set(spec.output_of(side)) | _read(spec.condition, side)):
            values, name = self.build.values(self.build.columns[i]), fresh()
            whole = values.to_physical()  # Python has no date before the year 1
            constant = pl.lit(whole.item(), whole.dtype).cast(values.dtype)
            added.append(constant.alias(name))
            constants[i] = dataclasses.replace(self.build.columns[i], name=name, constant=True)
        sides = {side.other: dict(enumerate(piece.columns)), side: constants}
        yield _output(dataclasses.replace(piece, frame=piece.frame.with_columns(added)), spec, sides)

    def finish(self) -> Iterator[Piece]:
        """No rows: a row without a match is not returned."""
        return iter(())


def _output(pairs: Piece, spec: JoinSpec, sides: dict[Side, dict[int, Column]]) -> Piece:
    """Output columns of a join, for the pairs with matching keys that fulfil its condition."""
    matching = pairs if spec.condition is None else _filtered(pairs, spec.condition, sides)
    columns = tuple(sides[side][i] for side in Side for i in spec.output_of(side))
    return dataclasses.replace(matching, columns=columns)


def _most_matches(build: Piece, keys: Sequence[Column]) -> int:
    """Most rows that have the same key."""
    if len(keys) == 1 and ascends(build.values(keys[0])):
        return 1
    names = [key.name for key in keys]
    counted = build.frame.select(names).drop_nulls().group_by(names).len()
    return int(build.run(counted.select(pl.col("len").max())).item() or 0)


def _read(condition: Expression | None, side: Side) -> set[int]:
    return set() if condition is None else {ref.index for ref in condition.columns() if ref.side is side}


def _filtered(piece: Piece, condition: Expression, sides: dict[Side, dict[int, Column]]) -> Piece:
    order = [(side, i) for side in (Side.LEFT, Side.RIGHT) for i in sides[side]]
    columns = tuple(sides[side][i] for side, i in order)
    renumbered = _renumbered(condition, {key: n for n, key in enumerate(order)})
    return dataclasses.replace(piece, columns=columns).filter(renumbered, split=False)


def _renumbered(node: Expression, positions: dict[tuple[Side, int], int]) -> Expression:
    if isinstance(node, ColumnRef):
        return dataclasses.replace(node, side=Side.LEFT, index=positions[node.side, node.index])
    return node.with_children([_renumbered(child, positions) for child in node.children]) if node.children else node


# -- to the gather-map engine and back ---------------------------------------------------------------------------


def join_schema(node: Join, side: Side, *, values: bool) -> pa.Schema:
    """Schema for the gather-map engine: decimals as integers, text as views, unless keys or a condition read them.

    Of late columns that neither reads it has numbers, or ``values``, as rows need that go to disk.
    """
    schema = node.side(side).schema
    other = node.side(side.other).schema
    pairs = [(schema.field(key.of(side)).type, other.field(key.of(side.other)).type) for key in node.spec.keys]
    typed = _read(node.spec.condition, side) | {
        key.of(side)
        for key, (own, others) in zip(node.spec.keys, pairs, strict=True)
        if logical(own) != logical(others) or is_late(own)
    }
    if node.spec.as_of is not None:  # distances of decimals, and orders of two scales, are not those of their digits
        typed.add(node.spec.as_of.left if side is Side.LEFT else node.spec.as_of.right)
    if values:
        typed |= {i for i, each in enumerate(schema) if is_late(each.type)}
    return pa.schema([f if i in typed else f.with_type(_layout(f.type)) for i, f in enumerate(schema)])


def _layout(dtype: pa.DataType) -> pa.DataType:
    if is_late(dtype):
        return NUMBER
    dtype = logical(dtype)
    if pat.is_decimal(dtype) and dtype.precision <= LONG_DIGITS:
        return pa.int64()
    if is_text(dtype):
        return pa.string_view()
    return pa.binary_view() if is_bytes(dtype) else dtype


def to_join(piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Convert the rows of a piece to that schema; rows of many late values come in several batches."""
    frame = piece.eager()
    if not len(schema):
        yield pa.RecordBatch.from_arrays([pa.nulls(frame.height)], names=[ROW]).select([])
        return
    late = {
        str(i): column
        for i, (column, field) in enumerate(zip(piece.columns, schema, strict=True))
        if isinstance(column, LateColumn) and is_late(field.type)
    }
    for part in portions(frame, late, PIECE_BYTES):
        yield _to_join(part, late, schema)


def _to_join(frame: pl.DataFrame, late: Mapping[str, LateColumn], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for series, field in zip(frame.get_columns(), schema, strict=True):
        viewed = field.type in (pa.string_view(), pa.binary_view())
        if series.name in late:
            arrays.append(late[series.name].gather(series, field.type))
        elif field.type == pa.int64() or viewed:
            # A sum may be carried in 128 bits although its digits fit 64.
            narrow = series.cast(pl.Int64) if series.dtype == pl.Int128 else series
            whole = narrow.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
            if is_text(field.type) and is_bytes(whole.type):
                whole = as_characters(whole)
            arrays.append(in_type(whole, field.type))
        else:
            arrays.append(arrow_of(series, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def from_join(
    batches: Iterable[pa.RecordBatch], node: Join, sides: dict[Side, Piece | None], metrics: PipelineMetrics
) -> Iterator[Piece]:
    """Convert output batches to pieces, one for each batch."""
    origins: list[Column | None] = []
    for side in (Side.LEFT, Side.RIGHT):
        piece = sides.get(side)
        origins += [None if piece is None else piece.columns[i] for i in node.spec.output_of(side)]
    fields = list(node.schema)
    origins += [None] * (len(fields) - len(origins))
    for batch in batches:
        columns: list[tuple[pl.Series, Column]] = []
        for values, field, origin in zip(batch.columns, fields, origins, strict=True):
            name, dtype = fresh(), logical(field.type)
            if pat.is_int64(values.type) and dtype != values.type:  # digits of decimals, or numbers of late values
                series = pl.Series(name, values)
                described = late_column(name, dtype) if is_late(dtype) else column_of(name, series, dtype)
                column = origin if isinstance(origin, LateColumn) else described
            else:
                checked = origin is not None and not origin.wide
                series, column = from_arrow(name, values, dtype, checked=checked)
            bounds = origin.bounds if origin is not None and origin.bounds.measured else column.bounds
            columns.append((series, dataclasses.replace(column, name=name, bounds=bounds)))
        if not columns:
            yield without_columns(batch.num_rows, metrics)
            continue
        frame = pl.DataFrame([series for series, _ in columns]).lazy()
        yield Piece(frame, tuple(column for _, column in columns), batch.num_rows, metrics=metrics)
