from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from gpujoin.errors import ConfigurationError
from gpujoin.launch import source


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "kernels"
    root.mkdir()
    monkeypatch.setattr(source, "kernel_directory", lambda: root)
    return root


def code(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#line")]


def test_the_installed_folder_is_found() -> None:
    assert (source.kernel_directory() / "README.md").is_file()


def test_local_headers_are_pasted_and_system_headers_kept(kernels: Path) -> None:
    (kernels / "a.cu").write_text('#include <cstdint>\n  #  include "h.cuh"\nint a;\n')
    (kernels / "h.cuh").write_text("#pragma once\nint h;\n")
    assert code(source.kernel_source("a.cu")) == ["#include <cstdint>", "int h;", "int a;"]


def test_an_edited_header_changes_the_source(kernels: Path) -> None:
    (kernels / "a.cu").write_text('#include "h.cuh"\n')
    (kernels / "h.cuh").write_text("int before;")
    before = source.kernel_source("a.cu")
    (kernels / "h.cuh").write_text("int after;")
    assert source.kernel_source("a.cu") != before


def test_pragma_once_pastes_once_and_its_absence_each_time(kernels: Path) -> None:
    (kernels / "a.cu").write_text('#include "once.cuh"\n#include "b.cuh"\n#include "often.cuh"\n')
    (kernels / "b.cuh").write_text('#include "once.cuh"\n#include "often.cuh"\n')
    (kernels / "once.cuh").write_text("#pragma once\nint once;\n")
    (kernels / "often.cuh").write_text("often();\n")
    assert code(source.kernel_source("a.cu")) == ["int once;", "often();", "often();"]


def test_headers_resolve_beside_the_includer_then_from_the_root(kernels: Path) -> None:
    (kernels / "sub").mkdir()
    (kernels / "sub" / "a.cu").write_text('#include "near.cuh"\n#include "../up.cuh"\n#include "root.cuh"\n')
    (kernels / "sub" / "near.cuh").write_text("near\n")
    (kernels / "near.cuh").write_text("wrong\n")
    (kernels / "up.cuh").write_text("up\n")
    (kernels / "root.cuh").write_text("root\n")
    assert code(source.kernel_source("sub/a.cu")) == ["near", "up", "root"]


def test_line_directives_name_the_original_lines(kernels: Path) -> None:
    (kernels / "a.cu").write_text('one\n#include "h.cuh"\nthree\n')
    (kernels / "h.cuh").write_text("#pragma once\nheader two\n")
    place: tuple[str, int] = ("", 0)
    seen = {}
    for line in source.kernel_source("a.cu").splitlines():
        directive = re.fullmatch(r'#line (\d+) "(.+)"', line)
        if directive:
            place = (directive[2], int(directive[1]))
        else:
            seen[line] = place
            place = (place[0], place[1] + 1)
    assert seen["one"] == ("a.cu", 1)
    assert seen["header two"] == ("h.cuh", 2)
    assert seen["three"] == ("a.cu", 3)


def test_a_missing_file_is_named_with_near_names(kernels: Path) -> None:
    (kernels / "direct.cu").write_text("")
    with pytest.raises(ConfigurationError, match=r"'dirct\.cu' is not in .*'direct\.cu'"):
        source.kernel_source("dirct.cu")


def test_a_missing_header_is_named_with_its_includer(kernels: Path) -> None:
    (kernels / "a.cu").write_text('#include "gone.cuh"\n')
    with pytest.raises(ConfigurationError, match=r"'gone\.cuh', included from a\.cu,"):
        source.kernel_source("a.cu")


@pytest.mark.parametrize("name", ["../outside.cu", "/etc/passwd", "sub/../../outside.cu"])
def test_paths_outside_the_folder_are_refused(kernels: Path, name: str) -> None:
    (kernels.parent / "outside.cu").write_text("secret")
    with pytest.raises(ConfigurationError, match="outside the kernel folder"):
        source.kernel_source(name)


def test_a_circle_of_headers_is_an_error_that_shows_it(kernels: Path) -> None:
    (kernels / "a.cu").write_text('#include "b.cuh"\n')
    (kernels / "b.cuh").write_text('#include "c.cuh"\n')
    (kernels / "c.cuh").write_text('#include "b.cuh"\n')
    with pytest.raises(ConfigurationError, match=r"a\.cu -> b\.cuh -> c\.cuh -> b\.cuh"):
        source.kernel_source("a.cu")


def test_sources_are_read_from_inside_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "gpujoin.zip"
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("_kernels/a.cu", '#include "h.cuh"\n')
        z.writestr("_kernels/h.cuh", "int h;\n")
    monkeypatch.setattr(source, "kernel_directory", lambda: zipfile.Path(archive) / "_kernels")
    assert code(source.kernel_source("a.cu")) == ["int h;"]


def test_an_installation_without_kernels_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gpujoin"
    package.mkdir()
    monkeypatch.setattr(source, "files", lambda name: package)
    with pytest.raises(ConfigurationError, match="CUDA sources of gpujoin are missing"):
        source.kernel_directory()
    (tmp_path / "kernels").mkdir()
    assert source.kernel_directory() == tmp_path / "kernels"
    (package / "_kernels").mkdir()
    assert source.kernel_directory() == package / "_kernels"
