"""Putting an island into a plan, and running it in workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from gpujoin.config import Options
from gpujoin.model.relations import FileSlice, Relation
from gpujoin.spark.catalyst.nodes import Node, declared_type
from gpujoin.spark.gateway import analyzed_plan
from gpujoin.spark.query.finals import FinalExpressions
from gpujoin.spark.query.island import Finish, Island
from gpujoin.spark.query.plans import items, to_map, to_seq
from gpujoin.spark.rewrite import PlanBuilder
from gpujoin.spark.stages import stage_function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gpujoin.spark.worker import Batches, Task


@dataclass(frozen=True)
class RunIsland:
    """A worker's part of an island.

    Attributes
    ----------
    tree : Relation
        What to compute.
    slices : tuple of mappings
        What each task reads, by the index of the scan.
    options : Options
        Settings.
    """

    tree: Relation
    slices: tuple[Mapping[int, tuple[FileSlice, ...]], ...]
    options: Options

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Run the parts whose numbers come in."""
        del task
        from gpujoin.engine.pipeline import run

        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from run(self.tree, slices=self.slices[number], options=self.options)


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

    def place(
        self,
        island: Island,
        slices: tuple[Mapping[int, tuple[FileSlice, ...]], ...],
        options: Options,
        island_id: str,
    ) -> Any:
        """Give the plan that takes an island's place.

        Parameters
        ----------
        island : Island
            The island.
        slices : tuple of mappings
            What each task reads.
        options : Options
            Settings, for the workers.
        island_id : str
            Name of the stage.
        """
        frame = self._frame(island, RunIsland(island.relation, slices, options), len(slices), island_id)
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

    def _frame(self, island: Island, work: RunIsland, tasks: int, name: str) -> DataFrame:
        numbers = self._spark.range(0, tasks, 1, tasks)
        return numbers.mapInArrow(stage_function(work, name), self._schema(island))

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
