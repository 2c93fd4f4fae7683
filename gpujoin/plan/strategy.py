"""Which strategy a join takes and which side is built, as Spark's own selection decides: hints first, then sizes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum

from gpujoin.config import BackendChoice, Options, Strategy
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.plan.cost import estimate
from gpujoin.plan.distribution import Hint
from gpujoin.plan.ranges import Shape

SPARK_BROADCAST_THRESHOLD = 10 << 20
"""Default of ``spark.sql.autoBroadcastJoinThreshold``."""

BROADCAST_LIMIT = 8 << 30
"""No side larger than this is broadcast unasked: Spark's own limit."""

NOT_IN_BROADCAST = 512 << 20
"""Largest right side of ``NOT IN`` that is broadcast unasked: within the default of ``spark.driver.maxResultSize``."""

MUCH_SMALLER = 5
"""The left side of a semi, anti or existence join is broadcast, and its rows marked, if it is known to be so many times
as small as the right side: what is built is held by every worker, and the marks take a task more."""

UNKNOWN_SIZE = 1 << 50
"""Estimates from here on mean that nothing is known: Spark then says the largest long, and parts of it above."""


class GpuOutlook(Enum):
    """What the driver knows of GPUs where the join will run."""

    EXPECTED = "expected"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SideFacts:
    """What is known of one input.

    Attributes
    ----------
    size_bytes : int or None
        Estimated size.
    rows : float or None
        Estimated rows.
    hint : Hint or None
        The user's hint on this side.
    """

    size_bytes: int | None = None
    rows: float | None = None
    hint: Hint | None = None


@dataclass(frozen=True, slots=True)
class JoinFacts:
    """What is known of a join before it is planned.

    Attributes
    ----------
    join_type : JoinType
        What is returned.
    equality : bool
        Whether there is an equality key.
    condition : bool
        Whether there is a residual condition.
    left, right : SideFacts
        The inputs.
    shape : Shape or None
        How matches are found here; ``None``: by equality, or pair by pair without one.
    keys : int
        How many equality keys there are, if that is known.
    gpu : GpuOutlook
        Whether workers are expected to have a GPU.
    spark_threshold : int
        ``spark.sql.autoBroadcastJoinThreshold``.
    """

    join_type: JoinType
    equality: bool
    condition: bool
    left: SideFacts
    right: SideFacts
    shape: Shape | None = None
    keys: int = 0
    gpu: GpuOutlook = GpuOutlook.UNKNOWN
    spark_threshold: int = SPARK_BROADCAST_THRESHOLD

    def side(self, side: Side) -> SideFacts:
        """Give the facts of one side."""
        return self.left if side is Side.LEFT else self.right


@dataclass(frozen=True, slots=True)
class Choice:
    """How a join is to be run.

    Attributes
    ----------
    strategy : Strategy
        ``BROADCAST``, ``SHUFFLE``, ``NESTED_LOOP``, or ``SPARK``.
    build_side : Side or None
        The side to build; ``None`` where Spark runs the join.
    reasons : tuple of Reason
        Why it is left to Spark; empty otherwise.
    notes : tuple of str
        What decided, for people.
    """

    strategy: Strategy
    build_side: Side | None
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = field(default=())


def broadcast_sides(join_type: JoinType) -> tuple[Side, ...]:
    """Give the sides that may be broadcast: those whose unmatched rows need not be returned."""
    if join_type in (JoinType.INNER, JoinType.CROSS):
        return (Side.RIGHT, Side.LEFT)
    if join_type is JoinType.RIGHT:
        return (Side.LEFT,)
    if join_type is JoinType.FULL:
        return ()
    return (Side.RIGHT,)


def marked_side(join_type: JoinType) -> Side | None:
    """Give the side that may be broadcast though its own rows are returned: by which of them have a match.

    Tasks mark its rows and one task returns them. That is the left side of semi, anti and existence joins; of outer
    joins rows with a match are returned with that match, and ``NOT IN`` reads nulls of all right rows.
    """
    marked = join_type.left_rows_only and not join_type.null_aware
    return Side.LEFT if marked else None


def choose(facts: JoinFacts, options: Options) -> Choice:
    """Choose strategy and build side.

    Asked for by argument or setting, then by hint, then by size. With strategy and backend both left to ``auto``,
    a join that is predicted to be slower here than in Spark is left to Spark.

    Parameters
    ----------
    facts : JoinFacts
        What is known of the join.
    options : Options
        Settings, already overridden by the arguments of the call.
    """
    if not options.enabled:
        return _spark(ReasonKind.CONFIGURED, "settings", "gpujoin is switched off", "spark.gpujoin.enabled")
    asked = options.strategy
    if asked is Strategy.SPARK:
        return _spark(
            ReasonKind.CONFIGURED, "strategy", "spark was asked for", "strategy, spark.gpujoin.strategy"
        )
    if facts.shape is Shape.AS_OF:
        choice = _as_of(facts, options)
    else:
        choice = _with_equality(facts, options) if facts.equality else _without_equality(facts, options)
    if (
        choice.strategy is Strategy.SPARK
        or asked is not Strategy.AUTO
        or options.backend is not BackendChoice.AUTO
    ):
        return choice
    slower = _slower(facts)
    return choice if slower is None else Choice(Strategy.SPARK, None, (slower,), choice.notes)


def _without_equality(facts: JoinFacts, options: Options) -> Choice:
    legal = broadcast_sides(facts.join_type)
    if options.strategy is Strategy.SHUFFLE:
        return _spark(
            ReasonKind.UNSUPPORTED, "strategy", "a shuffled join needs an equality between the sides",
            "strategy='nested_loop'",
        )  # fmt: skip
    if not legal:
        return Choice(
            Strategy.SHUFFLE, _smaller(facts, (Side.RIGHT, Side.LEFT)),
            notes=(f"a {facts.join_type.value} outer join without an equality is one task: no side may be broadcast",),
        )  # fmt: skip
    marked = _marked(facts)
    if marked is not None:
        return Choice(Strategy.NESTED_LOOP, marked[0], notes=(marked[1],))
    side, note = _broadcast_side(facts, legal)
    asked = options.strategy is not Strategy.AUTO or facts.side(side).hint is Hint.BROADCAST
    size = _size(facts.side(side))
    if not asked and size is not None and size > BROADCAST_LIMIT:
        return _spark(
            ReasonKind.UNSUPPORTED, "size",
            f"the {side.value} side is estimated at {size} bytes, too large to broadcast", "strategy='nested_loop'",
        )  # fmt: skip
    return Choice(Strategy.NESTED_LOOP, side, notes=(note,))


def _marked(facts: JoinFacts) -> tuple[Side, str] | None:
    """The side that is broadcast so that its rows are marked, where that is asked for or much cheaper; and why."""
    side = marked_side(facts.join_type)
    if side is None or facts.side(side.other).hint is Hint.BROADCAST:
        return None
    how = f"tasks mark which {side.value} rows have a match, and one task returns them"
    if facts.side(side).hint is Hint.BROADCAST:
        return side, f"hint broadcast on the {side.value} side: {how}"
    size, other = _size(facts.side(side)), _size(facts.side(side.other))
    if size is None or size > BROADCAST_LIMIT:
        return None
    if size > facts.spark_threshold if other is None else size * MUCH_SMALLER > other:
        return None
    return side, f"the {side.value} side, much the smaller one, is broadcast: {how}"


def _as_of(facts: JoinFacts, options: Options) -> Choice:
    """An as-of join builds its right side; with keys it may be shuffled by them."""
    choice = _with_equality(facts, options) if facts.equality else _without_equality(facts, options)
    if choice.strategy is Strategy.SPARK:
        return choice
    strategy = Strategy.BROADCAST if choice.strategy is Strategy.NESTED_LOOP else choice.strategy
    return dataclasses.replace(choice, strategy=strategy, build_side=Side.RIGHT)


def _with_equality(facts: JoinFacts, options: Options) -> Choice:
    legal = broadcast_sides(facts.join_type)
    if facts.shape is Shape.NOT_IN and options.strategy is Strategy.AUTO:
        size = _size(facts.right)
        if facts.right.hint is Hint.BROADCAST or (size is not None and size <= NOT_IN_BROADCAST):
            return Choice(Strategy.BROADCAST, Side.RIGHT, notes=("the right side of NOT IN is broadcast",))
        return _shuffle(facts, "the right side of NOT IN is too large to broadcast, or of unknown size")
    match options.strategy:
        case Strategy.BROADCAST | Strategy.NESTED_LOOP:
            if not legal:
                return _spark(
                    ReasonKind.UNSUPPORTED, "strategy",
                    f"a {facts.join_type.value} outer join has no side that may be broadcast", "strategy='shuffle'",
                )  # fmt: skip
            side, note = _broadcast_side(facts, legal)
            return Choice(Strategy.BROADCAST, side, notes=(f"{options.strategy.value} was asked for", note))
        case Strategy.SHUFFLE:
            return _shuffle(facts, "shuffle was asked for")
        case _:
            return _by_hint(facts, legal) or _by_size(facts, legal, options)


def _by_hint(facts: JoinFacts, legal: tuple[Side, ...]) -> Choice | None:
    """Spark's order: broadcast, merge, shuffle_hash, shuffle_replicate_nl; a hint that is not legal is ignored."""
    hinted = {side: facts.side(side).hint for side in Side}
    if any(hinted[side] is Hint.BROADCAST for side in legal):
        side, note = _broadcast_side(facts, legal)
        return Choice(Strategy.BROADCAST, side, notes=(note,))
    if Hint.MERGE in hinted.values():
        return _shuffle(facts, "hint merge: shuffled")
    for side in (Side.RIGHT, Side.LEFT):
        if hinted[side] is Hint.SHUFFLE_HASH and hinted[side.other] is not Hint.SHUFFLE_HASH:
            return Choice(Strategy.SHUFFLE, side, notes=(f"hint shuffle_hash on the {side.value} side",))
    if Hint.SHUFFLE_HASH in hinted.values():
        return _shuffle(facts, "hint shuffle_hash on both sides")
    if Hint.SHUFFLE_REPLICATE_NL in hinted.values():
        return _shuffle(facts, "hint shuffle_replicate_nl: shuffled by the equality instead")
    return None


def _by_size(facts: JoinFacts, legal: tuple[Side, ...], options: Options) -> Choice:
    threshold, name = options.broadcast_threshold, "spark.gpujoin.broadcastThreshold"
    small = [side for side in legal if (size := _size(facts.side(side))) is not None and size <= threshold]
    if small:
        side = min(small, key=lambda s: _size(facts.side(s)) or 0)
        note = f"the {side.value} side, {_size(facts.side(side))} bytes, is within {name} ({threshold})"
        return Choice(Strategy.BROADCAST, side, notes=(note,))
    return _shuffle(facts, f"no side that may be broadcast is known to be within {name} ({threshold})")


def _broadcast_side(facts: JoinFacts, legal: tuple[Side, ...]) -> tuple[Side, str]:
    """The hinted side, else the smaller one; of two hinted sides the smaller one."""
    hinted = [side for side in legal if facts.side(side).hint is Hint.BROADCAST]
    side = _smaller(facts, tuple(hinted) or legal)
    return (
        side,
        f"hint broadcast on the {side.value} side" if hinted else f"the {side.value} side is broadcast",
    )


def _shuffle(facts: JoinFacts, note: str) -> Choice:
    first = Side.LEFT if facts.join_type is JoinType.RIGHT else Side.RIGHT
    if facts.join_type.null_aware:
        return Choice(Strategy.SHUFFLE, Side.RIGHT, notes=(note,))
    return Choice(Strategy.SHUFFLE, _smaller(facts, (first, first.other)), notes=(note,))


def _smaller(facts: JoinFacts, sides: tuple[Side, ...]) -> Side:
    """The smaller of the sides; the first where sizes are equal or unknown."""
    sizes = [_size(facts.side(side)) for side in sides]
    if None in sizes:
        return sides[0]
    return min(sides, key=lambda side: _size(facts.side(side)) or 0)


def _size(side: SideFacts) -> int | None:
    return None if side.size_bytes is None or side.size_bytes >= UNKNOWN_SIZE else side.size_bytes


def _slower(facts: JoinFacts) -> Reason | None:
    left, right = facts.left.rows, facts.right.rows
    settings = "strategy=, backend=, spark.gpujoin.strategy or spark.gpujoin.backend"
    gpu = facts.gpu is GpuOutlook.EXPECTED
    if left is None or right is None:
        why = "sizes are unknown, and rows that cross between Spark and Arrow usually cost more than the join gains"
        return Reason(ReasonKind.SLOWER, "cost", why, settings)
    cost = estimate(
        facts.join_type, left, right, equality=facts.equality, condition=facts.condition, gpu=gpu, shape=facts.shape,
        keys=facts.keys,
    )  # fmt: skip
    if cost.taken:
        return None
    why = (
        f"about {left:.3g} × {right:.3g} rows are predicted to take {cost.here:.2g} core seconds here and "
        f"{cost.spark:.2g} in Spark{'' if gpu else ', no GPU being expected'}"
    )
    return Reason(ReasonKind.SLOWER, "cost", why, settings)


def _spark(kind: ReasonKind, what: str, why: str, setting: str | None = None) -> Choice:
    return Choice(Strategy.SPARK, None, (Reason(kind, what, why, setting),))
