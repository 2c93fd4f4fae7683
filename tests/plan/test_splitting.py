"""In which joins of a stage the rows of a heavy key may be divided among tasks."""

from __future__ import annotations

import pytest

from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Relation
from gpujoin.plan.splitting import cheap_to_sample, split_joins
from tests.plan.test_stages import BIG, SMALL, grouped, joined, planned, scan

BOTH, LEFT, RIGHT = (Side.LEFT, Side.RIGHT), (Side.LEFT,), (Side.RIGHT,)
SIDES = {
    JoinType.INNER: BOTH,
    JoinType.LEFT: LEFT,
    JoinType.RIGHT: RIGHT,
    JoinType.FULL: (),
    JoinType.LEFT_SEMI: LEFT,
    JoinType.LEFT_ANTI: LEFT,
    JoinType.EXISTENCE: LEFT,
}


@pytest.mark.parametrize("kind", SIDES, ids=lambda kind: kind.value)
def test_sides_by_join_type(kind: JoinType) -> None:
    stage = planned(joined(scan(0), scan(1), kind), BIG, BIG)
    splits = list(split_joins(stage))
    assert [split.sides for split in splits] == [SIDES[kind]] * bool(SIDES[kind])
    for split in splits:
        assert {split.source(side) for side in Side} == {given.index for given in stage.inputs}
    assert all(cheap_to_sample(given.producer) for given in stage.inputs)


def count(tree: Relation, *small: int) -> int:
    facts = [SMALL if number in small else BIG for number in range(4)]
    return len(list(split_joins(planned(tree, *facts))))


def test_what_stands_above() -> None:
    inner = joined(scan(0), scan(1))
    assert count(joined(inner, scan(2), key=1), 2) == 1, "a side that is read whole changes nothing"
    assert count(grouped(inner)) == 0, "groups are in one task since their keys are"
    assert count(joined(inner, scan(2))) == 0, "the second join needs the first's partitions"


def test_what_is_sampled() -> None:
    below = joined(joined(scan(0), scan(1)), grouped(scan(2)), key=1)
    stage = planned(below, BIG, BIG, BIG)
    assert not any(cheap_to_sample(given.producer) for given in stage.inputs if given.producer.inputs)
    assert any(not cheap_to_sample(given.producer) for given in stage.inputs)
