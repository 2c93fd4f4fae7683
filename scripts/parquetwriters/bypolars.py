"""Writes samples by Polars; runs on Python 3.7."""

from typing import Any

import polars as pl
import pyarrow as pa
from rows import COLUMNS, FOLDER  # type: ignore[import-not-found]

VERSION = pl.__version__
TYPES = {
    "id": pl.Int64, "flag": pl.Boolean, "i8": pl.Int8, "i16": pl.Int16, "i32": pl.Int32, "i64": pl.Int64,
    "u8": pl.UInt8,
    "u16": pl.UInt16, "u32": pl.UInt32, "u64": pl.UInt64, "f32": pl.Float32, "f64": pl.Float64, "late": pl.Int32,
}  # fmt: skip
chosen: Any = {name: pl.Series(name, COLUMNS[name], dtype=dtype) for name, dtype in TYPES.items()}
for name in ("text", "few", "day", "moment"):
    chosen[name] = pl.Series(name, COLUMNS[name])
chosen["few"] = chosen["few"].cast(pl.Categorical)
chosen["ints"] = pl.from_arrow(pa.array(COLUMNS["ints"], pa.list_(pa.int32())))
if not VERSION.startswith("0.13"):
    chosen["moment_ms"] = chosen["moment"].cast(pl.Datetime("ms"))
    chosen["moment_ns"] = chosen["moment"].cast(pl.Datetime("ns"))
    chosen["moment_utc"] = chosen["moment"].dt.replace_time_zone("UTC")
    chosen["bytes"] = pl.Series("bytes", COLUMNS["bytes"], dtype=pl.Binary)
    chosen["dec38"] = pl.from_arrow(pa.array(COLUMNS["dec38"], pa.decimal128(38, 10)))
    chosen["point"] = pl.Series("point", COLUMNS["point"])
    chosen["pair"] = pl.from_arrow(
        pa.array([None if v is None else [v, v] for v in COLUMNS["late"]], pa.list_(pa.int32(), 2))
    )
    chosen["span"] = pl.Series("span", COLUMNS["i32"]).cast(pl.Duration("us"))
    chosen["nothing"] = pl.Series("nothing", COLUMNS["nothing"])
frame = pl.DataFrame([series.alias(name) for name, series in chosen.items()])
plain = FOLDER + "/polars-" + VERSION + "-{}.parquet"
frame.write_parquet(plain.format("zstd"), compression="zstd")
frame.sort("i32").write_parquet(plain.format("sorted"), compression="snappy", statistics=True, row_group_size=10)
