"""The oracle against results worked out by hand, and against DuckDB."""

from __future__ import annotations

import math
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

from gpujoin.model.expressions import Expression, left, lit, right
from gpujoin.model.jointype import JoinType
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.testing import Zeros, assert_same_rows, cells
from tests.generate import KEY_TYPES, Generator, KeyShape
from tests.oracle.join import oracle_join

A = pa.table({"k": [1, 2, 2, None, 4], "a": ["p", "q", "r", "s", "t"]})
B = pa.table({"k": [2, 2, 3, None, 4], "b": [10, 20, 30, 40, 50]})


def in_order(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted(rows, key=repr)


def join(
    join_type: JoinType,
    *,
    left_table: pa.Table = A,
    right_table: pa.Table = B,
    equal: bool = False,
    condition: Expression | None = None,
    keys: int = 1,
) -> list[tuple[object, ...]]:
    nulls = NullEquality.EQUAL if equal else NullEquality.UNEQUAL
    spec = JoinSpec(
        join_type,
        tuple(KeyPair(i, i, nulls) for i in range(keys)),
        condition,
        left_output=(1,),
        right_output=() if join_type.left_rows_only else (1,),
    )
    table = oracle_join(left_table, right_table, spec)
    assert table.schema == spec.output_schema(left_table.schema, right_table.schema)
    rows: list[tuple[object, ...]] = list(zip(*(cells(c) for c in table.columns), strict=True))
    return in_order(rows)


PAIRS: list[tuple[object, ...]] = [("q", 10), ("q", 20), ("r", 10), ("r", 20), ("t", 50)]
EXPECTED: dict[JoinType, list[tuple[object, ...]]] = {
    JoinType.INNER: PAIRS,
    JoinType.LEFT: [("p", None), *PAIRS[:4], ("s", None), PAIRS[4]],
    JoinType.RIGHT: [*PAIRS, (None, 30), (None, 40)],
    JoinType.FULL: [("p", None), *PAIRS[:4], ("s", None), PAIRS[4], (None, 30), (None, 40)],
    JoinType.LEFT_SEMI: [("q",), ("r",), ("t",)],
    JoinType.LEFT_ANTI: [("p",), ("s",)],
    JoinType.EXISTENCE: [("p", False), ("q", True), ("r", True), ("s", False), ("t", True)],
    JoinType.NULL_AWARE_ANTI: [],
    JoinType.NULL_AWARE_EXISTENCE: [(row, True) for row in "pqrst"],
}


@pytest.mark.parametrize("join_type", EXPECTED, ids=lambda t: t.value)
def test_join_types(join_type: JoinType) -> None:
    assert join(join_type) == in_order(EXPECTED[join_type])


def test_null_safe_keys_match_nulls() -> None:
    assert join(JoinType.INNER, equal=True) == sorted([*PAIRS, ("s", 40)], key=repr)
    assert join(JoinType.LEFT_ANTI, equal=True) == [("p",)]


def test_cross_join() -> None:
    spec = JoinSpec(JoinType.CROSS, left_output=(1,), right_output=(1,))
    assert oracle_join(A, B, spec).num_rows == 25
    nothing = JoinSpec(JoinType.CROSS)
    assert oracle_join(A, B, nothing).num_rows == 25
    assert oracle_join(A, B, nothing).num_columns == 0


def test_conditions_decide_matches_not_rows() -> None:
    condition = right("b") > lit(10)
    assert join(JoinType.LEFT, condition=condition) == sorted(
        [("p", None), ("q", 20), ("r", 20), ("s", None), ("t", 50)], key=repr
    )
    assert join(JoinType.LEFT_ANTI, condition=left("a") == lit("q")) == [("p",), ("r",), ("s",), ("t",)]
    unknown = right("b") > lit(None, pa.int64())
    assert join(JoinType.INNER, condition=unknown) == []
    assert len(join(JoinType.FULL, condition=unknown)) == 10


def test_not_in() -> None:
    def not_in(lefts: list[int | None], rights: list[int | None]) -> list[object]:
        left_table = pa.table({"k": pa.array(lefts, pa.int64()), "row": range(len(lefts))})
        right_table = pa.table({"k": pa.array(rights, pa.int64())})
        return [row[0] for row in join(JoinType.NULL_AWARE_ANTI, left_table=left_table, right_table=right_table)]

    assert not_in([1, 2, None], []) == [0, 1, 2]
    assert not_in([1, 2, None], [None]) == []
    assert not_in([1, 2, None], [2, 3]) == [0]
    assert not_in([1, 2, None], [2, None]) == []
    assert not_in([], [None]) == []


def test_float_keys() -> None:
    left_table = pa.table({"k": [math.nan, 0.0, -0.0, math.inf], "a": range(4)})
    right_table = pa.table({"k": pa.array([math.nan, -0.0, -math.inf], pa.float32()), "b": range(3)})
    assert join(JoinType.INNER, left_table=left_table, right_table=right_table) == [(0, 0), (1, 1), (2, 1)]


def test_numbers_of_different_types() -> None:
    left_table = pa.table({"k": pa.array([1, 2, 1 << 40], pa.int64()), "a": range(3)})
    right_table = pa.table({"k": pa.array([1, 2, 3], pa.int8()), "b": range(3)})
    assert join(JoinType.INNER, left_table=left_table, right_table=right_table) == [(0, 0), (1, 1)]
    dec = pa.table({"k": pa.array([Decimal("1.00"), Decimal("2.50")], pa.decimal128(5, 2)), "b": range(2)})
    assert join(JoinType.INNER, left_table=left_table, right_table=dec) == [(0, 0)]
    wide = pa.table({"k": pa.array([Decimal("2.5000")], pa.decimal128(38, 4)), "b": [0]})
    assert join(JoinType.INNER, left_table=dec, right_table=wide) == [(1, 0)]


def test_struct_keys() -> None:
    dtype = pa.struct([("x", pa.int32()), ("y", pa.float64())])
    rows = [None, {"x": None, "y": None}, {"x": 1, "y": math.nan}, {"x": 1, "y": None}, {"x": 1, "y": -0.0}]
    left_table = pa.table({"k": pa.array(rows, dtype), "a": range(5)})
    right_table = pa.table({"k": pa.array([*rows[:4], {"x": 1, "y": 0.0}], dtype), "b": range(5)})
    assert join(JoinType.INNER, left_table=left_table, right_table=right_table) == [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
    ]
    assert join(JoinType.INNER, left_table=left_table, right_table=right_table, equal=True) == [
        (i, i) for i in range(5)
    ]


def test_outer_columns_become_nullable() -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("b", pa.int64(), nullable=False)])
    right_table = pa.table({"k": [1], "b": [2]}, schema=schema)
    spec = JoinSpec(JoinType.LEFT, (KeyPair(0, 0),), left_output=(0,), right_output=(1,))
    table = oracle_join(right_table, right_table, spec)
    assert [f.nullable for f in table.schema] == [False, True]


_SQL = {
    JoinType.INNER: "select a.row, b.row from a join b on {on}",
    JoinType.LEFT: "select a.row, b.row from a left join b on {on}",
    JoinType.RIGHT: "select a.row, b.row from a right join b on {on}",
    JoinType.FULL: "select a.row, b.row from a full join b on {on}",
    JoinType.LEFT_SEMI: "select a.row from a semi join b on {on}",
    JoinType.LEFT_ANTI: "select a.row from a anti join b on {on}",
    JoinType.EXISTENCE: "select a.row, exists (select 1 from b where {on}) from a",
    JoinType.NULL_AWARE_ANTI: "select a.row from a where a.k not in (select b.k from b)",
}


def _same_in_duckdb(dtype: pa.DataType) -> bool:
    """DuckDB has no such type, or another rule: in DuckDB a null inside a struct does not equal a null there."""
    return not (pa.types.is_struct(dtype) or pa.types.is_null(dtype))


@pytest.mark.few
@pytest.mark.parametrize("key", [k for k, t in KEY_TYPES.items() if _same_in_duckdb(t)])
@pytest.mark.parametrize("equal", [False, True], ids=["=", "<=>"])
def test_against_duckdb(key: str, equal: bool, seed: int, duck: duckdb.DuckDBPyConnection) -> None:
    keys = Generator(seed).keys(KEY_TYPES[key], 40, KeyShape.UNIFORM)
    tables = [pa.table({"k": k, "row": pa.array(range(40), pa.int32())}) for k in keys]
    for name, table in zip("ab", tables, strict=True):
        duck.register(
            name,
            table if key != "timestamp" else table.set_column(0, "k", table["k"].cast(pa.timestamp("us"))),
        )
    nulls = NullEquality.EQUAL if equal else NullEquality.UNEQUAL
    for join_type, sql in _SQL.items():
        if equal and join_type is JoinType.NULL_AWARE_ANTI:
            continue
        output = () if join_type.left_rows_only else (1,)
        spec = JoinSpec(join_type, (KeyPair(0, 0, nulls),), left_output=(1,), right_output=output)
        expected = duck.sql(sql.format(on="a.k is not distinct from b.k" if equal else "a.k = b.k")).to_arrow_table()
        actual = oracle_join(tables[0], tables[1], spec)
        assert_same_rows(
            actual,
            expected.rename_columns(actual.schema.names),
            zeros=Zeros.SAME,
            allow_empty=join_type in (JoinType.NULL_AWARE_ANTI, JoinType.LEFT_ANTI),
            context=f"seed {seed}, {join_type}",
        )
