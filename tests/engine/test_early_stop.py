"""Semi, anti and existence joins with the left side built: rows that have a match need no further right rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.backends.cpu.backend import CpuBackend
from gpujoin.config import Options
from gpujoin.engine.join import early_stop
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.backend import AnyBackend
from gpujoin.model.expressions import Expression, left, lit, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.testing import assert_same_rows
from tests.engine.support import batches, keyed, run_join
from tests.faults import FaultyBackend
from tests.oracle.join import oracle_join

FORMS = [JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE]
CONDITIONS: dict[str, Expression] = {
    "range": left("a") < right("c"),
    "overlap": (left("a") <= right("d")) & (left("b") >= right("c")),
    "range with a rest": (left("a") <= right("c")) & ((left("row") + right("row")) % lit(3) == lit(0)),
    "free": (left("row") * right("row")) % lit(7) == lit(3),
}


@pytest.fixture
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of so few rows that small tables take many."""
    monkeypatch.setattr(early_stop, "FIRST_ROWS", 2)
    monkeypatch.setattr(early_stop, "GROWTH", 1)


def sides(rng: np.random.Generator, rows: tuple[int, int] = (40, 70)) -> tuple[pa.Table, pa.Table]:
    """Intervals, most of them short; a key of few values; some of each are null."""

    def column(values: np.ndarray) -> pa.Array:
        return pa.array(values, pa.int32(), mask=rng.random(len(values)) < 0.1)

    tables = []
    for names, count in zip((("a", "b"), ("c", "d")), rows, strict=True):
        low = rng.integers(0, 100, count)
        high = low + np.where(rng.random(count) < 0.1, 60, rng.integers(-2, 3, count))
        keys = column(rng.integers(0, 3, count))
        number = pa.array(range(count), pa.int32())
        tables.append(pa.table({"k0": keys, names[0]: column(low), names[1]: column(high), "row": number}))
    return tables[0], tables[1]


@pytest.mark.few
@pytest.mark.parametrize("keys", [0, 1], ids=["no keys", "a key"])
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("how", FORMS, ids=lambda how: how.value)
@pytest.mark.usefixtures("small_rounds")
def test_against_the_row_loop(
    how: JoinType, condition: str, keys: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    left_table, right_table = sides(rng)
    spec = keyed(how, left_table, right_table, keys=keys, condition=CONDITIONS[condition])
    expected = oracle_join(left_table, right_table, spec)
    for threads, rows, budget in ((1, 5, 1 << 20), (2, 1000, 1 << 20), (1, 9, 700)):
        metrics = JoinMetrics()
        options = Options(candidate_pairs=50, memory_budget=budget, spill_dir=str(tmp_path))
        result = run_join(
            spec, left_table, right_table, backend=CpuBackend(threads=threads), build_side=Side.LEFT, batch_rows=rows,
            options=options, metrics=metrics,
        )  # fmt: skip
        assert_same_rows(result, expected, allow_empty=True)
        if condition in ("overlap", "range with a rest") and budget > 700:
            assert sum(metrics.algorithms.values()) > 1, "no search was made again"


@pytest.mark.parametrize("how", FORMS, ids=lambda how: how.value)
@pytest.mark.usefixtures("small_rounds")
def test_fault_at_any_call(backend: AnyBackend, how: JoinType, rng: np.random.Generator) -> None:
    left_table, right_table = sides(rng, (12, 20))
    spec = keyed(how, left_table, right_table, keys=0, condition=CONDITIONS["range with a rest"])
    expected = oracle_join(left_table, right_table, spec)
    counting = FaultyBackend(backend)
    run_join(spec, left_table, right_table, backend=counting, build_side=Side.LEFT)
    for number in range(1, counting.total_calls + 1, 3):
        for faulty in (FaultyBackend(backend, at={number}), FaultyBackend(backend, after=number - 1)):
            result = run_join(spec, left_table, right_table, backend=faulty, build_side=Side.LEFT)
            assert faulty.faults
            assert_same_rows(result, expected, allow_empty=True)


class TestReadingNoFurtherThanNeeded:
    """50 left rows, 100,000 right rows, counted as they are read."""

    left_table = pa.table({"a": pa.array(range(50), pa.int32()), "row": pa.array(range(50), pa.int32())})
    right_table = pa.table({"c": pa.array(np.arange(100_000) % 1000, pa.int32()), "row": np.arange(100_000)})

    def run(self, condition: Expression, how: JoinType) -> tuple[int, JoinMetrics, int]:
        """Rows returned, counters, right rows read."""
        spec = keyed(how, self.left_table, self.right_table, keys=0, condition=condition)
        read = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal read
            for batch in batches(self.right_table, 1000):
                read += batch.num_rows
                yield batch

        metrics = JoinMetrics()
        join = HashJoin(spec, self.left_table.schema, self.right_table.schema, build_side=Side.LEFT, metrics=metrics)
        with join:
            join.build(batches(self.left_table, 50))
            rows = sum(batch.num_rows for batch in [*join.probe(counted()), *join.finish()])
            assert join.can_stop is (read < self.right_table.num_rows)
        return rows, metrics, read

    @pytest.mark.parametrize("how", FORMS, ids=lambda how: how.value)
    def test_all_are_met_soon(self, how: JoinType) -> None:
        for condition in (left("a") < right("c"), (left("row") + right("row")) % lit(2) == lit(0)):
            rows, metrics, read = self.run(condition, how)
            assert rows == (0 if how is JoinType.LEFT_ANTI else 50)
            assert read < 40_000, "of a hundred thousand"
            assert metrics.candidate_pairs < 50 * 100

    def test_rows_that_are_met_cost_no_more_pairs(self) -> None:
        """All left rows but one meet thousands of right rows, which only the first time is worth a look."""
        rest = (left("row") + right("row")) % lit(2) >= lit(0)
        never = (left("a") <= right("c")) & rest & ((left("a") < lit(49)) | (right("c") < lit(0)))
        rows, metrics, read = self.run(never, JoinType.LEFT_SEMI)
        assert (rows, read) == (49, 100_000)
        assert metrics.candidate_pairs < 300_000, "of five million"

    def test_nothing_is_built(self) -> None:
        spec = keyed(JoinType.LEFT_SEMI, self.left_table, self.right_table, keys=0, condition=left("a") < right("c"))
        metrics = JoinMetrics()
        none = self.left_table.slice(0, 0)
        assert not run_join(
            spec,
            none,
            self.right_table,
            backend=CpuBackend(),
            build_side=Side.LEFT,
            batch_rows=1000,
            metrics=metrics,
        ).num_rows
        assert metrics.probe_rows < 40_000
