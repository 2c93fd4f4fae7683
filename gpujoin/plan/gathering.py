"""How a device gathers payload: a pure function of the facts of a gather.

A random access costs a 32-byte sector however few bytes of it are wanted: n columns gathered one by one cost n sectors
an entry, and packed into rows of up to 32 bytes they cost one (Wu, Koutsoukos, Alonso, arXiv 2312.00720). Packing reads
and writes every row once. It is put off until the entries gathered so far would have paid for it: then at most twice as
much is moved as by who knows the maps to come (the rule for renting skis). The numbers are predictions until
``benchmarks/kernels`` has measured them on a device.
"""

from __future__ import annotations

from gpujoin.model.gathering import GatherChoice, GatherFacts, GatherMethod

SECTOR_BYTES = 32
"""What a random access moves at least."""

L2_DISCOUNT = 3
"""A random access that stays in L2 costs about a third of one that does not."""


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
    by_columns = sum(_access_bytes(facts, width) for width in facts.widths)
    by_rows = _access_bytes(facts, facts.row_bytes)
    if by_rows >= by_columns:
        return _by_columns(
            f"a packed row of {facts.row_bytes} bytes costs as much as {len(facts.widths)} columns"
        )
    packing = 0 if facts.packed else facts.rows * (sum(facts.widths) + facts.row_bytes)
    saved = facts.entries * (by_columns - by_rows)
    if saved <= packing:
        return _by_columns(f"{facts.entries} entries save less than packing {facts.rows} rows costs")
    return GatherChoice(
        GatherMethod.ROWS,
        f"{by_rows:.0f} bytes moved an entry in place of {by_columns:.0f} for {len(facts.widths)} columns",
    )


def _access_bytes(facts: GatherFacts, width: int) -> float:
    """Bytes that a random access to values of a width costs, in terms of bytes of device memory."""
    sectors = -(-width // SECTOR_BYTES) * SECTOR_BYTES
    return sectors if facts.rows * width > facts.l2_bytes else sectors / L2_DISCOUNT


def _by_columns(reason: str) -> GatherChoice:
    return GatherChoice(GatherMethod.COLUMNS, reason)
