"""The measurements behind the choices of the CPU backend: ``python -m benchmarks.engine.algorithms --help``.

Every number is nanoseconds of processor time per row, the least of a few runs, on one thread.
"""

# Functions made in a loop are called before it goes on.
# ruff: noqa: B023

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.engine.cases import scattered, texts, varied_texts
from benchmarks.machine import describe
from gpujoin.backends.cpu import backend as cpu
from gpujoin.backends.cpu import cascade, rowstore
from gpujoin.backends.cpu.backend import CpuBackend
from gpujoin.backends.cpu.build import CpuBuild, make_build
from gpujoin.backends.cpu.frame import Frame
from gpujoin.backends.cpu.grouping import sorted_order
from gpujoin.backends.cpu.memory import empty
from gpujoin.model.maps import Indices

Row = Sequence[str]
Array = npt.NDArray[Any]
BACKEND = CpuBackend()
UNCHECKED = pc.TakeOptions(boundscheck=False)
MORSEL = 1 << 18


def least(rows: int, work: Callable[[], object], runs: int = 5) -> str:
    """Nanoseconds per row of the fastest of some runs."""
    best = float("inf")
    for _ in range(runs):
        start = time.process_time()
        kept = work()
        best = min(best, time.process_time() - start)
        del kept
    return f"{best / rows * 1e9:.1f}"


def parts(values: Array, size: int = MORSEL) -> list[Array]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def frame(**columns: Any) -> Frame:
    return BACKEND.from_arrow(pa.table(columns))


def probe_all(build: CpuBuild, keys: Any, size: int = MORSEL) -> Callable[[], object]:
    frames = [frame(k=keys[start : start + size]) for start in range(0, len(keys), size)]
    return lambda: [build.probe(one) for one in frames]


def sparse_join(rows: int) -> Iterator[Row]:
    """Gather maps of a unique sparse int64 join, by probes of 262,144 rows: build and probe, per probe row."""
    yield (
        "build rows",
        "own cascade: build",
        "probe",
        "sorted build, searchsorted",
        "Polars, one join",
        "Polars, a join per probe",
        "Acero, one join",
    )
    rng = np.random.default_rng(1)
    for distinct in (rows // 1000, rows // 10, rows):
        right = scattered(rng.permutation(distinct))
        left = scattered(rng.integers(0, distinct, rows))
        build = make_build(frame(k=right))
        ordered = np.sort(right)
        table = pl.DataFrame({"k": right, "r": np.arange(distinct, dtype=np.uint32)})
        everything = pl.DataFrame({"k": left})
        pieces = [pl.DataFrame({"k": part}) for part in parts(left)]
        arrow_left, arrow_right = pa.table({"k": left}), table.to_arrow()
        yield (
            f"{distinct:,}",
            least(rows, lambda: make_build(frame(k=right)), 3),
            least(rows, probe_all(build, left)),
            least(rows, lambda: [np.searchsorted(ordered, p) for p in parts(left)], 1),
            least(rows, lambda: everything.join(table, on="k", maintain_order="left"), 3),
            least(rows, lambda: [one.join(table, on="k", maintain_order="left") for one in pieces], 1),
            least(rows, lambda: arrow_left.join(arrow_right, "k", join_type="inner", use_threads=False), 1),
        )  # fmt: skip


def slots_per_row(rows: int) -> Iterator[Row]:
    """Probing the cascade by its slots per build row; half of the probe rows match."""
    yield "build rows", *(f"{slots} slots" for slots in (1, 2, 3, 4, 6))
    rng = np.random.default_rng(1)
    default = cascade.SLOTS_PER_ROW
    for distinct in (rows // 1000, rows // 10, rows):
        left = scattered(rng.integers(0, 2 * distinct, rows))
        cells = []
        for slots in (1, 2, 3, 4, 6):
            cascade.SLOTS_PER_ROW = slots
            cells.append(least(rows, probe_all(make_build(frame(k=scattered(np.arange(distinct)))), left), 3))
        yield f"{distinct:,}", *cells
    cascade.SLOTS_PER_ROW = default


def direct_or_hash(rows: int) -> Iterator[Row]:
    """A table of positions against the cascade, by positions per build row: build and probe, per probe row."""
    factors = (1, 4, 8, 16, 32)
    yield "build rows", "cascade", *(f"direct, {factor} per row" for factor in factors)
    rng = np.random.default_rng(1)
    for distinct in (rows // 100, rows // 10, rows // 2):
        cells = []
        for factor in (0, *factors):
            space = rng.permutation(distinct * max(1, factor))
            right, left = space[:distinct], rng.choice(space[:distinct], rows)
            always = 1 << 62 if factor else 0

            def both() -> object:
                build = make_build(frame(k=right), dense_factor=0, dense_anyway=always)
                return probe_all(build, left)()

            cells.append(least(rows, both, 3))
        yield f"{distinct:,}", *cells


def fresh_pages(rows: int) -> Iterator[Row]:
    """Gathering four int64 columns into new arrays that are all kept, as the output of a join is, by array size."""
    yield "source rows", "bytes of an array", "numpy.empty", "Arrow's pool"
    rng = np.random.default_rng(1)
    for distinct in (rows // 1000, rows // 10):
        values, indices = rng.integers(0, 1 << 40, distinct), rng.integers(0, distinct, rows)
        for size in (1 << 18, 1 << 20):
            cells = [
                least(
                    4 * rows,
                    lambda: [
                        np.take(values, part, out=allocate(len(part), np.int64), mode="clip")
                        for _ in range(4)
                        for part in parts(indices, size)
                    ],
                )
                for allocate in (np.empty, empty)
            ]
            yield f"{distinct:,}", f"{8 * size:,}", *cells


def gathering(rows: int) -> Iterator[Row]:
    """Gathering one column at random: NumPy into Arrow's pool, Arrow's take, Polars' gather and back to Arrow."""
    yield "type", "source rows", "NumPy", "Arrow", "Polars", "Polars, to Arrow"
    rng = np.random.default_rng(1)
    for distinct in (rows // 1000, rows // 10):
        indices = rng.integers(0, distinct, rows)
        numbers = rng.integers(0, 1 << 40, distinct)
        nullable = pa.array(numbers, mask=rng.random(distinct) < 0.1)
        for name, array in (
            ("int64", pa.array(numbers)),
            ("int64, nulls", nullable),
            ("string", texts(numbers)),
        ):
            own = "–" if name == "string" else least(rows, _own_gather(frame(c=array), indices))
            yield name, f"{distinct:,}", own, *_foreign_gathers(rows, array, indices)


def _own_gather(source: Frame, indices: Array) -> Callable[[], object]:
    return lambda: [BACKEND.gather(source, Indices(part, len(part))) for part in parts(indices)]


def _foreign_gathers(rows: int, array: pa.Array, indices: Array) -> Iterator[str]:
    series = pl.from_arrow(array)
    assert isinstance(series, pl.Series)
    narrow = indices.astype(np.uint32)
    oldest = pl.CompatLevel.oldest()
    yield least(rows, lambda: [pc.call_function("take", [array, pa.array(p)], UNCHECKED) for p in parts(indices)], 3)
    yield least(rows, lambda: [series.gather(pl.Series(p)) for p in parts(narrow)], 3)
    yield least(rows, lambda: [series.gather(pl.Series(p)).to_arrow(compat_level=oldest) for p in parts(narrow)], 3)


def many_columns(rows: int) -> Iterator[Row]:
    """Gathering int64 columns at random: by column, from a row-wise copy, and making that copy (per source row)."""
    yield "source rows", "columns", "by column", "by row", "making the copy"
    rng = np.random.default_rng(1)
    for distinct in (rows // 100, rows // 10, rows // 4):
        for columns in (2, 4, 8, 16):
            values = [rng.integers(0, 1 << 40, distinct) for _ in range(columns)]
            pieces = parts(rng.integers(0, distinct, rows // 2))
            store = rowstore.RowStore(values)

            def by_column() -> object:
                return [
                    [np.take(v, part, out=empty(len(part), np.int64), mode="clip") for v in values] for part in pieces
                ]

            yield (
                f"{distinct:,}",
                str(columns),
                least(rows // 2, by_column, 3),
                least(rows // 2, lambda: [store.take(part) for part in pieces], 3),
                least(distinct, lambda: rowstore.RowStore(values), 3),
            )


def grouping(rows: int) -> Iterator[Row]:
    """Stable sorting of group numbers, to put the rows of a key side by side."""
    yield (
        "rows",
        "groups",
        "radix, 16 bits at a time",
        "argsort int32",
        "sort of packed int64",
        "Polars arg_sort",
        "Arrow sort_indices",
    )
    rng = np.random.default_rng(1)
    for size, groups in ((rows // 5, rows // 10), (rows, rows // 10), (rows, 10_000)):
        numbers = rng.integers(0, groups, size).astype(np.int32)

        def packed() -> object:
            both = (numbers.astype(np.int64) << 32) | np.arange(size)
            both.sort()
            return both & 0xFFFFFFFF

        yield (
            f"{size:,}",
            f"{groups:,}",
            least(size, lambda: sorted_order(numbers, groups), 3),
            least(size, lambda: np.argsort(numbers, kind="stable"), 1),
            least(size, packed, 1),
            least(size, lambda: pl.Series(numbers).arg_sort(), 1),
            least(size, lambda: pc.sort_indices(pa.array(numbers)), 1),
        )


def byte_keys(rows: int) -> Iterator[Row]:
    """Gather maps of string joins, build rows a tenth: own words or fingerprints against whole joins of the others."""
    yield "keys", "algorithm", "build", "probe", "Polars", "Acero"
    rng = np.random.default_rng(1)
    distinct = rows // 20
    makers: dict[str, Callable[[Any], pa.Array]] = {
        "7 bytes": lambda n: texts(n, 7), "16 bytes": texts, "36 bytes": lambda n: texts(n, 36),
        "12-40 bytes": varied_texts,
    }  # fmt: skip
    for name, make in makers.items():
        right = make(rng.permutation(distinct)).cast(pa.large_string()).cast(pa.large_binary())
        left = make(rng.integers(0, distinct, rows // 2)).cast(pa.large_string()).cast(pa.large_binary())
        build = make_build(frame(k=right))
        frames = pl.DataFrame({"k": pl.from_arrow(left)}), pl.DataFrame({"k": pl.from_arrow(right)})
        tables = pa.table({"k": left}), pa.table({"k": right, "r": np.arange(distinct)})
        yield (
            name,
            build.algorithm,
            least(rows // 2, lambda: make_build(frame(k=right)), 3),
            least(rows // 2, probe_all(build, left), 3),
            least(rows // 2, lambda: frames[0].join(frames[1].with_row_index(), on="k"), 3),
            least(rows // 2, lambda: tables[0].join(tables[1], "k", join_type="inner", use_threads=False), 1),
        )


def morsels(rows: int) -> Iterator[Row]:
    """A whole join by morsel size, one payload column a side."""
    sizes = [1 << bits for bits in (14, 16, 17, 18, 19, 20)]
    yield "join", *(f"{size:,} rows" for size in sizes)
    from gpujoin import join_tables

    rng = np.random.default_rng(1)
    default = cpu.MORSEL_ROWS
    for name, make in {"dense": lambda n: n, "sparse": scattered}.items():
        left = pa.table({"k": make(rng.integers(0, rows // 10, rows)), "a": np.arange(rows)})
        right = pa.table({"k": make(rng.permutation(rows // 10)), "b": np.arange(rows // 10)})
        cells = []
        for size in sizes:
            cpu.MORSEL_ROWS = size
            cells.append(least(rows, lambda: join_tables(left, right, "k", backend=BACKEND)))
        yield name, *cells
    cpu.MORSEL_ROWS = default


MEASUREMENTS: dict[str, Callable[[int], Iterable[Row]]] = {
    "sparse integers": sparse_join,
    "slots per row": slots_per_row,
    "direct or hash": direct_or_hash,
    "byte keys": byte_keys,
    "grouping": grouping,
    "gathering": gathering,
    "gathering many columns": many_columns,
    "fresh pages": fresh_pages,
    "morsels": morsels,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.algorithms", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MEASUREMENTS), help=", ".join(MEASUREMENTS))
    parser.add_argument("--rows", type=int, default=10_000_000)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    machine = describe()
    print(f"{machine['processor']}, {machine['cores']} cores; {machine['versions']}; {arguments.rows:,} rows\n")
    for name in arguments.names:
        measure = MEASUREMENTS[name]
        print(f"## {name.capitalize()}\n\n{measure.__doc__}\n", flush=True)
        for number, row in enumerate(measure(arguments.rows)):
            print("| " + " | ".join(row) + " |", flush=True)
            if number == 0:
                print("| " + " | ".join("---:" for _ in row) + " |")
        print(flush=True)


if __name__ == "__main__":
    main()
