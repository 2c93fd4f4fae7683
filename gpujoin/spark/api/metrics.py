"""Metrics of islands that ran on Spark: recorded in tasks, collected by an accumulator, read by :func:`metrics`."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from pyspark.accumulators import Accumulator, AddingAccumulatorParam
from pyspark.sql import DataFrame

from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import GpuJoinError, type_name
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.spark.compat import is_connect
from gpujoin.spark.jvm.gateway import analyzed_plan, latest_plan
from gpujoin.spark.jvm.rewrite import MARK
from gpujoin.spark.outcomes import parts_of_latest
from gpujoin.spark.shuffle.blobrows import BlobCounts

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


@dataclass(slots=True)
class IslandMetrics:
    """What tasks of a stage did."""

    pipeline: PipelineMetrics = field(default_factory=PipelineMetrics)
    """Files, row groups, rows, bytes, and seconds of each operation."""
    joins: JoinMetrics = field(default_factory=JoinMetrics)
    """Of its joins that did not run within the backend's query."""
    sent: BlobCounts = field(default_factory=BlobCounts)
    """Rows and blobs that went to the next stage."""
    began: float = math.inf
    ended: float = 0.0
    """When the first task began and the last one ended, in seconds since the epoch."""

    def merge(self, other: IslandMetrics) -> None:
        """Add another task's counters to this one's."""
        self.pipeline.merge(other.pipeline)
        self.joins.merge(other.joins)
        self.sent.merge(other.sent)
        self.began, self.ended = min(self.began, other.began), max(self.ended, other.ended)

    @property
    def seconds(self) -> float:
        """From the start of the first task to the end of the last one."""
        return max(0.0, self.ended - self.began)


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What one task attempt reports."""

    name: str
    """The island's stage."""
    stage: int
    partition: int
    """Where the task stood; a repeated attempt has the same."""
    attempt: int
    """Grows with every attempt in the application."""
    measured: IslandMetrics
    """Its counters."""
    notes: tuple[str, ...] = ()
    """Why the task did not run as planned, if so."""


@dataclass(frozen=True, slots=True)
class StageDescription:
    """What the driver knows of an island's stage."""

    name: str
    """Its name in Spark's plans: the island's, with a number but for the last stage."""
    description: str
    """Its operations."""
    predicted: Estimate | None = None
    """The seconds that were predicted, of the last stage."""


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

    def __str__(self) -> str:
        title = f"{self.name}: {self.description}"
        if not self.runs:
            return f"{title}\n  not run yet"
        p = self.metrics.pipeline
        spent = sorted(p.seconds.items(), key=lambda item: -item[1])
        batches = f"{p.output_batches:,} {'batch' if p.output_batches == 1 else 'batches'}"
        lines = [
            f"{_tasks(self.tasks)} on {_backends(self.metrics.joins, self.tasks)}",
            *_input_lines(p),
            f"output {_count(p.output_rows, 'row')} in {batches}, {_size(p.output_bytes)}",
            _took(self.metrics.seconds, self.predicted),
            f"seconds: {', '.join(f'{name} {seconds:.3f}' for name, seconds in spent)}",
        ]
        if p.device_steps:
            lines.append(
                f"{p.device_steps:,} pieces computed on the GPU, {p.host_steps:,} on the CPU beside it; "
                f"{p.device_retries:,} did not fit at first, {p.cpu_runs:,} times all was begun again on the CPU"
            )
        joins, sent = self.metrics.joins, self.metrics.sent
        lines += _join_lines(joins)
        if sent.rows:
            dropped = f", {sent.dropped:,} dropped for null keys" if sent.dropped else ""
            heavy = f", {sent.heavy:,} of heavy keys" if sent.heavy else ""
            lines.append(
                f"sent {sent.rows:,} rows{dropped}{heavy}, in {sent.blobs:,} blobs of {_size(sent.blob_bytes)} in all"
            )
        if p.spills or joins.spills:
            written = f"{_size(p.spill_bytes)} of groups and {_size(joins.spill_bytes)} of joins"
            lines.append(f"spilled {written} in {p.spills + joins.spills:,} parts")
        if p.oversized_parts:
            lines.append(f"{p.oversized_parts:,} spilled parts were over the memory budget however often divided")
        lines += _note_lines(self.notes)
        if self.runs > 1:
            lines.append(f"the latest of {self.runs} runs")
        return "\n".join([title, *(f"  {line}" for line in lines)])


def _input_lines(p: PipelineMetrics) -> list[str]:
    """Render what was read, of files and of rows from elsewhere."""
    lines = []
    if p.files or p.skipped_files:
        files = _count(p.files, "file") + (f", {p.skipped_files:,} skipped" if p.skipped_files else "")
        groups = f"{_count(p.row_groups, 'row group')} read, {p.skipped_row_groups:,} skipped"
        lines.append(f"{files}, {groups}, {_count(p.scanned_rows, 'row')} scanned")
    if p.tables_kept:
        lines.append(f"{_count(p.tables_kept, 'table')} kept from an earlier micro-batch")
    if p.source_rows:
        lines.append(f"{_count(p.source_rows, 'row')} taken in from Spark or from other stages")
    return lines


def _took(seconds: float, predicted: Estimate | None) -> str:
    if predicted is None:
        return f"took {seconds:.2f} s"
    return f"took {seconds:.2f} s; predicted were {predicted.here:.2g} s, and {predicted.spark:.2g} s in Spark"


class IslandReports(tuple[IslandReport, ...]):
    """Reports of the stages of several islands; ``str()`` is for people, one after the other."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or _NOTHING


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
        A tuple with an :class:`IslandReport` for each stage of each island in the frame's plan, in the order in which
        they were made; empty if there is none. ``print``
        shows it for people. Counters are complete once an action has returned; a partition that was attempted several
        times, or speculatively, counts once.

    Raises
    ------
    GpuJoinError
        For a Spark Connect DataFrame: its tasks have no way to report to the client. If ``frame`` is no DataFrame.
    """
    if not isinstance(frame, DataFrame):
        raise GpuJoinError(f"metrics() takes a Spark DataFrame, got {type_name(frame)}")
    session = frame.sparkSession
    if is_connect(session):
        raise GpuJoinError(
            "metrics are not available over Spark Connect: accumulators need a classic session. Run the query with "
            "SparkSession.builder.master(…) to see them."
        )
    store = store_of(session.sparkContext)
    latest = parts_of_latest(frame)
    plan = str((analyzed_plan(frame) if latest else latest_plan(frame)).toString())
    names = {*re.findall(r"\w+", plan), *_ISLAND.findall(plan), *latest}
    return store.reports(name for name in store.names() if name in names or name[:_ID_LENGTH] in names)


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

    def reports(self, names: Iterable[str]) -> IslandReports:
        """Reports of some stages."""
        with self._lock:
            return IslandReports(self._stages[name].report() for name in names if name in self._stages)


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
            described.predicted,
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
        return registered


def _join_lines(m: JoinMetrics) -> list[str]:
    """Render what joins did that did not run within the backend's query."""
    lines = []
    if m.build_rows or m.probe_rows:
        algorithms = ", ".join(f"{name} ×{count}" for name, count in sorted(m.algorithms.items())) or "none"
        lines.append(
            f"joins built {m.build_rows:,} rows, {_size(m.build_bytes)}, probed by {m.probe_rows:,}, "
            f"{_size(m.probe_bytes)}; algorithm: {algorithms}"
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


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
