"""Limits above an island: a task need not give more rows than Spark's own limit will take, be it in an order or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpujoin.model.relations import Limit, TopN
from gpujoin.spark.query.trees.builder import Fragment
from gpujoin.spark.query.trees.windows import sort_key

if TYPE_CHECKING:
    from gpujoin.spark.catalyst.nodes import Node
    from gpujoin.spark.query.plans import PlanNode
    from gpujoin.spark.query.trees.builder import TreeBuilder

_MOST_ROWS = 1 << 20
"""Beyond, sorting in a worker has nothing over sorting in Spark, which can spill."""


@dataclass(frozen=True)
class Top:
    """How few rows are asked of a part of a plan."""

    count: int
    """How many at most, of each task."""
    order: tuple[Node, ...] = ()
    """By which the first ones are to be found; empty: any."""

    def of(self, below: Fragment, builder: TreeBuilder) -> Fragment:
        """Give the rows asked for, of a fragment.

        Raises ``NotTranslatableError`` if the order is not one that is exactly Spark's.
        """
        if not self.order:
            return below.under(Limit(below.relation, self.count))
        reader = builder.reader(below)
        keys = tuple(sort_key(reader, order) for order in self.order)
        return below.under(TopN(below.relation, keys, self.count))


def asked_below(node: PlanNode, top: Top | None) -> Top | None:
    """Tell what a node asks of its input, given what is asked of the node itself."""
    match node.name:
        case "LocalLimit":
            limit = node.expression("limitExpr")
            if limit.name != "Literal" or not str(limit.fields["value"]).isdigit():
                return None
            count = int(limit.fields["value"])
            return Top(count) if 0 < count <= _MOST_ROWS else None
        case "Project" if top is not None and not top.order:
            return top
        case "Sort" if top is not None and not top.order and node.fields["global"]:
            return Top(top.count, node.expressions("order"))
        case _:
            return None
