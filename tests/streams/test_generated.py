"""Generated streams against Spark's operator, row by row: output of each micro-batch, and the state after it."""

from __future__ import annotations

import os

import pytest

from tests.streams.streams import FORMS, Tally, check_stream

STREAMS = 40
MANY = int(os.environ.get("GPUJOIN_TEST_STREAMS", "4000"))
"""Streams of the long sweep: set it for a longer one."""
BLOCK = 500


def sweep(seeds: range) -> Tally:
    tally = Tally()
    for seed in seeds:
        check_stream(seed, tally)
    return tally


def test_generated_streams(seed: int) -> None:
    first = seed * 1_000_000
    tally = sweep(range(first, first + STREAMS))
    assert tally.rows > 10 * STREAMS
    assert {name for name, _ in tally.kinds} == set(FORMS)
    assert (
        min(
            tally.padded,
            tally.late,
            tally.restarts,
            tally.merged,
            tally.excluded,
            tally.removed,
            tally.faults,
        )
        > 15
    )


@pytest.mark.slow
@pytest.mark.parametrize("block", range(MANY // BLOCK))
def test_many_generated_streams(block: int, seed: int) -> None:
    first = seed * 1_000_000 + STREAMS + block * BLOCK
    tally = sweep(range(first, first + BLOCK))
    assert tally.streams == BLOCK
    assert len(tally.kinds) > 60
