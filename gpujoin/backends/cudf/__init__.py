"""The GPU backend, which uses pylibcudf, RMM and CuPy. Importing it needs none of them, and no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpujoin.backends.cudf.discovery import why_unavailable
from gpujoin.errors import BackendUnavailableError

if TYPE_CHECKING:
    from gpujoin.backends.cudf.backend import CudfBackend
    from gpujoin.backends.cudf.frames import CudfFrame
    from gpujoin.backends.cudf.pipeline.backend import DevicePipeline
    from gpujoin.backends.registry import BackendRequest
    from gpujoin.model.reasons import Reason
    from gpujoin.model.relations import Relation


def unavailable() -> Reason | None:
    """Reason why the backend cannot be used in this process; ``None`` if it can. Makes no CUDA context."""
    return why_unavailable()


def create(request: BackendRequest) -> CudfBackend:
    """Make a backend on one GPU. After that, this process has a CUDA context and must not fork.

    Raises ``BackendUnavailableError`` if a GPU library cannot be imported, there is no such GPU, or CUDA cannot use it.
    """
    with _unavailable_where_it_fails(f"GPU {request.device} cannot be used"):
        from gpujoin.backends.cudf.backend import CudfBackend
        from gpujoin.backends.cudf.device import Device

        return CudfBackend(Device(request.device, request.memory_limit, request.memory_share))


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
    except Exception as problem:
        told = f"{what}: {type(problem).__name__}: {problem}; run `gpujoin doctor` to see what is missing"
        raise BackendUnavailableError(told) from problem


def node_obstacles(node: Relation) -> tuple[Reason, ...]:
    """Reasons why a node cannot be computed on a GPU exactly as Spark would. Needs no GPU."""
    from gpujoin.backends.cudf.pipeline import offers

    return offers.node_obstacles(node)


def device_pipeline(backend: CudfBackend) -> DevicePipeline[CudfFrame]:
    """Make the pipeline backend on top of a backend."""
    from gpujoin.backends.cudf.pipeline.backend import DevicePipeline
    from gpujoin.backends.cudf.pipeline.library import CudfColumns

    return DevicePipeline(CudfColumns(backend), backend.device.entered, backend.device.memory_limit)


def release_cached_memory(device: int) -> None:
    """Return device memory that no frame uses, for other processes. Does nothing before :func:`create`."""
    import sys

    module = sys.modules.get("gpujoin.backends.cudf.device")
    if module is not None:
        module.release_cached_memory(device)
