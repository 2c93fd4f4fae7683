"""What islands of TPC-H ask of a device, counted under the stand-ins: launches, library calls, waits and bytes.

``python -m tests.backends.cudf.counters`` prints the counts at scale 0.01 as JSON; with ``--write`` they become those
that ``test_counters.py`` holds later versions to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCALE = 0.01
LINEITEM_ROWS = 60_175
QUERIES = ("q1", "q3", "q5", "q6", "q18")
COMMITTED = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Counts:
    """What a second run of an island asks of the device.

    Attributes
    ----------
    operations : int
        Array operations, each a launch of one of CuPy's kernels.
    operation_bytes : int
        Bytes that these read and write, for each row of lineitem.
    launches : int
        Launches of gpujoin's own kernels.
    calls : int
        Calls of pylibcudf.
    waits : int
        Waits for the stream.
    uploaded, downloaded : int
        Bytes copied to and from the device, files left out.
    """

    operations: int
    operation_bytes: int
    launches: int
    calls: int
    waits: int
    uploaded: int
    downloaded: int


def measure(name: str) -> Counts:
    """Run an island twice, and count the second time. The stand-ins must be installed."""
    from benchmarks.data import tpch_directory
    from benchmarks.pipeline.tpch import QUERIES as TREES
    from gpujoin.engine.devicetables import device_of
    from gpujoin.engine.pipeline import run
    from tests.backends.cudf.libraries import record
    from tests.kernels.emulator.arrays import operations

    tree = TREES[name].tree(tpch_directory(SCALE)).relation
    rows = [0, 0]
    with counted_launches() as launches:
        for turn in range(2):
            record.calls.clear()
            record.copied.clear()
            record.synchronized = operations.launches = operations.nbytes = launches[0] = 0
            rows[turn] = sum(batch.num_rows for batch in run(tree, device=device_of("gpu")))
    assert rows[0] == rows[1] > 0
    return Counts(
        operations.launches, operations.nbytes // LINEITEM_ROWS, launches[0], sum(record.calls.values()),
        record.synchronized, record.copied["up"], record.copied["down"],
    )  # fmt: skip


@contextmanager
def counted_launches() -> Iterator[list[int]]:
    """Count launches of own kernels, in the only element of a list."""
    from tests.backends.cudf.libraries.plugin import KernelDevice

    launch, count = KernelDevice.launch, [0]

    def counting(device: Any, *arguments: Any, **named: Any) -> None:
        count[0] += 1
        launch(device, *arguments, **named)

    KernelDevice.launch = counting  # type: ignore[assignment, method-assign]
    try:
        yield count
    finally:
        KernelDevice.launch = launch  # type: ignore[method-assign]


def main() -> None:
    """Print the counts, or write them."""
    from tests.backends.cudf.libraries.plugin import install

    install()
    text = json.dumps({name: asdict(measure(name)) for name in QUERIES}, indent=1)
    if "--write" in sys.argv[1:]:
        COMMITTED.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
