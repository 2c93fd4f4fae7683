"""The choice between reading payload with the keys and by row numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpujoin.config import AlgorithmChoice
from gpujoin.model.gathering import HashFacts, SlotFacts
from gpujoin.plan.fetching import choose_fetch, fetch_chooser

L2 = 60 << 20
DENSE = SlotFacts(
    rows=1 << 24, payload_bytes=8, row_bytes=8, packed=True, there=False, probe_rows=1 << 28, padded=False,
    free_bytes=100 << 30, l2_bytes=L2, slots=1 << 24,
)  # fmt: skip
"""One column of a dimension whose keys are all there, beyond L2."""

HASHED = HashFacts(
    rows=1 << 27, payload_bytes=8, row_bytes=8, packed=True, there=False, probe_rows=1 << 27, padded=True,
    free_bytes=100 << 30, l2_bytes=L2, key_bytes=8, joint_bytes=16,
)  # fmt: skip
FOUR_COLUMNS = replace(HASHED, payload_bytes=32, packed=False, row_bytes=32, joint_bytes=48)

CASES: dict[str, tuple[SlotFacts | HashFacts, bool]] = {
    "slots beyond L2": (DENSE, True),
    "slots within L2": (replace(DENSE, rows=1 << 16, slots=1 << 16), True),
    "four slots a key, beyond L2": (replace(DENSE, row_bytes=16, slots=1 << 26, padded=True), True),
    "row numbers in L2, slots only if all were taken": (
        replace(DENSE, rows=1 << 20, row_bytes=32, slots=1 << 22), False,
    ),
    "rows of many sectors, few keys": (
        replace(DENSE, rows=1 << 12, payload_bytes=256, row_bytes=256, slots=1 << 22, probe_rows=1 << 26), False,
    ),
    "few probe rows": (replace(DENSE, probe_rows=1 << 24), False),
    "few probe rows of a table that is there": (replace(DENSE, probe_rows=1 << 16, there=True), True),
    "a small join": (replace(DENSE, rows=1000, slots=1000, probe_rows=1 << 20), False),
    "beside keys": (HASHED, True),
    "beside keys, and rows without a match left out": (replace(HASHED, padded=False), True),
    "beside 16-byte keys, which takes too much memory": (replace(HASHED, key_bytes=16, joint_bytes=32), False),
    "four columns and a key, over a sector": (FOUR_COLUMNS, False),
    "four columns and keys of their slots": (replace(FOUR_COLUMNS, key_bytes=4, joint_bytes=32), True),
    "few probe rows of a hash table": (replace(HASHED, probe_rows=1 << 24), False),
    "slots that leave no room": (replace(DENSE, free_bytes=511 << 20), False),
    "slots that leave some room": (replace(DENSE, free_bytes=512 << 20), True),
    "slots that are there and leave no room": (replace(DENSE, there=True, free_bytes=0), True),
    "rows that leave some room": (replace(HASHED, free_bytes=8 << 30), True),
    "rows that leave no room": (replace(HASHED, free_bytes=(8 << 30) - 1), False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_payload_is_read_with_keys_where_that_takes_less_time(case: str) -> None:
    facts, expected = CASES[case]
    choice = choose_fetch(facts)
    assert choice.fetched is expected
    assert choice.reason


def test_a_table_of_payload_is_made_once_it_has_paid() -> None:
    """So many probe rows make it worth it, and any number after that."""
    wanted = [choose_fetch(replace(DENSE, probe_rows=1 << log)).fetched for log in range(20, 30)]
    assert wanted == sorted(wanted)
    assert set(wanted) == {False, True}


def test_no_kernels_where_cudf_is_asked_for() -> None:
    assert fetch_chooser(AlgorithmChoice.CUDF, copied=False) is None
    assert fetch_chooser(AlgorithmChoice.DIRECT, copied=False) is choose_fetch
    assert fetch_chooser(AlgorithmChoice.DIRECT, copied=True) is None
