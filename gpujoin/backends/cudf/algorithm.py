"""Chooses the algorithm of a join by keys from the facts of the build keys.

The thresholds come from the cost of memory accesses, measured on an H200 (:mod:`gpujoin.backends.cudf.accesses`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpujoin.launch.keys import MAX_ROWS, ROW_NUMBER_BYTES
from gpujoin.model.algorithm import ASKED_FOR, Algorithm

DIRECT_SLOTS_PER_KEY = 4
"""Most 4-byte slots per key of a direct-address table: with so many it is as large as a hash table."""

DIRECT_L2_SHARE = 1.0
"""Share of L2 up to which a direct-address table is used however few the keys are: its accesses stay in the cache."""


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
    pairs: bool = True
    """Whether pairs are asked for; otherwise only which probe rows have a match."""

    @property
    def slots(self) -> int | None:
        """Number of possible keys from the smallest to the largest; ``None`` without a range."""
        return None if self.low is None or self.high is None else self.high - self.low + 1


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen algorithm, and the reason."""

    algorithm: Algorithm
    """Algorithm to try. Where keys repeat, ``UNIQUE`` gives way to ``CSR``."""
    reason: str
    """One line for the user."""


def rule(algorithm: Algorithm) -> str:
    """Describe in one line how a GPU will find the matches of a join with keys, as far as known at plan time."""
    if algorithm is Algorithm.CUDF:
        return "GPU algorithm cudf was asked for: none of gpujoin's own kernels is used"
    if algorithm is Algorithm.UNIQUE:
        return "GPU algorithm unique was asked for; csr is taken where build keys are not unique"
    if algorithm is Algorithm.DIRECT:
        return "GPU algorithm direct was asked for; auto is taken where the build keys' range is too wide for it"
    if algorithm is Algorithm.CSR:
        return "GPU algorithm csr was asked for"
    return (
        f"GPU algorithm auto: by the build keys' facts, taken on the device: direct up to {DIRECT_SLOTS_PER_KEY} slots"
        " of their range a key or within L2, csr where a sample has duplicates, unique elsewhere; metrics tell what was"
        " taken"
    )


def choose(facts: KeyFacts, algorithm: Algorithm = Algorithm.AUTO) -> Choice:
    """Choose an algorithm for the facts of the build keys.

    Where the keys do not allow the one that is asked for (direct address over too wide a range), the choice is that of
    ``AUTO``, and the reason says so.
    """
    if algorithm is Algorithm.AUTO:
        return _automatic(facts)
    if algorithm is Algorithm.DIRECT and not _addressable(facts):
        automatic = _automatic(facts)
        return Choice(
            automatic.algorithm,
            f"{_range(facts)}, too wide for the direct address that was asked for; {automatic.reason}",
        )
    return Choice(algorithm, ASKED_FOR)


def _automatic(facts: KeyFacts) -> Choice:
    slots = facts.slots
    if slots is not None and _addressable(facts):
        if slots <= DIRECT_SLOTS_PER_KEY * facts.keys:
            return Choice(Algorithm.DIRECT, f"{_range(facts)}: at most {DIRECT_SLOTS_PER_KEY} slots a key")
        if slots * ROW_NUMBER_BYTES <= DIRECT_L2_SHARE * facts.l2_bytes:
            return Choice(Algorithm.DIRECT, f"{_range(facts)}: the table stays in L2")
    if facts.rows_per_key > 1 and facts.pairs:
        sample = f"about {facts.rows_per_key:.1f} rows a key in a sample, {facts.heaviest:.0%} of it the commonest key"
        return Choice(Algorithm.CSR, sample)
    return Choice(Algorithm.UNIQUE, "no duplicates in a sample" if facts.pairs else "only matches matter")


def _addressable(facts: KeyFacts) -> bool:
    return facts.slots is not None and facts.slots <= MAX_ROWS


def _range(facts: KeyFacts) -> str:
    if facts.slots is None:
        return "the keys have no range"
    return f"{facts.keys} keys in a range of {facts.slots}"
