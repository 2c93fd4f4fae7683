"""What accesses to a device's memory cost, as measured on an H200 (60 MB of L2, 3.7 TB/s; ``benchmarks/kernels``)."""

from __future__ import annotations

from gpujoin.launch.device import SECTOR_BYTES

COPY = 3.7e12
"""Bytes of device memory a second."""
RANDOM = 40e9
"""Sectors of 32 bytes a second that are read at random places beyond L2."""
LOOKUPS = 142e9
"""Sectors a second that stay in L2."""
L2_SHARE = 0.5
"""Share of L2 that serves all multiprocessors at that rate. A table of 60 MB has 82 G lookups a second."""


def share_in_l2(table_bytes: float, l2_bytes: float) -> float:
    """Share of the accesses at random places of a table that stay in L2."""
    return min(1.0, L2_SHARE * l2_bytes / max(1.0, table_bytes))


def read_seconds(table_bytes: float, reads: float, l2_bytes: float, *, width: int = SECTOR_BYTES) -> float:
    """Time of reads of ``width`` bytes at random places of a table."""
    inside = share_in_l2(table_bytes, l2_bytes)
    sectors = reads * -(-width // SECTOR_BYTES)
    return sectors * max((1 - inside) / RANDOM, inside / LOOKUPS)
