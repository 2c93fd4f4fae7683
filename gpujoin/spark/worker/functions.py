"""Functions of tasks, for ``mapInArrow`` and for RDDs of bytes: small closures of builtins around a pickled work.

A worker that lacks this package, or has another version of it, so gets a message that says so.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gpujoin._version import __version__
from gpujoin.errors import GpuJoinError

if TYPE_CHECKING:
    import pyarrow as pa

    from gpujoin.spark.worker.task import Work

    StageFunction = Callable[..., Iterator[pa.RecordBatch]]
    PacketFunction = Callable[[int, Iterator[bytes]], Iterator[pa.Buffer | bytes]]


def stage_function(work: Work, name: str, *, accumulator: Any = None) -> StageFunction:
    """A function for ``mapInArrow``, by name in Spark's plans; its tasks report to the accumulator, if there is one.

    Raises ``GpuJoinError`` if the work cannot be pickled.
    """
    try:
        pickled = pickle.dumps(work)
    except (pickle.PicklingError, TypeError, AttributeError) as problem:
        raise GpuJoinError(f"the join cannot be sent to Spark's workers: {problem}") from problem
    version = __version__

    # Pickled by value, since it is local: nothing of this package may be touched before the import below.
    def run(batches, partition=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        try:
            from gpujoin.spark.worker.task import enter
        except ImportError as problem:
            import socket
            import sys

            advice = (
                f"Install gpujoin {version} with its dependencies in that Python on every executor host, ship an "
                "environment with spark.archives, or set PYSPARK_PYTHON to a Python that has it."
            )
            if "map segment" in str(problem):  # the loader's words for too little address space
                advice = "The worker may take too little memory for its libraries: raise spark.executor.pyspark.memory."
            raise ImportError(
                f"gpujoin {version} cannot be imported by Spark's Python worker {sys.executable} on "
                f"{socket.gethostname()}: {problem}. {advice}"
            ) from problem
        yield from enter(pickled, version, accumulator, batches, partition)

    run.__name__ = run.__qualname__ = name
    return run


def packet_function(function: StageFunction) -> PacketFunction:
    """Make the function of a ``PythonRDD`` of bytes of a stage's function whose work takes and gives packets.

    The index is that of the RDD's own partition: below a union or a ``coalesce`` of Spark's the task has another one.
    """

    def run(index, packets):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return function(packets, index)

    return run
