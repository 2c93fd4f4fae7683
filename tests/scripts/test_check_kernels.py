from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gpujoin.launch import source
from gpujoin.launch.device import ModuleSpec

ROOT = Path(__file__).resolve().parents[2]
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'plain' for 'sm_80'
ptxas info    : Function properties for plain
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]
ptxas info    : Compiling entry function 'large' for 'sm_80'
ptxas info    : Function properties for large
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 256 bytes smem, 360 bytes cmem[0]
"""
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024) spills(const double* in, double* out)
{
    double v[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = in[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 96; ++i) out[i * 1024 + threadIdx.x] = v[95 - i] * v[(i * 7) % 96];
}
"""


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_kernels", ROOT / "scripts" / "check_kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_kernels"] = module
    spec.loader.exec_module(module)
    return module


def test_resources_are_read_from_the_log(check: ModuleType) -> None:
    found = check.resources(LOG)
    assert found["plain"] == check.Resources(8, 0, 0, 0)
    assert found["large"] == check.Resources(255, 256, 16, 32)
    with pytest.raises(ValueError, match="resources of plain"):
        check.resources(LOG.replace("Used 8 registers", ""))


def test_a_page_of_another_compiler_is_not_compared(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {(ModuleSpec("a.cu", (("N", 1),)), "k"): dict.fromkeys(check.ARCHITECTURES, check.Resources(8, 16, 0, 0))}
    monkeypatch.setattr(check, "PAGE", tmp_path / "page.md")
    assert check.compare(check.page(table, "NVRTC 13.4"), "NVRTC 13.4") != []
    check.PAGE.write_text(check.page(table, "NVRTC 13.4"))
    assert "| `a.cu` `N=1` | `k` | 8 / 16 | 8 / 16 | 8 / 16 |" in check.PAGE.read_text()
    assert check.compare(check.page(table, "NVRTC 13.4"), "NVRTC 13.4") == []
    assert check.compare(check.page({}, "NVRTC 13.4"), "NVRTC 13.4") != []
    assert check.compare(check.page({}, "NVRTC 12.9"), "NVRTC 12.9") == []


@pytest.mark.parametrize("kind", ["spilling", "broken", "empty"])
def test_spills_and_errors_fail(check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    compiler = check.find_compiler()
    if compiler is None:
        pytest.skip("no CUDA compiler: neither CuPy's NVRTC nor nvcc")
    text = {
        "spilling": SPILLING,
        "broken": SPILLING.replace("v[i]", "w[i]", 1),
        "empty": "__device__ int x;",
    }[kind]
    wanted = {"spilling": "spills .* on sm_90", "broken": "does not compile", "empty": "has no extern"}[kind]
    (tmp_path / "case.cu").write_text(text)
    monkeypatch.setattr(source, "kernel_directory", lambda: tmp_path)
    monkeypatch.setattr(check, "specialisations", lambda: (ModuleSpec("case.cu"),))
    monkeypatch.setattr(check, "ARCHITECTURES", ("sm_90",))
    _, problems = check.compile_all(compiler)
    assert len(problems) == 1
    assert re.search(wanted, problems[0]), problems


PTX = """
.visible .entry unique_probe(
	.param .u64 unique_probe_param_0
)
{{
	ld.param.u64 	%rd1, [unique_probe_param_0];
	ld.global.nc.u8 	%rs1, [%rd51];
	ld.global.nc.u64 	%rd9, [%rd55];
	{slot}
	st.{space}u32 	[%rd77], %r50;
	atom.global.add.u64 	%rd135, [%rd134], %rd38;
}}
"""


@pytest.mark.parametrize(
    ("slot", "space", "wrong"),
    [
        ("ld.global.nc.u64 	%rd72, [%rd71];", "global.", None),
        ("ld.global.nc.v2.u32 	{%r1, %r2}, [%rd71+8];\n	ld.global.nc.u64 	%rd1, [%rd71];", "global.", "loads"),
        ("ld.global.nc.u64 	%rd72, [%rd71];", "", "generic memory: st.u32"),
    ],
    ids=["one load a slot", "two loads a slot", "a generic store"],
)
def test_loads_of_slots_and_kinds_of_memory(check: ModuleType, slot: str, space: str, wrong: str | None) -> None:
    problems = check.ptx_problems(ModuleSpec("unique.cu", (("KEY_BYTES", 8),)), PTX.format(slot=slot, space=space))
    assert [wrong in problem for problem in problems] == ([] if wrong is None else [True])
