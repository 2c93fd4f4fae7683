"""Writes samples by Spark 3.3 or newer."""

import shutil
from pathlib import Path
from typing import Dict  # noqa: UP035

import pyspark
from pyspark.sql import SparkSession
from rows import FOLDER  # type: ignore[import-not-found]

VERSION = pyspark.__version__
WORK = FOLDER + "/work"
SETTINGS = {
    "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "false",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "1g",
    "spark.sql.timeType.enabled": "true",
}  # fmt: skip
builder = SparkSession.builder.master("local[1]")
for key, value in SETTINGS.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
QUERY = """
select id,
  case id % 3 when 0 then null else id % 2 = 0 end flag, cast(if(id % 7 = 0, null, (id - 12) * 11) as tinyint) i8,
  cast(if(id % 7 = 1, null, (id - 12) * 2700) as smallint) i16,
  if(id % 7 = 2, null, element_at(array(0, -2147483648, 2147483647, 1, 7), cast(id % 5 + 1 as int))) i32,
  if(id % 5 = 0, null, element_at(array(0L, -9223372036854775808L, 9223372036854775807L, 1700000000L),
  cast(id % 4 + 1 as int))) i64,
  element_at(array(float('0'), float('-0.0'), float('NaN'), null, float('Infinity'), float('1.5')),
  cast(id % 6 + 1 as int)) f32,
  element_at(array(0.0D, double('-0.0'), double('NaN'), null, double('-Infinity'), 0.1D, double('4.9E-324')),
  cast(id % 7 + 1 as int)) f64,
  element_at(array('', 'a', null, 'ü', 'a ', repeat('x', 30)), cast(id % 6 + 1 as int)) text,
  element_at(array(X'', X'61', null, X'FFFE', X'00'), cast(id % 5 + 1 as int)) bytes,
  element_at(array(date'1970-01-01', date'1969-12-31', null, date'2024-02-29', date'9999-12-31'),
  cast(id % 5 + 1 as int)) day,
  element_at(array(timestamp'1970-01-01 00:00:00', timestamp'1969-12-31 23:59:59.999', null,
  timestamp'2024-02-29 12:30:15.25'),
    cast(id % 4 + 1 as int)) moment,
  cast(element_at(array(0, -9999999.99, null, 1.25), cast(id % 4 + 1 as int)) as decimal(9, 2)) dec9,
  cast(element_at(array(0, -99999999999999.9999, null, 1.25), cast(id % 4 + 1 as int)) as decimal(18, 4)) dec18,
  cast(element_at(array(0, -1234567890123456789012345678.0123456789, null, 1.25),
  cast(id % 4 + 1 as int)) as decimal(38, 10)) dec38,
  case id % 4 when 0 then null when 1 then array() when 2 then array(cast(id as int), null) else array(1, 2) end ints,
  if(id % 3 = 0, null, named_struct('x', cast(id as int), 'y', if(id % 2 = 0, null, 'b'))) point,
  if(id % 3 = 1, null, map('k', id, 'l', null)) props,
  if(id % 3 = 1, null, array(named_struct('n', id))) points,
  if(id < 20, null, cast(id as int)) late
from range(0, 24, 1, 1)
"""
rows = spark.sql(QUERY)


def write(name: str, settings: Dict[str, str], options: Dict[str, str] = {}) -> None:  # noqa: B006, UP006
    """Write the rows under settings of the session and options of the writer."""
    for key, value in settings.items():
        spark.conf.set("spark.sql." + key, value)
    rows.write.mode("overwrite").options(**{"parquet." + key: value for key, value in options.items()}).parquet(
        WORK + "/rows"
    )
    for key in settings:
        spark.conf.unset("spark.sql." + key)
    shutil.copy(str(next(Path(WORK, "rows").glob("*.parquet"))), f"{FOLDER}/spark-{VERSION}-{name}.parquet")


write(
    "legacy",
    {"parquet.writeLegacyFormat": "true", "parquet.outputTimestampType": "INT96", "parquet.compression.codec": "gzip"},
)
write(
    "pages",
    {"parquet.compression.codec": "none"},
    {"page.size": "64", "page.row.count.limit": "5", "dictionary.page.size": "64"},
)
if not VERSION.startswith("3."):
    blooms = {"bloom.filter.enabled": "true", "bloom.filter.max.bytes": "64"}
    write("v2", {"parquet.compression.codec": "zstd"}, {"writer.version": "PARQUET_2_0", **blooms})
    plain = {"writer.version": "PARQUET_2_0", "enable.dictionary": "false"}
    write("delta", {"parquet.compression.codec": "lz4_raw", "parquet.outputTimestampType": "TIMESTAMP_MILLIS"}, plain)
    write("delta-none", {"parquet.compression.codec": "none"}, plain)
    rows.select("id").selectExpr(
        "id", "timestamp_ntz'2024-01-01 00:00:00' + make_dt_interval(id) ntz",
        "parse_json(concat('{\"a\": ', id, '}')) anything",
        "interval '1' year * id years",
        "interval '1' second * id span",
        "cast(null as void) nothing",
        "time'12:30:15' clock",
        "cast(concat('c', id) as char(5)) padded", "cast('v' as varchar(3)) cut",
    ).write.mode("overwrite").parquet(WORK + "/rows")  # fmt: skip
    shutil.copy(str(next(Path(WORK, "rows").glob("*.parquet"))), f"{FOLDER}/spark-{VERSION}-rare.parquet")
