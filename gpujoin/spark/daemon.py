"""A daemon for Spark's Python workers that imports their modules once, before it forks them.

Chosen by ``spark.python.daemon.module=gpujoin.spark.daemon`` when the application is submitted; gpujoin works without
it. It saves each new worker process the imports, some tenths of a second. Nothing imported here starts a thread, which
a fork would lose, or touches a GPU, whose context a fork would break.
"""

from __future__ import annotations

import contextlib
import os

# NumPy's BLAS and Arrow's allocator would start threads when imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")

from pyspark.daemon import manager

# A library that lacks is for the workers to tell, whose words reach the driver.
with contextlib.suppress(ImportError):
    import gpujoin.spark.worker.stage
    import gpujoin.spark.worker.task  # noqa: F401
    from gpujoin.spark.worker.process import forget_archives

    forget_archives()


def main() -> None:
    """Serve Spark's requests for workers until Spark closes the pipe."""
    manager()


if __name__ == "__main__":
    main()
