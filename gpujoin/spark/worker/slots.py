"""GPU slots: how many processes of a host may work on one GPU at a time.

A slot is a lock file, held by ``flock``. The kernel drops the lock when its process ends, however it ends, so no slot
is ever lost and none needs to be cleaned up. All processes of one user on one host share the files, whatever
application or executor they belong to; containers share them only if they share the directory.

The workers of one task's stages share a slot: the upper one waits for the rows of the lower one, which holds its slot
until those are taken. The first worker's mark, a file of the task's name, says which slot that is.

A process keeps its CUDA context, and the memory that this takes, between tasks. It says so by a file that it holds as
long as it lives, so all processes know what the contexts on a GPU take together. By another such file it says what
tables it keeps there, and in which slot's share of the memory: that of the slot which it held last.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from gpujoin.errors import ConfigurationError
from gpujoin.logs import log
from gpujoin.storage.folders import tampering_risk

DIRECTORY_VARIABLE = "GPUJOIN_SLOT_DIR"
"""Environment variable that names the directory of the lock files; it must be the same for all processes of a host."""

_PARENTS = ("/dev/shm", "/tmp", "/var/tmp")  # noqa: S108  # a folder there is checked before it is used
_MARKS, _CONTEXTS = "marks", "contexts"
"""Files that are locked while marks of tasks, or files of contexts, are looked at."""
_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05


def slot_directory() -> Path:
    """Where the lock files of this host and user are.

    ``$GPUJOIN_SLOT_DIR``, else a directory of the user's own under ``/dev/shm``, ``/tmp`` or ``/var/tmp``: the first
    that no other user could change, so that all processes come to the same. ``$TMPDIR`` does not count: cluster
    managers give each container its own.
    """
    configured = os.environ.get(DIRECTORY_VARIABLE)
    if configured:
        return Path(configured)
    risks: list[str] = []
    for parent in _PARENTS:
        directory = Path(parent) / f"gpujoin-slots-{os.getuid()}"
        if not os.access(parent, os.W_OK | os.X_OK):
            continue
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        risk = tampering_risk(directory)
        if risk is None:
            for text in risks:
                log.warning("GPU slots are kept in %s: %s", directory, text)
            return directory
        risks.append(f"{directory} is not safe, {risk}")
    return Path(_PARENTS[-1]) / f"gpujoin-slots-{os.getuid()}"


def task_name(attempt: int) -> str:
    """A name of a Spark task attempt that is the same in all its Python workers, and no other's on this host.

    Attempts are numbered within an application, whose executor starts the workers of all stages from one process.
    """
    try:
        namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        namespace = "host"
    return f"{namespace}-{os.getppid()}-{attempt}"


@dataclass(slots=True)
class Slot:
    """A held slot; give it back with :meth:`release` or by leaving a ``with`` block."""

    gpu: str
    """The GPU's name, as it was asked for."""
    number: int
    """Which of its slots."""
    waited: float
    """Seconds spent waiting for it."""
    _file: IO[bytes] = field(repr=False)
    shared: bool = False
    """Whether it was joined: another worker of the task held it already."""
    _mark: IO[bytes] | None = field(default=None, repr=False)

    def release(self) -> None:
        """Give the slot back, unless another worker of the task has it still; a second call does nothing."""
        if self._mark is not None and not self._mark.closed:
            # Before the slot: who finds the mark held knows that the slot is the task's.
            with _alone(Path(self._mark.name).parent, _MARKS):
                _let_go(self._mark)
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class GpuSlots:
    """The slots of the GPUs of this host, as lock files in a directory; by default :func:`slot_directory`.

    Processes with different ``per_gpu`` share the slots of the lower numbers. Raises ``ConfigurationError`` if the
    directory cannot be made, or others could tamper with it.
    """

    def __init__(self, per_gpu: int, directory: Path | None = None) -> None:
        self.per_gpu = per_gpu
        self.directory = directory or slot_directory()
        _make_private(self.directory)

    def acquire(
        self, gpus: Sequence[str], timeout: float, task: str | None = None, preferred: Sequence[str] = ()
    ) -> Slot | None:
        """Take a free slot of any of some GPUs, waiting for up to ``timeout`` seconds; ``None`` if all stayed taken.

        A GPU has one name for all processes: an index of the driver, or a UUID. Slots with low numbers are taken
        first on every GPU, so that processes spread over the GPUs; but any slot of a ``preferred`` GPU comes before
        those of others. If another worker of the task holds a slot of one of the GPUs, that one is joined, without
        waiting.
        """
        groups = preferred, [gpu for gpu in gpus if gpu not in preferred]
        order = [place for group in groups for place in itertools.product(range(self.per_gpu), group)]
        start = time.monotonic()
        pause = _FIRST_PAUSE
        while True:
            if task is None:
                slot = self._free(order, None, start)
            else:
                mark = self.directory / f"task-{_plain(task)}"
                with _alone(self.directory, _MARKS):
                    slot = self._join(gpus, mark, start) or self._free(order, mark, start)
            if slot is not None:
                return slot
            left = timeout - (time.monotonic() - start)
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def count_held(self, gpu: str) -> int:
        """How many slots of a GPU are taken now, by any process."""
        count = 0
        for number in range(self.per_gpu):
            file = self._try_lock(self._path(gpu, f"slot-{number}"), fcntl.LOCK_EX)
            if file is None:
                count += 1
            else:
                file.close()
        return count

    def count_context(self, gpu: str, nbytes: int) -> IO[bytes]:
        """Count this process's memory of a GPU until it ends, or the returned file is closed."""
        with _alone(self.directory, _CONTEXTS):
            file = self._own_file(gpu, "context")
            _write(file, str(nbytes))
            return file

    def context_bytes(self, gpu: str) -> int:
        """Sum the bytes of the contexts of living processes on a GPU, and remove the files of others."""
        with _alone(self.directory, _CONTEXTS):
            return sum(numbers[0] for _, numbers in self._files(gpu, "context"))

    def kept_file(self, gpu: str) -> IO[bytes]:
        """Make a file for :meth:`keep`, which counts until this process ends or the file is closed."""
        with _alone(self.directory, _CONTEXTS):
            return self._own_file(gpu, "kept")

    def keep(self, slot: Slot, own: IO[bytes], room: int, fit: Callable[[int], int]) -> None:
        """Note the bytes that this process keeps in a slot's share of the memory.

        Parameters
        ----------
        slot : Slot
            The slot, held.
        own : file
            That of :meth:`kept_file`.
        room : int
            Bytes that all processes together may keep there.
        fit : callable
            Keeps at most the bytes that are left, and gives those that are kept.
        """
        with _alone(self.directory, _CONTEXTS):
            others = sum(
                nbytes for path, (nbytes, number) in self._files(slot.gpu, "kept")
                if number == slot.number and path.name != Path(own.name).name
            )  # fmt: skip
            _write(own, f"{fit(max(0, room - others))} {slot.number}")

    def _own_file(self, gpu: str, kind: str) -> IO[bytes]:
        """A file that this process alone holds."""
        number = 0
        while (file := self._try_lock(self._path(gpu, f"{kind}-{number}"), fcntl.LOCK_EX)) is None:
            number += 1
        file.truncate(0)
        return file

    def _files(self, gpu: str, kind: str) -> Iterator[tuple[Path, list[int]]]:
        """The files of a kind that living processes hold, with the numbers in them; others are removed."""
        for path in self.directory.glob(self._path(gpu, f"{kind}-*").name):
            file = self._try_lock(path, fcntl.LOCK_EX)
            if file is not None:
                file.close()
                path.unlink(missing_ok=True)
                continue
            with contextlib.suppress(OSError, ValueError):
                numbers = [int(part) for part in path.read_bytes().split()]
                if numbers:
                    yield path, numbers

    def _free(self, order: Sequence[tuple[int, str]], mark: Path | None, start: float) -> Slot | None:
        """Lock the first slot that nobody holds, by number and GPU, and mark it for a task."""
        for number, gpu in order:
            file = self._try_lock(self._path(gpu, f"slot-{number}"), fcntl.LOCK_EX)
            if file is None or (mark is not None and not _opened_to_others(file)):
                continue
            marked = None if mark is None else self._mark_task(mark, gpu, number)
            return Slot(gpu, number, time.monotonic() - start, file, _mark=marked)
        return None

    def _join(self, gpus: Sequence[str], path: Path, start: float) -> Slot | None:
        """A share of the slot that another worker of the task holds."""
        if not self._is_held(path):
            return None
        try:
            with _open(path) as file_of_mark:
                file_of_mark.seek(0)
                gpu, number = file_of_mark.read().decode().split("\n")
        except ValueError:
            return None
        if gpu not in gpus:
            return None
        file = self._try_lock(self._path(gpu, f"slot-{number}"), fcntl.LOCK_SH)
        if file is None:
            return None
        # Still marked after it was locked: nobody else had it in between.
        if not self._is_held(path):
            file.close()
            return None
        mark = _open(path)
        fcntl.flock(mark, fcntl.LOCK_SH)
        return Slot(gpu, int(number), time.monotonic() - start, file, shared=True, _mark=mark)

    def _mark_task(self, path: Path, gpu: str, number: int) -> IO[bytes] | None:
        """The task's mark, held; ``None`` if another worker's stands."""
        mark = self._try_lock(path, fcntl.LOCK_EX)
        if mark is None:
            return None
        mark.truncate(0)
        mark.write(f"{gpu}\n{number}".encode())
        mark.flush()
        fcntl.flock(mark, fcntl.LOCK_SH)
        return mark

    def _is_held(self, path: Path) -> bool:
        if not path.exists():
            return False
        file = self._try_lock(path, fcntl.LOCK_EX)
        if file is None:
            return True
        file.close()
        return False

    def _path(self, gpu: str, name: str) -> Path:
        return self.directory / f"gpu-{_plain(gpu)}.{name}"

    @staticmethod
    def _try_lock(path: Path, kind: int) -> IO[bytes] | None:
        file = _open(path)
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError:
            file.close()
            raise
        return file


def _open(path: Path) -> IO[bytes]:
    """Open a file of a slot, made if need be; neither through a link nor waiting for the other end of a pipe.

    Raises ``ConfigurationError`` if it cannot be opened, or is no plain file.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)

    advice = f"Make it a file that this user may write to, or name another directory in ${DIRECTORY_VARIABLE}."
    try:
        file = open(path, "a+b", buffering=0, opener=opener)  # noqa: SIM115  # the slot closes it
    except OSError as problem:
        raise ConfigurationError(
            f"GPU slot file {path} cannot be opened: {problem.strerror or problem}. {advice}"
        ) from problem
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ConfigurationError(f"GPU slot file {path} is no plain file. {advice}")
    return file


def _write(file: IO[bytes], text: str) -> None:
    """Replace the content of a file."""
    file.truncate(0)
    file.write(text.encode())


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _opened_to_others(file: IO[bytes]) -> bool:
    """Hold a slot so that other workers of the task may hold it too, and nobody can take it as free."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    return True


@contextlib.contextmanager
def _alone(directory: Path, what: str) -> Iterator[None]:
    """Wait until no other process looks at, makes or removes marks, or contexts, whose files it locks for a moment."""
    with _open(directory / what) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _let_go(mark: IO[bytes]) -> None:
    """Close a mark, and remove it with its last holder."""
    with contextlib.suppress(OSError):
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(mark.name).unlink(missing_ok=True)
    mark.close()


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        risk = tampering_risk(directory)
    except OSError as problem:
        raise ConfigurationError(
            f"GPU slot directory {directory} cannot be made: {problem.strerror}. Name another one in "
            f"${DIRECTORY_VARIABLE}."
        ) from problem
    shared_on_purpose = os.environ.get(DIRECTORY_VARIABLE) == str(directory)
    if risk is not None and not shared_on_purpose:
        raise ConfigurationError(
            f"GPU slot directory {directory} is not safe: {risk}. Remove it, or name another one in "
            f"${DIRECTORY_VARIABLE}."
        )
