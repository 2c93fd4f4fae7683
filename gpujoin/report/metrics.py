"""Metrics of islands that ran on Spark: recorded in tasks, collected by an accumulator, read by :func:`metrics`."""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from pyspark.accumulators import Accumulator, AddingAccumulatorParam
from pyspark.sql import DataFrame

from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.pipeline.clock import OUTPUT
from gpujoin.errors import GpuJoinError, type_name
from gpujoin.model.backend import BackendName
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.report.amounts import show_bytes
from gpujoin.report.explanation import Explanation, QueryReport, html_page
from gpujoin.report.islands import ISLAND
from gpujoin.report.operations import Amounts, IslandOperation, Measurement
from gpujoin.report.outcomes import explanation_of, explanation_of_latest
from gpujoin.report.summary import tally_of
from gpujoin.spark.compat import check_running, is_connect, remote_server
from gpujoin.spark.jvm.gateway import analyzed_plan, end_accumulators_at_once, latest_plan
from gpujoin.spark.jvm.rewrite import MARK, post_metrics
from gpujoin.spark.worker.record import IslandMetrics, TaskRecord

if TYPE_CHECKING:
    from pyspark import SparkContext

_ISLAND = re.compile(rf"{MARK}[0-9a-f]{{12}}")
_ID_LENGTH = len(MARK) + 12
"""Of what stages of one island have in common."""
_STAGES_KEPT = 512
_RUNS_KEPT = 8
_NOTHING = (
    "gpujoin has run nothing of this DataFrame: either its action has not been called, or Spark ran it "
    "(gpujoin.explain says why)"
)


@dataclass(frozen=True, slots=True)
class IslandReport:
    """What is known of the runs of one stage of an island."""

    name: str
    """Its name in Spark's plans: the island's, with a number but for the last stage."""
    description: str
    """Its operations."""
    metrics: IslandMetrics = field(default_factory=IslandMetrics)
    """Counters of the latest run, added up over tasks; all zero while nothing has run."""
    tasks: int = 0
    """Tasks of the latest run."""
    runs: int = 0
    """How many runs are known."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Why tasks of the latest run did not run as planned, and how many of them."""
    island: IslandOperation | None = None
    """The explanation of the island; of its last stage only."""
    partitions: int | None = None
    """Partitions that were planned, of a stage whose small partitions are coalesced once their sizes are known."""

    @property
    def island_name(self) -> str:
        """Name of its island."""
        return self.name[:_ID_LENGTH]

    def __str__(self) -> str:
        title = f"{self.name}: {self.description}"
        if not self.runs:
            return f"{title}\n  not run yet"
        spent = sorted(self.metrics.pipeline.seconds.items(), key=lambda item: -item[1])
        lines = [
            *self.details,
            _duration(self.metrics.seconds, self.island),
            f"seconds: {', '.join(f'{name} {seconds:.3f}' for name, seconds in spent)}",
        ]
        return "\n".join([title, *(f"  {line}" for line in lines)])

    @property
    def details(self) -> tuple[str, ...]:
        """What its tasks did, in sentences; none while nothing has run."""
        if not self.runs:
            return ()
        p = self.metrics.pipeline
        batches = f"{p.output_batches:,} {'batch' if p.output_batches == 1 else 'batches'}"
        lines = [
            f"{_tasks(self.tasks)} on {_backends(self.metrics.joins, self.tasks)}",
            *_input_lines(p),
            f"output {_count(p.output_rows, 'row')} in {batches}, {show_bytes(p.output_bytes)}",
        ]
        if p.device_steps:
            lines.append(
                f"{p.device_steps:,} pieces computed on the GPU, {p.host_steps:,} on the CPU beside it; "
                f"{p.device_retries:,} did not fit at first, {p.cpu_runs:,} times all was begun again on the CPU"
            )
        if self.partitions is not None:
            lines.append(f"{_count(self.partitions, 'partition')} planned, {self.tasks:,} run: their sizes were known")
        joins, blobs = self.metrics.joins, self.metrics.sent
        lines += _join_lines(joins)
        if blobs.rows:
            dropped = f", {blobs.dropped:,} dropped for null keys" if blobs.dropped else ""
            size = show_bytes(blobs.blob_bytes)
            lines.append(f"sent {blobs.rows:,} rows{dropped}, in {blobs.blobs:,} blobs of {size} in all")
        if p.spills or joins.spills:
            written = f"{show_bytes(p.spill_bytes)} of groups and {show_bytes(joins.spill_bytes)} of joins"
            lines.append(f"spilled {written} in {p.spills + joins.spills:,} parts")
        if p.oversized_parts:
            lines.append(f"{p.oversized_parts:,} spilled parts were over the memory budget however often divided")
        lines += [f"{_tasks(count)}: {note}" for note, count in sorted(self.notes.items())]
        if self.runs > 1:
            lines.append(f"the latest of {self.runs} runs")
        return tuple(lines)


def _input_lines(p: PipelineMetrics) -> list[str]:
    """Render what was read, of files and of rows from elsewhere."""
    lines = []
    if p.files or p.skipped_files:
        files = _count(p.files, "file") + (f", {p.skipped_files:,} skipped" if p.skipped_files else "")
        groups = f"{_count(p.row_groups, 'row group')} read, {p.skipped_row_groups:,} skipped"
        left_out = ", those without a match for a join left out" if p.key_filters else ""
        lines.append(f"{files}, {groups}, {_count(p.scanned_rows, 'row')} scanned{left_out}")
    if p.tables_kept:
        lines.append(f"{_count(p.tables_kept, 'table')} kept from an earlier task")
    if p.source_rows:
        lines.append(f"{_count(p.source_rows, 'row')} taken in from Spark or from other stages")
    return lines


def _duration(seconds: float, island: IslandOperation | None) -> str:
    here = None if island is None else island.predicted.seconds
    if island is None or here is None:
        return f"took {seconds:.2f} s"
    return f"took {seconds:.2f} s; predicted were {here:.2g} s, and {island.predicted_spark_seconds:.2g} s in Spark"


class IslandReports(tuple[IslandReport, ...]):  # noqa: SLOT001 - a tuple's cannot hold an attribute
    """Reports of the stages of several islands; ``str()`` and notebooks show :attr:`report`."""

    report: QueryReport
    """The operations of the query, as ``explain`` numbers them, with what was predicted and measured of each."""

    def __new__(cls, reports: Iterable[IslandReport] = (), report: QueryReport | None = None) -> Self:
        """Make reports of stages, which belong to the report of a query."""
        instance = super().__new__(cls, reports)
        instance.report = QueryReport() if report is None else report
        return instance

    def __str__(self) -> str:
        return str(self.report) if self else _NOTHING

    def _repr_html_(self) -> str:
        return html_page(self)

    def to_dict(self) -> dict[str, Any]:
        """Give the report as dictionaries and lists; see :meth:`gpujoin.QueryReport.to_dict`."""
        return self.report.to_dict()

    def to_json(self, *, indent: int | None = None) -> str:
        """Give the report as JSON; see :meth:`gpujoin.QueryReport.to_json`."""
        return self.report.to_json(indent=indent)


def measurements_of(reports: Sequence[IslandReport], cores: int) -> dict[tuple[str, str], Measurement]:
    """Gather what the operations and islands of some stages did.

    Seconds of tasks that ran at once, ``cores`` of them, are divided among these, as predicted ones are.
    """
    measurements: dict[tuple[str, str], Measurement] = {}
    ran = [report for report in reports if report.runs]
    for report in ran:
        pipeline, blobs, at_once = report.metrics.pipeline, report.metrics.sent, max(1, min(report.tasks, cores))
        for name in {*pipeline.seconds, *pipeline.rows, *pipeline.read_rows, OUTPUT}:
            rows, nbytes, seconds = pipeline.rows.get(name), pipeline.bytes.get(name), pipeline.seconds.get(name)
            read_rows = pipeline.read_rows.get(name, rows)
            note = None if read_rows is None or read_rows == rows else f"{_count(read_rows, 'row')} read from the files"
            if name == OUTPUT:
                rows, nbytes = blobs.rows or pipeline.output_rows, blobs.blob_bytes or pipeline.output_bytes
                note = "; ".join(report.details)
            amounts = Amounts(rows=rows, bytes=nbytes, seconds=None if seconds is None else seconds / at_once)
            measurements[report.name, name] = Measurement(amounts, note)
    for island in {report.island_name for report in ran}:
        stages = [report.metrics for report in ran if report.island_name == island]
        seconds = max(0.0, max(each.ended for each in stages) - min(each.began for each in stages))
        last = measurements.get((island, OUTPUT), Measurement())
        measurements[island, ISLAND] = Measurement(dataclasses.replace(last.amounts, seconds=seconds), last.note)
    return measurements


def metrics(frame: DataFrame) -> IslandReports:
    """What the islands in a DataFrame did when they ran.

    Parameters
    ----------
    frame : DataFrame
        A query that gpujoin had a part in: the very DataFrame whose action ran, a result of ``accelerate`` or
        ``gpu_asof_join``, or anything made from one of these two. Over Spark Connect: one that was the latest query, or
        a part of it, as it is of that of ``df.count()``.

    Returns
    -------
    IslandReports
        ``print`` and notebooks show the operations that :func:`gpujoin.explain` shows, with what was measured of them;
        ``report`` has the same for programs. It is a tuple with an :class:`IslandReport` for each stage of each island
        in the frame's plan, in the order in which they were made; empty if there is none. Counters are complete once an
        action has returned; a partition that was attempted several times, or speculatively, counts once.

    Raises
    ------
    GpuJoinError
        If ``frame`` is no DataFrame, or its session has been stopped; over Spark Connect if the server does not plan
        queries with gpujoin.
    """
    if not isinstance(frame, DataFrame):
        raise GpuJoinError(f"metrics() takes a Spark DataFrame, got {type_name(frame)}")
    session = frame.sparkSession
    check_running(session, "metrics()")
    if is_connect(session):
        reports: IslandReports = remote_server().metrics(frame)
        return reports
    explanation = explanation_of_latest(frame)
    ran = explanation is not None and bool(explanation.islands)
    plan = str((analyzed_plan(frame) if ran else latest_plan(frame)).toString())
    explanation = explanation or explanation_of(frame) or Explanation()
    return reports_of(session.sparkContext, explanation, {*re.findall(r"\w+", plan), *_ISLAND.findall(plan)})


def reports_of(context: SparkContext, explanation: Explanation, names: Collection[str] = ()) -> IslandReports:
    """Give the reports of the islands of an explained query, and of those of other ``names``."""
    names = {*names, *(island.name for island in explanation.islands if island.name is not None)}
    reports = store_of(context).reports(lambda stage: stage.name in names or stage.island_name in names)
    there = {island.name for island in explanation.islands}
    others = [report.island for report in reports if report.island is not None and report.name not in there]
    report = dataclasses.replace(explanation, operations=(*explanation.operations, *others))
    return IslandReports(reports, report.with_measurements(measurements_of(reports, context.defaultParallelism)))


class MetricsStore:
    """The driver's records: the latest attempt of each task, of the latest runs of the latest stages."""

    def __init__(self, heard: Callable[[TaskRecord], None] = lambda _: None) -> None:
        """Keep none yet; ``heard`` is called with each record."""
        self._lock = threading.Lock()
        self._heard = heard
        self._stages: OrderedDict[str, _StageRecords] = OrderedDict()

    def register(self, stage: IslandReport) -> None:
        """Make a stage known, which has not run."""
        with self._lock:
            self._stages[stage.name] = _StageRecords(stage)
            while len(self._stages) > _STAGES_KEPT:
                self._stages.popitem(last=False)

    def add(self, records: Iterable[TaskRecord]) -> None:
        """Take in what tasks report; of several attempts at a partition the latest stays."""
        with self._lock:
            for record in records:
                stage = self._stages.get(record.name)
                if stage is not None:
                    stage.add(record)
                    self._heard(record)

    def __iadd__(self, records: Iterable[TaskRecord]) -> Self:
        self.add(records)
        return self

    def reports(self, matches: Callable[[IslandReport], bool] = lambda _: True) -> tuple[IslandReport, ...]:
        """Report the wanted stages, oldest first."""
        with self._lock:
            return tuple(records.report() for records in self._stages.values() if matches(records.stage))


@dataclass
class _StageRecords:
    stage: IslandReport
    """The stage before any run."""
    runs: OrderedDict[int, dict[int, TaskRecord]] = field(default_factory=OrderedDict)

    def add(self, record: TaskRecord) -> None:
        tasks = self.runs.setdefault(record.stage, {})
        earlier = tasks.get(record.partition)
        if earlier is None or earlier.attempt <= record.attempt:
            tasks[record.partition] = record
        while len(self.runs) > _RUNS_KEPT:
            self.runs.popitem(last=False)

    def report(self) -> IslandReport:
        latest = next(reversed(self.runs.values()), {})
        total = IslandMetrics()
        for record in latest.values():
            total.merge(record.measured)
        notes = Counter(note for record in latest.values() for note in record.notes)
        return dataclasses.replace(self.stage, metrics=total, tasks=len(latest), runs=len(self.runs), notes=notes)


_lock = threading.Lock()
_accumulators: WeakKeyDictionary[SparkContext, tuple[Accumulator[Any], MetricsStore]] = WeakKeyDictionary()


def accumulator_of(context: SparkContext) -> Accumulator[Any]:
    """The one accumulator of a Spark context that joins report to."""
    return _of(context)[0]


def store_of(context: SparkContext) -> MetricsStore:
    """The records of a Spark context."""
    return _of(context)[1]


def _of(context: SparkContext) -> tuple[Accumulator[Any], MetricsStore]:
    with _lock:
        registered = _accumulators.get(context)
        if registered is None:
            store = MetricsStore(functools.partial(_pass_on, context))
            # Tasks start from an empty tuple; the driver's value is the store, which takes theirs in.
            registered = (context.accumulator(store, AddingAccumulatorParam(())), store)
            _accumulators[context] = registered
            end_accumulators_at_once(context)
        return registered


def _pass_on(context: SparkContext, record: TaskRecord) -> None:
    """Tell of a record the application's tally, and the metrics that Spark shows of the island's node."""
    tally_of(context).ran(record.name[:_ID_LENGTH])
    if record.execution is not None:
        post_metrics(context, record.name, record.execution, _shown_by_spark(record.measured))


def _shown_by_spark(measured: IslandMetrics) -> tuple[int, ...]:
    """Give the values of the metrics in ``IslandFacts.java``, in order."""
    pipeline, joins, blobs = measured.pipeline, measured.joins, measured.sent
    return (
        blobs.rows or pipeline.output_rows,
        blobs.blob_bytes or pipeline.output_bytes,
        round(1000 * measured.seconds),
        pipeline.spill_bytes + joins.spill_bytes,
        joins.fallbacks + pipeline.cpu_runs,
        joins.backends.get(BackendName.CPU.value, 0),
        joins.backends.get(BackendName.GPU.value, 0),
    )


def _join_lines(m: JoinMetrics) -> list[str]:
    """Render the joins that did not run within the backend's query."""
    lines = []
    if m.build_rows or m.probe_rows:
        algorithms = ", ".join(f"{name} ×{count}" for name, count in sorted(m.algorithms.items())) or "none"
        lines.append(
            f"joins built {m.build_rows:,} rows, {show_bytes(m.build_bytes)}, probed by {m.probe_rows:,}, "
            f"{show_bytes(m.probe_bytes)}; algorithm: {algorithms}"
        )
    lines += [f"{name} since {reason}" for name, reason in sorted(m.algorithm_reasons.items())]
    if m.wait_seconds:
        lines.append(f"{m.wait_seconds:.2f} s waiting for a GPU")
    if m.candidate_pairs:
        by = f", compiled into {m.compiled_probes:,} probes" if m.compiled_probes else ""
        lines.append(f"condition evaluated on {m.candidate_pairs:,} pairs in {m.condition_seconds:.2f} s{by}")
    if m.retries or m.fallbacks:
        lines.append(f"{m.retries} retries for memory, {m.fallbacks} chunks finished on the CPU")
    return lines


def _tasks(count: int) -> str:
    return _count(count, "task")


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _backends(joins: JoinMetrics, tasks: int) -> str:
    if list(joins.backends.values()) == [tasks]:
        return next(iter(joins.backends))
    return ", ".join(f"{name} ×{count}" for name, count in sorted(joins.backends.items())) or "none"
