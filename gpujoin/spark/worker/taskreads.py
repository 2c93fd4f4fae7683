"""The files of each task of a stage, packed so that a task unpacks only its own.

For example two tasks that divide the files ``a`` and ``b`` of scan 0, and both read ``c`` of scan 1::

    reads     ({0: (a,), 1: (c,)}, {0: (b,), 1: (c,)})
    packed    (bytes of (a,), bytes of (c,), bytes of (b,))
    tasks     (((0, 0), (1, 1)), ((0, 2), (1, 1)))
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpujoin.model.files import FileSlice

Reads: TypeAlias = Mapping[int, tuple[FileSlice, ...]]
"""The slices that a task reads, by the index of the scan."""

_FAST = 1


@dataclass(frozen=True)
class TaskReads:
    """What the tasks of a stage read."""

    packed: tuple[bytes, ...]
    """Pickled and deflated slices of files, of which several tasks may read the same."""
    tasks: tuple[tuple[tuple[int, int], ...], ...]
    """For each task the index of each scan, and the number of what it reads in ``packed``."""

    @classmethod
    def from_reads(cls, reads: Sequence[Reads]) -> TaskReads:
        """Pack what each task reads; the same tuple in several of them is packed once."""
        packed: list[bytes] = []
        numbers: dict[int, int] = {}
        tasks = []
        for reads_of_task in reads:
            task = []
            for index, slices in reads_of_task.items():
                if id(slices) not in numbers:
                    numbers[id(slices)] = len(packed)
                    packed.append(zlib.compress(pickle.dumps(slices), _FAST))
                task.append((index, numbers[id(slices)]))
            tasks.append(tuple(task))
        return cls(tuple(packed), tuple(tasks))

    def __len__(self) -> int:
        """How many tasks there are."""
        return len(self.tasks)

    def __getitem__(self, task: int) -> Reads:
        """Unpack what one task reads."""
        return {
            index: pickle.loads(zlib.decompress(self.packed[number]))  # noqa: S301  # the driver's own bytes
            for index, number in self.tasks[task]
        }
