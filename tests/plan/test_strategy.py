"""Strategy and build side, as Spark's own selection decides them."""

from __future__ import annotations

import itertools

import pytest

from gpujoin.config import Options, Strategy
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import ReasonKind
from gpujoin.plan.cost import estimate
from gpujoin.plan.distribution import Hint
from gpujoin.plan.ranges import Shape
from gpujoin.plan.strategy import (
    NOT_IN_BROADCAST,
    UNKNOWN_SIZE,
    GpuOutlook,
    JoinFacts,
    SideFacts,
    broadcast_sides,
    choose,
)

CPU = Options(backend="cpu")  # type: ignore[arg-type]
SMALL, LARGE = SideFacts(1000, 10), SideFacts(10**12, 10**9)


def facts(
    kind: JoinType = JoinType.INNER, left: SideFacts = LARGE, right: SideFacts = LARGE, *, equality: bool = True,
    condition: bool = False, gpu: GpuOutlook = GpuOutlook.ABSENT,
) -> JoinFacts:  # fmt: skip
    return JoinFacts(kind, equality=equality, condition=condition, left=left, right=right, gpu=gpu)


def hinted(size: SideFacts, hint: Hint) -> SideFacts:
    return SideFacts(size.size_bytes, size.rows, hint)


@pytest.mark.parametrize("kind", JoinType)
def test_small_sides_are_broadcast_where_legal(kind: JoinType) -> None:
    for side in Side:
        left, right = (SMALL, LARGE) if side is Side.LEFT else (LARGE, SMALL)
        choice = choose(facts(kind, left, right), CPU)
        if side in broadcast_sides(kind):
            assert (choice.strategy, choice.build_side) == (Strategy.BROADCAST, side)
        else:
            built = Side.RIGHT if kind.null_aware else side
            assert (choice.strategy, choice.build_side) == (Strategy.SHUFFLE, built)


def test_legal_broadcast_sides() -> None:
    assert {kind: set(broadcast_sides(kind)) for kind in JoinType} == {
        JoinType.INNER: {Side.LEFT, Side.RIGHT},
        JoinType.CROSS: {Side.LEFT, Side.RIGHT},
        JoinType.LEFT: {Side.RIGHT},
        JoinType.RIGHT: {Side.LEFT},
        JoinType.FULL: set(),
        JoinType.LEFT_SEMI: {Side.RIGHT},
        JoinType.LEFT_ANTI: {Side.RIGHT},
        JoinType.EXISTENCE: {Side.RIGHT},
        JoinType.NULL_AWARE_ANTI: {Side.RIGHT},
        JoinType.NULL_AWARE_EXISTENCE: {Side.RIGHT},
    }


def test_hints_come_before_sizes() -> None:
    choice = choose(facts(left=SMALL, right=hinted(LARGE, Hint.BROADCAST)), CPU)
    assert (choice.strategy, choice.build_side) == (Strategy.BROADCAST, Side.RIGHT)
    choice = choose(facts(left=hinted(SMALL, Hint.MERGE), right=LARGE), CPU)
    assert choice.strategy is Strategy.SHUFFLE
    choice = choose(facts(left=SMALL, right=hinted(LARGE, Hint.SHUFFLE_HASH)), CPU)
    assert (choice.strategy, choice.build_side) == (Strategy.SHUFFLE, Side.RIGHT)


def test_broadcast_comes_before_other_hints() -> None:
    choice = choose(facts(left=hinted(LARGE, Hint.MERGE), right=hinted(LARGE, Hint.BROADCAST)), CPU)
    assert (choice.strategy, choice.build_side) == (Strategy.BROADCAST, Side.RIGHT)


def test_a_hint_that_is_not_legal_is_ignored() -> None:
    choice = choose(facts(JoinType.LEFT, left=hinted(SMALL, Hint.BROADCAST)), CPU)
    assert (choice.strategy, choice.build_side) == (Strategy.SHUFFLE, Side.LEFT)


@pytest.mark.parametrize(("kind", "equality"), itertools.product(JoinType, [True, False]))
@pytest.mark.parametrize("strategy", Strategy)
def test_every_choice_is_executable_or_has_a_reason(
    kind: JoinType, equality: bool, strategy: Strategy
) -> None:
    choice = choose(facts(kind, equality=equality), CPU.replace(strategy=strategy))
    if choice.strategy is Strategy.SPARK:
        assert choice.reasons
        assert choice.build_side is None
        return
    assert not choice.reasons
    assert choice.strategy is not Strategy.AUTO
    if choice.strategy is Strategy.SHUFFLE:
        assert equality or kind is JoinType.FULL
    else:
        assert choice.build_side in broadcast_sides(kind)
        assert (choice.strategy is Strategy.BROADCAST) == equality


def test_unknown_sizes_are_shuffled() -> None:
    for size in (None, UNKNOWN_SIZE, UNKNOWN_SIZE * 4):
        choice = choose(facts(JoinType.RIGHT, SideFacts(size), SideFacts(size)), CPU)
        assert (choice.strategy, choice.build_side) == (Strategy.SHUFFLE, Side.LEFT)


def test_thresholds() -> None:
    given = facts(right=SideFacts(20 << 20))
    assert choose(given, CPU).strategy is Strategy.BROADCAST
    assert choose(given, CPU.replace(broadcast_threshold="19m")).strategy is Strategy.SHUFFLE
    assert (
        choose(facts(right=SideFacts(0)), CPU.replace(broadcast_threshold=0)).strategy is Strategy.BROADCAST
    )
    assert choose(facts(right=SideFacts(0)), CPU.replace(broadcast_threshold=-1)).strategy is Strategy.SHUFFLE


def test_a_product_too_large_to_broadcast_is_left_to_spark() -> None:
    choice = choose(facts(equality=False, condition=True), CPU)
    assert choice.strategy is Strategy.SPARK
    assert choice.reasons[0].setting == "strategy='nested_loop'"
    asked = choose(facts(equality=False, condition=True), CPU.replace(strategy="nested_loop"))
    assert asked.strategy is Strategy.NESTED_LOOP


def test_auto_never_takes_an_equality_join_fed_by_rows() -> None:
    for rows, kind, gpu in itertools.product((10, 10**6, 10**9), JoinType, GpuOutlook):
        side = SideFacts(rows * 28, rows)
        choice = choose(facts(kind, side, side, gpu=gpu), Options())
        assert choice.strategy is Strategy.SPARK
        assert choice.reasons[0].kind is ReasonKind.SLOWER


def test_auto_takes_a_large_nested_loop_to_a_gpu() -> None:
    side = SideFacts(28 * 10**5, 10**5)
    given = facts(JoinType.LEFT, side, side, equality=False, condition=True, gpu=GpuOutlook.EXPECTED)
    assert choose(given, Options()).strategy is Strategy.NESTED_LOOP
    tiny = facts(JoinType.LEFT, SMALL, SMALL, equality=False, condition=True, gpu=GpuOutlook.EXPECTED)
    assert choose(tiny, Options()).strategy is Strategy.SPARK


def test_estimates_grow_with_rows() -> None:
    flagged = estimate(
        JoinType.NULL_AWARE_EXISTENCE, 1e6, 1e6, equality=True, condition=False, gpu=False, shape=Shape.NOT_IN, keys=1
    )  # fmt: skip
    assert flagged.taken
    few = estimate(JoinType.INNER, 1e3, 1e3, equality=False, condition=True, gpu=False)
    many = estimate(JoinType.INNER, 1e5, 1e5, equality=False, condition=True, gpu=False)
    assert few.here < many.here
    assert few.spark < many.spark


def test_switches() -> None:
    assert choose(facts(), CPU.replace(enabled=False)).reasons[0].setting == "spark.gpujoin.enabled"
    assert choose(facts(), CPU.replace(strategy="spark")).reasons[0].kind is ReasonKind.CONFIGURED


def test_not_in_is_shuffled_unless_its_right_side_can_surely_be_collected() -> None:
    def of(right: SideFacts) -> Strategy:
        kind = JoinType.NULL_AWARE_ANTI
        given = JoinFacts(
            kind, equality=True, condition=False, left=LARGE, right=right, gpu=GpuOutlook.ABSENT,
            shape=Shape.NOT_IN,
        )  # fmt: skip
        return choose(given, CPU).strategy

    assert of(SideFacts(NOT_IN_BROADCAST, 10)) is Strategy.BROADCAST
    assert of(SideFacts(NOT_IN_BROADCAST + 1, 10)) is Strategy.SHUFFLE
    assert of(SideFacts()) is Strategy.SHUFFLE
    assert of(hinted(SideFacts(), Hint.BROADCAST)) is Strategy.BROADCAST


class TestMarkedSide:
    """Semi, anti and existence joins without an equality broadcast a left side that is much the smaller one."""

    @staticmethod
    def chosen(how: JoinType, left: SideFacts, right: SideFacts) -> Side | None:
        facts = JoinFacts(how, equality=False, condition=True, left=left, right=right)
        return choose(facts, CPU).build_side

    @pytest.mark.parametrize("how", [JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE])
    def test_by_size_and_hint(self, how: JoinType) -> None:
        small, large, unknown = SideFacts(1000), SideFacts(5000), SideFacts(None)
        assert self.chosen(how, small, large) is Side.LEFT
        assert self.chosen(how, small, SideFacts(4999)) is Side.RIGHT
        assert self.chosen(how, large, small) is Side.RIGHT
        assert self.chosen(how, small, unknown) is Side.LEFT
        assert self.chosen(how, SideFacts(11 << 20), unknown) is Side.RIGHT
        assert self.chosen(how, unknown, small) is Side.RIGHT
        hinted = SideFacts(5000, hint=Hint.BROADCAST)
        assert self.chosen(how, small, hinted) is Side.RIGHT
        assert self.chosen(how, hinted, small) is Side.LEFT

    def test_not_of_outer_joins_or_not_in(self) -> None:
        small, large = SideFacts(1000), SideFacts(1 << 20)
        for how in (JoinType.LEFT, JoinType.NULL_AWARE_ANTI):
            assert self.chosen(how, small, large) is Side.RIGHT
