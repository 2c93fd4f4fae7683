"""Backends by name, imported when first asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from gpujoin.errors import BackendUnavailableError
from gpujoin.model.backend import AnyBackend, BackendName, ColumnEvaluator, Grouper
from gpujoin.model.expressions import Expression
from gpujoin.model.pipeline import AnyDevicePipeline, AnyPipelineBackend, Rung
from gpujoin.model.reasons import Reason
from gpujoin.model.relations import Relation

_MODULES = {BackendName.CPU: "gpujoin.backends.cpu", BackendName.GPU: "gpujoin.backends.cudf"}


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """What a backend needs to know to be made.

    Attributes
    ----------
    threads : int
        CPU threads to use.
    device : int
        GPU ordinal; ignored by the CPU backend.
    memory_limit : int or None
        Most device memory to use, in bytes; ``None``: the backend decides.
    """

    threads: int = 1
    device: int = 0
    memory_limit: int | None = None


def unavailable(name: BackendName) -> Reason | None:
    """Why a backend cannot be used in this process, or ``None`` if it can.

    Cheap, and safe to call before a fork: no device context is created.
    """
    return importlib.import_module(_MODULES[name]).unavailable()


def create(name: BackendName, request: BackendRequest) -> AnyBackend:
    """Make a backend.

    Raises
    ------
    BackendUnavailableError
        If its packages are not installed or it has no device; the message says what to install.
    """
    reason = unavailable(name)
    if reason is not None:
        raise BackendUnavailableError(str(reason))
    return importlib.import_module(_MODULES[name]).create(request)


def release_cached_memory(device: int) -> None:
    """Give memory of a GPU that nothing uses back to other processes; a no-op before a backend was made on it."""
    importlib.import_module(_MODULES[BackendName.GPU]).release_cached_memory(device)


def create_pipeline(request: BackendRequest, rung: Rung = Rung.FAST) -> AnyPipelineBackend:
    """Make the pipeline of the CPU, which computes every node that is computed at all."""
    return importlib.import_module(_MODULES[BackendName.CPU]).create_pipeline(request, rung)


def device_pipeline(backend: AnyBackend) -> AnyDevicePipeline:
    """Make the pipeline of a GPU backend.

    Raises
    ------
    BackendUnavailableError
        If the backend is none of a GPU.
    """
    if backend.name is not BackendName.GPU:
        raise BackendUnavailableError(f"the {backend.name.value} backend has no device; use backend='gpu'")
    return importlib.import_module(_MODULES[BackendName.GPU]).device_pipeline(backend)


def device_obstacles(node: Relation) -> tuple[Reason, ...]:
    """Why one node of a pipeline cannot be computed on a GPU exactly as Spark would; safe to ask without one."""
    reasons: tuple[Reason, ...] = importlib.import_module(_MODULES[BackendName.GPU]).node_obstacles(node)
    return reasons


def device_compiles(condition: Expression) -> bool:
    """Whether a GPU backend has kernels that test a resolved condition; safe to ask without a GPU."""
    return bool(importlib.import_module(_MODULES[BackendName.GPU]).compiles(condition))


def host_evaluator() -> ColumnEvaluator:
    """What computes single expressions on the host, exactly as Spark would; it always can be made."""
    evaluator: ColumnEvaluator = importlib.import_module(_MODULES[BackendName.CPU]).column_evaluator()
    return evaluator


def host_grouper(codes: Any) -> Grouper:
    """Number the rows of an Arrow table of key codes by key, on the host."""
    grouper: Grouper = importlib.import_module(_MODULES[BackendName.CPU]).grouper(codes)
    return grouper
