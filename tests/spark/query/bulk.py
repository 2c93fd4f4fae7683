"""A table of many rows of special values, nested ones among them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.query.generated import COLUMNS, _nasty_column

ROWS = 1_500
_SCALES = {"m": "cast(m as decimal(20,0)) * 0.01", "n": "cast(n as decimal(20,0)) * 0.0001"}
_STRUCT = "named_struct('d', d, 's', s, 'n', n, 'm', m, 't', t, 'a', a, 'o', o)"
NESTED = f"""
select id, g, {", ".join(COLUMNS)},
  if(id % 9 = 0, null, {_STRUCT}) st,
  if(id % 7 = 0, null, named_struct('y', y, 'in', if(id % 5 = 0, null, {_STRUCT}), 'f', f)) deep,
  case id % 5 when 0 then null when 1 then array() when 2 then array(d) when 3 then array(d, null, 0.5D)
    else array(d, cast(f as double), null) end ds,
  case id % 4 when 0 then null when 1 then array() when 2 then array(s, 'x') else array('x', s, null) end ss,
  case id % 4 when 0 then null when 1 then array() when 2 then array(i) else array(i, null, 1) end xs,
  case id % 6 when 0 then null when 1 then array(null, named_struct('s', s, 'ds', array(d, f)))
    else array(named_struct('s', s, 'ds', array(d)), named_struct('s', null, 'ds', null)) end sts,
  case id % 3 when 0 then null when 1 then map() else map('k', d, cast(id as string), null) end mp
from gpujoin_raw
"""


def write_bulk(spark: SparkSession, folder: Path, seed: int) -> None:
    """Write the table as Parquet files."""
    rng = np.random.default_rng(seed)
    columns = {name: _nasty_column(name, ROWS, rng) for name in COLUMNS}
    columns |= {"id": pa.array(rng.permutation(ROWS)), "g": pa.array(rng.integers(0, 100, ROWS), pa.int32())}
    casts = [f"cast({_SCALES.get(c, c)} as {kind}) {c}" for c, kind in COLUMNS.items()]
    raw = spark.createDataFrame(pa.table(columns)).selectExpr(*casts, "id", "if(g = 0, null, g) g")
    raw.createOrReplaceTempView("gpujoin_raw")
    frame = spark.sql(NESTED).repartition(3)
    frame.write.parquet(str(folder / "bulk"))
    spark.catalog.dropTempView("gpujoin_raw")
