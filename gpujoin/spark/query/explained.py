"""Renders islands, and other stages that workers run, as the text of ``explain``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.types as pat

from gpujoin.config import Strategy
from gpujoin.engine.pipeline import supports
from gpujoin.model.backend import BackendName
from gpujoin.model.expressions import conjuncts
from gpujoin.model.relations import (
    ConstantTable,
    ExchangeSource,
    Expand,
    Explode,
    Filter,
    Join,
    Limit,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    SortKey,
    TopN,
    Union,
    Window,
)
from gpujoin.model.spec import AsOf, NullEquality
from gpujoin.model.windows import AnyWindowCall, FramedAggregate
from gpujoin.plan.explain import (
    IslandExplanation,
    JoinExplanation,
    Operations,
    show_bytes,
    show_paths,
)
from gpujoin.plan.ranges import Shape, shape_of_node
from gpujoin.plan.sqltext import bare_name, show_call, show_condition, show_expression, show_filters
from gpujoin.spark.query.asof import AsOfTerms

if TYPE_CHECKING:
    from gpujoin.model.stages import Stage
    from gpujoin.plan.cost import Estimate
    from gpujoin.spark.query.choice import IslandRun, StageRun
    from gpujoin.spark.query.island import Island
    from gpujoin.spark.query.plans import PlanNode
    from gpujoin.spark.query.trees.builder import ScanSource

_SHOWN = 400


def explain_island(
    island: Island,
    run: IslandRun,
    island_id: str,
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
    )
    explained = explain_stages(island.relation, run, island_id, leaves, backend)
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


@dataclass(frozen=True)
class Leaves:
    """What the leaves of stages read."""

    scans: Mapping[int, ScanSource]
    """Files, by the index of the scan."""
    rows: tuple[str, ...]
    """Rows from Spark, described, by the index of the source."""
    guessed: frozenset[int] = frozenset()
    """Sources of rows from Spark whose number of rows nobody knows."""


def explain_stages(
    relation: Relation, run: IslandRun, island_id: str, leaves: Leaves, backend: BackendName
) -> IslandExplanation:
    """Describe how stages compute a relation."""
    kept = supports(relation, BackendName.GPU) if backend is BackendName.GPU else ()
    shown = _Shown(leaves)
    return IslandExplanation(
        island_id=island_id,
        backend=backend.value,
        tasks=run.last.tasks,
        threads=run.threads,
        tree=tuple(shown.lines(run.last.stage.tree, run.last)),
        joins=tuple(_join(join, stage, island_id, backend) for join, stage in _joins(run.last.stage)),
        notes=(*run.notes, *(f"on the CPU within it: {reason}" for reason in kept)),
    )


def _joins(stage: Stage) -> Iterator[tuple[Join, Stage]]:
    """The joins of a stage and of those before it, parents first, each with its stage."""
    producers = {exchange.index: exchange.producer for exchange in stage.inputs}
    for node in stage.tree.walk():
        if isinstance(node, Join):
            yield node, stage
        elif isinstance(node, ExchangeSource) and node.index in producers:
            yield from _joins(producers[node.index])


def _join(node: Join, stage: Stage, island_id: str, backend: BackendName) -> JoinExplanation:
    return JoinExplanation(
        join_type=node.spec.join_type.value,
        strategy=_strategy(node, stage),
        backend=backend.value,
        shape=shape_of_node(node).value,
        build_side=node.build_side,
        keys=tuple(_keys(node)),
        condition=_condition(node),
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


def _condition(node: Join) -> str | None:
    """What a join asks for beside equal keys."""
    spec, terms = node.spec, node.spec.as_of
    parts = [] if spec.condition is None else [show_condition(spec.condition)]
    if terms is not None:
        parts.append(_as_of(node, terms))
    return " AND ".join(parts) or None


def _keys(node: Join) -> list[str]:
    left, right = node.left.schema, node.right.schema
    pairs = [(left.field(pair.left).name, right.field(pair.right).name, pair.nulls) for pair in node.spec.keys]
    return [
        f"{bare_name(of_left)} {'<=>' if nulls is NullEquality.EQUAL else '='} {bare_name(of_right)}"
        for of_left, of_right, nulls in pairs
    ]


def _as_of(node: Join, terms: AsOf) -> str:
    """What an as-of join asks of its order keys."""
    left, right = node.left.schema.field(terms.left).name, node.right.schema.field(terms.right).name
    return AsOfTerms.of(terms).shown(bare_name(left), bare_name(right))


@dataclass(frozen=True)
class _Shown:
    """The tree of an island as lines, its stages one below the other."""

    leaves: Leaves

    def lines(self, node: Relation, stage: StageRun, indent: str = "") -> list[str]:
        """Give a node and all below it."""
        if isinstance(node, Project) and all(_is_plain(node, n) for n in range(len(node.outputs))):
            return self.lines(node.child, stage, indent)
        if isinstance(node, ExchangeSource):
            return self._source(node, stage, indent)
        lines = [indent + _shortened(self._scan(node, stage) if isinstance(node, Scan) else _head(node))]
        for child in node.children:
            lines += self.lines(child, stage, indent + "  ")
        return lines

    def _source(self, node: ExchangeSource, stage: StageRun, indent: str) -> list[str]:
        taken = stage.stage.spark
        if taken is not None and taken.source == node.index:
            return [indent + _shortened(f"rows from Spark, {self.leaves.rows[taken.rows]}")]
        place = next(i for i, exchange in enumerate(stage.stage.inputs) if exchange.index == node.index)
        exchange, before = stage.stage.inputs[place], stage.inputs[place]
        about = _about(exchange.nbytes, guessed=self._is_guessed(before))
        tasks = f"{stage.tasks} {'tasks' if stage.tasks > 1 else 'task'}"
        if exchange.replicated:
            head = f"sent to {tasks}, {about}"
        elif not exchange.columns:
            head = f"shared out among {tasks}, {about}"
        else:
            by = ", ".join(bare_name(exchange.schema.field(i).name) for i in exchange.columns)
            given = f"{before.tasks} tasks" if before.stage.spark is None else "Spark's tasks"
            head = f"exchange by {by}: from {given} to {stage.tasks}, {about}"
        return [indent + head, *self.lines(before.stage.tree, before, indent + "  ")]

    def _is_guessed(self, stage: StageRun) -> bool:
        """Whether nobody knows how many rows a stage gives."""
        taken = stage.stage.spark
        return (taken is not None and taken.rows in self.leaves.guessed) or any(map(self._is_guessed, stage.inputs))

    def _scan(self, node: Scan, stage: StageRun) -> str:
        source = self.leaves.scans[node.index]
        paths = source.files.paths
        count = f"{len(paths)} files, " if len(paths) > 1 else ""
        where = f" where {' and '.join(source.filters)}" if source.filters else ""
        share = ""
        if stage.tasks > 1:
            divided = {branch.partitioned for branch in stage.stage.branches}
            share = ", divided" if node.index in divided else ", read by every task"
        size = f"{'about ' if source.files.is_sampled else ''}{show_bytes(source.files.nbytes)}"
        what = f"{show_paths(paths)} ({count}{size})"
        return f"scan {what}{share}, columns {', '.join(source.columns)}{where}"


def _is_plain(node: Project, position: int) -> bool:
    """Whether an output is a column of the input, or a result of the aggregation below that is shown by its call."""
    expression = node.outputs[position].expression
    return expression.written is not None or (not expression.children and bool(expression.columns()))


def _head(node: Relation) -> str:
    match node:
        case ConstantTable():
            rows = f"{node.rows} row{'' if node.rows == 1 else 's'}"
            return f"{rows} of the query itself, columns {', '.join(map(bare_name, node.schema.names))}"
        case Join():
            side = node.build_side.value
            kind = node.spec.join_type.value
            shape = shape_of_node(node)
            how = "" if shape in (Shape.EQUALITY, Shape.AS_OF) else f" ({shape.value})"
            if node.spec.as_of is not None:
                kind = f"as-of ({_as_of(node, node.spec.as_of)}) {kind}"
            parts = [f"{kind} join{how}, {side} side built", *_keys(node)]
            if node.spec.condition is not None:
                parts.append(f"if {show_condition(node.spec.condition)}")
            return ", ".join(parts)
        case PartialAggregate():
            kind = "aggregate" if node.once else "partial aggregate"
            keys = ", ".join(show_expression(key.expression) for key in node.keys)
            calls = ", ".join(map(show_call, node.aggregates))
            return f"{kind} {calls or 'distinct'}{f' by {keys}' if keys else ''}"
        case Filter():
            return f"filter {' and '.join(show_filters(conjuncts(node.condition)))}"
        case Project():
            return f"project {', '.join(show_expression(output.expression) for output in node.outputs)}"
        case Expand():
            return f"expand each row in {len(node.projections)} ways"
        case Explode():
            return _exploded(node)
        case Window():
            calls = ", ".join(map(_shown_call, node.calls))
            keys = ", ".join(bare_name(node.child.schema.field(i).name) for i in node.partition)
            order = f" ordered by {_order(node.order)}" if node.order else ""
            return f"window {calls}{f' by {keys}' if keys else ''}{order}"
        case TopN():
            return f"first {node.count} by {_order(node.order)}"
        case Limit():
            return f"limit {node.count}"
        case Union():
            return "union"
    return type(node).__name__


def _exploded(node: Explode) -> str:
    column = node.child.schema.field(node.column)
    if pat.is_int64(column.type):
        return f"repeat each row {bare_name(column.name)} times"
    return f"{'outer ' if node.outer else ''}explode {bare_name(column.name)}"


def _order(keys: Sequence[SortKey]) -> str:
    return ", ".join(f"{show_expression(key.expression)}{' desc' if key.descending else ''}" for key in keys)


def _shown_call(call: AnyWindowCall) -> str:
    if isinstance(call, FramedAggregate):
        return show_call(call.call)
    return f"{call.function.value}({'' if call.value is None else show_expression(call.value)})"


def _about(nbytes: float, *, guessed: bool) -> str:
    return "size unknown" if guessed else f"about {show_bytes(int(nbytes))}"


def _shortened(line: str) -> str:
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
