"""How payload gets to the output: packed rows or columns, at once or by maps, with the keys or by row numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpujoin.backends.cudf.accesses import COPY, L2_SHARE, read_seconds
from gpujoin.backends.cudf.choices import (
    EmissionFacts,
    GatherFacts,
    HashFacts,
    SlotFacts,
    fetches_payload,
    packs_rows,
    writes_at_once,
)

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
    ("facts", "expected"),
    [
        (LARGE, True),
        (replace(LARGE, widths=(8,), row_bytes=8), False),
        (replace(LARGE, row_bytes=None), False),
        (replace(LARGE, ascending=True), False),
        # Columns within the share of L2, and rows of two sectors for two columns of one.
        (replace(LARGE, rows=int(L2_SHARE * L2) // 8, entries=1 << 40), False),
        (replace(LARGE, widths=(16, 16), row_bytes=48), False),
    ],
)
def test_choice(facts: GatherFacts, expected: bool) -> None:
    assert packs_rows(facts).yes is expected
    assert packs_rows(facts).reason


def test_packing_waits_until_it_has_paid() -> None:
    """Three sectors an entry against one; packing a row reads 20 bytes and writes 32."""

    def seconds(width: int) -> float:
        return read_seconds(LARGE.rows * width, 1, L2, width=width)

    enough = int(LARGE.rows * 52 / COPY / (2 * seconds(8) + seconds(4) - seconds(32)))
    assert not packs_rows(replace(LARGE, entries=enough)).yes
    assert packs_rows(replace(LARGE, entries=enough + 1)).yes
    assert packs_rows(replace(LARGE, entries=1, packed=True)).yes


def test_a_column_beyond_the_cache_is_enough() -> None:
    """Up to the share of L2 that serves all multiprocessors, packed rows would be beyond it."""
    rows = int(L2_SHARE * L2) // 8
    large = replace(LARGE, widths=(8,) * 4, entries=1 << 40)
    assert packs_rows(replace(large, rows=4 * rows)).yes
    assert not packs_rows(replace(large, rows=rows)).yes


HALF = EmissionFacts(
    probe_rows=2 * LARGE.entries, rows=LARGE.entries, probe_widths=(8, 8), build=replace(LARGE, packed=True)
)
"""Half of the probe rows match a packed build side."""


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (HALF, True),
        (replace(HALF, build=None), True),
        (replace(HALF, probe_widths=()), True),
        (replace(HALF, probe_widths=None), False),
        (replace(HALF, build_fixed=False), False),
        (replace(HALF, rows=0), False),
        (replace(HALF, probe_rows=HALF.rows), False),
        (replace(HALF, build=replace(LARGE, row_bytes=None)), False),
        # Another read of what was found for every probe row, for few rows of output.
        (replace(HALF, probe_rows=200 * HALF.rows), False),
        (replace(HALF, build=None, probe_rows=50 * HALF.rows), True),
        # Packing 100 million rows for a thousand of output.
        (replace(HALF, probe_rows=2000, rows=1000, build=replace(LARGE, entries=1000)), False),
        # One column that stays in L2: its packed row is no dearer, and there are no maps.
        (replace(HALF, build=replace(LARGE, rows=1000, widths=(8,), row_bytes=8)), True),
    ],
)
def test_output_at_once(facts: EmissionFacts, expected: bool) -> None:
    assert writes_at_once(facts).yes is expected
    assert writes_at_once(facts).reason


def test_output_at_once_waits_until_packing_has_paid() -> None:
    """So many entries so far make the packing of the build side worth it, and any number after that."""
    wanted = [
        writes_at_once(replace(HALF, probe_rows=2000, rows=1000, build=replace(LARGE, entries=1000 << log))).yes
        for log in range(20)
    ]
    assert wanted == sorted(wanted)
    assert set(wanted) == {False, True}


RUNS = EmissionFacts(
    probe_rows=LARGE.entries // 4, rows=LARGE.entries, probe_widths=(8, 8), build=LARGE, unique=False, ordered=True
)
"""Four matches a probe row, of a build side packed in the order of its keys."""


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (RUNS, True),
        # As many output rows as probe rows do not mean that these stay where they are.
        (replace(RUNS, rows=RUNS.probe_rows), True),
        (replace(RUNS, build=None), True),
        (replace(RUNS, probe_widths=(), build=None), True),
        (replace(RUNS, rows=0), False),
        (replace(RUNS, probe_widths=None), False),
        (replace(RUNS, build_fixed=False), False),
        (replace(RUNS, build=replace(LARGE, row_bytes=None)), False),
        # Ordering 100 million rows for a thousand of output.
        (replace(RUNS, rows=1000, build=replace(LARGE, entries=1000), ordered=False), False),
        (replace(RUNS, rows=1000, build=replace(LARGE, entries=1000)), True),
        # Rows of 256 bytes for 32 columns of one byte, which stay in L2 by themselves.
        (
            replace(RUNS, build=replace(LARGE, rows=1_000_000, widths=(1, 1), row_bytes=256), ordered=False),
            False,
        ),
    ],
)
def test_output_of_keys_that_repeat(facts: EmissionFacts, expected: bool) -> None:
    assert writes_at_once(facts).yes is expected
    assert writes_at_once(facts).reason


def test_rows_are_put_in_order_once_that_has_paid() -> None:
    """So many pairs so far make it worth it, and any number after that."""
    wanted = [
        writes_at_once(replace(RUNS, build=replace(LARGE, entries=1 << log), ordered=False)).yes for log in range(32)
    ]
    assert wanted == sorted(wanted)
    assert set(wanted) == {False, True}


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
    choice = fetches_payload(facts)
    assert choice.yes is expected
    assert choice.reason


def test_a_table_of_payload_is_made_once_it_has_paid() -> None:
    """So many probe rows make it worth it, and any number after that."""
    wanted = [fetches_payload(replace(DENSE, probe_rows=1 << log)).yes for log in range(20, 30)]
    assert wanted == sorted(wanted)
    assert set(wanted) == {False, True}
