"""Tables of Delta Lake, and commits that Spark itself never makes."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.sql import SparkSession

from gpujoin.model.files import DeletedRows

_numbers = itertools.count()
VECTORS = {"delta.enableDeletionVectors": "true"}
BY_NAME = {"delta.columnMapping.mode": "name"}
BY_ID = {"delta.columnMapping.mode": "id"}
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = 5


def new_table(
    spark: SparkSession, columns: str, *, by: str = "", cluster: str = "", properties: Mapping[str, str] | None = None
) -> str:
    """Make a table; give its name."""
    name = f"default.t{next(_numbers)}"
    text = ", ".join(f"'{key}'='{value}'" for key, value in (properties or {}).items())
    for key in ("read", "write"):  # as Delta itself does at the first query of a session
        spark.conf.set(f"spark.sql.parquet.fieldId.{key}.enabled", "true")
    partitioned = f"partitioned by ({by})" if by else f"cluster by ({cluster})" if cluster else ""
    spark.sql(f"create table {name} ({columns}) using delta {partitioned} {f'tblproperties ({text})' if text else ''}")
    return name


def folder_of(spark: SparkSession, table: str) -> Path:
    """Where a table is."""
    location = spark.sql(f"describe detail {table}").collect()[0].location
    return Path(unquote(urlparse(location).path))


def files_of(spark: SparkSession, table: str) -> list[dict[str, Any]]:
    """What the log of a table without checkpoints has of its files."""
    added: dict[str, dict[str, Any]] = {}
    for commit in sorted((folder_of(spark, table) / "_delta_log").glob("*.json")):
        actions = list(map(json.loads, commit.read_text().splitlines()))
        for path in (action["remove"]["path"] for action in actions if "remove" in action):
            added.pop(path, None)
        added |= {action["add"]["path"]: action["add"] for action in actions if "add" in action}
    return list(added.values())


def vectors_of(spark: SparkSession, table: str) -> list[dict[str, Any]]:
    """The deletion vectors of a table's files."""
    return [file["deletionVector"] for file in files_of(spark, table) if "deletionVector" in file]


def change_files(spark: SparkSession, table: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Commit all files of a table anew, with what a function changes of each."""
    log = folder_of(spark, table) / "_delta_log"
    version = max(int(commit.stem) for commit in log.glob("*.json")) + 1
    lines: list[dict[str, Any]] = []
    for file in files_of(spark, table):
        removed = {key: file[key] for key in ("path", "partitionValues", "size", "deletionVector") if key in file}
        lines.append({"remove": {**removed, "deletionTimestamp": 1, "dataChange": True, "extendedFileMetadata": True}})
        change(file)
        lines.append({"add": file})
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, lines)))
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def as_inline(vector: DeletedRows) -> dict[str, Any]:
    """A vector as the log has it."""
    padding = -len(vector.data) % struct.calcsize("I")
    text = ""
    for (word,) in struct.iter_unpack(">I", vector.data + bytes(padding)):
        digits = [word // 85**n % 85 for n in reversed(range(_DIGITS))]
        text += "".join(_Z85[digit] for digit in digits)
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(vector.data), "cardinality": vector.rows}
