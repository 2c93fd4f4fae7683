"""Joins by order over the device backend's own code on NumPy, without kernels, against the row-by-row oracle.

With kernels: `tests/kernels/test_ordered.py`.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from gpujoin.engine.join import build
from gpujoin.model.backend import AnyBackend
from gpujoin.model.jointype import JoinType
from tests.backends.cudf.host import HostBackend
from tests.engine.test_ranges import JOINS, SHAPES, check, tables


@pytest.mark.few
@pytest.mark.parametrize("keys", [0, 1])
@pytest.mark.parametrize("shape", ["less", "between, left is the point", "overlap", "with a rest"])
@pytest.mark.parametrize("join_type", JOINS, ids=lambda t: t.value)
def test_joins(join_type: JoinType, shape: str, keys: int, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(build, "LEAST_SPREAD", 1)
    backend: AnyBackend = HostBackend()
    condition, names = SHAPES[shape]
    algorithms = {f"cudf {name}" for name in (*names, "range_monotone")}
    left, right = tables(seed, pa.int64(), (60, 50), keys=keys)
    check(backend, join_type, left, right, condition, algorithms, keys=keys, context=f"seed {seed}")
