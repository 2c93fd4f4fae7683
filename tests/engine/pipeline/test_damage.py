"""Damaged files: whatever the bytes are, planning goes on, and errors name the file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.engine.pipeline.damage import Outcome, Tally, sweep, write_files


def _check(tally: Tally, count: int) -> None:
    assert sum(tally.counts.values()) == count
    never = (Outcome.CRASH, Outcome.HANG, Outcome.OTHER_ERROR)
    assert not [line for line in tally.bad if any(f": {outcome}: " in line for outcome in never)]
    # Damage to pages may be in nothing that a reader checks. What the footer says, PyArrow reads in the same way.
    footers: Counter[Outcome] = Counter()
    for (part, outcome), number in tally.counts.items():
        if part in ("footer", "tail"):
            footers[outcome] += number
    assert footers[Outcome.DECODER_CRASH] == 0, tally.bad
    assert footers[Outcome.REFUSED] > count // 4
    assert footers[Outcome.EQUAL] > count // 10, "few files were read"


def test_damaged_files_neither_kill_nor_hang_the_process_that_plans_them(tmp_path: Path) -> None:
    write_files(tmp_path)
    _check(sweep(tmp_path, seed=7, count=250), 250)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 8, 9])
def test_many_damaged_files(seed: int, tmp_path: Path) -> None:
    write_files(tmp_path)
    tally = sweep(tmp_path, seed, 5600)
    print("\n".join(f"{part} {outcome}: {number}" for (part, outcome), number in sorted(tally.counts.items())))
    _check(tally, 5600)
