"""Writes samples by arrow-rs: as DataFusion, as arro3 or as Delta's library has it."""

import importlib
import importlib.util
import shutil
from pathlib import Path

import pyarrow as pa
from rows import COLUMNS, FOLDER  # type: ignore[import-not-found]

SCHEMA = pa.schema([
    ("id", pa.int64()), ("flag", pa.bool_()), ("i8", pa.int8()), ("i32", pa.int32()), ("i64", pa.int64()), ("u8",
    pa.uint8()),
    ("u32", pa.uint32()), ("u64", pa.uint64()), ("f32", pa.float32()), ("f64", pa.float64()), ("text", pa.string()),
    ("bytes", pa.binary()),
    ("day", pa.date32()), ("dec9", pa.decimal128(9, 2)), ("dec38", pa.decimal128(38, 10)), ("late", pa.int32()),
    ("ints", pa.list_(pa.int32())),
    ("point", pa.struct([("x", pa.int32()), ("y", pa.string())])),
])  # fmt: skip
MOMENTS = {
    "moment": pa.timestamp("us"),
    "moment_s": pa.timestamp("s"),
    "moment_ns": pa.timestamp("ns"),
    "moment_utc": pa.timestamp("ms", "UTC"),
}
table = pa.table([pa.array(COLUMNS[field.name], field.type) for field in SCHEMA], SCHEMA)
for name, dtype in MOMENTS.items():
    table = table.append_column(name, pa.array(COLUMNS["moment"], dtype))
few = pa.array(COLUMNS["few"]).dictionary_encode()
clock = pa.array([None if v is None else 3600 * abs(v) % 86400 for v in COLUMNS["i8"]], pa.int32()).cast(pa.time32("s"))
span = pa.array(COLUMNS["late"], pa.int64()).cast(pa.duration("s"))
half = pa.array(COLUMNS["f32"], pa.float32()).cast(pa.float16())
rare = table.select(["id"])
for name, values in {
    "few": few,
    "clock": clock,
    "span": span,
    "half": half,
    "view": table["text"].cast(pa.string_view()),
}.items():
    rare = rare.append_column(name, values)

if importlib.util.find_spec("datafusion"):
    datafusion = importlib.import_module("datafusion")
    context = datafusion.SessionContext()
    for name, rows in (("plain", table), ("rare", rare)):
        path = f"{FOLDER}/datafusion-{datafusion.__version__}-{name}.parquet"
        context.from_arrow(rows).write_parquet(path, compression="zstd")
elif importlib.util.find_spec("deltalake"):
    deltalake = importlib.import_module("deltalake")
    path = f"{FOLDER}/deltalake-{deltalake.__version__}.parquet"
    deltalake.write_deltalake(path + ".d", table.drop_columns(["u8", "u32", "u64", "moment_s", "moment_ns"]))
    shutil.move(next(Path(path + ".d").glob("*.parquet")), path)
    shutil.rmtree(path + ".d")
else:
    arro3 = importlib.import_module("arro3.io")
    version = importlib.import_module("importlib.metadata").version("arro3-io")
    for name, rows, options in (
        ("v2", table, {"writer_version": "parquet_2_0", "compression": "zstd(1)"}),
        ("delta", table, {"dictionary_enabled": False, "compression": "lz4_raw", "bloom_filter_enabled": True}),
        ("rare", rare, {"compression": "uncompressed"}),
    ):  # fmt: skip
        arro3.write_parquet(rows, f"{FOLDER}/arro3-{version}-{name}.parquet", **options)
