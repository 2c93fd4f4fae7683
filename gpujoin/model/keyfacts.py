"""Facts of build keys by which the planner chooses a device's join algorithm, and the algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Algorithm(Enum):
    """Algorithms by which a device finds the matches of a key."""

    DIRECT = "direct"
    """Direct address: a table indexed by the key's distance from the smallest build key."""
    UNIQUE = "unique"
    """Hash table with one row for each key."""
    CSR = "csr"
    """Hash table with any number of rows for each key, in compressed sparse row form."""
    CUDF = "cudf"
    """Operations of libcudf and CuPy, without gpujoin's own kernels."""


class Wanted(Enum):
    """What a build side will be used for."""

    PAIRS = "pairs"
    """Everything that a probe offers."""
    MARKS = "marks"
    """Only which probe rows have a match."""


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """Facts of the keys of a build side, measured on the device."""

    rows: int
    keys: int
    """Rows without a null key, which may have a match."""
    key_bytes: int
    """Bytes of a key code: 4, 8 or 16."""
    low: int | None
    high: int | None
    """Smallest and largest code; ``None`` where codes have no meaningful range (hashes, 16 bytes) or there is no key.
    """
    rows_per_key: float
    """Average number of rows of a key, estimated from a sample; 1 if all keys of the sample differ."""
    heaviest: float
    """Share of the commonest key in the sample."""
    l2_bytes: int
    """The device's L2 cache."""
    wanted: Wanted = Wanted.PAIRS
    """What the build side is for."""

    @property
    def slots(self) -> int | None:
        """Number of possible keys from the smallest to the largest; ``None`` without a range."""
        return None if self.low is None or self.high is None else self.high - self.low + 1


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen algorithm, and the reason."""

    algorithm: Algorithm
    """Algorithm to try. A backend that meets duplicate keys under ``UNIQUE`` uses ``CSR``."""
    reason: str
    """One line for the user."""


Choose: TypeAlias = Callable[[KeyFacts], Choice]
"""Chooses an algorithm by facts. The planner makes it, a backend calls it."""
