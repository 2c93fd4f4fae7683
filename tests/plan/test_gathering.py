"""The choice between gathering columns and packed rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpujoin.config import AlgorithmChoice
from gpujoin.model.gathering import EmissionFacts, EmissionMethod, GatherFacts, GatherMethod
from gpujoin.plan.gathering import choose_emission, choose_gather, emission_chooser, gather_chooser

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


HALF = EmissionFacts(
    probe_rows=2 * LARGE.entries, rows=LARGE.entries, probe_widths=(8, 8), build=replace(LARGE, packed=True)
)
"""Half of the probe rows match a packed build side."""


@pytest.mark.parametrize(
    ("facts", "method"),
    [
        (HALF, EmissionMethod.FUSED),
        (replace(HALF, build=None), EmissionMethod.FUSED),
        (replace(HALF, probe_widths=()), EmissionMethod.FUSED),
        (replace(HALF, probe_widths=None), EmissionMethod.MAPS),
        (replace(HALF, build_fixed=False), EmissionMethod.MAPS),
        (replace(HALF, rows=0), EmissionMethod.MAPS),
        (replace(HALF, probe_rows=HALF.rows), EmissionMethod.MAPS),
        (replace(HALF, build=replace(LARGE, row_bytes=None)), EmissionMethod.MAPS),
        # Another read of what was found for every probe row, for few rows of output.
        (replace(HALF, probe_rows=200 * HALF.rows), EmissionMethod.MAPS),
        (replace(HALF, build=None, probe_rows=50 * HALF.rows), EmissionMethod.FUSED),
        # Packing 100 million rows for a thousand of output.
        (replace(HALF, probe_rows=2000, rows=1000, build=replace(LARGE, entries=1000)), EmissionMethod.MAPS),
        # One column that stays in L2: its packed row is no dearer, and there are no maps.
        (replace(HALF, build=replace(LARGE, rows=1000, widths=(8,), row_bytes=8)), EmissionMethod.FUSED),
    ],
)
def test_output_at_once(facts: EmissionFacts, method: EmissionMethod) -> None:
    assert choose_emission(facts).method is method
    assert choose_emission(facts).reason


def test_output_at_once_waits_until_packing_has_paid() -> None:
    """So many entries so far make the packing of the build side worth it, and one entry less does not."""

    def method(entries: int) -> EmissionMethod:
        build = replace(LARGE, entries=entries)
        return choose_emission(replace(HALF, probe_rows=2000, rows=1000, build=build)).method

    low, high = 1000, LARGE.rows
    assert (method(low), method(high)) == (EmissionMethod.MAPS, EmissionMethod.FUSED)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if method(middle) is EmissionMethod.MAPS else (low, middle)
    # 4 bytes an entry for each of four maps' reads, 52 for making them, two sectors more; 2 more for finding.
    saved = 4 * 5 + 52 + 2 * 32 - 2
    assert high == LARGE.rows * (20 + 32) // saved + 1


RUNS = EmissionFacts(
    probe_rows=LARGE.entries // 4, rows=LARGE.entries, probe_widths=(8, 8), build=LARGE, unique=False, ordered=True
)
"""Four matches a probe row, of a build side packed in the order of its keys."""


@pytest.mark.parametrize(
    ("facts", "method"),
    [
        (RUNS, EmissionMethod.FUSED),
        # As many output rows as probe rows do not mean that these stay where they are.
        (replace(RUNS, rows=RUNS.probe_rows), EmissionMethod.FUSED),
        (replace(RUNS, build=None), EmissionMethod.FUSED),
        (replace(RUNS, probe_widths=(), build=None), EmissionMethod.FUSED),
        (replace(RUNS, rows=0), EmissionMethod.MAPS),
        (replace(RUNS, probe_widths=None), EmissionMethod.MAPS),
        (replace(RUNS, build_fixed=False), EmissionMethod.MAPS),
        (replace(RUNS, build=replace(LARGE, row_bytes=None)), EmissionMethod.MAPS),
        # Ordering 100 million rows for a thousand of output.
        (replace(RUNS, rows=1000, build=replace(LARGE, entries=1000), ordered=False), EmissionMethod.MAPS),
        (replace(RUNS, rows=1000, build=replace(LARGE, entries=1000)), EmissionMethod.FUSED),
        # Rows of 256 bytes for 32 columns of one byte, which stay in L2 by themselves.
        (
            replace(RUNS, build=replace(LARGE, rows=1_000_000, widths=(1, 1), row_bytes=256), ordered=False),
            EmissionMethod.MAPS,
        ),
    ],
)
def test_output_of_keys_that_repeat(facts: EmissionFacts, method: EmissionMethod) -> None:
    assert choose_emission(facts).method is method
    assert choose_emission(facts).reason


def test_rows_are_put_in_order_once_that_has_paid() -> None:
    """So many pairs so far make it worth it, and one less does not."""

    def method(entries: int) -> EmissionMethod:
        return choose_emission(replace(RUNS, build=replace(LARGE, entries=entries), ordered=False)).method

    low, high = 1, 10 * LARGE.rows
    assert (method(low), method(high)) == (EmissionMethod.MAPS, EmissionMethod.FUSED)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if method(middle) is EmissionMethod.MAPS else (low, middle)
    # By then maps would take packed rows too, so what is saved is making a pair and reading three maps; what is paid is
    # to read each packed row by its number and to write it again.
    assert high == LARGE.rows * (4 + 32 + 32) // (12 + 4 * 3) + 1


def test_no_kernels_where_cudf_is_asked_for() -> None:
    assert gather_chooser(AlgorithmChoice.CUDF) is None
    assert emission_chooser(AlgorithmChoice.CUDF) is None
    assert gather_chooser(AlgorithmChoice.CSR) is choose_gather
    assert emission_chooser(AlgorithmChoice.AUTO) is choose_emission
