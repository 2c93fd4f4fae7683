"""Tables of Iceberg in catalogs other than folders, and files that are not opened by Hadoop."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lake.icebergs import MERGE_ON_READ, new_table
from tests.lake.jars import AWS, jar_of
from tests.lake.queries import check_left, check_read, queries_of, run
from tests.lake.rest_catalog import serving
from tests.spark.query.queries import FORCED
from tests.stores import ACCESS_KEY, BUCKET, SECRET_KEY, s3

pytestmark = [
    pytest.mark.lake("iceberg"),
    pytest.mark.spark,
    pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["one task"]),
]
_numbers = itertools.count()
BASE = "k bigint, g int, s string"
INSERT = "insert into {t} select id, id % 3, concat('x', id % 10) from range(60)"


def catalog(spark: SparkSession, settings: Mapping[str, str]) -> str:
    """Add a catalog to a session; give its name."""
    name = f"other{next(_numbers)}"
    spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{name}.{key}", value)
    return name


@pytest.mark.parametrize("config", [{}, {"s3.access-key-id": ACCESS_KEY}], ids=["no credentials", "credentials"])
def test_tables_of_a_rest_catalog_whose_files_hadoop_opens(spark: SparkSession, config: Mapping[str, str]) -> None:
    table = new_table(spark, BASE, by="g")
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    with serving(Path(spark.conf.get("spark.sql.catalog.ice.warehouse") or ""), config) as url:
        name = catalog(spark, {"type": "rest", "uri": url})
        check_read(queries_of(spark, table.replace("ice", name, 1)).items())


@pytest.mark.skipif(not jar_of(AWS).is_file(), reason=f"no {AWS}: make test-lake gets it from Maven Central")
def test_files_that_s3_fileio_opens(spark: SparkSession, tmp_path: Path) -> None:
    """Workers read them with the credentials of the catalog, where they may read S3 at all."""
    with s3() as server:
        settings = {
            "type": "hadoop", "warehouse": str(tmp_path), "io-impl": "org.apache.iceberg.io.ResolvingFileIO",
            "s3.endpoint": server.endpoint, "s3.path-style-access": "true", "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY, "client.region": "us-east-1",
        }  # fmt: skip
        name = catalog(spark, settings)
        table = f"{name}.db.t"
        settings_of_table = MERGE_ON_READ | {"write.data.path": f"s3://{BUCKET}/t"}
        properties = ", ".join(f"'{key}'='{value}'" for key, value in settings_of_table.items())
        spark.sql(f"create namespace {name}.db")
        spark.sql(f"create table {table} ({BASE}) using iceberg partitioned by (s) tblproperties ({properties})")
        run(spark, table, INSERT, "insert into {t} values (99, 1, 'ü=/%')", "delete from {t} where k % 5 = 0")
        check_left(queries_of(spark, table)["groups"], "its files are on 's3'")
        spark.conf.set("spark.gpujoin.fallback", "raise")
        spark.conf.set("spark.gpujoin.scan.schemes", "file,s3")
        check_read(queries_of(spark, table).items())
        signed = catalog(spark, settings | {"s3.access-points.other": "arn:aws:s3::123456789012:accesspoint:a"})
        frame = spark.sql(f"select g, count(*) n from {signed}.db.t group by g")
        check_left(frame, "Iceberg was told s3.access-points.other, which workers do not follow")
