"""Launches ``nearest.cu``: as-of search in build rows that are sorted by group and point."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from gpujoin.errors import KernelArgumentError
from gpujoin.launch.device import Array, Device, ModuleSpec
from gpujoin.launch.keys import BLOCK_THREADS, check_column, check_rows, grid_of, total, value_of
from gpujoin.launch.matches import UniqueMatches
from gpujoin.launch.ranges import ROWS_PER_BLOCK, Groups, Ordered


class Codes(Enum):
    """Values that the codes of points stand for. The enum's values are the bytes of a float, 0 for integers."""

    INTEGERS = 0
    FLOAT32 = 4
    FLOAT64 = 8


SPECIALISATIONS: tuple[ModuleSpec, ...] = tuple(
    ModuleSpec("nearest.cu", (("FLOAT_BYTES", codes.value),)) for codes in Codes
)

_MOST_APART = (1 << 64) - 1


@dataclass(frozen=True)
class Terms:
    """Which row is the nearest: direction, exactness and tolerance."""

    backward: bool
    forward: bool
    """Whether rows before and after the point count; at least one must."""
    exact: bool = True
    """Whether rows at the point count."""
    codes: Codes = Codes.INTEGERS
    """Values in which distances are measured."""
    tolerance: int | float | None = None
    """Largest distance, in units of integer codes or as a float; ``None``: any."""

    def __post_init__(self) -> None:
        if not (self.backward or self.forward):
            raise KernelArgumentError("an as-of search looks backward, forward or both ways, not neither")
        if self.tolerance is not None and not self.tolerance >= 0:
            raise KernelArgumentError(f"a tolerance is not negative, not {self.tolerance!r}")
        if self.codes is Codes.INTEGERS and not isinstance(self.tolerance, int | None):
            raise KernelArgumentError(f"distances of integers are integers, not {self.tolerance!r}")

    @property
    def most(self) -> np.generic:
        """Largest distance, as the kernel's parameter."""
        if self.codes is not Codes.INTEGERS:
            return np.float64(np.inf if self.tolerance is None else self.tolerance)
        return np.uint64(_MOST_APART if self.tolerance is None else min(int(self.tolerance), _MOST_APART))


@dataclass(frozen=True)
class Sought:
    """Points of probe rows, for which the nearest row is searched."""

    points: Array
    """Point of each probe row."""
    valid: Array | None = None
    """False where a row matches nothing; ``None``: nowhere."""
    group: Array | None = None
    """Group of each row; one that does not exist matches nothing. ``None`` where build rows have no groups."""

    @property
    def rows(self) -> int:
        """Row count."""
        return int(self.points.shape[0])


def find(
    device: Device, points: Ordered, groups: Groups | None, placed: Array, sought: Sought, terms: Terms
) -> UniqueMatches:
    """Find the nearest build row of each probe row.

    Points ascend within each group; without groups all rows are one. ``placed`` is the int32 build row at each place.
    """
    rows = sought.rows
    check_rows(max(rows, points.places))
    check_column("points of probe rows", sought.points, np.int64, rows)
    check_column("placed rows", placed, np.int32, points.places)
    if sought.valid is not None:
        check_column("the validity of points", sought.valid, np.bool_, rows)
    if (groups is None) != (sought.group is None):
        raise KernelArgumentError("either both sides have groups or neither; pass the groups of the other side too")
    if sought.group is not None:
        check_column("groups of probe rows", sought.group, np.int64, rows)
    if groups is not None:
        check_column("the beginnings of groups", groups.first, np.int32)
    build_row, matches = device.empty(rows, np.int32), total(device)
    if rows:
        arguments = [
            points.values, np.uint64(points.places), *points.samples_for_kernel,
            None if groups is None else groups.first, np.uint64(0 if groups is None else groups.number), placed,
            sought.points, sought.valid, sought.group, np.uint64(rows), np.int32(terms.backward),
            np.int32(terms.forward), np.int32(terms.exact), terms.most, build_row, matches,
        ]  # fmt: skip
        kernel = device.kernel(ModuleSpec("nearest.cu", (("FLOAT_BYTES", terms.codes.value),)), "nearest_rows")
        device.launch(kernel, grid_of(device, rows, ROWS_PER_BLOCK), BLOCK_THREADS, arguments)
    return UniqueMatches(build_row, value_of(device, matches))
