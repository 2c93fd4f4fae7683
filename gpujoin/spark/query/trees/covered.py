"""Which plan nodes are covered."""

from __future__ import annotations

from gpujoin.spark.query.trees.asof import as_of_join
from gpujoin.spark.query.trees.builder import REPARTITIONS, BuildNode
from gpujoin.spark.query.trees.constants import few_numbers, one_row, written_rows
from gpujoin.spark.query.trees.generate import generate
from gpujoin.spark.query.trees.joins import join
from gpujoin.spark.query.trees.limits import limit, local_limit
from gpujoin.spark.query.trees.nodes import aggregate, expand, filter_, project, repartition, scan, union
from gpujoin.spark.query.trees.windows import group_limit, window

BUILDERS: dict[str, BuildNode] = {
    "LogicalRelation": scan,
    "LocalRelation": written_rows,
    "Range": few_numbers,
    "OneRowRelation": one_row,
    "Filter": filter_,
    "Project": project,
    "Join": join,
    "GpuAsOfJoin": as_of_join,
    "Union": union,
    "Aggregate": aggregate,
    "Expand": expand,
    "Window": window,
    "WindowGroupLimit": group_limit,
    "GlobalLimit": limit,
    "LocalLimit": local_limit,
    "Offset": limit,
    "Generate": generate,
    **dict.fromkeys(REPARTITIONS, repartition),
}
"""How each class of plan nodes becomes a fragment."""
