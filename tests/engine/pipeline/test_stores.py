"""Scans of files in a store that speaks S3: a server of this process that gives a folder's files."""

from __future__ import annotations

import email.utils
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.engine.pipeline.support import read_footers
from gpujoin.errors import ScanError
from gpujoin.model.expressions import EvalMode, left
from gpujoin.model.files import Store as StoreValue
from gpujoin.model.files import StoreKind
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import Scan
from gpujoin.plan.resolve import resolve
from gpujoin.plan.scanned import plan_splits
from gpujoin.storage import locations as stores
from gpujoin.testing import assert_same_rows
from tests.engine.pipeline.places import everywhere, run, whole
from tests.expressions.values import VALUES

KINDS = [kind for kind in VALUES if kind != "struct"]


class Store(BaseHTTPRequestHandler):
    """The part of S3 that reading takes: ``HEAD`` and ``GET`` of an object, whole, a range of bytes or its last."""

    root: Path
    failures: ClassVar[list[int]] = []
    """Status codes of the answers to come, before others."""
    seen: ClassVar[list[str]] = []
    """Who has asked: the headers of requests."""
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        self.seen.append(self.headers.get("Authorization", ""))
        if self.failures:
            self.send_response(self.failures.pop())
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        file = self.root / urllib.parse.unquote(self.path.partition("?")[0]).lstrip("/")
        if not file.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = file.read_bytes()
        first, last = 0, len(data) - 1
        asked = self.headers.get("Range")
        if asked is not None:
            start, _, end = asked.removeprefix("bytes=").partition("-")
            if start:
                first, last = int(start), min(last, int(end or last))
            else:
                first = max(0, len(data) - int(end))
        self.send_response(200 if asked is None else 206)
        self.send_header("Content-Length", str(last - first + 1))
        if asked is not None:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Last-Modified", email.utils.formatdate(file.stat().st_mtime, usegmt=True))
        self.send_header("ETag", '"1"')
        self.end_headers()
        if body:
            self.wfile.write(data[first : last + 1])

    def log_message(self, *args: object) -> None:
        del args


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the store has as its bucket ``data``."""
    folder = tmp_path / "data"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (Store,), {"root": tmp_path}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    stores._opened.cache_clear()
    yield folder
    stores._opened.cache_clear()
    server.shutdown()
    server.server_close()


@everywhere
def test_every_type(bucket: Path) -> None:
    chosen = {kind: VALUES[kind] for kind in KINDS}
    rows = max(len(values) for _, values in chosen.values())
    table = pa.table({k: pa.array((list(v) * rows)[:rows], dtype) for k, (dtype, v) in chosen.items()}).append_column(
        "n", pa.array(range(rows), pa.int64())
    )
    pq.write_table(table, bucket / "a b.parquet", coerce_timestamps="us", row_group_size=3)
    scan = Scan(table.schema)
    (footer,) = read_footers(scan, ["s3://data/a b.parquet"])
    (split,) = plan_splits([whole(footer)], [footer], 1, 1 << 40)
    metrics = PipelineMetrics()
    condition = resolve(left("n") >= 3, table.schema, table.schema, mode=EvalMode.ANSI)
    read = pa.Table.from_batches(run(replace(scan, slices=split, filters=(condition,)), metrics=metrics), table.schema)
    assert_same_rows(read, table.slice(3))
    assert metrics.skipped_row_groups == 1


def test_objects_that_are_gone_or_changed(bucket: Path) -> None:
    table = pa.table({"n": [1, 2, 3]})
    pq.write_table(table, bucket / "x.parquet")
    scan = Scan(table.schema)
    (footer,) = read_footers(scan, ["s3://data/x.parquet"])
    (split,) = plan_splits([whole(footer)], [footer], 1, 1 << 40)
    pq.write_table(pa.table({"n": range(1000)}), bucket / "x.parquet")
    with pytest.raises(ScanError, match=r"s3://data/x.parquet: has changed since the query was planned"):
        list(run(replace(scan, slices=split)))
    (bucket / "x.parquet").unlink()
    with pytest.raises(ScanError, match=r"s3://data/x.parquet: .*removed"):
        list(run(replace(scan, slices=split)))
    (bucket / "y.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(ScanError, match=r"s3://data/y.parquet: no readable Parquet file"):
        read_footers(scan, ["s3://data/y.parquet"])


def test_a_store_that_is_busy_is_asked_again_and_then_the_object_is_named(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"n": range(100)})
    pq.write_table(table, bucket / "x.parquet")
    monkeypatch.setattr(Store, "failures", [503, 500])
    (footer,) = read_footers(Scan(table.schema), ["s3://data/x.parquet"])
    assert not Store.failures
    (split,) = plan_splits([whole(footer)], [footer], 1, 1 << 40)
    monkeypatch.setattr(stores, "_ATTEMPTS", 2)
    stores._opened.cache_clear()
    monkeypatch.setattr(Store, "failures", [503] * 50)
    with pytest.raises(ScanError, match=r"s3://data/x.parquet: .*503"):
        list(run(replace(Scan(table.schema), slices=split)))
    assert len(Store.failures) == 48


def test_requests_are_made_in_the_name_of_whom_the_driver_was_told(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"n": range(100)})
    pq.write_table(table, bucket / "x.parquet")
    keys = (("access_key", "SOMEBODY"), ("secret_key", "k"))
    for store, who in (
        (StoreValue(StoreKind.S3), "Credential=a/"),
        (StoreValue(StoreKind.S3, (), keys), "Credential=SOMEBODY/"),
        (StoreValue(StoreKind.S3, (("anonymous", True),)), ""),
    ):
        monkeypatch.setattr(Store, "seen", [])
        (footer,) = read_footers(Scan(table.schema), [stores.in_store(store, "data/x.parquet")])
        assert footer.rows == (100,)
        assert Store.seen
        assert all(who in header and bool(header) == bool(who) for header in Store.seen)


def test_names() -> None:
    plain = StoreValue(StoreKind.S3)
    assert not stores.is_local(stores.in_store(plain, "bucket/a b/c=1/x.parquet"))
    assert stores.in_store(plain, "bucket/a%20b") == "s3://bucket/a%20b"
    assert stores.is_local("/s3:/x")
