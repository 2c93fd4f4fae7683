"""Compiles the emulator's runtime and CUDA sources with g++, once for every text and option."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpujoin.errors import ConfigurationError, KernelCompileError
from gpujoin.launch.device import ModuleSpec
from gpujoin.launch.source import kernel_source

HERE = Path(__file__).resolve().parent
HEADER = HERE / "include" / "emulated_cuda.h"
RUNTIME = tuple(sorted((HERE / "runtime").iterdir()))

COMPILER = "g++"
GAP_BYTES = 4096
"""Forbidden bytes after each shared variable."""

DYNAMIC_SHARED_BYTES = 227 * 1024
"""Most dynamic shared memory of a block: what an H200 lets a block opt in to."""

_UNDEFINED = (
    "bounds", "shift", "integer-divide-by-zero", "signed-integer-overflow", "alignment", "null", "unreachable",
    "return", "float-cast-overflow",
)  # fmt: skip
_RUNTIME_OPTIONS = ("-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-Wall", "-Wextra")
_KERNEL_OPTIONS = (
    "-std=c++17", "-O1", "-g1", "-gdwarf-4", "-fPIC", "-xc++", "-nostdinc++", "-fvisibility=hidden", "-fno-gnu-unique",
    "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-strict-aliasing", "-fno-ipa-reference",
    "-fno-tree-loop-distribute-patterns", "-fno-tree-sra", "-ffp-contract=off", "-ftrivial-auto-var-init=pattern",
    "-fsanitize=thread," + ",".join(_UNDEFINED), "-fno-sanitize-recover=all", "--param=tsan-distinguish-volatile=1",
    "-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unknown-pragmas", "-Wno-sign-compare", "-Werror=uninitialized",
    "-Werror=return-type", "-include", str(HEADER),
)  # fmt: skip


@dataclass(frozen=True)
class SharedVariable:
    """A ``__shared__`` variable: its place in the module's image and its size in bytes."""

    symbol: str
    offset: int
    size: int


@dataclass(frozen=True)
class CompiledModule:
    """A CUDA source as a shared library.

    Attributes
    ----------
    path : Path
        The library.
    kernels : tuple of str
        Its kernels.
    shared : tuple of SharedVariable
        Its static shared variables.
    dynamic : int or None
        Where dynamic shared memory begins, if any kernel declares some.
    """

    path: Path
    kernels: tuple[str, ...]
    shared: tuple[SharedVariable, ...]
    dynamic: int | None


@cache
def why_no_compiler() -> str | None:
    """Why kernels cannot be emulated here, or ``None`` if they can."""
    for tool in (COMPILER, "nm", "addr2line"):
        if shutil.which(tool) is None:
            return f"{tool} is not on PATH, so kernels cannot be emulated; install it (apt-get install g++)"
    version = subprocess.run([COMPILER, "-dumpversion"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.split(".", maxsplit=1)[0]) < 12:
        return f"g++ {version} is too old to emulate kernels, which takes 12 or newer"
    return None


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else part
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()[:32]


def _run(command: list[str], what: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise KernelCompileError(f"{what} does not compile for the emulator:\n{done.stderr.strip()}")
    return done.stdout


def compile_runtime(cache_directory: Path) -> Path:
    """The library that runs and checks emulated kernels."""
    key = _digest(*(file.read_bytes() for file in RUNTIME), repr(_RUNTIME_OPTIONS))
    path = cache_directory / f"libemulator-{key}.so"
    if not path.is_file():
        sources = [str(file) for file in RUNTIME if file.suffix == ".cpp"]
        with tempfile.TemporaryDirectory(dir=cache_directory) as scratch:
            fresh = Path(scratch) / path.name
            command = [
                COMPILER,
                *_RUNTIME_OPTIONS,
                f"-Wl,-soname,{path.name}",
                "-o",
                str(fresh),
                *sources,
                "-ldl",
            ]
            _run(command, "the emulator")
            fresh.replace(path)
    return path


def compile_module(spec: ModuleSpec, cache_directory: Path, runtime: Path, source: str | None = None) -> CompiledModule:
    """A CUDA source as a library of emulated kernels.

    Parameters
    ----------
    spec : ModuleSpec
        What to compile.
    cache_directory : Path
        Where libraries are kept by a hash of all that goes into them.
    runtime : Path
        From :func:`compile_runtime`.
    source : str or None
        The text, if not that of the kernel folder.

    Raises
    ------
    KernelCompileError
        g++ refuses it.
    """
    if source is None:
        try:
            source = kernel_source(spec.source)
        except ConfigurationError as problem:
            raise KernelCompileError(f"{spec} cannot be compiled: {problem}") from problem
    text = re.sub(r"\bextern(\s+)__shared__\b", r"extern\1EMU_DYNAMIC_SHARED", source)
    key = _digest(
        text,
        HEADER.read_bytes(),
        Path(__file__).read_bytes(),
        runtime.name,
        repr(_KERNEL_OPTIONS),
        *spec.options,
    )
    path = cache_directory / f"{Path(spec.source).stem}-{key}.so"
    facts = path.with_suffix(".json")
    if not facts.is_file():
        with tempfile.TemporaryDirectory(dir=cache_directory) as scratch:
            fresh, facts_of = _build(spec, text, Path(scratch), runtime, path.name)
            fresh.replace(path)
            told = Path(scratch) / "facts"
            told.write_text(json.dumps(facts_of))
            told.replace(facts)
    facts_of = json.loads(facts.read_text())
    shared = tuple(SharedVariable(*variable) for variable in facts_of["shared"])
    return CompiledModule(path, tuple(facts_of["kernels"]), shared, facts_of["dynamic"])


def _build(spec: ModuleSpec, text: str, scratch: Path, runtime: Path, name: str) -> tuple[Path, dict[str, object]]:
    listing = [
        COMPILER,
        "-std=c++17",
        "-E",
        "-P",
        "-xc++",
        "-nostdinc++",
        "-DEMU_LIST_KERNELS",
        "-fsanitize=thread",
    ]
    expanded = _run([*listing, "-include", str(HEADER), *spec.options, "-"], str(spec), text)
    kernels = _kernels(expanded)
    if not kernels:
        raise KernelCompileError(f'{spec} has no extern "C" __global__ function.')
    dynamic = sorted(set(re.findall(r"\bextern\s+EMU_DYNAMIC_SHARED\b[^;]*?(\w+)\s*\[\s*\]\s*;", expanded)))
    entries = "".join(f"EMU_ENTRY({kernel}, ({bound}))\n" for kernel, bound in kernels.items())
    source = scratch / "module.cpp"
    source.write_text(f'#line 1 "{spec.source}"\n{text}\n#line 1 "entries"\n{entries}')
    assembly = scratch / "module.s"
    _run([COMPILER, *_KERNEL_OPTIONS, *spec.options, "-S", "-o", str(assembly), str(source)], str(spec))
    widened, sizes = widen_variables(assembly.read_text())
    assembly.write_text(widened + _dynamic_memory(dynamic))
    library = scratch / name
    link = [
        COMPILER,
        "-shared",
        "-nostartfiles",
        "-Wl,-z,defs",
        "-o",
        str(library),
        str(assembly),
        str(runtime),
    ]
    _run([*link, f"-Wl,-rpath,{runtime.parent}", "-lgcc"], str(spec))
    places = _symbols(library)
    shared = [(symbol, places[symbol], size) for symbol, size in sizes.items()]
    facts = {
        "kernels": list(kernels),
        "shared": shared,
        "dynamic": places[dynamic[0]] if dynamic else None,
    }
    return library, facts


def _kernels(expanded: str) -> dict[str, str]:
    """Names of the kernels of a preprocessed source, each with the expression of its launch bound."""
    kernels = {}
    for marker in re.finditer(r"\bEMU_KERNEL\b", expanded):
        rest = expanded[marker.end() :]
        head = rest[: rest.index("{")] if "{" in rest else rest
        bound = "1024"
        bounded = re.search(r"\bEMU_BOUNDS\(", head)
        if bounded:
            inside, end = _balanced(head, bounded.end())
            bound = inside.split(",", maxsplit=1)[0].strip()
            head = head[: bounded.start()] + head[end:]
        name = re.search(r"\bvoid\s+(\w+)\s*\(", head)
        if name:
            kernels[name[1]] = bound
    return kernels


def _balanced(text: str, start: int) -> tuple[str, int]:
    depth = 1
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position], position + 1
    raise KernelCompileError("unbalanced parentheses in __launch_bounds__")


def widen_variables(assembly: str) -> tuple[str, dict[str, int]]:
    """Put a gap after each variable of a module that is not initialised, which are its shared variables.

    Returns
    -------
    str
        The assembly with the gaps.
    dict of str to int
        Sizes of the variables, without the gaps.
    """
    sizes: dict[str, int] = {}
    lines = assembly.split("\n")
    in_bss, label = False, ""
    for number, line in enumerate(lines):
        words = line.split(None, 1)
        if not words:
            continue
        match words[0]:
            case ".bss":
                in_bss = True
            case ".text" | ".data":
                in_bss = False
            case ".section":
                in_bss = words[1].startswith(".bss")
            case ".comm":
                symbol, size, *alignment = words[1].split(",")
                sizes[symbol] = int(size)
                lines[number] = f"\t.comm\t{','.join([symbol, str(int(size) + GAP_BYTES), *alignment])}"
            case ".zero" if in_bss:
                sizes[label] = int(words[1])
                lines[number] = f"\t.zero\t{int(words[1]) + GAP_BYTES}"
            case first if first.endswith(":"):
                label = first[:-1]
    return "\n".join(lines), sizes


def _dynamic_memory(names: list[str]) -> str:
    if not names:
        return ""
    lines = ["\t.bss", "\t.balign 1024"]
    for name in names:
        lines += [f"\t.globl {name}", f"\t.hidden {name}", f"\t.type {name}, @object", f"{name}:"]
    return "\n".join(["", *lines, f"\t.zero {DYNAMIC_SHARED_BYTES + GAP_BYTES}", ""])


def _symbols(library: Path) -> dict[str, int]:
    listed = _run(["nm", "--defined-only", str(library)], library.name)
    return {words[2]: int(words[0], 16) for words in map(str.split, listed.splitlines()) if len(words) == 3}


def source_lines(library: Path, offset: int) -> str:
    """Where in its source a module was, innermost first; the emulator's own header left out."""
    command = ["addr2line", "-e", str(library), "-i", hex(offset - 1)]
    told = subprocess.run(command, capture_output=True, text=True)
    lines = [Path(line.split(" (")[0]).name for line in told.stdout.splitlines()]
    own = [line for line in lines if not line.startswith((HEADER.name, "?"))]
    return " < ".join(own)
