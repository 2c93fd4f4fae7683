"""Keys of the next morsel, copied to a device by a second thread."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.engine.join import passes
from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.jointype import JoinType
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HostBackend
from tests.engine.support import CONDITIONS, keyed, run_join, sides
from tests.faults import FaultyBackend
from tests.generate import KeyShape
from tests.oracle.join import oracle_join

SMALL = Options(batch_bytes=3000, candidate_pairs=40)
KINDS = (JoinType.INNER, JoinType.FULL, JoinType.LEFT_ANTI, JoinType.EXISTENCE)


@pytest.fixture(autouse=True)
def small_morsels_are_copied_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "LEAST_ROWS_AHEAD", 1)


class Watched(HostBackend):
    """Notes what another thread copies to the device, and holds it weakly."""

    def __init__(self) -> None:
        super().__init__(morsel_rows=20)
        self.keys: list[weakref.ref[Any]] = []

    def from_arrow(self, table: pa.Table) -> pa.Table:
        if threading.current_thread() is not threading.main_thread():
            self.keys.append(weakref.ref(table))
        return super().from_arrow(table)


@pytest.mark.parametrize("condition", ["no condition", "l.v < r.v"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.value)
def test_the_keys_of_each_morsel_are_copied_once_by_another_thread(kind: JoinType, condition: str, seed: int) -> None:
    left, right = sides(seed, [pa.int32(), pa.string()], (90, 40), KeyShape.UNIFORM)
    spec = keyed(kind, left, right, keys=2, condition=CONDITIONS[condition])
    backend, metrics = Watched(), JoinMetrics()
    actual = run_join(spec, left, right, backend=backend, options=SMALL, batch_rows=20, metrics=metrics)
    assert_same_rows(actual, oracle_join(left, right, spec), allow_empty=True, context=f"seed {seed}")
    assert metrics.uploads_ahead == 4, "all morsels but the first"
    assert len(backend.keys) == 2 * 5, "one column as it is, and a text, which is converted"


def test_the_first_batches_come_before_all_rows_are_read(seed: int) -> None:
    """The source is read one morsel ahead, by the thread that asks."""
    from gpujoin import HashJoin, Side

    left, right = sides(seed, [pa.int32()], (100, 40), KeyShape.UNIFORM)
    spec = keyed(JoinType.LEFT, left, right)
    readers: list[str] = []

    def rows() -> Any:
        for start in range(0, 100, 10):
            readers.append(threading.current_thread().name)
            yield left.slice(start, 10).combine_chunks().to_batches()[0]

    with HashJoin(spec, left.schema, right.schema, build_side=Side.RIGHT, backend=Watched()) as join:
        join.build(right.to_batches())
        output = join.probe(rows())
        next(output)
        assert len(readers) < 10
        rest = sum(batch.num_rows for batch in output)
    assert rest > 0
    assert set(readers) == {threading.current_thread().name}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=kind.value, marks=pytest.mark.extra if kind is JoinType.FULL else []) for kind in KINDS],
)
def test_memory_that_runs_out_at_any_call(kind: JoinType, seed: int) -> None:
    """In either thread: what was not copied ahead is copied when it is its turn."""
    left, right = sides(seed, [pa.int32()], (70, 25), KeyShape.UNIFORM)
    spec = keyed(kind, left, right)
    expected = oracle_join(left, right, spec)

    def joined(**faults: Any) -> tuple[pa.Table, FaultyBackend, JoinMetrics]:
        backend, metrics = FaultyBackend(HostBackend(morsel_rows=20), **faults), JoinMetrics()
        table = run_join(spec, left, right, backend=backend, options=SMALL, batch_rows=20, metrics=metrics)
        return table, backend, metrics

    for number in range(1, joined()[1].total_calls + 1):
        for faults in ({"at": {number}}, {"after": number - 1}):
            actual, backend, metrics = joined(**faults)
            assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}, {faults}")
            assert backend.faults >= 1
            assert metrics.retries + metrics.fallbacks + metrics.spills >= 1, faults


def test_keys_that_were_copied_ahead_are_gone_while_the_cpu_joins(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = sides(seed, [pa.int32()], (60, 40), KeyShape.UNIFORM)
    spec = keyed(JoinType.INNER, left, right)
    device = Watched()
    backend = FaultyBackend(device, operations={"probe"}, at={2})
    frames: list[bool] = []
    on_cpu = BuiltSide.on_cpu

    def noted(self: BuiltSide, metrics: JoinMetrics) -> BuiltSide:
        frames.append(device.keys[1]() is not None)
        return on_cpu(self, metrics)

    monkeypatch.setattr(BuiltSide, "on_cpu", noted)
    actual = run_join(spec, left, right, backend=backend, options=SMALL, batch_rows=20)
    assert_same_rows(actual, oracle_join(left, right, spec), context=f"seed {seed}")
    assert frames == [False]
