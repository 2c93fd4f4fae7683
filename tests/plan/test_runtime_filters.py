"""Semi-joins inserted above scans: where, and that they change no answer."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from gpujoin.engine.pipeline import run
from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import (
    ExchangeSource,
    Filter,
    Join,
    Output,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    Window,
    column,
)
from gpujoin.model.spec import AsOf, JoinSpec, KeyPair
from gpujoin.model.stages import Distribution
from gpujoin.model.windows import WHOLE_PARTITION, FramedAggregate
from gpujoin.plan.estimates import Sizes, build_side
from gpujoin.plan.fragments import ColumnTree
from gpujoin.plan.parts import ScanFacts, StageLimits
from gpujoin.plan.runtime_filters import required_of_inputs, with_runtime_filters
from gpujoin.plan.stages import numbered, plan_stages

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SCANNED = {0: 1e6, 1: 1e5, 2: 10.0}


def scan(index: int, *, selective: bool = False) -> Scan:
    equal = Call(
        function=Function.EQ,
        arguments=(column(SCHEMA, "v"), Literal(value=3, type=pa.int64())),
        type=pa.bool_(),
    )
    return Scan(SCHEMA, filters=(equal,) if selective else (), index=index)


def joined(left: Relation, right: Relation, kind: JoinType = JoinType.INNER, key: int = 0) -> Join:
    right_output = () if kind.left_rows_only else (0, 1)
    return Join(left, right, JoinSpec(kind, (KeyPair(key, 0),), left_output=(0, 1), right_output=right_output))


def semi_joins(relation: Relation) -> list[int]:
    """The scans right below an inserted semi-join."""
    return [
        node.left.index
        for node in relation.walk()
        if isinstance(node, Join) and node.spec.join_type is JoinType.LEFT_SEMI and isinstance(node.left, Scan)
    ]


def test_a_selective_side_filters_the_scan_below_another_join() -> None:
    tree = joined(joined(scan(0), scan(1), key=1), scan(2, selective=True))
    filtered = with_runtime_filters(tree, Sizes(SCANNED))
    assert semi_joins(filtered) == [0]
    assert filtered.schema == tree.schema
    alone, indexes = numbered(filtered)
    facts = {at: ScanFacts(SCANNED[index], 1 << (30 if index == 0 else 20)) for at, index in enumerate(indexes)}
    stage = plan_stages(alone, facts, StageLimits(cores=4, task_bytes=1 << 27, broadcast_threshold=1 << 28))
    assert stage is not None
    assert [branch.partitioned for branch in stage.branches] == [indexes.index(0)]


def test_a_filter_is_passed_on_to_the_other_side_of_a_join_below() -> None:
    below = joined(scan(1), joined(scan(0), scan(0), JoinType.LEFT_ANTI), key=0)
    tree = joined(below, scan(2, selective=True), key=1)
    scanned = {**SCANNED, 0: 1e7}
    filtered = with_runtime_filters(tree, Sizes(scanned))
    assert semi_joins(filtered) == [1, 0, 1]  # the last one is among the keys that filter scan 0
    assert filtered.schema == tree.schema
    assert isinstance(filtered, Join)
    inner = filtered.left
    assert isinstance(inner, Join)
    assert (below.build_side, inner.build_side) == (Side.RIGHT, Side.LEFT)


def test_a_selective_side_has_sent_its_filter_already() -> None:
    below = joined(scan(1, selective=True), scan(0), key=0)
    tree = joined(below, scan(2, selective=True), key=1)
    assert semi_joins(with_runtime_filters(tree, Sizes(SCANNED))) == [1]


def test_a_build_side_that_was_asked_for_stays() -> None:
    below = dataclasses.replace(joined(scan(0), scan(1), key=1), distribution=Distribution.PARTITIONED)
    filtered = with_runtime_filters(joined(below, scan(2, selective=True)), Sizes(SCANNED))
    assert semi_joins(filtered) == [0]
    assert isinstance(filtered, Join)
    assert isinstance(filtered.left, Join)
    assert filtered.left.build_side is Side.RIGHT


def test_a_grouping_key_is_filtered_below_the_aggregation() -> None:
    below = scan(0)
    groups = PartialAggregate(below, (Output("k", column(SCHEMA, 0)), Output("v", column(SCHEMA, 1))), final=True)
    assert semi_joins(with_runtime_filters(joined(groups, scan(2, selective=True)), Sizes(SCANNED))) == [0]


@pytest.mark.parametrize(
    "tree",
    [
        joined(scan(0), scan(2, selective=True)),
        joined(joined(scan(0), scan(1), key=1), scan(2)),
        joined(joined(scan(2), scan(1), key=1), scan(1, selective=True)),
        joined(joined(scan(0), scan(1), key=1), scan(2, selective=True), JoinType.LEFT),
        joined(joined(scan(0), scan(1), key=1), scan(2, selective=True), JoinType.LEFT_ANTI),
        joined(joined(scan(0), scan(1), JoinType.FULL, key=1), scan(2, selective=True)),
        joined(joined(scan(0), scan(1), JoinType.RIGHT, key=1), scan(2, selective=True)),
    ],
    ids=["at once", "not selective", "not large", "left", "anti", "below full", "below right"],
)
def test_where_it_is_of_no_use_or_wrong_nothing_is_inserted(tree: Relation) -> None:
    assert with_runtime_filters(tree, Sizes(SCANNED)) == tree


@pytest.mark.parametrize("mode", list(EvalMode), ids=lambda mode: mode.value)
def test_a_condition_that_may_raise_is_given_all_rows(mode: EvalMode) -> None:
    """The row by which ``10 div v`` fails may have no match."""
    v = column(SCHEMA, "v")
    ten = Literal(value=10, type=pa.int64())
    quotient = Call(function=Function.INTEGRAL_DIVIDE, arguments=(ten, v), type=pa.int64(), mode=mode)
    condition = Call(function=Function.GT, arguments=(quotient, ten), type=pa.bool_())
    tree = joined(joined(Filter(scan(0), condition), scan(1), key=1), scan(2, selective=True))
    assert semi_joins(with_runtime_filters(tree, Sizes(SCANNED))) == ([] if mode is EvalMode.ANSI else [0])


def with_quotient(relation: Relation, mode: EvalMode = EvalMode.ANSI) -> Relation:
    """The columns of a relation, and ``10 div v``, which fails where ``v`` is 0."""
    operands = (Literal(value=10, type=pa.int64()), column(relation.schema, "v"))
    quotient = Call(function=Function.INTEGRAL_DIVIDE, arguments=operands, type=pa.int64(), mode=mode)
    columns = [Output(field.name, column(relation.schema, field.name)) for field in relation.schema]
    return Project(relation, (*columns, Output("q", quotient)))


def by_quotient(mode: EvalMode, use: str) -> Join:
    """A join of scan 0 by ``v``, which also compares the quotient of scan 0 in some way, with a selective table."""
    left, right = with_quotient(scan(0), mode), scan(1)
    key = KeyPair(1, 0)
    condition = Call(
        function=Function.GT, arguments=(column(left.schema, "q"), Literal(value=1, type=pa.int64())), type=pa.bool_()
    )
    specs = {
        "key": JoinSpec(JoinType.INNER, (key, KeyPair(2, 1)), left_output=(0,)),
        "condition": JoinSpec(JoinType.INNER, (key,), condition, left_output=(0,)),
        "order key": JoinSpec(JoinType.LEFT, (key,), left_output=(0,), as_of=AsOf(2, 1)),
        "payload": JoinSpec(JoinType.INNER, (key,), left_output=(0, 2)),
    }
    joins = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0,))
    return Join(Join(left, right, specs[use]), scan(2, selective=True), joins)


@pytest.mark.parametrize("use", ["key", "condition", "order key", "payload"])
@pytest.mark.parametrize("mode", [EvalMode.ANSI, EvalMode.LEGACY], ids=lambda mode: mode.value)
def test_what_a_join_below_compares_is_computed_of_all_rows(mode: EvalMode, use: str) -> None:
    """Payload may be computed of the rows that are returned, as in Spark."""
    needs_all = mode is EvalMode.ANSI and use != "payload"
    assert semi_joins(with_runtime_filters(by_quotient(mode, use), Sizes(SCANNED))) == ([] if needs_all else [0])


@pytest.mark.parametrize("mode", [EvalMode.ANSI, EvalMode.LEGACY], ids=lambda mode: mode.value)
def test_a_key_of_a_join_above_is_computed_of_all_rows_of_the_side_that_a_filter_is_passed_on_to(
    mode: EvalMode,
) -> None:
    """The filter of scan 1 is passed on to scan 0, whose quotient is a key of the join with the selective table."""
    large = joined(with_quotient(scan(0), mode), scan(0), JoinType.LEFT_ANTI)
    large = dataclasses.replace(large, spec=dataclasses.replace(large.spec, left_output=(0, 1, 2)))
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0, 1), right_output=(0, 1, 2))
    keys = (KeyPair(1, 0), KeyPair(4, 1))
    tree = Join(Join(scan(1), large, spec), scan(2, selective=True), JoinSpec(JoinType.INNER, keys, left_output=(0,)))
    filtered = semi_joins(with_runtime_filters(tree, Sizes({**SCANNED, 0: 1e7})))
    assert filtered == ([1] if mode is EvalMode.ANSI else [1, 0, 1])


@pytest.mark.parametrize("mode", [EvalMode.ANSI, EvalMode.LEGACY], ids=lambda mode: mode.value)
def test_a_small_table_whose_keys_may_raise_below_a_join_is_not_filtered(mode: EvalMode) -> None:
    joins = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0, 2))
    small = Join(with_quotient(scan(2), mode), scan(2), joins)
    tree = by_two_keys(both(scan(0), scan(2, selective=True)), small)
    filtered = with_runtime_filters(tree, Sizes(SCANNED))
    assert isinstance(filtered, Join)
    is_filtered = isinstance(filtered.right, Join) and filtered.right.spec.join_type is JoinType.LEFT_SEMI
    assert is_filtered is (mode is EvalMode.LEGACY)


def test_the_rows_are_the_same() -> None:
    def source(index: int) -> ExchangeSource:
        return ExchangeSource(index, SCHEMA)

    condition = scan(2, selective=True).filters[0]
    tree = joined(joined(scan(0), scan(1), key=1), scan(2, selective=True))

    def fed(relation: Relation) -> Relation:
        if isinstance(relation, Scan):
            return Filter(source(relation.index), condition) if relation.filters else source(relation.index)
        return relation.with_children([fed(child) for child in relation.children])

    tables = {
        0: pa.table({"k": [1, 2, 3, None, 3], "v": [5, 6, 5, 5, 7]}, SCHEMA),
        1: pa.table({"k": [5, 5, 7, None], "v": [1, 2, 3, 4]}, SCHEMA),
        2: pa.table({"k": [3, 3, 1, None], "v": [3, 3, 4, 3]}, SCHEMA),
    }
    filtered = with_runtime_filters(tree, Sizes(SCANNED))
    assert filtered != tree
    rows = [
        sorted(map(str, pa.Table.from_batches(run(fed(tree_), tables), tree_.schema).to_pylist()))
        for tree_ in (tree, filtered)
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 6


def by_two_keys(large: Relation, small: Relation, kind: JoinType = JoinType.INNER) -> Join:
    """Join by a column of the first scan of a join, and by one of the second."""
    spec = JoinSpec(kind, (KeyPair(0, 0), KeyPair(3, 1)), left_output=(0, 1), right_output=(0, 1))
    return Join(large, small, spec)


def both(left: Relation, right: Relation) -> Join:
    return Join(left, right, JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0, 1), right_output=(0, 1)))


def test_a_small_table_is_filtered_by_a_key_of_a_selective_part_of_the_other_side() -> None:
    """As the days of TPC-DS 72 are by their weeks; then it filters the large table itself."""
    tree = by_two_keys(both(scan(0), scan(2, selective=True)), scan(2))
    filtered = with_runtime_filters(tree, Sizes(SCANNED))
    assert semi_joins(filtered) == [0, 2, 2]  # the small table is in the runtime filter of scan 0, too
    assert filtered.schema == tree.schema


@pytest.mark.parametrize(
    "tree",
    [
        by_two_keys(both(scan(0), scan(2)), scan(2)),
        by_two_keys(both(scan(0), scan(1, selective=True)), scan(2)),
        by_two_keys(both(scan(0), scan(2, selective=True)), scan(2), JoinType.LEFT),
        by_two_keys(both(scan(0), scan(2, selective=True)), scan(1)),
    ],
    ids=["not selective", "a large part", "left", "not small"],
)
def test_where_a_key_is_not_passed_on(tree: Relation) -> None:
    assert 2 not in semi_joins(with_runtime_filters(tree, Sizes({**SCANNED, 1: 5e5})))


@pytest.mark.parametrize(
    ("left", "right", "built"),
    [
        (scan(2), scan(1), Side.LEFT),
        (both(scan(2, selective=True), scan(2, selective=True)), scan(1), Side.RIGHT),
        (scan(1), both(scan(2, selective=True), scan(2, selective=True)), Side.LEFT),
        (joined(scan(2, selective=True), scan(2), JoinType.LEFT_SEMI), scan(1), Side.LEFT),
        (both(scan(2, selective=True), scan(2, selective=True)), scan(3), Side.LEFT),
    ],
    ids=[
        "the smaller one",
        "not what joins may multiply",
        "nor on the right",
        "semi-joins do not",
        "but not a large one",
    ],
)
def test_which_side_is_built(left: Relation, right: Relation, built: Side) -> None:
    assert build_side(JoinType.INNER, left, right, Sizes({**SCANNED, 3: 5e6})) is built


SUMMED: dict[str, tuple[pa.DataType, EvalMode, bool]] = {
    "64 bits": (pa.int64(), EvalMode.ANSI, True),
    "64 bits that wrap": (pa.int64(), EvalMode.LEGACY, False),
    "32 bits": (pa.int32(), EvalMode.ANSI, False),
    "29 digits": (pa.decimal128(29, 2), EvalMode.ANSI, True),
    "28 digits": (pa.decimal128(28, 2), EvalMode.ANSI, False),
    "doubles": (pa.float64(), EvalMode.ANSI, False),
}


@pytest.mark.parametrize("name", SUMMED)
def test_a_group_whose_sum_may_be_an_error_is_given_all_rows(name: str) -> None:
    dtype, mode, is_error = SUMMED[name]
    rows = ExchangeSource(0, pa.schema([pa.field("k", pa.int64()), pa.field("v", dtype)]))
    key, value = column(rows.schema, "k"), column(rows.schema, "v")
    call = AggregateCall(function=AggregateFunction.SUM, arguments=(value,), mode=mode)
    grouped = PartialAggregate(rows, (Output("k", key),), (call,))
    assert (required_of_inputs(ColumnTree.from_relation(grouped), frozenset()) is None) is is_error
    of_partition = Window(rows, (0,), (), (FramedAggregate(call, WHOLE_PARTITION),))
    assert (required_of_inputs(ColumnTree.from_relation(of_partition), frozenset()) is None) is is_error
