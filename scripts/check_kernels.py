#!/usr/bin/env python3
"""Compile every specialisation of the CUDA kernels for three architectures; no GPU is needed.

Usage: ``python scripts/check_kernels.py [--write | --check]``, with the extra ``dev``. Compiles with NVRTC, the
compiler of production; where CuPy is missing, with ``nvcc`` if that is on ``PATH``. Prints registers, shared memory
and spills of each kernel. ``--write`` writes them to ``docs/kernels-resources.md``; ``--check`` compares with that
page, if it was made by the same version of the compiler. With NVRTC the kernels' PTX is checked too: a slot of a hash
table is one load, and global memory is addressed as such. Exit status 1: a kernel does not compile, spills registers
to local memory, takes more of them than its blocks have, loads otherwise, or differs from the page; 2: there is no
compiler.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpujoin.errors import KernelCompileError
from gpujoin.launch import images
from gpujoin.launch.compiler import compile_text, compiler_version, module_text, options_for
from gpujoin.launch.device import ModuleSpec

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "kernels-resources.md"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


def specialisations() -> tuple[ModuleSpec, ...]:
    """All distinct specialisations of all launchers, that of the benchmark included, in a stable order."""
    return (ModuleSpec("machine.cu"), *images.specialisations())


MAX_REGISTERS = 255

MOST_REGISTERS = {"csr.cu": 32, "direct.cu": 32, "unique.cu": 32, "hashset.cu": 32}
"""Registers of a thread with which a multiprocessor of 65,536 has as many blocks of 256 threads as the launchers of
these sources make."""

SLOT_LOADS = {4: {"u8", "u32", "u64"}, 8: {"u8", "u64"}, 16: {"u8", "u64", "v2.u64"}}
"""Forms of the loads of ``unique_probe`` by the width of a key: of validity, key and slot, each of them one load."""

GENERIC = {"direct_fetch", "unique_fetch", "residual_found", "residual_mask"}
"""Kernels that follow pointers from tables and cases in which the compiler does not see the kind of memory."""


@dataclass(frozen=True)
class Resources:
    """What one kernel takes on one architecture; bytes are per thread but for shared memory, which is per block."""

    registers: int
    shared_bytes: int
    stack_bytes: int
    spilled_bytes: int

    def __str__(self) -> str:
        told = f"{self.registers} / {self.shared_bytes}"
        return f"{told} / stack {self.stack_bytes}" if self.stack_bytes else told


@dataclass(frozen=True)
class Compiler:
    """A way to compile a module and be told the resources of its kernels."""

    name: str
    log_of: Callable[[ModuleSpec, str], str]


Table = dict[tuple[ModuleSpec, str], dict[str, Resources]]


def nvrtc_log(spec: ModuleSpec, architecture: str) -> str:
    """What ptxas says of a module compiled by NVRTC."""
    options = (*options_for(spec, architecture), "--ptxas-options=-v")
    return compile_text(spec, module_text(spec), options).log


def nvcc_log(spec: ModuleSpec, architecture: str) -> str:
    """What ptxas says of a module compiled by nvcc."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "module.cu"
        source.write_text(module_text(spec), encoding="utf-8")
        options = [
            *options_for(spec, architecture),
            "-cubin",
            "-Xptxas",
            "-v",
            "-o",
            str(source.with_suffix(".cubin")),
        ]
        done = subprocess.run(["nvcc", *options, str(source)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KernelCompileError(f"{spec} does not compile for {architecture}:\n{done.stderr}")
    return done.stderr


def find_compiler() -> Compiler | None:
    """NVRTC if it can be loaded, else nvcc."""
    try:
        version = ".".join(map(str, compiler_version()))
        return Compiler(f"NVRTC {version}", nvrtc_log)
    except KernelCompileError:
        pass
    if shutil.which("nvcc") is None:
        return None
    told = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release ([\d.]+)", told)
    return Compiler(f"nvcc {release[1] if release else '?'}", nvcc_log)


def resources(log: str) -> dict[str, Resources]:
    """Each kernel's resources, from the log of ``ptxas -v``."""
    found = {}
    for part in log.split("Compiling entry function ")[1:]:
        name = part.split("'")[1]
        used = re.search(r"Used (\d+) registers", part)
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        if used is None or frame is None:
            raise ValueError(f"ptxas does not tell the resources of {name}: {part!r}")
        shared = re.search(r"(\d+) bytes smem", part)
        found[name] = Resources(
            registers=int(used[1]),
            shared_bytes=int(shared[1]) if shared else 0,
            stack_bytes=int(frame[1]),
            spilled_bytes=int(frame[2]) + int(frame[3]),
        )
    return found


def compile_all(compiler: Compiler) -> tuple[Table, list[str]]:
    """Resources of all kernels, and what is wrong."""

    def compile_one(task: tuple[ModuleSpec, str]) -> dict[str, Resources] | str:
        try:
            return resources(compiler.log_of(*task)) or f'{task[0]} has no extern "C" __global__ function'
        except KernelCompileError as problem:
            return str(problem)

    tasks = list(itertools.product(specialisations(), ARCHITECTURES))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(compile_one, tasks))
    table: Table = {}
    problems = []
    for (spec, architecture), kernels in zip(tasks, results, strict=True):
        if isinstance(kernels, str):
            problems.append(kernels)
            continue
        for kernel, needs in kernels.items():
            table.setdefault((spec, kernel), {})[architecture] = needs
            if needs.spilled_bytes:
                told = f"{needs.spilled_bytes} bytes of registers to local memory"
                problems.append(f"{kernel} of {spec} spills {told} on {architecture}")
            most = MOST_REGISTERS.get(spec.source, MAX_REGISTERS)
            if needs.registers > most:
                problems.append(f"{kernel} of {spec} has {needs.registers} registers on {architecture}, over {most}")
    return table, problems


def ptx_problems(spec: ModuleSpec, ptx: str) -> list[str]:
    """What is wrong with the memory accesses of a module's kernels."""
    problems = []
    for entry in re.split(r"\.entry\s+", ptx)[1:]:
        name = entry.partition("(")[0].strip()
        accesses = re.findall(r"^\s*(ld|st|atom|red)\.([\w.]+)\s", entry, re.MULTILINE)
        spaces = {"param", "global", "shared", "local", "const"}
        generic = [f"{kind}.{form}" for kind, form in accesses if not spaces & set(form.split("."))]
        if generic and name not in GENERIC:
            problems.append(f"{name} of {spec} has accesses to generic memory: {', '.join(sorted(set(generic)))}")
        if name == "unique_probe":
            loads = [form for kind, form in accesses if kind == "ld" and "global" in form.split(".")]
            forms = {re.sub(r"^(volatile\.)?global\.(nc\.)?", "", form) for form in loads}
            wanted = SLOT_LOADS[int(dict(spec.defines)["KEY_BYTES"])]
            if forms != wanted:
                problems.append(f"{name} of {spec} loads {sorted(forms)}, which should be {sorted(wanted)}")
    return problems


def ptx_of(spec: ModuleSpec) -> str:
    """A module as PTX, by NVRTC."""
    return compile_text(spec, module_text(spec), options_for(spec, "compute_90")).binary.decode()


def page(table: Table, compiler: str) -> str:
    """The table as a page of the documentation."""
    lines = [
        "# Resources of the kernels",
        "",
        f"Written by `scripts/check_kernels.py --write` with {compiler}; `make lint` compares. A cell holds the",
        "registers of a thread / the bytes of static shared memory of a block; dynamic shared memory is chosen at",
        "launch. No kernel spills registers to local memory; a stack is said where there is one.",
        "",
        "| module | kernel | " + " | ".join(ARCHITECTURES) + " |",
        "|---|---|" + "---|" * len(ARCHITECTURES),
    ]
    for (spec, kernel), by_architecture in sorted(table.items(), key=lambda item: (str(item[0][0]), item[0][1])):
        cells = [str(by_architecture.get(architecture, "")) for architecture in ARCHITECTURES]
        lines.append(f"| {_module(spec)} | `{kernel}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _module(spec: ModuleSpec) -> str:
    defines = " ".join(f"{name}={value}" for name, value in spec.defines)
    told = f"`{spec.source}`" + (f" `{defines}`" if defines else "")
    return told.replace("|", "\\|")


def compare(written: str, compiler: str) -> list[str]:
    """What is wrong with the page, if the same compiler made it."""
    there = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    made_by = re.search(r"with (\w+ [\d.]+);", there)
    if made_by is not None and made_by[1] != compiler:
        print(f"{PAGE.name} was made with {made_by[1]}, this is {compiler}: numbers are not compared")
        return []
    return [] if there == written else [f"docs/{PAGE.name} is out of date: run scripts/check_kernels.py --write"]


def main() -> int:
    """Compile, print, and write or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write docs/kernels-resources.md")
    what.add_argument("--check", action="store_true", help="compare with docs/kernels-resources.md")
    arguments = parser.parse_args()
    compiler = find_compiler()
    if compiler is None:
        print("no CUDA compiler: install the extra dev, or put nvcc on PATH", file=sys.stderr)
        return 2
    table, problems = compile_all(compiler)
    if compiler.name.startswith("NVRTC") and not problems:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for spec, ptx in zip(specialisations(), pool.map(ptx_of, specialisations()), strict=True):
                problems += ptx_problems(spec, ptx)
    written = page(table, compiler.name)
    print(written)
    if arguments.write and not problems:
        PAGE.write_text(written, encoding="utf-8")
    if arguments.check:
        problems += compare(written, compiler.name)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(table)} kernels of {len(specialisations())} modules for {', '.join(ARCHITECTURES)}, {compiler.name}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
