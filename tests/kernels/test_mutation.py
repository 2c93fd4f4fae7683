"""The mutation check itself: what it breaks, what it chooses, what it explains."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpujoin.launch.source import kernel_directory
from tests.kernels.emulator import why_no_compiler
from tests.kernels.emulator.device import STEPS_VARIABLE
from tests.kernels.mutation.operators import OPERATORS, Mutant, mutants, sample
from tests.kernels.mutation.runner import Coverage, Runner
from tests.kernels.mutation.survivors import explanations

ROOT = Path(__file__).resolve().parents[2]
TEXT = """
// if (comments == 1) are left alone; __syncthreads();
#if FLAG == 1
#endif
constexpr int SIZE = 1 + 1;
static_assert(SIZE == 2, "left alone");

struct Pair {
    int a;
};

__device__ inline int below(int limit, const volatile int* p) { return limit - 1 < *p ? 1 : 0; }

extern "C" __global__ void run(const int* in, int* out, unsigned n,
                               unsigned long long* total)
{
    __shared__ int tile[128];
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
        if (in[i] == 0 || !in[i + 1])
            continue;
        tile[threadIdx.x] = in[i] >> 2;
        __syncthreads();
        atomicAdd(total, 1ull);
        __syncwarp(0xffffffffu);
        out[i] = below(3, in);  // a comment
    }
}
"""


def mutants_of(operator: str) -> list[Mutant]:
    return [mutant for mutant in mutants("case.cu", TEXT) if mutant.operator == operator]


@pytest.mark.parametrize(
    ("operator", "function", "after"),
    [
        ("barrier removed", "run", "(void)0;"),
        ("warp barrier removed", "run", "(void)0;"),
        ("atomic made plain", "run", "mutated_add(total, 1ull);"),
        ("volatile dropped", "", ""),
        ("mask bit dropped", "run", "__syncwarp(0x7fffffffu);"),
        ("bound shifted", "run", "for (unsigned i = threadIdx.x; i <= n; i += blockDim.x) {"),
        ("bound shifted", "below", "{ return limit - 1 <= *p ? 1 : 0; }"),
        ("comparison flipped", "run", "if (in[i] != 0 || !in[i + 1])"),
        ("off by one", "run", "if (in[i] == 0 || !in[i + 0])"),
        ("condition always true", "run", "if (true || (in[i] == 0 || !in[i + 1]))"),
        ("condition never true", "run", "if (false && (in[i] == 0 || !in[i + 1]))"),
        ("logic swapped", "run", "if (in[i] == 0 && !in[i + 1])"),
        ("negation dropped", "run", "if (in[i] == 0 || in[i + 1])"),
        ("shift changed", "run", "tile[threadIdx.x] = in[i] >> 1 + 2;"),
        ("index shifted", "run", "tile[1 + threadIdx.x] = in[i] >> 2;"),
        ("statement removed", "run", ";"),
        ("sum overwritten", "run", "for (unsigned i = threadIdx.x; i < n; i = blockDim.x) {"),
    ],
)
def test_each_kind_of_edit(operator: str, function: str, after: str) -> None:
    edits = [(mutant.function, mutant.after) for mutant in mutants_of(operator)]
    if function:
        assert any(f == function and a.endswith(after) for f, a in edits), edits
    else:
        assert all("const volatile" not in a for _, a in edits)


def test_a_mutant_differs_in_one_line_of_code() -> None:
    original = TEXT.split("\n")
    everything = list(mutants("case.cu", TEXT))
    assert len(everything) > 20
    for mutant in everything:
        changed = [i for i, (a, b) in enumerate(zip(original, mutant.text.split("\n"), strict=True)) if a != b]
        assert changed == [mutant.line - 1], mutant
        assert mutant.line > 10, mutant
        assert mutant.function in ("below", "run"), mutant
    assert {mutant.operator for mutant in everything} <= set(OPERATORS)
    assert len({mutant.key for mutant in everything}) == len(everything)


def test_the_sample_holds_all_synchronisation_and_does_not_depend_on_what_is_above() -> None:
    chosen = sample(list(mutants("case.cu", TEXT)), 6)
    run = [mutant for mutant in chosen if mutant.function == "run"]
    assert len(run) == 6
    assert {"barrier removed", "warp barrier removed", "atomic made plain"} <= {m.operator for m in run}
    moved = sample(list(mutants("case.cu", "\n" * 7 + TEXT)), 6)
    assert [m.key for m in moved] == [m.key for m in chosen]


def test_a_mutant_is_tried_by_the_tests_that_launch_its_kernel_or_include_its_header() -> None:
    coverage = Coverage(
        {
            "slow": frozenset({("a.cu", "run")}),
            "quick": frozenset({("a.cu", "run")}),
            "b": frozenset({("b.cu", "go")}),
        },
        {"slow": 2.0, "quick": 1.0, "b": 1.5},
    )
    includes = {"a.cu": {"a.cu"}, "b.cu": {"b.cu"}, "h.cuh": {"a.cu", "b.cu"}, "unused.cuh": set()}

    def tests_of(file: str, function: str) -> list[str]:
        return coverage.tests_of(Mutant(file, function, "", 1, "", "", ""), includes)

    assert tests_of("a.cu", "run") == ["quick", "slow"]
    assert tests_of("a.cu", "helper") == ["quick", "slow"]
    assert tests_of("h.cuh", "helper") == ["quick", "b", "slow"]
    assert tests_of("unused.cuh", "helper") == []


def test_explanations_are_about_lines_that_are_there() -> None:
    for entry in explanations():
        text = (kernel_directory() / entry.file).read_text(encoding="utf-8")
        edits = list(mutants(entry.file, text))
        assert any(entry.covers(mutant) for mutant in edits), entry
        assert len(entry.reason) > 20, entry


@pytest.mark.extra
def test_what_computes_too_long_is_late_and_what_ends_by_itself_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is of processor time: waiting for it, as on a busy machine, is not held against a test."""
    for variable in ("GPUJOIN_TEST_SEED", STEPS_VARIABLE):
        monkeypatch.setenv(variable, "0")
    runner = Runner(tmp_path, 1)

    def computing() -> dict[str, str]:
        while True:
            pass

    def waiting() -> dict[str, str]:
        time.sleep(1.5)
        return {"verdict": "survived"}

    for work, verdict, how in ((waiting, "survived", None), (computing, "caught", "time")):
        cache = tmp_path / verdict / "cache"
        cache.mkdir(parents=True)
        child = runner._fork(work, tmp_path, cache, limit=1)
        while (told := runner._poll(child)) is None:
            time.sleep(0.02)
        assert (told["verdict"], told.get("how")) == (verdict, how)


@pytest.mark.slow
def test_broken_kernels_are_caught_from_end_to_end() -> None:
    reason = why_no_compiler()
    if reason is not None:
        pytest.skip(reason)
    command = [
        sys.executable,
        "scripts/mutate_kernels.py",
        "--file",
        "unique.cu",
        "--per-function",
        "3",
        "--workers",
        "1",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| `unique.cu` | 6 |" in done.stdout
