"""Makes backends by name, and imports them at the first use."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from gpujoin.errors import BackendUnavailableError
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.backend import AnyBackend, BackendName, ColumnEvaluator, Grouper, KeptTables
from gpujoin.model.pipeline import AnyDevicePipeline, AnyPipelineBackend, Rung
from gpujoin.model.reasons import Reason
from gpujoin.model.relations import Relation

_MODULES = {BackendName.CPU: "gpujoin.backends.cpu", BackendName.GPU: "gpujoin.backends.cudf"}


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """Parameters of a backend."""

    threads: int = 1
    """CPU threads to use."""
    device: int = 0
    """GPU ordinal; ignored by the CPU backend."""
    memory_limit: int | None = None
    """Most device memory to use, in bytes; ``None``: what the share says."""
    memory_share: float | None = None
    """Most device memory to use, as a share of all that the device has; ``None``: the backend decides."""


def unavailable(name: BackendName) -> Reason | None:
    """Reason why a backend cannot be used in this process; ``None`` if it can.

    Fast, and safe to call before a fork: no device context is created.
    """
    return importlib.import_module(_MODULES[name]).unavailable()


def create(name: BackendName, request: BackendRequest) -> AnyBackend:
    """Make a backend.

    Raises ``BackendUnavailableError`` if packages are missing, or there is no device; the message says what to
    install.
    """
    reason = unavailable(name)
    if reason is not None:
        raise BackendUnavailableError(str(reason))
    return importlib.import_module(_MODULES[name]).create(request)


def import_gpu_libraries() -> None:
    """Import what the GPU backend computes with. Raises ``BackendUnavailableError`` if that fails."""
    importlib.import_module(_MODULES[BackendName.GPU]).import_libraries()


def release_cached_memory(device: int) -> None:
    """Return unused memory of a GPU to other processes. Does nothing before a backend was made on it."""
    importlib.import_module(_MODULES[BackendName.GPU]).release_cached_memory(device)


def share_memory(device: int, fraction: float, slots: int, contexts: int) -> int:
    """Limit this process to its share of a GPU's memory. Does nothing before a backend was made on it.

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
    module = importlib.import_module(_MODULES[BackendName.GPU])
    kept: int = module.share_memory(device, fraction, slots, contexts)
    return kept


def keep_tables(device: int, tables: KeptTables) -> None:
    """Let go of tables where memory of a GPU is short, or the GPU is lost. Does nothing before a backend was made."""
    importlib.import_module(_MODULES[BackendName.GPU]).keep_tables(device, tables)


def allocated_bytes(device: int) -> int:
    """Bytes of a GPU that this process holds, its context not counted. 0 before a backend was made on it."""
    nbytes: int = importlib.import_module(_MODULES[BackendName.GPU]).allocated_bytes(device)
    return nbytes


def context_bytes(device: int) -> int | None:
    """Bytes that this process takes of a GPU, by NVML; ``None`` if NVML does not tell."""
    nbytes: int | None = importlib.import_module(_MODULES[BackendName.GPU]).context_bytes(device)
    return nbytes


def lost_reason(device: int) -> str | None:
    """Why this process cannot use a GPU any more, which it has used; ``None`` if it can, as far as known."""
    told: str | None = importlib.import_module(_MODULES[BackendName.GPU]).lost_reason(device)
    return told


def create_pipeline(request: BackendRequest, rung: Rung = Rung.FAST) -> AnyPipelineBackend:
    """Make the pipeline backend of the CPU."""
    return importlib.import_module(_MODULES[BackendName.CPU]).create_pipeline(request, rung)


def device_pipeline(backend: AnyBackend) -> AnyDevicePipeline:
    """Make the pipeline backend of a GPU. Raises ``BackendUnavailableError`` if the backend is not that of a GPU."""
    if backend.name is not BackendName.GPU:
        raise BackendUnavailableError(f"the {backend.name.value} backend has no device; use backend='gpu'")
    return importlib.import_module(_MODULES[BackendName.GPU]).device_pipeline(backend)


def device_obstacles(node: Relation) -> tuple[Reason, ...]:
    """Reasons why a node cannot be computed on a GPU exactly as Spark would. Needs no GPU."""
    reasons: tuple[Reason, ...] = importlib.import_module(_MODULES[BackendName.GPU]).node_obstacles(node)
    return reasons


def algorithm_rule(asked: Algorithm) -> str:
    """Describe in one line how a GPU will find the matches of a join with keys. Needs no GPU."""
    rule: str = importlib.import_module(_MODULES[BackendName.GPU]).algorithm_rule(asked)
    return rule


def host_evaluator() -> ColumnEvaluator:
    """The function that computes single expressions on the host, exactly as Spark would."""
    evaluator: ColumnEvaluator = importlib.import_module(_MODULES[BackendName.CPU]).column_evaluator()
    return evaluator


def host_grouper(codes: Any) -> Grouper:
    """Number the rows of an Arrow table of key codes by key, on the host."""
    grouper: Grouper = importlib.import_module(_MODULES[BackendName.CPU]).grouper(codes)
    return grouper


def device_capsules(data: Any) -> Any | None:
    """Take a table on a GPU through its Arrow C device interface; ``None`` if it has none, or lies on the host."""
    return importlib.import_module(_MODULES[BackendName.GPU]).device_capsules(data)


def adopted(backend: AnyBackend, data: Any) -> tuple[Any, Any]:
    """View a table of pylibcudf, or one of :func:`device_capsules`, as a frame of a GPU's backend, with its schema."""
    frame_and_schema: tuple[Any, Any] = importlib.import_module(_MODULES[BackendName.GPU]).adopted(backend, data)
    return frame_and_schema


def as_library_table(backend: AnyBackend, frame: Any) -> Any:
    """View a frame of a GPU's backend as a table of pylibcudf."""
    return importlib.import_module(_MODULES[BackendName.GPU]).as_library_table(backend, frame)


def exported(backend: AnyBackend, frame: Any, schema: Any) -> tuple[Any, Any]:
    """Give a frame of a GPU's backend out through the Arrow C device interface."""
    capsules: tuple[Any, Any] = importlib.import_module(_MODULES[BackendName.GPU]).exported(backend, frame, schema)
    return capsules
