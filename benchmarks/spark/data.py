"""Tables for the benchmark, as Parquet files that are written once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 4
_SEED = 20


def table(directory: Path, name: str, rows: int, keys: int) -> Path:
    """A folder of Parquet files with ``rows`` rows of one int64 key and three payload columns, 28 bytes each.

    The keys are a permutation of ``range(keys)``, repeated as often as need be.
    """
    folder = directory / f"{name}-{rows}-{keys}"
    if (folder / "_SUCCESS").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([_SEED, *name.encode()])
    per_file = -(-rows // FILES)
    order = np.resize(rng.permutation(keys), rows)
    rng.shuffle(order)
    for number in range(FILES):
        part = order[number * per_file : (number + 1) * per_file].astype(np.int64)
        columns = {
            "k": part,
            f"{name}_a": rng.integers(0, 1 << 40, len(part)),
            f"{name}_b": rng.random(len(part)),
            f"{name}_c": rng.integers(0, 1000, len(part)).astype(np.int32),
        }
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet", row_group_size=1 << 20)
    (folder / "_SUCCESS").touch()
    return folder
