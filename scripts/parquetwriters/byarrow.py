"""Writes samples by PyArrow 0.8 or newer; runs on Python 3.6."""

import inspect
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rows import COLUMNS, FOLDER  # type: ignore[import-not-found]

VERSION = pa.__version__
TYPES = {
    "id": pa.int64(), "flag": pa.bool_(), "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(),
    "u8": pa.uint8(), "u16": pa.uint16(), "u32": pa.uint32(), "u64": pa.uint64(), "f32": pa.float32(),
    "f64": pa.float64(),
    "text": pa.string(), "bytes": pa.binary(), "day": pa.date32(), "moment": pa.timestamp("us"),
    "ints": pa.list_(pa.int32()), "late": pa.int32(), "few": pa.string(),
}  # fmt: skip
DECIMALS = {"dec9": (9, 2), "dec18": (18, 4), "dec38": (38, 10)}
NEWER = {
    "moment_s": pa.timestamp("s"),
    "moment_ns": pa.timestamp("ns"),
    "moment_utc": pa.timestamp("us", tz="UTC"),
    "day64": pa.date64(),
}


def columns() -> Any:
    """Give names and arrays of all columns that this version has types for."""
    # The oldest version makes neither from Python's numbers.
    known = [name for name in TYPES if name not in ("u64", "f32") or not VERSION.startswith("0.8")]
    chosen = {name: pa.array(COLUMNS[name], TYPES[name]) for name in known}
    for name, (precision, scale) in DECIMALS.items() if not VERSION.startswith("0.8") else ():
        make = getattr(pa, "decimal128", None) or pa.decimal
        chosen[name] = pa.array(COLUMNS[name], make(precision, scale))
    if not VERSION.startswith("0.8"):
        chosen["few"] = chosen["few"].dictionary_encode()
        for name, dtype in NEWER.items():
            chosen[name] = pa.array(COLUMNS["day" if name == "day64" else "moment"], dtype)
        chosen["wide"] = pa.array([None if v is None else v[:2].ljust(2) for v in COLUMNS["bytes"]], pa.binary(2))
    if not VERSION.startswith("0."):
        chosen["point"] = pa.array(COLUMNS["point"], pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())]))
        chosen["large"] = pa.array(COLUMNS["text"], pa.large_string())
    if int(VERSION.split(".")[0]) >= 12:
        chosen["pair"] = pa.array([None if v is None else [v, -v] for v in COLUMNS["late"]], pa.list_(pa.int32(), 2))
        chosen["props"] = pa.array(
            [None if n % 5 == 0 else [("k", n), ("l", None)] for n in COLUMNS["id"]], pa.map_(pa.string(), pa.int64())
        )
        chosen["tags"] = pa.array(
            [None if v is None else [v, "t"] for v in COLUMNS["few"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))
        )
        chosen["nothing"] = pa.nulls(len(COLUMNS["id"]))
    return list(chosen), list(chosen.values())


def write(name: str, **options: Any) -> None:
    """Write the table, with those options that this version has."""
    names, arrays = columns()
    table = pa.Table.from_arrays(arrays, names)
    known = inspect.signature(pq.write_table).parameters
    fitting = {key: value for key, value in options.items() if key in known}
    pq.write_table(table, f"{FOLDER}/pyarrow-{VERSION}-{name}.parquet", **fitting)


write("plain", version="1.0", compression="snappy", row_group_size=10)
if VERSION.startswith("0.8"):
    write("int96", use_deprecated_int96_timestamps=True, row_group_size=10)
else:
    write(
        "v2",
        version="2.6" if int(VERSION.split(".")[0]) >= 6 else "2.0",
        data_page_version="2.0",
        compression="gzip",
        row_group_size=16,
    )
if int(VERSION.split(".")[0]) >= 20:
    encodings = {
        "id": "DELTA_BINARY_PACKED", "i32": "DELTA_BINARY_PACKED", "i64": "BYTE_STREAM_SPLIT",
        "f32": "BYTE_STREAM_SPLIT",
        "f64": "BYTE_STREAM_SPLIT", "text": "DELTA_BYTE_ARRAY", "bytes": "DELTA_LENGTH_BYTE_ARRAY",
        "wide": "DELTA_BYTE_ARRAY",
        "dec38": "BYTE_STREAM_SPLIT", "flag": "RLE", "moment": "DELTA_BINARY_PACKED", "day": "DELTA_BINARY_PACKED",
    }  # fmt: skip
    more = {"write_page_index": True, "write_page_checksum": True, "store_decimal_as_integer": True}
    write("encodings", use_dictionary=False, column_encoding=encodings, compression="lz4", row_group_size=10, **more)
    write(
        "delta",
        use_dictionary=False,
        column_encoding={"text": "DELTA_BYTE_ARRAY", "bytes": "DELTA_BYTE_ARRAY"},
        compression="none",
    )
    order = [pq.SortingColumn(4), pq.SortingColumn(5, descending=True)]
    write(
        "sorted",
        sorting_columns=order,
        use_compliant_nested_type=False,
        data_page_size=8,
        write_batch_size=3,
        compression="zstd",
    )
    write("int96", use_deprecated_int96_timestamps=True, dictionary_pagesize_limit=8, row_group_size=7)
