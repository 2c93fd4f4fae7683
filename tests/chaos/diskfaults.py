"""Runs work of the engine under faults of the disk; a program, since the C library is replaced before it starts.

Run as ``LD_PRELOAD=disk.so python -m tests.chaos.diskfaults SEED FAULTS FOLDER WORK``; prints the count as JSON.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import json
import random
import sys
from pathlib import Path

import pyarrow as pa

from tests.chaos.outcomes import Outcomes
from tests.chaos.works import WORKS, nothing

OPEN, WRITE, READ = 1, 2, 4
CODES = {
    "ENOSPC": (errno.ENOSPC, OPEN | WRITE),
    "EIO": (errno.EIO, WRITE),
    "EIO on reading": (errno.EIO, READ),
    "EROFS": (errno.EROFS, OPEN),
    "EDQUOT": (errno.EDQUOT, WRITE),
    "ENFILE": (errno.ENFILE, OPEN),
    "short writes and reads": (0, WRITE | READ),
}
"""Errors of the system, and the calls that may give them; a short write is none, it writes half of what was asked."""


def main(seed: int, faults: int, folder: Path, name: str) -> None:
    """Inject so many faults into one kind of work, and print what became of them."""
    library = ctypes.CDLL(None)
    library.disk_fault.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_int)
    library.disk_calls.restype = ctypes.c_long
    dice, outcomes = random.Random(seed), Outcomes()
    work = WORKS[name](seed)
    expected = work.run(folder, nothing)
    counts = {}
    for told, (code, operations) in CODES.items():
        library.disk_fault(str(folder).encode(), operations, code, 0, 0)
        work.run(folder, nothing)
        counts[told] = library.disk_calls()
        assert counts[told], f"{name} makes no call of the kind that is to fail: {told}"
    for number in range(faults):
        told = dice.choice(list(CODES))
        (code, operations), calls = CODES[told], counts[told]
        at, lasting = dice.randint(1, calls), dice.random() < 0.4

        def run(at: int = at, code: int = code, operations: int = operations, lasting: bool = lasting) -> pa.Table:
            library.disk_fault(str(folder).encode(), operations, code, at, lasting)
            try:
                return work.run(folder, nothing)
            finally:
                library.disk_fault(b"", 0, 0, 0, 0)

        context = f"seed {seed}, fault {number}: {name}, {told} at call {at} of {calls}{' and later' * lasting}"
        outcomes.judge(run, expected, context)
        left = [str(path) for path in folder.rglob("*")]
        if left:
            outcomes.problems.append(f"{context}: left behind: {left[:3]}")
            break
    print(json.dumps(dataclasses.asdict(outcomes)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
