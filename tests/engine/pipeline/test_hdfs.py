"""Scans of files in HDFS, by PyArrow and a stand-in for Hadoop's library; no real HDFS is part of the tests."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from gpujoin.engine.pipeline.support import read_footers
from gpujoin.errors import ScanError
from gpujoin.model.files import Store, StoreKind
from gpujoin.model.relations import FileFormat, FileSlice, Scan
from gpujoin.plan.scanned import plan_range_splits, plan_splits
from gpujoin.storage import locations
from gpujoin.storage.locations import comparable_ms, in_store
from gpujoin.testing import assert_same_rows
from tests.engine.pipeline.places import run, whole
from tests.hdfs import Hdfs, library_folder, running

TABLE = pa.table({"n": range(1000), "s": [f"text {n % 7}" for n in range(1000)]})
SCAN = Scan(TABLE.schema)
STORE = Store(StoreKind.HDFS, (("host", "hdfs://nn:8020"), ("user", "ann")), settings=(("dfs.x", "1"),))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library_folder(tmp_path_factory.mktemp("library"))


@pytest.fixture
def hdfs(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hdfs]:
    yield from running(library, tmp_path, monkeypatch)


def put(hdfs: Hdfs, key: str, table: pa.Table = TABLE) -> str:
    local = hdfs.root / "nn" / key
    local.parent.mkdir(parents=True, exist_ok=True)
    if local.suffix == ".orc":
        orc.write_table(table, local)
    else:
        pq.write_table(table, local, row_group_size=150)
    return in_store(STORE, f"nn:8020/{key}")


def rows_of(scan: Scan, path: str) -> pa.Table:
    (footer,) = read_footers(scan, [path])
    (split,) = plan_splits([whole(footer)], [footer], 1, 1 << 40)
    return pa.Table.from_batches(run(replace(scan, slices=split)), TABLE.schema)


def test_files_are_read_by_row_groups_and_by_ranges(hdfs: Hdfs) -> None:
    path = put(hdfs, "a b/k=1/x.parquet")
    (footer,) = read_footers(SCAN, [path])
    assert (footer.path, sum(footer.rows)) == (path, 1000)
    modified_ms = (hdfs.root / "nn/a b/k=1/x.parquet").stat().st_mtime_ns // 1_000_000
    assert footer.modified_ms == comparable_ms(path, modified_ms), "whole seconds, as of what Spark has listed"
    file = FileSlice(path, footer.size, footer.modified_ms)
    for splits in (plan_splits([whole(footer)], [footer], 3, 1 << 40), plan_range_splits([file], 1.0, 100, 3, 1 << 40)):
        assert len(splits) == 3
        parts = [batch for split in splits for batch in run(replace(SCAN, slices=split))]
        assert_same_rows(pa.Table.from_batches(parts, TABLE.schema), TABLE)
    assert hdfs.connections == ["hdfs://nn:8020 0 ann - dfs.x=1"], "one, as the driver has said"


def test_orc_files_are_read(hdfs: Hdfs) -> None:
    scan = replace(SCAN, format=FileFormat.ORC)
    assert_same_rows(rows_of(scan, put(hdfs, "x.orc")), TABLE)


def test_a_ticket_cache_is_handed_to_the_client(hdfs: Hdfs) -> None:
    put(hdfs, "x.parquet")
    store = replace(STORE, arguments=(*STORE.arguments, ("kerb_ticket", "/tickets/ann")))
    assert read_footers(SCAN, [in_store(store, "nn:8020/x.parquet")])
    assert hdfs.connections == ["hdfs://nn:8020 0 ann /tickets/ann dfs.x=1"]


@pytest.mark.parametrize("own", [None, "-Xrs -Xmx1g"], ids=["unset", "set by the user"])
def test_java_leaves_signals_and_memory_alone(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch, own: str | None) -> None:
    monkeypatch.delenv("LIBHDFS_OPTS", raising=False)
    if own is not None:
        monkeypatch.setenv("LIBHDFS_OPTS", own)
    assert read_footers(SCAN, [put(hdfs, "x.parquet")])
    assert hdfs.java_options == (own or "-Xrs -Xmx512m")


def test_files_that_are_gone_or_changed_are_named(hdfs: Hdfs) -> None:
    path = put(hdfs, "x.parquet")
    (footer,) = read_footers(SCAN, [path])
    (split,) = plan_splits([whole(footer)], [footer], 1, 1 << 40)
    put(hdfs, "x.parquet", TABLE.slice(1))
    with pytest.raises(ScanError, match=r"x.parquet: has changed since the query was planned"):
        list(run(replace(SCAN, slices=split)))
    (hdfs.root / "nn/x.parquet").unlink()
    with pytest.raises(ScanError, match=r"x.parquet: there is no such object; was it removed"):
        list(run(replace(SCAN, slices=split)))


def test_an_error_in_the_middle_of_a_file_names_it_and_later_reads_go_on(hdfs: Hdfs) -> None:
    path = put(hdfs, "x.parquet")
    (footer,) = read_footers(SCAN, [path])
    (split,) = plan_splits([whole(footer)], [footer], 1, 1 << 40)
    hdfs.fail("read", errno.EIO, position=footer.size // 2)
    with pytest.raises(ScanError, match=r"hdfs://.*/x.parquet: .*(Input/output error|errno 5)"):
        list(run(replace(SCAN, slices=split)))
    hdfs.mend()
    assert_same_rows(pa.Table.from_batches(run(replace(SCAN, slices=split)), TABLE.schema), TABLE)
    assert len(hdfs.connections) == 1, "Hadoop's client connects anew by itself"


def test_a_name_node_that_does_not_answer_is_not_taken_for_a_missing_file(hdfs: Hdfs) -> None:
    path = put(hdfs, "x.parquet")
    for call in ("info", "open"):
        hdfs.fail(call, errno.ETIMEDOUT)
    with pytest.raises(ScanError, match=r"x.parquet: .*(timed out|errno 110)"):
        read_footers(SCAN, [path])
    hdfs.mend()
    assert read_footers(SCAN, [path])


def test_a_client_that_does_not_connect_is_tried_again_by_the_next_query(hdfs: Hdfs) -> None:
    path = put(hdfs, "x.parquet")
    hdfs.fail("connect", errno.ECONNREFUSED)
    with pytest.raises(ScanError, match=r"x.parquet: no connection to hdfs://nn:8020 as ann .*set CLASSPATH"):
        read_footers(SCAN, [path])
    hdfs.mend()
    assert read_footers(SCAN, [path])


def test_threads_share_a_connection(hdfs: Hdfs) -> None:
    paths = [put(hdfs, f"{number}.parquet") for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert len({facts.size for facts in pool.map(locations.facts, paths)}) == 1
    assert len(hdfs.connections) == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "libhdfs.so was not loaded; set HADOOP_HOME"), (b"x", "libhdfs.so was not loaded: .*short.*HADOOP_HOME")],
    ids=["no library", "a broken library"],
)
def test_what_has_to_be_set_is_said_each_time(library: Path, tmp_path: Path, content: bytes | None, told: str) -> None:
    del library  # for its skips
    if content is not None:
        (tmp_path / "libhdfs.so").write_bytes(content)
    program = """
from gpujoin.storage import locations
from gpujoin.errors import ScanError
from gpujoin.model.files import Store, StoreKind
path = locations.in_store(Store(StoreKind.HDFS, (("host", "hdfs://nn"), ("user", "ann"))), "nn/x.parquet")
for _ in range(2):
    try:
        locations.facts(path)
    except ScanError as problem:
        print(problem)
"""
    environment = {**os.environ, "ARROW_LIBHDFS_DIR": str(tmp_path)}
    environment.pop("HADOOP_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert re.search(rf"/x.parquet: {told}", lines[0])
