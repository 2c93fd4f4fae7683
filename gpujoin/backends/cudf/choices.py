"""Chooses how payload gets to the output of a join on a device, by what memory accesses cost.

All three choices compare the times of two ways (:mod:`gpujoin.backends.cudf.accesses`):

**Packed rows or columns** (:func:`packs_rows`). A random access moves a sector of 32 bytes, however few of them are
used. So n columns that are gathered one by one cost n sectors for each entry, and columns packed into rows of up to 32
bytes cost one (Wu, Koutsoukos, Alonso, arXiv 2312.00720).

**At once or by maps** (:func:`writes_at_once`). One pass over the matches writes the columns of both sides without
gather maps. Where a probe row may have several matches (:func:`gpujoin.launch.rows.emit_ranges`), build rows are packed
in the order of their keys, so that those of one key are read in a run.

**With the keys or by row numbers** (:func:`fetches_payload`), where build keys are unique. A probe of a table of row
numbers reads a slot, in a hash table the key of its row too, and writes the row's number, by which the payload is
gathered: two or three random places and 8 bytes a probe row. A table that has the payload itself is read at one or two,
but has to be made.

Packing, and making a table, are put off until the rows so far would have paid for it. By the rule of the ski rental
problem, at most twice the time is then taken as with all rows known ahead, and no number of rows has to be guessed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpujoin.backends.cudf.accesses import COPY, read_seconds, share_in_l2
from gpujoin.launch.device import SECTOR_BYTES
from gpujoin.launch.keys import ROW_NUMBER_BYTES
from gpujoin.launch.unique import KEY_IN_SLOT

MAP_BYTES_PER_PROBE_ROW = 7
"""Bytes moved to make maps for each probe row: the matches are read, a mask is written, and read for each side."""

MAP_BYTES_PER_ROW = 52
"""Bytes moved to make maps for each output row: positions of each side in 64 and in 32 bits, and the matches."""

PAIR_BYTES = 12
"""Bytes moved to make a pair of many-to-many matches: the build row at its place is read, both rows are written."""

FUSED_BYTES_PER_PROBE_ROW = 8
"""Bytes read for each probe row by the single pass: the matches, to count and to write."""

WORTH_MEMORY = 0.75
"""Share of the time up to which a faster way is taken that holds a copy of the build side. For 16-byte keys and a
column of 8 bytes, in rows of 32, it is 0.8: workload v of ``benchmarks/kernels`` would have 1.8 times the memory of
inputs and output at its peak, in place of 1.5."""

MAKING_SECONDS = 1e-4
"""Time to make a table of payload, whatever its size; assumed: some ten launches and a wait."""

FREE_SHARE = 0.25
"""Share of the free memory that a table of payload may take. The rest is left to morsels and their output: where these
do not fit, all rows of a morsel go to the CPU, which costs more than the table saves."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a way is taken, and the reason in one line."""

    yes: bool
    reason: str


# -- packed rows or columns --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherFacts:
    """Facts of a gather of fixed-width columns."""

    rows: int
    """Rows gathered from."""
    widths: tuple[int, ...]
    """Bytes of a value of each column."""
    row_bytes: int | None
    """Bytes of a packed row; ``None``: the columns cannot be packed."""
    entries: int
    """Entries of this map and of all earlier maps of the same columns."""
    ascending: bool
    """Whether the map's rows ascend."""
    packed: bool
    """Whether packed rows were made."""
    l2_bytes: int
    """The device's L2 cache."""


def packs_rows(facts: GatherFacts) -> Verdict:
    """Choose between gathering from packed rows, and column by column."""
    if facts.row_bytes is None:
        return Verdict(False, "too many columns, or of too many bytes, for packed rows")
    if len(facts.widths) < 2:
        return Verdict(False, "a single column")
    if facts.ascending:
        return Verdict(False, "rows ascend, so neighbours share sectors")
    if share_in_l2(facts.rows * max(facts.widths), facts.l2_bytes) == 1:
        return Verdict(False, "every column stays in L2")
    by_columns, by_rows = _by_columns(facts, facts.entries), _by_rows(facts, facts.row_bytes, facts.entries)
    if by_rows >= by_columns:
        return Verdict(False, f"a packed row of {facts.row_bytes} bytes costs as much as {len(facts.widths)} columns")
    if by_columns - by_rows <= _packing(facts, facts.row_bytes):
        return Verdict(False, f"{facts.entries} entries save less than packing {facts.rows} rows costs")
    return Verdict(
        True, f"{1e3 * by_rows:.2f} ms so far in place of {1e3 * by_columns:.2f} for {len(facts.widths)} columns"
    )


def _by_columns(facts: GatherFacts, entries: int) -> float:
    """Time to read a value of each column for each entry."""
    return sum(read_seconds(facts.rows * width, entries, facts.l2_bytes, width=width) for width in facts.widths)


def _by_rows(facts: GatherFacts, row_bytes: int, entries: int) -> float:
    """Time to read a packed row for each entry."""
    return read_seconds(facts.rows * row_bytes, entries, facts.l2_bytes, width=row_bytes)


def _packing(facts: GatherFacts, row_bytes: int) -> float:
    """Time to pack the rows, unless they are packed: each column is read in order, and the rows are written."""
    return 0.0 if facts.packed else facts.rows * (sum(facts.widths) + row_bytes) / COPY


# -- at once or by maps ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EmissionFacts:
    """Facts of the output before it is made."""

    probe_rows: int
    """Rows probed."""
    rows: int
    """Rows of the output."""
    probe_widths: tuple[int, ...] | None
    """Bytes of a value of each column of the probe side; ``None``: not all have one width."""
    build: GatherFacts | None
    """Facts of gathering the build side's columns; its entries include the output's rows. ``None``: there are none."""
    build_fixed: bool = True
    """Whether all of the build side's columns have values of one width."""
    unique: bool = True
    """Whether no probe row has two matches. Where some may, build rows are packed in the order of their keys."""
    ordered: bool = False
    """Whether rows packed in that order were made."""


def writes_at_once(facts: EmissionFacts) -> Verdict:
    """Choose between writing the output in one pass, and making gather maps first."""
    if facts.probe_widths is None or not facts.build_fixed:
        return Verdict(False, "a column without one width, which needs the maps anyway")
    if facts.rows == 0 or (facts.unique and facts.rows == facts.probe_rows):
        return Verdict(False, "all or none of the probe rows: they stay where they are")
    if facts.build is not None and facts.build.row_bytes is None:
        return Verdict(False, "too many build columns, or of too many bytes, for packed rows")
    by_maps, at_once = _unique_seconds(facts) if facts.unique else _runs_seconds(facts)
    by_maps += ROW_NUMBER_BYTES * facts.rows * len(facts.probe_widths) / COPY
    return Verdict(at_once < by_maps, f"{1e3 * at_once:.2f} ms at once, {1e3 * by_maps:.2f} by maps")


def _unique_seconds(facts: EmissionFacts) -> tuple[float, float]:
    """Times by maps and at once where no probe row has two matches, but for the maps of probe columns."""
    by_maps = (MAP_BYTES_PER_PROBE_ROW * facts.probe_rows + MAP_BYTES_PER_ROW * facts.rows) / COPY
    at_once = FUSED_BYTES_PER_PROBE_ROW * facts.probe_rows / COPY
    build = facts.build
    if build is not None and build.row_bytes is not None:
        by_maps += _gathering(facts.rows, build)
        at_once += _by_rows(build, build.row_bytes, facts.rows)
        at_once += _share(_packing(build, build.row_bytes), facts.rows, build)
    return by_maps, at_once


def _runs_seconds(facts: EmissionFacts) -> tuple[float, float]:
    """The same where probe rows may have several matches, each found in the running count either way."""
    by_maps, at_once = PAIR_BYTES * facts.rows / COPY, 0.0
    build = facts.build
    if build is not None and build.row_bytes is not None:
        by_maps += _gathering(facts.rows, build)
        # A run begins at any row of a sector: its first and last sectors have so much of other runs, in the mean.
        runs = min(facts.rows, facts.probe_rows)
        run_bytes = facts.rows * build.row_bytes + runs * (SECTOR_BYTES - math.gcd(build.row_bytes, SECTOR_BYTES))
        at_once += read_seconds(build.rows * build.row_bytes, runs, build.l2_bytes)
        at_once += max(0, run_bytes - runs * SECTOR_BYTES) / COPY
        ordering = 0.0 if facts.ordered else _ordering(build, build.row_bytes)
        at_once += _share(ordering, facts.rows, build)
    return by_maps, at_once


def _gathering(rows: int, build: GatherFacts) -> float:
    """Time to gather the build side's columns by a map, besides the output."""
    if packs_rows(build).yes and build.row_bytes is not None:
        packing = _share(_packing(build, build.row_bytes), rows, build)
        return rows * ROW_NUMBER_BYTES / COPY + _by_rows(build, build.row_bytes, rows) + packing
    return rows * ROW_NUMBER_BYTES * len(build.widths) / COPY + _by_columns(build, rows)


def _share(packing: float, rows: int, build: GatherFacts) -> float:
    """Share of some output rows in the time of packing, which is divided among all rows so far."""
    return packing * rows / max(1, build.entries)


def _ordering(build: GatherFacts, row_bytes: int) -> float:
    """Time to pack rows, and to read each by its number and write it in the order of the keys."""
    moved = build.rows * (ROW_NUMBER_BYTES + row_bytes) / COPY + _by_rows(build, row_bytes, build.rows)
    return _packing(replace(build, packed=False), row_bytes) + moved


# -- with the keys or by row numbers -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFacts:
    """Facts of a join by unique keys before its probe, for the choice to read payload with the keys."""

    rows: int
    """Build rows."""
    payload_bytes: int
    """Bytes of the payload's columns."""
    row_bytes: int
    """Bytes of a packed row of the payload."""
    packed: bool
    """Whether packed rows were made, or the payload is a single column, which needs none."""
    there: bool
    """Whether the table with the payload was made."""
    probe_rows: int
    """Probe rows so far, these included, as far as they are known."""
    padded: bool
    """Whether rows without a match are returned. Otherwise they may have to be left out in another pass."""
    free_bytes: int
    """Memory of the device that is free."""
    l2_bytes: int
    """The device's L2 cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts(FetchFacts):
    """Facts of a direct-address table, whose slots could have the payload in place of the numbers of its rows."""

    slots: int
    """Keys from the smallest to the largest."""

    @property
    def table_bytes(self) -> int:
        """Size of the slots with payload."""
        return self.slots * self.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HashFacts(FetchFacts):
    """Facts of a hash table, beside whose keys the payload could be packed."""

    key_bytes: int
    joint_bytes: int
    """Bytes of a packed row of payload and key."""

    @property
    def table_bytes(self) -> int:
        """Size of the packed rows."""
        return self.rows * self.joint_bytes


def fetches_payload(facts: SlotFacts | HashFacts) -> Verdict:
    """Choose between reading the payload with the keys and by row numbers."""
    if not facts.there and facts.table_bytes > FREE_SHARE * facts.free_bytes:
        reason = f"a table of {facts.table_bytes} bytes would take over {FREE_SHARE:.0%} of the {facts.free_bytes} free"
        return Verdict(False, reason)
    return _payload_in_slots(facts) if isinstance(facts, SlotFacts) else _payload_with_keys(facts)


def _payload_in_slots(facts: SlotFacts) -> Verdict:
    """A table of payload is larger than one of row numbers, the more so the more keys of the range are missing.

    Whether a key is there then takes a bit of its own.
    """
    numbers, packed = ROW_NUMBER_BYTES * facts.slots, facts.row_bytes * facts.rows
    by_number = _reading(facts, numbers, ROW_NUMBER_BYTES) + _reading(facts, packed, facts.row_bytes)
    in_slot = _reading(facts, facts.row_bytes * facts.slots, facts.row_bytes)
    if facts.rows < facts.slots:
        in_slot += _reading(facts, facts.slots / 8, ROW_NUMBER_BYTES)
    if not facts.there:
        # Row numbers are read in order, rows at random places, and written in order.
        in_slot += read_seconds(packed, facts.slots, facts.l2_bytes, width=facts.row_bytes)
        in_slot += facts.slots * (2 * ROW_NUMBER_BYTES + facts.row_bytes) / COPY + _packing_payload(facts)
        in_slot += MAKING_SECONDS
    return _choice(facts, in_slot, by_number, 1.0)


def _payload_with_keys(facts: HashFacts) -> Verdict:
    """Rows with the key beside the payload are wider, and have to be packed, which takes time and memory.

    Keys of 4 bytes are in the slots of the hash table, and not in the rows.
    """
    by_number = _reading(facts, facts.row_bytes * facts.rows, facts.row_bytes)
    with_key = _reading(facts, facts.joint_bytes * facts.rows, facts.joint_bytes)
    if not facts.there:
        with_key += MAKING_SECONDS
    if facts.key_bytes <= KEY_IN_SLOT:
        if not facts.there:
            with_key += _packing_payload(facts)
        return _choice(facts, with_key, by_number, 1.0)
    by_number += _reading(facts, facts.key_bytes * facts.rows, facts.key_bytes)
    if not facts.there:
        with_key += facts.rows * (facts.payload_bytes + facts.key_bytes + facts.joint_bytes) / COPY
    return _choice(facts, with_key, by_number, WORTH_MEMORY)


def _reading(facts: FetchFacts, table_bytes: float, width: int) -> float:
    return read_seconds(table_bytes, facts.probe_rows, facts.l2_bytes, width=width)


def _packing_payload(facts: FetchFacts) -> float:
    """Time to pack the payload, unless it is packed."""
    return 0.0 if facts.packed else facts.rows * (facts.payload_bytes + facts.row_bytes) / COPY


def _choice(facts: FetchFacts, with_keys: float, by_number: float, worth: float) -> Verdict:
    by_number += 2 * ROW_NUMBER_BYTES * facts.probe_rows / COPY + _packing_payload(facts)
    if not facts.padded:
        # Fetched payload is moved once more where not all rows have a match; half of the joins are taken to be so.
        with_keys += facts.payload_bytes * facts.probe_rows / COPY
    reason = f"{1e3 * with_keys:.2f} ms with the keys of {facts.probe_rows} rows, {1e3 * by_number:.2f} by row numbers"
    return Verdict(with_keys < worth * by_number, reason)
