"""Loads what an enabled session and its first query need, while Spark's context starts.

The start of a context is work of the JVM, for which Python waits.
"""

from __future__ import annotations

import threading
from typing import Any

from gpujoin.logs import log


def load_ahead(jvm: Any) -> None:
    """Load Python's modules and the JVM's classes of a first query in another thread, while this one goes on.

    Errors are those of whoever needs what could not be loaded.

    Parameters
    ----------
    jvm : py4j.java_gateway.JVMView
        PySpark's.
    """
    # An InheritableThread would ask the context for its properties, which is not there yet. It is no daemon: a program
    # that ends at once waits for it, where to end Python within the import of a compiled library would abort it.
    threading.Thread(target=_load, args=(jvm,), name="gpujoin-load").start()


def _load(jvm: Any) -> None:
    try:
        from gpujoin.spark.jvm.compiled import load_first
        from gpujoin.spark.jvm.gateway import names_of

        load_first(names_of(jvm))
        import gpujoin.spark.query.hooks  # noqa: F401
        from gpujoin.backends.cpu import create_pipeline
        from gpujoin.backends.registry import BackendRequest

        create_pipeline(BackendRequest())  # planning asks it what it computes
    except Exception:  # noqa: BLE001 - told where it is needed
        log.debug("what the first query needs could not be loaded ahead", exc_info=True)
