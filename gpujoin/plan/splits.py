"""Divides Parquet files among tasks.

Where the footers of all files are known, by row groups; else by ranges of bytes, of which a task reads the row groups
whose middle lies in them. For two tasks and the files ``a`` of 300 bytes and ``b`` of 100::

    a   0 … 150 │ 150 … 300        task 0 reads the row groups of a with their middle before byte 150,
    b           │ all              task 1 the others, and b
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from gpujoin.errors import RelationError
from gpujoin.model.relations import FileFooter, FileSlice

OPENING = 192 << 10
"""What opening a file costs, in compressed bytes read: 1 to 2 ms, at 7 ns a byte (`docs/scale.md`)."""
_MOST_RANGES = 1 << 16
"""Ranges that one file is cut into at most."""


def plan_splits(footers: Sequence[FileFooter], target_tasks: int, max_bytes: int) -> list[tuple[FileSlice, ...]]:
    """Divide files among tasks so that all tasks read about equally many bytes. Row groups are not divided.

    There are at least ``target_tasks`` tasks of at most ``max_bytes`` each, as far as row groups allow. No task is
    empty; neighbouring row groups of a file stay together. The bytes of a task differ from an even share by less than
    one row group.
    """
    # An empty row group counts as a byte, since opening it costs something.
    weights = [[max(1, size) for size in footer.group_bytes] for footer in footers]
    return [
        tuple(_groups(footers[number], groups) for number, groups in files.items())
        for files in _shared_out(weights, _tasks(sum(map(sum, weights)), target_tasks, max_bytes))
    ]


def plan_range_splits(
    files: Sequence[FileSlice], column_share: float, group_bytes: int, target_tasks: int, max_bytes: int
) -> list[tuple[FileSlice, ...]]:
    """Divide files whose footers are not known among tasks so that all tasks read about equally many bytes.

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
        tuple(_range(files[number], ranges[number], numbers) for number, numbers in chosen.items())
        for chosen in _shared_out(portions, tasks)
    ]


def _tasks(total: int, target_tasks: int, max_bytes: int) -> int:
    if target_tasks < 1 or max_bytes < 1:
        raise RelationError(f"splits need a task and a byte: got {target_tasks} tasks, {max_bytes} bytes")
    return max(target_tasks, -(-total // max_bytes))


def _shared_out(weights: Sequence[Sequence[int]], tasks: int) -> Iterable[dict[int, list[int]]]:
    """Give each task that gets any the portions of files in whose middle its share of the bytes lies.

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


def _groups(footer: FileFooter, groups: Sequence[int]) -> FileSlice:
    return FileSlice(footer.path, footer.size, footer.modified_ms, row_groups=tuple(groups), constants=footer.constants)


def _range(file: FileSlice, count: int, numbers: Sequence[int]) -> FileSlice:
    """Cut consecutive ranges out of a file of ``count`` equal ones."""
    if len(numbers) == count:
        return file
    first, last = numbers[0], numbers[-1] + 1
    return dataclasses.replace(file, byte_range=(file.size * first // count, file.size * last // count))
