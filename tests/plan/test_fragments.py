"""Columns by identity: nodes over inputs whose columns are elsewhere."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gpujoin.model.expressions import Attribute, Call, ColumnRef, Function
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import ExchangeSource, Filter, Join, Output, PartialAggregate, Project, Union, column
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.fragments import ColumnTree, Fragment, attributes, bound, with_key_columns, with_values

LEFT = ExchangeSource(0, pa.schema([(name, pa.int64()) for name in "abc"]))
RIGHT = ExchangeSource(1, pa.schema([(name, pa.int64()) for name in "de"]))


def added(first: ColumnRef, second: ColumnRef) -> Call:
    return Call(function=Function.ADD, arguments=(first, second), type=pa.int64())


def joined(kind: JoinType = JoinType.INNER) -> Join:
    """``a``, ``c`` and, unless it returns left rows only, ``e``; joined by ``b = d``, where ``a < e``."""
    a, e = column(LEFT.schema, "a"), ColumnRef(side=Side.RIGHT, name="e", index=1, type=pa.int64())
    condition = Call(function=Function.LT, arguments=(a, e), type=pa.bool_())
    spec = JoinSpec(kind, (KeyPair(1, 0),), condition, (0, 2), () if kind.left_rows_only else (1,))
    return Join(LEFT, RIGHT, spec)


def test_columns_keep_their_identity_as_far_as_they_are_passed_on() -> None:
    join = joined()
    total = added(column(join.schema, "a"), column(join.schema, "e"))
    project = Project(
        join, (Output("x", column(join.schema, "c")), Output("y", total), Output("z", column(join.schema, "c")))
    )
    tree = ColumnTree.from_relation(project)
    (below,) = tree.inputs
    left, right = below.inputs
    assert below.ids == (left.ids[0], left.ids[2], right.ids[1])
    assert tree.ids[0] is tree.ids[2] is left.ids[2]
    assert tree.positions == {tree.ids[0]: 0, tree.ids[1]: 1}
    assert attributes(tree.computed.values()) == {left.ids[0], right.ids[1]}


def test_a_relation_that_is_joined_with_itself_has_other_columns_on_each_side() -> None:
    tree = ColumnTree.from_relation(Join(LEFT, LEFT, JoinSpec(JoinType.CROSS, left_output=(0,), right_output=(0,))))
    assert not set(tree.inputs[0].ids) & set(tree.inputs[1].ids)


def test_a_node_reads_its_columns_where_they_are_now() -> None:
    tree = ColumnTree.from_relation(joined())
    left = Fragment.from_columns(
        ExchangeSource(2, pa.schema([(name, pa.int64()) for name in "cba"])), reversed(tree.inputs[0].ids)
    )
    over = tree.over([left, tree.inputs[1]])
    assert isinstance(over.relation, Join)
    assert over.relation.schema == tree.relation.schema
    assert over.relation.spec.keys == (KeyPair(1, 0),)
    assert over.relation.spec.left_output == (2, 0)
    assert str(over.relation.spec.condition) == str(joined().spec.condition)
    assert over.relation.spec.condition is not None
    assert {ref.index for ref in over.relation.spec.condition.columns()} == {2, 1}


def test_a_node_over_the_same_columns_is_the_same_node() -> None:
    tree = ColumnTree.from_relation(Union((Project(LEFT, (Output("a", column(LEFT.schema, 0)),)),)))
    assert tree.over(list(tree.inputs)).relation is tree.relation


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.LEFT_SEMI, JoinType.EXISTENCE], ids=lambda kind: kind.value)
def test_required_columns_alone(kind: JoinType) -> None:
    tree = ColumnTree.from_relation(joined(kind))
    left, right = tree.inputs
    required = frozenset({tree.ids[1]})
    assert tree.reads(required) == (left.at([0, 1, 2]), right.at([0, 1]))
    assert tree.reads(frozenset())[0] == left.at([0, 1])
    narrow = tree.over(tree.inputs, required)
    assert narrow.relation.schema.names[0] == "c"
    assert narrow.positions[tree.ids[1]] == 0
    more = tree.over(tree.inputs, required | {left.ids[1]})
    assert more.relation.schema.names[:2] == ["c", "b"], "a column that the node itself does not give"


def test_what_computes_a_column_takes_its_place() -> None:
    project = Project(LEFT, (Output("x", added(column(LEFT.schema, "a"), column(LEFT.schema, "b"))),))
    tree = ColumnTree.from_relation(
        Filter(project, Call(function=Function.IS_NULL, arguments=(column(project.schema, 0),), type=pa.bool_()))
    )
    (below,) = tree.inputs
    named = tree.named(column(project.schema, 0))
    assert isinstance(named, Attribute)
    value = with_values(named, below.computed)
    assert bound(value, below.inputs[0].positions).same_as(project.outputs[0].expression)


def test_computed_keys_become_columns() -> None:
    keys = (Output("k", column(LEFT.schema, 2)), Output("x", added(column(LEFT.schema, "a"), column(LEFT.schema, "b"))))
    tree = ColumnTree.from_relation(PartialAggregate(LEFT, keys, final=True))
    keyed = with_key_columns(tree)
    assert keyed.relation.schema == tree.relation.schema
    assert keyed.ids == tree.ids
    assert keyed.inputs[0].relation.schema.names == ["a", "b", "c", "x"]
    assert set(tree.ids) <= keyed.inputs[0].positions.keys()
