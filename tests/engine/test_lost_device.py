"""Devices that are lost in the middle of a join: from one call on every call fails, those that copy to the host too."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.engine.join import passes
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import DeviceLostError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HostBackend
from tests.engine.support import CONDITIONS, KEYED, build_sides, keyed, run_join, sides
from tests.faults import ALLOCATING, FaultyBackend
from tests.generate import KeyShape
from tests.oracle.join import oracle_join

EVERY_CALL = ALLOCATING | {"indices_to_host", "mask_to_host"}
SMALL = Options(batch_bytes=3000, candidate_pairs=40)
"""Many batches and chunks of few rows."""
BRIEF = (JoinType.INNER, JoinType.FULL, JoinType.LEFT_SEMI)
"""Joins of `make test`; with test_memory.py all are without a device that has memory."""


@pytest.mark.few
@pytest.mark.parametrize("condition", ["no condition", "l.v < r.v"])
@pytest.mark.parametrize("build_side", Side, ids=lambda s: f"build {s.value}")
@pytest.mark.parametrize(
    "join_type",
    [pytest.param(kind, id=kind.value, marks=[] if kind in BRIEF else pytest.mark.extra) for kind in KEYED],
)
def test_a_device_lost_at_any_call(
    join_type: JoinType, build_side: Side, condition: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The join goes on on the CPU, with the marks of build rows, the output so far, and the reason."""
    if build_side not in build_sides(join_type):
        pytest.skip("not to be built")
    monkeypatch.setattr(passes, "LEAST_ROWS_AHEAD", 1)
    turn = KEYED.index(join_type) + (build_side is Side.LEFT) + (condition == "no condition")
    shape = (KeyShape.UNIQUE, KeyShape.UNIFORM)[turn % 2]
    left, right = sides(seed, [pa.int32()], (22, 19), shape)
    spec = keyed(join_type, left, right, condition=CONDITIONS[condition])
    expected = oracle_join(left, right, spec)

    def joined(after: int | None) -> tuple[pa.Table, FaultyBackend, JoinMetrics]:
        backend = FaultyBackend(HostBackend(morsel_rows=9), after=after, operations=EVERY_CALL, error=DeviceLostError)
        metrics = JoinMetrics()
        table = run_join(
            spec, left, right, build_side=build_side, options=SMALL, batch_rows=9, backend=backend, metrics=metrics
        )
        return table, backend, metrics

    calls = joined(None)[1].total_calls
    assert calls >= 4
    for number in range(calls):
        actual, backend, metrics = joined(number)
        context = f"seed {seed}, lost after {number} of {calls} calls"
        assert_same_rows(actual, expected, allow_empty=True, context=context)
        assert backend.faults >= 1, context
        assert metrics.fallbacks >= 1, context
        assert sum(metrics.fallback_reasons.values()) == metrics.fallbacks, context
        assert metrics.output_rows == expected.num_rows, context


def test_a_morsel_is_not_halved_where_the_device_is_lost(seed: int) -> None:
    """Halves would fail too: the CPU takes the whole morsel."""
    left, right = sides(seed, [pa.int32()], (9000, 400), KeyShape.UNIFORM)
    spec = keyed(JoinType.LEFT, left, right)
    backend = FaultyBackend(HostBackend(), after=6, operations=EVERY_CALL, error=DeviceLostError)
    metrics = JoinMetrics()
    actual = run_join(spec, left, right, backend=backend, metrics=metrics)
    assert_same_rows(actual, oracle_join(left, right, spec), context=f"seed {seed}")
    assert metrics.retries + metrics.fallbacks < 10
