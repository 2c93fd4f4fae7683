"""Heavy keys of an island's exchanges: a small job that looks at the first rows of what will be exchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame

from gpujoin.config import BackendChoice, Options, Skew
from gpujoin.logs import log
from gpujoin.model.jointype import Side
from gpujoin.model.relations import ExchangeSource, Limit, Relation
from gpujoin.model.stages import DeterminismLevel
from gpujoin.plan.splitting import ExchangedJoin, cheap_to_sample, split_joins
from gpujoin.spark.failures import is_survivable
from gpujoin.spark.jvm.gateway import dataframe_of, first_of_partitions
from gpujoin.spark.query.activity import doing
from gpujoin.spark.query.stores import without_logs_of_calls
from gpujoin.spark.shuffle.blobrows import BlobFormat
from gpujoin.spark.shuffle.exchanges import HeavyRows, Outlet
from gpujoin.spark.shuffle.scattering import conform
from gpujoin.spark.shuffle.skew import SAMPLE_DDL, SAMPLE_ROWS, counted, heavy_keys, samples_of
from gpujoin.spark.worker.functions import stage_function
from gpujoin.storage.locations import know_stores, stores_named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gpujoin.model.stages import Exchange
    from gpujoin.model.stores import Store
    from gpujoin.spark.query.runs import IslandRun, StageRun
    from gpujoin.spark.query.trees.builder import SparkRows
    from gpujoin.spark.worker.task import Batches, Task
    from gpujoin.spark.worker.taskreads import Reads

EXCHANGED_BYTES = 256 << 20
"""Smaller inputs of a join, as estimated, are not looked at unasked: their join ends sooner than the look would."""

PARTS = 8
"""So many tasks of a stage are looked at."""


@dataclass(frozen=True)
class _Part:
    """What one task looks at."""

    number: int
    """Number of the exchange."""
    tree: Relation
    """What is exchanged."""
    reads: Reads
    """Files, cut to one row group."""
    outlet: Outlet
    """Which knows the keys."""

    def look(self, options: Options, sources: Mapping[int, Iterator[pa.RecordBatch]] | None = None) -> pa.RecordBatch:
        """Count the keys of the first rows."""
        from gpujoin.engine.pipeline import run

        taken, hashes = 0, []
        for rows in run(Limit(self.tree, SAMPLE_ROWS), sources or {}, self.reads, options=options):
            taken += rows.num_rows
            mask, row_hashes = self.outlet.null_mask(rows), self.outlet.hashes(rows)
            hashes.append(row_hashes if mask is None else row_hashes[~mask])
        return counted(self.number, taken, hashes)


@dataclass(frozen=True)
class SampleExchanges:
    """Looks at parts of exchanges."""

    parts: tuple[_Part, ...]
    """One for each number that comes in."""
    options: Options
    """Settings."""
    stores: Mapping[str, Store]
    """Those that files are in, by name."""

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Look at the parts whose numbers come in."""
        del task
        know_stores(self.stores)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield self.parts[number].look(self.options)


@dataclass(frozen=True)
class SampleRows:
    """Looks at the first rows of a partition that Spark computes."""

    part: _Part
    """What to look at."""
    source: int
    """Index of the source that takes the rows in."""
    schema: pa.Schema
    """Columns of the rows."""
    options: Options
    """Settings."""

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Look at the rows that come in."""
        del task
        rows = (conform(batch, self.schema) for batch in batches if batch.num_rows)
        yield self.part.look(self.options, {self.source: rows})
        for _ in rows:  # Spark ends a worker that leaves input unread
            pass


def find_heavy_rows(
    spark: SparkSession, run: IslandRun, options: Options, name: str, spark_rows: Sequence[SparkRows]
) -> Mapping[int, HeavyRows]:
    """Look for keys whose rows should be split over partitions, by the index of the exchange.

    A failure to look is no failure of the query. The first rows of the inputs that Spark computes are computed once
    more than the island has them computed.
    """
    if options.exchange_skew is Skew.OFF:
        return {}
    joins = [(stage, join) for stage in _stages(run.last) if stage.tasks > 1 for join in split_joins(stage.stage)]
    joins = [(stage, join) for stage, join in joins if _worth_a_look(stage, join, options.exchange_skew, spark_rows)]
    if not joins:
        return {}
    # One thread each, and no GPU: there are few rows.
    options = options.replace(backend=BackendChoice.CPU, cpu_threads=1)
    producers = [_producer(stage, join.source(side)) for stage, join in joins for side in Side]
    parts = tuple(part for exchange, before in producers for part in _parts(exchange, before))
    try:
        looks = [
            _look_at_rows(spark, *producer, options, name, spark_rows)
            for producer in producers
            if producer[1].stage.spark
        ]
        if parts:
            work = stage_function(SampleExchanges(parts, options, stores_named(run.stores)), f"{name}_sample")
            with without_logs_of_calls() if run.stores else nullcontext():
                looks.append(spark.range(0, len(parts), 1, len(parts)).mapInArrow(work, SAMPLE_DDL))
        with doing("a sample of exchanged keys"):
            samples = samples_of(reduce(DataFrame.union, looks).toArrow())
    except BaseException as problem:  # whatever else is wrong with the input, the query itself will tell
        if not is_survivable(problem):
            raise
        log.debug("no look for heavy keys: %s", problem)
        return {}
    heavy_rows: dict[int, HeavyRows] = {}
    for stage, join in joins:
        seen = {side: samples[join.source(side)] for side in Side}
        sizes = {side: _exchange(stage, join.source(side)).nbytes for side in Side}
        heavy = heavy_keys(seen, sizes, join.sides, stage.tasks)
        if heavy is not None:
            heavy_rows |= {join.source(side): HeavyRows(heavy, side) for side in Side}
    return heavy_rows


def _stages(run: StageRun) -> Iterator[StageRun]:
    yield run
    for before in run.inputs:
        yield from _stages(before)


def _exchange(run: StageRun, source: int) -> Exchange:
    return next(exchange for exchange in run.stage.inputs if exchange.index == source)


def _producer(run: StageRun, source: int) -> tuple[Exchange, StageRun]:
    """An exchange, and how its producer runs."""
    exchange = _exchange(run, source)
    return exchange, run.inputs[run.stage.inputs.index(exchange)]


def _worth_a_look(run: StageRun, join: ExchangedJoin, mode: Skew, spark_rows: Sequence[SparkRows]) -> bool:
    exchanges = [_exchange(run, join.source(side)) for side in Side]
    taken = [spark_rows[exchange.producer.spark.rows] for exchange in exchanges if exchange.producer.spark is not None]
    if not all(cheap_to_sample(exchange.producer) for exchange in exchanges) or not all(map(_is_plain, taken)):
        return False
    if mode is Skew.ON:
        return True
    # Spark reads such rows from files or memory, without a shuffle.
    read = all(rows.node.level is DeterminismLevel.DETERMINATE for rows in taken)
    return read and sum(exchange.nbytes for exchange in exchanges) >= EXCHANGED_BYTES


def _is_plain(rows: SparkRows) -> bool:
    """Whether rows from Spark are those of their plan, with no other columns."""
    columns = {column.expr_id for column in rows.node.output}
    return rows.first is None and columns.issuperset(column.expr_id for column in rows.columns)


def _look_at_rows(
    spark: SparkSession, exchange: Exchange, producer: StageRun, options: Options, name: str,
    spark_rows: Sequence[SparkRows],
) -> DataFrame:  # fmt: skip
    """Count the keys of the first rows of each partition that Spark computes."""
    taken = producer.stage.spark
    assert taken is not None
    rows = spark_rows[taken.rows]
    every = dataframe_of(spark, rows.node.jvm)
    places = {column.expr_id: n for n, column in enumerate(rows.node.output)}
    frame = every.toDF(*(f"c{n}" for n in range(len(every.columns))))
    frame = frame.select(*(f"c{places[column.expr_id]}" for column in rows.columns))
    (schema,) = {node.schema for node in producer.stage.tree.walk() if isinstance(node, ExchangeSource)}
    outlet = Outlet.of(exchange, BlobFormat(exchange.schema), (), 0)
    part = _Part(exchange.index, producer.stage.tree, {}, outlet)
    work = stage_function(SampleRows(part, taken.source, schema, options), f"{name}_sample")
    return first_of_partitions(frame, SAMPLE_ROWS).mapInArrow(work, SAMPLE_DDL)


def _parts(exchange: Exchange, producer: StageRun) -> Iterator[_Part]:
    """Tasks of an exchange's producer that read files, as far apart as can be."""
    if producer.stage.spark is not None:
        return
    outlet = Outlet.of(exchange, BlobFormat(exchange.schema), (), 0)
    step = -(-len(producer.reads) // PARTS)
    for reads in producer.reads[::step]:
        first = {
            index: tuple(
                file if file.row_groups is None else dataclasses.replace(file, row_groups=file.row_groups[:1])
                for file in files[:1]
            )
            for index, files in reads.items()
        }
        yield _Part(exchange.index, producer.stage.tree, first, outlet)
