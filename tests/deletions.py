"""Writes which rows of a file are deleted, in the forms that tables of Delta and Iceberg have."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpujoin.model.files import DeletedRows, DeletionFormat

DELTA_MAGIC = struct.pack("<i", 1681511377)
PUFFIN_MAGIC = bytes.fromhex("d1d33964")
_PLAIN, _WITH_RUNS = 12346, 12347
_MOST_IN_ARRAY = 4096
_FEW = 4


def bitmap(numbers: Sequence[int], *, runs: bool = False) -> bytes:
    """A portable 64-bit Roaring bitmap; with ``runs`` containers are of runs, but every third."""
    values = np.unique(np.asarray(numbers, np.int64))
    uppers = np.unique(values >> 32)
    parts = [struct.pack("<Q", len(uppers))]
    for upper in uppers:
        parts += [struct.pack("<I", upper), _bitmap32(values[values >> 32 == upper] & 0xFFFFFFFF, runs=runs)]
    return b"".join(parts)


def _bitmap32(values: np.ndarray, *, runs: bool) -> bytes:
    keys, counts = np.unique(values >> 16, return_counts=True)
    are_runs = [runs and n % 3 != 1 for n in range(len(keys))]
    containers = [
        _runs(values[values >> 16 == key] & 0xFFFF) if is_run else _plain(values[values >> 16 == key] & 0xFFFF)
        for key, is_run in zip(keys, are_runs, strict=True)
    ]
    head = struct.pack("<II", _PLAIN, len(keys))
    if runs:
        head = (
            struct.pack("<I", _WITH_RUNS | (len(keys) - 1) << 16) + np.packbits(are_runs, bitorder="little").tobytes()
        )
    head += np.stack([keys, counts - 1], axis=1).astype("<u2").tobytes()
    if not runs or len(keys) >= _FEW:
        sizes = [len(head) + 4 * len(keys), *map(len, containers)]
        head += np.cumsum(sizes[:-1]).astype("<u4").tobytes()
    return head + b"".join(containers)


def _plain(values: np.ndarray) -> bytes:
    if len(values) <= _MOST_IN_ARRAY:
        return values.astype("<u2").tobytes()
    bits = np.zeros(1 << 16, np.uint8)
    bits[values] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _runs(values: np.ndarray) -> bytes:
    begins = np.flatnonzero(np.diff(values, prepend=-2) != 1)
    ends = np.append(begins[1:], len(values))
    pairs = np.stack([values[begins], ends - begins - 1], axis=1).astype("<u2")
    return struct.pack("<H", len(pairs)) + pairs.tobytes()


def delta_file(path: Path, *vectors: Sequence[int]) -> list[DeletedRows]:
    """Write vectors to one file, as Delta does."""
    data, deletions = b"\x01", []
    for n, numbers in enumerate(vectors):
        content = DELTA_MAGIC + bitmap(numbers, runs=n % 2 == 1)
        deletions.append(DeletedRows(DeletionFormat.DELTA, str(path), len(data), len(content), rows=len(set(numbers))))
        data += struct.pack(">i", len(content)) + content + struct.pack(">I", zlib.crc32(content))
    path.write_bytes(data)
    return deletions


def inline(numbers: Sequence[int]) -> DeletedRows:
    """A vector in Delta's log."""
    content = DELTA_MAGIC + bitmap(numbers)
    return DeletedRows(DeletionFormat.INLINE, length=len(content), rows=len(set(numbers)), data=content)


def puffin_file(path: Path, *vectors: Sequence[int]) -> list[DeletedRows]:
    """Write vectors as blobs behind one another, as in a Puffin file, of which the footer is not read."""
    data, deletions = b"PFA1", []
    for numbers in vectors:
        content = PUFFIN_MAGIC + bitmap(numbers, runs=True)
        blob = struct.pack(">i", len(content)) + content + struct.pack(">I", zlib.crc32(content))
        deletions.append(DeletedRows(DeletionFormat.PUFFIN, str(path), len(data), len(blob), len(set(numbers))))
        data += blob
    path.write_bytes(data)
    return deletions


def position_file(path: Path, positions: dict[str, Sequence[int]], name: str) -> DeletedRows:
    """Write positions of several files to a Parquet file, and tell of those of one."""
    rows = sorted((file, number) for file, numbers in positions.items() for number in numbers)
    table = pa.table({"file_path": [file for file, _ in rows], "pos": pa.array([n for _, n in rows], pa.int64())})
    pq.write_table(table, path)
    return DeletedRows(DeletionFormat.POSITIONS, str(path), length=path.stat().st_size, data_file=name)
