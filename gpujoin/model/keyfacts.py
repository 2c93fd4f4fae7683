"""Facts of build keys, and the algorithms that a device may join by: what a backend tells, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Algorithm(Enum):
    """How a device finds the matches of a key."""

    DIRECT = "direct"
    """By its distance from the smallest build key."""
    UNIQUE = "unique"
    """In a hash table of one row a key."""
    PARTITIONED = "partitioned"
    """The same, both sides ordered by hash before."""
    CSR = "csr"
    """In a hash table of any number of rows a key, which lie side by side."""
    CUDF = "cudf"
    """By the operations of libcudf and CuPy, without kernels of gpujoin's own."""


class Wanted(Enum):
    """What a build side will be asked for."""

    PAIRS = "pairs"
    """Everything a probe offers."""
    MARKS = "marks"
    """Only which probe rows have a match."""


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """Facts of the keys of a build side, taken on the device.

    Attributes
    ----------
    rows : int
        All rows.
    keys : int
        Rows that may match anything.
    key_bytes : int
        Bytes of a key code: 4, 8 or 16.
    low, high : int or None
        Smallest and largest code; ``None`` where codes have no meaningful range (hashes, 16 bytes) or there is no key.
    rows_per_key : float
        Rows that share a key, estimated from a sample; 1 if no two keys of it are equal.
    heaviest : float
        Share of the commonest key in the sample.
    l2_bytes : int
        The device's L2 cache.
    probe_rows : int or None
        Rows of the probe side; ``None``: not known yet.
    match_ratio : float or None
        Share of probe rows with a match, estimated; ``None``: not known yet.
    """

    rows: int
    keys: int
    key_bytes: int
    low: int | None
    high: int | None
    rows_per_key: float
    heaviest: float
    l2_bytes: int
    probe_rows: int | None = None
    match_ratio: float | None = None

    @property
    def slots(self) -> int | None:
        """Keys from the smallest to the largest; ``None`` without a range."""
        return None if self.low is None or self.high is None else self.high - self.low + 1


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm, and why.

    Attributes
    ----------
    algorithm : Algorithm
        What to try. A backend that finds duplicates where ``UNIQUE`` or ``PARTITIONED`` was chosen takes ``CSR``.
    reason : str
        One line for people.
    least_match : float
        Of ``PARTITIONED``: probe rows are ordered only where more than this share of a sample of them has a match;
        else most of them would be moved only to be dropped.
    """

    algorithm: Algorithm
    reason: str
    least_match: float = 0.0


Choose: TypeAlias = Callable[[KeyFacts], Choice]
"""Chooses an algorithm by facts; made by the planner, asked by a backend."""
