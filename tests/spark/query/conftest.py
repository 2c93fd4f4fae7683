from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.query.queries import write_tables


@pytest.fixture(scope="module")
def written(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tables as Parquet files, with views of them."""
    write_tables(spark_session, tmp_path_factory.mktemp("tables"))
    yield
    for name in ("sales", "items", "none"):
        spark_session.catalog.dropTempView(name)


@pytest.fixture
def tables(written: None, spark: SparkSession) -> SparkSession:
    """A session with the tables."""
    return spark
