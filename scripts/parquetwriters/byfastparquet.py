"""Writes samples by fastparquet; runs on Python 3.7."""

import importlib

import numpy as np
import pandas as pd
from rows import COLUMNS, FOLDER  # type: ignore[import-not-found]

fastparquet = importlib.import_module("fastparquet")
VERSION = fastparquet.__version__
NULLABLE = {
    "i8": "Int8",
    "i16": "Int16",
    "i32": "Int32",
    "i64": "Int64",
    "u8": "UInt8",
    "u16": "UInt16",
    "u32": "UInt32",
    "flag": "boolean",
}
frame = pd.DataFrame({"id": np.array(COLUMNS["id"], "int64")})
for name, dtype in NULLABLE.items():
    frame[name] = pd.array(COLUMNS[name], dtype=dtype)
frame["f32"] = np.array([np.nan if v is None else v for v in COLUMNS["f32"]], "float32")
frame["f64"] = np.array([np.nan if v is None else v for v in COLUMNS["f64"]], "float64")
frame["text"] = pd.Series(COLUMNS["text"], dtype=object)
frame["bytes"] = pd.Series(COLUMNS["bytes"], dtype=object)
if VERSION.startswith("0."):  # it writes no null among objects
    frame["text"], frame["bytes"] = frame["text"].map(lambda v: v or ""), frame["bytes"].map(lambda v: v or b"")
if not VERSION.startswith("0."):  # it writes no categories of text
    frame["few"] = pd.Categorical(COLUMNS["few"])
frame["moment"] = pd.Series(pd.to_datetime(COLUMNS["moment"]))
frame["moment_utc"] = frame["moment"].dt.tz_localize("UTC")
frame["span"] = pd.Series(pd.to_timedelta([None if v is None else v * 1000 for v in COLUMNS["late"]]))
frame["needed"] = np.arange(len(frame), dtype="int32") % 5
kinds = {"text": "utf8", "bytes": "bytes"}
path = f"{FOLDER}/fastparquet-{VERSION}-"
fastparquet.write(
    path + "plain.parquet", frame, compression=None, row_group_offsets=10, object_encoding=kinds, write_index=False
)
fastparquet.write(
    path + "int96.parquet", frame, compression="GZIP", times="int96", object_encoding=kinds, write_index=False
)
