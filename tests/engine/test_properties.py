"""What must hold for any data, any batching and any budget; hypothesis chooses, and prints how to repeat it."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest

pytest.importorskip("hypothesis", reason="no Hypothesis: pip install hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from gpujoin.config import Options
from gpujoin.engine.memory import held_bytes
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.backend import AnyBackend
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import JoinType, Side
from gpujoin.testing import assert_same_rows, row_counts
from tests.engine.support import CONDITIONS, KEYED, WHOLE, batches, build_sides, keyed, run_join, sides
from tests.generate import KEY_TYPES, KeyShape
from tests.oracle.join import oracle_join

SETTINGS = settings(max_examples=15)


@dataclass(frozen=True)
class Case:
    """One join; the data follow from the seed."""

    seed: int
    keys: tuple[str, ...]
    rows: tuple[int, int]
    shape: KeyShape
    distinct: int
    equal: bool
    condition: str
    join_type: JoinType = JoinType.INNER
    options: dict[str, int] = field(default_factory=dict)
    batch_rows: int = WHOLE
    build_side: Side = Side.RIGHT

    def tables(self) -> tuple[pa.Table, pa.Table]:
        return sides(self.seed, [KEY_TYPES[k] for k in self.keys], self.rows, self.shape, distinct=self.distinct)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    join_type = draw(st.sampled_from([JoinType.CROSS, *KEYED]))
    keys = draw(st.lists(st.sampled_from(list(KEY_TYPES)), min_size=0, max_size=3))
    if join_type is JoinType.CROSS:
        keys = []
    if join_type is JoinType.NULL_AWARE_ANTI:
        keys = (keys or ["int32"])[:1]
    return Case(
        seed=draw(st.integers(0, 2**32 - 1)),
        keys=tuple(keys),
        rows=(draw(st.integers(0, 60)), draw(st.integers(0, 60))),
        shape=draw(st.sampled_from(KeyShape)),
        distinct=draw(st.integers(2, 30)),
        equal=draw(st.booleans()),
        condition="no condition" if join_type is JoinType.CROSS else draw(st.sampled_from(list(CONDITIONS))),
        join_type=join_type,
        options={
            "batch_bytes": draw(st.sampled_from([1, 100, 2000, 1 << 25])),
            "max_column_bytes": draw(st.sampled_from([1, 64, 1 << 20])),
            "candidate_pairs": draw(st.sampled_from([1, 2, 7, 100, 1 << 20])),
            "memory_budget": draw(st.sampled_from([1, 300, 2000, 1 << 30])),
            "cpu_threads": draw(st.sampled_from([1, 3])),
        },
        batch_rows=draw(st.sampled_from([1, 3, 16, WHOLE])),
        build_side=draw(st.sampled_from(build_sides(join_type))),
    )


def joined(backend: AnyBackend, case: Case, join_type: JoinType | None = None, **changes: object) -> pa.Table:
    left, right = case.tables()
    kind = join_type or case.join_type
    condition: Expression | None = CONDITIONS[case.condition]
    spec = keyed(kind, left, right, keys=len(case.keys), equal=case.equal, condition=condition)
    return run_join(spec, left, right, backend=backend, **changes)  # type: ignore[arg-type]


@SETTINGS
@given(case=cases())
def test_any_join_any_way_is_the_oracles(backend: AnyBackend, case: Case) -> None:
    left, right = case.tables()
    spec = keyed(
        case.join_type,
        left,
        right,
        keys=len(case.keys),
        equal=case.equal,
        condition=CONDITIONS[case.condition],
    )
    metrics = JoinMetrics()
    if held_bytes():
        gc.collect()  # what earlier joins hold leaves less of the budget
    with TemporaryDirectory() as directory:
        options = Options(spill_dir=directory).replace(**case.options)
        actual = run_join(
            spec, left, right, backend=backend, build_side=case.build_side, options=options,
            batch_rows=case.batch_rows, metrics=metrics,
        )  # fmt: skip
        assert list(Path(directory).iterdir()) == []
    assert_same_rows(actual, oracle_join(left, right, spec), allow_empty=True)
    built = right if case.build_side is Side.RIGHT else left
    size = sum(batch.nbytes for batch in batches(built, case.batch_rows) if batch.num_rows)
    # A quarter of the budget is for build sides.
    assert bool(metrics.spills) == (size > case.options["memory_budget"] // 4)


@SETTINGS
@given(case=cases())
def test_full_is_left_and_the_unmatched_of_the_right(backend: AnyBackend, case: Case) -> None:
    full, left = (joined(backend, case, kind) for kind in (JoinType.FULL, JoinType.LEFT))
    left_table, right_table = case.tables()
    seen = set(left.column(left_table.num_columns + right_table.schema.get_field_index("row")).to_pylist())
    assert full.num_rows - left.num_rows == len(set(right_table["row"].to_pylist()) - seen)
    assert row_counts(left) <= row_counts(full)


@SETTINGS
@given(case=cases())
def test_semi_and_anti_share_out_the_left_rows(backend: AnyBackend, case: Case) -> None:
    left, _ = case.tables()
    semi, anti, exists = (
        joined(backend, case, kind) for kind in (JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE)
    )
    assert_same_rows(pa.concat_tables([semi, anti]), left, allow_empty=True)
    flags = exists.column("exists")
    assert flags.null_count == 0
    assert_same_rows(exists.filter(flags).drop_columns(["exists"]), semi, allow_empty=True)


@SETTINGS
@given(case=cases())
def test_sides_may_be_swapped(backend: AnyBackend, case: Case) -> None:
    if case.condition != "no condition":
        return
    left, right = case.tables()
    count = len(case.keys)
    for kind, swapped in (
        (JoinType.LEFT, JoinType.RIGHT),
        (JoinType.INNER, JoinType.INNER),
        (JoinType.FULL, JoinType.FULL),
    ):
        forth = run_join(keyed(kind, left, right, keys=count, equal=case.equal), left, right, backend=backend)
        back = run_join(keyed(swapped, right, left, keys=count, equal=case.equal), right, left, backend=backend)
        order = [*range(right.num_columns, right.num_columns + left.num_columns), *range(right.num_columns)]
        assert_same_rows(back.select(order), forth, allow_empty=True)


@SETTINGS
@given(case=cases())
def test_not_in_is_anti_where_there_are_no_nulls(backend: AnyBackend, case: Case) -> None:
    left, right = sides(case.seed, [KEY_TYPES["int32"]], case.rows, case.shape, nulls=0.0)
    if case.shape is KeyShape.ALL_NULL:
        return
    anti, aware = (
        run_join(keyed(kind, left, right), left, right, backend=backend)
        for kind in (JoinType.LEFT_ANTI, JoinType.NULL_AWARE_ANTI)
    )
    assert_same_rows(aware, anti, allow_empty=True)


@pytest.mark.slow
@settings(SETTINGS, max_examples=1500)
@given(case=cases())
def test_any_join_any_way_at_length(backend: AnyBackend, case: Case) -> None:
    test_any_join_any_way_is_the_oracles.hypothesis.inner_test(backend, case)  # type: ignore[attr-defined]
