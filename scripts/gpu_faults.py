#!/usr/bin/env python3
"""Make each allocation on the GPU fail in turn, and see that nothing breaks, leaks, or comes out wrong.

Usage: ``python scripts/gpu_faults.py [--seconds N] [--memcheck]``

First every operation of the backend, one allocation after the other: the failure must surface as DeviceMemoryError and
leave no memory behind. Then whole joins: their result must be right whatever fails. With ``--memcheck`` the operations
run once instead, on plain ``cudaMalloc``, for compute-sanitizer to watch.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.engine.tables import join_tables
from gpujoin.errors import DeviceMemoryError
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.expressions import Expression, left, right
from gpujoin.model.maps import AllNull, OutOfBounds, Repeat, Span
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.generate import Generator

SEED = 20_260_701
ROWS = 2_000
PAYLOAD = pa.schema([("n", pa.int32()), ("s", pa.string()), ("l", pa.list_(pa.string())), ("d", pa.decimal128(30, 4))])
CONDITION = (left("n") <= right("n")) | left("s").contains("a")
JOINS: tuple[Any, ...] = ("inner", "left", "full", "left_semi", "left_anti", "existence")


class FailingResource:
    """A memory resource whose k-th allocation fails, and which knows what is still allocated."""

    def __init__(self, upstream: Any) -> None:
        import rmm.mr

        self._upstream = upstream
        self._lock = threading.Lock()
        self.fail_at = 0
        self.allocations = 0
        self.held: dict[int, int] = {}
        self.resource = rmm.mr.CallbackMemoryResource(self._allocate, self._deallocate)

    def arm(self, fail_at: int) -> None:
        """Count from one again, and let that allocation fail; zero: none."""
        self.allocations, self.fail_at = 0, fail_at

    def _allocate(self, nbytes: int, stream: Any) -> int:
        with self._lock:
            self.allocations += 1
            if self.allocations == self.fail_at:
                raise MemoryError(f"injected at allocation {self.fail_at}")
        pointer: int = self._upstream.allocate(nbytes, stream)
        with self._lock:
            self.held[pointer] = nbytes
        return pointer

    def _deallocate(self, pointer: int, nbytes: int, stream: Any) -> None:
        with self._lock:
            self.held.pop(pointer, None)
        self._upstream.deallocate(pointer, nbytes, stream)


def key_tables() -> Iterator[tuple[str, pa.Table, pa.Table]]:
    """Key frames that take every algorithm: name, build side, probe side."""
    rng = np.random.default_rng(SEED)
    few, spread = rng.integers(0, 300, ROWS), rng.integers(0, 300, ROWS) * 10_000_019
    text = [None if v % 17 == 0 else str(v).encode() for v in few]
    for name, build in {
        "direct unique": pa.array(rng.permutation(ROWS)),
        "direct": pa.array(few),
        "sorted": pa.array(spread),
        "fingerprint": pa.array(text, pa.large_binary()),
    }.items():
        yield name, pa.table({"k": build}), pa.table({"k": build.take(pa.array(rng.permutation(ROWS)))})


def operations(backend: AnyBackend) -> list[Any]:
    """Everything a backend does, on small data; gives what came out of it."""
    payload = Generator(SEED).table(PAYLOAD, ROWS)
    condition: Expression = resolve(CONDITION, PAYLOAD, PAYLOAD)
    out: list[Any] = []
    frame = backend.from_arrow(payload)
    for algorithm, (_, build_keys, probe_keys) in product((Algorithm.AUTO, Algorithm.CUDF), key_tables()):
        build = backend.build(backend.from_arrow(build_keys), algorithm)
        probe = build.probe(backend.from_arrow(probe_keys))
        marks = backend.marks(build.rows)
        probe.mark_build(marks)
        out += [probe.pairs, backend.mask_to_host(marks).sum(), backend.mask_to_host(probe.matched()).sum()]
        for part in probe.slices(5_000):
            sides = [backend.gather(frame, rows) for rows in (part.probe, part.build)]
            mask = backend.evaluate(condition, sides[0], sides[1], part.length)
            kept = backend.filter_map(part.build, mask)
            out += [backend.gathered_bytes(frame, kept), backend.indices_to_host(kept).sum()]
    free = np.arange(-5, 500, dtype=np.int64)
    for rows in (backend.indices_from_host(np.maximum(free, -1), OutOfBounds.NULLIFY), Span(3, 50), AllNull(9),
                 Repeat(1, 40, 3)):  # fmt: skip
        out.append(backend.to_arrow(backend.gather(frame, rows), PAYLOAD))
    return out


def whole_joins(backend: Any) -> list[pa.Table]:
    """Joins by the engine, with small batches and a residual condition, and with output made at once."""
    payload = Generator(SEED).table(PAYLOAD, 300)
    rng = np.random.default_rng(SEED)
    one, two = (payload.append_column("k", pa.array(rng.integers(0, 90, 300))) for _ in range(2))
    options = Options(batch_bytes=20_000, candidate_pairs=500)
    found = [
        join_tables(one, two, on="k", how=how, condition=CONDITION, backend=backend, options=options) for how in JOINS
    ]
    fixed = [side.select(["n", "d", "k"]) for side in (one, two)]
    unique = fixed[1].slice(0, 60).set_column(2, "k", pa.array(rng.permutation(60)))
    return found + [
        join_tables(fixed[0], unique, on="k", how=how, backend=backend, options=options)
        for how in ("inner", "left_semi", "left_anti")
    ]


def same(found: list[Any], wanted: list[Any]) -> None:
    """Compare two results of :func:`operations`.

    Raises
    ------
    AssertionError
        If they differ.
    """
    assert len(found) == len(wanted)
    for one, two in zip(found, wanted, strict=True):
        if isinstance(one, pa.RecordBatch):
            tables = [pa.Table.from_batches([batch]) for batch in (one, two)]
            assert_same_rows(tables[0], tables[1])
        else:
            assert one == two, (one, two)


def each_fault(memory: FailingResource, attempt: Callable[[], bool], deadline: float) -> tuple[int, int]:
    """Arm allocation after allocation until an attempt needs fewer; gives how many were tried, and of how many.

    Where time runs short only every second, fourth, … is tried.
    """
    memory.arm(0)
    attempt()
    total = memory.allocations
    step, tried = 1, 0
    started = time.monotonic()
    number = 1
    while number <= total:
        memory.arm(number)
        attempt()
        tried += 1
        if time.monotonic() > deadline:
            break
        each = (time.monotonic() - started) / tried
        while step < total and (total - number) / step * each > deadline - time.monotonic():
            step *= 2
        number += step
    memory.arm(0)
    return tried, total


def main() -> int:
    """Run; the last line is a JSON summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90.0, help="time to spend")
    parser.add_argument("--memcheck", action="store_true", help="once, on plain cudaMalloc, nothing failing")
    arguments = parser.parse_args()
    import rmm.mr

    backend = create(BackendName.GPU, BackendRequest(memory_limit=2 << 30))
    reference = create(BackendName.CPU, BackendRequest())
    wanted = operations(reference)
    if arguments.memcheck:
        rmm.mr.set_per_device_resource(0, rmm.mr.CudaMemoryResource())
        same(operations(backend), wanted)
        print(json.dumps({"memcheck": "every operation run once"}))
        return 0

    memory = FailingResource(rmm.mr.get_per_device_resource(0))
    rmm.mr.set_per_device_resource(0, memory.resource)
    same(operations(backend), wanted)  # compiles kernels and fills caches
    gc.collect()
    baseline = sum(memory.held.values())

    def operation() -> bool:
        try:
            same(operations(backend), wanted)
        except DeviceMemoryError:
            failed = True
        else:
            failed = False
        gc.collect()
        left_over = sum(memory.held.values()) - baseline
        assert not left_over, f"{left_over} bytes still held after allocation {memory.fail_at} failed"
        assert failed == (0 < memory.fail_at <= memory.allocations), f"fault {memory.fail_at} went unnoticed"
        return failed

    joins = whole_joins(reference)

    def join() -> bool:
        for found, expected in zip(whole_joins(backend), joins, strict=True):
            assert_same_rows(found, expected, allow_empty=True, context=f"allocation {memory.fail_at} failed")
        return True

    start = time.monotonic()
    summary = {}
    for name, attempt, share in (("operations", operation, 0.6), ("joins", join, 1.0)):
        tried, total = each_fault(memory, attempt, start + arguments.seconds * share)
        summary[name] = {"faults": tried, "allocations": total}
        print(f"{name}: {tried} of {total} allocations failed in turn, none with harm", flush=True)
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
