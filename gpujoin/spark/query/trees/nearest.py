"""Joins of whose matches the nearest alone is needed, as fragments."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from gpujoin.config import Strategy
from gpujoin.model.expressions import Call, Case, Expression, Function, Literal
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Filter, Join, Output, Project, column
from gpujoin.model.spec import AsOf, JoinSpec, KeyPair, NullEquality
from gpujoin.model.sqltext import bare_name
from gpujoin.model.stages import Distribution
from gpujoin.plan.ranges import all_of
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.query.asof import AsOfTerms
from gpujoin.spark.query.nearest.terms import Domain, Nearest
from gpujoin.spark.query.plans import PlanNode
from gpujoin.spark.query.trees.builder import (
    First,
    Fragment,
    TreeBuilder,
    check_column,
    counting_column,
    distribution_of,
    passed_on,
    with_outputs,
)
from gpujoin.spark.query.trees.computed import ComputedParts, StandIn, with_stand_ins
from gpujoin.spark.query.trees.keys import bare_key, check_keys, key_of, with_keys

_OTHER_KEYS = "an as-of join whose keys are not those of its sides"


def nearest_join(
    builder: TreeBuilder, node: PlanNode, kind: JoinType, nearest: Nearest, required: frozenset[int]
) -> Fragment:
    """Join each row of one side with its nearest match on the other."""
    sides, nearest = _inputs(builder, node, nearest, required)
    tests = [*(limit.test for limit in nearest.limits), *nearest.conditions]
    input_ids = required.union({nearest.column}, *(test.attribute_ids for test in tests))
    domain = nearest.domain
    keys = [key for part in nearest.keys if (key := key_of(part, sides)) is not None]
    if len(keys) != len(nearest.keys):
        raise NotTranslatableError(_OTHER_KEYS)
    by_id = {column.expr_id: column for column in node.child(nearest.rows.other).output}
    check_column(by_id[nearest.column])
    if domain is not None:
        for value, key_id, _ in domain.keys:
            check_keys(value, by_id[key_id])
        nulls = {True: NullEquality.EQUAL, False: NullEquality.UNEQUAL}
        keys += [(value, by_id[key_id], nulls[safe]) for value, key_id, safe in domain.keys]
    values = [*(value for value, _, _ in keys), nearest.bound]
    left, (*left_places, bound) = with_keys(builder, sides[Side.LEFT], values, input_ids)
    right, right_places = with_keys(builder, sides[Side.RIGHT], [key for _, key, _ in keys], input_ids)
    pairs = tuple(
        KeyPair(left_place, right_place, safe)
        for left_place, right_place, (_, _, safe) in zip(left_places, right_places, keys, strict=True)
    )
    terms = AsOf(bound, right.positions[nearest.column], nearest.direction, None, nearest.exact)
    distribution = distribution_of(builder, node, JoinType.LEFT, keys=bool(pairs))
    joined = with_nearest(left, right, pairs, terms, input_ids, distribution)
    order = joined.reference(nearest.column)
    present = Call(function=Function.IS_NOT_NULL, arguments=(order,), type=pa.bool_())
    matched = all_of([present, *map(builder.reader(joined), tests)])
    assert matched is not None
    if kind is JoinType.INNER:
        return joined.under(Filter(joined.relation, matched))
    return _only_where(matched, joined, right.positions.keys() & input_ids) if tests else joined


def _inputs(
    builder: TreeBuilder, node: PlanNode, nearest: Nearest, required: frozenset[int]
) -> tuple[dict[Side, Fragment], Nearest]:
    """Build the rows to match, as the left side, and the rows to search.

    What is not covered of the condition Spark computes, and where further order keys decide among matches of equal
    order, Spark takes the rows that they decide for. The condition is given over the columns that there are.
    """
    domain, rows, searched = nearest.domain, node.child(nearest.rows), node.child(nearest.rows.other)

    def ids_read(terms: Nearest) -> frozenset[int]:
        parts = [terms.bound, *terms.keys, *(limit.test for limit in terms.limits), *terms.conditions]
        own = {terms.column, *(key for _, key, _ in domain.keys)} if domain is not None else {terms.column}
        return required.union(own, *(part.attribute_ids for part in parts))

    def matched(terms: Nearest, stand_ins: Sequence[StandIn]) -> Fragment:
        if domain is None:
            return with_stand_ins(builder, rows, ids_read(terms), stand_ins)
        if stand_ins:
            raise NotTranslatableError(f"{stand_ins[0].source} is not computed here in a correlated subquery")
        return _values(builder, domain)

    start = builder.state
    sides = {Side.LEFT: matched(nearest, ()), Side.RIGHT: builder.input(searched, ids_read(nearest))}
    computed = ComputedParts(builder, sides, node.reading)
    covered = dataclasses.replace(
        nearest,
        bound=computed.covered(nearest.bound),
        keys=tuple(map(computed.equality, nearest.keys)),
        limits=tuple(dataclasses.replace(limit, test=computed.condition(limit.test)) for limit in nearest.limits),
        conditions=tuple(map(computed.condition, nearest.conditions)),
    )
    first = None if not nearest.ties else _first(covered, sides, computed)
    if first is None and not any(computed.stand_ins.values()):
        return sides, covered
    builder.state = start
    sides = {
        Side.LEFT: matched(covered, computed.stand_ins[Side.LEFT]),
        Side.RIGHT: with_stand_ins(
            builder, searched, ids_read(covered).union(tie.expr_id for tie in nearest.ties),
            computed.stand_ins[Side.RIGHT], first,
        ),
    }  # fmt: skip
    return sides, covered


def _first(nearest: Nearest, sides: Mapping[Side, Fragment], computed: ComputedParts) -> First:
    """Make the choice among searched rows with equal keys and equal order: by the further order keys."""
    searched = sides[Side.RIGHT].positions.keys() | {stand_in.expr_id for stand_in in computed.stand_ins[Side.RIGHT]}
    keys = [bare_key(child) for part in nearest.keys for child in part.children if child.attribute_ids <= searched]
    if len(keys) != len(nearest.keys):
        raise NotTranslatableError(_OTHER_KEYS)
    equal = [computed.forced(key, Side.RIGHT).expr_id for key in keys]
    equal += [key for _, key, _ in nearest.domain.keys] if nearest.domain is not None else []
    order = tuple((tie.expr_id, tie.descending, tie.nulls_first) for tie in nearest.ties)
    return First((*equal, nearest.column), order)


def _values(builder: TreeBuilder, domain: Domain) -> Fragment:
    """Compute what a decorrelated subquery reads of the rows around it."""
    ids = frozenset().union(*(value.attribute_ids for _, value in domain.values))
    ids = ids.union(*(key.attribute_ids for key, _, _ in domain.keys))
    below = builder.input(domain.rows, ids)
    values = {
        column.expr_id: Output(f"{column.fields['name']}#{column.expr_id}", below.reference(value.expr_id))
        for column, value in domain.values
    }
    return with_outputs(below.relation, passed_on(below, ids) | values)


def _only_where(matched: Expression, joined: Fragment, ids: Collection[int]) -> Fragment:
    """Replace the columns of the right row by nulls unless a condition is true."""
    outputs, places = [], {joined.positions[i] for i in ids}
    for at, field_ in enumerate(joined.relation.schema):
        value: Expression = column(joined.relation.schema, at)
        if at in places:
            nothing = Literal(value=None, type=field_.type)
            value = Case(conditions=(matched,), values=(value,), otherwise=nothing, type=field_.type)
        outputs.append(Output(f"{bare_name(field_.name)}#{at}", value))
    return joined.under(Project(joined.relation, tuple(outputs)))


def as_of_join(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Join each left row with the nearest right row."""
    builder.run_on(node)
    terms = AsOfTerms.parse(node.fields["terms"])
    orders = (node.expression("leftOrder"), node.expression("rightOrder"))
    keys = list(zip(node.expressions("leftKeys"), node.expressions("rightKeys"), strict=True))
    for left_key, right_key in keys:
        check_keys(left_key, right_key)
    input_ids = required.union(attribute.expr_id for pair in (orders, *keys) for attribute in pair)
    left, right = (builder.input(node.child(side), input_ids, any_rows=True) for side in Side)
    pairs = tuple(KeyPair(left.positions[a.expr_id], right.positions[b.expr_id]) for a, b in keys)
    left_order, right_order = left.positions[orders[0].expr_id], right.positions[orders[1].expr_id]
    as_of = AsOf(left_order, right_order, terms.direction, terms.tolerance, terms.allow_exact)
    distribution = Distribution.RIGHT_REPLICATED
    if pairs or node.strategy(builder.options) is Strategy.SPARK:
        distribution = distribution_of(builder, node, JoinType.LEFT, keys=bool(pairs))
    return with_nearest(left, right, pairs, as_of, required, distribution)


def with_nearest(
    left: Fragment,
    right: Fragment,
    pairs: tuple[KeyPair, ...],
    as_of: AsOf,
    required: frozenset[int],
    distribution: Distribution,
) -> Fragment:
    """Join each left row with the nearest right row, with the columns that are required.

    Each left row is returned once, whatever of it is read: where nothing is, with a column by which it is counted.
    """
    of_left, of_right = ([i for i in side.positions if i in required] for side in (left, right))
    left_output = tuple(left.positions[i] for i in of_left) or (counting_column(left.relation.schema),)
    right_output = tuple(right.positions[i] for i in of_right)
    spec = JoinSpec(JoinType.LEFT, pairs, None, left_output, right_output, as_of=as_of)
    relation = Join(left.relation, right.relation, spec, Side.RIGHT, distribution)
    ids: list[int | None] = [*of_left, *of_right] if of_left else [None, *of_right]
    return Fragment.from_columns(relation, ids)
