"""Which algorithm joins on a device, at and beside every threshold."""

from __future__ import annotations

from typing import Any

import pytest

from gpujoin.backends.cudf.algorithm import KeyFacts, choose
from gpujoin.model.algorithm import Algorithm

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
    "one slot more": (facts(low=0, high=40 * MILLION), Algorithm.UNIQUE, "no duplicates in a sample"),
    "dense with duplicates": (facts(low=0, high=MILLION, rows_per_key=10.0), Algorithm.DIRECT, "4 slots a key"),
    "few keys, table in L2": (facts(keys=10, low=0, high=L2 // 4 - 1), Algorithm.DIRECT, "stays in L2"),
    "few keys, table over L2": (facts(keys=10, low=0, high=L2 // 4), Algorithm.UNIQUE, "no duplicates in a sample"),
    "dense, but more slots than numbers": (
        facts(keys=(1 << 31) - 1, low=0, high=(1 << 31) - 1), Algorithm.UNIQUE, "no duplicates in a sample",
    ),
    "the whole type": (facts(low=-(1 << 63), high=(1 << 63) - 1), Algorithm.UNIQUE, "no duplicates in a sample"),
    "duplicates": (facts(rows_per_key=1.5), Algorithm.CSR, "1.5 rows a key"),
    "a pair of duplicates in a sample": (facts(rows_per_key=1.01), Algorithm.CSR, "1.0 rows a key in a sample"),
    "wide keys": (facts(key_bytes=16, low=None, high=None), Algorithm.UNIQUE, "no duplicates in a sample"),
    "duplicates, only matches matter": (
        facts(rows_per_key=10.0, pairs=False), Algorithm.UNIQUE, "only matches matter",
    ),
    "no keys": (facts(keys=0, low=None, high=None), Algorithm.UNIQUE, "no duplicates in a sample"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_automatic(case: str) -> None:
    given, expected, reason = CASES[case]
    choice = choose(given)
    assert choice.algorithm is expected
    assert reason in choice.reason


@pytest.mark.parametrize("wanted", [w for w in Algorithm if w is not Algorithm.AUTO])
def test_a_setting_decides(wanted: Algorithm) -> None:
    assert wanted.uses_kernels is (wanted is not Algorithm.CUDF), "no facts are taken to use no kernels"
    choice = choose(facts(low=0, high=100), wanted)
    assert choice.algorithm is wanted
    assert "spark.gpujoin.gpu.algorithm" in choice.reason


@pytest.mark.parametrize("high", [None, 1 << 31])
def test_direct_address_cannot_be_forced_on_any_range(high: int | None) -> None:
    choice = choose(facts(low=None if high is None else 0, high=high), Algorithm.DIRECT)
    assert choice.algorithm is Algorithm.UNIQUE
    assert "direct address that was asked for" in choice.reason
