"""Sessions in which Spark keeps state in RocksDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import gpujoin
from tests.spark.streams.queries import PROVIDER, ROCKSDB


@pytest.fixture
def streaming(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose streams keep their state in RocksDB, in two partitions."""
    spark.conf.set(PROVIDER, ROCKSDB)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield spark
    gpujoin.disable(spark)
    for query in spark.streams.active:
        query.stop()
