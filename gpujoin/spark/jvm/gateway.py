"""Reads private attributes of PySpark's, which no other module does."""

# ruff: noqa: SLF001
from __future__ import annotations

import base64
import functools
import json
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from py4j.clientserver import ClientServer
from py4j.java_gateway import JavaClass, JavaMember
from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


class JvmNames:
    """Classes of the JVM by their full names, as in ``names.org.apache.spark.sql.classic.Dataset``.

    Py4J's own view asks the JVM at every dot whether it is a package or a class, and again for every static method;
    most of the calls of planning were such questions. Here a name that begins with a capital is a class, and static
    methods are remembered.
    """

    def __init__(self, client: Any, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        """Give a class or a package in this package."""
        full = self._prefix + name
        member = _Class(full, self._client) if name[0].isupper() else JvmNames(self._client, f"{full}.")
        self.__dict__[name] = member
        return member


class _Class(JavaClass):  # type: ignore[misc]  # py4j has no types
    """A class that remembers its static methods."""

    def __getattr__(self, name: str) -> Any:
        member = super().__getattr__(name)
        if isinstance(member, JavaMember):
            self.__dict__[name] = member
        return member


_names: WeakKeyDictionary[Any, JvmNames] = WeakKeyDictionary()


def gateway_of(spark: SparkSession) -> JvmNames:
    """Give the names of the JVM of a classic session."""
    return names_of(java_session(spark))


def names_of(java_object: Any) -> JvmNames:
    """Give the names of the JVM that an object of py4j is of."""
    client = java_object._gateway_client
    names = _names.get(client)
    if names is None:
        names = _names[client] = JvmNames(client)
    return names


PART_LENGTH = 8000
"""Characters of a part in which long data is read: a reply of over 8 KiB waits some 40 ms for an acknowledgement."""


def unpacked(text: str) -> Any:
    """Read JSON that is deflated, in base64: py4j takes milliseconds to make bytes of an array of the JVM's."""
    return json.loads(zlib.decompress(base64.b64decode(text)))


def java_session(spark: SparkSession) -> Any:
    """Give the JVM's object of a classic session."""
    return spark._jsparkSession


def java_frame(frame: DataFrame) -> Any:
    """Give the JVM's ``Dataset`` of a classic DataFrame."""
    return frame._jdf


def java_context(context: SparkContext) -> Any:
    """Give the JVM's ``JavaSparkContext``; ``None`` once the context has stopped."""
    return context._jsc


def java_accumulator(context: SparkContext) -> Any:
    """Give the JVM's accumulator behind Python's."""
    return context._javaAccumulator


def py4j_gateway(context: SparkContext) -> Any:
    """Give py4j's gateway of a context."""
    return context._gateway


def client_of(spark: SparkSession) -> Any:
    """Give py4j's client of the JVM of a classic session."""
    return spark._jsparkSession._gateway_client


def shipped_files(context: SparkContext) -> list[str]:
    """Give the names of the files that ``--py-files`` and ``addPyFile`` ship to workers."""
    return list(context._python_includes or ())


def running_context() -> SparkContext | None:
    """Give the Spark context of this process; ``None`` where there is none."""
    from pyspark import SparkContext as Context

    return Context._active_spark_context


def latest_session() -> SparkSession | None:
    """Give the session that PySpark's builder gives, whichever thread asks."""
    from pyspark.sql import SparkSession as Session

    return Session._instantiatedSession


def analyzed_plan(frame: DataFrame) -> Any:
    """Give the analyzed logical plan of a classic DataFrame."""
    return frame._jdf.queryExecution().analyzed()


def logical_plan(frame: DataFrame) -> Any:
    """Give the analyzed plan of a classic DataFrame as plans of others hold it: of a command, its result."""
    return frame._jdf.logicalPlan()


def optimized_plan(frame: DataFrame) -> Any:
    """Give the optimized logical plan of a classic DataFrame."""
    return frame._jdf.queryExecution().optimizedPlan()


def latest_plan(frame: DataFrame) -> Any:
    """Give the optimized plan of a classic DataFrame, if Spark has made it; or the analyzed one over cached tables."""
    execution = frame._jdf.queryExecution()
    if execution.tracker().phases().contains("optimization"):
        return execution.optimizedPlan()
    # Of another execution: what this one reads from the cache is settled when it is first asked.
    return dataframe_of(frame.sparkSession, execution.analyzed())._jdf.queryExecution().withCachedData()


def planning_seconds(frame: DataFrame) -> float:
    """Give the seconds in which Spark optimized and planned a query, its rules included."""
    phases = frame._jdf.queryExecution().tracker().phases()
    durations = [phases.get(name) for name in ("optimization", "planning")]
    return sum(int(phase.get().durationMs()) for phase in durations if phase.isDefined()) / 1000


def items(sequence: Any) -> list[Any]:
    """Give the elements of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]


def class_of(instance: Any, names: JvmNames) -> str:
    """Give the name of a JVM object's class in one call."""
    return str(names.org.apache.commons.lang3.ClassUtils.getName(instance))


def session_id(spark: SparkSession) -> str:
    """Give the id of a classic session; several Python objects may stand for one."""
    return str(spark._jsparkSession.sessionUUID())


def session_of(spark: SparkSession, session: Any) -> SparkSession:
    """Make the Python object of another session of the JVM, without what making one does besides.

    ``SparkSession(context, session)``, the only way that PySpark 4.0 to 4.3 have, would have ``RDD.toDF`` use that
    session from now on, and enable it where all sessions are.
    """
    wrapper: Any = object.__new__(type(spark))
    wrapper._sc, wrapper._jsc, wrapper._jvm, wrapper._jsparkSession = spark._sc, spark._jsc, spark._jvm, session
    return wrapper


def keeps_to_threads(spark: SparkSession) -> bool:
    """Tell whether py4j pins threads: one of Python has one of the JVM to itself, and is called back from there."""
    return isinstance(py4j_gateway(spark.sparkContext), ClientServer)


_jvm_threads: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def jvm_thread(spark: SparkSession) -> int | None:
    """Give the id of the JVM's thread that answers this one; ``None`` if py4j does not pin threads.

    It is another one after an interrupt, which costs the thread its connection.
    """
    if not keeps_to_threads(spark):
        return None
    client = client_of(spark)
    connection = client.get_thread_connection()
    thread_id = _jvm_threads.get(connection) if connection is not None and connection.socket is not None else None
    if thread_id is None:
        thread_id = int(gateway_of(spark).java.lang.Thread.currentThread().getId())
        _jvm_threads[client.get_thread_connection()] = thread_id
    return thread_id


def connect_address(spark: SparkSession) -> tuple[str, int]:
    """Give the name of the machine and the port at which the driver's Spark Connect server listens."""
    service: Any = getattr(gateway_of(spark).org.apache.spark.sql.connect.service, "SparkConnectService$")
    module = getattr(service, "MODULE$")
    return str(module.hostAddress()), int(module.localPort())


def compiled_classes(spark: SparkSession) -> int:
    """Count the classes of generated code that Spark's driver has compiled since its JVM began."""
    metrics = gateway_of(spark).org.apache.spark.metrics.source.CodegenMetrics
    return int(metrics.METRIC_COMPILATION_TIME().getCount())


def local_property(spark: SparkSession, name: str) -> str | None:
    """Give a local property of the JVM's thread."""
    value = spark.sparkContext._jsc.sc().getLocalProperty(name)
    return None if value is None else str(value)


def clone_session(spark: SparkSession, rule: Any) -> Any:
    """Clone the session of the JVM, with its settings, views and functions, but without a rule (`PythonRule.java`)."""
    session = spark._jsparkSession.cloneSession()
    rule.removeFrom(session)
    return session


def dataframe_of(spark: SparkSession, plan: Any) -> DataFrame:
    """Make a DataFrame of a logical plan, which Spark analyzes."""
    return dataframe_in(spark._jsparkSession, plan, spark)


def dataframe_in(session: Any, plan: Any, spark: SparkSession) -> DataFrame:
    """Make a DataFrame of a logical plan that a session of the JVM runs, for a Python session."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    dataset = gateway_of(spark).org.apache.spark.sql.classic.Dataset
    return ClassicDataFrame(dataset.ofRows(session, plan), spark)


def frame_of(spark: SparkSession, dataset: Any) -> DataFrame:
    """Make the DataFrame of a ``Dataset`` of the JVM."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    return ClassicDataFrame(dataset, spark)


def ask_server(spark: Any, type_url: str, frame: Any) -> str:
    """Send a Spark Connect server a relation that Spark does not know, about a DataFrame, and give its only value."""
    from pyspark.sql.connect import proto
    from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame
    from pyspark.sql.connect.plan import LogicalPlan

    class Question(LogicalPlan):
        def plan(self, session: Any) -> proto.Relation:
            relation = proto.Relation()
            relation.extension.type_url = type_url
            relation.extension.value = frame._plan.plan(session).SerializeToString()
            return relation

    ((answer,),) = ConnectDataFrame(Question(None), spark).collect()
    return str(answer)


def plan_text(frame: DataFrame) -> str:
    """Give the analyzed plan of a Spark Connect DataFrame as Spark writes it."""
    text = frame._explain_string(extended=True)  # type: ignore[operator]
    return str(text).partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]


def log_in_spark(context: SparkContext, message: str) -> None:
    """Log a message at the level ``INFO`` in Spark's driver, also after the context has stopped."""
    with suppress(Py4JError, OSError):  # the JVM is gone
        py4j_gateway(context).jvm.org.slf4j.LoggerFactory.getLogger("gpujoin").info(message)


def at_stop(context: SparkContext, action: Callable[[], None]) -> None:
    """Have something done once the program has stopped a context: PySpark then ends its server of accumulators."""
    server: Any = context._accumulatorServer
    if server is None:  # it has stopped
        return
    original = server.shutdown

    @functools.wraps(original)
    def shutdown() -> None:
        action()
        original()

    server.shutdown = shutdown


def end_accumulators_at_once(context: SparkContext) -> None:
    """Let a context stop without waiting for further updates of accumulators, up to a second.

    PySpark's server of updates looks once a second whether it is to end; an update of nothing has it look.
    """
    server: Any = context._accumulatorServer
    if server is None:  # the context has stopped
        return
    accumulator: Any = context._javaAccumulator
    nothing: Any = accumulator.copyAndReset()  # it cannot be made any more when the context has stopped
    original = server.shutdown

    @functools.wraps(original)
    def shutdown() -> None:
        server.server_shutdown = True
        with suppress(Py4JError, OSError):  # it had looked already, or the JVM is gone
            accumulator.merge(nothing)
        original()

    server.shutdown = shutdown
