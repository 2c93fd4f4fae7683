"""Writers of enabled sessions: the rows of a write are computed before its target is touched.

``df.write`` and ``df.writeTo(table)`` of an enabled session are PySpark's own writers, in which the JVM's writer is
replaced by one of this module. It passes each setting on to a writer of Spark's over the user's query, so that Spark
checks them, and remembers it. The method that writes is where the query is rewritten and its rows are staged
(`gpujoin.spark.query.staging`); the settings are then made once more, on a writer of the staged rows. Thus
``df.write.mode("overwrite").option("compression", "zstd").parquet(path)`` becomes::

    over df:                mode("overwrite"), option("compression", "zstd")      and parquet(path) if staging fails
    over the staged rows:   mode("overwrite"), option("compression", "zstd"), parquet(path)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from gpujoin.spark.gateway import path_exists
from gpujoin.spark.query.accelerate import for_writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Action = Callable[[DataFrame], Any]

_TO_PATHS = frozenset({"save", "parquet", "json", "orc", "text", "csv", "xml"})
"""Methods of ``DataFrameWriter`` that write to a path, which is the first argument or an option."""
_TO_PRESENT_TABLES = frozenset({"replace", "append", "overwrite", "overwritePartitions"})
"""Methods of ``DataFrameWriterV2`` that fail without the table."""
_WRITES = _TO_PATHS | _TO_PRESENT_TABLES | {"insertInto", "saveAsTable", "jdbc", "create", "createOrReplace"}
"""Methods that write, of both writers of Spark 4.0 to 4.3. One that a later release adds writes Spark's own query."""
_TO_NEW_TARGETS = frozenset({"error", "errorifexists", "default", "ignore"})
"""Save modes that write nothing to a target that is there already."""


class StagingWriter:
    """Takes the place of the JVM's writer inside a writer of PySpark's.

    Parameters
    ----------
    given : DataFrame
        The user's query.
    make : callable (DataFrame) -> py4j object
        Makes a writer of Spark's.
    table : str or None
        What ``writeTo`` writes to; ``None`` for ``write``.
    run_staged : callable (DataFrame, action) -> object
        Runs an action on a query's staged rows, or on the query itself.
    """

    def __init__(
        self,
        given: DataFrame,
        make: Callable[[DataFrame], Any],
        table: str | None,
        run_staged: Callable[[DataFrame, Action], Any],
    ) -> None:
        self._given = given
        self._make = make
        self._table = table
        self._run_staged = run_staged
        self._spark_writer = make(given)
        self._settings: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        """Give a method of the writer; what py4j asks of an argument, Spark's writer answers."""
        if name == "Java":  # has it, for py4j, what Java calls in Python
            raise AttributeError(name)
        if name.startswith("_"):
            return getattr(self.__dict__["_spark_writer"], name)

        def method(*arguments: Any) -> Any:
            if name in _WRITES and not self._is_refused(name, arguments):
                return self._run_staged(self._given, lambda frame: self._write(frame, name, arguments))
            result = getattr(self._spark_writer, name)(*arguments)
            if not isinstance(result, JavaObject):
                return result
            self._settings.append((name, arguments))
            return self

        return method

    def _write(self, frame: DataFrame, name: str, arguments: tuple[Any, ...]) -> None:
        """Write the user's query, or staged rows in its place."""
        writer = self._spark_writer
        if frame is not self._given:
            writer = self._make(for_writing(self._given, frame))
            for setting, values in self._settings:
                getattr(writer, setting)(*values)
        getattr(writer, name)(*arguments)

    def _is_refused(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Whether Spark will write nothing, for what is there or is not; ``False`` where that cannot be told.

        Then nothing needs to be computed. Spark itself does as it does: fails, or returns.
        """
        spark = self._given.sparkSession
        try:
            if self._table is not None:
                if name == "createOrReplace":
                    return False
                return spark.catalog.tableExists(self._table) is not (name in _TO_PRESENT_TABLES)
            mode, path = self._mode_and_path()
            if mode not in _TO_NEW_TARGETS:
                return False
            if name == "saveAsTable":
                return spark.catalog.tableExists(*arguments)
            target = arguments[0] if arguments else path
            return name in _TO_PATHS and target is not None and path_exists(spark, target)
        except (Py4JError, PySparkException):
            return False

    def _mode_and_path(self) -> tuple[str, str | None]:
        mode, path = "default", None
        for setting, values in self._settings:
            if setting == "mode":
                mode = str(values[0]).lower()
            elif setting == "option" and str(values[0]).lower() == "path":
                path = values[1]
        return mode, path
