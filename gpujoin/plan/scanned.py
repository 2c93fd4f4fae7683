"""What planning knows of the files of a scan, and how it divides them among tasks.

It reads the footers of all files or of a sample. Of a sample nothing is concluded but sizes and shares of rows. Whether
a file may be read at all is seen by whoever reads it: a worker checks the schema, the calendar and the statistics of
each file that it opens.

For example three files of 100, 100 and 200 bytes, of which the first and the last are sampled::

    footers     10 rows, 40 bytes of the columns     20 rows, 80 bytes of the columns
    estimate    30 rows * 400 / 300 = 40 rows        120 bytes * 400 / 300 = 160 bytes

Files whose first column has the bounds (1, 5) and (0, 2) have (0, 5) together. If one of them does not tell the bounds
of a column, the bounds of the column are unknown.

Files are divided by row groups, where the footers of all of them are known; else by ranges of bytes, of which a task
reads the row groups whose middle lies in them. For two tasks and the files ``a`` of 300 bytes and ``b`` of 100::

    a   0 … 150 │ 150 … 300        task 0 reads the row groups of a with their middle before byte 150,
    b           │ all              task 1 the others, and b
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from gpujoin.errors import RelationError
from gpujoin.model.files import Bounds, FileFooter, FileSlice
from gpujoin.plan.distinct import DistinctValues

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
        """Rows of the files without those deleted, estimated where they are sampled."""
        rows = self._scale * sum(sum(footer.rows) for footer in self.footers)
        deletions = sum(deletion.rows or 0 for file in self.files for deletion in file.deletions)
        return max(0.0, rows - deletions)

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
        """Give the size of all files in times of those with known footers."""
        if not self.is_sampled:
            return 1.0
        return sum(file.size for file in self.files) / max(1, sum(footer.size for footer in self.footers))

    def splits(self, target_tasks: int, max_bytes: int) -> list[tuple[FileSlice, ...]]:
        """Divide the files among tasks: by row groups, or of a sample by bytes."""
        if not self.is_sampled:
            return plan_splits(self.files, self.footers, target_tasks, max_bytes)
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
    """Merge what each file says of a column; ``None`` for a column of which one says nothing."""
    return tuple(
        merge([value for value in values if value is not None]) if None not in values else None
        for values in zip(*files, strict=False)
    )


def _widest(bounds: Sequence[tuple[Any, Any]]) -> Bounds | None:
    try:
        return min(low for low, _ in bounds), max(high for _, high in bounds)
    except TypeError:  # files may have moments with and without a zone
        return None


OPENING = 192 << 10
"""What opening a file costs, in compressed bytes read: 1 to 2 ms, at 7 ns a byte (`docs/scale.md`)."""
_MOST_RANGES = 1 << 16
"""Ranges that one file is cut into at most."""


def plan_splits(
    files: Sequence[FileSlice], footers: Sequence[FileFooter], target_tasks: int, max_bytes: int
) -> list[tuple[FileSlice, ...]]:
    """Divide files among tasks so that all tasks read about equally many bytes. Row groups are not divided.

    There are at least ``target_tasks`` tasks of at most ``max_bytes`` each, as far as row groups allow. No task is
    empty; neighbouring row groups of a file stay together. The bytes of a task differ from an even share by less than
    one row group.
    """
    # An empty row group counts as a byte, since opening it costs something.
    weights = [[max(1, size) for size in footer.group_bytes] for footer in footers]
    return [
        tuple(dataclasses.replace(files[number], row_groups=tuple(groups)) for number, groups in portions.items())
        for portions in _share_out(weights, _tasks(sum(map(sum, weights)), target_tasks, max_bytes))
    ]


def plan_range_splits(
    files: Sequence[FileSlice], column_share: float, group_bytes: int, target_tasks: int, max_bytes: int
) -> list[tuple[FileSlice, ...]]:
    """Divide files with unknown footers among tasks so that all tasks read about equally many bytes.

    ``column_share`` is the share of a file's bytes that is read. Files are cut where they are larger than a task's
    share, into ranges of not less than ``group_bytes``: a row group is read as a whole. Together the ranges of a file
    have all its bytes, and each byte once. As for :func:`plan_splits` otherwise, as far as row groups are where they
    are expected; to open a file counts as :data:`OPENING` bytes more, as there may be very many.
    """
    weights = [round(file.size * column_share) + OPENING for file in files]
    total = sum(weights)
    tasks = _tasks(total, target_tasks, max_bytes)
    share = total / tasks
    ranges = []
    for file, weight in zip(files, weights, strict=True):
        most = min(_MOST_RANGES, weight, max(1, file.size // max(1, group_bytes)))
        ranges.append(max(1, min(most, math.ceil(weight / share))))
    portions = [
        [weight * (n + 1) // count - weight * n // count for n in range(count)]
        for weight, count in zip(weights, ranges, strict=True)
    ]
    return [
        tuple(_range(files[number], ranges[number], numbers) for number, numbers in portions_of_files.items())
        for portions_of_files in _share_out(portions, tasks)
    ]


def _tasks(total: int, target_tasks: int, max_bytes: int) -> int:
    if target_tasks < 1 or max_bytes < 1:
        raise RelationError(f"splits need a task and a byte: got {target_tasks} tasks, {max_bytes} bytes")
    return max(target_tasks, -(-total // max_bytes))


def _share_out(weights: Sequence[Sequence[int]], tasks: int) -> Iterable[dict[int, list[int]]]:
    """Give each task the portions of files whose middle lies in its share of the bytes.

    ``weights`` has the bytes of each file's portions. What a task gets are numbers of portions by the file's number.
    """
    total = sum(map(sum, weights))
    shares: dict[int, dict[int, list[int]]] = {}
    before = 0
    for number, sizes in enumerate(weights):
        for portion, size in enumerate(sizes):
            task = (2 * before + size) * tasks // (2 * total)  # task in whose share the portion's middle lies
            shares.setdefault(task, {}).setdefault(number, []).append(portion)
            before += size
    return [files for _, files in sorted(shares.items())]


@dataclass(frozen=True)
class Buckets:
    """The buckets of a column by which files are divided: equal values of it are in files of one bucket."""

    kind: str
    """How the bucket of a value is computed; two columns have equal values in the same bucket if they are of one kind.
    """
    numbers: tuple[int | None, ...]
    """The bucket of each file; ``None``: that of null."""
    sizes: tuple[int, ...]
    """Bytes of each file."""


def bucket_splits(
    tables: Sequence[tuple[Sequence[FileSlice], Buckets]], tasks: int
) -> list[list[tuple[FileSlice, ...]]]:
    """Divide the files of tables among tasks, so that each task has all files of a bucket.

    Gives for each task the files of each table. Tasks read about equally many bytes, as far as buckets allow, and there
    are at most as many as buckets. For two tables with the buckets 0 to 3, and two tasks::

        left    bucket 0: 90 bytes   1: 40   2: 40            task 0: bucket 0 of both
        right   bucket 0: 20 bytes   1: 10          3: 50     task 1: buckets 1, 2 and 3
    """
    owners, loads = _deal([buckets for _, buckets in tables], tasks)
    shares: list[list[list[FileSlice]]] = [[[] for _ in tables] for _ in loads]
    for number, (files, buckets) in enumerate(tables):
        for bucket, file in zip(buckets.numbers, files, strict=True):
            shares[owners[bucket]][number].append(file)
    return [[tuple(part) for part in share] for share in shares]


def bucket_delay(tables: Sequence[Buckets], cores: int) -> float:
    """How many times longer the last of some cores takes to read its buckets than an even share."""
    _, loads = _deal(tables, cores)
    return max(1.0, max(loads) * cores / max(1, sum(loads)))


def _deal(tables: Sequence[Buckets], tasks: int) -> tuple[dict[int | None, int], list[int]]:
    """Give each bucket a task, the largest first, and the bytes of each task."""
    sizes: Counter[int | None] = Counter()
    for buckets in tables:
        for bucket, size in zip(buckets.numbers, buckets.sizes, strict=True):
            sizes[bucket] += size
    owners: dict[int | None, int] = {}
    loads = [0] * max(1, min(tasks, len(sizes)))
    for bucket, size in sizes.most_common():
        owners[bucket] = loads.index(min(loads))
        loads[owners[bucket]] += size
    return owners, loads


def _range(file: FileSlice, count: int, numbers: Sequence[int]) -> FileSlice:
    """Cut consecutive ranges out of a file of ``count`` equal ones."""
    if len(numbers) == count:
        return file
    first, last = numbers[0], numbers[-1] + 1
    return dataclasses.replace(file, byte_range=(file.size * first // count, file.size * last // count))
