"""What the emulator catches, and what it lets pass: each wrong kernel beside the right one it is one edit away from."""

from __future__ import annotations

import numpy as np
import pytest

from gpujoin.launch.device import ModuleSpec
from tests.kernels.conftest import MakeDevice
from tests.kernels.emulator import EmulationError
from tests.kernels.emulator.arrays import UNSET_BYTE, DeviceArray, DeviceModule

N = 256
SPEC = ModuleSpec("case.cu")

REVERSE = """
extern "C" __global__ void run(const int* in, int* out, int n) {
    __shared__ int tile[128];
    const int i = blockIdx.x * 128 + threadIdx.x;
    tile[threadIdx.x] = in[i];
    __syncthreads();
    out[i] = tile[127 - threadIdx.x];
}
"""
REVERSE_WARP = REVERSE.replace("__syncthreads();", "__syncwarp();").replace("127 - threadIdx.x", "threadIdx.x ^ 31")
REUSE = """
extern "C" __global__ void run(const int* in, int* out, int n) {
    __shared__ int one;
    int sum = 0;
    for (int step = 0; step < 4; ++step) {
        if (threadIdx.x == step) one = in[step];
        __syncthreads();
        sum += one;
        __syncthreads();  // before the next write
    }
    out[blockIdx.x * 128 + threadIdx.x] = sum;
}
"""
PLAIN = """
extern "C" __global__ void run(const int* in, int* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i];
}
"""
EARLY = """
extern "C" __global__ void run(const int* in, int* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    const bool inside = threadIdx.x != 77;
    if (inside) out[i] = in[i];
    __syncthreads();
    if (!inside) out[i] = 0;
}
"""
COUNT = """
extern "C" __global__ void run(const int* in, int* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    out[i] = in[i];
    if (in[i] % 2 == 0) atomicAdd(out + n, 1);
}
"""
DYNAMIC = """
extern __shared__ unsigned char raw[];
extern "C" __global__ void run(const int* in, int* out, int n) {
    int* tile = reinterpret_cast<int*>(raw);
    const int i = blockIdx.x * 128 + threadIdx.x;
    tile[threadIdx.x] = in[i];
    __syncthreads();
    out[i] = tile[127 - threadIdx.x];
}
"""
HELPER = """
static __device__ void put(int* tile, int at, int value) { tile[at] = value; }
extern "C" __global__ void run(const int* in, int* out, int n) {
    __shared__ int tile[128];
    __shared__ int other[128];
    const int i = blockIdx.x * 128 + threadIdx.x;
    put(other, threadIdx.x, 1);
    put(tile, threadIdx.x, in[i]);
    out[i] = tile[threadIdx.x] + other[threadIdx.x];
}
"""
MESSAGE = """
extern "C" __global__ void run(const int* in, int* out, int n) {
    __shared__ int data;
    __shared__ int flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x == 5) {
        data = in[5];
        __threadfence_block();  // release
        atomicExch(&flag, 1);
    }
    if (threadIdx.x == 100) {
        while (atomicAdd(&flag, 0) == 0) {}
        __threadfence_block();  // acquire
        out[blockIdx.x] = data;
    }
}
"""
LAST_BLOCK = """
extern "C" __global__ void run(int* parts, int* out, int n, unsigned* ticket) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = (int)blockIdx.x;
        __threadfence();  // release
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
        __threadfence();  // acquire
    }
    __syncthreads();
    if (last && threadIdx.x < gridDim.x) atomicAdd(out, parts[threadIdx.x]);
}
"""
BYTES = """
extern "C" __global__ void run(const unsigned char* in, unsigned char* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    out[i] = in[i];
}
"""
MASKED = """
extern "C" __global__ void run(const int* in, int* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    int sum = 0;
    if (threadIdx.x % 32 < 16) sum = __popc(__ballot_sync(0x0000ffffu, in[i] % 2));
    out[i] = sum;
}
"""
VECTOR = """
extern "C" __global__ void run(const int4* in, int* out, int n) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    const int4 v = in[i];
    out[i] = v.x + v.w;
}
"""


def run(make_device: MakeDevice, text: str, *, seed: int = 1, shared_bytes: int = 0, block: int = 128) -> np.ndarray:
    device = make_device({"case.cu": text}, seed=seed)
    kernel = device.kernel(SPEC, "run")
    given = device.upload(np.arange(N, dtype=np.int32))
    out = device.empty(N + 1, np.int32)
    out[N] = 0
    device.launch(kernel, N // block, block, [given, out, np.int32(N)], shared_bytes=shared_bytes)
    return out.get()


UNORDERED = ("race", "unwritten")
"""What an access that nothing orders after a write is, depending on which of them the order of threads puts first."""


def caught(make_device: MakeDevice, text: str, kind: str | tuple[str, ...], **options: int) -> str:
    """The wrong kernel fails with an error of this kind whatever the seed; gives the message."""
    kinds = (kind,) if isinstance(kind, str) else kind
    message = ""
    for seed in range(4):
        with pytest.raises(EmulationError) as failure:
            run(make_device, text, seed=seed, **options)
        assert failure.value.kind in kinds, str(failure.value)
        message = str(failure.value)
    return message


def without(text: str, piece: str, instead: str = "") -> str:
    assert piece in text
    return text.replace(piece, instead, 1)


def test_clean_kernels_pass_and_compute(make_device: MakeDevice) -> None:
    rows = np.arange(N)
    blockwise = rows.reshape(2, 128)
    for seed in range(5):
        assert (run(make_device, REVERSE, seed=seed)[:N] == blockwise[:, ::-1].ravel()).all()
        assert (run(make_device, REVERSE_WARP, seed=seed)[:N] == (rows ^ 31)).all()
        assert (run(make_device, REUSE, seed=seed)[:N] == 6).all()
        assert (run(make_device, PLAIN, seed=seed)[:N] == rows).all()
        assert run(make_device, COUNT, seed=seed)[N] == N // 2
        assert (run(make_device, DYNAMIC, seed=seed, shared_bytes=512)[:N] == blockwise[:, ::-1].ravel()).all()
        assert (run(make_device, HELPER, seed=seed)[:N] == rows + 1).all()
        assert (run(make_device, MASKED, seed=seed)[:N] == np.where(rows % 32 < 16, 8, 0)).all()


def test_a_removed_syncthreads_is_caught(make_device: MakeDevice) -> None:
    assert "case.cu:7" in caught(make_device, without(REVERSE, "__syncthreads();"), UNORDERED)
    caught(make_device, without(DYNAMIC, "__syncthreads();"), UNORDERED, shared_bytes=512)


def test_a_removed_barrier_before_reuse_is_caught(make_device: MakeDevice) -> None:
    caught(make_device, without(REUSE, "__syncthreads();  // before the next write"), UNORDERED)


def test_a_removed_syncwarp_is_caught(make_device: MakeDevice) -> None:
    caught(make_device, without(REVERSE_WARP, "__syncwarp();"), UNORDERED)


def test_a_shuffle_or_a_vote_is_no_memory_barrier(make_device: MakeDevice) -> None:
    for vote in ("__ballot_sync(~0u, 1);", "__shfl_sync(~0u, 1, 0);", "__match_any_sync(~0u, 1);"):
        caught(make_device, without(REVERSE_WARP, "__syncwarp();", vote), UNORDERED)


def test_a_syncwarp_of_too_few_lanes_is_caught(make_device: MakeDevice) -> None:
    halves = without(REVERSE_WARP, "__syncwarp();", "__syncwarp(threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u);")
    caught(make_device, halves, UNORDERED)


def test_a_syncwarp_does_not_order_two_warps(make_device: MakeDevice) -> None:
    caught(make_device, without(REVERSE, "__syncthreads();", "__syncwarp();"), UNORDERED)


def test_a_syncwarp_of_half_a_warp_orders_that_half(make_device: MakeDevice) -> None:
    halves = without(REVERSE_WARP, "__syncwarp();", "__syncwarp(threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u);")
    within = without(halves, "threadIdx.x ^ 31", "threadIdx.x ^ 15")
    assert (run(make_device, within)[:N] == (np.arange(N) ^ 15)).all()


@pytest.mark.parametrize(
    "barrier",
    [
        "__syncthreads();",
        "if (__syncthreads_count(1) < 0) return;",
        "__syncthreads_or(0);",
        "__syncthreads_and(1);",
    ],
)
def test_a_barrier_that_some_threads_miss_is_caught(make_device: MakeDevice, barrier: str) -> None:
    returned = f"    if (!inside) return;\n    {barrier}"
    caught(make_device, without(EARLY, "__syncthreads();", returned), "divergent barrier")


def test_a_barrier_in_a_branch_is_caught(make_device: MakeDevice) -> None:
    branches = "    if (inside)\n        __syncthreads();\n    else\n        __syncthreads();"
    message = caught(make_device, without(EARLY, "__syncthreads();", branches), "divergent barrier")
    assert "case.cu:" in message
    caught(make_device, without(EARLY, "__syncthreads();", "if (inside) __syncthreads();"), "divergent barrier")


def test_a_warp_function_that_some_lanes_miss_is_caught(make_device: MakeDevice) -> None:
    caught(make_device, without(MASKED, "0x0000ffffu", "0xffffffffu"), "divergent warp")
    caught(make_device, without(MASKED, "0x0000ffffu", "0x00007fffu"), "divergent warp")
    caught(make_device, without(MASKED, "0x0000ffffu", "threadIdx.x % 2 ? 0xffffu : 0x5555u"), "divergent warp")


def test_out_of_bounds_global_access_is_caught(make_device: MakeDevice) -> None:
    assert "out of bounds" in caught(make_device, without(PLAIN, "= in[i]", "= in[i + 1]"), "out of bounds")
    caught(make_device, without(PLAIN, "out[i] =", "out[i - 1] ="), "out of bounds")
    caught(make_device, without(PLAIN, "out[i] =", "out[i + 2] ="), "out of bounds")
    caught(make_device, without(PLAIN, "out[i] =", "out[i * 4096] ="), "out of bounds")
    caught(make_device, without(PLAIN, "out[i] =", "((int*)nullptr)[i] ="), ("undefined", "out of bounds"))


def test_a_removed_bounds_check_is_caught(make_device: MakeDevice) -> None:
    unchecked = without(without(PLAIN, "if (i < n) "), "blockIdx.x * blockDim.x", "(blockIdx.x + 1) * blockDim.x")
    caught(make_device, unchecked, "out of bounds")


def test_a_slice_bounds_the_kernel(make_device: MakeDevice) -> None:
    device = make_device({"case.cu": PLAIN})
    whole = device.upload(np.arange(N, dtype=np.int32))
    out = device.zeros(N, np.int32)
    kernel = device.kernel(SPEC, "run")
    device.launch(kernel, 1, 64, [whole[10:74], out[:64], np.int32(64)])
    assert (out.get()[:64] == np.arange(10, 74)).all()
    with pytest.raises(EmulationError, match="out of bounds"):
        device.launch(kernel, 1, 64, [whole[10:73], out[:64], np.int32(64)])
    with pytest.raises(EmulationError, match="out of bounds"):
        device.launch(kernel, 1, 64, [whole[10:74], out[:63], np.int32(64)])


def test_out_of_bounds_shared_access_is_caught(make_device: MakeDevice) -> None:
    caught(
        make_device,
        without(HELPER, "put(tile, threadIdx.x,", "put(tile, threadIdx.x + 1,"),
        ("out of bounds", "unwritten"),
    )
    caught(
        make_device,
        without(HELPER, "put(tile, threadIdx.x,", "put(tile, (int)threadIdx.x - 1,"),
        ("out of bounds", "unwritten"),
    )
    caught(make_device, without(REVERSE, "tile[threadIdx.x] =", "tile[threadIdx.x + 1] ="), ("undefined", "race"))
    caught(make_device, DYNAMIC, "out of bounds", shared_bytes=508)


def test_reading_unwritten_memory_is_caught(make_device: MakeDevice) -> None:
    caught(make_device, without(REVERSE, "tile[threadIdx.x] = in[i];"), "unwritten")
    caught(make_device, without(PLAIN, "out[i] = in[i]", "out[i] += in[i]"), "unwritten")
    half = without(DYNAMIC, "tile[threadIdx.x] =", "if (threadIdx.x < 64) tile[threadIdx.x] =")
    caught(make_device, half, "unwritten", shared_bytes=512)


def test_shared_memory_does_not_outlive_its_block(make_device: MakeDevice) -> None:
    first_block_only = without(REVERSE, "tile[threadIdx.x] =", "if (blockIdx.x == 0) tile[threadIdx.x] =")
    caught(make_device, first_block_only, "unwritten")


def test_downloading_what_was_never_written_is_caught(make_device: MakeDevice) -> None:
    device = make_device({"case.cu": PLAIN})
    out = device.empty(N, np.int64)
    with pytest.raises(EmulationError, match=f"{N} of {N} items"):
        device.download(out)
    out[3:] = 7
    with pytest.raises(EmulationError, match=f"3 of {N} items were never written, the first at 0"):
        device.download(out)
    out[:3] = 1
    assert device.download(out).sum() == 3 + 7 * (N - 3)


def test_what_the_host_has_written_may_be_read(make_device: MakeDevice) -> None:
    device = make_device({"case.cu": PLAIN})
    given, out = device.empty(N, np.int32), device.empty(N, np.int32)
    given[: N // 2] = 5
    kernel = device.kernel(SPEC, "run")
    device.launch(kernel, 1, N // 2, [given, out, np.int32(N)])
    assert (device.download(out[: N // 2]) == 5).all()
    with pytest.raises(EmulationError, match="unwritten"):
        device.launch(kernel, 2, N // 2, [given, out, np.int32(N)])


def test_a_plain_update_in_place_of_an_atomic_one_is_caught(make_device: MakeDevice) -> None:
    caught(make_device, without(COUNT, "atomicAdd(out + n, 1)", "out[n] += 1"), "race")


def test_blocks_of_one_launch_are_concurrent(make_device: MakeDevice) -> None:
    one_thread = "if (i < n && threadIdx.x == 0) out[0] = "
    caught(make_device, without(PLAIN, "if (i < n) out[i] =", one_thread), "race")
    reader = "if (threadIdx.x == 0) { out[blockIdx.x] = 1; out[N0 + blockIdx.x] = out[1 - blockIdx.x]; }"
    reader = reader.replace("N0", "128")
    caught(make_device, without(PLAIN, "if (i < n) out[i] = in[i];", reader), UNORDERED)


def test_launches_come_one_after_another(make_device: MakeDevice) -> None:
    device = make_device({"case.cu": PLAIN})
    given, out = device.upload(np.arange(N, dtype=np.int32)), device.empty(N, np.int32)
    kernel = device.kernel(SPEC, "run")
    for _ in range(3):
        device.launch(kernel, N // 32, 32, [given, out, np.int32(N)])
        device.launch(kernel, N // 64, 64, [out, given, np.int32(N)])
    assert (given.get() == np.arange(N)).all()


def test_a_plain_read_beside_atomics_is_a_race_and_a_volatile_one_is_not(make_device: MakeDevice) -> None:
    volatile = without(COUNT, "if (in[i]", "if (*(volatile int*)(out + n) >= 0 && in[i]")
    assert run(make_device, volatile)[N] == N // 2
    caught(make_device, without(COUNT, "if (in[i]", "if (out[n] >= 0 && in[i]"), "race")


def test_messages_need_both_fences(make_device: MakeDevice) -> None:
    for seed in range(5):
        run(make_device, MESSAGE, seed=seed)
    caught(make_device, without(MESSAGE, "__threadfence_block();  // release"), UNORDERED)
    caught(make_device, without(MESSAGE, "__threadfence_block();  // acquire"), UNORDERED)


@pytest.mark.parametrize("fence", ["", "release", "acquire"])
def test_the_last_block_may_read_what_others_have_released(make_device: MakeDevice, fence: str) -> None:
    text = without(LAST_BLOCK, f"__threadfence();  // {fence}") if fence else LAST_BLOCK
    device = make_device({"case.cu": text})
    parts, out, ticket = device.empty(16, np.int32), device.zeros(1, np.int32), device.zeros(1, np.uint32)
    kernel = device.kernel(SPEC, "run")
    if fence:
        with pytest.raises(EmulationError, match=r"race|unwritten"):
            device.launch(kernel, 16, 64, [parts, out, np.int32(16), ticket])
    else:
        device.launch(kernel, 16, 64, [parts, out, np.int32(16), ticket])
        assert out.get()[0] == 120


def test_neighbouring_bytes_are_told_apart(make_device: MakeDevice) -> None:
    device = make_device({"case.cu": BYTES})
    given, out = device.upload(np.arange(N, dtype=np.uint8)), device.empty(N, np.uint8)
    device.launch(device.kernel(SPEC, "run"), 2, 128, [given, out, np.int32(N)])
    assert (device.download(out) == given.get()).all()
    device = make_device({"case.cu": without(BYTES, "out[i]", "out[i | 1]")})
    given, out = device.upload(np.arange(N, dtype=np.uint8)), device.empty(N, np.uint8)
    with pytest.raises(EmulationError, match="race"):
        device.launch(device.kernel(SPEC, "run"), 2, 128, [given, out, np.int32(N)])


def test_a_misaligned_vector_access_is_caught(make_device: MakeDevice) -> None:
    device = make_device({"case.cu": VECTOR})
    given, out = device.upload(np.arange(130, dtype=np.int32)), device.empty(32, np.int32)
    kernel = device.kernel(SPEC, "run")
    device.launch(kernel, 1, 32, [given[:128], out, np.int32(32)])
    assert (out.get() == np.arange(32) * 8 + 3).all()
    with pytest.raises(EmulationError) as failure:
        device.launch(kernel, 1, 32, [given[1:129], out, np.int32(32)])
    assert failure.value.kind in ("misaligned", "undefined")


def test_writing_to_const_is_caught(make_device: MakeDevice) -> None:
    caught(make_device, without(PLAIN, "out[i] =", "const_cast<int*>(in)[i] = 1 +"), "const")


def test_undefined_behaviour_is_caught(make_device: MakeDevice) -> None:
    assert "case.cu:4" in caught(make_device, without(PLAIN, "= in[i]", "= in[i] << n"), "undefined")
    caught(make_device, without(PLAIN, "= in[i]", "= in[i] + 2147483647"), "undefined")


def test_an_endless_loop_is_caught(make_device: MakeDevice) -> None:
    device = make_device(
        {"case.cu": without(PLAIN, "if (i < n)", "while (*(volatile int*)in >= 0)")}, step_limit=10_000
    )
    given, out = device.upload(np.arange(N, dtype=np.int32)), device.empty(N, np.int32)
    with pytest.raises(EmulationError) as failure:
        device.launch(device.kernel(SPEC, "run"), 1, 32, [given, out, np.int32(N)])
    assert failure.value.kind == "endless"
    for call in ("__shfl_sync(~0u, i, 0)", "__syncthreads_or(1)"):
        text = without(PLAIN, "if (i < n)", f"while ({call} >= 0)")
        device = make_device({"case.cu": text.replace("out[i] = in[i];", "{}")}, step_limit=10_000)
        with pytest.raises(EmulationError) as failure:
            device.launch(
                device.kernel(SPEC, "run"),
                1,
                32,
                [device.zeros(1, np.int32), device.zeros(1, np.int32), np.int32(0)],
            )
        assert failure.value.kind == "endless"


def test_a_trap_is_told(make_device: MakeDevice) -> None:
    assert "i < 10" in caught(make_device, without(PLAIN, "if (i < n)", "assert(i < 10);\n if (i < n)"), "trap")


def test_the_seed_decides_the_order(make_device: MakeDevice) -> None:
    ticket = without(COUNT, "out[i] = in[i];", "out[i] = atomicAdd(out + n, 1);")
    first, again, other = (run(make_device, ticket, seed=seed)[:N] for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert (np.diff(first) < 0).any(), "threads ran in the order of their numbers"


def test_interleavings_of_atomics_are_explored(make_device: MakeDevice) -> None:
    """Two threads that take turns at a lock-free maximum meet each other's updates for some seed."""
    text = """
extern "C" __global__ void run(const int* in, int* out, int n) {
    int seen = atomicAdd(out + n, 0);
    for (;;) {
        const int before = atomicCAS(out + n, seen, seen + 1);
        if (before == seen) break;
        seen = before;
        out[threadIdx.x] = 1;  // met another thread
    }
}
"""
    met = 0
    for seed in range(5):
        device = make_device({"case.cu": text}, seed=seed)
        out = device.zeros(65, np.int32)
        device.launch(device.kernel(SPEC, "run"), 1, 64, [device.zeros(1, np.int32), out, np.int32(64)])
        assert out.get()[64] == 64
        met += int(out.get()[:64].sum())
    assert met > 0


WIDE = """
struct Row { unsigned long long a, b, c; };
extern "C" __global__ void run(const Row* in, Row* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { const Row row = in[i]; out[i] = row; }
}
"""
LOCAL = """
__constant__ int weights[4] = {1, 10, 100, 1000};
static __device__ __noinline__ int weigh(const int* local) {
    int sum = 0;
    for (int j = 0; j < 4; ++j) sum += local[j] * weights[j];
    return sum;
}
extern "C" __global__ void run(const int* in, int* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    int local[4];
    for (int j = 0; j < 4; ++j) local[j] = in[i] & j;
    out[i] = weigh(local);
}
"""
SHARED_LOCAL = """
extern "C" __global__ void run(const int* in, int* out, int n) {
    __shared__ int* volatile mine;
    int local[2] = {in[0], in[1]};
    if (threadIdx.x == 0) mine = local;
    __syncthreads();
    out[blockIdx.x * 128 + threadIdx.x] = mine[in[1]];
}
"""


def test_copies_of_structs_are_seen_whole(make_device: MakeDevice) -> None:
    rows = np.arange(3 * 100, dtype=np.uint64)
    for text, error in (
        (WIDE, ""),
        (without(WIDE, "out[i] = row", "out[i + 1] = row"), "out of bounds"),
        (without(WIDE, "row = in[i]", "row = in[i + 1]"), "out of bounds"),
        (without(WIDE, "out[i] = row", "out[i / 2] = row"), "race"),
    ):
        device = make_device({"case.cu": text})
        given, out = device.upload(rows), device.empty(3 * 100, np.uint64)
        if error:
            with pytest.raises(EmulationError, match=error):
                device.launch(device.kernel(SPEC, "run"), 4, 32, [given, out, np.int32(100)])
        else:
            device.launch(device.kernel(SPEC, "run"), 4, 32, [given, out, np.int32(100)])
            assert (device.download(out) == rows).all()
            with pytest.raises(EmulationError, match="unwritten"):
                device.launch(device.kernel(SPEC, "run"), 4, 32, [device.empty(300, np.uint64), out, np.int32(100)])


def test_local_and_constant_memory_may_be_used_through_pointers(make_device: MakeDevice) -> None:
    rows = np.arange(N)
    wanted = sum((rows & j) * 10**j for j in range(4))
    assert (run(make_device, LOCAL)[:N] == wanted).all()
    written = "    for (int j = 0; j < 4; ++j) local[j]"
    caught(make_device, without(LOCAL, written, "weights[in[i] % 4] = 2;\n" + written), "out of bounds")


def test_local_memory_of_another_thread_is_out_of_reach(make_device: MakeDevice) -> None:
    caught(make_device, SHARED_LOCAL, "foreign local")


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("i8", [1, -1, 0, 2**63 - 1, -(2**63), 2**63 - 1, 2**31, -3]),
        ("u8", [1, 0, 0, 2**64 - 1, 0, 2**63, 2**31, 0]),
        ("i4", [1, -1, 0, 2**31 - 1, -(2**31), 2**31 - 1, 2**31 - 1, -3]),
        ("i1", [1, -1, 0, -1, 0, -1, -1, -3]),
    ],
)
def test_numbers_are_converted_as_ptx_does(target: str, wanted: list[int]) -> None:
    """Out of range they become the nearest integer, where x86 has the least one."""
    values = np.array([1.9, -1.9, np.nan, np.inf, -np.inf, 2.0**63, 2.0**31, -3.0]).view(DeviceArray)
    assert values.astype(target).view(np.ndarray).tolist() == wanted


def test_memory_that_nothing_has_written_holds_poison() -> None:
    made = DeviceModule().empty(3, dtype=np.uint8)
    assert made.view(np.ndarray).tolist() == [UNSET_BYTE] * 3
