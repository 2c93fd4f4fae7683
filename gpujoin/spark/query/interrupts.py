"""Ends what the program has called when Ctrl-C interrupts it.

PySpark's own handler of SIGINT sets out to cancel all jobs in the interrupted thread, whose connection to the JVM is in
use: its call fails with ``reentrant call inside <_io.BufferedReader>``, and a notebook has another handler anyway. So
``KeyboardInterrupt`` comes, and the JVM's thread that answers the program goes on::

    program                                  thread 31 of the JVM
    spark.sql("insert …")                    plans; runs job 7; writes
    KeyboardInterrupt                        is told; job 7 is cancelled, or cancelled when it begins: the call fails

The program's calls all go through ``send_command`` of py4j's client, which is where they are interrupted: that of the
clients of sessions that have the rule, and of no other one. Jobs have the id of the thread that began them as a
property (`ApplicationListener.java`), by which they are known before they begin.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError

from gpujoin.logs import log
from gpujoin.spark.jvm.compiled import new_instance
from gpujoin.spark.jvm.gateway import client_of, gateway_of, java_context, keeps_to_threads

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_CANCEL_SECONDS = 5.0
"""How long an interrupted program waits for its jobs to be cancelled: a call into the JVM, which may be gone."""
_lock = threading.Lock()
_listeners: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()
_callers: WeakKeyDictionary[Any, _Caller] = WeakKeyDictionary()
"""Those of the program's main thread, by py4j's client."""
_interrupted: set[int] = set()
"""Threads of the JVM that the program waits for no more. Their ids are never used again."""


def listener_of(spark: SparkSession) -> Any:
    """Give the ``ApplicationListener`` of a session's application."""
    context = spark.sparkContext
    with _lock:
        if context not in _listeners:
            _listeners[context] = new_instance(gateway_of(spark), "ApplicationListener", java_context(context).sc())
        return _listeners[context]


def end_interrupted_calls(spark: SparkSession) -> None:
    """Have the calls end that the main thread makes into a session's JVM when Ctrl-C interrupts it.

    Nothing changes where py4j does not keep to threads: whose jobs are whose is not known there.
    """
    if keeps_to_threads(spark):
        client = client_of(spark)
        caller = _callers[client] = _Caller(client, listener_of(spark))
        client.send_command = functools.partial(_send_command, client, caller)


def leave_calls_alone() -> None:
    """Undo :func:`end_interrupted_calls` for all sessions."""
    for client in list(_callers):
        del client.send_command
    _callers.clear()


class _Caller:
    """The main thread as a caller of a JVM.

    Parameters
    ----------
    client : py4j object
        Its client.
    listener : py4j object
        The ``ApplicationListener``.
    """

    def __init__(self, client: Any, listener: Any) -> None:
        self._client = weakref.ref(client)
        self._listener = listener
        self._connection: Any = lambda: None
        self._thread: int | None = None
        self._asks = False

    def thread(self) -> int | None:
        """Give the id of the JVM's thread that answers; ``None`` if it is not known.

        It is another one after an interrupt, which costs a thread its connection. The first call over a connection
        asks, and so has the thread's jobs named.
        """
        client = self._client()
        if self._asks or client is None:
            return None
        connection = client.get_thread_connection()
        if connection is None or connection.socket is None or self._connection() is not connection:
            self._asks, self._thread = True, None
            try:
                self._thread = int(self._listener.nameJobs())
                self._connection = weakref.ref(client.get_thread_connection())
            except (Py4JError, OSError):  # the application has ended, or the JVM is gone: the call itself tells
                log.debug("the JVM's thread could not be asked for its id", exc_info=True)
            finally:
                self._asks = False
        return self._thread

    def cancel(self, thread: int) -> None:
        """Cancel the jobs of a thread of the JVM, and those that it begins from now on."""
        _interrupted.add(thread)
        _in_another_thread(lambda: self._listener.cancelJobs(thread))

    def cancel_active(self) -> None:
        """Cancel the active jobs of the thread that answered last."""
        if (thread := self._thread) is not None:
            _in_another_thread(lambda: self._listener.cancelActiveJobs(thread))


def _send_command(client: Any, caller: _Caller, *arguments: Any, **named: Any) -> Any:
    """Send a command by a client, as py4j does; jobs of a call of the main thread's that Ctrl-C ends are cancelled."""
    send = functools.partial(type(client).send_command, client)
    if threading.current_thread() is not threading.main_thread():
        return send(*arguments, **named)
    thread = caller.thread()
    try:
        return send(*arguments, **named)
    except KeyboardInterrupt:
        if thread is not None:
            caller.cancel(thread)
        raise


def check_awaited(thread: int) -> None:
    """Raise ``KeyboardInterrupt`` if Ctrl-C has ended the call that a thread of the JVM answers."""
    if thread in _interrupted:
        raise KeyboardInterrupt("the program was interrupted while its query was planned")


def cancel_active_jobs(spark: SparkSession) -> None:
    """Cancel the active jobs of the main thread, after Ctrl-C came between two calls.

    ``toArrow`` reads rows from a socket while another thread of the JVM, which this one's thread began, computes them.
    All of the application's are cancelled where py4j does not keep to threads, none of a session without the rule.
    """
    caller = _callers.get(client_of(spark))
    if caller is not None:
        caller.cancel_active()
    elif not keeps_to_threads(spark):
        _in_another_thread(spark.sparkContext.cancelAllJobs)


def _in_another_thread(cancel: Callable[[], object]) -> None:
    """Call the JVM: this thread's connection may be in use, or at an end."""

    def quietly() -> None:
        with contextlib.suppress(Exception):  # the application may be gone
            cancel()

    thread = threading.Thread(target=quietly, name="gpujoin-cancel", daemon=True)
    thread.start()
    thread.join(_CANCEL_SECONDS)
