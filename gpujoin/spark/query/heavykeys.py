"""Heavy keys of an island's exchanges: a small job that looks at the first rows of what will be exchanged."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from gpujoin.config import BackendChoice, Options, Skew
from gpujoin.model.jointype import Side
from gpujoin.model.relations import Limit, Relation
from gpujoin.plan.splitting import SplitJoin, cheap_to_sample, split_joins
from gpujoin.spark.blobrows import BlobFormat
from gpujoin.spark.failures import is_survivable
from gpujoin.spark.query.exchanges import HeavyRows, Outlet
from gpujoin.spark.skew import SAMPLE_DDL, SAMPLE_ROWS, counted, heavy_keys, samples_of
from gpujoin.spark.stages import stage_function

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gpujoin.model.stages import Exchange
    from gpujoin.spark.query.choice import IslandRun, Reads, StageRun
    from gpujoin.spark.worker import Batches, Task

EXCHANGED_BYTES = 256 << 20
"""Smaller inputs of a join, as estimated, are not looked at unasked: their join ends sooner than the look would."""

PARTS = 8
"""So many tasks of a stage are looked at."""

_log = logging.getLogger("gpujoin")


@dataclass(frozen=True)
class _Part:
    """What one task looks at.

    Attributes
    ----------
    number : int
        Of the exchange.
    tree : Relation
        What is exchanged.
    reads : mapping
        Files, cut to one row group.
    outlet : Outlet
        Which knows the keys.
    """

    number: int
    tree: Relation
    reads: Reads
    outlet: Outlet

    def look(self, options: Options) -> pa.RecordBatch:
        """Count the keys of the first rows."""
        from gpujoin.engine.pipeline import run

        taken, hashes = 0, []
        for rows in run(Limit(self.tree, SAMPLE_ROWS), {}, self.reads, options=options):
            taken += rows.num_rows
            mask, found = self.outlet.null_mask(rows), self.outlet.hashes(rows)
            hashes.append(found if mask is None else found[~mask])
        return counted(self.number, taken, hashes)


@dataclass(frozen=True)
class SampleExchanges:
    """Looks at parts of exchanges.

    Attributes
    ----------
    parts : tuple of _Part
        One for each number that comes in.
    options : Options
        Settings.
    """

    parts: tuple[_Part, ...]
    options: Options

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Look at the parts whose numbers come in."""
        del task
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield self.parts[number].look(self.options)


def find_heavy_rows(
    spark: SparkSession, run: IslandRun, options: Options, name: str
) -> Mapping[int, HeavyRows]:
    """Look for keys whose rows should be split over partitions; a failure to look is no failure of the query.

    Parameters
    ----------
    spark : SparkSession
        A classic session.
    run : IslandRun
        The stages.
    options : Options
        Settings.
    name : str
        Of the island.

    Returns
    -------
    mapping of int to HeavyRows
        By the index of the exchange; of those that have any.
    """
    if options.exchange_skew is Skew.OFF:
        return {}
    joins = [(one, join) for one in _stages(run.last) if one.tasks > 1 for join in split_joins(one.stage)]
    joins = [(one, join) for one, join in joins if _worth_a_look(one, join, options.exchange_skew)]
    if not joins:
        return {}
    parts = tuple(part for one, join in joins for side in Side for part in _parts(one, join.source(side)))
    # One thread each, and no GPU: there are few rows.
    work = SampleExchanges(parts, options.replace(backend=BackendChoice.CPU, cpu_threads=1))
    numbers = spark.range(0, len(parts), 1, len(parts))
    try:
        samples = samples_of(numbers.mapInArrow(stage_function(work, f"{name}_sample"), SAMPLE_DDL).toArrow())
    except BaseException as problem:  # whatever else is wrong with the input, the query itself will tell
        if not is_survivable(problem):
            raise
        _log.debug("no look for heavy keys: %s", problem)
        return {}
    found: dict[int, HeavyRows] = {}
    for one, join in joins:
        seen = {side: samples[join.source(side)] for side in Side}
        sizes = {side: _exchange(one, join.source(side)).nbytes for side in Side}
        heavy = heavy_keys(seen, sizes, join.sides, one.tasks)
        if heavy is not None:
            found |= {join.source(side): HeavyRows(heavy, side) for side in Side}
    return found


def _stages(run: StageRun) -> Iterator[StageRun]:
    yield run
    for one in run.inputs:
        yield from _stages(one)


def _exchange(run: StageRun, source: int) -> Exchange:
    return next(one for one in run.stage.inputs if one.index == source)


def _worth_a_look(run: StageRun, join: SplitJoin, mode: Skew) -> bool:
    exchanges = [_exchange(run, join.source(side)) for side in Side]
    if not all(cheap_to_sample(one.producer) for one in exchanges):
        return False
    return mode is Skew.ON or sum(one.nbytes for one in exchanges) >= EXCHANGED_BYTES


def _parts(run: StageRun, source: int) -> Iterator[_Part]:
    """Tasks of an exchange's producer, as far apart as can be."""
    exchange = _exchange(run, source)
    producer = run.inputs[run.stage.inputs.index(exchange)]
    outlet = Outlet.of(exchange, BlobFormat(exchange.schema), (), 0)
    step = -(-len(producer.reads) // PARTS)
    for reads in producer.reads[::step]:
        first = {
            index: tuple(
                one if one.row_groups is None else dataclasses.replace(one, row_groups=one.row_groups[:1])
                for one in files[:1]
            )
            for index, files in reads.items()
        }
        yield _Part(source, producer.stage.tree, first, outlet)
