"""Asks a worker whether it can run what is asked for; that it answers tells that it has gpujoin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpujoin.errors import BackendUnavailableError, DeviceMemoryError
from gpujoin.spark.worker.devices import allocate_backend

if TYPE_CHECKING:
    from gpujoin.config import Options
    from gpujoin.spark.worker.task import Task


@dataclass(frozen=True)
class BackendCheck:
    """A work that gives why its worker has not the backend that settings ask for: an empty text if it has."""

    options: Options
    """Settings."""

    def run(self, batches: Any, task: Task) -> Iterator[Any]:
        """Give the text, whatever the rows."""
        del batches
        try:
            with allocate_backend(self.options, task.gpus, task.name):
                yield ""
        except (BackendUnavailableError, DeviceMemoryError) as problem:
            yield str(problem)
