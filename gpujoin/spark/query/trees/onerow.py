"""Scalar subqueries that an island computes itself: a filter by one is a join with the only row that it has.

An aggregation without keys has one row, whatever its input. Where the island runs in one task, the subquery needs no
query of its own, and a part that it has in common with the rest is computed once. TPC-H 15 asks for the suppliers with
the greatest revenue::

    filter total = (select max(total) from revenue)        join, right side built, if total = max(total)
      aggregate sum(…) as total by supplier                  aggregate sum(…) as total by supplier
        scan lineitem                                          scan lineitem
                                                             aggregate max(total)
                                                               aggregate sum(…) as total by supplier
                                                                 (its rows are taken from above)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Join
from gpujoin.model.spec import JoinSpec
from gpujoin.plan.ranges import all_of
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.query.plans import PlanNode, first_alike, subquery_plan
from gpujoin.spark.query.trees.builder import ColumnReader, Fragment, TreeBuilder, counting_column
from gpujoin.spark.query.values import check_subquery


def reads_subquery(condition: Node) -> bool:
    """Whether a condition compares with the value of a scalar subquery."""
    return any(part.name == "ScalarSubquery" for part in condition.walk())


def filtered_by_values(
    builder: TreeBuilder, below: Fragment, parts: Sequence[Node], required: frozenset[int]
) -> Fragment:
    """Keep the rows of a fragment for which conditions that read scalar subqueries are true.

    Raises ``NotTranslatableError`` if a subquery is no aggregation without keys.
    """
    places: dict[int, int] = {}
    """Column of each subquery's value, by the number of the first one alike."""
    values: list[Fragment] = []
    for subquery in _subqueries(parts):
        if first_alike(subquery) not in places:
            places[first_alike(subquery)] = len(values)
            values.append(_value(builder, subquery))
    right = reduce(_beside, values)

    def value_of(node: Node) -> Expression:
        if check_subquery(node) is not node:
            raise NotTranslatableError("a field of the value of a scalar subquery is not computed here")
        return right.reference(places[first_alike(node)], Side.RIGHT)

    condition = all_of(map(ColumnReader({Side.LEFT: below, Side.RIGHT: right}, value_of), parts))
    kept = [i for i in below.positions if i in required]
    output = tuple(below.positions[i] for i in kept) or (counting_column(below.relation.schema),)
    spec = JoinSpec(JoinType.INNER, condition=condition, left_output=output)
    relation = Join(below.relation, right.relation, spec, Side.RIGHT)
    return Fragment.from_columns(relation, kept)


def _subqueries(parts: Sequence[Node]) -> Iterator[Node]:
    return (node for part in parts for node in part.walk() if node.name == "ScalarSubquery")


def _value(builder: TreeBuilder, subquery: Node) -> Fragment:
    """The only row of a subquery, with its value as the column 0."""
    check_subquery(subquery)
    plan = subquery_plan(subquery)
    if not _has_one_row(plan):
        raise NotTranslatableError("a scalar subquery may have no row")
    [column] = plan.output
    built = builder.build(plan, frozenset({column.expr_id}))
    return Fragment(built.relation, {0: built.positions[column.expr_id]})


def _has_one_row(plan: PlanNode) -> bool:
    while plan.name == "Project":
        plan = plan.children[0]
    return plan.name == "Aggregate" and not plan.expressions("groupingExpressions")


def _beside(left: Fragment, right: Fragment) -> Fragment:
    """The values of two fragments of one row each in one row."""
    outputs = tuple(left.positions.values()), tuple(right.positions.values())
    relation = Join(left.relation, right.relation, JoinSpec(JoinType.CROSS, (), None, *outputs), Side.RIGHT)
    return Fragment(relation, {n: n for n in range(len(outputs[0]) + len(outputs[1]))})
