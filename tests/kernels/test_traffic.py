"""What kernels ask of memory, as counted by the emulator, against the table of the benchmark's page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gpujoin.errors import KernelArgumentError
from gpujoin.launch.device import ModuleSpec
from gpujoin.launch.keys import BLOCK_THREADS
from gpujoin.launch.source import kernel_directory
from tests.kernels import traffic
from tests.kernels.conftest import MakeDevice
from tests.kernels.emulator.memory import Traffic
from tests.kernels.traffic import Counted

SOURCE = """
using u64 = unsigned long long;
extern "C" __global__ void move(const u64* from, const ulonglong2* pairs, u64* to, unsigned* counter, u64 stride)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const ulonglong2 pair = pairs[i];
    to[i] = from[i * stride] + pair.x + pair.y;
    atomicAdd(counter, 1u);
}
"""


def moved(make_device: MakeDevice, stride: int) -> dict[int, Traffic]:
    """Two blocks of 256 threads, each of which reads 8 and 16 bytes, writes 8 and changes 4."""
    device = make_device({"move.cu": SOURCE}, count_traffic=True)
    rows = 2 * BLOCK_THREADS
    arguments = [
        device.zeros(rows * stride, np.uint64), device.zeros((rows, 2), np.uint64), device.empty(rows, np.uint64),
        device.zeros(1, np.uint32), np.uint64(stride),
    ]  # fmt: skip
    device.launch(device.kernel(ModuleSpec("move.cu"), "move"), 2, BLOCK_THREADS, arguments)
    (launched,) = device.counted
    assert launched.name == "move"
    return {position: arrays[0] for position, arrays in launched.traffic.items()}


@pytest.mark.parametrize(("stride", "sectors"), [(1, 8), (2, 16), (4, 32), (16, 32)])
def test_what_lanes_ask_for_together_is_one_request(make_device: MakeDevice, stride: int, sectors: int) -> None:
    counted = moved(make_device, stride)
    warps, threads = 16, 512
    reads = counted[0].reads
    assert (reads.accesses, reads.bytes, reads.requests) == (threads, 8 * threads, warps)
    assert reads.sectors == warps * sectors
    assert reads.thread_sectors == threads
    assert counted[0].writes.accesses == counted[0].atomics.accesses == 0
    # 16 bytes are one access, and a warp asks for 16 sectors of them.
    pairs = counted[1].reads
    assert (pairs.accesses, pairs.bytes, pairs.requests, pairs.sectors) == (threads, 16 * threads, warps, 16 * warps)
    assert counted[2].writes.sectors == 8 * warps
    assert (counted[3].atomics.requests, counted[3].atomics.sectors, counted[3].distinct_sectors) == (warps, warps, 1)


def test_nothing_is_counted_unless_asked_for(make_device: MakeDevice) -> None:
    device = make_device({"move.cu": SOURCE})
    with pytest.raises(KernelArgumentError):
        device.launch(device.kernel(ModuleSpec("move.cu"), "move"), 1, 32, [])
    assert device.counted == []


def test_every_kernel_asks_for_what_the_page_says(emulator_cache: Path) -> None:
    written, counted = traffic.written(), dict(traffic.counted(emulator_cache))
    assert written.keys() == counted.keys()
    wrong = {what: (written[what], found) for what, found in counted.items() if not found.is_near(written[what])}
    assert not wrong, "python -m tests.kernels.traffic writes the table anew"


def test_every_kernel_of_the_package_is_on_the_page() -> None:
    """All but those of ``machine.cu``, which measure accesses that are known."""
    sources = (
        path for path in Path(str(kernel_directory())).iterdir() if path.suffix == ".cu" and path.name != "machine.cu"
    )
    entry = re.compile(r"__global__(?:\s+__launch_bounds__\([^)]*\))?\s+void\s+(\w+)")
    kernels = {name for path in sources for name in entry.findall(path.read_text(encoding="utf-8"))}
    assert len(kernels) > 40
    assert {name for name, _ in traffic.written()} == kernels


def test_a_kernel_that_asks_for_more_is_noticed() -> None:
    """Two loads of 8 bytes in place of one of 16, a second sector, a request more."""
    right = traffic.written()["unique_probe", "8-byte keys, all match"]
    for wrong in (
        Counted(right.asked_bytes, right.requests + 1, right.sector_bytes),
        Counted(right.asked_bytes, right.requests, right.sector_bytes + 4),
        Counted(right.asked_bytes + 4, right.requests, right.sector_bytes),
    ):
        assert not wrong.is_near(right)


def test_probes_of_hash_tables_are_those_of_the_prediction() -> None:
    """Sectors that a probe reads beside its key and 4 bytes of result: of the table, and of the key it compares."""
    written = traffic.written()
    for key_bytes, hit, miss in ((4, 1.06, 1.25), (8, 2.06, 1.25), (16, 2.06, 1.25)):
        for case, sectors in (("all match", hit), ("none matches", miss)):
            found = written["unique_probe", f"{key_bytes}-byte keys, {case}"]
            assert (found.sector_bytes - key_bytes - 4) / 32 == pytest.approx(sectors, rel=0.03), (key_bytes, case)


def test_probes_of_sets_are_those_of_the_prediction() -> None:
    """A sector holds 8 or 4 keys: hardly any search leaves the first one."""
    written = traffic.written()
    for key_bytes, hit, miss in ((4, 1.01, 1.06), (8, 1.05, 1.23)):
        for case, sectors in (("all match", hit), ("none matches", miss)):
            found = written["set_probe", f"{key_bytes}-byte keys, {case}"]
            assert (found.sector_bytes - key_bytes - 4) / 32 == pytest.approx(sectors, rel=0.02), (key_bytes, case)
