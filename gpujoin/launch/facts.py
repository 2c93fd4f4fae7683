"""Launches ``facts.cu``: measures facts of a key column, in one pass over it and from a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpujoin.launch.device import Device, ModuleSpec
from gpujoin.launch.keys import BLOCK_THREADS, KeyCodes, checked_keys, grid_of, total, value_of

SPECIALISATIONS: tuple[ModuleSpec, ...] = tuple(ModuleSpec("facts.cu", (("KEY_BYTES", width),)) for width in (4, 8, 16))

SAMPLES = 1 << 14
"""Rows of a sample: of 2^27 rows with two rows a key, one pair of equal keys is expected in it."""

_WIDE = 16


@dataclass(frozen=True)
class ColumnFacts:
    """Facts from one pass over key codes."""

    rows: int
    keys: int
    """Number of rows, and of rows without a null key."""
    low: int | None
    high: int | None
    """Smallest and largest code; ``None`` where there are no keys, or codes of 16 bytes."""


@dataclass(frozen=True)
class Sample:
    """Facts from a sample of the keys of a column."""

    keys: int
    """Keys in the sample."""
    rows_per_key: float
    """Estimated rows of a key, from the pairs of equal keys in the sample; exactly 1 if there are none."""
    heaviest: float
    """Share of the commonest key in the sample."""


def column_facts(device: Device, keys: KeyCodes) -> ColumnFacts:
    """Measure the range and the number of keys."""
    checked_keys(keys)
    if keys.rows == 0:
        return ColumnFacts(0, 0, None, None)
    bounds = np.iinfo(np.int64)
    span = device.upload(np.array([bounds.max, bounds.min], np.int64))
    number = total(device)
    kernel = device.kernel(_module(keys.key_bytes), "key_range")
    device.launch(
        kernel,
        grid_of(device, keys.rows),
        BLOCK_THREADS,
        [keys.codes, keys.valid, np.uint64(keys.rows), span, number],
    )
    low, high = (int(bound) for bound in device.download(span))
    there = value_of(device, number)
    ranged = there > 0 and keys.key_bytes != _WIDE
    return ColumnFacts(keys.rows, there, low if ranged else None, high if ranged else None)


def sample(device: Device, keys: KeyCodes, samples: int = SAMPLES, seed: int = 0) -> KeyCodes:
    """Draw different rows of a key column at random; all rows of a short column."""
    checked_keys(keys)
    samples = min(samples, keys.rows)
    codes = device.empty((samples, 2) if keys.codes.ndim == 2 else samples, keys.codes.dtype)
    valid = device.empty(samples, np.bool_)
    if samples:
        kernel = device.kernel(_module(keys.key_bytes), "sample_keys")
        arguments = [
            keys.codes, keys.valid, np.uint64(keys.rows), np.uint64(samples), np.uint32((keys.rows - 1).bit_length()),
            np.uint64(seed), codes, valid,
        ]  # fmt: skip
        device.launch(kernel, grid_of(device, samples), BLOCK_THREADS, arguments)
    return KeyCodes(codes, valid)


def sample_facts(device: Device, keys: KeyCodes, sample: KeyCodes) -> Sample:
    """Estimate facts of a column from a sample.

    Where keys have m rows each, m − 1 of the other n − 1 rows have the key of a row. So m − 1 is n − 1 times the share
    of equal keys among the S·(S−1)/2 pairs of a sample of S rows. One pair of equal keys proves that keys repeat. If
    the sample is the whole column, the result is exact, as far as hashes of 16-byte codes are.
    """
    assert sample.valid is not None
    codes = device.download(sample.codes)[device.download(sample.valid)]
    size = len(codes)
    if size == 0:
        return Sample(0, 1.0, 0.0)
    counts = _counts(codes)
    equal = int((counts * (counts - 1)).sum()) / max(1, size * (size - 1))
    rows = keys.rows * size / sample.rows
    return Sample(size, 1.0 + equal * (rows - 1), float(counts.max()) / size)


def _counts(codes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Number of rows of each distinct code. Codes of two words count by a 64-bit hash of them."""
    words = codes if codes.ndim == 1 else _mixed(_mixed(codes[:, 0]) ^ codes[:, 1])
    ordered = np.sort(words)
    first = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return np.diff(first, prepend=0, append=len(ordered))


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64, as in ``key.cuh``."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)


def _module(key_bytes: int) -> ModuleSpec:
    return ModuleSpec("facts.cu", (("KEY_BYTES", key_bytes),))
