"""Metrics of islands that ran on Spark: recorded in tasks, collected by an accumulator, read by :func:`metrics`."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from pyspark.accumulators import Accumulator, AddingAccumulatorParam
from pyspark.sql import DataFrame

from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.pipeline.clock import OUTPUT
from gpujoin.errors import GpuJoinError, type_name
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.report.amounts import show_bytes
from gpujoin.report.explanation import Explanation, IslandExplanation, Measured
from gpujoin.report.operations import Amounts, QueryReport
from gpujoin.report.outcomes import explanation_of, explanation_of_latest, parts_of_latest
from gpujoin.spark.compat import check_running, is_connect
from gpujoin.spark.jvm.gateway import analyzed_plan, end_accumulators_at_once, latest_plan
from gpujoin.spark.jvm.rewrite import MARK
from gpujoin.spark.worker.record import IslandMetrics, TaskRecord

if TYPE_CHECKING:
    from pyspark import SparkContext

    from gpujoin.plan.cost import Estimate

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
class StageDescription:
    """What the driver knows of an island's stage."""

    name: str
    """Its name in Spark's plans: the island's, with a number but for the last stage."""
    description: str
    """Its operations."""
    predicted: Estimate | None = None
    """The seconds that were predicted, of the last stage."""
    explanation: IslandExplanation | None = None
    """What was decided of the island, of the last stage."""
    partitions: int | None = None
    """Partitions of a stage whose small partitions are coalesced once their sizes are known."""


@dataclass(frozen=True, slots=True)
class IslandReport:
    """What is known of the runs of one stage of an island."""

    name: str
    """Its name in Spark's plans; the last stage has the island's name in :func:`gpujoin.explain`."""
    description: str
    """Its operations."""
    metrics: IslandMetrics
    """Counters of the latest run, added up over tasks; all zero while nothing has run."""
    tasks: int
    """Tasks of the latest run."""
    runs: int
    """How many runs are known."""
    notes: dict[str, int] = field(default_factory=dict)
    """Why tasks of the latest run did not run as planned, and how many of them."""
    predicted: Estimate | None = None
    """The seconds that were predicted, of the stage that gives the island's rows."""
    partitions: int | None = None
    """Partitions that were planned, of a stage whose small partitions are coalesced once their sizes are known."""

    def __str__(self) -> str:
        title = f"{self.name}: {self.description}"
        if not self.runs:
            return f"{title}\n  not run yet"
        spent = sorted(self.metrics.pipeline.seconds.items(), key=lambda item: -item[1])
        lines = [
            *self.details,
            _took(self.metrics.seconds, self.predicted),
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
        joins, sent = self.metrics.joins, self.metrics.sent
        lines += _join_lines(joins)
        if sent.rows:
            dropped = f", {sent.dropped:,} dropped for null keys" if sent.dropped else ""
            heavy = f", {sent.heavy:,} of heavy keys" if sent.heavy else ""
            size = show_bytes(sent.blob_bytes)
            lines.append(f"sent {sent.rows:,} rows{dropped}{heavy}, in {sent.blobs:,} blobs of {size} in all")
        if p.spills or joins.spills:
            written = f"{show_bytes(p.spill_bytes)} of groups and {show_bytes(joins.spill_bytes)} of joins"
            lines.append(f"spilled {written} in {p.spills + joins.spills:,} parts")
        if p.oversized_parts:
            lines.append(f"{p.oversized_parts:,} spilled parts were over the memory budget however often divided")
        lines += _note_lines(self.notes)
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


def _took(seconds: float, predicted: Estimate | None) -> str:
    if predicted is None:
        return f"took {seconds:.2f} s"
    return f"took {seconds:.2f} s; predicted were {predicted.here:.2g} s, and {predicted.spark:.2g} s in Spark"


class IslandReports(tuple[IslandReport, ...]):  # noqa: SLOT001 - a tuple's cannot hold an attribute
    """Reports of the stages of several islands; ``str()`` and notebooks show :attr:`report`."""

    report: QueryReport
    """The operations of the query, as ``explain`` numbers them, with what was predicted and measured of each."""

    def __new__(cls, reports: Iterable[IslandReport] = (), report: QueryReport | None = None) -> Self:
        """Make reports of stages, which belong to the report of a query."""
        made = super().__new__(cls, reports)
        made.report = QueryReport() if report is None else report
        return made

    def __str__(self) -> str:
        return str(self.report) if self else _NOTHING

    def _repr_html_(self) -> str:
        return self.report._repr_html_() if self else f"<p>{_NOTHING}</p>"

    def to_dict(self) -> dict[str, Any]:
        """Give the report as dictionaries and lists; see :meth:`gpujoin.report.operations.QueryReport.to_dict`."""
        return self.report.to_dict()

    def to_json(self, *, indent: int | None = None) -> str:
        """Give the report as JSON; see :meth:`gpujoin.report.operations.QueryReport.to_json`."""
        return self.report.to_json(indent=indent)


def measured_of(reports: Sequence[IslandReport], cores: int) -> Measured:
    """Gather what the operations and islands of some stages did.

    Seconds of tasks that ran at once, ``cores`` of them, are divided among these, as predicted ones are.
    """
    operations: dict[tuple[str, str], Amounts] = {}
    notes: dict[tuple[str, str], str] = {}
    by_island: dict[str, list[IslandReport]] = {}
    for report in reports:
        if not report.runs:
            continue
        by_island.setdefault(report.name[:_ID_LENGTH], []).append(report)
        done, at_once = report.metrics.pipeline, max(1, min(report.tasks, cores))
        for name in {*done.seconds, *done.rows, *done.read_rows}:
            seconds = done.seconds.get(name)
            operations[report.name, name] = Amounts(
                rows=done.rows.get(name),
                bytes=done.bytes.get(name),
                seconds=None if seconds is None else seconds / at_once,
            )
        notes[report.name, OUTPUT] = "; ".join(report.details)
        sent = report.metrics.sent
        operations[report.name, OUTPUT] = dataclasses.replace(
            operations.get((report.name, OUTPUT), Amounts()),
            rows=sent.rows or done.output_rows,
            bytes=sent.blob_bytes or done.output_bytes,
        )
        for name, rows in done.read_rows.items():
            if rows != done.rows.get(name):
                notes[report.name, name] = f"{_count(rows, 'row')} read from the files"
    islands = {island_id: _island_amounts(island_id, stages) for island_id, stages in by_island.items()}
    told = {
        island_id: tuple("; ".join(stage.details) for stage in stages if stage.name == island_id)
        for island_id, stages in by_island.items()
    }
    return Measured(operations, notes, islands, told)


def _island_amounts(island_id: str, stages: Sequence[IslandReport]) -> Amounts:
    last = next((stage.metrics.pipeline for stage in stages if stage.name == island_id), None)
    began = min(stage.metrics.began for stage in stages)
    return Amounts(
        rows=None if last is None else last.output_rows,
        bytes=None if last is None else last.output_bytes,
        seconds=max(0.0, max(stage.metrics.ended for stage in stages) - began),
    )


def metrics(frame: DataFrame) -> IslandReports:
    """What the islands in a DataFrame did when they ran.

    Parameters
    ----------
    frame : DataFrame
        A query that gpujoin had a part in: the very DataFrame whose action ran, a result of ``accelerate`` or
        ``gpu_asof_join``, or anything made from one of these two.

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
        For a Spark Connect DataFrame: its tasks have no way to report to the client. If ``frame`` is no DataFrame, or
        its session has been stopped.
    """
    if not isinstance(frame, DataFrame):
        raise GpuJoinError(f"metrics() takes a Spark DataFrame, got {type_name(frame)}")
    session = frame.sparkSession
    check_running(session, "metrics()")
    if is_connect(session):
        raise GpuJoinError(
            "metrics are not available over Spark Connect: accumulators need a classic session. Run the query with "
            "SparkSession.builder.master(…) to see them."
        )
    store = store_of(session.sparkContext)
    latest = parts_of_latest(frame)
    plan = str((analyzed_plan(frame) if latest else latest_plan(frame)).toString())
    names = {*re.findall(r"\w+", plan), *_ISLAND.findall(plan), *latest}
    reports = store.reports(name for name in store.names() if name in names or name[:_ID_LENGTH] in names)
    known = explanation_of_latest(frame) or explanation_of(frame) or Explanation()
    there = {island.island_id for island in known.islands}
    ids = dict.fromkeys(report.name[:_ID_LENGTH] for report in reports)
    others = [store.explanation(island_id) for island_id in ids if island_id not in there]
    roots = (*known.roots, *(other for other in others if other is not None))
    measured = measured_of(reports, session.sparkContext.defaultParallelism)
    return IslandReports(reports, Explanation(roots, known.reasons).reported(measured))


class MetricsStore:
    """The driver's records: the latest attempt of each task, of the latest runs of the latest stages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages: OrderedDict[str, _StageRecords] = OrderedDict()

    def register(self, stage: StageDescription) -> None:
        """Make a stage known."""
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

    def __iadd__(self, records: Iterable[TaskRecord]) -> Self:
        self.add(records)
        return self

    def names(self) -> tuple[str, ...]:
        """Stages known, oldest first."""
        with self._lock:
            return tuple(self._stages)

    def reports(self, names: Iterable[str]) -> tuple[IslandReport, ...]:
        """Reports of some stages."""
        with self._lock:
            return tuple(self._stages[name].report() for name in names if name in self._stages)

    def explanation(self, island_id: str) -> IslandExplanation | None:
        """What was decided of an island, if it is known."""
        with self._lock:
            stage = self._stages.get(island_id)
            return None if stage is None else stage.described.explanation


@dataclass
class _StageRecords:
    described: StageDescription
    runs: OrderedDict[int, dict[int, TaskRecord]] = field(default_factory=OrderedDict)

    def add(self, record: TaskRecord) -> None:
        tasks = self.runs.setdefault(record.stage, {})
        known = tasks.get(record.partition)
        if known is None or known.attempt <= record.attempt:
            tasks[record.partition] = record
        while len(self.runs) > _RUNS_KEPT:
            self.runs.popitem(last=False)

    def report(self) -> IslandReport:
        latest = next(reversed(self.runs.values()), {})
        total = IslandMetrics()
        for record in latest.values():
            total.merge(record.measured)
        described = self.described
        return IslandReport(
            described.name, described.description, total, len(latest), len(self.runs), _notes(latest),
            described.predicted, described.partitions,
        )  # fmt: skip


def _notes(tasks: dict[int, TaskRecord]) -> dict[str, int]:
    return dict(Counter(note for record in tasks.values() for note in record.notes))


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
            store = MetricsStore()
            # Tasks start from an empty tuple; the driver's value is the store, which takes theirs in.
            registered = (context.accumulator(store, AddingAccumulatorParam(())), store)
            _accumulators[context] = registered
            end_accumulators_at_once(context)
        return registered


def _join_lines(m: JoinMetrics) -> list[str]:
    """Render what joins did that did not run within the backend's query."""
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


def _note_lines(notes: dict[str, int]) -> list[str]:
    return [f"{_tasks(count)}: {note}" for note, count in sorted(notes.items())]


def _tasks(count: int) -> str:
    return _count(count, "task")


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _backends(joins: JoinMetrics, tasks: int) -> str:
    if list(joins.backends.values()) == [tasks]:
        return next(iter(joins.backends))
    return ", ".join(f"{name} ×{count}" for name, count in sorted(joins.backends.items())) or "none"
