"""Puts an island into a plan: its stages, its columns, and how its partitions are split or coalesced."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.core.rdd import _prepare_for_python_RDD
from pyspark.serializers import CloudPickleSerializer, NoOpSerializer
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    IntegerType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from pyspark.util import PythonEvalType

from gpujoin.config import Options, Transport
from gpujoin.errors import JoinSpecError
from gpujoin.model.jointype import Side
from gpujoin.report.islands import progress_name, stage_names, stage_trees
from gpujoin.report.metrics import IslandReport, accumulator_of, store_of
from gpujoin.report.stages import stage_label
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.compat import arrow_schema, type_in_arrow
from gpujoin.spark.jvm.compiled import byte_exchange
from gpujoin.spark.jvm.gateway import gateway_of, java_accumulator, shipped_files
from gpujoin.spark.query.aggregates import merging
from gpujoin.spark.query.island import Finish, Island
from gpujoin.spark.query.runs import IslandRun, LateRun, SplitRun, StageRun
from gpujoin.spark.query.stores import without_logs_of_calls
from gpujoin.spark.settings import blob_bytes
from gpujoin.spark.shuffle.blobrows import BlobFormat
from gpujoin.spark.shuffle.exchanges import Outlet
from gpujoin.spark.shuffle.labels import has_direct_partition_ids, partition_labels
from gpujoin.spark.shuffle.packets import share_packets
from gpujoin.spark.worker.functions import packet_function, stage_function
from gpujoin.spark.worker.stage import RunStage
from gpujoin.spark.worker.taskreads import TaskReads
from gpujoin.storage.locations import stores_named

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from gpujoin.model.stages import Exchange, SparkInput, Stage
    from gpujoin.plan.partition_sizes import Coalescing
    from gpujoin.report.operations import IslandOperation
    from gpujoin.spark.jvm.rewrite import Rewriting
    from gpujoin.spark.query.aggregates import ReadAggregate
    from gpujoin.spark.worker.functions import StageFunction


def arrow_form(schema: StructType) -> pa.Schema | None:
    """Give the Arrow schema in which the JVM reads rows; ``None`` if it may differ from PySpark's."""
    if not all(_is_plain(field.dataType) for field in schema):
        return None
    try:
        return arrow_schema(schema)
    except JoinSpecError:
        return None


def _is_plain(dtype: DataType) -> bool:
    match dtype:
        case ArrayType():
            return _is_plain(dtype.elementType)
        case MapType():
            return _is_plain(dtype.keyType) and _is_plain(dtype.valueType)
        case StructType():
            return all(_is_plain(field.dataType) for field in dtype)
    return isinstance(dtype, _PLAIN)


_PLAIN = (
    BinaryType, BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType,
)  # fmt: skip


def schema_of(island: Island, named: Mapping[int, Node]) -> StructType:
    """Give the types of an island's rows in Spark; ``named`` has the attributes that its columns are."""
    fields = []
    columns = island.columns or (None,)
    for n, (i, column) in enumerate(zip(columns, island.relation.schema, strict=True)):
        if i is None:
            dtype, nullable = from_arrow_type(column.type, prefer_timestamp_ntz=True), column.nullable
        else:
            dtype, nullable = type_in_arrow(named[i].data_type), bool(named[i].fields["nullable"])
        fields.append(StructField(f"c{n}", dtype, nullable))
    return StructType(fields)


def named_attributes(island: Island) -> dict[int, Node]:
    """Give the attributes that the island's columns are."""
    if island.aggregation is None:
        return {column.expr_id: column for column in island.node.output}
    parts = [
        node
        for whole in (*island.aggregation.keys, *island.aggregation.aggregates)
        for node in whole.walk()
        if node.name == "AttributeReference"
    ]
    return {node.expr_id: node for node in parts}


def column_numbers(island: Island, named: Mapping[int, Node]) -> list[int | None]:
    """Tell which attribute each column is; one attribute may have several names, as in ``select a.ID, a.Id``."""
    if island.aggregation is None:
        return [column.number for column in island.node.output]
    return [None if i is None else named[i].number for i in island.columns]


def describe_finish(island: Island, aggregation: ReadAggregate) -> dict[str, Any]:
    """Describe Spark's aggregation over the island's rows."""
    positions = {name: n for n, name in enumerate(island.relation.schema.names)}
    aggregates = [
        {
            "aggregate": aggregation.aggregates[number].number,
            "buffers": [positions[buffer.name] for buffer in call.buffer],
            **merging(aggregation.aggregates[number], call),
        }
        for number, call in island.calls.items()
    ]
    keys = [
        (key.number, positions[f"k{n}"])
        for n, key in enumerate((*aggregation.keys, *island.distinct))
        if key.name != "AttributeReference"
    ]
    return {"aggregates": aggregates, "keys": keys}


@dataclass(frozen=True)
class StageWork:
    """A stage as the work that its tasks do, with the stages before it."""

    run: StageRun
    """How it runs."""
    description: str
    """Its operations, in a few words."""
    operations: str
    """The same as lines, for Spark's plans."""
    work: RunStage
    """The work of each task."""
    inputs: tuple[StageWork, ...] = ()
    """The producers of its exchanges, in order."""
    shared: int | None = None
    """A number that it has in common with the works whose rows are the same."""
    coalescing: Coalescing | None = None
    """How its partitions are coalesced, if they are."""
    split: SplitRun | None = None
    """How its heavy partitions are split, if they are."""
    late: LateWork | None = None
    """The work that replaces it if one of its inputs proves small."""
    explanation: IslandOperation | None = None
    """The explanation of the island; of its last stage only."""

    @classmethod
    def from_run(
        cls, run: IslandRun, options: Options, explanation: IslandOperation, blob_bytes: int,
        transport: Transport = Transport.ROWS, arrow: pa.Schema | None = None,
    ) -> StageWork:  # fmt: skip
        """Make the work of an island's stages.

        The last stage has the name of the island that is explained; those before it have numbers too. ``blob_bytes`` is
        the size of the blobs between stages, ``transport`` takes them there. With ``Transport.BYTES`` the last stage
        gives rows in the form ``arrow``.
        """
        return _StageWorks(run, options, explanation, blob_bytes, transport, arrow).last()

    def function(self, context: SparkContext | None) -> StageFunction:
        """Make the function of the stage's tasks, which report to a context's metrics if one is given."""
        accumulator = None
        if context is not None:
            accumulator = accumulator_of(context)
            planned = None if self.coalescing is None else self.run.tasks
            store_of(context).register(
                IslandReport(self.work.name, self.description, island=self.explanation, partitions=planned)
            )
        label = f"island_{stage_label(self.work.tree)}_{self.work.name}"
        return stage_function(self.work, label, accumulator=accumulator)


@dataclass(frozen=True)
class LateWork:
    """The work that replaces a stage's if one of its inputs proves small."""

    work: StageWork
    """The work, whose tasks read all rows of that input."""
    small: int
    """Index of that input's exchange."""
    limit: int
    """Most bytes of it, as Spark compresses them."""


_PROVED_SMALL = "an input of a join proved small and was sent to every task; the other was not exchanged"


class _StageWorks:
    """Makes the works of an island's stages, the last one after those before it; see :meth:`StageWork.from_run`."""

    def __init__(
        self, run: IslandRun, options: Options, explanation: IslandOperation, blob_bytes: int, transport: Transport,
        arrow: pa.Schema | None,
    ) -> None:  # fmt: skip
        self._run = run
        if transport is not Transport.BYTES:
            self._run = dataclasses.replace(run, coalescing=None, late_threshold=None)
        self._options = options
        self._explanation = explanation
        self._descriptions = stage_names(explanation)
        self._operations = stage_trees(explanation, whole=transport is Transport.BYTES)
        self._blob_bytes = blob_bytes
        self._transport = transport
        self._arrow = arrow
        self._stores = stores_named(run.stores)
        # Its only task reads everything once: what it reads is of no use to other tasks.
        self._reads_all = run.in_one_task and not run.last.inputs
        self._shared = dict(run.shared) if transport is Transport.BYTES else {}
        """Numbers of exchanges whose rows several stages read, or a stage and the one that may replace it."""
        self._shared_forms: dict[int, BlobFormat] = {}
        self._producers: dict[int, StageWork] = {}
        """The producer of each exchange, by its index."""

    def last(self) -> StageWork:
        """Make the work of the last stage."""
        assert self._explanation.name is not None
        work = self._work_of(self._run.last, None, self._explanation.name)
        return dataclasses.replace(work, explanation=self._explanation)

    def _work_of(self, run: StageRun, outlet: Outlet | None, name: str, number: int | None = None) -> StageWork:
        stage, late = run.stage, self._run.late(run)
        if late is not None:  # both ways read the same rows
            both = (late.planned.small, *late.planned.large.producer.inputs)
            self._shared.update({e.index: -1 - e.index for e in both if e.index not in self._shared})
        forms = self._forms_of(stage)
        labelled = partition_labels if self._transport is Transport.ROWS else np.arange
        places = labelled(run.tasks).tolist() if forms else []
        split = self._run.splits(run)
        divisions = {} if split is None else split.divisions
        outlets = [
            Outlet.from_exchange(exchange, form, places, self._blob_bytes, divisions.get(exchange.index, 1))
            for exchange, form in zip(stage.inputs, forms, strict=True)
        ]
        inputs = tuple(
            self._work_of(before, out, f"{name}_{place}", self._shared.get(exchange.index))
            for place, (before, out, exchange) in enumerate(zip(run.inputs, outlets, stage.inputs, strict=True))
        )
        self._producers.update(zip((exchange.index for exchange in stage.inputs), inputs, strict=True))
        work = RunStage(
            stage.tree,
            TaskReads.from_reads(run.reads),
            tuple(exchange.index for exchange in stage.inputs) if stage.spark is None else (stage.spark.source,),
            forms,
            tuple(places) if stage.branches else (),
            outlet,
            self._options,
            name,
            self._run.keeps_tables,
            self._stores,
            self._transport,
            self._arrow if outlet is None else None,
            frozenset() if self._reads_all else stage.read_by_all,
            split=None if split is None else split.planned,
        )
        coalescing = self._run.coalescing if self._run.coalesces(stage) else None
        late_work = None if late is None else self._late_work_of(late, work)
        return StageWork(
            run, self._descriptions[name], self._operations[name], work, inputs, number, coalescing, split, late_work
        )

    def _late_work_of(self, late: LateRun, work: RunStage) -> LateWork:
        stage = late.run.stage
        fused = dataclasses.replace(
            work,
            tree=stage.tree,
            reads=TaskReads.from_reads(late.run.reads),
            sources=tuple(exchange.index for exchange in stage.inputs),
            forms=self._forms_of(stage),
            labels=tuple(range(late.run.tasks)) if stage.branches else (),
            whole=stage.read_by_all,
            remark=_PROVED_SMALL,
            split=None,
        )
        inputs = tuple(self._producers[exchange.index] for exchange in stage.inputs)
        stage_work = StageWork(late.run, self._descriptions[work.name], self._operations[work.name], fused, inputs)
        return LateWork(stage_work, late.planned.small.index, late.limit)

    def _forms_of(self, reader: Stage) -> tuple[BlobFormat, ...]:
        return tuple(self._form_of(reader, exchange, place) for place, exchange in enumerate(reader.inputs))

    def _form_of(self, reader: Stage, exchange: Exchange, place: int) -> BlobFormat:
        """Give the form of an exchange's blobs; readers that share the rows read one form."""
        number, compression = self._shared.get(exchange.index), self._options.exchange_compression
        if number is None:
            return BlobFormat(exchange.schema, compression, place, labelled=not self._run.coalesces(reader))
        if number not in self._shared_forms:
            tag, labelled = _MOST_SOURCES + len(self._shared_forms), not self._run.adapts
            self._shared_forms[number] = BlobFormat(exchange.schema, compression, tag, labelled=labelled)
        return self._shared_forms[number]


class IslandPlacer:
    """Puts stages of Python tasks in the place of an island."""

    def __init__(self, spark: SparkSession, conf: Mapping[str, str], rewriting: Rewriting, island: Island) -> None:
        self._spark = spark
        self._conf = conf
        self._rewriting = rewriting
        self._island = island
        self._commands = bytearray()
        self._broadcasts: list[Any] = []
        self._described: set[int] = set()
        """Numbers of the stages that several stages read and that are described already."""

    def place(
        self,
        run: IslandRun,
        options: Options,
        explanation: IslandOperation,
        nbytes: float | None = None,
    ) -> None:
        """Put the stages in the island's place.

        The last has the name of the island that is explained; those before it have numbers too. Spark takes the rows
        to have ``nbytes``; ``None``: as many as it takes those of the plan to have.
        """
        island = self._island
        named = named_attributes(island)
        context = self._spark.sparkContext
        schema = schema_of(island, named)
        arrow = arrow_form(schema) if _may_send_bytes(run, options) else None
        exchange = None if arrow is None else byte_exchange(gateway_of(self._spark))
        if exchange is None:
            size = blob_bytes(self._conf.get, options.exchange_blob_bytes)
            work = StageWork.from_run(run, options, explanation, size)
        else:
            work = StageWork.from_run(
                run, options, explanation, options.exchange_blob_bytes, Transport.BYTES, arrow
            )  # fmt: skip
        described: dict[str, Any] = {
            "stage": self._stage(work, schema),
            "columns": column_numbers(island, named),
            "bytes": None if nbytes is None else int(min(nbytes, _LARGEST)),
            "python": {
                "environment": context.environment,
                "includes": shipped_files(context),
                "executable": context.pythonExec,
                "version": context.pythonVer,
                "kind": PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
                "direct": has_direct_partition_ids(),
            },
        }
        if island.aggregation is not None and island.finish is not Finish.NOTHING:
            described |= describe_finish(island, island.aggregation)
        with without_logs_of_calls() if run.stores else nullcontext():
            self._rewriting.place(
                island.node, described, bytes(self._commands),
                java_accumulator(context),
                self._broadcasts or None,
                exchange,
            )  # fmt: skip

    def _stage(self, work: StageWork, schema: StructType) -> dict[str, Any]:
        """Describe the tasks of a stage, which give rows, or blob rows for an exchange."""
        if work.shared is not None:
            if work.shared in self._described:
                return {"shared": work.shared}
            self._described.add(work.shared)
        run, inputs = work.run, [self._stage(before, _BLOB_ROWS) for before in work.inputs]
        late = None if work.late is None else self._late(work, work.late, schema)
        function = work.function(self._spark.sparkContext)  # which is known by the name that both have
        return {
            "late": late,
            "name": function.__name__,
            "shown": progress_name(work.description),
            "operations": work.operations,
            "schema": schema.json(),
            "tasks": run.tasks,
            "inputs": inputs,
            "announced": work.work.labels,
            "shared": work.shared,
            "coalescing": describe_coalescing(run.stage, work.coalescing, work.split),
            "divisions": 1 if work.work.outlet is None else work.work.outlet.divisions,
            "spark": None if run.stage.spark is None else self._from_spark(run.stage.spark),
            **self._command(
                (function, schema)
                if work.work.transport is Transport.ROWS
                else (packet_function(function), None, NoOpSerializer(), NoOpSerializer())
            ),
        }

    def _late(self, work: StageWork, late: LateWork, schema: StructType) -> dict[str, Any]:
        """Describe the stage that may replace another one, whose inputs are described already."""
        indexes = [exchange.index for exchange in work.run.stage.inputs]
        exchanges = late.work.run.stage.inputs
        return {
            "stage": self._stage(late.work, schema),
            "small": indexes.index(late.small),
            "limit": late.limit,
            "whole": [exchange.index == late.small for exchange in exchanges],
        }

    def _from_spark(self, spark_input: SparkInput) -> dict[str, Any]:
        """Describe the plan and the columns of rows from Spark."""
        source = self._island.spark_sources[spark_input.rows]
        described: dict[str, Any] = {
            "plan": source.node.number,
            "columns": [column.number for column in source.columns],
        }
        if source.first is not None:
            places = {column.expr_id: n for n, column in enumerate(source.columns)}
            described["equal"] = [places[i] for i in source.first.equal]
            described["order"] = [(places[i], *directed) for i, *directed in source.first.order]
        return described

    def _command(self, called: tuple[Any, ...]) -> dict[str, Any]:
        """Pickle a function, with what a worker has to know of it, as PySpark does; a large one is broadcast."""
        start, context = len(self._commands), self._spark.sparkContext
        command = CloudPickleSerializer().dumps(called)  # type: ignore[no-untyped-call]
        described: dict[str, Any] = {}
        broadcasts = [*self._island.broadcasts]
        if len(command) > _BROADCAST_BYTES:
            command, of_command, _, _ = _prepare_for_python_RDD(context, called)
            broadcasts += of_command
        if broadcasts:
            described["broadcasts"] = len(self._broadcasts)
            self._broadcasts.append(broadcasts)
        self._commands += command
        return {**described, "command": [start, len(self._commands)]}


_MOST_SOURCES = 1 << 16
"""No stage has so many sources: tags from here on are of blobs that several stages read."""
_BLOB_ROWS = StructType().add("p", IntegerType()).add("side", ByteType()).add("data", BinaryType())
_LARGEST = (1 << 63) - 1
"""The size that Spark gives to a plan of unknown size."""
_BROADCAST_BYTES = 1 << 20
"""Functions that are larger when pickled are broadcast, if ``spark.broadcast.UDFCompressionThreshold`` says so too."""


def _may_send_bytes(run: IslandRun, options: Options) -> bool:
    """Whether an island's stages may exchange bytes: there are several, and none takes rows from Spark."""
    return (
        options.exchange_transport is Transport.BYTES
        and bool(run.last.inputs)
        and all(stage.stage.spark is None for stage in run.last.walk())
    )


def sends_bytes(island: Island, run: IslandRun, options: Options) -> bool:
    """Tell whether an island's stages exchange bytes, and the JVM reads the form of its rows."""
    return _may_send_bytes(run, options) and arrow_form(schema_of(island, named_attributes(island))) is not None


def describe_coalescing(stage: Stage, coalescing: Coalescing | None, split: SplitRun | None) -> dict[str, Any] | None:
    """Describe how small partitions of a stage are coalesced and heavy ones split; ``None``: neither is done."""
    if coalescing is None:
        return None
    return {
        "tasks": coalescing.tasks,
        "least": coalescing.least_bytes,
        "most": coalescing.most_bytes,
        "copies": [exchange.replicated for exchange in stage.inputs],
        "splitting": None if split is None else _describe_splitting(stage, split),
    }


def _describe_splitting(stage: Stage, split: SplitRun) -> dict[str, Any]:
    places = {exchange.index: place for place, exchange in enumerate(stage.inputs)}
    return {
        "left": places[split.planned.left],
        "right": places[split.planned.right],
        "divided": [side in split.planned.sides for side in Side],
        "unmatched": split.planned.finds_unmatched,
        "factor": split.splitting.factor,
        "threshold": split.splitting.threshold,
        "bytes": split.splitting.share_bytes,
        "packets": list(share_packets().values()),
    }
