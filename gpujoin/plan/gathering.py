"""Chooses how a device gathers columns and writes join output, from the facts of a gather.

A random access moves a 32-byte sector, however few bytes of it are used. So n columns that are gathered one by one cost
n sectors for each entry, and columns packed into rows of up to 32 bytes cost one (Wu, Koutsoukos, Alonso, arXiv
2312.00720). Packing reads and writes every row once. It is put off until the entries gathered so far would have paid
for it. By the rule of the ski rental problem, at most twice as many bytes are then moved as with all maps known ahead.

The output can also be made without maps: one pass over the matches writes the columns of both sides. Where a probe row
may have several matches (:func:`gpujoin.launch.rows.emit_ranges`), build rows are packed in the order of their keys, so
that those of one key are read in a run.

The numbers are predictions until ``benchmarks/kernels`` has measured them on a device.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gpujoin.config import AlgorithmChoice
from gpujoin.model.gathering import (
    ChooseEmission,
    ChooseGather,
    EmissionChoice,
    EmissionFacts,
    EmissionMethod,
    GatherChoice,
    GatherFacts,
    GatherMethod,
)

SECTOR_BYTES = 32
"""Bytes that a random access moves at least."""

L2_DISCOUNT = 3
"""Cost of a random access to memory, relative to one that stays in L2."""

MAP_BYTES_PER_PROBE_ROW = 7
"""Bytes moved to make maps for each probe row: the matches are read, a mask is written, and read for each side."""

MAP_BYTES_PER_ROW = 52
"""Bytes moved to make maps for each output row: positions of each side in 64 and in 32 bits, and the matches."""

PAIR_BYTES = 12
"""Bytes moved to make a pair of many-to-many matches: the build row at its place is read, both rows are written."""

ORDERED_ROW_BYTES = 4
"""Bytes read for each build row that is packed in the order of keys, besides the row: its number."""

MAP_ENTRY_BYTES = 4
"""Bytes of a map's entry, which each gather reads."""

FUSED_BYTES_PER_PROBE_ROW = 8
"""Bytes read for each probe row by the single pass: the matches, to count and to write."""


def gather_chooser(wanted: AlgorithmChoice) -> ChooseGather | None:
    """Make the function by which a backend asks how to gather; ``None``: gpujoin's kernels must not be used."""
    return None if wanted is AlgorithmChoice.CUDF else choose_gather


def emission_chooser(wanted: AlgorithmChoice) -> ChooseEmission | None:
    """Make the function by which a backend asks how to write output; ``None``: gpujoin's kernels must not be used."""
    return None if wanted is AlgorithmChoice.CUDF else choose_emission


def choose_gather(facts: GatherFacts) -> GatherChoice:
    """Choose between gathering column by column and from packed rows."""
    if facts.row_bytes is None:
        return _by_columns("too many columns, or of too many bytes, for packed rows")
    if len(facts.widths) < 2:
        return _by_columns("a single column")
    if facts.ascending:
        return _by_columns("rows ascend, so neighbours share sectors")
    if facts.rows * max(facts.widths) <= facts.l2_bytes:
        return _by_columns("every column stays in L2")
    by_columns, by_rows = _by_columns_bytes(facts), _access_bytes(facts, facts.row_bytes)
    if by_rows >= by_columns:
        return _by_columns(f"a packed row of {facts.row_bytes} bytes costs as much as {len(facts.widths)} columns")
    packing = _packing_bytes(facts, facts.row_bytes)
    saved = facts.entries * (by_columns - by_rows)
    if saved <= packing:
        return _by_columns(f"{facts.entries} entries save less than packing {facts.rows} rows costs")
    return GatherChoice(
        GatherMethod.ROWS,
        f"{by_rows:.0f} bytes moved an entry in place of {by_columns:.0f} for {len(facts.widths)} columns",
    )


def choose_emission(facts: EmissionFacts) -> EmissionChoice:
    """Choose between making output by gather maps and in one pass."""
    if facts.probe_widths is None or not facts.build_fixed:
        return _by_maps("a column without one width, which needs the maps anyway")
    if facts.rows == 0 or (facts.unique and facts.rows == facts.probe_rows):
        return _by_maps("all or none of the probe rows: they stay where they are")
    build = facts.build
    if build is not None and build.row_bytes is None:
        return _by_maps("too many build columns, or of too many bytes, for packed rows")
    maps, fused = _unique_bytes(facts) if facts.unique else _runs_bytes(facts)
    maps += MAP_ENTRY_BYTES * facts.rows * len(facts.probe_widths)
    told = f"{fused / facts.rows:.0f} bytes moved a row at once, {maps / facts.rows:.0f} by maps"
    if fused >= maps:
        return _by_maps(told)
    return EmissionChoice(EmissionMethod.FUSED, told)


def _unique_bytes(facts: EmissionFacts) -> tuple[float, float]:
    """Bytes moved by maps and at once where no probe row has two matches, but for the maps of probe columns."""
    maps = float(MAP_BYTES_PER_PROBE_ROW * facts.probe_rows + MAP_BYTES_PER_ROW * facts.rows)
    fused = float(FUSED_BYTES_PER_PROBE_ROW * facts.probe_rows)
    build = facts.build
    if build is not None and build.row_bytes is not None:
        maps += _gathered_bytes(facts.rows, build)
        fused += facts.rows * _access_bytes(build, build.row_bytes)
        fused += _share(_packing_bytes(build, build.row_bytes), facts.rows, build)
    return maps, fused


def _runs_bytes(facts: EmissionFacts) -> tuple[float, float]:
    """The same where probe rows may have several matches, each found in the running count either way."""
    maps, fused = float(PAIR_BYTES * facts.rows), 0.0
    build = facts.build
    if build is not None and build.row_bytes is not None:
        maps += _gathered_bytes(facts.rows, build)
        # A run begins at any row of a sector: its first and last sectors have so much of other runs, in the mean.
        others = min(facts.rows, facts.probe_rows) * (SECTOR_BYTES - math.gcd(build.row_bytes, SECTOR_BYTES))
        fused += _discounted(facts.rows * build.row_bytes + others, build, build.row_bytes)
        packing = 0.0 if facts.ordered else _ordering_bytes(build, build.row_bytes)
        fused += _share(packing, facts.rows, build)
    return maps, fused


def _gathered_bytes(rows: int, build: GatherFacts) -> float:
    """Bytes moved to gather the build side's columns by a map, besides the output."""
    if choose_gather(build).method is GatherMethod.ROWS and build.row_bytes is not None:
        packing = _share(_packing_bytes(build, build.row_bytes), rows, build)
        return rows * (MAP_ENTRY_BYTES + _access_bytes(build, build.row_bytes)) + packing
    return rows * (MAP_ENTRY_BYTES * len(build.widths) + _by_columns_bytes(build))


def _share(packing: float, rows: int, build: GatherFacts) -> float:
    """Cost of packing that falls to some output rows: it is divided among all entries so far, these included."""
    return packing * rows / max(1, build.entries)


def _ordering_bytes(build: GatherFacts, row_bytes: int) -> float:
    """Cost of packing rows and of moving them to the order of their keys."""
    moved = ORDERED_ROW_BYTES + _access_bytes(build, row_bytes) + row_bytes
    return _packing_bytes(replace(build, packed=False), row_bytes) + build.rows * moved


def _by_columns_bytes(facts: GatherFacts) -> float:
    return sum(_access_bytes(facts, width) for width in facts.widths)


def _packing_bytes(facts: GatherFacts, row_bytes: int) -> int:
    return 0 if facts.packed else facts.rows * (sum(facts.widths) + row_bytes)


def _access_bytes(facts: GatherFacts, width: int) -> float:
    """Cost of a random access to a value, in bytes of device memory."""
    return _discounted(-(-width // SECTOR_BYTES) * SECTOR_BYTES, facts, width)


def _discounted(nbytes: float, facts: GatherFacts, width: int) -> float:
    """Cost of reading bytes of a column of values of some width, which may stay in L2."""
    return nbytes if facts.rows * width > facts.l2_bytes else nbytes / L2_DISCOUNT


def _by_maps(reason: str) -> EmissionChoice:
    return EmissionChoice(EmissionMethod.MAPS, reason)


def _by_columns(reason: str) -> GatherChoice:
    return GatherChoice(GatherMethod.COLUMNS, reason)
