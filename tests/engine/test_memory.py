"""Running out of device memory, at every point where it can happen, changes nothing but the counters."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain

import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import DeviceLostError, DeviceMemoryError, DeviceValueError, OutOfMemoryError
from gpujoin.model.backend import AnyBackend
from gpujoin.model.expressions import left, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HostBackend
from tests.brief import brief
from tests.engine.support import CONDITIONS, KEYED, build_sides, keyed, run_join, sides
from tests.faults import ALLOCATING, FaultyBackend
from tests.generate import KeyShape
from tests.oracle.join import oracle_join

SMALL = Options(batch_bytes=3000, candidate_pairs=40)
"""Many batches and chunks of few rows."""


def with_a_long_text(table: pa.Table) -> pa.Table:
    """One value so long that batches have to be measured before they are gathered."""
    texts = [*table["s"].to_pylist()[:-1], "long" * 500]
    return table.set_column(table.schema.get_field_index("s"), "s", pa.array(texts))


def total_calls(spec_args: dict[str, object], backend: AnyBackend) -> int:
    counting = FaultyBackend(backend)
    run_join(**spec_args, backend=counting)  # type: ignore[arg-type]
    assert counting.faults == 0
    return counting.total_calls


@pytest.mark.few
@pytest.mark.parametrize("condition", ["no condition", "l.v < r.v"])
@pytest.mark.parametrize("build_side", Side, ids=lambda s: f"build {s.value}")
@pytest.mark.parametrize("join_type", KEYED, ids=lambda t: t.value)
def test_fault_at_any_call(
    backend: AnyBackend, join_type: JoinType, build_side: Side, condition: str, seed: int
) -> None:
    if build_side not in build_sides(join_type):
        pytest.skip("not to be built")
    # In turn, so that every join type, build side and condition meets both.
    turn = KEYED.index(join_type) + (build_side is Side.LEFT) + (condition == "no condition")
    shape = (KeyShape.UNIQUE, KeyShape.UNIFORM)[turn % 2]
    left, right = (with_a_long_text(table) for table in sides(seed, [pa.int32()], (16, 14), shape))
    spec = keyed(join_type, left, right, condition=CONDITIONS[condition])
    how = {
        "spec": spec,
        "left_table": left,
        "right_table": right,
        "build_side": build_side,
        "options": SMALL,
        "batch_rows": 9,
    }
    expected = oracle_join(left, right, spec)
    calls = total_calls(how, backend)
    assert calls >= 4
    for number in range(1, calls + 1):
        for faults in ({"at": {number}}, {"after": number - 1}):
            faulty, metrics = FaultyBackend(backend, **faults), JoinMetrics()
            actual = run_join(**how, backend=faulty, metrics=metrics)
            context = f"seed {seed}, {faults} of {calls} calls"
            assert_same_rows(actual, expected, allow_empty=True, context=context)
            assert faulty.faults >= 1, context
            assert metrics.retries + metrics.fallbacks + metrics.spills >= 1, context
            assert metrics.output_rows == expected.num_rows, context


@pytest.mark.parametrize("keys", [0, 1, 2])
@pytest.mark.parametrize("every", [2, 3, 5, 11])
def test_fault_at_every_nth_call(backend: AnyBackend, keys: int, every: int, seed: int) -> None:
    left, right = sides(seed, [pa.string(), pa.int64()][:keys], (40, 37), distinct=4)
    # Whatever is drawn, a left row of nulls meets nothing.
    left = pa.concat_tables([left, pa.Table.from_pylist([dict.fromkeys(left.column_names)], left.schema)])
    for join_type in (JoinType.FULL, JoinType.LEFT, JoinType.LEFT_ANTI, JoinType.EXISTENCE):
        spec = keyed(join_type, left, right, keys=keys, condition=CONDITIONS["l.v < r.v"])
        faulty = FaultyBackend(backend, every=every)
        actual = run_join(spec, left, right, backend=faulty, options=SMALL, batch_rows=13)
        assert faulty.faults or faulty.total_calls < every
        assert_same_rows(actual, oracle_join(left, right, spec), context=f"seed {seed}, {join_type}")


@pytest.mark.parametrize("join_type", [JoinType.INNER, JoinType.FULL, JoinType.EXISTENCE], ids=lambda t: t.value)
@pytest.mark.parametrize("condition", ["no condition", "l.row > 5"])
def test_a_device_that_takes_few_rows_works_on_smaller_pieces(
    backend: AnyBackend, join_type: JoinType, condition: str, seed: int
) -> None:
    left, right = sides(seed, [pa.int64()], (9000, 9000), KeyShape.UNIQUE)
    spec = keyed(join_type, left, right, condition=CONDITIONS[condition])
    plain = run_join(spec, left, right, backend=backend)
    faulty = FaultyBackend(
        backend, max_rows=3000, operations=ALLOCATING - {"from_arrow", "build", "marks", "mask_from_host"}
    )
    metrics = JoinMetrics()
    actual = run_join(spec, left, right, backend=faulty, metrics=metrics)
    assert_same_rows(actual, plain, context=f"seed {seed}")
    assert metrics.retries > 0
    assert metrics.fallbacks == 0


@pytest.mark.parametrize("join_type", brief(["inner", "left", "full"], "full"))
def test_a_morsel_with_more_output_than_is_held_back_comes_in_parts(join_type: str, seed: int) -> None:
    """No part has more than eight batches, and none is joined on the CPU."""
    left, right = sides(seed, [pa.int64()], (200, 130), distinct=3, nulls=0)
    spec = keyed(JoinType.parse(join_type), left, right)
    for every in (None, 7):
        backend = FaultyBackend(HostBackend(), every=every, operations={"probe"})
        metrics = JoinMetrics()
        actual = run_join(spec, left, right, backend=backend, options=SMALL, metrics=metrics)
        assert_same_rows(actual, oracle_join(left, right, spec), context=f"seed {seed}")
        assert backend.calls["probe"] > 10
        assert metrics.output_batches > 10 * 8
        assert metrics.fallbacks == backend.faults


FAILURES: dict[str, tuple[type[OutOfMemoryError | DeviceValueError], Collection[str]]] = {
    "memory": (DeviceMemoryError, ALLOCATING),
    "loss": (DeviceLostError, ALLOCATING | {"indices_to_host", "mask_to_host"}),
    "values": (DeviceValueError, {"evaluate", "restrict", "probe", "slices"}),
}
"""Ways in which a device fails, and the operations that do."""


@pytest.mark.few(2)
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("join_type", [JoinType.INNER, JoinType.LEFT, JoinType.FULL], ids=lambda t: t.value)
def test_a_row_with_more_output_than_is_held_back_is_finished_on_the_cpu(
    join_type: JoinType, rows: int, failure: str
) -> None:
    """Batches go out before the device fails, and the CPU returns the other pairs."""
    left_table = pa.table({"k": [1] * rows, "v": range(rows)})
    right_table = pa.table({"k": [1] * 1200, "w": range(1200)})
    spec = keyed(join_type, left_table, right_table, condition=left("v") != right("w"))
    expected = oracle_join(left_table, right_table, spec)
    error, operations = FAILURES[failure]
    options = Options(batch_bytes=1024, candidate_pairs=200)

    def joined(after: int | None) -> tuple[pa.Table, FaultyBackend, int]:
        backend = FaultyBackend(HostBackend(), after=after, operations=operations, error=error)
        collected, batches = [], 0
        with HashJoin(spec, left_table.schema, right_table.schema, backend=backend, options=options) as join:
            join.build(right_table.to_batches())
            for batch in chain(join.probe(left_table.to_batches()), join.finish()):
                collected.append(batch)
                batches += not backend.faults
        return pa.Table.from_batches(collected, expected.schema), backend, batches

    calls = joined(None)[1].total_calls
    early = 0
    for after in (calls // 8, calls // 3, calls // 2, calls - 1):
        actual, backend, batches = joined(after)
        early += batches
        assert_same_rows(actual, expected, context=f"after {after} of {calls} calls")
        assert backend.faults
    assert early


@pytest.mark.few
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("condition", ["no condition", "l.v < r.v"])
@pytest.mark.parametrize("keys", [0, 1])
@pytest.mark.parametrize("build_side", Side, ids=lambda s: f"build {s.value}")
@pytest.mark.parametrize("join_type", [t for t in KEYED if not t.null_aware], ids=lambda t: t.value)
def test_fault_at_any_call_where_single_rows_have_more_output_than_is_held_back(
    join_type: JoinType, build_side: Side, keys: int, condition: str, failure: str, seed: int
) -> None:
    left_table, right_table = (
        table.select(["k0", "row", "v"]) for table in sides(seed, [pa.int64()], (10, 11), distinct=1)
    )
    spec = keyed(join_type, left_table, right_table, keys=keys, condition=CONDITIONS[condition])
    expected = oracle_join(left_table, right_table, spec)
    error, operations = FAILURES[failure]

    def joined(**faults: object) -> tuple[pa.Table, FaultyBackend]:
        backend = FaultyBackend(HostBackend(morsel_rows=5), operations=operations, error=error, **faults)  # type: ignore[arg-type]
        options = Options(batch_bytes=16, candidate_pairs=3)
        return run_join(
            spec, left_table, right_table, build_side=build_side, backend=backend, options=options, batch_rows=5
        ), backend

    calls = joined()[1].total_calls
    for number in range(1, calls + 1, max(1, calls // 10)):
        for faults in ({"at": {number}}, {"after": number - 1}):
            if failure == "loss" and "at" in faults:
                continue
            actual, _ = joined(**faults)
            assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}, {faults} of {calls} calls")


def test_a_build_side_that_does_not_fit_is_divided(backend: AnyBackend, seed: int) -> None:
    rows = 60_000
    left, right = sides(seed, [pa.int64()], (rows, rows), KeyShape.UNIQUE)
    left, right = left.select(["k0", "row"]), right.select(["k0", "row", "v"])
    for join_type in (JoinType.FULL, JoinType.LEFT_SEMI):
        right_output = () if join_type.left_rows_only else (1,)
        spec = keyed(join_type, left, right, left_output=(1,), right_output=right_output)
        plain = run_join(spec, left, right, backend=backend)
        faulty, metrics = FaultyBackend(backend, max_rows=10_000, operations={"build"}), JoinMetrics()
        actual = run_join(spec, left, right, backend=faulty, metrics=metrics)
        assert_same_rows(actual, plain, context=f"seed {seed}")
        assert faulty.faults == 1
        assert metrics.spills >= 32
        assert metrics.fallbacks == 0


def test_what_was_built_by_the_device_and_is_full_forever_is_finished_on_the_cpu(
    backend: AnyBackend, seed: int
) -> None:
    left, right = sides(seed, [pa.int64()], (500, 400))
    spec = keyed(JoinType.FULL, left, right)
    faulty, metrics = FaultyBackend(backend, after=0), JoinMetrics()
    actual = run_join(spec, left, right, backend=faulty, metrics=metrics)
    assert_same_rows(actual, oracle_join(left, right, spec), context=f"seed {seed}")
    assert metrics.fallbacks >= 1


def test_the_fault_injector_counts_and_fails(backend: AnyBackend) -> None:
    table = pa.table({"k": pa.array([1, 2, 3], pa.int32())})
    faulty = FaultyBackend(backend, at={2})
    faulty.from_arrow(table)
    with pytest.raises(DeviceMemoryError, match="injected at call 2: from_arrow of 3 rows"):
        faulty.from_arrow(table)
    faulty.from_arrow(table)
    assert (faulty.calls, faulty.faults) == ({"from_arrow": 3}, 1)

    build = FaultyBackend(backend, max_rows=2, operations={"probe"}).build(backend.from_arrow(table))
    assert build.probe(backend.from_arrow(table.slice(0, 2))).pairs == 2
    with pytest.raises(DeviceMemoryError):
        build.probe(backend.from_arrow(table))

    with pytest.raises(DeviceMemoryError):
        FaultyBackend(backend, max_bytes=11).from_arrow(table)
    FaultyBackend(backend, max_bytes=12).from_arrow(table)
