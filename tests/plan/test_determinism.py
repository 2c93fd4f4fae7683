"""Which columns depend on the order of rows, and that no exchange places rows by them."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression, Function, Literal
from gpujoin.model.jointype import JoinType
from gpujoin.model.relations import (
    ExchangeSource,
    Expand,
    Filter,
    Join,
    Limit,
    Output,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    SortKey,
    Union,
    Window,
    column,
)
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.windows import AnyWindowCall, Frame, FramedAggregate, FrameType, WindowCall, WindowFunction
from gpujoin.plan.determinism import indeterminate_columns
from gpujoin.plan.parts import ScanFacts, StageLimits
from gpujoin.plan.stages import plan_stages

SCHEMA = pa.schema([("k", pa.int64()), ("d", pa.float64()), ("m", pa.decimal128(7, 2)), ("s", pa.string())])
K, D, M, S = range(4)
BIG = ScanFacts(1e8, 4096 << 20)
LIMITS = StageLimits(cores=4, task_bytes=128 << 20, broadcast_threshold=1)


def scan(index: int = 0) -> Scan:
    return Scan(SCHEMA, index=index)


def call(function: AggregateFunction, at: int, name: str, condition: Expression | None = None) -> AggregateCall:
    return AggregateCall(function=function, arguments=(column(SCHEMA, at),), name=name, filter=condition)


def grouped(
    *calls: AggregateCall, child: Relation | None = None, keys: tuple[int, ...] = (K,), final: bool = True
) -> PartialAggregate:
    below = scan() if child is None else child
    outputs = tuple(Output(f"g{i}", column(below.schema, i)) for i in keys)
    return PartialAggregate(below, outputs, calls, final=final)


def names(tree: Relation, sources: dict[int, frozenset[int]] | None = None) -> set[str]:
    return {tree.schema.names[i] for i in indeterminate_columns(tree, sources or {})}


F = AggregateFunction


@pytest.mark.parametrize(
    ("function", "at", "depends"),
    [
        (F.SUM, K, False), (F.SUM, M, False), (F.SUM, D, True), (F.AVG, M, False), (F.AVG, D, True), (F.AVG, K, True),
        (F.MIN, K, False), (F.MAX, S, False), (F.MIN, D, True), (F.MAX, D, True), (F.COUNT, D, False),
        (F.STDDEV_POP, D, True), (F.VAR_SAMP, D, True), (F.FIRST, S, True), (F.LAST, K, True),
    ],
)  # fmt: skip
def test_aggregates(function: AggregateFunction, at: int, depends: bool) -> None:
    tree = grouped(call(function, at, "a"), call(F.COUNT, S, "n"))
    assert names(tree) == ({f.name for f in call(function, at, "a").buffer} if depends else set())
    assert indeterminate_columns(dataclasses.replace(tree, final=False), {}) == frozenset(range(1, len(tree.schema)))


def test_what_is_computed_of_them_depends_too() -> None:
    total = grouped(call(F.SUM, D, "t"), call(F.COUNT, S, "n"))
    whole = Cast(child=column(total.schema, 1), to=pa.int64(), mode=EvalMode.LEGACY, type=pa.int64())
    tree = Project(
        total,
        (Output("w", whole), Output("n", column(total.schema, 2)), Output("k", column(total.schema, 0))),
    )
    assert names(tree) == {"w"}
    positive = Call(function=Function.GT, arguments=(whole, Literal(value=0, type=pa.int64())), type=pa.bool_())
    assert names(Filter(total, positive)) == {"t.sum"}
    again = PartialAggregate(
        tree, (Output("k", column(tree.schema, 2)),),
        (
            AggregateCall(function=F.SUM, arguments=(column(tree.schema, 0),), name="x"),
            AggregateCall(function=F.SUM, arguments=(column(tree.schema, 1),), name="y"),
            AggregateCall(
                function=F.COUNT, name="z",
                filter=Call(function=Function.IS_NULL, arguments=(column(tree.schema, 0),), type=pa.bool_()),
            ),
        ),
        final=True,
    )  # fmt: skip
    assert names(again) == {"x.sum", "z.count"}
    assert names(grouped(child=tree, keys=(0,))) == {"g0"}
    counted = AggregateCall(function=F.COUNT, name="c")
    assert names(grouped(counted, child=tree, keys=(0, 2))) == {"g0", "c.count"}


def test_other_nodes() -> None:
    source = ExchangeSource(3, SCHEMA)
    sources = {3: frozenset({D})}
    assert names(source, sources) == {"d"}
    ways = tuple(tuple(Output(f"e{i}", column(SCHEMA, at)) for i, at in enumerate(way)) for way in ((K, D), (K, D)))
    assert names(Expand(source, ways), sources) == {"e1"}
    assert names(Union((scan(), source)), sources) == {"d"}
    assert indeterminate_columns(Limit(scan(), 3), {}) == frozenset(range(4))
    spec = JoinSpec(JoinType.EXISTENCE, (KeyPair(D, D),), left_output=(K, S), right_output=())
    assert names(Join(source, scan(), spec), sources) == {spec.existence_name}
    inner = JoinSpec(JoinType.INNER, (KeyPair(K, K),), left_output=(K, D), right_output=(D, S))
    assert indeterminate_columns(Join(scan(), source, inner), sources) == frozenset({2})


def joined(left: Relation, right: Relation, kind: JoinType, *keys: tuple[int, int]) -> Join:
    pairs = tuple(KeyPair(left_key, right_key, NullEquality.UNEQUAL) for left_key, right_key in keys)
    right_output = () if kind.left_rows_only else (0, 1)
    return Join(left, right, JoinSpec(kind, pairs, left_output=(0, 1, 2), right_output=right_output))


def test_rows_are_placed_by_other_keys() -> None:
    """The row of each group's largest value: by group and value."""
    most = grouped(call(F.MAX, D, "d"))
    stage = plan_stages(joined(scan(1), most, JoinType.INNER, (K, 0), (D, 1)), {0: BIG, 1: BIG}, LIMITS)
    assert stage is not None
    assert [source.columns for source in stage.inputs] == [(0,), (0,)]
    assert plan_stages(joined(scan(1), most, JoinType.INNER, (D, 1)), {0: BIG, 1: BIG}, LIMITS) is None


def test_groups_of_sums_are_placed_by_other_keys() -> None:
    total = grouped(call(F.SUM, D, "d"))
    stage = plan_stages(grouped(AggregateCall(function=F.COUNT, name="n"), child=total, keys=(1, 0)), {0: BIG}, LIMITS)
    assert stage is not None
    assert all(source.columns == (0,) for source in stage.inputs)
    assert plan_stages(grouped(child=total, keys=(1,)), {0: BIG}, LIMITS) is None


def test_exchanges_know_them() -> None:
    total = grouped(call(F.SUM, D, "d"), call(F.MAX, S, "s"))
    stage = plan_stages(joined(total, scan(1), JoinType.LEFT, (2, S)), {0: BIG, 1: BIG}, LIMITS)
    assert stage is not None
    assert {source.indeterminate for source in stage.inputs} == {frozenset({1}), frozenset()}


def windowed(*calls: AnyWindowCall, child: Relation | None = None, order: int = S) -> Window:
    below = scan() if child is None else child
    return Window(below, (K,), (SortKey(column(below.schema, order)),), calls)


def framed(function: AggregateFunction, at: int, frame: Frame) -> FramedAggregate:
    return FramedAggregate(call(function, at, "a"), frame)


ROWS, RANGE, WHOLE = Frame(FrameType.ROWS, None, 0), Frame(FrameType.RANGE, None, 0), Frame()
W = WindowFunction


@pytest.mark.parametrize(
    ("computed", "depends"),
    [
        (WindowCall(function=W.ROW_NUMBER, name="a"), True), (WindowCall(function=W.RANK, name="a"), False),
        (WindowCall(function=W.CUME_DIST, name="a"), False), (WindowCall(function=W.NTILE, name="a", count=2), True),
        (WindowCall(function=W.LAG, name="a", value=column(SCHEMA, M)), True), (framed(F.SUM, M, ROWS), True),
        (framed(F.SUM, M, RANGE), False), (framed(F.SUM, M, WHOLE), False), (framed(F.SUM, D, RANGE), True),
        (framed(F.FIRST, S, RANGE), True), (framed(F.MAX, S, RANGE), False),
    ],
    ids=str,
)  # fmt: skip
def test_windows(computed: AnyWindowCall, depends: bool) -> None:
    fields = {f.name for f in computed.outputs}
    assert names(windowed(computed)) == (fields if depends else set())
    totals = grouped(call(F.SUM, D, "t"), call(F.COUNT, S, "n"))
    ordered = Window(totals, (0,), (SortKey(column(totals.schema, "t.sum")),), (WindowCall(function=W.RANK, name="a"),))
    assert names(ordered) == {"t.sum", "a"}


def test_the_rows_that_a_filter_keeps_of_peers_may_be_others() -> None:
    numbered = windowed(WindowCall(function=W.ROW_NUMBER, name="n"), WindowCall(function=W.RANK, name="r"))

    def kept(name: str) -> Relation:
        number = column(numbered.schema, name)
        first = Call(function=Function.EQ, arguments=(number, Literal(value=1, type=pa.int32())), type=pa.bool_())
        return Filter(numbered, first)

    assert names(kept("n")) == {"k", "d", "m", "s", "n", "r"}
    assert names(kept("r")) == {"n"}
