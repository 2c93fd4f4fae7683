"""The measurements behind the constants of searches by order: processor time, the least of a few runs, one thread.

python -m benchmarks.engine.ranges [--rows 200000]

Prints the tables of the sections "ranges within keys", "two ranges" and "costs of shapes" of the README beside it.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from gpujoin import Options, join_tables, left, right
from gpujoin.backends.ordered import probe
from gpujoin.engine import tables
from gpujoin.engine.join import build as join_build
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side

SEED = 20261121
RUNS = 3


def seconds(run: Callable[[], Any]) -> float:
    """Processor time of the fastest of a few runs."""
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


@contextmanager
def constant(module: Any, name: str, value: object) -> Iterator[None]:
    """A module's constant with another value."""
    old = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def joined(one: pa.Table, two: pa.Table, condition: Expression | None, **more: Any) -> Callable[[], pa.Table]:
    options = Options(cpu_threads=1)
    return lambda: join_tables(one, two, condition=condition, backend="cpu", options=options, **more)


def within_keys(rows: int) -> None:
    """Joins by key and range, by rows of one key: searched by order, and compared one by one."""
    rng = np.random.default_rng(SEED)
    condition = (left("x") >= right("y") - 5) & (left("x") <= right("y") + 5)
    row("rows a key", "one by one, ns a row", "by order, ns a row")
    row("---:", "---:", "---:")
    for spread in (2, 4, 8, 16, 32, 64):
        made = []
        for name in "xy":
            keys = rng.integers(0, rows // spread, rows)
            made.append(pa.table({"k": keys, name: rng.integers(0, 1000, rows)}))
        times = []
        for least in (float("inf"), 0.0):
            with constant(join_build, "LEAST_SPREAD", least):
                times.append(seconds(joined(made[0], made[1], condition, on="k")) / rows * 1e9)
        row(spread, *(f"{t:.0f}" for t in times))


def two_ranges(rows: int) -> None:
    """Overlaps of intervals of different lengths, by candidates a row: looked at, and searched in a wavelet matrix."""
    rng = np.random.default_rng(SEED)
    condition = (left("a") <= right("d")) & (left("b") >= right("c"))
    row("candidates a row", "steps of a search", "looking, ns a row", "searching, ns a row")
    row("---:", "---:", "---:", "---:")
    for build in (16, 32, 64, 128, 256, 512):
        low, at = (rng.integers(0, 100 * build, count) for count in (build, rows))
        one = pa.table({"a": at, "b": at + 100})
        two = pa.table({"c": low, "d": low + rng.integers(0, 300, build)})
        candidates = np.searchsorted(np.sort(low), at + 100)
        times = []
        for looks in (1 << 40, 0):
            with (
                constant(probe, "LOOKS_PER_STEP", looks),
                constant(tables, "_build_side", lambda *_: Side.RIGHT),
            ):
                times.append(seconds(joined(one, two, condition)) / rows * 1e9)
        row(f"{candidates.mean():.0f}", build.bit_length(), *(f"{t:.0f}" for t in times))


def shapes(rows: int) -> None:
    """What a row costs in each shape, in the terms of `gpujoin.plan.cost`."""
    rng = np.random.default_rng(SEED)
    row("rows", "range: ns a row and doubling", "NOT IN over two columns: ns a row")
    row("---:", "---:", "---:")
    for count in (rows // 4, rows, rows * 4):
        x, y = (rng.integers(0, 2 * count, count) for _ in range(2))
        condition = (left("x") >= right("y") - 1) & (left("x") <= right("y"))
        ranged = seconds(joined(pa.table({"x": x}), pa.table({"y": y}), condition))
        nulls = [rng.random(count) < 0.01 for _ in range(4)]
        one = pa.table({"a": pa.array(x, mask=nulls[0]), "b": pa.array(y, mask=nulls[1])})
        few = [mask & (np.arange(count) % 500 == 0) for mask in nulls[2:]]
        two = pa.table({"p": pa.array(y, mask=few[0]), "q": pa.array(x)})
        keys = {"left_on": ["a", "b"], "right_on": ["p", "q"]}
        pattern = seconds(joined(one, two, None, how="null_aware_anti", **keys))
        doublings = math.log2(2 * count)
        row(
            f"{count:,}",
            f"{ranged / (2 * count) / doublings * 1e9:.1f}",
            f"{pattern / (2 * count) * 1e9:.0f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.ranges")
    parser.add_argument("--rows", type=int, default=200_000)
    given = parser.parse_args()
    for measure in (within_keys, two_ranges, shapes):
        print(f"\n{measure.__doc__}\n")
        measure(given.rows)


if __name__ == "__main__":
    main()
