"""How trees are cut into stages: what is divided, what every task reads, what is exchanged, and what need not be."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, EvalMode, Function
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import (
    ExchangeSource,
    Explode,
    Filter,
    Join,
    Limit,
    Output,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    SortKey,
    SparkSource,
    TopN,
    Union,
    Window,
    column,
)
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.stages import Branch, DeterminismLevel, Distribution, NullKeys, SparkInput, Stage
from gpujoin.model.windows import WindowCall, WindowFunction
from gpujoin.plan.parts import ScanFacts, StageLimits, sources_in_order
from gpujoin.plan.scanned import Buckets
from gpujoin.plan.stages import numbered, plan_one_task, plan_stages

MIB = 1 << 20
SCHEMA = pa.schema([("k", pa.int64()), ("j", pa.int64()), ("v", pa.string())])
BIG, SMALL, TINY = ScanFacts(1e8, 4096 * MIB), ScanFacts(1e3, MIB), ScanFacts(10, 1024)
LIMITS = StageLimits(cores=4, task_bytes=128 * MIB, broadcast_threshold=256 * MIB)


def scan(index: int) -> Scan:
    return Scan(SCHEMA, index=index)


def joined(left: Relation, right: Relation, kind: JoinType = JoinType.INNER, key: int = 0, **spec: object) -> Join:
    right_output = () if kind.left_rows_only else (0,)
    keys = (KeyPair(key, 0, NullEquality.EQUAL if spec.pop("null_safe", False) else NullEquality.UNEQUAL),)
    return Join(left, right, JoinSpec(kind, keys, left_output=(0, 1), right_output=right_output, **spec))  # type: ignore[arg-type]


def product(left: Relation, right: Relation, **join: object) -> Join:
    spec = JoinSpec(JoinType.CROSS, left_output=(0,), right_output=(1,))
    return Join(left, right, spec, **join)  # type: ignore[arg-type]


def asked(join: Join, distribution: Distribution) -> Join:
    return dataclasses.replace(join, distribution=distribution)


def grouped(child: Relation, key: int = 0) -> PartialAggregate:
    call = AggregateCall(function=AggregateFunction.COUNT, name="n")
    return PartialAggregate(child, (Output("k", column(child.schema, key)),), (call,), final=True)


def planned(tree: Relation, *facts: ScanFacts, **limits: object) -> Stage:
    stage = plan_stages(tree, dict(enumerate(facts)), dataclasses.replace(LIMITS, **limits))  # type: ignore[arg-type]
    assert stage is not None
    assert all(stage.tree.schema is not None for stage in stage.walk())
    return stage


def scans(stage: Stage) -> list[int]:
    return [node.index for node in stage.tree.walk() if isinstance(node, Scan)]


def test_a_scan_is_divided() -> None:
    tree = Filter(scan(0), Call(function=Function.IS_NULL, arguments=(column(SCHEMA, 0),), type=pa.bool_()))
    assert planned(tree, BIG) == Stage(tree, (Branch(0),))


@pytest.mark.parametrize("kind", list(JoinType))
def test_a_small_side_is_read_by_every_task(kind: JoinType) -> None:
    if kind is JoinType.CROSS:
        tree: Relation = product(scan(0), scan(1))
    else:
        tree = joined(scan(0), scan(1), kind)
    if kind in (JoinType.RIGHT, JoinType.FULL):
        assert planned(tree, BIG, SMALL).exchanges == 2
    else:
        assert planned(tree, BIG, SMALL) == Stage(tree, (Branch(0, frozenset({1})),))
    if kind in (JoinType.INNER, JoinType.CROSS, JoinType.RIGHT):
        assert planned(tree, SMALL, BIG) == Stage(tree, (Branch(1, frozenset({0})),))


def bucketed(kind: str = "bucket[8] of long", column: int = 0, sizes: tuple[int, ...] = (1,) * 8) -> ScanFacts:
    buckets = Buckets(kind, tuple(range(len(sizes))), sizes)
    return dataclasses.replace(BIG, buckets={column: buckets})


@pytest.mark.parametrize("kind", list(JoinType))
def test_sides_whose_files_are_in_buckets_of_the_key_are_not_exchanged(kind: JoinType) -> None:
    if kind is JoinType.CROSS:
        return
    tree = joined(scan(0), scan(1), kind)
    stage = planned(tree, bucketed(), bucketed())
    if kind.null_aware:
        assert stage.exchanges == 2
    else:
        assert stage == Stage(tree, (Branch(0, bucketed=((0, 0), (1, 0))),))


@pytest.mark.parametrize(
    "other",
    [
        BIG, bucketed("bucket[4] of long"), bucketed("bucket[8] of int"), bucketed(column=1),
        bucketed(sizes=(1000, 1, 1, 1, 1, 1, 1, 1)),
    ],
    ids=["no buckets", "another number", "another type", "another column", "one large bucket"],
)  # fmt: skip
def test_sides_in_other_buckets_are_exchanged(other: ScanFacts) -> None:
    stage = planned(joined(scan(0), scan(1)), bucketed(), other)
    assert stage.exchanges == 2


@pytest.mark.parametrize(
    ("kind", "exchanges"),
    [(JoinType.INNER, 0), (JoinType.LEFT, 0), (JoinType.RIGHT, 2), (JoinType.FULL, 2)],
)
def test_buckets_hold_for_a_further_join_and_a_grouping_by_the_key(kind: JoinType, exchanges: int) -> None:
    below = joined(scan(0), scan(1), kind)  # whose columns are k and j of the left side, and k of the right one
    stage = planned(joined(below, scan(2)), bucketed(), bucketed(), bucketed())
    assert stage.exchanges == exchanges
    if not exchanges:
        assert stage.branches == (Branch(0, bucketed=((0, 0), (1, 0), (2, 0))),)
        assert planned(grouped(below), bucketed(), bucketed()).exchanges == 0
        assert planned(grouped(below, 1), bucketed(), bucketed()).exchanges == 1


def test_groups_and_windows_by_a_column_of_buckets_are_not_exchanged() -> None:
    call = WindowCall(function=WindowFunction.ROW_NUMBER, name="n")
    window = Window(scan(0), (0,), (SortKey(column(SCHEMA, 1)),), (call,))
    for tree in (grouped(scan(0)), window):
        assert planned(tree, bucketed()) == Stage(tree, (Branch(0, bucketed=((0, 0),)),))
        assert planned(tree, bucketed(column=1)).exchanges == 1
        assert planned(tree, bucketed(sizes=(1000, 1, 1, 1))).exchanges == 1
    both = dataclasses.replace(BIG, buckets={**bucketed().buckets, **bucketed(column=1).buckets})
    by_k = dataclasses.replace(window, partition=(0,))
    assert planned(by_k, both).branches == (Branch(0, bucketed=((0, 0),)),)
    other = WindowCall(function=WindowFunction.ROW_NUMBER, name="m")
    assert planned(Window(by_k, (1,), by_k.order, (other,)), both).exchanges == 1


@pytest.mark.parametrize("kind", list(JoinType))
def test_two_big_sides_are_exchanged(kind: JoinType) -> None:
    if kind is JoinType.CROSS:
        tree: Relation = product(scan(0), scan(1))
        assert plan_stages(tree, {0: BIG, 1: BIG}, LIMITS) is None
        return
    tree = joined(scan(0), scan(1), kind)
    stage = planned(tree, BIG, BIG)
    assert stage.tree.schema == tree.schema
    assert [scans(source.producer) for source in stage.inputs] == [[1], [0]]  # the build side is read first
    assert [source.producer.branches for source in stage.inputs] == [(Branch(1),), (Branch(0),)]
    right, left = stage.inputs
    assert left.schema.names == ["k", "j"]
    assert right.schema.names == ["k"]
    assert (left.columns, right.columns) == ((0,), (0,))
    drop, spread = NullKeys.DROP, NullKeys.SPREAD
    nulls = {
        JoinType.LEFT: (spread, drop), JoinType.RIGHT: (drop, spread), JoinType.FULL: (spread, spread),
        JoinType.LEFT_ANTI: (spread, drop), JoinType.EXISTENCE: (spread, drop),
        JoinType.NULL_AWARE_ANTI: (NullKeys.LAST, NullKeys.EVERYWHERE),
        JoinType.NULL_AWARE_EXISTENCE: (NullKeys.LAST, NullKeys.EVERYWHERE),
    }.get(kind, (drop, drop))  # fmt: skip
    assert (left.nulls, right.nulls) == nulls
    assert (left.last_complete, right.last_complete) == (False, kind.null_aware)
    assert stage.partitions >= 4


def test_the_side_that_is_built_is_read_first() -> None:
    tree = dataclasses.replace(joined(scan(0), scan(1)), build_side=Side.LEFT)
    stage = planned(tree, BIG, BIG)
    assert [scans(source.producer) for source in stage.inputs] == [[0], [1]]
    assert list(sources_in_order(stage.tree)) == [source.index for source in stage.inputs]


def test_keys_are_hashed_in_their_common_type() -> None:
    other = Scan(pa.schema([("k", pa.int32())]), index=1)
    stage = planned(joined(scan(0), other), BIG, BIG)
    assert {source.types for source in stage.inputs} == {(pa.int64(),)}


def chain(first: JoinType, second: JoinType, key: int = 0, *, null_safe: bool = False) -> Join:
    return joined(joined(scan(0), scan(1), first), scan(2), second, key, null_safe=null_safe)


@pytest.mark.parametrize(
    ("tree", "exchanges"),
    [
        (chain(JoinType.INNER, JoinType.INNER), 3),
        (chain(JoinType.INNER, JoinType.INNER, key=2), 3),  # the right side's key is the same value
        (chain(JoinType.INNER, JoinType.INNER, key=1), 4),
        (chain(JoinType.LEFT, JoinType.INNER), 3),
        (chain(JoinType.LEFT, JoinType.INNER, key=2), 4),  # null where nothing matched, wherever that was
        (chain(JoinType.FULL, JoinType.INNER), 4),
        (chain(JoinType.RIGHT, JoinType.FULL, key=2), 3),
        (chain(JoinType.LEFT_SEMI, JoinType.LEFT), 3),
        (chain(JoinType.LEFT, JoinType.INNER, null_safe=True), 4),  # null keys were spread
        (chain(JoinType.INNER, JoinType.INNER, null_safe=True), 3),  # there are none left
        (joined(grouped(scan(0)), joined(scan(1), scan(2))), 3),
        (grouped(joined(scan(0), scan(1))), 2),
        (grouped(joined(scan(0), scan(1), JoinType.LEFT)), 3),
        (grouped(joined(scan(0), scan(1)), key=1), 3),
    ],
)
def test_a_partitioning_that_is_there_is_used_again(tree: Relation, exchanges: int) -> None:
    stage = planned(tree, BIG, BIG, BIG)
    assert stage.exchanges == exchanges
    assert stage.tree.schema == tree.schema


def test_keys_that_are_computed_are_exchanged_too() -> None:
    value = Call(function=Function.COALESCE, arguments=(column(SCHEMA, 0), column(SCHEMA, 1)), type=pa.int64())
    of_rows = AggregateCall(function=AggregateFunction.MODE, arguments=(column(SCHEMA, 1),), name="v")
    for call, exchanged in (
        (of_rows, ["j", "x"]),
        (AggregateCall(function=AggregateFunction.COUNT), ["x", "count.count"]),
    ):
        tree = dataclasses.replace(grouped(scan(0)), keys=(Output("x", value),), aggregates=(call,))
        stage = planned(tree, BIG)
        assert stage.tree.schema == tree.schema
        assert stage.inputs[0].schema.names == exchanged


def test_rows_of_an_exchange_that_are_grouped_by_a_computed_key_are_as_many_as_the_query_says() -> None:
    pairs = joined(scan(0), scan(1))
    key = Call(
        function=Function.COALESCE, arguments=(column(pairs.schema, 0), column(pairs.schema, 1)), type=pa.int64()
    )
    of_rows = AggregateCall(function=AggregateFunction.MODE, arguments=(column(pairs.schema, 1),), name="v")
    stage = planned(PartialAggregate(pairs, (Output("x", key),), (of_rows,), final=True), BIG, BIG, gathered_bytes=MIB)
    (exchange,) = stage.inputs
    assert exchange.columns, "so many rows are not sent to one task"
    assert stage.partitions > LIMITS.cores


def test_partial_results_are_exchanged_and_merged() -> None:
    count = AggregateCall(function=AggregateFunction.COUNT, name="n")
    tree = dataclasses.replace(grouped(scan(0)), aggregates=(count,))
    stage = planned(tree, BIG)
    assert stage.tree.schema == tree.schema
    (exchange,) = stage.inputs
    partial = exchange.producer.tree
    assert isinstance(partial, PartialAggregate)
    assert not partial.final
    assert exchange.columns == (0,)
    assert not any(isinstance(node, Scan) for node in stage.tree.walk())


@pytest.mark.parametrize("function", [AggregateFunction.COLLECT_LIST, AggregateFunction.MODE])
def test_rows_are_exchanged_where_partial_results_are_not_merged(function: AggregateFunction) -> None:
    call = AggregateCall(function=function, arguments=(column(SCHEMA, 1),), name="v")
    tree = dataclasses.replace(grouped(scan(0)), aggregates=(call,))
    (exchange,) = planned(tree, BIG).inputs
    assert not any(isinstance(node, PartialAggregate) for node in exchange.producer.tree.walk())


def test_groups_that_may_come_more_than_once_need_no_exchange() -> None:
    tree = dataclasses.replace(grouped(scan(0)), final=False)
    assert planned(tree, BIG) == Stage(tree, (Branch(0),))


def test_the_groups_without_keys_of_all_tasks_are_merged_by_one() -> None:
    stage = planned(dataclasses.replace(grouped(scan(0)), keys=(), final=True), BIG)
    assert stage.branches == (Branch(None),)
    (exchange,) = stage.inputs
    assert exchange.replicated
    assert isinstance(exchange.producer.tree, PartialAggregate)
    assert not exchange.producer.tree.final


FEW = ScanFacts(1000, 4096 * MIB)
"""So few rows, of so many bytes, that they are divided."""


def test_few_rows_are_grouped_by_one_task_which_needs_no_further_exchange() -> None:
    def tree_of(left: int, right: int) -> Join:
        spec = JoinSpec(JoinType.FULL, (KeyPair(0, 0),), left_output=(0, 1), right_output=(0,))
        return Join(grouped(scan(left)), grouped(scan(right)), spec)

    tree = tree_of(0, 1)
    both = planned(tree, FEW, FEW, gathered_bytes=MIB)
    assert both.branches == (Branch(None),)
    assert [exchange.replicated for exchange in both.inputs] == [True, True]
    assert both.exchanges == 2
    together = planned(Union((tree, tree_of(2, 3))), FEW, FEW, FEW, FEW, gathered_bytes=MIB)
    assert (together.branches, together.exchanges) == ((Branch(None),), 4)
    assert planned(tree, FEW, FEW).partitions == 4
    assert planned(tree, BIG, BIG, gathered_bytes=MIB).partitions > 4
    assert planned(tree, FEW, FEW, gathered_bytes=MIB, partitions=3).partitions == 3


def test_small_files_are_read_by_one_task_and_what_follows_runs_there() -> None:
    tree = Union(tuple(grouped(joined(scan(2 * n), scan(2 * n + 1), JoinType.FULL)) for n in range(3)))
    files = [ScanFacts(1000, MIB // 2)] * 6
    together = planned(tree, *files, gathered_bytes=MIB)
    assert together == Stage(together.tree, (Branch(None, frozenset(range(6))),))
    assert planned(tree, *files, gathered_bytes=MIB, task_bytes=1).exchanges > 0, "tasks are to read less"
    many = [dataclasses.replace(facts, files=100) for facts in files]
    assert planned(tree, *many, gathered_bytes=MIB).exchanges > 0, "opening so many takes one task long"
    assert planned(tree, *files, gathered_bytes=MIB, partitions=3).exchanges > 0
    several = planned(tree, *files, gathered_bytes=MIB // 2)
    assert (len(several.branches), several.exchanges) == (3, 0), "together they are not small"


def test_totals_of_small_files_come_out_of_one_task_of_a_union() -> None:
    call = AggregateCall(function=AggregateFunction.COUNT, name="k")
    total = PartialAggregate(scan(0), (), (call,), final=True)
    numbers = Project(scan(1), (Output("k", column(SCHEMA, 0)),))
    stage = planned(Union((total, numbers)), SMALL, BIG, gathered_bytes=MIB)
    assert [exchange.producer.branches for exchange in stage.inputs] == [(Branch(None, frozenset({0})),), (Branch(1),)]
    small = planned(Union((total, numbers)), SMALL, SMALL, gathered_bytes=MIB)
    assert (small.branches, small.inputs) == ((Branch(None, frozenset({0, 1})),), ())
    pairs = Project(scan(1), tuple(Output(name, column(SCHEMA, n)) for n, name in enumerate("kj")))
    groups = planned(Union((grouped(scan(0)), pairs)), SMALL, BIG, gathered_bytes=MIB)
    assert groups.branches == (Branch(None, frozenset({0})), Branch(1)), "of no rows there are no groups"


def test_rows_of_a_stream_stay_where_they_are_however_few() -> None:
    tree = joined(from_spark(0, 1e3), scan(0))
    assert planned(tree, SMALL, gathered_bytes=MIB, cores=24, keeps_tables=True).spark == SparkInput(0, 0)
    assert planned(tree, SMALL, gathered_bytes=MIB, cores=24).branches[0].partitioned is None


def test_very_many_pairs_of_few_rows_are_divided() -> None:
    many = ScanFacts(20_000, MIB)
    assert planned(product(scan(0), scan(1)), SMALL, SMALL, gathered_bytes=MIB).branches[0].partitioned is None
    assert planned(product(scan(0), scan(1)), many, many, gathered_bytes=MIB).branches[0].partitioned is not None
    assert planned(joined(scan(0), scan(1)), many, many, gathered_bytes=MIB).branches[0].partitioned is None
    pairs = Join(Project(scan(0), ()), Project(scan(1), ()), JoinSpec(JoinType.CROSS))
    assert planned(pairs, many, many, gathered_bytes=MIB).branches[0].partitioned is not None
    millions = ScanFacts(1e8, 4 * MIB)
    stage = planned(pairs, millions, millions, gathered_bytes=MIB, cores=64)
    assert stage.branches[0].partitioned is not None, "rows without columns are not few"
    full = Join(scan(0), scan(1), JoinSpec(JoinType.FULL, left_output=(0,), right_output=(1,)))
    assert planned(full, many, many, gathered_bytes=MIB).branches[0].partitioned is None, "which cannot be divided"


def test_few_rows_of_a_side_go_to_one_task_which_joins_them() -> None:
    tree = joined(scan(0), scan(1), JoinType.FULL)
    stage = planned(tree, FEW, FEW, gathered_bytes=MIB)
    assert stage.branches == (Branch(None),)
    assert stage.exchanges == 2


def test_inputs_of_a_union_are_divided_each() -> None:
    inputs = (
        scan(0),
        Join(scan(1), scan(2), JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0, 1, 2))),
    )
    tree = joined(Union(inputs), scan(3))
    stage = planned(tree, BIG, BIG, TINY, TINY)
    assert stage.branches == (Branch(0, frozenset({3})), Branch(1, frozenset({2, 3})))


def test_limits_are_those_of_each_task() -> None:
    top = Limit(scan(0), 3)
    assert planned(top, BIG) == Stage(top, (Branch(0),))
    renamed = Project(top, (Output("k", column(SCHEMA, 0)),))
    assert planned(renamed, BIG) == Stage(renamed, (Branch(0),))
    exchanged = planned(Limit(joined(scan(0), scan(1)), 3), BIG, BIG)
    assert isinstance(exchanged.tree, Limit)
    assert exchanged.exchanges == 2
    (exchange,) = planned(asked(joined(top, scan(1)), Distribution.LEFT_REPLICATED), BIG, SMALL).inputs
    assert exchange.producer == Stage(top, (Branch(0),))


def test_a_middling_side_is_exchanged_where_there_are_many_tasks() -> None:
    tree = joined(scan(0), scan(1))
    middling = ScanFacts(4e6, 200 * MIB)
    assert planned(tree, BIG, middling, task_bytes=1024 * MIB).exchanges == 0
    assert planned(tree, BIG, middling, task_bytes=16 * MIB).exchanges == 2
    assert planned(tree, BIG, SMALL, broadcast_threshold=1).exchanges == 2


def test_scans_of_the_same_files_are_told_apart() -> None:
    tree, indexes = numbered(joined(scan(7), joined(scan(3), scan(7))))
    assert [node.index for node in tree.walk() if isinstance(node, Scan)] == [0, 1, 2]
    assert indexes == (7, 3, 7)


def test_partitions_follow_the_size_of_the_rows() -> None:
    tree = joined(scan(0), scan(1))
    stage = planned(tree, BIG, BIG)
    assert stage.partitions == -(-int(sum(source.nbytes for source in stage.inputs)) // (64 * MIB))
    assert planned(tree, BIG, BIG, partitions=7).partitions == 7
    assert all(isinstance(source, ExchangeSource) for source in stage.tree.children)


def from_spark(index: int, rows: float, level: DeterminismLevel = DeterminismLevel.UNORDERED) -> SparkSource:
    return SparkSource(index, SCHEMA, rows, level)


def test_few_rows_from_spark_are_sent_to_every_task_that_reads_files() -> None:
    stage = planned(joined(scan(0), from_spark(0, 1e3)), BIG)
    assert stage.branches == (Branch(0),)
    (sent,) = stage.inputs
    assert sent.replicated
    assert sent.columns == ()
    assert sent.producer.spark == SparkInput(sent.producer.tree.index, 0)  # type: ignore[attr-defined]
    assert isinstance(stage.tree.children[1], ExchangeSource)


def test_many_rows_from_spark_are_joined_where_they_are_computed() -> None:
    stage = planned(joined(from_spark(0, 1e8), scan(0)), SMALL)
    assert stage.spark == SparkInput(0, 0)
    assert (stage.branches, stage.inputs, stage.replicated) == ((), (), frozenset({0}))


def test_many_rows_from_spark_and_from_files_are_exchanged_by_key() -> None:
    stage = planned(joined(scan(0), from_spark(0, 1e8)), BIG)
    assert [one.replicated for one in stage.inputs] == [False, False]
    assert [one.columns for one in stage.inputs] == [(0,), (0,)]


@pytest.mark.parametrize("rows", [1e3, 1e8])
def test_rows_that_may_be_others_each_time_are_not_sent_by_key(rows: float) -> None:
    loose = from_spark(0, rows, DeterminismLevel.INDETERMINATE)
    stage = plan_stages(joined(scan(0), loose, JoinType.FULL), {0: BIG}, LIMITS)
    assert stage is None


def test_one_task_is_sent_all_rows_from_spark() -> None:
    stage = plan_one_task(joined(joined(scan(0), from_spark(0, 1e3)), from_spark(1, 1e9)), LIMITS)
    assert stage.branches == (Branch(None, frozenset({0})),)
    assert [(one.replicated, one.producer.spark.rows) for one in stage.inputs if one.producer.spark] == [
        (True, 1), (True, 0),
    ]  # fmt: skip
    assert len({one.index for one in stage.inputs}) == 2


def test_a_guess_of_very_many_rows_from_spark_makes_no_more_partitions_than_spark_has() -> None:
    guessed = joined(scan(0), from_spark(0, 1e16))
    assert planned(guessed, BIG, guessed_partitions=7).partitions == 7
    assert planned(guessed, BIG, guessed_partitions=1).partitions == LIMITS.cores
    assert planned(guessed, BIG, guessed_partitions=1, partitions=70).partitions == 70
    assert planned(joined(scan(0), scan(1)), BIG, BIG, guessed_partitions=7).partitions > 7


def test_a_chain_of_joins_is_planned_once_per_join() -> None:
    joins = 60  # to place an input twice at each join would take years
    tree: Relation = from_spark(0, 1e3)
    for index in range(joins):
        tree = joined(tree, scan(index))
    stage = planned(tree, *[BIG] * joins)
    sources = [source.index for one in stage.walk() for source in one.inputs]
    assert len(sources) == len(set(sources))


def test_few_rows_from_spark_join_few_rows_from_spark_by_key() -> None:
    stage = planned(joined(from_spark(0, 1e3), from_spark(1, 1e3)))
    assert [one.replicated for one in stage.inputs] == [False, False]
    assert all(one.columns for one in stage.inputs)


# -- without keys, rows from Spark on both sides -----------------------------------------------------------------


def routes(stage: Stage) -> list[str]:
    """How the rows of each input of a stage are sent, by the Spark input that they come from."""
    sent = {
        one.producer.spark.rows: "replicated" if one.replicated else "by key" if one.columns else "spread"
        for one in stage.inputs
        if one.producer.spark is not None
    }
    return [sent[number] for number in sorted(sent)]


def test_rows_from_spark_are_spread_where_a_side_of_rows_from_spark_is_replicated() -> None:
    stage = planned(product(from_spark(0, 1e8), from_spark(1, 1e3)))
    assert routes(stage) == ["spread", "replicated"]
    assert stage.spark is None
    assert stage.partitions == LIMITS.cores, "each task is sent a copy more"
    assert planned(product(from_spark(0, 1e8), from_spark(1, 1e3)), partitions=5).partitions == 5


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (JoinType.CROSS, ["replicated", "spread"]),
        (JoinType.LEFT_SEMI, ["spread", "replicated"]),
        (JoinType.RIGHT, ["replicated", "spread"]),
    ],
    ids=lambda given: getattr(given, "value", ""),
)
def test_the_side_that_is_spread_is_one_that_may_be_divided(kind: JoinType, expected: list[str]) -> None:
    right_output = () if kind.left_rows_only else (1,)
    spec = JoinSpec(kind, left_output=(0,), right_output=right_output)
    stage = planned(Join(from_spark(0, 1e3), from_spark(1, 1e4), spec))
    assert routes(stage) == expected


def test_the_replicated_side_of_rows_from_spark_is_limited() -> None:
    tree = product(from_spark(0, 1e8), from_spark(1, 1e8))
    assert plan_stages(tree, {}, LIMITS) is None
    assert routes(planned(asked(tree, Distribution.RIGHT_REPLICATED))) == ["spread", "replicated"]


def test_rows_that_may_be_others_each_time_are_spread_by_no_value() -> None:
    loose = from_spark(0, 1e6, DeterminismLevel.INDETERMINATE)
    stage = planned(product(loose, from_spark(1, 1e3)))
    spread = next(one for one in stage.inputs if not one.replicated)
    assert spread.indeterminate == frozenset(range(len(SCHEMA)))


def test_rows_from_spark_and_from_files_meet_in_a_union() -> None:
    tree = joined(Union((scan(0), from_spark(0, 1e3))), scan(1))
    stage = planned(tree, BIG, TINY)
    assert [(one.columns, one.replicated) for one in stage.inputs] == [((), False)] * 2
    assert stage.replicated == frozenset({1})


# -- distributions that are asked for ----------------------------------------------------------------------------


def shape(tree: Join, *facts: ScanFacts) -> tuple[int, list[tuple[int | None, frozenset[int]]]]:
    stage = planned(tree, *facts)
    return stage.exchanges, [(branch.partitioned, branch.replicated) for branch in stage.branches]


@pytest.mark.parametrize("facts", [(BIG, BIG), (BIG, SMALL), (SMALL, SMALL)], ids=["big", "star", "small"])
def test_a_distribution_is_obeyed_whatever_the_sizes(facts: tuple[ScanFacts, ScanFacts]) -> None:
    tree = joined(scan(0), scan(1))
    assert shape(asked(tree, Distribution.PARTITIONED), *facts) == (2, [])
    assert shape(asked(tree, Distribution.RIGHT_REPLICATED), *facts) == (0, [(0, frozenset({1}))])
    assert shape(asked(tree, Distribution.LEFT_REPLICATED), *facts) == (0, [(1, frozenset({0}))])
    assert shape(asked(tree, Distribution.REPLICATED), *facts)[0] == 0


def test_the_smaller_side_is_replicated_where_either_may_be() -> None:
    tree = asked(joined(scan(0), scan(1)), Distribution.REPLICATED)
    assert shape(tree, BIG, SMALL) == (0, [(0, frozenset({1}))])
    assert shape(tree, SMALL, BIG) == (0, [(1, frozenset({0}))])


def test_a_partitioning_that_is_there_serves_a_join_that_asks_for_one() -> None:
    below = asked(joined(scan(0), scan(1)), Distribution.PARTITIONED)
    assert planned(asked(joined(below, scan(2)), Distribution.PARTITIONED), SMALL, SMALL, SMALL).exchanges == 3


def test_a_join_that_asks_for_partitions_is_not_computed_by_every_task() -> None:
    below = asked(joined(scan(0), scan(1)), Distribution.PARTITIONED)
    stage = planned(asked(joined(below, scan(2)), Distribution.LEFT_REPLICATED), SMALL, SMALL, BIG)
    assert stage.branches == (Branch(2),)
    assert [one.replicated for one in stage.inputs] == [True]
    assert stage.exchanges == 3


def test_a_side_that_cannot_be_shared_out_comes_from_one_task() -> None:
    call = AggregateCall(function=AggregateFunction.SUM, arguments=(column(SCHEMA, 1),), name="n", mode=EvalMode.TRY)
    total = dataclasses.replace(grouped(scan(1)), keys=(), aggregates=(call,))
    renamed = Project(total, (Output("k", column(total.schema, 0)), Output("j", column(total.schema, 0))))
    tree = joined(scan(0), renamed)
    stage = planned(asked(tree, Distribution.PARTITIONED), BIG, BIG)
    assert [one.producer.branches for one in stage.inputs] == [(Branch(None, frozenset({1})),), (Branch(0),)]
    (sent,) = planned(asked(tree, Distribution.RIGHT_REPLICATED), BIG, BIG).inputs
    assert (sent.replicated, sent.producer.branches) == (True, (Branch(None, frozenset({1})),))


def test_few_rows_of_much_that_is_read_are_sent_to_every_task() -> None:
    few = Filter(scan(1), Call(function=Function.EQ, arguments=(column(SCHEMA, 0), column(SCHEMA, 1)), type=pa.bool_()))
    tree = joined(scan(0), few)
    stage = planned(tree, BIG, ScanFacts(1e6, 200 * MIB))
    assert stage.branches == (Branch(0),)
    (sent,) = stage.inputs
    assert (sent.replicated, sent.producer) == (True, Stage(few, (Branch(1),)))
    facts = ScanFacts(1e8, 1024 * MIB), ScanFacts(1e6, 40 * MIB)
    assert [planned(tree, *facts, keeps_tables=keeps).exchanges for keeps in (False, True)] == [1, 0]
    few_tasks = planned(tree, ScanFacts(1e7, 256 * MIB), ScanFacts(1e6, 10 * MIB))
    assert few_tasks.branches == (Branch(0, frozenset({1})),), "reading it twice takes less than another stage"


def test_keys_that_may_be_others_each_time_are_not_exchanged_though_asked_for() -> None:
    loose = from_spark(0, 1e3, DeterminismLevel.INDETERMINATE)
    tree = asked(joined(scan(0), loose), Distribution.PARTITIONED)
    assert plan_stages(tree, {0: BIG}, LIMITS) is None


# -- NOT IN --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [JoinType.NULL_AWARE_ANTI, JoinType.NULL_AWARE_EXISTENCE])
def test_without_nulls_on_the_left_no_partition_has_all_right_rows(kind: JoinType) -> None:
    keys = Scan(pa.schema([pa.field("k", pa.int64(), nullable=False), ("j", pa.int64())]), index=0)
    right, left = planned(joined(keys, scan(1), kind), BIG, BIG).inputs
    assert (left.last_complete, right.last_complete) == (False, False)
    assert right.nulls is NullKeys.EVERYWHERE


def test_not_in_takes_no_partitioning_in_which_nulls_are_elsewhere() -> None:
    below = joined(scan(0), scan(1), JoinType.LEFT)
    assert planned(joined(below, scan(2), JoinType.NULL_AWARE_ANTI), BIG, BIG, BIG).exchanges == 4
    above = joined(joined(scan(0), scan(1), JoinType.NULL_AWARE_ANTI), scan(2))
    assert planned(above, BIG, BIG, BIG).exchanges == 3, "null keys match nothing there, wherever they are"
    groups = grouped(joined(scan(0), scan(1), JoinType.NULL_AWARE_ANTI))
    assert planned(groups, BIG, BIG).exchanges == 3, "but they are one group"


def windowed(child: Relation, *keys: int) -> Window:
    calls = (WindowCall(function=WindowFunction.ROW_NUMBER, name="n"),)
    return Window(child, keys, (SortKey(column(child.schema, 2)),), calls)


def test_the_rows_of_a_partition_are_in_one_task() -> None:
    stage = planned(windowed(scan(0), 1), BIG)
    (exchange,) = stage.inputs
    assert (exchange.columns, exchange.null_safe, exchange.nulls) == ((1,), (True,), NullKeys.SPREAD)
    assert stage.tree == windowed(ExchangeSource(exchange.index, SCHEMA), 1)


def test_windows_and_groups_of_one_key_take_one_exchange() -> None:
    for tree in (
        windowed(windowed(scan(0), 0), 0, 1), windowed(windowed(scan(0), 1), 1, 0), grouped(windowed(scan(0), 0)),
    ):  # fmt: skip
        stage = planned(tree, BIG)
        assert len(stage.inputs) == 1
        assert not stage.inputs[0].producer.inputs
    other = planned(windowed(windowed(scan(0), 0), 1), BIG)
    assert other.inputs[0].producer.inputs


def test_a_window_without_partitions_is_not_divided() -> None:
    assert plan_stages(windowed(scan(0)), {0: BIG}, LIMITS) is None
    assert plan_one_task(windowed(scan(0)), LIMITS).tree == windowed(scan(0))


def first_rows(child: Relation, *, final: bool = True) -> TopN:
    return TopN(child, (SortKey(column(child.schema, 2)),), 3, final)


def test_of_a_limit_below_other_operations_one_task_has_the_last_word() -> None:
    stage = planned(grouped(first_rows(scan(0))), BIG)
    (exchange,) = stage.inputs
    assert stage.tree == grouped(first_rows(ExchangeSource(exchange.index, SCHEMA)))
    assert (stage.branches, exchange.replicated) == ((Branch(None),), True)
    assert exchange.producer == Stage(first_rows(scan(0), final=False), (Branch(0),))


def test_no_task_takes_first_rows_of_its_own_to_join_them() -> None:
    stage = planned(joined(scan(0), first_rows(scan(1))), BIG, SMALL)
    (exchange,) = stage.inputs
    assert isinstance(stage.tree, Join)
    assert stage.tree.right == ExchangeSource(exchange.index, SCHEMA)
    assert exchange.producer.branches == (Branch(None),)


def test_a_union_gives_first_rows_once() -> None:
    stage = planned(Union((scan(0), first_rows(scan(1)))), BIG, SMALL)
    assert not stage.branches
    assert not any(exchange.replicated for exchange in stage.inputs)


def test_rows_of_elements_are_made_in_any_task() -> None:
    lists = Scan(pa.schema([("k", pa.int64()), ("l", pa.list_(pa.int64()))]), index=0)
    stage = planned(grouped(Explode(windowed_by_key(lists), 1, (0,))), BIG)
    assert stage.exchanges == 1, "rows stay where their key is"


def windowed_by_key(child: Relation) -> Window:
    calls = (WindowCall(function=WindowFunction.ROW_NUMBER, name="n"),)
    return Window(child, (0,), (SortKey(column(child.schema, 0)),), calls)
