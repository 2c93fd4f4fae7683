"""As-of joins that ``gpu_asof_join`` has made, as fragments."""

from __future__ import annotations

from gpujoin.config import Strategy
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Join
from gpujoin.model.spec import AsOf, JoinSpec, KeyPair
from gpujoin.model.stages import Distribution
from gpujoin.spark.query.asof import AsOfTerms
from gpujoin.spark.query.plans import PlanNode
from gpujoin.spark.query.trees.builder import Fragment, TreeBuilder, counting_column, distribution_of
from gpujoin.spark.query.trees.keys import check_keys


def as_of_join(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Join each left row with the nearest right row."""
    builder.run_on(node)
    terms = AsOfTerms.parse(node.fields["terms"])
    orders = (node.expression("leftOrder"), node.expression("rightOrder"))
    keys = list(zip(node.expressions("leftKeys"), node.expressions("rightKeys"), strict=True))
    for left_key, right_key in keys:
        check_keys(left_key, right_key)
    wanted = required.union(attribute.expr_id for pair in (orders, *keys) for attribute in pair)
    left, right = (builder.input(node.child(side), wanted, any_rows=True) for side in Side)
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
