"""Changes two things in a worker's process, which is PySpark's and runs the user's code too.

Both need what PySpark's daemon knows of the worker that it has forked, and offers to nobody: it is read from the
variables of the two functions that every task is called by::

    pyspark/daemon.py    manager()    while True: code = worker(sock, authenticated)
    pyspark/daemon.py    worker()     worker_main(infile, outfile)
    pyspark/worker.py    main()       runs the function of a task

Where they are not there (Windows, ``spark.python.use.daemon=false``, another daemon), nothing is changed.
"""

from __future__ import annotations

import gc
import inspect
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_DAEMON = "pyspark/daemon.py"


def acknowledge_at_once() -> None:
    """Have the kernel acknowledge what the JVM sends to this task without delay, and send without delay.

    The JVM writes a task's input in small pieces. By Nagle's algorithm a piece waits until the one before it is
    acknowledged, and Linux puts that off for 40 ms. The kernel may end this mode at any time, and workers keep their
    connections, so each task asks for it. Only Linux has the option; elsewhere this does nothing. No other connection
    of the process is touched.
    """
    quick: int | None = getattr(socket, "TCP_QUICKACK", None)
    frame = _daemon_frame("worker")
    connection = None if frame is None else frame.f_locals.get("sock")
    if quick is None or not isinstance(connection, socket.socket):
        return
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, quick, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def is_new() -> bool:
    """Tell whether the process was forked for its present task, so that no other code has run in it."""
    frame = _daemon_frame("manager")
    return frame is not None and "code" not in frame.f_locals


def freeze_libraries() -> None:
    """Leave what is in use at the end of a new process's first task out of all collections of cyclic garbage.

    PySpark collects garbage after each task, and looks at every object of the imported libraries: some 20 ms. After
    the first task of a new process there is nothing else than libraries; the user's objects are never left out.
    """
    gc.collect()
    gc.freeze()


def _daemon_frame(function: str) -> FrameType | None:
    """Find a function of PySpark's daemon among the callers of this one."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(_DAEMON):
            break
        frame = frame.f_back
    return frame
