"""Relational nodes: values that check themselves."""

from __future__ import annotations

import dataclasses
import pickle

import pyarrow as pa
import pytest

from gpujoin.errors import RelationError
from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Attribute, ColumnId, ColumnRef, EvalMode, Expression, Function, call
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import (
    ExchangeSource,
    FileSlice,
    Filter,
    Join,
    Limit,
    Output,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    SortKey,
    TopN,
    Union,
    bind_slices,
    column,
)
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve_value

SCHEMA = pa.schema([("k", pa.int64()), ("price", pa.decimal128(15, 2)), ("name", pa.string()), ("x", pa.float64())])
SOURCE = ExchangeSource(0, SCHEMA)


def typed(expression: Expression, schema: pa.Schema = SCHEMA) -> Expression:
    return resolve_value(expression, schema, schema, mode=EvalMode.ANSI)


def every_node() -> Relation:
    scan = Scan(
        SCHEMA,
        partition_columns=1,
        filters=(typed(column(SCHEMA, "k") > 3),),
        slices=(FileSlice("a", 5, constants=(1.5,)),),
    )
    spec = JoinSpec(
        JoinType.INNER,
        (KeyPair(0, 0),),
        condition=typed(column(SCHEMA, "x") < ColumnRef(side=Side.RIGHT, name="x")),
        left_output=(0, 1),
        right_output=(2,),
    )
    join = Join(
        Union((scan, ExchangeSource(1, SCHEMA))),
        Filter(SOURCE, typed(column(SCHEMA, "name").like("a%"))),
        spec,
    )
    top = TopN(join, (SortKey(column(join.schema, "price"), descending=True),), 10)
    project = Project(Limit(top, 5), (Output("k", column(top.schema, 0)), Output("p", column(top.schema, 1))))
    count = AggregateCall(function=AggregateFunction.COUNT)
    return PartialAggregate(project, (Output("k", column(project.schema, 0)),), (count,))


def test_trees_are_values() -> None:
    tree, again = every_node(), every_node()
    assert tree == again
    assert hash(tree) == hash(again)
    copied = pickle.loads(pickle.dumps(tree))  # noqa: S301
    assert copied == tree
    assert copied.schema == tree.schema
    assert {type(node).__name__ for node in tree.walk()} == {
        "PartialAggregate", "Project", "Limit", "TopN", "Join", "Union", "Scan", "ExchangeSource", "Filter",
    }  # fmt: skip


def test_a_changed_copy_is_another_value_in_every_dictionary() -> None:
    tree = every_node()
    known = {node: n for n, node in enumerate(tree.walk())}
    assert all(dataclasses.replace(node) in known for node in tree.walk())
    limit = next(node for node in tree.walk() if isinstance(node, Limit))
    assert dataclasses.replace(limit, count=6) not in known
    assert limit.with_children([SOURCE]) not in known
    scan = next(node for node in tree.walk() if isinstance(node, Scan))
    assert scan.reading([]) not in known
    assert "structure" not in pickle.loads(pickle.dumps(limit)).__dict__, "hashes of texts are others elsewhere"  # noqa: S301


def test_specifications_of_joins_with_other_conditions_differ() -> None:
    conditions = [None, *(typed(column(SCHEMA, "k") > n) for n in (1, 2))]
    assert len({JoinSpec(JoinType.INNER, condition=condition) for condition in conditions}) == 3


def test_a_column_that_is_not_bound_to_a_position_is_refused() -> None:
    unbound = Attribute(id=ColumnId("k"), name="k", type=pa.int64())
    with pytest.raises(RelationError, match="k is known by its identity"):
        Project(SOURCE, (Output("k", unbound),))


def test_trees_that_differ_in_an_expression_differ() -> None:
    left, right = (Filter(SOURCE, typed(column(SCHEMA, "k") > n)) for n in (1, 2))
    assert left != right
    joins = []
    for condition in (None, typed(column(SCHEMA, "k") > 1)):
        spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), condition=condition)
        joins.append(Join(SOURCE, SOURCE, spec))
    assert joins[0] != joins[1]


def test_a_union_of_fewer_inputs_is_another_one() -> None:
    both = Union((SOURCE, ExchangeSource(1, SCHEMA)))
    assert both.with_children(both.inputs) is both
    assert both.with_children(both.inputs[:1]) == Union((SOURCE,))


def test_slices_are_bound_by_index() -> None:
    scans = Union((Scan(SCHEMA, index=0), Scan(SCHEMA, index=1)))
    bound = bind_slices(scans, {1: [FileSlice("f", 3)]})
    assert [s.slices for s in bound.children if isinstance(s, Scan)] == [None, (FileSlice("f", 3),)]


DECIMAL = pa.decimal128(15, 2)


@pytest.mark.parametrize(
    ("function", "argument", "expected"),
    [
        (AggregateFunction.SUM, "k", [("s.sum", pa.int64())]),
        (AggregateFunction.SUM, "x", [("s.sum", pa.float64())]),
        (
            AggregateFunction.SUM,
            "price",
            [("s.sum", pa.decimal128(25, 2)), pa.field("s.is_empty", pa.bool_(), nullable=False)],
        ),
        (AggregateFunction.COUNT, "name", [pa.field("s.count", pa.int64(), nullable=False)]),
        (AggregateFunction.MIN, "name", [("s.value", pa.string())]),
        (AggregateFunction.BIT_XOR, "k", [("s.value", SCHEMA.field("k").type)]),
        (
            AggregateFunction.AVG,
            "price",
            [("s.sum", pa.decimal128(25, 2)), pa.field("s.count", pa.int64(), nullable=False)],
        ),
    ],
)
def test_buffers_are_sparks(function: AggregateFunction, argument: str, expected: list[object]) -> None:
    made = AggregateCall(function=function, arguments=(column(SCHEMA, argument),), name="s")
    assert pa.schema(made.buffer) == pa.schema(expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Filter(SOURCE, column(SCHEMA, "k")), "not boolean"),
        (lambda: Filter(SOURCE, call(Function.GT, column(SCHEMA, "k"), 1)), "not resolved"),
        (lambda: column(SCHEMA, "nope"), "0 columns are named 'nope'"),
        (lambda: column(SCHEMA, 9), "has 4 columns"),
        (
            lambda: Project(ExchangeSource(0, SCHEMA.remove(0)), (Output("k", column(SCHEMA, "k")),)),
            "takes k",
        ),
        (
            lambda: Project(ExchangeSource(0, SCHEMA.remove(3)), (Output("x", column(SCHEMA, "x")),)),
            "column 3 does not",
        ),
        (lambda: Scan(SCHEMA, partition_columns=1, slices=(FileSlice("f", 1),)), "0 constants for 1"),
        (lambda: Scan(pa.schema([("a", pa.int8()), ("a", pa.int8())])), "repeated: 'a'"),
        (lambda: FileSlice("f", 1, row_groups=(0,), byte_range=(0, 1)), "not both"),
        (lambda: FileSlice("f", 1, row_groups=(1, 0)), "must ascend"),
        (lambda: PartialAggregate(SOURCE, ()), "keys or aggregates"),
        (lambda: AggregateCall(function=AggregateFunction.SUM), "one argument, not 0"),
        (
            lambda: AggregateCall(function=AggregateFunction.SUM, arguments=(column(SCHEMA, "name"),)),
            "takes a number",
        ),
        (
            lambda: AggregateCall(function=AggregateFunction.MAX_BY, arguments=(column(SCHEMA, "name"),)),
            "two arguments, not 1",
        ),
        (
            lambda: AggregateCall(function=AggregateFunction.PERCENTILE, arguments=(column(SCHEMA, "k"),)),
            "percentage None",
        ),
        (
            lambda: AggregateCall(
                function=AggregateFunction.PERCENTILE, arguments=(column(SCHEMA, "name"),), percentage=0.5
            ),
            "an integer or a double",
        ),
        (lambda: AggregateCall(function=AggregateFunction.BIT_OR, arguments=(column(SCHEMA, "x"),)), "an integer"),
        (
            lambda: AggregateCall(function=AggregateFunction.VAR_POP, arguments=(column(SCHEMA, "k"),)),
            "takes double",
        ),
        (lambda: Union((SOURCE, ExchangeSource(1, SCHEMA.remove(0)))), "one row type"),
        (lambda: Join(SOURCE, SOURCE, JoinSpec(JoinType.INNER, (KeyPair(7, 0),))), "left key 7"),
        (lambda: Limit(SOURCE, -1), "0 or more"),
    ],
)
def test_contradictions_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(RelationError, match=message):
        make()


class _WithoutText(ColumnRef):
    """A column whose text must not be asked for."""

    def __str__(self) -> str:
        raise AssertionError("text of an expression that is in order")


def test_expressions_in_order_are_checked_without_writing_them_out() -> None:
    """Texts of an expression's columns and of the whole, for each of its columns, take quadratic time."""
    column_k = _WithoutText(side=Side.LEFT, name="k", index=0, type=pa.int64())
    assert Project(SOURCE, (Output("k", column_k),)).schema == pa.schema([("k", pa.int64())])
    assert Filter(SOURCE, typed(call(Function.IS_NULL, column_k))).schema == SCHEMA
