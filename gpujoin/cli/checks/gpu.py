"""GPUs, the driver, and the libraries that use them."""

from __future__ import annotations

from collections.abc import Iterator

from gpujoin.backends.cudf import OLDEST_CUDA, driver_cuda_version, installed_extra, suggested_extra
from gpujoin.cli.checks import Check, Status, import_check, run_python
from gpujoin.config import Options
from gpujoin.errors import BackendUnavailableError, ConfigurationError, pip_install
from gpujoin.spark.discovery import Gpu, list_gpus
from gpujoin.spark.worker.slots import GpuSlots

_OLDEST_CAPABILITY = {"cu12": (7, 0), "cu13": (7, 5)}
_OLDEST_GPU = {(7, 0): "7.0 (Volta)", (7, 5): "7.5 (Turing)"}
_GIB = 1 << 30

GPU_LIBRARIES = (("pylibcudf", "26.10", "26.11"), ("rmm", "26.10", "26.11"), ("cupy", "14.2", "15"))

_SELF_TEST = """
import pyarrow as pa, pylibcudf as plc
keys = plc.Table([plc.Column.from_arrow(pa.array([1, 2, 3]))])
left, right = plc.join.inner_join(keys, keys, plc.types.NullEquality.UNEQUAL)
assert left.size() == 3, f"a join of 3 x 3 rows gave {left.size()} rows instead of 3"
import cupy
assert int(cupy.arange(4).sum()) == 6
print("a join of 3 x 3 rows is right")
"""


def gpu() -> Iterator[Check]:
    """The GPUs of this machine, the driver, the libraries, and a small join on the device."""
    gpus: tuple[Gpu, ...] = ()
    cuda = driver_cuda_version()
    extra = installed_extra() or suggested_extra()
    try:
        gpus = list_gpus()
    except BackendUnavailableError as problem:
        problem_text, _, advice = str(problem).partition(". ")
        yield Check("gpu", Status.MISSING, problem_text, advice)
    for device in gpus:
        yield _device(device, extra)
    if gpus:
        yield _driver(gpus[0], cuda, extra)
    libraries = [
        import_check(module, minimum=minimum, below=below, advice=pip_install(extra))
        for module, minimum, below in GPU_LIBRARIES
    ]
    yield from libraries
    if gpus and all(check.status is Status.OK for check in libraries):
        works, said = run_python(_SELF_TEST, timeout=120)
        advice = "" if works else f"Check that the driver fits the installed libraries: {pip_install(extra)}"
        yield Check("gpu self test", Status.OK if works else Status.MISSING, said, advice)
    yield _slots(gpus)


def _device(device: Gpu, extra: str) -> Check:
    free = device.memory_total - device.memory_used
    memory = (
        f"{device.name}, {device.memory_total / _GIB:.1f} GiB ({free / _GIB:.1f} free), "
        f"compute capability {device.compute_capability}"
    )
    name = f"gpu {device.index}"
    capability = tuple(int(part) for part in device.compute_capability.split(".") if part.isdigit())
    oldest = _OLDEST_CAPABILITY[extra]
    if capability and capability < oldest:
        advice = f"cuDF of {extra} needs a GPU of compute capability {_OLDEST_GPU[oldest]} or newer."
        if capability >= _OLDEST_CAPABILITY["cu12"]:
            advice += " Or install the extra cu12 in its place."
        return Check(name, Status.MISSING, memory, advice)
    if device.memory_total and free < _GIB:
        return Check(name, Status.WARNING, memory, "Less than 1 GiB is free: see nvidia-smi for who holds the rest.")
    return Check(name, Status.OK, memory)


def _driver(device: Gpu, cuda: tuple[int, int] | None, extra: str) -> Check:
    if cuda is None:
        return Check(
            "driver", Status.MISSING, f"{device.driver_version}, but libcuda.so.1 cannot be loaded",
            "In a container, give it the driver's compute libraries: NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )  # fmt: skip
    versions = f"{device.driver_version}, CUDA {cuda[0]}.{cuda[1]}"
    oldest = OLDEST_CUDA[extra]
    if cuda < oldest:
        advice = f"Update the NVIDIA driver to one for CUDA {oldest[0]}.{oldest[1]} or newer."
        if cuda >= OLDEST_CUDA["cu12"]:
            advice += " Or install the extra cu12 in its place."
        return Check("driver", Status.MISSING, versions, advice)
    return Check("driver", Status.OK, versions)


def _slots(gpus: tuple[Gpu, ...]) -> Check:
    each = Options().gpu_concurrent_tasks
    try:
        slots = GpuSlots(each)
        count = sum(slots.count_held(device.index) for device in gpus)
    except ConfigurationError as problem:
        state, _, advice = str(problem).partition(". ")
        return Check("gpu slots", Status.MISSING, state, advice)
    if not gpus:
        return Check("gpu slots", Status.OK, f"none without a GPU; lock files would be in {slots.directory}")
    state = f"{each * len(gpus)}, {count} taken; lock files in {slots.directory}"
    if any(device.exclusive for device in gpus):
        return Check(
            "gpu slots", Status.WARNING, f"{state}, but a GPU admits one process only, so one worker has it",
            "Use nvidia-smi --compute-mode=DEFAULT, or NVIDIA's MPS.",
        )  # fmt: skip
    return Check("gpu slots", Status.OK, state)
