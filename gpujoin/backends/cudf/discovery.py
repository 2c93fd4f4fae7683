"""Finds out whether the backend can be used in this process, without making a CUDA context.

Spark forks its Python workers, and a CUDA context does not survive a fork. So neither CuPy, RMM nor the CUDA runtime
may be called here. The CUDA driver library is only opened, and asked for its version, never initialised. Devices are
counted by NVML, which makes no context, or by the driver's files if NVML is missing, which is optional in containers.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from gpujoin.errors import pip_install
from gpujoin.model.reasons import Reason, ReasonKind

_PACKAGES = ("pylibcudf", "rmm", "cupy")
_NVML_SUCCESS = 0
OLDEST_CUDA = {"cu12": (12, 2), "cu13": (13, 0)}
"""The CUDA that a driver must run at least, by gpujoin's extra for GPUs."""


def why_unavailable() -> Reason | None:
    """Reason why this process cannot use the backend; ``None`` if it can, as far as known without a context."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        return _reason(f"the packages {', '.join(missing)} are not installed; {pip_install(suggested_extra())}")
    if hidden := hidden_by_environment(os.environ):
        return _reason(f"no GPU is visible: {hidden}")
    driver = _library("libcuda.so.1")
    if driver is None:
        return _reason(
            "there is no NVIDIA driver: libcuda.so.1 cannot be loaded; in a container, start it with the NVIDIA "
            "runtime and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
    count = _nvml_devices()
    if count is None:
        count = _device_files()
    return _reason("there is no NVIDIA GPU on this machine") if count == 0 else None


def suggested_extra() -> str:
    """The extra of gpujoin for the installed driver: ``cu12`` for drivers older than CUDA 13."""
    cuda = driver_cuda_version()
    return "cu12" if cuda is not None and cuda < OLDEST_CUDA["cu13"] else "cu13"


def installed_extra() -> str | None:
    """The installed one of gpujoin's extras for GPUs; ``None`` without pylibcudf, or with another build of it."""
    for extra in OLDEST_CUDA:
        try:
            importlib.metadata.distribution(f"pylibcudf-{extra}")
        except importlib.metadata.PackageNotFoundError:
            continue
        return extra
    return None


def driver_cuda_version() -> tuple[int, int] | None:
    """The newest CUDA that the installed driver runs, such as ``(13, 0)``; ``None`` without a driver."""
    driver = _library("libcuda.so.1")
    version = ctypes.c_int(0)
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value == 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


def driver_too_old() -> str | None:
    """Describe a driver that is too old for the installed packages; ``None`` if it is not, as far as known."""
    cuda, extra = driver_cuda_version(), installed_extra()
    if cuda is None or extra is None or cuda >= OLDEST_CUDA[extra]:
        return None
    reason = (
        f"the NVIDIA driver is too old: it runs CUDA {cuda[0]}.{cuda[1]}, and the packages of the extra {extra} need "
        f"{OLDEST_CUDA[extra][0]}.{OLDEST_CUDA[extra][1]}; update it"
    )
    return reason if cuda < OLDEST_CUDA["cu12"] else f"{reason}, or {pip_install('cu12')} in their place"


def hidden_by_environment(environment: Mapping[str, str]) -> str | None:
    """Describe how the environment hides every GPU from CUDA; ``None`` if it does not.

    ``CUDA_VISIBLE_DEVICES`` hides all GPUs if it is set but does not start with a device (empty, ``-1``,
    ``NoDevFiles``).
    """
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    first = value.split(",")[0].strip()
    if first in ("", "-1") or first.lower() in ("none", "void", "nodevfiles"):
        return f"CUDA_VISIBLE_DEVICES={value!r}; unset it, or name a device"
    return None


def _reason(why: str) -> Reason:
    return Reason(ReasonKind.UNAVAILABLE, "gpu backend", why, "spark.gpujoin.backend")


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _nvml_devices() -> int | None:
    nvml = _library("libnvidia-ml.so.1")
    if nvml is None or nvml.nvmlInit_v2() != _NVML_SUCCESS:
        return None
    try:
        count = ctypes.c_uint(0)
        return int(count.value) if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == _NVML_SUCCESS else None
    finally:
        nvml.nvmlShutdown()


def _device_files(root: Path = Path("/")) -> int:
    """Device files of the kernel driver; ``/dev/dxg`` stands for the GPUs of a Windows host."""
    listed = root / "proc/driver/nvidia/gpus"
    if listed.is_dir():
        return len(list(listed.iterdir()))
    return len(list((root / "dev").glob("nvidia[0-9]*"))) or int((root / "dev/dxg").exists())
