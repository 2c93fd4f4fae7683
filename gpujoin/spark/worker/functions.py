"""Functions of tasks, for ``mapInArrow`` and for RDDs of bytes: small closures of builtins around a pickled work.

A worker that lacks this package, or has another version of it, so gets a message that says so.
"""

# ruff: noqa: PTH100, PTH119, PTH120, PTH122
# A worker that cannot import modules is asked nothing that needs other ones than Python has imported when it starts.
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

    # Pickled by value, since they are local: nothing of this package may be touched before the import below.
    def module_of_the_program(problem: BaseException) -> str | None:
        """Find a file that is imported in the place of a module of Python's, such as the program's ``calendar.py``."""
        import os
        import sys

        names, step = sys.stdlib_module_names, problem.__traceback__
        files = [getattr(module, "__file__", None) for name, module in sys.modules.items() if name in names]
        while step is not None:  # one that has failed is not among the modules
            files.append(step.tb_frame.f_code.co_filename)
            step = step.tb_next
        folders = {os.path.abspath(folder) for folder in sys.path} - {os.path.dirname(os.__file__)}
        for file in map(os.path.abspath, filter(None, files)):
            if os.path.dirname(file) in folders and os.path.splitext(os.path.basename(file))[0] in names:
                return file
        return None

    def run(batches, partition=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        try:
            from gpujoin.spark.worker.task import enter
        except Exception as problem:
            import socket
            import sys

            advice = (
                f"Install gpujoin {version} with its dependencies in that Python on every executor host, ship an "
                "environment with spark.archives, or set PYSPARK_PYTHON to a Python that has it."
            )
            if "map segment" in str(problem):  # the loader's words for too little address space
                advice = "The worker may take too little memory for its libraries: raise spark.executor.pyspark.memory."
            if shadow := module_of_the_program(problem):
                advice = f"'{shadow}' is found in the place of Python's own module: rename it."
            raise ImportError(
                f"gpujoin {version} cannot be imported by Spark's Python worker {sys.executable} on "
                f"{socket.gethostname()}: {problem}. {advice}"
            ) from problem
        return enter(pickled, version, accumulator, batches, partition)

    run.__name__ = run.__qualname__ = name
    return run


def packet_function(function: StageFunction) -> PacketFunction:
    """Make the function of a ``PythonRDD`` of bytes of a stage's function whose work takes and gives packets.

    The index is that of the RDD's own partition: below a union or a ``coalesce`` of Spark's the task has another one.
    """

    def run(index, packets):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return function(packets, index)

    return run
