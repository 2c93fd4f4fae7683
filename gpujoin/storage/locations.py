"""Opens files in the local file system, in an object store or in HDFS, by PyArrow.

A file in a store has a URI, ``s3://bucket/key``; any other path is local. Endpoint, region and credentials are found
as the store's own tools do: in the environment, a profile, or the machine's role. Where the query's driver was told
others, the store has a name, made up at random, and its files have URIs ``s3://name@bucket/key``. A process knows
what the name stands for because its driver has told it (:func:`know_stores`).

HDFS is opened by PyArrow, which loads Hadoop's C library; where it cannot, the error says what is missing.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from gpujoin.errors import ScanError
from gpujoin.logs import log
from gpujoin.model.files import Store, StoreKind
from gpujoin.model.relations import FileSlice

Answer = TypeVar("Answer")

_SCHEMES = {f"{kind.value}://": kind for kind in StoreKind}
_ATTEMPTS = 6
"""How often a request to S3 is tried; the AWS SDK waits up to 20 s between tries, about twice as long each time."""
_GCS_SECONDS = dt.timedelta(seconds=60)
"""How long a request to GCS is tried, as long as S3's tries take. Azure's client has its own number."""
_BROKEN_OFF = "Error while reading from network socket"
"""In the error of Azure's client, which tries again where there is no answer, but not where one breaks off."""
_WAITS_S = (0.8, 1.6)
"""Before requests that are made again here: the first waits of Azure's client between its own tries."""
_SECOND_MS = 1000

_SECONDS = tuple(f"{kind.value}://" for kind in (StoreKind.S3, StoreKind.AZURE, StoreKind.HDFS))
"""Schemes of the stores that tell modification times in whole seconds."""

_lock = threading.Lock()
_connecting = threading.Lock()
"""Held while HDFS is opened: threads that want the same one share a connection."""
_stores: dict[str, Store] = {}
"""Stores that are not plain, by name."""


@dataclass(frozen=True)
class FileFacts:
    """Size and modification time of a file, by which a changed file is noticed."""

    size: int
    modified_ms: int
    """Modification time, in milliseconds since 1970, as :func:`comparable_ms` has it."""


def is_local(path: str) -> bool:
    """Whether a path is in the local file system."""
    return not path.startswith(tuple(_SCHEMES))


def in_store(store: Store, rest: str) -> str:
    """Path of a file in a store, given its bucket and key, which this process can open from now on."""
    name = "" if store.is_plain else f"{_name_of(store)}@"
    return f"{store.kind.value}://{name}{rest}"


def _name_of(store: Store) -> str:
    with _lock:
        alias = next((name for name, other in _stores.items() if other == store), None)
        if alias is None:
            alias = secrets.token_hex(4)  # not made of the secrets
            _stores[alias] = store
        return alias


def stores_named(names: frozenset[str]) -> dict[str, Store]:
    """Stores by their names, to be told to another process."""
    with _lock:
        return {name: _stores[name] for name in names}


def name_in(path: str) -> str | None:
    """Give the name of a path's store; ``None`` if the path is local, or in a store without a name."""
    name, at, _ = path.partition("://")[2].partition("/")[0].rpartition("@")
    return name if at and not is_local(path) else None


def know_stores(stores: Mapping[str, Store]) -> None:
    """Remember stores by the names that the driver has given them."""
    with _lock:
        _stores.update(stores)


def comparable_ms(path: str, modified_ms: int) -> int:
    """Give a modification time that Hadoop has listed as :func:`facts` would: where they exist, in whole seconds.

    The headers of S3 and Azure have seconds, some of their listings more; so has HDFS to PyArrow.
    """
    if path.startswith(_SECONDS):
        return modified_ms // _SECOND_MS * _SECOND_MS
    return modified_ms


def facts(path: str) -> FileFacts:
    """Read the facts of a file. Raises ``ScanError`` if the file does not exist, or may not be read."""
    gone = "was it removed since the query was planned?"
    try:
        if is_local(path):
            stat = Path(path).stat()
            return FileFacts(stat.st_size, stat.st_mtime_ns // 1_000_000)
        with _without_secrets(path) as (store, name):
            stored = _unbroken(lambda: store.get_file_info(name))
            if stored.type is pafs.FileType.NotFound and isinstance(store, pafs.HadoopFileSystem):
                check_missing(store, name)
    except ScanError:
        raise
    except (OSError, pa.ArrowException) as problem:
        raise ScanError(f"{path}: {getattr(problem, 'strerror', None) or problem}; {gone}") from problem
    if stored.type is not pafs.FileType.File:
        raise ScanError(f"{path}: there is no such object; {gone}")
    return FileFacts(int(stored.size), comparable_ms(path, stored.mtime_ns // 1_000_000))


def check_unchanged(part: FileSlice) -> None:
    """Raise if a file has changed since it was planned.

    Raises ``ScanError`` if its size or modification time differs, or it was removed.
    """
    current = facts(part.path)
    if current.size != part.size or part.modified_ms not in (None, current.modified_ms):
        raise ScanError(
            f"{part.path}: has changed since the query was planned: {current.size} bytes of {current.modified_ms} ms, "
            f"planned {part.size} bytes of {part.modified_ms} ms. Run the query again, after refreshing its tables"
        )


def has_changed(part: FileSlice) -> bool:
    """Tell whether a file is no longer the planned one."""
    try:
        check_unchanged(part)
    except ScanError:
        return True
    return False


def open_binary(path: str) -> Any:
    """Open a local file, or one in a store, for reading and seeking. The caller closes it.

    Raises ``OSError`` or ``pyarrow.ArrowException`` if the file does not exist, or may not be read.
    """
    if is_local(path):
        return Path(path).open("rb")
    with _without_secrets(path) as (store, name):
        return _unbroken(lambda: store.open_input_file(name))


def _unbroken(ask: Callable[[], Answer]) -> Answer:
    """Ask again if an answer breaks off."""
    for wait in _WAITS_S:
        try:
            return ask()
        except OSError as problem:
            if _BROKEN_OFF not in str(problem):
                raise
        time.sleep(wait)
    return ask()


@contextmanager
def _without_secrets(path: str) -> Iterator[tuple[pafs.FileSystem, str]]:
    """Give the store of a file, and the file's name there; errors are told without secrets.

    Raises ``ScanError`` if this process does not know the store, or cannot open HDFS.
    """
    kind = next(kind for scheme, kind in _SCHEMES.items() if path.startswith(scheme))
    rest, name = path.partition("://")[2], name_in(path)
    if name is None:
        store = Store(kind)
    else:
        rest = rest.removeprefix(f"{name}@")
        with _lock:
            own_store = _stores.get(name)
        if own_store is None:
            raise ScanError(f"{path}: this process was not told which store {name!r} is")
        store = own_store
    bucket, _, key = rest.partition("/")
    is_hdfs = store.kind is StoreKind.HDFS
    try:
        with _connecting if is_hdfs else nullcontext():
            opened = _opened(store, bucket)
        yield opened, f"/{key}" if is_hdfs else rest
    except UnavailableError as problem:
        raise ScanError(f"{path}: {problem}") from problem
    except (OSError, pa.ArrowException) as problem:
        text = str(problem)
        if not any(secret in text for _, secret in store.secrets):
            raise
        for _, secret in store.secrets:
            text = text.replace(secret, "***")
        raise OSError(text) from None


@functools.cache
def _opened(store: Store, bucket: str) -> pafs.FileSystem:
    arguments: dict[str, Any] = {**dict(store.arguments), **dict(store.secrets)}
    match store.kind:
        case StoreKind.HDFS:
            return open_hdfs(settings=dict(store.settings), **arguments)
        case StoreKind.GCS:
            return pafs.GcsFileSystem(retry_time_limit=_GCS_SECONDS, **arguments)
        case StoreKind.AZURE:
            return pafs.AzureFileSystem(**arguments)
        case _:
            return _opened_s3(bucket, arguments)


def _opened_s3(bucket: str, arguments: dict[str, Any]) -> pafs.FileSystem:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if "endpoint_override" not in arguments and endpoint:
        scheme, _, host = endpoint.rpartition("://")
        arguments |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
    located = "region" in arguments or "endpoint_override" in arguments
    if not located and not os.environ.get("AWS_REGION") and not os.environ.get("AWS_DEFAULT_REGION"):
        arguments["region"] = pafs.resolve_s3_region(bucket)
    return pafs.S3FileSystem(retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS), **arguments)


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
        message = str(problem)
        if message.startswith(_NOT_LOADED):
            log.debug("HDFS cannot be read: %s", message)
            _not_loaded[:] = [_of_library(message)]
        if _not_loaded and message.startswith((_NOT_LOADED, _TRIED_BEFORE)):
            raise UnavailableError(_not_loaded[0]) from None
        # Hadoop's own words are on standard error.
        raise UnavailableError(f"no connection to {host} as {user} ({message}); {_CLASSES}") from problem


def check_missing(files: pafs.FileSystem, name: str) -> None:
    """Raise ``OSError`` if a file that HDFS did not list may exist all the same.

    Of whatever failed, PyArrow's facts say that there is no such file. Opening it tells the error.
    """
    try:
        files.open_input_file(name).close()
    except FileNotFoundError:
        return


def _of_library(message: str) -> str:
    """Say in one line which library PyArrow could not load."""
    first, *tried = message.splitlines()
    library = first.removeprefix(_NOT_LOADED).partition(":")[0].strip()
    broken = [line.strip() for line in tried if _ABSENT not in line]
    reason = f": {broken[0]}" if broken else ""
    return f"{library}.so was not loaded{reason}; {_REMEDIES.get(library, _CLASSES)}"
