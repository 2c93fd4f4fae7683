"""Saves time in a worker's process: delays of its connection, and work that PySpark does between tasks.

The process is PySpark's, and runs the user's code too, so nothing else of it is changed. PySpark tells nobody which
socket is the task's, nor whether the process is new: both are variables of functions that call every task::

    pyspark/daemon.py    manager()    while True: code = worker(sock, authenticated)
    pyspark/daemon.py    worker()     worker_main(infile, outfile)
    pyspark/worker.py    main()       runs the function of a task

Without these callers (Windows, ``spark.python.use.daemon=false``, another daemon) nothing is changed.
"""

from __future__ import annotations

import gc
import inspect
import re
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING
from zipimport import zipimporter

if TYPE_CHECKING:
    from types import FrameType

_DAEMON = "pyspark/daemon.py"
_OF_SPARK = re.compile(r"[/\\](pyspark\.zip|py4j-[^/\\]*-src\.zip|spark-core_[^/\\]*\.jar)$")
"""Archives that Spark puts in a worker's ``PYTHONPATH``."""


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
    """Whether the process was forked for its present task, so that no other code has run in it."""
    frame = _daemon_frame("manager")
    return frame is not None and "code" not in frame.f_locals


def freeze_libraries() -> None:
    """Exempt all objects of a new process, at the end of its first task, from collections of cyclic garbage.

    PySpark collects garbage after each task, and visits every object of the imported libraries: some 20 ms. After the
    first task of a new process there are no other objects; the user's are never exempt.
    """
    gc.collect()
    gc.freeze()


def forget_archives() -> None:
    """Drop Python's finders of modules in Spark's own archives; it makes new ones where it looks for a module there.

    Before each task PySpark has Python look anew into all places of modules. The finder of an archive then reads the
    archive's list of files, and there is one for each package: 18 times 1,500 files of ``pyspark.zip``, some 0.2 s of a
    core. New finders share the list that was read first. Archives of the user are read anew as ever.
    """
    for place, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and _OF_SPARK.search(finder.archive):
            sys.path_importer_cache.pop(place, None)


def _daemon_frame(function: str) -> FrameType | None:
    """Find a function of PySpark's daemon among the callers of this one."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(_DAEMON):
            break
        frame = frame.f_back
    return frame
