"""Islands for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpujoin.config import Strategy
from gpujoin.model.relations import (
    Expand,
    Filter,
    Join,
    Limit,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    TopN,
    Union,
)
from gpujoin.plan.explain import IslandExplanation, JoinExplanation, show_bytes

if TYPE_CHECKING:
    from gpujoin.spark.query.choice import IslandRun
    from gpujoin.spark.query.island import Island

_SHOWN = 400


def explain_island(island: Island, run: IslandRun, island_id: str) -> IslandExplanation:
    """Describe an island."""
    return IslandExplanation(
        island_id=island_id,
        backend="cpu",
        tasks=len(run.slices),
        threads=run.threads,
        input_bytes=island.nbytes,
        tree=tuple(_lines(island.relation, island)),
        joins=tuple(_join(one, island_id) for one in island.joins),
        notes=run.notes,
    )


def _join(node: Join, island_id: str) -> JoinExplanation:
    return JoinExplanation(
        join_type=node.spec.join_type.value,
        strategy=Strategy.BROADCAST,
        backend="cpu",
        build_side=node.build_side,
        keys=tuple(_keys(node)),
        condition=None if node.spec.condition is None else str(node.spec.condition),
        notes=(f"it is inside island {island_id}",),
        join_id=island_id,
    )


def _keys(node: Join) -> list[str]:
    left, right = node.left.schema, node.right.schema
    return [f"{left.field(pair.left).name} = {right.field(pair.right).name}" for pair in node.spec.keys]


def _lines(node: Relation, island: Island, indent: str = "") -> list[str]:
    if isinstance(node, Project) and all(_is_plain(node, n) for n in range(len(node.outputs))):
        return _lines(node.child, island, indent)
    lines = [indent + _shortened(_head(node, island))]
    for child in node.children:
        lines += _lines(child, island, indent + "  ")
    return lines


def _is_plain(node: Project, position: int) -> bool:
    return not node.outputs[position].expression.children and bool(
        node.outputs[position].expression.columns()
    )


def _head(node: Relation, island: Island) -> str:
    match node:
        case Scan():
            source = island.sources[node.index]
            paths = source.files.paths
            what = paths[0] if len(paths) == 1 else f"{len(paths)} files, {paths[0] if paths else 'none'} …"
            where = f" where {' and '.join(source.filters)}" if source.filters else ""
            size = show_bytes(source.nbytes)
            return f"scan {what} ({size}), columns {', '.join(source.columns)}{where}"
        case Join():
            side = node.build_side.value
            parts = [f"{node.spec.join_type.value} join, {side} side built", *_keys(node)]
            if node.spec.condition is not None:
                parts.append(f"if {node.spec.condition}")
            return ", ".join(parts)
        case PartialAggregate():
            kind = "aggregate" if node.once else "partial aggregate"
            keys = ", ".join(str(key.expression) for key in node.keys)
            calls = ", ".join(str(call) for call in node.aggregates)
            return f"{kind} {calls or 'distinct'}{f' by {keys}' if keys else ''}"
        case Filter():
            return f"filter {node.condition}"
        case Project():
            return f"project {', '.join(str(one.expression) for one in node.outputs)}"
        case Expand():
            return f"expand each row in {len(node.projections)} ways"
        case TopN():
            return f"first {node.count}"
        case Limit():
            return f"limit {node.count}"
        case Union():
            return "union"
    return type(node).__name__


def _shortened(line: str) -> str:
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
