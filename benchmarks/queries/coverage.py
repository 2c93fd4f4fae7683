"""How much of a query's optimized plan runs here, and why the rest does not; it is planned, and not run."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from gpujoin.engine.pipeline import supports_node
from gpujoin.model.backend import BackendName
from gpujoin.model.reasons import Reason
from gpujoin.model.relations import Relation
from gpujoin.report import islands as explained
from gpujoin.report.explanation import Explanation, IslandExplanation, Operations
from gpujoin.report.islands import operations
from gpujoin.spark.jvm.gateway import gateway_of, optimized_plan
from gpujoin.spark.query.accelerate import Purpose, rewrite
from gpujoin.spark.query.plans import read_plan, with_subqueries
from gpujoin.spark.settings import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Coverage:
    """What of a plan runs where."""

    all: Operations
    """Operations of the plan, and of its scalar subqueries: of those that are alike once, as Spark runs them."""
    explanation: Explanation
    """Explanation of the plan, its scalar subqueries included."""
    nodes: int
    """Nodes of the islands."""
    beside_gpu: tuple[Reason, ...]
    """Why the CPU computes a node where a GPU runs the others, for each such node."""

    @property
    def here(self) -> Operations:
        """The operations that run here."""
        return functools.reduce(Operations.__add__, (i.operations for i in self.explanation.islands), Operations())

    @property
    def tops(self) -> tuple[str, ...]:
        """Kinds of nodes at the top of islands."""
        return tuple(sorted({island.tree[0].split(" ", 2)[0] for island in self.explanation.islands}))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why operations are left to Spark."""
        left = [str(reason) for join in self.explanation.joins for reason in join.reasons]
        return tuple(dict.fromkeys([*left, *map(str, self.explanation.reasons)]))


def coverage(frame: DataFrame) -> Coverage:
    """Plan a query, and tell what of it runs where."""
    plan = read_plan(optimized_plan(frame), gateway_of(frame.sparkSession), session_conf(frame.sparkSession))
    relations: list[Relation] = []

    explain = explained.explain_stages

    def explain_stages(relation: Relation, *rest: Any) -> IslandExplanation:
        relations.append(relation)
        return explain(relation, *rest)

    with patch.object(explained, "explain_stages", explain_stages):
        explanation = rewrite(frame, Purpose.EXPLAIN).explanation
    nodes = [node for relation in relations for node in relation.walk()]
    reasons = [supports_node(node, BackendName.GPU) for node in nodes]
    first = tuple(of_node[0] for of_node in reasons if of_node)
    return Coverage(operations(with_subqueries(plan.walk(), set())), explanation, len(nodes), first)
