"""Chooses whether a device reads the payload of unique build keys with the keys, and not by the numbers of their rows.

A probe of a table of row numbers reads a slot, in a hash table the key of its row too, and writes the row's number, by
which the payload is gathered: two or three random places and 8 bytes a probe row. A table that has the payload itself
is read at one or two, but has to be made. It is put off until the probe rows so far would have paid for it, as packing
is (:mod:`gpujoin.plan.gathering`), so no number of rows has to be guessed.

Times follow from what accesses cost on an H200 (:mod:`gpujoin.plan.accesses`).
"""

from __future__ import annotations

from gpujoin.config import AlgorithmChoice
from gpujoin.model.gathering import ChooseFetch, FetchChoice, FetchFacts, HashFacts, SlotFacts
from gpujoin.plan.accesses import COPY, read_seconds

WORTH_MEMORY = 0.75
"""Share of the time up to which a faster way is taken that holds a copy of the build side. For 16-byte keys and a
column of 8 bytes, in rows of 32, it is 0.8: workload v of ``benchmarks/kernels`` would have 1.8 times the memory of
inputs and output at its peak, in place of 1.5."""

MAKING_SECONDS = 1e-4
"""Time to make a table of payload, whatever its size; assumed: some ten launches and a wait."""

FREE_SHARE = 0.25
"""Share of the free memory that a table of payload may take. The rest is left to morsels and their output: where these
do not fit, all rows of a morsel go to the CPU, which costs more than the table saves."""

_SLOT_BYTES = 4
_NUMBER_BYTES = 4


def fetch_chooser(wanted: AlgorithmChoice, *, copied: bool) -> ChooseFetch | None:
    """Make the function by which a backend asks; ``None``: it must not be done.

    Not where gpujoin's kernels must not be used, nor where probe rows would be ``copied`` from host memory: a probe by
    keys tells first whether all of them are output, and then none of their other columns has to be copied.
    """
    return None if copied or wanted is AlgorithmChoice.CUDF else choose_fetch


def choose_fetch(facts: SlotFacts | HashFacts) -> FetchChoice:
    """Choose between reading the payload with the keys and by row numbers."""
    if not facts.there and facts.table_bytes > FREE_SHARE * facts.free_bytes:
        told = f"a table of {facts.table_bytes} bytes would take over {FREE_SHARE:.0%} of the {facts.free_bytes} free"
        return FetchChoice(False, told)
    return _payload_in_slots(facts) if isinstance(facts, SlotFacts) else _payload_with_keys(facts)


def _payload_in_slots(facts: SlotFacts) -> FetchChoice:
    """A table of payload is larger than one of row numbers, the more so the more keys of the range are missing.

    Whether a key is there then takes a bit of its own.
    """
    numbers, packed = _NUMBER_BYTES * facts.slots, facts.row_bytes * facts.rows
    by_number = _reading(facts, numbers, _NUMBER_BYTES) + _reading(facts, packed, facts.row_bytes)
    in_slot = _reading(facts, facts.row_bytes * facts.slots, facts.row_bytes)
    if facts.rows < facts.slots:
        in_slot += _reading(facts, facts.slots / 8, _NUMBER_BYTES)
    if not facts.there:
        # Row numbers are read in order, rows at random places, and written in order.
        in_slot += read_seconds(packed, facts.slots, facts.l2_bytes, width=facts.row_bytes)
        in_slot += facts.slots * (2 * _NUMBER_BYTES + facts.row_bytes) / COPY + _packing(facts)
        in_slot += MAKING_SECONDS
    return _choice(facts, in_slot, by_number, 1.0)


def _payload_with_keys(facts: HashFacts) -> FetchChoice:
    """Rows with the key beside the payload are wider, and have to be packed, which takes time and memory.

    Keys of 4 bytes are in the slots of the hash table, and not in the rows.
    """
    by_number = _reading(facts, facts.row_bytes * facts.rows, facts.row_bytes)
    with_key = _reading(facts, facts.joint_bytes * facts.rows, facts.joint_bytes)
    if not facts.there:
        with_key += MAKING_SECONDS
    if facts.key_bytes <= _SLOT_BYTES:
        if not facts.there:
            with_key += _packing(facts)
        return _choice(facts, with_key, by_number, 1.0)
    by_number += _reading(facts, facts.key_bytes * facts.rows, facts.key_bytes)
    if not facts.there:
        with_key += facts.rows * (facts.payload_bytes + facts.key_bytes + facts.joint_bytes) / COPY
    return _choice(facts, with_key, by_number, WORTH_MEMORY)


def _reading(facts: FetchFacts, table_bytes: float, width: int) -> float:
    return read_seconds(table_bytes, facts.probe_rows, facts.l2_bytes, width=width)


def _packing(facts: FetchFacts) -> float:
    """Time to pack the payload, unless it is packed."""
    return 0.0 if facts.packed else facts.rows * (facts.payload_bytes + facts.row_bytes) / COPY


def _choice(facts: FetchFacts, with_keys: float, by_number: float, worth: float) -> FetchChoice:
    by_number += 2 * _NUMBER_BYTES * facts.probe_rows / COPY + _packing(facts)
    if not facts.padded:
        # Fetched payload is moved once more where not all rows have a match; half of the joins are taken to be so.
        with_keys += facts.payload_bytes * facts.probe_rows / COPY
    told = f"{1e3 * with_keys:.2f} ms with the keys of {facts.probe_rows} rows, {1e3 * by_number:.2f} by row numbers"
    return FetchChoice(with_keys < worth * by_number, told)
