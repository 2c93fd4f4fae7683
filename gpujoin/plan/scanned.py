"""What planning knows of the files of a scan, from the footers of all of them or of a sample.

Of a sample nothing is concluded but sizes and shares of rows. Whether a file may be read at all is seen by whoever
reads it: a worker checks the schema, the calendar and the statistics of each file that it opens.

For example three files of 100, 100 and 200 bytes, of which the first and the last are sampled::

    footers     10 rows, 40 bytes of the columns     20 rows, 80 bytes of the columns
    estimate    30 rows * 400 / 300 = 40 rows        120 bytes * 400 / 300 = 160 bytes

Files whose first column has the bounds (1, 5) and (0, 2) have (0, 5) together. If one of them does not tell the bounds
of a column, the bounds of the column are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from gpujoin.errors import RelationError
from gpujoin.model.files import Bounds, FileFooter, FileSlice
from gpujoin.plan.distinct import DistinctValues
from gpujoin.plan.splits import OPENING, plan_range_splits, plan_splits

T = TypeVar("T")


@dataclass(frozen=True)
class ScannedFiles:
    """The files of a scan, and the footers that planning has read."""

    files: tuple[FileSlice, ...]
    """All of them, each whole."""
    footers: tuple[FileFooter, ...]
    """Those of all files, in the same order, or those of some."""

    @property
    def is_sampled(self) -> bool:
        """Whether some files have not been opened."""
        return len(self.footers) < len(self.files)

    @property
    def paths(self) -> tuple[str, ...]:
        """Their paths."""
        return tuple(file.path for file in self.files)

    @cached_property
    def rows(self) -> float:
        """Rows of the files, estimated where they are sampled."""
        return self._scale * sum(sum(footer.rows) for footer in self.footers)

    @cached_property
    def nbytes(self) -> int:
        """Compressed bytes of the columns read, estimated where the files are sampled."""
        return int(self._scale * self._column_bytes)

    @property
    def bounds(self) -> tuple[Bounds | None, ...]:
        """Least and greatest value of each column, as far as footers tell; ``None`` where these cannot."""
        return _by_column((footer.bounds for footer in self.footers), _widest)

    @property
    def different(self) -> DistinctValues:
        """About how many different values each column has, as far as footers tell; ``None`` where these cannot."""
        return _by_column((footer.different for footer in self.footers), max)

    @property
    def work_bytes(self) -> int:
        """The same, with what opening very many files costs."""
        return self.nbytes + (OPENING * len(self.files) if self.is_sampled else 0)

    @cached_property
    def _column_bytes(self) -> int:
        return sum(sum(footer.group_bytes) for footer in self.footers)

    @cached_property
    def _scale(self) -> float:
        """How many times as large all files are as those whose footers are known."""
        if not self.is_sampled:
            return 1.0
        return sum(file.size for file in self.files) / max(1, sum(footer.size for footer in self.footers))

    def splits(self, target_tasks: int, max_bytes: int) -> list[tuple[FileSlice, ...]]:
        """Divide the files among tasks: by row groups, or of a sample by bytes (`plan.splits`)."""
        if not self.is_sampled:
            return plan_splits(self.footers, target_tasks, max_bytes)
        column_share = self._column_bytes / max(1, sum(footer.size for footer in self.footers))
        groups = sum(len(footer.rows) for footer in self.footers)
        group_bytes = sum(footer.size for footer in self.footers) // max(1, groups)
        return plan_range_splits(self.files, column_share, group_bytes, target_tasks, max_bytes)


def sample_of(files: Sequence[FileSlice], most: int) -> list[int]:
    """Choose up to ``most`` files to look at, by number: all, or some evenly spaced ones and the largest.

    Neighbours in a listing are mostly of one partition, or written by one job, and so alike.
    """
    if most < 1:
        raise RelationError(f"a sample needs a file, got {most}")
    if len(files) <= most:
        return list(range(len(files)))
    largest = max(range(len(files)), key=lambda number: files[number].size)
    even = max(1, most - 1)
    last = len(files) - 1
    return sorted({largest, *(last * n // max(1, even - 1) for n in range(even if most > 1 else 0))})


def _by_column(files: Iterable[tuple[T | None, ...]], merge: Callable[[Sequence[T]], T | None]) -> tuple[T | None, ...]:
    """Merge what each file tells of a column; ``None`` where a file tells nothing."""
    return tuple(
        merge([value for value in values if value is not None]) if None not in values else None
        for values in zip(*files, strict=False)
    )


def _widest(bounds: Sequence[tuple[Any, Any]]) -> Bounds | None:
    try:
        return min(low for low, _ in bounds), max(high for _, high in bounds)
    except TypeError:  # files may have moments with and without a zone
        return None
