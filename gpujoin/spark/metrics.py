"""Metrics of joins that ran on Spark: recorded in tasks, brought home by an accumulator, read by :func:`metrics`."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from pyspark.accumulators import Accumulator, AddingAccumulatorParam
from pyspark.sql import DataFrame

from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import GpuJoinError, type_name
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.spark.compat import is_connect
from gpujoin.spark.gateway import analyzed_plan, latest_plan
from gpujoin.spark.outcomes import parts_of_latest
from gpujoin.spark.rewrite import MARK

if TYPE_CHECKING:
    from pyspark import SparkContext

    from gpujoin.plan.cost import Estimate

_ISLAND = re.compile(rf"{MARK}[0-9a-f]{{12}}")
_ID_LENGTH = len(MARK) + 12
"""Of what stages of one island have in common."""
_JOINS_KEPT = 512
_RUNS_KEPT = 8


class Part(Enum):
    """Which of a join's stages a task belonged to."""

    JOIN = "join"
    BUILD_EXCHANGE = "exchange of the build side"
    STREAM_EXCHANGE = "exchange of the stream side"
    BROADCAST = "broadcast of the build side"
    MARKS = "build rows returned by their marks"
    ISLAND = "island"


@dataclass(slots=True)
class ExchangeMetrics:
    """What the mappers of one side of an exchange did, or those of a broadcast.

    Attributes
    ----------
    rows, bytes : int
        Rows taken in, and their bytes as Arrow data.
    dropped : int
        Rows left out because their key is null and they match nothing.
    blobs, blob_bytes : int
        Arrow blobs written, and their bytes.
    seconds : float
        Time spent splitting and writing, waiting for input not counted, summed over tasks.
    tasks : int
        How many tasks.
    heavy : int
        Rows of heavy keys, which were split over the partitions or replicated to them.
    """

    rows: int = 0
    bytes: int = 0
    dropped: int = 0
    blobs: int = 0
    blob_bytes: int = 0
    seconds: float = 0.0
    tasks: int = 0
    heavy: int = 0

    def merge(self, other: ExchangeMetrics) -> None:
        """Add another task's counters to this one's."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class IslandMetrics:
    """What tasks of an island did.

    Attributes
    ----------
    pipeline : PipelineMetrics
        Files, row groups, rows, bytes, and seconds of each operation.
    joins : JoinMetrics
        Of its joins that did not run within the backend's query.
    began, ended : float
        When the first task began and the last one ended, in seconds since the epoch.
    """

    pipeline: PipelineMetrics = field(default_factory=PipelineMetrics)
    joins: JoinMetrics = field(default_factory=JoinMetrics)
    began: float = math.inf
    ended: float = 0.0

    def merge(self, other: IslandMetrics) -> None:
        """Add another task's counters to this one's."""
        self.pipeline.merge(other.pipeline)
        self.joins.merge(other.joins)
        self.began, self.ended = min(self.began, other.began), max(self.ended, other.ended)

    @property
    def seconds(self) -> float:
        """From the start of the first task to the end of the last one."""
        return max(0.0, self.ended - self.began)


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What one task attempt reports.

    Attributes
    ----------
    join_id : str
        The join.
    part : Part
        Which of its stages.
    stage, partition : int
        Where the task stood; a repeated attempt has the same.
    attempt : int
        Grows with every attempt in the application.
    measured : JoinMetrics, ExchangeMetrics or IslandMetrics
        Its counters.
    notes : tuple of str
        Why the task did not run as planned, if so.
    """

    join_id: str
    part: Part
    stage: int
    partition: int
    attempt: int
    measured: JoinMetrics | ExchangeMetrics | IslandMetrics
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinDescription:
    """What the driver knows of a join.

    Attributes
    ----------
    join_id : str
        Its name in Spark's plans.
    description : str
        Join type, keys and condition.
    strategy : str
        How it is executed.
    predicted : Estimate or None
        The seconds that were predicted for an island.
    """

    join_id: str
    description: str
    strategy: str
    predicted: Estimate | None = None


@dataclass(frozen=True, slots=True)
class JoinRunMetrics:
    """One run of a join's stage: an action, or one job of an action that takes several.

    Attributes
    ----------
    stage : int
        Spark's stage number.
    tasks : int
        Partitions that have been finished.
    metrics : JoinMetrics
        Their counters added up, each partition counted once however often it was attempted.
    notes : dict of str to int
        Why tasks did not run as planned, and how many of them.
    """

    stage: int
    tasks: int
    metrics: JoinMetrics
    notes: dict[str, int]


@dataclass(frozen=True, slots=True)
class JoinReport:
    """What is known of the runs of one join.

    Attributes
    ----------
    join_id : str
        The join's name in Spark's plans.
    description : str
        Join type, keys and condition.
    strategy : str
        How it is executed.
    runs : tuple of JoinRunMetrics
        The latest runs, oldest first; empty while nothing has run.
    exchanges : dict of Part to ExchangeMetrics
        The latest run of each exchange or broadcast.
    """

    join_id: str
    description: str
    strategy: str
    runs: tuple[JoinRunMetrics, ...]
    exchanges: dict[Part, ExchangeMetrics]

    @property
    def metrics(self) -> JoinMetrics:
        """Counters of the latest run; all zero while nothing has run."""
        return self.runs[-1].metrics if self.runs else JoinMetrics()

    def __str__(self) -> str:
        title = " ".join(part for part in (self.join_id, self.description) if part)
        lines = [f"{title} [{self.strategy}]"]
        lines += [f"  {part.value}: {_exchange_text(found)}" for part, found in self.exchanges.items()]
        if not self.runs:
            return "\n".join([*lines, "  not run yet"])
        run = self.runs[-1]
        lines += [f"  {line}" for line in _run_lines(run)]
        if len(self.runs) > 1:
            lines.append(f"  the latest of {len(self.runs)} runs")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class IslandReport:
    """What is known of the runs of one island.

    Attributes
    ----------
    join_id : str
        The island's name in Spark's plans, and in :func:`gpujoin.explain`.
    description : str
        Its operations.
    metrics : IslandMetrics
        Counters of the latest run, added up over tasks; all zero while nothing has run.
    tasks : int
        Tasks of the latest run.
    runs : int
        How many runs are known.
    notes : dict of str to int
        Why tasks of the latest run did not run as planned, and how many of them.
    predicted : Estimate or None
        The seconds that were predicted, of the stage that gives the island's rows.
    """

    join_id: str
    description: str
    metrics: IslandMetrics
    tasks: int
    runs: int
    notes: dict[str, int] = field(default_factory=dict)
    predicted: Estimate | None = None

    def __str__(self) -> str:
        title = f"{self.join_id} {self.description} [island]"
        if not self.runs:
            return f"{title}\n  not run yet"
        p = self.metrics.pipeline
        spent = sorted(p.seconds.items(), key=lambda item: -item[1])
        lines = [
            f"{_tasks(self.tasks)} on {_backends(self.metrics.joins, self.tasks)}",
            f"{p.files:,} files, {p.row_groups:,} row groups and {p.skipped_row_groups:,} skipped",
            f"{p.scanned_rows:,} rows scanned, {p.source_rows:,} taken in",
            f"output {p.output_rows:,} rows in {p.output_batches:,} batches, {_size(p.output_bytes)}",
            _took(self.metrics.seconds, self.predicted),
            f"seconds: {', '.join(f'{name} {seconds:.3f}' for name, seconds in spent)}",
        ]
        if p.device_steps:
            lines.append(
                f"{p.device_steps:,} pieces computed on the GPU, {p.host_steps:,} on the CPU beside it; "
                f"{p.device_retries:,} did not fit at first, {p.cpu_runs:,} times all was begun again on the CPU"
            )
        joins = self.metrics.joins
        if p.spills or joins.spills:
            written = f"{_size(p.spill_bytes)} of groups and {_size(joins.spill_bytes)} of joins"
            lines.append(f"spilled {written} in {p.spills + joins.spills:,} parts")
        if p.oversized_parts:
            lines.append(
                f"{p.oversized_parts:,} spilled parts were over the memory budget however often divided"
            )
        lines += _note_lines(self.notes)
        if self.runs > 1:
            lines.append(f"the latest of {self.runs} runs")
        return "\n".join([title, *(f"  {line}" for line in lines)])


def _took(seconds: float, predicted: Estimate | None) -> str:
    if predicted is None:
        return f"took {seconds:.2f} s"
    return (
        f"took {seconds:.2f} s; predicted were {predicted.here:.2g} s, and {predicted.spark:.2g} s in Spark"
    )


class JoinReports(tuple[JoinReport | IslandReport, ...]):
    """Reports of several joins and islands; ``str()`` is for people, one after the other."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no joins of gpujoin"


def metrics(frame: DataFrame) -> JoinReports:
    """What the joins and islands in a DataFrame did when they ran.

    Parameters
    ----------
    frame : DataFrame
        A query that gpujoin had a part in: the very DataFrame whose action ran, a result of ``accelerate`` or
        ``gpu_asof_join``, or anything made from one of these two.

    Returns
    -------
    JoinReports
        A tuple with a :class:`JoinReport` for each join of this package in the frame's plan, and an
        :class:`IslandReport` for each island, in the order in which they were made; empty if there is none. ``print``
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
    return store.reports(i for i in store.join_ids() if i in names or i[:_ID_LENGTH] in names)


class MetricsStore:
    """The driver's records: the latest attempt of each task, of the latest runs of the latest joins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._joins: OrderedDict[str, _JoinRecords] = OrderedDict()

    def register(self, join: JoinDescription) -> None:
        """Make a join known."""
        with self._lock:
            self._joins[join.join_id] = _JoinRecords(join)
            while len(self._joins) > _JOINS_KEPT:
                self._joins.popitem(last=False)

    def add(self, records: Iterable[TaskRecord]) -> None:
        """Take in what tasks report; of several attempts at a partition the latest stays."""
        with self._lock:
            for record in records:
                join = self._joins.get(record.join_id)
                if join is not None:
                    join.add(record)

    def __iadd__(self, records: Iterable[TaskRecord]) -> Self:
        self.add(records)
        return self

    def join_ids(self) -> tuple[str, ...]:
        """Joins known, oldest first."""
        with self._lock:
            return tuple(self._joins)

    def reports(self, join_ids: Iterable[str]) -> JoinReports:
        """Reports of some joins."""
        with self._lock:
            return JoinReports(
                self._joins[join_id].report() for join_id in join_ids if join_id in self._joins
            )


@dataclass
class _JoinRecords:
    join: JoinDescription
    stages: dict[Part, OrderedDict[int, dict[int, TaskRecord]]] = field(default_factory=dict)

    def add(self, record: TaskRecord) -> None:
        stages = self.stages.setdefault(record.part, OrderedDict())
        tasks = stages.setdefault(record.stage, {})
        known = tasks.get(record.partition)
        if known is None or known.attempt <= record.attempt:
            tasks[record.partition] = record
        while len(stages) > _RUNS_KEPT:
            stages.popitem(last=False)

    def report(self) -> JoinReport | IslandReport:
        if self.join.strategy == Part.ISLAND.value:
            return self._island()
        runs = tuple(_run(stage, tasks) for stage, tasks in self.stages.get(Part.JOIN, {}).items())
        exchanges: dict[Part, ExchangeMetrics] = {
            part: _exchange(next(reversed(stages.values())))
            for part, stages in self.stages.items()
            if part != Part.JOIN
        }
        return JoinReport(self.join.join_id, self.join.description, self.join.strategy, runs, exchanges)

    def _island(self) -> IslandReport:
        stages = self.stages.get(Part.ISLAND, OrderedDict())
        latest = next(reversed(stages.values()), {})
        total = IslandMetrics()
        for record in latest.values():
            if isinstance(record.measured, IslandMetrics):
                total.merge(record.measured)
        return IslandReport(
            self.join.join_id,
            self.join.description,
            total,
            len(latest),
            len(stages),
            _notes(latest),
            self.join.predicted,
        )


def _run(stage: int, tasks: dict[int, TaskRecord]) -> JoinRunMetrics:
    total = JoinMetrics()
    for record in tasks.values():
        if isinstance(record.measured, JoinMetrics):
            total.merge(record.measured)
    return JoinRunMetrics(stage, len(tasks), total, _notes(tasks))


def _notes(tasks: dict[int, TaskRecord]) -> dict[str, int]:
    return dict(Counter(note for record in tasks.values() for note in record.notes))


def _exchange(tasks: dict[int, TaskRecord]) -> ExchangeMetrics:
    total = ExchangeMetrics()
    for record in tasks.values():
        if isinstance(record.measured, ExchangeMetrics):
            total.merge(record.measured)
    return total


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
        found = _accumulators.get(context)
        if found is None:
            store = MetricsStore()
            # Tasks start from an empty tuple; the driver's value is the store, which takes theirs in.
            found = (context.accumulator(store, AddingAccumulatorParam(())), store)
            _accumulators[context] = found
        return found


def _exchange_text(found: ExchangeMetrics) -> str:
    dropped = f", {found.dropped:,} dropped for null keys" if found.dropped else ""
    dropped += f", {found.heavy:,} of heavy keys" if found.heavy else ""
    return (
        f"{found.rows:,} rows{dropped}, {found.blobs:,} blobs of {_size(found.blob_bytes)} in all, "
        f"{found.seconds:.2f} s in {_tasks(found.tasks)}"
    )


def _run_lines(run: JoinRunMetrics) -> list[str]:
    m = run.metrics
    algorithms = ", ".join(f"{name} ×{count}" for name, count in sorted(m.algorithms.items())) or "none"
    lines = [
        f"{_tasks(run.tasks)} on {_backends(m, run.tasks)}; algorithm: {algorithms}",
        f"build {m.build_rows:,} rows, {_size(m.build_bytes)}; probe {m.probe_rows:,} rows, {_size(m.probe_bytes)}",
        f"output {m.output_rows:,} rows in {m.output_batches:,} batches, {_size(m.output_bytes)}",
        f"seconds: build {m.build_seconds:.2f}, probe {m.probe_seconds:.2f}, gather {m.gather_seconds:.2f}",
    ]
    lines[1:1] = [f"{name} since {reason}" for name, reason in sorted(m.algorithm_reasons.items())]
    if m.wait_seconds:
        lines.append(f"{m.wait_seconds:.2f} s waiting for a GPU")
    if m.candidate_pairs:
        by = f", compiled into {m.compiled_probes:,} probes" if m.compiled_probes else ""
        lines.append(f"condition evaluated on {m.candidate_pairs:,} pairs in {m.condition_seconds:.2f} s{by}")
    if m.spills or m.retries or m.fallbacks:
        lines.append(
            f"{m.spills} spills of {_size(m.spill_bytes)}, {m.retries} retries for memory, "
            f"{m.fallbacks} chunks finished on the CPU"
        )
    return lines + _note_lines(run.notes)


def _note_lines(notes: dict[str, int]) -> list[str]:
    return [f"{_tasks(count)}: {note}" for note, count in sorted(notes.items())]


def _tasks(count: int) -> str:
    return f"{count} task{'' if count == 1 else 's'}"


def _backends(found: JoinMetrics, tasks: int) -> str:
    if list(found.backends.values()) == [tasks]:
        return next(iter(found.backends))
    return ", ".join(f"{name} ×{count}" for name, count in sorted(found.backends.items())) or "none"


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
