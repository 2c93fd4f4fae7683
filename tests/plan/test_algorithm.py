"""Which algorithm joins on a device, at and beside every threshold."""

from __future__ import annotations

from typing import Any

import pytest

from gpujoin.config import AlgorithmChoice, Options
from gpujoin.launch import csr, hashset
from gpujoin.model.keyfacts import Algorithm, KeyFacts, Wanted
from gpujoin.plan import algorithm
from gpujoin.plan.algorithm import PARTITION_MATCH_RATIO, choose, chooser

L2 = 60 << 20
MILLION = 1_000_000


def facts(**given: Any) -> KeyFacts:
    """Unique 8-byte keys all over their type, whose table is well over L2."""
    defaults: dict[str, Any] = {
        "rows": 10 * MILLION, "keys": 10 * MILLION, "key_bytes": 8, "low": -(1 << 62), "high": 1 << 62,
        "rows_per_key": 1.0, "heaviest": 0.0001, "l2_bytes": L2,
    }  # fmt: skip
    return KeyFacts(**{**defaults, **given})


CASES: dict[str, tuple[KeyFacts, Algorithm, str]] = {
    "dense": (facts(low=1, high=10 * MILLION), Algorithm.DIRECT, "4 slots a key"),
    "four slots a key": (facts(low=0, high=40 * MILLION - 1), Algorithm.DIRECT, "4 slots a key"),
    "one slot more": (facts(low=0, high=40 * MILLION), Algorithm.PARTITIONED, "over half of L2"),
    "dense with duplicates": (facts(low=0, high=MILLION, rows_per_key=10.0), Algorithm.DIRECT, "4 slots a key"),
    "few keys, table in L2": (facts(keys=10, low=0, high=L2 // 4 - 1), Algorithm.DIRECT, "stays in L2"),
    "few keys, table over L2": (facts(keys=10, low=0, high=L2 // 4), Algorithm.UNIQUE, "stays in L2"),
    "dense, but more slots than numbers": (
        facts(keys=(1 << 31) - 1, low=0, high=(1 << 31) - 1), Algorithm.PARTITIONED, "over half of L2",
    ),
    "the whole type": (facts(low=-(1 << 63), high=(1 << 63) - 1), Algorithm.PARTITIONED, "over half of L2"),
    "duplicates": (facts(rows_per_key=1.5), Algorithm.CSR, "1.5 rows a key"),
    "a pair of duplicates in a sample": (facts(rows_per_key=1.01), Algorithm.CSR, "1.0 rows a key in a sample"),
    "table of half of L2": (facts(keys=L2 // 2 // 32), Algorithm.UNIQUE, "stays in L2"),
    "table over half of L2": (facts(keys=L2 // 2 // 32 + 1), Algorithm.PARTITIONED, "over half of L2"),
    "narrow keys": (facts(keys=L2 // 2 // 16, key_bytes=4, low=None, high=None), Algorithm.UNIQUE, "in L2"),
    "wide keys": (facts(keys=L2 // 2 // 64 + 1, key_bytes=16, low=None, high=None), Algorithm.PARTITIONED, "L2"),
    "sixteen probe rows a key": (facts(probe_rows=160 * MILLION), Algorithm.PARTITIONED, "over half of L2"),
    "more": (facts(probe_rows=160 * MILLION + 1), Algorithm.UNIQUE, "too many to move"),
    "duplicates, only matches matter": (
        facts(rows_per_key=10.0, wanted=Wanted.MARKS), Algorithm.PARTITIONED, "only matches matter",
    ),
    "set of half of L2": (facts(keys=L2 // 2 // 16, wanted=Wanted.MARKS), Algorithm.UNIQUE, "stays in L2"),
    "set over half of L2": (facts(keys=L2 // 2 // 16 + 1, wanted=Wanted.MARKS), Algorithm.PARTITIONED, "over half"),
    "no keys": (facts(keys=0, low=None, high=None), Algorithm.UNIQUE, "stays in L2"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_automatic(case: str) -> None:
    given, expected, reason = CASES[case]
    choice = choose(given)
    assert choice.algorithm is expected
    assert reason in choice.reason


@pytest.mark.parametrize("wanted", [w for w in AlgorithmChoice if w is not AlgorithmChoice.AUTO])
def test_a_setting_decides(wanted: AlgorithmChoice) -> None:
    chosen = chooser(Options(gpu_algorithm=wanted).gpu_algorithm)
    assert (chosen is None) == (wanted is AlgorithmChoice.CUDF), "no facts are taken to use no kernels"
    choice = choose(facts(low=0, high=100), wanted)
    assert choice.algorithm.value == wanted.value
    assert "spark.gpujoin.gpu.algorithm" in choice.reason


def test_the_expected_probe_rows_are_added_to_the_facts() -> None:
    """Unless a backend knows better."""
    large, many = facts(), 17 * facts().keys
    assert chooser(AlgorithmChoice.AUTO)(large).algorithm is Algorithm.PARTITIONED  # type: ignore[misc]
    assert chooser(AlgorithmChoice.AUTO, many)(large) == choose(facts(probe_rows=many))  # type: ignore[misc]
    assert chooser(AlgorithmChoice.AUTO, many)(large).algorithm is Algorithm.UNIQUE  # type: ignore[misc]
    assert chooser(AlgorithmChoice.AUTO, many)(facts(probe_rows=1)).algorithm is Algorithm.PARTITIONED  # type: ignore[misc]


@pytest.mark.parametrize("high", [None, 1 << 31])
def test_direct_address_cannot_be_forced_on_any_range(high: int | None) -> None:
    choice = choose(facts(low=None if high is None else 0, high=high), AlgorithmChoice.DIRECT)
    assert choice.algorithm is Algorithm.PARTITIONED
    assert "direct address that was asked for" in choice.reason


def test_what_a_key_costs_is_what_tables_take() -> None:
    for key_bytes, each in algorithm.HASH_BYTES_PER_KEY.items():
        assert csr.slots_for(1000) * csr.SLOT_BYTES[key_bytes] == 1000 * each
    for key_bytes in (4, 8):
        assert hashset.slots_for(1000, key_bytes) * key_bytes == 1000 * algorithm.SET_BYTES_PER_KEY[key_bytes]
    assert algorithm.SET_BYTES_PER_KEY[16] == algorithm.HASH_BYTES_PER_KEY[16]


def test_how_many_probe_rows_match_is_seen_when_they_come() -> None:
    """Where it is not known before, the probe decides; where it is, or partitions are asked for, this is settled."""
    large = facts()
    assert choose(large).algorithm is Algorithm.PARTITIONED
    assert choose(large).least_match == PARTITION_MATCH_RATIO
    assert choose(large, AlgorithmChoice.PARTITIONED).least_match == 0.0
