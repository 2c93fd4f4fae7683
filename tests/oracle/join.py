"""The join by its definition: two loops over rows in plain Python. Slow, short, and what the engine must equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from gpujoin.model.jointype import JoinType
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.testing import cells
from tests.cells import sort_key
from tests.oracle.ordering import aligner, common_type
from tests.oracle.values import values_of_pairs

_Pair = tuple[int | None, int | None]


def oracle_join(left: pa.Table, right: pa.Table, spec: JoinSpec) -> pa.Table:
    """Join two tables row by row, as Spark would.

    Parameters
    ----------
    left, right : pyarrow.Table
        The two sides.
    spec : JoinSpec
        The join; its condition may be resolved or not.

    Returns
    -------
    pyarrow.Table
        With the schema of ``spec.output_schema``, rows in no promised order.

    Notes
    -----
    Takes time in proportion to the product of the two row counts.
    """
    matches = _matches(left, right, spec)
    schema = spec.output_schema(left.schema, right.schema)

    kind = spec.join_type
    if kind.flags_rows:
        kept = _take(left.select(list(spec.left_output)), range(left.num_rows))
        flags = pa.array([bool(right_rows) for right_rows in matches], pa.bool_())
        return pa.Table.from_arrays([*kept, flags], schema=schema)
    if kind.left_rows_only:
        wanted = kind is JoinType.LEFT_SEMI
        rows = [i for i, right_rows in enumerate(matches) if bool(right_rows) is wanted]
        return _table([*_take(left.select(list(spec.left_output)), rows)], schema, len(rows))

    pairs: list[_Pair] = [(i, j) for i, right_rows in enumerate(matches) for j in right_rows]
    if kind in (JoinType.LEFT, JoinType.FULL):
        pairs += [(i, None) for i, right_rows in enumerate(matches) if not right_rows]
    if kind in (JoinType.RIGHT, JoinType.FULL):
        met = {j for right_rows in matches for j in right_rows}
        pairs += [(None, j) for j in range(right.num_rows) if j not in met]
    columns = [
        *_take(left.select(list(spec.left_output)), [i for i, _ in pairs]),
        *_take(right.select(list(spec.right_output)), [j for _, j in pairs]),
    ]
    return _table(columns, schema, len(pairs))


def _matches(left: pa.Table, right: pa.Table, spec: JoinSpec) -> list[list[int]]:
    """The right rows that each left row meets."""
    keys = [_key_test(left, right, key, spec.join_type.null_aware) for key in spec.keys]
    matches = []
    for i in range(left.num_rows):
        candidates: Iterable[int] = range(right.num_rows)
        for equal in keys:
            candidates = equal(i, candidates)
        matches.append(list(candidates))
    if spec.condition is None:
        return matches
    pairs = [(i, j) for i, right_rows in enumerate(matches) for j in right_rows]
    matches = [[] for _ in matches]
    for (i, j), holds in zip(pairs, values_of_pairs(spec.condition, left, right, pairs), strict=True):
        if holds is True:
            matches[i].append(j)
    return matches


def _key_test(
    left: pa.Table, right: pa.Table, key: KeyPair, null_aware: bool
) -> Callable[[int, Iterable[int]], list[int]]:
    """SQL's ``=`` or ``<=>`` of a left row and some right rows: gives the right rows that stay.

    ``=`` is unknown if a side is null. NOT IN drops a row for that too, so a null-aware join keeps those pairs.
    """
    types = left.schema.field(key.left).type, right.schema.field(key.right).type
    common = common_type(*types)
    left_values, right_values = (
        [None if value is None else sort_key(value) for value in map(aligner(dtype, common), cells(column))]
        for dtype, column in zip(types, (left.column(key.left), right.column(key.right)), strict=True)
    )
    known = key.nulls is NullEquality.EQUAL

    def equal(i: int, candidates: Iterable[int]) -> list[int]:
        value = left_values[i]
        if known or (value is not None and not null_aware):
            return [j for j in candidates if right_values[j] == value]
        if value is None:
            return list(candidates) if null_aware else []
        return [j for j in candidates if right_values[j] == value or right_values[j] is None]

    return equal


def _take(table: pa.Table, rows: Sequence[int | None]) -> list[pa.Array[Any]]:
    return [_take_column(column, rows) for column in table.columns]


def _take_column(column: pa.ChunkedArray[Any], rows: Sequence[int | None]) -> pa.Array[Any]:
    """Rows of a column, null for ``None``, row by row: Arrow's own take lacks several types."""
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0, column.type)
    single: dict[int | None, pa.Array[Any]] = {row: values.slice(row, 1) for row in set(rows) if row is not None}
    single[None] = pa.nulls(1, column.type)
    return pa.concat_arrays([single[row] for row in rows]) if rows else values.slice(0, 0)


def _table(columns: Sequence[pa.Array[Any]], schema: pa.Schema, rows: int) -> pa.Table:
    """A table of columns; one without columns remembers its row count."""
    if columns:
        return pa.Table.from_arrays(list(columns), schema=schema)
    return pa.table({"_": pa.nulls(rows)}).select([])
