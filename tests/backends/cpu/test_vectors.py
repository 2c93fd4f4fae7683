"""Masks and maps of the CPU backend, its place in the registry, and memory errors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.backends.cpu.build import make_build
from gpujoin.backends.cpu.memory import memory_errors
from gpujoin.backends.registry import BackendRequest, create, unavailable
from gpujoin.errors import GpuJoinError, HostMemoryError
from gpujoin.model.backend import Backend, BackendName
from gpujoin.model.maps import AllNull, Indices, OutOfBounds, Repeat, RowMap, Span, Tile
from tests.backends.cpu.support import BACKEND, keys

ALL_MAPS: list[RowMap] = [
    Span(2, 4),
    Repeat(3, 4, 2),
    Tile(3, 4, 5),
    Tile(0, 4, 2),
    AllNull(4),
    Indices(np.array([5, 1, 1, 0], np.int32), 4),
    Indices(np.array([5, -1, 1, 0]), 4, OutOfBounds.NULLIFY),
]


def test_registry_gives_this_backend() -> None:
    assert unavailable(BackendName.CPU) is None
    backend: Backend[object, object] = create(BackendName.CPU, BackendRequest(threads=3))
    assert backend.name is BackendName.CPU
    assert backend.threads == 3
    assert backend.morsel_rows > 0


@pytest.mark.parametrize("rows", ALL_MAPS, ids=repr)
def test_filter_map(rows: RowMap) -> None:
    before = BACKEND.indices_to_host(rows)
    assert before.dtype == np.int64
    for bits in range(16):
        mask = np.array([bits >> i & 1 for i in range(4)], np.bool_)
        kept = BACKEND.filter_map(rows, mask)
        assert kept.length == int(mask.sum())
        assert BACKEND.indices_to_host(kept).tolist() == before[mask].tolist()


def test_selection() -> None:
    mask = np.array([True, False, True])
    assert BACKEND.indices_to_host(BACKEND.selection(mask, True)).tolist() == [0, 2]
    assert BACKEND.indices_to_host(BACKEND.selection(mask, False)).tolist() == [1]
    assert BACKEND.selection(~mask & mask, False) == Span(0, 3)
    assert BACKEND.selection(mask[:0], True).length == 0


@pytest.mark.parametrize("rows", [m for m in ALL_MAPS[:6] if not isinstance(m, AllNull)], ids=repr)
def test_mark(rows: RowMap) -> None:
    marks = BACKEND.marks(6)
    assert not marks.any()
    BACKEND.mark(marks, rows)
    assert np.flatnonzero(marks).tolist() == sorted(set(BACKEND.indices_to_host(rows).tolist()))
    BACKEND.mark(marks, Span(0, 0))
    BACKEND.mark(marks, Indices(np.array([], np.int64), 0))


def test_host_round_trips() -> None:
    mask = np.array([True, False])
    assert BACKEND.mask_to_host(BACKEND.mask_from_host(mask)).tolist() == [True, False]
    rows = BACKEND.indices_from_host(np.array([1, -1]), OutOfBounds.NULLIFY)
    assert rows.length == 2
    assert rows.out_of_bounds is OutOfBounds.NULLIFY
    assert BACKEND.indices_to_host(rows).tolist() == [1, -1]


def test_lookup_needs_unique_keys() -> None:
    build = make_build(BACKEND.from_arrow(keys([1, 1])))
    with pytest.raises(GpuJoinError, match="unique"):
        build.probe(BACKEND.from_arrow(keys([1]))).lookup()


def test_memory_errors_are_the_engine_s() -> None:
    @memory_errors
    def greedy() -> pa.Buffer:
        return pa.allocate_buffer(1 << 60)

    with pytest.raises(HostMemoryError, match="ran out of memory"):
        greedy()
    with pytest.raises(HostMemoryError):
        BACKEND.marks(1 << 60)


def test_one_build_is_probed_by_many_threads(rng: np.random.Generator) -> None:
    from concurrent.futures import ThreadPoolExecutor

    build_keys, probe_keys = rng.integers(0, 1 << 60, 20_000), rng.integers(0, 1 << 60, 5_000)
    probe_keys[::2] = rng.choice(build_keys, 2_500)
    build = make_build(BACKEND.from_arrow(keys(build_keys)))
    frame = BACKEND.from_arrow(keys(probe_keys))
    alone = build.probe(frame).matched()
    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda _: build.probe(frame).matched(), range(32)):
            assert np.array_equal(result, alone)
