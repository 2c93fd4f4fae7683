"""Tables of Iceberg, and deletes by key, which Spark itself never writes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

_numbers = itertools.count()
MERGE_ON_READ = {f"write.{what}.mode": "merge-on-read" for what in ("delete", "update", "merge")}


def new_table(
    spark: SparkSession, columns: str, *, version: int = 2, by: str = "", properties: Mapping[str, str] | None = None
) -> str:
    """Make a table; give its name."""
    name = f"ice.db.t{next(_numbers)}"
    spark.sql("create namespace if not exists ice.db")
    settings = {"format-version": str(version), **(MERGE_ON_READ if version > 1 else {}), **(properties or {})}
    text = ", ".join(f"'{key}'='{value}'" for key, value in settings.items())
    partitioned = f"partitioned by ({by})" if by else ""
    spark.sql(f"create table {name} ({columns}) using iceberg {partitioned} tblproperties ({text})")
    return name


def handle_of(spark: SparkSession, table: str) -> Any:
    """Iceberg's own object of a table."""
    jvm: Any = spark._jvm
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)


def delete_equal(
    spark: SparkSession, table: str, rows: Mapping[str, Sequence[Any]], *, partition: str | None = None
) -> None:
    """Commit a file of deleted keys: rows of the table with these values in these columns, nulls being equal.

    A partition is written as in the names of folders, such as ``g=1``.
    """
    jvm: Any = spark._jvm
    handle = handle_of(spark, table)
    schema = spark.table(table).schema
    ids = [int(handle.schema().findField(name).fieldId()) for name in rows]
    types = pa.schema(_field(schema[name].dataType.simpleString(), name, i) for name, i in zip(rows, ids, strict=True))
    path = Path(urlparse(str(handle.location())).path) / "data" / f"keys-{next(_numbers)}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(
        pa.table([pa.array(values, f.type) for values, f in zip(rows.values(), types, strict=True)], types), path
    )
    numbers = spark.sparkContext._gateway.new_array(jvm.int, len(ids))  # type: ignore[union-attr]
    for place, number in enumerate(ids):
        numbers[place] = number
    count = len(next(iter(rows.values())))
    file = (
        jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(handle.spec())
        .ofEqualityDeletes(numbers)
        .withPath(str(path))
        .withFormat("PARQUET")
        .withFileSizeInBytes(path.stat().st_size)
        .withRecordCount(count)
    )
    if partition is not None:
        file = file.withPartitionPath(partition)
    handle.newRowDelta().addDeletes(file.build()).commit()
    spark.sql(f"refresh table {table}")


_ARROW = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "date": pa.date32(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "timestamp": pa.timestamp("us", "UTC"),
}


def _field(kind: str, name: str, number: int) -> pa.Field:
    return pa.field(name, _ARROW[kind], metadata={"PARQUET:field_id": str(number)})
