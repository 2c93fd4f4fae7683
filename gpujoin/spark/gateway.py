"""The private doors of classic PySpark sessions that gpujoin goes through, all of them."""

# ruff: noqa: SLF001
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType, _parse_datatype_json_string

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def gateway_of(spark: SparkSession) -> Any:
    """Give the JVM view of a classic session."""
    return spark._jvm


def settings_text(spark: SparkSession, separator: str) -> str:
    """Give all settings of a classic session as ``key -> value`` texts, in one gateway call."""
    return str(spark._jsparkSession.conf().getAll().mkString(separator))


def analyzed_plan(frame: DataFrame) -> Any:
    """Give the analyzed logical plan of a classic DataFrame."""
    return frame._jdf.queryExecution().analyzed()


def optimized_plan(frame: DataFrame) -> Any:
    """Give the optimized logical plan of a classic DataFrame."""
    return frame._jdf.queryExecution().optimizedPlan()


def schema_of(plan: Any) -> StructType:
    """Give the schema of a logical plan."""
    schema = _parse_datatype_json_string(plan.schema().json())
    assert isinstance(schema, StructType)
    return schema


def schema_text(frame: DataFrame) -> str:
    """Give the schema of a classic DataFrame as JSON."""
    return str(frame._jdf.schema().json())


def session_id(spark: SparkSession) -> str:
    """Give the id of a classic session; several Python objects may stand for one."""
    return str(spark._jsparkSession.sessionUUID())


def dataframe_of(spark: SparkSession, plan: Any) -> DataFrame:
    """Make a DataFrame of a logical plan, which Spark analyzes."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    dataset = gateway_of(spark).org.apache.spark.sql.classic.Dataset
    return ClassicDataFrame(dataset.ofRows(spark._jsparkSession, plan), spark)


def plan_text(frame: DataFrame) -> str:
    """Give the analyzed plan of a Spark Connect DataFrame as Spark writes it."""
    text = frame._explain_string(extended=True)  # type: ignore[operator]
    return str(text).partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]
