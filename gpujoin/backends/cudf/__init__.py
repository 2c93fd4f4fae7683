"""The GPU backend, which uses pylibcudf, RMM and CuPy. Importing it needs none of them, and no GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from gpujoin.backends.cudf import lost
from gpujoin.backends.cudf.discovery import (
    OLDEST_CUDA,
    driver_cuda_version,
    driver_too_old,
    installed_extra,
    suggested_extra,
    why_unavailable,
)
from gpujoin.errors import BackendUnavailableError

if TYPE_CHECKING:
    import pyarrow as pa

    from gpujoin.backends.cudf.arrowdevice import StreamCapsule, TableCapsules
    from gpujoin.backends.cudf.backend import CudfBackend
    from gpujoin.backends.cudf.frames import CudfFrame
    from gpujoin.backends.registry import BackendRequest
    from gpujoin.model.algorithm import Algorithm
    from gpujoin.model.backend import AnyBackend, KeptTables
    from gpujoin.model.pipeline import AnyDevicePipeline
    from gpujoin.model.reasons import Reason
    from gpujoin.model.relations import Relation

__all__ = [
    "OLDEST_CUDA", "adopt", "algorithm_rule", "allocated_bytes", "context_bytes", "create", "device_capsules",
    "device_pipeline", "driver_cuda_version", "export_arrow", "import_libraries", "installed_extra", "keep_tables",
    "lost_reason", "node_obstacles", "release_cached_memory", "share_memory", "suggested_extra", "to_library_table",
    "unavailable",
]  # fmt: skip


def unavailable() -> Reason | None:
    """Reason why the backend cannot be used in this process; ``None`` if it can. Makes no CUDA context."""
    return why_unavailable()


def create(request: BackendRequest) -> CudfBackend:
    """Make a backend on one GPU. After that, this process has a CUDA context and must not fork.

    Raises ``BackendUnavailableError`` if a GPU library cannot be imported, there is no such GPU, its driver is too old,
    CUDA cannot use it, or this process has lost it.
    """
    obstacle = lost.reason(request.device) or driver_too_old()
    if obstacle is not None:
        raise BackendUnavailableError(obstacle)
    with _unavailable_where_it_fails(f"GPU {request.device} cannot be used"):
        from gpujoin.backends.cudf.backend import CudfBackend
        from gpujoin.backends.cudf.device import Device
        from gpujoin.backends.cudf.pipeline.backend import DevicePipeline
        from gpujoin.backends.cudf.pipeline.library import CudfColumns

        def make_pipeline(backend: CudfBackend) -> DevicePipeline[CudfFrame]:
            return DevicePipeline(CudfColumns(backend), backend.device.entered, backend.device.memory_limit)

        return CudfBackend(Device(request.device, request.memory_limit, request.memory_share), make_pipeline)


def import_libraries() -> None:
    """Import the GPU libraries, which takes a second or two. Makes no CUDA context.

    Raises ``BackendUnavailableError`` if that fails.
    """
    with _unavailable_where_it_fails("the GPU libraries cannot be imported"):
        import gpujoin.backends.cudf.pipeline.library  # noqa: F401


@contextmanager
def _unavailable_where_it_fails(what: str) -> Iterator[None]:
    """Convert every error to ``BackendUnavailableError``: the libraries raise errors of classes of their own."""
    try:
        yield
    except BackendUnavailableError:
        raise
    except (Exception, SystemExit) as problem:
        message = f"{what}: {type(problem).__name__}: {problem}; run `gpujoin doctor` to see what is missing"
        raise BackendUnavailableError(message) from problem


def node_obstacles(node: Relation) -> tuple[Reason, ...]:
    """Reasons why a node cannot be computed on a GPU exactly as Spark would. Needs no GPU."""
    from gpujoin.backends.cudf.pipeline import offers

    return offers.node_obstacles(node)


def algorithm_rule(algorithm: Algorithm) -> str:
    """Describe in one line how a GPU will find the matches of a join with keys. Needs no GPU."""
    from gpujoin.backends.cudf.algorithm import rule

    return rule(algorithm)


def device_pipeline(backend: AnyBackend) -> AnyDevicePipeline:
    """Make the pipeline of a backend. Raises ``BackendUnavailableError`` if the backend has no GPU."""
    pipeline: AnyDevicePipeline | None = backend.pipeline
    if pipeline is None:
        raise BackendUnavailableError(f"the {backend.name.value} backend has no device; use backend='gpu'")
    return pipeline


def release_cached_memory(device: int) -> None:
    """Return device memory that no frame uses, for other processes. Does nothing before :func:`create`."""
    module = _device_module()
    if module is not None:
        module.release_cached_memory(device)


def share_memory(device: int, fraction: float, slots: int, contexts: int) -> int:
    """Limit this process to its share of a GPU's memory. Does nothing before :func:`create`.

    Parameters
    ----------
    device
        GPU ordinal.
    fraction
        Share of the memory that all tasks may take together.
    slots
        Tasks among which it is divided.
    contexts
        Bytes that the contexts of all processes on the GPU take. They and the tasks have to fit together.

    Returns
    -------
    int
        Bytes of the share that are for tables which processes keep there between tasks, all of them together.
    """
    module = _device_module()
    return 0 if module is None else int(module.share_memory(device, fraction, slots, contexts))


def keep_tables(device: int, tables: KeptTables) -> None:
    """Let go of tables where memory of a GPU is short, or the GPU is lost. Does nothing before :func:`create`."""
    module = _device_module()
    if module is not None:
        module.keep_tables(device, tables)


def allocated_bytes(device: int) -> int:
    """Bytes of a GPU that this process holds, its context not counted. 0 before :func:`create`."""
    module = _device_module()
    return 0 if module is None else int(module.allocated_bytes(device))


def context_bytes(device: int) -> int | None:
    """Bytes that this process takes of a GPU, by NVML; ``None`` if NVML does not tell, or before :func:`create`."""
    module = _device_module()
    return None if module is None else module.context_bytes(device)


def _device_module() -> Any:
    """The module of devices, if it was imported."""
    return sys.modules.get("gpujoin.backends.cudf.device")


def lost_reason(device: int) -> str | None:
    """Why this process cannot use a GPU any more; ``None`` if it can, as far as known."""
    return lost.reason(device)


def device_capsules(data: Any) -> TableCapsules | StreamCapsule | None:
    """Take a table on a GPU through its Arrow C device interface; ``None`` if it has none, or lies on the host."""
    from gpujoin.backends.cudf.arrowdevice import ON_GPU, capsules_of

    capsules = capsules_of(data)
    return None if capsules is None or capsules.device_type not in ON_GPU else capsules


def adopt(backend: AnyBackend, data: Any) -> tuple[CudfFrame, pa.Schema]:
    """View a table of pylibcudf, or one of :func:`device_capsules`, as a frame, with its schema."""
    from gpujoin.backends.cudf import adoption

    return adoption.adopt(cast("CudfBackend", backend), data)


def to_library_table(backend: AnyBackend, frame: CudfFrame) -> Any:
    """View a frame as a table of pylibcudf."""
    from gpujoin.backends.cudf import adoption

    with cast("CudfBackend", backend).device.entered():
        return adoption.to_library_table(frame)


def export_arrow(backend: AnyBackend, frame: CudfFrame, schema: pa.Schema) -> tuple[Any, Any]:
    """Give a frame out through the Arrow C device interface."""
    from gpujoin.backends.cudf import adoption

    with cast("CudfBackend", backend).device.entered():
        return adoption.export_arrow(frame, schema)
