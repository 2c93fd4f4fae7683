"""Generated joins against the row loop: every type, keys of every kind, conditions, ranges, budgets; nasty data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpujoin.engine.join import build, early_stop
from gpujoin.model.jointype import JoinType
from tests.engine.generated import JOINS_PER_TABLES, Tally, check_joins

JOINS = int(os.environ.get("GPUJOIN_TEST_JOINS", "4000"))
"""Joins of the long sweep: set it for a longer one."""
BLOCK = 1000


def sweep(seed: int, tables: range, folder: Path) -> Tally:
    """Compare all joins of some pairs of tables."""
    tally = Tally()
    for number in tables:
        tally.add(check_joins(seed * 1_000_000 + number, folder))
    return tally


@pytest.fixture
def early_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges are searched by order, and joins read in steps, on tables of any size."""
    monkeypatch.setattr(build, "LEAST_SPREAD", 1)
    monkeypatch.setattr(early_stop, "FIRST_ROWS", 2)


def test_generated_joins(early_indexes: None, tmp_path: Path, seed: int) -> None:
    tally = sweep(seed, range(12), tmp_path)
    assert tally.joins >= 11 * JOINS_PER_TABLES
    assert len(tally.kinds) >= 9
    assert tally.rows > tally.joins


@pytest.mark.slow
@pytest.mark.parametrize("block", range(JOINS // BLOCK))
def test_many_generated_joins(block: int, tmp_path: Path, seed: int, request: pytest.FixtureRequest) -> None:
    if block % 2:
        request.getfixturevalue("early_indexes")
    first = block * (BLOCK // JOINS_PER_TABLES)
    tally = sweep(seed, range(first, first + BLOCK // JOINS_PER_TABLES), tmp_path)
    assert tally.joins > 0.9 * BLOCK
    assert set(tally.kinds) == {kind.value for kind in JoinType}
    assert tally.spilled > 0
    assert {"direct", "hash_words"} <= set(tally.algorithms)
