"""Whether an island is worth taking from Spark, and in how many tasks it runs."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpujoin.cache import Cache
from gpujoin.config import BackendChoice, FallbackMode, Options, Strategy, Transport
from gpujoin.engine.pipeline import supports
from gpujoin.model.backend import BackendName
from gpujoin.model.jointype import Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import PartialAggregate, PythonStep, Relation, Scan
from gpujoin.model.stages import Branch, Distribution, Stage
from gpujoin.plan.cost import Estimate, Prediction, SparkTables, is_hashed, looked_up_rows, predict
from gpujoin.plan.distribution import Hint
from gpujoin.plan.estimates import Sizes
from gpujoin.plan.merging import is_mergeable
from gpujoin.plan.null_groups import with_null_groups
from gpujoin.plan.parts import STAGE_BYTES, ScanFacts, StageLimits
from gpujoin.plan.scanned import bucket_splits
from gpujoin.plan.stages import numbered, plan_one_task, plan_stages
from gpujoin.report.amounts import show_bytes
from gpujoin.spark.catalyst.joins import JOIN
from gpujoin.spark.query.runs import IslandRun, StageRun, shared_exchanges
from gpujoin.spark.query.trees.builder import UNKNOWN_ROWS
from gpujoin.spark.worker.taskreads import Reads

if TYPE_CHECKING:
    from gpujoin.spark.query.island import Island
    from gpujoin.spark.query.trees.builder import ScanSource

_OF_GPU_JOIN = "strategy= or backend= of gpu_join, or spark.gpujoin.costs"
_OF_SESSION = "spark.gpujoin.backend=cpu or gpu for the session, or spark.gpujoin.costs"

GATHERED_BYTES = 2 << 20
"""Rows of up to so many bytes, estimated, go on to one task: a task costs as much as to aggregate some megabytes
(docs/performance.md, "Exchanges")."""
_SPARK_EXCHANGED = 4.0
"""What it costs Spark to take a byte of partial results, to shuffle and to merge it, in compressed bytes read."""
_MOST_OUTLAYS = 1000
_KEEPS_TABLES = "workers keep what they have read of tables while the files stay the same"


@dataclass(frozen=True)
class Once:
    """Seconds of a query that are spent once."""

    start: float = 0.0
    """To start the application's first workers."""
    tables: float = 0.0
    """To read and build the tables that a stream is joined with."""
    spark: float = 0.0
    """Seconds in which Spark generates and compiles the first code of a program."""

    @property
    def here(self) -> float:
        """All of them that are spent here."""
        return self.start + self.tables

    def added_to(self, estimate: Estimate) -> Estimate:
        """Add them to the seconds of a query."""
        return dataclasses.replace(estimate, here=estimate.here + self.here, spark=estimate.spark + self.spark)

    def shown_here(self) -> str:
        """Write the seconds spent once here, and their purpose, after the predicted ones."""
        spent = [(self.start, "start workers"), (self.tables, "read the tables")]
        for_what = " and ".join(purpose for seconds, purpose in spent if seconds)
        return f" ({self.here:.2g} s of them to {for_what}, once)" if for_what else ""

    def shown_spark(self) -> str:
        """Write Spark's, to follow the seconds predicted of Spark."""
        return f" ({self.spark:.2g} s of them to compile its first code, once)" if self.spark else ""


class Outlay:
    """Seconds that are spent once, such as the start of an application's workers, and whether they pay.

    What queries would have gained without them is added up: from when on that is as much, they cost nothing. ::

        start 1.5 s; a query of 1.0 s in Spark, 0.3 s here
        first: 0.3 + 1.5 > 1.0      in Spark, 0.7 s missed
        second: 0.3 + 0.8 > 1.0     in Spark, 1.4 s missed
        third: 0.3 + 0.1 < 1.0      here
    """

    def __init__(self) -> None:
        self._missed: Cache[str, float] = Cache(_MOST_OUTLAYS)
        self._lock = threading.Lock()

    def seconds(self, name: str, price: float) -> float:
        """Give the part of a price that a query still has to bear; ``name`` is what the price is for."""
        return max(0.0, price - (self._missed.get(name) or 0.0))

    def begun(self, name: str) -> None:
        """Note that it is paid."""
        self.missed(name, math.inf)

    def missed(self, name: str, seconds: float) -> None:
        """Add what a query would have gained from an earlier outlay."""
        if seconds > 0:
            with self._lock:
                self._missed.put(name, (self._missed.get(name) or 0.0) + seconds)


def predict_island(
    island: Island,
    run: IslandRun,
    options: Options,
    cores: int,
    spark_threshold: int,
    *,
    built_tables: Collection[Relation] = (),
    adapts: bool = True,
) -> Prediction:
    """Predict the seconds of an island here, with workers started, and in Spark.

    Spark broadcasts tables of up to ``spark_threshold`` bytes, and ``adapts`` where they prove to be small. Workers
    have the tables in ``built_tables`` already. How many of Spark's rows its own filters keep is not known: all are
    taken here, and as few as usual are joined in Spark.
    """
    scan_bytes = {index: float(source.files.nbytes) for index, source in island.sources.items()}
    rows = {index: float(source.node.size_bytes or math.inf) for index, source in enumerate(island.spark_sources)}
    tables = SparkTables(scan_bytes, spark_threshold, rows, adapts)
    return predict(
        island.plain, island.sizes, cores, run.exchanges, options.costs, built_tables=built_tables, tables=tables,
        least=_least_sizes(island),
    )  # fmt: skip


def _least_sizes(island: Island) -> Sizes | None:
    """Give the sizes if Spark's filters keep as few rows as usual; ``None``: no rows are Spark's."""
    spark_rows = {index: source.least_rows for index, source in enumerate(island.spark_sources)}
    return Sizes(island.sizes.scanned, spark_rows=spark_rows) if spark_rows else None


def finishes_sooner(island: Island, run: IslandRun, finished: IslandRun) -> bool:
    """Tell whether workers finish an aggregation sooner than Spark, which shuffles all partial results.

    ``finished`` is the run in which workers finish it; one task that reads everything is none. Calls without mergeable
    partial results are left out where rows are exchanged, perhaps a million for each group.
    """
    tasks = finished.last.tasks
    if not (tasks > 1 if not finished.last.inputs else tasks == 1 or _merges(island)):
        return False
    shuffled = _SPARK_EXCHANGED * island.output_bytes * max(1, run.tasks)
    return finished.last.stage.cost <= run.last.stage.cost + STAGE_BYTES + shuffled


def _merges(island: Island) -> bool:
    """Whether the partial results of an island can be merged by tasks of its own."""
    groups = next(node for node in island.plain.walk() if isinstance(node, PartialAggregate))
    return is_mergeable(groups.aggregates, groups.schema)


def skip_reason(
    island: Island, options: Options, estimate: Estimate, once: Once, spark_threshold: int
) -> Reason | None:
    """Tell why an island is left to Spark, if it is.

    The estimate has the seconds that are spent ``once``. Spark broadcasts tables of up to ``spark_threshold`` bytes.
    """
    if options.backend is BackendChoice.GPU and options.fallback is FallbackMode.RAISE:
        obstacles = supports(island.relation, BackendName.GPU)
        if obstacles:
            return obstacles[0]
    if options.strategy is not Strategy.AUTO or options.backend is not BackendChoice.AUTO:
        return None
    named = any(node.request is not None for node in island.own_nodes())
    setting = _OF_GPU_JOIN if named else _OF_SESSION
    if island.streamed and _only_broadcasts(island, spark_threshold):
        why = "Spark broadcasts the tables, and looks up the rows of each micro-batch"
        return Reason(ReasonKind.SLOWER, "cost", why, setting)
    if not island.sources and not island.spark_sources:
        return Reason(ReasonKind.SLOWER, "cost", "all rows are part of the query, and few", setting)
    rows = looked_up_rows(island.plain, _least_sizes(island) or island.sizes, spark_threshold)
    if rows > UNKNOWN_ROWS and not island.as_of_joins:
        why = f"about {rows:,.0f} rows would be taken from Spark, which broadcasts what they are joined with"
        return Reason(ReasonKind.SLOWER, "cost", why, setting)
    if estimate.is_faster or island.as_of_joins:  # what Spark takes for these, which sorts both sides, is not predicted
        return None
    digits = next((n for n in range(2, 6) if f"{estimate.here:.{n}g}" != f"{estimate.spark:.{n}g}"), 2)
    here, spark = f"{estimate.here:.{digits}g} s", f"{estimate.spark:.{digits}g} s"
    why = f"about {here} are predicted here{once.shown_here()}, {spark} in Spark{once.shown_spark()}"
    if any(rows.guessed for rows in island.spark_sources):  # seconds of rows that nobody has counted are no prediction
        why = f"an input of unknown size was taken to have {UNKNOWN_ROWS:,.0f} rows"
    return Reason(ReasonKind.SLOWER, "cost", why, setting)


def _only_broadcasts(island: Island, spark_threshold: int) -> bool:
    """Whether Spark shuffles nothing for the joins of an island, and compares no pairs: a Python stage costs more."""
    if not all(map(is_hashed, island.joins)):
        return False
    tables = [
        (table, node.hints.get(side))
        for node in island.own_nodes()
        if node.class_name == JOIN
        for side in Side
        if not (table := node.child(side)).streaming
    ]
    return all(
        hint is Hint.BROADCAST
        or (hint is None and table.size_bytes is not None and table.size_bytes <= spark_threshold)
        for table, hint in tables
    )


def arrange(
    island: Island, options: Options, cores: int, *, local: bool, shuffle_partitions: int
) -> IslandRun | Reason:
    """Decide tasks and threads.

    Spark runs ``cores`` tasks at once (``local``: as threads of one process on this machine), and has
    ``shuffle_partitions`` tasks after a shuffle of its own.
    """
    calls = any(isinstance(node, PythonStep) for node in island.relation.walk())
    limits = StageLimits(
        cores, options.scan_task_bytes, options.broadcast_threshold,
        partitions=options.exchange_partitions, guessed_partitions=shuffle_partitions,
        indeterminate_keys=0 < len(island.joins) == len(island.as_of_joins), keeps_tables=island.streamed,
        gathered_bytes=0 if calls else GATHERED_BYTES,
    )  # fmt: skip
    if island.streamed:
        streamed = _in_stages(island, options, limits)
        if streamed is not None and not streamed.last.inputs:
            notes = (*streamed.notes, _KEEPS_TABLES)
            return dataclasses.replace(streamed, keeps_tables=True, notes=notes)
    if options.strategy is not Strategy.AUTO and any(
        join.distribution is not Distribution.ANY for join in island.joins
    ):
        several = dataclasses.replace(limits, cores=max(2, cores))
        return _in_stages(island, options, several) or _one_task(island, options, limits, cores if local else 1)
    small = island.work_bytes <= (options.scan_one_task_bytes if local else options.scan_task_bytes)
    if calls:  # a function holds Python's interpreter, so that threads of one task call none at the same time
        staged = _in_stages(island, options, limits)
        if staged is not None:
            return staged
    elif local and small and not _may_stream(island):
        return _one_task(island, options, limits, cores)
    else:
        staged = _in_stages(island, options, limits)
        if staged is not None and (not small or _reads_little(island, staged)):
            return staged
    if local or small or (options.strategy is not Strategy.AUTO and island.joins):
        return _one_task(island, options, limits, cores if local else 1)
    return Reason(
        ReasonKind.SLOWER, "size",
        f"{show_bytes(island.nbytes)} are to be read, and its rows cannot be shared out among tasks",
        "spark.gpujoin.scan.taskBytes",
    )  # fmt: skip


def _may_stream(island: Island) -> bool:
    """Whether each task could read all files, beside its rows from Spark; see :func:`_reads_little`."""
    files = sum(source.files.nbytes for source in island.sources.values())
    return len(island.spark_sources) == 1 and files < island.spark_sources[0].nbytes


def _reads_little(island: Island, run: IslandRun) -> bool:
    """Whether nothing is exchanged, and the files that every task reads are smaller than the rows from Spark."""
    stage = run.last.stage
    if stage.exchanges:
        return False
    if stage.spark is None:
        return True
    repeated = sum(island.sources[run.scans[index]].files.nbytes for index in stage.replicated)
    return repeated < island.spark_sources[stage.spark.rows].nbytes


def _one_task(island: Island, options: Options, limits: StageLimits, threads: int) -> IslandRun:
    relation, scans = numbered(with_null_groups(island.relation))
    stage = plan_one_task(relation, limits)
    note = (
        "one task reads everything, and is sent the rows from Spark"
        if stage.inputs
        else "one task reads everything: nothing is exchanged"
    )
    return IslandRun(
        _run_of(island, stage, scans, options, limits.cores), scans, threads, (note,), stores=island.stores
    )


def _in_stages(island: Island, options: Options, limits: StageLimits) -> IslandRun | None:
    """Share the rows out among tasks; early filters that cost more than they save are left out."""
    best: IslandRun | None = None
    for relation in dict.fromkeys((island.relation, island.plain)):
        tree, scans = numbered(relation)
        files_of_scans = [island.sources[index].files for index in scans]
        facts = {
            number: ScanFacts(files.rows, files.work_bytes, len(files.files), island.sources[index].buckets)
            for number, (index, files) in enumerate(zip(scans, files_of_scans, strict=True))
        }
        stage = plan_stages(tree, facts, limits)
        if stage is None or (best is not None and stage.cost >= best.last.stage.cost):
            continue
        last = _run_of(island, stage, scans, options, limits.cores)
        if last.tasks < 2 and not last.inputs and stage.spark is None:
            continue
        best = IslandRun(last, scans, 1, tuple(_notes(island, last, scans)), stores=island.stores)
    return best if best is None else _with_shared(best, options)


def _with_shared(run: IslandRun, options: Options) -> IslandRun:
    """Have stages alike run once, where blobs are exchanged as bytes."""
    if options.exchange_transport is not Transport.BYTES:
        return run
    return dataclasses.replace(run, shared=shared_exchanges(run.last))


def _run_of(island: Island, stage: Stage, scans: tuple[int, ...], options: Options, cores: int) -> StageRun:
    inputs = tuple(_run_of(island, exchange.producer, scans, options, cores) for exchange in stage.inputs)
    return StageRun(stage, _reads(island, stage, scans, cores, options.scan_task_bytes), inputs)


def _reads(island: Island, stage: Stage, scans: tuple[int, ...], cores: int, task_bytes: int) -> tuple[Reads, ...]:
    """For each task of a stage what it reads."""
    own = [scan.index for scan in stage.tree.walk() if isinstance(scan, Scan)]
    files = {index: island.sources[scans[index]].files.files for index in own}
    if not stage.branches:
        return (files,)
    reads: list[Reads] = []
    for branch in stage.branches:
        always: Reads = {index: files[index] if index in branch.replicated else () for index in own}
        if branch.partitioned is None:
            reads.append(always)
            continue
        if branch.bucketed:
            reads += _bucket_reads(island, branch, scans, always, cores, task_bytes)
            continue
        parts = island.sources[scans[branch.partitioned]].files.splits(cores, task_bytes)
        reads += [{**always, branch.partitioned: part} for part in parts or [()]]
    return tuple(reads)


def _bucket_reads(
    island: Island, branch: Branch, scans: tuple[int, ...], always: Reads, cores: int, task_bytes: int
) -> Iterator[Reads]:
    """Give what tasks read of scans that are divided by buckets."""
    sources = [(island.sources[scans[index]], column) for index, column in branch.bucketed]
    tasks = max(cores, math.ceil(sum(source.files.nbytes for source, _ in sources) / task_bytes))
    tables = [(source.files.files, source.buckets[column]) for source, column in sources]
    for parts in bucket_splits(tables, tasks):
        yield {**always, **{index: part for (index, _), part in zip(branch.bucketed, parts, strict=True)}}


def _notes(island: Island, run: StageRun, scans: tuple[int, ...]) -> Iterator[str]:
    for producer in run.inputs:
        yield from _notes(island, producer, scans)
    stage = run.stage
    whole = stage.replicated.union(*(branch.replicated for branch in stage.branches if branch.partitioned is not None))
    repeated = sum(island.sources[scans[index]].files.nbytes for index in whole)
    also = f", {show_bytes(repeated)} are read by every task" if whole else ""
    for branch in stage.branches:
        if branch.bucketed:
            names = dict.fromkeys(_name(island.sources[scans[index]]) for index, _ in branch.bucketed)
            verb, whose = ("are", "their") if len(names) > 1 else ("is", "its")
            yield f"{' and '.join(names)} {verb} divided among tasks by the buckets that {whose} files are in{also}"
        elif branch.partitioned is not None:
            yield f"{_name(island.sources[scans[branch.partitioned]])} is divided among tasks{also}"
    keyed = sum(bool(exchange.columns) for exchange in stage.inputs)
    if keyed:
        inputs = "inputs are" if keyed > 1 else "input is"
        yield f"{keyed} {inputs} exchanged by key into {run.tasks} partitions{also}"
    filters = sum(exchange.filters for exchange in stage.inputs)
    replicas = sum(exchange.replicated for exchange in stage.inputs) - filters
    spread = len(stage.inputs) - keyed - replicas - filters
    if spread:
        inputs = "inputs are" if spread > 1 else "input is"
        yield f"{spread} {inputs} shared out among {run.tasks} tasks{also}"
    if replicas:
        yield f"{replicas} {'inputs are' if replicas > 1 else 'input is'} sent to every task"
    if filters:
        inputs = "keys of other inputs" if filters > 1 else "keys of another input"
        yield f"{inputs} drop rows before they are exchanged"
    if stage.spark is not None and stage.tree.children:
        yield f"rows from Spark are joined in the tasks that compute them{also}"


def _name(source: ScanSource) -> str:
    return source.name if source.files.paths else "an empty table"
