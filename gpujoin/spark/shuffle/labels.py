"""Sending rows to chosen partitions through Spark's shuffle, with every PySpark version supported."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

_MURMUR_SEED = np.uint32(42)


def has_direct_partition_ids() -> bool:
    """Whether Spark takes partition numbers as they are (``repartitionById``, PySpark 4.1 and later)."""
    return hasattr(DataFrame, "repartitionById")


def partition_labels(partitions: int) -> npt.NDArray[np.int32]:
    """For each partition the label that sends a row to it through :func:`repartition_by_label`, as int32."""
    if has_direct_partition_ids():
        return np.arange(partitions, dtype=np.int32)
    return hashed_labels(partitions)


def hashed_labels(partitions: int) -> npt.NDArray[np.int32]:
    """Labels whose Murmur3 hash, as Spark's hash partitioning computes it, falls into each partition in turn."""
    labels = np.full(partitions, -1, np.int32)
    labelled, start = 0, 0
    step = max(1024, 4 * partitions)
    while labelled < partitions:
        candidates = np.arange(start, start + step, dtype=np.int32)
        targets, first = np.unique(np.mod(murmur3(candidates), partitions), return_index=True)
        fresh = labels[targets] < 0
        labels[targets[fresh]] = candidates[first[fresh]]
        labelled += int(fresh.sum())
        start += step
    return labels


def repartition_by_label(frame: DataFrame, partitions: int, column: str) -> DataFrame:
    """Bring each row to the partition its label stands for; adaptive execution does not merge the partitions."""
    if has_direct_partition_ids():
        return frame.repartitionById(partitions, sf.col(column))
    return frame.repartition(partitions, sf.col(column))


def murmur3(values: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Austin Appleby's MurmurHash3_x86_32 of single 4-byte words, with the seed of Spark's ``hash``."""
    word = values.astype(np.uint32) * np.uint32(0xCC9E2D51)
    word = (word << np.uint32(15)) | (word >> np.uint32(17))
    mixed = _MURMUR_SEED ^ (word * np.uint32(0x1B873593))
    mixed = (mixed << np.uint32(13)) | (mixed >> np.uint32(19))
    mixed = mixed * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed.view(np.int32)
