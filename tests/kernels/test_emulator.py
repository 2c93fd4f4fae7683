"""The emulated device as a device: arguments, memory, arrays, compilation, the CUDA functions themselves."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from gpujoin.errors import DeviceMemoryError, KernelArgumentError, KernelCompileError
from gpujoin.launch.device import DeviceProperties, ModuleSpec
from tests.kernels.conftest import MakeDevice
from tests.kernels.emulator import EmulatedDevice, EmulationError
from tests.kernels.emulator.compile import why_no_compiler, widen_variables

SPEC = ModuleSpec("case.cu")

COPY = """
#ifndef FACTOR
#define FACTOR 1
#endif
extern "C" __global__ void __launch_bounds__(128) copy(const int* in, int* out, long long n)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * FACTOR;
}
"""
TYPES = """
extern "C" __global__ void types(unsigned char a, short b, unsigned long long c, double d, float e, bool f, double* out)
{
    out[0] = a; out[1] = b; out[2] = (double)c; out[3] = d; out[4] = e; out[5] = f;
}
"""
TABLE = """
extern "C" __global__ void sums(const int* const* columns, unsigned count, int* out)
{
    int sum = 0;
    for (unsigned c = 0; c < count; ++c) sum += columns[c] == nullptr ? 1000 : columns[c][threadIdx.x];
    out[threadIdx.x] = sum;
}
"""
WARP = """
typedef unsigned long long u64;
extern "C" __global__ void warp(const u64* in, u64* out)
{
    const unsigned i = threadIdx.x;
    const u64 v = in[i];
    u64* row = out + i * 24;
    row[0] = __ballot_sync(~0u, v % 3 == 0);
    row[1] = __any_sync(~0u, v == 5);
    row[2] = __all_sync(~0u, v < 1000);
    row[3] = __shfl_sync(~0u, v, 3);
    row[4] = __shfl_sync(~0u, v, 9, 8);
    row[5] = __shfl_up_sync(~0u, v, 2);
    row[6] = __shfl_down_sync(~0u, v, 2, 16);
    row[7] = __shfl_xor_sync(~0u, v, 5);
    row[8] = __match_any_sync(~0u, v % 4);
    row[9] = __reduce_add_sync(~0u, (unsigned)v);
    row[10] = (u64)(long long)__reduce_min_sync(~0u, 3 - (int)v);
    row[11] = __popcll(v) + 100 * __clzll((long long)v) + 10000 * __ffsll((long long)v);
    row[12] = __umul64hi(v << 60, 48);
    row[13] = __brev((unsigned)v);
    row[14] = __byte_perm(0x33221100u, 0x77665544u, 0x7051u);
    row[15] = __funnelshift_l(0x80000001u, 1u, 4);
    row[16] = __syncthreads_count(v % 2 == 0);
    row[17] = __syncthreads_or(v == 7) * 2 + __syncthreads_and(v == 7);
    row[18] = (u64)__double_as_longlong(1.5);
    int same;
    row[19] = __match_all_sync(~0u, v / 1000, &same) + (u64)same;
    row[20] = i % 2 ? __ballot_sync(0xaaaaaaaau, v > 20) : 0;
    row[21] = __shfl_sync(~0u, (int)v - 100, 31) == (int)in[31] - 100;
    row[22] = (u64)(__shfl_down_sync(~0u, 0.5 * (double)v, 1) * 2);
    row[23] = __clz((int)v) + 100 * __popc((unsigned)v) + 10000 * __ffs((int)v);
}
"""
ATOMICS = """
typedef unsigned long long u64;
extern "C" __global__ void atomics(u64* wide, unsigned* narrow, int* sign, float* real)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&wide[0], 1ull << 33);
    atomicMax(&wide[1], (u64)i);
    atomicMin(&wide[2], (u64)i + 3);
    atomicOr(&wide[3], 1ull << (i % 64));
    atomicCAS(&wide[4], 0ull, (u64)i + 1);
    atomicAnd(&narrow[0], ~(1u << (i % 32)));
    atomicXor(&narrow[1], 1u << (i % 31));
    atomicInc(&narrow[2], 9u);
    atomicSub(&narrow[3], 2u);
    atomicAdd(&sign[0], -1);
    atomicMin(&sign[1], -(int)i);
    atomicMax(&sign[2], (int)i - 500);
    atomicAdd(real, 0.5f);
    if (atomicExch(&sign[3], 7) == 7) atomicAdd(&sign[4], 1);
}
"""
GRID = """
extern "C" __global__ void where(unsigned* out)
{
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}
"""


@pytest.fixture
def device(make_device: MakeDevice) -> EmulatedDevice:
    texts = {"copy": COPY, "types": TYPES, "table": TABLE, "warp": WARP, "atomics": ATOMICS, "grid": GRID}
    return make_device({f"{name}.cu": text for name, text in texts.items()})


def test_defines_specialise_and_bounds_hold(device: EmulatedDevice) -> None:
    given, out = device.upload(np.arange(100, dtype=np.int32)), device.empty(100, np.int32)
    kernels = [device.kernel(ModuleSpec("copy.cu", (("FACTOR", factor),)), "copy") for factor in (1, 3)]
    for factor, kernel in zip((1, 3), kernels, strict=True):
        device.launch(kernel, 1, 128, [given, out, np.int64(100)])
        assert (device.download(out) == np.arange(100) * factor).all()
    with pytest.raises(KernelArgumentError, match="launch bound is 128"):
        device.launch(kernels[0], 1, 256, [given, out, np.int64(100)])
    assert device.launches == ["copy", "copy"]


def test_scalars_of_every_width_arrive(device: EmulatedDevice) -> None:
    out = device.empty(6, np.float64)
    given = [np.uint8(200), np.int16(-3), np.uint64(2**53), np.float64(0.1), np.float32(0.5), np.bool_(True)]
    device.launch(device.kernel(ModuleSpec("types.cu"), "types"), 1, 1, [*given, out])
    assert device.download(out).tolist() == [200, -3, 2**53, 0.1, 0.5, 1]


def test_pointer_tables_open_what_they_point_at(device: EmulatedDevice) -> None:
    kernel = device.kernel(ModuleSpec("table.cu"), "sums")
    columns = [device.full(32, value, np.int32) for value in (1, 20)]
    out = device.empty(32, np.int32)
    table = device.pointers([columns[0], None, columns[1]])
    device.launch(kernel, 1, 32, [table, np.uint32(3), out])
    assert (device.download(out) == 1021).all()
    with pytest.raises(EmulationError, match="out of bounds"):
        device.launch(kernel, 1, 32, [table, np.uint32(4), out])
    with pytest.raises(KernelArgumentError, match="points at kind 'p'"):
        device.launch(kernel, 1, 32, [columns[0], np.uint32(3), out])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: np.arange(4, dtype=np.int32)}, "argument 0 does not lie on the emulated device"),
        ({2: 4}, "argument 2 is the Python number 4; pass a NumPy scalar"),
        ({2: np.int32(4)}, "argument 2 is of int32, but the parameter is of kind 'i' and 8 bytes"),
        ({2: np.uint64(4)}, "argument 2 is of uint64"),
        ({2: None}, "argument 2 is None, but the parameter is a scalar"),
        ({1: np.int64(4)}, "argument 1 is the scalar"),
        ({1: "out64"}, "argument 1 is an array of int64, but the parameter points at kind 'i' of 4 bytes"),
        ({1: "floats"}, "argument 1 is an array of float32"),
        ({0: "every other"}, "argument 0 is an array with strides (8,)"),
        ({2: "nothing"}, "takes 3 arguments and was given 2"),
        ({2: "text"}, "argument 2 is a str"),
    ],
)
def test_bad_arguments_are_refused(device: EmulatedDevice, change: dict[int, object], message: str) -> None:
    special = {
        "out64": device.empty(4, np.int64),
        "floats": device.empty(4, np.float32),
        "every other": device.zeros(8, np.int32)[::2],
    }
    args: list[object] = [device.zeros(4, np.int32), device.empty(4, np.int32), np.int64(4)]
    for position, value in change.items():
        args[position] = special.get(value, value) if isinstance(value, str) else value
    args = [value for value in args if not (isinstance(value, str) and value == "nothing")]
    with pytest.raises(KernelArgumentError) as failure:
        device.launch(device.kernel(ModuleSpec("copy.cu"), "copy"), 1, 32, args)
    assert message in str(failure.value)
    assert "kernel copy of copy.cu" in str(failure.value)
    assert device.launches == []


@pytest.mark.parametrize(
    ("grid", "block", "shared"), [(0, 32, 0), (1, 0, 0), (1, 2048, 0), (1, (64, 32), 0), (1, 32, 1 << 20)]
)
def test_bad_extents_are_refused(device: EmulatedDevice, grid: int, block: int, shared: int) -> None:
    args = [device.zeros(4, np.int32), device.empty(4, np.int32), np.int64(4)]
    with pytest.raises(KernelArgumentError):
        device.launch(device.kernel(ModuleSpec("copy.cu"), "copy"), grid, block, args, shared_bytes=shared)


def test_grids_and_blocks_have_three_dimensions(device: EmulatedDevice) -> None:
    out = device.empty(24 * 30, np.uint32)
    device.launch(device.kernel(ModuleSpec("grid.cu"), "where"), (2, 3, 4), (5, 3, 2), [out])
    wanted = np.arange(24)[:, None] * 1000 + np.arange(30)
    assert (device.download(out).reshape(24, 30) == wanted).all()


def test_compile_errors_name_module_and_line(make_device: MakeDevice) -> None:
    device = make_device({"case.cu": COPY.replace("in[i]", "inn[i]"), "none.cu": "int x;"})
    with pytest.raises(KernelCompileError, match=r"(?s)case.cu does not compile.*case.cu:8:.*inn"):
        device.kernel(SPEC, "copy")
    with pytest.raises(KernelCompileError, match=r"none\.cu has no"):
        device.kernel(ModuleSpec("none.cu"), "copy")
    with pytest.raises(KernelCompileError, match=r"missing\.cu"):
        device.kernel(ModuleSpec("missing.cu"), "copy")
    with pytest.raises(KernelCompileError, match="no kernel 'paste'; it has copy"):
        make_device({"case.cu": COPY}).kernel(SPEC, "paste")


@pytest.mark.parametrize(
    "piece",
    ["#include <vector>", "int f() { return __activemask(); }", "int g(int v) { return __shfl(v, 0); }"],
)
def test_what_kernels_must_not_use_does_not_compile(make_device: MakeDevice, piece: str) -> None:
    with pytest.raises(KernelCompileError):
        make_device({"case.cu": piece + COPY}).kernel(SPEC, "copy")


def test_an_edited_source_is_compiled_anew(make_device: MakeDevice) -> None:
    for factor in (2, 5):
        device = make_device({"case.cu": COPY.replace("* FACTOR", f"* {factor}")})
        given, out = device.full(4, 1, np.int32), device.empty(4, np.int32)
        device.launch(device.kernel(SPEC, "copy"), 1, 32, [given, out, np.int64(4)])
        assert device.download(out).tolist() == [factor] * 4


def test_warp_functions(device: EmulatedDevice) -> None:
    v = np.arange(32, dtype=np.uint64) * 3 % 40 + 1
    out = device.empty(32 * 24, np.uint64)
    device.launch(device.kernel(ModuleSpec("warp.cu"), "warp"), 1, 32, [device.upload(v), out])
    got = device.download(out).reshape(32, 24)
    lanes = np.arange(32)

    def bits(flags: np.ndarray) -> int:
        return sum(1 << int(i) for i in np.flatnonzero(flags))

    bare = [int(x) for x in v]
    wanted = [
        np.full(32, bits(v % 3 == 0)),
        np.full(32, int((v == 5).any())),
        np.ones(32),
        np.full(32, v[3]),
        v[lanes // 8 * 8 + 1],
        np.where(lanes < 2, v, v[lanes - 2]),
        np.where(lanes % 16 >= 14, v, v[(lanes + 2) % 32]),
        v[lanes ^ 5],
        np.array([bits(v % 4 == x % 4) for x in bare]),
        np.full(32, v.sum()),
        np.full(32, (3 - int(v.max())) % 2**64, np.uint64),
        np.array([x.bit_count() + 100 * (64 - x.bit_length()) + 10000 * ((x & -x).bit_length()) for x in bare]),
        np.array([((x << 60) % 2**64 * 48) >> 64 for x in bare]),
        np.array([int(f"{x:032b}"[::-1], 2) for x in bare]),
        np.full(32, 0x77005511),
        np.full(32, 0x18),
        np.full(32, int((v % 2 == 0).sum())),
        np.full(32, 2 * int((v == 7).any())),
        np.full(32, 0x3FF8000000000000),
        np.full(32, 0xFFFFFFFF + 1),
        np.where(lanes % 2, bits((v > 20) & (lanes % 2 == 1)), 0),
        np.ones(32),
        np.where(lanes == 31, v, v[(lanes + 1) % 32]),
        np.array([(32 - x.bit_length()) + 100 * x.bit_count() + 10000 * ((x & -x).bit_length()) for x in bare]),
    ]
    for column, values in enumerate(wanted):
        assert (got[:, column] == values.astype(np.uint64)).all(), column


def test_atomics(device: EmulatedDevice) -> None:
    wide = device.upload(np.array([0, 0, 10**6, 0, 0], np.uint64))
    narrow = device.upload(np.array([2**32 - 1, 0, 0, 1000], np.uint32))
    sign, real = device.zeros(5, np.int32), device.zeros(1, np.float32)
    device.launch(device.kernel(ModuleSpec("atomics.cu"), "atomics"), 4, 64, [wide, narrow, sign, real])
    big = device.download(wide).tolist()
    assert big[:4] == [256 << 33, 255, 3, 2**64 - 1]
    assert 1 <= big[4] <= 256
    twisted = 0
    for i in range(256):
        twisted ^= 1 << (i % 31)
    assert device.download(narrow).tolist() == [0, twisted, 256 % 10, 1000 - 512]
    assert device.download(sign).tolist() == [-256, -255, 0, 7, 255]
    assert device.download(real).tolist() == [128.0]


def test_memory_is_limited_counted_and_given_back(make_device: MakeDevice) -> None:
    device = make_device(memory_limit=1000)
    first = device.zeros(100, np.int64)
    with pytest.raises(DeviceMemoryError, match="400 bytes asked for, 200 free"):
        device.empty(100, np.int32)
    del first
    gc.collect()
    assert device.arena.used == 0
    assert device.download(device.full(200, 3, np.int32)).sum() == 600
    assert device.arena.peak == 800


def test_freed_memory_comes_back_unwritten(make_device: MakeDevice) -> None:
    device = make_device({"case.cu": COPY})
    for _ in range(3):
        used = device.zeros(64, np.int32)
        del used
        fresh, out = device.empty(64, np.int32), device.empty(64, np.int32)
        with pytest.raises(EmulationError, match="unwritten"):
            device.launch(device.kernel(SPEC, "copy"), 1, 64, [fresh, out, np.int64(64)])
        del fresh, out


def test_empty_arrays_can_be_passed_and_not_touched(make_device: MakeDevice) -> None:
    device = make_device({"case.cu": COPY})
    kernel = device.kernel(SPEC, "copy")
    device.launch(kernel, 1, 32, [device.empty(0, np.int32), device.empty(0, np.int32), np.int64(0)])
    with pytest.raises(EmulationError, match="out of bounds"):
        device.launch(kernel, 1, 32, [device.empty(0, np.int32), device.empty(0, np.int32), np.int64(1)])


def test_arrays_keep_to_what_cupy_allows(emulated: EmulatedDevice) -> None:
    xp = emulated.xp
    there, here = emulated.upload(np.arange(5)), np.arange(5)
    with pytest.raises(TypeError, match="upload it first"):
        there + here
    with pytest.raises(TypeError, match="upload it first"):
        xp.concatenate([there, here])
    with pytest.raises(TypeError, match="upload it first"):
        xp.cumsum(here)
    with pytest.raises(TypeError, match="upload it first"):
        there[1:3] = here[:2]
    with pytest.raises(TypeError, match="not a device array"):
        emulated.download(here)
    assert there[2].shape == ()
    assert isinstance(there.sum(), type(there))
    assert int(there.sum()) == 10
    there += 1
    there[0] = 9
    assert xp.cumsum(xp.concatenate([there, xp.arange(2)])).get().tolist() == [9, 11, 14, 18, 23, 23, 24]


def test_arrays_made_by_the_module_come_back_changed(make_device: MakeDevice) -> None:
    device = make_device({"case.cu": COPY})
    given, out = device.xp.arange(8, dtype=np.int32), device.xp.zeros(8, dtype=np.int32)
    device.launch(device.kernel(SPEC, "copy"), 1, 32, [given, out, np.int64(8)])
    assert device.download(out).tolist() == list(range(8))


def test_properties_are_as_asked_for(make_device: MakeDevice) -> None:
    facts = DeviceProperties(multiprocessors=7, shared_bytes=1024, l2_bytes=1 << 20, blocks_per_multiprocessor=2)
    device = make_device({"case.cu": COPY}, properties=facts)
    assert device.properties.blocks == 14
    args = [device.zeros(1, np.int32), device.zeros(1, np.int32), np.int64(1)]
    with pytest.raises(KernelArgumentError, match="1025 bytes of shared memory; the device has 0 to 1024"):
        device.launch(device.kernel(SPEC, "copy"), 1, 32, args, shared_bytes=1025)


def test_gaps_go_after_shared_variables_of_both_forms() -> None:
    assembly = """
	.local	one
	.comm	one,512,32
	.section	.bss._two,"awG",@nobits,_two,comdat
	.align 8
	.type	_two, @gnu_unique_object
	.size	_two, 24
_two:
	.zero	24
	.text
	.section	.rodata
three:
	.zero	8
"""
    widened, sizes = widen_variables(assembly)
    assert sizes == {"one": 512, "_two": 24}
    assert "one,4608,32" in widened
    assert ".zero\t4120" in widened
    assert ".zero\t8\n" in widened


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    why_no_compiler.cache_clear()
    try:
        assert "g++ is not on PATH" in (why_no_compiler() or "")
    finally:
        why_no_compiler.cache_clear()


def test_an_array_is_not_both_read_as_const_and_written(device: EmulatedDevice) -> None:
    array = device.zeros(64, np.int32)
    kernel = device.kernel(ModuleSpec("copy.cu"), "copy")
    with pytest.raises(KernelArgumentError, match="both as pointer to const and to be written"):
        device.launch(kernel, 1, 32, [array[:40], array[39:], np.int64(1)])
    device.launch(kernel, 1, 32, [array[:32], array[32:], np.int64(32)])
