"""Divides Parquet files among tasks."""

from __future__ import annotations

from collections.abc import Sequence

from gpujoin.errors import RelationError
from gpujoin.model.relations import FileFooter, FileSlice


def plan_splits(footers: Sequence[FileFooter], target_tasks: int, max_bytes: int) -> list[tuple[FileSlice, ...]]:
    """Divide files among tasks so that all tasks read about equally many bytes. Row groups are not divided.

    There are at least ``target_tasks`` tasks of at most ``max_bytes`` each, as far as row groups allow. No task is
    empty; neighbouring row groups of a file stay together. The bytes of a task differ from an even share by less than
    one row group.
    """
    if target_tasks < 1 or max_bytes < 1:
        raise RelationError(f"splits need a task and a byte: got {target_tasks} tasks, {max_bytes} bytes")
    # An empty row group counts as a byte, since opening it costs something.
    weights = [[max(1, size) for size in footer.group_bytes] for footer in footers]
    total = sum(map(sum, weights))
    if total == 0:
        return []
    tasks = max(target_tasks, -(-total // max_bytes))
    shares: dict[int, dict[int, list[int]]] = {}
    before = 0
    for number, sizes in enumerate(weights):
        for group, size in enumerate(sizes):
            task = (2 * before + size) * tasks // (2 * total)  # task in whose share the middle of the row group lies
            shares.setdefault(task, {}).setdefault(number, []).append(group)
            before += size
    return [
        tuple(_slice(footers[number], groups) for number, groups in files.items())
        for _, files in sorted(shares.items())
    ]


def _slice(footer: FileFooter, groups: Sequence[int]) -> FileSlice:
    return FileSlice(footer.path, footer.size, footer.modified_ms, row_groups=tuple(groups), constants=footer.constants)
