"""Walking an optimized plan once, deciding of each part whether it runs here, and putting the plan together again."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from gpujoin.config import Options, Strategy
from gpujoin.errors import RequirementError
from gpujoin.model.backend import BackendName
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.switches import AS_OF_JOIN, node_switch
from gpujoin.plan.cost import Estimate
from gpujoin.plan.distribution import SPARK_WAS_ASKED_FOR, kept_tables, with_tables_built
from gpujoin.plan.estimates import product_warnings, products_in, refuse_products
from gpujoin.report.explanation import Explanation
from gpujoin.report.islands import explain_island
from gpujoin.report.operations import IslandOperation, NoteKind, Operation, notes_of
from gpujoin.report.outcomes import new_join_id
from gpujoin.report.parts import expected_backend, expression_name, join_left_to_spark, part_name
from gpujoin.report.stages import Prices
from gpujoin.spark.catalyst.joins import JOIN, JOINS
from gpujoin.spark.jvm.gateway import compiled_classes, dataframe_of, gateway_of
from gpujoin.spark.jvm.rewrite import MARK, Rewriting
from gpujoin.spark.query.activity import doing
from gpujoin.spark.query.choice import Once, Outlay, arrange, finishes_sooner, predict_island, skip_reason
from gpujoin.spark.query.empties import condition_of, empty_parts
from gpujoin.spark.query.island import AGGREGATE, ALONE, Island, IslandFinder, may_top
from gpujoin.spark.query.nearest.marks import mark_nearest
from gpujoin.spark.query.nearest.terms import NearestJoins
from gpujoin.spark.query.plans import PlanNode, first_alike, read_plan, subquery_plan, tables_of
from gpujoin.spark.query.reading import Reading
from gpujoin.spark.query.refusals import note_island
from gpujoin.spark.query.running import IslandPlacer, sends_bytes
from gpujoin.spark.query.runs import IslandRun
from gpujoin.spark.query.trees.limits import Top, top_below
from gpujoin.spark.query.trees.subqueries import SubqueryValues, collect
from gpujoin.spark.settings import broadcast_threshold, gpu_outlook, is_local, may_adapt, partition_splitting
from gpujoin.spark.worker.python import refusal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gpujoin.model.expressions import Literal
    from gpujoin.spark.catalyst.nodes import Node

_start = Outlay()
"""Seconds until the first workers of an application are there."""
_tables = Outlay()
"""Seconds in which the workers of a stream's run read the tables that they keep."""
_COMPILED = 12
"""Classes of generated code, those of one or two queries, after which Spark compiles further ones fast
(docs/performance.md, "First queries")."""
_TABLES_SHARE = 8
"""Part of the memory budget that rows of a stream's tables may take, as estimated, to be kept by workers: half of what
all build sides may take, since search structures take about as much again."""

_ISLAND = re.compile(rf"island_\w*?({MARK}[0-9a-f]+)(?:_\d+)*")
"""Name of the function of an island's stage; those before the last have numbers."""


@dataclass(frozen=True)
class Rewritten:
    """A part of a plan after rewriting."""

    parts: tuple[Operation, ...]
    """Its topmost joins and islands."""
    changed: bool
    """Whether anything in it was replaced."""


@dataclass(frozen=True)
class StreamFacts:
    """What is known of a micro-batch when it is planned."""

    run: str
    """Id of the stream's run."""
    rows: float | None
    """Rows of the last micro-batch that had any; ``None``: there was none."""


class QueryPlanner:
    """Plans one query.

    Parameters
    ----------
    spark : SparkSession
        A classic session.
    conf : mapping
        Its configuration.
    options : Options
        Settings.
    runs : bool
        Whether planning may run subqueries and collect build sides; otherwise the result is good for explanation only.
    stream : StreamFacts, optional
        Of a micro-batch: which it is of.

    Attributes
    ----------
    explanation : Explanation
        What was decided; filled by :meth:`rewrite`.
    changed : bool
        Whether anything was replaced.
    """

    def __init__(
        self,
        spark: SparkSession,
        conf: Mapping[str, str],
        options: Options,
        *,
        runs: bool,
        stream: StreamFacts | None = None,
    ) -> None:
        self._spark = spark
        self._conf = conf
        self._options = options
        self._runs = runs
        self._stream = stream
        self._gateway = gateway_of(spark)
        self._reasons: list[Reason] = []
        self._values = SubqueryValues(self._subquery_rows)
        self._reading = Reading.from_conf(conf, streamed=stream is not None)
        self._nearest = NearestJoins()
        self._finder = self._finder_with(self._values.placeholder)
        self._left: dict[PlanNode, Reason] = {}
        """Why nodes that could be run here are left to Spark."""
        self._within: dict[PlanNode, Reason] = {}
        """The reason of the largest part around a node that was predicted to be slower here."""
        self._hopeless: set[PlanNode] = set()
        """Nodes of parts of which nothing is predicted to be faster here."""
        self._missed = 0.0
        """Seconds that the largest island would have gained that was left to Spark."""
        self._of_values: list[Operation] = []
        """Joins and islands of the subqueries that have run while the current island was planned."""
        self._refused: Reason | None = None
        """Why nothing can be run here."""
        self._subqueries: dict[int, tuple[PlanNode, Rewritten]] = {}
        """Scalar subqueries that were rewritten, by the number of the first one alike."""
        self._searched: set[PlanNode] = set()
        """Joins that are run as as-of joins."""
        self._broadcast_threshold = broadcast_threshold(conf, spark)
        self.explanation = Explanation()
        self.changed = False

    def rewrite(self, plan: Any) -> Any:
        """Rewrite an optimized logical plan: one with the same columns, or the given one where nothing was replaced."""
        root = read_plan(plan, self._gateway, self._conf)
        empty = empty_parts(root) if self._options.strategy is not Strategy.SPARK else ()
        if empty:
            plan = Rewriting(self._spark, root.reading).without(root, empty)
            root = read_plan(plan, self._gateway, self._conf)
        root = self._mark_nearest(root)
        self._tables = tables_of(root)
        self._rewriting = Rewriting(self._spark, root.reading)
        visited = self._visit(root)
        empties = [expression_name(condition) for condition in map(condition_of, empty) if condition]
        notes = notes_of(NoteKind.DECISION, *(f"no row fulfils {condition}" for condition in empties))
        self.explanation = Explanation(visited.parts, notes, tuple(dict.fromkeys(self._reasons)))
        self.changed = visited.changed or bool(empty)
        if self._runs and not visited.changed:
            _start.missed(self._application, self._missed)
            if self._stream is not None:
                _tables.missed(self._stream.run, self._missed)
        return self._rewriting.current(root) if visited.changed and self._runs else plan

    def _finder_with(self, constant: Callable[[Node], Literal] | None) -> IslandFinder:
        rows = None if self._stream is None else self._stream.rows
        zone = self._conf.get("spark.sql.session.timeZone")
        return IslandFinder(self._options, constant, self._reading, self._nearest.terms, rows, zone=zone)

    def _mark_nearest(self, plan: PlanNode) -> PlanNode:
        if self._options.strategy is not Strategy.SPARK and AS_OF_JOIN not in self._options.disable:
            mark_nearest(plan, self._nearest)
        return plan

    def _visit(
        self, node: PlanNode, *, islands: bool = True, top: Top | None = None, joined: bool = False
    ) -> Rewritten:
        """Rewrite the plan at a node; ``joined``: Spark joins its rows, and chooses how by their size."""
        if self._depends_on_layout(node):
            why = "what it computes depends on which rows share a partition, and on their order"
            self._reasons.append(Reason(ReasonKind.UNSUPPORTED, part_name(node), why))
            return Rewritten((), changed=False)
        if islands and self._refused is None:
            placed = self._island(node, top, joined=joined)
            if placed is not None:
                return placed
        islands = islands and self._refused is None
        # Spark counts the rows of a limit over all micro-batches of a stream.
        of_spark = node.streaming or node_switch(node.name) in self._options.disable
        top_of_inputs = None if of_spark else top_below(node, top)
        joined = joined or node.class_name == JOIN
        below = [self._visit(child, islands=islands, top=top_of_inputs, joined=joined) for child in node.children]
        if self._nearest.orders.get(node) in self._searched:
            if self._runs:
                self._rewriting.leave_out(node)
            return below[0]
        parts = tuple(part for visited in below for part in visited.parts)
        changed = any(visited.changed for visited in below)
        inner = [self._visit_subquery(subquery) for subquery in node.subqueries]
        replaced = any(visited.changed for visited in inner)
        is_sql = node.class_name == AGGREGATE or node.name == "Window"
        if islands and (is_sql or node.name in ALONE) and node not in self._left and not node.streaming:
            # Python functions of rows that only Spark reads are Spark's as a matter of course.
            self._reasons += self._obstacles(node, layout=False, below=is_sql)
        if node.class_name in JOINS:
            others = tuple(part for part in parts if isinstance(part, IslandOperation))
            parts = (join_left_to_spark(node, *self._why_left(node), inputs=parts), *others)
        operations = (*parts, *(part for visited in inner for part in visited.parts))
        return Rewritten(operations, changed or replaced)

    def _visit_subquery(self, expression: Node) -> Rewritten:
        """Rewrite the plan of an expression; scalar subqueries alike become one, which Spark runs once."""
        plan = self._mark_nearest(subquery_plan(expression))
        scalar = expression.name == "ScalarSubquery" and not expression.children
        earlier = self._subqueries.get(first_alike(expression)) if scalar else None
        if earlier is None:
            visited = self._visit(plan)
            if scalar:
                self._subqueries[first_alike(expression)] = plan, visited
            return visited
        first, visited = earlier
        if self._runs and visited.changed:
            self._rewriting.replace(plan, self._rewriting.current(first))
        return dataclasses.replace(visited, parts=())

    def _depends_on_layout(self, node: PlanNode) -> bool:
        """Whether a node samples its rows, or computes such as ``rand(7)``, ``uuid()`` or ``input_file_name()``.

        Not one above a ``gpu_join``, which is to run here all the same.
        """
        here = not node.deterministic and all(child.deterministic for child in node.children)
        return (here or node.name == "Sample") and all(part.request is None for part in node.walk())

    def _obstacles(self, node: PlanNode, *, layout: bool = True, below: bool = True) -> list[Reason]:
        """Give what keeps a node out of islands.

        ``layout``: also its dependence on the layout of rows; ``below``: also what keeps nodes below it out.
        """
        broken = self._finder.broken
        return [
            broken[part]
            for part in (node.walk() if below else (node,))
            if part in broken and _island_id_of(part) is None and (layout or not self._depends_on_layout(part))
        ]

    def _island(self, node: PlanNode, top: Top | None = None, *, joined: bool = False) -> Rewritten | None:
        """Place the island at a node; ``None`` where there is none, or Spark runs it."""
        if top is not None:
            count = len(self._reasons)
            placed = self._island_of(node, top, joined=joined)
            if placed is not None or not may_top(node):
                return placed
            del self._reasons[count:]
        return self._island_of(node, None, joined=joined)

    def _island_of(self, node: PlanNode, top: Top | None, *, joined: bool) -> Rewritten | None:
        if node in self._hopeless or not self._takes_any(node.walk()):
            return None
        candidate = self._find_island(node, top)
        if candidate is None:
            return None
        island, run, estimate = candidate
        products = tuple(products_in(island.relation, island.sizes))
        refuse_products(products, self._options.max_product_rows)
        island_id = new_join_id()
        options = self._options_of(island)
        keyed = any(join.spec.keys for join in island.joins)
        backend, notes = expected_backend(options, gpu_outlook(self._conf), keyed=keyed)
        options = options.replace(cpu_threads=options.cpu_threads or run.threads)
        run = self._adapt(island, run, options)
        self._searched.update(part for part in island.own_nodes() if part in self._nearest.terms)
        below = [self._visit(source.node) for source in island.spark_sources]
        if not self._runs and not island.computes_subqueries:
            below += [self._visit_subquery(part) for part in _subqueries(island)]
        # Otherwise subqueries have run, as queries of their own.
        inputs = (*(part for visited in below for part in visited.parts), *self._of_values)
        self._of_values.clear()
        warnings = product_warnings(products, self._options.warn_product_rows)
        prices = Prices(options.costs, self._cores)
        explained = explain_island(
            island, run, island_id, prices, BackendName(backend), estimate, notes=notes, warnings=warnings
        )
        if self._runs:
            _start.begun(self._application)
            note_island(island_id, self._tables)
            if self._stream is not None:
                _tables.begun(self._stream.run)
            # For a join in the same query Spark has no better size than the product of those of the joins within.
            expected = None if any(rows.guessed for rows in island.spark_sources) else island.output_bytes
            placer = IslandPlacer(self._spark, self._conf, self._rewriting, island)
            placer.place(run, options, explained, expected if joined else None)
        return Rewritten((explained, *inputs), True)

    def _adapt(self, island: Island, run: IslandRun, options: Options) -> IslandRun:
        """Give the run of an island with what the transport of its exchanges allows."""
        if not run.exchanges or not sends_bytes(island, run, options):
            return dataclasses.replace(run, shared={}) if run.shared else run
        if not may_adapt(options, self._conf):
            return run
        return run.adapting(self._cores, options.broadcast_threshold, partition_splitting(self._conf))

    def _takes_any(self, nodes: Iterable[PlanNode]) -> bool:
        """Whether the setting, or a ``gpu_join`` that overrides it, leaves any of the nodes to gpujoin."""
        spark = Strategy.SPARK
        return self._options.strategy is not spark or any(
            part.request is not None and part.strategy(self._options) is not spark for part in nodes
        )

    def _find_island(self, node: PlanNode, top: Top | None) -> tuple[Island, IslandRun, Estimate] | None:
        """Find the island at a node, and how it runs; ``None`` as of :meth:`_island`."""
        placeholders = self._values.placeholders
        island = self._island_at(self._finder, node, top)
        if island is None or not self._takes_any(island.own_nodes()):
            return None
        refused = refusal(self._spark.sparkContext, self._conf)
        if refused is not None:
            if self._options.require:
                raise RequirementError(refused)
            self._reasons.append(refused)
            self._refused = refused
            return None
        run = self._arrange(island)
        if isinstance(run, Reason):
            self._reasons.append(run)
            self._left[node] = run
            return None
        estimate = self._predict(island, run, top)
        if estimate is None:
            return None
        asks = self._values.placeholders > placeholders
        whole = self._with_subqueries(island, run, top) if asks else None
        if whole is not None:
            return (*self._finish_in_tasks(*whole), estimate)
        if asks and self._runs:
            finder = self._finder_with(self._values.value)
            island = self._island_at(finder, node, top)
            if island is None:
                broken = finder.broken.values()
                self._reasons += broken or [Reason(ReasonKind.UNEXPECTED, "plan", "the value of a subquery changed it")]
                return None
            run = self._arrange(island)
            if isinstance(run, Reason):
                self._reasons.append(run)
                return None
        return (*self._finish_in_tasks(island, run), estimate)

    def _with_subqueries(self, island: Island, run: IslandRun, top: Top | None) -> tuple[Island, IslandRun] | None:
        """Have an island of one task compute its scalar subqueries; ``None`` where they are queries of their own."""
        if not run.in_one_task or island.streamed:
            return None
        whole = self._island_at(self._finder_with(None), island.node, top)
        if whole is None or not set(island.own_nodes()) <= set(whole.own_nodes()):
            return None
        run_of_whole = self._arrange(whole)
        if isinstance(run_of_whole, Reason) or not run_of_whole.in_one_task:
            return None
        return whole, run_of_whole

    def _island_at(self, finder: IslandFinder, node: PlanNode, top: Top | None) -> Island | None:
        """Find the island at a node; one of a stream builds the small tables that the stream is joined with."""
        island = finder.at(node, top)
        if island is None or not island.streamed:
            return island
        most = self._options.memory_budget / _TABLES_SHARE
        relation = with_tables_built(island.plain, island.sizes, most)
        return dataclasses.replace(island, relation=relation, plain=relation)

    def _predict(self, island: Island, run: IslandRun, top: Top | None) -> Estimate | None:
        """Predict the seconds of an island; ``None``, with the reason kept, where Spark takes less."""
        adapts = self._conf.get("spark.sql.adaptive.enabled", "true").lower() == "true"
        predict = partial(
            predict_island, island, run, self._options, self._cores, self._broadcast_threshold, adapts=adapts
        )
        cold = predict()
        start = _start.seconds(self._application, self._options.costs.start)
        warm, once = cold, Once(start, spark=self._compiling if start else 0.0)
        if run.keeps_tables:
            tables_of_files = kept_tables(island.plain)
            warm = predict(built_tables=tables_of_files)
            tables = cold.estimate.here - warm.estimate.here
            tables = tables if self._stream is None else _tables.seconds(self._stream.run, tables)
            once = dataclasses.replace(once, tables=tables)
        estimate = once.added_to(warm.estimate)
        slower = skip_reason(island, self._options_of(island), estimate, once, self._broadcast_threshold)
        if slower is None:
            return estimate
        self._left[island.node] = slower
        for node in island.own_nodes():
            self._within.setdefault(node, slower)
        batch = top is None and not island.streamed  # a part of a stream may keep tables that the whole reads each time
        if batch and slower.kind is ReasonKind.SLOWER and warm.greatest_gain + once.spark <= 0:
            self._hopeless.update(island.own_nodes())
        self._missed = max(self._missed, warm.estimate.spark - warm.estimate.here)
        if all(reason.kind is not ReasonKind.SLOWER for reason in self._reasons):
            self._reasons.append(slower)  # that of parts within would say the same
        return None

    def _finish_in_tasks(self, island: Island, run: IslandRun) -> tuple[Island, IslandRun]:
        """Let the tasks of an island finish its aggregation if they can, and if it costs less than in Spark."""
        whole = island.whole() if run.in_one_task or run.last.stage.spark is None else None
        finished = None if whole is None else self._arrange(whole)
        if whole is None or not isinstance(finished, IslandRun):
            return island, run
        pays = finished.in_one_task if run.in_one_task else finishes_sooner(island, run, finished)
        return (whole, finished) if pays else (island, run)

    def _options_of(self, island: Island) -> Options:
        """Settings with what joins of an island were asked for."""
        joins = [node for node in island.own_nodes() if node.class_name in JOINS]
        backend = next((node.request["backend"] for node in joins if node.request and "backend" in node.request), None)
        strategies = [node.strategy(self._options) for node in joins] or [self._options.strategy]
        named = next((strategy for strategy in strategies if strategy is not Strategy.AUTO), Strategy.AUTO)
        return self._options.replace(backend=backend or self._options.backend, strategy=named)

    def _arrange(self, island: Island) -> IslandRun | Reason:
        shuffle_partitions = int(self._conf.get("spark.sql.shuffle.partitions", "200"))
        local = is_local(self._conf)
        options = self._options_of(island)
        return arrange(island, options, self._cores, local=local, shuffle_partitions=shuffle_partitions)

    @cached_property
    def _compiling(self) -> float:
        """Seconds that Spark is predicted to compile new code, before the application has compiled much."""
        return self._options.costs.spark_start * max(0.0, 1 - compiled_classes(self._spark) / _COMPILED)

    @property
    def _application(self) -> str:
        return self._conf["spark.app.id"]

    @property
    def _cores(self) -> int:
        return max(1, int(self._conf["spark.default.parallelism"]))

    def _subquery_rows(self, plan: PlanNode) -> list[Any]:
        """Run a subquery, itself rewritten; two rows are enough to know that there are too many."""
        inner = QueryPlanner(self._spark, self._conf, self._options, runs=True)
        frame = dataframe_of(self._spark, inner.rewrite(plan.jvm))
        self._of_values += inner.explanation.operations
        with doing("a scalar subquery"):
            return collect(frame.limit(2))

    def _why_left(self, node: PlanNode) -> tuple[Reason, ...]:
        if node.strategy(self._options) is Strategy.SPARK:
            return (SPARK_WAS_ASKED_FOR,)
        if self._refused is not None:
            return (self._refused,)
        left = self._within[node] if node in self._hopeless else self._left.get(node)
        if left is not None:
            return (self._within.get(node, left) if left.kind is ReasonKind.SLOWER else left,)
        return tuple(self._obstacles(node)[:1])


def _subqueries(island: Island) -> Iterator[Node]:
    return (subquery for node in island.own_nodes() for subquery in node.subqueries)


def _island_id_of(node: PlanNode) -> str | None:
    """Give the id of the island that makes a node's rows, if the plan has it already."""
    if node.name in ("MapInArrow", "SizedRows"):
        name = node.expression("functionExpr").fields.get("name")
    elif node.name == "LogicalRDD" and node.output:
        name = node.output[0].fields.get("name")
    else:
        return None
    island = _ISLAND.fullmatch(str(name))
    return None if island is None else island[1]
