"""The choice between gathering columns and packed rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpujoin.model.gathering import GatherFacts, GatherMethod
from gpujoin.plan.gathering import choose_gather

L2 = 60 << 20
LARGE = GatherFacts(
    rows=100_000_000,
    widths=(8, 8, 4),
    row_bytes=32,
    entries=100_000_000,
    ascending=False,
    packed=False,
    l2_bytes=L2,
)
"""Three columns far larger than L2, and a map as long as they are."""


@pytest.mark.parametrize(
    ("facts", "method"),
    [
        (LARGE, GatherMethod.ROWS),
        (replace(LARGE, widths=(8,), row_bytes=8), GatherMethod.COLUMNS),
        (replace(LARGE, row_bytes=None), GatherMethod.COLUMNS),
        (replace(LARGE, ascending=True), GatherMethod.COLUMNS),
        # Columns within L2, and rows of two sectors for two columns of one.
        (replace(LARGE, rows=L2 // 8, entries=1 << 40), GatherMethod.COLUMNS),
        (replace(LARGE, widths=(16, 16), row_bytes=48), GatherMethod.COLUMNS),
    ],
)
def test_choice(facts: GatherFacts, method: GatherMethod) -> None:
    assert choose_gather(facts).method is method
    assert choose_gather(facts).reason


def test_packing_waits_until_it_has_paid() -> None:
    """Three sectors an entry against one; packing a row reads 20 bytes and writes 32."""
    enough = LARGE.rows * 52 // 64
    assert choose_gather(replace(LARGE, entries=enough)).method is GatherMethod.COLUMNS
    assert choose_gather(replace(LARGE, entries=enough + 1)).method is GatherMethod.ROWS
    assert choose_gather(replace(LARGE, entries=1, packed=True)).method is GatherMethod.ROWS


def test_a_column_beyond_the_cache_is_enough() -> None:
    rows = L2 // 8 + 1
    assert choose_gather(replace(LARGE, rows=rows, entries=10 * rows)).method is GatherMethod.ROWS
    assert choose_gather(replace(LARGE, rows=rows - 1, entries=10 * rows)).method is GatherMethod.COLUMNS
