"""Which plan nodes are covered."""

from __future__ import annotations

from gpujoin.spark.query.trees.asof import as_of_join
from gpujoin.spark.query.trees.builder import BuildNode
from gpujoin.spark.query.trees.joins import join
from gpujoin.spark.query.trees.nodes import aggregate, expand, filter_, project, scan, union
from gpujoin.spark.query.trees.windows import group_limit, window

BUILDERS: dict[str, BuildNode] = {
    "LogicalRelation": scan,
    "Filter": filter_,
    "Project": project,
    "Join": join,
    "GpuAsOfJoin": as_of_join,
    "Union": union,
    "Aggregate": aggregate,
    "Expand": expand,
    "Window": window,
    "WindowGroupLimit": group_limit,
}
"""How each class of plan nodes becomes a fragment."""
