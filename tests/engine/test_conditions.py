"""Residual conditions, through the engine, on every join type."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.backend import AnyBackend
from gpujoin.model.expressions import EvalMode, Expression, Function, call, coalesce, left, lit, right, when
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.brief import each_once
from tests.engine.support import KEYED, WHOLE, build_sides, keyed, run_join, sides
from tests.oracle.join import oracle_join

PAIRWISE: dict[str, Expression] = {
    "range": (right("v") >= left("v") - lit(5.0)) & (right("v") <= left("v") + lit(5.0)),
    "texts": left("s").startswith(right("s")) | right("s").endswith(left("s")),
    "like": left("s").like("%a%") & right("s").like("_%"),
    "rlike": left("s").rlike("^[a-c]") | right("s").rlike("[xyz]$"),
    "concat": call(Function.CONCAT, left("s"), right("s")) > lit("b"),
    "case": when(left("row") > right("row"), left("v")).else_(right("v")) > lit(0.0),
    "coalesce": coalesce(left("v"), right("v"), 1.0) > lit(0.5),
    "in": left("row").is_in([1, 2, 3, right("row")]),
    "three-valued": ~((left("v") > lit(0.0)) & (right("v") > lit(0.0))),
    "null safe": left("s").equal_null_safe(right("s")),
    "arithmetic": (left("row") * lit(3) + right("row")) % lit(5) == lit(2),
    "division by zero is null": (left("row") / (right("row") % lit(3))).is_null(),
    "casts": left("row").cast(pa.string()) < right("row").cast(pa.string()),
    "one side only": left("v").is_not_null(),
    "other side only": right("v").is_nan(),
    "neither side": lit(True),
}


@pytest.mark.parametrize(("kind", "name"), each_once([join_type.value for join_type in KEYED], PAIRWISE))
def test_pairwise(backend: AnyBackend, kind: str, name: str, seed: int) -> None:
    join_type = JoinType(kind)
    left_table, right_table = sides(seed, [pa.int64()], (40, 36), distinct=6)
    spec = keyed(join_type, left_table, right_table, condition=PAIRWISE[name])
    expected = oracle_join(left_table, right_table, spec)
    # Two of the ways for each build side, in turn, so that every condition and every join type meet them all.
    ways = ((1, WHOLE), (1 << 20, WHOLE), (7, WHOLE), (7, 500))
    turn = KEYED.index(join_type) + list(PAIRWISE).index(name)
    for number, build_side in enumerate(build_sides(join_type)):
        for chunk, budget in ways[(turn + number) % 2 :: 2]:
            metrics = JoinMetrics()
            options = Options(candidate_pairs=chunk, memory_budget=budget)
            actual = run_join(
                spec,
                left_table,
                right_table,
                backend=backend,
                build_side=build_side,
                options=options,
                metrics=metrics,
            )
            assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}, chunks of {chunk}")
            assert metrics.candidate_pairs > 0
            assert bool(metrics.spills) is (budget == 500)


def test_unresolved_and_resolved_conditions_mean_the_same_to_the_oracle(seed: int) -> None:
    left_table, right_table = sides(seed, [pa.int64()], (40, 36), distinct=6)
    for name, condition in PAIRWISE.items():
        if name == "casts":
            continue
        resolved = keyed(JoinType.FULL, left_table, right_table, condition=condition)
        unresolved = JoinSpec(JoinType.FULL, resolved.keys, condition, resolved.left_output, resolved.right_output)
        assert_same_rows(
            oracle_join(left_table, right_table, unresolved),
            oracle_join(left_table, right_table, resolved),
            context=name,
        )


def test_candidates_are_evaluated_in_bounded_chunks(backend: AnyBackend) -> None:
    left_table = pa.table({"k": pa.array([1] * 100, pa.int32()), "a": pa.array(range(100), pa.int32())})
    spec = keyed(JoinType.INNER, left_table, left_table, condition=left("a") == right("a") + lit(1))
    sizes = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(backend, name)

        def evaluate(self, condition: Expression, left_table: object, right_table: object, length: int) -> object:
            sizes.append(length)
            return backend.evaluate(condition, left_table, right_table, length)

    metrics = JoinMetrics()
    actual = run_join(
        spec, left_table, left_table, backend=Watched(), metrics=metrics,  # type: ignore[arg-type]
        options=Options(candidate_pairs=64, range_index=False),
    )  # fmt: skip
    assert actual.num_rows == 99
    assert metrics.candidate_pairs == sum(sizes) == 10_000
    assert max(sizes) <= 64


@pytest.mark.parametrize("build_side", Side, ids=lambda s: s.value)
def test_ansi_errors_come_from_candidate_pairs_only(backend: AnyBackend, build_side: Side) -> None:
    left_table = pa.table({"k": pa.array([1, 2], pa.int32()), "a": pa.array([10, 10], pa.int32())})
    right_table = pa.table({"k": pa.array([1, 3], pa.int32()), "b": pa.array([5, 0], pa.int32())})
    condition = resolve(left("a") % right("b") == lit(0), left_table.schema, right_table.schema, mode=EvalMode.ANSI)
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), condition, (0,), (1,))
    assert run_join(spec, left_table, right_table, backend=backend, build_side=build_side).num_rows == 1
    nested = JoinSpec(JoinType.INNER, (), condition, (0,), (1,))
    with pytest.raises(ExpressionEvaluationError, match="zero"):
        run_join(nested, left_table, right_table, backend=backend, build_side=build_side)


def test_no_rows_means_no_errors(backend: AnyBackend) -> None:
    left_table = pa.table({"k": pa.array([1], pa.int32()), "a": pa.array([0], pa.int32())})
    right_table = left_table.slice(0, 0)
    condition = resolve(lit(1) / left("a") > lit(0), left_table.schema, right_table.schema, mode=EvalMode.ANSI)
    spec = JoinSpec(JoinType.LEFT, (KeyPair(0, 0),), condition, (0,), (1,))
    assert run_join(spec, left_table, right_table, backend=backend).num_rows == 1
