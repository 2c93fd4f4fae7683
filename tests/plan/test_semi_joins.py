"""Inner joins that become semi joins: the same rows, and only where repeated rows make no difference."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import Expression, left, right
from gpujoin.model.jointype import JoinType
from gpujoin.model.relations import Join, Limit, Relation, Union
from gpujoin.plan.estimates import Sizes
from gpujoin.plan.semi_joins import with_semi_joins
from gpujoin.testing import assert_same_rows
from tests.engine.pipeline.places import run
from tests.trees import Aggregate, Tree, count, total

ROWS = 400
A, B, C = ({"k": pa.int64(), "w": pa.int32()}, {"rk": pa.int64(), "rw": pa.int32()}, {"id": pa.int64()})
SOURCES = [pa.schema(fields) for fields in (C, A, B)]


@pytest.fixture
def tables(rng: np.random.Generator) -> dict[int, pa.Table]:
    """Keys that occur many times, null and unknown ones among them."""

    def keys() -> pa.Array:
        values = rng.integers(0, 60, ROWS)
        return pa.array(values, mask=values % 7 == 0)

    def numbers() -> pa.Array:
        return pa.array(rng.integers(0, 3, ROWS), pa.int32(), mask=rng.random(ROWS) < 0.1)

    columns = [[keys()], [keys(), numbers()], [keys(), numbers()]]
    return {n: pa.table(values, schema=schema) for n, (values, schema) in enumerate(zip(columns, SOURCES, strict=True))}


def source(index: int) -> Tree:
    return Tree.source(SOURCES[index], index)


def pairs(*keep: str, condition: Expression | None = None) -> Tree:
    return source(1).join(source(2), {"k": "rk"}, keep=keep, condition=condition)


OTHER = left("w") != right("rw")
FAILS = left("w") / right("rw") > 1
REWRITTEN: dict[str, Tree] = {
    "semi": source(0).join(pairs("k"), {"id": "k"}, "left_semi"),
    "the other side's columns": source(0).join(pairs("rk", "rw"), {"id": "rk"}, "left_semi"),
    "a condition": source(0).join(pairs("k", condition=OTHER), {"id": "k"}, "left_semi"),
    "the other side's columns, a condition": source(0).join(pairs("rk", condition=OTHER), {"id": "rk"}, "left_semi"),
    "anti": source(0).join(pairs("k", condition=left("w") < right("rw")), {"id": "k"}, "left_anti"),
    "existence": source(0).join(pairs("k"), {"id": "k"}, "existence"),
    "below a filter and a projection": source(0).join(
        pairs("k", "w").where(left("w") > 0).select(x=left("k") + 1), {"id": "x"}, "left_semi"
    ),
    "distinct": pairs("k").group("k"),
    "extremes": pairs("k", "w").group("k", w=Aggregate(AggregateFunction.MAX, (left("w"),))),
    "within a join": source(0).join(
        pairs("k").join(source(0), {"k": "id"}, keep=["id"]), {"id": "id"}, "left_semi"
    ),
    "in a union": Tree(Union((pairs("k").relation, pairs("k").relation))).group("k"),
}  # fmt: skip
LEFT_AS_IT_IS: dict[str, Tree] = {
    "pairs are returned": pairs("k"),
    "pairs are counted": pairs("k").group("k", n=count()),
    "pairs are added": pairs("k", "w").group("k", s=total(left("w"))),
    "both sides are read": source(0).join(pairs("k", "rw"), {"id": "k"}, "left_semi"),
    "a condition that may fail": source(0).join(pairs("k", condition=FAILS), {"id": "k"}, "left_semi"),
    "the left side of a semi join": pairs("k").join(source(0), {"k": "id"}, "left_semi"),
    "rows are limited": source(0).join(Tree(Limit(pairs("k").relation, 5)), {"id": "k"}, "left_semi"),
}


def kinds(tree: Relation) -> list[JoinType]:
    return [node.spec.join_type for node in tree.walk() if isinstance(node, Join)]


@pytest.mark.parametrize("name", REWRITTEN)
def test_rows_stay_the_same(name: str, tables: dict[int, pa.Table], seed: int) -> None:
    tree = REWRITTEN[name].relation
    rewritten = with_semi_joins(tree, Sizes({}))
    assert JoinType.INNER in kinds(tree)
    assert JoinType.INNER not in kinds(rewritten), seed
    assert rewritten.schema.names == tree.schema.names
    expected, actual = (pa.Table.from_batches(run(each, tables), tree.schema) for each in (tree, rewritten))
    assert_same_rows(actual, expected)
    assert actual.num_rows > 0


@pytest.mark.parametrize("name", LEFT_AS_IT_IS)
def test_where_pairs_count_they_are_made(name: str) -> None:
    tree = LEFT_AS_IT_IS[name].relation
    assert with_semi_joins(tree, Sizes({})) is tree
