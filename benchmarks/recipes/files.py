"""Writes the tables of recipes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_SECOND = 1_000_000
_BEGIN = 1_700_000_000


def put(folder: Path, name: str, table: pa.Table, files: int = 1) -> None:
    """Write a table as a folder of Parquet files."""
    (folder / name).mkdir(parents=True)
    for number in range(files):
        begin, end = (table.num_rows * part // files for part in (number, number + 1))
        pq.write_table(table.slice(begin, end - begin), folder / name / f"{number}.parquet")


def texts(word: str, numbers: int | np.ndarray, different: int) -> pa.Array:
    """Give texts, each a word and a number: one for each of some numbers, or of so many in turn."""
    values = pa.array([f"{word} {number}" for number in range(different)])
    chosen = np.arange(numbers) if isinstance(numbers, int) else numbers
    return values.take(pa.array(chosen % different))


def moments(seconds: np.ndarray) -> pa.Array:
    """Give timestamps so many seconds after a certain one."""
    return pa.array((_BEGIN + seconds.astype(np.int64)) * _SECOND).cast(pa.timestamp("us", "UTC"))
