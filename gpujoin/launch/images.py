"""Kernels that were compiled when the wheel was built: machine code for known GPUs, and PTX for later ones.

``python -m gpujoin.launch.images FOLDER`` compiles them, with NVRTC and without a GPU; the build of a wheel runs it. A
wheel has one archive for each architecture. A module's name in it is a hash of its source, headers included, and its
options: kernels of another source are not found, and are compiled where they run.

An example, of a GPU of compute capability 8.7: machine code for ``sm_86`` runs there, that for ``sm_89`` and ``sm_90``
does not; if the driver refuses it, PTX follows, and at last NVRTC.
"""

from __future__ import annotations

import functools
import io
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from pathlib import Path

from gpujoin.errors import KernelCompileError
from gpujoin.launch.compiler import OPTIONS, cache_key, compile_text, compiler_version, module_text, options_for
from gpujoin.launch.device import ModuleSpec
from gpujoin.logs import log

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
"""GPUs for which there is machine code: from Turing, the oldest that cuDF supports, to Blackwell."""

PTX = "compute_75"
"""Virtual architecture whose code the driver translates for any later GPU."""

LAUNCHERS = (
    "candidates", "csr", "direct", "expand", "facts", "hashset", "nearest", "normalise", "ranges",
    "residual", "rows", "sums", "unique", "wavelet",
)  # fmt: skip
"""The modules of `gpujoin.launch` with a constant ``SPECIALISATIONS``, a tuple of :class:`ModuleSpec`."""

_CONDITIONS = "residual.cu"
_FOLDER = "_images"


@dataclass(frozen=True)
class Image:
    """A compiled module."""

    name: str
    """A hash of its source and options."""
    architecture: str
    """``sm_90`` and the like, or a virtual one for PTX."""
    content: bytes

    @property
    def suffix(self) -> str:
        """Ending of a file that holds it."""
        return ".ptx" if self.architecture == PTX else ".cubin"


def specialisations() -> tuple[ModuleSpec, ...]:
    """All distinct specialisations of all launchers, in a stable order."""
    modules: dict[ModuleSpec, None] = {}
    for launcher in LAUNCHERS:
        modules.update(dict.fromkeys(import_module(f"gpujoin.launch.{launcher}").SPECIALISATIONS))
    return tuple(modules)


def shipped_specialisations() -> tuple[ModuleSpec, ...]:
    """Give the specialisations in a wheel: all but conditions, which users write."""
    return tuple(spec for spec in specialisations() if spec.source != _CONDITIONS)


def image_name(spec: ModuleSpec) -> str:
    """Name of a module in an archive: a hash of its source and options. Raises ``KernelCompileError``."""
    return cache_key(module_text(spec), (*OPTIONS, *spec.options), ())


def candidates(capability: tuple[int, int]) -> tuple[str, ...]:
    """Architectures whose images a GPU can run, the best first.

    Machine code runs on GPUs of the same major and the same or a later minor number.
    """
    major, minor = capability
    versions = [(name, *divmod(int(name.removeprefix("sm_")), 10)) for name in ARCHITECTURES]
    fitting = sorted((m for m in versions if m[1] == major and m[2] <= minor), key=lambda m: -m[2])
    later_than_ptx = capability >= divmod(int(PTX.removeprefix("compute_")), 10)
    return (*(name for name, _, _ in fitting[:1]), *((PTX,) if later_than_ptx else ()))


def shipped(spec: ModuleSpec, capability: tuple[int, int]) -> Iterator[Image]:
    """Give the images of a module that a GPU can run, the best first; unreadable ones are logged and left out."""
    archives = {architecture: _archive(architecture) for architecture in candidates(capability)}
    if spec.source == _CONDITIONS or not any(archives.values()):  # the name needs the module's whole text
        return
    name = image_name(spec)
    for architecture, archive in archives.items():
        try:
            if archive is not None and name in archive.namelist():
                yield Image(name, architecture, archive.read(name))
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as problem:
            log.warning("the compiled %s for %s cannot be read: %s", spec, architecture, problem)


@functools.cache
def _archive(architecture: str) -> zipfile.ZipFile | None:
    """Archive of an architecture; ``None`` where there is none, as in a checkout."""
    file = files("gpujoin") / _FOLDER / f"{architecture}.zip"
    try:
        return zipfile.ZipFile(io.BytesIO(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, zipfile.BadZipFile) as problem:
        log.warning("the compiled kernels for %s cannot be read: %s", architecture, problem)
        return None


def build(
    folder: Path, architectures: Sequence[str] = (*ARCHITECTURES, PTX), specs: Sequence[ModuleSpec] | None = None
) -> int:
    """Compile modules into one archive for each architecture; returns the bytes of the archives.

    Raises ``KernelCompileError`` if NVRTC is missing or a module does not compile.
    """
    specs = shipped_specialisations() if specs is None else specs
    compiler_version()
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for architecture in architectures:
            images = pool.map(lambda spec, on=architecture: _compiled(spec, on), specs)
            path = folder / f"{architecture}.zip"
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
                for spec, content in zip(specs, images, strict=True):
                    # A fixed date: the same sources and compiler make the same bytes.
                    entry = zipfile.ZipInfo(image_name(spec))
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, content)
            total += path.stat().st_size
    return total


def _compiled(spec: ModuleSpec, architecture: str) -> bytes:
    return compile_text(spec, module_text(spec), options_for(spec, architecture)).binary


def main() -> int:
    """Compile all modules into the folder that is given."""
    (folder,) = sys.argv[1:]
    try:
        size = build(Path(folder))
    except KernelCompileError as problem:
        print(problem, file=sys.stderr)  # noqa: T201
        return 1
    print(f"{len(shipped_specialisations())} modules, {size} bytes")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
