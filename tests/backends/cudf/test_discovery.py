"""Finding out whether a GPU can be used, with no context made and nothing heavy imported."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpujoin.backends.cudf import discovery
from gpujoin.backends.registry import BackendRequest, create, unavailable
from gpujoin.errors import BackendUnavailableError, pip_install
from gpujoin.model.backend import BackendName
from gpujoin.model.reasons import ReasonKind


@pytest.mark.parametrize("value", ["", "-1", " ", "none", "void", "NoDevFiles", "-1,0"])
def test_an_environment_that_hides_all(value: str) -> None:
    assert "CUDA_VISIBLE_DEVICES" in str(discovery.hidden_by_environment({"CUDA_VISIBLE_DEVICES": value}))


@pytest.mark.parametrize("value", ["0", "1,0", "GPU-1234", "MIG-abc", "0,-1"])
def test_an_environment_that_names_one(value: str) -> None:
    assert discovery.hidden_by_environment({"CUDA_VISIBLE_DEVICES": value}) is None
    assert discovery.hidden_by_environment({}) is None


def test_devices_by_files(tmp_path: Path) -> None:
    assert discovery._device_files(tmp_path) == 0
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia11"):
        (tmp_path / "dev" / name).touch()
    assert discovery._device_files(tmp_path) == 2
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert discovery._device_files(tmp_path) == 1


def test_devices_of_a_windows_host(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert discovery._device_files(tmp_path) == 1


class Driver:
    """Stands for a shared library: any function gives a status and may write one number."""

    def __init__(self, status: int = 0, number: int = 0) -> None:
        self.status, self.number, self.called = status, number, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.called.append(name)
            for argument in arguments:
                argument._obj.value = self.number
            return self.status

        return function


def on_machine(monkeypatch: pytest.MonkeyPatch, libraries: dict[str, Any], files: int = 0) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(discovery, "_library", libraries.get)
    monkeypatch.setattr(discovery, "_device_files", lambda: files)


def test_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Driver(number=1)
    on_machine(monkeypatch, {"libcuda.so.1": Driver(), "libnvidia-ml.so.1": nvml})
    assert discovery.why_unavailable() is None
    assert nvml.called == ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlShutdown"]


@pytest.mark.parametrize(
    ("libraries", "files", "why"),
    [
        ({}, 0, "libcuda"),
        ({"libcuda.so.1": Driver(), "libnvidia-ml.so.1": Driver(number=0)}, 3, "no NVIDIA GPU"),
        ({"libcuda.so.1": Driver()}, 0, "no NVIDIA GPU"),
        ({"libcuda.so.1": Driver(), "libnvidia-ml.so.1": Driver(status=9)}, 0, "no NVIDIA GPU"),
        ({"libcuda.so.1": Driver(), "libnvidia-ml.so.1": Driver(status=9)}, 1, None),
        ({"libcuda.so.1": Driver()}, 2, None),
    ],
)
def test_what_is_missing(
    libraries: dict[str, Any], files: int, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_machine(monkeypatch, libraries, files)
    reason = discovery.why_unavailable()
    if why is None:
        assert reason is None
    else:
        assert reason is not None
        assert why in reason.why
        assert reason.kind is ReasonKind.UNAVAILABLE
    if "libcuda.so.1" in libraries:
        assert libraries["libcuda.so.1"].called == [], "the driver must not be initialised"


@pytest.mark.parametrize(("version", "extra"), [(13010, "cu13"), (13000, "cu13"), (12080, "cu12"), (None, "cu13")])
def test_missing_packages_name_the_extra(version: int | None, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rmm" else object())
    monkeypatch.setattr(discovery, "_library", lambda name: None if version is None else Driver(number=version))
    reason = discovery.why_unavailable()
    assert reason is not None
    assert pip_install(extra) in reason.why
    assert "rmm" in reason.why


def test_no_context_and_no_heavy_import() -> None:
    """In a fresh process: the question imports no GPU library, so a forked child can still use the device."""
    code = (
        "import sys; from gpujoin.backends.registry import unavailable; from gpujoin.model.backend import BackendName;"
        "print(unavailable(BackendName.GPU)); print([m for m in ('cupy', 'rmm', 'pylibcudf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_asked_for_without_a_gpu() -> None:
    reason = unavailable(BackendName.GPU)
    if reason is None:
        pytest.skip("this machine has a GPU")
    with pytest.raises(BackendUnavailableError, match="gpu backend"):
        create(BackendName.GPU, BackendRequest())


def test_libraries_that_cannot_be_loaded() -> None:
    assert discovery._library("libno-such-library.so.9") is None
    assert isinstance(discovery._library("libc.so.6"), ctypes.CDLL)
