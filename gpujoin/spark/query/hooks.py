"""Switching transparent acceleration on and off for a session.

An enabled session's optimizer has a rule of gpujoin's (`rule`): whatever Spark optimizes in it is planned here first,
be it asked for by ``collect``, ``spark.sql("insert …")``, ``cache`` or ``foreachBatch``. What a rule cannot do is done
around PySpark's methods while any session has the rule:

=========================================  ==========================================================================
``collect``, ``count``, ``show``, …        where a task of gpujoin failed, Spark runs the query in its place
``toLocalIterator``, ``foreach``, …        read rows that are computed before the first one is out
``DataFrameWriter``, ``DataFrameWriterV2``  note what was planned, for :func:`gpujoin.metrics`
``SparkSession.newSession``                the new session of an enabled one is enabled too
PySpark's conversion of Java's exceptions  raises what planning raised, as the exception that it was
py4j's calls of the main thread            cancel their jobs where Ctrl-C ends them
=========================================  ==========================================================================

Schemas, errors of analysis, and sessions that are not enabled behave as ever. Once such a session has called
``gpu_join``, it has the rule too, for queries with joins that ``gpu_join`` made (``Scope.GPU_JOINS``).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors.exceptions import captured
from pyspark.traceback_utils import SCCallSiteSync

from gpujoin.config import is_switched_off
from gpujoin.errors import ConfigurationError, GpuJoinError, RequirementError, type_name
from gpujoin.logs import log, warn_once
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.report.outcomes import Scope, give_back, text_of
from gpujoin.spark.compat import check_running, is_connect, is_stopped, remote_server
from gpujoin.spark.failures import Failure, failure_of, final_error
from gpujoin.spark.jvm.compiled import load_ahead, shared_instance
from gpujoin.spark.jvm.gateway import (
    analyzed_plan,
    dataframe_of,
    gateway_of,
    java_context,
    java_session,
    latest_plan,
    latest_session,
    optimized_plan,
    session_id,
)
from gpujoin.spark.jvm.rewrite import with_counted_size
from gpujoin.spark.query import rule
from gpujoin.spark.query.actions import Action, inside, is_inside, running
from gpujoin.spark.query.interrupts import cancel_active_jobs, end_interrupted_calls, leave_calls_alone
from gpujoin.spark.query.native import native_frame, remove_exchanged, rule_of
from gpujoin.spark.query.requirements import check_required
from gpujoin.spark.query.rule import OptimizerRule
from gpujoin.spark.query.staging import stage
from gpujoin.spark.resources import check_resources
from gpujoin.spark.settings import disabled_reason, join_options, serves_clients, session_conf
from gpujoin.spark.worker.python import use_this_python

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

    Method = Callable[..., Any]

_REPEATABLE = (
    "collect", "count", "isEmpty", "tail", "toArrow", "toPandas", "_to_pandas", "_show_string", "checkpoint",
    "localCheckpoint", "approxQuantile", "corr", "cov", "crosstab", "freqItems",
)  # fmt: skip
"""Actions that have no effect before they return."""
_SWITCH = "spark.gpujoin.enabled"
_SERVED = ("toArrow", "toPandas", "_to_pandas")
"""Actions whose jobs run in a thread of the JVM's own, which takes over how jobs are described when it begins."""
_CHECKPOINTS = ("checkpoint", "localCheckpoint")
_ONCE = ("toLocalIterator", "foreach", "foreachPartition")
"""Those that cannot be begun again: some of the rows are out when they fail."""
_WRITES = (
    "save", "insertInto", "saveAsTable", "json", "parquet", "text", "csv", "xml", "orc", "jdbc", "create", "replace",
    "createOrReplace", "append", "overwrite", "overwritePartitions",
)  # fmt: skip
"""Methods that write, of both writers of Spark 4.0 to 4.3."""
_PYSPARK = str(Path(pyspark.__file__).parent)
_NOT_THE_PROGRAM = (_PYSPARK, __file__, contextlib.__file__)
"""How paths of files begin that stand between an action's hook and the program."""
_lock = threading.RLock()
_rules: dict[str, OptimizerRule] = {}
"""Those of enabled sessions, by the id of the session."""
_joining: dict[str, OptimizerRule] = {}
"""Rules of sessions that have called ``gpu_join`` and are not enabled, which share one."""
_originals: list[tuple[Any, str, Any]] = []
"""Replaced attributes: the owner, the name and the original of each."""


def enable(spark: SparkSession | None = None) -> None:
    """Let a session run its queries here if that is faster, with its programs unchanged.

    From now on Spark's optimizer asks gpujoin for the plan of each query of the session that has a join or an
    aggregation: those of actions, of ``spark.sql``, of writes, ``INSERT`` and ``CREATE TABLE … AS``, of cached tables,
    of the batches of ``foreachBatch``. ``DataFrame.explain`` shows what will run. To enable a session twice changes
    nothing. Sessions that ``newSession`` makes of it are enabled too; other sessions are not affected.
    ``spark.gpujoin.enabled=false`` switches off without :func:`disable`; ``true``, when a session is made, enables it
    without this function. Where the environment variable ``GPUJOIN_DISABLE`` is ``1``, nothing is enabled.

    In local mode the context's workers run this process's Python from now on, where neither ``PYSPARK_PYTHON`` nor
    ``spark.pyspark.python`` chose another one: PySpark would take the first ``python3`` on ``PATH``.

    Parameters
    ----------
    spark : SparkSession, optional
        By default the active one. Of a Spark Connect session it sets ``spark.gpujoin.enabled`` to ``true``, if the
        server plans queries with gpujoin; otherwise the session is left as it is, which is logged.

    Raises
    ------
    ConfigurationError
        If a setting under ``spark.gpujoin.`` is unknown or absurd, or the session can start no task (local mode with
        ``spark.task.resource.*``).
    RequirementError
        If ``spark.gpujoin.require`` is true, and workers lack gpujoin, or a GPU that was asked for.
    GpuJoinError
        If what is given is no session, or one that has been stopped, or none is given and none is active; if Spark's
        driver refuses the rule.
    """
    session = _session(spark)
    check_running(session, "enable()")
    conf = session_conf(session)
    options = join_options(conf, None, None)
    if is_disabled_by_operator():
        return
    if is_connect(session):
        _set_in_server(session, enabled=True)
        return
    check_resources(conf)
    use_this_python(session.sparkContext)
    check_required(session.sparkContext, conf, options)
    with _lock:
        _forget_ended()
        name = session_id(session)
        if name in _rules:
            return
        with _installed():
            own = OptimizerRule(session, Scope.EVERY_QUERY)
            own.add_to(session)
            if serves_clients(conf):
                own.add_to_clients_of(session)
            end_interrupted_calls(session)
            _rules[name] = own
            _leave_gpu_joins(name)
    load_ahead(gateway_of(session))


def is_disabled_by_operator() -> bool:
    """Tell whether an operator has switched gpujoin off in this process, which is logged once."""
    if not is_switched_off():
        return False
    warn_once(f"{disabled_reason().why}: Spark runs all queries")
    return True


def plan_gpu_joins(spark: SparkSession) -> None:
    """Have a classic session plan queries with joins of ``gpu_join``, and others only if it is enabled.

    Raises
    ------
    GpuJoinError
        If Spark's driver refuses the rule.
    """
    if is_disabled_by_operator():
        return
    with _lock:
        name = session_id(spark)
        if name in _rules or name in _joining or _has_rule(spark):
            return
        with _installed():
            own = _gpu_join_rule(spark)
            own.add_to(spark)
            end_interrupted_calls(spark)
            _joining[name] = own


def plan_as_of_joins(spark: SparkSession) -> None:
    """Have a classic session plan its queries with joins that ``gpu_asof_join`` made; see :func:`plan_gpu_joins`.

    Its optimizer gets `GpuAsOfRule.java` too, and keeps it: it makes Spark's own plans of what is not planned here.

    Raises
    ------
    GpuJoinError
        If Spark's driver refuses a rule.
    """
    with _lock:
        plan_gpu_joins(spark)
        as_of_rule(spark).addTo(java_session(spark))


def as_of_rule(spark: SparkSession) -> Any:
    """Give the driver's ``GpuAsOfRule``."""
    return shared_instance(gateway_of(spark), "GpuAsOfRule")


def _gpu_join_rule(spark: SparkSession) -> OptimizerRule:
    _forget_ended()
    rules = [rule for rule in _joining.values() if rule.spark.sparkContext is spark.sparkContext]
    return rules[0] if rules else OptimizerRule(spark, Scope.GPU_JOINS)


def _has_rule(spark: SparkSession) -> bool:
    """Whether a session has a rule in force, its own or that of the session it was cloned from."""
    optimizer_rule = rule_of(spark)
    return optimizer_rule is not None and not optimizer_rule.isDisabled()


def disable(spark: SparkSession | None = None) -> None:
    """Let a session run its queries as Spark does again; once no session has a rule, PySpark is as it was.

    A DataFrame that has run already keeps its plan, as Spark keeps it. Joins that :func:`gpu_join` has made are Spark's
    own from now on, until it is called again.

    Parameters
    ----------
    spark : SparkSession, optional
        By default the active session. One that is not enabled and has not called ``gpu_join`` is left as it is.

    Raises
    ------
    GpuJoinError
        If what is given is no session, or none is given and none is active.
    """
    session = _session(spark)
    if is_connect(session):
        _set_in_server(session, enabled=False)
        return
    with _lock:
        _forget_ended()
        if is_stopped(session):
            _uninstall_if_unused()
            return
        name = session_id(session)
        optimizer_rule = _rules.pop(name, None)
        if optimizer_rule is not None:
            optimizer_rule.disable()
        elif name in _joining:
            _joining[name].remove_from(session)
            _leave_gpu_joins(name)
        _uninstall_if_unused()


def _set_in_server(spark: SparkSession, *, enabled: bool) -> None:
    """Switch a Spark Connect session on or off, in whose server the rule is."""
    if remote_server().plans_queries(spark):
        spark.conf.set(_SWITCH, str(enabled).lower())
    elif enabled:
        log.warning("the Spark Connect server does not plan queries with gpujoin: %s", remote_server().HOW_TO_SERVE)


def _forget_ended() -> None:
    """Forget the rules of applications that have ended."""
    for rules in (_rules, _joining):
        for name, optimizer_rule in tuple(rules.items()):
            if java_context(optimizer_rule.spark.sparkContext) is None:
                del rules[name]


def _leave_gpu_joins(name: str) -> None:
    """Forget that a session has called ``gpu_join``; with the last one the rule ends in sessions cloned from them."""
    shared = _joining.pop(name, None)
    if shared is not None and shared not in _joining.values():
        shared.disable()


def is_enabled(spark: SparkSession) -> bool:
    """Tell whether :func:`enable` is in force for a session, or for the session it was cloned from."""
    if is_connect(spark):
        return join_options(session_conf(spark), None, None).enabled and bool(remote_server().plans_queries(spark))
    if not _rules:
        return False
    optimizer_rule = rule_of(spark)
    return optimizer_rule is not None and bool(optimizer_rule.isForEveryQuery())


def _session(spark: SparkSession | None) -> SparkSession:
    from pyspark.sql import SparkSession as Session

    candidate: Any = _active_session() if spark is None else spark
    if candidate is None:
        raise GpuJoinError("no Spark session is active; give one: gpujoin.enable(spark)")
    if not (isinstance(candidate, Session) or is_connect(candidate)):
        raise GpuJoinError(f"spark must be a SparkSession, got {type_name(candidate)}; give one: gpujoin.enable(spark)")
    session: SparkSession = candidate
    return session


def _active_session() -> SparkSession | None:
    """Give the thread's session, or the program's: after Ctrl-C py4j serves a thread by a new one without a session."""
    from pyspark.sql import SparkSession as Session

    return Session.getActiveSession() or latest_session()


@contextmanager
def _installed() -> Iterator[None]:
    """Replace PySpark's methods for a rule that is made within."""
    _install()
    try:
        yield
    except BaseException:
        _uninstall_if_unused()
        raise


def _install() -> None:
    if _originals:
        return
    from pyspark.sql import DataFrameWriter, DataFrameWriterV2
    from pyspark.sql import SparkSession as Session

    frames = _owner()
    places: list[tuple[Any, str, Callable[[Method], Method]]] = [
        *((frames, name, _repeatable) for name in _REPEATABLE),
        *((frames, name, _once) for name in _ONCE),
        *((writer, name, _write) for writer in (DataFrameWriter, DataFrameWriterV2) for name in _WRITES),
        (Session, "newSession", _new_session),
        (captured, "convert_exception", rule.raising),
    ]
    try:
        for owner, name, wrap in places:
            original = getattr(owner, name, None)
            if original is not None:
                _originals.append((owner, name, vars(owner).get(name, _INHERITED)))
                setattr(owner, name, wrap(original))
    except BaseException:  # all or none, for a program that goes on after an interrupt
        _uninstall()
        raise


def _uninstall_if_unused() -> None:
    if not _rules and not _joining:
        _uninstall()


def _uninstall() -> None:
    for owner, name, method in _originals:
        if method is not _INHERITED:
            setattr(owner, name, method)
        elif name in vars(owner):
            delattr(owner, name)
    _originals.clear()
    leave_calls_alone()


_INHERITED = object()


def _owner() -> Any:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    return ClassicDataFrame


def _repeatable(original: Method) -> Method:
    """Have Spark run the query in the place of one of whose tasks gpujoin's part failed.

    So an error is Spark's own, and a query that only fails here does not fail: files that only Spark reads, rows that
    Spark would not have evaluated, workers that are killed or cannot start. A query that was cancelled runs no more.
    """

    @functools.wraps(original)
    def action(self: DataFrame, *arguments: Any, **named: Any) -> Any:
        from pyspark.sql import DataFrame

        if _is_sparks_own(self):
            return original(self, *arguments, **named)
        before, enabled = sys.exception(), next(iter(_rules.values()), None)
        with _action(self, original.__name__) as running_action:
            try:
                if original.__name__ in _SERVED:
                    optimized_plan(self)
                result = original(self, *arguments, **named)
                if original.__name__ in _CHECKPOINTS and _is_planned_here(self):
                    return with_counted_size(self, result)
                return result
            except Exception as problem:
                if _was_interrupted(problem, before):
                    raise
                own = _rule_that_failed(self, running_action.names, enabled, problem)
                if own is None:
                    raise
                if (final := final_error(problem)) is not None:
                    raise final from problem
                give_back(self.sparkSession, problem, functools.partial(text_of, self))
                remove_exchanged(self.sparkSession, latest_plan(self))
                running_action.restore_description()
            result = original(native_frame(self, own), *arguments, **named)
            if isinstance(result, DataFrame):
                return dataframe_of(self.sparkSession, analyzed_plan(result))
            return result

    return action


def _is_planned_here(frame: DataFrame) -> bool:
    own = rule_of(frame.sparkSession)
    return own is not None and bool(own.holdsPlanned(optimized_plan(frame)))


def _is_sparks_own(frame: DataFrame) -> bool:
    """Whether a call is not to be followed: it is not the program's action, or its session has been stopped."""
    return is_inside() or java_context(frame.sparkSession.sparkContext) is None


def _was_interrupted(problem: BaseException, before: BaseException | None) -> bool:
    """Tell whether Ctrl-C ended an action; ``toArrow`` raises another error while it closes its connection.

    ``before`` is what the program was handling when it began the action.
    """
    context = problem.__context__
    while context is not None and context is not before:
        if isinstance(context, KeyboardInterrupt):
            return True
        context = context.__context__
    return False


def _rule_that_failed(frame: DataFrame, planned: list[str], enabled: OptimizerRule | None, problem: Exception) -> Any:
    """Give the rule whose plan had the task of gpujoin that failed; ``None`` for any other failure.

    Where another thread has disabled the session meanwhile, any that was ``enabled`` before stands for it.
    """
    if isinstance(problem, GpuJoinError) or failure_of(problem) is not Failure.OURS:
        return None
    own = rule_of(frame.sparkSession)
    if own is None and enabled is not None:
        own = enabled.jvm
    return own if own is not None and (planned or own.holdsPlanned(latest_plan(frame))) else None


def _once(original: Method) -> Method:
    """Have an action that cannot be repeated read rows that are computed before it begins.

    So a query that only fails here has had no effect when Spark runs its own.
    """

    @functools.wraps(original)
    def action(self: DataFrame, *arguments: Any, **named: Any) -> Any:
        if _is_sparks_own(self):
            return original(self, *arguments, **named)
        with _action(self, original.__name__):
            own = rule_of(self.sparkSession)
            plan = None if own is None else optimized_plan(self)
            if plan is None or not own.holdsPlanned(plan):
                return original(self, *arguments, **named)
            rows = stage(self.sparkSession, plan, own)
            if rows is None:
                return original(native_frame(self, own), *arguments, **named)
            try:
                result = original(rows.frame, *arguments, **named)
            except BaseException:
                rows.release()
                raise
            if result is None:
                rows.release()
            else:
                rows.release_with(result)
            return result

    return action


def _write(original: Method) -> Method:
    @functools.wraps(original)
    def write(self: Any, *arguments: Any, **named: Any) -> Any:
        if _is_sparks_own(self._df):
            return original(self, *arguments, **named)
        with _action(self._df, original.__name__):
            return original(self, *arguments, **named)

    return write


@contextmanager
def _action(frame: DataFrame, name: str) -> Iterator[Action]:
    """Note of a query what is planned while one of its actions runs, for metrics and for the names of its jobs.

    What PySpark itself calls within the action is no action of its own. One that is interrupted leaves no job behind.
    """
    try:
        with inside(), _called_from(frame.sparkSession, name), running(frame) as action:
            yield action
    except KeyboardInterrupt:
        cancel_active_jobs(frame.sparkSession)
        raise


@contextmanager
def _called_from(spark: SparkSession, action: str) -> Iterator[None]:
    """Name Spark's jobs after an action and the program's line: the caller that PySpark would name is in this file."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_PROGRAM):
        if frame.f_code.co_filename.startswith(_PYSPARK):
            action = frame.f_code.co_name
        frame = frame.f_back
    place = "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
    with _CallSite(spark.sparkContext, action + place):
        yield


class _CallSite(SCCallSiteSync):
    """PySpark's own way to name jobs, which does so once however deep its calls are."""

    def __init__(self, context: SparkContext, name: str) -> None:
        self._context, self._call_site = context, name

    def __exit__(self, *problem: object) -> None:
        """Restore the description of jobs, without hiding the error of an application that has ended."""
        try:
            super().__exit__(*problem)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - whatever py4j and PySpark raise without a JVM
            log.debug("the call site could not be unset", exc_info=True)


def _new_session(original: Method) -> Method:
    @functools.wraps(original)
    def new_session(self: SparkSession) -> SparkSession:
        session: SparkSession = original(self)
        if is_enabled(self):
            enable(session)
        elif _has_rule(self):
            plan_gpu_joins(session)
        as_of_rule(self).addToClone(java_session(self), java_session(session))
        return session

    return new_session


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


def make_enabled(session: SparkSession, initialize: Callable[[], None], conf: Mapping[str, str]) -> None:
    """Make a session whose configuration has ``spark.gpujoin.enabled=true``, and enable it.

    `_gpujoin_startup.py` calls this in the place of ``SparkSession.__init__``, which is ``initialize`` with its
    arguments. Settings, of the application and of the builder, are checked before there is a session: where a program
    tries again, it fails again, and is not given a session that is not enabled. Any other obstacle is a warning in
    the log, unless ``spark.gpujoin.require`` is true.
    """
    options = join_options(conf, None, None)
    check_resources(conf)
    initialize()
    try:
        enable(session)
    except (ConfigurationError, RequirementError):
        raise
    except Exception as problem:
        if options.require:
            why = Reason(ReasonKind.UNAVAILABLE, "session", f"it is not enabled: {problem}")
            raise RequirementError(why) from problem
        # a program that does not name gpujoin must not fail by it
        log.warning("the session is not enabled, so its queries run as Spark's: %s", problem)
        log.debug("the session is not enabled", exc_info=True)


def disable_sessions() -> None:
    """Undo :func:`enable_sessions`, and :func:`enable` and what ``gpu_join`` did for all sessions."""
    from pyspark.sql import SparkSession as Session

    with _lock:
        if _session_init:
            Session.__init__ = _session_init.pop()  # type: ignore[method-assign]
        for optimizer_rule in (*_rules.values(), *_joining.values()):
            try:
                optimizer_rule.disable()
            except Py4JError:  # its application has ended
                log.debug("a session could not be disabled", exc_info=True)
        _rules.clear()
        _joining.clear()
        _uninstall()


def load_ipython_extension(ipython: object) -> None:
    """``%load_ext gpujoin``: enable the active session and those made later."""
    del ipython
    enable_sessions()


def unload_ipython_extension(ipython: object) -> None:
    """``%unload_ext gpujoin``: let all sessions run their queries as Spark does."""
    del ipython
    disable_sessions()
