"""What a task reports to the driver: its counters, and why it did not run as planned."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.spark.shuffle.blobrows import BlobCounts


@dataclass(slots=True)
class IslandMetrics:
    """What tasks of a stage did."""

    pipeline: PipelineMetrics = field(default_factory=PipelineMetrics)
    """Files, row groups, rows, bytes, and seconds of each operation."""
    joins: JoinMetrics = field(default_factory=JoinMetrics)
    """Counters of the joins that did not run within the backend's query."""
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
    """The task's partition, the same for each attempt at it."""
    attempt: int
    """Grows with every attempt in the application."""
    measured: IslandMetrics
    """Its counters."""
    notes: tuple[str, ...] = ()
    """Why the task did not run as planned, if so."""
    execution: str | None = None
    """Id of the execution of Spark SQL that it is of; ``None``: of an action of an RDD."""
