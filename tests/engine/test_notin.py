"""``NOT IN`` over one to four columns: truth tables, types, conditions, and what nulls cost."""

from __future__ import annotations

import itertools
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gpujoin import join_tables
from gpujoin.config import Options
from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.join.not_in import NullPatterns
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import JoinSpecError
from gpujoin.model.backend import AnyBackend
from gpujoin.model.expressions import left, lit, right
from gpujoin.model.jointype import JoinType
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.testing import assert_same_rows
from tests.engine.support import keyed, run_join, sides
from tests.faults import FaultyBackend
from tests.generate import KEY_TYPES
from tests.oracle.join import oracle_join

VALUES = (None, 0, 1)
KEY_SETS = [("int32", "int64"), ("string", "double", "bool"), ("decimal_38_10", "date"), ("struct", "int8")]


def everything(columns: int) -> pa.Table:
    """Every row over :data:`VALUES`."""
    rows = list(itertools.product(VALUES, repeat=columns))
    data = {f"k{i}": pa.array([row[i] for row in rows], pa.int32()) for i in range(columns)}
    return pa.table(data | {"row": pa.array(range(len(rows)), pa.int32())})


NULL_AWARE = [kind for kind in JoinType if kind.null_aware]


def kept(left_row: tuple[int | None, ...], others: list[tuple[int | None, ...]]) -> bool:
    """SQL's definition: NOT IN is true if for every row of the other side some equality is false."""
    return all(
        any(a is not None and b is not None and a != b for a, b in zip(left_row, right_table, strict=True))
        for right_table in others
    )


@pytest.mark.parametrize("columns", [1, 2, 3, 4], ids=lambda n: f"{n} columns")
def test_truth_table(backend: AnyBackend, columns: int) -> None:
    """Every left row against every right side of no, one, and two rows (of one row for four columns)."""
    every = everything(columns)
    rows = list(itertools.product(VALUES, repeat=columns))
    spec = JoinSpec(JoinType.NULL_AWARE_ANTI, tuple(KeyPair(i, i) for i in range(columns)), left_output=(columns,))
    pairs = itertools.combinations(range(len(rows)), 2) if columns < 3 else itertools.pairwise(range(len(rows)))
    for chosen in [(), *((i,) for i in range(len(rows))), *pairs]:
        right_table = every.take(pa.array(chosen, pa.int64()))
        result = run_join(spec, every, right_table, backend=backend)
        expected = [i for i, row in enumerate(rows) if kept(row, [rows[j] for j in chosen])]
        assert sorted(result["row"].to_pylist()) == expected, [rows[j] for j in chosen]


@pytest.mark.few
@pytest.mark.parametrize("condition", [None, left("row") % lit(3) == right("row") % lit(3), left("v") < right("v")])
@pytest.mark.parametrize(
    "names", [("int32", "int64"), ("string", "double", "bool"), ("decimal_38_10", "date"), ("struct", "int8")]
)
def test_types_and_conditions(backend: AnyBackend, names: tuple[str, ...], condition: object, seed: int) -> None:
    for nulls in (0.0, 0.3, 1.0):
        left_table, right_table = sides(seed, [KEY_TYPES[n] for n in names], (60, 25), distinct=3, nulls=nulls)
        for kind, rows in itertools.product(NULL_AWARE, (7, 1000)):
            spec = keyed(kind, left_table, right_table, keys=len(names), condition=condition)  # type: ignore[arg-type]
            expected = oracle_join(left_table, right_table, spec)
            options = Options(candidate_pairs=20, batch_bytes=2000)
            actual = run_join(spec, left_table, right_table, backend=backend, batch_rows=rows, options=options)
            context = f"seed {seed}, {nulls} nulls, {kind.value}"
            assert_same_rows(actual, expected, allow_empty=True, context=context)


def test_null_safe_keys_have_no_pattern(backend: AnyBackend, seed: int) -> None:
    left_table, right_table = sides(seed, [pa.int32(), pa.int64(), pa.string()], (50, 20), distinct=3, nulls=0.4)
    # Whatever is drawn, rows whose null-safe key does not occur on the right stay, and copies of the right's do not.
    others = set(right_table["k1"].to_pylist())
    fresh = pa.array([next(n for n in itertools.count() if n not in others)] * 9, pa.int64())
    left_table = pa.concat_tables(
        [left_table, left_table.slice(0, 9).set_column(1, "k1", fresh), right_table.slice(0, 5)]
    )
    spec = keyed(JoinType.NULL_AWARE_ANTI, left_table, right_table, keys=3, equal=(False, True, False))
    expected = oracle_join(left_table, right_table, spec)
    assert 9 <= expected.num_rows <= left_table.num_rows - 5
    assert_same_rows(run_join(spec, left_table, right_table, backend=backend), expected, context=f"seed {seed}")


def test_searches_are_those_of_the_patterns_that_occur(backend: AnyBackend) -> None:
    columns = 20
    data = {f"k{i}": pa.array([0, 1, None if i == 7 else 2], pa.int32()) for i in range(columns)}
    table = pa.table(data)
    spec = keyed(JoinType.NULL_AWARE_ANTI, table, table, keys=columns, left_output=(0,))
    with HashJoin(spec, table.schema, table.schema, backend=backend) as join:
        join.build(table.to_batches())
        assert not [*join.probe(table.to_batches()), *join.finish()]
        built = join._built
        assert isinstance(built, BuiltSide)
        assert isinstance(built.null_patterns, NullPatterns)
        assert set(built.null_patterns.rows) == {0, 1 << 7}
        assert len(built.null_patterns.searches) <= 3


def test_against_duckdb(backend: AnyBackend, duck: duckdb.DuckDBPyConnection, rng: np.random.Generator) -> None:
    def column(n: int, distinct: int) -> pa.Array:
        return pa.array(rng.integers(0, distinct, n), mask=rng.random(n) < 0.02)

    left_table = pa.table({"a": column(4000, 60), "b": column(4000, 50), "c": column(4000, 40)})
    right_table = pa.table({"x": column(700, 60), "y": column(700, 50), "z": column(700, 40)})
    right_table = right_table.filter(
        pc.is_valid(right_table["x"])
    )  # a row of nulls alone would leave no row of the left
    duck.register("l", left_table)
    duck.register("r", right_table)
    expected = duck.sql(
        "select * from l where not exists (select 1 from r where (a = x or (a = x) is null)"
        " and (b = y or (b = y) is null) and (c = z or (c = z) is null))"
    ).to_arrow_table()
    metrics = JoinMetrics()
    actual = join_tables(
        left_table, right_table, how="null_aware_anti", left_on=["a", "b", "c"], right_on=["x", "y", "z"],
        backend=backend,
        metrics=metrics,
    )  # fmt: skip
    assert 0 < actual.num_rows < left_table.num_rows
    assert metrics.candidate_pairs == 0
    assert_same_rows(actual, expected)


def test_spilled(backend: AnyBackend, tmp_path: Path, seed: int) -> None:
    left_table, right_table = sides(seed, [pa.int32(), pa.string()], (90, 80), distinct=12, nulls=0.02)
    for kind in NULL_AWARE:
        metrics = JoinMetrics()
        spec = keyed(kind, left_table, right_table, keys=2)
        options = Options(spill_dir=str(tmp_path), memory_budget=2000)
        actual = run_join(spec, left_table, right_table, backend=backend, options=options, metrics=metrics)
        assert metrics.spills > 1
        assert_same_rows(actual, oracle_join(left_table, right_table, spec), allow_empty=True, context=f"seed {seed}")


@pytest.mark.parametrize("condition", [None, left("row") % lit(2) == right("row") % lit(2)])
def test_fault_at_any_call(backend: AnyBackend, condition: object, seed: int) -> None:
    left_table, right_table = sides(seed, [pa.int32(), pa.int32()], (14, 7), distinct=3, nulls=0.2)
    spec = keyed(JoinType.NULL_AWARE_ANTI, left_table, right_table, keys=2, condition=condition)  # type: ignore[arg-type]
    expected = oracle_join(left_table, right_table, spec)
    options = Options(batch_bytes=3000, candidate_pairs=40)
    counting = FaultyBackend(backend)
    run_join(spec, left_table, right_table, backend=counting, options=options)
    for number in range(1, counting.total_calls + 1):
        for faulty in (FaultyBackend(backend, at={number}), FaultyBackend(backend, after=number - 1)):
            actual = run_join(spec, left_table, right_table, backend=faulty, options=options)
            assert faulty.faults >= 1
            assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}, call {number}")


def test_bad_input() -> None:
    with pytest.raises(JoinSpecError, match="1 to 62 keys, got 0"):
        JoinSpec(JoinType.NULL_AWARE_ANTI)
    with pytest.raises(JoinSpecError, match="1 to 62 keys, got 63"):
        JoinSpec(JoinType.NULL_AWARE_ANTI, tuple(KeyPair(i, i) for i in range(63)))
