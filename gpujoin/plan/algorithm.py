"""Chooses the join algorithm of a device from the facts of the build keys.

The thresholds come from the cost of memory accesses, measured on an H200 (:mod:`gpujoin.plan.accesses`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpujoin.config import AlgorithmChoice
from gpujoin.model.keyfacts import Algorithm, Choice, Choose, KeyFacts, Wanted

DIRECT_SLOTS_PER_KEY = 4
"""Most 4-byte slots of a direct-address table for each key: it is then no larger than a hash table would be."""

DIRECT_L2_SHARE = 1.0
"""Share of L2 up to which a direct-address table is used however few the keys are: its accesses stay in the cache."""

MAX_SLOTS = (1 << 31) - 1
"""Most slots: they are numbered by 32-bit integers."""

ASKED_FOR = "asked for by spark.gpujoin.gpu.algorithm"
"""Reason given for a choice that a setting demands."""

_SLOT_BYTES = 4


def chooser(wanted: AlgorithmChoice) -> Choose | None:
    """Make the function by which a backend asks for an algorithm, given the facts of the keys.

    ``None``: gpujoin's own kernels must not be used, so no facts need be measured.
    """
    return None if wanted is AlgorithmChoice.CUDF else lambda facts: choose(facts, wanted)


def rule(wanted: AlgorithmChoice) -> str:
    """Describe in one line how a GPU will find the matches of a join with keys, as far as known at plan time."""
    if wanted is AlgorithmChoice.CUDF:
        return "GPU algorithm cudf was asked for: none of gpujoin's own kernels is used"
    if wanted is AlgorithmChoice.UNIQUE:
        return "GPU algorithm unique was asked for; csr is taken where build keys are not unique"
    if wanted is AlgorithmChoice.DIRECT:
        return "GPU algorithm direct was asked for; auto is taken where the build keys' range is too wide for it"
    if wanted is AlgorithmChoice.CSR:
        return "GPU algorithm csr was asked for"
    return (
        f"GPU algorithm auto: by the build keys' facts, taken on the device: direct up to {DIRECT_SLOTS_PER_KEY} slots"
        " of their range a key or within L2, csr where a sample has duplicates, unique elsewhere; metrics tell what was"
        " taken"
    )


def choose(facts: KeyFacts, wanted: AlgorithmChoice = AlgorithmChoice.AUTO) -> Choice:
    """Choose an algorithm for the facts of the build keys.

    Where the keys do not allow the one that a setting demands (direct address over too wide a range), the choice is
    that of ``AUTO``, and the reason says so.
    """
    if wanted is AlgorithmChoice.AUTO:
        return _automatic(facts)
    algorithm = Algorithm(wanted.value)
    if algorithm is Algorithm.DIRECT and not _addressable(facts):
        automatic = _automatic(facts)
        return Choice(
            automatic.algorithm,
            f"{_range(facts)}, too wide for the direct address that was asked for; {automatic.reason}",
        )
    return Choice(algorithm, ASKED_FOR)


@dataclass(frozen=True, slots=True)
class OrderChoice:
    """How a device searches by order, and the reason."""

    kernels: bool
    """Whether gpujoin's own kernels are used where they compile; otherwise array operations."""
    reason: str
    """One line for the user, which starts with the method."""


def choose_order(wanted: AlgorithmChoice) -> OrderChoice:
    """Choose how a device searches ranges and as-of joins. Only the setting ``CUDF`` has an effect on it."""
    if wanted is AlgorithmChoice.CUDF:
        return OrderChoice(kernels=False, reason=f"cudf: {ASKED_FOR}")
    return OrderChoice(kernels=True, reason="kernels: cuDF has no search by order that is not quadratic")


def _automatic(facts: KeyFacts) -> Choice:
    slots = facts.slots
    if slots is not None and _addressable(facts):
        if slots <= DIRECT_SLOTS_PER_KEY * facts.keys:
            return Choice(Algorithm.DIRECT, f"{_range(facts)}: at most {DIRECT_SLOTS_PER_KEY} slots a key")
        if slots * _SLOT_BYTES <= DIRECT_L2_SHARE * facts.l2_bytes:
            return Choice(Algorithm.DIRECT, f"{_range(facts)}: the table stays in L2")
    marks = facts.wanted is Wanted.MARKS  # and keys may repeat
    if facts.rows_per_key > 1 and not marks:
        told = f"about {facts.rows_per_key:.1f} rows a key in a sample, {facts.heaviest:.0%} of it the commonest key"
        return Choice(Algorithm.CSR, told)
    return Choice(Algorithm.UNIQUE, "only matches matter" if marks else "no duplicates in a sample")


def _addressable(facts: KeyFacts) -> bool:
    return facts.slots is not None and facts.slots <= MAX_SLOTS


def _range(facts: KeyFacts) -> str:
    if facts.slots is None:
        return "the keys have no range"
    return f"{facts.keys} keys in a range of {facts.slots}"
