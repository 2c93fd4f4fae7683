"""Compiles CUDA sources with NVRTC, and caches the results on disk.

``cupy.RawModule`` is not used, for two reasons. It always adds ``-ftz=true``, which makes tiny floats equal to zero in
comparisons, and its cache does not notice edited headers. Here the text of the headers is part of the source, and the
cache key covers that text, the options, the architecture and the version of NVRTC.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpujoin.errors import ConfigurationError, KernelCompileError
from gpujoin.launch.device import ModuleSpec
from gpujoin.launch.source import kernel_source
from gpujoin.logs import log
from gpujoin.storage.folders import tampering_risk, user_cache

CACHE_VARIABLE = "GPUJOIN_KERNEL_CACHE_DIR"

OPTIONS = ("-std=c++17", "-ftz=false")
"""Options of every compilation, besides architecture and macros."""


def cache_directory() -> Path:
    """Folder of compiled kernels: ``$GPUJOIN_KERNEL_CACHE_DIR``, else ``gpujoin/kernels`` in the user's cache.

    Raises ``RuntimeError`` if the variable is not set and the user has no home.
    """
    return user_cache(CACHE_VARIABLE, "kernels")


def private_directory() -> Path:
    """Make a folder for this process alone, which is removed when the process ends."""
    directory = tempfile.mkdtemp(prefix="gpujoin-kernels-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def usable_directory(preferred: Callable[[], Path], variable: str = CACHE_VARIABLE) -> Path:
    """Return a writable folder, which is made if it is missing.

    It is the preferred one, else a folder of the user's among the temporary files, which later processes find again,
    else one for this process alone. In containers, users often have no home, or one that they may not read:
    ``preferred`` may raise ``OSError`` or ``RuntimeError``. Files of the folder are run on the GPU as this user, so a
    folder that other users could change is not used. ``variable`` is the environment variable that sets the folder,
    for the warning.
    """
    problems: list[Exception] = []
    for candidate in (preferred, lambda: _users_directory(variable)):
        try:
            directory = candidate()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_safe(directory)
            with tempfile.NamedTemporaryFile(dir=directory):
                pass
        except (OSError, RuntimeError) as problem:
            problems.append(problem)
            continue
        if problems:
            _warn(directory, "", problems, variable)
        return directory
    directory = private_directory()
    _warn(directory, " for this process only", problems, variable)
    return directory


def _users_directory(variable: str) -> Path:
    """Give a temporary folder that only this user can change, with the same name each time."""
    users = Path(tempfile.gettempdir()) / f"gpujoin-kernels-{os.geteuid()}"
    users.mkdir(mode=0o700, exist_ok=True)
    _check_safe(users)
    return users / variable.lower()


def _check_safe(directory: Path) -> None:
    risk = tampering_risk(directory)
    if risk is not None:
        raise PermissionError(f"{directory} is not safe: {risk}")


def _warn(directory: Path, whose: str, problems: Sequence[Exception], variable: str) -> None:
    log.warning(
        "compiled kernels are kept in %s%s: %s. Set %s to a folder that can be written to.",
        directory, whose, "; ".join(map(str, problems)), variable,
    )  # fmt: skip


@functools.cache
def _usable(variable: str | None, base: str | None, home: str | None, pid: int) -> Path:
    """:func:`usable_directory`, cached by all that it depends on; a forked process gets a private folder of its own."""
    del variable, base, home, pid
    return usable_directory(cache_directory)


def cache_key(source: str, options: tuple[str, ...], version: tuple[int, ...]) -> str:
    """Name of a cached file, a hash of the source, the options and the compiler's version."""
    digest = hashlib.sha256()
    for part in (source, *options, repr(version)):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


@dataclass(frozen=True)
class Compiled:
    """A compiled source, and the compiler's log."""

    binary: bytes
    log: str


def module_text(spec: ModuleSpec) -> str:
    """Source text of a module, with its headers pasted in.

    Raises ``KernelCompileError`` if the source or one of its headers is missing.
    """
    try:
        return kernel_source(spec.source)
    except ConfigurationError as problem:
        raise KernelCompileError(f"{spec} cannot be compiled: {problem}") from problem


def options_for(spec: ModuleSpec, architecture: str) -> tuple[str, ...]:
    """All compiler options of a module, for an architecture such as ``"sm_90"``."""
    return (*OPTIONS, f"-arch={architecture}", *spec.options)


def compile_text(spec: ModuleSpec, source: str, options: Sequence[str]) -> Compiled:
    """Compile a source with NVRTC, to PTX for a virtual architecture such as ``compute_75``. Needs no GPU.

    Raises ``KernelCompileError`` if NVRTC is missing or the source does not compile; names the module and holds the
    compiler's log.
    """
    try:
        from cupy.cuda import nvrtc

        program = nvrtc.createProgram(source, spec.source, [], [])
    except (ImportError, RuntimeError) as problem:
        raise KernelCompileError(f"{spec} cannot be compiled, NVRTC is missing: {problem}") from problem
    try:
        nvrtc.compileProgram(program, tuple(options))
        binary = nvrtc.getPTX(program) if _is_virtual(options) else nvrtc.getCUBIN(program)
        return Compiled(binary.encode() if isinstance(binary, str) else bytes(binary), _log(nvrtc, program))
    except nvrtc.NVRTCError as problem:
        message = f"{spec} does not compile with {' '.join(options)}: {problem}\n{_log(nvrtc, program)}"
        raise KernelCompileError(message) from problem
    finally:
        nvrtc.destroyProgram(program)


def _is_virtual(options: Sequence[str]) -> bool:
    return any(option.startswith("-arch=compute_") for option in options)


def kept_image(name: str, content: bytes) -> Path:
    """Write an image of the package to the cache, from which CUDA loads it; returns its path.

    Raises ``KernelCompileError`` if no folder takes it.
    """
    path = _directory() / name
    if path.is_file() and path.stat().st_size == len(content):
        return path
    return _store(path, content, name)


def compile_cubin(spec: ModuleSpec, architecture: str) -> Path:
    """Compile a module for an architecture such as ``"sm_90"``, unless it is cached, and return the ``.cubin`` file."""
    source = module_text(spec)
    options = options_for(spec, architecture)
    path = _directory() / f"{cache_key(source, options, compiler_version())}.cubin"
    if path.is_file():
        return path
    return _store(path, compile_text(spec, source, options).binary, str(spec))


def _directory() -> Path:
    """The folder of the cache, found once a process."""
    variables = (os.environ.get(name) for name in (CACHE_VARIABLE, "XDG_CACHE_HOME", "HOME"))
    return _usable(*variables, os.getpid())


def _store(path: Path, content: bytes, what: str) -> Path:
    """Write a file of the cache, or one of this process alone."""
    folder = path.parent
    try:
        try:
            _write(path, content)
        except OSError:
            path = private_directory() / path.name
            _write(path, content)
    except OSError as problem:
        raise KernelCompileError(
            f"{what}: the compiled kernel cannot be kept in {folder}, nor in {tempfile.gettempdir()}: {problem}. "
            f"Set {CACHE_VARIABLE} to a folder that can be written to."
        ) from problem
    return path


def compiler_version() -> tuple[int, ...]:
    """Major and minor version of NVRTC. Raises ``KernelCompileError`` if NVRTC is missing."""
    try:
        from cupy.cuda import nvrtc

        return tuple(nvrtc.getVersion())
    except (ImportError, RuntimeError) as problem:
        raise KernelCompileError(f"NVRTC is missing: {problem}") from problem


def _log(nvrtc: Any, program: Any) -> str:
    return str(nvrtc.getProgramLog(program)).rstrip("\0 \n")


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Another process may compile the same module, so the file is replaced atomically.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
