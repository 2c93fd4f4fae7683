"""GPU slots: how many processes of a host may work on one GPU at a time.

A slot is a lock file, held by ``flock``. The kernel drops the lock when its process ends, however it ends, so no slot
is ever lost and none needs to be cleaned up. All processes of one user on one host share the files, whatever
application or executor they belong to; containers share them only if they share the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from gpujoin.errors import ConfigurationError

DIRECTORY_VARIABLE = "GPUJOIN_SLOT_DIR"
"""Environment variable that names the directory of the lock files; it must be the same for all processes of a host."""

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05


def slot_directory() -> Path:
    """Where the lock files of this host and user are.

    ``$GPUJOIN_SLOT_DIR``, else a directory of the user's own under ``/dev/shm`` or ``/tmp``. ``$TMPDIR`` does not
    count: cluster managers give each container its own.
    """
    given = os.environ.get(DIRECTORY_VARIABLE)
    if given:
        return Path(given)
    parent = next((p for p in ("/dev/shm", "/tmp") if os.access(p, os.W_OK | os.X_OK)), "/tmp")  # noqa: S108
    return Path(parent) / f"gpujoin-slots-{os.getuid()}"


@dataclass(slots=True)
class Slot:
    """A held slot; give it back with :meth:`release` or by leaving a ``with`` block.

    Attributes
    ----------
    gpu : str
        The GPU's name, as it was asked for.
    number : int
        Which of its slots.
    waited : float
        Seconds spent waiting for it.
    """

    gpu: str
    number: int
    waited: float
    _file: IO[bytes] = field(repr=False)

    def release(self) -> None:
        """Give the slot back; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class GpuSlots:
    """The slots of the GPUs of this host.

    Parameters
    ----------
    per_gpu : int
        Slots of each GPU. Processes that give different numbers share the slots that both know.
    directory : Path or None
        Where the lock files are; ``None``: :func:`slot_directory`. Made if it is missing.

    Raises
    ------
    ConfigurationError
        If the directory cannot be made, or others could tamper with it.
    """

    def __init__(self, per_gpu: int, directory: Path | None = None) -> None:
        self.per_gpu = per_gpu
        self.directory = directory or slot_directory()
        _make_private(self.directory)

    def acquire(self, gpus: Sequence[str], timeout: float) -> Slot | None:
        """Take a free slot of any of some GPUs, waiting for one if need be.

        Slots with low numbers are taken first on every GPU, so that processes spread over the GPUs.

        Parameters
        ----------
        gpus : sequence of str
            Names that mean the same GPU to all processes: an index of the driver, or a UUID.
        timeout : float
            Seconds to wait at most; zero tries once.

        Returns
        -------
        Slot or None
            ``None`` if all slots stayed taken.
        """
        start = time.monotonic()
        pause = _FIRST_PAUSE
        marked: set[str] = set()
        with contextlib.ExitStack() as waiting:
            while True:
                for number in range(self.per_gpu):
                    for gpu in gpus:
                        file = self._try_lock(self._path(gpu, f"slot-{number}"), fcntl.LOCK_EX)
                        if file is not None:
                            return Slot(gpu, number, time.monotonic() - start, file)
                left = timeout - (time.monotonic() - start)
                if left <= 0:
                    return None
                for gpu in gpus:
                    if gpu not in marked:
                        mark = self._try_lock(self._path(gpu, "waiting"), fcntl.LOCK_SH)
                        if mark is not None:
                            waiting.enter_context(mark)
                            marked.add(gpu)
                time.sleep(min(pause, left))
                pause = min(2 * pause, _LONGEST_PAUSE)

    def wanted(self, gpu: str) -> bool:
        """Whether some process waits for a slot of a GPU now."""
        file = self._try_lock(self._path(gpu, "waiting"), fcntl.LOCK_EX)
        if file is None:
            return True
        file.close()
        return False

    def held(self, gpu: str) -> int:
        """How many slots of a GPU are taken now, by any process."""
        taken = 0
        for number in range(self.per_gpu):
            file = self._try_lock(self._path(gpu, f"slot-{number}"), fcntl.LOCK_EX)
            if file is None:
                taken += 1
            else:
                file.close()
        return taken

    def _path(self, gpu: str, name: str) -> Path:
        return self.directory / f"gpu-{re.sub(r'[^A-Za-z0-9._-]', '_', gpu)}.{name}"

    @staticmethod
    def _try_lock(path: Path, kind: int) -> IO[bytes] | None:
        try:
            file = path.open("ab")
        except OSError as problem:
            raise ConfigurationError(
                f"GPU slot file {path} cannot be opened: {problem.strerror}. Make it writable for this user, or name "
                f"another directory in ${DIRECTORY_VARIABLE}."
            ) from problem
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError:
            file.close()
            raise
        return file


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()
    except OSError as problem:
        raise ConfigurationError(
            f"GPU slot directory {directory} cannot be made: {problem.strerror}. Name another one in "
            f"${DIRECTORY_VARIABLE}."
        ) from problem
    shared_on_purpose = os.environ.get(DIRECTORY_VARIABLE) == str(directory)
    foreign = found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode)
    if foreign and not shared_on_purpose:
        raise ConfigurationError(
            f"GPU slot directory {directory} belongs to another user or is a link. Remove it, or name another one in "
            f"${DIRECTORY_VARIABLE}."
        )
