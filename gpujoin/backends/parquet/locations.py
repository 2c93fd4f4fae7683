"""Opens Parquet files in the local file system, or in an object store with the S3 protocol.

A file in a store has a URI, ``s3://bucket/key``; any other path is local. PyArrow reads the stores. It finds their
endpoint, region and credentials as AWS's own tools do: in the environment, a profile, or the machine's role.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from gpujoin.errors import ScanError

_STORE = "s3://"


@dataclass(frozen=True)
class FileFacts:
    """Size and modification time of a file, by which a changed file is noticed."""

    size: int
    modified_ms: int
    """Modification time, in milliseconds since 1970; stores have whole seconds."""


def is_local(path: str) -> bool:
    """Whether a path is in the local file system."""
    return not path.startswith(_STORE)


def in_store(rest: str) -> str:
    """Path of a file in a store, given the part of its URI after the scheme and the colon."""
    return _STORE + rest.lstrip("/")


def facts(path: str) -> FileFacts:
    """Read the facts of a file. Raises ``ScanError`` if the file does not exist, or may not be read."""
    gone = "was it removed since the query was planned?"
    try:
        if is_local(path):
            stat = Path(path).stat()
            return FileFacts(stat.st_size, stat.st_mtime_ns // 1_000_000)
        store, name = _stored(path)
        stored = store.get_file_info(name)
    except (OSError, pa.ArrowException) as problem:
        raise ScanError(f"{path}: {getattr(problem, 'strerror', None) or problem}; {gone}") from problem
    if stored.type is not pafs.FileType.File:
        raise ScanError(f"{path}: there is no such object; {gone}")
    return FileFacts(int(stored.size), stored.mtime_ns // 1_000_000_000 * 1000)


def open_binary(path: str) -> Any:
    """Open a local file, or one in a store, for reading and seeking. The caller closes it.

    Raises ``OSError`` or ``pyarrow.ArrowException`` if the file does not exist, or may not be read.
    """
    if is_local(path):
        return Path(path).open("rb")
    store, name = _stored(path)
    return store.open_input_file(name)


@functools.cache
def _store(bucket: str) -> pafs.FileSystem:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        return pafs.S3FileSystem(endpoint_override=host.rstrip("/"), scheme=scheme or "https")
    if os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        return pafs.S3FileSystem()
    return pafs.S3FileSystem(region=pafs.resolve_s3_region(bucket))


def _stored(path: str) -> tuple[pafs.FileSystem, str]:
    """Store of a file, and its name there."""
    name = path.removeprefix(_STORE)
    return _store(name.partition("/")[0]), name
