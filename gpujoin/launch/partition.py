"""Launches ``partition.cu``: partitions rows by the high bits of their keys' hashes, and joins partitioned sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpujoin.launch import facts, hashset, unique
from gpujoin.launch.device import Array, Device, Kernel, ModuleSpec, check_room, memory_errors
from gpujoin.launch.keys import BLOCK_THREADS, KeyCodes, check_column, check_width, checked_keys, grid_of
from gpujoin.launch.matches import UniqueMatches
from gpujoin.launch.rows import FieldColumn, check_columns

SPECIALISATIONS: tuple[ModuleSpec, ...] = tuple(
    ModuleSpec("partition.cu", (("KEY_BYTES", width),)) for width in (4, 8, 16)
)

PARTITION_BITS = 8
"""Bits of the hash: 256 partitions, and one for rows that match nothing. As in ``partition.cu``."""

TILE_ROWS = BLOCK_THREADS * 8
"""Rows that a block moves at a time, as in ``partition.cu``."""

FEWEST_ROWS = 1 << 20
"""Least probe rows that are partitioned: with fewer, accesses would not become local."""

PROBES_PER_SECTOR = 0.5
"""Least probe rows for each sector of the table that are partitioned. With fewer, most sectors are met by one row at
most, in whatever order rows come."""

_SECTOR_BYTES = 32
_BLOCKS_PER_MULTIPROCESSOR = 3
"""Blocks that are resident at a time, as in ``partition.cu``."""

_ROW_BYTES = 4
_BUCKETS = (1 << PARTITION_BITS) + 1


@dataclass(frozen=True)
class Partitioned:
    """Rows of one side, ordered by the high bits of their keys' hashes."""

    keys: KeyCodes
    """Codes of the rows without a null key."""
    row: Array | None
    """Original number of each row; rows that match nothing are last. ``None``: not asked for."""
    columns: tuple[FieldColumn, ...]
    """Columns in the same order, with the rows that match nothing."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        moved = sum(int(c.values.nbytes) + (0 if c.valid is None else int(c.valid.nbytes)) for c in self.columns)
        return self.keys.nbytes + (0 if self.row is None else int(self.row.nbytes)) + moved


def partition(
    device: Device, keys: KeyCodes, columns: Sequence[FieldColumn] = (), *, numbered: bool = True
) -> Partitioned:
    """Partition rows by hash, in one pass after a counting pass; columns are ordered alike.

    Without ``numbered`` the original row numbers are not written, for those who need only keys and columns.
    """
    checked_keys(keys)
    rows = keys.rows
    if columns and check_columns(columns) != rows:
        check_column("a column to move", columns[0].values, columns[0].values.dtype.type, rows)
    flat: list[Array] = []
    for column in columns:
        flat.append(column)
        if column.valid is not None:
            flat.append(FieldColumn(column.valid))
    moving = keys.key_bytes + _ROW_BYTES * numbered + sum(column.width for column in flat)
    check_room(device, rows * moving, f"partitioning {rows} rows")
    codes = device.empty(tuple(keys.codes.shape), keys.codes.dtype)
    row = device.empty(rows, np.int32) if numbered else None
    moved = [FieldColumn(device.empty(tuple(c.values.shape), c.values.dtype)) for c in flat]
    matchable = 0
    if rows:
        blocks = min(-(-rows // TILE_ROWS), _BLOCKS_PER_MULTIPROCESSOR * device.properties.multiprocessors)
        counts = device.empty(_BUCKETS * blocks, np.int64)
        given = [keys.codes, keys.valid, np.uint64(rows)]
        device.launch(_kernel(device, keys, "partition_count"), blocks, BLOCK_THREADS, [*given, counts])
        with memory_errors("the places of partitioned rows"):
            offsets = device.xp.cumsum(counts, dtype=np.int64) - counts
        arguments = [
            *given, offsets, codes, row, device.pointers([c.bytes for c in flat]),
            device.pointers([c.bytes for c in moved]), device.upload(np.array([c.width for c in flat], np.uint32)),
            np.uint32(len(flat)),
        ]  # fmt: skip
        device.launch(_kernel(device, keys, "partition_rows"), blocks, BLOCK_THREADS, arguments)
        matchable = int(offsets[(_BUCKETS - 1) * blocks])
    out: list[FieldColumn] = []
    results = iter(moved)
    for column in columns:
        values = next(results).values
        out.append(FieldColumn(values, None if column.valid is None else next(results).values))
    return Partitioned(KeyCodes(codes[:matchable], None), row, tuple(out))


@dataclass(frozen=True)
class PartitionedTable:
    """A hash table of unique keys, which is built and probed in the order of its slots."""

    table: hashset.MarkTable
    """Hash table over the partitioned rows, or set of their keys."""
    row: Array | None
    """Original number of each row; ``None``: only matches matter, and any build row stands for the one found."""
    least_match: float = 0.0
    """Probe rows are partitioned only if more than this share of a sample of them has a match."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.table.nbytes + (0 if self.row is None else int(self.row.nbytes))

    def probe(self, device: Device, probe: KeyCodes) -> UniqueMatches:
        """Find the build row of each probe row, in the order of the probe rows."""
        checked_keys(probe)
        check_width(probe, self.table.key_bytes)
        if not self._pays(device, probe):
            matches = self.table.probe(device, probe)
            if self.row is None or not int(self.row.shape[0]):
                return matches
            xp, hit = device.xp, matches.row >= 0
            return UniqueMatches(xp.where(hit, self.row[xp.maximum(matches.row, 0)], xp.int32(-1)), matches.pairs)
        ordered = partition(device, probe)
        return restored(device, self.table.probe(device, ordered.keys), ordered, self.row)

    def _pays(self, device: Device, probe: KeyCodes) -> bool:
        """Whether probe rows are ordered before they are probed."""
        fewest = max(FEWEST_ROWS, int(PROBES_PER_SECTOR * self.table.nbytes) // _SECTOR_BYTES)
        least = self.least_match
        return probe.rows >= fewest and (least <= 0 or self.match_ratio(device, probe) > least)

    def match_ratio(self, device: Device, probe: KeyCodes) -> float:
        """Share of a sample of probe rows that have a match; 0 if there are no rows."""
        sample = facts.sampled(device, probe)
        return self.table.probe(device, sample).pairs / sample.rows if sample.rows else 0.0


def restored(device: Device, matches: UniqueMatches, probe: Partitioned, build_row: Array | None) -> UniqueMatches:
    """Put the matches of partitioned probe rows in the order of these rows before they were partitioned.

    ``build_row`` is the original number of each build row; ``None``: which one matches does not matter.
    """
    assert probe.row is not None, "rows are partitioned with their numbers"
    rows = int(probe.row.shape[0])
    row = device.full(rows, -1, np.int32)
    matchable = probe.keys.rows
    if matchable:
        arguments = [matches.row, np.uint64(matchable), probe.row, build_row, row]
        kernel = _kernel(device, probe.keys, "restore_order")
        device.launch(kernel, grid_of(device, matchable), BLOCK_THREADS, arguments)
    return UniqueMatches(row, matches.pairs)


def build(
    device: Device, keys: KeyCodes, *, duplicates: bool = False, least_match: float = 0.0
) -> PartitionedTable | None:
    """Partition build rows and build a table; ``None`` if a key occurs twice, unless ``duplicates`` are allowed.

    With ``duplicates`` the table only tells which probe rows have a match.
    """
    ordered = partition(device, keys, numbered=not duplicates)
    if duplicates:
        return PartitionedTable(hashset.build(device, ordered.keys), None, least_match)
    table = unique.build(device, ordered.keys)
    if table is None:
        return None
    assert ordered.row is not None
    return PartitionedTable(table, ordered.row[: ordered.keys.rows], least_match)


def _kernel(device: Device, keys: KeyCodes, name: str) -> Kernel:
    return device.kernel(ModuleSpec("partition.cu", (("KEY_BYTES", keys.key_bytes),)), name)
