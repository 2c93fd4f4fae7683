"""What strategies and hints ask of joins, and where they cannot be followed."""

from __future__ import annotations

import pytest

from gpujoin.config import Strategy
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.stages import Distribution
from gpujoin.plan.distribution import Hint, asked_distribution

ANY, PARTITIONED, REPLICATED = Distribution.ANY, Distribution.PARTITIONED, Distribution.REPLICATED
LEFT, RIGHT = Distribution.LEFT_REPLICATED, Distribution.RIGHT_REPLICATED
WITH_KEYS = [kind for kind in JoinType if kind is not JoinType.CROSS]
SIDES = {JoinType.INNER: REPLICATED, JoinType.CROSS: REPLICATED, JoinType.RIGHT: LEFT}
"""What may be replicated, where it is not the right side alone."""


@pytest.mark.parametrize("kind", WITH_KEYS, ids=lambda kind: kind.value)
def test_shuffle_partitions_every_join_with_keys(kind: JoinType) -> None:
    assert asked_distribution(Strategy.SHUFFLE, {}, kind, keys=True) is PARTITIONED


@pytest.mark.parametrize("strategy", [Strategy.BROADCAST, Strategy.NESTED_LOOP], ids=lambda given: given.value)
@pytest.mark.parametrize("kind", list(JoinType), ids=lambda kind: kind.value)
def test_broadcast_replicates_a_side_whose_rows_need_not_be_returned(kind: JoinType, strategy: Strategy) -> None:
    found = asked_distribution(strategy, {}, kind, keys=kind is not JoinType.CROSS)
    if kind is JoinType.FULL:
        assert isinstance(found, Reason)
        assert str(found) == (
            "strategy: a full outer join has no side that may be broadcast (change with strategy='shuffle')"
        )
    else:
        assert found is SIDES.get(kind, RIGHT)


def test_a_shuffle_needs_keys() -> None:
    found = asked_distribution(Strategy.SHUFFLE, {}, JoinType.INNER, keys=False)
    assert isinstance(found, Reason)
    assert "needs an equality between the sides" in str(found)


def test_a_full_outer_join_without_keys_is_left_to_one_task() -> None:
    assert asked_distribution(Strategy.NESTED_LOOP, {}, JoinType.FULL, keys=False) is ANY


def test_spark_is_asked_for() -> None:
    found = asked_distribution(Strategy.SPARK, {}, JoinType.INNER, keys=True)
    assert isinstance(found, Reason)
    assert found.kind is ReasonKind.CONFIGURED


BROADCAST, MERGE = Hint.BROADCAST, Hint.MERGE
HINTS = {
    "none": ({}, JoinType.INNER, True, ANY),
    "right": ({Side.RIGHT: BROADCAST}, JoinType.INNER, True, RIGHT),
    "left": ({Side.LEFT: BROADCAST}, JoinType.INNER, True, LEFT),
    "both": ({Side.LEFT: BROADCAST, Side.RIGHT: BROADCAST}, JoinType.INNER, True, REPLICATED),
    "not legal": ({Side.LEFT: BROADCAST}, JoinType.LEFT, True, ANY),
    "not legal of a full join": ({Side.RIGHT: BROADCAST}, JoinType.FULL, True, ANY),
    "merge": ({Side.LEFT: MERGE}, JoinType.FULL, True, PARTITIONED),
    "broadcast before merge": ({Side.LEFT: MERGE, Side.RIGHT: BROADCAST}, JoinType.LEFT, True, RIGHT),
    "shuffle_hash": ({Side.RIGHT: Hint.SHUFFLE_HASH}, JoinType.LEFT_SEMI, True, PARTITIONED),
    "shuffle_replicate_nl": ({Side.RIGHT: Hint.SHUFFLE_REPLICATE_NL}, JoinType.INNER, True, PARTITIONED),
    "merge without keys": ({Side.LEFT: MERGE}, JoinType.INNER, False, ANY),
}


@pytest.mark.parametrize(("hints", "kind", "keys", "expected"), HINTS.values(), ids=HINTS)
def test_hints_as_spark_takes_them(hints: dict[Side, Hint], kind: JoinType, keys: bool, expected: Distribution) -> None:
    assert asked_distribution(Strategy.AUTO, hints, kind, keys=keys) is expected


def test_a_strategy_goes_before_a_hint_and_takes_its_side() -> None:
    hints = {Side.LEFT: BROADCAST}
    assert asked_distribution(Strategy.SHUFFLE, hints, JoinType.INNER, keys=True) is PARTITIONED
    assert asked_distribution(Strategy.BROADCAST, hints, JoinType.INNER, keys=True) is LEFT
    assert asked_distribution(Strategy.BROADCAST, hints, JoinType.LEFT, keys=True) is RIGHT
