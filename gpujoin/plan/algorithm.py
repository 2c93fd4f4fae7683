"""Which algorithm joins on a device: a pure function of the facts of the build keys.

The thresholds come from the cost of memory accesses on an H200 (60 MB of L2, 4.3 TB/s): a random access is one 32-byte
sector wherever it goes, but one that stays in L2 costs about a third of one that does not, and a pass that partitions
costs about as much as reading and writing its rows once. They are predictions until ``benchmarks/kernels`` has measured
them on a device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpujoin.config import AlgorithmChoice
from gpujoin.model.keyfacts import Algorithm, Choice, Choose, KeyFacts

DIRECT_SLOTS_PER_KEY = 4
"""A direct-address table may have this many 4-byte slots a key: then it is no larger than the hash table would be."""

DIRECT_L2_SHARE = 1.0
"""A direct-address table within this share of L2 is made however few the keys: its accesses stay in the cache."""

MAX_SLOTS = (1 << 31) - 1
"""Slots are numbered by 32-bit integers."""

DUPLICATE_ROWS_PER_KEY = 1.5
"""From this estimate on, inserting as if keys were unique would most likely be for nothing."""

HASH_BYTES_PER_KEY = {4: 12, 8: 24, 16: 48}
"""Bytes of a hash table for each key: a slot of 8, 16 or 32 bytes, two in three of them taken."""

PARTITION_L2_SHARE = 0.5
"""A hash table over this share of L2 is met partition by partition: the other half serves keys and output."""

PARTITION_PROBE_FACTOR = 16
"""With more probe rows than this for each build row, moving the probe side costs more than it saves."""

PARTITION_MATCH_RATIO = 0.25
"""With fewer matches than this, most rows would be moved only to be dropped."""

ASKED_FOR = "asked for by spark.gpujoin.gpu.algorithm"
"""The reason of a forced choice."""

_SLOT_BYTES = 4


def chooser(wanted: AlgorithmChoice, probe_rows: int | None = None) -> Choose | None:
    """The choice as a function of facts alone, for a backend to ask.

    Parameters
    ----------
    wanted : AlgorithmChoice
        What a setting demands.
    probe_rows : int or None
        Expected rows of the probe side, which a backend does not know when it builds; ``None``: not known here either.

    Returns
    -------
    callable or None
        ``None``: no kernels of gpujoin's own are to be used, so that no facts need be taken.
    """
    if wanted is AlgorithmChoice.CUDF:
        return None

    def chosen(facts: KeyFacts) -> Choice:
        known = facts if facts.probe_rows is not None else replace(facts, probe_rows=probe_rows)
        return choose(known, wanted)

    return chosen


def rule(wanted: AlgorithmChoice) -> str:
    """How a GPU will find the matches of a join with keys, as far as is known before its rows are: one line."""
    if wanted is AlgorithmChoice.CUDF:
        return "GPU algorithm cudf was asked for: none of gpujoin's own kernels is used"
    if wanted in (AlgorithmChoice.UNIQUE, AlgorithmChoice.PARTITIONED):
        return f"GPU algorithm {wanted.value} was asked for; csr is taken where build keys are not unique"
    if wanted is AlgorithmChoice.DIRECT:
        return (
            "GPU algorithm direct was asked for; auto is taken where the build keys' range is too wide for it"
        )
    if wanted is AlgorithmChoice.CSR:
        return "GPU algorithm csr was asked for"
    return (
        f"GPU algorithm auto: by the build keys' facts, taken on the device: direct up to {DIRECT_SLOTS_PER_KEY} slots"
        f" of their range a key or within L2, csr from {DUPLICATE_ROWS_PER_KEY:g} rows a key, unique within"
        f" {PARTITION_L2_SHARE:.0%} of L2 or with over {PARTITION_PROBE_FACTOR} probe rows a key, partitioned beyond;"
        " metrics tell what was taken"
    )


def condition_rule(wanted: AlgorithmChoice, *, compiles: bool) -> str:
    """How a GPU will test the residual condition of a join with keys: one line."""
    if not compiles:
        return "condition on a GPU: over candidate pairs; a part of it is not written as C++"
    if wanted is AlgorithmChoice.CUDF:
        return "condition on a GPU: over candidate pairs, since GPU algorithm cudf was asked for"
    return (
        "condition on a GPU: compiled by NVRTC; over what a probe found where build keys are unique, else over"
        " candidate pairs"
    )


def choose(facts: KeyFacts, wanted: AlgorithmChoice = AlgorithmChoice.AUTO) -> Choice:
    """Choose an algorithm.

    Parameters
    ----------
    facts : KeyFacts
        Facts of the build keys.
    wanted : AlgorithmChoice
        ``AUTO``, or what a setting demands. A demand that the keys cannot meet (direct address over too wide a range)
        is answered as ``AUTO``, with that reason.
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
    """How a device searches by order, and why.

    Attributes
    ----------
    kernels : bool
        By gpujoin's own kernels where they compile; else by array operations.
    reason : str
        One line for people, the way before it.
    """

    kernels: bool
    reason: str


def choose_order(wanted: AlgorithmChoice) -> OrderChoice:
    """Choose how a device searches ranges and as-of joins; of the settings only ``CUDF`` says something of that."""
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
    if facts.rows_per_key >= DUPLICATE_ROWS_PER_KEY:
        told = f"about {facts.rows_per_key:.1f} rows a key in a sample, {facts.heaviest:.0%} of it the commonest key"
        return Choice(Algorithm.CSR, told)
    table = facts.keys * HASH_BYTES_PER_KEY[facts.key_bytes]
    if table <= PARTITION_L2_SHARE * facts.l2_bytes:
        return Choice(Algorithm.UNIQUE, f"no duplicates in a sample; a table of {table} bytes stays in L2")
    if facts.probe_rows is not None and facts.probe_rows > PARTITION_PROBE_FACTOR * facts.keys:
        return Choice(
            Algorithm.UNIQUE,
            f"no duplicates in a sample; {facts.probe_rows} probe rows are too many to move for {facts.keys} keys",
        )
    if facts.match_ratio is not None and facts.match_ratio <= PARTITION_MATCH_RATIO:
        return Choice(
            Algorithm.UNIQUE,
            f"no duplicates in a sample; only {facts.match_ratio:.0%} of the probe rows match",
        )
    return Choice(
        Algorithm.PARTITIONED,
        f"no duplicates in a sample; a table of {table} bytes is over half of L2",
        least_match=PARTITION_MATCH_RATIO if facts.match_ratio is None else 0.0,
    )


def _addressable(facts: KeyFacts) -> bool:
    return facts.slots is not None and facts.slots <= MAX_SLOTS


def _range(facts: KeyFacts) -> str:
    if facts.slots is None:
        return "the keys have no range"
    return f"{facts.keys} keys in a range of {facts.slots}"
