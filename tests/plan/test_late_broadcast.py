"""What may run in the place of a stage of which one input proves small."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import ExchangeSource, Join, Limit, Scan
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.model.stages import Branch, Distribution, Exchange, NullKeys, Stage
from gpujoin.plan.late_broadcast import late_broadcast

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def exchange(index: int, producer: Stage, nbytes: float) -> Exchange:
    return Exchange(index, producer, (0,), (pa.int64(),), (False,), NullKeys.DROP, nbytes)


def scan(index: int) -> Scan:
    return Scan(SCHEMA, index=index)


SMALL = exchange(0, Stage(Limit(scan(0), 1000), (Branch(0),)), 1e6)
LARGE = exchange(1, Stage(scan(1), (Branch(1, frozenset({7})),)), 1e9)
SPEC = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0, 1), right_output=())


def stage(**changes: object) -> Stage:
    tree = Join(ExchangeSource(0, SCHEMA), ExchangeSource(1, SCHEMA), SPEC, Side.RIGHT)
    tree = dataclasses.replace(tree, **changes)  # type: ignore[arg-type]
    return Stage(tree, (), (SMALL, LARGE), 4)


def test_the_large_inputs_tasks_go_on_with_the_join() -> None:
    late = late_broadcast(stage())
    assert late is not None
    assert (late.small, late.large) == (SMALL, LARGE)
    assert late.stage.branches == LARGE.producer.branches
    assert late.stage.inputs == (SMALL,)
    tree = late.stage.tree
    assert isinstance(tree, Join)
    assert tree.right == LARGE.producer.tree
    assert tree.build_side is Side.LEFT, "the side that proves small"


def test_it_pays_up_to_a_size() -> None:
    late = late_broadcast(stage())
    assert late is not None
    assert late.limit(tasks=10, threshold=1 << 20) == 1 << 19
    assert 1e7 < late.limit(tasks=10, threshold=1 << 40) < 1e8
    assert late.may_have(1 << 20)
    assert not late.may_have(1 << 10)


@pytest.mark.parametrize(
    "changed",
    [
        stage(distribution=Distribution.PARTITIONED),
        stage(spec=dataclasses.replace(SPEC, join_type=JoinType.LEFT)),
        stage(spec=dataclasses.replace(SPEC, join_type=JoinType.FULL)),
        dataclasses.replace(stage(), partitions=1),
        dataclasses.replace(stage(), inputs=(SMALL, dataclasses.replace(LARGE, nbytes=2e6))),
        dataclasses.replace(stage(), inputs=(SMALL, dataclasses.replace(LARGE, nulls=NullKeys.EVERYWHERE))),
        dataclasses.replace(stage(), inputs=(exchange(0, Stage(scan(0), (Branch(0),)), 1e6), LARGE)),
        dataclasses.replace(stage(), inputs=(SMALL, exchange(1, Stage(scan(1), (Branch(None),)), 1e9))),
    ],
    ids=["asked for", "rows of the small input", "full", "one task", "alike", "null keys", "known", "one producer"],
)  # fmt: skip
def test_it_is_not_planned_where(changed: Stage) -> None:
    assert late_broadcast(changed) is None


def test_exchanges_that_are_made_in_any_case_are_kept() -> None:
    assert late_broadcast(stage(), {1}) is None
    assert late_broadcast(stage(), {5}) is not None
