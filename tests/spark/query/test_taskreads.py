"""What tasks read travels packed, and once where several tasks read the same."""

from __future__ import annotations

import pickle

from gpujoin.model.files import FileSlice
from gpujoin.spark.worker.taskreads import TaskReads


def test_each_task_unpacks_what_it_reads() -> None:
    shared = (FileSlice("c", 3, 7, constants=(None, "x")),)
    reads = [{0: (FileSlice(f"part-{n}", n, 5, byte_range=(0, n)),) * 2, 1: shared, 2: ()} for n in range(50)]
    packed = pickle.loads(pickle.dumps(TaskReads.from_reads(reads)))  # noqa: S301
    assert len(packed) == len(reads)
    assert [packed[n] for n in range(50)] == reads
    assert len(packed.packed) == 52
