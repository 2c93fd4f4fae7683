"""Allocates a backend to a task: a GPU if a slot is free in time, else the CPU, with the reason."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gpujoin.backends import cudf, registry
from gpujoin.backends.registry import BackendRequest
from gpujoin.config import BackendChoice, FallbackMode, Options
from gpujoin.errors import BackendUnavailableError, DeviceMemoryError
from gpujoin.logs import warn_once
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.pipeline import AnyDevicePipeline
from gpujoin.spark.worker.slots import GpuSlots, Slot

if TYPE_CHECKING:
    from gpujoin.engine.pipeline.resident import ResidentTables

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MIG = "MIG-"


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as this process sees it."""

    name: str
    """The same for all processes of the host: an index of the driver, or a UUID."""
    ordinal: int
    """CUDA's number for it in this process."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The backend of a task, with its GPU slot."""

    backend: AnyBackend
    """The backend; it lives as long as the process."""
    slot: Slot | None = None
    """The GPU slot that the task holds."""
    waited: float = 0.0
    """Seconds of waiting for a slot."""
    notes: tuple[str, ...] = ()
    """Why the backend is the CPU, if a GPU was to be used."""
    residents: ResidentTables | None = None
    """Tables that this process keeps on the GPU."""


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """The place of a task's pipelines: a GPU or the CPU."""

    allocation: Allocation
    """The backend that the task got."""
    device: AnyDevicePipeline | None
    """Its pipelines; ``None``: they run on the CPU."""
    options: Options
    """Options for :func:`gpujoin.engine.pipeline.run`."""


def devices(addresses: Sequence[str], environment: Mapping[str, str] = os.environ) -> tuple[Device, ...]:
    """Find the GPUs that a task may use: those that Spark assigned, or else those visible to it.

    ``CUDA_VISIBLE_DEVICES`` may renumber GPUs: an address that it lists has its position there as ordinal. An address
    it does not list means what is visible under that number, as in containers whose discovery script saw only their
    own GPUs. Of several MIG instances there CUDA shows a process the first one only.
    """
    text = environment.get(_VISIBLE)
    visible = None if text is None else [part.strip() for part in text.split(",") if part.strip()]
    if visible and visible[0].startswith(_MIG):
        visible = visible[:1]
    if visible is None:
        if addresses:
            return tuple(Device(address, int(address) if address.isdigit() else 0) for address in addresses)
        count = sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
        return tuple(Device(str(ordinal), ordinal) for ordinal in range(count))
    if not addresses:
        return tuple(Device(name, ordinal) for ordinal, name in enumerate(visible))
    usable: list[Device] = []
    for address in addresses:
        if address in visible:
            usable.append(Device(address, visible.index(address)))
        elif address.isdigit() and int(address) < len(visible):
            usable.append(Device(visible[int(address)], int(address)))
    return tuple(usable)


@contextmanager
def allocate_backend(options: Options, addresses: Sequence[str], task: str | None = None) -> Iterator[Allocation]:
    """Choose a task's backend, and hold its GPU slot until the end of the ``with`` block.

    Workers of the other stages of ``task`` share a slot with this one. Raises ``BackendUnavailableError`` if
    ``backend`` is ``gpu`` and this process can use none; or if no slot gets free and ``fallback`` is ``raise``.
    """
    if options.backend is BackendChoice.CPU:
        yield Allocation(_cpu(options))
        return
    with ExitStack() as stack:
        try:
            allocation = _on_gpu(options, addresses, task, stack)
        except (BackendUnavailableError, DeviceMemoryError) as problem:
            if options.backend is BackendChoice.GPU:
                raise
            stack.close()  # the slot is not for a task on the CPU
            gpus = addresses or devices(())  # a machine that has no GPU needs no explanation
            notes = (f"on the CPU: {problem}",) if gpus else ()
            for note in notes:
                warn_once(note)
            allocation = Allocation(_cpu(options), notes=notes)
        yield allocation


@contextmanager
def allocate_device(options: Options, addresses: Sequence[str], task: str | None = None) -> Iterator[DeviceAllocation]:
    """Choose where a task's pipelines run, and hold its GPU slot until the end of the ``with`` block.

    Parameters and errors are those of :func:`allocate_backend`.
    """
    with allocate_backend(options, addresses, task) as allocation:
        if allocation.backend.name is BackendName.GPU:
            yield DeviceAllocation(allocation, cudf.device_pipeline(allocation.backend), options)
        else:
            yield DeviceAllocation(allocation, None, options.replace(backend=BackendChoice.CPU))


def _on_gpu(options: Options, addresses: Sequence[str], task: str | None, stack: ExitStack) -> Allocation:
    usable = devices(addresses)
    if not any(_is_made(device, options) for device in usable):
        reason = registry.unavailable(BackendName.GPU)
        if reason is not None:
            raise BackendUnavailableError(str(reason))
    if not usable:
        raise BackendUnavailableError(
            f"no GPU is visible here (Spark assigned {list(addresses)}, {_VISIBLE}={os.environ.get(_VISIBLE)!r}). Give "
            "the executors GPUs, or set spark.gpujoin.backend to cpu."
        )
    losses = {device.name: cudf.lost_reason(device.ordinal) for device in usable}
    usable = tuple(device for device in usable if losses[device.name] is None)
    if not usable:
        raise BackendUnavailableError("; ".join(reason for reason in losses.values() if reason is not None))
    slots = GpuSlots(options.gpu_concurrent_tasks)
    refused = _start(usable, options, slots)
    while True:
        names = [device.name for device in usable]
        timeout = options.gpu_slot_timeout if refused is None else 0.0
        slot = slots.acquire(names, timeout, task, _preference(usable, options))
        if slot is None:
            return _without_slot(names, options, refused)
        device = next(device for device in usable if device.name == slot.gpu)
        try:
            backend = _gpu(device, options, slots)
        except BackendUnavailableError as problem:
            slot.release()
            if slot.shared and options.fallback is not FallbackMode.RAISE:
                note = f"GPU {slot.gpu} admits no second process of this task: {problem}"
                return Allocation(_cpu(options), notes=(f"on the CPU: {note}",))
            _refusing.add(slot.gpu)
            usable = tuple(other for other in usable if other != device)
            if not usable:
                raise
            continue
        stack.enter_context(slot)
        # More processes than slots share a GPU over time: what this one's pool keeps would be missing to the next.
        stack.callback(cudf.release_cached_memory, device.ordinal)
        contexts = slots.context_bytes(device.name)
        fraction, tasks = options.gpu_memory_fraction, options.gpu_concurrent_tasks
        room = cudf.share_memory(device.ordinal, fraction, tasks, contexts)
        return Allocation(backend, slot, slot.waited, residents=_residents(device, slots, slot, room, stack))


def _residents(device: Device, slots: GpuSlots, slot: Slot, room: int, stack: ExitStack) -> ResidentTables:
    """Give the tables that this process keeps on a GPU, within the room for them in a slot's share of the memory.

    What is kept counts in the share of the slot that was held last: whoever holds another one has its share.
    """
    from gpujoin.engine.pipeline.resident import resident_tables

    tables = resident_tables(device.ordinal)
    place = slots.directory, device.name
    with _lock:
        if place not in _kept_files:
            _kept_files[place] = slots.kept_file(device.name)

    def within(limit: int) -> int:
        tables.limit = limit
        tables.fit()
        return tables.nbytes

    def counted(limit: int) -> int:
        """Count the bytes, by RMM, that are still allocated when a task has ended: those of kept tables."""
        within(limit)
        if tables.nbytes and cudf.allocated_bytes(device.ordinal) > limit:
            gc.collect()  # frames of the task may be left in cycles
        while cudf.allocated_bytes(device.ordinal) > limit and tables.drop():
            pass
        return cudf.allocated_bytes(device.ordinal) if tables.nbytes else 0

    slots.keep(slot, _kept_files[place], room, within)
    stack.callback(slots.keep, slot, _kept_files[place], room, counted)
    return tables


def _start(usable: Sequence[Device], options: Options, slots: GpuSlots) -> BackendUnavailableError | None:
    """Load the GPU's libraries, and make the backend if there is one GPU. Returns the error if that fails.

    That takes seconds, in which another task may use the slot. What fails without a slot fails with one too, and is
    not waited for.
    """
    try:
        if len(usable) == 1:
            _gpu(usable[0], options, slots)
        else:
            cudf.import_libraries()
    except BackendUnavailableError as problem:
        return problem
    return None


def _preference(usable: Sequence[Device], options: Options) -> list[str]:
    """Give the GPUs to try first: those on which this process has a context, else those that never refused it one."""
    with_context = [device.name for device in usable if _is_made(device, options)]
    return with_context or [device.name for device in usable if device.name not in _refusing]


def _without_slot(names: Sequence[str], options: Options, refused: BackendUnavailableError | None) -> Allocation:
    if refused is not None:
        raise refused
    note = (
        f"no slot on GPU {', '.join(names)} got free within {options.gpu_slot_timeout:g} s (change with "
        "spark.gpujoin.gpu.slotTimeout or spark.gpujoin.gpu.concurrentTasks)"
    )
    if options.backend is BackendChoice.GPU and options.fallback is FallbackMode.RAISE:
        raise BackendUnavailableError(note)
    return Allocation(_cpu(options), waited=options.gpu_slot_timeout, notes=(f"on the CPU: {note}",))


def _is_made(device: Device, options: Options) -> bool:
    """Whether this process has a backend on a GPU."""
    return (BackendName.GPU, _gpu_request(device.ordinal, options)) in _backends


_lock = threading.Lock()
_backends: dict[tuple[BackendName, BackendRequest], AnyBackend] = {}
_contexts: dict[tuple[Path, str], IO[bytes]] = {}
"""Files by which this process tells others of its contexts, by directory and GPU; held as long as it lives."""
_kept_files: dict[tuple[Path, str], IO[bytes]] = {}
"""Files by which this process tells others what tables it keeps, by directory and GPU."""
_refusing: set[str] = set()
"""GPUs on which this process could not make a context when it tried last."""


def _cpu(options: Options) -> AnyBackend:
    return _make(BackendName.CPU, BackendRequest(threads=options.cpu_threads or 1))


def _gpu(device: Device, options: Options, slots: GpuSlots) -> AnyBackend:
    """Give the backend of a GPU, which is made if need be, and count its context."""
    backend = _make(BackendName.GPU, _gpu_request(device.ordinal, options))
    _refusing.discard(device.name)
    with _lock:
        if (slots.directory, device.name) not in _contexts:
            nbytes = cudf.context_bytes(device.ordinal)
            context_bytes = options.gpu_context_bytes if nbytes is None else nbytes
            _contexts[slots.directory, device.name] = slots.count_context(device.name, context_bytes)
    return backend


def _gpu_request(ordinal: int, options: Options) -> BackendRequest:
    """A backend of a GPU, limited to one slot's share of its memory."""
    return BackendRequest(device=ordinal, memory_share=options.gpu_memory_fraction / options.gpu_concurrent_tasks)


def _make(name: BackendName, request: BackendRequest) -> AnyBackend:
    with _lock:
        if (name, request) not in _backends:
            _backends[name, request] = registry.create(name, request)
        return _backends[name, request]
