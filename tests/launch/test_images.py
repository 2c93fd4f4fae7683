"""Kernels that came compiled with the package: which of them a GPU is given, and when NVRTC takes their place."""

from __future__ import annotations

import logging
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy", reason='no CuPy: pip install ".[cu13]"')

import cupy

from gpujoin.errors import KernelCompileError
from gpujoin.launch import compiler, images
from gpujoin.launch.cuda import CudaDevice, CudaKernel, LoadedModule
from gpujoin.launch.device import DeviceProperties, ModuleSpec
from gpujoin.launch.images import ARCHITECTURES, PTX, build, candidates, image_name, shipped

SPECS = tuple(spec for spec in images.shipped_specialisations() if spec.source == "unique.cu")[:2]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two modules, compiled for two architectures."""
    try:
        compiler.compiler_version()
    except KernelCompileError as problem:
        pytest.skip(str(problem))
    folder = tmp_path_factory.mktemp("package")
    size = build(folder / "_images", ("sm_90", PTX), SPECS)
    assert size == sum(file.stat().st_size for file in (folder / "_images").iterdir())
    return folder


@pytest.fixture
def package(archives: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(images, "files", lambda name: archives)
    images._archive.cache_clear()
    yield archives
    images._archive.cache_clear()


CANDIDATES: dict[tuple[int, int], tuple[str, ...]] = {
    (7, 0): (),
    (7, 5): ("sm_75", PTX),
    (8, 0): ("sm_80", PTX),
    (8, 6): ("sm_86", PTX),
    (8, 7): ("sm_86", PTX),
    (8, 9): ("sm_89", PTX),
    (9, 0): ("sm_90", PTX),
    (10, 0): ("sm_100", PTX),
    (10, 3): ("sm_100", PTX),
    (12, 0): (PTX,),
}


@pytest.mark.parametrize("capability", CANDIDATES, ids=lambda c: f"{c[0]}.{c[1]}")
def test_the_image_of_a_gpu(capability: tuple[int, int]) -> None:
    assert candidates(capability) == CANDIDATES[capability]


def test_every_architecture_is_some_gpus() -> None:
    assert {names[0] for names in CANDIDATES.values() if len(names) > 1} == set(ARCHITECTURES)


def test_images_are_found_and_are_of_their_architecture(package: Path) -> None:
    (machine_code, ptx) = shipped(SPECS[0], (9, 0))
    assert (machine_code.architecture, machine_code.suffix) == ("sm_90", ".cubin")
    assert machine_code.content[:4] == b"\x7fELF"
    assert (ptx.architecture, ptx.suffix) == (PTX, ".ptx")
    assert b".target sm_75" in ptx.content
    assert b"unique_probe" in ptx.content
    (later,) = shipped(SPECS[0], (12, 0))
    assert later.architecture == PTX
    assert list(shipped(SPECS[0], (7, 0))) == []


def test_images_of_another_source_or_of_other_options_are_not_taken(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(shipped(ModuleSpec("residual.cu", (("RESIDUAL", "literal<bool>(true)"),)), (9, 0))) == []
    name, text = image_name(SPECS[0]), compiler.module_text(SPECS[0])
    monkeypatch.setattr(images, "module_text", lambda spec: text + "// edited\n")
    assert image_name(SPECS[0]) != name
    assert list(shipped(SPECS[0], (9, 0))) == []


def test_a_corrupt_image_is_told_and_left_out(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "_images"
    broken.mkdir()
    content = bytearray((package / "_images" / "sm_90.zip").read_bytes())
    with zipfile.ZipFile(package / "_images" / "sm_90.zip") as archive:
        start = archive.getinfo(image_name(SPECS[0])).header_offset
    content[start + 200] ^= 0xFF
    (broken / "sm_90.zip").write_bytes(content)
    (broken / f"{PTX}.zip").write_bytes(b"no archive")
    monkeypatch.setattr(images, "files", lambda name: tmp_path)
    images._archive.cache_clear()
    with caplog.at_level(logging.WARNING, "gpujoin"):
        assert list(shipped(SPECS[0], (9, 0))) == []
        (whole,) = shipped(SPECS[1], (9, 0))
    assert whole.architecture == "sm_90"
    assert "for sm_90 cannot be read" in caplog.text
    assert f"for {PTX} cannot be read" in caplog.text


def test_a_checkout_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "files", lambda name: tmp_path)
    images._archive.cache_clear()
    assert list(shipped(SPECS[0], (9, 0))) == []


def test_an_image_is_kept_as_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiler.CACHE_VARIABLE, str(tmp_path / "cache"))
    path = compiler.kept_image("name.sm_90.cubin", b"code")
    assert path.read_bytes() == b"code"
    assert path.parent == tmp_path / "cache"
    assert compiler.kept_image("name.sm_90.cubin", b"more code").read_bytes() == b"more code"


def test_conditions_are_not_shipped() -> None:
    sources = {spec.source for spec in images.shipped_specialisations()}
    assert "residual.cu" not in sources
    assert "machine.cu" not in sources
    assert "unique.cu" in sources


# -- on a device -----------------------------------------------------------------------------------------------


class Library:
    """A module as CuPy loads it: refused, as the driver does, if ``refused`` has its ending."""

    refused: tuple[str, ...] = ()

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def get_function(self, name: str) -> Any:
        if self.path.suffix in self.refused or self.path.name.startswith("refused"):
            raise RuntimeError("CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid")
        assert name.encode() in self.path.read_bytes()
        return SimpleNamespace(shared_size_bytes=0, max_dynamic_shared_size_bytes=0)


@pytest.fixture
def device(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """A device of compute capability 9.0, whose modules are files."""
    monkeypatch.setenv(compiler.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(cupy, "RawModule", Library)
    device = object.__new__(CudaDevice)  # to make one takes a GPU
    device._ordinal, device._capability, device._architecture = 0, (9, 0), "sm_90"
    device._properties = DeviceProperties(multiprocessors=1, shared_bytes=1 << 16, l2_bytes=1 << 20)
    device._modules, device._loading = {}, threading.Lock()
    return device


@pytest.mark.parametrize(
    ("refused", "origin"), [((), "sm_90"), ((".cubin",), PTX)], ids=["machine code", "PTX"],
)  # fmt: skip
def test_a_refused_image_gives_way_to_the_next(
    refused: tuple[str, ...], origin: str, device: CudaDevice, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(Library, "refused", refused)
    with caplog.at_level(logging.WARNING, "gpujoin"):
        kernel = device.kernel(SPECS[0], "unique_probe")
    assert device._modules[SPECS[0]].origin == origin
    assert device.kernel(SPECS[0], "unique_probe") is kernel
    assert ("device kernel image is invalid" in caplog.text) == bool(refused)


def test_nvrtc_comes_last(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def kept(name: str, content: bytes) -> Path:
        return compiler.kept_image(f"refused-{name}", content)

    monkeypatch.setattr("gpujoin.launch.cuda.kept_image", kept)
    with caplog.at_level(logging.WARNING, "gpujoin"):
        device.kernel(SPECS[0], "unique_probe")
    assert device._modules[SPECS[0]].origin == "NVRTC"
    assert caplog.text.count("is not used: CUDA_ERROR_INVALID_IMAGE") == 2


def test_what_came_compiled_is_not_compiled(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[ModuleSpec] = []
    monkeypatch.setattr("gpujoin.launch.cuda.compile_cubin", lambda spec, _: compiled.append(spec))
    other = ModuleSpec("residual.cu", (("RESIDUAL", "literal<bool>(true)"),))
    device.compile([SPECS[0], other], 1)
    assert compiled == [other]


def test_threads_load_a_module_once_and_keep_it(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes while it is loaded waits; what another thread may be running is never unloaded."""
    loads: list[ModuleSpec] = []

    def load(self: CudaDevice, module: ModuleSpec, name: str) -> LoadedModule:
        loads.append(module)
        time.sleep(0.01)
        return LoadedModule(None, "", {name: CudaKernel(name, module, None, 0)})

    monkeypatch.setattr(CudaDevice, "_load", load)
    modules = [ModuleSpec("unique.cu", (("NUMBER", number),)) for number in range(300)]
    with ThreadPoolExecutor(8) as pool:
        kernels = list(pool.map(lambda number: device.kernel(modules[number % 3], "k"), range(64)))
    assert sorted(loads, key=str) == sorted(modules[:3], key=str)
    assert len({id(kernel) for kernel in kernels}) == 3
    monkeypatch.setattr(time, "sleep", lambda _: None)
    for module in modules:
        device.kernel(module, "k")
    assert device.kernel(modules[0], "k") is kernels[0]
    assert len(loads) == len(modules)
