"""What runs in Spark's Python workers.

A stage's function (`gpujoin.spark.worker.functions`) calls :func:`enter` with a pickled *work*, which turns a
task's input batches into its output batches.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyspark

import gpujoin.engine.pipeline  # noqa: F401  # a worker that lacks what this needs is told so by the closure
from gpujoin._version import __version__
from gpujoin.errors import FUNCTIONS_FILE, GpuJoinError, PythonFunctionError
from gpujoin.spark.worker import process
from gpujoin.spark.worker.slots import task_name

if TYPE_CHECKING:
    import pyarrow as pa

    from gpujoin.spark.worker.record import TaskRecord

    Batches = Iterable[pa.RecordBatch]


T = TypeVar("T")


def unheard(record: TaskRecord) -> None:
    """Drop a record: there is no driver to hear it."""


@dataclass(frozen=True)
class Task:
    """What a work knows of the task it runs in."""

    stage: int = 0
    partition: int = 0
    attempt: int = 0
    """Where the task stands; ``attempt`` is unique in the application."""
    gpus: tuple[str, ...] = ()
    """GPU addresses that Spark assigned."""
    name: str | None = None
    """Name of the task attempt, unique on this host, the same in the workers of all its stages."""
    report: Callable[[TaskRecord], None] = unheard
    """Takes a record for the driver."""
    retry: int = 0
    """How often this part has been tried before."""
    execution: str | None = None
    """Id of the execution of Spark SQL."""


class Work(Protocol):
    """A stage's part for one task."""

    def run(self, batches: Any, task: Task) -> Iterator[Any]:
        """Turn a task's input into its output: record batches, or packets."""


def enter(
    pickled: bytes, version: str, accumulator: Any, batches: Iterator[Any], partition: int | None = None
) -> Iterator[Any]:
    """Run a pickled work in this worker; called by the closure of `gpujoin.spark.worker.functions`.

    ``partition`` is the number of the partition where it is not the task's.
    Raises ``GpuJoinError`` if the driver has another version of this package, and what a Python function of the query
    raises as the function has raised it.
    """
    return with_errors_of_functions(_run(pickled, version, accumulator, batches, partition))


def with_errors_of_functions(output: Iterator[T]) -> Iterator[T]:
    """Pass output on; an error of a Python function of the query is raised as PySpark's own worker meets it.

    Its traceback begins where PySpark's code calls the function, and no frame of gpujoin's is in it: PySpark leaves out
    its own, by the paths of their files, and shows the user those of the function.
    """
    try:
        yield from output
    except PythonFunctionError as error:
        problem, simplified = error.problem, error.simplified
    else:
        return
    # Spark tells workers of functions so, and not those of stages of bytes; after the error PySpark ends the process.
    os.environ.pop("SPARK_SIMPLIFIED_TRACEBACK", None)
    if simplified:
        os.environ["SPARK_SIMPLIFIED_TRACEBACK"] = "1"
    step = problem.__traceback__
    while step is not None and not step.tb_frame.f_code.co_filename.startswith(_PYSPARK):
        step = step.tb_next
    raise problem.with_traceback(step or problem.__traceback__)


_EXECUTION = "spark.sql.execution.id"
_PYSPARK = str(Path(pyspark.__file__).parent)
with_errors_of_functions.__code__ = with_errors_of_functions.__code__.replace(
    co_filename=str(Path(_PYSPARK, FUNCTIONS_FILE))
)


def _run(
    pickled: bytes, version: str, accumulator: Any, batches: Iterator[Any], partition: int | None
) -> Iterator[Any]:
    check_version(version)
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        task = Task()
    else:
        gpu = context.resources().get("gpu")
        task = Task(
            context.stageId(), context.partitionId() if partition is None else partition, int(context.taskAttemptId()),
            tuple(gpu.addresses) if gpu is not None else (),
            task_name(int(context.taskAttemptId())),
            unheard if accumulator is None else (lambda record: accumulator.add((record,))),
            context.attemptNumber(),
            context.getLocalProperty(_EXECUTION),
        )  # fmt: skip
    process.acknowledge_at_once()
    process.forget_archives()
    work: Work = pickle.loads(pickled)  # noqa: S301  # the driver's own bytes
    with closing(work.run(batches, task)) as output:  # type: ignore[type-var]
        yield from output
    process.forget_archives()  # modules may have been looked for since
    if process.is_new():
        process.freeze_libraries()


def check_version(version: str) -> None:
    """Refuse, by ``GpuJoinError``, to work for a driver that has another version of this package."""
    if version != __version__:
        raise GpuJoinError(
            f"the driver has gpujoin {version}, this executor's Python has {__version__}. Install the same version."
        )
