"""Running joins in many ways, and the ways to run them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from gpujoin.backends.cpu import backend as cpu
from gpujoin.backends.cpu import keywords
from gpujoin.backends.cpu.build import make_build
from gpujoin.config import Options
from gpujoin.engine import hashing
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.backend import AnyBackend
from gpujoin.model.expressions import Expression, left, lit, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.plan.resolve import resolve
from tests.generate import Generator, KeyShape

WHOLE = 1 << 30
"""A batch size that makes one batch of a table."""

KEYED: list[JoinType] = [kind for kind in JoinType if kind not in (JoinType.CROSS, JoinType.NULL_AWARE_EXISTENCE)]
"""All with keys but the flag of ``NOT IN``, which is made of what the null-aware anti join is made of."""

CONDITIONS: dict[str, Expression | None] = {
    "no condition": None,
    "l.v < r.v": left("v") < right("v"),
    "l.v <=> r.v or r.row % 3 = 0": left("v").equal_null_safe(right("v")) | (right("row") % lit(3) == lit(0)),
    "l.row > 5": left("row") > lit(5),
    "r.v is null": right("v").is_null(),
    "never": left("row") < lit(0),
    "unknown": lit(None, pa.bool_()),
}
"""Residual conditions over tables of :func:`sides`."""


def batches(table: pa.Table, rows: int) -> Iterator[pa.RecordBatch]:
    """A table in batches of so many rows, with an empty one first; columns or none."""
    for start in range(-rows, table.num_rows, rows):
        count = min(rows, table.num_rows - start) if start >= 0 else 0
        if table.num_columns:
            part = table.slice(max(start, 0), count).combine_chunks()
            yield pa.RecordBatch.from_arrays(
                [c.chunk(0) if c.num_chunks else pa.array([], c.type) for c in part.columns],
                schema=table.schema,
            )
        else:
            yield pa.record_batch({"_": pa.nulls(count)}).select([])


def together(output: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Batches as a table, checked to have the schema; without columns the rows are kept count of."""
    collected = list(output)
    for batch in collected:
        assert batch.schema.equals(schema), f"batch of {batch.schema}, promised {schema}"
        # Text that is not valid UTF-8 is ordinary data; everything else about the batch must hold.
        _as_bytes(batch).validate(full=True)
        assert batch.num_rows > 0, "an empty batch"
    if schema.names:
        return pa.Table.from_batches(collected, schema)
    return pa.table({"_": pa.nulls(sum(b.num_rows for b in collected))}).select([])


def _as_bytes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with bytes in the place of text, at any depth."""
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch.columns
    ]
    columns = [
        # Unions, views of lists and the like have no such view; no test puts such text into them.
        column if (dtype := _bytes_type(column.type)) == column.type else column.view(dtype)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names) if columns else batch


def _bytes_type(dtype: pa.DataType) -> pa.DataType:
    """A type with bytes in the place of text."""
    if pa.types.is_string(dtype):
        return pa.binary()
    if pa.types.is_large_string(dtype):
        return pa.large_binary()
    if pa.types.is_struct(dtype):
        return pa.struct([_bytes_field(field) for field in dtype])
    if pa.types.is_map(dtype):
        return pa.map_(_bytes_field(dtype.key_field), _bytes_field(dtype.item_field))
    if pa.types.is_list(dtype):
        return pa.list_(_bytes_field(dtype.value_field))
    return dtype


def _bytes_field(field: pa.Field) -> pa.Field:
    return field.with_type(_bytes_type(field.type))


def run_join(
    spec: JoinSpec,
    left_table: pa.Table,
    right_table: pa.Table,
    *,
    backend: AnyBackend,
    build_side: Side = Side.RIGHT,
    options: Options | None = None,
    batch_rows: int = WHOLE,
    metrics: JoinMetrics | None = None,
) -> pa.Table:
    """Join two tables through :class:`HashJoin`, in batches of so many rows on both sides."""
    tables = {Side.LEFT: left_table, Side.RIGHT: right_table}
    with HashJoin(
        spec,
        left_table.schema,
        right_table.schema,
        build_side=build_side,
        options=options,
        backend=backend,
        metrics=metrics,
    ) as join:
        join.build(batches(tables[build_side], batch_rows))
        result = [*join.probe(batches(tables[build_side.other], batch_rows)), *join.finish()]
        return together(result, join.output_schema)


def build_sides(join_type: JoinType) -> tuple[Side, ...]:
    """The sides that may be built."""
    return (Side.RIGHT,) if join_type.null_aware else (Side.RIGHT, Side.LEFT)


def keyed(
    join_type: JoinType,
    left_table: pa.Table,
    right_table: pa.Table,
    *,
    keys: int = 1,
    equal: bool | tuple[bool, ...] = False,
    condition: Expression | None = None,
    left_output: tuple[int, ...] | None = None,
    right_output: tuple[int, ...] | None = None,
) -> JoinSpec:
    """A join on the first columns of two tables, returning all of their columns."""
    flags = equal if isinstance(equal, tuple) else (equal,) * keys
    if left_output is None:
        left_output = tuple(range(left_table.num_columns))
    if right_output is None:
        right_output = tuple(range(right_table.num_columns))
    return JoinSpec(
        join_type,
        tuple(KeyPair(i, i, NullEquality.EQUAL if f else NullEquality.UNEQUAL) for i, f in enumerate(flags)),
        None if condition is None else resolve(condition, left_table.schema, right_table.schema),
        left_output,
        () if join_type.left_rows_only else right_output,
    )


def sides(
    seed: int,
    dtypes: Iterable[pa.DataType],
    rows: tuple[int, int] = (40, 40),
    shape: KeyShape = KeyShape.UNIFORM,
    *,
    nulls: float = 0.15,
    distinct: int | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Two tables with keys ``k0, k1, …``, a row number ``row``, a double ``v`` and a text ``s``."""
    return _sides(seed, tuple(dtypes), rows, shape, nulls, distinct)


@lru_cache(maxsize=256)
def _sides(
    seed: int,
    dtypes: tuple[pa.DataType, ...],
    rows: tuple[int, int],
    shape: KeyShape,
    nulls: float,
    distinct: int | None,
) -> tuple[pa.Table, pa.Table]:
    generator = Generator(seed)
    most = max(*rows, 1)
    columns: tuple[dict[str, pa.Array], dict[str, pa.Array]] = ({}, {})
    for number, dtype in enumerate(dtypes):
        pair = generator.keys(dtype, most, shape, nulls=nulls, distinct=distinct)
        for side in (0, 1):
            columns[side][f"k{number}"] = pair[side].slice(0, rows[side])
    for side in (0, 1):
        columns[side]["row"] = pa.array(range(rows[side]), pa.int32())
        columns[side]["v"] = generator.array(pa.float64(), rows[side])
        columns[side]["s"] = generator.array(pa.string(), rows[side])
    return pa.table(columns[0]), pa.table(columns[1])


_SQL = {
    JoinType.INNER: "select {l}, {r} from l join r on {on}",
    JoinType.LEFT: "select {l}, {r} from l left join r on {on}",
    JoinType.RIGHT: "select {l}, {r} from l right join r on {on}",
    JoinType.FULL: "select {l}, {r} from l full join r on {on}",
    JoinType.LEFT_SEMI: "select {l} from l semi join r on {on}",
    JoinType.LEFT_ANTI: "select {l} from l anti join r on {on}",
    JoinType.EXISTENCE: "select {l}, exists (select 1 from r where {on}) as exists from l",
    JoinType.NULL_AWARE_ANTI: "select {l} from l where k0 not in (select k0 from r)",
}


def duckdb_agrees(dtype: pa.DataType) -> bool:
    """Whether DuckDB joins such keys by the same rules.

    It has no null type, and a null inside of a struct equals no other there, where Spark's equals.
    """
    return not (pa.types.is_struct(dtype) or pa.types.is_null(dtype))


def in_duckdb(
    duck: duckdb.DuckDBPyConnection,
    join_type: JoinType,
    left_table: pa.Table,
    right_table: pa.Table,
    *,
    keys: int = 1,
    equal: bool = False,
    condition: str | None = None,
) -> pa.Table:
    """The join of two tables on their first columns in DuckDB, all columns returned."""
    for name, table in (("l", left_table), ("r", right_table)):
        duck.register(name, _without_zones(table))
    operator = "is not distinct from" if equal else "="
    on = " and ".join(f"l.k{i} {operator} r.k{i}" for i in range(keys)) + (f" and ({condition})" if condition else "")
    columns = {
        side: ", ".join(f"{side}.{c}" for c in t.schema.names) for side, t in (("l", left_table), ("r", right_table))
    }
    return duck.sql(_SQL[join_type].format(on=on, **columns)).to_arrow_table()


def _without_zones(table: pa.Table) -> pa.Table:
    """DuckDB's Python client needs another package for zones, and returns dictionaries as texts."""
    for i, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            table = table.set_column(i, field.name, table.column(i).cast(pa.timestamp(field.type.unit)))
    return table


def force_collisions(patch: pytest.MonkeyPatch) -> None:
    """Give every key the same hash, in the engine's partitioning and in the CPU backend, until the test ends."""

    def one_hash(codes: pa.Table, seed: int = 0) -> npt.NDArray[np.uint64]:
        return np.full(codes.num_rows, seed, np.uint64)

    def one_scramble(words: tuple[Any, ...]) -> npt.NDArray[np.uint64]:
        return np.zeros(len(words[0]), np.uint64)

    patch.setattr(hashing, "hash_rows", one_hash)
    patch.setattr(keywords, "fingerprints", lambda data: np.zeros(len(data), np.uint64))
    colliding = partial(make_build, dense_factor=0, dense_anyway=0, scramble=one_scramble)
    patch.setattr(cpu, "make_build", colliding)
