"""Build rows sorted by group and point, and what is sought in them, with the answers by looking at every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpujoin.launch import ranges
from gpujoin.launch.device import Array, Device
from gpujoin.launch.ranges import Bounds, Groups, Ordered

Points = npt.NDArray[np.int64]
LEAST, MOST = -(1 << 63), (1 << 63) - 1
ENDS = np.array([LEAST, LEAST + 1, -1, 0, 1, MOST - 1, MOST])

SHAPES = ("unique", "some", "one", "zipf", "extremes")


def points(rng: np.random.Generator, shape: str, rows: int) -> Points:
    """Points of a named distribution: see :func:`tests.kernels.cases.side`."""
    if shape == "unique":
        return 3 * rng.permutation(rows).astype(np.int64)
    if shape == "some":
        return rng.integers(0, max(1, rows // 3), rows)
    if shape == "one":
        return np.full(rows, 7)
    if shape == "zipf":
        return np.minimum(rng.zipf(1.5, rows), 10_000)
    assert shape == "extremes"
    return ENDS[rng.integers(0, len(ENDS), rows)]


@dataclass(frozen=True)
class Build:
    """Build rows in the order that kernels search.

    Attributes
    ----------
    groups : int64 array or None
        Group of each row.
    points : tuple of int64 arrays
        One or two of each row.
    number : int
        Groups, empty ones included.
    """

    groups: Points | None
    points: tuple[Points, ...]
    number: int = 1

    @property
    def rows(self) -> int:
        return len(self.points[0])

    @property
    def order(self) -> npt.NDArray[np.int32]:
        """Row at each place: by group, points, row."""
        keys = [*reversed(self.points), np.zeros(self.rows, np.int64) if self.groups is None else self.groups]
        return np.lexsort(keys).astype(np.int32)

    def placed(self, number: int = 0) -> Points:
        """Points in order."""
        return np.ascontiguousarray(self.points[number][self.order])

    def on(self, device: Device, most_samples: int, number: int = 0) -> tuple[Ordered, Groups | None]:
        """The points and the beginnings of the groups on a device."""
        searched = ranges.ordered(device.upload(self.placed(number)), most_samples)
        if self.groups is None:
            return searched, None
        return searched, ranges.groups_of(device, device.upload(self.groups[self.order]), self.number)

    def places_of(self, group: int | None, valid: bool) -> npt.NDArray[np.int64]:
        """Places of the rows that a probe row may match."""
        if not valid:
            return np.zeros(0, np.int64)
        if self.groups is None:
            return np.arange(self.rows)
        return np.flatnonzero(self.groups[self.order] == group)


@dataclass(frozen=True)
class Asked:
    """What probe rows ask for."""

    low: Points
    high: Points
    valid: npt.NDArray[np.bool_] | None = None
    groups: Points | None = None

    @property
    def rows(self) -> int:
        return len(self.low)

    def on(self, device: Device) -> Bounds:
        def there(array: npt.NDArray[Any] | None) -> Array | None:
            return None if array is None else device.upload(array)

        return Bounds(device.upload(self.low), device.upload(self.high), there(self.valid), there(self.groups))

    def may_match(self, row: int) -> bool:
        return self.valid is None or bool(self.valid[row])

    def group(self, row: int) -> int | None:
        return None if self.groups is None else int(self.groups[row])


def matching(build: Build, asked: tuple[Asked, ...]) -> list[list[int]]:
    """Places of the matches of each probe row, one range for each point; the first one has groups and validity."""
    first = asked[0]
    columns = [build.placed(number) for number in range(len(asked))]
    pairs = []
    for row in range(first.rows):
        places = build.places_of(first.group(row), first.may_match(row))
        for column, bounds in zip(columns, asked, strict=True):
            inside = (column[places] >= bounds.low[row]) & (column[places] <= bounds.high[row])
            places = places[inside]
        pairs.append(places.tolist())
    return pairs


def some_ranges(
    rng: np.random.Generator,
    values: Points,
    rows: int,
    width: int,
    *,
    nulls: float = 0.0,
    groups: int | None = None,
) -> Asked:
    """Ranges around values that occur and values that do not; a few are empty, some reach to the ends of the type.

    Groups are drawn from −1 … ``groups``, so some do not exist.
    """
    known = values[rng.integers(0, len(values), rows)] if len(values) else np.zeros(rows, np.int64)
    shifts = rng.integers(-2, 3, rows)
    low = np.where(shifts < 0, np.maximum(known, LEAST + 2) + shifts, np.minimum(known, MOST - 2) + shifts)
    wide = rng.integers(-2, max(1, width), rows)
    high = np.where(wide < 0, np.maximum(low, LEAST + 2) + wide, np.minimum(low, MOST - width) + wide)
    drawn = rng.random(rows)
    low = np.where(drawn < 0.05, LEAST, low)
    high = np.where((drawn > 0.03) & (drawn < 0.08), MOST, high)
    valid = rng.random(rows) >= nulls if nulls else None
    return Asked(low, high, valid, None if groups is None else rng.integers(-1, groups + 1, rows))
