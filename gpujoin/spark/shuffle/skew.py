"""Heavy keys: chosen by what tasks have seen in the first rows of both sides of a join, before the exchange."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.model.jointype import Side

SAMPLE_ROWS = 1 << 15
"""Rows looked at in each task of a side."""

LEAST_SEEN = 16
"""A key seen less often in a partition's sample says nothing."""

MOST_HEAVY = 64
"""So many keys are heavy at most; there cannot be many that each fill a partition."""

SAMPLE_DDL = "input int, hash bigint, seen bigint"
_FIELDS: list[pa.Field[Any]] = [
    pa.field("input", pa.int32()), pa.field("hash", pa.int64()), pa.field("seen", pa.int64()),
]  # fmt: skip
_SCHEMA = pa.schema(_FIELDS)


@dataclass(frozen=True)
class Heavy:
    """The heavy keys of a join."""

    hashes: tuple[int, ...]
    """Hashes of their codes; other keys that share one count as heavy too."""
    split: Side
    """The side whose rows are split over partitions; the other's are replicated."""

    def mask(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which rows have a heavy key."""
        return np.isin(hashes, np.array(self.hashes, np.uint64))


def counted(number: int, rows: int, hashes: Sequence[npt.NDArray[np.uint64]]) -> pa.RecordBatch:
    """What a task has seen of an input, for :func:`samples_of`: the rows looked at, and hashes of keys not null."""
    keys, seen = np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]), return_counts=True)
    often = seen >= LEAST_SEEN
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(int(often.sum()) + 1, number, np.int32)),
            pa.array([None, *keys[often].view(np.int64).tolist()], pa.int64()),
            pa.array([rows, *seen[often].tolist()], pa.int64()),
        ],
        schema=_SCHEMA,
    )


def samples_of(table: pa.Table) -> dict[int, Sample]:
    """Give what tasks have seen, by the number of the input."""
    samples: dict[int, Sample] = defaultdict(Sample)
    for number, key, seen in zip(*(column.to_pylist() for column in table.columns), strict=True):
        samples[number].add(key, seen)
    return samples


class Sample:
    """Keys seen on one side.

    Attributes
    ----------
    rows : int
        Rows looked at.
    keys : Counter
        How often each key was seen, by hash.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.keys: Counter[int] = Counter()

    def add(self, key: int | None, seen: int) -> None:
        """Take in what a task has seen; without a key: its rows."""
        if key is None:
            self.rows += seen
        else:
            self.keys[key % (1 << 64)] += seen

    def share(self, key: int) -> float:
        """Part of the side's rows that have a key; 0 for one that was not seen often."""
        return self.keys[key] / self.rows if self.rows else 0.0


def heavy_keys(
    samples: Mapping[Side, Sample],
    sizes: Mapping[Side, float | None],
    sides: tuple[Side, ...],
    partitions: int,
) -> Heavy | None:
    """Choose the heavy keys, and the side to split, of those that may be.

    A key is heavy if its rows of the split side are at least an average partition's, or if its pairs are at least as
    many as all those of an average partition, as far as the samples tell. The side is split on which heavy keys have
    more bytes, by the sides' estimated sizes.
    """
    pairs = {
        key: samples[Side.LEFT].share(key) * samples[Side.RIGHT].share(key)
        for key in samples[Side.LEFT].keys.keys() & samples[Side.RIGHT].keys.keys()
    }
    all_pairs = sum(pairs.values())
    best: tuple[float, Heavy] | None = None
    for side in sides:
        heavy = {
            key: samples[side].share(key)
            for key in samples[side].keys
            if samples[side].share(key) * partitions >= 1 or pairs.get(key, 0.0) * partitions >= all_pairs > 0
        }
        chosen = sorted(heavy, key=lambda key: -heavy[key])[:MOST_HEAVY]
        weight = sum(heavy[key] for key in chosen) * (sizes[side] or 1)
        replicated = sum(samples[side.other].share(key) for key in chosen) * (sizes[side.other] or 1)
        if chosen and weight >= replicated and (best is None or weight > best[0]):
            best = weight, Heavy(tuple(chosen), side)
    return None if best is None else best[1]
