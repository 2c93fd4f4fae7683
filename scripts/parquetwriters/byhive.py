"""Writes a sample by Hive's writer, which PySpark brings; runs on PySpark 3.3 or newer."""

import shutil
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from rows import COLUMNS, FOLDER  # type: ignore[import-not-found]

WORK = FOLDER + "/work"
SETTINGS = {
    "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.warehouse.dir": WORK,
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "1g",
    "spark.sql.hive.convertMetastoreParquet": "false",
    "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:samples;create=true",
}  # fmt: skip
TYPES = {
    "id": "bigint", "flag": "boolean", "i8": "tinyint", "i16": "smallint", "i32": "int", "i64": "bigint",
    "f64": "double", "text": "string", "bytes": "binary", "day": "date", "moment": "timestamp",
    "dec9": "decimal(9, 2)", "dec38": "decimal(38, 10)", "ints": "array<int>", "point": "struct<x: int, y: string>",
    "late": "int",
}  # fmt: skip
builder = SparkSession.builder.master("local[1]").enableHiveSupport()
for key, value in SETTINGS.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
columns = ", ".join(f"{name} {dtype}" for name, dtype in TYPES.items())
spark.sql(f"create table rows ({columns}) stored as parquet")
rows = list(zip(*(COLUMNS[name] for name in TYPES)))  # noqa: B905
spark.createDataFrame(rows, columns).coalesce(1).write.insertInto("rows")
written = next(path for path in Path(WORK, "rows").iterdir() if path.name.startswith("part"))
shutil.copy(str(written), f"{FOLDER}/hive-of-spark-{pyspark.__version__}.parquet")
