"""The Arrow forms of Spark's types."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from gpujoin.errors import JoinSpecError
from gpujoin.spark.compat import arrow_schema


def arrow_type(dtype: DataType) -> pa.DataType:
    """Give the Arrow form of a Spark type. Raises ``JoinSpecError`` if there is none."""
    try:
        return arrow_schema(StructType([StructField("c", dtype)])).field(0).type
    except JoinSpecError:
        raise JoinSpecError(f"type {dtype.simpleString()} has no Arrow form") from None
