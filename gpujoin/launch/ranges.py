"""Launches ``ranges.cu``: searches ranges in build rows that are sorted by group and point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpujoin.errors import KernelArgumentError
from gpujoin.launch.device import Array, Device, ModuleSpec
from gpujoin.launch.keys import BLOCK_THREADS, check_column, check_rows, grid_of, total, value_of
from gpujoin.launch.matches import Ranges

SPECIALISATIONS: tuple[ModuleSpec, ...] = (ModuleSpec("ranges.cu"),)

MOST_SAMPLES = 2048
"""Most samples that a block keeps in shared memory: the upper eleven steps of each search. As in ``ordered.cuh``."""

ROWS_PER_BLOCK = 1024
"""Probe rows of a block: reading them moves about as many bytes as loading the samples."""


@dataclass(frozen=True)
class Ordered:
    """Integers that ascend, at least within groups, with samples that speed searches up."""

    values: Array
    """All integers, in order."""
    samples: Array
    """Every ``2 ** shift``-th integer, from the first on."""
    shift: int
    """Binary logarithm of the distance of two samples."""

    @property
    def places(self) -> int:
        """Number of places."""
        return int(self.values.shape[0])

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.values.nbytes) + int(self.samples.nbytes)

    @property
    def samples_for_kernel(self) -> tuple[Array, np.uint32, np.uint32]:
        """The samples in the order of the kernel's parameters."""
        return self.samples, np.uint32(self.samples.shape[0]), np.uint32(self.shift)


@dataclass(frozen=True)
class Groups:
    """The places of each group's rows."""

    first: Array
    """First place of each group, and the end of the last one."""

    @property
    def number(self) -> int:
        """Number of groups, empty ones included."""
        return int(self.first.shape[0]) - 1


@dataclass(frozen=True)
class Bounds:
    """The ranges that probe rows ask for."""

    low: Array
    high: Array
    """Lowest and highest point of a match, both included."""
    valid: Array | None = None
    """False where a row matches nothing; ``None``: nowhere."""
    group: Array | None = None
    """Group of each row; one that does not exist matches nothing. ``None`` where build rows have no groups."""

    @property
    def rows(self) -> int:
        """Row count."""
        return int(self.low.shape[0])


def ordered(values: Array, most_samples: int = MOST_SAMPLES) -> Ordered:
    """Take samples, at most :data:`MOST_SAMPLES`, of int64 values that ascend wherever they will be searched."""
    check_column("sorted points", values, np.int64)
    places = int(values.shape[0])
    check_rows(places)
    if not 1 <= most_samples <= MOST_SAMPLES:
        raise KernelArgumentError(f"a block keeps 1 to {MOST_SAMPLES} samples, not {most_samples}")
    shift = (max(1, -(-places // most_samples)) - 1).bit_length()
    return Ordered(values, values[:: 1 << shift].copy(), shift)


def groups_of(device: Device, ordered_groups: Array, number: int) -> Groups:
    """Find the first place of each of ``number`` groups, given the int64 group of each place, ascending."""
    check_column("groups", ordered_groups, np.int64)
    check_rows(max(int(ordered_groups.shape[0]), number))
    xp = device.xp
    numbers = xp.arange(number + 1, dtype=np.int64)
    return Groups(xp.searchsorted(ordered_groups, numbers, side="left").astype(np.int32))


def find(device: Device, points: Ordered, groups: Groups | None, bounds: Bounds) -> Ranges:
    """Find the places of the matches of each probe row.

    Points ascend within each group; without groups all rows are one.
    """
    check_bounds(bounds)
    if (groups is None) != (bounds.group is None):
        raise KernelArgumentError("either both sides have groups or neither; pass the groups of the other side too")
    check_rows(points.places)
    if groups is not None:
        check_column("the beginnings of groups", groups.first, np.int32)
    start, count = device.empty(bounds.rows, np.int32), device.empty(bounds.rows, np.int32)
    matches = total(device)
    if bounds.rows:
        arguments = [
            points.values, np.uint64(points.places), *points.samples_for_kernel,
            None if groups is None else groups.first, np.uint64(0 if groups is None else groups.number), bounds.low,
            bounds.high, bounds.valid, bounds.group, np.uint64(bounds.rows), start, count, matches,
        ]  # fmt: skip
        kernel = device.kernel(SPECIALISATIONS[0], "find_stretches")
        device.launch(kernel, grid_of(device, bounds.rows, ROWS_PER_BLOCK), BLOCK_THREADS, arguments)
    return Ranges(start, count, value_of(device, matches))


def narrow(device: Device, points: Ordered, stretches: Ranges, bounds: Bounds) -> Ranges:
    """Narrow stretches to the places whose second point lies in a second range; their arrays are overwritten.

    Second points ascend within each stretch. Validity and groups were applied with the first ranges.
    """
    check_bounds(bounds)
    check_rows(points.places)
    check_column("first places", stretches.start, np.int32, bounds.rows)
    check_column("numbers of places", stretches.count, np.int32, bounds.rows)
    matches = total(device)
    if bounds.rows:
        arguments = [
            points.values, *points.samples_for_kernel, bounds.low, bounds.high, np.uint64(bounds.rows), stretches.start,
            stretches.count, matches,
        ]  # fmt: skip
        kernel = device.kernel(SPECIALISATIONS[0], "narrow_stretches")
        device.launch(kernel, grid_of(device, bounds.rows, ROWS_PER_BLOCK), BLOCK_THREADS, arguments)
    return Ranges(stretches.start, stretches.count, value_of(device, matches))


def check_bounds(bounds: Bounds) -> None:
    """Raise for arrays that kernels cannot read as ranges.

    Raises ``KernelArgumentError`` if the type, shape or layout of an array is wrong, or there are more than
    :data:`~gpujoin.launch.keys.MAX_ROWS` rows.
    """
    check_rows(bounds.rows)
    check_column("lowest points", bounds.low, np.int64, bounds.rows)
    check_column("highest points", bounds.high, np.int64, bounds.rows)
    if bounds.valid is not None:
        check_column("the validity of ranges", bounds.valid, np.bool_, bounds.rows)
    if bounds.group is not None:
        check_column("groups of probe rows", bounds.group, np.int64, bounds.rows)
