"""How much of a query's optimized plan runs here, and why the rest does not; it is planned, and not run."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpujoin.plan.explain import Explanation, Operations
from gpujoin.spark.jvm.gateway import gateway_of, optimized_plan
from gpujoin.spark.query.accelerate import Purpose, rewrite
from gpujoin.spark.query.explained import operations
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
    return Coverage(operations(with_subqueries(plan.walk(), set())), rewrite(frame, Purpose.EXPLAIN).explanation)
