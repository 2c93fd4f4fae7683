"""Opens HDFS by PyArrow, which loads Hadoop's C library, and tells what is missing where it cannot."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from gpujoin.logs import log

_NOT_LOADED = "Unable to load "
_TRIED_BEFORE = "Prior attempt to load libhdfs failed"
"""All that PyArrow says of a library from the second time on."""
_ABSENT = "cannot open shared object file"
_REMEDIES = {
    "libjvm": "set JAVA_HOME to a Java",
    "libhdfs": "set HADOOP_HOME to a Hadoop that has it in lib/native, or ARROW_LIBHDFS_DIR to its folder",
}
_CLASSES = "set CLASSPATH to what `hadoop classpath --glob` prints"

_OPTIONS_VARIABLE = "LIBHDFS_OPTS"
_OPTIONS = "-Xrs -Xmx512m"
"""Options of the Java that the library starts in this process, where the environment has none.

Without ``-Xrs`` Java takes the process's signals, and Ctrl-C ends Python in place of raising ``KeyboardInterrupt``.
Without a limit its heap may grow to a quarter of the machine's memory, in each worker.
"""

_not_loaded: list[str] = []
"""Why the libraries could not be loaded, in one text, if they could not: PyArrow tries once in a process."""


class UnavailableError(OSError):
    """HDFS cannot be read by this process, whatever the file."""


def open_hdfs(host: str, user: str, settings: dict[str, str], kerb_ticket: str | None = None) -> pafs.FileSystem:
    """Connect to the name node with some URI, or to those with some name.

    Raises ``UnavailableError``, with what has to be set, if Hadoop's library or Java's cannot be loaded, or does not
    connect.
    """
    os.environ.setdefault(_OPTIONS_VARIABLE, _OPTIONS)
    arguments: dict[str, Any] = {"user": user, "kerb_ticket": kerb_ticket, "extra_conf": settings or None}
    try:
        return pafs.HadoopFileSystem(host, 0, **arguments)  # the port is in the URI
    except (OSError, pa.ArrowException) as problem:
        told = str(problem)
        if told.startswith(_NOT_LOADED):
            log.debug("HDFS cannot be read: %s", told)
            _not_loaded[:] = [_of_library(told)]
        if _not_loaded and told.startswith((_NOT_LOADED, _TRIED_BEFORE)):
            raise UnavailableError(_not_loaded[0]) from None
        # Hadoop's own words are on standard error.
        raise UnavailableError(f"no connection to {host} as {user} ({told}); {_CLASSES}") from problem


def check_missing(files: pafs.FileSystem, name: str) -> None:
    """Raise ``OSError`` if a file of which HDFS told nothing may be there all the same.

    Of whatever failed, PyArrow's facts say that there is no such file. Opening it tells the error.
    """
    try:
        files.open_input_file(name).close()
    except FileNotFoundError:
        return


def _of_library(told: str) -> str:
    """Say in one line which library was not loaded, of all the places where PyArrow looked for it."""
    first, *tried = told.splitlines()
    library = first.removeprefix(_NOT_LOADED).partition(":")[0].strip()
    broken = [line.strip() for line in tried if _ABSENT not in line]
    reason = f": {broken[0]}" if broken else ""
    return f"{library}.so was not loaded{reason}; {_REMEDIES.get(library, _CLASSES)}"
