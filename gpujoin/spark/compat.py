"""Hides differences between PySpark 4.0 to 4.x, and between kinds of sessions."""

from __future__ import annotations

import importlib
import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.pandas import types as spark_arrow
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from gpujoin.errors import GpuJoinError, JoinSpecError
from gpujoin.spark.jvm.gateway import java_context

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_TAKES_TIMEZONE = "timezone" in inspect.signature(spark_arrow.to_arrow_schema).parameters


def arrow_schema(schema: StructType) -> pa.Schema:
    """Give the Arrow form of a Spark schema; timestamps with a zone are labelled UTC in every version.

    Raises ``JoinSpecError``, with PySpark's message, if a column's type has no Arrow form in this PySpark, or a struct
    has two fields of one name.
    """
    arguments: dict[str, Any] = {"timezone": "UTC"} if _TAKES_TIMEZONE else {}
    try:
        return spark_arrow.to_arrow_schema(schema, error_on_duplicated_field_names_in_struct=True, **arguments)
    except (PySparkException, ValueError) as problem:
        # ``ValueError``: keys of a map may not be null, and so of no type that has nulls alone.
        raise JoinSpecError(str(problem)) from problem


@lru_cache(maxsize=4096)
def arrow_type(dtype: DataType) -> pa.DataType:
    """Give the Arrow form of a Spark type. Raises ``JoinSpecError`` if there is none."""
    try:
        return arrow_schema(StructType([StructField("c", dtype)])).field(0).type
    except JoinSpecError:
        raise JoinSpecError(f"type {dtype.simpleString()} has no Arrow form") from None


def type_in_arrow(dtype: DataType) -> DataType:
    """Give the type that Spark reads from Arrow data of a type: without collations, intervals of days to seconds."""
    match dtype:
        case StringType():
            return StringType()
        case DayTimeIntervalType():
            return DayTimeIntervalType()
        case ArrayType():
            return ArrayType(type_in_arrow(dtype.elementType), dtype.containsNull)
        case MapType():
            key, value = type_in_arrow(dtype.keyType), type_in_arrow(dtype.valueType)
            return MapType(key, value, dtype.valueContainsNull)
        case StructType():
            return StructType([StructField(f.name, type_in_arrow(f.dataType), f.nullable, f.metadata) for f in dtype])
    return dtype


def is_connect(session: SparkSession) -> bool:
    """Whether a session talks to a Spark Connect server instead of holding a JVM."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def remote_server() -> Any:
    """Import ``gpujoin.spark.server``, whose packages classic sessions do not need."""
    return importlib.import_module("gpujoin.spark.server")


def is_stopped(session: SparkSession) -> bool:
    """Whether a session can run nothing any more: it or its application was stopped, or the JVM has ended."""
    if is_connect(session):
        return bool(getattr(session, "is_stopped", False))
    context: Any = session.sparkContext
    try:
        return java_context(context) is None or bool(java_context(context).sc().isStopped())
    except (Py4JError, OSError):
        return True


def check_running(session: SparkSession, what: str) -> None:
    """Raise ``GpuJoinError`` if a session has been stopped; ``what`` is the function that takes it."""
    if is_stopped(session):
        raise GpuJoinError(
            f"{what}: the Spark session has been stopped. Make another one (SparkSession.builder.getOrCreate()), and "
            "its DataFrames anew."
        )


def context_of(session: SparkSession) -> SparkContext | None:
    """Give the Spark context of a classic session; Connect sessions have none."""
    return None if is_connect(session) else session.sparkContext
