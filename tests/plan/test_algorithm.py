"""Which algorithm joins on a device, at and beside every threshold."""

from __future__ import annotations

from typing import Any

import pytest

from gpujoin.config import AlgorithmChoice, Options
from gpujoin.model.keyfacts import Algorithm, KeyFacts, Wanted
from gpujoin.plan.algorithm import HashFacts, SlotFacts, choose, chooser, payload_in_slots, payload_with_keys

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
        facts(rows_per_key=10.0, wanted=Wanted.MARKS), Algorithm.UNIQUE, "only matches matter",
    ),
    "no keys": (facts(keys=0, low=None, high=None), Algorithm.UNIQUE, "no duplicates in a sample"),
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


@pytest.mark.parametrize("high", [None, 1 << 31])
def test_direct_address_cannot_be_forced_on_any_range(high: int | None) -> None:
    choice = choose(facts(low=None if high is None else 0, high=high), AlgorithmChoice.DIRECT)
    assert choice.algorithm is Algorithm.UNIQUE
    assert "direct address that was asked for" in choice.reason


ONE_COLUMN: dict[str, Any] = {
    "rows": 1 << 27, "key_bytes": 8, "payload_bytes": 8, "packed": True, "row_bytes": 8, "joint_bytes": 16,
    "probe_rows": 1 << 27, "l2_bytes": L2,
}  # fmt: skip
FOUR_COLUMNS = {**ONE_COLUMN, "payload_bytes": 32, "packed": False, "row_bytes": 32, "joint_bytes": 48}
BESIDE_KEYS: dict[str, tuple[HashFacts, bool]] = {
    "one column": (HashFacts(**ONE_COLUMN), True),
    "one column and 16-byte keys": (HashFacts(**{**ONE_COLUMN, "key_bytes": 16, "joint_bytes": 32}), False),
    "four columns, which fill a sector": (HashFacts(**FOUR_COLUMNS), False),
    "four columns and keys of their slots": (HashFacts(**{**FOUR_COLUMNS, "key_bytes": 4}), True),
    "too many columns for a key beside them": (HashFacts(**{**FOUR_COLUMNS, "joint_bytes": None}), False),
    "few probe rows": (HashFacts(**{**ONE_COLUMN, "probe_rows": 1 << 24}), False),
}


@pytest.mark.parametrize("case", BESIDE_KEYS)
def test_payload_lies_beside_keys_where_that_takes_less_time(case: str) -> None:
    facts, expected = BESIDE_KEYS[case]
    assert payload_with_keys(facts) is expected


SLOTS: dict[str, tuple[SlotFacts, bool]] = {
    "dense, over L2": (SlotFacts(slots=1 << 24, keys=1 << 24, row_bytes=8, probe_rows=1 << 28, l2_bytes=L2), True),
    "dense, within L2": (SlotFacts(slots=1 << 16, keys=1 << 16, row_bytes=8, probe_rows=1 << 28, l2_bytes=L2), True),
    "four slots a key, over L2": (
        SlotFacts(slots=1 << 26, keys=1 << 24, row_bytes=16, probe_rows=1 << 28, l2_bytes=L2), True,
    ),
    "row numbers in L2, payload only where it is dense": (
        SlotFacts(slots=1 << 22, keys=1 << 20, row_bytes=32, probe_rows=1 << 26, l2_bytes=L2), False,
    ),
    "rows of many sectors, few keys": (
        SlotFacts(slots=1 << 22, keys=1 << 12, row_bytes=256, probe_rows=1 << 26, l2_bytes=L2), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SLOTS)
def test_payload_is_in_slots_where_that_takes_less_time(case: str) -> None:
    facts, expected = SLOTS[case]
    assert payload_in_slots(facts) is expected
