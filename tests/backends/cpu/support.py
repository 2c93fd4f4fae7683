"""A join of two key tables in plain Python, and a probe taken apart."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa

from gpujoin.backends.cpu.backend import CpuBackend
from gpujoin.backends.cpu.build import CpuBuild, make_build
from gpujoin.backends.cpu.rowmaps import as_indices

BACKEND = CpuBackend()
Pairs = list[tuple[int, int]]


def keys(*columns: Any) -> pa.Table:
    return pa.table({f"k{i}": column for i, column in enumerate(columns)})


def expected_pairs(probe: pa.Table, build: pa.Table) -> Pairs:
    """All pairs of rows with equal keys and no null, by probe row, then build row."""
    rows_of: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, row in enumerate(_rows(build)):
        if None not in row:
            rows_of[row].append(number)
    return [
        (number, other) for number, row in enumerate(_rows(probe)) if None not in row for other in rows_of.get(row, ())
    ]


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def check_join(probe: pa.Table, build: pa.Table, **options: Any) -> CpuBuild:
    """Compare everything a probe can say with the join in plain Python; return the build, to look at its algorithm."""
    made = make_build(BACKEND.from_arrow(build), **options)
    expected = expected_pairs(probe, build)
    assert made.rows == build.num_rows
    distinct = [row for row in _rows(build) if None not in row]
    assert made.unique == (len(set(distinct)) == len(distinct))

    result = made.probe(BACKEND.from_arrow(probe))
    assert result.rows == probe.num_rows
    assert result.pairs == len(expected)
    assert np.flatnonzero(result.matched()).tolist() == sorted({left for left, _ in expected})
    marks = BACKEND.marks(build.num_rows)
    result.mark_build(marks)
    assert np.flatnonzero(marks).tolist() == sorted({right for _, right in expected})
    if made.unique:
        matches = dict(expected)
        lookup = result.lookup()
        assert lookup.values.tolist() == [matches.get(row, -1) for row in range(probe.num_rows)]
        assert lookup.length == probe.num_rows
    for most in (1, 2, 7, 1000, 1 << 40):
        if len(expected) // most > 3000:
            continue
        pairs: Pairs = []
        for part in result.slices(most):
            assert 0 < part.length <= most
            pairs += zip(as_indices(part.probe).tolist(), as_indices(part.build).tolist(), strict=True)
        assert pairs == expected
    return made
