"""How much of a query's optimized plan runs here, and why the rest does not; it is planned, and not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from gpujoin.engine.pipeline import supports_node
from gpujoin.model.backend import BackendName
from gpujoin.model.reasons import Reason
from gpujoin.report.explanation import Explanation
from gpujoin.report.islands import explain_island
from gpujoin.spark.jvm.gateway import gateway_of, optimized_plan
from gpujoin.spark.query import planner
from gpujoin.spark.query.accelerate import Purpose, rewrite
from gpujoin.spark.query.plans import read_plan, with_subqueries
from gpujoin.spark.settings import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gpujoin.report.operations import IslandOperation
    from gpujoin.spark.query.island import Island
    from gpujoin.spark.query.plans import PlanNode

_KINDS = {"Join": "joins", "GpuAsOfJoin": "joins", "Aggregate": "aggregations", "Window": "windows"}


@dataclass(frozen=True, slots=True)
class Operations:
    """Numbers of operations of a plan."""

    joins: int = 0
    aggregations: int = 0
    windows: int = 0

    @classmethod
    def among(cls, nodes: Iterable[PlanNode]) -> Operations:
        """Count the operations among nodes of a plan."""
        return cls(**Counter(_KINDS[node.name] for node in nodes if node.name in _KINDS))

    def __add__(self, other: Operations) -> Operations:
        return Operations(
            self.joins + other.joins, self.aggregations + other.aggregations, self.windows + other.windows
        )


@dataclass(frozen=True)
class Coverage:
    """What of a plan runs where."""

    all: Operations
    """Operations of the plan, and of its scalar subqueries: of those that are alike once, as Spark runs them."""
    here: Operations
    """Those that run here; an aggregation that Spark finishes is one."""
    explanation: Explanation
    """Explanation of the plan, its scalar subqueries included."""
    nodes: int
    """Nodes of the islands."""
    beside_gpu: tuple[Reason, ...]
    """Why the CPU computes a node where a GPU runs the others, for each such node."""

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
    islands: list[Island] = []

    def explain(island: Island, *rest: Any, **named: Any) -> IslandOperation:
        islands.append(island)
        return explain_island(island, *rest, **named)

    with patch.object(planner, "explain_island", explain):
        explanation = rewrite(frame, Purpose.EXPLAIN).explanation
    nodes = [node for island in islands for node in island.relation.walk()]
    reasons = [supports_node(node, BackendName.GPU) for node in nodes]
    first = tuple(of_node[0] for of_node in reasons if of_node)
    here = Operations.among(node for island in islands for node in island.own_nodes())
    return Coverage(Operations.among(with_subqueries(plan.walk(), set())), here, explanation, len(nodes), first)
