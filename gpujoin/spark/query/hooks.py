"""Switching transparent acceleration on and off for a session.

PySpark's DataFrame is the place where a program asks for results, so its actions are wrapped while any session is
enabled: an action of an enabled session first rewrites its query, and is then PySpark's own action on the rewritten
one. Nothing else of PySpark is touched; transformations, schemas, errors of analysis, and sessions that are not
enabled behave as ever.

What a program does by other ways than these actions stays Spark's: statements that run inside ``spark.sql`` itself
(``INSERT … SELECT``, ``CREATE TABLE … AS``, ``CACHE TABLE``), ``mergeInto``, ``DataFrame.rdd``, ``cache``,
``checkpoint``, and the statistics that ``describe``, ``summary`` and ``stat`` compute at once.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpujoin.errors import GpuJoinError, type_name
from gpujoin.spark.compat import is_connect
from gpujoin.spark.failures import Failure, cancel_all_jobs, failure_of
from gpujoin.spark.gateway import session_id
from gpujoin.spark.outcomes import log
from gpujoin.spark.query.accelerate import Accelerated, rewrite
from gpujoin.spark.query.fallback import give_back
from gpujoin.spark.query.staging import stage
from gpujoin.spark.query.writes import StagingWriter
from gpujoin.spark.resources import check_resources
from gpujoin.spark.settings import join_options, session_conf
from gpujoin.spark.workerpython import use_this_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_REPEATABLE = ("collect", "toArrow", "toPandas", "_to_pandas", "tail")
"""Actions that need every row, or the last ones, and have no effect before they return."""
_ONCE = ("toLocalIterator", "foreach", "foreachPartition")
"""Those that cannot be begun again: some of the rows are out when they fail."""
_lock = threading.RLock()
_enabled: set[str] = set()
_originals: dict[str, Any] = {}
_inside = threading.local()


def enable(spark: SparkSession | None = None) -> None:
    """Let a session run its queries here where that is faster, with its programs unchanged.

    From now on ``collect``, ``toPandas``, ``toArrow``, ``toLocalIterator``, ``count``, ``show``, ``take``, ``head``,
    ``first``, ``tail``, ``foreach``, ``foreachPartition``, ``write`` and ``writeTo`` of the session's DataFrames, those
    of ``spark.sql`` included, run the query as :func:`accelerate` rewrites it. To enable a session twice changes
    nothing. Other sessions are not affected. ``spark.gpujoin.enabled=false`` switches off without :func:`disable`.

    In local mode the context's workers run this process's Python from now on, where neither ``PYSPARK_PYTHON`` nor
    ``spark.pyspark.python`` chose another one: PySpark would take the first ``python3`` on ``PATH``.

    Parameters
    ----------
    spark : SparkSession, optional
        A classic session; by default the active one. A Spark Connect session is left as it is, which is logged.

    Raises
    ------
    ConfigurationError
        If a setting under ``spark.gpujoin.`` is unknown or absurd, or the session can start no task (local mode with
        ``spark.task.resource.*``).
    GpuJoinError
        If what is given is no session, or none is given and none is active.
    """
    session = _session(spark)
    if is_connect(session):
        log.warning(
            "Spark Connect does not hand out plans: its queries run as they are. Use gpujoin.gpu_join."
        )
        return
    conf = session_conf(session)
    join_options(conf, None, None)
    check_resources(conf)
    use_this_python(session.sparkContext)
    with _lock:
        _install()
        _enabled.add(session_id(session))


def disable(spark: SparkSession | None = None) -> None:
    """Let a session run its queries as Spark does again; once no session is enabled, PySpark is as it was.

    Parameters
    ----------
    spark : SparkSession, optional
        By default the active session. One that is not enabled is left as it is.

    Raises
    ------
    GpuJoinError
        If what is given is no session, or none is given and none is active.
    """
    session = _session(spark)
    if is_connect(session):
        return
    with _lock:
        _enabled.discard(session_id(session))
        if not _enabled:
            _uninstall()


def is_enabled(spark: SparkSession) -> bool:
    """Tell whether :func:`enable` is in force for a session."""
    return not is_connect(spark) and bool(_enabled) and session_id(spark) in _enabled


def _session(spark: SparkSession | None) -> SparkSession:
    from pyspark.sql import SparkSession as Session

    given: Any = _active_session() if spark is None else spark
    if given is None:
        raise GpuJoinError("no Spark session is active; give one: gpujoin.enable(spark)")
    if not (isinstance(given, Session) or is_connect(given)):
        raise GpuJoinError(
            f"spark must be a SparkSession, got {type_name(given)}; give one: gpujoin.enable(spark)"
        )
    session: SparkSession = given
    return session


def _active_session() -> SparkSession | None:
    """Give the thread's session, or the program's: after Ctrl-C py4j serves a thread by a new one without a session."""
    from pyspark.sql import SparkSession as Session

    return Session.getActiveSession() or Session._instantiatedSession  # noqa: SLF001


def _install() -> None:
    if _originals:
        return
    owner = _owner()
    wrapped: dict[str, Any] = {
        name: _repeatable(getattr(owner, name)) for name in _REPEATABLE if hasattr(owner, name)
    }
    wrapped |= {name: _once(getattr(owner, name)) for name in _ONCE}
    wrapped["count"] = _count(owner.count)
    wrapped["_show_string"] = _show_string(owner._show_string)  # noqa: SLF001
    wrapped["write"] = property(_writer(owner.write.fget, "_jwrite"), doc=owner.write.__doc__)
    wrapped["writeTo"] = _writer(owner.writeTo, "_jwriter")
    try:
        for name, method in wrapped.items():
            _originals[name] = owner.__dict__.get(name, _INHERITED)
            setattr(owner, name, method)
    except BaseException:  # all or none, for a program that goes on after an interrupt
        _uninstall()
        raise


def _uninstall() -> None:
    owner = _owner()
    for name, method in _originals.items():
        if method is _INHERITED:
            if name in owner.__dict__:
                delattr(owner, name)
        else:
            setattr(owner, name, method)
    _originals.clear()


_INHERITED = object()


def _owner() -> Any:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    return ClassicDataFrame


def _concerned(frame: DataFrame) -> bool:
    return not getattr(_inside, "busy", False) and is_enabled(frame.sparkSession)


class _Busy:
    """Marks that the thread is inside an action: what PySpark or gpujoin itself runs there is not rewritten.

    An action that is interrupted leaves no job behind.
    """

    def __enter__(self) -> None:
        _inside.busy = True

    def __exit__(self, kind: type[BaseException] | None, *problem: object) -> None:
        _inside.busy = False
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            cancel_all_jobs()


def _repeatable(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def action(self: DataFrame, *arguments: Any, **named: Any) -> Any:
        if not _concerned(self):
            return original(self, *arguments, **named)
        with _Busy():
            return _or_sparks(self, rewrite(self), lambda frame: original(frame, *arguments, **named))

    return action


def _once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def action(self: DataFrame, *arguments: Any, **named: Any) -> Any:
        return _staged(self, lambda frame: original(frame, *arguments, **named))

    return action


def _staged(given: DataFrame, action: Callable[[DataFrame], Any]) -> Any:
    """Run an action that cannot be begun again over the staged rows of a rewritten query, or over Spark's own query.

    The rows are computed before the action begins. So a query that only fails here has had no effect when Spark runs
    its own.
    """
    if not _concerned(given):
        return action(given)
    with _Busy():
        accelerated = rewrite(given)
        rows = stage(given, accelerated.frame) if accelerated.changed else None
        if rows is None:
            return action(given)
        try:
            result = action(rows.frame)
        except BaseException:
            rows.release()
            raise
        if result is None:
            rows.release()
        else:
            rows.release_with(result)
        return result


def _or_sparks(given: DataFrame, found: Accelerated, action: Callable[[DataFrame], Any]) -> Any:
    """Run an action without side effects on a rewritten query, and where gpujoin's part fails on Spark's own instead.

    So an error is Spark's own, and a query that only fails here does not fail: files that only Spark reads, rows that
    Spark would not have evaluated, workers that are killed or cannot start. A query that was cancelled runs no more.
    """
    if not found.changed:
        return action(given)
    try:
        return action(found.frame)
    except Exception as problem:
        if failure_of(problem) is not Failure.OURS:
            raise
        give_back(given, problem)
    return action(given)


def _count(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def count(self: DataFrame) -> int:
        if not _concerned(self):
            return original(self)
        with _Busy():
            counted = self.groupBy().count()
            found = rewrite(counted, origin=self)
            if not found.changed:
                return original(self)
            return int(_or_sparks(counted, found, lambda frame: frame.collect()[0][0]))

    return count


def _show_string(original: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(original)
    def show_string(self: DataFrame, n: int = 20, *arguments: Any, **named: Any) -> str:
        if not _is_count(n) or not _concerned(self):
            return original(self, n, *arguments, **named)
        with _Busy():
            # One row more tells that there are more.
            found = rewrite(self.limit(n + 1), origin=self)
            return str(_or_sparks(self, found, lambda frame: original(frame, n, *arguments, **named)))

    return show_string


def _is_count(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 30


def _writer(original: Callable[..., Any], jvm_writer: str) -> Callable[..., Any]:
    """Wrap ``write`` or ``writeTo``; the attribute of PySpark's writer that holds the JVM's is replaced."""

    @functools.wraps(original)
    def write(self: DataFrame, *arguments: Any) -> Any:
        writer = original(self, *arguments)
        if _concerned(self):

            def make(frame: DataFrame) -> Any:
                return getattr(original(frame, *arguments), jvm_writer)

            setattr(
                writer, jvm_writer, StagingWriter(self, make, arguments[0] if arguments else None, _staged)
            )
        return writer

    return write


_session_init: list[Any] = []


def enable_sessions() -> None:
    """Enable the active session, and every classic session that is made from now on, in this process."""
    from pyspark.sql import SparkSession as Session

    with _lock:
        if not _session_init:
            original = Session.__init__
            _session_init.append(original)

            @functools.wraps(original)
            def init(self: SparkSession, *arguments: Any, **named: Any) -> None:
                original(self, *arguments, **named)
                enable(self)

            Session.__init__ = init  # type: ignore[method-assign]
    active = _active_session()
    if active is not None:
        enable(active)


def disable_sessions() -> None:
    """Undo :func:`enable_sessions`, and :func:`enable` for all sessions."""
    from pyspark.sql import SparkSession as Session

    with _lock:
        if _session_init:
            Session.__init__ = _session_init.pop()  # type: ignore[method-assign]
        _enabled.clear()
        _uninstall()


def load_ipython_extension(ipython: object) -> None:
    """``%load_ext gpujoin``: enable the active session and those made later.

    Parameters
    ----------
    ipython : InteractiveShell
        Not used.
    """
    del ipython
    enable_sessions()


def unload_ipython_extension(ipython: object) -> None:
    """``%unload_ext gpujoin``: let all sessions run their queries as Spark does.

    Parameters
    ----------
    ipython : InteractiveShell
        Not used.
    """
    del ipython
    disable_sessions()
