"""One key with very many rows on both sides: its pairs are a product that is never stored."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gpujoin import HashJoin, JoinMetrics, JoinSpec, JoinType, KeyPair, Options
from gpujoin.backends.cpu.backend import CpuBackend
from gpujoin.backends.cpu.probes import GroupProbe
from gpujoin.model.expressions import left, right
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Indices, Repeat, Span, Tile
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.engine.support import build_sides, run_join
from tests.oracle.join import oracle_join

TYPES = [how for how in JoinType if how is not JoinType.CROSS]


def side(rows: int, hot: int, shift: int = 0, *, shuffled: bool = True) -> pa.Table:
    keys = np.concatenate([np.full(hot, 7), np.arange(rows - hot) + 10 + shift])
    if shuffled:
        keys = np.random.default_rng(rows).permutation(keys)
    return pa.table({"k": keys, "v": np.arange(rows) % 97, "t": [f"{i}é" for i in range(rows)]})


@pytest.mark.few
@pytest.mark.parametrize("build", Side, ids=lambda s: s.value)
@pytest.mark.parametrize("condition", [None, "l.v < r.v"])
@pytest.mark.parametrize("how", TYPES, ids=lambda how: how.value)
def test_every_join_type(how: JoinType, condition: str | None, build: Side) -> None:
    if build not in build_sides(how):
        pytest.skip("not to be built")
    left_table, right_table = side(150, 120), side(130, 100, 25, shuffled=False)
    tested = None if condition is None else resolve(left("v") < right("v"), left_table.schema, right_table.schema)
    spec = JoinSpec(how, (KeyPair(0, 0),), tested, (0, 1, 2), () if how.left_rows_only else (1, 2))
    for options in (Options(), Options(batch_bytes=4000, candidate_pairs=300)):
        result = run_join(spec, left_table, right_table, backend=CpuBackend(), build_side=build, options=options)
        assert_same_rows(result, oracle_join(left_table, right_table, spec), allow_empty=True)


@pytest.mark.parametrize("shuffled", [True, False], ids=["rows in any order", "rows side by side"])
def test_pairs_of_one_key_are_not_stored(shuffled: bool) -> None:
    backend = CpuBackend()
    keys = pa.table({"k": side(3000, 2500, shuffled=shuffled)["k"].combine_chunks()})
    build = backend.build(backend.from_arrow(keys))
    probe = build.probe(backend.from_arrow(pa.table({"k": pa.array(np.full(2000, 7))})))
    assert isinstance(probe, GroupProbe)
    assert probe.pairs == 2000 * 2500
    stored: set[int] = set()
    for part in probe.slices(100_000):
        assert isinstance(part.probe, Repeat)
        assert isinstance(part.build, Tile)
        stored.add(len(part.build.rows))
    assert stored == {2500}
    for part in itertools.islice(probe.slices(1000), 7):
        assert isinstance(part.probe, Repeat)
        if isinstance(part.build, Indices):
            order = build.groups.order  # type: ignore[union-attr]
            assert order is not None
            assert np.shares_memory(part.build.values, order)
        else:
            assert isinstance(part.build, (Span, Tile))


def test_ten_billion_pairs_stream_through_a_small_budget(tmp_path: Path) -> None:
    """10⁵ × 10⁵ rows of one key: the first of 10¹⁰ pairs come out, with memory for the sides and a few batches."""
    rows = 100_000
    table = pa.table({"k": np.full(rows, 7), "v": np.arange(rows)})
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), None, (1,), (1,))
    options = Options(memory_budget=400_000, batch_bytes=1 << 20, spill_dir=str(tmp_path))
    metrics = JoinMetrics()
    tracemalloc.start()
    arrow = pa.total_allocated_bytes()
    most = 0
    try:
        with HashJoin(spec, table.schema, table.schema, options=options, metrics=metrics) as join:
            join.build(table.to_batches(max_chunksize=10_000))
            source = itertools.chain(join.probe(table.to_batches(max_chunksize=10_000)), join.finish())
            taken = 0
            for batch in itertools.islice(source, 40):
                taken += batch.num_rows
                most = max(most, pa.total_allocated_bytes() - arrow)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert metrics.spills > 0, "the build side is over its budget"
    assert taken > 1_000_000
    assert most < 32 << 20
    assert peak < 32 << 20, "pairs were stored"
