"""Cores, memory, disks and limits of this host or container."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpujoin.cli.checks import Check, Status

_GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc/self")
_LEAST_MEMORY = 4 * _GIB
_LEAST_DISK = 5 * _GIB
_LEAST_FILES = 4096


def host() -> Iterator[Check]:
    """Cores, memory, shared memory, spill directories, and limits of the process; nothing where there is no /proc."""
    if not _PROC.is_dir():
        return
    yield _cores()
    yield _memory()
    yield _shared_memory(Path("/dev/shm"))  # noqa: S108  # it is what is looked at
    for directory in local_directories():
        yield _local_disk(directory)
    yield from _limits()


def _cores() -> Check:
    usable = len(os.sched_getaffinity(0))
    quota = _first_line(_CGROUP / "cpu.max").split()
    if len(quota) == 2 and all(part.isdigit() for part in quota):
        share = int(quota[0]) / int(quota[1])
        if share < usable:
            return Check("cores", Status.OK, f"{share:g} (a container's share of {usable})")
    return Check("cores", Status.OK, str(usable))


def _memory() -> Check:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    total = int(fields["MemTotal"].split()[0]) << 10
    available = int(fields["MemAvailable"].split()[0]) << 10
    amounts = f"{total / _GIB:.1f} GiB, {available / _GIB:.1f} available"
    limit = _first_line(_CGROUP / "memory.max")
    if limit.isdigit() and int(limit) < total:
        total = int(limit)
        amounts = f"{total / _GIB:.1f} GiB (the container's limit)"
    if min(total, available) < _LEAST_MEMORY:
        return Check("memory", Status.WARNING, amounts, "Less than 4 GiB: lower spark.gpujoin.memoryBudget.")
    return Check("memory", Status.OK, amounts)


def _shared_memory(path: Path) -> Check:
    if not os.access(path, os.W_OK):
        advice = f"Mount a tmpfs on {path}; for Docker: --shm-size=1g"
        return Check(str(path), Status.WARNING, "missing or not writable", advice)
    return Check(str(path), Status.OK, f"{shutil.disk_usage(path).total / _GIB:.2f} GiB")


def local_directories() -> list[Path]:
    """Where Spark and gpujoin keep their local files, in Spark's order of precedence; never empty."""
    for variable in ("SPARK_EXECUTOR_DIRS", "LOCAL_DIRS", "SPARK_LOCAL_DIRS"):
        folders = os.environ.get(variable, "")
        names = [part for part in folders.replace(":", ",").split(",") if part]
        if names:
            return [Path(name) for name in names]
    return [Path(tempfile.gettempdir())]


def _local_disk(directory: Path) -> Check:
    name = f"local disk {directory}"
    advice = "Set SPARK_LOCAL_DIRS to a directory on a large local disk."
    if not directory.is_dir() or not os.access(directory, os.W_OK):
        return Check(name, Status.MISSING, "not a writable directory", advice)
    free = shutil.disk_usage(directory).free
    kind = _file_system(directory)
    free_space = f"{free / _GIB:.1f} GiB free ({kind})"
    if kind == "tmpfs":
        return Check(name, Status.WARNING, f"{free_space}: spilling there takes memory", advice)
    if free < _LEAST_DISK:
        return Check(name, Status.WARNING, free_space, f"Less than 5 GiB to spill to. {advice}")
    return Check(name, Status.OK, free_space)


def _file_system(directory: Path) -> str:
    """The type of the file system whose mount point is the nearest above the directory."""
    best, kind = "", "unknown"
    real = directory.resolve()
    for line in Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
        _, mount, file_system, *_ = line.split()
        mount = mount.replace("\\040", " ")
        if len(mount) >= len(best) and real.is_relative_to(mount):
            best, kind = mount, file_system
    return kind


def _limits() -> Iterator[Check]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < _LEAST_FILES:
        advice = f"A shuffle opens many files: ulimit -n {_LEAST_FILES * 4} (limits.conf, or LimitNOFILE in systemd)."
        yield Check("open files", Status.WARNING, str(files), advice)
    else:
        yield Check("open files", Status.OK, "unlimited" if files < 0 else str(files))
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        advice = "Memory-mapped files and CUDA reserve much address space: ulimit -v unlimited."
        yield Check("address space", Status.WARNING, f"{space / _GIB:.1f} GiB", advice)
    else:
        yield Check("address space", Status.OK, "unlimited")


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").partition("\n")[0].strip()
    except OSError:
        return ""
