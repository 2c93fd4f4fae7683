"""Settings of sessions that know tables of Delta or Iceberg."""

from __future__ import annotations

from tests.lake.jars import jars

_FORMATS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
    },
}


def session_settings(name: str) -> dict[str, str]:
    """Give the settings for tables of a format; those of Iceberg are in the catalog ``ice``, which lacks a folder."""
    return _FORMATS[name] | {"spark.jars": ",".join(map(str, jars()))}
