"""Putting an island into a plan, and running it in workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from gpujoin.config import Options
from gpujoin.engine.memory import HostMemory
from gpujoin.model.pipeline import Rung
from gpujoin.model.relations import Feed, Join, PartialAggregate, Relation, Scan, TopN
from gpujoin.spark.blobrows import BLOB_DDL
from gpujoin.spark.catalyst.nodes import Node, declared_type
from gpujoin.spark.devices import chosen_device
from gpujoin.spark.gateway import analyzed_plan
from gpujoin.spark.metrics import IslandMetrics, JoinDescription, Part, TaskRecord, accumulator_of, store_of
from gpujoin.spark.partitioning import partition_labels, repartition_by_label
from gpujoin.spark.query.choice import IslandRun, Reads, StageRun
from gpujoin.spark.query.feeds import FeedFormat, FeedReader, HeavyRows, Outlet
from gpujoin.spark.query.finals import FinalExpressions
from gpujoin.spark.query.island import Finish, Island
from gpujoin.spark.query.plans import items, to_map, to_seq
from gpujoin.spark.rewrite import PlanBuilder
from gpujoin.spark.runtime import blob_bytes
from gpujoin.spark.stages import stage_function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gpujoin.spark.worker import Batches, Task


_BEGUN_AGAIN = "on the CPU: the GPU's memory ran out, and what had been begun there was begun again"


@dataclass(frozen=True)
class RunStage:
    """A worker's part of a stage.

    Attributes
    ----------
    tree : Relation
        What to compute.
    reads : tuple of mappings
        What each task reads, by the index of the scan; one entry for all tasks of a stage that is fed.
    feeds : tuple of int
        Indexes of the tree's feeds, in the order in which they are read.
    forms : tuple of FeedFormat
        Of the blobs that feed it, in that order.
    outlet : Outlet or None
        Where the rows go; ``None``: to Spark.
    options : Options
        Settings.
    name : str
        Under which metrics are reported.
    """

    tree: Relation
    reads: tuple[Reads, ...]
    feeds: tuple[int, ...]
    forms: tuple[FeedFormat, ...]
    outlet: Outlet | None
    options: Options
    name: str

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Compute the parts whose numbers come in, or the partitions whose blobs do, on a GPU if the task gets one."""
        measured = IslandMetrics()
        notes: list[str] = []
        rows = self._rows(batches, task, measured, notes)
        if self.outlet is None:
            yield from rows
        else:
            memory = HostMemory.of(self.options.memory_budget)
            yield from self.outlet.split(rows, task.partition, round_bytes=memory.round_bytes)
        if measured.pipeline.cpu_runs:
            notes.append(_BEGUN_AGAIN)
        notes += measured.pipeline.recovered
        task.report(
            TaskRecord(
                self.name, Part.ISLAND, task.stage, task.partition, task.attempt, measured, tuple(notes)
            )
        )

    def _rows(
        self, batches: Batches, task: Task, measured: IslandMetrics, notes: list[str]
    ) -> Iterator[pa.RecordBatch]:
        from gpujoin.engine.pipeline import run

        with chosen_device(self.options, task.gpus, task.name) as place:
            notes += place.chosen.notes
            rung = Rung.CAREFUL if task.retry else None
            if rung is not None:
                notes.append(f"{rung.value}: Spark has tried the task before")
            measured.joins.backends[place.chosen.backend.name.value] = 1
            measured.joins.wait_seconds += place.chosen.waited
            for inputs, reads in self._work(batches):
                yield from run(
                    self.tree, inputs, reads, options=place.options, metrics=measured.pipeline,
                    join_metrics=measured.joins, device=place.device, rung=rung,
                )  # fmt: skip

    def _work(self, batches: Batches) -> Iterator[tuple[dict[int, Any], Reads]]:
        """What the pipeline reads, each time that it runs."""
        if not self.forms:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield {}, self.reads[number]
            return
        for feeds in FeedReader(batches, self.forms).partitions():
            yield dict(zip(self.feeds, feeds, strict=True)), self.reads[0]


class IslandPlacer:
    """Makes the logical plans that stand for islands.

    Parameters
    ----------
    spark : SparkSession
        A classic session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._builder = PlanBuilder(spark)
        self._gateway = self._builder.gateway

    def place(self, island: Island, run: IslandRun, options: Options, island_id: str) -> Any:
        """Give the plan that takes an island's place.

        Parameters
        ----------
        island : Island
            The island.
        run : IslandRun
            In which stages it runs.
        options : Options
            Settings, for the workers.
        island_id : str
            Name of the last stage; those before it have numbers too.
        """
        frame = self._frame(run.last, None, options, island_id, self._schema(island), run.heavy)
        plan = analyzed_plan(frame)
        attributes = items(plan.output())
        named = self._named(island)
        columns = [
            attribute if i is None else self._builder.renamed(attribute, named[i].jvm)
            for i, attribute in zip(island.columns, attributes, strict=True)
        ]
        below = self._builder.project(columns, plan)
        if island.finish is Finish.NOTHING:
            return below
        return self._finished(island, below, attributes)

    def _frame(
        self, run: StageRun, outlet: Outlet | None, options: Options, name: str, schema: StructType | str,
        heavy: Mapping[int, HeavyRows],
    ) -> DataFrame:  # fmt: skip
        """Make the rows of a stage, or the blob rows of one whose rows are exchanged."""
        stage = run.stage
        forms = tuple(
            FeedFormat(one.schema, compression=options.exchange_compression, place=place)
            for place, one in enumerate(stage.inputs)
        )
        feeds = tuple(one.index for one in stage.inputs)
        source = (
            self._exchanged(run, forms, options, name, heavy)
            if forms
            else self._spark.range(0, run.tasks, 1, run.tasks)
        )
        work = RunStage(stage.tree, run.reads, feeds, forms, outlet, options, name)
        shown, context = _described(stage.tree), self._spark.sparkContext
        store_of(context).register(JoinDescription(name, shown.replace("_", ", "), Part.ISLAND.value))
        function = stage_function(work, f"island_{shown}_{name}", accumulator=accumulator_of(context))
        return source.mapInArrow(function, schema)

    def _exchanged(
        self, run: StageRun, forms: tuple[FeedFormat, ...], options: Options, name: str,
        heavy: Mapping[int, HeavyRows],
    ) -> DataFrame:  # fmt: skip
        """Bring the blobs of all inputs of a stage together, partition by partition."""
        labels = partition_labels(self._spark.range(1), run.tasks)
        size = blob_bytes(self._spark, options.exchange_blob_bytes)
        outlets = [
            Outlet.of(exchange, form, labels.tolist(), size, heavy.get(exchange.index))
            for exchange, form in zip(run.stage.inputs, forms, strict=True)
        ]
        parts = [
            self._frame(before, outlet, options, f"{name}_{place}", BLOB_DDL, heavy)
            for place, (before, outlet) in enumerate(zip(run.inputs, outlets, strict=True))
        ]
        together = reduce(lambda one, two: one.union(two), parts)
        return repartition_by_label(together, run.tasks, "p").sortWithinPartitions("p", "side")

    def _schema(self, island: Island) -> StructType:
        fields = []
        named = self._named(island)
        for n, (i, column) in enumerate(zip(island.columns, island.relation.schema, strict=True)):
            known = None if i is None else named[i]
            dtype = (
                from_arrow_type(column.type, prefer_timestamp_ntz=True)
                if known is None
                else declared_type(known)
            )
            nullable = column.nullable if known is None else bool(known.fields["nullable"])
            fields.append(StructField(f"c{n}", dtype, nullable))
        return StructType(fields)

    @staticmethod
    def _named(island: Island) -> dict[int, Node]:
        """The attributes that the island's columns are."""
        if island.read is None:
            return {column.expr_id: column for column in island.node.output}
        parts = [
            node
            for whole in (*island.read.keys, *island.read.aggregates)
            for node in whole.walk()
            if node.name == "AttributeReference"
        ]
        return {node.expr_id: node for node in parts}

    def _finished(self, island: Island, below: Any, attributes: list[Any]) -> Any:
        """Spark's aggregation over the island's rows."""
        read = island.read
        assert read is not None
        finals = FinalExpressions(self._gateway)
        by_name = dict(zip(island.relation.schema.names, attributes, strict=True))
        rule = [
            (node.jvm, finals.of(node, call, [by_name[buffer.name] for buffer in call.buffer]))
            for number, call in island.calls.items()
            for node in (read.aggregates[number],)
        ]
        rule += [
            (key.jvm, by_name[f"k{n}"])
            for n, key in enumerate((*read.keys, *island.distinct))
            if key.name != "AttributeReference"
        ]
        plan = island.node.jvm.withNewChildren(to_seq(self._gateway, [below]))
        return plan.transformExpressions(to_map(self._gateway, rule)) if rule else plan


_SHOWN = {Scan: "scan", Feed: "exchange", Join: "join", PartialAggregate: "aggregate", TopN: "top"}


def _described(tree: Relation) -> str:
    """Name a stage's operations, for Spark's UI, where the function of a ``MapInArrow`` is shown."""
    counts = Counter(_SHOWN[type(node)] for node in tree.walk() if type(node) in _SHOWN)
    return "_".join(f"{n}{name}s" if n > 1 else name for name, n in counts.items())
