"""The optimizer rule of sessions: Spark asks here for the plans of queries.

In enabled sessions these are all queries that have a join, an aggregation or a window. In others, once they have called
``gpu_join``, they are those with a join that it made, which has its hint (`GpuJoinHint.java`).

`PythonRule.java` stands among the rules of a session's optimizer, and calls what is here over py4j. What happens to
``insert into t select … from a join b``, for example::

    optimizer    InsertInto t (Project (Join a b))           PythonRule: a write, with a join: asks
    here         Project (Join a b)                          planned; its rows are computed: "staging"
    optimizer    InsertInto t (InMemoryRelation)             PythonRule: planned already

An exception never leaves Python by way of py4j, which would log it, and could not tell Spark what it is. It is kept,
and a Java exception with its number ends the query; where that reaches Python again, PySpark raises the one kept. Only
Ctrl-C for which py4j has closed the connection of the thread that waits goes through it: there the query has ended.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started

from gpujoin.cache import Cache
from gpujoin.report.outcomes import Scope
from gpujoin.spark.jvm.compiled import new_instance
from gpujoin.spark.jvm.gateway import (
    class_of,
    client_of,
    gateway_of,
    java_session,
    names_of,
    py4j_gateway,
    session_id,
    session_of,
)
from gpujoin.spark.query.accelerate import plan_query
from gpujoin.spark.query.actions import action_of, inside
from gpujoin.spark.query.activity import planning_watched
from gpujoin.spark.query.interrupts import check_awaited
from gpujoin.spark.query.serving import Question, answer, note_operation, serve, server_of
from gpujoin.spark.query.staging import stage_write
from gpujoin.streams.microbatches import MicroBatch, plan_micro_batch, plan_with_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITE = "write"
_CLIENT = "client"
_MICRO_BATCH = "micro-batch"
_WITH_TABLES = "micro-batch-with-tables"
_OF_STREAMS = {_MICRO_BATCH: plan_micro_batch, _WITH_TABLES: plan_with_tables}
_QUESTIONS = {f"question-{question.value}": question for question in Question}
_MOST_PROBLEMS = 100
_MOST_LINES = 8
_STOP = "gpujoin.PythonRule$Stop"
_LONGEST_CHAIN = 20
"""Causes that are looked at; a longer chain is a circle."""


class OptimizerRule:
    """A rule in sessions of one application, and in those cloned from them.

    Parameters
    ----------
    spark : SparkSession
        A classic session of the application.
    scope : Scope
        Which queries it plans.

    Attributes
    ----------
    spark : SparkSession
        The session given.
    jvm : py4j object
        The rule itself.
    serves : bool
        Whether sessions of Spark Connect's clients have it.
    """

    def __init__(self, spark: SparkSession, scope: Scope) -> None:
        self.spark = spark
        self.scope = scope
        self.serves = False
        self._id = session_id(spark)
        start: Any = ensure_callback_server_started
        gateway = py4j_gateway(spark.sparkContext)
        start(gateway)
        self.jvm = new_instance(
            gateway_of(spark),
            "PythonRule",
            _Callback(self),
            gateway.java_gateway_server,
            scope is Scope.GPU_JOINS,
        )

    def add_to(self, spark: SparkSession) -> None:
        """Give the rule to a session, in the place of another one."""
        self.jvm.addTo(java_session(spark))

    def add_to_clients_of(self, spark: SparkSession) -> None:
        """Give the rule to the sessions that the Spark Connect server of this driver makes from now on.

        It makes them from ``spark``, as ``newSession`` does.
        """
        server_of(spark).adopt(java_session(spark), self.jvm)
        self.serves = True

    def remove_from(self, spark: SparkSession) -> None:
        """Take the rule out of a session."""
        self.jvm.removeFrom(java_session(spark))

    def disable(self) -> None:
        """Take the rule out of the session that it was made for; in others it does nothing from now on."""
        self.jvm.disable()
        self.remove_from(self.spark)

    def session(self, name: str) -> SparkSession:
        """Give a session that has the rule by its id."""
        if name == self._id:
            return self.spark
        # It is not kept: a session that ends goes with what it holds.
        return session_of(self.spark, self.jvm.session(name))


class _Callback:
    """What the rule calls."""

    def __init__(self, rule: OptimizerRule) -> None:
        self._rule = rule

    def apply(self, plan: Any, request: str) -> Any:
        """Give what takes the place of a query: a plan, ``None`` for the query itself, or an exception to throw.

        To a question of a Spark Connect client about a ``Dataset``, which ``plan`` is then, the answer.
        """
        kind, name, thread, *further = request.split()
        client: Any = client_of(self._rule.spark)
        waiting = client.get_thread_connection()
        try:
            with inside():
                session = self._rule.session(name)
                if kind in _OF_STREAMS:
                    query, run, number = further
                    batch = MicroBatch(query, run, int(number))
                    with planning_watched():
                        replacement = _OF_STREAMS[kind](session, plan, self._rule.jvm, batch)
                elif kind in _QUESTIONS:
                    replacement = answer(session, plan, _QUESTIONS[kind], further, self._rule.jvm)
                else:
                    replacement = _replacement(self._rule, session, plan, kind, int(thread))
        except BaseException as problem:
            if isinstance(problem, KeyboardInterrupt) and waiting is not None and waiting.socket is None:
                raise  # py4j has closed the connection by which an answer would go, and hands Ctrl-C to the program
            return _keep(self._rule, problem)  # py4j would log it, and end its thread
        return replacement

    class Java:
        """For py4j."""

        implements = ("java.util.function.BiFunction",)


def _replacement(rule: OptimizerRule, spark: SparkSession, plan: Any, kind: str, thread: int) -> Any:
    action = action_of(thread)
    if action is not None:
        action.was_planned = True
    with planning_watched():
        planned = plan_query(spark, plan, rule.jvm, rule.scope)
    check_awaited(thread)
    if not planned.changed:
        return None
    if action is not None:
        action.name_jobs(planned.explanation)
    replacement = planned.plan
    if kind == _WRITE:
        replacement = stage_write(spark, planned.plan, plan, rule.jvm)
    elif kind == _CLIENT:
        replacement = serve(spark, planned, plan, rule.jvm)
    check_awaited(thread)
    if replacement is not None and action is not None:
        action.names.append(planned.name)
    elif replacement is not None and rule.serves and kind in (_WRITE, _CLIENT):
        note_operation(spark, planned.name)
    return replacement


# -- exceptions on their way through the JVM -----------------------------------------------------------------------

_problems: Cache[int, BaseException] = Cache(_MOST_PROBLEMS)
_numbers = itertools.count(1)


def _keep(rule: OptimizerRule, problem: BaseException) -> Any:
    """Keep an exception, and make the Java exception that stands for it."""
    number = next(_numbers)
    _problems.put(number, problem)
    cause = problem.java_exception if isinstance(problem, Py4JJavaError) else getattr(problem, "_origin", None)
    # Spark's check whether a stream was stopped reads texts of errors by a regular expression that overflows the stack
    # where they are long; that of a Py4JJavaError holds its stack.
    message = "\n".join(str(problem).splitlines()[:_MOST_LINES])
    return rule.jvm.stop(number, f"{type(problem).__name__}: {message}", cause)


def _python_exception(java: Any) -> BaseException | None:
    """Give the exception that a Java exception stands for, or one of its causes."""
    names = names_of(java)
    for _ in range(_LONGEST_CHAIN):
        if java is None:
            return None
        if class_of(java, names) == _STOP:
            return _problems.get(java.number())
        java = java.getCause()
    return None


def raising(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap PySpark's conversion of Java exceptions so that Python's own are raised as they were."""

    @functools.wraps(original)
    def convert_exception(java: Any) -> Any:
        problem = _python_exception(java) if _problems else None
        return original(java) if problem is None else problem

    return convert_exception
