"""Compilation by NVRTC, which needs no GPU, and its cache."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

import pytest

from gpujoin.errors import KernelArgumentError, KernelCompileError
from gpujoin.launch import compiler, source
from gpujoin.launch.compiler import (
    CACHE_VARIABLE,
    cache_directory,
    cache_key,
    compile_cubin,
    options_for,
    usable_directory,
)
from gpujoin.launch.device import ModuleSpec, blocks_for, dimensions
from gpujoin.launch.images import LAUNCHERS
from scripts.check_kernels import specialisations
from tests.planted import UNSAFE, plant

SPEC = ModuleSpec("case.cu", (("FACTOR", 3), ("NAME", "scaled")))
TEXT = """
#include "factor.cuh"
extern "C" __global__ void NAME(float* x) { x[threadIdx.x] *= FACTOR; }
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "kernels"
    root.mkdir()
    (root / "case.cu").write_text(TEXT)
    (root / "factor.cuh").write_text("#ifndef FACTOR\n#define FACTOR 1\n#endif\n")
    monkeypatch.setattr(source, "kernel_directory", lambda: root)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return root


def test_every_source_is_compiled_by_some_specialisation() -> None:
    there = {entry.name for entry in source.kernel_directory().iterdir() if entry.name.endswith(".cu")}
    assert {spec.source for spec in specialisations()} == there


def test_every_launcher_is_checked() -> None:
    folder = Path(__file__).parents[2] / "gpujoin" / "launch"
    found = {
        file.stem
        for file in folder.glob("*.py")
        if re.search(r"^SPECIALISATIONS\b", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert set(LAUNCHERS) == found


def test_macros_have_defaults_in_the_source() -> None:
    for spec in specialisations():
        text = source.kernel_source(spec.source)
        for name, _ in spec.defines:
            assert f"#ifndef {name}\n" in text, f"{name} of {spec}"


def test_floats_are_not_flushed_to_zero() -> None:
    options = options_for(SPEC, "sm_90")
    assert "-ftz=false" in options
    assert "-ftz=true" not in options
    assert {"-arch=sm_90", "-DFACTOR=3", "-DNAME=scaled"} <= set(options)


def test_the_cache_key_sees_text_options_and_compiler() -> None:
    keys = {
        cache_key("a", ("b",), (13, 0)),
        cache_key("ab", (), (13, 0)),
        cache_key("a", ("c",), (13, 0)),
        cache_key("a", ("b",), (13, 1)),
        cache_key("a ", ("b",), (13, 0)),
    }
    assert len(keys) == 5


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "gpujoin" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "gpujoin" / "kernels"


def nvrtc() -> None:
    pytest.importorskip("cupy", reason="no CuPy: pip install gpujoin[cu13]")
    from gpujoin.launch.compiler import compiler_version

    try:
        compiler_version()
    except KernelCompileError as problem:
        pytest.skip(str(problem))


def test_a_module_is_compiled_once_and_again_after_an_edit_of_its_header(kernels: Path) -> None:
    nvrtc()
    first = compile_cubin(SPEC, "sm_90")
    made = first.stat().st_mtime_ns
    assert first.read_bytes().startswith(b"\x7fELF")
    assert b"scaled" in first.read_bytes()
    assert compile_cubin(SPEC, "sm_90") == first
    assert first.stat().st_mtime_ns == made
    assert compile_cubin(SPEC, "sm_80") != first
    assert compile_cubin(ModuleSpec("case.cu", (("NAME", "other"),)), "sm_90") != first
    (kernels / "factor.cuh").write_text("#ifndef FACTOR\n#define FACTOR 2\n#endif\n")
    assert compile_cubin(SPEC, "sm_90") != first
    assert not list(first.parent.glob("*.tmp"))


def test_a_compile_error_names_the_module_and_holds_the_log(kernels: Path) -> None:
    nvrtc()
    (kernels / "case.cu").write_text(TEXT.replace("x[threadIdx.x]", "y[threadIdx.x]"))
    with pytest.raises(KernelCompileError, match=r"(?s)case\.cu\[FACTOR=3, NAME=scaled\].*case\.cu\(3\).*\"y\""):
        compile_cubin(SPEC, "sm_90")
    with pytest.raises(KernelCompileError, match=r"'absent\.cu' is not in the kernel folder"):
        compile_cubin(ModuleSpec("absent.cu"), "sm_90")


def test_a_cache_that_cannot_be_written_is_told_and_another_one_taken(
    kernels: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nvrtc()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "below"))
    with caplog.at_level("WARNING", "gpujoin"):
        found = compile_cubin(SPEC, "sm_90")
    assert found.read_bytes().startswith(b"\x7fELF")
    assert tmp_path not in found.parents
    assert f"Set {CACHE_VARIABLE} to a folder" in caplog.text
    assert compile_cubin(SPEC, "sm_90") == found, "this process keeps it"


def test_a_disk_that_is_full_when_a_kernel_is_to_be_kept(
    kernels: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvrtc()
    write, refused = compiler._write, [True]

    def full(path: Path, content: bytes) -> None:
        if tmp_path in path.parents or all(refused):
            refused.append(True)
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(compiler, "_write", full)
    with pytest.raises(KernelCompileError, match=f"Set {CACHE_VARIABLE} to a folder"):
        compile_cubin(SPEC, "sm_90")
    refused[:] = [False]
    assert compile_cubin(SPEC, "sm_90").is_file()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("problem", [PermissionError(13, "Permission denied"), RuntimeError("no home directory")])
def test_users_without_a_home_that_they_may_look_into(problem: Exception, temporary: Path) -> None:
    """As in containers that run as any user. The next process finds the kernels of this one."""

    def wanted() -> Path:
        raise problem

    found = usable_directory(wanted)
    assert found.is_dir()
    assert temporary in found.parents
    for folder in (found, found.parent):
        assert folder.stat().st_mode & 0o077 == 0, "another user could put kernels there"
    assert usable_directory(lambda: found) == found
    assert usable_directory(wanted) == found
    assert usable_directory(wanted, "OTHER_CACHE") not in (found, found.parent)


@pytest.mark.parametrize("how", UNSAFE)
@pytest.mark.parametrize("which", ["the user's", "the variable's"])
def test_a_temporary_cache_that_others_could_change_is_not_used(
    how: str, which: str, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def wanted() -> Path:
        raise RuntimeError("no home directory")

    users = temporary / f"gpujoin-kernels-{os.geteuid()}"
    if which == "the user's":
        plant(users, how)
    else:
        users.mkdir(mode=0o700)
        plant(users / CACHE_VARIABLE.lower(), how)
    with caplog.at_level("WARNING", "gpujoin"):
        directory = usable_directory(wanted)
    assert users not in (directory, *directory.parents)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert "for this process only: no home directory; " in caplog.text


@pytest.mark.parametrize(("items", "wanted"), [(0, 1), (1, 1), (256, 1), (257, 2), (10_000, 7)])
def test_blocks_cover_the_items_up_to_the_limit(items: int, wanted: int) -> None:
    assert blocks_for(items, 256, limit=7) == wanted


def test_dimensions_are_filled_up() -> None:
    assert dimensions(5) == (5, 1, 1)
    assert dimensions((5, 2)) == (5, 2, 1)
    for bad in (0, (1, 0), (1, 1, 1, 1), ()):
        with pytest.raises(KernelArgumentError):
            dimensions(bad)


@pytest.mark.parametrize("how", UNSAFE)
def test_a_cache_that_others_could_change_is_not_used(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    planted = tmp_path / "kernels"
    plant(planted, how)
    with caplog.at_level("WARNING", "gpujoin"):
        directory = usable_directory(lambda: planted)
    assert directory != planted
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert ("File exists" if how == "a file" else "is not safe") in caplog.text


def test_a_new_cache_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        assert usable_directory(lambda: tmp_path / "a" / "kernels") == tmp_path / "a" / "kernels"
    finally:
        os.umask(before)
