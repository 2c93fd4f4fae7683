"""Describes islands, and other stages that workers run, for ``explain``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpujoin.config import Strategy
from gpujoin.engine.pipeline import supports
from gpujoin.model.backend import BackendName
from gpujoin.model.jointype import Side
from gpujoin.model.relations import ExchangeSource, Join, Relation, SparkSource
from gpujoin.model.sqltext import Columns, show_condition
from gpujoin.plan.ranges import shape_of_node
from gpujoin.report.amounts import show_bytes
from gpujoin.report.explanation import IslandExplanation, JoinExplanation, Operations
from gpujoin.report.stages import (
    Leaves,
    Prices,
    as_of_terms,
    join_keys,
    joins_of,
    plain_columns,
    shown_stage,
)

if TYPE_CHECKING:
    from gpujoin.model.stages import Stage
    from gpujoin.plan.cost import Estimate
    from gpujoin.spark.query.island import Island
    from gpujoin.spark.query.plans import PlanNode
    from gpujoin.spark.query.runs import IslandRun


def explain_island(
    island: Island,
    run: IslandRun,
    island_id: str,
    prices: Prices,
    backend: BackendName = BackendName.CPU,
    warnings: tuple[str, ...] = (),
    estimate: Estimate | None = None,
) -> IslandExplanation:
    """Describe an island.

    On a GPU the notes say which nodes run on the CPU, and why. The warnings say what may make it slow wherever it
    runs.
    """
    leaves = Leaves(
        {number: island.sources[index] for number, index in enumerate(run.scans)},
        tuple(f"{_about(rows.nbytes, guessed=rows.guessed)}: {rows.why}" for rows in island.spark_sources),
        frozenset(n for n, rows in enumerate(island.spark_sources) if rows.guessed),
        rows_from_spark(island.relation),
        run.repeated,
    )
    explained = explain_stages(island.relation, run, island_id, leaves, prices, backend)
    if leaves.guessed:  # seconds of rows that nobody has counted are no prediction
        estimate = None
    return dataclasses.replace(
        explained,
        operations=operations(island.own_nodes()),
        input_bytes=island.known_bytes,
        more_inputs=bool(leaves.guessed),
        warnings=warnings,
        predicted_seconds=None if estimate is None else estimate.here,
        predicted_spark_seconds=None if estimate is None else estimate.spark,
    )


def operations(nodes: Iterable[PlanNode]) -> Operations:
    """Count the operations among nodes of a plan."""
    counted = Counter(_KINDS.get(node.name, "") for node in nodes)
    return Operations(**{kind: counted[kind] for kind in _KINDS.values()})


_KINDS = {"Join": "joins", "GpuAsOfJoin": "joins", "Aggregate": "aggregations", "Window": "windows"}


def rows_from_spark(relation: Relation) -> dict[int, float]:
    """Give the estimated rows of each input from Spark, but for those of which nothing is known."""
    return {node.index: node.rows for node in relation.walk() if isinstance(node, SparkSource) and not node.guessed}


def explain_stages(
    relation: Relation, run: IslandRun, island_id: str, leaves: Leaves, prices: Prices, backend: BackendName
) -> IslandExplanation:
    """Describe how stages compute a relation."""
    kept = supports(relation, BackendName.GPU) if backend is BackendName.GPU else ()
    return IslandExplanation(
        island_id=island_id,
        backend=backend.value,
        tasks=run.last.tasks,
        threads=run.threads,
        operation=shown_stage(run.last, island_id, leaves, prices),
        joins=tuple(_join(join, stage, island_id, backend) for join, stage in joins_of(run.last.stage)),
        notes=(*run.notes, *(f"on the CPU within it: {reason}" for reason in kept)),
    )


def _join(node: Join, stage: Stage, island_id: str, backend: BackendName) -> JoinExplanation:
    columns = {side: plain_columns(node.side(side)) for side in Side}
    return JoinExplanation(
        join_type=node.spec.join_type.value,
        strategy=_strategy(node, stage),
        backend=backend.value,
        shape=shape_of_node(node).value,
        build_side=node.build_side,
        keys=tuple(join_keys(node, columns)),
        condition=_condition(node, columns),
        notes=(f"it is inside island {island_id}",),
        join_id=island_id,
    )


def _strategy(node: Join, stage: Stage) -> Strategy:
    """How the sides of a join are brought together."""
    keyed = {exchange.index for exchange in stage.inputs if exchange.columns}
    sources = [{source.index for source in side.walk() if isinstance(source, ExchangeSource)} for side in node.children]
    if all(keyed & side for side in sources):
        return Strategy.SHUFFLE
    return Strategy.BROADCAST if node.spec.keys or node.spec.as_of is not None else Strategy.NESTED_LOOP


def _condition(node: Join, columns: Mapping[Side, Columns]) -> str | None:
    """What a join asks for beside equal keys."""
    spec, terms = node.spec, node.spec.as_of
    parts = [] if spec.condition is None else [show_condition(spec.condition, columns)]
    if terms is not None:
        parts.append(as_of_terms(terms, columns))
    return " and ".join(parts) or None


def _about(nbytes: float, *, guessed: bool) -> str:
    return "size unknown" if guessed else f"about {show_bytes(nbytes)}"
