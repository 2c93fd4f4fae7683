"""The join by its definition: two loops over rows in plain Python. Slow, short, and what the engine must equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from gpujoin.model.jointype import JoinType
from gpujoin.model.spec import JoinSpec, NullEquality
from gpujoin.testing.cells import Cell, cells, sort_key
from tests.oracle.interpreter import compile_expression
from tests.oracle.ordering import aligner, common_type

Row = Sequence[Cell]
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
    match = _matcher(left.schema, right.schema, spec)
    left_rows, right_rows = _rows(left), _rows(right)
    matches = [[j for j, r in enumerate(right_rows) if match(row, r)] for row in left_rows]
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


def _matcher(left: pa.Schema, right: pa.Schema, spec: JoinSpec) -> Callable[[Row, Row], bool]:
    keys = [_key_test(left, right, key.left, key.right, key.nulls) for key in spec.keys]
    condition = None if spec.condition is None else compile_expression(spec.condition, left, right).run
    # NOT IN drops a row also when an equality is unknown: neither true nor false.
    enough = (True, None) if spec.join_type.null_aware else (True,)

    def match(left_row: Row, right_row: Row) -> bool:
        if not all(key(left_row, right_row) in enough for key in keys):
            return False
        return condition is None or condition((left_row, right_row)) is True

    return match


def _key_test(
    left: pa.Schema, right: pa.Schema, i: int, j: int, nulls: NullEquality
) -> Callable[[Row, Row], bool | None]:
    """SQL's ``=`` (null if either is null) or ``<=>`` of two columns."""
    left_type, right_type = left.field(i).type, right.field(j).type
    common = common_type(left_type, right_type)
    align_one, align_two = aligner(left_type, common), aligner(right_type, common)

    def equal(left_row: Row, right_row: Row) -> bool | None:
        a, b = align_one(left_row[i]), align_two(right_row[j])
        if a is None or b is None:
            return a is b if nulls is NullEquality.EQUAL else None
        return bool(sort_key(a) == sort_key(b))

    return equal


def _rows(table: pa.Table) -> list[Row]:
    columns = [cells(column) for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _take(table: pa.Table, rows: Sequence[int | None]) -> list[pa.Array[Any]]:
    return [_take_column(column, rows) for column in table.columns]


def _take_column(column: pa.ChunkedArray[Any], rows: Sequence[int | None]) -> pa.Array[Any]:
    """Rows of a column, null for ``None``, row by row: Arrow's own take lacks several types."""
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.nulls(0, column.type)
    nothing = pa.nulls(1, column.type)
    taken = [nothing if row is None else values.slice(row, 1) for row in rows]
    return pa.concat_arrays(taken) if taken else values.slice(0, 0)


def _table(columns: Sequence[pa.Array[Any]], schema: pa.Schema, rows: int) -> pa.Table:
    """A table of columns; one without columns remembers its row count."""
    if columns:
        return pa.Table.from_arrays(list(columns), schema=schema)
    return pa.table({"_": pa.nulls(rows)}).select([])
