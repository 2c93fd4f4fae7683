"""Joins as fragments."""

from __future__ import annotations

from collections.abc import Sequence

from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Join
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.model.stages import Distribution
from gpujoin.model.switches import join_switch
from gpujoin.plan.distribution import Hint
from gpujoin.plan.estimates import build_side
from gpujoin.plan.key_types import key_type
from gpujoin.plan.ranges import all_of, better_build_side
from gpujoin.spark.catalyst.joins import NULL_AWARE, join_type_in, spark_type_name
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.query.plans import PlanNode, conjuncts
from gpujoin.spark.query.trees.builder import Fragment, TreeBuilder, counting_column, distribution_of
from gpujoin.spark.query.trees.computed import join_inputs
from gpujoin.spark.query.trees.keys import Key, NotIn, check_keys, key_of, known_rows, null_aware, with_keys
from gpujoin.spark.query.trees.nearest import nearest_join


def join(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Join two inputs."""
    kind, exists = join_type_in(node.fields["joinType"])
    if kind is None:
        raise NotTranslatableError(f"joins of type {spark_type_name(node.fields['joinType'])} are not computed here")
    builder.run_on(node)
    if node in builder.nearest:
        builder.check_switches(node, join_switch(kind))
        return nearest_join(builder, node, kind, builder.nearest[node], required)
    parts: Sequence[Node] = () if node.condition is None else conjuncts(node.condition)
    sides, parts = join_inputs(builder, node, parts, required, not_in=kind in NULL_AWARE)
    keys: list[Key] = []
    rest: list[Node] = []
    unknowing = [null_aware(part, sides) for part in parts] if kind in NULL_AWARE else []
    if any(unknowing):
        kind = NULL_AWARE[kind]
        condition = NotIn.from_parts(list(zip(parts, unknowing, strict=True)), sides)
        keys, rest = condition.keys, condition.rest
        sides[Side.RIGHT] = known_rows(builder, sides[Side.RIGHT], condition.not_null)
    else:
        for part in parts:
            pair = key_of(part, sides)
            if pair is None:
                rest.append(part)
            elif pair not in keys:
                keys.append(pair)
    return _join(builder, node, kind, exists, sides, keys, rest, required)


def _join(
    builder: TreeBuilder,
    node: PlanNode,
    kind: JoinType,
    exists: int | None,
    sides: dict[Side, Fragment],
    keys: Sequence[Key],
    rest: Sequence[Node],
    required: frozenset[int],
) -> Fragment:
    input_ids = required.union(*(part.attribute_ids for part in rest))
    placed = {}
    by_side = {
        Side.LEFT: [left_key for left_key, _, _ in keys],
        Side.RIGHT: [right_key for _, right_key, _ in keys],
    }
    for side in Side:
        sides[side], placed[side] = with_keys(builder, sides[side], by_side[side], input_ids)
    left, right = sides[Side.LEFT], sides[Side.RIGHT]
    pairs = tuple(
        KeyPair(left_key, right_key, key[2])
        for left_key, right_key, key in zip(placed[Side.LEFT], placed[Side.RIGHT], keys, strict=True)
    )
    for first, second, _ in keys:
        check_keys(first, second, of_lists=True)
    for pair in pairs:
        key_type(left.relation.schema.field(pair.left).type, right.relation.schema.field(pair.right).type)
    reader = builder.reader(left, right)
    residual = all_of(reader(part) for part in rest)
    if kind in (JoinType.INNER, JoinType.CROSS):
        kind = JoinType.INNER if pairs or residual is not None else JoinType.CROSS
    outputs = {side: [i for i in sides[side].positions if i in required] for side in Side}
    if kind.left_rows_only:
        outputs[Side.RIGHT] = []
    left_output = tuple(left.positions[i] for i in outputs[Side.LEFT])
    right_output = tuple(right.positions[i] for i in outputs[Side.RIGHT])
    ids: list[int | None] = [*outputs[Side.LEFT], *outputs[Side.RIGHT]]
    if not ids:
        # Its rows are counted: any column will do, one that has no id above too.
        left_output, ids = (counting_column(left.relation.schema),), [None]
    builder.check_switches(node, join_switch(kind))
    spec = JoinSpec(kind, pairs, residual, left_output, right_output, f"exists#{exists}")
    if kind.flags_rows:
        assert exists is not None
        ids.append(exists)
    distribution = distribution_of(builder, node, kind, keys=bool(pairs))
    side = build_side(kind, left.relation, right.relation, builder.sizes)
    if kind is JoinType.INNER and not pairs:
        side = better_build_side(residual, tuple(Side)) or side
    elif kind is JoinType.INNER:
        side = _hinted_build_side(node, distribution) or side
    relation = Join(left.relation, right.relation, spec, side, distribution)
    return Fragment.from_columns(relation, ids)


def _hinted_build_side(node: PlanNode, distribution: Distribution) -> Side | None:
    """The side that a hint says to build."""
    if distribution in (Distribution.LEFT_REPLICATED, Distribution.RIGHT_REPLICATED):
        return Side.LEFT if distribution is Distribution.LEFT_REPLICATED else Side.RIGHT
    hinted = [side for side, hint in node.hints.items() if hint is Hint.SHUFFLE_HASH]
    return hinted[0] if len(hinted) == 1 and distribution is Distribution.PARTITIONED else None
